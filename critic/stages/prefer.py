"""critic prefer: people compare two judges' judgments of the same replies, without knowing whose is which.

critic prefer judged.jsonl no_focus.jsonl --sheet sheet.csv    # writes the sheet: fill in "better"
critic prefer judged.jsonl no_focus.jsonl --sheet sheet.csv    # says how often the second file's were preferred
"""

import csv
import hashlib
import io
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from critic import jsonl, tables
from critic.asking.protocols import VerdictKey, key
from critic.counting.aggregate import equal_verdicts
from critic.errors import UsageError
from critic.records import ConversationJudgment
from critic.stages import options

COLUMNS = ("number", "conversation", "turn", "question", "answer", "first", "second", "better")


def judgments(path: Path) -> dict[VerdictKey, ConversationJudgment]:
    """A file's judgments that say something, by what they are on: ablations of one judge are about the same."""
    found: dict[VerdictKey, ConversationJudgment] = {}
    for number, line in jsonl.read(path, ConversationJudgment):
        if any(call.value or call.failure for call in line.calls):  # others were made for one that was lost
            whose, condition, protocol = key(line.verdict), line.verdict.condition, line.verdict.protocol
            name = (*whose[:2], condition, protocol, "", *whose[5:])
            if name in found:
                raise UsageError(f"{path}:{number}: turn {line.verdict.turn} is judged in two ways; one in a file")
            found[name] = line
    return found


def text_of(line: ConversationJudgment) -> str:
    return f"{line.calls[0].value or line.verdict.failure}: {line.reason or line.calls[0].reply}"


def _shown(one: ConversationJudgment, other: ConversationJudgment, drawn: bytes) -> list[str]:
    """The texts of two judgments in the order of the sheet."""
    texts = [text_of(one), text_of(other)]
    return texts if drawn[-1] % 2 else texts[::-1]


def _first(
    place: str, row: tables.Row, one: ConversationJudgment, other: ConversationJudgment, drawn: bytes, alone: bool
) -> ConversationJudgment:
    """Which of two judgments stands first in a row of the sheet. Its texts tell, so that the files may be given in the
    other order than when it was written. Where no others have these texts (`alone`) the id is not looked at, of which a
    spreadsheet may have made a date. Raises UsageError for a row that is about other judgments."""

    def read(*cells: object) -> list[str]:  # a spreadsheet may end lines otherwise
        return [" ".join(str(cell).split()) for cell in cells]

    turn = one.verdict.turn or "whole"
    about, said = (
        read(one.conversation.id, turn),
        read(*(tables.optional_text(row, name) or "" for name in COLUMNS[1:3])),
    )
    found = read(*(tables.optional_text(row, name) or "" for name in ("first", "second")))
    now = read(*_shown(one, other, drawn))
    if found not in (now, now[::-1]) or not (alone or said == about):
        raise UsageError(
            f"{place}: not what these files say of turn {turn} of {one.conversation.id!r}; give the files, --seed and "
            "--limit with which the sheet was written"
        )
    return (one if drawn[-1] % 2 else other) if found == now else (other if drawn[-1] % 2 else one)


def main(
    one: Annotated[Path, typer.Argument(help="Judged conversations.")],
    other: Annotated[Path, typer.Argument(help="The same, by another judge or in another way.")],
    sheet: Annotated[Path, typer.Option(help=f"A CSV file, written where it is not there: {', '.join(COLUMNS)}.")],
    seed: options.Seed = 0,
    limit: Annotated[int | None, typer.Option(min=1, help="Only so many, drawn at random.")] = None,
) -> int:
    """Which of two judges' judgments people find better (ConvBench §I.2): a blind sheet, and what it comes to."""
    mine, theirs = judgments(one), judgments(other)
    drawn = {name: hashlib.sha256(f"{seed}/{name}".encode()).digest() for name in mine.keys() & theirs.keys()}
    chosen = sorted(drawn, key=drawn.__getitem__)[:limit]
    if not chosen:
        raise UsageError(f"{other}: judges nothing that {one} judges")
    if not sheet.is_file():
        made = io.StringIO()
        writer = csv.writer(made)
        writer.writerow(COLUMNS)
        for number, name in enumerate(chosen, 1):
            line, turn = mine[name], mine[name].verdict.turn
            shown = _shown(mine[name], theirs[name], drawn[name])
            question = line.conversation.turns[turn - 1].prompt if turn else ""
            writer.writerow([number, line.conversation.id, turn or "whole", question, line.answer or "", *shown, ""])
        jsonl.write_text(sheet, made.getvalue())
        print(f"{sheet}: {len(chosen)} judgments; fill in better (first, second, equal), then run this again")
        return 0
    texts = {name: frozenset({text_of(mine[name]), text_of(theirs[name])}) for name in chosen}
    times, preferred = Counter(texts.values()), dict[VerdictKey, float | None]()
    for place, row in tables.rows(sheet):
        which, better = tables.text(place, row, "number"), (tables.optional_text(row, "better") or "").lower()
        if not (which.isdigit() and 0 < int(which) <= len(chosen)) or better not in ("first", "second", "equal", ""):
            raise UsageError(f"{place}: number {which!r}, better {better!r}; expected first, second, equal or nothing")
        name = chosen[int(which) - 1]
        first = _first(place, row, mine[name], theirs[name], drawn[name], times[texts[name]] == 1)
        preferred[name] = None if better in ("equal", "") else float((better == "first") == (first is theirs[name]))
    groups = {name: mine[name].conversation.group for name in preferred}
    share = equal_verdicts(preferred, dict.fromkeys(preferred, 1.0), groups)
    if share.value is None:
        raise UsageError(f"{sheet}: no judgment is preferred yet; fill in better: first, second or equal")
    between = f", 95 % interval {share.interval[0]:.0f} to {share.interval[1]:.0f}" if share.interval else ""
    print(f"{other}: preferred in {share.value:.1f} % of {share.n}{between}; {len(preferred) - share.n} equal or open")
    return 0
