"""The part of `critic score` that scores judged conversations: tables, summary.json, report.html.

critic score judged.jsonl --benchmark convbench --out runs/convbench
"""

import json
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec

from critic import benchmarks, jsonl
from critic.asking.protocols import OF_BENCHMARK
from critic.benchmarks import convbench, multiverse
from critic.counting.aggregate import (
    SCALES,
    Aggregate,
    Cell,
    Difference,
    EqualVerdicts,
    by_cell,
    compare,
    difference,
    mean,
)
from critic.errors import UsageError
from critic.images import named_images
from critic.page import page, runs
from critic.page.aggregates import aggregates, differences
from critic.page.aggregates import difference as difference_row
from critic.page.blocks import Row, Section, as_text
from critic.page.convbench import SYMBOLS
from critic.page.runs import Line, Report, Run
from critic.records import Conversation, Protocol, TurnVerdict

TITLES = {
    "alignmmbench": "AlignMMBench",
    "convbench": "ConvBench",
    "multiverse": "MultiVerse",
    "visitbench": "VisIT-Bench",
}


def score(
    files: Sequence[Path],
    benchmark: str,
    questions: Path | None,
    against: Path | None,
    out: Path | None,
    max_failed: float,
) -> int:
    """Print a benchmark's tables; the exit code: 3 when too many verdicts failed.

    `questions` is the benchmark's file: coverage is then of all of it. `against` is another judged file, with which the
    first file is compared on the same questions; where both judge the same replies to ConvBench, their agreement is
    shown as well. With `out`, summary.json and report.html go there.
    """
    if benchmark not in benchmarks.BENCHMARKS:
        raise UsageError(f"--benchmark {benchmark}: unknown; choose {', '.join(benchmarks.BENCHMARKS)}")
    found = runs.read([*files, *([against] if against else [])], benchmark)
    asked = _asked(found, benchmark, questions)
    made: Report = import_module(f"critic.page.{benchmark}").report(found, asked)
    if not made.sections and not any(run.battles for run in found):
        raise UsageError(f"{files[0]}: no verdict of a protocol that {TITLES[benchmark]} is scored by")
    sections, summary = [_counts(found), *made.sections], {"benchmark": benchmark, "systems": made.summary}
    others = {run.name: other_scores(run, benchmark, asked) for run in found}
    sections += [_others(name, scores) for name, scores in others.items() if scores]
    summary["others"] = {name: msgspec.to_builtins(scores) for name, scores in others.items() if scores}
    if against is not None:
        one, other = found[0], found[-1]
        compared = comparison(one, other, asked)
        sections.insert(1, _comparison(one, other, compared))
        summary["comparison"] = {"of": other.name, "less": one.name, **_builtins(compared)}
        if benchmark == "convbench" and _same_answers(one, other):
            agreed = agreement(one, other, asked)
            sections.insert(2, _agreement(one, other, agreed))
            summary["agreement"] = msgspec.to_builtins(agreed)
    print(as_text(sections))
    if out is not None:
        jsonl.write_json(out / "summary.json", summary | {"files": _origin(found)})
        about = f"{len(asked)} conversations; {', '.join(f'{run.name}, judged by {run.judge}' for run in found)}."
        page.write(out / "report.html", f"{TITLES[benchmark]}: scores", about, sections, _origin(found))
        print(f"\nopen {out / 'report.html'}")
    lines = [line.verdict for run in found for line in run.lines]
    return 3 if sum(line.failure is not None for line in lines) > max_failed * len(lines) else 0


def _asked(found: Sequence[Run], benchmark: str, questions: Path | None) -> list[Conversation]:
    judged = runs.conversations(found)
    if questions is None:
        return judged
    asked = named_images(benchmarks.read(benchmark, questions))[0]
    known = {one.id: one for one in asked}
    for one in judged:
        if known.get(one.id) != one:
            raise UsageError(f"{questions}: conversation {one.id!r} of {found[0].path} is not there, or not as here")
    return asked


def _counts(found: Sequence[Run]) -> Section:
    readings = []
    for run in found:
        failures: dict[str, int] = {}
        for line in run.lines:
            if line.verdict.failure is not None:
                failures[line.verdict.failure] = failures.get(line.verdict.failure, 0) + 1
        named = ", ".join(f"{name} {count}" for name, count in sorted(failures.items(), key=lambda pair: -pair[1]))
        reading = f"{run.name}, judged by {run.judge}: {len(run.lines)} verdicts, {sum(failures.values())} failed"
        readings.append(reading + (f" ({named})." if named else "."))
    return Section(heading="Verdicts", readings=readings)


def other_scores(run: Run, benchmark: str, conversations: Sequence[Conversation]) -> dict[str, Aggregate]:
    """The means of the verdicts that are in no score of the benchmark: by other protocols, against another model, and
    of ConvBench under conditions or judgings that its tables lack. On the protocol's scale; of a pair a win is 1."""
    found: dict[str, Aggregate] = {}
    ids = [one.id for one in conversations]
    verdicts = [line.verdict for line in run.lines]
    for protocol, opponent in dict.fromkeys((one.protocol, one.opponent) for one in verdicts):
        cells = by_cell([one for one in verdicts if one.opponent == opponent], protocol)
        for cell in sorted(cells, key=_place):
            if not _is_scored(benchmark, protocol, cell, battles=opponent is not None):
                name = f"{protocol}{f' against {opponent}' if opponent else ''}, {_cell(cell)}"
                found[name] = mean(cells[cell], ids, SCALES[protocol])
    return found


def _is_scored(benchmark: str, protocol: Protocol, cell: Cell, battles: bool) -> bool:
    if protocol not in OF_BENCHMARK[benchmark] or (battles and benchmark != "visitbench"):
        return False
    return cell in convbench.CELLS.values() if benchmark == "convbench" else cell.judging == "standard"


def _others(name: str, scores: Mapping[str, Aggregate]) -> Section:
    return Section(
        heading=f"{name}: other verdicts",
        tables=[aggregates("Not part of the scores above; on the protocol's scale, of a pair a win is 1", scores)],
    )


Agreed = dict[Protocol, dict[str, EqualVerdicts]]


def _same_answers(one: Run, other: Run) -> bool:
    """Whether the two files judge the same replies: one model's, and alike wherever both judge a turn."""
    mine, theirs = ({_turn(line): line.answer for line in run.lines if line.answer} for run in (one, other))
    shared = mine.keys() & theirs.keys()
    return bool(shared) and one.system == other.system and all(mine[key] == theirs[key] for key in shared)


def _turn(line: Line) -> tuple[str, str, int | None]:
    return line.verdict.conversation, line.verdict.condition, line.verdict.turn


def agreement(one: Run, other: Run, conversations: Sequence[Conversation]) -> Agreed:
    """Per cent of equal verdicts of two judges on ConvBench, by protocol and cell."""
    shared = [protocol for protocol in one.protocols() if protocol in other.protocols()]
    found = {
        protocol: convbench.agreement(one.verdicts, other.verdicts, conversations, protocol) for protocol in shared
    }
    return {protocol: cells for protocol, cells in found.items() if len(cells) > 1}


def _named(cells: Mapping[str, Aggregate]) -> dict[str, Aggregate]:
    return {SYMBOLS.get(name, name): cell for name, cell in cells.items()}


def _agreement(one: Run, other: Run, agreed: Agreed) -> Section:
    return Section(
        heading=f"How often {one.name} and {other.name} agree",
        tables=[aggregates(f"Equal verdicts in %, {protocol}", _named(cells)) for protocol, cells in agreed.items()],
        note="On the same replies (tables 3 to 7 of the paper), with 95 % intervals: whole groups are resampled. "
        "Grades agree only when they are equal.",
    )


Compared = dict[str, Difference]


def comparison(one: Run, other: Run, conversations: Sequence[Conversation]) -> Compared:
    """other - one on the same conversations, by protocol, condition and turn, clustered by group; of MultiVerse the
    turns' scores as well. Raises UsageError where they share no cell."""
    found: Compared = {}
    for protocol in one.protocols():
        mine = [verdict for verdict in one.verdicts if verdict.protocol == protocol]
        cells = compare(mine, other.verdicts, conversations, protocol)
        found |= {f"{protocol}, {_cell(cell)}": cells[cell] for cell in sorted(cells, key=_place)}
    for condition in one.conditions():
        mine_scores, other_scores = (_turn_scores(run.verdicts, condition) for run in (one, other))
        if mine_scores and other_scores:
            groups = {
                f"{each.id}\0{turn}": each.group for each in conversations for turn in range(1, len(each.turns) + 1)
            }
            name = f"completion ratio × quality, {condition}, all turns"
            found[name] = difference(mine_scores, other_scores, groups, multiverse.SCALE)
    if not found:
        raise UsageError(f"{other.path}: no verdicts of the protocols and conditions of {one.path}")
    return found


def _turn_scores(verdicts: Sequence[TurnVerdict], condition: str) -> dict[str, float | None]:
    kept = [verdict for verdict in verdicts if verdict.protocol in ("checklist", "quality")]
    judged = multiverse.turn_scores(kept, condition)
    return {f"{key}\0{turn}": one.score for turn, found in judged.items() for key, one in found.items()}


def _place(cell: Cell) -> tuple[str, str, bool, int]:
    """Turns before the whole."""
    return cell.condition, cell.judging, cell.turn is None, cell.turn or 0


def _cell(cell: Cell) -> str:
    turn = "whole conversation" if cell.turn is None else f"turn {cell.turn}"
    return f"{cell.condition}, {turn}" + (f", {cell.judging}" if cell.judging != "standard" else "")


def _comparison(one: Run, other: Run, found: Compared) -> Section:
    rows: list[Row] = [difference_row(name, change) for name, change in found.items()]
    return Section(
        heading=f"{other.name} less {one.name}",
        readings=[*_judged_otherwise(one, other), *_in_one_only(one, other)],
        tables=[differences("On the same conversations", rows)],
        note="Pairwise, a win is 1, a loss 0. 95 % intervals: paired bootstrap over groups; p: random signs "
        "of whole groups, not corrected for the number of rows.",
    )


def _judged_otherwise(one: Run, other: Run) -> list[str]:
    """A difference between files that were judged in two ways is not one between models alone."""
    pairs = {name: (getattr(one.setup, name), getattr(other.setup, name)) for name in one.setup.__struct_fields__}
    differ = [f"{name} {theirs} and {mine}" for name, (mine, theirs) in pairs.items() if mine != theirs]
    return [f"Judged in two ways, which the differences show as well: {'; '.join(differ)}."] if differ else []


def _in_one_only(one: Run, other: Run) -> list[str]:
    mine, theirs = (
        dict.fromkeys(f"{each.protocol}, {_cell(Cell(each.condition, each.turn, each.judging))}" for each in verdicts)
        for verdicts in (one.verdicts, other.verdicts)
    )
    return [
        f"Only {run.name} has, and not compared is: {'; '.join(name for name in have if name not in lack)}."
        for run, have, lack in ((one, mine, theirs), (other, theirs, mine))
        if have.keys() - lack.keys()
    ]


def _builtins(compared: Mapping[str, Difference]) -> dict[str, Any]:
    return {"differences": {name: msgspec.to_builtins(one) for name, one in compared.items()}}


def _origin(found: Sequence[Run]) -> dict[str, dict[str, Any]]:
    """By file, what its sidecar says."""
    origin = {}
    for run in found:
        sidecar = jsonl.sidecar(run.path)
        facts = json.loads(sidecar.read_text("utf-8")) if sidecar.is_file() else {}
        origin[str(run.path)] = {"sha256": jsonl.sha256(run.path), **facts}
    return origin
