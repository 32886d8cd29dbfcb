"""Write target verdicts as text, and tokenize training examples."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from critic.errors import UsageError
from critic.records import Example, Message

RATING, REASON = "Rating", "Reason"
"""The JSON keys of a verdict's rating and of its reason."""

Label = int | str | dict[str, int | str]
"""The correct verdict according to human scores: one value, or JSON key -> value."""


def target(label: Label, reason: str, order: Sequence[str] = (RATING, REASON)) -> str:
    """Return the text of a verdict, as a training target: JSON without spaces, as constrained decoding generates it.

    Args:
        label: The value or values of the verdict. A single value is written under each key except REASON.
        reason: The reason, written under the key REASON if `order` has it.
        order: The keys in the order of the output format. If it is empty, return the label as text.

    >>> target(8, "The clock is missing.")
    '{"Rating":8,"Reason":"The clock is missing."}'
    """
    if not order:
        return str(label)
    values: Mapping[str, int | str] = label if isinstance(label, dict) else dict.fromkeys(order, label)
    parts = {key: reason if key == REASON else values[key] for key in order}
    return json.dumps(parts, ensure_ascii=False, separators=(",", ":"))


IGNORED = -100
"""Label of a token that does not contribute to the loss (the default of PyTorch's cross entropy)."""


def source_ids(tokenizer: Any, messages: list[Message]) -> list[int]:
    """Return the token ids of a prompt: its messages in the tokenizer's chat template, with the generation prompt."""
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


class Encoded(Struct, frozen=True):
    """A tokenized training example: the prompt, then the target verdict and the end of the turn, which are learned.

    - `ids`: the token ids of both.
    - `source`: the number of tokens of the prompt, which come first.
    - `value`: indices in `ids` of the tokens that spell the verdict's value or values, such as 8, A or yes; [] for free
      text.
    """

    ids: list[int]
    source: int
    value: list[int]


def encode(tokenizer: Any, example: Example) -> Encoded:
    """Tokenize a training example with a transformers tokenizer, and find the tokens of its verdict's value.

    The prompt's token ids are the same as in serving, where no verdict follows. Raises UsageError if the chat template
    does not write the verdict directly after the prompt.
    """
    prompt = tokenizer.apply_chat_template(example.messages, tokenize=False, add_generation_prompt=True)
    answered = [*example.messages, {"role": "assistant", "content": example.target}]
    answered_text = tokenizer.apply_chat_template(answered, tokenize=False, add_generation_prompt=False)
    if not answered_text.startswith(prompt + example.target):
        raise UsageError("the tokenizer's chat template rewrites the answer")
    source: list[int] = tokenizer(prompt, add_special_tokens=False)["input_ids"]
    # Both in one text, since SentencePiece puts a space before the start of a text, which a served judge never writes.
    begins, first_token = len(prompt), len(source)
    tokens = tokenizer(answered_text, add_special_tokens=False, return_offsets_mapping=True)
    # Apart only where prompt and answer would share a token.
    if tokens["input_ids"][:first_token] != source:
        tokens = tokenizer(answered_text[begins:], add_special_tokens=False, return_offsets_mapping=True)
        begins = first_token = 0
    learned, places = tokens["input_ids"][first_token:], tokens["offset_mapping"][first_token:]
    spans = [(begins + first, begins + last) for first, last in _find_value_spans(example)]
    value = [
        len(source) + position
        for position, (start, end) in enumerate(places)
        if any(start < last and end > first for first, last in spans)
    ]
    return Encoded(source + learned, len(source), value)


def _find_value_spans(example: Example) -> list[tuple[int, int]]:
    """Return the character spans of the verdict's values in the example's target, without quotation marks.

    If there are several ratings, only the span of the overall rating is returned. Values are found by their quoted JSON
    keys, which the reason cannot contain because its quotation marks are escaped.
    """
    if example.free:
        return []
    keys, spans = [key for key in json.loads(example.target) if key != REASON], []
    for key in [RATING] if RATING in keys else keys:
        first = example.target.index(f'"{key}":') + len(f'"{key}":')
        value, last = json.JSONDecoder().raw_decode(example.target, first)
        spans.append((first + 1, last - 1) if isinstance(value, str) else (first, last))
    return spans
