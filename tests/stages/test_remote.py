"""Paths at object stores: what is read is fetched, what is written is sent when it is whole.

With pip install s3fs 'moto[server]' gcsfs gcp-storage-emulator also against servers of S3's and Google's protocols:
pytest -m slow tests/stages/test_remote.py
"""

import fcntl
import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, Done, assert_one_line_error, free_port, human_row, run

from critic import jsonl, tables
from critic.stages import remote

fsspec = pytest.importorskip("fsspec", reason="needs the remote extra")


@pytest.fixture(params=["memory", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("s3", "gs"))])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A folder at a store, empty."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    if request.param == "memory":
        yield f"memory://{uuid.uuid4().hex}"
        return
    start, stop = {"s3": s3_server, "gs": gs_server}[request.param](monkeypatch)
    start()
    try:
        fsspec.filesystem(request.param).mkdir(bucket := f"bench-{uuid.uuid4().hex}")
        yield f"{request.param}://{bucket}/runs"
    finally:
        fsspec.filesystem(request.param).clear_instance_cache()
        stop()


Server = tuple[Callable[[], object], Callable[[], object]]
"""What starts and stops it."""


def s3_server(monkeypatch: pytest.MonkeyPatch) -> Server:
    pytest.importorskip("s3fs")
    server = pytest.importorskip("moto.server").ThreadedMotoServer(port=(port := free_port()), verbose=False)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    return server.start, server.stop


def gs_server(monkeypatch: pytest.MonkeyPatch) -> Server:
    # Kinds of buckets are asked for by gRPC, which the emulator does not speak.
    monkeypatch.setenv("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    # It says on stderr that a client hung up, and ours stop reading when they have what they need.
    monkeypatch.setattr("socketserver.BaseServer.handle_error", lambda *_: None)
    pytest.importorskip("gcsfs")
    emulator = pytest.importorskip("gcp_storage_emulator.server")
    server = emulator.create_server("127.0.0.1", port := free_port(), in_memory=True)
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{port}")
    return server.start, server.stop


def files(store: str) -> dict[str, bytes]:
    made, path = fsspec.core.url_to_fs(store)
    return {name.rpartition("/")[2]: made.cat_file(name) for name in made.find(path)}


def put(url: str, *records: Any) -> str:
    with fsspec.open(url, "wb") as file:
        file.write("".join(json.dumps(record) + "\n" for record in records).encode())
    return url


def texts(*ratings: int) -> list[dict[str, str]]:
    return [{"text": f'{{"Rating": {rating}, "Reason": "fine"}}'} for rating in ratings]


def judge(store: str, out: str = "judged.jsonl", *words: object) -> Done:
    made = ("--out", f"{store}/{out}", "--judge", f"{store}/judge.jsonl", "--score", "argmax")
    return run("critic", "judge", f"{store}/rows.jsonl", *made, *words)


def begun(store: str, count: int = 12) -> None:
    put(f"{store}/judge.jsonl", *texts(3, 5, 8))
    put(f"{store}/rows.jsonl", *(human_row(n, id=f"r{n}", image=None) for n in range(count)))


def ids(content: bytes) -> list[str]:
    return [json.loads(line)["response"]["id"] for line in content.splitlines()]


def test_judge_merge_and_audit_read_and_write_there(store: str, tmp_path: Path) -> None:
    begun(store)
    for number in (1, 2):
        done = judge(store, f"part.{number}.jsonl.gz", f"--shard={number}/2")
        assert done.returncode == 0, done.stderr
    done = run("critic", "merge", f"{store}/part.*.jsonl.gz", f"--out={store}/whole.jsonl")
    assert done.returncode == 0, done.stderr
    there = files(store)
    assert sorted(ids(there["whole.jsonl"])) == sorted(f"r{n}" for n in range(12))
    assert json.loads(there["whole.jsonl.run.json"])["rows"] == 12 and there["part.1.jsonl.gz"][:1] != b"{"
    done = run("critic", "audit", f"internal={store}/whole.jsonl", "--out", f"{store}/audit")
    assert done.returncode == 0, done.stderr
    assert {"summary.json", "report.html"} <= files(store).keys()
    assert not any((tmp_path / "cache/critic/out").iterdir())  # nothing stays behind
    assert not (tmp_path / "cache/critic/in").exists()


def test_what_did_not_end_is_kept_and_what_is_there_is_gone_on_with(store: str, tmp_path: Path) -> None:
    begun(store)
    put(f"{store}/judge.jsonl", {"text": "no verdict"})
    assert judge(store).returncode == 3  # whole, though all failed
    first = files(store)["judged.jsonl"]
    put(f"{store}/judge.jsonl", *texts(3, 5, 8))
    assert judge(store).returncode == 3 and files(store)["judged.jsonl"] == first  # nothing is left
    assert judge(store, "judged.jsonl", "--retry-failed").returncode == 0
    assert files(store)["judged.jsonl"] != first and len(ids(files(store)["judged.jsonl"])) == 12
    before = files(store)
    done = judge(store, "judged.jsonl", "--name", "another")
    assert_one_line_error(done, "choose another --out")
    assert "nothing was sent" in done.stderr and files(store) == before
    with pytest.MonkeyPatch.context() as elsewhere:
        elsewhere.setenv("XDG_CACHE_HOME", str(tmp_path / "elsewhere"))
        begun(store, 13)
        assert "12 judged before, 1 to go" in judge(store).stderr
    assert "13 judged before, 0 to go" in judge(store).stderr  # what the refused run fetched is old by now


def test_a_run_that_breaks_off_is_finished_on_the_same_machine(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    begun(store)
    append = jsonl.Appender.append
    left = iter(range(5))

    def full(self: Any, record: Any) -> None:
        if next(left, None) is None:
            raise OSError(28, "No space left on device")
        append(self, record)

    with monkeypatch.context() as patch:
        patch.setattr("critic.jsonl.Appender.append", full)
        assert_one_line_error(judge(store), "No space left on device", "run the same command again")
    assert "judged.jsonl" not in files(store)
    done = judge(store)
    assert done.returncode == 0 and "5 judged before" in done.stderr, done.stderr
    assert sorted(ids(files(store)["judged.jsonl"])) == sorted(f"r{n}" for n in range(12))


def test_a_file_that_changed_is_fetched_again(store: str) -> None:
    begun(store, 3)
    assert judge(store, "one.jsonl").returncode == 0
    begun(store, 4)
    assert judge(store, "two.jsonl").returncode == 0
    assert [len(ids(files(store)[name])) for name in ("one.jsonl", "two.jsonl")] == [3, 4]


FORMATS = ["jsonl.gz", "jsonl.zst", "parquet"]
CONVBENCH = ROOT / "data/samples/convbench/ConvBench.csv"


def through(folder: str, suffix: str, benchmark: Path, rows: Path) -> dict[str, Any]:
    """The summaries of a benchmark and of rows that went through all stages in files of a kind; each run that asks a
    model is run again when it is whole."""

    def stage(*words: object, again: bool = False) -> Done:
        for _ in range(1 + again):
            done = run("critic", *words)
            assert done.returncode == 0, f"{words}\n{done.stderr}"
        return done

    def place(name: str) -> str:
        return f"{folder}/{name}.{suffix}"

    def grows(name: str) -> str:
        return f"{folder}/{name}.jsonl"

    model = put(f"{folder}/model.jsonl", {"text": "Two apples."})
    replies = put(f"{folder}/judge.jsonl", *texts(3, 5, 8))
    for file, name in ((rows, "rows"), (benchmark, "bench")):
        with fsspec.open(place(name), "wb") as copy:
            copy.write(file.read_bytes())
    infer = ("infer", place("bench"), "--benchmark", "convbench", "--model", model, "--data-root", CONVBENCH.parent)
    judge = ("--judge", replies, "--score", "argmax")
    for number in (1, 2):
        shard = ("--shard", f"{number}/2", "--out")
        stage(*infer, *shard, grows(f"turns.{number}"), again=True)
        stage("judge", place("rows"), *judge, *shard, grows(f"part.{number}"), again=True)
    stage("merge", grows("turns.1"), grows("turns.2"), "--out", place("turns"))
    stage("merge", grows("part.1"), grows("part.2"), "--out", place("whole"))
    stage("judge", place("turns"), *judge, "--protocol", "direct", "--questions", place("bench"),
          "--out", grows("judged"), again=True)  # fmt: skip
    stage("score", grows("judged"), "--questions", place("bench"), "--out", f"{folder}/score.json")
    stage("score", place("whole"), "--out", f"{folder}/answers.json")
    stage("audit", f"internal={place('whole')}", "--train", place("rows"), "--out", f"{folder}/audit")
    found = {name: json.loads(content) for name, content in files(folder).items() if name in SAID}
    return {"score": found["score.json"]["systems"], "answers": found["answers.json"]["systems"],
            "audit": {**found["summary.json"], "provenance": None}}  # fmt: skip


SAID = ("score.json", "answers.json", "summary.json")


@pytest.mark.slow
@pytest.mark.parametrize("where", ["local", "store"])
def test_every_stage_reads_and_writes_what_is_packed_and_parquet(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    rows = [human_row(n, id=f"r{n}", group=f"g{n // 2}", image=None, system="m") for n in range(24)]
    asked = [row for _, row in tables.rows(CONVBENCH)]
    found = {}
    for suffix in ("jsonl", *FORMATS):
        sources = []
        for name, content in (("bench", asked), ("rows", rows)):
            sources.append(tmp_path / f"{name}.{suffix}")
            jsonl.write(sources[-1], content)
        folder = tmp_path / suffix if where == "local" else f"memory://{uuid.uuid4().hex}"
        found[suffix] = through(str(folder), suffix, *sources)
    for suffix in FORMATS:
        assert found[suffix] == found["jsonl"], suffix


def test_copies_go_with_the_last_command_that_uses_them(store: str, tmp_path: Path) -> None:
    """However a command ends; and while another one runs they stay, for they are its copies, too."""
    begun(store)
    cache = tmp_path / "cache/critic"
    cache.mkdir(parents=True)
    with (cache / "in.lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_SH)
        assert judge(store).returncode == 0
        assert {path.name for path in (cache / "in").rglob("*.jsonl")} == {"judge.jsonl", "rows.jsonl"}
    assert_one_line_error(judge(store, "x.jsonl", "--score", "none"), "--score")
    assert not (cache / "in").exists() and cache.is_dir()


@pytest.mark.parametrize("where", ["Path.replace = kill", "kill()"])
def test_a_killed_command_leaves_nothing_that_is_taken_for_whole(tmp_path: Path, where: str) -> None:
    """Killed behind the first bytes fetched, and at work with whole copies, which the next command takes away."""
    cache, out = tmp_path / "cache/critic", tmp_path / "judged.jsonl"
    rows = put(f"file://{tmp_path}/rows.jsonl", *(human_row(n, id=f"r{n}", image=None) for n in range(3)))
    words = [rows, "--judge", put(f"file://{tmp_path}/judge.jsonl", *texts(3)), "--out", f"file://{out}"]
    program = f"""
import os, sys
from pathlib import Path
from critic.stages.remote import local_paths
def kill(*_): os.kill(os.getpid(), 9)
{where if "=" in where else ""}
with local_paths(sys.argv[1:]): kill()
"""
    killed = subprocess.run(
        [sys.executable, "-c", program, *words],
        env={**os.environ, "XDG_CACHE_HOME": str(cache.parent)}, check=False,
    )  # fmt: skip
    assert killed.returncode == -signal.SIGKILL and any(cache.rglob("rows.jsonl*"))
    assert any(cache.rglob("rows.jsonl")) == (where == "kill()")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(cache.parent))
        assert run("critic", "judge", *words, "--score", "argmax").returncode == 0
    assert sorted(ids(out.read_bytes())) == ["r0", "r1", "r2"] and not (cache / "in").exists()


def test_what_is_not_there_or_not_known_is_said(store: str) -> None:
    assert_one_line_error(run("critic", "judge", f"{store}/none.jsonl", "--out", "x.jsonl"), f"{store}/none.jsonl: ")
    assert_one_line_error(run("critic", "judge", "nowhere://a/b.jsonl", "--out", "x.jsonl"), "nowhere://a/b.jsonl: ")


def test_a_panel_is_not_judged_again(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is anything sent but what was made: another machine may have written the rest since."""
    send = remote.AtStore.send

    def late(self: Any) -> None:
        for name in others:
            put(f"{store}/{name}", {"written": "meanwhile"})
        send(self)

    monkeypatch.setattr(remote.AtStore, "send", late)
    others: list[str] = []
    begun(store)
    judges = ["--judge", f"{store}/judge.jsonl", "--judge", f"{store}/second.jsonl"]
    put(f"{store}/second.jsonl", *texts(4, 4, 4))
    for name, member in (("panel.jsonl", "panel.2.jsonl"), ("panel.jsonl.gz", "panel.2.jsonl")):
        words = ["critic", "judge", f"{store}/rows.jsonl", "--out", f"{store}/{name}", "--score", "argmax", *judges]
        others.clear()
        assert run(*words).returncode == 0
        before = files(store)
        assert {member, f"{member}.run.json"} <= before.keys()
        others += ["panel.9.jsonl", member]
        put(f"{store}/panel.9.jsonl", {"none": "of its members"})
        again = run(*words)
        assert again.returncode == 0 and again.stderr.count("12 judged before, 0 to go") == 2, again.stderr
        assert json.loads(files(store)[f"{name}.run.json"])["rows"] == 12
        assert all(b"meanwhile" in files(store)[other] for other in others)


def test_an_output_of_which_a_part_was_fetched_is_fetched_anew(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun(store)
    assert judge(store).returncode == 0
    before, get = files(store), remote.AtStore._get

    def breaks(self: Any, path: str, local: Path) -> None:
        if local.name == "judged.jsonl":
            local.parent.mkdir(parents=True)
            raise ConnectionError("gone")
        get(self, path, local)

    with monkeypatch.context() as broken:
        broken.setattr(remote.AtStore, "_get", breaks)
        assert_one_line_error(judge(store), "gone")
    again = judge(store)
    assert again.returncode == 0 and "12 judged before, 0 to go" in again.stderr
    there = files(store)
    assert there.keys() == before.keys() and there["judged.jsonl"] == before["judged.jsonl"]
