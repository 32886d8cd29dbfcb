"""A chat request in the stages that it goes through: the client's, the one that the judge can read, vLLM's."""

import json
from functools import cached_property
from typing import Any

import msgspec
from api_formats import Headers, Request, forced_tool, read_limit, with_limit
from contracts import ConstrainedRequest, Contract
from schemas import Limits

TEXT_PARTS = (None, "text", "refusal")
"""Types of the parts of a message that a judge of text can read."""


class _Turn(msgspec.Struct):
    content: str | list[Any] | None = None


class _Fields(msgspec.Struct):
    """The fields that the layer reads and vLLM does not always check."""

    messages: list[_Turn]
    structured_outputs: dict[str, Any] | None = None
    response_format: dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    stream: bool | None = None


def check_fields(client: Request) -> None:
    """Raise msgspec.ValidationError if a field that the layer reads has another type than OpenAI's."""
    msgspec.convert(client, _Fields)


class ChatRequest(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """A chat request.

    - `client`, `raw`: the request as it came, and its bytes.
    - `visible`: the same without the `left_out` parts that the judge cannot see.
    - `contract`: the form of reply that it asks for; None if none fits. `plain`: it has a form of its own instead.
    - `constrained`: with decoding held to the contract; None if the request goes on as the client sent it.
    - `sent`, `body`: the request that vLLM gets, whose reply has up to `tokens` tokens (None: nobody says). At least
      `needed` must be left for it.

    `headers` are those of the reply.
    """

    client: Request
    raw: bytes
    visible: Request
    left_out: int = 0
    contract: Contract | None = None
    plain: bool = False
    constrained: ConstrainedRequest | None = None
    tokens: int | None = None
    needed: int = 0
    headers: Headers = []

    @classmethod
    def read(cls, client: Request, raw: bytes, sees_images: bool) -> "ChatRequest":
        """Read a client's request. A judge that does not see gets the text parts only."""
        kept, left_out = list[Any](), 0
        for turn in () if sees_images else client["messages"]:
            content = turn.get("content")
            if not isinstance(content, list):
                kept.append(turn)
                continue
            parts = [part for part in content if not isinstance(part, dict) or part.get("type") in TEXT_PARTS]
            left_out += len(content) - len(parts)
            kept.append({**turn, "content": parts or ""})
        # A request without images stays itself: it goes on byte for byte.
        visible = {**client, "messages": kept} if left_out else client
        return cls(client=client, raw=raw, visible=visible, left_out=left_out)

    @cached_property
    def sent(self) -> Request:
        """The request that vLLM gets."""
        if self.constrained is not None and self.tokens is not None:
            return with_limit(self.constrained.for_budget(self.tokens), self.tokens)
        # A client's own limit stays as it is unless the context is shorter.
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
    def can_shorten(self) -> bool:
        """Whether a reply that is cut off can be generated once more. What a stream has said cannot be taken back."""
        return self.constrained is not None and self.constrained.shorten is not None and not self.stream

    def shorten(self, tokens: int) -> tuple[bytes, Limits]:
        """Return the body for a reply that ends within so many tokens, and what is limited in it."""
        assert self.constrained is not None and self.constrained.shorten is not None
        request, limits = self.constrained.shorten(tokens)
        return json.dumps(with_limit(request, tokens)).encode(), limits

    @property
    def tool(self) -> str | None:
        """The function whose arguments the reply's text is, or None."""
        return forced_tool(self.visible) if self.constrained else None

    @property
    def trims(self) -> bool:
        """Whether the end of the text is taken out of the reply's log probabilities."""
        return bool(self.constrained and self.client.get("logprobs"))
