"""What a prompt leaves of the context for its reply.

vLLM counts a prompt while it prepares the request, shortens the reply to what is left, and says nothing. Here it says
how many tokens there are, and is stopped before it generates anything if they leave too little.
"""

import importlib
import sys
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from functools import wraps
from http import HTTPStatus
from typing import Any

from contracts import Contract
from replies import Refusal

LEAST_REPLY = 16
"""Tokens below which a request without a contract counts as too long."""

MOST_TOKENS = 1024
"""What a JSON reply may take that nobody limits: a judge that rambles costs no more, and the same once again."""

SERVING = "vllm.entrypoints.openai.chat_completion.serving"


@dataclass
class Room:
    """`needed` tokens are to be left for the reply; `prompt` is the prompt's length, once vLLM knows it, and `short`
    whether it leaves fewer. `prepared` is called then, or when the request has ended without. Where a `whole` rating is
    asked for, `ten` is the probability that a 1 there goes on with a 0 (see ratings.py)."""

    prepared: Callable[[], None]
    needed: int = 0
    prompt: int | None = None
    short: bool = False
    whole: bool = False
    ten: float | None = None

    def done(self) -> None:
        self.prepared()
        self.prepared = lambda: None


ROOM: ContextVar[Room | None] = ContextVar("room", default=None)
"""Of the request that is being prepared."""


def checking(get_max_tokens: Callable[..., int]) -> Callable[..., int]:
    """vLLM's `get_max_tokens`, which it asks how long a reply may be, for requests that need some room. Raises
    ValueError, of which vLLM makes an error 400, where there is too little."""

    @wraps(get_max_tokens)
    def checked(context: int, limit: int | None, prompt: int, *others: object, **named: object) -> int:
        room = ROOM.get()
        if room is not None:
            room.prompt, room.short = prompt, 0 < room.needed > context - prompt
            room.done()
            if room.short:
                raise ValueError(f"{prompt} tokens leave fewer than {room.needed} of the context of {context}")
        return get_max_tokens(context, limit, prompt, *others, **named)

    return checked


def watch() -> None:
    """Have vLLM ask in this process; nothing without vLLM."""
    if "vllm" in sys.modules:
        module = importlib.import_module(SERVING)
        module.get_max_tokens = checking(module.get_max_tokens)  # type: ignore[attr-defined]


def reply_tokens(
    request: dict[str, Any], contract: Contract | None, plain: bool, context: int | None, count: int
) -> tuple[int | None, int]:
    """How long the reply may be behind `count` tokens, and how long it has to be able to be: what is asked for or
    what is left of the context, if that is less. None if nobody says.

    Raises Refusal where less than LEAST_REPLY is left, under a contract less than its verdict needs. A `plain` request
    gets all that it asks for or is refused: cut off, its own form would be worth nothing. But more than the whole
    context is no wish but a limit made for larger models: no shorter prompt would help.
    """
    wish = wish_of(request)
    limit = MOST_TOKENS if wish is None and contract and contract.verdict is None else wish
    if context is None or (limit is None and contract is None):
        return limit, 0
    needed = contract.least_tokens if contract else min(LEAST_REPLY, limit or 1)
    if plain and limit and limit < context:
        needed = limit
    left = context - count
    needed = min(needed, wish or needed)
    if left < needed:
        wanted = f"{count} in the messages, at least {needed} in the completion"
        raise Refusal(
            HTTPStatus.BAD_REQUEST,
            "context_length_exceeded",
            f"This model's maximum context length is {context} tokens. However, you requested {count + needed} "
            f"tokens ({wanted}). Please reduce the length of the messages or completion.",
        )
    return min(left, limit or left), needed


def wish_of(request: dict[str, Any]) -> int | None:
    """The most tokens that the request asks for, under either of the two names. Raises Refusal for none at
    all: what vLLM says of that, it says of a prompt that fills the context, too."""
    newer = request.get("max_completion_tokens")
    wish = request.get("max_tokens") if newer is None else newer
    if isinstance(wish, int) and wish < 1:
        raise Refusal(HTTPStatus.BAD_REQUEST, None, f"max_tokens must be positive, got {wish}")
    return wish if isinstance(wish, int) else None


def limit_to(tokens: int) -> dict[str, Any]:
    return {"max_tokens": tokens, "max_completion_tokens": None}
