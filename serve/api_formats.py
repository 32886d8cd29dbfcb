"""The forms in which clients send the same request: chat completions and `/v1/responses`.

The layer reads and changes chat requests; what stands here puts the others into that form and back. All is pure.
"""

import hashlib
from typing import Any

import msgspec
from scales import names_verdict

Request = dict[str, Any]
Choice = dict[str, Any]

LIMITS = ("n", "max_tokens", "max_completion_tokens")
TEXT_PARTS = (None, "text", "input_text", "output_text", "refusal")


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


class Chat:
    turns = "messages"
    cut_off = b'"finish_reason":"length"'

    def as_chat(self, request: Request, auto_tools: bool) -> Request:
        """The request with the tool that has to be called named. The only one has to, if the client requires a call, or
        if it takes a verdict and vLLM itself (`auto_tools`) reads no calls."""
        tools, choice = request.get("tools") or [], request.get("tool_choice") or "auto"
        if len(tools) != 1:
            return request  # which of several is called is the model's to say, and vLLM's to read
        if choice == "required" or (choice == "auto" and not auto_tools and _judges(tools[0])):
            return {**request, "tool_choice": _choice_of({"name": tools[0].get("function", {}).get("name")})}
        return request

    def from_chat(self, request: Request, before: Request, after: Request) -> Request:
        """The request as it goes on: held to its contract, or the client's own with other limits."""
        if "structured_outputs" in after and "structured_outputs" not in before:
            return after
        changed = {key: after[key] for key in LIMITS if after.get(key) != before.get(key)}
        return {**request, **changed} if changed else request

    def called(self, request: Request, reply: dict[str, Any], tool: str) -> dict[str, Any]:
        """The reply, or a stream's piece of one, with its text as a call of the function `tool`."""
        call_id = "call_" + hashlib.sha256(reply["id"].encode()).hexdigest()[:24]
        choices = [as_tool_call(choice, tool, call_id) for choice in reply["choices"]]
        for choice in choices:
            # Of a function that the client names it stays "stop".
            if choice.get("finish_reason") == "stop" and not isinstance(request.get("tool_choice"), dict):
                choice["finish_reason"] = "tool_calls"
        return {**reply, "choices": choices}


class Responses:
    turns = "input"
    cut_off = b'"reason":"max_output_tokens"'

    def as_chat(self, request: Request, auto_tools: bool) -> Request:
        """The chat request that says the same. Raises ValueError for one that goes on from calls or stored turns, and
        for a stream that may be a call: its events would be those of a text."""
        said = request.get("input")
        turns = [{"role": "user", "content": said}] if isinstance(said, str) else said
        tools = request.get("tools") or []
        if not isinstance(turns, list) or request.get("previous_response_id") or request.get("background"):
            raise ValueError("no request that stands for itself")
        if tools and (request.get("stream") or any(tool.get("type") != "function" for tool in tools)):
            raise ValueError("tools of a stream, or tools that are no functions")
        system = [{"role": "system", "content": request["instructions"]}] if request.get("instructions") else []
        chat: Request = {"messages": [*system, *(_as_message(turn) for turn in turns)]}
        chat |= {key: request[key] for key in ("model", "stream", "structured_outputs") if key in request}
        if request.get("max_output_tokens") is not None:
            chat["max_tokens"] = request["max_output_tokens"]
        form = (request.get("text") or {}).get("format")
        if form:
            chat["response_format"] = {"type": form.get("type"), "json_schema": form}
        if tools:
            chat["tools"] = [{"type": "function", "function": tool} for tool in tools]
            chat["tool_choice"] = _choice_of(request.get("tool_choice"))
        return Chat().as_chat(chat, auto_tools)

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
            if item.get("type") == "message":
                text = "".join(part.get("text", "") for part in item["content"])
                call = {"type": "function_call", "id": item["id"], "status": item.get("status", "completed")}
                output.append({**call, "name": tool, "call_id": f"call_{item['id']}", "arguments": text})
            else:
                output.append(item)
        return {**reply, "output": output, "tool_choice": request.get("tool_choice", "auto")}


Dialect = Chat | Responses
"""How one route asks and is answered."""


def _choice_of(choice: Any) -> Any:
    """A chat request's `tool_choice` of what another form says."""
    return {"type": "function", "function": choice} if isinstance(choice, dict) else choice or "auto"


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
    """The function that a named `tool_choice` forces."""
    choice = request.get("tool_choice")
    named = choice.get("function") if isinstance(choice, dict) else None
    return named.get("name") if isinstance(named, dict) else None


def parameters(request: Request) -> dict[str, Any]:
    """The schema of what a forced function is called with. Raises ValueError for a function that no tool is."""
    name = forced_tool(request)
    for tool in request.get("tools") or []:
        if tool["function"]["name"] == name:
            schema: dict[str, Any] = tool["function"].get("parameters") or {"type": "object", "properties": {}}
            return schema
    raise ValueError(f"tool_choice names the function {name!r}, which tools does not define")


def as_tool_call(choice: Choice, name: str, call_id: str) -> Choice:
    """A choice whose JSON text becomes the arguments of a call of the function `name`; of a stream's choice
    only its piece of them."""
    part = "delta" if "delta" in choice else "message"
    message = dict(choice[part])
    text = message.pop("content", None)
    if text is None and part == "delta":
        return dict(choice)
    function = {"arguments": text or ""}
    call: dict[str, Any] = {"index": 0} if part == "delta" else {}
    if part == "message" or "role" in message:
        call |= {"id": call_id, "type": "function"}
        function = {"name": name, **function}
    return {**choice, part: {**message, "content": None, "tool_calls": [{**call, "function": function}]}}
