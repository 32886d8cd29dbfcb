"""What comes from outside ends no run and loses nothing that was paid for: replies, bodies, counts, rows, names."""

import json
import os
from pathlib import Path

import pytest
from conftest import (
    Servers,
    assert_one_line_error,
    human_row,
    run,
    run_apart,
    write_jsonl,
)
from stages.test_judge import judged, reply_with

from critic import jsonl

DEEP = "[" * 5000 + "]" * 5000


def test_people_s_rows_with_half_a_character_are_judged_and_deep_ones_named(tmp_path: Path, scripted: Servers) -> None:
    server, words = scripted(lambda body: reply_with({"7": 1.0})), ["--out", tmp_path / "out.jsonl", "--base-url"]
    data = tmp_path / "data.jsonl"
    whole = json.dumps(human_row(0, response="half \ud83d", id="id \udc00", group="\ud83d")) + "\n"
    data.write_text(whole, "utf-8")
    for _ in range(2):
        assert run("critic", "judge", data, *words, server.url).returncode == 0
    assert judged(tmp_path / "out.jsonl")[0]["response"]["text"] == "half \ufffd"
    data.write_text(whole + json.dumps(human_row(1))[:-1] + f', "more": {"[" * 2000 + "]" * 2000}}}\n', "utf-8")
    assert_one_line_error(run("critic", "judge", data, *words, server.url), "data.jsonl:2: nested too deep")
    columns = "id,question,response,reference,history"
    for number, (cell, problem) in enumerate(
        ((r'[{""user"": ""\ud83d"", ""assistant"": ""b""}]', ""), (DEEP, "data.csv:2"))
    ):
        (data := tmp_path / "data.csv").write_text(f'{columns}\na,q,r,f,"{cell}"\n', "utf-8")
        done = run("critic", "judge", data, "--out", tmp_path / f"{number}.jsonl", "--base-url", server.url)
        if problem:
            assert_one_line_error(done, problem)
        else:
            assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("encoding", "env"), [("gbk", {}), ("utf-8", {"LC_ALL": "C", "PYTHONUTF8": "0"})], ids=["GBK", "ASCII locale"]
)
def test_file_names_that_the_locale_cannot_read(tmp_path: Path, encoding: str, env: dict[str, str]) -> None:
    def named(name: str) -> str:
        return os.fsdecode(name.encode(encoding))

    folder = tmp_path / named("数据")
    folder.mkdir()
    data, scripts = write_jsonl(folder / named("行.jsonl"), [human_row(1)]), folder / named("评委.jsonl")
    scripts.write_text('{"text": "{\\"Rating\\": 7}"}\n', "utf-8")
    apart = os.environ | env
    for where in (data, folder / named("夹")):
        if where != data:
            where.mkdir()
            data.rename(where / data.name)
        out = folder / named(f"{where.name}出.jsonl") if encoding == "utf-8" else folder / f"{where.is_dir()}.jsonl"
        words = [
            "critic",
            "judge",
            where,
            "--judge",
            scripts,
            "--out",
            out,
            "--name",
            named("法官"),
            "--score",
            "argmax",
        ]
        for _ in range(2):
            done = run_apart(*words, env=apart)
            assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
        (line,) = judged(out)
        assert line["score"] == 7
        if encoding == "utf-8":
            assert line["judge"] == "法官" and jsonl.facts(out)["model"] == "评委"
    assert run_apart("critic", "score", out, "--out", folder / named("分"), env=apart).returncode == 0


def test_an_image_is_found_by_its_name_where_the_locale_is_not_utf_8(tmp_path: Path) -> None:
    pillow = pytest.importorskip("PIL.Image")
    pillow.new("RGB", (8, 8), "red").save(tmp_path / "图.png")
    data = write_jsonl(tmp_path / "rows.jsonl", [human_row(1, image="图.png"), human_row(2, image="nul\0.png")])
    (scripts := tmp_path / "s.jsonl").write_text('{"text": "{\\"Rating\\": 7}"}\n', "utf-8")
    env = os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0"}
    words = ["--out", tmp_path / "out.jsonl", "--judge", scripts, "--images", "show", "--score", "argmax"]
    done = run_apart("critic", "judge", data, *words, env=env)
    assert done.returncode == 3 and "Traceback" not in done.stderr, done.stderr
    found = {line["response"]["id"]: line["verdict"].get("failure") for line in judged(tmp_path / "out.jsonl")}
    assert found == {"row-1": None, "row-2": "image_missing"}
