"""critic score: judgments -> a benchmark's tables, with coverage and failures beside every number.

critic score judged.jsonl --questions questions.jsonl                    # single answers: AlignMMBench
critic score judged.jsonl --benchmark convbench --out runs/convbench     # judged conversations
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from msgspec.structs import replace

from critic import benchmarks, jsonl
from critic.asking.forms import FORMS, ChecklistKind, ChoiceKind
from critic.benchmarks import BENCHMARKS, Benchmark, JudgedTurn, Run, alignmmbench
from critic.counting.aggregate import SCALES, Aggregate, Cell, Difference, by_cell, compare, mean
from critic.errors import UsageError
from critic.images import named_images
from critic.page import page
from critic.page.aggregates import aggregates, differences
from critic.page.blocks import Section, as_text
from critic.records import Conversation, ConversationJudgment, Judgment, Protocol, Setup, TurnVerdict, differing

OF_SINGLE_ANSWERS = "alignmmbench"
"""The benchmark that judgments of single answers are scored as."""


def main(
    judgments: Annotated[
        list[Path], typer.Argument(help="Judgments (critic judge), a file for each model; their tables are together.")
    ],
    benchmark: Annotated[
        str | None, typer.Option(help=f"The judgments are of conversations: {', '.join(BENCHMARKS)}.")
    ] = None,
    questions: Annotated[Path | None, typer.Option(help="The benchmark's file: coverage is then of all of it.")] = None,
    against: Annotated[
        Path | None,
        typer.Option(
            help="Another file: the difference on the same questions; of ConvBench also how far judges agree."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Also write the scores as JSON; with --benchmark a folder for summary.json and report.html."),
    ] = None,
    max_failed: Annotated[float, typer.Option(min=0, max=1, help="Exit with 3 when a larger share failed.")] = 0.02,
) -> int:
    """Scores per task, per category and over the tasks, with coverage and failures; with --benchmark all that it
    reports."""
    name = benchmark or OF_SINGLE_ANSWERS
    chosen = benchmarks.load(name)
    runs = read_runs([*judgments, *([against] if against else [])], name, single=benchmark is None)
    asked = _asked(runs, name, questions)
    sections, summary = _scored(chosen, runs, asked, every=benchmark is None)
    if against is not None:
        compared, facts = _compared(chosen, runs[0], runs[-1], asked)
        sections[1:1] = compared
        summary |= facts
    print(as_text(sections))
    if out is not None:
        content = {"benchmark": name, **summary, "files": _origin(runs)}
        if benchmark is None:
            jsonl.write_json(out, content)
        else:
            jsonl.write_json(out / "summary.json", content)
            about = f"{len(asked)} conversations; {', '.join(f'{run.name}, judged by {run.judge}' for run in runs)}."
            page.write(out / "report.html", f"{chosen.title}: scores", about, sections, _origin(runs))
            print(f"\nopen {out / 'report.html'}")
    turns = [turn for run in runs for turn in run.turns]
    return 3 if sum(turn.verdict.failure is not None for turn in turns) > max_failed * len(turns) else 0


def read_runs(paths: Sequence[Path], benchmark: str, single: bool = False) -> list[Run]:
    """The runs of files of judged conversations, or (`single`) of judged single answers, told apart by their names.

    Raises UsageError for a file of another benchmark or kind, of several models or judges, or given twice.
    """
    twice = [path for path, count in Counter(path.resolve() for path in paths).items() if count > 1]
    if twice:
        raise UsageError(f"{twice[0]}: given twice")
    runs = [_read_answers(path) if single else _read_conversations(path, benchmark) for path in paths]
    # Names say no more than they must: the model, where that is not enough the judge, and then the file.
    runs = _told_apart(runs, [f"{run.name} by {run.judge}" for run in runs])
    stems = {run.path.stem for run in runs}
    return _told_apart(runs, [f"{run.name} ({run.path.stem if len(stems) == len(runs) else run.path})" for run in runs])


def _told_apart(runs: Sequence[Run], longer: Sequence[str]) -> list[Run]:
    """The runs, with a longer name where two have the same."""
    shared = Counter(run.name for run in runs)
    return [replace(run, name=name) if shared[run.name] > 1 else run for run, name in zip(runs, longer, strict=True)]


def _read_conversations(path: Path, benchmark: str) -> Run:
    found = []
    for number, line in jsonl.read(path, ConversationJudgment):
        if line.conversation.benchmark != benchmark:
            raise UsageError(f"{path}:{number}: judges {line.conversation.benchmark}, expected {benchmark}")
        calls: list[tuple[str | None, str]] = [(call.first, call.value) for call in line.calls if call.value]
        turn = JudgedTurn(conversation=line.conversation, verdict=line.verdict, answer=line.answer, calls=calls)
        found.append((number, line.setup, turn))
    return _run(path, found)


def _read_answers(path: Path) -> Run:
    """Judged single answers, each as the only turn of a conversation with the answer's id."""
    # Without --benchmark both kinds of file get here, and the decoder's word on the wrong one helps nobody.
    _, first = next(jsonl.read(path, dict[str, Any]))
    if "conversation" in first:
        raise UsageError(f"{path}: judged conversations; say of which --benchmark: {', '.join(BENCHMARKS)}")
    found = []
    for number, line in jsonl.read(path, Judgment):
        response = line.response
        verdict = TurnVerdict(
            conversation=response.id,
            system=response.system or path.stem,
            condition="own",
            protocol=_protocol(line),
            opponent=None if line.other is None else line.other.system or "another",
            judge=line.judge,
            turn=1,
            score=line.score,
            failure=line.verdict.failure,
            length=len(response.text),
        )
        setup = Setup(
            judge=line.judge, score_kind=line.score_kind, pointwise_prompt=line.prompt, decoding=line.decoding
        )
        conversation = alignmmbench.conversation_of(response.question, response.id)
        found.append((number, setup, JudgedTurn(conversation=conversation, verdict=verdict, answer=response.text)))
    return _run(path, found)


def _protocol(judgment: Judgment) -> Protocol:
    """The protocol whose scale a judgment of single answers is on: yes and no, and what a text that compares comes to,
    count like a checklist's share. A form that is not ours rates."""
    if judgment.other is not None:
        return "pairwise"
    kind = FORMS[name].kind if (name := judgment.prompt.rpartition("/")[2].partition("@")[0]) in FORMS else None
    return "checklist" if isinstance(kind, ChoiceKind | ChecklistKind) else "pointwise"


def _run(path: Path, found: Sequence[tuple[int, Setup, JudgedTurn]]) -> Run:
    verdicts = [turn.verdict for _, _, turn in found]
    for what, values in (("models", {one.system for one in verdicts}), ("judges", {one.judge for one in verdicts})):
        if len(values) > 1:
            raise UsageError(f"{path}: several {what} ({', '.join(sorted(values))}); one of each in a file")
    setup = found[0][1]
    for number, other, _ in found:
        if other != setup:
            raise UsageError(f"{path}:{number}: {differing(setup, other)}; one of each in a file")
    # A file of comparisons between two models is named by both, unless it has verdicts on the reference as well.
    system, opponents = verdicts[0].system, sorted({one.opponent or "" for one in verdicts})
    return Run(
        name=system if "" in opponents else f"{system} against {' and '.join(opponents)}",
        path=path,
        system=system,
        judge=verdicts[0].judge,
        setup=setup,
        turns=[turn for _, _, turn in found],
    )


def _asked(runs: Sequence[Run], benchmark: str, questions: Path | None) -> list[Conversation]:
    """The conversations that were asked, each once: those of `questions`, or else those that were judged. Raises
    UsageError where two files, or a file and the questions, have two conversations under one id."""
    judged: dict[str, Conversation] = {}
    for run in runs:
        for turn in run.turns:
            one = judged.setdefault(turn.conversation.id, turn.conversation)
            if one != turn.conversation:
                raise UsageError(f"{run.path}: conversation {one.id!r} reads otherwise than in the files before")
    if questions is None:
        return list(judged.values())
    asked = named_images(benchmarks.read(benchmark, questions))[0]
    known = {one.id: one for one in asked}
    for key, one in judged.items():
        if known.get(key) != one:
            raise UsageError(f"{questions}: conversation {key!r} of {runs[0].path} is not there, or not as here")
    return asked


def _scored(
    benchmark: Benchmark, runs: Sequence[Run], asked: Sequence[Conversation], every: bool
) -> tuple[list[Section], dict[str, Any]]:
    """The benchmark's own tables, and the means of all verdicts that are in none of them; of single answers, which may
    be judged in `every` form, the latter are enough."""
    made = benchmark.report(runs, asked)
    # Comparisons of two models alone have no score in most benchmarks, but are shown below.
    if not made.sections and not every and not any(run.battles for run in runs):
        raise UsageError(f"{runs[0].path}: no verdict of a protocol that {benchmark.title} is scored by")
    others = {run.name: found for run in runs if (found := other_scores(run, benchmark, asked))}
    sections = [
        Section(
            heading=f"{name}: other verdicts",
            tables=[aggregates("Not part of the scores above; on the protocol's scale, of a pair a win is 1", found)],
        )
        for name, found in others.items()
    ]
    return [_counts(runs), *made.sections, *sections], {
        "systems": made.summary,
        "others": msgspec.to_builtins(others),
    }


def _counts(runs: Sequence[Run]) -> Section:
    readings = []
    for run in runs:
        failures = Counter(turn.verdict.failure for turn in run.turns if turn.verdict.failure is not None)
        named = ", ".join(f"{name} {count}" for name, count in failures.most_common())
        how = "" if run.setup.score_kind == "argmax" else f" ({run.setup.score_kind} ratings)"
        reading = f"{run.name}, judged by {run.judge}{how}: {len(run.turns)} verdicts, {failures.total()} failed"
        readings.append(reading + (f" ({named})." if named else "."))
    return Section(heading="Verdicts", readings=readings)


def other_scores(run: Run, benchmark: Benchmark, conversations: Sequence[Conversation]) -> dict[str, Aggregate]:
    """The means of the verdicts that are in no score of the benchmark: by other protocols, between two models, under
    conditions or judgings that its tables lack. On the protocol's scale; of a pair a win is 1."""
    left = [
        turn.verdict
        for turn in run.turns
        if turn.verdict.protocol not in benchmark.protocols or not benchmark.scored(turn.verdict)
    ]
    found: dict[str, Aggregate] = {}
    ids = [one.id for one in conversations]
    for protocol, opponent in dict.fromkeys((one.protocol, one.opponent) for one in left):
        cells = by_cell([one for one in left if one.opponent == opponent], protocol)
        for cell in sorted(cells, key=_place):
            name = f"{protocol}{f' against {opponent}' if opponent else ''}, {_words(cell)}"
            found[name] = mean(cells[cell], ids, SCALES[protocol])
    return found


def _place(cell: Cell) -> tuple[str, str, bool, int]:
    """Turns before the whole."""
    return cell.condition, cell.judging, cell.turn is None, cell.turn or 0


def _words(cell: Cell) -> str:
    turn = "whole conversation" if cell.turn is None else f"turn {cell.turn}"
    return f"{cell.condition}, {turn}" + (f", {cell.judging}" if cell.judging != "standard" else "")


def _compared(
    benchmark: Benchmark, one: Run, other: Run, asked: Sequence[Conversation]
) -> tuple[list[Section], dict[str, Any]]:
    """The second run less the first; where both judge the same answers also how far the judges agree."""
    found = comparison(benchmark, one, other, asked)
    section = Section(
        heading=f"{other.name} less {one.name}",
        readings=[*_judged_otherwise(one, other), *_in_one_only(one, other)],
        tables=[differences("On the same conversations", found)],
        note="Pairwise, a win is 1, a loss 0. 95 % intervals: paired bootstrap over groups; p: random signs "
        "of whole groups, not corrected for the number of rows.",
    )
    facts = {"comparison": {"of": other.name, "less": one.name, "differences": msgspec.to_builtins(found)}}
    if benchmark.agreement is None or not _same_answers(one, other):
        return [section], facts
    agreed = benchmark.agreement(one, other, asked)
    return [section, *agreed.sections], facts | {"agreement": agreed.summary}


def comparison(
    benchmark: Benchmark, one: Run, other: Run, conversations: Sequence[Conversation]
) -> dict[str, Difference]:
    """other - one on the same conversations, by protocol, condition and turn, clustered by group, and what else the
    benchmark compares. Raises UsageError where they share nothing."""
    found: dict[str, Difference] = {}
    for protocol in one.protocols():
        mine = [verdict for verdict in one.verdicts if verdict.protocol == protocol]
        cells = compare(mine, other.verdicts, conversations, protocol)
        found |= {f"{protocol}, {_words(cell)}": cells[cell] for cell in sorted(cells, key=_place)}
    found |= benchmark.differences(one, other, conversations)
    if not found:
        raise UsageError(f"{other.path}: no verdicts of the protocols and conditions of {one.path}")
    return found


def _same_answers(one: Run, other: Run) -> bool:
    """Whether the two files judge the same replies: one model's, and alike wherever both judge a turn."""
    mine, theirs = (
        {
            (turn.verdict.conversation, turn.verdict.condition, turn.verdict.turn): turn.answer
            for turn in run.turns
            if turn.answer
        }
        for run in (one, other)
    )
    shared = mine.keys() & theirs.keys()
    return bool(shared) and one.system == other.system and all(mine[key] == theirs[key] for key in shared)


def _judged_otherwise(one: Run, other: Run) -> list[str]:
    """A difference between files that were judged in two ways is not one between models alone."""
    pairs = {name: (getattr(one.setup, name), getattr(other.setup, name)) for name in one.setup.__struct_fields__}
    differ = [f"{name} {theirs} and {mine}" for name, (mine, theirs) in pairs.items() if mine != theirs]
    return [f"Judged in two ways, which the differences show as well: {'; '.join(differ)}."] if differ else []


def _in_one_only(one: Run, other: Run) -> list[str]:
    mine, theirs = (
        dict.fromkeys(f"{each.protocol}, {_words(Cell(each.condition, each.turn, each.judging))}" for each in verdicts)
        for verdicts in (one.verdicts, other.verdicts)
    )
    return [
        f"Only {run.name} has, and not compared is: {'; '.join(name for name in have if name not in lack)}."
        for run, have, lack in ((one, mine, theirs), (other, theirs, mine))
        if have.keys() - lack.keys()
    ]


def _origin(runs: Sequence[Run]) -> Mapping[str, dict[str, Any]]:
    """By file, what its sidecar says."""
    origin = {}
    for run in runs:
        sidecar = jsonl.sidecar(run.path)
        facts = json.loads(sidecar.read_text("utf-8")) if sidecar.is_file() else {}
        origin[str(run.path)] = {"sha256": jsonl.sha256(run.path), **facts}
    return origin
