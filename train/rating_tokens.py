"""Tokens that spell the ratings 1..10, and the rating distribution from a model's logits."""

from functools import lru_cache
from typing import Any

import torch
from msgspec import Struct
from torch.nn import functional

from critic.errors import UsageError
from critic.judging.targets import encode, target
from critic.records import RATINGS, Example, Message


class RatingTokens(Struct, frozen=True):
    """How a tokenizer spells the ratings.

    - `before`: tokens of a verdict before the rating.
    - `first[k - 1]`: first token of rating k.
    - `zero`: token that turns a 1 into a 10, or None if 10 is one token.
    - `going_on`: tokens that may follow a rating which is not the verdict's last value.
    - `ending`: tokens that may follow a rating which is the verdict's last value.
    """

    before: list[int]
    first: list[int]
    zero: int | None
    going_on: list[int] = []
    ending: list[int] = []


def rating_tokens(tokenizer: Any) -> RatingTokens:
    """Return how a tokenizer spells the ratings.

    Raise UsageError unless all ratings differ in their first token, or only 1 and 10 share it and 10 has two tokens.
    """
    before: set[tuple[int, ...]] = set()
    spelt: list[list[int]] = []
    for rating in RATINGS:
        messages: list[Message] = [{"role": "user", "content": "?"}]
        example = Example(id="", messages=messages, target=target(rating, ""), form="pointwise")
        tokens = encode(tokenizer, example)
        before.add(tuple(tokens.ids[tokens.source : tokens.value[0]]))
        spelt.append([tokens.ids[position] for position in tokens.value])
    first = [tokens[0] for tokens in spelt]
    one, ten = spelt[0], spelt[-1]
    # Ten different first tokens: 10 is one of them.
    if len(before) == 1 and len(set(first)) == len(RATINGS):
        return RatingTokens(list(before.pop()), first, None)
    if len(before) == 1 and len(set(first[:-1])) == len(RATINGS) - 1 and one == ten[:1] and len(ten) == 2:
        return RatingTokens(list(before.pop()), first, ten[1], *(_find_tokens(tokenizer, mark) for mark in ",}"))
    raise UsageError("this tokenizer does not spell the ratings 1..10 as digits; choose another base")


def _find_tokens(tokenizer: Any, mark: str) -> list[int]:
    """Return the ids of tokens that start with `mark` and contain no line break."""
    ids = sorted(token_id for token, token_id in tokenizer.get_vocab().items() if token.startswith(mark))
    return [token_id for token_id in ids if not {*"\n\r"} & {*tokenizer.decode([token_id])}]


def log_distribution(
    tokens: RatingTokens, at_rating: torch.Tensor, behind_one: torch.Tensor | None, last: torch.Tensor | None = None
) -> torch.Tensor:
    """Return the log probabilities [rows × 10] of the ratings, normalised over what a constrained reply may contain.

    - `at_rating` [rows × vocabulary]: logits at the rating's first token.
    - `behind_one` [rows × vocabulary]: logits after a 1 at that position; None if 10 is one token.
    - `last` [rows]: True if the rating is the verdict's last value (default: in no row).

    critic.judging.distribution reads a server's reply in the same way.

    >>> tokens = RatingTokens(before=[], first=list(range(10)), zero=None)
    >>> log_distribution(tokens, torch.zeros(1, 12), None).exp()[0, :2]
    tensor([0.1000, 0.1000])
    """

    def picked(logits: torch.Tensor, columns: list[int]) -> torch.Tensor:
        return logits[:, token_index(tuple(columns), logits.device)].float()

    scores = picked(at_rating, tokens.first)
    if tokens.zero is not None:
        assert behind_one is not None
        without_zero = picked(behind_one, tokens.going_on).logsumexp(-1)
        # Behind the last value of a verdict only its end may follow.
        if last is not None:
            without_zero = torch.where(last, picked(behind_one, tokens.ending).logsumexp(-1), without_zero)
        # Behind a 1 there are two ways on: the 0 that makes it a 10, and the rest of the verdict.
        more = behind_one[:, tokens.zero].float() - without_zero
        one, ten = scores[:, 0] + functional.logsigmoid(-more), scores[:, -1] + functional.logsigmoid(more)
        scores = torch.cat([one[:, None], scores[:, 1:-1], ten[:, None]], dim=1)
    return functional.log_softmax(scores, dim=-1)


@lru_cache
def token_index(tokens: tuple[int, ...], device: torch.device) -> torch.Tensor:
    """Return token ids as an index tensor on a device.

    It is cached, because copying a list to the GPU waits for all of the GPU's pending work.
    """
    return torch.tensor(tokens, dtype=torch.long, device=device)
