"""Human-scored rows -> training examples: which rows are trained in which form, what the judge is shown, what it should
say, and which tokens are learned."""

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from critic.asking.forms import AnswerKind, RatingKind, form_of, human_score, keys, prompt_of, target
from critic.asking.prompt import Prompt
from critic.asking.rating import whole_rating
from critic.asking.render import fit
from critic.errors import UsageError
from critic.records import Example, HumanScore, Language, Message, Response

IGNORED = -100
"""Label of a token that is shown but not learned (PyTorch's cross-entropy default)."""


def check_mix(mix: Mapping[str, float]) -> None:
    """Raises UsageError for an unknown form, a share outside 0..1, or no share above 0."""
    for form, share in mix.items():
        prompt_of(form, "en")
        if not 0.0 <= share <= 1.0:
            raise UsageError(f"form {form!r}: the share of rows must lie in 0..1, got {share:g}")
    if not any(mix.values()):
        raise UsageError(f"no form has a share above 0, got {dict(mix)}")


class Planned(Struct, frozen=True):
    """A training example to be made: the form, and the ids of the answers it shows in their order."""

    form: str
    ids: tuple[str, ...]


class Plan(Struct, frozen=True):
    """The examples to be made, form by form, and the rows that a form kept but can make no example of:
    "FORM: why" -> how many."""

    examples: list[Planned]
    left_out: dict[str, int]


OPEN = "people's score leaves the verdict open"
ALONE = "no other answer to the same question to compare with"
ASKED_ONCE = "another row asks the same question"


def plan(responses: Sequence[Response], mix: Mapping[str, float]) -> Plan:
    """Which rows are trained in which form. `mix[form]` (0..1) is the share of the rows that a form keeps.

    Each form keeps a row, or not, for itself, by a hash of form and id: more rows, or another share elsewhere, change
    nothing for the rows that are there. In a form that shows two answers, a row kept meets one other answer to its
    question (`partner`), in both orders where the two are compared. What two forms would render alike (a row whose
    language is the one a form fixes) is planned once. Raises UsageError for a mix with mistakes, ValueError for a
    response that people did not score.
    """
    check_mix(mix)
    questions = [question_key(response) for response in responses]
    answers: dict[bytes, list[Response]] = defaultdict(list)
    for question, response in zip(questions, responses, strict=True):
        answers[question].append(response)
    planned: dict[tuple[str, Language, tuple[str, ...]], Planned] = {}
    left_out = Counter[str]()
    for form, share in mix.items():
        for question, response in zip(questions, responses, strict=True):
            if _draw(form, response.id) >= share:
                continue
            prompt = prompt_of(form, response.question.lang)
            shown = _shown(form, prompt, response, answers[question])
            if isinstance(shown, str):
                left_out[f"{form}: {shown}"] += 1
            else:
                for ids in shown:
                    planned.setdefault((prompt.name, prompt.language, ids), Planned(form, ids))
    return Plan(list(planned.values()), dict(left_out))


def _shown(name: str, prompt: Prompt, response: Response, answers: Sequence[Response]) -> list[tuple[str, ...]] | str:
    """The ids that a row's examples show, or why it makes none. `answers` are those to the row's question."""
    form = form_of(name)
    if (lacking := form.lacking(response)) is not None:
        return lacking
    if form.shown == 1:
        if isinstance(form.kind, AnswerKind) and response.id != min(answers, key=lambda each: _draw(name, each.id)).id:
            return ASKED_ONCE
        return OPEN if form.kind.label(prompt, [response]) is None else [(response.id,)]
    others = [other for other in answers if comparable(response, other)]
    decided = [other for other in others if form.kind.label(prompt, [response, other]) is not None]
    if not decided:
        return OPEN if others else ALONE
    other = partner(name, response, decided)
    return [(response.id, other.id), *([(other.id, response.id)] if form.pair else [])]


def comparable(response: Response, other: Response) -> bool:
    """Whether two answers to one question are by two systems and differ in their text."""
    by_another = response.system is None or response.system != other.system
    return by_another and response.id != other.id and response.text.strip() != other.text.strip()


def partner(form: str, response: Response, others: Sequence[Response]) -> Response:
    """Of several answers the one that a response meets in a form: that with the lowest hash."""
    return min(others, key=lambda each: _draw(form, response.id, each.id))


def question_key(response: Response) -> bytes:
    """The same for answers to the same question: its text, history, images and reference."""
    return msgspec.json.encode(response.question)


def _draw(*words: str) -> float:
    """A number in 0..1 (1 itself excluded) that the words alone decide."""
    digest = hashlib.sha256("\0".join(words).encode()).digest()
    return int.from_bytes(digest[:6], "big") / 2**48


class TooLong(Struct, frozen=True):
    """A row that does not fit in a form however it is shortened. `id` is as in Example."""

    id: str
    form: str


def example(
    response: Response,
    form: str,
    max_source_tokens: int | None,
    count: Callable[[list[Message]], int],
    other: Response | None = None,
) -> Example | TooLong:
    """The training example of a human-scored response in a form, shortened as in judging. Where the form shows two
    answers, `other` is B, or stands for the judge's own.

    The reason is the one people wrote, where it is in the prompt's language. Raises ValueError for a response without
    a score, whose score leaves the form's verdict open, or for an `other` too many or too few.
    """
    how, prompt = form_of(form), prompt_of(form, response.question.lang)
    answers = [response, *([other] if other is not None else [])]
    if len(answers) != how.shown:
        raise ValueError(f"form {form} shows {how.shown} answers, got {len(answers)}")
    name = "+".join(one.id for one in answers)
    human, label = human_score(response), how.kind.label(prompt, answers)
    if label is None:
        raise ValueError(f"people's score of {name} leaves the verdict of form {form} open")
    material = how.material(response, other)
    fitted = fit(prompt, material, max_source_tokens, count)
    if fitted is None:
        return TooLong(name, form)
    reason = human.reason if prompt.language == response.question.lang else None
    return Example(
        id=name,
        form=form,
        messages=fitted.messages,
        target=target(label, reason or "", keys(how, prompt, material)),
        score=None if how.pair else human.score,
        label=_shares(prompt, human) if isinstance(how.kind, RatingKind) else None,
        shortened=fitted.shortened,
    )


def _shares(prompt: Prompt, human: HumanScore) -> list[float] | None:
    if not human.raters:
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


class ChatTokenizer(Protocol):
    """What is used of a transformers tokenizer."""

    def apply_chat_template(
        self, conversation: list[Message], *, tokenize: bool, add_generation_prompt: bool
    ) -> Any: ...

    def __call__(self, text: str, *, add_special_tokens: bool, return_offsets_mapping: bool = False) -> Any: ...


def source_ids(tokenizer: ChatTokenizer, messages: list[Message]) -> list[int]:
    """Token ids of a prompt, as a server renders it before the judge answers."""
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids


class Encoded(Struct, frozen=True):
    """Token ids and labels of an example, equally long: the prompt is IGNORED, the verdict and the end of
    the turn are learned. `rating[i]` tells whether token i spells the verdict's value: a rating, A, B, yes …; of a
    checklist each answer, of an answer of the judge's own nothing."""

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
    spans = _value_spans(example)
    return Encoded(
        ids=source + learned,
        labels=[IGNORED] * len(source) + learned,
        rating=[False] * len(source)
        + [any(start < last and end > first for first, last in spans) for start, end in places],
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


def _value_spans(example: Example) -> list[tuple[int, int]]:
    """Where a target spells the verdict's values, without quotation marks, as positions of characters.

    Of several criteria only the overall rating is marked. Quotation marks inside the reason are escaped, so a key is
    found nowhere else.
    """
    prompt = prompt_of(example.form, "en")
    if prompt.key == "Answer":
        return []
    names = [prompt.key] if prompt.key != "Checklist" else list(json.loads(example.target))
    return [_value_span(example.target, f'"{name}":') for name in names]


def _value_span(target: str, key: str) -> tuple[int, int]:
    first = target.index(key) + len(key)
    verdict, last = json.JSONDecoder().raw_decode(target, first)
    return (first + 1, last - 1) if isinstance(verdict, str) else (first, last)
