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

MODULES = ("vllm.entrypoints.openai.chat_completion.serving", "vllm.entrypoints.openai.responses.serving")


@dataclass
class Room:
    """`needed` tokens are to be left for the reply; `prompt` is the prompt's length, once vLLM knows it, and `short`
    whether it leaves fewer."""

    needed: int
    prompt: int | None = None
    short: bool = False


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
            if room.short:
                raise ValueError(f"{prompt} tokens leave fewer than {room.needed} of the context of {context}")
        return get_max_tokens(context, limit, prompt, *others, **named)

    return checked


def watch() -> None:
    """Have vLLM ask in this process; nothing without vLLM."""
    for name in MODULES if "vllm" in sys.modules else ():
        module = importlib.import_module(name)
        module.get_max_tokens = checking(module.get_max_tokens)  # type: ignore[attr-defined]
