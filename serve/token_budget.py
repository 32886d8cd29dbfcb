"""Limit replies to the tokens that the prompt leaves of the context.

vLLM counts the prompt while it prepares a request, and silently shortens the reply to what is left. The layer reads
that count, and stops vLLM before it generates anything if too little is left.
"""

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from functools import wraps

from api_formats import Refusal, read_limit
from chat_request import ChatRequest

LEAST_REPLY = 16
"""Fewest tokens for a reply without a contract. If less room remains, the request counts as too long."""

MOST_TOKENS = 1024
"""Token limit of a JSON reply that the client does not limit. A second try may use as many again."""


@dataclass
class TokenBudget:
    """Token counts of one request, filled in while vLLM prepares it.

    - `release`: called when vLLM has counted the prompt; lets the next request in. Further calls must do nothing.
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
