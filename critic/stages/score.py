"""critic score: judgments -> a benchmark's tables, with coverage and failures beside every number.

critic score judged.jsonl --questions questions.jsonl --out runs/alignmmbench    # single answers: AlignMMBench
critic score judged.jsonl --questions ConvBench.csv --out runs/convbench         # judged conversations
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import starmap
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
import typer
from msgspec.structs import asdict, replace

from critic import benchmarks, jsonl, tables
from critic.benchmarks import BENCHMARKS, Benchmark, Run, order_reading
from critic.errors import UsageError, whole
from critic.images import named_images
from critic.judging.forms import BY_NAME, ChecklistKind, ChoiceKind
from critic.judging.replies import lost
from critic.page import blocks, leaderboards, page
from critic.page.aggregates import aggregates, differences
from critic.page.blocks import Section, Table, TableRow, as_text, row
from critic.records import Conversation, JudgeConfig, Judgment, Protocol, alike, differing, is_judgment
from critic.stages.run import failed
from critic.stats import tournament
from critic.stats.aggregate import SCALES, Aggregate, Cell, Difference, asked_of, by_cell, compare, mean
from critic.stats.diversity import tokenizer as tokens_of
from critic.stats.leaderboard import LeaderboardRow

OF_SINGLE_ANSWERS = "alignmmbench"
"""The benchmark that judgments of single answers are scored as."""


def main(
    judgments: Annotated[
        list[Path], typer.Argument(help="Judgments (critic judge), a file for each model; their tables are together.")
    ],
    benchmark: Annotated[
        str | None,
        typer.Option(
            help=f"What is scored: {', '.join(BENCHMARKS)}.", show_default=f"the files'; {OF_SINGLE_ANSWERS} of answers"
        ),
    ] = None,
    questions: Annotated[Path | None, typer.Option(help="The benchmark's file: coverage is then of all of it.")] = None,
    against: Annotated[
        Path | None,
        typer.Option(help="Another file: the difference on the same questions."),
    ] = None,
    baseline: Annotated[
        str | None, typer.Option(help="A model: in the tables over models the others' differences from it.")
    ] = None,
    sort: Annotated[
        str | None, typer.Option(help="The score that tables over models are sorted by.", show_default="their first")
    ] = None,
    models: Annotated[
        Path | None,
        typer.Option(help='A TOML file with a table for each model: size = "7B", family, or whatever tables may show.'),
    ] = None,
    tokenizer: Annotated[
        Path | None,
        typer.Option(help="A tokenizer.json, or its folder: lengths in its tokens.", show_default="in characters"),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="A folder for summary.json, report.html, and the tables over models as leaderboard.md and .csv; "
            "NAME.json: the scores alone."
        ),
    ] = None,
    max_failed: Annotated[float, typer.Option(min=0, max=1, help="Exit with 3 when a larger share failed.")] = 0.02,
) -> int:
    """A benchmark's scores, with coverage and failures: per task, per category and over the tasks, tables over models
    and all else that it reports."""
    name = benchmark or _benchmark_of(judgments[0])
    chosen = benchmarks.load(name)
    runs = read_runs([*judgments, *filter(None, [against])], name, tokenizer)
    asked = _asked(runs, name, questions)
    known = leaderboards.read_models(models) if models else {}
    boards = leaderboards.leaderboards(_entries(chosen, runs, asked), baseline, sort)
    made = chosen.report(runs, asked)
    if not boards and not any(map(_of_answers, judgments)):
        _check_protocols(chosen, runs)
    met = _tournaments(runs if "pairwise" in chosen.protocols else [], asked)
    others = _other_scores(runs, chosen, asked)
    compared, facts = _compared(chosen, runs[0], runs[-1], asked) if against else ([], {})
    together = _with_ties([*leaderboards.sections(boards, known), *met.sections], runs)
    below = [*made.sections, *leaderboards.details(boards), *starmap(_below, others.items())]
    sections = [_counts(runs), *compared, *together, *below]
    sections = [replace(one, tables=[*map(blocks.lean, one.tables)]) for one in [*sections, *_resources(runs)]]
    print(as_text(sections))
    boards += met.boards
    standings = {one.key: one.found for one in boards}
    scores = {"systems": {**made.summary, **met.summary}, "leaderboards": standings, "others": others, **facts}
    if out is not None and out.suffix == ".json":
        _write_summary(out, name, scores, runs)
    elif out is not None:
        _write_summary(out / "summary.json", name, scores, runs)
        _write_page(out, chosen.title, runs, len(asked), sections)
        leaderboards.write(out, boards, together, known)
        print(f"\nopen {out / 'report.html'}")
    failures = sum(run.counted(lambda one: one.failure is not None)[True] for run in runs)
    return 3 if failures > max_failed * sum(len(run.turns) for run in runs) else 0


def _check_protocols(benchmark: Benchmark, runs: Sequence[Run]) -> None:
    """Raises UsageError where nothing is scored. Comparisons of two models alone have no score in most benchmarks, but
    are shown below; single answers may be judged in any form."""
    for run in runs:
        if any(one.protocol in benchmark.protocols or one.opponent is not None for one in run.turns):
            return
    raise UsageError(f"{runs[0].path}: no verdict of a protocol that {benchmark.title} is scored by")


def _entries(benchmark: Benchmark, runs: Sequence[Run], asked: Sequence[Conversation]) -> list[LeaderboardRow]:
    return [replace(one, judge=run.judge) for run in runs for one in benchmark.entries(run, asked)]


def _write_summary(path: Path, benchmark: str, scores: dict[str, Any], runs: Sequence[Run]) -> None:
    jsonl.write_json(path, msgspec.to_builtins({"benchmark": benchmark, **scores, "files": _origin(runs)}))


def _write_page(out: Path, title: str, runs: Sequence[Run], asked: int, sections: Sequence[Section]) -> None:
    named = [f"{run.name}, judged by {run.judge}" for run in runs]
    about = f"{asked} conversations; {', '.join(named) if len(named) < 5 else f'{len(named)} files'}."
    page.write(out / "report.html", f"{title}: scores", about, sections, _origin(runs))


def _of_answers(path: Path) -> bool:
    """Whether a file has judgments of answers out of rows, which are of no benchmark's conversations."""
    first = tables.first(path)
    return is_judgment(first) and not _conversation(first or {}).get("benchmark")


def _conversation(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """What was asked, in a line of today or of an earlier version."""
    found = row.get("sample", row).get("conversation")
    return found if isinstance(found, dict) else {}


def _benchmark_of(path: Path) -> str:
    """The benchmark that a file's records are of. Raises UsageError for a file of something else."""
    first = tables.first(path)
    if first is None or _of_answers(path):
        return OF_SINGLE_ANSWERS  # of a file that cannot be read the reader says why
    if not is_judgment(first):
        raise UsageError(
            f"{path}: no judgments; critic judge makes them, of what critic infer or another program wrote"
        )
    return str(_conversation(first).get("benchmark"))


def read_runs(paths: Sequence[Path], benchmark: str, tokenizer: Path | None = None) -> list[Run]:
    """The runs of files of judgments, told apart by their names; the answers' lengths are in characters, or in the
    tokens of a `tokenizer`.

    Raises UsageError for a file of another benchmark, of several models or judges, or given twice.
    """
    twice = [path for path, count in Counter(path.resolve() for path in paths).items() if count > 1]
    if twice:
        raise UsageError(f"{twice[0]}: given twice")
    asked: dict[str, Conversation] = {}
    runs = [run for path in paths for run in _runs_of(path, benchmark, asked)]
    # Names say no more than they must: the model, where that is not enough the judge, and then the file.
    runs = _told_apart(runs, [run.judge for run in runs], "{} by {}")
    stems = [run.path.stem for run in runs]
    runs = _told_apart(runs, stems if len({*stems}) == len(runs) else [str(run.path) for run in runs], "{} ({})")
    return [_in_tokens(run, tokenizer) for run in runs] if tokenizer else runs


def _runs_of(path: Path, benchmark: str, asked: dict[str, Conversation]) -> list[Run]:
    """The runs of a file: one, or of a file of battles between several models one for each that stands first. `asked`
    are the conversations so far, by id, each of which is kept once."""
    turns, lines = list[Judgment](), dict[tuple[str, JudgeConfig], int]()
    for number, line in jsonl.read(path, Judgment):
        one = _scorable(line, path, number, benchmark)
        before = asked.setdefault(one.sample.id, one.conversation)
        if not alike(before, one.conversation):
            raise UsageError(f"{path}:{number}: conversation {one.sample.id!r} reads otherwise than before")
        lines.setdefault((one.system, one.setup), number)
        turns.append(replace(one, sample=replace(one.sample, conversation=before)))
    if any(one.opponent is None for one in turns):
        return [_run(path, turns, lines)]
    by_model: dict[str, list[Judgment]] = {}
    for one in turns:
        by_model.setdefault(one.system, []).append(one)
    return [_run(path, some, lines) for some in by_model.values()]


def _told_apart(runs: Sequence[Run], more: Sequence[str], longer: str) -> list[Run]:
    """The runs, with a longer name where two have the same."""
    shared = Counter(run.name for run in runs)
    return [
        replace(run, name=longer.format(run.name, word)) if shared[run.name] > 1 else run
        for run, word in zip(runs, more, strict=True)
    ]


def _scorable(line: Judgment, path: Path, number: int, benchmark: str) -> Judgment:
    """A judgment as it counts: of an answer out of a row by the protocol of its form, as one to AlignMMBench."""
    of = line.conversation.benchmark or OF_SINGLE_ANSWERS
    if of != benchmark:
        raise UsageError(f"{path}:{number}: judges {of}, expected {benchmark}")
    if line.protocol is not None:
        return line
    # Answers to one question are told apart by their own ids, and a reply that was lost has no length.
    asked = replace(line.conversation, id=line.sample.id, benchmark=of)
    length = None if lost(line.sample.answer) else line.sample.length
    system = line.sample.system or whole(path.stem)
    sample = replace(line.sample, conversation=asked, length=length, system=system)
    return replace(line, sample=sample, protocol=_protocol(line))


def _protocol(judgment: Judgment) -> Protocol:
    """The protocol whose scale a judgment of single answers is on: yes and no, and what a text that compares comes to,
    count like a checklist's share. A form that is not ours rates."""
    if judgment.opponent is not None:
        return "pairwise"
    form = BY_NAME.get(judgment.prompt.rpartition("/")[2].partition("@")[0])
    return "checklist" if form is not None and isinstance(form.kind, ChoiceKind | ChecklistKind) else "pointwise"


def _run(path: Path, turns: list[Judgment], lines: Mapping[tuple[str, JudgeConfig], int]) -> Run:
    """`lines` are those where the file has each setup of a model first."""
    systems, judges = ([*dict.fromkeys(map(of, turns))] for of in (attrgetter("system"), attrgetter("judge")))
    for what, values in (("models", systems), ("judges", judges)):
        if len(values) > 1:
            raise UsageError(f"{path}: several {what} ({', '.join(sorted(values))}); one of each in a file")
    (setup, _), *others = ((setup, line) for (system, setup), line in lines.items() if system in systems)
    for other, line in others:
        raise UsageError(f"{path}:{line}: {differing(setup, other)}; one of each in a file")
    # A file of comparisons between two models is named by both, unless it has verdicts on the reference as well.
    system, opponents = systems[0], sorted({one.opponent or "" for one in turns})
    met = " and ".join(opponents) if len(opponents) < 3 else f"{len(opponents)} models"
    name = system if "" in opponents else f"{system} against {met}"
    return Run(name=name, path=path, system=system, judge=judges[0], setup=setup, turns=turns)


def _asked(runs: Sequence[Run], benchmark: str, questions: Path | None) -> list[Conversation]:
    """The conversations that were asked, each once: those of `questions`, or else those that were judged. Raises
    UsageError where a file and the questions have two conversations under one id."""
    judged: dict[str, tuple[Conversation, Path]] = {}
    for run in runs:
        for one in run.turns:
            judged.setdefault(one.sample.id, (one.conversation, run.path))
    if questions is None:
        return [conversation for conversation, _ in judged.values()]
    asked = {one.id: one for one in named_images(benchmarks.read(benchmark, questions))[0]}
    for key, (conversation, path) in judged.items():
        if not alike(asked.get(key), conversation):
            raise UsageError(f"{questions}: conversation {key!r} of {path} is not there, or not as here")
    return list(asked.values())


def _counts(runs: Sequence[Run]) -> Section:
    readings = []
    for run in runs:
        failures = run.counted(lambda one: one.failure)
        del failures[None]
        how = "" if run.setup.score_kind == "argmax" else f" ({run.setup.score_kind} ratings)"
        readings.append(f"{run.name}, judged by {run.judge}{how}: {len(run.turns)} verdicts, {failed(failures)}.")
        if partly := run.counted(lambda one: one.unjudged > 0 and one.failure is None)[True]:
            readings.append(f"{run.name}: {partly} whole conversations were judged without the judgment of a turn.")
    return Section(heading="Verdicts", readings=readings)


def _with_ties(sections: Sequence[Section], runs: Sequence[Run]) -> list[Section]:
    """The sections, their tables saying how many of each run's verdicts are ties because none could be read."""
    unread = {run.name: run.counted(lambda one: one.unread)[True] for run in runs}
    if not any(unread.values()):
        return list(sections)
    said = f"; ties for want of a verdict: {', '.join(f'{name} {count}' for name, count in unread.items() if count)}"
    return [
        replace(one, tables=[replace(each, caption=each.caption + said) for each in one.tables]) for one in sections
    ]


def _other_scores(
    runs: Sequence[Run], benchmark: Benchmark, conversations: Sequence[Conversation]
) -> dict[str, dict[str, Aggregate]]:
    """By run, as far as there are any, the means of the verdicts that are in no score of the benchmark: by other
    protocols, between two models, under conditions or judgings that its tables lack. On the protocol's scale; of a pair
    a win is 1."""

    def left(one: Judgment) -> bool:
        scored = one.protocol in benchmark.protocols and benchmark.scored(one)
        return not scored and (one.opponent is None or "pairwise" not in benchmark.protocols)

    found: dict[str, dict[str, Aggregate]] = {}
    for run in runs:
        ways: dict[tuple[Protocol, str | None], list[Judgment]] = {}
        for one in filter(left, [*run.verdicts, *run.battles]):
            ways.setdefault((one.protocol or "pointwise", one.opponent), []).append(one)
        for (protocol, opponent), verdicts in ways.items():
            backed = opponent is None or run.setup.reference_backed
            cells = by_cell(verdicts, protocol)
            for cell in sorted(cells, key=_place):
                name = f"{protocol}{f' against {opponent}' if opponent else ''}, {_words(cell)}"
                asked = asked_of(conversations, cell, protocol, cells[cell], backed=backed)
                found.setdefault(run.name, {})[name] = mean(cells[cell], asked, SCALES[protocol])
    return found


def _below(name: str, found: Mapping[str, Aggregate]) -> Section:
    caption = "Not part of the scores above; on the protocol's scale, of a pair a win is 1"
    return Section(heading=f"{name}: other verdicts", tables=[aggregates(caption, found)])


def _place(cell: Cell) -> tuple[bool, str, str, bool, int]:
    """The model's own replies first, turns before the whole."""
    return cell.condition != "own", cell.condition, cell.judging, cell.turn is None, cell.turn or 0


def _words(cell: Cell) -> str:
    turn = "whole conversation" if cell.turn is None else f"turn {cell.turn}"
    return f"{cell.condition}, {turn}" + (f", {cell.judging}" if cell.judging != "standard" else "")


_RATINGS = (
    "Elo: online, K = {0.k:g}, the mean over {0.shuffles} random orders (seed {0.seed}); its interval: each resample "
    "in an order of its own. Bradley–Terry: on the same scale, mean 1000. Intervals: 95 %, bootstrap over groups."
)


class Tournaments(NamedTuple):
    """The battles between models by condition and turn: sections of the page, their tables for files, and the numbers
    for summary.json by name."""

    sections: list[Section]
    boards: list[leaderboards.Leaderboard]
    summary: dict[str, Any]


def _tournaments(runs: Sequence[Run], asked: Sequence[Conversation]) -> Tournaments:
    """Ratings of the models that were compared with each other, and each one's wins over each. Raises UsageError as
    `tournament.battles` does."""
    cells = dict[Cell, list[Judgment]]()
    fighting = [run for run in runs if run.battles]
    for one in (one for run in fighting for one in run.battles):
        cells.setdefault(Cell(one.condition, one.turn, one.judging), []).append(one)
    made = Tournaments([], [], {})
    for cell in sorted(cells, key=_place):
        _tournament(made, cell, cells[cell], fighting, asked)
    return made


def _tournament(
    made: Tournaments, cell: Cell, verdicts: list[Judgment], runs: Sequence[Run], asked: Sequence[Conversation]
) -> None:
    """Add the battles of one condition and turn."""
    ways = {run.setup for run in runs}
    name = _named(cell, asked)
    backed = all(way.reference_backed for way in ways)
    groups = asked_of(asked, cell, "pairwise", {one.sample.id for one in verdicts}, backed=backed)
    fought = tournament.battles(verdicts, groups)
    found = tournament.tournament(fought)
    drawn = any(way.battles == "random" for way in ways)  # who meets whom is known by the files alone
    rated, wins = leaderboards.of_battles(re.sub(r"\W+", "-", name), verdicts, groups, found, drawn)
    table, picture = leaderboards.wins_of(wins)
    mixed = [f"The battles were judged in {len(ways)} ways, which the ratings mix."] if len(ways) > 1 else []
    order = order_reading(replace(runs[0], name="All battles", turns=verdicts), battles=True)
    counts = [(model, found.win_rates[model]) for model in rated.found]
    rows = [row(model, one.wins, one.ties, one.losses, one.failed) for model, one in counts]
    made.sections.append(
        Section(
            heading=name.capitalize(),
            readings=[*(f"Ratings: {text}." for text in _unrated(found)), *mixed, *order],
            tables=[
                leaderboards.table_of(rated, {}),
                table,
                Table(caption="Verdicts", head=["", "wins", "ties", "losses", "failed"], rows=rows),
            ],
            pictures=[picture] if picture else [],
            note="" if made.sections else _RATINGS.format(found),
        )
    )
    made.boards.extend((rated, wins))
    counted = {model: one[leaderboards.RATE].asked for model, one in rated.found.items()}
    made.summary[name] = asdict(found) | {"asked": counted}


def _named(cell: Cell, asked: Sequence[Conversation]) -> str:
    """What a tournament is called: the turn where there are several, and what is not usual."""
    turn = [] if all(len(one.turns) == 1 for one in asked) else [_words(Cell("", cell.turn)).removeprefix(", ")]
    unusual = [word for word in (cell.condition, cell.judging) if word not in ("own", "standard")]
    return ", ".join(["tournament", *turn, *unusual])


def _unrated(found: tournament.Tournament) -> list[str]:
    """Why there are no ratings, or no intervals of these."""
    elo, bradley_terry = found.elo, found.bradley_terry
    if why := dict.fromkeys(text for text in (elo.undefined, bradley_terry.undefined) if text):
        return list(why)
    none = bradley_terry.no_intervals
    return [f"no intervals: {none}"] if none and not bradley_terry.intervals else []


def _compared(
    benchmark: Benchmark, one: Run, other: Run, asked: Sequence[Conversation]
) -> tuple[list[Section], dict[str, Any]]:
    """The second run less the first on the same conversations, by protocol, condition and turn, clustered by group, and
    what else the benchmark compares. Raises UsageError where they share nothing."""
    found: dict[str, Difference] = {}
    for protocol in one.protocols():
        mine = [verdict for verdict in one.verdicts if verdict.protocol == protocol]
        cells = compare(mine, other.verdicts, asked, protocol)
        found |= {f"{protocol}, {_words(cell)}": cells[cell] for cell in sorted(cells, key=_place)}
    found |= benchmark.differences(one, other, asked)
    if not found:
        raise UsageError(f"{other.path}: no verdicts of the protocols and conditions of {one.path}")
    section = Section(
        heading=f"{other.name} less {one.name}",
        readings=_not_compared(one, other),
        tables=[differences("On the same conversations", found)],
        note="Pairwise, a win is 1, a loss 0. 95 % intervals: paired bootstrap over groups; p: random signs "
        "of whole groups, not corrected for the number of rows.",
    )
    return [section], {"comparison": {"of": other.name, "less": one.name, "differences": found}}


def _not_compared(one: Run, other: Run) -> list[str]:
    """What a difference shows beside that of two models, as files may be judged in two ways; and what only one has."""
    readings = []
    mine, theirs = _ways(one.setup), _ways(other.setup)
    differ = [f"{name} {theirs[name]} and {mine[name]}" for name in mine if mine[name] != theirs[name]]
    if differ:
        readings.append(f"Judged in two ways, which the differences show as well: {'; '.join(differ)}.")
    for run, against in ((one, other), (other, one)):
        lacking = _cells(against)
        if only := [name for name in _cells(run) if name not in lacking]:
            readings.append(f"Only {run.name} has, and not compared is: {'; '.join(only)}.")
    return readings


def _ways(setup: JudgeConfig) -> dict[str, Any]:
    """How verdicts were asked for, by name."""
    decoding = {f"decoding's {name}": value for name, value in asdict(setup.decoding).items()}
    return decoding | {name: value for name, value in asdict(setup).items() if name != "decoding"}


def _cells(run: Run) -> dict[str, None]:
    """What a run has verdicts on, in words."""
    return dict.fromkeys(
        f"{one.protocol}, {_words(Cell(one.condition, one.turn, one.judging))}" for one in run.verdicts
    )


def _in_tokens(run: Run, path: Path) -> Run:
    """The run with its answers' lengths in a tokenizer's tokens. Raises UsageError where it cannot be read."""
    tokens, name = tokens_of(str(path)), path.name if path.is_dir() else path.parent.name or path.stem
    measured = []
    for one in run.turns:
        length = None if one.sample.answer is None else len(tokens(one.sample.answer))
        measured.append(replace(one, sample=replace(one.sample, length=length)))
    return replace(run, turns=measured, unit=f"tokens of {name}")


def _resources(runs: Sequence[Run]) -> list[Section]:
    """What each stage took, as far as sidecars say it (ConvBench's table 10); a file that several runs share once."""
    rows: dict[Path, TableRow] = {}
    for run in runs:
        judged = jsonl.facts(run.path)
        replies = Path(str(judged.get("replies", {}).get("file", "")))
        for stage, path, facts in (("infer", replies, jsonl.facts(replies)), ("judge", run.path, judged)):
            if "seconds" in facts:
                rows.setdefault(path, _took(f"{run.system if stage == 'infer' else run.name}, {stage}", facts))
    head = ["", "minutes", "memory, MiB", "tokens in", "cached", "tokens out"]
    table = Table(caption="By model and stage (ConvBench's table 10)", head=head, rows=list(rows.values()))
    note = (
        "Of this machine, the most at once; what a server elsewhere held is not known. Minutes are of runs that ended."
    )
    return [Section(heading="What it took", tables=[table], note=note)] if rows else []


def _took(name: str, facts: Mapping[str, Any]) -> TableRow:
    tokens = facts.get("tokens", {})
    counts = [tokens.get(kind, facts.get(f"{kind}_tokens", 0)) for kind in ("prompt", "cached", "completion")]
    return row(
        name,
        blocks.number(facts.get("seconds_in_all", facts["seconds"]) / 60, 1),
        facts.get("peak_memory_mib", "–"),
        *counts,
    )


def _origin(runs: Sequence[Run]) -> dict[str, dict[str, Any]]:
    """By file, what its sidecar says."""
    return {str(run.path): {"sha256": jsonl.sha256(run.path), **jsonl.facts(run.path)} for run in runs}
