"""Inputs at object stores are copied for a command that reads them; all stages read packed files and Parquet."""

import json
import uuid
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, Done, assert_one_line_error, human_row, run

from critic import jsonl, tables

fsspec = pytest.importorskip("fsspec", reason="needs the remote extra")


@pytest.fixture
def store() -> str:
    """A folder at a store, empty."""
    return f"memory://{uuid.uuid4().hex}"


def put(url: str, *records: Any) -> str:
    with fsspec.open(url, "wb") as file:
        file.write("".join(json.dumps(record) + "\n" for record in records).encode())
    return url


def texts(*ratings: int) -> list[dict[str, str]]:
    return [{"text": f'{{"Rating": {rating}, "Reason": "fine"}}'} for rating in ratings]


FORMATS = ["jsonl.gz", "jsonl.zst", "parquet"]
CONVBENCH = ROOT / "data/samples/convbench/ConvBench.csv"


def test_inputs_are_read_there_and_copies_go(store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files, a judge's script, a pattern, sidecars (which merge needs), NAME=PATH and PATH:COLUMN, folders."""
    (temporary := tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    put(f"{store}/judge.jsonl", *texts(3, 5, 8))
    put(f"{store}/rows.jsonl", *(human_row(n, id=f"r{n}", image=None) for n in range(12)))
    for number in (1, 2):
        part = tmp_path / f"part.{number}.jsonl"
        words = ("--judge", f"{store}/judge.jsonl", "--score", "argmax", "--shard", f"{number}/2", "--out", part)
        for said in ("", "judged before, 0 to go"):
            done = run("critic", "judge", f"{store}/rows.jsonl", *words)
            assert done.returncode == 0 and said in done.stderr, done.stderr
        for file in (part, jsonl.sidecar(part)):
            with fsspec.open(f"{store}/{file.name}", "wb") as copy:
                copy.write(file.read_bytes())
    done = run("critic", "merge", f"{store}/part.*.jsonl", "--out", tmp_path / "whole.jsonl")
    assert done.returncode == 0 and "12 rows of 2 shards" in done.stdout, done.stderr
    with fsspec.open(f"{store}/whole.jsonl", "wb") as copy:
        copy.write((tmp_path / "whole.jsonl").read_bytes())
    words = ("--train", f"{store}/rows.jsonl", "--out", tmp_path / "audit")
    done = run("critic", "audit", f"internal={store}/whole.jsonl", *words)
    assert done.returncode == 0 and (tmp_path / "audit" / "summary.json").is_file(), done.stderr
    for file in (path for path in CONVBENCH.parent.rglob("*") if path.is_file()):
        with fsspec.open(f"{store}/bench/{file.relative_to(CONVBENCH.parent)}", "wb") as copy:
            copy.write(file.read_bytes())
    words = ("--benchmark", "convbench", "--model", f"{store}/judge.jsonl", "--data-root", f"{store}/bench")
    done = run("critic", "infer", f"{store}/bench/ConvBench.csv", *words, "--out", tmp_path / "turns.jsonl")
    assert done.returncode == 0, done.stderr
    assert not [*temporary.iterdir()], "copies are left"


@pytest.mark.parametrize("words", [("--out", "{}/o.jsonl"), ("--out={}/o.jsonl",)])
def test_an_output_is_a_local_file(store: str, words: tuple[str, ...]) -> None:
    done = run("critic", "judge", "rows.jsonl", *(word.format(store) for word in words))
    assert_one_line_error(done, f"--out {store}/o.jsonl: outputs are local files")


@pytest.mark.parametrize("name", ["no.jsonl", "no.*.jsonl"])
def test_what_is_not_there_or_not_known_is_said(store: str, name: str, tmp_path: Path) -> None:
    done = run("critic", "judge", f"{store}/{name}", "--out", tmp_path / "o.jsonl")
    assert_one_line_error(done, f"{store}/{name}: no such file")
    done = run("critic", "judge", "nostore://x/y", "--out", tmp_path / "o.jsonl")
    assert_one_line_error(done, "nostore://x/y", "pip install 'critic[remote]'")


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
    found = {file.name: json.loads(file.read_bytes()) for file in Path(folder).rglob("*") if file.name in SAID}
    return {"score": found["score.json"]["leaderboards"], "answers": found["answers.json"]["leaderboards"],
            "audit": {**found["summary.json"], "provenance": None}}  # fmt: skip


SAID = ("score.json", "answers.json", "summary.json")


@pytest.mark.slow
def test_every_stage_reads_what_is_packed_and_parquet(tmp_path: Path) -> None:
    rows = [human_row(n, id=f"r{n}", group=f"g{n // 2}", image=None, system="m") for n in range(24)]
    asked = [row for _, row in tables.rows(CONVBENCH)]
    found = {}
    for suffix in ("jsonl", *FORMATS):
        sources = []
        for name, content in (("bench", asked), ("rows", rows)):
            sources.append(tmp_path / f"{name}.{suffix}")
            jsonl.write(sources[-1], content)
        found[suffix] = through(str(tmp_path / suffix), suffix, *sources)
    for suffix in FORMATS:
        assert found[suffix] == found["jsonl"], suffix
