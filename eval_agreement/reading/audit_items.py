"""Audit items of judgments. Only `items_of` knows where a record holds a score, a preference or a yes."""

import math
from collections.abc import Iterator, Sequence
from typing import Literal, get_args

from msgspec import Struct, field
from msgspec.structs import replace

from critic import jsonl, tables
from critic.errors import UsageError, quoted
from critic.judging import distribution
from critic.judging.forms import FORMS, POINTS, AnswerKind, ChecklistKind, ChoiceKind, CriteriaKind, Form, form_of
from critic.judging.thoughts import split_thoughts
from critic.records import RATINGS, Call, Judgment, Protocol, Response, Sample
from critic.stats.aggregate import check
from critic.stats.verdicts import Label
from eval_agreement.reading.tables import Source
from eval_agreement.sample import PARTS

Kind = Literal["score", "preference", "yes or no"]

COLUMN_SUFFIX = "_score_1_10"
"""Suffix of the columns of human-scored rows that hold another judge's scores."""


class AuditItem(Struct, frozen=True, kw_only=True):
    """A judged item with the verdicts of the judge and of people. None is an unknown value.

    - kind "score": `score` is on 1..10, None if the judge failed. `criterion` is None for the overall score.
    - kinds "preference" (between answers a and b) and "yes or no" (yes is a, no is b): `labels` holds the verdict with
      a shown first and the one with b shown first, or a single one where the order does not matter or is not known;
      "failed" is a failed judgment, None an order that was not asked.

    `human` (with its `raters`) or `human_label`, and `others` (scores by column), are in the record. Items of a `group`
    are resampled together; `parts` is what agreement is broken down by, `length` the characters of the answer (and
    `length_b` of the other), `probability` the chance that people were asked (None: the same for all).
    """

    id: str
    kind: Kind
    criterion: str | None = None
    group: str
    score: float | None = None
    labels: tuple[Label | None, ...] = ()
    human: float | None = None
    raters: dict[str, float] = field(default_factory=dict)
    human_label: Label | None = None
    probability: float | None = None
    others: dict[str, float] = field(default_factory=dict)
    parts: dict[str, str | None]
    length: float | None = None
    length_b: float | None = None
    response: Response | None = None
    judgment: Judgment | None = None


def items_of(judgment: Judgment) -> list[AuditItem]:
    """Return the audit items of one record, with the ids of people's verdicts.

    The form of the prompt decides how many there are. A prompt without a known form is a rating.
    """
    try:
        form = form_of(judgment.prompt)
    except UsageError:
        # Prompts of other judges have no form here; their judgments can only be ratings.
        form = FORMS["pointwise"]
    sample, asked = judgment.sample, judgment.sample.asked
    turn = sample.turn and len(sample.conversation.history) + sample.turn
    base = of_response(sample.response)
    parts = {**base.parts, "task": asked.task if asked else None, "turn": str(turn or "whole")}
    if judgment.protocol is not None:
        parts |= {"condition": sample.condition, "protocol": judgment.protocol, "judging": judgment.judging}
    base = replace(base, id=judgment.id, parts=parts, length=_length(sample), judgment=judgment, score=judgment.score)
    if isinstance(form.kind, ChoiceKind):
        return [_choice(base, judgment, form)]
    if isinstance(form.kind, ChecklistKind):
        return [*_checklist(base, judgment)]
    if isinstance(form.kind, CriteriaKind):
        return [base, *_by_criterion(base, judgment)]
    return [] if isinstance(form.kind, AnswerKind) else [base]


def _length(sample: Sample) -> int | None:
    """Return the characters of an answer without its thoughts, which earlier versions counted, or None if unknown."""
    return sample.length if sample.answer is None else len(split_thoughts(sample.answer).answer)


def _choice(base: AuditItem, judgment: Judgment, form: Form) -> AuditItem:
    """Return the judge's choice beside the choice that people's scores imply (None if they imply none)."""
    assert isinstance(form.kind, ChoiceKind)
    sample, asked = judgment.sample, judgment.sample.asked
    people = [answer.human for answer in (sample, sample.other if form.pair else None) if answer and answer.human]
    chances = [human.probability for human in people if human.probability is not None]
    wanted = 1 + form.pair
    label = _LABELS.get(form.kind.right([human.score for human in people])) if len(people) == wanted else None
    length_b = _length(sample.other) if sample.other else None
    if length_b is None and form.pair and asked and asked.reference is not None and sample.opponent is None:
        length_b = len(asked.reference)  # of another model's answer the record does not say the length
    return replace(
        base,
        kind="yes or no" if "yes" in form.kind.choices else "preference",
        score=None,
        labels=_orders(judgment.calls) or (_LABELS.get(judgment.verdict.value) or _winner(judgment.score),),
        human_label=label if sample.preference is None else _winner(sample.preference),
        human=None,
        # Answers are drawn independently of each other.
        probability=math.prod(chances) if len(chances) == wanted else None,
        length_b=length_b,
    )


def _checklist(base: AuditItem, judgment: Judgment) -> Iterator[AuditItem]:
    """Yield one item per checklist entry. Raises UsageError if the judge and people answered different numbers."""
    human, asked = judgment.sample.human, judgment.sample.asked
    right = (human.answers if human else []) or [None] * len(asked.checklist if asked else ())
    # A judge that was never asked has no answers, which are as many failures as there are items.
    answers = judgment.verdict.answers or [None] * len(right)
    if len(answers) != len(right):
        raise UsageError(f"people's and the judge's answers are not alike: {len(right)} and {len(answers)}")
    for number, (answer, person) in enumerate(zip(answers, right, strict=True), 1):
        label = None if person is None else _yes_or_no(person)
        item = replace(base, id=f"{base.id}/item={number}", kind="yes or no", score=None, human_label=label)
        yield replace(item, labels=(_yes_or_no(answer),))


def _by_criterion(base: AuditItem, judgment: Judgment) -> Iterator[AuditItem]:
    """Yield one item per criterion of the question."""
    people = judgment.sample.human.criteria if judgment.sample.human else {}
    for name in judgment.conversation.criteria:
        verdict = judgment.verdict.criteria.get(name)
        score = verdict and distribution.scored(verdict, judgment.score_kind)
        item = replace(base, id=f"{base.id}/criterion={name}", criterion=name, score=score, human=people.get(name))
        yield replace(item, raters={}, others={})


def of_response(response: Response) -> AuditItem:
    """Return the item of a response that has no judgment yet."""
    human = response.human
    return AuditItem(
        id=response.id,
        kind="score",
        group=response.question.group,
        human=human.score if human else None,
        raters=human.raters if human else {},
        probability=human.probability if human else None,
        others={name.removesuffix(COLUMN_SUFFIX): score for name, score in response.columns.items()},
        parts={part: value(response) for part, value in PARTS.items()},
        length=len(split_thoughts(response.text).answer),
        response=response,
    )


def _orders(calls: Sequence[Call]) -> tuple[Label | None, ...]:
    """Return the verdicts with a (the model's response) and with b (the opponent's) shown first.

    The last call of each order counts. Empty if no call records the order, as in people's verdicts.
    """
    last = {call.first: _LABELS.get(call.value, "failed") for call in calls if call.first}
    swapped = last.get("opponent")
    return (last.get("model"), _SWAPPED.get(swapped, swapped)) if last else ()


def _winner(score: float | None) -> Label:
    """Return the label of a score from 0 (b wins) to 1 (a wins); people's score may be a mean.

    >>> _winner(0.75), _winner(0.5), _winner(None)
    ('a', 'tie', 'failed')
    """
    return "failed" if score is None else "a" if score > 0.5 else "b" if score < 0.5 else "tie"


_LABELS: dict[str | None, Label] = {value: _winner(points) for value, points in POINTS.items()}
_SWAPPED: dict[Label | None, Label] = {"a": "b", "b": "a"}


def _yes_or_no(answer: bool | None) -> Label:
    return "failed" if answer is None else "a" if answer else "b"


def read_items(source: Source) -> Iterator[AuditItem]:
    """Yield the items of a file of judgments, lazily. A protocol in `source.column` keeps only its conversations.

    Raises UsageError with file and line for a second judge, a repeated id, a score off its scale, a missing turn, or a
    checklist with more answers from one side than from the other. Raises UsageError with the file if it has no item.
    """
    path, protocol = source.path, source.column
    if protocol is not None and protocol not in get_args(Protocol):
        raise UsageError(f"{path}: unknown protocol {quoted(protocol)}; choose {', '.join(get_args(Protocol))}")
    ids, first, count = tables.Ids(), None, 0
    for number, judgment in jsonl.read(path, Judgment):
        location, first = f"{path}:{number}", first or judgment.judge
        try:
            items = _checked(judgment)
        except UsageError as error:
            raise UsageError(f"{location}: {error}") from None
        if judgment.judge != first:
            raise UsageError(
                f"{location}: judged by {quoted(judgment.judge)}, line 1 by {quoted(first)}; one judge a file"
            )
        for item in items if protocol in (None, judgment.protocol) else ():
            ids.add(location, item.id)
            count += 1
            yield item
    if not count:
        raise UsageError(f"{path}: no verdict" + (f" by the protocol {protocol}" if protocol else ""))


def _checked(judgment: Judgment) -> list[AuditItem]:
    """Return the items of a record after checking it. Raises UsageError for a score off its scale."""
    if judgment.protocol is not None:
        check(judgment)
    items = items_of(judgment)
    for item in items:
        for score in (item.score, item.human, *item.raters.values(), *item.others.values()):
            if score is not None and not RATINGS[0] <= score <= RATINGS[-1]:
                raise UsageError(f"the score {score:g} of {quoted(item.id)} is outside {RATINGS[0]}..{RATINGS[-1]}")
    return items
