"""critic score: judgments -> a benchmark's tables, with coverage and failures beside every number.

critic score judged.jsonl --questions questions.jsonl --out runs/alignmmbench    # single answers: AlignMMBench
critic score judged.jsonl --questions ConvBench.csv --out runs/convbench         # judged conversations
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import typer
from msgspec.structs import replace

from critic import benchmarks, jsonl, tables
from critic.benchmarks import BENCHMARKS, Benchmark, Run
from critic.errors import UsageError, quoted, replace_surrogates
from critic.images import name_images
from critic.judging import protocols
from critic.judging.forms import BY_NAME
from critic.judging.planned import key as verdict_key
from critic.page import leaderboards, page
from critic.page.blocks import Section, as_text
from critic.page.tournaments import tournaments
from critic.records import NOT_LEARNED, Conversation, JudgeConfig, Judgment, describe_difference, is_judgment
from critic.stages.run import failed, name_forms
from critic.stats.aggregate import asked_of, by_cell
from critic.stats.leaderboard import LeaderboardRow, score_of

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
    baseline: Annotated[
        str | None, typer.Option(help="A row of the tables: the others' paired differences from it.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="A folder for summary.json, report.html and a .csv of each table; NAME.json: the scores alone."
        ),
    ] = None,
    published: Annotated[
        Literal["published"] | None,
        typer.Option("--as", help="Refuse files that were made otherwise than the benchmark's paper says."),
    ] = None,
    max_failed: Annotated[float, typer.Option(min=0, max=1, help="Exit with 3 when a larger share failed.")] = 0.02,
) -> int:
    """A benchmark's scores, with coverage and failures: per task, per category and over the tasks, tables over models
    and all else that it reports."""
    name = benchmark or _benchmark_of(judgments[0])
    chosen = benchmarks.load(name)
    runs = read_runs(judgments, name)
    if published:
        _check_published(runs, chosen)
    conversations = _conversations(runs, name, questions)
    report = chosen.report(runs, conversations)
    boards = leaderboards.leaderboards([*_rows(chosen, runs, conversations), *report.rows], baseline)
    battles = tournaments(runs if chosen.compares else [], conversations, leaderboards.order_of(boards))
    sections = [*leaderboards.sections(boards), *battles.sections, *report.sections, _counts(runs, chosen)]
    print(as_text(sections))
    boards += battles.boards
    beside = Path() if out is None else out.parent if out.suffix == ".json" else out
    origin = {
        jsonl.relative_place(path, beside): {"sha256": jsonl.sha256(path), **jsonl.facts(path)} for path in judgments
    }
    scores = {
        "benchmark": name,
        "systems": {**report.summary, **battles.summary},
        "leaderboards": {board.key: board.standings for board in boards},
        "places": {board.key: board.places for board in boards if board.places},
        "files": origin,
    }
    if out is not None:
        single = out.suffix == ".json"
        jsonl.write_json(out if single else out / "summary.json", msgspec.to_builtins(scores))
        if not single:
            facts = _facts(runs, len(conversations), boards)
            page.write(out / "report.html", f"{chosen.title}: scores", sections, origin, **facts)
            leaderboards.write(out, boards)
            print(f"\nopen {out / 'report.html'}")
    judged = [judgment for run in runs for judgment in run.turns]
    failures = sum(judgment.failure is not None for judgment in judged)
    return 3 if failures > max_failed * len(judged) else 0


def _facts(runs: Sequence[Run], count: int, boards: Sequence[leaderboards.Leaderboard]) -> dict[str, Any]:
    """What the page says at its head."""
    files = [f"{run.name}, judged by {run.judge}" for run in runs]
    paths = {run.path.name for run in runs}
    files = files if len(files) < 5 else [f"{len(paths)} files" if len(paths) > 1 else paths.pop()]
    verdicts = [judgment for run in runs for judgment in run.turns]
    failed = sum(judgment.failure is not None for judgment in verdicts)
    counts = f"{len(verdicts)} verdicts on {count} conversations{f', {failed} failed' if failed else ''}."
    swayed = [words for words, large in benchmarks.order_effects(runs).items() if large]
    lines = [leaderboards.headline(boards), *swayed, counts]
    return {"about": f"{count} conversations; {', '.join(files)}.", "verdicts": {"": [text for text in lines if text]}}


def _benchmark_of(path: Path) -> str:
    """The benchmark that a file's records are of. Raises UsageError for a file of something else."""
    first = tables.read_first_row(path)
    if first is None:
        return OF_SINGLE_ANSWERS  # of a file that cannot be read the reader says why
    if not is_judgment(first):
        raise UsageError(
            f"{path}: no judgments; `critic judge {path} --benchmark NAME --questions FILE` makes them of replies"
        )
    # Earlier versions wrote the conversation beside the verdict; answers out of rows are of none.
    sample = first.get("sample", first)
    conversation = sample.get("conversation") if isinstance(sample, dict) else None
    return str((conversation if isinstance(conversation, dict) else {}).get("benchmark") or OF_SINGLE_ANSWERS)


def read_runs(paths: Sequence[Path], benchmark: str) -> list[Run]:
    """The runs of files of judgments, told apart by their names.

    Raises UsageError for a file of another benchmark, of several models or judges, or given twice.
    """
    names = Counter(map(jsonl.identify, paths))
    if twice := next((path for path in paths if names[jsonl.identify(path)] > 1), None):
        raise UsageError(f"{twice}: given twice, by this name or another")
    conversations: dict[str, Conversation] = {}
    runs = [run for path in paths for run in _runs_of(path, benchmark, conversations)]
    runs = _joined(runs)
    # Names say no more than they must: the model, where that is not enough the judge, and then the file.
    runs = _told_apart(runs, [run.judge for run in runs], "{} by {}")
    stems = [run.path.stem for run in runs]
    return _told_apart(runs, stems if len({*stems}) == len(runs) else [str(run.path) for run in runs], "{} ({})")


def _runs_of(path: Path, benchmark: str, conversations: dict[str, Conversation]) -> list[Run]:
    """The runs of a file: one, or of a file of battles between several models one for each that stands first.
    `conversations` are those so far, by id, each of which is kept once."""
    judgments, lines = list[Judgment](), dict[tuple[str, JudgeConfig], int]()
    for number, line in jsonl.read(path, Judgment):
        judgment = _scorable(line, path, number, benchmark)
        known = conversations.setdefault(judgment.sample.id, judgment.conversation)
        if known != judgment.conversation:
            raise UsageError(f"{path}:{number}: conversation {quoted(judgment.sample.id)} reads otherwise than before")
        lines.setdefault((judgment.system, judgment.setup), number)
        judgments.append(replace(judgment, sample=replace(judgment.sample, conversation=known)))
    if any(judgment.opponent is None for judgment in judgments):
        return [_run(path, judgments, lines)]
    by_model: dict[str, list[Judgment]] = {}
    for judgment in judgments:
        by_model.setdefault(judgment.system, []).append(judgment)
    return [_run(path, own, lines) for own in by_model.values()]


def _joined(runs: Iterable[Run]) -> list[Run]:
    """The runs, those of one model that one judge was asked about in one way taken together: its verdicts may lie in
    several files, none of them in two."""
    joined = list[Run]()
    for run in runs:
        verdicts = {verdict_key(judgment) for judgment in run.turns}
        for index, known in enumerate(joined):
            same = (known.name, known.judge, known.setup) == (run.name, run.judge, run.setup)
            if same and verdicts.isdisjoint(map(verdict_key, known.turns)):
                joined[index] = replace(known, turns=[*known.turns, *run.turns])
                break
        else:
            joined.append(run)
    return joined


def _told_apart(runs: Sequence[Run], more: Sequence[str], longer: str) -> list[Run]:
    """The runs, with a longer name where two have the same."""
    shared = Counter(run.name for run in runs)
    return [
        replace(run, name=longer.format(run.name, word)) if shared[run.name] > 1 else run
        for run, word in zip(runs, more, strict=True)
    ]


def _scorable(line: Judgment, path: Path, number: int, benchmark: str) -> Judgment:
    """A judgment as it counts: of an answer out of a row by the protocol of its form, as one to AlignMMBench."""
    judged_benchmark = line.conversation.benchmark or OF_SINGLE_ANSWERS
    if judged_benchmark != benchmark:
        raise UsageError(f"{path}:{number}: judges {judged_benchmark}, expected {benchmark}")
    if line.protocol is not None:
        return line
    # Answers to one question are told apart by their own ids.
    conversation = replace(line.conversation, id=line.sample.id, benchmark=judged_benchmark)
    sample = replace(line.sample, conversation=conversation, system=line.sample.system or replace_surrogates(path.stem))
    return replace(line, sample=sample, protocol=_protocol(line))


def _protocol(judgment: Judgment) -> str:
    """The protocol whose scale a judgment of single answers is on: yes and no, and what a text that compares comes to,
    count like a checklist's share. A form that is not ours rates."""
    if judgment.opponent is not None:
        return "pairwise"
    form = BY_NAME.get(_form_of(judgment.prompt))
    return form.kind.scored_as if form is not None else "pointwise"


def _form_of(prompt: str) -> str:
    """Return the form that a judgment names; earlier versions named a file, and its language."""
    return prompt.rpartition("/")[2].partition("@")[0]


def _run(path: Path, turns: list[Judgment], lines: Mapping[tuple[str, JudgeConfig], int]) -> Run:
    """`lines` are those where the file has each setup of a model first."""
    systems = list(dict.fromkeys(judgment.system for judgment in turns))
    judges = list(dict.fromkeys(judgment.judge for judgment in turns))
    for kind, values in (("models", systems), ("judges", judges)):
        if len(values) > 1:
            raise UsageError(f"{path}: several {kind} ({', '.join(sorted(values))}); one of each in a file")
    (setup, _), *others = ((setup, line) for (system, setup), line in lines.items() if system in systems)
    for other, line in others:
        raise UsageError(f"{path}:{line}: {describe_difference(setup, other, 'here')}; one of each in a file")
    # A file of comparisons between two models is named by both, unless it has verdicts on the reference as well.
    system, opponents = systems[0], sorted({judgment.opponent or "" for judgment in turns})
    against = " and ".join(opponents) if len(opponents) < 3 else f"{len(opponents)} models"
    name = system if "" in opponents else f"{system} against {against}"
    return Run(name=name, path=path, system=system, judge=judges[0], setup=setup, turns=turns)


def _conversations(runs: Sequence[Run], benchmark: str, questions: Path | None) -> list[Conversation]:
    """The conversations that were asked, each once: those of `questions`, or else those that were judged. Raises
    UsageError where a file and the questions have two conversations under one id."""
    judged: dict[str, tuple[Conversation, Path]] = {}
    for run in runs:
        for judgment in run.turns:
            judged.setdefault(judgment.sample.id, (judgment.conversation, run.path))
    if questions is None:
        return [conversation for conversation, _ in judged.values()]
    by_id = {conversation.id: conversation for conversation in name_images(benchmarks.read(benchmark, questions))[0]}
    for key, (conversation, path) in judged.items():
        if by_id.get(key) != conversation:
            raise UsageError(f"{questions}: conversation {quoted(key)} of {path} is not there, or not as here")
    return list(by_id.values())


def _check_published(runs: Sequence[Run], benchmark: Benchmark) -> None:
    """Raises UsageError for the first file that is not as in the paper."""
    for run in runs:
        if words := benchmark.departures(run):
            raise UsageError(
                f"--as published: {run.path}: {'; '.join(words)}; "
                "critic infer and critic judge take --as published, too"
            )


def _published(runs: Sequence[Run], benchmark: Benchmark) -> list[str]:
    """Whether the files were made as in the paper, those of which the same is to be said together."""
    departures = [(run.name, "; ".join(benchmark.departures(run))) for run in runs]
    return _together((name, f"not as published: {words}" if words else "as published") for name, words in departures)


def _together(sayings: Iterable[tuple[str, str]]) -> list[str]:
    """What is said of files by their names, those of which the same is said together."""
    names: dict[str, list[str]] = {}
    for name, words in sayings:
        names.setdefault(words, []).append(name)
    if len(names) == 1 < max(map(len, names.values())):
        return [f"All files: {words}." for words in names]
    return [f"{', '.join(whose)}: {words}." for words, whose in names.items()]


def _verdicts(run: Run) -> str:
    """Return by whom a file was judged, in which forms, and what came of it."""
    failures = run.counted(lambda judgment: judgment.failure)
    del failures[None]
    how = "" if run.setup.score_kind == "argmax" else f" ({run.setup.score_kind} ratings)"
    # People are asked in no form.
    forms = {_form_of(judgment.prompt) for judgment in run.turns if judgment.prompt_hash != "people"}
    how += f" in {name_forms(forms)}" if forms else ""
    return f"judged by {run.judge}{how}, {len(run.turns)} verdicts" + f", {failed(failures)}" * bool(failures)


def _counts(runs: Sequence[Run], benchmark: Benchmark) -> Section:
    readings = [*_published(runs, benchmark), *_together((run.name, _verdicts(run)) for run in runs)]
    readings += benchmarks.order_effects(runs)
    for run in runs:
        if run.setup.unlearned:
            readings.append(f"{run.name}: {run.judge} {NOT_LEARNED.format(run.setup.unlearned)}")
        if partly := run.counted(lambda judgment: judgment.unjudged > 0 and judgment.failure is None)[True]:
            readings.append(f"{run.name}: {partly} whole conversations were judged without the judgment of a turn.")
        # Differences between models are those of their judges as well where these were asked in two ways.
        setup = replace(runs[0].setup, judge=run.setup.judge)
        if run.setup != setup:
            how = describe_difference(setup, run.setup, "here")
            readings.append(f"{run.name} was judged otherwise than {runs[0].name}: there {how}.")
    return Section(heading="Verdicts", readings=readings)


def _rows(benchmark: Benchmark, runs: Sequence[Run], conversations: Sequence[Conversation]) -> list[LeaderboardRow]:
    """The rows of all tables over models, those of other verdicts last."""
    rows = [benchmarks.named(row, run) for run in runs for row in benchmark.entries(run, conversations)]
    return rows + [row for run in runs for row in _other_rows(run, benchmark, conversations)]


def _other_rows(run: Run, benchmark: Benchmark, conversations: Sequence[Conversation]) -> Iterator[LeaderboardRow]:
    """The means of the verdicts that are in no score of the benchmark: by other protocols, between two models, under
    conditions or judgings that its tables lack. On the protocol's scale; of a pair a win is 1."""
    ways: dict[tuple[str, str | None], list[Judgment]] = {}
    for judgment in run.turns:
        scored = judgment.protocol in benchmark.protocols and benchmark.scored(judgment)
        in_tournament = judgment.opponent is not None and benchmark.compares
        if not scored and not in_tournament:
            ways.setdefault((judgment.protocol or "pointwise", judgment.opponent), []).append(judgment)
    for (protocol, opponent), verdicts in ways.items():
        cells, scores = by_cell(verdicts, protocol), {}
        scale = protocols.load(protocol).scale
        backed = opponent is None or run.setup.reference_backed
        for cell in sorted(cells, key=attrgetter("order")):
            asked = asked_of(conversations, cell, protocol, cells[cell], backed=backed)
            scores[cell.words] = score_of(cells[cell], asked, scale)
        against = f" against {opponent}" if opponent else ""
        low, high = scale
        caption = f"Other verdicts, in no score above: {protocol}{against}, {low:g} to {high:g}"
        row = LeaderboardRow(key=re.sub(r"\W+", "-", f"other {protocol}{against}"), caption=caption, scores=scores)
        yield benchmarks.named(row, run)
