"""Every line of an audit from judgments in memory: the judge, other judges, trivial judges, people."""

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
from msgspec import Struct, field

from critic.records import Judgment, Response
from eval_agreement.baselines import BASELINES
from eval_agreement.metrics import Agreement, measured

COLUMN_SUFFIX = "_score_1_10"

Kind = Literal["judge", "column", "people", "baseline"]


class Split(Struct, frozen=True):
    """A test set judged by one judge. Every judgment has a human score, and ids come once."""

    name: str
    judgments: list[Judgment]

    @property
    def responses(self) -> list[Response]:
        return [judgment.response for judgment in self.judgments]

    @property
    def human(self) -> list[float | None]:
        return [response.human.score if response.human else None for response in self.responses]

    @property
    def judge(self) -> list[float | None]:
        """The judge's scores on 1..10; None where it failed."""
        return [judgment.score for judgment in self.judgments]

    @property
    def group(self) -> list[str]:
        return [response.question.group for response in self.responses]

    def where(self, value: Callable[[Judgment], str]) -> dict[str, "Split"]:
        """The split cut by a property of its judgments, the largest part first."""
        parts: dict[str, list[Judgment]] = {}
        for judgment in self.judgments:
            parts.setdefault(value(judgment), []).append(judgment)
        return {name: Split(self.name, part) for name, part in sorted(parts.items(), key=lambda kv: -len(kv[1]))}


class Line(Struct, frozen=True):
    """One scorer on one split. `about` says in a few words what the scorer does."""

    split: str
    kind: Kind
    name: str
    about: str
    result: Agreement


class Audit(Struct, frozen=True, kw_only=True):
    """What an audit found. `by[split][property][value]` is the judge's agreement on a part of a split."""

    judge: str
    splits: list[Split]
    lines: list[Line]
    by: dict[str, dict[str, dict[str, Agreement]]] = field(default_factory=dict)

    def of(self, split: str, *kinds: Kind) -> list[Line]:
        return [line for line in self.lines if line.split == split and (not kinds or line.kind in kinds)]


PARTS: dict[str, Callable[[Judgment], str]] = {
    "task": lambda judgment: judgment.response.question.task,
    "lang": lambda judgment: judgment.response.question.lang,
}
"""Properties by which the judge's agreement is broken down."""


def audit(splits: Sequence[Split], train: Sequence[Response], columns: Sequence[str]) -> Audit:
    """Compare the judge, the score columns named, trivial judges fitted on `train` (if any) and people.

    Baselines are computed on every row of a split, also on those where the judge failed.
    """
    lines: list[Line] = []
    fitted = {name: fit(train) for name, fit in BASELINES.items()} if train else {}
    for split in splits:
        judge = split.judgments[0].judge
        lines.append(Line(split.name, "judge", judge, "the judge", measured(split.human, split.judge, split.group)))
        for column in columns:
            scores = [response.columns.get(column) for response in split.responses]
            result = measured(split.human, scores, split.group)
            lines.append(Line(split.name, "column", column.removesuffix(COLUMN_SUFFIX), f"column {column}", result))
        lines += people(split)
        for name, predict in fitted.items():
            predicted = predict(split.responses)
            about = f"always {predicted[0]:.3g}" if name == "constant" else f"a line on {name}"
            result = measured(split.human, predicted, split.group)
            lines.append(Line(split.name, "baseline", name, about, result))
    by = {
        split.name: {
            part: {name: measured(cut.human, cut.judge, cut.group) for name, cut in split.where(value).items()}
            for part, value in PARTS.items()
        }
        for split in splits
    }
    return Audit(judge=splits[0].judgments[0].judge, splits=list(splits), lines=lines, by=by)


def people(split: Split) -> list[Line]:
    """Each rater against the mean of the others, pooled: how far a perfect judge could get. Empty where
    no response has two raters. n counts (response, rater) pairs."""
    others: list[float] = []
    rater: list[float] = []
    group: list[str] = []
    for response in split.responses:
        scores = list(response.human.raters.values()) if response.human else []
        for index, score in enumerate(scores if len(scores) > 1 else []):
            others.append(float(np.mean(scores[:index] + scores[index + 1 :])))
            rater.append(score)
            group.append(response.question.group)
    if not rater:
        return []
    about = "each rater against the mean of the others"
    return [Line(split.name, "people", "people", about, measured(others, rater, group))]
