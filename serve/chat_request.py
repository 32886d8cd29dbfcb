"""A chat request in its three stages: from the client, reduced to what the judge can see, and sent to vLLM.

Prompt and reply share the context. vLLM counts the prompt's tokens while it prepares a request, and silently limits the
reply to the tokens that are left. The layer reads that count. If too few tokens are left, it stops vLLM before anything
is generated.
"""

import json
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property, wraps
from typing import Any

import msgspec
from api_formats import Refusal, Request, forced_tool, read_limit, with_limit
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

    - `client`, `raw`: the request, parsed and as bytes, with control tokens and `guided_*` fields already replaced
      (`JudgeLayer._parsed`). If it has neither, `raw` are the bytes that the client sent.
    - `visible`: `client` without the message parts that the judge cannot see. `left_out`: the number of these parts.
    - `contract`: the contract that the request matches, or None. It describes the reply that the client expects.
    - `plain`: True if the client constrains the reply itself, for example by a response_format, and no contract
      applies.
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
        """`ConstrainedRequest.shorten` if a truncated reply can be generated again with tighter limits, else None.

        A streamed reply cannot, because its text has already been sent.
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


LEAST_REPLY = 16
"""Fewest tokens for a reply without a contract. If less room remains, the request counts as too long."""

MOST_TOKENS = 1024
"""Token limit of a JSON reply that the client does not limit. A second try may use as many again."""


@dataclass
class TokenBudget:
    """Token counts of one request, filled in while vLLM prepares it.

    - `release`: function to call when vLLM has counted the prompt, so that vLLM may prepare the next request. Further
      calls must do nothing.
    - `needed`: the fewest tokens that must remain for the reply. `short`: True if fewer remain.
    - `prompt`: length of the prompt in tokens, or None until vLLM has counted it.
    - `whole`: True if the client wants the full distribution of a rating.
    - `ten`: probability (0..1) that a 1 in place of the rating would be followed by a 0 (ratings.py), or None if
      unknown.
    """

    release: Callable[[], None]
    needed: int = 0
    prompt: int | None = None
    short: bool = False
    whole: bool = False
    ten: float | None = None


BUDGET: ContextVar[TokenBudget | None] = ContextVar("budget", default=None)
"""Budget of the request that is being prepared, or None for requests that do not go through the layer's chat route."""


def checking(get_max_tokens: Callable[..., int]) -> Callable[..., int]:
    """Wrap vLLM's `get_max_tokens` so that it stores the prompt length in BUDGET.

    The wrapper raises ValueError, which vLLM turns into a 400 error, if the prompt leaves fewer tokens than needed.
    """

    @wraps(get_max_tokens)
    def checked(context: int, limit: int | None, prompt: int, *others: object, **named: object) -> int:
        budget = BUDGET.get()
        # None: the request did not come through the layer's chat route.
        if budget is not None:
            budget.prompt = prompt
            budget.short = 0 < budget.needed > context - prompt
            budget.release()
            if budget.short:
                raise ValueError(f"{prompt} tokens leave fewer than {budget.needed} of the context of {context}")
        return get_max_tokens(context, limit, prompt, *others, **named)

    return checked


def reply_tokens(request: ChatRequest, context: int | None, count: int) -> tuple[int | None, int]:
    """Return the token limit of a reply, and the fewest tokens that must remain for it.

    `context`: context length in tokens, or None if unknown. `count`: length of the prompt in tokens.

    The limit is the smaller of what the client asks for and what the context leaves, or None if there is neither. A
    client's limit above the whole context was meant for larger models and is reduced. Raise Refusal if the client's
    limit is below 1, or if fewer tokens than needed remain.
    """
    contract, wish = request.contract, read_limit(request.visible)
    # vLLM's message for such a limit would be the one for a prompt that is too long.
    if wish is not None and wish < 1:
        raise Refusal(f"max_tokens must be positive, got {wish}")
    # A JSON reply without a limit might not end.
    limit = MOST_TOKENS if wish is None and contract and contract.verdict is None else wish
    if context is None or (limit is None and contract is None):
        return limit, 0
    needed = contract.least_tokens if contract else min(LEAST_REPLY, limit or 1)
    # A reply that the client itself constrains is useless if truncated.
    if request.plain and limit and limit < context:
        needed = limit
    left = context - count
    needed = min(needed, wish or needed)
    if left < needed:
        wanted = f"{count} in the messages, at least {needed} in the completion"
        raise Refusal(
            f"This model's maximum context length is {context} tokens. However, you requested {count + needed} "
            f"tokens ({wanted}). Please reduce the length of the messages or completion.",
            code="context_length_exceeded",
        )
    return min(left, limit or left), needed
