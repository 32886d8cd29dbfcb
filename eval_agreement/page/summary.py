"""What an audit found as JSON values and as a table of plain text, and what it was made from."""

import platform
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from critic import jsonl
from critic.certificate import Certificate, HowJudged, JudgedFile, Labels
from critic.errors import UsageError
from critic.records import Judgment, Response
from critic.stats.estimate import LEVEL, MANY_GROUPS, RESAMPLES, RESAMPLES_OF_MANY, SEED, Estimate
from eval_agreement.measures.analysis import Findings, Kind
from eval_agreement.measures.gate import Outcome
from eval_agreement.measures.prediction_intervals import NARROW
from eval_agreement.metrics import METRICS, Agreement
from eval_agreement.reading.tables import Source
from eval_agreement.sample import RatedSample

_ELSEWHERE = ("sample", "unlabelled", "lines", "by", "ends", "beside")
DETAILS = [name for name in Findings.__struct_fields__ if name not in _ELSEWHERE]
"""Findings that stand in summary.json as they are."""


def facts_of(sample: RatedSample, files: Mapping[str, Source], training: Sequence[Response]) -> dict[str, Any]:
    """What a sample was made from. `in_training` counts its rows whose response is also in the training file."""
    facts: dict[str, Any] = {"rows": len(sample.ids), "notes": sample.notes, **files_of(files)}
    judgments = [judgment for judgment in sample.judgments if judgment]
    for key in ("judge", "prompt", "prompt_hash", "score_kind") if judgments else ():
        facts[key] = ", ".join(sorted({getattr(judgment, key) for judgment in judgments}))
    ids = {response.id for response in training}
    return {**facts, "in_training": sum(key in ids for key in sample.ids)} if ids else facts


def provenance(
    samples: Mapping[str, Any], train: Path | None = None, training: Sequence[Response] = ()
) -> dict[str, Any]:
    """What the numbers were made from, samples and training rows by their facts, how intervals were, and with what."""
    trained: dict[str, Any] | None = None
    if train:
        digest = jsonl.sha256(train) if train.is_file() else None
        trained = {"file": str(train), "sha256": digest, "rows": len(training), "run": jsonl.facts(train) or None}
    method = "percentile bootstrap over groups, widened for few groups"
    resamples = {"resamples": RESAMPLES, f"resamples_above_{MANY_GROUPS}_groups": RESAMPLES_OF_MANY}
    versions = {name: version(name) for name in ("critic", "numpy", "scipy", "sacrebleu")}
    return {
        "samples": samples,
        "train": trained,
        "interval": {"level": LEVEL, "method": method, **resamples, "seed": SEED},
        "versions": {"python": platform.python_version()} | versions,
    }


def how_judged(judged: Path, judgments: Iterable[Judgment | None]) -> HowJudged:
    """What a certificate says of the judge of a file. Raises UsageError where its own records are not there, or not
    alike: only they say by which prompt and how it judged."""
    facts, sidecar = jsonl.facts(judged), jsonl.sidecar(judged)
    # Without it a certificate would say less of the judge than is known.
    if not facts and sidecar.is_file():
        raise UsageError(f"{sidecar}: not JSON; delete it if it is left over")
    how = HowJudged.of(filter(None, judgments), facts.get("processors", {}))
    return msgspec.structs.replace(how, learned=facts.get("learned") or [])


def write_certificate(
    path: Path,
    how: HowJudged,
    judged: Path,
    people: tuple[Path, int, int],
    agreement: Mapping[str, Estimate],
    outcomes: Sequence[Outcome],
) -> None:
    """Certify a judge by the labels in a file: so many, by so many raters."""
    file, rows, raters = people
    certificate = Certificate(
        how=how,
        labels=Labels(file=str(file), sha256=jsonl.sha256(file), rows=rows, raters=raters),
        agreement=dict(agreement),
        gate=[outcome.text for outcome in outcomes],
        kept=all(outcome.holds for outcome in outcomes),
        date=datetime.now(UTC).date().isoformat(),
        judged=JudgedFile(file=str(judged), sha256=jsonl.sha256(judged)),
    )
    jsonl.write_json(path, msgspec.to_builtins(certificate))


def files_of(sources: Mapping[str, Source]) -> dict[str, Any]:
    """Who is in which file, and column where one was named, its hash, and what made it."""
    files = {}
    for who, source in sources.items():
        column = {"column": source.column} if source.column else {}
        files[who] = {"file": str(source.path), **column, "sha256": jsonl.sha256(source.path)}
    return {"files": files, "runs": {who: jsonl.facts(source.path) or None for who, source in sources.items()}}


def summary(audits: Mapping[str, Findings], outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """The audit as JSON values: None where a metric is undefined, never NaN."""
    content: dict[str, Any] = {}
    scorers: dict[Kind, dict[str, Any]] = {"baseline": {}, "other": {}}
    for name, findings in audits.items():
        by = {
            part: {value: as_json(result) for value, result in values.items()} for part, values in findings.by.items()
        }
        details = {key: msgspec.to_builtins(getattr(findings, key)) for key in DETAILS}
        details |= msgspec.to_builtins(findings.beside)
        content[name] = as_json(findings.judge) | {"unlabelled": findings.unlabelled, "by": by, **details}
        for kind, lines in scorers.items():
            for line in findings.of(kind):
                lines.setdefault(line.name, {})[name] = as_json(line.result)
    people = {name: as_json(line.result) for name, findings in audits.items() for line in findings.of("people")[:1]}
    gate = as_lines(outcomes)
    return {**content, "baselines": scorers["baseline"], "judges": scorers["other"], "people": people, "gate": gate}


def row_lines(samples: Iterable[RatedSample], audits: Mapping[str, Findings]) -> list[dict[str, Any]]:
    """Each row with the ends of its interval, and who should rate it: the judge where that is narrow."""
    lines = []
    for sample in samples:
        ends = audits[sample.name].ends
        for key, *values in zip(sample.ids, sample.scores, *ends, strict=True) if ends is not None else ():
            shown = ["" if np.isnan(value) else f"{value:.4g}" for value in values]
            facts = dict(zip(("score", "low", "high"), shown, strict=True))
            by = "judge" if values[2] - values[1] <= NARROW else "people"
            lines.append({"sample": sample.name, "id": key, **facts, "rate_by": by})
    return lines


def as_lines(outcomes: Iterable[Outcome]) -> list[dict[str, Any]]:
    """How the gate stands, as JSON values."""
    return [{"text": outcome.text, "holds": outcome.holds, "bound": outcome.bound} for outcome in outcomes]


def as_json(result: Agreement) -> dict[str, Any]:
    """Every metric by name beside the counts, reasons, intervals and groups."""
    total = result.n + result.failed
    values = {name: estimate.value for name, estimate in result.estimates.items()}
    about = {"undefined": result.undefined, "interval": result.interval, "groups": result.groups}
    return {"n": result.n, "failed": result.failed, **values, **about, "coverage": result.n / total}


def table(audits: Mapping[str, Findings]) -> str:
    """The lines of the audit as aligned plain text, a block a sample; MAE and Pearson with their intervals."""
    head = ["judge", "n", "failed", *(metric.name for metric in METRICS.values())]
    blocks = []
    for name, findings in audits.items():
        rows = [head]
        for line in findings.lines:
            cells = [line.name, str(line.result.n), str(line.result.failed)]
            for metric, estimate in line.result.estimates.items():
                text = "-" if estimate.value is None else f"{round(estimate.value, 3) + 0.0:.3f}"
                if estimate.interval and metric in ("mae", "pearson"):
                    text += f" [{estimate.interval[0]:.2f}, {estimate.interval[1]:.2f}]"
                cells.append(text)
            rows.append(cells)
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        aligned = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
        ]
        total = len(findings.sample.ids)
        blocks.append("\n".join([f"{name}: {total} rows, {findings.judge.n / total:.1%} judged", *aligned]))
    return "\n\n".join(blocks)
