"""Read judgments as items to audit. Each item has one score, preference or yes/no verdict."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from critic import jsonl, tables
from critic.errors import UsageError, located, quoted
from critic.judging.forms import Form, form_of
from critic.judging.kinds import AuditedPart
from critic.judging.protocols import PROTOCOLS
from critic.judging.thoughts import split_thoughts
from critic.records import RATINGS, Call, Judgment, Response, Sample
from critic.stats.aggregate import check
from critic.stats.verdicts import Label
from eval_agreement.reading.tables import Source


class AuditItem(Struct, frozen=True, kw_only=True):
    """A judged item with the verdicts of the judge and of people. None is an unknown value.

    - kind "score": `score` is the judge's, on 1..10, None if the judgment failed. `criterion` is None for the overall
      score.
    - kind "preference" (between answers a and b) or "yes or no" (yes is a, no is b): `labels` holds the judge's verdict
      with a shown first and the one with b shown first, or a single verdict if the order is irrelevant or unknown.
      "failed" is a failed judgment, None an order that was not judged.
    - repeats: the judge's further scores, or labels, if it was asked several times.
    - human, raters: people's score and each rater's score. human_label: people's verdict. others: further judges'
      scores by judge.
    - group: cluster for resampling. parts: properties to break agreement down by. length, length_b: characters of the
      answer, and of answer b of a pair.
    - probability: chance that people labelled the item; None if it is the same for all.
    """

    id: str
    kind: tables.Kind
    criterion: str | None = None
    group: str
    score: float | None = None
    labels: tuple[Label | None, ...] = ()
    repeats: tuple[Any, ...] = ()
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
    """Return the items of one judgment, one per audited part of its form, such as a criterion or a checklist item.

    A judgment by an unknown form counts as a rating.
    """
    try:
        form = form_of(judgment.prompt)
    except UsageError:
        # Prompts of other judges have no form here; their judgments can only be ratings.
        form = form_of("pointwise")
    sample, asked = judgment.sample, judgment.sample.asked
    turn = sample.turn and len(sample.conversation.history) + sample.turn
    base = build_item(sample.response)
    parts = {**base.parts, "task": asked.task if asked else None, "turn": str(turn or "whole")}
    if judgment.protocol is not None:
        parts |= {"condition": sample.condition, "protocol": judgment.protocol, "judging": judgment.judging}
    base = replace(base, id=judgment.id, parts=parts, length=_length(sample), judgment=judgment, score=judgment.score)
    items = [_item(base, part, judgment, form) for part in form.kind.audited(judgment)]
    repeats = []
    for again in judgment.repeats:
        # Without calls a label is that of both orders together.
        own = replace(judgment, verdict=again.verdict, score=again.score, calls=[], repeats=[])
        repeats.append({item.id: item.score if item.kind == "score" else item.labels[0] for item in items_of(own)})
    return [replace(item, repeats=tuple(each.get(item.id) for each in repeats)) for item in items]


def _length(sample: Sample) -> int | None:
    """Return the number of characters of an answer without its thoughts, or None if unknown.

    Records without the answer's text have a stored length, which may include thoughts.
    """
    return sample.length if sample.answer is None else len(split_thoughts(sample.answer).answer)


def _item(base: AuditItem, part: AuditedPart, judgment: Judgment, form: Form) -> AuditItem:
    """Return one part of a judgment as an item.

    `base`: the item of the whole judgment, with people's score; the part's verdicts replace its own.
    """
    if part.name:
        base = replace(base, id=f"{base.id}/{part.name}")
    if part.type == "score":
        if not part.name:
            return base
        scores = {"score": part.judge, "human": part.people}
        return replace(base, criterion=part.criterion, raters={}, others={}, **scores)
    sample, asked = judgment.sample, judgment.sample.asked
    answers = [sample, *([sample.other] if form.pair and sample.other else [])]
    chances = [human.probability for answer in answers if (human := answer.human) and human.probability is not None]
    length_b = _length(sample.other) if sample.other else None
    if length_b is None and form.pair and asked and asked.reference is not None and sample.opponent is None:
        length_b = len(asked.reference)  # of another model's answer the record does not say the length
    return replace(
        base,
        kind=part.type,
        score=None,
        labels=_orders(judgment.calls) or (_LABELS.get(part.judge, "failed"),),
        human_label=_LABELS.get(part.people),
        human=None,
        # Answers are sampled independently of each other.
        probability=math.prod(chances) if len(chances) == 1 + form.pair else None,
        length_b=length_b,
    )


def build_item(response: Response) -> AuditItem:
    """Return an answer as an item without a judge's score."""
    human, question = response.human, response.question
    # A property with a single value gives no breakdown.
    parts = {"task": question.task, "category": question.category, "lang": question.lang, "answerer": response.system}
    return AuditItem(
        id=response.id,
        kind="score",
        group=question.group,
        human=human.score if human else None,
        raters=human.raters if human else {},
        probability=human.probability if human else None,
        others={name.removesuffix(tables.SCORE_SUFFIX): score for name, score in response.columns.items()},
        parts={**parts, "turn": str(len(question.history) + 1)},
        length=len(split_thoughts(response.text).answer),
        response=response,
    )


def _orders(calls: Sequence[Call]) -> tuple[Label | None, ...]:
    """Return the two verdicts on a pair: with the model's answer shown first, and with its opponent's shown first.

    Each verdict is that of the last call in its order, or None without such a call. Returns () if no call records an
    order, as in people's verdicts.
    """
    last = {call.first: _LABELS.get(call.value, "failed") for call in calls if call.first}
    swapped = last.get("opponent")
    return (last.get("model"), _SWAPPED.get(swapped, swapped)) if last else ()


_LABELS: dict[Any, Label] = {"A": "a", "yes": "a", "tie": "tie", "B": "b", "no": "b"}
_SWAPPED: dict[Label | None, Label] = {"a": "b", "b": "a"}


def read_items(source: Source) -> Iterator[AuditItem]:
    """Yield the items of a file of judgments, lazily.

    If `source.column` names a protocol, only judgments by this protocol are read.
    Raises UsageError with file and line for a second judge, a repeated id, a score off its scale, a missing turn, or a
    checklist with more answers from one side than from the other. Raises UsageError with the file if it has no item.
    """
    path, protocol = source.path, source.column
    if protocol is not None and protocol not in PROTOCOLS:
        raise UsageError(f"{path}: unknown protocol {quoted(protocol)}; choose {', '.join(PROTOCOLS)}")
    ids, first, count = tables.Ids(), None, 0
    for number, judgment in jsonl.read(path, Judgment):
        location, first = f"{path}:{number}", first or judgment.judge
        with located(location, UsageError):
            items = _checked(judgment)
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
    """Return the items of a judgment. Raises UsageError if a turn is missing or a score is off its scale."""
    if judgment.protocol is not None:
        check(judgment)
    items = items_of(judgment)
    for item in items:
        for score in (item.score, item.human, *item.raters.values(), *item.others.values()):
            if score is not None and not RATINGS[0] <= score <= RATINGS[-1]:
                raise UsageError(f"the score {score:g} of {quoted(item.id)} is outside {RATINGS[0]}..{RATINGS[-1]}")
    return items
