"""How the demo's judge is asked."""

import json
from pathlib import Path

from conftest import ROOT

from critic.stages import demo


def test_the_recipe_looks_where_the_base_is_put() -> None:
    assert f"base: {demo.BASE[1]}\n" in (ROOT / demo.RECIPE).read_text("utf-8")


def test_a_judge_is_asked_what_it_learned(tmp_path: Path) -> None:
    def options_for(**forms: float) -> list[str]:
        (tmp_path / "critic.json").write_text(json.dumps({"recipe": {"forms": forms}}), "utf-8")
        return demo.form_asked(tmp_path)

    assert options_for(pointwise_short=0.4, pointwise=0.1) == ["--prompt", "pointwise_short", "--no-reason"]
    assert options_for(pointwise=1.0) == ["--prompt", "pointwise"]
