"""Files of other tools, and tables, audited without a column named: our own samples in each shape, in `shapes/`."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import assert_one_line_error, certify, human_row, rows_of, write_jsonl
from conftest import run as run_program

from critic.errors import UsageError
from critic.stats.verdicts import FAILED, TIE, A, B
from eval_agreement.reading.loaders import read_labels, read_scores
from eval_agreement.reading.result_formats import guess, load_shapes
from eval_agreement.reading.tables import TableOptions

SHAPES = Path(__file__).parent / "shapes"

SCORES = {"people": [10.0, 5.5, 1.0, 7.75], "judge": [7.75, 5.5, 1.0, 5.5]}
LABELS = {
    "preference": {"people": [A, TIE, B, A], "judge": [A, TIE, B, TIE]},
    "yes or no": {"people": [A, A, B, A], "judge": [A, B, B, B]},
}

JUDGES = {
    "alpaca_eval.json": "gpt4",
    "deepeval.json": "Correctness [GEval]",
    "evalscope.jsonl": "judge_rating",
    "fastchat.jsonl": "gpt-4",
    "fastchat_single.jsonl": "gpt-4",
    "inspect.eval": "model_graded_qa",
    "inspect.json": "model_graded_qa",
    "lm_eval.jsonl": "acc",
    "lmms_eval.jsonl": "gpt_eval_score",
    "mlflow.jsonl": "gpt",
    "opencompass.json": "correct",
    "opencompass_judged.json": "prediction",
    "openinference.jsonl": "quality",
    "phoenix.json": "gpt",
    "promptfoo.json": "llm-rubric",
    "ragas.csv": "faithfulness",
    "table.csv": "GPT-4 rating",
    "vlmevalkit.tsv": "hit",
    "vlmevalkit.xlsx": "score",
}


@pytest.mark.parametrize("name", JUDGES)
def test_a_file_of_each_tool_says_who_rated_what(name: str) -> None:
    kind, people, judges = guess([SHAPES / name])
    assert list(judges) == [JUDGES[name]]
    assert "as people: " in people.note and f"as judge: {JUDGES[name]} " in people.note
    if kind == "score":
        sample = read_scores(people, judges)
        assert {"people": sample.human.tolist(), "judge": sample.scores.tolist()} == SCORES
        texts = [response and response.text for response in sample.responses][2:3]
        assert texts == ([] if name in ("phoenix.json", "fastchat_single.jsonl") else ["I see 2 cats."])
        assert all(sample.group) == (name != "phoenix.json")
        notes = sample.notes
    else:
        pairs = read_labels(people, judges, kind)
        (human,), (judge,) = pairs.people.values(), pairs.judges.values()
        assert {"people": human.tolist(), "judge": judge.tolist()} == LABELS[kind]
        notes = pairs.notes
    assert {*people.note.splitlines()} <= {*notes} and not re.search("repeat|are not in", "\n".join(notes)), notes


def test_every_shape_and_every_sample_is_walked() -> None:
    assert {path.name for path in SHAPES.iterdir()} == {*JUDGES}
    taken = {guess([SHAPES / name])[1].note.partition("taken for ")[2].partition(";")[0] for name in JUDGES}
    assert taken == {shape.name for shape in load_shapes()}


def test_map_overrides_what_was_found(tmp_path: Path) -> None:
    rows = [json.loads(line) for line in (SHAPES / "lmms_eval.jsonl").read_text("utf-8").splitlines()]
    rows = [row | {"second": 6 - row["gpt_eval_score"], "vlm": "m", "said": [f"No {row['doc_id']}"]} for row in rows]
    path = write_jsonl(tmp_path / "samples.jsonl", rows)
    columns = {"people": ["gpt_eval_score"], "judge": ["second"], "response": ["said.0"], "group": ["vlm"]}
    kind, people, judges = guess([path], TableOptions(columns))
    sample = read_scores(people, judges)
    assert (kind, list(judges)) == ("score", ["second"]) and sample.human.tolist() == SCORES["judge"]
    assert [response and response.text for response in sample.responses] == ["No 0", "No 1", "No 2", "No 3"]
    assert sample.group == ["m"] * 4 and sample.scores.tolist() == [3.25, 5.5, 10.0, 5.5]
    assert read_scores(*guess([path], TableOptions(columns, scales=((0, 5), (1, 5))))[1:]).human.tolist()[0] == 8.2
    for highest, scale in {5: (1, 10), 4: (1, 5), 0: (0, 1)}.items():  # a judge that reaches half of people's is on it
        rows = rows_of(human=[1, 7, 10], llm=np.minimum([1, 7, 10], highest))
        table = write_jsonl(tmp_path / "t.jsonl", rows)
        assert guess([table])[2]["llm"].scale == scale
    with pytest.raises(UsageError, match="no column 'none'; there are doc_id"):
        guess([path], TableOptions({"people": ["none"]}))
    with pytest.raises(UsageError, match="--map none=response: nothing there; there are doc_id"):
        guess([path], TableOptions({"response": ["none"]}))


def test_people_and_judges_may_stand_in_files_of_their_own(tmp_path: Path) -> None:
    lines = (SHAPES / "fastchat.jsonl").read_text("utf-8").splitlines(keepends=True)
    people, judge = tmp_path / "human.jsonl", tmp_path / "gpt4.jsonl"
    people.write_text("".join(lines[:4])), judge.write_text("".join(lines[4:]))
    kind, source, judges = guess([people, judge])
    assert (kind, source.path) == ("preference", people) and [other.path for other in judges.values()] == [judge]
    notes = read_labels(source, judges, kind).notes
    assert f"{judge}: taken as judge: gpt-4 (change with --map COLUMN=judge)" in notes
    assert not any(note.startswith(f"{people}: taken as judge") for note in notes)
    # One of people's records and one of the judge's have the models the other way round.
    assert source.texts("response_a") == [f"I see {number} cats." for number in range(4)]
    orders = [("model_2", "model_2"), ("model_1", "model_2"), ("tie", "tie"), ("error", "model_2")]
    rows = [json.loads(line.replace("winner", "g1_winner")) for line in lines[4:]]
    rows = [row | {"g1_winner": first, "g2_winner": second} for row, (first, second) in zip(rows, orders, strict=True)]
    kind, source, judges = guess([people, write_jsonl(judge, rows)])
    (codes,) = read_labels(source, judges, kind).judges.values()
    assert codes.tolist() == [A, TIE, TIE, FAILED]  # an error is no verdict
    other = shutil.copy(people, tmp_path / "other.jsonl")
    for paths, said in {
        (judge,): "no column holds people's verdicts; name the column as --map COLUMN=preference",
        (people,): "no judge's verdicts of the kind of people",
        (people, other): "both hold people's verdicts",
    }.items():
        with pytest.raises(UsageError, match=said):
            guess([*paths])


def test_files_are_audited_and_mistakes_are_one_line(tmp_path: Path) -> None:
    def critic(*words: Any) -> Any:
        return run_program("critic", "audit", *words, "--out", "out", cwd=tmp_path)

    done = critic(SHAPES / "inspect.json")
    assert re.search(r"as judge: model_graded_qa on 1\.[^§]*--map metadata.human_score=F", done.stdout), done.stderr
    # The judge that a log names is held to a certificate: that of each verdict.
    (tmp_path / "mixed.json").write_text((SHAPES / "inspect.json").read_text("utf-8").replace("judge@1", "gpt-4", 1))
    held = "--certificate", certify(tmp_path / "c.json", "judge@1")
    done = critic(SHAPES / "inspect.json", *held)
    assert done.returncode == 0 and "inspect.json: the verdicts are of judge@1, the judge in" in done.stdout
    for log, said in (("mixed.json", "'gpt-4'"), (SHAPES / "lmms_eval.jsonl", "(not named)")):
        assert_one_line_error(critic(log, *held), said)
    rows = write_jsonl(tmp_path / "rows.jsonl", [human_row(number, gpt4_score_1_10=5.0) for number in range(6)])
    assert "gpt4      6" in critic(rows).stdout
    split = {"columns": ["human", "llm_score"], "data": [[number % 5 + 1, number % 4 + 1] for number in range(6)]}
    (tmp_path / "split.json").write_text(json.dumps(split))
    assert re.search(r"as judge: llm_score on[^§]*as people: human on 1\.\.5 \(", critic("split.json").stdout)
    wrong = {"torn.json": "[{", "torn.eval": "PK", "no.json": '{"a": 1}', "none.csv": "a,b\nx,y\n", "0.jsonl": "{}\n"}
    for name, text in wrong.items():
        (tmp_path / name).write_text(text)
        done = critic(name)
        assert done.returncode == 2 and done.stderr.startswith(f"error: {name}") and done.stderr.count("\n") == 1, done
    expected = "--map 'x=colour': expected COLUMN=FIELD, as in answer=response; the fields are people"
    assert expected in critic(rows, "--map", "x=colour").stderr
