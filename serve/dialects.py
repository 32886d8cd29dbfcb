"""The forms in which clients send the same request: chat completions, older ones with `functions`, and `/v1/responses`.

The layer reads and changes chat requests; what stands here puts the others into that form and back. All is pure.
"""

import hashlib
import json
import re
from collections.abc import Iterator
from typing import Any, Protocol

import msgspec
from scales import names_verdict

Request = dict[str, Any]
Choice = dict[str, Any]

ANY_TOOL = ""
"""In place of a function's name: the reply says which, as `{"name": …, "arguments": {…}}`."""

BEGUN = re.compile(
    r'\s*\{\s*"name"\s*:\s*(?P<name>"(?:[^"\\]|\\.)*")(?:\s*,\s*"arguments"\s*:\s*(?P<arguments>(?s:.*)))?'
)
"""A call of ANY_TOOL that was cut off behind its name."""

LIMITS = ("n", "max_tokens", "max_completion_tokens")
TEXT_PARTS = (None, "text", "input_text", "output_text", "refusal")


class Unanswerable(ValueError):
    """A request that no reply of this server would answer, in plain words."""


class KnownTurn(msgspec.Struct):
    content: str | list[Any] | None = None


class Known(msgspec.Struct):
    """What is read of a request, and vLLM does not always check."""

    messages: list[KnownTurn] | None = None
    input: str | list[Any] | None = None
    structured_outputs: dict[str, Any] | None = None
    response_format: dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    stream: bool | None = None


class Dialect(Protocol):
    """How one route asks and is answered."""

    turns: str
    cut_off: bytes

    def as_chat(self, request: Request, auto_tools: bool) -> Request: ...
    def from_chat(self, request: Request, before: Request, after: Request) -> Request: ...
    def called(self, request: Request, reply: dict[str, Any], tool: str) -> dict[str, Any]: ...


class Chat:
    turns = "messages"
    cut_off = b'"finish_reason":"length"'

    def as_chat(self, request: Request, auto_tools: bool) -> Request:
        """The request with `functions` as tools, and with the tool that has to be called named. The only one has to,
        if the client requires a call, or if it takes a verdict and vLLM itself (`auto_tools`) reads no calls."""
        chat = request
        if isinstance(request.get("functions"), list) and not request.get("tools"):
            chat = {key: value for key, value in request.items() if key not in ("functions", "function_call")}
            chat["tools"] = [{"type": "function", "function": function} for function in request["functions"]]
            call = request.get("function_call", "auto")
            chat["tool_choice"] = {"type": "function", "function": call} if isinstance(call, dict) else call
        tools, choice = chat.get("tools") or [], chat.get("tool_choice") or "auto"
        if len(tools) == 1 and (choice == "required" or (choice == "auto" and not auto_tools and _judges(tools[0]))):
            named = {"name": tools[0].get("function", {}).get("name")}
            return {**chat, "tool_choice": {"type": "function", "function": named}}
        if len(tools) > 1 and choice == "required" and not chat.get("stream"):
            return {**chat, "tool_choice": {"type": "function", "function": {"name": ANY_TOOL}}}
        return chat

    def from_chat(self, request: Request, before: Request, after: Request) -> Request:
        """The request as it goes on: held to its contract, or the client's own with other limits."""
        if "structured_outputs" in after and "structured_outputs" not in before:
            return after
        changed = {key: after[key] for key in LIMITS if after.get(key) != before.get(key)}
        return {**request, **changed} if changed else request

    def called(self, request: Request, reply: dict[str, Any], tool: str) -> dict[str, Any]:
        """The reply, or a stream's piece of one, with its text as a call of the function `tool`."""
        call_id = "call_" + hashlib.sha256(reply["id"].encode()).hexdigest()[:24]
        older = "functions" in request and not request.get("tools")
        choices = [as_tool_call(choice, tool, call_id) for choice in reply["choices"]]
        if not isinstance(request.get("function_call" if older else "tool_choice"), dict):
            end = "function_call" if older else "tool_calls"  # of a function that the client names it stays "stop"
            choices = [one | ({"finish_reason": end} if one.get("finish_reason") == "stop" else {}) for one in choices]
        return {**reply, "choices": [_as_function_call(choice) for choice in choices] if older else choices}


class Responses:
    turns = "input"
    cut_off = b'"reason":"max_output_tokens"'

    def as_chat(self, request: Request, auto_tools: bool) -> Request:
        """The chat request that says the same. Raises ValueError for one that goes on from calls or stored turns, and
        Unanswerable for a stream that has to be a call where vLLM itself (`auto_tools`) makes none: its events are
        those of a text."""
        said = request.get("input")
        turns = [{"role": "user", "content": said}] if isinstance(said, str) else said
        if not isinstance(turns, list) or request.get("previous_response_id") or request.get("background"):
            raise ValueError("no request that stands for itself")
        system = [{"role": "system", "content": request["instructions"]}] if request.get("instructions") else []
        chat: Request = {"messages": [*system, *(_as_message(turn) for turn in turns)]}
        chat |= {key: request[key] for key in ("model", "stream", "structured_outputs") if key in request}
        if request.get("max_output_tokens") is not None:
            chat["max_tokens"] = request["max_output_tokens"]
        form = (request.get("text") or {}).get("format") or {}
        if form.get("type") == "json_schema":
            chat["response_format"] = {"type": "json_schema", "json_schema": form}
        elif form:
            chat["response_format"] = form
        tools = request.get("tools") or []
        if tools and all(tool.get("type") == "function" for tool in tools):
            chat["tools"] = [{"type": "function", "function": tool} for tool in tools]
            choice = request.get("tool_choice") or "auto"
            chat["tool_choice"] = {"type": "function", "function": choice} if isinstance(choice, dict) else choice
            if chat.get("stream"):
                if not auto_tools and choice not in ("auto", "none"):
                    raise Unanswerable("a stream of /v1/responses calls no function: ask for it without stream")
                chat["tool_choice"] = "none" if choice == "none" else "auto"
        elif tools:
            raise ValueError("tools that are no functions")
        return Chat().as_chat(chat, auto_tools or bool(chat.get("stream")))

    def from_chat(self, request: Request, before: Request, after: Request) -> Request:
        changed = dict(request)
        if "structured_outputs" in after and "structured_outputs" not in before:
            changed["structured_outputs"] = after["structured_outputs"]
            changed["text"] = {key: value for key, value in (request.get("text") or {}).items() if key != "format"}
            changed |= {"tool_choice": "none"} if after.get("tools") else {}
        if after.get("max_tokens") != before.get("max_tokens"):
            changed["max_output_tokens"] = after["max_tokens"]
        return changed

    def called(self, request: Request, reply: dict[str, Any], tool: str) -> dict[str, Any]:
        output = []
        for item in reply["output"]:
            text = "".join(part.get("text", "") for part in item["content"]) if item.get("type") == "message" else ""
            if item.get("type") == "message" and (call := _call(tool, text)):
                status = item.get("status", "completed")
                item = {"type": "function_call", "id": item["id"], "status": status, "name": call[0]}  # noqa: PLW2901
                item |= {"call_id": f"call_{item['id']}", "arguments": call[1]}
            output.append(item)
        return {**reply, "output": output, "tool_choice": request.get("tool_choice", "auto")}


def _judges(tool: dict[str, Any]) -> bool:
    """Whether a tool takes a verdict, by its name or by its parameters'."""
    function = tool.get("function") or {}
    properties = (function.get("parameters") or {}).get("properties") or {}
    return any(names_verdict(name) for name in (function.get("name") or "", *properties))


def _as_message(turn: Any) -> dict[str, Any]:
    if not isinstance(turn, dict) or turn.get("type", "message") != "message":
        raise ValueError("turns that are no messages")
    content = turn.get("content")
    if isinstance(content, list):
        content = [_as_part(part) for part in content]
    return {"role": "system" if turn.get("role") == "developer" else turn.get("role"), "content": content}


def _as_part(part: dict[str, Any]) -> dict[str, Any]:
    if part.get("type") in TEXT_PARTS:
        return {"type": "text", "text": part.get("text", "")}
    if part.get("type") == "input_image":
        return {"type": "image_url", "image_url": {"url": part.get("image_url")}}
    return part


def without_images(request: Request, turns: str) -> tuple[Request, int]:
    """The request with the text parts of its `turns` only, and how many parts were left out."""
    left_out, kept = 0, []
    if not isinstance(request[turns], list):
        return request, 0
    for turn in request[turns]:
        content = turn.get("content") if isinstance(turn, dict) else None
        if isinstance(content, list):
            parts = [part for part in content if not isinstance(part, dict) or part.get("type") in TEXT_PARTS]
            left_out += len(content) - len(parts)
            kept.append({**turn, "content": parts or ""})
        else:
            kept.append(turn)
    return ({**request, turns: kept}, left_out) if left_out else (request, 0)


def forced_tool(request: Request) -> str | None:
    """The function that a named `tool_choice` forces; ANY_TOOL for whichever the reply names."""
    choice = request.get("tool_choice")
    named = choice.get("function") if isinstance(choice, dict) else None
    return named.get("name") if isinstance(named, dict) else None


def functions(request: Request) -> Iterator[tuple[str, dict[str, Any]]]:
    """Name and parameters of the functions that a chat request's tools are."""
    for tool in request.get("tools") or []:
        function = tool["function"]
        yield function["name"], function.get("parameters") or {"type": "object", "properties": {}}


def parameters(request: Request) -> dict[str, Any]:
    """The schema of what a forced function is called with. Raises ValueError for a function that no tool is."""
    name, known = forced_tool(request), dict(functions(request))
    if name == ANY_TOOL:
        calls = [
            {"properties": {"name": {"const": one}, "arguments": schema}, "required": ["name", "arguments"]}
            for one, schema in known.items()
        ]
        return {"anyOf": [{"type": "object", **call} for call in calls]}
    if name not in known:
        raise ValueError(f"tool_choice names the function {name!r}, which tools does not define")
    return known[name]


def _call(tool: str, text: str) -> tuple[str, str] | None:
    """Name and arguments of the call that a JSON text is; of one that was cut off the arguments as far as they go, and
    None if it names no function yet."""
    if tool != ANY_TOOL:
        return tool, text
    try:
        said = json.loads(text)
        return said["name"], json.dumps(said["arguments"], ensure_ascii=False)
    except (KeyError, TypeError, ValueError):
        begun = BEGUN.match(text)
        return (json.loads(begun["name"]), begun["arguments"] or "") if begun else None


def as_tool_call(choice: Choice, name: str, call_id: str) -> Choice:
    """A choice whose JSON text becomes the arguments of a call of the function `name`; of a stream's choice
    only its piece of them."""
    part = "delta" if "delta" in choice else "message"
    message = dict(choice[part])
    text = message.pop("content", None)
    if text is None and part == "delta":
        return choice
    if part == "delta":
        call: dict[str, Any] = {"index": 0, "function": {"arguments": text or ""}}
        if "role" in message:
            call |= {"id": call_id, "type": "function", "function": {"name": name, "arguments": text or ""}}
    else:
        if (said := _call(name, text or "")) is None:
            return choice
        call = {"id": call_id, "type": "function", "function": {"name": said[0], "arguments": said[1]}}
    return {**choice, part: {**message, "content": None, "tool_calls": [call]}}


def _as_function_call(choice: Choice) -> Choice:
    """A choice with its tool call in the older form."""
    part = "delta" if "delta" in choice else "message"
    message = dict(choice[part])
    calls = message.pop("tool_calls", None)
    return {**choice, part: {**message, "function_call": calls[0]["function"]}} if calls else choice
