"""What judgments say, item by item: `items_of` alone knows how a score, a preference or a yes stands in each record.

An answer goes by its id. A verdict on a conversation goes by `CONVERSATION/CONDITION/PROTOCOL/TURN`, where TURN is
`whole` for the whole conversation; behind it stand, where there are any, `/judging=NAME` (other than standard),
`/opponent=MODEL` (other than the reference) and `/item=N` (of a checklist, from 1).
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from msgspec import Struct, field
from msgspec.structs import replace

from critic import jsonl
from critic.counting.aggregate import check
from critic.counting.verdicts import Label
from critic.errors import UsageError
from critic.records import RATINGS, ConversationJudgment, HumanScore, Judgment, Protocol, Response, TurnVerdict
from eval_agreement.sample import PARTS

Kind = Literal["score", "preference", "yes or no"]
AnyJudgment = Judgment | ConversationJudgment

COLUMN_SUFFIX = "_score_1_10"
"""Columns of human-scored rows that hold another judge's scores."""


class AuditItem(Struct, frozen=True, kw_only=True):
    """One thing that was judged, and what was said of it.

    - kind "score": `score` is on 1..10, None where the judge failed.
    - kinds "preference" (between answers a and b) and "yes or no" (yes is a, no is b): `labels` holds the verdict with
      a shown first and the one with b shown first, or a single one where the order does not matter or is not known;
      "failed" is a failed judgment, None an order that was not asked.

    `human` and `others` (by column) are people's and other judges' scores where the record holds them. Items that share
    a `group` are resampled together; `parts` is what agreement is broken down by (None: not known), `lengths` the
    characters of the answer, or of both (None: not known).
    """

    id: str
    kind: Kind
    group: str
    score: float | None = None
    labels: tuple[Label | None, ...] = ()
    human: HumanScore | None = None
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
    """Everything that one record says, each with the id by which people's verdicts are found."""
    if isinstance(judgment, Judgment):
        return [replace(of_response(judgment.response), score=judgment.score, judgment=judgment)]
    verdict = judgment.verdict
    if verdict.protocol == "pairwise":
        labels, lengths = _orders(judgment), (verdict.length, _reference_length(judgment))
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


def _orders(judgment: ConversationJudgment) -> tuple[Label | None, ...]:
    """The verdict with the model's answer (a) shown first and with the opponent's (b) shown first. The last call of an
    order counts: it reads what the first left open. A judgment without calls, as people's, has a score only."""
    last = {call.first: call for call in judgment.calls if call.first}
    if not last:
        score = judgment.verdict.score
        return (("failed" if score is None else "a" if score > 0.5 else "b" if score < 0.5 else "tie"),)
    found: list[Label | None] = []
    for first, labels in (("model", ("a", "b")), ("opponent", ("b", "a"))):
        named: dict[str | None, Label] = {"A": labels[0], "B": labels[1], "tie": "tie"}  # type: ignore[dict-item]
        found.append(named.get(last[first].value, "failed") if first in last else None)
    return tuple(found)


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
        for item in items_of(judgment):
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
    return judgment.judge if isinstance(judgment, Judgment) else judgment.verdict.judge


def how_asked(judgment: AnyJudgment) -> dict[str, str]:
    """Who judged, by which prompt and how the score was taken, for the audit's provenance."""
    if isinstance(judgment, Judgment):
        return {key: getattr(judgment, key) for key in ("judge", "prompt", "prompt_hash", "score_kind")}
    prompt, kind = judgment.verdict.protocol, judgment.setup.score_kind
    return {"judge": judge_of(judgment), "prompt": prompt, "prompt_hash": judgment.prompt_hash, "score_kind": kind}
