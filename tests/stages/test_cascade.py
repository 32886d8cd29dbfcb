"""A cheap judge first and a dear one where it is unsure: which rows that are, and what is said of the error."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import Done, Scripted, Servers, assert_one_line_error, completion, human_row, run, write_jsonl
from stages.test_judge import reply_with

from critic import jsonl


def truth(number: int) -> int:
    return number * 7 % 10 + 1


def hard(number: int) -> bool:
    return random.Random(number).random() < 0.3


def rows(path: Path, name: str, start: int, count: int) -> Path:
    made = [
        human_row(
            number,
            system="s",
            question=f"Question {number}?",
            response=f"It is number {number}.",
            human_score=truth(number),
        )
        for number in range(start, start + count)
    ]
    return write_jsonl(path / name, made)


def reply(rating: int, sure: float) -> dict[str, Any]:
    """A rating, and the rest of the mass six points away."""
    other = rating + 6 if rating < 4 else max(rating - 6, 2) if rating != 2 else 8
    return reply_with({str(rating): sure, str(other): 1 - sure}, chosen=str(rating))


def number_of(body: dict[str, Any]) -> int:
    return int(body["messages"][-1]["content"].rpartition("It is number ")[2].partition(".")[0])


def rating(number: int) -> int:
    return min(max(truth(number), 2), 9)


def cheap(body: dict[str, Any]) -> dict[str, Any]:
    """Right where it is sure; three points off where it is not."""
    number = number_of(body)
    right = rating(number)
    return reply(right + (3 if right < 6 else -3), 0.6) if hard(number) else reply(right, 0.98)


def dear(body: dict[str, Any]) -> dict[str, Any]:
    return reply(rating(number_of(body)), 0.97)


Judge = Callable[..., Done]


def asking(out: Path, first: Scripted, second: Scripted) -> Judge:
    """critic judge by two servers, into `out`."""
    first.told["id"], second.told["id"] = "cheap", "dear"

    def ask(data: Path, name: str, *words: object) -> Done:
        judges = ["--judge", f"{first.url}#cheap", "--judge", f"{second.url}#dear", "--score", "argmax"]
        return run("critic", "judge", data, "--out", out / name, *judges, *words)

    return ask


@pytest.fixture
def judge(tmp_path: Path, scripted: Servers) -> Judge:
    return asking(tmp_path, scripted(cheap), scripted(dear))


@pytest.fixture
def both(tmp_path: Path, judge: Judge) -> Path:
    """Rows that people scored, by both judges."""
    assert judge(rows(tmp_path, "labelled.jsonl", 0, 160), "both.jsonl").returncode == 0
    return tmp_path / "both.jsonl"


def lines(path: Path) -> dict[str, dict[str, Any]]:
    found = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    return {line["sample"]["id"]: line for line in found}


def test_the_dear_judge_is_asked_where_the_cheap_one_is_unsure(tmp_path: Path, judge: Judge, both: Path) -> None:
    data = rows(tmp_path, "rows.jsonl", 1000, 60)
    done = judge(data, "j.jsonl", "--cascade", both)
    assert done.returncode == 0, done.stderr
    found, unsure = lines(tmp_path / "j.jsonl"), {f"row-{number}" for number in range(1000, 1060) if hard(number)}
    assert len(found) == 60 and 5 < len(unsure) < 40
    assert {name for name, line in found.items() if len(line["members"]) == 2} == unsure
    assert lines(tmp_path / "j.2.jsonl").keys() == unsure and len(lines(tmp_path / "j.1.jsonl")) == 60
    assert all(line["score"] == rating(int(name.removeprefix("row-"))) for name, line in found.items())
    assert {line["setup"]["judge"] for line in found.values()} == {"cascade(cheap, dear)"}
    assert f"dear was asked for {len(unsure)} of 60" in done.stdout
    said = jsonl.facts(tmp_path / "j.jsonl")["cascade"]
    assert said["chosen_on"] + said["rows"] == 160 and said["loss"] == pytest.approx(0, abs=1e-9)
    assert said["error_cheap"] > said["error_dear"] + 0.5 and said["interval"][0] <= 0 <= said["interval"][1]
    # Run again it has nothing to do, and a killed second judge goes on.
    before = (tmp_path / "j.jsonl").read_bytes()
    second = tmp_path / "j.2.jsonl"
    second.write_bytes(second.read_bytes()[:-100])
    for judged in (1, 0):
        assert judge(data, "j.jsonl", "--cascade", both).returncode == 0
        assert jsonl.facts(tmp_path / "j.jsonl")["judged_in_this_run"] == judged
    assert sorted(before.splitlines()) == sorted((tmp_path / "j.jsonl").read_bytes().splitlines())


def test_what_it_may_cost_moves_the_threshold_and_is_measured_elsewhere(
    tmp_path: Path, judge: Judge, both: Path
) -> None:
    data = rows(tmp_path, "rows.jsonl", 1000, 30)
    asked = {}
    for points in ("0", "0.05", "9"):
        done = judge(data, f"j{points}.jsonl", "--cascade", f"{both}:{points}")
        assert done.returncode == 0, done.stderr
        asked[points] = jsonl.facts(tmp_path / f"j{points}.jsonl")
    assert asked["9"]["asked_of_the_second"] == 0 < asked["0"]["asked_of_the_second"] < 30
    spared = asked["9"]["cascade"]
    assert spared["asked"] == 0 and spared["loss"] == pytest.approx(spared["error_cheap"] - spared["error_dear"])
    assert spared["interval"][0] < spared["loss"] < spared["interval"][1]


def test_a_file_that_cannot_tell_is_refused(tmp_path: Path, judge: Judge, scripted: Servers) -> None:
    labelled = rows(tmp_path, "labelled.jsonl", 0, 12)
    assert judge(labelled, "both.jsonl").returncode == 0
    both = tmp_path / "both.jsonl"
    other = ["--prompt", "pointwise_short"]
    assert_one_line_error(
        judge(labelled, "j.jsonl", "--cascade", both, *other), "--cascade", "made with prompt 'pointwise'"
    )
    assert_one_line_error(judge(labelled, "j.jsonl", "--cascade", tmp_path / "both.1.jsonl"), "made with judge []")
    assert_one_line_error(judge(labelled, "j.jsonl", "--cascade", tmp_path / "none"), "no such file")
    one = rows(tmp_path, "one.jsonl", 0, 1)
    assert judge(one, "alone.jsonl").returncode == 0
    assert_one_line_error(judge(labelled, "j.jsonl", "--cascade", tmp_path / "alone.jsonl"), "too few groups")
    alone = run(
        "critic", "judge", labelled, "--out", tmp_path / "k.jsonl", "--judge", scripted(dear).url, "--cascade", both
    )
    assert_one_line_error(alone, "--cascade: give two --judge")


@pytest.mark.parametrize("spent", [150, 300, 780])
def test_behind_a_budget_it_goes_on(tmp_path: Path, judge: Judge, both: Path, spent: int) -> None:
    """What the first judge was not asked for is for the second to say, until the first has said it."""
    data, words = rows(tmp_path, "rows.jsonl", 1000, 40), ["--cascade", both, "--concurrency", 1]
    assert judge(data, "whole.jsonl", *words).returncode == 0
    some = judge(data, "j.jsonl", *words, "--budget", f"{spent}tokens", "--max-failed", 1)
    assert some.returncode == 0 and "budget" in some.stdout, some.stderr
    done = judge(data, "j.jsonl", *words)
    assert done.returncode == 0, done.stderr
    found, expected = lines(tmp_path / "j.jsonl"), lines(tmp_path / "whole.jsonl")
    said = [{name: (line["score"], len(line["members"])) for name, line in each.items()} for each in (found, expected)]
    assert said[0] == said[1]
    unsure = sum(count == 2 for _, count in said[1].values())
    assert (
        f"dear was asked for {unsure} of 40" in done.stdout and f"j.2.jsonl: {unsure} judged, 0 failed" in done.stdout
    )


def test_what_the_second_said_for_a_first_that_failed_is_left_out_once_that_has_spoken(
    tmp_path: Path, scripted: Servers
) -> None:
    broken = [f"It is number {number}." for number in (1001, 1002, 1003)]

    def now_and_then(body: dict[str, Any]) -> dict[str, Any]:
        if any(one in body["messages"][-1]["content"] for one in broken):
            return completion("no")
        return reply(rating(number_of(body)), 0.98)

    second = scripted(dear)
    judge, data = asking(tmp_path, scripted(now_and_then), second), rows(tmp_path, "rows.jsonl", 1000, 20)
    assert judge(rows(tmp_path, "labelled.jsonl", 0, 60), "both.jsonl").returncode == 0
    words = [data, "j.jsonl", "--cascade", tmp_path / "both.jsonl"]
    assert judge(*words, "--max-failed", 1).returncode == 0
    asked = len(second.requests)

    def by_both() -> set[str]:
        return {name for name, line in lines(tmp_path / "j.jsonl").items() if len(line["members"]) == 2}

    assert by_both() == {"row-1001", "row-1002", "row-1003"}
    del broken[1:]
    done = judge(*words, "--retry-failed", "--max-failed", 1)
    assert done.returncode == 0 and by_both() == {"row-1001"}, done.stderr
    assert "j.2.jsonl: 1 judged before, 0 to go" in done.stderr and "j.2.jsonl: 1 judged, 0 failed" in done.stdout
    broken.clear()
    done = judge(*words, "--retry-failed")
    assert done.returncode == 0 and not by_both(), done.stderr
    assert len(second.requests) == asked and "dear was asked for 0 of 20" in done.stdout
