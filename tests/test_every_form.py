"""The table of forms, walked through: each form is trained, asked, read, scored and audited, by one real tiny judge.

A form that is added to the table is in this walk at once; one that can be trained and not asked, or asked and not
audited, fails here.
"""

import itertools
import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import human_row, needs, run, serving, write_jsonl

from critic.judging.forms import BY_NAME
from critic.judging.kinds.choices import AnswerKind, ChecklistKind, ChoiceKind
from critic.judging.kinds.ratings import CriteriaKind

pytestmark = pytest.mark.e2e

QUESTIONS, SYSTEMS = 6, 2
CRITERIA = {"clarity": "Is it easy to follow?", "depth": "Does it say enough?"}

ASKED = [name for name, form in BY_NAME.items() if not isinstance(form.kind, AnswerKind)]
"""All but the judge's own answer, which is asked for within another form."""


def rows_of_every_kind() -> list[dict[str, Any]]:
    """Single answers and whole conversations, each by two systems, whose scores lie apart."""
    rows: list[dict[str, Any]] = []
    for scope in ("turn", "conversation"):
        for question, system in itertools.product(range(QUESTIONS), range(SYSTEMS)):
            score, text = 9.0 - system * (1 + question), f"I see {question + system} apples."
            rows.append(
                human_row(
                    len(rows), scope=scope, question=f"What lies on table {question}?", group=f"{scope}-{question}",
                    reference=f"{question} apples.", system=f"system-{system}", response=text, reason="It counts.",
                    history=[{"user": "Hello?", "assistant": "Hi."}] if scope == "conversation" else [],
                    human_score=score, scale_min=1, scale_max=10, image=None, annotators=None,
                    checklist=["Is it counted?", "Is it green?"], checklist_answers=[question % 2 == 0, system == 0],
                    criteria=CRITERIA, criteria_scores={"clarity": 1 + question, "depth": 9 - question},
                )
            )  # fmt: skip
    return rows


class Walk:
    """A judge trained in every form, and what it says of the same rows in each."""

    def __init__(self, folder: Path) -> None:
        import training

        self.folder, self.judge = folder, folder / "judge"
        self.rows = write_jsonl(folder / "rows.jsonl", rows_of_every_kind())
        steps = {"max_steps": 240, "save_steps": 240, "logging_steps": 240, "per_device_train_batch_size": 8}
        recipe = training.write_recipe(
            folder, forms=dict.fromkeys(BY_NAME, 1.0), evaluation=None, ema=None, global_batch=8, max_source_tokens=900,
            tiny={"hidden_size": 64, "heads": 1, "initializer_range": 0.06},
            training=steps | {"learning_rate": 0.004, "warmup_steps": 10},
        )  # fmt: skip
        training.train(recipe, self.rows, self.judge, internal=False)
        with serving(self.judge, end=signal.SIGKILL) as (_, url):
            self.done = {name: run("critic", *self.words(name, url)) for name in ASKED}

    def words(self, form: str, url: str) -> list[str]:
        out = self.folder / f"{form}.jsonl"
        return ["judge", str(self.rows), "--out", str(out), "--judge", url, "--prompt", form, "--max-tokens", "160"]

    def lines(self, form: str) -> list[dict[str, Any]]:
        assert self.done[form].returncode == 0, (form, self.done[form].stderr)
        return [json.loads(line) for line in (self.folder / f"{form}.jsonl").read_text("utf-8").splitlines()]


@pytest.fixture(scope="module")
def walk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Walk]:
    needs("deepspeed", "vllm")
    yield Walk(tmp_path_factory.mktemp("walk"))


def test_every_form_is_trained(walk: Walk) -> None:
    facts = json.loads((walk.judge / "critic.json").read_text("utf-8"))
    assert set(facts["forms"]) == set(BY_NAME) and min(facts["forms"].values()) >= QUESTIONS
    assert set(facts["prompts"]) == set(BY_NAME)


@pytest.mark.parametrize("name", ASKED)
def test_every_form_is_asked_and_read(name: str, walk: Walk) -> None:
    """Row 8: a trained judge, served by vLLM, is asked in every form of the benchmarks. Read every verdict of a judge
    that is constrained to the form; ratings come with their distribution."""
    lines, form = walk.lines(name), BY_NAME[name]
    assert len(lines) >= QUESTIONS and all("failure" not in line["verdict"] for line in lines)
    for line in lines:
        verdict = line["verdict"]
        if isinstance(form.kind, ChoiceKind):
            assert verdict["value"] in (*form.kind.choices, *(["tie"] if form.pair else [])) and 0 <= line["score"] <= 1
        elif isinstance(form.kind, ChecklistKind):
            assert len(verdict["answers"]) == 2 and line["score"] == sum(verdict["answers"]) / 2
        else:
            assert 1 <= line["score"] <= 10 and sum(verdict["distribution"]) == pytest.approx(1)
        if isinstance(form.kind, CriteriaKind):
            assert verdict["criteria"].keys() == CRITERIA.keys()
            assert all(1 <= criterion["rating"] <= 10 for criterion in verdict["criteria"].values())
        assert ("other" in line["sample"]) == form.pair and bool(line.get("calls")) == (form.shown > 1)


@pytest.mark.parametrize("name", ASKED)
def test_every_form_is_scored_and_audited(name: str, walk: Walk, tmp_path: Path) -> None:
    """Audited against what people's scores make right in it."""
    mine = [line for line in walk.lines(name) if line["sample"]["system"] == "system-0"]
    done = run("critic", "score", write_jsonl(tmp_path / "mine.jsonl", mine), "--out", tmp_path / "scores.json", code=0)
    mean = sum(line["score"] for line in mine) / len(mine)
    assert re.search(rf"\b{mean:.2f}\b", done.stdout), (mean, done.stdout)
    done = run("critic", "audit", f"{name}={walk.folder / name}.jsonl", "--out", tmp_path / "audit", code=0)
    summary = json.loads((tmp_path / "audit" / "summary.json").read_text("utf-8"))
    assert "judge@" in json.dumps(summary) and (tmp_path / "audit" / "report.html").is_file()
    if isinstance(BY_NAME[name].kind, CriteriaKind):
        assert all(criterion in done.stdout for criterion in CRITERIA)
