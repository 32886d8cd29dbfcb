"""A metric is one entry of METRICS: the README's example shows wherever metrics do."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from conftest import Done, assert_ended, blocks, run

from eval_agreement import metrics
from eval_agreement.metrics import METRICS, agreement


@pytest.fixture(autouse=True)
def toy() -> Iterator[None]:
    """The README's own example, run where a metric is added. It is not the same with the two sides swapped."""
    (example,) = blocks("eval_agreement/measures/README.md", "Add a metric", "python")
    known = dict(METRICS)
    exec(example, vars(metrics))  # noqa: S102 - our own README
    yield
    METRICS.clear()
    METRICS.update(known)
    del metrics._above  # type: ignore[attr-defined]


def audit(folder: Path, *options: str) -> Done:
    random = np.random.default_rng(0)
    human = random.integers(1, 11, 60)
    ours, theirs = (np.clip(human + random.integers(-2, 2 + more, 60), 1, 10) for more in (0, 3))
    for name, scores in {"people": human, "ours": ours, "theirs": theirs}.items():
        lines = [f"{number},{score}" for number, score in enumerate(scores)]
        (folder / f"{name}.csv").write_text("\n".join(["id,score", *lines]))
    judges = ["--judge", "ours=ours.csv", "--judge", "theirs=theirs.csv"]
    return run("critic", "audit", "--human", "people.csv", *judges, "--out", "out", *options, cwd=folder)


def test_it_is_printed_written_and_compared(tmp_path: Path) -> None:
    done = assert_ended(audit(tmp_path, "--gate", "above<=0.9"), 0)
    assert re.search(r"^judge .* within +too high$", done.stdout, re.MULTILINE)
    assert "above<=0.9 kept" in done.stdout
    summary = json.loads((tmp_path / "out/summary.json").read_text("utf-8"))
    sample = summary["people.csv"]
    low, high = sample["interval"]["above"]
    assert 0 < low < sample["above"] < high < 1
    (pair,) = sample["comparisons"]
    difference = next(line for line in pair["differences"] if line["metric"] == "above")
    assert difference["better"] == "ours" and difference["value"] < 0
    report = (tmp_path / "out/report.html").read_text("utf-8")
    assert report.count("too high") >= 3 and "Too high: share of answers scored above people." in report
    wrong = audit(tmp_path, "--gate", "above>=0.5")
    assert wrong.returncode == 2 and "a gate on above reads above<=0.5" in wrong.stderr


def test_it_is_a_field_of_agreement() -> None:
    assert agreement([1, 5], [2, 4]).above == 0.5
    assert agreement([1, 5], [None, None]).undefined["above"] == "no pairs"
    with pytest.raises(AttributeError, match="no_metric"):
        _ = agreement([1], [1]).no_metric
