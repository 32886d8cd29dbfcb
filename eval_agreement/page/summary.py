"""The results of an audit as JSON values, rows and plain text; its provenance; its certificate."""

import hashlib
import platform
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from critic import jsonl
from critic.certificate import Certificate, FittedMap, HowJudged, JudgedFile, Labels
from critic.errors import UsageError, encode
from critic.page.blocks import align, share
from critic.records import Judgment, Response
from critic.stats.estimate import LEVEL, MANY_GROUPS, RESAMPLES, RESAMPLES_OF_MANY, SEED
from critic.tables import split_sheet
from eval_agreement.measures.calibration import Recalibration
from eval_agreement.measures.gate import Outcome
from eval_agreement.measures.measure import RatedFindings, Table, written_values
from eval_agreement.measures.scorers import Kind, agreement_values
from eval_agreement.metrics import METRICS, Agreement
from eval_agreement.reading.tables import Source
from eval_agreement.sample import RatedSample

LEDGER_HASHES, LEDGER_SAME = 128, 0.8
"""Number of hashes by which the ledger knows labels; share (0..1) of equal labels from which two sets are the same."""


def sample_facts(sample: RatedSample, files: Mapping[str, Source], training: Sequence[Response]) -> dict[str, Any]:
    """Return the provenance of a sample: its files, its judge, and the number of its rows.

    `in_training` counts rows whose id is also in the training file; it is missing if `training` is empty.
    """
    facts: dict[str, Any] = {"rows": len(sample.ids), "notes": sample.notes, **file_facts(files)}
    judgments = [judgment for judgment in sample.judgments if judgment]
    # Scores from tables have no records of how they were asked for.
    if judgments:
        for key in ("judge", "prompt", "prompt_hash", "score_kind"):
            facts[key] = ", ".join(sorted({getattr(judgment, key) for judgment in judgments}))
    if ids := {response.id for response in training}:
        facts["in_training"] = sum(key in ids for key in sample.ids)
    return facts


def provenance(
    samples: Mapping[str, Any], train: Path | None = None, training: Sequence[Response] = ()
) -> dict[str, Any]:
    """Return the provenance of an audit: samples, training file, method of intervals, and versions of libraries."""
    trained: dict[str, Any] | None = None
    if train:
        # A folder of training rows has no hash of its own.
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
    """Return the judge's settings in a judged file, for a certificate.

    Raises UsageError if the file's sidecar is unreadable, or if its judgments were made with different settings.
    """
    facts, sidecar = jsonl.facts(judged), jsonl.sidecar(judged)
    # Without it a certificate would say less of the judge than is known.
    if not facts and sidecar.is_file():
        raise UsageError(f"{sidecar}: not JSON; delete it if it is left over")
    return HowJudged.of(filter(None, judgments), facts)


def count_audits(out: Path, labels: Iterable[tuple[str, float]]) -> int:
    """Record an audit in the ledger `audits.jsonl` beside the output folder; return its number on the same labels.

    `labels`: id and label of each labelled answer. Labels are the same if LEDGER_SAME of them are. That is estimated
    from the LEDGER_HASHES smallest hashes (Broder 1997, "On the resemblance and containment of documents"), which are
    all that the ledger holds of them. Raises UsageError if the ledger cannot be read or written.
    """
    path = out.resolve().parent / "audits.jsonl"
    now = sorted({hashlib.sha256(encode(label)).hexdigest()[:12] for label in labels})[:LEDGER_HASHES]
    number = 1
    for _, line in jsonl.read(path, dict[str, Any]) if path.is_file() else ():
        both = set(sorted({*now, *line["labels"]})[:LEDGER_HASHES])
        number += len(both & {*now} & {*line["labels"]}) >= LEDGER_SAME * len(both)
    with jsonl.Appender(path) as ledger:
        ledger.append({"date": datetime.now(UTC).date().isoformat(), "labels": now})
    return number


def certify(
    how: HowJudged,
    judged: Path,
    labels: Labels,
    agreement: Agreement,
    outcomes: Sequence[Outcome],
    recalibration: Recalibration | None = None,
    folds: bool = False,
) -> Certificate:
    """Return the certificate of a judge, with today's date (UTC). `folds`: as in Certificate.

    `judged`: the judged file. `recalibration`: that of the judge, whose map is certified; None without one.
    """
    fitted = recalibration.fitted if recalibration else None
    # A judge that was recalibrated is certified with the map that was applied.
    if how.recalibrated and (applied := jsonl.facts(judged).get("recalibration")):
        fitted = msgspec.convert(applied, FittedMap)
    return Certificate(
        how=how,
        labels=labels,
        agreement=dict(agreement.estimates),
        gate=[outcome.text for outcome in outcomes],
        kept=all(outcome.holds for outcome in outcomes),
        date=datetime.now(UTC).date().isoformat(),
        judged=JudgedFile(**name_file(judged)),
        recalibration=fitted,
        folds=folds,
    )


def name_file(path: Path) -> dict[str, Any]:
    """Return a file's path and SHA-256; for a sheet it is the hash of the whole workbook."""
    return {"file": str(path), "sha256": jsonl.sha256(split_sheet(path)[0])}


def file_facts(sources: Mapping[str, Source]) -> dict[str, Any]:
    """Return each scorer's file with its column (if named), its hash, and the run that wrote it."""
    files, runs = {}, {}
    for name, source in sources.items():
        files[name] = name_file(source.path) | ({"column": source.column} if source.column else {})
        runs[name] = jsonl.facts(source.path) or None
    return {"files": files, "runs": runs}


def summarise(audits: Mapping[str, RatedFindings], measures: Table, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Return an audit of scores as JSON values: findings by sample, then the other scorers by name and sample.

    An undefined metric is None, never NaN.
    """
    content: dict[str, Any] = {name: written_values(findings, measures) for name, findings in audits.items()}
    others: dict[Kind, dict[str, Any]] = {"baseline": {}, "other": {}}
    people = {}
    for name, findings in audits.items():
        for kind, lines in others.items():
            for line in findings.scorers.of_kind(kind):
                lines.setdefault(line.name, {})[name] = agreement_values(line.result)
        # The first line is people's own; the second is the judge against the same means.
        for line in findings.scorers.of_kind("people")[:1]:
            people[name] = agreement_values(line.result)
    scorers = {"baselines": others["baseline"], "judges": others["other"], "people": people}
    return {**content, **scorers, "gate": gate_values(outcomes)}


def row_lines(audits: Mapping[str, RatedFindings]) -> list[dict[str, Any]]:
    """Return the rows of rows.csv: score and interval of each answer, and who should rate it (`measure_intervals`)."""
    lines = []
    for name, findings in audits.items():
        sample, (_, rows) = findings.sample, findings.widths
        # Samples with too few questions have no intervals.
        if rows is None:
            continue
        for key, low, high, score, left in zip(sample.ids, *rows, strict=True):
            line = {"sample": name, "id": key}
            for column, value in (("score", score), ("low", low), ("high", high)):
                line[column] = "" if np.isnan(value) else f"{value:.4g}"
            lines.append({**line, "rate_by": "judge" if left else "people"})
    return lines


def gate_values(outcomes: Iterable[Outcome]) -> list[dict[str, Any]]:
    """Return the outcomes of a gate as JSON values."""
    return [{"text": outcome.text, "holds": outcome.holds, "bound": outcome.bound} for outcome in outcomes]


def text_table(audits: Mapping[str, RatedFindings]) -> str:
    """Format every scorer's metrics as aligned text, one block per sample. MAE and Pearson have intervals."""
    blocks = []
    for name, findings in audits.items():
        total = len(findings.sample.labelled.ids)
        lines = "\n".join(align(_text_rows(findings)))
        blocks.append(f"{name}: {total} rows, {findings.scorers.judge.n / total:.1%} judged\n{lines}")
    return "\n\n".join(blocks)


def _text_rows(findings: RatedFindings) -> list[list[str]]:
    """Return the rows of the table that the command prints for a sample: the heading, then a row for each judge."""
    rows = [["judge", "n", "failed", *(metric.name for metric in METRICS.values())]]
    for line in findings.scorers.lines:
        cells = [line.name, str(line.result.n), str(line.result.failed)]
        for metric, estimate in line.result.estimates.items():
            # Adding 0 makes -0.0 a 0.
            text = "-" if estimate.value is None else f"{round(estimate.value, 3) + 0.0:.3f}"
            if estimate.interval and metric in ("mae", "pearson"):
                text += f" [{estimate.interval[0]:.2f}, {estimate.interval[1]:.2f}]"
            cells.append(text)
        rows.append(cells)
    # Only the judge under audit was asked again.
    if findings.repeats.times > 1:
        rows[0].append("changed")
        rows[1].append(share(findings.repeats.changed.value))
    return rows
