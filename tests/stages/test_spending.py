"""What is not asked again, and what is asked no more."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, Done, assert_one_line_error, human_row, read_jsonl, run, write_jsonl

from critic import jsonl

sys.path.insert(0, str(ROOT / "tests/bench"))
from _standin import StandIn

Stands = Callable[..., StandIn]
CONVERSATIONS = ROOT / "data/samples/convbench/ConvBench.csv"


@pytest.fixture
def stand() -> Iterator[Stands]:
    with ExitStack() as stand_ins:
        yield lambda **how: stand_ins.enter_context(closing(StandIn(**how)))


def judge(folder: Path, server: StandIn, out: str, *words: object, rows: int = 20, system: str = "alpha") -> Done:
    data = write_jsonl(folder / f"rows{rows}.jsonl", [human_row(number, system=system) for number in range(rows)])
    return run("critic", "judge", data, "--out", folder / out, "--judge", server.url, *words)


def lines(path: Path) -> list[dict[str, Any]]:
    return sorted(read_jsonl(path), key=lambda record: str(record["sample"]["id"]))


def test_what_was_judged_before_costs_nothing_and_says_so(tmp_path: Path, stand: Stands) -> None:
    server, cache = stand(), tmp_path / "new" / "cache"
    words = ["--cache", cache]
    assert judge(tmp_path, server, "one.jsonl", *words).returncode == 0
    asked_before = server.asked
    done = judge(tmp_path, server, "two.jsonl", *words, rows=25, system="beta")  # who said it makes no difference
    assert done.returncode == 0 and "20 from the cache, which cost nothing" in done.stdout
    assert (asked_before, server.asked) == (20, 25)
    first, second = lines(tmp_path / "one.jsonl"), lines(tmp_path / "two.jsonl")
    cached = [line for line in second if line.get("attempts") == 0]
    assert len(cached) == 20 and not any("prompt_tokens" in line for line in cached)
    said = {line["sample"]["id"]: (line["score"], line["verdict"]) for line in second}
    assert all(said[line["sample"]["id"]] == (line["score"], line["verdict"]) for line in first)
    facts = jsonl.facts(tmp_path / "two.jsonl")
    assert facts["from_cache"] == 20
    assert facts["tokens"] == {"prompt": 500, "cached": 0, "completion": 45}


def test_another_judge_prompt_or_decoding_is_asked(tmp_path: Path, stand: Stands) -> None:
    """But not if only the context is another."""
    server, same = stand(), ["--cache", tmp_path / "cache"]
    assert judge(tmp_path, server, "one.jsonl", *same).returncode == 0
    server.context = 4096
    for asked, more in ((20, []), (40, ["--prompt", "pointwise_reason_first"]), (60, ["--max-tokens", 64]), (80, [])):
        server.name = "stand-in@11111111" if asked == 80 else server.name
        assert judge(tmp_path, server, f"{asked}.jsonl", *same, *more).returncode == 0
        assert server.asked == asked


def test_failures_are_not_kept_and_retry_failed_asks_anew(tmp_path: Path, stand: Stands) -> None:
    server = stand()
    words = ["--cache", tmp_path / "cache", "--attempts", 1, "--max-failed", 1, "--concurrency", 64]
    server.fault = "500"
    assert judge(tmp_path, server, "one.jsonl", *words).returncode == 0
    assert {line["verdict"]["failure"] for line in lines(tmp_path / "one.jsonl")} == {"server_error"}
    server.fault = None
    assert judge(tmp_path, server, "two.jsonl", *words).returncode == 0
    assert server.answered == 20
    assert judge(tmp_path, server, "one.jsonl", *words, "--retry-failed").returncode == 0
    assert server.answered == 40 and all(line["score"] for line in lines(tmp_path / "one.jsonl"))


def test_a_cache_without_a_judges_mark_says_so_and_a_wrong_file_is_one_line(tmp_path: Path, stand: Stands) -> None:
    server = stand()
    server.name = "gpt-4"
    assert "cached by its name only" in judge(tmp_path, server, "one.jsonl", "--cache", tmp_path / "cache").stderr
    (tmp_path / "text").write_text("no cache " * 100, "utf-8")
    wrong = judge(tmp_path, server, "two.jsonl", "--cache", tmp_path / "text")
    assert_one_line_error(wrong, "--cache", "not a database")


def test_infer_takes_replies_from_the_cache(tmp_path: Path, stand: Stands) -> None:
    server = stand()
    words = ["--benchmark", "convbench", "--condition", "no_image", "--base-url", server.url, "--cache", tmp_path / "c"]
    first = run("critic", "infer", CONVERSATIONS, "--out", tmp_path / "one.jsonl", *words)
    asked_before = server.asked
    second = run("critic", "infer", CONVERSATIONS, "--out", tmp_path / "two.jsonl", *words)
    assert first.returncode == second.returncode == 0, second.stderr
    assert server.asked == asked_before and "from the cache, which cost nothing" in second.stdout
    assert "tokens" not in second.stdout


def test_a_budget_ends_the_run_cleanly_and_more_goes_on(tmp_path: Path, stand: Stands) -> None:
    server = stand(seconds=0.02)
    how = ["--concurrency", 4]
    done = judge(tmp_path, server, "one.jsonl", *how, "--budget", "1090tokens", rows=60)
    assert done.returncode == 3 and "were not asked for: the budget is spent, of this run" in done.stdout, done.stderr
    records = lines(tmp_path / "one.jsonl")
    judged = sum("score" in line for line in records)
    assert len(records) == 60 and 10 <= judged <= 14
    assert {line["verdict"].get("failure") for line in records} == {None, "budget"}
    shown = run("critic", "score", tmp_path / "one.jsonl", "--max-failed", 1)
    assert f"{judged / 60:.1%}" in shown.stdout and f"budget {60 - judged}" in shown.stdout
    assert judge(tmp_path, server, "one.jsonl", *how, rows=60).returncode == 0
    records = lines(tmp_path / "one.jsonl")
    assert len(records) == len({line["sample"]["id"] for line in records}) == 60
    assert all("score" in line for line in records) and server.asked == 60


def test_conversations_go_on_behind_a_budget(tmp_path: Path, stand: Stands) -> None:
    """A verdict on the whole that failed because a turn was not asked for is made then, too."""
    texts = [{"text": '{"Rating": 5, "Reason": "so"}'}]
    replies, server = write_jsonl(tmp_path / "replies.jsonl", texts), stand(seconds=0.01)
    said = tmp_path / "said.jsonl"
    words = ["--benchmark", "convbench", "--condition", "no_image", "--model", replies]
    assert run("critic", "infer", CONVERSATIONS, "--out", said, *words).returncode == 0
    judged = ["critic", "judge", said, "--protocol", "direct", "--judge", server.url, "--concurrency", 2]
    cut = run(*judged, "--out", tmp_path / "one.jsonl", "--budget", "1000tokens")
    assert cut.returncode == 3 and "the budget is spent" in cut.stdout
    assert run(*judged, "--out", tmp_path / "one.jsonl").returncode == 0
    assert run(*judged, "--out", tmp_path / "alone.jsonl").returncode == 0
    resumed, alone = (sorted((tmp_path / name).read_bytes().splitlines()) for name in ("one.jsonl", "alone.jsonl"))
    assert resumed == alone


def test_replies_go_on_behind_a_budget(tmp_path: Path, stand: Stands) -> None:
    """What was not asked for is no call; all that is still to be asked is counted, behind it as well."""
    server, out = stand(), tmp_path / "one.jsonl"
    words = ["critic", "infer", CONVERSATIONS, "--benchmark", "convbench", "--condition", "no_image"]
    given = [*words, "--base-url", server.url, "--concurrency", 2, "--out"]
    cut = run(*given, out, "--budget", "1090tokens")
    assert cut.returncode == 3 and f"turns by {server.asked} calls" in cut.stdout, cut.stdout
    assert "budget: " in cut.stdout and "without token counts" not in cut.stdout
    run(*given, out, code=0)
    assert "turns were not asked for: the budget is spent" in cut.stdout
    asked_for = server.asked
    assert run(*given, tmp_path / "alone.jsonl").returncode == 0 and server.asked == 2 * asked_for
    files = [map(json.loads, file.read_text("utf-8").splitlines()) for file in (out, tmp_path / "alone.jsonl")]
    resumed, alone = (sorted(str({**turn, "seconds": 0}) for turn in turns) for turns in files)
    assert resumed == alone and len(resumed) == 18


def test_a_budget_that_nothing_counts_for_ends_the_run(tmp_path: Path, stand: Stands) -> None:
    server = stand()
    server.fault = "no usage"
    done = judge(tmp_path, server, "o.jsonl", "--budget", "2000tokens", "--concurrency", 2)
    assert_one_line_error(done, "--budget", "does not say how many tokens")
    assert judge(tmp_path, server, "o.jsonl").returncode == 0 and len(lines(tmp_path / "o.jsonl")) == 20

    for words in ("5", "x tokens", "5USD", "3600s", "tokens", "1.5tokens"):
        wrong = judge(tmp_path, server, "o.jsonl", "--budget", words)
        assert_one_line_error(wrong, f"--budget {words}: expected a number")
