"""What stages took: tokens, seconds, memory, and the table of them."""

import json
import re
from pathlib import Path
from typing import Any

from conftest import Servers, assert_one_line_error, completion, human_rows, run, sample
from stages.test_judge_conversations import answer_all

from critic import jsonl


def test_judging_counts_tokens_as_replies_do(tmp_path: Path, scripted: Servers) -> None:
    """Of conversations, what several verdicts share is counted once; a second run counts it from the file."""
    answer = lambda body: answer_all(body) if "response_format" in body else completion("a reply")  # noqa: E731
    server = scripted(answer, owner="vllm")
    # Two engines, one of which nobody has asked yet; what was counted before counts in no run.
    of = {"queries_total{n=0}": "{}00.0", "queries_total{n=1}": "5e+04", "queries_created{n=0}": "1.7e+09"}
    of |= {"hits_total{n=0}": "{}0.0"}
    server.counters = "".join(f"vllm:prefix_cache_{name} {count}\n" for name, count in of.items())
    replies, judged = tmp_path / "replies.jsonl", tmp_path / "judged.jsonl"
    words = ["--benchmark", "convbench", "--base-url", server.url]
    infer = [*words, "--out", replies, "--name", "m"]
    done = run("critic", "infer", sample("convbench"), *infer, code=0)
    turns = len(server.requests)
    assert f"tokens: {11 * turns} in, {7 * turns} out" in done.stdout
    words += ["--out", judged, "--protocol", "direct"]
    done = run("critic", "judge", replies, *words, code=0)
    calls = len(server.requests) - turns
    counted = f"tokens: {11 * calls} in, {7 * calls} out, 0 cached"
    assert calls > 20 and counted in done.stdout
    facts = jsonl.facts(judged)
    assert facts["tokens"] == {"prompt": 11 * calls, "cached": 0, "completion": 7 * calls}
    assert facts["seconds"] > 0 and facts["calls"] == calls
    speed = r"speed: \d+ tokens a second, \d+% of \d+ s waiting for replies, 10% of the prompts in the prefix cache\n"
    assert re.search(speed, done.stdout) and facts["speed"]["waiting_ms"] > 0
    spent = {"tokens": 18 * calls, "queries": 100 * calls, "hits": 10 * calls}
    assert facts["speed"].items() >= spent.items()
    again = run("critic", "judge", replies, *words)
    assert counted in again.stdout and len(server.requests) == turns + calls and re.search(speed, again.stdout)
    assert jsonl.facts(judged)["seconds"] >= facts["seconds"], "what it took before is not lost"
    assert jsonl.facts(judged)["speed"] == facts["speed"]
    # Row 22: the cost by model and stage, at the prices given for some of the models.
    prices = tmp_path / "prices.toml"
    prices.write_text("[m]\ninput = 1000\noutput = 2000\ncurrency = 'EUR'\n", "utf-8")
    scored = run("critic", "score", judged, "--prices", prices, "--out", tmp_path / "out", code=0)
    rows = {line.split("  ")[0]: line.split() for line in scored.stdout.splitlines() if line.startswith("m: ")}
    mine, theirs = rows["m: replies"], rows["m: judged by tiny"]
    assert mine[2:6] == [str(turns), str(11 * turns), "0", str(7 * turns)]
    assert mine[-2:] == [f"{(11 * turns + 14 * turns) / 1000:.4f}", "EUR"]
    # A run that goes on adds to what it took before, and says what all of it cost.
    judged.write_text("".join(judged.read_text("utf-8").splitlines(keepends=True)[:-9]), "utf-8")
    prices.write_text("[tiny]\ninput = 1000\noutput = 0\n", "utf-8")
    priced = run("critic", "judge", replies, *words, "--prices", prices, code=0)
    every, now = len(server.requests) - turns, jsonl.facts(judged)
    assert every > calls and now["speed"].items() >= {"tokens": 18 * every, "queries": 100 * every}.items()
    assert now["cost"] == {"amount": now["tokens"]["prompt"] / 1000, "currency": "USD"}
    assert f"cost: {now['tokens']['prompt'] / 1000:.4f} USD\n" in priced.stdout
    assert "cost: no price of m\n" in run("critic", "infer", sample("convbench"), *infer, "--prices", prices).stdout
    assert theirs[4:8] == [str(calls), str(11 * calls), "0", str(7 * calls)] and int(theirs[9]) > 10
    assert (tmp_path / "out" / "costs.tex").is_file()
    for text, problem in (
        ("input = 1\noutput = 2", "expected tables [MODEL] with input, output, cached_input, currency"),
        ("[n]\ninput = 1\noutput = 2", "[n] is no model of these files; they are m, tiny"),
        ("[m]\ninput = 1", "missing required field `output`"),
    ):
        prices.write_text(text, "utf-8")
        assert_one_line_error(run("critic", "score", judged, "--prices", prices), "--prices", problem)


def test_a_panels_tokens_and_rating_are_of_all_its_judges(tmp_path: Path, scripted: Servers) -> None:
    """Calls without token counts are said: the tokens of a run are not those of some of its calls, in silence."""
    strict = json.dumps({"Reason": "so", "Rating": 4})
    servers = (scripted(answer_all), scripted(lambda _: completion(strict)))
    words = [word for server in servers for word in ("--judge", f"{server.url}#tiny")]
    words += ["--score", "argmax", "--out", tmp_path / "p.jsonl"]
    done = run("critic", "judge", human_rows(tmp_path, 4), *words, code=0)
    tokens = [jsonl.facts(tmp_path / name)["tokens"]["prompt"] for name in ("p.1.jsonl", "p.2.jsonl", "p.jsonl")]
    assert tokens == [44, 44, 88] and "tokens: 88 in, 56 out, 0 cached" in done.stdout
    assert done.stdout.count("waiting for replies\n") == 2, "a server without the counter says nothing of a cache"
    assert {line["verdict"]["rating"] for _, line in jsonl.read(tmp_path / "p.jsonl", dict[str, Any])} == {5.5}
    calls = iter(range(99))
    server = scripted(lambda body: {**answer_all(body), **({"usage": None} if next(calls) % 4 == 3 else {})})
    words = ["--judge", f"{server.url}#tiny", "--score", "argmax", "--concurrency", "1"]
    done = run("critic", "judge", human_rows(tmp_path, 4), *words, "--out", tmp_path / "j.jsonl", code=0)
    assert "tokens: 33 in, 21 out" in done.stdout
    assert "1 calls without token counts: they are in no sum of tokens" in done.stdout
