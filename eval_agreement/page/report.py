"""The audit as one HTML page that needs no network (pictures as inline SVG), and as Markdown."""

import heapq
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

from critic import jsonl
from critic.counting.columns import BLOCK, Reread
from critic.page.blocks import Section
from critic.page.page import render
from critic.records import RATINGS
from eval_agreement.page.pictures import Loss, curve, pictures
from eval_agreement.sample import Sample

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
    samples: Mapping[str, Sample],
    steps: Sequence[Loss] = (),
) -> list[Path]:
    """Write FOLDER/report.md and FOLDER/report.html, each in one step.

    `verdicts` opens the page with a few sentences on each sample; `samples` are drawn and their worst disagreements
    shown (HTML only); `origin` is the audit's provenance.
    """
    furthest = {name: worst(sample) for name, sample in samples.items()}
    failed = {name: failures(sample) for name, sample in samples.items()}
    shown = {
        name: _with_records(sample, [*furthest[name], *(row for _, _, rows in failed[name] for row in rows)])
        for name, sample in samples.items()
    }
    facts = {
        "title": title,
        "origin": origin,
        "warnings": warnings(origin),
        "verdicts": verdicts,
        "sections": sections,
        "failures": failed,
        "pictures": {name: pictures(sample) for name, sample in samples.items()},
        "samples": shown,
        "worst": furthest,
        "curve": curve(steps),
        "ratings": RATINGS,
        "long": LONG,
    }
    written = [folder / "report.md", folder / "report.html"]
    for path in written:
        jsonl.write_text(path, render("eval_agreement.page", f"{path.name}.jinja", facts))
    return written


def warnings(origin: dict[str, Any]) -> list[str]:
    """What makes the numbers doubtful."""
    return [
        f"{facts['in_training']} of the {facts['rows']} answers of {name} are also in the training file."
        for name, facts in origin["samples"].items()
        if facts.get("in_training")
    ]


def _with_records(sample: Sample, rows: Sequence[int]) -> Sample:
    """The sample with the texts and the judgments of some rows, by row, as far as there are any."""
    texts: dict[str, Any] = {"judgments": sample.records.few(rows)} if sample.records else {}
    if sample.responses:
        there = sample.responses
        texts["responses"] = there.few(rows) if isinstance(there, Reread) else {row: there[row] for row in rows}
    return replace(sample, **texts)


def worst(sample: Sample) -> list[int]:
    """The rows of the judged answers furthest from people's score, furthest first; ties by id."""
    found = list[tuple[float, str, int]]()
    for start in range(0, len(sample.ids), BLOCK):
        block = slice(start, start + BLOCK)
        distance = np.abs(sample.human[block] - sample.scores[block])
        near = np.flatnonzero(distance >= (-found[-1][0] if len(found) == WORST else 0.0)).tolist()
        found += [(-distance[row], sample.ids[start + row], start + row) for row in near]
        found = heapq.nsmallest(WORST, found)
    return [row for _, _, row in found]


def failures(sample: Sample) -> list[tuple[str, int, list[int]]]:
    """Failures by name, the commonest first: how many, and the first three rows."""
    found: dict[str, list[int]] = {}
    for row in np.flatnonzero(~sample.scores.known).tolist():
        judgment = sample.judgments[row] if sample.judgments else None
        found.setdefault((judgment and judgment.verdict.failure) or "no score", []).append(row)
    commonest = sorted(found.items(), key=lambda named: -len(named[1]))
    return [(name, len(rows), rows[:3]) for name, rows in commonest]
