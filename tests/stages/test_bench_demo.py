"""data/bench_demo.py with servers by script: which commands it runs, and that their results are on the pages."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from conftest import completion, run

from critic import jsonl
from critic.stages import demo


def answer(body: dict[str, Any]) -> Any:
    """A line of a model; of a judge a verdict, that of what is shown last where it is asked which is better."""
    schema = body.get("response_format", {}).get("json_schema", {}).get("schema")
    if schema is None:
        return completion("a line")
    values = {"Rating": 7, "Verdict": "B", "Reason": "so"}
    return completion(json.dumps({key: values.get(key, "yes") for key in schema["properties"]}))


def test_every_command_of_it_ends_on_a_page(tmp_path: Path, scripted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[str]()

    @contextmanager
    def served(folder: Path, log: Path) -> Iterator[tuple[str, str]]:
        yield scripted(answer).url, "judge@1"

    def here(words: list[str]) -> None:
        if Path(words[0]).name == "critic":
            done = run("critic", *words[1:])
            assert done.returncode == 0, done.stderr
            asked.append(words[1])

    monkeypatch.setattr(demo, "served", served)
    monkeypatch.setattr(demo, "run", here)
    jsonl.write_json(tmp_path / "judge/critic.json", {})  # a judge is there, and is not trained
    done = run("data/bench_demo.py", "--out", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert asked == ["run"] * 8 + ["infer", "judge", "judge"] + ["score"] * 5
    for benchmark in ("alignmmbench", "convbench", "multiverse", "visitbench"):
        page = (tmp_path / benchmark / "report.html").read_text("utf-8")
        assert "tiny-2" in page and "tiny-3" in page and "as published" in page
    battles = [file.read_text("utf-8").count("\n") for file in sorted(tmp_path.glob("visitbench/*/battles*.jsonl"))]
    assert len(set(battles)) == 1 and len(battles) == 2, "the newcomer meets one opponent on each instruction"
    page = (tmp_path / "tournament/report.html").read_text("utf-8")
    assert all(name in page for name in ("tiny-1", "tiny-2", "tiny-3"))
