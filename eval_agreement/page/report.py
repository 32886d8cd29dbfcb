"""The audit as one HTML page that needs no network (pictures as inline SVG)."""

import heapq
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from critic import jsonl
from critic.page.blocks import Part, Section, Table, row
from critic.page.page import render
from critic.records import RATINGS
from critic.stats.arrays import Floats
from eval_agreement.measures.analysis import Findings
from eval_agreement.metrics import half_up
from eval_agreement.page.words import section
from eval_agreement.sample import RatedSample

WORST = 10
"""Disagreements shown for each sample."""

LONG = 400
"""Characters of a text that are shown before the rest is folded away."""


def write(
    folder: Path,
    title: str,
    verdicts: Mapping[str, Sequence[str]],
    sections: Sequence[Section],
    origin: dict[str, Any],
    audits: Mapping[str, Findings],
    about: str = "How far a judge can stand in for people",
) -> Path:
    """Write FOLDER/report.html: `verdicts` opens it, worst disagreements of the samples of `audits` close it."""
    samples = {name: findings.sample for name, findings in audits.items()}
    furthest = {name: worst(sample) for name, sample in samples.items()}
    facts = {
        "title": title,
        "about": about,
        "origin": origin,
        "warnings": [
            f"{of['in_training']} of the {of['rows']} answers of {name} are also in the training file."
            for name, of in origin["samples"].items()
            if of.get("in_training")
        ],
        "verdicts": verdicts,
        "sections": [*sections, *_failures_of(samples)],
        "confusion": {name: confusion(sample.human, sample.scores) for name, sample in samples.items()},
        "bins": {name: findings.calibration.bins for name, findings in audits.items()},
        "samples": samples,
        "worst": furthest,
        "ratings": RATINGS,
        "long": LONG,
    }
    path = folder / "report.html"
    jsonl.write_text(path, render("eval_agreement.page", "report.html.jinja", facts))
    return path


def confusion(human: Floats, judge: Floats) -> list[list[int]]:
    """Counts of judged answers, human score down and judge score across, both rounded half up to 1..10."""
    judged = ~np.isnan(judge)
    edges = np.append(RATINGS, RATINGS[-1] + 1) - 0.5
    table, _, _ = np.histogram2d(half_up(human[judged]), half_up(judge[judged]), bins=[edges, edges])
    return table.astype(int).tolist()  # type: ignore[no-any-return]


def worst(sample: RatedSample) -> list[int]:
    """The rows of the judged answers furthest from people's score, furthest first; ties by id."""
    distance = np.abs(sample.human - sample.scores)
    judged = np.flatnonzero(~np.isnan(distance)).tolist()
    return heapq.nsmallest(WORST, judged, key=lambda row: (-distance[row], sample.ids[row]))


def _failures_of(samples: Mapping[str, RatedSample]) -> list[Section]:
    caption = "Answers without a score, by reason, with the first of each; left out of the judge’s numbers above."
    parts = []
    for name, sample in samples.items():
        judgments, rows = sample.judgments or [None] * len(sample.ids), []
        for why, count, few in failures(sample):
            details = {sample.ids[at]: (judgment.detail or "") if (judgment := judgments[at]) else "" for at in few}
            about = "; ".join(f"{key} {detail[:200]}".strip() for key, detail in details.items())
            rows.append(row(why, count, about=about))
        parts.append(Part(heading=name, tables=[Table(caption=caption, head=["Failure", "count"], rows=rows)]))
    return section("failures", parts)


def failures(sample: RatedSample) -> list[tuple[str, int, list[int]]]:
    """Failures by name, the commonest first: how many, and the first three rows."""
    by_failure: dict[str, list[int]] = {}
    for index in np.flatnonzero(np.isnan(sample.scores)).tolist():
        judgment = sample.judgments[index] if sample.judgments else None
        by_failure.setdefault((judgment and judgment.verdict.failure) or "no score", []).append(index)
    commonest = sorted(by_failure.items(), key=lambda named: -len(named[1]))
    return [(name, len(rows), rows[:3]) for name, rows in commonest]
