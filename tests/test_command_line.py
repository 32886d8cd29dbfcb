"""The command line itself: the text and speed of --help, unknown names, completion."""

import contextlib
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import IN_TURN, ROOT, Copied, assert_one_line_error, human_row, run, write_jsonl
from stages.test_judge_conversations import answer_all, judge, replies
from typer.main import get_command

from critic.cli import STAGES, _build_app, _load


def test_the_help_of_judge_has_groups_and_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = run("critic", "judge", "--help").stdout
    groups = [line.removesuffix(":") for line in shown.splitlines() if re.match(r"[A-Z][a-z ]+:$", line)]
    assert groups == [
        *("Arguments", "Data", "Endpoint", "The form of a verdict", "Limits", "Several machines"),
        *("Options", "Rarely needed", "Examples"),
    ]
    assert shown.count("\n  critic judge ") == 3 and "--as published" in shown
    assert re.search(r"--shard K/N +Do part K of N; critic merge joins the parts\.\n", shown)
    assert run("critic", "judge", "-h").stdout == shown


def test_every_parameter_has_help(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read from docstrings, the help of a misspelled name would be missing."""
    monkeypatch.setattr("sys.path", [*sys.path])
    commands = {stage: get_command(_build_app(stage, _load(stage))) for stage in STAGES}
    bare = {
        f"{stage} {parameter.name}"
        for stage, command in commands.items()
        for parameter in list[Any](command.params)
        if not (parameter.help or parameter.hidden)
    }
    assert not bare


def test_alone_it_says_what_to_do_first() -> None:
    done = run("critic")
    assert done.returncode == 2 and "Begin with" in done.stdout and all(stage in done.stdout for stage in STAGES)
    assert re.fullmatch(r"critic \d+\.\d+\.\d+\n", run("critic", "--version").stdout)


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (
            ["juge"],
            ("did you mean judge? there are build,", "import-grades, score, audit, attack, push, doctor, demo"),
        ),
        (["judge", "r.jsonl", "--out", "j.jsonl", "--prompt", "scale5"], ("'scale5'; did you mean scale_5?",)),
        (["judge", "r.jsonl", "--out", "j.jsonl", "--no-reson"], ("--no-reson", "--no-reason")),
    ],
)
def test_of_a_name_that_is_none_it_says_what_was_meant(words: list[str], parts: tuple[str, ...]) -> None:
    assert_one_line_error(run("critic", *words), *parts)


OWN = [*("--map", "prompt=question", "--map", "answer=response", "--map", "stars=human_score"), *("--scale", "1:5")]


def test_rows_of_ones_own_are_read_wherever_rows_are(tmp_path: Path) -> None:
    """Texts and scores come from the named columns."""
    table = [{"prompt": f"{n}?", "answer": f"a-{n}", "reference": "r", "stars": 1 + n % 5} for n in range(10)]
    rows = write_jsonl(tmp_path / "rows.jsonl", table)
    annotate = ["annotate", rows, "--db", tmp_path / "db", "--to", "csv", "--export", tmp_path / "labels.csv"]
    run("critic", *annotate, *OWN, code=0)
    assert "a-3" in (tmp_path / "labels.csv/rater-1.csv").read_text("utf-8")
    run("critic", "attack", rows, "--below", "3.2", "--out", tmp_path / "attacked.jsonl", *OWN, code=0)
    assert '"human_score":1.0,"scale_min":1.0' in (tmp_path / "attacked.jsonl").read_text("utf-8")


SAMPLES = ROOT / "data/samples"


def test_what_is_wrong_is_said_with_what_to_do(tmp_path: Path) -> None:
    """No judge is asked before, and existing files stay unchanged."""
    rows, reply = SAMPLES / "human_scored.jsonl", tmp_path / "reply.jsonl"
    reply.write_text('{"text": "{\\"Rating\\": 7, \\"Reason\\": \\"x\\"}"}\n')
    notes, table, pictured = tmp_path / "notes.jsonl", tmp_path / "vlmevalkit.tsv", tmp_path / "pictured.jsonl"
    notes.write_text('{"dear": "diary"}\n')
    table.write_text("index\tquestion\tanswer\tprediction\n1\tq\ta\tb\n")
    write_jsonl(pictured, [human_row(number, image=f"pictures/{number}.png") for number in range(3)])
    scripted, out = ["--judge", reply], ["--out", tmp_path / "out.jsonl"]
    cases: list[tuple[list[object], str]] = [
        (["judge", rows, "--judge", "http://127.0.0.1:9/v1", *out], "http://127.0.0.1:9/v1: ConnectError"),
        (["judge", rows, "--judge", "http://127.0.0.1:9/v1", *out], "; `critic serve FOLDER` starts one"),
        (["judge", rows, *scripted, "--out", notes], f"--out {notes}: no judgments or replies of an earlier run"),
        (["judge", table, *scripted, *out], f"{table}: replies of another program: give --benchmark NAME"),
        (["score", table, *out], f"`critic judge {table} --benchmark NAME --questions FILE` makes them of replies"),
        (["judge", rows, *scripted, "--model", "m", *out], "--model m: chooses among a server's models; --judge names"),
        (
            ["judge", pictured, *scripted, "--images", "show", *out],
            f"3 of 3 images are not there, the first {tmp_path / 'pictures/0.png'}; --data-root FOLDER says where",
        ),
    ]
    for words, part in cases:
        assert_one_line_error(run("critic", *words), part)
    assert notes.read_text() == '{"dear": "diary"}\n' and not (tmp_path / "out.jsonl").exists()
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures/0.png").write_bytes((SAMPLES / "alignmmbench/images/fruit.png").read_bytes())
    some = run("critic", "judge", pictured, *scripted, "--images", "show", *out)
    assert some.returncode == 3 and "warning: 2 of 3 images are not there, the first " in some.stderr
    named = ["--map", "prediction=response", "--map", "answer=reference", "--out", tmp_path / "named.jsonl"]
    assert "1 rows, 0 failed" in run("critic", "judge", table, *scripted, *named).stdout


def test_infer_counts_the_calls_that_it_made(tmp_path: Path) -> None:
    reply, file, out = tmp_path / "m.jsonl", tmp_path / "metadata.jsonl", tmp_path / "replies.jsonl"
    reply.write_text('{"text": "two"}\n')
    file.write_bytes((SAMPLES / "alignmmbench/metadata.jsonl").read_bytes())
    (tmp_path / "images").mkdir()
    (tmp_path / "images/fruit.png").write_bytes((SAMPLES / "alignmmbench/images/fruit.png").read_bytes())
    words = ["infer", file, "--benchmark", "alignmmbench", "--model", reply, "--out", out]
    done = run("critic", *words)
    calls = sum('"reply"' in line for line in out.read_text("utf-8").splitlines())
    assert 0 < calls < 8 and f"8 turns by {calls} calls\n" in done.stdout
    first, *_ = [line for line in out.read_text("utf-8").splitlines(keepends=True) if '"reply"' in line]
    out.write_text(first, "utf-8")
    assert f"8 turns by {calls} calls, 1 of them in earlier runs\n" in run("critic", *words).stdout


def test_help_needs_no_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The line that names a missing extra needs none either."""
    heavy = ("torch", "transformers", "tokenizers", "deepspeed", "vllm", "huggingface_hub", "gguf", "starlette", "PIL")
    hide = f"import sys; sys.modules.update(dict.fromkeys({heavy!r}))\n"
    monkeypatch.setattr("conftest.IN_TURN", hide + IN_TURN)
    with contextlib.closing(Copied(ROOT, tmp_path)) as critic:
        for stage in ("base", "train", "serve", "annotate"):
            shown = critic(stage, "--help")
            assert shown.stdout.startswith(f"Usage: critic {stage}") and not shown.stderr
        for words in (["base", "gemma-3-270m", "b"], ["train", "tiny", "--train", "r.jsonl", "--out", "o"]):
            assert_one_line_error(critic(*words, code=2), f"critic {words[0]}: ", "; pip install -e '", "[train]'")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_complete_stages_and_options(shell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def completed(typed: str) -> str:
        monkeypatch.setenv("_CRITIC_COMPLETE", f"complete_{shell}")
        monkeypatch.setenv("_TYPER_COMPLETE_ARGS", typed)
        monkeypatch.setenv("_TYPER_COMPLETE_FISH_ACTION", "get-args")
        monkeypatch.setenv("COMP_WORDS", typed)
        monkeypatch.setenv("COMP_CWORD", str(typed.count(" ")))
        return run("critic").stdout

    assert "--protocol" in completed("critic judge --proto")
    monkeypatch.setattr("critic.cli.import_module", pytest.fail)  # a name needs no stage imported
    assert "judge" in completed("critic ju")


def test_as_published_fits_the_protocols_of_the_paper(tmp_path: Path, scripted: Any) -> None:
    server, file = scripted(answer_all), replies(tmp_path / "multiverse.jsonl", "multiverse")
    refused = judge(file, tmp_path / "k", "multiverse", server.url, "--as", "published", "--protocol", "direct")
    assert_one_line_error(refused, "--as published: MultiVerse is judged by --protocol checklist and quality")
    rows = ROOT / "data/samples/human_scored.jsonl"
    refused = run("critic", "judge", rows, "--as", "published", "--out", tmp_path / "k")
    assert_one_line_error(refused, "--as published cannot be used without --benchmark")


def test_names_of_before_are_understood_and_not_shown(tmp_path: Path) -> None:
    old = run(
        "critic", "judge", tmp_path / "none.jsonl", "--out", tmp_path / "j.jsonl", "--sight=all", "--unread", "no"
    )
    assert_one_line_error(old, "'--on-unparsed'", "'fail', 'tie'")
    for before, now in (("people", "import-grades"), ("card", "describe")):
        assert run("critic", before, "--help").stdout == run("critic", now, "--help").stdout
        assert f"\n  {before} " not in run("critic").stdout
    assert "--within" not in run("critic", "audit", "--help").stdout
