"""What stages took: tokens, seconds, memory, and the table of them."""

import json
from pathlib import Path
from typing import Any

from conftest import Servers, completion, human_row, run, write_jsonl
from stages.test_judge_conversations import answer_all, judge, replies

from critic import jsonl


def test_judging_counts_tokens_as_replies_do(tmp_path: Path, scripted: Servers) -> None:
    """Of conversations, what several verdicts share is counted once; a second run counts it from the file."""
    server, out = scripted(answer_all), tmp_path / "judged.jsonl"
    given = (replies(tmp_path / "r.jsonl", "convbench"), out, "convbench", server.url, "--protocol", "direct")
    done = judge(*given, code=0)
    calls = len(server.requests)
    counted = f"tokens: {11 * calls} in, {7 * calls} out, 0 cached"
    assert calls > 20 and counted in done.stdout
    facts = jsonl.facts(out)
    assert facts["tokens"] == {"prompt": 11 * calls, "cached": 0, "completion": 7 * calls}
    assert facts["seconds"] >= 0
    assert counted in judge(*given).stdout and len(server.requests) == calls


def test_a_panels_tokens_and_rating_are_of_all_its_judges(tmp_path: Path, scripted: Servers) -> None:
    rows = write_jsonl(tmp_path / "rows.jsonl", [human_row(n) for n in range(4)])
    strict = json.dumps({"Reason": "so", "Rating": 4})
    servers = (scripted(answer_all), scripted(lambda _: completion(strict)))
    words = [word for server in servers for word in ("--judge", f"{server.url}#tiny")]
    done = run("critic", "judge", rows, *words, "--score", "argmax", "--out", tmp_path / "p.jsonl", code=0)
    tokens = [jsonl.facts(tmp_path / name)["tokens"]["prompt"] for name in ("p.1.jsonl", "p.2.jsonl", "p.jsonl")]
    assert tokens == [44, 44, 88] and "tokens: 88 in, 56 out, 0 cached" in done.stdout
    assert {line["verdict"]["rating"] for _, line in jsonl.read(tmp_path / "p.jsonl", dict[str, Any])} == {5.5}


def test_calls_without_token_counts_are_said(tmp_path: Path, scripted: Servers) -> None:
    """The tokens of a run are not those of some of its calls, in silence."""
    rows = write_jsonl(tmp_path / "rows.jsonl", [human_row(n) for n in range(4)])
    calls = iter(range(99))
    server = scripted(lambda body: {**answer_all(body), **({"usage": None} if next(calls) % 4 == 3 else {})})
    words = ["--judge", f"{server.url}#tiny", "--score", "argmax", "--concurrency", "1"]
    done = run("critic", "judge", rows, *words, "--out", tmp_path / "j.jsonl", code=0)
    assert "tokens: 33 in, 21 out" in done.stdout
    assert "1 calls without token counts: they are in no sum of tokens" in done.stdout
