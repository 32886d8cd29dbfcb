"""critic audit: judgments of human-scored responses -> a table, OUT/summary.json and OUT/report.html.

critic audit internal=internal.jsonl external=external.jsonl --train train.jsonl --out runs/audit
"""

import json
import platform
import sys
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from critic import human_scored, jsonl
from critic.errors import UsageError
from critic.records import RATINGS, Judgment, Response
from eval_agreement.compare import COLUMN_SUFFIX, Audit, Split, audit
from eval_agreement.metrics import LEVEL, METRICS, RESAMPLES, SEED, Agreement

RESERVED = ("baselines", "judges", "people", "provenance")
"""Keys of summary.json beside the names of the splits."""


def main(
    judgments: Annotated[
        list[str], typer.Argument(help="NAME=FILE or FILE (named by its stem): judgments of human-scored responses.")
    ],
    out: Annotated[Path, typer.Option(help="Folder for summary.json and report.html.")],
    train: Annotated[
        Path | None, typer.Option(help="The judge's human-scored training rows; trivial judges are fitted on them.")
    ] = None,
    judge_column: Annotated[
        list[str] | None,
        typer.Option(help=f"Another judge's scores to put beside: a column X{COLUMN_SUFFIX}. Repeatable."),
    ] = None,
    loss: Annotated[Path | None, typer.Option(help='Training log (JSONL, {"step": …, "loss": …}) to draw.')] = None,
    title: Annotated[str | None, typer.Option(help="Title of the report.", show_default="the judge's name")] = None,
    max_failed: Annotated[
        float, typer.Option(min=0, max=1, help="Exit with 3 when a larger share of any split failed.")
    ] = 0.02,
) -> int:
    """How well a judge agrees with people, with 95 % intervals, beside trivial judges and other judges."""
    from eval_agreement import report  # noqa: PLC0415 - keeps --help fast

    files = named_files(judgments)
    splits = [Split(name, read_judgments(path)) for name, path in files.items()]
    columns = list(dict.fromkeys(judge_column or []))
    check_columns(columns, splits)
    steps = list(report.read_loss(loss)) if loss else []
    training = human_scored.load(train).responses if train else []
    if train and not training:
        raise UsageError(f"{train}: no usable row to fit the baselines on")
    found = audit(splits, training, columns)
    origin = provenance(files, splits, train, training)

    report.write(out / "report.html", found, origin, steps, title or f"Audit of {found.judge}")
    jsonl.write_json(out / "summary.json", {**summary(found), "provenance": origin})
    print(table(found))
    print(f"\n{out / 'summary.json'}\n{out / 'report.html'}")
    return exit_code(found, max_failed)


def named_files(arguments: Iterable[str]) -> dict[str, Path]:
    """NAME=FILE or FILE -> files by split name, in the order given."""
    files: dict[str, Path] = {}
    for argument in arguments:
        name, separator, file = argument.partition("=")
        if not separator or Path(argument).is_file():
            name, file = Path(argument).stem, argument
        if not name or not file:
            raise UsageError(f"{argument!r}: expected NAME=FILE or FILE")
        if name in RESERVED:
            raise UsageError(f"{argument!r}: a split cannot be called {name}; reserved: {', '.join(RESERVED)}")
        if name in files:
            raise UsageError(f"{argument!r}: the split {name} is given twice; name them, as in NAME=FILE")
        files[name] = Path(file)
    return files


def read_judgments(path: Path) -> list[Judgment]:
    """The judgments of one judge. Raises UsageError naming file and line for a missing human score, a
    score outside 1..10, an id that comes twice, or a second judge."""
    found: list[Judgment] = []
    lines: dict[str, int] = {}
    for number, judgment in jsonl.read(path, Judgment):
        place = f"{path}:{number}"
        response = judgment.response
        if response.human is None:
            raise UsageError(f"{place}: response.human is missing; an audit needs people's scores")
        if response.id in lines:
            raise UsageError(f"{place}: duplicate response id {response.id!r}, first at line {lines[response.id]}")
        if found and judgment.judge != found[0].judge:
            raise UsageError(f"{place}: judged by {judgment.judge!r}, line 1 by {found[0].judge!r}; one judge a file")
        scores = {"score": judgment.score, "response.human.score": response.human.score}
        scores |= {f"response.human.raters.{name}": score for name, score in response.human.raters.items()}
        scores |= {f"response.columns.{name}": score for name, score in response.columns.items()}
        for key, score in scores.items():
            if score is not None and not RATINGS[0] <= score <= RATINGS[-1]:
                raise UsageError(f"{place}: {key} {score:g} is outside {RATINGS[0]}..{RATINGS[-1]}")
        lines[response.id] = number
        found.append(judgment)
    return found


def check_columns(columns: Iterable[str], splits: Iterable[Split]) -> None:
    """Raise UsageError for a column that no row has, with the choices."""
    present = sorted({name for split in splits for response in split.responses for name in response.columns})
    for column in columns:
        if column not in present:
            raise UsageError(f"--judge-column {column}: no row has it; columns: {', '.join(present) or 'none'}")


def provenance(
    files: dict[str, Path], splits: Iterable[Split], train: Path | None, training: list[Response]
) -> dict[str, Any]:
    """What the numbers were made from. `in_training` counts rows of a split whose response is also in the
    training file, `question_in_training` those whose question or image (group) is."""
    ids = {response.id for response in training}
    groups = {response.question.group for response in training}
    described: dict[str, Any] = {}
    for split, path in zip(splits, files.values(), strict=True):
        facts: dict[str, Any] = {"file": str(path), "sha256": jsonl.sha256(path), "rows": len(split.judgments)}
        for key in ("judge", "prompt", "prompt_hash", "score_kind"):
            facts[key] = ", ".join(sorted({getattr(judgment, key) for judgment in split.judgments}))
        if train:
            facts["in_training"] = sum(response.id in ids for response in split.responses)
            facts["question_in_training"] = sum(group in groups for group in split.group)
        facts["run"] = run_facts(path)
        described[split.name] = facts
    return {
        "files": described,
        "train": train
        and {
            "file": str(train),
            "sha256": jsonl.sha256(train) if train.is_file() else None,
            "rows": len(training),
            "run": run_facts(train),
        },
        "interval": {
            "level": LEVEL,
            "method": "percentile bootstrap over groups",
            "resamples": RESAMPLES,
            "seed": SEED,
        },
        "versions": {"python": platform.python_version()}
        | {name: version(name) for name in ("critic", "numpy", "scipy", "sacrebleu")},
    }


def run_facts(path: Path) -> Any:
    """The content of a file's sidecar; None where it has none."""
    sidecar = jsonl.sidecar(path)
    if not sidecar.is_file():
        return None
    try:
        return json.loads(sidecar.read_text("utf-8"))
    except ValueError:
        raise UsageError(f"{sidecar}: not JSON; delete it if it is left over") from None


def summary(found: Audit) -> dict[str, Any]:
    """The audit as JSON values: None where a metric is undefined, never NaN."""
    result: dict[str, Any] = {}
    for split in found.splits:
        (judge,) = found.of(split.name, "judge")
        result[split.name] = as_json(judge.result) | {
            "by": {
                part: {name: as_json(value) for name, value in values.items()}
                for part, values in found.by[split.name].items()
            }
        }
    sections = {"baselines": "baseline", "judges": "column"}
    for section, kind in sections.items():
        result[section] = {}
        for line in found.lines:
            if line.kind == kind:
                result[section].setdefault(line.name, {})[line.split] = as_json(line.result)
    result["people"] = {line.split: as_json(line.result) for line in found.lines if line.kind == "people"}
    return result


def as_json(result: Agreement) -> dict[str, Any]:
    total = result.n + result.failed
    return {**msgspec.to_builtins(result), "coverage": result.n / total}


def table(found: Audit) -> str:
    """The lines of the audit as aligned plain text, a block a split."""
    head = ["judge", "n", "failed", "MAE", "Pearson", "Spearman", "Kendall", "fuzzy", "strict"]
    blocks = []
    for split in found.splits:
        rows = [head, *(cells(line.name, line.result) for line in found.of(split.name))]
        widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
        text = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        (judge,) = found.of(split.name, "judge")
        covered = judge.result.n / len(split.judgments)
        blocks.append("\n".join([f"{split.name}: {len(split.judgments)} rows, {covered:.1%} judged", *text]))
    return "\n\n".join(blocks)


def cells(name: str, result: Agreement) -> list[str]:
    """A line of the table; MAE and Pearson with their intervals."""
    texts = [name, str(result.n), str(result.failed)]
    for metric in METRICS:
        value, interval = getattr(result, metric), result.interval.get(metric)
        text = "-" if value is None else f"{value:.3f}"
        if interval and metric in ("mae", "pearson"):
            text += f" [{interval[0]:.2f}, {interval[1]:.2f}]"
        texts.append(text)
    return texts


def exit_code(found: Audit, max_failed: float) -> int:
    """3, with a line on standard error, when more than `max_failed` of a split has no score; else 0."""
    code = 0
    for line in found.lines:
        total = line.result.n + line.result.failed
        if line.kind == "judge" and line.result.failed > max_failed * total:
            print(f"{line.split}: {line.result.failed} of {total} failed, more than {max_failed:.1%}", file=sys.stderr)
            code = 3
    return code
