"""data/bench_demo.py with servers by script: which commands it runs, that their results are on the pages, and how the
demos' judges are asked."""

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, command, completion, human_row, run, write_jsonl

from critic import jsonl
from critic.stages import demo


def answer(body: dict[str, Any]) -> Any:
    """A line of a model; of a judge a verdict, that of what is shown last where it is asked which is better."""
    schema = body.get("response_format", {}).get("json_schema", {}).get("schema")
    if schema is None:
        return completion("a line")
    values = {"Rating": 7, "Verdict": "B", "Reason": "so"}
    return completion(json.dumps({key: values.get(key, "yes") for key in schema["properties"]}))


def test_sigterm_ends_what_a_demo_started(tmp_path: Path) -> None:
    """A program of the demo, here one that says its number and then would take half a minute, does not stay behind."""
    for name in demo.PROGRAMS:
        (file := tmp_path / name).parent.mkdir(exist_ok=True)
        file.write_text("import os, time; print('number', os.getpid(), flush=True); time.sleep(30)")
    quiet: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    with subprocess.Popen(command("critic", "demo"), cwd=tmp_path, **quiet) as process:
        number = next(line.split()[1] for line in process.stdout if line.startswith("number"))
        process.send_signal(signal.SIGTERM)
    assert process.returncode == 130
    with pytest.raises(ProcessLookupError):
        os.kill(int(number), 0)


def test_every_command_of_it_ends_on_a_page(tmp_path: Path, scripted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    stages = list[str]()

    @contextmanager
    def served(folder: Path, log: Path) -> Iterator[tuple[str, str]]:
        yield scripted(answer).url, "judge@1"

    def here(program: str, *words: object) -> None:
        if Path(program).name == "critic":
            run("critic", *words, code=0)
            stages.append(str(words[0]))

    monkeypatch.setattr(demo, "served", served)
    monkeypatch.setattr(demo, "run", here)
    # A judge is there, and is not trained. It learned one form of each kind; of checklists no row taught it.
    forms = {"quality": 1.0, "checklist": 1.0, "pairwise_whole": 1.0, "direct_turn": 0.0, "pointwise": 1.0}
    jsonl.write_json(tmp_path / "judge/critic.json", {"recipe": {"forms": forms}, "untaught": ["pointwise"]})
    labels = {"checklist": ["Right?", "Kind?"], "checklist_answers": [True, False]}
    same = [{"question": f"{n}?", "group": f"g{n}", "image": f"{n}.png", "reference": f"{n}."} for n in range(20)]
    rows = [human_row(n, **labels, **same[n // 2], response=f"It is {n}.") for n in range(40)]
    talks = [row | {"id": f"{row['id']}/whole", "scope": "conversation"} for row in rows]
    write_jsonl(tmp_path / "data/internal.jsonl", [*rows, *talks])
    done = run("data/bench_demo.py", "--out", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert stages == ["judge", "audit"] * 3 + ["run"] * 8 + ["infer", "judge", "judge"] + ["score"] * 5
    table = re.findall(r"(?m)^  (\w+) +(\d+) verdicts, 0 failed  kappa +(\S+)", done.stdout)
    # Yes to all is right on the first item of each checklist only, which is what chance gives. A third of 20 questions.
    assert [row[:2] for row in table] == [("quality", "14"), ("checklist", "28"), ("pairwise_whole", "7")]
    assert table[1][2] == "0.00"
    for benchmark in ("alignmmbench", "convbench", "multiverse", "visitbench"):
        page = (tmp_path / benchmark / "report.html").read_text("utf-8")
        assert "tiny-2" in page and "tiny-3" in page and "as published" in page
    battles = [file.read_text("utf-8").count("\n") for file in sorted(tmp_path.glob("visitbench/*/battles*.jsonl"))]
    assert len(set(battles)) == 1 and len(battles) == 2, "the newcomer meets one opponent on each instruction"
    page = (tmp_path / "tournament/report.html").read_text("utf-8")
    assert all(name in page for name in ("tiny-1", "tiny-2", "tiny-3"))


def test_a_judge_is_asked_what_it_learned(tmp_path: Path) -> None:
    assert f"base: {demo.BASE[1]}\n" in (ROOT / demo.RECIPE).read_text("utf-8"), "where the base is put"

    def options_for(**forms: float) -> list[str]:
        (tmp_path / "critic.json").write_text(json.dumps({"recipe": {"forms": forms}}), "utf-8")
        return demo.form_asked(tmp_path)

    assert options_for(pointwise_short=0.4, pointwise=0.1) == ["--prompt", "pointwise_short", "--no-reason"]
    assert options_for(pointwise=1.0) == ["--prompt", "pointwise"]
