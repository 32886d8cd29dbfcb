"""critic infer: conversations that do not wait for each other, failures by name, resume, a model that sees."""

import asyncio
import base64
import hashlib
import json
import random
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from conftest import (
    ROOT,
    Done,
    Servers,
    assert_one_line_error,
    completion,
    kill_after_output,
    png_header,
    run,
    write_jsonl,
)
from judgments import Recorder
from samples import build_conversation

from critic.backends import Reply, Request, join_text
from critic.backends.scripted import ScriptedBackend
from critic.errors import Transient, UsageError
from critic.images import name_images
from critic.records import Conversation, ConversationTurn, ModelTurn, Sampling
from critic.stages.infer import Infer, Questions, main
from critic.stages.run import RunOptions
from critic.stages.totals import sum_replies

PICTURE = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAgAAAAICAIAAABLbSncAAAAEklEQVR4nGP4z8CAFWEXHbQSACj/P8Fu7N9hAAAAAElFTkSuQmCC"
)
"""A red square of eight pixels, as a PNG."""

ORDINALS = ("first", "second", "third")


def sheet(folder: Path, count: int, **images: str) -> Path:
    """A ConvBench sheet of `count` conversations; `images` names other images than a.png, by row (`row_3=…`)."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "a.png").write_bytes(PICTURE)
    rows = []
    for n in range(count):
        row = {
            "ID": str(n),
            "image_id": images.get(f"row_{n}", "a.png"),
            "instruction-conditioned-caption": "A square.",
        }
        for number, ordinal in enumerate(ORDINALS, 1):
            row[f"The_{ordinal}_turn_instruction"] = f"conversation {n} turn {number}"
            row[f"{ordinal.capitalize()}_turn_instruction_category"] = f"task {number}"
            row[f"{ordinal}_turn_answer"] = f"reference {n}.{number}"
        rows.append({**row, "third_turn_demands": "be brief"})
    return write_jsonl(folder / "sheet.jsonl", rows)


def infer(file: Path, out: Path, *words: object, code: int | None = None) -> Done:
    return run("critic", "infer", file, "--benchmark", "convbench", "--out", out, *words, code=code)


def lines(path: Path) -> dict[tuple[str, str, int], dict[str, Any]]:
    turns = [json.loads(line) for line in path.read_bytes().splitlines()]
    by_place = {(line["conversation"]["id"], line["condition"], line["turn"]): line for line in turns}
    assert len(by_place) == len(turns), "a turn is in the file twice"
    return by_place


def digest(messages: Sequence[Any]) -> str:
    return hashlib.sha256(json.dumps(messages).encode()).hexdigest()[:12]


def echo(body: dict[str, Any]) -> dict[str, Any]:
    """A reply that tells every prompt from every other."""
    return completion(f"reply {digest(body['messages'])}")


def content(said: Sequence[Any]) -> list[str]:
    return [join_text(message) for message in said]


# --- the runner on scripted replies


def talks(count: int, turns: int = 3) -> list[Conversation]:
    conversations = []
    for n in range(count):
        own = [ConversationTurn(prompt=f"c{n} ask {k}", reference=f"c{n} ref {k}") for k in range(1, turns + 1)]
        conversations.append(build_conversation(f"c{n}", *own, benchmark="convbench"))
    return conversations


def converse(
    conversations: list[Conversation],
    backend: ScriptedBackend,
    *conditions: str,
    known: Sequence[ModelTurn] = (),
    concurrency: int = 256,
    **sampling: Any,
) -> list[ModelTurn]:
    """What a run adds to `known`, in the order in which it became known."""
    turns: list[ModelTurn] = []
    settings = Sampling(**{"max_tokens": 64, **sampling})

    async def go() -> None:
        options = RunOptions(out=Path("none"), concurrency=concurrency, max_failed=1.0, retry_failed=False)
        questions = Questions(conversations=conversations, conditions=[*conditions], uris={}, root=Path(), images=None)
        stage = Infer(options, backend, questions, "model", settings)
        stage._gate = asyncio.Semaphore(concurrency)
        for line in known:
            stage.load_existing(line)
        await asyncio.gather(*(stage.work(conversation, turns.append) for conversation in conversations))

    asyncio.run(asyncio.wait_for(go(), 30))
    return turns


def answered(request: Request) -> Reply:
    messages = [dict(message) for message in request.messages]
    return Reply(text=f"own {digest(messages)}", prompt_tokens=10, completion_tokens=4)


def by_place(turns: Sequence[ModelTurn]) -> dict[tuple[str, int], ModelTurn]:
    return {(line.condition, line.turn): line for line in turns}


def test_the_next_turn_is_asked_on_the_models_own_reply() -> None:
    turns = by_place(converse(talks(1), Recorder(answered), "own", "perfect_perception"))
    first, second, perfect = (turns[place].reply for place in (("own", 1), ("own", 2), ("perfect_perception", 2)))
    seen = [message.content for message in turns["own", 3].seen]
    assert seen == ["c0 ask 1", first, "c0 ask 2", second, "c0 ask 3"]
    assert [message.content for message in turns["perfect_perception", 3].seen][1::2] == ["c0 ref 1", perfect]
    assert len({line.reply for line in turns.values()}) == 5


def test_what_conditions_share_is_generated_once() -> None:
    backend = Recorder(answered)
    names = ("own", "perfect_perception", "perfect_perception_reasoning", "oracle", "no_history", "single_turn")
    turns = converse(talks(4), backend, *names)
    assert len(turns) == 4 * (3 + 2 + 1 + 3 + 3 + 1) and len(backend.requests) == 4 * 8
    assert len({line.call for line in turns}) == 4 * 8
    sent = [json.dumps(content(request.messages)) for request in backend.requests]
    assert len(set(sent)) == len(sent)
    for line in turns:
        seen = [{"role": message.role, "content": message.content} for message in line.seen]
        assert line.reply and digest(seen) in line.reply
    totals = sum_replies(turns, Path("out.jsonl"))
    assert totals.count == len(turns) and totals.facts["tokens"]["prompt"] == 10 * len(backend.requests)


@pytest.mark.parametrize(
    ("count", "concurrency", "names"), [(64, 256, ["own"]), (9, 4, ["own", "no_history", "oracle"])]
)
def test_as_many_turns_are_in_flight_as_may_be(count: int, concurrency: int, names: list[str]) -> None:
    together, peak, most = 0, 0, min(count, concurrency)
    full = asyncio.Event()

    async def answer(request: Request) -> Reply:
        nonlocal together, peak
        together, peak = together + 1, max(peak, together + 1)
        if together == most:
            full.set()
        await full.wait()
        await asyncio.sleep(0.001)
        together -= 1
        return answered(request)

    converse(talks(count), Recorder(answer), *names, concurrency=concurrency)
    assert peak == most


@pytest.mark.parametrize("name", ["own", "oracle", "no_history", "no_image", "perfect_perception"])
def test_a_failed_turn_ends_a_conversation_that_would_show_its_reply(name: str) -> None:
    def answer(request: Request) -> Reply:
        if join_text(request.messages[-1]) == "c1 ask 2":
            raise Transient("HTTP 500: out of order")
        return answered(request)

    backend = Recorder(answer)
    turns = converse(talks(3), backend, name)
    failed = by_place([line for line in turns if line.conversation.id == "c1"])
    assert failed[name, 2].failure == "server_error" and failed[name, 2].reply is None
    third_was_asked = any(join_text(request.messages[-1]) == "c1 ask 3" for request in backend.requests)
    if name in ("oracle", "no_history"):
        assert third_was_asked and failed[name, 3].reply
    else:
        assert failed[name, 3].failure == "not_run" and failed[name, 3].detail == "turn 2 failed: server_error"
        assert not third_was_asked and not failed[name, 3].seen and failed[name, 3].call is None
    assert all(line.failure is None for line in turns if line.conversation.id != "c1")
    assert not any("out of order" in join_text(message) for request in backend.requests for message in request.messages)


def test_known_turns_are_not_asked_again_and_are_shared() -> None:
    whole = converse(talks(2), Recorder(answered), "own", "oracle")
    for cut in range(len(whole) + 1):
        backend = Recorder(answered)
        rest = converse(talks(2), backend, "own", "oracle", known=whole[:cut])

        def plain(line: ModelTurn) -> bytes:
            return msgspec.json.encode(msgspec.structs.replace(line, seconds=0.0))

        assert sorted(map(plain, [*whole[:cut], *rest])) == sorted(map(plain, whole))
        missing = {line.call for line in whole} - {line.call for line in whole[:cut]}
        assert len(backend.requests) == len(missing)
    # Known turns that were asked otherwise are refused.
    whole = converse(talks(1), Recorder(answered), "own")
    other = [msgspec.structs.replace(line, reply="tampered") for line in whole]
    with pytest.raises(UsageError, match=r"turn 2 .* was asked otherwise"):
        converse(talks(1), Recorder(answered), "own", known=other)


def test_a_reply_that_the_context_cuts_is_no_reply() -> None:
    """vLLM answers a prompt that leaves little room with a short reply."""

    def answer(request: Request) -> Reply:
        room = 100 - 40 * len(request.messages) // 2
        tokens = min(room, request.max_tokens)
        return Reply(
            text="word " * tokens,
            truncated=tokens < 64,
            prompt_tokens=40 * len(request.messages) // 2,
            completion_tokens=tokens,
        )

    turns = by_place(converse(talks(1), Recorder(answer, {"context": 100}), "own"))
    assert turns["own", 1].reply and turns["own", 2].failure == "context_length_exceeded"
    assert turns["own", 2].completion_tokens == 40, "what it cost is counted"


def test_a_reply_cut_at_max_tokens_is_a_reply() -> None:
    cut = Recorder(lambda request: Reply(text="and so on", truncated=True, prompt_tokens=5, completion_tokens=64))
    turns = converse(talks(1), cut, "own")
    assert [line.finish for line in turns] == ["length"] * 3 and all(line.reply for line in turns)
    assert sum_replies(turns[:1], Path("out.jsonl")).facts["calls_cut_at_max_tokens"] == 1
    # Token counts that the server does not give are not zero.
    (line,) = converse(talks(1, turns=1), Recorder(lambda request: Reply(text="fine", counted=False)), "own")
    assert line.prompt_tokens is line.cached_tokens is line.completion_tokens is None


def test_seeds_are_of_the_prompt_and_the_run() -> None:
    def seeds(seed: int, temperature: float = 1.0) -> dict[str, int | None]:
        backend = Recorder(lambda request: Reply(text="same"))
        converse(talks(2), backend, "own", temperature=temperature, seed=seed)
        return {json.dumps(content(request.messages)): request.seed for request in backend.requests}

    assert seeds(0) == seeds(0) and len(set(seeds(0).values())) == 6
    assert not set(seeds(0).values()) & set(seeds(1).values())
    assert set(seeds(0, temperature=0.0).values()) == {None}


def test_data_uris_have_short_names() -> None:
    uri = "data:image/png;base64," + base64.b64encode(PICTURE).decode()
    turn = ConversationTurn(prompt="?", images=[uri, "b.png"])
    (named,), uris = name_images([msgspec.structs.replace(talks(1)[0], turns=[turn])])
    short, path = named.turns[0].images
    assert uris == {short: uri} and short.startswith("sha256:") and path == "b.png"


# --- the command, against a server


def test_what_is_sent_and_what_is_written(tmp_path: Path, scripted: Servers) -> None:
    server = scripted(echo)
    out = tmp_path / "out.jsonl"
    # As in --judge, the name behind # is the model that is asked, and no part of the address.
    words = ("--base-url", f"{server.url}#tiny", "--condition", "own", "--condition", "oracle", "--max-tokens", "9")
    done = infer(sheet(tmp_path / "b", 5), out, *words, code=0)
    turns = lines(out)
    assert len(turns) == 5 * 6 and [body["model"] for body in server.requests] == ["tiny"] * 5 * 5
    uri = "data:image/png;base64," + base64.b64encode(PICTURE).decode()
    first = [{"type": "image_url", "image_url": {"url": uri}}, {"type": "text", "text": "conversation 2 turn 1"}]
    sent = [body["messages"] for body in server.requests if body["messages"][0]["content"] == first]
    assert len(sent) == 5 and {len(messages) for messages in sent} == {1, 3, 5}
    line = turns["2", "own", 2]
    reply = turns["2", "own", 1]["reply"]
    assert line["seen"] == [
        {
            "role": "user",
            "content": "conversation 2 turn 1",
            "images": [{"path": "a.png", "sha256": hashlib.sha256(PICTURE).hexdigest()}],
        },
        {"role": "assistant", "content": reply},
        {"role": "user", "content": "conversation 2 turn 2"},
    ]
    assert line["prompt_tokens"] == 11 and line["completion_tokens"] == 7
    assert line["system"] == "tiny" and line["sampling"] == {"max_tokens": 9, "temperature": 0.0}
    assert "base64" not in out.read_text("utf-8")
    facts = json.loads((tmp_path / "out.jsonl.run.json").read_text("utf-8"))
    assert facts["conditions"] == {"own": {"answered": 15}, "oracle": {"answered": 15}}
    assert facts["calls"] == 25 and facts["tokens"]["prompt"] == 25 * 11
    assert f"tokens: {25 * 11} in, {25 * 7} out" in done.stdout


def test_a_rerun_asks_nothing_and_another_condition_only_what_is_new(tmp_path: Path, scripted: Servers) -> None:
    server = scripted(echo)
    file, out = sheet(tmp_path / "b", 3), tmp_path / "out.jsonl"
    go = partial(main, file, "convbench", out, base_url=server.url)
    assert go() == 0
    before = out.read_bytes()
    assert go(condition=["own"]) == 0
    assert out.read_bytes() == before and len(server.requests) == 9
    both = partial(go, condition=["own", "oracle"])
    assert both() == 0 and out.read_bytes().startswith(before)
    assert len(lines(out)) == 18 and len(server.requests) == 9 + 6
    with pytest.raises(UsageError, match=r"out\.jsonl:1: .*turn 1 \(own\), is not among .*choose another --out"):
        go(condition=["oracle"])
    with pytest.raises(UsageError, match=r"out\.jsonl:1: made with sampling .*temperature=1\.0"):
        both(seed=1, temperature=1.0)
    with pytest.raises(UsageError, match=r"out\.jsonl:1: made with system 'tiny', now 'other'"):
        both(name="other")
    with pytest.raises(UsageError, match=r"conversation '2', turn 1 .* is not among"):
        both(limit=2)
    file.write_text(file.read_text("utf-8").replace("reference 1.3", "another"), "utf-8")
    with pytest.raises(UsageError, match="conversation '1' reads otherwise now"):
        both()


def test_images_that_cannot_be_sent(tmp_path: Path, scripted: Servers) -> None:
    pytest.importorskip("PIL", reason="needs Pillow")
    server = scripted(echo)
    bad = ("missing.png", "half.png", "bomb.png", "../secret.png", "link.png")
    file = sheet(tmp_path / "b", 7, **{f"row_{n}": name for n, name in enumerate(bad, 1)})
    (tmp_path / "secret.png").write_bytes(PICTURE)
    (tmp_path / "b" / "half.png").write_bytes(PICTURE[:50])
    (tmp_path / "b" / "bomb.png").write_bytes(png_header(40_000, 40_000))
    (tmp_path / "b" / "link.png").symlink_to(tmp_path / "secret.png")
    out = tmp_path / "out.jsonl"
    words = ["--base-url", server.url, "--condition", "own", "--condition", "perfect_perception"]
    done = infer(file, out, *words)
    assert done.returncode == 3 and "image_outside_root: 4 turns" in done.stdout, done.stdout + done.stderr
    turns = lines(out)
    names = [turns[str(n), "own", 1].get("failure") for n in range(7)]
    outside = "image_outside_root"
    assert names == [None, "image_missing", "image_unreadable", "image_too_large", outside, outside, None]
    for n in range(1, 6):
        assert turns[str(n), "perfect_perception", 2]["failure"] == names[n]
        assert turns[str(n), "own", 2]["failure"] == turns[str(n), "own", 3]["failure"] == "not_run"
        assert "seen" not in turns[str(n), "own", 1]
    assert len(server.requests) == 2 * 5
    (tmp_path / "b" / "missing.png").write_bytes(PICTURE)
    assert infer(file, out, *words, "--retry-failed").returncode == 3 and len(server.requests) == 3 * 5
    assert all("failure" not in line for place, line in lines(out).items() if place[0] == "1")
    assert len(lines(out)) == 7 * 5


def test_without_image_none_is_read(tmp_path: Path, scripted: Servers) -> None:
    server = scripted(echo)
    file = sheet(tmp_path / "b", 2, row_0="missing.png")
    words = ("--base-url", server.url, "--condition", "no_image", "--data-root", tmp_path / "nowhere")
    assert infer(file, tmp_path / "out.jsonl", *words).returncode == 0
    assert all(isinstance(message["content"], str) for body in server.requests for message in body["messages"])


def test_half_a_character_is_shown_to_later_turns_as_it_is_kept(tmp_path: Path, scripted: Servers) -> None:
    server, out = scripted(lambda body: completion("\ud83d and more")), tmp_path / "out.jsonl"
    infer(sheet(tmp_path / "b", 1), out, "--base-url", server.url, code=0)
    turns = lines(out)
    assert turns["0", "own", 3]["seen"][3]["content"] == turns["0", "own", 2]["reply"] == "\ufffd and more"


def test_the_callers_mistakes_end_in_one_line(tmp_path: Path, scripted: Servers) -> None:
    server = scripted(echo)
    file, out = sheet(tmp_path / "b", 1), tmp_path / "out.jsonl"
    wrong = infer(file, out, "--base-url", server.url, "--condition", "own_history")
    assert_one_line_error(wrong, "own_history", "perfect_perception", "oracle")
    assert_one_line_error(infer(file, out, "--base-url", f"{server.url}#huge"), "huge", "tiny")
    go = partial(main, file, "convbench", out)
    cases: list[tuple[str, dict[str, Any]]] = [
        ("--model FOLDER .* or --base-url", {}),
        ("--model .*no: expected a checkpoint folder", {"model": str(tmp_path / "no")}),
        ("no model 'big'; it offers tiny", {"base_url": server.url, "model": "big"}),
        ("--data-root .*no: no such folder", {"base_url": server.url, "data_root": tmp_path / "no"}),
        ("options of vLLM need", {"base_url": server.url, "vllm_options": ["--max-model-len", "9"]}),
    ]
    for message, options in cases:
        with pytest.raises(UsageError, match=message):
            go(**options)
    with pytest.raises(UsageError, match="convbench"):
        main(file, "convbanch", out, base_url=server.url)
    one_turn = ROOT / "data" / "samples" / "visitbench" / "visit_bench.csv"
    with pytest.raises(UsageError, match=r"asks nothing: .* 1 turn"):
        main(one_turn, "visitbench", out, base_url=server.url, condition=["perfect_perception"])
    assert not out.exists() and not server.requests


CONDITIONS = ("own", "perfect_perception", "perfect_perception_reasoning", "no_history")


@pytest.mark.e2e
@pytest.mark.parametrize(("kills", "count"), [(4, 20), pytest.param(20, 90, marks=pytest.mark.slow)])
def test_killed_at_random_moments(tmp_path: Path, scripted: Servers, kills: int, count: int) -> None:
    """Kill a run at random moments, finish it, and compare with a run that was left alone."""

    def slow(body: dict[str, Any]) -> Any:
        time.sleep(0.02)
        return echo(body)

    server = scripted(slow)
    file, out, whole = sheet(tmp_path / "b", count), tmp_path / "out.jsonl", tmp_path / "whole.jsonl"
    wanted = [word for name in CONDITIONS for word in ("--condition", name)]
    words = ["--base-url", server.url, *wanted]
    assert infer(file, whole, *words, "--concurrency", "16").returncode == 0
    request_count = len(server.requests)
    start = ["critic", "infer", file, "--benchmark", "convbench", "--out", out, "--concurrency", "3", *words]
    chance = random.Random(kills)
    for kill in range(kills):
        kill_after_output(start, out, chance)
        assert not (tmp_path / "out.jsonl.run.json").exists(), f"kill {kill} came too late to prove anything"
        if chance.random() < 0.5:  # as if the machine had gone down in the middle of a line
            data = out.read_bytes()
            out.write_bytes(data[: len(data) - chance.randrange(1, 40)])
    infer(file, out, *words, code=0)
    resumed, expected = lines(out), lines(whole)
    for line in [*resumed.values(), *expected.values()]:
        for name in ("seconds", "attempts"):  # how the call went, not what came of it
            line.pop(name, None)
    assert resumed == expected and len(resumed) == count * 9
    assert len(server.requests) - request_count <= request_count + kills * 6, "turns that were known were asked again"
