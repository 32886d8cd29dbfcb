"""critic.benchmarks.multiverse: data-set rows in both layouts, strict validation, and scores against brute force."""

import base64
import random
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest
import scoring
from conftest import ROOT, read_jsonl, sample, write_jsonl
from hypothesis import assume, given
from hypothesis import strategies as st
from judgments import of_outcome, run_of
from msgspec import structs
from samples import build_conversation
from scipy import stats

from critic import benchmarks
from critic.benchmarks import multiverse
from critic.errors import UsageError
from critic.records import Conversation, ConversationTurn, Judgment
from critic.stages.judged_runs import read_runs
from critic.stats.aggregate import Aggregate
from critic.stats.leaderboard import aggregate_of

SAMPLE = ROOT / "data" / "samples" / "multiverse" / "conversations.jsonl"
Row = dict[str, Any]
Change = Callable[[Row], None]


def test_the_sample_is_read_whole() -> None:
    rows, talks = read_jsonl(SAMPLE), benchmarks.read("multiverse", SAMPLE)
    assert len(rows) == len(talks) == 6
    for row, talk in zip(rows, talks, strict=True):
        user, assistant = row["conversation"][::2], row["conversation"][1::2]
        assert (talk.goal, talk.domain) == (row["main_goal_category"], row["image_main_category"])
        assert (talk.id, [turn.prompt for turn in talk.turns]) == (row["index"], [said["utterance"] for said in user])
        assert [turn.reference for turn in talk.turns] == [said["utterance"] for said in assistant]
        assert [turn.checklist for turn in talk.turns] == [
            [item["question"] for item in said["checklist"]] for said in user
        ]
        assert {turn.task for turn in talk.turns} == {row["main_task_category"]}
        assert [turn.images for turn in talk.turns] == [[row["image"]]] + [[]] * (len(user) - 1)
    assert {len(talk.turns) for talk in talks} == {3, 4}
    assert {talk.lang for talk in talks} == {"zh", "en"}


def transposed(items: list[Row]) -> dict[str, list[Any]]:
    return {key: [item[key] for item in items] for key in items[0]} if items else {"question": []}


def as_parquet(rows: list[Row], path: Path) -> Path:
    """As `datasets` writes a Sequence of structs: an object of lists; the image embedded."""
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    stored = []
    for row in rows:
        spoken = [{**said, "checklist": transposed(said["checklist"])} for said in row["conversation"]]
        content = (SAMPLE.parent / row["image"]).read_bytes()
        stored.append({**row, "conversation": transposed(spoken), "image": {"bytes": content, "path": None}})
    parquet.write_table(pyarrow.Table.from_pylist(stored), path)
    return path


def test_parquet_with_embedded_images_says_the_same(tmp_path: Path) -> None:
    rows = read_jsonl(SAMPLE)
    talks = benchmarks.read("multiverse", as_parquet(rows, tmp_path / "train.parquet"))
    for row, ours, theirs in zip(rows, talks, benchmarks.read("multiverse", SAMPLE), strict=True):
        (embedded,) = ours.turns[0].images
        head, content = embedded.split(",", 1)
        assert head == "data:image/png;base64"
        assert base64.b64decode(content) == (SAMPLE.parent / row["image"]).read_bytes()
        assert [(t.prompt, t.reference, t.checklist, t.task) for t in ours.turns] == [
            (t.prompt, t.reference, t.checklist, t.task) for t in theirs.turns
        ]


def test_a_checklist_may_be_with_the_answer_or_with_both(tmp_path: Path) -> None:
    rows = read_jsonl(SAMPLE)
    for number, row in enumerate(rows):
        for user, assistant in zip(row["conversation"][::2], row["conversation"][1::2], strict=True):
            assistant["checklist"] = user["checklist"]
            if number % 2:
                user["checklist"] = None
    talks = benchmarks.read("multiverse", write_jsonl(tmp_path / "moved.jsonl", rows))
    assert talks == benchmarks.read("multiverse", SAMPLE)


def said(number: int, **changes: Any) -> Change:
    return lambda row: row["conversation"][number].update(changes)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda row: row["conversation"].pop(), "turn 4 has no reference: the last word is the user's"),
        (said(3, utterance=" "), r"turn 2 has no reference: conversation\[3\].utterance is empty"),
        (said(4, utterance=""), r"turn 3 asks nothing: conversation\[4\].utterance is empty"),
        (said(2, checklist=[]), "turn 2 has no checklist"),
        (said(3, checklist=[{"question": "Another?"}]), "turn 2 has two checklists"),
        (said(2, checklist=[{"question": "Is it?"}, {"question": " "}]), "turn 2: checklist item 2 has no question"),
        (said(2, checklist=[{"main_criteria": "x"}]), r"missing required field `question` .*\$.conversation\[2\]"),
        (said(1, speaker="user"), r"conversation\[1\].speaker is 'user'; user and assistant must alternate"),
        (said(4, speaker="guest"), r"conversation\[4\].speaker is 'guest'"),
        (said(0, speaker="AI Assistant"), "'AI Assistant'; .* and the user begin"),
        (lambda row: row.update(conversation=[]), r"length >= 1 - at `\$\.conversation`"),
        (lambda row: row.update(conversation="Hello"), r"Expected `array`, got `str` - at `\$.conversation`"),
        (lambda row: row.update(conversation=["Hello"]), r"\$.conversation\[0\]"),
        (
            lambda row: row.update(conversation={"speaker": ["a", "b"], "utterance": ["c"]}),
            "lists of different lengths",
        ),
        (said(0, checklist={"question": ["a"], "sub_criteria": []}), r"conversation\[0\].checklist' has lists of diff"),
        (lambda row: row.pop("main_goal_category"), "missing required field `main_goal_category`"),
        (lambda row: row.pop("conversation"), r"\$.conversation"),
        (lambda row: row.update(index=3), r"Expected `str`, got `int` - at `\$.index`"),
        (lambda row: row.update(image=""), "no image"),
        (lambda row: row.update(image={"bytes": None, "path": None}), "no image"),
        (lambda row: row.update(index="sample-1"), r"duplicate id 'sample-1', first at .*:1$"),
    ],
)
def test_a_bad_row_is_refused_with_its_line(tmp_path: Path, change: Change, message: str) -> None:
    rows = read_jsonl(SAMPLE)
    change(rows[1])
    with pytest.raises(UsageError, match=message) as caught:
        benchmarks.read("multiverse", write_jsonl(tmp_path / "rows.jsonl", rows))
    assert str(caught.value).startswith(f"{tmp_path / 'rows.jsonl'}:2: ")
    assert "\n" not in str(caught.value)


def test_a_bad_parquet_row_is_refused_with_its_number(tmp_path: Path) -> None:
    rows = read_jsonl(SAMPLE)
    rows[2]["conversation"][1]["utterance"] = ""
    with pytest.raises(UsageError, match=r"train.parquet:row 3: turn 1 has no reference"):
        benchmarks.read("multiverse", as_parquet(rows, tmp_path / "train.parquet"))
    (tmp_path / "torn.parquet").write_bytes(b"PAR1")
    with pytest.raises(UsageError, match=r"cannot be read as \.parquet"):
        benchmarks.read("multiverse", tmp_path / "torn.parquet")


def conversations(turns: list[int]) -> list[Conversation]:
    talks = []
    for number, count in enumerate(turns):
        turn = ConversationTurn(prompt="?", reference="!", task=["Math", "Coding"][number % 2], checklist=["a?"])
        goal = ["Verification", "Creation", "Research"][number % 3]
        talks.append(build_conversation(str(number), *[turn] * count, benchmark="multiverse", goal=goal))
    return talks


Judged = dict[tuple[str, str, int], tuple[float | None, int | None]]
"""(condition, conversation, turn) to completion ratio and quality."""


def verdicts_of(judged: Judged) -> list[Judgment]:
    return [
        of_outcome(conversation, protocol, "truncated" if score is None else score, condition=condition, turn=turn)
        for (condition, conversation, turn), scores in judged.items()
        for protocol, score in zip(("checklist", "quality"), scores, strict=True)
    ]


def scores(verdicts: list[Judgment], talks: list[Conversation]) -> dict[str, dict[str, Aggregate]]:
    """By table and column, of one model."""
    entries = multiverse.BENCHMARK.entries(run_of(verdicts), talks)
    return {entry.key: {name: aggregate_of(score) for name, score in entry.scores.items()} for entry in entries}


@given(st.randoms(use_true_random=False), st.lists(st.integers(1, 4), min_size=1, max_size=7))
def test_scores_are_those_of_brute_force(luck: random.Random, lengths: list[int]) -> None:
    """Row 25."""
    talks = conversations(lengths)
    judged: Judged = {}
    expected: dict[tuple[str, int], float | None] = {}
    for talk in talks:
        for turn in range(1, len(talk.turns) + 1):
            expected[talk.id, turn] = None
            if luck.random() < 0.1:
                continue  # never judged
            ratio = luck.choice([0.0, 0.25, 1.0, None])
            quality = luck.choice([1, 7, 10, None])
            judged["oracle", talk.id, turn] = ratio, quality
            if ratio is not None and quality is not None:
                expected[talk.id, turn] = ratio * quality * 10
    assume(judged)
    tables = scores(verdicts_of(judged), talks)
    columns = tables["turn-score-oracle"]
    turns = [columns[f"turn {turn}"] for turn in range(1, max(lengths) + 1)]
    assert len(columns) == len(turns) + (2 if len(turns) > 1 else 1)
    ranges = []
    for turn, cell in enumerate(turns, 1):
        mine = [score for (_, number), score in expected.items() if number == turn]
        known = [score for score in mine if score is not None]
        assert (cell.n, cell.asked) == (len(known), len(mine))
        assert cell.failed == sum(key[2] == turn for key in judged) - len(known)
        assert cell.value == (pytest.approx(fmean(known)) if known else None)
        ranges.append([fmean(end if score is None else score for score in mine) for end in (0, 100)])
        assert [cell.low, cell.high] == pytest.approx(ranges[-1])
    means = [cell.value for cell in turns]
    average, slope = columns["average"], columns.get("slope")
    if None not in means:
        assert average.value == pytest.approx(fmean(means))  # type: ignore[arg-type]
    else:
        assert average.value is None and (slope is None or slope.value is None)
    if slope is not None:
        if None not in means:
            assert slope.value == pytest.approx(np.polyfit(range(1, len(means) + 1), means, 1)[0])  # type: ignore[arg-type]
        corners = [
            np.polyfit(range(1, len(ranges) + 1), [ends[bit >> place & 1] for place, ends in enumerate(ranges)], 1)[0]
            for bit in range(2 ** len(ranges))
        ]
        assert slope.low == pytest.approx(min(corners)) and slope.high == pytest.approx(max(corners))
    for part, name in (("goal", lambda talk: talk.goal), ("task", lambda talk: talk.turns[0].task)):
        table = {**tables[f"{part}-score-oracle"]}
        assert table.pop("all").asked == sum(cell.asked for cell in table.values()) == sum(lengths)
        for key, cell in table.items():
            members = {talk.id for talk in talks if name(talk) == key}
            known = [score for (who, _), score in expected.items() if who in members and score is not None]
            assert cell.value == (pytest.approx(fmean(known)) if known else None)


def test_what_was_judged_by_one_protocol_failed_in_nothing(tmp_path: Path) -> None:
    turns = [turn for turn in scoring.MULTI if turn[0] == "quality"]
    file = scoring.judged(tmp_path / "j.jsonl", "multiverse", turns, lambda v: "empty" if v.turn == 2 else 6.0)
    summary, _, _ = scoring.scored(tmp_path / "out", "multiverse", file, "--max-failed", "1")
    measures = summary["leaderboards"]["measures-own"]["m"]
    counts = {name: (cell["n"], cell["failed"], cell["asked"]) for name, cell in measures.items()}
    assert counts == {"score": (0, 0, 23), "completion": (0, 0, 23), "quality": (17, 6, 23)}


def test_what_a_condition_does_not_ask_is_not_missing(tmp_path: Path) -> None:
    """`single_turn` asks the last turn alone, the fourth or the third; these are one row."""
    talks = benchmarks.read("multiverse", sample("multiverse"))
    assert {len(talk.turns) for talk in talks} == {3, 4}
    turns = [(protocol, "single_turn", turn) for protocol in ("checklist", "quality") for turn in (3, 4)]
    score = {"checklist": 0.5, "quality": 6.0}
    file = scoring.judged(tmp_path / "all.jsonl", "multiverse", turns, lambda v: score[v.protocol] - (v.turn == 4) / 4)
    last = {(talk.id, len(talk.turns)) for talk in talks}
    lines = read_jsonl(file)
    kept = [line for line in lines if (line["sample"]["id"], line["sample"]["turn"]) in last]
    summary, _, printed = scoring.scored(tmp_path / "out", "multiverse", write_jsonl(tmp_path / "m.jsonl", kept))
    expected = fmean({3: 0.5 * 60, 4: 0.25 * 57.5}[len(talk.turns)] for talk in talks)
    board = summary["leaderboards"]["turn-score-single_turn"]["m"]
    assert list(board) == ["average", "turn last"]
    for cell in board.values():
        assert (cell["value"], cell["n"], cell["asked"]) == (pytest.approx(expected), len(talks), len(talks))
    assert summary["leaderboards"]["goal-score-single_turn"]["m"]["all"]["asked"] == len(talks)
    items = sum(len(talk.turns[-1].aspects) for talk in talks)
    aspects = summary["leaderboards"]["aspect-completion-single_turn"]["m"]
    assert sum(cell["asked"] for name, cell in aspects.items() if name != "all") == items
    assert "with what is missing" not in printed


def test_the_oracle_effect_is_paired() -> None:
    talks = conversations([4] * 9 + [3])
    judged: Judged = {}
    for talk in talks:
        for turn in range(1, len(talk.turns) + 1):
            judged["own", talk.id, turn] = 0.5, 6
            judged["oracle", talk.id, turn] = 0.5, 6 + (turn > 1)
    judged["own", "0", 3] = None, 6
    effect = multiverse.oracle_effect(verdicts_of(judged), talks)
    assert list(effect) == ["all", "turn 1", "turn 2", "turn 3", "turn 4"]
    turns = [aggregate_of(effect[f"turn {turn}"]) for turn in range(1, 5)]
    assert [turn.value for turn in turns] == [0, 5, 5, 5]
    assert [(turn.n, turn.failed) for turn in turns] == [(10, 0), (10, 0), (9, 1), (9, 0)]
    whole = aggregate_of(effect["all"])
    assert (whole.n, whole.failed, whole.value) == (38, 1, pytest.approx(28 * 5 / 38))


def ratio_against_quality(models: list[Any]) -> multiverse.Fit:
    return multiverse.fit_line(models, multiverse.ORACLE, multiverse.COMPLETION, multiverse.QUALITY)[0]


def test_fits_are_those_of_scipy() -> None:
    random = np.random.default_rng(3)
    ratios = [float(value) for value in random.choice([0, 0.25, 0.5, 0.75, 1], 40)]
    qualities = [int(value) for value in np.clip(np.round(5 + 3 * np.array(ratios) + random.normal(0, 1, 40)), 1, 10)]
    judged: Judged = {("oracle", str(n), 1 + n % 2): (ratios[n], qualities[n]) for n in range(40)}
    judged["oracle", "failed", 1] = None, 5
    fit, line = ratio_against_quality([verdicts_of(judged)]), stats.linregress(ratios, qualities)
    assert (fit.n, fit.slope) == (40, pytest.approx(line.slope))
    assert fit.r_squared == pytest.approx(line.rvalue**2)
    assert fit.interval[0] < fit.r_squared < fit.interval[1]
    even = verdicts_of({("oracle", str(n), 1): (0.5, n + 1) for n in range(5)})
    assert ratio_against_quality([even]) == multiverse.Fit(n=5)
    assert ratio_against_quality([]) == multiverse.Fit(n=0)
    # Over models: all turns on one line, while a conversation's are drawn together.
    both, twice = ratio_against_quality([verdicts_of(judged), even]), [verdicts_of(judged)] * 2
    assert both.r_squared == pytest.approx(stats.linregress([*ratios, *[0.5] * 5], [*qualities, 1, 2, 3, 4, 5])[2] ** 2)
    pooled = ratio_against_quality(twice)
    assert (pooled.n, pooled.interval) == (80, pytest.approx(fit.interval))


def test_the_aspects_of_checklist_items_are_read_and_scored(tmp_path: Path) -> None:
    """Completion by main aspect is the share of yes among its items, wherever they stand; a judgment that
    failed leaves its items without an answer."""
    talks = benchmarks.read("multiverse", SAMPLE)
    for row, talk in zip(read_jsonl(SAMPLE), talks, strict=True):
        for said_, turn in zip(row["conversation"][::2], talk.turns, strict=True):
            assert turn.aspects == [(item["main_criteria"], item["sub_criteria"]) for item in said_["checklist"]]
    draw = random.Random(3)

    def score(verdict: Judgment) -> float | str:
        if verdict.protocol == "quality":
            return draw.randint(1, 10)
        return "no_verdict" if draw.random() < 0.3 else draw.choice([0.0, 0.5, 1.0])

    file = scoring.judged(tmp_path / "j.jsonl", "multiverse", scoring.MULTI, score)
    (run,) = read_runs([file], "multiverse").runs
    shares = {key: aggregate_of(share) for key, share in multiverse.completion_of_aspects(run, "oracle", talks).items()}
    assert set(shares) == {"Correctness", "Completeness", "Clarity"}
    for main, score_ in shares.items():
        given, items = [], 0
        for judged in run.turns:
            if judged.protocol == "checklist" and judged.condition == "oracle":
                aspects = judged.conversation.turns[(judged.turn or 0) - 1].aspects
                mine = [place for place, (aspect, _) in enumerate(aspects) if aspect == main]
                items += len(mine)
                given += [judged.verdict.answers[place] for place in mine] if judged.verdict.answers else []
        assert score_.asked == items and score_.n == len(given) < items
        assert score_.value == pytest.approx(100 * fmean(map(bool, given)))
    summary, page, _ = scoring.scored(tmp_path / "out", "multiverse", file, code=3)
    facts = summary["leaderboards"]["aspect-completion-oracle"]["m"]
    assert facts["Correctness"]["value"] == shares["Correctness"].value
    boards = summary["leaderboards"]
    assert "Completion by aspect" in page
    assert boards["history-effect"]["m"]["all"]["asked"] == 23 and len(boards["history-effect"]) == 1


def test_length_against_score_by_turn(tmp_path: Path) -> None:
    """Row 26: figure 9, of the replies themselves or, in older files, of their lengths; figure 5 has its points."""
    random = np.random.default_rng(4)
    answers = {(f"{n}", turn): "a" * int(random.integers(20, 400)) for n in range(30) for turn in (1, 2)}
    judged: Judged = {("oracle", *key): (1.0, int(1 + len(text) // 50)) for key, text in answers.items()}
    verdicts = verdicts_of(judged)
    long = [
        structs.replace(line, sample=structs.replace(line.sample, answer=answers[line.sample.id, line.turn]))
        for line in verdicts
    ]
    fit, pairs = multiverse.fit_line([long], "oracle", multiverse.LENGTH, multiverse.SCORE, 2)
    lengths = [len(answers[f"{n}", 2]) for n in range(30)]
    scores = [10.0 * (1 + length // 50) for length in lengths]
    line = stats.linregress(lengths, scores)
    np.testing.assert_allclose(sorted(pairs), sorted(zip(lengths, scores, strict=True)))
    assert (fit.n, fit.slope, fit.intercept) == (30, pytest.approx(line.slope), pytest.approx(line.intercept))
    assert fit.r_squared == pytest.approx(line.rvalue**2)
    talks = [line.sample.conversation for line in long[::2]]
    report = multiverse.report([run_of(long)], talks)
    ratio, length = report.sections
    assert [panel.heading.partition(":")[0] for panel in length.figures[0].panels] == ["turn 1", "turn 2"]
    assert report.summary["length_against_score"]["oracle, turn 2"].slope == pytest.approx(line.slope)
    assert ratio.figures == [], "a ratio that is always 1 predicts nothing"
