"""Write the audit as one HTML page that needs no network (pictures are inline SVG)."""

from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from critic import jsonl
from critic.page.blocks import Part, Table, TableRow, row
from critic.page.page import MOST_ANSWERS, embed_images, render
from critic.records import RATINGS, Judgment, Response
from critic.stats.arrays import Floats
from eval_agreement.measures.measure import Findings
from eval_agreement.measures.preferences import Preferences
from eval_agreement.metrics import half_up
from eval_agreement.sample import RatedSample

VALUES = np.array([1.0, 0.5, 0.0, np.nan, np.nan])
"""Each code of `critic.stats.verdicts` as a number, for distances: A, TIE, B, FAILED and UNASKED."""

PageAnswer = tuple[float, int, Response | None, Judgment | None]
"""An answer on the page: distance between judge and people (NaN without both verdicts), index in the sample, and the
records of the answer and of its judgment if the files hold them."""


def write(folder: Path, origin: dict[str, Any], audits: Mapping[str, Findings[Any]], **facts: Any) -> Path:
    """Write FOLDER/report.html and return its path.

    The page begins with `verdicts` (sentences by sample), followed by `sections`. It ends with the worst disagreements
    in the samples of `audits`, and the list of answers. `origin`: provenance of the audit. `facts`: `verdicts` and
    `sections`, and variables of the template: `title` and `about` (subtitle).
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
