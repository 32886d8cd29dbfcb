"""Return a verdict and the full distribution of its rating with one request.

For clients that send `x-critic-rating: whole`, a reply has top log probabilities only at its rating and the next token.
If 10 is spelt as the tokens 1 and 0 and the generated rating does not begin with 1, the engine is asked once more, with
the cached prompt, what would follow a 1 in place of the rating. The reply's header `x-critic-ten` is the probability
(0..1) that it would be a 0.
"""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from functools import wraps
from itertools import accumulate
from typing import Any

from chat_request import BUDGET, TokenBudget

from critic.backends import Token
from critic.judging import distribution, parse
from critic.judging.grader import ALTERNATIVES, NEGLIGIBLE
from critic.judging.targets import RATING
from critic.records import TEN

Generate = Callable[..., AsyncIterator[Any]]


def wrap_generate(generate: Generate) -> Generate:
    """Wrap the engine's `generate` for requests that want the full distribution of a rating.

    Their replies have top log probabilities only at the rating and the next token, and `ten` of BUDGET is set. Other
    requests are unchanged.
    """

    @wraps(generate)
    def wrapped(engine: Any, prompt: Any, params: Any, name: str, **how: Any) -> AsyncIterator[Any]:
        budget = BUDGET.get()
        form = getattr(params.structured_outputs, "json", None)
        replies = generate(engine, prompt, params, name, **how)
        # Only critic's own requests read the distribution this way.
        if budget is None or not budget.whole or form is None or params.n != 1 or not params.logprobs:
            return replies
        params.flat_logprobs = True  # saves an object per log probability

        def ask(ids: list[int], regex: str) -> AsyncIterator[Any]:
            going_on = {**prompt, "prompt_token_ids": [*prompt["prompt_token_ids"], *ids]}
            form = type(params.structured_outputs)(regex=regex)
            sampling = type(params)(temperature=0.0, max_tokens=1, logprobs=ALTERNATIVES, structured_outputs=form)
            return generate(engine, going_on, sampling, f"{name}-ten", **{**how, "reasoning_ended": True})

        return _with_ten(replies, budget, json.loads(form) if isinstance(form, str) else form, ask)

    return wrapped


async def _with_ten(
    replies: AsyncIterator[Any], budget: TokenBudget, form: dict[str, Any], ask: Callable[..., AsyncIterator[Any]]
) -> AsyncIterator[Any]:
    """Yield the replies with top log probabilities only at the rating and the next token, and set `budget.ten`.

    `form` is the JSON schema of the reply. `ask` generates one token after the given token ids, constrained by a regex.
    """
    scale = _scale(form)
    async for reply in replies:
        (written,) = reply.outputs
        if reply.finished and written.logprobs and scale is not None:
            flat = written.logprobs
            texts = [flat.decoded_tokens[start] for start in flat.start_indices]
            if (index := _rating_index(texts)) is not None:
                ends = zip(flat.start_indices, flat.end_indices, strict=True)
                # The generated token comes first.
                flat.end_indices = [end if at - index in (0, 1) else start + 1 for at, (start, end) in enumerate(ends)]
                one_id = _open_one(flat[index], scale)
                behind = "".join(texts[index:])[1:2]
                if one_id is not None and behind and not texts[index].startswith("1"):
                    with suppress(ValueError):  # the prompt fills the context
                        async for continuation in ask([*written.token_ids[:index], one_id], f"[0{behind}].*"):
                            budget.ten = distribution.zero_share([_token(continuation.outputs[0].logprobs[0])])
        yield reply


def _scale(form: Any) -> tuple[int, int] | None:
    """Return the range (low, high) of the rating in the JSON schema `form`, or None if it is not 0..10 or 1..10.

    The schema comes from the client and may be anything.

    >>> ratings = [{"minimum": 1, "maximum": 10}, {"maximum": 10}, {"minimum": 1, "maximum": 10**9}, {"minimum": 2}, 1]
    >>> [_scale({"properties": {"Rating": rating}}) for rating in ratings]
    [(1, 10), None, None, None, None]
    >>> _scale({"properties": {"Rating": {"minimum": 2, "maximum": 10}}}), _scale({"properties": []})
    (None, None)
    """
    with suppress(LookupError, TypeError):
        field = form["properties"][RATING]
        low, high = field["minimum"], field["maximum"]
        is_scale = type(low) is int and low in (0, 1) and type(high) is int and high == TEN[1]
        return (low, high) if is_scale else None
    return None


def _rating_index(texts: list[str]) -> int | None:
    """Return the index of the first token of the rating that counts as the verdict.

    `texts` are the texts of the reply's tokens. Return None if there is no such rating or no token begins with it.
    """
    before, ends = parse.prefix("".join(texts)), list(accumulate(map(len, texts)))
    return ends.index(len(before)) + 1 if before is not None and len(before) in ends[:-1] else None


def _open_one(alternatives: dict[int, Any], scale: tuple[int, int]) -> int | None:
    """Return the id of the token "1" if the engine must be asked for the probability of a 0 after it, else None.

    `alternatives` are the top log probabilities at the rating, by token id. `scale` is the range of the rating.
    """
    token = _token(alternatives)
    first = distribution.first_digit([Token(f'"{RATING}":', []), Token("?", token.alternatives)], scale=scale)
    # A chance too small to matter is not worth a call.
    if first is None or first.ten_given_one is not None or first.mass[1 - scale[0]] < NEGLIGIBLE:
        return None
    return next((token_id for token_id, alternative in alternatives.items() if alternative.decoded_token == "1"), None)


def _token(alternatives: dict[int, Any]) -> Token:
    return Token("?", [(alternative.decoded_token, alternative.logprob) for alternative in alternatives.values()])
