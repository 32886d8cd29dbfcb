"""What judgments say, item by item: `items_of` alone knows how a score, a preference or a yes stands in each record.

An answer goes by its id, two that are compared by ID1+ID2; behind it stand, where there are any, `/criterion=NAME` and
`/item=N` (of a checklist, from 1). A verdict on a conversation goes by `CONVERSATION/CONDITION/PROTOCOL/TURN`, where
TURN is `whole` for the whole conversation; behind it stand `/judging=NAME` (other than standard), `/opponent=MODEL`
(other than the reference) and `/item=N`.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from msgspec import Struct, field
from msgspec.structs import replace

from critic import jsonl
from critic.asking import rating
from critic.asking.forms import FORMS, POINTS, AnswerKind, ChecklistKind, ChoiceKind, CriteriaKind, Form, form_of
from critic.counting.aggregate import check
from critic.counting.verdicts import Label
from critic.errors import UsageError
from critic.records import (
    RATINGS,
    Call,
    ConversationJudgment,
    HumanScore,
    Judgment,
    Protocol,
    Response,
    TurnVerdict,
)
from eval_agreement.sample import PARTS
from eval_agreement.tables import Source, read_table

Kind = Literal["score", "preference", "yes or no"]
AnyJudgment = Judgment | ConversationJudgment
FileKind = Literal["judgments", "judged conversations", "human-scored rows", "table"]

OVERALL = "overall"
"""The criterion of a score that is not by one of several."""

COLUMN_SUFFIX = "_score_1_10"
"""Columns of human-scored rows that hold another judge's scores."""


class AuditItem(Struct, frozen=True, kw_only=True):
    """One thing that was judged, and what was said of it.

    - kind "score": `score` is on 1..10, None where the judge failed.
    - kinds "preference" (between answers a and b) and "yes or no" (yes is a, no is b): `labels` holds the verdict with
      a shown first and the one with b shown first, or a single one where the order does not matter or is not known;
      "failed" is a failed judgment, None an order that was not asked.

    `human` or `human_label`, and `others` (scores by column), are people's and other judges' where the record holds
    them. Items that share
    a `group` are resampled together; `parts` is what agreement is broken down by (None: not known), `lengths` the
    characters of the answer, or of both (None: not known).
    """

    id: str
    kind: Kind
    group: str
    score: float | None = None
    labels: tuple[Label | None, ...] = ()
    human: HumanScore | None = None
    human_label: Label | None = None
    others: dict[str, float] = field(default_factory=dict)
    parts: dict[str, str | None]
    lengths: tuple[float | None, ...]
    response: Response | None = None
    judgment: AnyJudgment | None = None

    @property
    def judge(self) -> str:
        """Who judged; nobody of ours where there is no judgment."""
        return judge_of(self.judgment) if self.judgment else ""


def items_of(judgment: AnyJudgment) -> list[AuditItem]:
    """Everything that one record says, each with the id by which people's verdicts are found. Of an answer the form
    that it was judged in says what to look for; a form that is not ours rates."""
    if isinstance(judgment, ConversationJudgment):
        return _of_conversation(judgment)
    base, form = replace(of_response(judgment.response), judgment=judgment), _form(judgment)
    if form.pair and judgment.other is None:
        return []
    if isinstance(form.kind, ChoiceKind):
        return [_choice(base, judgment, form.kind)]
    if isinstance(form.kind, ChecklistKind):
        return _checklist(base, judgment)
    if isinstance(form.kind, CriteriaKind):
        return _by_criterion(base, judgment)
    return [] if isinstance(form.kind, AnswerKind) else [replace(base, score=judgment.score)]


def _form(judgment: Judgment) -> Form:
    try:
        return form_of(judgment.prompt)
    except UsageError:
        return FORMS["pointwise"]


def _choice(base: AuditItem, judgment: Judgment, kind: ChoiceKind) -> AuditItem:
    """A choice of the judge's, and the one that people's scores make right (None where they leave it open)."""
    shown = [one for one in (judgment.response, judgment.other) if one is not None]
    scores = [one.human.score for one in shown if one.human]
    return replace(
        base,
        id="+".join(one.id for one in shown),
        kind="yes or no" if "yes" in kind.choices else "preference",
        labels=_orders(judgment.calls) or (_LABELS.get(judgment.verdict.value, "failed"),),
        human_label=_LABELS.get(kind.right(scores)) if len(scores) == len(shown) else None,
        human=None,
        lengths=tuple(len(one.text) for one in shown),
    )


def _checklist(base: AuditItem, judgment: Judgment) -> list[AuditItem]:
    human = judgment.response.human
    theirs = (human.answers if human else []) or [None] * len(judgment.response.question.checklist)
    ours = judgment.verdict.answers or [None] * len(theirs)
    return [
        replace(
            base,
            id=f"{base.id}/item={number}",
            kind="yes or no",
            labels=(_yes_or_no(answer),),
            human_label=None if right is None else _yes_or_no(right),
        )
        for number, (answer, right) in enumerate(zip(ours, theirs, strict=True), 1)
    ]


def _by_criterion(base: AuditItem, judgment: Judgment) -> list[AuditItem]:
    """The overall score, and one for each criterion of the question."""
    found = [replace(base, score=judgment.score, parts={**base.parts, "criterion": OVERALL})]
    people = judgment.response.human.criteria if judgment.response.human else {}
    for name in judgment.response.question.criteria:
        verdict = judgment.verdict.criteria.get(name)
        found.append(
            replace(
                base,
                id=f"{base.id}/criterion={name}",
                score=verdict and rating.scored(verdict, judgment.score_kind),
                human=HumanScore(score=people[name]) if name in people else None,
                others={},
                parts={**base.parts, "criterion": name},
            )
        )
    return found


def _of_conversation(judgment: ConversationJudgment) -> list[AuditItem]:
    verdict = judgment.verdict
    if verdict.protocol == "pairwise":
        labels = _orders(judgment.calls) or (_winner(verdict.score),)
        lengths = verdict.length, _reference_length(judgment)
        return [_of_turn(judgment, "preference", labels=labels, lengths=lengths)]
    if verdict.protocol == "checklist":
        return [
            _of_turn(judgment, "yes or no", number, labels=(_yes_or_no(answer),), lengths=(verdict.length,))
            for number, answer in enumerate(_answers(judgment), 1)
        ]
    return [_of_turn(judgment, "score", score=verdict.score, lengths=(verdict.length,))]


def of_response(response: Response) -> AuditItem:
    """An answer that no judge of ours has scored yet."""
    return AuditItem(
        id=response.id,
        kind="score",
        group=response.question.group,
        human=response.human,
        others={name.removesuffix(COLUMN_SUFFIX): score for name, score in response.columns.items()},
        parts={part: value(response) for part, value in PARTS.items()},
        lengths=(len(response.text),),
        response=response,
    )


def verdict_id(verdict: TurnVerdict, item: int | None = None) -> str:
    """The id of a verdict on a conversation (see above), or of an item of its checklist, from 1."""
    turn = "whole" if verdict.turn is None else str(verdict.turn)
    named = {"judging": verdict.judging, "opponent": verdict.opponent, "item": item}
    other = [f"{name}={value}" for name, value in named.items() if value not in (None, "standard")]
    return "/".join([verdict.conversation, verdict.condition, verdict.protocol, turn, *other])


def _of_turn(judgment: ConversationJudgment, kind: Kind, item: int | None = None, **said: Any) -> AuditItem:
    verdict, conversation = judgment.verdict, judgment.conversation
    parts = {
        "task": None if verdict.turn is None else conversation.turns[verdict.turn - 1].task,
        "category": conversation.category,
        "lang": conversation.lang,
        "answerer": verdict.system,
        "turn": "whole" if verdict.turn is None else str(verdict.turn),
        "condition": verdict.condition,
        "protocol": verdict.protocol,
        "judging": verdict.judging,
    }
    key = verdict_id(verdict, item)
    return AuditItem(id=key, kind=kind, group=conversation.group, parts=parts, judgment=judgment, **said)


def _orders(calls: Sequence[Call]) -> tuple[Label | None, ...]:
    """The verdict with a (the model's answer) shown first and with b (the opponent's) shown first. The last call of an
    order counts: it reads what the first left open. Empty where no call says who stood first, as in people's verdicts
    and in those on one answer."""
    last = {call.first: call for call in calls if call.first}
    found: list[Label | None] = []
    for first, other in (("model", False), ("opponent", True)):
        label = _LABELS.get(last[first].value, "failed") if first in last else None
        found.append(_SWAPPED.get(label, label) if other else label)
    return tuple(found) if last else ()


def _winner(score: float | None) -> Label:
    """What a score from 0 (b has won) to 1 (a has) comes to; people's may be a mean."""
    return "failed" if score is None else "a" if score > 0.5 else "b" if score < 0.5 else "tie"


_LABELS: dict[str | None, Label] = {value: _winner(points) for value, points in POINTS.items()}
_SWAPPED: dict[Label | None, Label] = {"a": "b", "b": "a"}


def _reference_length(judgment: ConversationJudgment) -> float | None:
    """Of another model's answer, or of the references of a whole conversation, the record does not say the length."""
    turn = judgment.verdict.turn
    if turn is None or judgment.verdict.opponent is not None:
        return None
    reference = judgment.conversation.turns[turn - 1].reference
    return None if reference is None else len(reference)


def _answers(judgment: ConversationJudgment) -> Sequence[bool | None]:
    """Those of a checklist; None throughout where the judge was never asked."""
    turn = judgment.verdict.turn
    asked = [] if turn is None else judgment.conversation.turns[turn - 1].checklist
    return judgment.answers or [None] * len(asked)


def _yes_or_no(answer: bool | None) -> Label:
    return "failed" if answer is None else "a" if answer else "b"


def holds_judgments(path: Path) -> type[Judgment] | type[ConversationJudgment] | None:
    """Which records a file holds, by the keys of its first line; None for anything else. Raises UsageError for JSONL
    that cannot be read."""
    if path.suffix != ".jsonl":
        return None
    _, first = next(jsonl.read(path, dict[str, Any]))
    if {"conversation", "verdict", "setup"} <= set(first):
        return ConversationJudgment
    return Judgment if {"response", "verdict"} <= set(first) else None


def read_items(path: Path, record: type[AnyJudgment], protocol: str | None = None) -> list[AuditItem]:
    """What a file of judgments says; of conversations only by `protocol`, where one is named.

    Raises UsageError naming file and line for a second judge, an id that comes twice or a score off its scale, and
    naming the file where nothing was judged by that protocol.
    """
    if protocol is not None and protocol not in get_args(Protocol):
        raise UsageError(f"{path}: unknown protocol {protocol!r}; choose {', '.join(get_args(Protocol))}")
    found: list[AuditItem] = []
    lines: dict[str, int] = {}
    first: str | None = None
    for number, judgment in _read(path, record):
        place, judge = f"{path}:{number}", judge_of(judgment)
        first = first or judge
        if judge != first:
            raise UsageError(f"{place}: judged by {judge!r}, line 1 by {first!r}; one judge a file")
        for item in _items_at(place, judgment):
            if protocol is not None and item.parts["protocol"] != protocol:
                continue
            if item.id in lines:
                raise UsageError(f"{place}: duplicate {_WHAT[record]} {item.id!r}, first at line {lines[item.id]}")
            lines[item.id] = number
            _check(place, item)
            found.append(item)
    if not found:
        raise UsageError(f"{path}: no verdict" + (f" by the protocol {protocol}" if protocol else ""))
    return found


def _items_at(place: str, judgment: AnyJudgment) -> list[AuditItem]:
    try:
        return items_of(judgment)
    except ValueError as error:
        raise UsageError(f"{place}: people's and the judge's answers are not alike: {error}") from None


_WHAT = {Judgment: "response id", ConversationJudgment: "verdict"}


def _read(path: Path, record: type[AnyJudgment]) -> Iterator[tuple[int, AnyJudgment]]:
    if record is Judgment:
        yield from jsonl.read(path, Judgment)
        return
    for number, line in jsonl.read(path, ConversationJudgment):
        try:
            check(line.verdict)
        except UsageError as error:
            raise UsageError(f"{path}:{number}: {error}") from None
        turn, turns = line.verdict.turn, len(line.conversation.turns)
        if turn is not None and not 1 <= turn <= turns:
            raise UsageError(f"{path}:{number}: a verdict on turn {turn} of a conversation that has {turns}")
        yield number, line


def _check(place: str, item: AuditItem) -> None:
    """Raises UsageError for a score outside 1..10."""
    found = {"score": item.score}
    if item.response:
        found |= {f"response.columns.{name}": score for name, score in item.response.columns.items()}
    if item.human:
        found["response.human.score"] = item.human.score
        found |= {f"response.human.raters.{name}": score for name, score in item.human.raters.items()}
    for key, score in found.items():
        if score is not None and not RATINGS[0] <= score <= RATINGS[-1]:
            raise UsageError(f"{place}: {key} {score:g} is outside {RATINGS[0]}..{RATINGS[-1]}")


def judge_of(judgment: AnyJudgment) -> str:
    """The judge's name."""
    return judgment.judge if isinstance(judgment, Judgment) else judgment.verdict.judge


def how_asked(judgment: AnyJudgment) -> dict[str, str]:
    """Who judged, by which prompt and how the score was taken, for the audit's provenance."""
    if isinstance(judgment, Judgment):
        return {key: getattr(judgment, key) for key in ("judge", "prompt", "prompt_hash", "score_kind")}
    prompt, kind = judgment.verdict.protocol, judgment.setup.score_kind
    return {"judge": judge_of(judgment), "prompt": prompt, "prompt_hash": judgment.prompt_hash, "score_kind": kind}


def file_kind(source: Source) -> FileKind:
    """What a file holds, by the keys of its first line; a column of its own makes it a table, but of judged
    conversations it names the protocol."""
    path = source.path
    if path.suffix != ".jsonl":
        return "table"
    record = holds_judgments(path)
    if record is ConversationJudgment:
        return "judged conversations"
    if source.column:
        return "table"
    if record is Judgment:
        return "judgments"
    _, first = next(jsonl.read(path, dict[str, Any]))
    return "human-scored rows" if {"human_score", "scale_min", "response"} <= set(first) else "table"


def check_common(human: Source, people: Sequence[str], judge: Source, judged: Sequence[str]) -> None:
    """Raises UsageError where the two have no id in common."""
    if set(people) & set(judged):
        return
    for source in (human, judge):
        if file_kind(source) == "table" and human.path != judge.path and "id" not in read_table(source.path).columns:
            columns = ", ".join(read_table(source.path).columns)
            raise UsageError(f"{source.path}: no column 'id' to join by; there are {columns}")
    raise UsageError(
        f"{human.path} and {judge.path} have no id in common: the first holds {people[0]!r}, the second {judged[0]!r}"
    )
