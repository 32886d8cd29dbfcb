"""The same request as other routes take it."""

from typing import Any


def as_response(request: dict[str, Any]) -> dict[str, Any]:
    """A chat request as a client of /v1/responses sends it."""
    changed: dict[str, Any] = {"input": request["messages"], "model": "gpt-4"}
    if "max_tokens" in request:
        changed["max_output_tokens"] = request["max_tokens"]
    if form := request.get("response_format"):
        changed["text"] = {"format": {"type": form["type"], **form.get("json_schema", {})}}
    if tools := request.get("tools"):
        changed["tools"] = [{"type": "function", **tool["function"]} for tool in tools]
        changed["tool_choice"] = {"type": "function", "name": request["tool_choice"]["function"]["name"]}
    return changed
