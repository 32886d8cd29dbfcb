"""The other scores that a judgment's probabilities could have given, against the one that was taken."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from agreement.test_audit import judgment
from agreement.test_judged_conversations import verdict
from conftest import run
from msgspec.structs import replace

from critic import jsonl
from critic.judging import distribution
from critic.judging.judge import panel_judgment
from critic.records import JudgeConfig, Judgment, Verdict
from eval_agreement import agreement
from eval_agreement.analysis import score_kinds
from eval_agreement.sources import of_judgments, of_tables
from eval_agreement.tables import Source

ARGMAX = JudgeConfig(judge="small-judge", score_kind="argmax")
N, POINTS = 90, np.arange(1, 11)
KINDS: dict[str, Callable[[np.ndarray], float]] = {
    "expected": lambda shares: float(shares @ POINTS),
    "median": lambda shares: float(POINTS[np.searchsorted(np.cumsum(shares), 0.5)]),
    "argmax": lambda shares: float(POINTS[shares.argmax()]),
}


def judged(kind: str, failed: Sequence[int] = (), seed: int = 0) -> list[Judgment]:
    """Answers that are right or wrong, of which a judge is half sure: the expected rating lies where no answer does."""
    random = np.random.default_rng(seed)
    lines = []
    for number in range(N):
        right = random.random() < 0.5
        sure = random.uniform(0.55, 0.9)
        shares = np.full(10, 0.01)
        shares[[0, 9]] = np.array([1 - sure, sure] if right else [sure, 1 - sure]) * 0.92
        said = judgment(number, 10.0 if right else 1.0, None if number in failed else KINDS[kind](shares))
        # As a file may hold them, which is not to the last digit; also of a reply that failed for its reason.
        kept = [float(f"{share:.9f}") for share in shares]
        found = Verdict(rating=KINDS["argmax"](shares), distribution=kept)
        said = replace(said, verdict=replace(found, failure="truncated") if number in failed else found)
        lines.append(replace(said, setup=replace(said.setup, score_kind=kind)))
    return lines


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_is_held_against_the_one_that_was_taken(kind: str, tmp_path: Path) -> None:
    lines = judged(kind, failed=[3, 50])
    jsonl.write(tmp_path / "j.jsonl", lines)
    (sample,) = of_judgments("j", tmp_path / "j.jsonl")
    pairs = score_kinds(sample.numbered)
    assert [(pair.first, pair.second) for pair in pairs] == [(kind, other) for other in KINDS if other != kind]
    human = [line.sample.human.score for line in lines if line.sample.human]
    for pair in pairs:
        assert (pair.n, pair.left_out) == (N - 2, 2)
        for name, metrics in ((pair.first, "first"), (pair.second, "second")):
            shares = [np.array([] if line.verdict.failure else line.verdict.distribution) for line in lines]
            expected = agreement(human, [KINDS[name](one) if len(one) else None for one in shares])
            assert {one.metric: getattr(one, metrics) for one in pair.differences} == pytest.approx(
                {one.metric: getattr(expected, one.metric) for one in pair.differences}, abs=1e-6
            )
    better = {pair.second: {one.metric: one.better for one in pair.differences} for pair in pairs}
    if kind == "expected":
        assert {other: of["mae"] for other, of in better.items()} == {"median": "median", "argmax": "argmax"}


def test_a_table_s_ids_say_whose_probabilities_are_meant(tmp_path: Path) -> None:
    lines = judged("median")
    jsonl.write(tmp_path / "j.jsonl", lines)
    people = [{"id": one.sample.id, "score": one.sample.human.score} for one in lines if one.sample.human]
    jsonl.write(tmp_path / "people.jsonl", people[::-1][10:])
    (alone,) = of_judgments("j", tmp_path / "j.jsonl")
    sample = of_tables(Source(tmp_path / "people.jsonl"), {"j": Source(tmp_path / "j.jsonl")})
    pairs = score_kinds(sample.labelled.numbered)
    whole = score_kinds(alone.rows(np.arange(N) < N - 10).numbered)
    assert [pair.n for pair in pairs] == [N - 10, N - 10]
    assert [one.second for pair in pairs for one in pair.differences] == pytest.approx(
        [one.second for pair in whole for one in pair.differences]
    )


def test_grades_of_conversations_have_none(tmp_path: Path) -> None:
    """The judge of a whole one is shown its own grades of the turns: another score would be of another prompt."""
    lines: list[Judgment] = []
    for number in range(40):
        found = Verdict(distribution=[0.1] * 10, rating=1.0)
        lines.append(verdict(number, "direct", 1, score=1.0, verdict=found))
    jsonl.write(tmp_path / "j.jsonl", lines)
    people = [{"id": f"c{number}/own/direct/1", "score": number % 10 + 1} for number in range(40)]
    jsonl.write(tmp_path / "people.jsonl", people)
    sample = of_tables(Source(tmp_path / "people.jsonl"), {"j": Source(tmp_path / "j.jsonl")})
    assert any(sample.judgments) and score_kinds(sample.numbered) == []


def test_nor_has_a_panel_whose_mean_is_that_of_its_members_mixture(tmp_path: Path) -> None:
    one, two = judged("expected"), judged("expected", seed=1)
    lines = [
        panel_judgment([a, replace(b, sample=a.sample, setup=replace(b.setup, judge="b"))], "mean", "panel")
        for a, b in zip(one, two, strict=True)
    ]
    mixture = [distribution.score(line.verdict.distribution, "expected") for line in lines]
    assert mixture == pytest.approx([line.score for line in lines], abs=1e-6)
    jsonl.write(tmp_path / "j.jsonl", lines)
    (sample,) = of_judgments("j", tmp_path / "j.jsonl")
    assert score_kinds(sample.numbered) == []


def other(lines: list[Judgment], row: int, **changes: object) -> list[Judgment]:
    return [replace(line, **changes) if number == row else line for number, line in enumerate(lines)]


@pytest.mark.parametrize(
    "changed",
    [
        lambda lines: other(lines, 7, score=5.5),
        lambda lines: other(lines, 7, verdict=Verdict(rating=lines[7].score)),
        lambda lines: other(lines, 7, setup=replace(lines[7].setup, score_kind="median")),
        lambda lines: [
            replace(line, verdict=Verdict(rating=1.0), score=1.0, setup=replace(line.setup, score_kind="argmax"))
            for line in lines
        ],
        lambda lines: other(lines, 7, verdict=replace(lines[7].verdict, criteria={"style": Verdict(rating=1.0)})),
        lambda lines: other(lines, 7, verdict=replace(lines[7].verdict, scale=(1, 5))),
        lambda lines: [replace(line, score=None, verdict=Verdict(failure="truncated")) for line in lines],
    ],
    ids=["another", "a rating alone", "two kinds", "ratings alone", "criteria", "another scale", "all failed"],
)
def test_scores_that_are_not_of_one_distribution_have_no_others(
    changed: Callable[[list[Judgment]], list[Judgment]], tmp_path: Path
) -> None:
    jsonl.write(tmp_path / "j.jsonl", changed(judged("expected")))
    (sample,) = of_judgments("j", tmp_path / "j.jsonl")
    assert score_kinds(sample.numbered) == []


def test_the_audit_says_which_score_would_have_been_ahead(tmp_path: Path) -> None:
    jsonl.write(tmp_path / "taken.jsonl", judged("expected"))
    jsonl.write(tmp_path / "better.jsonl", judged("median"))
    done = run("critic", "audit", "taken.jsonl", "better.jsonl", "--out", "out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    told = [line for line in done.stdout.splitlines() if "--score" in line]
    assert told[0].startswith("taken: with --score median small-judge would be ahead in MAE")
    assert not any(line.startswith("better: with --score expected small-judge would be ahead in MAE") for line in told)
    summary = json.loads((tmp_path / "out/summary.json").read_text("utf-8"))
    mae = next(one for one in summary["taken"]["score_kinds"][0]["differences"] if one["metric"] == "mae")
    assert (
        mae["better"] == "median" and mae["interval"][0] > 0 and mae["first"] == pytest.approx(summary["taken"]["mae"])
    )
    assert "Another score from the same judgments" in (tmp_path / "out/report.html").read_text("utf-8")
    jsonl.write(tmp_path / "alone.jsonl", [replace(line, score=1.0) for line in judged("expected")])
    assert run("critic", "audit", "alone.jsonl", "--out", "none", cwd=tmp_path).returncode == 0
    assert "Another score" not in (tmp_path / "none/report.html").read_text("utf-8")
