"""`data/reasons.py`: of several replies the reason whose rating meets people's, and what is learned of it."""

import json
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from conftest import assert_one_line_error, completion, human_row, kill_after_output, read_jsonl, run, write_jsonl

from critic import human_scored
from critic.judging.examples import plan

PROGRAM = "data/reasons.py"


class Sampler:
    """A judge whose rating is a matter of the seed; by table the points that each reason is away from its score."""

    def __init__(self, pause: float = 0.0) -> None:
        self.pause, self.away = pause, defaultdict[int, dict[str, int]](dict)

    def __call__(self, body: dict[str, Any]) -> Any:
        time.sleep(self.pause)
        table, seed = int(body["messages"][0]["content"].split("on table ")[1].split("?")[0]), body["seed"]
        self.away[table][f"Seed {seed}."] = abs(seed % 10 - table % 10)
        text = json.dumps({"Reason": f"Seed {seed}.", "Rating": seed % 10 + 1})
        return completion(text if body["temperature"] else "")


def test_the_reason_nearest_to_peoples_score_is_kept_and_learned(tmp_path: Path, scripted: Any) -> None:
    rows = [human_row(n) for n in range(10)] + [human_row(10, reason="So.")]
    judge, out = Sampler(), tmp_path / "out.jsonl"
    words = [PROGRAM, write_jsonl(tmp_path / "rows.jsonl", rows), "--judge", scripted(judge).url, "--samples", 3]
    for band in (0.5, 9):
        done = run(*words, "--band", band, "--out", out)
        assert sorted(judge.away) == [*range(10)] and {len(away) for away in judge.away.values()} == {3}
        kept = [n for n in range(10) if min(judge.away[n].values()) <= band]
        assert f"{out}: {len(kept)} of 10 rows got a reason whose rating is within {band} of people's" in done.stdout
        reasons = {row["id"]: row.get("reason") for row in read_jsonl(out)}
        assert reasons.pop("row-10") == "So." and [f"row-{n}" for n in kept] == [row for row in reasons if reasons[row]]
        assert all(judge.away[n][reasons[f"row-{n}"] or ""] == min(judge.away[n].values()) for n in kept)
        planned = plan(human_scored.load(out).responses, {"pointwise": 1.0, "pointwise_reason_first": 1.0})
        assert sum(example.form == "pointwise" for example in planned.examples) == 11, "and without reasons all"
        assert len(planned.examples) == 11 + len(kept) + 1
    assert "30 judged before, 0 to go" in done.stderr


def test_killed_it_goes_on_with_the_samples_that_it_has(tmp_path: Path, scripted: Any) -> None:
    judge, out = Sampler(pause=0.02), tmp_path / "out.jsonl"
    rows = write_jsonl(tmp_path / "rows.jsonl", [human_row(n) for n in range(30)])
    words = [PROGRAM, rows, "--judge", scripted(judge).url, "--out", out, "--concurrency", "2", "--band", "9"]
    kill_after_output(words, samples := out.with_suffix(".samples.jsonl"))
    before = read_jsonl(samples)
    assert 0 < len(before) < 120 and not out.exists()
    assert f"{len(before)} judged before, {120 - len(before)} to go" in run(*words, code=0).stderr
    after = read_jsonl(samples)
    assert after[: len(before)] == before and len({line["sample"]["id"] for line in after}) == 120
    assert all(row["reason"] for row in read_jsonl(out))
    assert_one_line_error(run(PROGRAM, out, *words[2:]), "none of 30 rows has a score and no reason")
