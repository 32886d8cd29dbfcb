"""What an audit found as JSON values and as a table of plain text, and what it was made from."""

import json
import platform
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec

from critic import jsonl
from critic.counting.resampling import LEVEL, MANY_GROUPS, RESAMPLES, RESAMPLES_OF_MANY, SEED
from critic.errors import UsageError
from critic.records import Response
from eval_agreement.analysis import Findings, Kind
from eval_agreement.gate import Outcome
from eval_agreement.items import how_asked
from eval_agreement.metrics import METRICS, Agreement
from eval_agreement.sample import Sample

DETAILS = ("comparisons", "over_trivial", "raters", "replaces", "biases", "calibration", "corrected", "plan")
"""Findings that stand in summary.json as they are."""


def provenance(
    samples: Mapping[str, Sample],
    files: Mapping[str, Mapping[str, Path]],
    train: Path | None,
    training: Sequence[Response],
) -> dict[str, Any]:
    """What the numbers were made from. `in_training` counts rows of a sample whose response is also in the
    training file, `question_in_training` those whose question or image (group) is."""
    ids = {response.id for response in training}
    groups = {response.question.group for response in training}
    described: dict[str, Any] = {}
    for name, sample in samples.items():
        facts: dict[str, Any] = {"rows": len(sample.ids), "notes": sample.notes, **files_of(files[name])}
        asked = [how_asked(judgment) for judgment in sample.judgments if judgment]
        for key in asked[0] if asked else ():
            facts[key] = ", ".join(sorted({one[key] for one in asked}))
        if train:
            facts["in_training"] = sum(key in ids for key in sample.ids)
            facts["question_in_training"] = sum(group in groups for group in sample.group)
        described[name] = facts
    return {
        "samples": described,
        "train": train
        and {
            "file": str(train),
            "sha256": jsonl.sha256(train) if train.is_file() else None,
            "rows": len(training),
            "run": run_facts(train),
        },
        **made_by(),
    }


def files_of(paths: Mapping[str, Path]) -> dict[str, Any]:
    """Who is in which file, its hash, and what made it."""
    return {
        "files": {who: {"file": str(path), "sha256": jsonl.sha256(path)} for who, path in paths.items()},
        "runs": {who: run_facts(path) for who, path in paths.items()},
    }


def made_by() -> dict[str, Any]:
    """How this audit makes intervals, and with what."""
    method = "percentile bootstrap over groups, widened for few groups"
    resamples = {"resamples": RESAMPLES, f"resamples_above_{MANY_GROUPS}_groups": RESAMPLES_OF_MANY}
    versions = {name: version(name) for name in ("critic", "numpy", "scipy", "scikit-learn", "mapie", "sacrebleu")}
    return {
        "interval": {"level": LEVEL, "method": method, **resamples, "seed": SEED},
        "versions": {"python": platform.python_version()} | versions,
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


def summary(found: Mapping[str, Findings], outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """The audit as JSON values: None where a metric is undefined, never NaN."""
    result: dict[str, Any] = {}
    for name, findings in found.items():
        parts = {
            part: {value: as_json(agreed) for value, agreed in values.items()} for part, values in findings.by.items()
        }
        result[name] = as_json(findings.judge) | {
            "unlabelled": findings.unlabelled,
            "by": parts,
            **{name: msgspec.to_builtins(getattr(findings, name)) for name in DETAILS},
        }
    kinds: dict[str, Kind] = {"baselines": "baseline", "judges": "other"}
    for section, kind in kinds.items():
        result[section] = {}
        for name, findings in found.items():
            for line in findings.of(kind):
                result[section].setdefault(line.name, {})[name] = as_json(line.result)
    result["people"] = {
        name: as_json(line.result) for name, findings in found.items() for line in findings.of("people")[:1]
    }
    result["gate"] = as_lines(outcomes)
    return result


def as_lines(outcomes: Iterable[Outcome]) -> list[dict[str, Any]]:
    """How the gate stands, as JSON values."""
    return [{"text": outcome.text, "holds": outcome.holds, "bound": outcome.bound} for outcome in outcomes]


def as_json(result: Agreement) -> dict[str, Any]:
    """Every metric by name beside the counts, reasons, intervals and groups."""
    total = result.n + result.failed
    values = {name: one.value for name, one in result.estimates.items()}
    about = {"undefined": result.undefined, "interval": result.interval, "groups": result.groups}
    return {"n": result.n, "failed": result.failed, **values, **about, "coverage": result.n / total}


def table(found: Mapping[str, Findings]) -> str:
    """The lines of the audit as aligned plain text, a block a sample."""
    head = ["judge", "n", "failed", *(metric.name for metric in METRICS.values())]
    blocks = []
    for name, findings in found.items():
        rows = [head, *(cells(line.name, line.result) for line in findings.lines)]
        widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
        text = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        total = len(findings.sample.ids)
        blocks.append("\n".join([f"{name}: {total} rows, {findings.judge.n / total:.1%} judged", *text]))
    return "\n\n".join(blocks)


def cells(name: str, result: Agreement) -> list[str]:
    """A line of the table; MAE and Pearson with their intervals."""
    texts = [name, str(result.n), str(result.failed)]
    for metric, one in result.estimates.items():
        text = "-" if one.value is None else f"{round(one.value, 3) + 0.0:.3f}"
        if one.interval and metric in ("mae", "pearson"):
            text += f" [{one.interval[0]:.2f}, {one.interval[1]:.2f}]"
        texts.append(text)
    return texts
