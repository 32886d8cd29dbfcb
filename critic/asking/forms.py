"""Judging forms: what people's scores say in each, which rows are trained in which, how a reply is read.

A form is a judging prompt (`critic/prompts/`), asked for in the row's own language (`pairwise`) or always in
one (`pairwise@zh`). Its prompt says what a verdict holds and on which scale; nothing here repeats that.
"""

import hashlib
import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import cast, get_args

import msgspec
from msgspec import Struct

from critic.asking.prompt import Prompt, load, names
from critic.asking.verdict import Choice, parse, parse_choice
from critic.errors import UsageError
from critic.records import RATINGS, HumanScore, Language, Response, Verdict

RIGHT, WRONG = 7, 5
"""On 1..10, rounded half up: from 7 on an answer is right, with few errors at most; to 5 more than half of it is
wrong (AlignMMBench §4.1). At 6 people's score leaves both open."""

TIE, APART = 0.5, 1.0
"""Points on 1..10: two answers whose scores differ by less than TIE are equal, by APART or more they are not. Between
the two, the difference is too small to teach either."""


def whole_rating(score: float, scale: tuple[int, int] = (RATINGS[0], RATINGS[-1])) -> int:
    """A score on 1..10 as a whole rating, moved linearly onto `scale` where that is another one: halves go up."""
    low, high = scale
    moved = score if scale == (RATINGS[0], RATINGS[-1]) else low + (high - low) * (score - 1) / 9
    return min(max(math.floor(round(moved, 9) + 0.5), low), high)


def human_score(response: Response) -> HumanScore:
    """Raises ValueError for a response that people did not score."""
    if response.human is None:
        raise ValueError(f"response {response.id} has no human score")
    return response.human


def value(prompt: Prompt, response: Response, other: Response | None = None) -> int | str | None:
    """The verdict that people's scores make the right one in a form; None where they leave it open."""
    score = human_score(response).score
    if prompt.key == "Rating":
        return whole_rating(score, prompt.scale)
    if prompt.key == "Correct":
        rating = whole_rating(score)
        return "yes" if rating >= RIGHT else "no" if rating <= WRONG else None
    if other is None:
        raise ValueError(f"prompt {prompt.name} compares two answers, got one")
    ahead = round(score - human_score(other).score, 9)
    if abs(ahead) < TIE:
        return "tie"
    return None if abs(ahead) < APART else "A" if ahead > 0 else "B"


def read(prompt: Prompt, text: str, truncated: bool = False) -> Verdict | Choice:
    """A judge's reply in a form, read: a rating on 1..10 whatever the form's scale, or a choice."""
    if prompt.key == "Rating":
        return parse(text, truncated, prompt.scale)
    return parse_choice(text, prompt.key, truncated)


def prompt_of(form: str, language: Language) -> Prompt:
    """The prompt of a form for a row in `language`. Raises UsageError for an unknown form."""
    name, _, fixed = form.partition("@")
    if name not in names():
        raise UsageError(f"unknown form {form!r}; choose {', '.join(names())}")
    if "@" in form and fixed not in get_args(Language):
        raise UsageError(f"form {form!r}: behind @ comes the prompt's language, {' or '.join(get_args(Language))}")
    return load(name, cast(Language, fixed) if fixed else language)


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


def plan(responses: Sequence[Response], mix: Mapping[str, float]) -> Plan:
    """Which rows are trained in which form. `mix[form]` (0..1) is the share of the rows that a form keeps.

    Each form keeps a row, or not, for itself, by a hash of form and id: more rows, or another share elsewhere, change
    nothing for the rows that are there. In a form that compares, a row kept meets one other answer to its question,
    and both orders become examples: the one with the lowest hash among the answers of other systems, other in
    their text, where people's scores decide. What two forms would render alike (a row whose language is the one a form
    fixes) is planned once. Raises UsageError for a mix with mistakes, ValueError for a response that people did
    not score.
    """
    check_mix(mix)
    keys = [_question(response) for response in responses]
    answers: dict[bytes, list[Response]] = defaultdict(list)
    for key, response in zip(keys, responses, strict=True):
        answers[key].append(response)
    planned: dict[tuple[str, Language, tuple[str, ...]], Planned] = {}
    left_out = Counter[str]()
    for form, share in mix.items():
        for key, response in zip(keys, responses, strict=True):
            if _draw(form, response.id) >= share:
                continue
            prompt = prompt_of(form, response.question.lang)
            shown = _shown(form, prompt, response, answers[key])
            if isinstance(shown, str):
                left_out[f"{form}: {shown}"] += 1
            else:
                for ids in shown:
                    planned.setdefault((prompt.name, prompt.language, ids), Planned(form, ids))
    return Plan(list(planned.values()), dict(left_out))


def _shown(form: str, prompt: Prompt, response: Response, answers: Sequence[Response]) -> list[tuple[str, ...]] | str:
    """The ids that a row's examples show, or why it makes none. `answers` are those to the row's question."""
    if not prompt.is_pair:
        return OPEN if value(prompt, response) is None else [(response.id,)]
    others = [other for other in answers if _comparable(response, other)]
    decided = [other for other in others if value(prompt, response, other) is not None]
    if not decided:
        return OPEN if others else ALONE
    other = min(decided, key=lambda each: _draw(form, response.id, each.id))
    return [(response.id, other.id), (other.id, response.id)]


def _comparable(response: Response, other: Response) -> bool:
    by_another = response.system is None or response.system != other.system
    return by_another and response.id != other.id and response.text.strip() != other.text.strip()


def _question(response: Response) -> bytes:
    """The same for answers to the same question: its text, history, images and reference."""
    return msgspec.json.encode(response.question)


def _draw(*words: str) -> float:
    """A number in 0..1 (1 itself excluded) that the words alone decide."""
    digest = hashlib.sha256("\0".join(words).encode()).digest()
    return int.from_bytes(digest[:6], "big") / 2**48
