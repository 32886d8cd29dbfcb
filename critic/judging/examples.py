"""Human-scored rows -> training examples: which are trained in which form, what is shown, what is to be said."""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from critic.judging import forms
from critic.judging.distribution import probabilities
from critic.judging.kinds import human_score
from critic.judging.prompt import Prompt, load
from critic.judging.render import escape_control_tokens, images_in, in_orders, truncate_to_fit
from critic.judging.targets import target
from critic.records import PLAYERS, TEN, Example, HumanScore, Message, Position, Response


class Planned(Struct, frozen=True):
    """A training example to be made: the form, and the ids of the answers it shows in their order. Of a pair that is
    one row `first` says who stands first."""

    form: str
    ids: tuple[str, ...]
    first: Position = "model"


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
    question (`partner`), in both orders where the two are compared. Where rows have a reason, forms that begin with it
    learn these. Raises UsageError for a mix with mistakes, ValueError for a response that people did not score.
    """
    forms.check_mix(mix)
    questions = [question_key(response) for response in responses]
    answers: dict[bytes, list[Response]] = defaultdict(list)
    for question, response in zip(questions, responses, strict=True):
        answers[question].append(response)
    planned: dict[Planned, None] = {}
    left_out = Counter[str]()
    reasoned = any(row.human is not None and row.human.reason for row in responses)
    silent = {row.id for row in responses if reasoned and row.human is not None and not row.human.reason}
    for form, share in mix.items():
        for question, response in zip(questions, responses, strict=True):
            if _draw(form, response.id) >= share:
                continue
            shown = _shown(form, load(form, response.question.lang), response, answers[question])
            if forms.REASON_FIRST in form and response.id in silent:
                shown = "no reason, which other rows have"
            if isinstance(shown, str):
                left_out[f"{form}: {shown}"] += 1
            else:
                planned |= dict.fromkeys(shown)
    return Plan(list(planned), dict(left_out))


def _shown(name: str, prompt: Prompt, response: Response, answers: Sequence[Response]) -> list[Planned] | str:
    """A row's examples, or why it makes none. `answers` are those to the row's question."""
    form = forms.form_of(name)
    if (lacking := form.lacking(response)) is not None:
        return lacking
    if response.preference is not None:
        orders = [Planned(name, (response.id,), first) for first in PLAYERS]
        return OPEN if form.kind.label(prompt, [response]) is None else orders
    if form.shown == 1:
        if not form.kind.is_verdict and response.id != min(answers, key=lambda answer: _draw(name, answer.id)).id:
            return ASKED_ONCE
        return OPEN if form.kind.label(prompt, [response]) is None else [Planned(name, (response.id,))]
    # People score an answer and the conversation that ends with it; two scores of different things do not compare.
    others = [other for other in answers if comparable(response, other) and form.lacking(other) is None]
    decided = [other for other in others if form.kind.label(prompt, [response, other]) is not None]
    if not decided:
        return OPEN if others else ALONE
    other = partner(name, response, decided)
    both = (response.id, other.id), (other.id, response.id)
    return [Planned(name, ids) for ids in both[: 1 + form.pair]]


def comparable(response: Response, other: Response) -> bool:
    """Return whether two answers to one question are by two systems, differ in text, and are no pairs themselves."""
    by_another = response.system is None or response.system != other.system
    alone = all(each.preference is None and each.other is None for each in (response, other))
    return alone and by_another and response.id != other.id and response.text.strip() != other.text.strip()


def partner(form: str, response: Response, others: Sequence[Response]) -> Response:
    """Return the answer that a response meets in a form: of several the one with the lowest hash."""
    return min(others, key=lambda candidate: _draw(form, response.id, candidate.id))


def question_key(response: Response) -> bytes:
    """The same for answers to the same question: for equal Questions. Of a row that nobody scored a group of its own,
    which it has where it came without one, tells it from no other."""
    question = response.question
    if response.human is None and question.group == response.id:
        question = replace(question, id="", group="")
    return msgspec.json.encode(question)


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
    *,
    sees: bool = False,
    first: Position = "model",
) -> Example | TooLong:
    """The training example of a human-scored response in a form, shortened as in judging, for a judge that `sees` its
    images or not. Where the form shows two answers, `other` is B, or stands for the judge's own; of a row that is a
    pair the one that stands `first` is A. Two in a form of which each is shown alone are for a head that compares."""
    if form in forms.COMPARED and (other or response.preference is not None):
        return _pair(response, form, max_source_tokens, count, other, sees)
    spec, answers = forms.form_of(form), [response, *([other] if other is not None else [])]
    preference, human = response.preference, response.human or HumanScore(score=response.preference or 0.0)
    asked = forms.inquiry(form, response.question.lang, spec.material(response, other or response.other), sees=sees)
    asked = replace(asked, material=in_orders(asked.prompt, asked.material, [first])[0])
    if preference is not None and first == "opponent":
        answers = [replace(response, preference=1 - preference)]
    name, prompt = "+".join(answer.id for answer in answers), asked.prompt
    label = spec.kind.label(prompt, answers)
    assert label is not None, "rows whose verdict people leave open are not planned"
    fitted = truncate_to_fit(prompt, asked.material, max_source_tokens, count)
    if fitted is None:
        return TooLong(name, form)
    reason = escape_control_tokens(human.reason or "")
    soft = None
    if human.raters and spec.kind.rates:
        of_raters = (probabilities(score, prompt.scale) for score in human.raters.values())
        soft = [fmean(shares) for shares in zip(*of_raters, strict=True)]
    return Example(
        id=name,
        form=form,
        messages=fitted.messages,
        target=target(escape_control_tokens(label) if isinstance(label, str) else label, reason, asked.keys()),
        score=None if spec.pair else human.score,
        label=soft,
        shortened=fitted.shortened,
        free=not asked.keys(),
        images=images_in(fitted.messages),
    )


def _pair(
    response: Response,
    shown_as: str,
    max_source_tokens: int | None,
    count: Callable[[list[Message]], int],
    other: Response | None,
    sees: bool,
) -> Example | TooLong:
    compared, answers = forms.COMPARED[shown_as], [response, *([other] if other else [])]
    form, name = forms.form_of(compared), "+".join(answer.id for answer in answers)
    material = form.material(response, other or response.other)
    asked = forms.inquiry(compared, response.question.lang, material, sees)
    alone = forms.each_alone(asked)
    first, second = (truncate_to_fit(side.prompt, side.material, max_source_tokens, count) for side in alone)
    if first is None or second is None:
        return TooLong(name, shown_as)
    if response.preference is not None:
        ahead = 2 * response.preference - 1
    else:
        better, worse = (human_score(answer).score for answer in answers)
        ahead = (better - worse) / (TEN[1] - TEN[0])
    return Example(
        id=name,
        form=shown_as,
        messages=first.messages,
        other=second.messages,
        target="",
        free=True,
        label=[0.0 if form.kind.label(asked.prompt, answers) == "tie" else ahead],
        shortened={**first.shortened, **second.shortened},
        images=images_in(first.messages),
    )


def example_of(
    planned: Planned,
    by_id: Mapping[str, Response],
    max_source_tokens: int | None,
    count: Callable[[list[Message]], int],
    sees: bool = False,
) -> Example | TooLong:
    """A planned example, made of the responses it names."""
    response, *others = (by_id[name] for name in planned.ids)
    return example(response, planned.form, max_source_tokens, count, *others, sees=sees, first=planned.first)
