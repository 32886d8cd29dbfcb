"""critic judge --benchmark: replies to conversations -> verdicts by protocol, against a scripted server."""

import asyncio
import itertools
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, Done, assert_one_line_error, completion, run, sample, write_jsonl
from msgspec.structs import replace
from scoring import read_sample

from critic import jsonl
from critic.backends import Reply, Request
from critic.backends.scripted import ScriptedBackend
from critic.benchmarks import convbench, multiverse
from critic.judging.history import CONDITIONS
from critic.judging.history import messages as history_messages
from critic.records import Conversation, Judgment, ModelTurn, Sampling, SentMessage
from critic.stats import tournament
from critic.stats.leaderboard import aggregate_of


def replies(
    path: Path,
    benchmark: str,
    conditions: tuple[str, ...] = ("own",),
    system: str = "m",
    failed: tuple[tuple[str, int], ...] = (),
) -> Path:
    """A file as `critic infer` writes it; the reply names system, conversation and turn. (id, turn) may have failed."""
    places = itertools.product(read_sample(benchmark), conditions)
    jsonl.write(path, itertools.chain(*(_turns(talk, name, system, failed) for talk, name in places)))
    return path


def _turns(conversation: Conversation, name: str, system: str, failed: tuple[tuple[str, int], ...]) -> list[ModelTurn]:
    lines: list[ModelTurn] = []
    said: dict[int, str] = {}
    common: dict[str, Any] = {
        "conversation": conversation, "condition": name, "system": system, "sampling": Sampling(max_tokens=9),
    }  # fmt: skip
    ended = False
    for turn in CONDITIONS[name].asked(len(conversation.turns)):
        if ended or (conversation.id, turn) in failed:
            lines.append(ModelTurn(**common, turn=turn, failure="not_run" if ended else "image_missing", detail="gone"))
            ended = True
            continue
        shown = history_messages(conversation, turn, said, CONDITIONS[name])
        seen = [SentMessage(role=message.role, content=message.content) for message in shown]
        said[turn] = f"{system} on {conversation.id} turn {turn}."
        lines.append(ModelTurn(**common, turn=turn, seen=seen, reply=said[turn]))
    return lines


def judged(path: Path) -> list[Judgment]:
    return [judgment for _, judgment in jsonl.read(path, Judgment)]


def prompt_of(body: dict[str, Any]) -> str:
    content: str = body["messages"][0]["content"]
    return content


def answer_all(body: dict[str, Any]) -> dict[str, Any]:
    """A verdict that fits the schema: grade 7, A, yes to odd items."""
    properties = body["response_format"]["json_schema"]["schema"]["properties"]
    values = {"Rating": 7, "Verdict": "A", "Reason": "so"}
    values |= {key: "yes" if int(key) % 2 else "no" for key in properties if key not in values}
    return completion(json.dumps({key: values[key] for key in properties}))


def judge(file: Path, out: Path, benchmark: str, url: str, *words: object, code: int | None = None) -> Any:
    return run("critic", "judge", file, "--benchmark", benchmark, "--out", out, "--base-url", url, *words, code=code)


def judge_sample(
    folder: Path, benchmark: str, server: Any, *words: object, conditions: tuple[str, ...] = ("own",), code: int = 0
) -> tuple[Done, list[Judgment]]:
    """Return how judging the replies to a benchmark's sample ended, and the judgments, which are in j.jsonl."""
    file, out = replies(folder / "r.jsonl", benchmark, conditions), folder / "j.jsonl"
    done = judge(file, out, benchmark, server.url, *words, code=code)
    return done, judged(out)


def cells(lines: list[Judgment]) -> Counter[Any]:
    return Counter((line.condition, line.protocol, line.judging, line.turn) for line in lines)


def test_convbench_by_direct_grading(tmp_path: Path, scripted: Any) -> None:
    """Every generated turn and the whole of each condition; the whole is shown the verdicts on its turns."""

    def answer(body: dict[str, Any]) -> Any:
        content = prompt_of(body)
        whole = "the conversation as a whole" in content or "整段对话" in content
        turn = re.findall(r"turn (\d)\.", content)
        grade = 9 if whole else int(turn[-1]) + 2
        return completion(json.dumps({"Rating": grade, "Reason": f"because {grade}"}))

    server = scripted(answer)
    conditions = ("own", "perfect_perception", "perfect_perception_reasoning")
    words = ["--protocol", "direct", "--questions", sample("convbench")]
    words += ["--judging", "standard", "--judging", "no_focus", "--judging", "no_turn_verdicts"]
    _, lines = judge_sample(tmp_path, "convbench", server, *words, conditions=conditions)
    expected = {(c.condition, "direct", "standard", c.turn): 6 for c in convbench.CELLS.values()}
    expected |= {(name, "direct", "no_turn_verdicts", None): 6 for name in conditions}
    expected |= {(name, "direct", "no_focus", 3): 6 for name in conditions}
    assert cells(lines) == expected
    for line in lines:
        assert line.score == (9 if line.turn is None else line.turn + 2)
        assert line.failure is None and line.system == "m" and line.judge == "tiny"
        assert line.sample.length == (None if line.turn is None else len(line.sample.answer or ""))
    scores = convbench.scores(lines, read_sample("convbench"), "direct")
    r1 = aggregate_of(scores["R1"])
    assert r1.value == pytest.approx((4 + 9) / 2) and r1.n == 24


def test_turns_without_history_make_no_conversation(tmp_path: Path, scripted: Any) -> None:
    server = scripted(answer_all)
    _, lines = judge_sample(tmp_path, "convbench", server, conditions=("no_history", "single_turn"))
    conditions = [("no_history", turn) for turn in (1, 2, 3)] + [("single_turn", 3)]
    protocols = ("direct", "pairwise")
    expected = [(condition, protocol, "standard", turn) for protocol in protocols for condition, turn in conditions]
    assert cells(lines) == dict.fromkeys(expected, 6)
    assert not any("Earlier conversation" in prompt_of(body) for body in server.requests)


def test_what_the_judge_of_a_turn_and_of_the_whole_is_shown(tmp_path: Path, scripted: Any) -> None:
    """Row 15."""
    server = scripted(answer_all)
    words = ["--protocol", "direct", "--judging", "standard", "--judging", "no_focus"]
    judge_sample(tmp_path, "convbench", server, *words, conditions=("perfect_perception",))
    conversation = read_sample("convbench")[0]
    first_turn, second_turn, third_turn = conversation.turns
    contents = [prompt_of(body) for body in server.requests if f"> {conversation.caption}" in prompt_of(body)]
    assert len(contents) == 4
    (second,) = [text for text in contents if "> m on 1 turn 2." in text and third_turn.prompt not in text]
    assert f"> Assistant: {first_turn.reference}" in second and f"# Question\n> {second_turn.prompt}" in second
    assert f"# Reference\n> {second_turn.reference}" in second and "What this answer" not in second
    third = [text for text in contents if f"# Question\n> {third_turn.prompt}" in text]
    assert sorted(f"> {third_turn.focus}" in text for text in third) == [False, True]
    assert all("> Assistant: m on 1 turn 2." in text for text in third)
    (whole,) = [text for text in contents if "as a whole" in text]
    assert "# Judgments of the single turns\n> Turn 2: 7. so\n> Turn 3: 7. so" in whole
    assert f"> Turn 1: {first_turn.reference}" in whole and "> Assistant: m on 1 turn 3." in whole


def test_pairwise_in_both_orders(tmp_path: Path, scripted: Any) -> None:
    """A verdict that follows the place is a tie, one that follows the answer counts."""

    def answer(body: dict[str, Any]) -> Any:
        content = prompt_of(body)
        second = re.search("# Reply of assistant B|# 作答（助手 B）", content)
        assert second
        first_is_model = content.index("> m on") < second.start()
        fate = int(re.findall(r"m on (\d) turn", content)[0]) % 3
        value = {0: "A", 1: "A" if first_is_model else "B", 2: "B" if first_is_model else "A"}[fate]
        return completion(json.dumps({"Verdict": value, "Reason": "x"}))

    server = scripted(answer)
    done, judgments = judge_sample(tmp_path, "visitbench", server)
    lines = {line.sample.id: line for line in judgments}
    for name, line in lines.items():
        assert line.score == {0: 0.5, 1: 1.0, 2: 0.0}[int(name) % 3], name
        assert [call.first for call in line.calls] == ["model", "opponent"] and line.opponent is None
    confirmed = [conversation.id for conversation in read_sample("visitbench") if conversation.turns[0].reference]
    assert sorted(lines) == sorted(confirmed) and len(server.requests) == 2 * len(confirmed)
    assert "no reference" in done.stdout
    assert all("# Reference\n" not in prompt_of(body) for body in server.requests)


@pytest.mark.parametrize("free", [True, False])
def test_two_models_with_or_without_the_reference(tmp_path: Path, scripted: Any, free: bool) -> None:
    server = scripted(answer_all)
    mine = replies(tmp_path / "a.jsonl", "visitbench", system="m")
    theirs = replies(tmp_path / "b.jsonl", "visitbench", system="n")
    out = tmp_path / "j.jsonl"
    words = ["--against", theirs, "--order", "random", "--seed", "3", *(["--reference-free"] if free else [])]
    done = judge(mine, out, "visitbench", server.url, *words, code=0)
    conversations = read_sample("visitbench")
    lines = judged(out)
    backed = sum(conversation.turns[0].reference is not None for conversation in conversations)
    assert len(lines) == (len(conversations) if free else backed) == len(server.requests)
    assert ("turns not judged: pairwise: no reference" in done.stdout) == (not free)
    assert {(line.system, line.opponent) for line in lines} == {("m", "n")}
    assert {line.calls[0].first for line in lines} == {"model", "opponent"}
    for line in lines:
        assert line.score == (1.0 if line.calls[0].first == "model" else 0.0)
    shown = sum("# Reference\n" in prompt_of(body) or "# 参考答案\n" in prompt_of(body) for body in server.requests)
    assert shown == (0 if free else backed)
    groups = {conversation.id: conversation.group for conversation in conversations}
    assert len(tournament.battles(lines, groups)) == len(lines)
    assert [line.calls[0].first for line in judged(out)] == [line.calls[0].first for line in lines]


@pytest.mark.parametrize("how", ["all", "random"])
def test_a_tournament_is_planned_judged_and_resumed_by_one_command(tmp_path: Path, scripted: Any, how: str) -> None:
    """Four models; the one whose name comes first in the alphabet wins."""

    def answer(body: dict[str, Any]) -> Any:
        first, second = re.findall(r"> (m\d) on", prompt_of(body))
        return completion(json.dumps({"Verdict": "A" if first < second else "B", "Reason": "x"}))

    server, conversations = scripted(answer), read_sample("visitbench")
    files = [replies(tmp_path / f"{name}.jsonl", "visitbench", system=name) for name in ("m3", "m1", "m0", "m2")]
    out = tmp_path / "j.jsonl"
    words = ["--battles", how, "--reference-free", "--order", "random"]
    words += [word for path in files[1:] for word in ("--against", path)]
    judge(files[0], out, "visitbench", server.url, *words, code=0)
    lines = judged(out)
    met: dict[str, list[set[str]]] = {conversation.id: [] for conversation in conversations}
    for line in lines:
        met[line.sample.id].append({line.system, line.opponent or ""})
        assert line.score == (line.system < (line.opponent or ""))
    for pairs in met.values():
        assert len({frozenset(pair) for pair in pairs}) == len(pairs) and len(set().union(*pairs)) == 4
        assert len(pairs) == 6 if how == "all" else 2 <= len(pairs) <= 4
    if how == "random":
        assert len({tuple(map(tuple, map(sorted, pairs))) for pairs in met.values()}) > 1
    count, kept = len(server.requests), out.read_bytes().splitlines(keepends=True)
    out.write_bytes(b"".join(kept[:5]) + kept[5][:40])
    assert judge(files[0], out, "visitbench", server.url, *words).returncode == 0
    assert len(server.requests) == count + len(kept) - 5 and len(judged(out)) == len(kept)
    scored = run("critic", "score", out, "--out", tmp_path / "page", code=0)
    assert ("m3 against 3 models: judged by" in scored.stdout) == (how == "all")
    summary = json.loads((tmp_path / "page/summary.json").read_text("utf-8"))
    battles, rated = summary["systems"]["tournament"], summary["leaderboards"]["tournament"]
    ranked = sorted(battles["elo"]["ratings"], key=lambda name: -battles["elo"]["ratings"][name])
    assert ranked == ["m0", "m1", "m2", "m3"] and rated["m0"]["win rate, %"]["value"] == 100
    fought = {name: sum(name in pair for pairs in met.values() for pair in pairs) for name in ranked}
    assert battles["asked"] == fought


def test_two_times_against_means_both(tmp_path: Path, scripted: Any) -> None:
    url = scripted(answer_all).url
    first, *others = [replies(tmp_path / f"{name}.jsonl", "visitbench", system=name) for name in ("m", "n", "o")]
    single, both = ["--against", others[0], "--order", "random"], [w for file in others for w in ("--against", file)]
    judge(first, tmp_path / "j.jsonl", "visitbench", url, *both, "--order", "random", code=0)
    pairs = Counter((line.system, line.opponent) for line in judged(tmp_path / "j.jsonl"))
    assert set(pairs) == {("m", "n"), ("m", "o")} and len(set(pairs.values())) == 1
    for words, part in (
        ([*both, "--against", others[0]], "the same model, 'n', as in"),
        ([*both, "--protocol", "direct"], "--protocol pairwise alone"),
        ([*single, "--battles", "random"], "three models or more"),
    ):
        assert_one_line_error(judge(first, tmp_path / "k.jsonl", "visitbench", url, *words), part)


def test_forced_choice_has_no_tie(tmp_path: Path, scripted: Any) -> None:
    server = scripted(lambda body: completion('{"Verdict":"tie"}'))
    _, lines = judge_sample(tmp_path, "convbench", server, "--protocol", "pairwise", "--order", "forced", code=3)
    for body in server.requests:
        assert body["response_format"]["json_schema"]["schema"]["properties"]["Verdict"]["enum"] == ["A", "B"]
        assert "There is no tie" in prompt_of(body) or "没有平局" in prompt_of(body)
    assert Counter(line.failure for line in lines) == {"no_verdict": 24}


def test_multiverse_checklists_and_quality(tmp_path: Path, scripted: Any) -> None:
    """Both judgments of every turn; turn 1, alike under both conditions, is asked once."""
    server = scripted(answer_all)
    _, lines = judge_sample(tmp_path, "multiverse", server, conditions=("own", "oracle"))
    conversations = read_sample("multiverse")
    turns = sum(len(conversation.turns) for conversation in conversations)
    assert len(lines) == 2 * 2 * turns and len(server.requests) == 2 * (2 * turns - len(conversations))
    facts = jsonl.facts(tmp_path / "j.jsonl")
    assert facts["asked"] == len(server.requests) and facts["tokens"]["prompt"] == 11 * len(server.requests)
    for line in lines:
        items = line.conversation.turns[line.turn - 1].checklist
        if line.protocol == "checklist":
            assert line.verdict.answers == [number % 2 == 0 for number in range(len(items))]
            assert line.score == pytest.approx(sum(line.verdict.answers) / len(items))
        else:
            assert line.score == 7
    scores = multiverse.measures(lines, "oracle")["score"]
    assert len(scores) == turns and None not in scores.values()
    for body in server.requests:
        assert "> 1. " in prompt_of(body)
        schema = body["response_format"]["json_schema"]["schema"]
        if "1" in schema["properties"]:
            assert schema["required"] == list(schema["properties"]) and "Rating" not in schema["properties"]


def test_alignmmbench_is_judged_as_responses_are(tmp_path: Path, scripted: Any) -> None:
    server = scripted(answer_all)
    _, lines = judge_sample(tmp_path, "alignmmbench", server, conditions=("own", "no_image"))
    conversations = read_sample("alignmmbench")
    assert {(line.condition, line.score) for line in lines} == {("own", 7), ("no_image", 7)}
    with_history = next(conversation for conversation in conversations if conversation.history)
    (content,) = {prompt_of(body) for body in server.requests if f"> m on {with_history.id} turn" in prompt_of(body)}
    assert f"> 用户：{with_history.history[0].user}" in content and "忽略" not in content
    assert f"# 题目\n> {with_history.turns[0].prompt}" in content or with_history.turns[0].prompt in content


def test_an_answer_that_was_never_given_is_a_named_failure(tmp_path: Path, scripted: Any) -> None:
    server = scripted(answer_all)
    file, out = replies(tmp_path / "r.jsonl", "convbench", failed=(("1", 2),)), tmp_path / "j.jsonl"
    done = judge(file, out, "convbench", server.url, "--protocol", "direct")
    assert done.returncode == 3 and "3 verdicts had no answer" in done.stdout
    assert "24 verdicts, 3 failed (image_missing 2, not_run 1)" in done.stdout
    lines = {line.turn: line for line in judged(out) if line.sample.id == "1"}
    assert {turn: line.failure for turn, line in lines.items()} == {
        1: None, 2: "image_missing", 3: "not_run", None: "image_missing",
    }  # fmt: skip
    assert all(line.asked is None and line.score is None for turn, line in lines.items() if turn != 1)
    scores = convbench.scores(judged(out), read_sample("convbench"), "direct")
    s2 = aggregate_of(scores["S2"])
    assert (s2.n, s2.failed, s2.asked) == (5, 1, 6)
    assert s2.low == pytest.approx((5 * 7 + 1) / 6) and s2.high == pytest.approx((5 * 7 + 10) / 6)


def test_a_verdict_in_a_papers_form_is_read_as_it_stands(tmp_path: Path, scripted: Any) -> None:
    for benchmark, protocol, reply, score in (
        ("convbench", "pairwise", "Let me see.\n\nOverall, Response A is better.", 0.5),
        ("convbench", "direct", "It is fine, hence Rating:{5}", 5.0),
        ("multiverse", "quality", '{"score":"7"}', 7.0),
        ("visitbench", "pairwise", "A=B", 0.5),
    ):
        (folder := tmp_path / f"{benchmark}-{protocol}").mkdir()
        server = scripted(lambda body, reply=reply: completion(reply))
        _, lines = judge_sample(folder, benchmark, server, "--protocol", protocol)
        assert {line.score for line in lines} == {score}, reply


@pytest.mark.parametrize("unread", ["fail", "tie"])
def test_a_comparison_without_a_verdict_fails_or_is_a_counted_tie(tmp_path: Path, scripted: Any, unread: str) -> None:
    server = scripted(lambda body: completion("Both are bad."))
    out, tie = tmp_path / "j.jsonl", unread == "tie"
    done, lines = judge_sample(tmp_path, "visitbench", server, "--on-unparsed", unread, code=0 if tie else 3)
    assert {line.score for line in lines} == {0.5 if tie else None}
    assert {line.failure for line in lines} == {None if tie else "no_verdict"}
    assert all(line.unread == tie for line in lines)
    said = f"{len(lines)} verdicts could not be read and count as ties"
    assert (said in done.stdout) == tie
    assert jsonl.facts(out)["unread_ties"] == (len(lines) if tie else 0)
    scored = run("critic", "score", out, "--benchmark", "visitbench")
    assert ("comparisons came to no verdict and count as ties" in scored.stdout) == tie, scored.stdout


SECOND = re.compile("An examiner wrote the text below|下面的文字是一名阅卷人写的")


@pytest.mark.parametrize(
    ("benchmark", "words", "second", "score", "calls"),
    [
        ("convbench", ["--protocol", "direct", "--as", "published"], '{"Rating":4}', 4.0, 2),
        ("convbench", ["--protocol", "direct", "--extract"], "Final Rating: 4", 4.0, 2),
        ("convbench", ["--protocol", "pairwise", "--as", "published"], "Unknown", None, 2),
        ("visitbench", ["--as", "published"], '{"Verdict":"B"}', 0.0, 3),
        ("visitbench", ["--as", "published"], '{"Verdict":"Unknown"}', 0.5, 4),
    ],
)
def test_an_unreadable_reply_takes_a_second_question(
    tmp_path: Path, scripted: Any, benchmark: str, words: list[str], second: str, score: float | None, calls: int
) -> None:
    """Rows 14 and 29: one prompt shows the reply alone, one more call; a tie only where that finds no verdict."""

    def answer(body: dict[str, Any]) -> Any:
        if SECOND.search(prompt_of(body)):
            return completion(second)
        # The first order of a pair is read as it stands, where the second one's verdict has to be found.
        readable = score == 0.0 and not re.search(r"assistant A\n> m on|助手 A）\n> m on", prompt_of(body))
        return completion('{"Reason":"so","Verdict":"A"}' if readable else "Let me weigh it.\n# Reference: 10")

    server = scripted(answer)
    done, lines = judge_sample(tmp_path, benchmark, server, *words, code=3 if score is None else 0)
    assert {(line.score, len(line.calls)) for line in lines} == {(score, calls)}
    asked = [body for body in server.requests if SECOND.search(prompt_of(body))]
    assert len(server.requests) == sum(len(line.calls) for line in lines)
    assert len(asked) == sum(call.extracted for line in lines for call in line.calls)
    for body in asked:
        assert "response_format" not in body and "> Let me weigh it.\n> # Reference: 10" in prompt_of(body)
        assert prompt_of(body).count("> ") < 6, "the reply only"
    facts = jsonl.facts(tmp_path / "j.jsonl")
    assert facts["second_questions"] == len(asked) and facts["tokens"]["prompt"] == 11 * len(server.requests)
    most = re.search(r"verdicts by at most (\d+) calls, (\d+) if every reply can be read", done.stderr)
    assert most and int(most[1]) == 2 * int(most[2]) >= len(server.requests)
    assert f"{len(asked)} replies had no readable verdict and took a second question" in done.stdout
    if score == 4.0:
        shown = "# Judgments of the single turns\n> Turn 1: 4. Let me"
        assert any(shown in prompt_of(body) for body in server.requests), "beside the reply's own text"


def test_a_constrained_judge_is_asked_nothing_twice(tmp_path: Path, scripted: Any) -> None:
    """vLLM holds a reply to the form of a verdict: what is cut off before it holds none."""
    server = scripted(lambda body: completion('{"Reason":"so on', finish="length"), owner="vllm")
    file = replies(tmp_path / "r.jsonl", "convbench")
    words = ["--protocol", "direct", "--as", "published"]
    refused = judge(file, tmp_path / "j.jsonl", "convbench", server.url, *words, "--extract")
    assert_one_line_error(refused, "--extract: tiny is held to the form of a verdict; leave it out")
    judge(file, tmp_path / "j.jsonl", "convbench", server.url, *words, code=3)
    assert not any(SECOND.search(prompt_of(body)) for body in server.requests)
    shown = run("critic", "score", tmp_path / "j.jsonl").stdout
    assert "24 unreadable verdicts without a second question (paper: asks it)" in shown
    refused = judge(file, tmp_path / "k.jsonl", "convbench", server.url, "--protocol", "quality", "--extract")
    assert_one_line_error(refused, "--extract is one of --protocol direct and pairwise")


def test_no_more_is_asked_at_once_than_concurrency_says(tmp_path: Path, monkeypatch: Any) -> None:
    """The turns of a conversation are judged side by side, and conversations too."""
    under_way = most = 0

    async def chat(self: ScriptedBackend, request: Request) -> Reply:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0.01)
        under_way -= 1
        return self.answer(request)

    monkeypatch.setattr(ScriptedBackend, "chat", chat)
    file = replies(tmp_path / "r.jsonl", "convbench")
    script = write_jsonl(tmp_path / "script.jsonl", [{"text": '{"Rating":7,"Reason":"so"}'}])
    words = ["--benchmark", "convbench", "--protocol", "direct", "--judge", script, "--concurrency", "3"]
    run("critic", "judge", file, "--out", tmp_path / "j.jsonl", *words, code=0)
    assert most == 3


class Lapsing:
    """A judge that has nothing to say of the second turn of one conversation while it is `broken`."""

    broken = True

    def __call__(self, body: dict[str, Any]) -> Any:
        bad = self.broken and "> m on 1 turn 2." in prompt_of(body) and "turn 3." not in prompt_of(body)
        return completion("") if bad else answer_all(body)


def test_a_turn_that_cannot_be_judged_is_shown_as_such_and_counted(tmp_path: Path, scripted: Any) -> None:
    """Once it is judged, the whole is judged again."""
    answer = Lapsing()
    server = scripted(answer)
    file, out = replies(tmp_path / "r.jsonl", "convbench"), tmp_path / "j.jsonl"
    words = ["--protocol", "direct"]
    done = judge(file, out, "convbench", server.url, *words)
    failures = {line.turn: line.failure for line in judged(out) if line.failure}
    assert done.returncode == 3 and failures == {2: "empty"}
    assert "1 conversations were judged without the judgment of a turn" in done.stdout
    assert jsonl.facts(out)["without_the_judgment_of_a_turn"] == 1
    (whole,) = [line for line in judged(out) if line.turn is None and line.sample.id == "1"]
    assert (whole.score, whole.unjudged) == (7, 1)
    shown = [text for body in server.requests if "> Turn 2: not judged" in (text := prompt_of(body))]
    assert len(shown) == 1
    assert all("> Turn 1: 7. so\n> Turn 2: not judged\n> Turn 3: 7. so" in content for content in shown)
    scored = run("critic", "score", out, "--max-failed", "1").stdout
    assert "m: 1 whole conversations were judged without the" in scored
    answer.broken, request_count = False, len(server.requests)
    assert judge(file, out, "convbench", server.url, *words).returncode == 3 and len(server.requests) == request_count
    assert judge(file, out, "convbench", server.url, *words, "--retry-failed").returncode == 0
    assert len(server.requests) == request_count + 2 and {line.unjudged for line in judged(out)} == {0}
    facts = jsonl.facts(out)
    assert (facts["verdicts"], facts["failed"], facts["judged_in_this_run"]) == (24, {}, 2)


def test_a_whole_that_failed_as_well_was_not_judged_without_its_turns(tmp_path: Path, scripted: Any) -> None:
    server, out = scripted(lambda body: completion("")), tmp_path / "j.jsonl"
    done, _ = judge_sample(tmp_path, "convbench", server, "--protocol", "direct", code=3)
    assert "24 verdicts, 24 failed" in done.stdout and "without the judgment" not in done.stdout
    assert jsonl.facts(out)["without_the_judgment_of_a_turn"] == 0
    assert "without the judgment" not in run("critic", "score", out, "--max-failed", "1").stdout


def test_the_judge_of_the_whole_sees_the_turns_judgments_in_its_own_order(tmp_path: Path, scripted: Any) -> None:
    """Beside the focus points, each order of a pair is shown what was said of the turns in that order, word for word
    where it is free text."""

    def answer(body: dict[str, Any]) -> Any:
        is_a = re.search(r"(# Reply of assistant A|（助手 A）)\n> m on", prompt_of(body))
        return completion(f"The model is {'A' if is_a else 'B'}.\nOverall, Response A is better.")

    server, conversation = scripted(answer), read_sample("convbench")[0]
    judge_sample(tmp_path, "convbench", server, "--protocol", "pairwise")
    contents = [prompt_of(body) for body in server.requests]
    wholes = [text for text in contents if "talked with a user" in text and f"> {conversation.caption}" in text]
    assert len(wholes) == 2
    for content in wholes:
        model = "A" if "> Assistant: m on" in content.split("# Conversation with assistant B")[0] else "B"
        for turn in (1, 2, 3):
            assert f"> Turn {turn}: A. The model is {model}.\n>   Overall, Response A is better." in content
        assert f"# What this answer has to achieve\n> Turn 3: {conversation.turns[2].focus}" in content


@pytest.mark.parametrize("benchmark", ["convbench", "multiverse", "alignmmbench"])
@pytest.mark.parametrize("order", ["both", "forced"])
def test_reasons_come_first_in_every_protocol(tmp_path: Path, scripted: Any, benchmark: str, order: str) -> None:
    server = scripted(answer_all)
    file, out = replies(tmp_path / "r.jsonl", benchmark), tmp_path / "j.jsonl"
    words = ["--order", order] if benchmark == "convbench" else []
    judge(file, out, benchmark, server.url, "--prompt", "reason_first", *words, code=0)
    for body in server.requests:
        schema = body["response_format"]["json_schema"]["schema"]
        assert next(iter(schema["properties"])) == schema["required"][0] == "Reason"
        assert schema["properties"]["Reason"]["maxLength"] >= (400 if benchmark == "alignmmbench" else 1000)
        assert body["max_tokens"] == 1024
    assert all(line.setup.reason_first and line.verdict.reason == "so" for line in judged(out) if line.turn)
    refused = judge(file, out, benchmark, server.url, *words)
    assert_one_line_error(refused, "made with pointwise_prompt 'pointwise_reason_first', now 'pointwise'")
    refused = judge(file, tmp_path / "k.jsonl", benchmark, server.url, "--prompt", "reason_first", "--no-reason")
    assert_one_line_error(refused, "--no-reason")


def test_mistakes_end_in_one_line(tmp_path: Path, scripted: Any) -> None:
    server = scripted(answer_all)
    file, out = replies(tmp_path / "r.jsonl", "convbench"), tmp_path / "j.jsonl"
    other, rows = replies(tmp_path / "v.jsonl", "visitbench"), ROOT / "data/samples/human_scored.jsonl"
    both = replies(tmp_path / "both.jsonl", "convbench", ("own", "no_image"), "n")
    for words, parts in [
        ([file, "--benchmark", "convbanch"], ("convbanch", "did you mean convbench?", "alignmmbench, convbench")),
        ([file, "--benchmark", "convbench", "--protocol", "direkt"], ("direkt", "checklist, direct")),
        ([file, "--benchmark", "convbench", "--order", "fair"], ("'both', 'random', 'forced'",)),
        ([file, "--benchmark", "visitbench"], ("r.jsonl:1", "a conversation of convbench")),
        ([file, "--benchmark", "convbench", "--protocol", "checklist"], ("nothing to judge", "no checklist")),
        ([file, "--benchmark", "convbench", "--against", file], ("the same model, 'm'",)),
        (
            [both, "--benchmark", "convbench", "--against", file],
            ("r.jsonl: lacks conversation '1' (no_image)", "judge it, --against the other"),
        ),
        ([file, "--benchmark", "convbench", "--questions", sample("visitbench")], ("lacks",)),
        ([rows, "--order", "forced"], ("--order cannot be used without --benchmark",)),
        (
            [file, "--benchmark", "convbench", "--protocol", "direct", "--against", other],
            ("needs --protocol pairwise",),
        ),
        ([file, "--benchmark", "convbench", "--reference-free"], ("--against",)),
        ([file, "--benchmark", "convbench", "--seed", "3"], ("--seed 3", "by --order random")),
        ([rows, "--aggregate", "median"], ("--aggregate median", "several --judge")),
        ([file, "--benchmark", "convbench", "--prompt", "pointwise_reason_first"], ("--protocol pointwise",)),
        ([tmp_path / "none.jsonl", "--benchmark", "convbench"], ("none.jsonl: no such file",)),
        *(
            ([replies(tmp_path / "a.jsonl", "alignmmbench"), "--benchmark", "alignmmbench", "--prompt", form],
             (f"--prompt {form}", "rates single answers"))
            for form in ("checklist", "pairwise", "correct", "direct_whole", "criteria")
        ),
    ]:  # fmt: skip
        assert_one_line_error(run("critic", "judge", *words, "--out", out, "--base-url", server.url), *parts)
    assert not out.exists()
    # A file that was judged by other options, of other replies, or by another prompt is another file.
    words = ["--protocol", "direct"]
    judge(file, out, "convbench", server.url, *words, code=0)
    before = out.read_bytes()
    refused = judge(file, out, "convbench", server.url, *words, "--turn-context", "all")
    assert_one_line_error(refused, "made with sight 'before', now 'all'; choose another --out")
    changed = replies(tmp_path / "c.jsonl", "convbench", system="m")
    changed.write_bytes(changed.read_bytes().replace(b"m on 1 turn 1.", b"m on 1 turn 0."))
    assert_one_line_error(judge(changed, out, "convbench", server.url, *words), "another reply")
    assert out.read_bytes() == before
    out.write_bytes(before.replace(b'"prompt_hash":"', b'"prompt_hash":"0'))
    refused = judge(file, out, "convbench", server.url, *words)
    assert_one_line_error(refused, "by another prompt; choose another --out (", "can be scored as it is")


def test_unheeded_options_are_refused(tmp_path: Path, scripted: Any) -> None:
    server, out = scripted(answer_all), tmp_path / "j.jsonl"
    for benchmark, words, part in (
        ("convbench", "--protocol direct --order forced", "--order forced is one of --protocol pairwise"),
        ("convbench", "--protocol direct --on-unparsed tie", "--on-unparsed tie is one of --protocol pairwise"),
        ("convbench", "--order forced --on-unparsed tie", "--on-unparsed tie: --order forced has no ties"),
        ("convbench", "--protocol pairwise --score expected", "--score expected is one of --protocol direct and"),
        ("multiverse", "--turn-context all", "--turn-context all is one of --protocol direct and pairwise"),
        ("multiverse", "--judging standard --judging no_focus", "--judging no_focus is one of --protocol direct and"),
        ("visitbench", "--judging standard --judging no_focus", "--judging no_focus: no turn of"),
    ):
        file = replies(tmp_path / f"{benchmark}.jsonl", benchmark)
        assert_one_line_error(judge(file, out, benchmark, server.url, *words.split()), part)
    assert not out.exists() and not server.requests


def test_what_a_killed_run_had_asked_is_shared_as_if_it_had_not_been_killed(tmp_path: Path, scripted: Any) -> None:
    """With and without the image the model said the same: one question to the judge, and still one after a kill."""
    server = scripted(answer_all)
    file, out = replies(tmp_path / "r.jsonl", "convbench", ("own", "no_image")), tmp_path / "j.jsonl"
    words = ["--protocol", "direct"]
    assert "critic infer has not finished it" in judge(file, out, "convbench", server.url, *words, code=0).stderr
    request_count, whole = len(server.requests), sorted(out.read_bytes().splitlines())
    lines = out.read_bytes().splitlines(keepends=True)
    out.write_bytes(b"".join(line for line in lines if b'"condition":"own"' in line))
    (tmp_path / "r.jsonl.run.json").write_text("{}")
    assert "has not finished" not in judge(file, out, "convbench", server.url, *words, code=0).stderr
    assert sorted(out.read_bytes().splitlines()) == whole and len(server.requests) == request_count


def test_tokens_of_two_conversations_that_read_alike_both_count(tmp_path: Path, scripted: Any) -> None:
    server, out = scripted(answer_all), tmp_path / "j.jsonl"
    _, first = next(iter(jsonl.read(replies(tmp_path / "all.jsonl", "alignmmbench"), ModelTurn)))
    twin = replace(first, conversation=replace(first.conversation, id="twin"))
    jsonl.write(file := tmp_path / "r.jsonl", [first, twin])
    assert judge(file, out, "alignmmbench", server.url).returncode == 0
    assert (jsonl.facts(out)["asked"], jsonl.facts(out)["tokens"]["prompt"]) == (2, 22)
