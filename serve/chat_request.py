"""A chat request in its three stages: from the client, reduced to what the judge can see, and sent to vLLM."""

import json
from collections.abc import Callable
from functools import cached_property
from typing import Any

import msgspec
from api_formats import Request, forced_tool, read_limit, with_limit
from contracts import ConstrainedRequest, Contract
from schemas import Limits

TEXT_PARTS = (None, "text", "refusal")
"""Types of message parts that a text-only judge can read. None is a part without a type."""


class _Turn(msgspec.Struct):
    content: str | list[Any] | None = None


class ReadFields(msgspec.Struct):
    """Request fields that the layer reads and that vLLM does not always validate, with the types of OpenAI's API."""

    messages: list[_Turn]
    structured_outputs: dict[str, Any] | None = None
    response_format: dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    stream: bool | None = None


class ChatRequest(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """A chat request and everything that the layer decides about it.

    - `client`, `raw`: the request as the client sent it, parsed and as bytes.
    - `visible`: `client` without the parts that the judge cannot see. `left_out`: the number of these parts.
    - `contract`: the reply form that the request asks for, or None if no contract matches.
    - `plain`: True if the client constrains the reply itself, for example by a response_format.
    - `constrained`: the request with decoding constrained to the contract, or None to pass the request on
      unconstrained.
    - `tokens`: the most tokens of the reply, or None if there is no limit.
    """

    client: Request
    raw: bytes
    visible: Request
    left_out: int = 0
    contract: Contract | None = None
    plain: bool = False
    constrained: ConstrainedRequest | None = None
    tokens: int | None = None

    @classmethod
    def read(cls, client: Request, raw: bytes, sees_images: bool) -> "ChatRequest":
        """Build a ChatRequest from a client's request. If `sees_images` is False, drop all parts except text."""
        kept, left_out = list[Any](), 0
        for turn in () if sees_images else client["messages"]:
            content = turn.get("content")
            if not isinstance(content, list):
                kept.append(turn)
                continue
            parts = [part for part in content if not isinstance(part, dict) or part.get("type") in TEXT_PARTS]
            left_out += len(content) - len(parts)
            kept.append({**turn, "content": parts or ""})
        # A request without images is the same object, so that it is passed on byte for byte.
        visible = {**client, "messages": kept} if left_out else client
        return cls(client=client, raw=raw, visible=visible, left_out=left_out)

    @cached_property
    def sent(self) -> Request:
        """The request to send to vLLM, constrained and limited to `tokens` tokens."""
        held = self.constrained
        if held is not None and self.tokens is not None:
            # A stream cannot be generated again, so it gets the limits at once.
            if held.shorten is not None and self.stream and self.tokens < held.min_tokens:
                return held.shorten(self.tokens)[0]
            return with_limit(held.request, self.tokens)
        # The client's own limit is kept unless the context leaves less.
        if self.tokens is not None and self.tokens < (read_limit(self.visible) or 0):
            return with_limit(self.visible, self.tokens)
        return self.visible

    @property
    def body(self) -> bytes:
        return self.raw if self.sent is self.client else json.dumps(self.sent).encode()

    @property
    def stream(self) -> bool:
        return bool(self.client.get("stream"))

    @property
    def shorten(self) -> Callable[[int], tuple[Request, Limits]] | None:
        """`ConstrainedRequest.shorten` if a truncated reply can be generated again with tighter limits, else None. A
        stream cannot: its text is already sent.
        """
        return None if self.constrained is None or self.stream else self.constrained.shorten

    @property
    def tool(self) -> str | None:
        """Name of the function whose arguments are the text of the reply, or None."""
        return forced_tool(self.visible) if self.constrained else None

    @property
    def trims(self) -> bool:
        """True if the end-of-text token must be removed from the log probabilities of the reply."""
        return bool(self.constrained and self.client.get("logprobs"))
