"""The results of an audit as JSON values, rows, plain text and one HTML page; its provenance; its certificate.

The page needs no network: its pictures are inline SVG.
"""

import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from critic import jsonl
from critic.certificate import Certificate, FittedMap, HowJudged, JudgedFile, Labels
from critic.errors import hash_value
from critic.page import blocks
from critic.page.page import MOST_ANSWERS, embed_images, render
from critic.records import RATINGS, Judgment, Response
from critic.stats.arrays import Floats
from critic.stats.estimate import LEVEL, MANY_GROUPS, RESAMPLES, RESAMPLES_OF_MANY, SEED
from critic.tables import split_sheet
from eval_agreement.measures.gate import Outcome
from eval_agreement.measures.measure import Findings, RatedFindings, Table, written_values
from eval_agreement.measures.preferences import PEOPLE, Preferences
from eval_agreement.measures.scorers import Kind, agreement_values
from eval_agreement.metrics import METRICS, Agreement, half_up
from eval_agreement.reading.tables import Source
from eval_agreement.sample import AuditRequest, RatedSample

LEDGER_HASHES, LEDGER_SAME = 128, 0.8
"""Number of hashes of labels that the ledger keeps per audit. Smallest share (0..1) of equal labels at which two audits
have the same labels."""


def sample_facts(sample: RatedSample, files: Mapping[str, Source], training: Sequence[Response]) -> dict[str, Any]:
    """Return the provenance of a sample: its files, its judge, and the number of its rows.

    The result's `in_training` counts rows whose id is also in `training`, the rows of the training file; it is missing
    if there are none.
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


def provenance(samples: Mapping[str, Any], request: AuditRequest = AuditRequest()) -> dict[str, Any]:
    """Return the provenance of an audit: samples, training file, method of intervals, and versions of libraries."""
    trained: dict[str, Any] | None = None
    if train := request.train:
        trained = name_file(train) | {"rows": len(request.training), "run": jsonl.facts(train) or None}
    method = "percentile bootstrap over groups, widened for few groups"
    resamples = {"resamples": RESAMPLES, f"resamples_above_{MANY_GROUPS}_groups": RESAMPLES_OF_MANY}
    versions = {name: version(name) for name in ("critic", "numpy", "scipy", "sacrebleu")}
    return {
        "samples": samples,
        "train": trained,
        "interval": {"level": LEVEL, "method": method, **resamples, "seed": SEED},
        "versions": {"python": platform.python_version()} | versions,
    }


def count_audits(out: Path, labels: Iterable[tuple[str, float]]) -> int:
    """Record an audit in the ledger `audits.jsonl`; return how many audits, this one included, had the same labels.

    The ledger lies beside the output folder `out`. `labels`: id and label of each labelled answer. Two audits have the
    same labels if at least the share LEDGER_SAME of them is equal. The share is estimated from the LEDGER_HASHES
    smallest hashes of the labels (Broder 1997, "On the resemblance and containment of documents"), and the ledger holds
    only these. Raises UsageError if the ledger cannot be read or written.
    """
    path = out.resolve().parent / "audits.jsonl"
    now = sorted({hash_value(label, 12) for label in labels})[:LEDGER_HASHES]
    number = 1
    for _, line in jsonl.read(path, dict[str, Any]) if path.is_file() else ():
        both = set(sorted({*now, *line["labels"]})[:LEDGER_HASHES])
        number += len(both & {*now} & {*line["labels"]}) >= LEDGER_SAME * len(both)
    with jsonl.Appender(path) as ledger:
        ledger.append({"date": datetime.now(UTC).date().isoformat(), "labels": now})
    return number


def certify(
    how: HowJudged, judged: Path, labels: Labels, agreed: Agreement, outcomes: Sequence[Outcome], audit: Findings[Any]
) -> Certificate:
    """Return the certificate of the judge under audit, with today's date (UTC).

    `how`: how the judge was run. `judged`: the file with its verdicts. `labels`: the labels, for their provenance.
    `agreed`: the judge's agreement. `outcomes`: results of the gate.
    """
    # Verdicts have no map.
    recalibration = audit.by_measure.get("recalibration", {}).get(audit.sample.judge)
    fitted = recalibration.fitted if recalibration else None
    # A judge that was recalibrated is certified with the map that was applied.
    if how.recalibrated and (applied := jsonl.facts(judged).get("recalibration")):
        fitted = msgspec.convert(applied, FittedMap)
    return Certificate(
        how=how,
        labels=labels,
        agreement=dict(agreed.estimates),
        gate=[outcome.text for outcome in outcomes],
        kept=all(outcome.holds for outcome in outcomes),
        date=datetime.now(UTC).date().isoformat(),
        judged=JudgedFile(**name_file(judged)),
        recalibration=fitted,
        folds=audit.request.use_folds,
    )


def name_file(path: Path) -> dict[str, Any]:
    """Return a file's path and SHA-256: for a sheet that of the whole workbook, for a folder None.

    >>> name_file(Path("/"))
    {'file': '/', 'sha256': None}
    """
    file = split_sheet(path)[0]
    return {"file": str(path), "sha256": None if file.is_dir() else jsonl.sha256(file)}


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
    scorers: dict[Kind, dict[str, Any]] = {"judge": {}, "other": {}, "people": {}, "baseline": {}}
    for name, findings in audits.items():
        for line in findings.scorers.lines:
            scorers[line.kind].setdefault(line.name, {})[name] = agreement_values(line.result)
    # Beside people's own line stands the judge's against the same means.
    people = scorers["people"].get(PEOPLE, {})
    others = {"baselines": scorers["baseline"], "judges": scorers["other"], "people": people}
    return {**content, **others, "gate": gate_values(outcomes)}


def row_lines(audits: Mapping[str, RatedFindings]) -> list[dict[str, Any]]:
    """Return the lines of rows.csv: score and interval of each answer, and who should rate it (`measure_intervals`)."""
    lines = []
    for name, findings in audits.items():
        sample, (_, rows) = findings.sample, findings.widths
        # Samples with too few questions have no intervals.
        if rows is None:
            continue
        for key, *ends, left in zip(sample.ids, *rows, strict=True):
            low, high, score = ("" if np.isnan(end) else f"{end:.4g}" for end in ends)
            rate_by = "judge" if left else "people"
            lines.append({"sample": name, "id": key, "score": score, "low": low, "high": high, "rate_by": rate_by})
    return lines


def gate_values(outcomes: Iterable[Outcome]) -> list[dict[str, Any]]:
    """Return the outcomes of a gate as JSON values."""
    return [{"text": outcome.text, "holds": outcome.holds, "bound": outcome.bound} for outcome in outcomes]


def text_table(audits: Mapping[str, RatedFindings]) -> str:
    """Format every scorer's metrics as aligned text, one block per sample. MAE and Pearson have intervals."""
    texts = []
    for name, findings in audits.items():
        total = len(findings.sample.labelled.ids)
        lines = "\n".join(blocks.align(_text_rows(findings)))
        texts.append(f"{name}: {total} rows, {findings.scorers.judge.n / total:.1%} judged\n{lines}")
    return "\n\n".join(texts)


def _text_rows(findings: RatedFindings) -> list[list[str]]:
    """Return the rows of the table that the command prints for a sample: the heading, then a row for each scorer."""
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
        rows[1].append(blocks.share(findings.repeats.changed.value))
    return rows


VALUES = np.array([1.0, 0.5, 0.0, np.nan, np.nan])
"""Each code of `critic.stats.verdicts` as a number, for distances: A, TIE, B, FAILED and UNASKED."""

PageAnswer = tuple[float, int, Response | None, Judgment | None]
"""An answer on the page: distance between judge and people (NaN without both verdicts), index in the sample, and the
records of the answer and of its judgment if the files hold them."""


def write(folder: Path, origin: dict[str, Any], audits: Mapping[str, Findings[Any]], **facts: Any) -> Path:
    """Write FOLDER/report.html and return its path.

    The page begins with `verdicts` (sentences by sample), followed by `sections`. It ends with the worst disagreements
    in the samples of `audits`, and the list of answers. `origin`: provenance of the audit. `facts`: `verdicts` and
    `sections`, and variables of the template: `title` and `about` (subtitle, if it is not that of an audit of judges).
    """
    scored = {name: audit.sample for name, audit in audits.items() if isinstance(audit.sample, RatedSample)}
    answers = {name: [*rank_answers(audit.sample, MOST_ANSWERS // len(audits))] for name, audit in audits.items()}
    names = list[str]()
    for _, _, response, judgment in chain(*answers.values()):
        turns = judgment.conversation.turns[: judgment.turn] if judgment else [response.question] if response else []
        names.extend(name for turn in turns for name in turn.images)
    files = [Path(file["file"]) for sample in origin["samples"].values() for file in sample["files"].values()]
    facts |= {
        # Absolute paths would say where the user works, and differ between machines.
        "origin": jsonl.hide_places(origin, folder),
        "confusion": {name: count_pairs(sample.human, sample.scores) for name, sample in scored.items()},
        "audits": audits,
        "answers": answers,
        "pictures": embed_images(names, files),
    }
    jsonl.write_text(folder / "report.html", render("eval_agreement.page", "report.html.jinja", facts))
    return folder / "report.html"


def count_pairs(human: Floats, judge: Floats) -> list[list[int]]:
    """Count answers by human score (rows) and judge score (columns), both rounded half up to 1..10, if they have both.

    >>> table = count_pairs(np.array([1.0, 9.5, 3.0]), np.array([2.0, 10.0, np.nan]))
    >>> table[0][1], table[9][9], sum(map(sum, table))
    (1, 1, 2)
    """
    # What is NaN lies in no bin.
    edges = np.append(RATINGS, RATINGS[-1] + 1) - 0.5
    table, _, _ = np.histogram2d(half_up(human), half_up(judge), bins=[edges, edges])
    return table.astype(int).tolist()  # type: ignore[no-any-return]


def rank_answers(sample: RatedSample | Preferences, most: int) -> Iterator[PageAnswer]:
    """Yield the `most` answers on which judge and people are furthest apart, furthest first.

    Answers without both verdicts come last. Ties are ordered by id.
    """
    if isinstance(sample, Preferences):
        people, judge = VALUES[sample.verdict], VALUES[sample.verdicts[sample.judge]]
    else:
        people, judge = sample.human, sample.scores
    apart = np.abs(people - judge)
    order = np.nan_to_num(apart, nan=-1.0)
    # By id within ties, so that the page is the same in every run.
    for index in sorted(range(len(apart)), key=lambda index: (-order[index], sample.ids[index]))[:most]:
        judgment = sample.judgments[index] if sample.judgments else None
        response = sample.responses[index] if sample.responses else None
        yield float(apart[index]), index, response or (judgment.sample.response if judgment else None), judgment


def failures_part(name: str, sample: RatedSample) -> blocks.Part:
    """Build the part on the failed judgments of a sample; it is empty if there are none. `name`: the sample's name."""
    caption = "Answers without a score, by reason, with the first of each; left out of the judge’s numbers above."
    table = blocks.Table(caption=caption, head=["Failure", "count"], rows=count_failures(sample))
    return blocks.Part(heading=name, tables=[table])


def count_failures(sample: RatedSample) -> list[blocks.TableRow]:
    """Return a table row per reason for a missing score, the most frequent first, with its count and first answers."""
    answers: dict[str, list[str]] = {}
    for index in np.flatnonzero(np.isnan(sample.scores)).tolist():
        # Scores from tables have no judgments, and no details of failures.
        judgment = sample.judgments[index] if sample.judgments else None
        failure = (judgment and judgment.verdict.failure) or "no score"
        detail = (judgment and judgment.detail) or ""
        answers.setdefault(failure, []).append(f"{sample.ids[index]} {detail[:200]}".strip())
    commonest = sorted(answers.items(), key=lambda named: -len(named[1]))
    return [blocks.row(failure, len(failed), about="; ".join(failed[:3])) for failure, failed in commonest]
