"""What the layer reads and changes in a chat request: tools, images, and a text that becomes a call. All is pure."""

import hashlib
from typing import Any

import msgspec

Request = dict[str, Any]
Choice = dict[str, Any]

CUT_OFF = b'"finish_reason":"length"'
"""In the body of a reply that ran into its last token."""

LIMITS = ("n", "max_tokens", "max_completion_tokens")
TEXT_PARTS = (None, "text", "refusal")


class KnownTurn(msgspec.Struct):
    content: str | list[Any] | None = None


class Known(msgspec.Struct):
    """What is read of a request, and vLLM does not always check."""

    messages: list[KnownTurn]
    structured_outputs: dict[str, Any] | None = None
    response_format: dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    stream: bool | None = None


GUIDED = {"guided_json": "json", "guided_regex": "regex", "guided_choice": "choice", "guided_grammar": "grammar"}
GUIDED |= {"guided_whitespace_pattern": "whitespace_pattern"}
"""Fields that vLLM had before 0.12 and now ignores, and their names in `structured_outputs`."""


def with_structured_outputs(request: Request) -> Request:
    """Return the request with its `guided_*` fields as `structured_outputs`.

    Raises ValueError if it has several of them, or one beside `structured_outputs`."""
    guided = {GUIDED[name]: request[name] for name in GUIDED if request.get(name) is not None}
    forms = guided.keys() - {"whitespace_pattern"}
    if not forms:
        return request
    if len(forms) > 1 or request.get("structured_outputs"):
        names = " and ".join(f"guided_{form}" for form in sorted(forms))
        raise ValueError(f'{names}: write one form only, as "structured_outputs": {{"{min(forms)}": ...}}')
    kept = {name: value for name, value in request.items() if name not in GUIDED}
    return {**kept, "structured_outputs": guided}


def with_named_tool(request: Request) -> Request:
    """The request with its only tool named, where the client requires a call: which of several is called is the model's
    to say, and vLLM's to read."""
    tools = request.get("tools") or []
    if len(tools) != 1 or request.get("tool_choice") != "required":
        return request
    function = {"name": tools[0].get("function", {}).get("name")}
    return {**request, "tool_choice": {"type": "function", "function": function}}


def sent_on(request: Request, before: Request, after: Request) -> Request:
    """The request as it goes on: held to its contract, or the client's own with other limits."""
    if "structured_outputs" in after and "structured_outputs" not in before:
        return after
    changed = {key: after[key] for key in LIMITS if after.get(key) != before.get(key)}
    return {**request, **changed} if changed else request


def called(request: Request, reply: dict[str, Any], tool: str) -> dict[str, Any]:
    """The reply, or a stream's piece of one, with its text as a call of the function `tool`."""
    call_id = "call_" + hashlib.sha256(reply["id"].encode()).hexdigest()[:24]
    choices = [as_tool_call(choice, tool, call_id) for choice in reply["choices"]]
    for choice in choices:
        # Of a function that the client names it stays "stop".
        if choice.get("finish_reason") == "stop" and not isinstance(request.get("tool_choice"), dict):
            choice["finish_reason"] = "tool_calls"
    return {**reply, "choices": choices}


def as_seen(request: Request, sees_images: bool) -> tuple[Request, int]:
    """The request as the judge can read it, and how many parts are left out: a judge of text gets text alone."""
    left_out, kept = 0, []
    for turn in () if sees_images else request["messages"]:
        content = turn.get("content")
        if isinstance(content, list):
            parts = [part for part in content if not isinstance(part, dict) or part.get("type") in TEXT_PARTS]
            left_out += len(content) - len(parts)
            kept.append({**turn, "content": parts or ""})
        else:
            kept.append(turn)
    return ({**request, "messages": kept}, left_out) if left_out else (request, 0)


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
