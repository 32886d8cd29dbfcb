"""critic score: judgments -> benchmark scores, with coverage and failures beside every number.

critic score judged.jsonl --questions questions.jsonl
critic score judged.jsonl --benchmark convbench --out runs/convbench     # judged conversations
"""

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from critic import jsonl
from critic.benchmarks import BENCHMARKS, alignmmbench
from critic.benchmarks.alignmmbench import Cell, Scores
from critic.errors import UsageError
from critic.page.blocks import span
from critic.records import Judgment
from critic.stages import score_conversations


def _line(name: str, cell: Cell, indent: str = "") -> str:
    mean = "–" if cell.mean is None else f"{cell.mean:.2f}"
    bounds = span(cell.low, cell.high) if cell.n < cell.asked else ""
    counts = f"{cell.n:>8}{cell.failed:>8}{cell.asked:>8}{cell.coverage:>10.1%}"
    return f"{indent + name:<28}{mean:>7}{counts}{bounds:>15}".rstrip()


def table(found: Scores) -> str:
    """The scores as fixed-width text."""
    lines = [f"{'':<28}{'score':>7}{'n':>8}{'failed':>8}{'asked':>8}{'coverage':>10}{'could be':>15}"]
    for category, members in alignmmbench.CATEGORIES.items():
        if category in found.categories:
            lines.append(_line(category, found.categories[category]))
            lines += [_line(task, found.tasks[task], "  ") for task in members if task in found.tasks]
    lines += [_line(task, cell) for task, cell in found.tasks.items() if task not in alignmmbench.TASKS]
    label = f"overall, mean of {found.tasks_scored} task{'s' if found.tasks_scored != 1 else ''}"
    lines.append(_line(label, found.overall))
    weighted = "–" if found.weighted is None else f"{found.weighted:.2f}"
    lines.append(f"{'overall, mean of questions':<28}{weighted:>7}{found.overall.n:>8}")
    missing = len(found.tasks) - found.tasks_scored
    if missing:
        lines.append(f"note: {missing} of {len(found.tasks)} tasks have no score; the overall mean leaves them out")
    return "\n".join(lines)


def main(
    judgments: Annotated[
        list[Path], typer.Argument(help="Judgments of one model (critic judge); with --benchmark of several.")
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
    """Scores per task, per category and overall, with coverage and failures; with --benchmark all that it reports."""
    if benchmark is not None:
        return score_conversations.score(judgments, benchmark, questions, against, out, max_failed)
    if len(judgments) > 1 or against is not None:
        raise UsageError("several files and --against need --benchmark")
    return _score_responses(judgments[0], questions, out, max_failed)


def _score_responses(judgments: Path, questions: Path | None, out: Path | None, max_failed: float) -> int:
    rows = [judgment for _, judgment in jsonl.read(judgments, Judgment)]
    for name, values in (
        ("judges", {row.judge for row in rows}),
        ("models", {str(row.response.system) for row in rows}),
    ):
        if len(values) > 1:
            raise UsageError(f"{judgments}: several {name} ({', '.join(sorted(values))}); score one at a time")
    asked = alignmmbench.asked_per_task(alignmmbench.read_questions(questions).values()) if questions else None
    found = alignmmbench.scores(rows, asked)
    print(f"model {rows[0].response.system}, judge {rows[0].judge}, score: {rows[0].score_kind}")
    print(table(found))
    if out is not None:
        jsonl.write_json(out, msgspec.to_builtins(found))
    return 3 if found.overall.failed > max_failed * len(rows) else 0
