"""Which judge the demo trains, and how it is asked."""

import json
from pathlib import Path

import pytest
from conftest import ROOT

from critic.errors import UsageError
from critic.stages import demo

BASE = ["train/base.py", "gemma-3-270m", "runs/base/gemma-3-270m-10", "--layers", "10"]


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What was run, in a clone; the package index can be reached while `index` holds no `offline`."""
    ran: list[list[str]] = []

    def run(words: list[str]) -> None:
        ran.append(words[1:])
        if ["offline"] in ran:
            raise UsageError("base.py ended with code 2, see above")

    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(demo, "run", run)
    return ran


def test_the_demo_trains_a_pretrained_base(index: list[list[str]], tmp_path: Path) -> None:
    chosen = demo.choose_recipe(tmp_path)
    assert index == [BASE]
    assert chosen.read_bytes() == demo.RECIPE.read_bytes()
    assert f"base: {BASE[2]}\n" in chosen.read_text("utf-8"), "the recipe looks where the base was put"


def test_without_a_base_it_says_so_and_trains_a_tiny_judge(
    index: list[list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    index.append(["offline"])
    chosen = demo.choose_recipe(tmp_path)
    assert chosen.read_bytes() == demo.TINY.read_bytes()
    assert "no pretrained base (base.py ended with code 2" in capsys.readouterr().out
    # Once the index can be reached, what was begun is finished all the same.
    index.clear()
    assert demo.choose_recipe(tmp_path).read_bytes() == demo.TINY.read_bytes() and not index


def test_without_torch_no_judge_is_chosen(
    index: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is missing would else look like a base that cannot be had, and the tiny judge would stay."""
    monkeypatch.setattr(demo, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match="torch and deepspeed cannot be imported: pip install"):
        demo.choose_recipe(tmp_path)
    assert not index and not (tmp_path / "judge.yaml").exists()


def test_a_judge_is_asked_what_it_learned(tmp_path: Path) -> None:
    def asked(**forms: float) -> list[str]:
        (tmp_path / "critic.json").write_text(json.dumps({"recipe": {"forms": forms}}), "utf-8")
        return demo.form_asked(tmp_path)

    assert asked(pointwise_short=0.4, pointwise=0.1) == ["--prompt", "pointwise_short", "--no-reason"]
    assert asked(pointwise=1.0) == ["--prompt", "pointwise"]
