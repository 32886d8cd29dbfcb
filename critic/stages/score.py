"""critic score: judgments -> a benchmark's tables, with coverage and failures beside every number.

critic score judged.jsonl --questions questions.jsonl --out runs/alignmmbench    # single answers: AlignMMBench
critic score judged.jsonl --questions ConvBench.csv --out runs/convbench         # judged conversations
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from msgspec.structs import replace

from critic import benchmarks, jsonl
from critic.benchmarks import BENCHMARKS, Run, Runs
from critic.errors import UsageError
from critic.judging import protocols
from critic.page import figures, leaderboards, page
from critic.page.blocks import Section
from critic.page.cautions import list_cautions
from critic.page.tournaments import tournaments
from critic.records import NOT_LEARNED, Judgment, describe_difference
from critic.stages.judged_runs import OF_SINGLE_ANSWERS, find_form, read_runs
from critic.stages.totals import describe_costs, failed, name_forms, read_by_model
from critic.stats.aggregate import asked_of, by_cell
from critic.stats.leaderboard import Leaderboard, LeaderboardRow, score_of


def main(
    judgments: list[Path],
    benchmark: Annotated[
        str | None,
        typer.Option(
            help=f"Benchmark to score: {', '.join(BENCHMARKS)}.",
            show_default=f"the files'; {OF_SINGLE_ANSWERS} of answers",
        ),
    ] = None,
    questions: Path | None = None,
    baseline: str | None = None,
    out: Path | None = None,
    models: Path | None = None,
    prices: Path | None = None,
    published: Annotated[Literal["published"] | None, typer.Option("--as")] = None,
    max_failed: Annotated[float, typer.Option(min=0, max=1)] = 0.02,
) -> int:
    """Compute a benchmark's scores from judgments, with coverage and failures.

    Tables over all models show the scores per task, per category and overall, and what else the benchmark reports.
    \f
    - judgments: Judgments from critic judge, one file per model; tables show all models.
    - questions: The benchmark's file; coverage then counts all of it.
    - baseline: Row of the tables; the others show their paired differences from it.
    - out: Folder for summary.json, report.html and a .csv per table; NAME.json holds the scores only.
    - models: TOML with [MODEL] tables: size (billions of parameters), family.
    - prices: TOML with [MODEL] tables: input, output, cached_input (a million tokens).
    - published: Refuse files that deviate from the setup of the benchmark's paper.
    - max_failed: Exit with 3 if a larger share failed.
    """
    runs = read_runs(judgments, benchmark, questions)
    if published:
        _check_published(runs)
    sizes = read_by_model("--models", models, figures.ModelSize, {run.system: None for run in runs.runs})
    costs = describe_costs(judgments, {run.path: run.system for run in runs.runs}, prices)
    report = runs.benchmark.report(runs.runs, runs.conversations)
    boards = leaderboards.leaderboards([*_list_rows(runs), *report.rows], baseline)
    tournament_sections, rated, summary = tournaments(runs, leaderboards.order_of(boards))
    drawn = [*runs.benchmark.draw({board.key: board for board in boards}, sizes)]
    sections = [*leaderboards.sections(boards), *[Section(heading="Pictures", figures=drawn)] * bool(drawn)]
    sections += [*tournament_sections, *report.sections, *costs, _describe_verdicts(runs)]
    boards += rated
    cautions = list_cautions(runs)
    print(page.as_text([Section(heading="Before you compare", readings=cautions), *sections]))
    if out is not None:
        file = out if out.suffix == ".json" else out / "summary.json"
        origin = {}
        for path in judgments:
            origin[jsonl.relative_place(path, file.parent)] = {"sha256": jsonl.sha256(path), **jsonl.facts(path)}
        scores = {
            "benchmark": runs.name,
            "systems": {**report.summary, **summary},
            "leaderboards": {board.key: board.standings for board in boards},
            "places": {board.key: board.places for board in boards if board.places},
            "files": origin,
        }
        jsonl.write_json(file, scores)
        # NAME.json holds the scores only.
        if file != out:
            facts = _build_head(runs, boards, cautions) | _list_answers(runs, judgments)
            page.write(out / "report.html", f"{runs.benchmark.title}: scores", sections, origin, **facts)
            leaderboards.write(out, boards)
            print(f"\nopen {out / 'report.html'}")
    return 3 if runs.failures > max_failed * len(runs.verdicts) else 0


def _build_head(runs: Runs, boards: Sequence[Leaderboard], cautions: Sequence[str]) -> dict[str, Any]:
    """Build the head of the report: what was scored, and the main sentences, warnings (`cautions`) first."""
    files = [f"{run.name}, judged by {run.judge}" for run in runs.runs]
    # A long list of files would push the headline out of sight.
    if len(files) > 4:
        names = {run.path.name for run in runs.runs}
        files = [f"{len(names)} files" if len(names) > 1 else names.pop()]
    swayed = [words for words, large in benchmarks.order_effects(runs.runs).items() if large]
    conversations = f"{len(runs.conversations)} conversations"
    counts = f"{len(runs.verdicts)} verdicts on {conversations}" + f", {runs.failures} failed" * bool(runs.failures)
    lines = [*cautions, *leaderboards.state_leaders(boards), *swayed, f"{counts}."]
    return {"about": f"{conversations}; {', '.join(files)}.", "verdicts": {"": lines}}


def _list_answers(runs: Runs, files: Sequence[Path]) -> dict[str, Any]:
    """Return the template variables `answers`, `total` and `pictures` of the page's list of answers.

    `answers` holds tuples of a judgment, people's score of the same answer, and the absolute difference of both scores;
    the last two are None if unknown. Verdicts furthest from people come first, then failures and the lowest scores, at
    most page.MOST_ANSWERS of the `total`. `files`: the files of judgments.
    """
    people = {(line.system, line.id): line.score for line in runs.verdicts if line.prompt_hash == "people"}
    rows = []
    # People's own verdicts stand beside the judges', and in rows of their own only without these.
    for line in [line for line in runs.verdicts if line.prompt_hash != "people"] or runs.verdicts:
        human = line.sample.human if protocols.load(line.protocol or "pointwise").rates else None
        theirs = people.get((line.system, line.id), human.score if human else None)
        rows.append((line, theirs, None if theirs is None or line.score is None else abs(line.score - theirs)))
    worst = sorted(rows, key=lambda row: (-(row[2] or 0), row[0].score or 0))[: page.MOST_ANSWERS]
    names = (name for line, *_ in worst for turn in line.conversation.turns[: line.turn] for name in turn.images)
    return {"answers": worst, "total": len(rows), "pictures": page.embed_images(names, files)}


def _check_published(runs: Runs) -> None:
    """Raise UsageError for the first run that deviates from the setup of the benchmark's paper."""
    for run in runs.runs:
        _, departures = runs.benchmark.compare_with_paper(run)
        if departures:
            raise UsageError(
                f"--as published: {run.path}: {'; '.join(departures)}; "
                "critic infer and critic judge take --as published, too"
            )


def _describe_setup(runs: Runs, run: Run) -> str:
    """Return how a run deviates from the setup of the benchmark's paper, or "as published".

    If the run follows only one table of the paper, the text names it, as in "as published: table 1".
    """
    part, departures = runs.benchmark.compare_with_paper(run)
    if departures:
        return f"not as published: {'; '.join(departures)}"
    return f"as published: {part}" if part else "as published"


def _group_by_text(texts: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Merge pairs (run name, text) with equal texts: yield a sentence per text, which begins with the names of its
    runs."""
    names: dict[str, list[str]] = {}
    for name, text in texts:
        names.setdefault(text, []).append(name)
    for text, files in names.items():
        whose = "All files" if len(names) == 1 < len(files) else ", ".join(files)
        yield f"{whose}: {text}."


def _count_verdicts(run: Run) -> str:
    """Return who judged a run and in which forms, with its numbers of verdicts and failures, as part of a sentence."""
    failures = Counter[str](judgment.failure for judgment in run.turns if judgment.failure)
    how = "" if run.setup.score_kind == "argmax" else f" ({run.setup.score_kind} ratings)"
    # People are asked in no form.
    forms = {find_form(judgment.prompt) for judgment in run.turns if judgment.prompt_hash != "people"}
    how += f" in {name_forms(forms)}" if forms else ""
    how += f" by the prompts of {run.setup.pack}" * bool(run.setup.pack)
    return f"judged by {run.judge}{how}, {len(run.turns)} verdicts" + f", {failed(failures)}" * bool(failures)


def _describe_verdicts(runs: Runs) -> Section:
    """Build the section that says how the verdicts were made, and how many failed."""
    readings = [*_group_by_text((run.name, _describe_setup(runs, run)) for run in runs.runs)]
    readings += _group_by_text((run.name, _count_verdicts(run)) for run in runs.runs)
    readings += benchmarks.order_effects(runs.runs)
    first = runs.runs[0]
    for run in runs.runs:
        if run.setup.unlearned:
            readings.append(f"{run.name}: {run.judge} {NOT_LEARNED.format(run.setup.unlearned)}")
        if partly := sum(judgment.unjudged > 0 and judgment.failure is None for judgment in run.turns):
            readings.append(f"{run.name}: {partly} whole conversations were judged without the judgment of a turn.")
        # A difference between models is also one between two ways of asking their judges.
        setup = replace(first.setup, judge=run.judge)
        if run.setup != setup:
            how = describe_difference(setup, run.setup, "here")
            readings.append(f"{run.name} was judged otherwise than {first.name}: there {how}.")
    return Section(heading="Verdicts", readings=readings)


def _list_rows(runs: Runs) -> Iterator[LeaderboardRow]:
    """Yield the rows of all tables over models; rows of verdicts that count in no score come last."""
    for run in runs.runs:
        for row in runs.benchmark.entries(run, runs.conversations):
            yield benchmarks.name_row(row, run)
    for run in runs.runs:
        for row in _list_other_means(runs, run):
            yield benchmarks.name_row(row, run)


def _list_other_means(runs: Runs, run: Run) -> Iterator[LeaderboardRow]:
    """Yield rows with the means of a run's verdicts that count in none of the benchmark's scores.

    These verdicts are by other protocols, compare two models, or have a condition or ablation that the tables lack. The
    means are on the protocol's scale; of comparisons they are the win rate.
    """
    ways: dict[tuple[str, str | None], list[Judgment]] = {}
    for judgment in run.turns:
        scored = judgment.protocol in runs.benchmark.protocols and runs.benchmark.scored(judgment)
        in_tournament = judgment.opponent is not None and benchmarks.any_compares(runs.benchmark.protocols)
        if not scored and not in_tournament:
            ways.setdefault((judgment.protocol or "pointwise", judgment.opponent), []).append(judgment)
    for (protocol, opponent), verdicts in ways.items():
        cells = by_cell(verdicts, protocol)
        scores = {}
        low, high = protocols.load(protocol).scale
        # A judge of two models may have been asked without the reference, so turns that lack one count.
        backed = opponent is None or run.setup.reference_backed
        for cell in sorted(cells, key=lambda cell: cell.order):
            asked = asked_of(runs.conversations, cell, protocol, cells[cell], backed=backed)
            scores[cell.words] = score_of(cells[cell], asked, (low, high))
        against = f" against {opponent}" if opponent else ""
        caption = f"Other verdicts, in no score above: {protocol}{against}, {low:g} to {high:g}"
        key = re.sub(r"\W+", "-", f"other {protocol}{against}")
        yield LeaderboardRow(key, caption, scores)
