"""critic.benchmarks.convbench: the sheet, the scores against brute force, and error attribution."""

import itertools
import json
import random
import re
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from conftest import SAMPLES, Servers, assert_one_line_error, completion, read_csv, run, sample, write_csv, write_xlsx
from hypothesis import given
from hypothesis import strategies as st
from judgments import of_outcome, run_of
from msgspec import structs
from samples import build_conversation

from critic import benchmarks
from critic.benchmarks import convbench
from critic.errors import UsageError
from critic.records import Conversation, ConversationTurn, Judgment
from critic.stats.aggregate import Aggregate, Cell
from critic.stats.leaderboard import LeaderboardCell, LeaderboardRow, aggregate_of, standings
from critic.stats.verdicts import Label, codes, verdict_agreement

SAMPLE = sample("convbench")
Fate = float | None | str
"""A verdict's outcome: a score, None for a failure, "never" if it was not requested."""


def write_sheet(path: Path, rows: list[dict[str, Any]]) -> Path:
    if path.suffix == ".xlsx":
        return write_xlsx(path, rows)
    return write_csv(path, rows, "utf-8-sig")


def test_the_sample_sheet_is_read_whole() -> None:
    talks = benchmarks.read("convbench", SAMPLE)
    rows = read_csv(SAMPLE)
    assert [talk.id for talk in talks] == [row["ID"] for row in rows] and len(rows) == 6
    for talk, row in zip(talks, rows, strict=True):
        assert [turn.prompt for turn in talk.turns] == [row[column] for column in convbench.INSTRUCTIONS]
        assert [turn.reference for turn in talk.turns] == [row[column] for column in convbench.REFERENCES]
        assert [turn.task for turn in talk.turns] == [row[column] for column in convbench.TASKS]
        assert [turn.focus for turn in talk.turns] == [None, None, row["third_turn_demands"]]
        assert [turn.images for turn in talk.turns] == [[row["image_id"]], [], []]
        assert talk.caption == row["instruction-conditioned-caption"] and talk.group == row["image_id"]
        assert (SAMPLE.parent / row["image_id"]).is_file()
    assert {talk.lang for talk in talks} == {"zh", "en"}


def test_a_spreadsheet_says_the_same_as_its_csv(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{**row, "ID": int(row["ID"])} for row in read_csv(SAMPLE)]
    rows[0]["first_turn_answer"] = 5  # a number cell, as a sheet would hold
    sheet = write_sheet(tmp_path / "ConvBench.xlsx", rows)
    assert benchmarks.read("convbench", sheet) == benchmarks.read(
        "convbench", write_sheet(tmp_path / "ConvBench.csv", rows)
    )
    assert benchmarks.read("convbench", sheet)[0].turns[0].reference == "5"
    # Without ids the rows are numbered, and without a language English.
    rows = [{key: value for key, value in row.items() if key not in ("ID", "lang")} for row in rows]
    talks = benchmarks.read("convbench", write_sheet(tmp_path / "sheet.csv", rows))
    assert [talk.id for talk in talks] == ["1", "2", "3", "4", "5", "6"]
    assert {talk.lang for talk in talks} == {"en"}


@pytest.mark.parametrize("suffix", [".csv", ".xlsx"])
def test_the_public_sheet_has_instructions_alone(tmp_path: Path, suffix: str) -> None:
    public = [{key: row[key] for key in ("ID", "image_id", *convbench.INSTRUCTIONS)} for row in read_csv(SAMPLE)]
    talks = benchmarks.read("convbench", write_sheet(tmp_path / f"ConvBench{suffix}", public))
    assert [[turn.prompt for turn in talk.turns] for talk in talks] == [
        [row[column] for column in convbench.INSTRUCTIONS] for row in public
    ]
    assert {turn.reference or turn.task or turn.focus or talk.caption for talk in talks for turn in talk.turns} == {
        None
    }


def test_the_real_conversations_of_the_public_sheet(shared: Path, tmp_path: Path, scripted: Servers) -> None:
    """Those 24 whose images are here: two models see them, a judge compares the two, and people grade one."""
    folder, said = shared / "data", {"a": "I see a car.", "b": "I cannot say."}
    lines = (folder / "convbench" / "conversations.jsonl").read_text("utf-8").splitlines()
    real = [row for row in map(json.loads, lines) if row["exported_image"]]
    rows = [
        {"ID": row["convbench_id"], convbench.IMAGE: row["exported_image"]}
        | dict(zip(convbench.INSTRUCTIONS, row["turns"], strict=True))
        for row in real
    ]
    sheet, files = write_sheet(tmp_path / "ConvBench.csv", rows), [tmp_path / f"{name}.jsonl" for name in said]
    for file, (name, text) in zip(files, said.items(), strict=True):
        words = ["--benchmark", "convbench", "--out", file, "--data-root", folder, "--name", name, "--base-url"]
        server = scripted(lambda body, text=text: completion(text))
        run("critic", "infer", sheet, *words, server.url, code=0)
        assert len(server.requests) == 72 and all("image_url" in json.dumps(body) for body in server.requests)
    refused = run("critic", "infer", sheet, *words[:2], "--condition", "perfect_perception", *words[2:], server.url)
    assert_one_line_error(refused, "turn 1 has no reference, and --condition perfect_perception shows it")

    def answer(body: dict[str, Any]) -> Any:
        content = body["messages"][0]["content"]
        assert not re.search("# (Reference|What the picture shows)\n", content)
        return completion(json.dumps({"Verdict": "A" if content.find(said["a"]) < content.find(said["b"]) else "B"}))

    out, judge = tmp_path / "judged.jsonl", scripted(answer)
    words = ["--benchmark", "convbench", "--out", out, "--base-url", judge.url]
    refused = run("critic", "judge", files[0], *words)
    assert_one_line_error(refused, "direct: no reference 72", "pairwise: no reference 72", "--reference-free")
    done = run("critic", "judge", files[0], *words, "--against", files[1], "--reference-free", "--order", "forced")
    assert done.returncode == 0 and "96 verdicts, 0 failed" in done.stdout, done.stderr
    assert "turns not judged: direct: no reference 72" in done.stdout
    done = run("critic", "score", out, "--questions", sheet, "--out", tmp_path / "page")
    for turn in ("turn 1", "turn 2", "turn 3", "whole conversation"):
        table = done.stdout.partition(f"Tournament, {turn}\n")[2]
        assert re.search(r"^a +1 +1042 \(1042–1043\) +100.00 \(85.75–100.00\) +0.00 .* 100.0%", table, re.MULTILINE), (
            done.stdout
        )
    assert "Other verdicts" not in done.stdout
    graded = [f"{row['ID']},{turn},{turn + 5}" for row in rows for turn in (1, 2, 3)]
    (tmp_path / "people.csv").write_text("\n".join(["id,turn,grade", *graded]))
    people = tmp_path / "people.jsonl"
    run("critic", "import-grades", tmp_path / "people.csv", "--replies", files[0], "--out", people)
    done = run("critic", "score", people)
    assert re.search(r"S1 +6.00 .* 24 .*\n.*S2 +7.00 .* 24 .*\n.*S3 +8.00 .* 24 ", done.stdout), done.stdout


@pytest.mark.parametrize("column", [*convbench.PUBLIC, *convbench.ANNOTATED])
def test_a_column_that_is_not_there_and_an_empty_cell_are_named(tmp_path: Path, column: str) -> None:
    rows = read_csv(SAMPLE)
    lacking = [{key: value for key, value in row.items() if key != column} for row in rows]
    with pytest.raises(UsageError, match=f"sheet.csv: the sheet lacks {column}; ask"):
        benchmarks.read("convbench", write_sheet(tmp_path / "sheet.csv", lacking))
    rows[1]["image_id"] += "\nwith a line break"  # line 3 and 4 of the file
    rows[2][column] = " "
    with pytest.raises(UsageError, match=f"sheet.csv:5: (no image|'{column}' is empty)"):
        benchmarks.read("convbench", write_sheet(tmp_path / "sheet.csv", rows))


def test_sheets_that_are_none_are_refused(tmp_path: Path) -> None:
    rows = read_csv(SAMPLE)
    rows[3]["ID"] = rows[0]["ID"]
    with pytest.raises(UsageError, match=r"sheet.csv:5: duplicate id '1', first at .*sheet.csv:2"):
        benchmarks.read("convbench", write_sheet(tmp_path / "sheet.csv", rows))
    rows[3].update(ID="4", lang="fr")
    with pytest.raises(UsageError, match=r"sheet.csv:5: 'lang' is 'fr'; expected zh or en"):
        benchmarks.read("convbench", write_sheet(tmp_path / "sheet.csv", rows))
    (tmp_path / "sheet.txt").write_bytes(b"")
    with pytest.raises(UsageError, match=r"cannot read .txt; expected .xlsx, .csv, .jsonl, .parquet"):
        benchmarks.read("convbench", tmp_path / "sheet.txt")
    with pytest.raises(UsageError, match="no such file"):
        benchmarks.read("convbench", tmp_path / "absent.csv")
    with pytest.raises(UsageError, match=r"unknown benchmark; did you mean convbench\? choose alignmmbench"):
        benchmarks.read("convbrench", SAMPLE)


def conversations(count: int) -> list[Conversation]:
    tasks = (("OCR", "Counting"), ("Math", "Logic", "Emotion"), ("Poem",))
    talks = []
    for number in range(count):
        turns = [ConversationTurn(prompt="?", reference="!", task=names[number % len(names)]) for names in tasks]
        talks.append(build_conversation(str(number), *turns, benchmark="convbench", group=f"image-{number // 2}"))
    return talks


def verdicts_of(fates: dict[tuple[Cell, str], Fate], protocol: str) -> list[Judgment]:
    return [
        of_outcome(key, protocol, "empty" if fate is None else fate, **structs.asdict(cell))
        for (cell, key), fate in fates.items()
        if fate != "never"
    ]


CELLS = list(convbench.CELLS.items())


def scores(verdicts: list[Judgment], talks: list[Conversation], protocol: Any) -> dict[str, Aggregate]:
    return {name: aggregate_of(score) for name, score in convbench.scores(verdicts, talks, protocol).items()}


@given(st.randoms(use_true_random=False), st.sampled_from(["pairwise", "direct"]), st.integers(1, 7))
def test_scores_are_those_of_brute_force(luck: random.Random, protocol: str, count: int) -> None:
    choices: list[Fate] = [0.0, 0.5, 1.0, None, "never"] if protocol == "pairwise" else [1.0, 4.0, 10.0, None, "never"]
    talks = conversations(count)
    fates: dict[tuple[Cell, str], Fate] = {(cell, talk.id): luck.choice(choices) for _, cell in CELLS for talk in talks}
    run = {cell for (cell, _), fate in fates.items() if fate != "never"}
    aggregates = scores(verdicts_of(fates, protocol), talks, protocol)
    unit = 100 if protocol == "pairwise" else 1
    ends = (0, 100) if protocol == "pairwise" else (1, 10)
    ranges = {}
    judged = [(name, cell) for name, cell in CELLS if cell in run]
    for name, cell in judged:
        mine = [fates[cell, talk.id] for talk in talks]
        values_there = [unit * fate for fate in mine if isinstance(fate, float)]
        filled = [sum(values_there) + end * (count - len(values_there)) for end in ends]
        ranges[name] = [total / count for total in filled]
        cell_found = aggregates[name]
        assert (cell_found.n, cell_found.failed, cell_found.asked) == (len(values_there), mine.count(None), count)
        assert cell_found.value == (pytest.approx(fmean(values_there)) if values_there else None)
        assert [cell_found.low, cell_found.high] == pytest.approx(ranges[name])
    formulas = {
        "R2": (("S1", "S2", "S3"), lambda a, b, c: (a + b + c) / 3),
        "R1": (("S1", "S2", "S3", "SO"), lambda a, b, c, o: ((a + b + c) / 3 + o) / 2),
        "delta_S2_hat": (("S2_hat", "S2"), lambda after, before: after - before),
        "delta_S3_hat": (("S3_hat", "S3"), lambda after, before: after - before),
        "delta_SO_hat": (("SO_hat", "SO"), lambda after, before: after - before),
        "delta_S3_tilde": (("S3_tilde", "S3_hat"), lambda after, before: after - before),
        "delta_SO_tilde": (("SO_tilde", "SO_hat"), lambda after, before: after - before),
    }
    formulas = {name: formula for name, formula in formulas.items() if set(formula[0]) <= set(ranges)}
    assert set(aggregates) == set(ranges) | set(formulas)
    for name, (parts, formula) in formulas.items():
        values = [aggregates[part].value for part in parts]
        assert aggregates[name].value == (None if None in values else pytest.approx(formula(*values)))
        corners = [formula(*corner) for corner in itertools.product(*(ranges[part] for part in parts))]
        assert (aggregates[name].low, aggregates[name].high) == (
            pytest.approx(min(corners)),
            pytest.approx(max(corners)),
        )


def test_only_what_was_run_is_asked() -> None:
    talks = conversations(3)
    own = verdicts_of({(cell, talk.id): 1.0 for name, cell in CELLS[:4] for talk in talks}, "pairwise")
    assert list(scores(own, talks, "pairwise")) == ["R1", "R2", "S1", "S2", "S3", "SO"]
    begun = verdicts_of({(convbench.CELLS["S3_hat"], "0"): None}, "pairwise")
    missing = scores([*own, *begun], talks, "pairwise")["S3_hat"]
    assert (missing.value, missing.n, missing.asked, missing.low, missing.high) == (None, 0, 3, 0, 100)
    # What was judged otherwise is another cell.
    unfocused = verdicts_of({(Cell("own", 3, "no_focus"), "0"): 0.0}, "pairwise")
    assert scores([*own, *unfocused], talks, "pairwise")["S3"].value == 100


def test_ablations_are_paired_with_the_cells_of_the_table() -> None:
    """Row 16: what focus points and the turns' judgments add, in per cent of the conversations judged both ways."""
    talks = conversations(4)
    lost = {"no_focus": (3, [0.0, 0.0, 1.0, None]), "no_turn_verdicts": (None, [1.0, 0.0, 1.0, 1.0])}
    fates: dict[tuple[Cell, str], Fate] = {}
    for judging, (turn, values) in lost.items():
        fates |= {(Cell("own", turn), talk.id): 1.0 for talk in talks}
        fates |= {(Cell("own", turn, judging), talk.id): value for talk, value in zip(talks, values, strict=True)}
    added = convbench.ablations(verdicts_of(fates, "pairwise"), talks, "pairwise")
    values = {name: (aggregate_of(score).value, aggregate_of(score).n) for name, score in added.items()}
    assert values == {"S3, no_focus": (pytest.approx(200 / 3), 3), "SO, no_turn_verdicts": (25, 4)}
    assert convbench.ablations(verdicts_of({(Cell("own", 3), "0"): 1.0}, "direct"), talks, "direct") == {}


def test_error_attribution_is_that_of_brute_force() -> None:
    """Rows 17 and 19: turns asked alone (figure 8), and where errors come from (section 5.1)."""
    luck = random.Random(7)
    talks = conversations(60)
    cells = {**convbench.CELLS, "S2_alone": Cell("no_history", 2), "S3_alone": Cell("single_turn", 3)}
    fates: dict[tuple[Cell, str], Fate] = {
        (cell, talk.id): luck.choice([0.0, 0.5, 1.0, 1.0, None]) for cell in cells.values() for talk in talks
    }

    def of(name: str, key: str) -> Fate:
        return fates[cells[name], key]

    judged = verdicts_of(fates, "pairwise")
    aggregates = {name: aggregate_of(score) for name, score in convbench.errors(judged, talks, "pairwise").items()}
    fails: list[int] = []
    for talk in talks:
        # A tie is no failure; a turn before it that has no verdict leaves open which is the first.
        turns = [of(name, talk.id) for name in ("S1", "S2", "S3")]
        ends = [n for n, score in enumerate(turns, 1) if score is None or score < 0.5]
        if not ends or turns[ends[0] - 1] is not None:
            fails.append(ends[0] if ends else 0)
    for turn in (1, 2, 3):
        fails_here = aggregates[f"fails at {turn}"]
        assert (fails_here.n, fails_here.value) == (len(fails), pytest.approx(100 * fails.count(turn) / len(fails)))
    steps = {"Ŝ": [("S2", "S2_hat"), ("S3", "S3_hat")], "S̃": [("S3_hat", "S3_tilde")]}
    for mark, pairs in steps.items():
        both = [(of(before, talk.id), of(after, talk.id)) for before, after in pairs for talk in talks]
        changes = [new - old for old, new in both if old is not None and new is not None]
        for name, kind in ((f"flips {mark}", (-1, 1)), (f"{mark} up", (1,)), (f"{mark} down", (-1,))):
            share = sum((change > 0) - (change < 0) in kind for change in changes) / len(changes)
            assert (aggregates[name].n, aggregates[name].value) == (len(changes), pytest.approx(100 * share))
    row = {name: aggregate.value for name, aggregate in scores(judged, talks, "pairwise").items()}
    assert aggregates["R1−R2"].value == pytest.approx(row["R1"] - row["R2"])
    assert aggregates["S̃3−Ŝ3"].value == pytest.approx(row["delta_S3_tilde"])
    for cell in ("S2", "S3"):
        lost = [(of(cell, talk.id), of(f"{cell}_alone", talk.id)) for talk in talks]
        gains = [alone - own for own, alone in lost if own is not None and alone is not None]
        assert aggregates[f"{cell} alone−{cell}"].value == pytest.approx(100 * fmean(gains))
    own = [judgment for judgment in judged if judgment.condition == "own"]
    assert list(convbench.errors(own, talks, "pairwise")) == ["fails at 1", "fails at 2", "fails at 3", "R1−R2"]


def test_what_a_step_adds_is_the_sum_over_pairs_of_tasks() -> None:
    luck = random.Random(8)
    talks = conversations(60)
    models = [
        verdicts_of({(cell, talk.id): luck.choice([0.0, 1.0]) for _, cell in CELLS for talk in talks}, "pairwise")
        for _ in range(2)
    ]
    pairs = convbench.pairs_of_tasks([*models, models[0][:60]], talks, "pairwise")
    adds = {name: aggregate_of(score).value for name, score in pairs.items()}
    assert len(adds) > 3 and all(" → " in name for name in adds)
    for step, delta in (("perception, turn 2", "delta_S2_hat"), ("reasoning, turn 3", "delta_S3_tilde")):
        whole = fmean(scores(model, talks, "pairwise")[delta].value for model in models)
        parts = [value for name, value in adds.items() if name.endswith(f"perfect {step}")]
        assert len(parts) > 1 and sum(parts) == pytest.approx(whole), "a model without the step does not count"


def agreement(first: list[Judgment], second: list[Judgment], talks: list[Conversation]) -> dict[str, LeaderboardCell]:
    equal = convbench.agreement([(run_of(first), run_of(second))], talks, "pairwise")
    return standings([LeaderboardRow(key="", caption="", name="both", scores=equal)])["both"]


def test_agreement_is_that_of_the_audit_with_its_interval() -> None:
    """Row 20. The accuracy of an audit of the same verdicts, whole groups resampled, in per cent."""
    talks = conversations(40)
    ours = [(1.0, 0.5, 0.0)[number % 3] for number in range(40)]
    theirs = [1.0 if number % 5 == 0 else score for number, score in enumerate(ours)]
    first, second = (
        verdicts_of({(Cell("own", 1), str(number)): score for number, score in enumerate(scores)}, "pairwise")
        for scores in (ours, theirs)
    )
    cell = agreement(first, second, talks)["S1"]
    labels: dict[float, Label] = {1.0: "a", 0.5: "tie", 0.0: "b"}
    people, judge = (codes([labels[score] for score in scores]) for scores in (ours, theirs))
    expected = verdict_agreement(people, judge, [talk.group for talk in talks]).accuracy
    assert cell.value == pytest.approx(100 * expected.value)
    # The audit's interval also spans the exact one, which is wider below: of 40 trials 35.
    low, high = (100 * end for end in expected.interval)
    assert cell.interval == pytest.approx((77.5, high), abs=3) and low == pytest.approx(73.2, abs=0.1)
    alike = verdict_agreement(people, people, [talk.group for talk in talks])
    assert alike.accuracy.interval == (pytest.approx(0.025 ** (1 / 20)), 1)
    assert alike.kappa.interval == (pytest.approx(0.747, abs=0.001), 1), "no error is no proof that there is none"


@pytest.mark.parametrize("name", SAMPLES)
def test_the_samples_have_their_images(name: str) -> None:
    for conversation in benchmarks.read(name, sample(name)):
        images = [path for turn in conversation.turns for path in turn.images]
        assert images and all((sample(name).parent / path).is_file() for path in images)
