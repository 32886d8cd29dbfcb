"""Write the audit as one HTML page that needs no network (pictures are inline SVG)."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from critic import jsonl
from critic.page.blocks import Part, Table, TableRow, row
from critic.page.page import render
from critic.records import RATINGS
from critic.stats.arrays import Floats
from eval_agreement.measures.measure import RatedFindings
from eval_agreement.metrics import half_up
from eval_agreement.sample import RatedSample

WORST = 10
"""Number of the worst disagreements shown for each sample."""

LONG = 400
"""Number of characters of a text shown before the rest is folded away."""


def write(folder: Path, origin: dict[str, Any], audits: Mapping[str, RatedFindings], **facts: Any) -> Path:
    """Write FOLDER/report.html and return its path.

    The page begins with `verdicts` (sentences by sample), followed by `sections`. It ends with the worst disagreements
    in the samples of `audits`. `origin`: provenance of the audit. `facts`: `verdicts` and `sections`, and variables of
    the template: `title` and `about` (subtitle).
    """
    samples = {name: findings.sample.labelled for name, findings in audits.items()}
    warnings = []
    for name, sample in origin["samples"].items():
        if both := sample.get("in_training"):
            warnings.append(f"{both} of the {sample['rows']} answers of {name} are also in the training file.")
    facts |= {
        "origin": origin,
        "warnings": warnings,
        "verdicts": {name: _split_headline(lines) for name, lines in facts["verdicts"].items()},
        "confusion": {name: count_pairs(sample.human, sample.scores) for name, sample in samples.items()},
        "bins": {name: findings.calibration.bins for name, findings in audits.items()},
        "samples": samples,
        "worst": {name: find_worst(sample) for name, sample in samples.items()},
        "ratings": RATINGS,
        "long": LONG,
    }
    path = folder / "report.html"
    jsonl.write_text(path, render("eval_agreement.page", "report.html.jinja", facts))
    return path


def _split_headline(lines: Sequence[str]) -> list[str]:
    """Split the first line behind its first sentence. The page sets what stands first in large letters.

    >>> _split_headline(["Use j as it is. It saves labels.", "20 answers."])
    ['Use j as it is.', 'It saves labels.', '20 answers.']
    """
    head, _, rest = lines[0].partition(". ")
    return [f"{head}.", rest, *lines[1:]] if rest else list(lines)


def count_pairs(human: Floats, judge: Floats) -> list[list[int]]:
    """Count judged answers by human score (rows) and judge score (columns), both rounded half up to 1..10.

    >>> table = count_pairs(np.array([1.0, 9.5, 3.0]), np.array([2.0, 10.0, np.nan]))
    >>> table[0][1], table[9][9], sum(map(sum, table))
    (1, 1, 2)
    """
    judged = ~np.isnan(judge)
    edges = np.append(RATINGS, RATINGS[-1] + 1) - 0.5
    table, _, _ = np.histogram2d(half_up(human[judged]), half_up(judge[judged]), bins=[edges, edges])
    return table.astype(int).tolist()  # type: ignore[no-any-return]


def find_worst(sample: RatedSample) -> list[int]:
    """Return the indices of the WORST answers whose judge score is furthest from the human score, furthest first.

    Ties are ordered by id.
    """
    distance = np.abs(sample.human - sample.scores)
    judged = np.flatnonzero(~np.isnan(distance)).tolist()
    # By id within ties, so that the page is the same in every run.
    return sorted(judged, key=lambda row: (-distance[row], sample.ids[row]))[:WORST]


def failures_part(name: str, sample: RatedSample) -> Part:
    """Build the part on failed judgments, which is empty if there are none."""
    caption = "Answers without a score, by reason, with the first of each; left out of the judge’s numbers above."
    table = Table(caption=caption, head=["Failure", "count"], rows=count_failures(sample))
    return Part(heading=name, tables=[table])


def count_failures(sample: RatedSample) -> list[TableRow]:
    """Return a table row per kind of failure, the most frequent first: its count, and its first three answers."""
    answers: dict[str, list[str]] = {}
    for index in np.flatnonzero(np.isnan(sample.scores)).tolist():
        # Scores from tables have no judgments, and no details of failures.
        judgment = sample.judgments[index] if sample.judgments else None
        failure = (judgment and judgment.verdict.failure) or "no score"
        detail = (judgment and judgment.detail) or ""
        answers.setdefault(failure, []).append(f"{sample.ids[index]} {detail[:200]}".strip())
    commonest = sorted(answers.items(), key=lambda named: -len(named[1]))
    return [row(failure, len(failed), about="; ".join(failed[:3])) for failure, failed in commonest]
