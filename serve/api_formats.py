"""Read and change requests and replies in OpenAI's formats: limits, tools, calls. All functions are pure."""

import hashlib
from http import HTTPStatus
from typing import Any

Request = dict[str, Any]
Headers = list[tuple[bytes, bytes]]

CUT_OFF = b'"finish_reason":"length"'
"""Marks the body of a reply that was truncated at its token limit."""


class Refusal(Exception):
    """Raised to answer a request with the HTTP error `status`. `code` is OpenAI's error code, or None."""

    def __init__(self, message: str, *, code: str | None = None, status: int = HTTPStatus.BAD_REQUEST) -> None:
        super().__init__(message)
        self.status, self.code = status, code


def called(request: Request, reply: dict[str, Any], tool: str) -> dict[str, Any]:
    """Return a reply to `request`, or a chunk of a stream, with its text turned into a call of the function `tool`."""
    call_id = "call_" + hashlib.sha256(reply["id"].encode()).hexdigest()[:24]
    choices = [as_tool_call(choice, tool, call_id) for choice in reply["choices"]]
    for choice in choices:
        # A call of the function that the client names ends with "stop", as OpenAI's do.
        if choice.get("finish_reason") == "stop" and not isinstance(request.get("tool_choice"), dict):
            choice["finish_reason"] = "tool_calls"
    return {**reply, "choices": choices}


def forced_tool(request: Request) -> str | None:
    """Return the name of the function that a request forces the model to call, or None.

    A function is forced by its name in tool_choice, or by `tool_choice: required` with a single tool.

    >>> forced_tool({"tool_choice": {"type": "function", "function": {"name": "grade"}}})
    'grade'
    """
    choice, tools = request.get("tool_choice"), request.get("tools") or []
    # The model chooses which of several required tools it calls, and vLLM reads the call.
    named = tools[0] if choice == "required" and len(tools) == 1 else choice
    function = named.get("function") if isinstance(named, dict) else None
    return function.get("name") if isinstance(function, dict) else None


def parameters(request: Request) -> dict[str, Any]:
    """Return the JSON schema of the arguments of the forced function. Raise ValueError if no tool has its name."""
    name = forced_tool(request)
    for tool in request.get("tools") or []:
        if tool["function"]["name"] == name:
            schema: dict[str, Any] = tool["function"].get("parameters") or {"type": "object", "properties": {}}
            return schema
    raise ValueError(f"tool_choice names the function {name!r}, which tools does not define")


def as_tool_call(choice: dict[str, Any], name: str, call_id: str) -> dict[str, Any]:
    """Return a choice with its text turned into the arguments of a call of the function `name`.

    In a chunk of a stream the text is a piece of the arguments.
    """
    part = "delta" if "delta" in choice else "message"
    message = dict(choice[part])
    text = message.pop("content", None)
    # A stream's first and last pieces hold no text.
    if text is None and part == "delta":
        return dict(choice)
    function = {"arguments": text or ""}
    call: dict[str, Any] = {"index": 0} if part == "delta" else {}
    # Only the first piece of a stream names the call.
    if part == "message" or "role" in message:
        call |= {"id": call_id, "type": "function"}
        function = {"name": name, **function}
    return {**choice, part: {**message, "content": None, "tool_calls": [{**call, "function": function}]}}


def list_parts(message: Any) -> list[dict[str, Any]]:
    """Return the parts of a message's content that are objects. A content that is a string counts as one text part."""
    content = message.get("content") if isinstance(message, dict) else None
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    return [part for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []


def read_limit(request: Request) -> int | None:
    """Return the token limit of a request (max_completion_tokens, or else max_tokens), or None if it has none."""
    newer = request.get("max_completion_tokens")
    limit = request.get("max_tokens") if newer is None else newer
    return limit if isinstance(limit, int) else None


def with_limit(request: Request, tokens: int) -> Request:
    """Return a copy of the request with the token limit `tokens`."""
    # The newer key would take precedence over max_tokens.
    newer = {"max_completion_tokens": None} if "max_completion_tokens" in request else {}
    return {**request, **newer, "max_tokens": tokens}
