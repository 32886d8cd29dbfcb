"""Human-scored rows -> training examples: what the judge is shown and what it should say; which
tokens are learned."""

import hashlib
import json
import math
from collections.abc import Callable
from typing import Any, Protocol

from msgspec import Struct

from critic.errors import UsageError
from critic.judge_prompt import VERDICT_SCHEMA, Prompt, fit, load
from critic.records import RATINGS, Example, Message, Response

IGNORED = -100
"""Label of a token that is shown but not learned (PyTorch's cross-entropy default)."""


class ChatTokenizer(Protocol):
    """What is used of a transformers tokenizer."""

    def apply_chat_template(
        self, conversation: list[Message], *, tokenize: bool, add_generation_prompt: bool
    ) -> Any: ...

    def __call__(self, text: str, *, add_special_tokens: bool, return_offsets_mapping: bool = False) -> Any: ...


def whole_rating(score: float) -> int:
    """A score on 1..10 as a whole rating: halves go up."""
    return min(max(math.floor(score + 0.5), RATINGS[0]), RATINGS[-1])


def verdict_keys(prompt: Prompt) -> tuple[str, ...]:
    """The keys of a verdict in the order that a prompt's output format shows them: rating or reason first."""
    keys: list[str] = list(VERDICT_SCHEMA["properties"])
    return tuple(sorted(keys, key=lambda key: prompt.template.index(f'"{key}"')))


def target(rating: int, reason: str, keys: tuple[str, ...] = tuple(VERDICT_SCHEMA["properties"])) -> str:
    """A verdict as the judge is to write it: the form that constrained decoding allows, without spaces."""
    parts = {"Rating": rating, "Reason": reason}
    return json.dumps({key: parts[key] for key in keys}, ensure_ascii=False, separators=(",", ":"))


def example(
    response: Response, prompt_name: str, max_source_tokens: int | None, count: Callable[[list[Message]], int]
) -> Example | None:
    """The training example of a human-scored response, shortened as in judging; None if it cannot fit."""
    if response.human is None:
        raise ValueError(f"response {response.id} has no human score")
    prompt = load(prompt_name, response.question.lang)
    fitted = fit(prompt, response, max_source_tokens, count)
    if fitted is None:
        return None
    return Example(
        id=response.id,
        messages=fitted.messages,
        target=target(whole_rating(response.human.score), response.human.reason or "", verdict_keys(prompt)),
        shortened=fitted.shortened,
    )


def source_ids(tokenizer: ChatTokenizer, messages: list[Message]) -> list[int]:
    """Token ids of a prompt, as a server renders it before the judge answers."""
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids


class Encoded(Struct, frozen=True):
    """Token ids and labels of an example, equally long: the prompt is IGNORED, the verdict and the end of
    the turn are learned. `rating[i]` tells whether token i spells the rating."""

    ids: list[int]
    labels: list[int]
    rating: list[bool]


def encode(tokenizer: ChatTokenizer, example: Example) -> Encoded:
    """The tokens of an example, and which of them are learned.

    Prompt and verdict are tokenized apart, as in serving. Raises UsageError for a chat template
    that does not write the answer straight behind the prompt.
    """
    prompt = tokenizer.apply_chat_template(example.messages, tokenize=False, add_generation_prompt=True)
    answered = [*example.messages, {"role": "assistant", "content": example.target}]
    whole = tokenizer.apply_chat_template(answered, tokenize=False, add_generation_prompt=False)
    if not whole.startswith(prompt + example.target):
        raise UsageError(
            "the tokenizer's chat template rewrites the answer; choose a chat base without a thinking template"
        )
    source = tokenizer(prompt, add_special_tokens=False)["input_ids"]
    answer = tokenizer(whole[len(prompt) :], add_special_tokens=False, return_offsets_mapping=True)
    learned = answer["input_ids"]
    first, last = _rating_span(example.target)
    return Encoded(
        ids=source + learned,
        labels=[IGNORED] * len(source) + learned,
        rating=[False] * len(source) + [start < last and end > first for start, end in answer["offset_mapping"]],
    )


def _rating_span(target: str) -> tuple[int, int]:
    """Where a target spells its rating, as positions of characters. A quotation mark inside the reason is
    escaped, so the key is found nowhere else."""
    first = target.index('"Rating":') + len('"Rating":')
    return first, next(at for at in range(first, len(target)) if not target[at].isdigit())


def with_reason_first(response_id: str, share: float) -> bool:
    """Whether a row is one of the `share` (0..1) that are trained reason first: a matter of its id alone."""
    digest = hashlib.sha256(response_id.encode()).digest()
    return int.from_bytes(digest[:8], "big") < share * 2**64
