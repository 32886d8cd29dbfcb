"""Human-scored rows -> training examples: what the judge is shown and what it should say; which
tokens are learned."""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from msgspec import Struct

from critic.asking.forms import Planned, human_score, prompt_of, value, whole_rating
from critic.asking.prompt import VERDICT_SCHEMA, Prompt, fit, verdict_schema
from critic.errors import UsageError
from critic.records import Example, HumanScore, Message, Response

IGNORED = -100
"""Label of a token that is shown but not learned (PyTorch's cross-entropy default)."""


class ChatTokenizer(Protocol):
    """What is used of a transformers tokenizer."""

    def apply_chat_template(
        self, conversation: list[Message], *, tokenize: bool, add_generation_prompt: bool
    ) -> Any: ...

    def __call__(self, text: str, *, add_special_tokens: bool, return_offsets_mapping: bool = False) -> Any: ...


class TooLong(Struct, frozen=True):
    """A row that does not fit in a form however it is shortened. `id` is as in Example."""

    id: str
    form: str


def verdict_keys(prompt: Prompt) -> tuple[str, ...]:
    """The keys of a verdict in the order that a prompt's output format shows them: rating or reason first."""
    return tuple(verdict_schema(prompt)["properties"])


def target(verdict: int | str, reason: str, keys: Sequence[str] = tuple(VERDICT_SCHEMA["properties"])) -> str:
    """A verdict as the judge is to write it: the form that constrained decoding allows, without spaces."""
    parts = {key: reason if key == "Reason" else verdict for key in keys}
    return json.dumps(parts, ensure_ascii=False, separators=(",", ":"))


def example(
    response: Response,
    form: str,
    max_source_tokens: int | None,
    count: Callable[[list[Message]], int],
    other: Response | None = None,
) -> Example | TooLong:
    """The training example of a human-scored response in a form (of `response` as A and `other` as B, where it
    compares two), shortened as in judging.

    The reason is the one people wrote, where it is in the prompt's language. Raises ValueError for a response without
    a score, or whose score leaves the form's verdict open.
    """
    prompt = prompt_of(form, response.question.lang)
    shown = response.id if other is None else f"{response.id}+{other.id}"
    human, verdict = human_score(response), value(prompt, response, other)
    if verdict is None:
        raise ValueError(f"people's score of {shown} leaves the verdict of form {form} open")
    fitted = fit(prompt, response, max_source_tokens, count, other)
    if fitted is None:
        return TooLong(shown, form)
    reason = human.reason if prompt.language == response.question.lang else None
    return Example(
        id=shown,
        form=form,
        messages=fitted.messages,
        target=target(verdict, reason or "", verdict_keys(prompt)),
        score=None if other else human.score,
        label=_label(prompt, human),
        shortened=fitted.shortened,
    )


def _label(prompt: Prompt, human: HumanScore) -> list[float] | None:
    if prompt.key != "Rating" or not human.raters:
        return None
    low, high = prompt.scale
    counts = Counter(whole_rating(score, prompt.scale) for score in human.raters.values())
    return [counts[rating] / len(human.raters) for rating in range(low, high + 1)]


def example_of(
    planned: Planned,
    by_id: Mapping[str, Response],
    max_source_tokens: int | None,
    count: Callable[[list[Message]], int],
) -> Example | TooLong:
    """A planned example, made of the responses it names."""
    response, *others = (by_id[name] for name in planned.ids)
    return example(response, planned.form, max_source_tokens, count, *others)


def source_ids(tokenizer: ChatTokenizer, messages: list[Message]) -> list[int]:
    """Token ids of a prompt, as a server renders it before the judge answers."""
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids


class Encoded(Struct, frozen=True):
    """Token ids and labels of an example, equally long: the prompt is IGNORED, the verdict and the end of
    the turn are learned. `rating[i]` tells whether token i spells the verdict's value: a rating, A, B, yes …"""

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
    learned, places = _behind(tokenizer, source, prompt, whole)
    first, last = _value_span(example)
    return Encoded(
        ids=source + learned,
        labels=[IGNORED] * len(source) + learned,
        rating=[False] * len(source) + [start < last and end > first for start, end in places],
    )


def _behind(
    tokenizer: ChatTokenizer, source: list[int], prompt: str, whole: str
) -> tuple[list[int], list[tuple[int, int]]]:
    """The tokens of `whole` behind `prompt` (whose tokens are `source`), and where in that text each stands.

    They are read in their place, since SentencePiece tokenizers put a space before the start of a text, which a
    served judge never writes; apart only where prompt and answer would share a token.
    """
    both = tokenizer(whole, add_special_tokens=False, return_offsets_mapping=True)
    if both["input_ids"][: len(source)] != source:
        answer = tokenizer(whole[len(prompt) :], add_special_tokens=False, return_offsets_mapping=True)
        return answer["input_ids"], answer["offset_mapping"]
    moved = [(start - len(prompt), end - len(prompt)) for start, end in both["offset_mapping"][len(source) :]]
    return both["input_ids"][len(source) :], moved


def _value_span(example: Example) -> tuple[int, int]:
    """Where a target spells the verdict's value, without quotation marks, as positions of characters. A quotation
    mark inside the reason is escaped, so the key is found nowhere else."""
    key = f'"{prompt_of(example.form, "en").key}":'
    first = example.target.index(key) + len(key)
    verdict, last = json.JSONDecoder().raw_decode(example.target, first)
    return (first + 1, last - 1) if isinstance(verdict, str) else (first, last)
