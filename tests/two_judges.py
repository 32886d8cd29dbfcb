"""What two judges said of the same answers, as a sample and as tables."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from eval_agreement.sample import RatedSample

Floats = NDArray[np.float64]
AUDIT = ("critic", "audit", "--out", "out")


def sample(human: Floats, judge: Floats) -> RatedSample:
    """Scores of a question's answers by the models a, b and c in a row, shape (questions, 3)."""
    rows = human.size
    models: list[str | None] = ["a", "b", "c"]
    return RatedSample(
        name="x",
        ids=[str(row) for row in range(rows)],
        human=human.ravel(),
        judges={"new": judge.ravel()},
        group=[f"q{row // 3}" for row in range(rows)],
        parts={"answerer": models * (rows // 3)},
    )


def table(path: Path, scores: Floats, text: str = "x") -> None:
    rows = [f"{row},{score:g},q{row // 3},m,{text}" for row, score in enumerate(scores.ravel()) if score > 0]
    path.write_text("\n".join(["id,score,group,system,text", *rows]))
