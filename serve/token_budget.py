"""The tokens of the context that a prompt leaves for its reply.

vLLM counts a prompt while it prepares the request, and silently shortens the reply to what is left. The layer reads
that count, and stops vLLM before it generates anything if too little is left.
"""

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from functools import wraps
from http import HTTPStatus
from typing import Any

from api_formats import Refusal, read_limit
from contracts import Contract

LEAST_REPLY = 16
"""Tokens below which a request without a contract counts as too long."""

MOST_TOKENS = 1024
"""What a JSON reply may take that nobody limits: a judge that rambles costs no more, and the same once again."""


@dataclass
class TokenBudget:
    """The context that one request has, filled in while vLLM prepares it.

    - `release`: called once, when vLLM has counted the prompt or the request has ended without.
    - `needed`: tokens that must be left for the reply. `short`: fewer are.
    - `prompt`: length of the prompt in tokens, None until vLLM knows it.
    - `whole`: the client wants the whole distribution of a rating. `ten` is then the probability (0..1) that a 1 at the
      rating goes on with a 0 (ratings.py), None if it is not known.
    """

    release: Callable[[], None]
    needed: int = 0
    prompt: int | None = None
    short: bool = False
    whole: bool = False
    ten: float | None = None

    def done(self) -> None:
        self.release()
        self.release = lambda: None


BUDGET: ContextVar[TokenBudget | None] = ContextVar("budget", default=None)
"""Budget of the request that is being prepared."""


def checking(get_max_tokens: Callable[..., int]) -> Callable[..., int]:
    """Wrap vLLM's `get_max_tokens`, which is asked how long a reply may be, to note the length of the prompt.

    The wrapper raises ValueError, of which vLLM makes an error 400, if the prompt leaves fewer tokens than are needed.
    """

    @wraps(get_max_tokens)
    def checked(context: int, limit: int | None, prompt: int, *others: object, **named: object) -> int:
        budget = BUDGET.get()
        # None: the request did not come through the layer's chat route.
        if budget is not None:
            budget.prompt = prompt
            budget.short = 0 < budget.needed > context - prompt
            budget.done()
            if budget.short:
                raise ValueError(f"{prompt} tokens leave fewer than {budget.needed} of the context of {context}")
        return get_max_tokens(context, limit, prompt, *others, **named)

    return checked


def reply_tokens(
    request: dict[str, Any], contract: Contract | None, plain: bool, context: int | None, count: int
) -> tuple[int | None, int]:
    """Return the longest reply behind a prompt of `count` tokens, and the least that must be possible, both in tokens.

    The longest is what the client asks for or what the context leaves, whichever is less; None if nobody says. A
    `plain` request constrains its reply itself: it gets all that it asks for or is refused, since its form would be
    worth nothing if cut off. More than the whole context is taken for a limit made for larger models: no shorter
    prompt would help.

    Raises Refusal for a limit below 1, and if less is left than LEAST_REPLY (under a contract: than its verdict).
    """
    wish = read_limit(request)
    # What vLLM says of such a limit, it says of a prompt that fills the context, too.
    if wish is not None and wish < 1:
        raise Refusal(HTTPStatus.BAD_REQUEST, None, f"max_tokens must be positive, got {wish}")
    # Open JSON has no end of its own.
    limit = MOST_TOKENS if wish is None and contract and contract.verdict is None else wish
    if context is None or (limit is None and contract is None):
        return limit, 0
    needed = contract.least_tokens if contract else min(LEAST_REPLY, limit or 1)
    # A form that the client wrote is worth nothing if it is cut off.
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
