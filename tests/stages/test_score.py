"""critic score --benchmark: tables, summary.json and report.html of judged conversations."""

import csv
import json
import re
from pathlib import Path
from statistics import fmean
from typing import Any
from xml.etree import ElementTree

import msgspec
import pytest
from conftest import assert_one_line_error, run, sample, write_jsonl
from judgments import of_answer, of_turn, run_of
from msgspec.structs import replace
from samples import build_conversation, build_question
from scoring import ASKED, CONV, Score, grades, judged, read_sample, scored, write_judged

from critic import jsonl
from critic.benchmarks import convbench, order_effects
from critic.records import Call, ConversationTurn, HumanScore, Judgment, Question, Response, Verdict
from critic.stages.judged_runs import read_runs
from critic.stats.aggregate import Cell


def test_convbench_from_file_to_page(tmp_path: Path) -> None:
    file = judged(tmp_path / "j.jsonl", "convbench", CONV, grades)
    summary, page, printed = scored(tmp_path / "out", "convbench", file)
    cells: dict[Cell, dict[str, float]] = {}
    for _, line in jsonl.read(file, Judgment):
        cells.setdefault(Cell(line.condition, line.turn), {})[line.sample.id] = line.score
    means = {name: fmean(cells[cell].values()) for name, cell in convbench.CELLS.items()}
    measures, board = summary["systems"]["m"]["direct"], summary["leaderboards"]["direct"]["m"]
    assert {name: board[convbench.HEADINGS[name]]["value"] for name in means} == pytest.approx(means)
    r2 = (means["S1"] + means["S2"] + means["S3"]) / 3
    assert board["R1"]["value"] == pytest.approx((r2 + means["SO"]) / 2)
    old, new = (cells[convbench.CELLS[name]] for name in ("S3_hat", "S3_tilde"))
    changes = {key: new[key] - old[key] for key in old if new[key] != old[key]}
    assert measures["flips"]["perfect reasoning, turn 3"] == changes
    assert f"{means['S1']:.2f}" in printed and f"{means['S1']:.2f}" in page
    assert "range with what is missing" not in printed + page, "of a complete run nothing is missing"
    assert "Where errors come from" in printed and "by pair of tasks" in page


@pytest.mark.parametrize("benchmark", list(ASKED))
def test_every_page_is_one_file(tmp_path: Path, benchmark: str) -> None:
    def score(verdict: Judgment) -> float:
        return {"pairwise": 0.5, "checklist": 0.25}.get(verdict.protocol, grades(verdict))

    files = write_judged(tmp_path, benchmark, ASKED[benchmark], score, ("<b>m</b>", "<b>n</b>"))
    (sizes := tmp_path / "sizes.toml").write_text(
        "".join(f'["<b>{name}</b>"]\nsize = 7\nfamily = "mini-m"\n' for name in "mn"), "utf-8"
    )
    _, page, _ = scored(tmp_path / "out", benchmark, *files, "--models", sizes)
    assert ("mini-m" in page) == (benchmark in ("alignmmbench", "multiverse")), "a radar by family"
    assert not re.search(r"""src=|url\(|@import""", page)
    assert page.count("hidden>") == 2, "without script there is neither the list of answers nor a link to it"
    assert re.findall("<script.*?>", page) == ['<script type="application/json">', "<script>"]
    linked = set(re.findall("href=[\"']([^\"'#]+)", page))
    made = {file.name for file in (tmp_path / "out").iterdir()} - {"report.html", "summary.json"}
    assert linked == {name for name in made if not name.endswith(".csv")}, "its links are to the files beside it"
    assert "default-src 'none'" in page
    leads = re.search(r"(tied in the first place by|is first with \S+ in) “alignment”", page)
    assert bool(leads) == (benchmark == "alignmmbench")
    assert "<b>" not in page and "&lt;b&gt;m&lt;/b&gt;" in page
    drawn = sorted((tmp_path / "out").glob("*.svg"))
    assert all(picture.with_suffix(".png").read_bytes().startswith(b"\x89PNG") for picture in drawn)
    assert page.count('class="picture"') == len(drawn) >= 1, "each picture lies beside the page"
    for file in drawn:
        names = [text.text for text in ElementTree.parse(file).iter("{http://www.w3.org/2000/svg}text")]
        unstyled = re.sub('style=".*?"', "", file.read_text("utf-8"))
        assert {"<b>m</b>", "<b>n</b>"} <= set(names) and "var(" not in unstyled


def test_visitbench_win_rates_and_tournament(tmp_path: Path) -> None:
    points = {"m": 1.0, "n": 0.0}
    files = write_judged(tmp_path, "visitbench", [("pairwise", "own", 1)], lambda v: points[v.system], points)
    fights = [("m", "n", 1.0), ("m", "o", 0.5), ("o", "n", 1.0)]
    for model, other, value in fights:
        file = tmp_path / f"{model}-{other}.jsonl"
        judged(file, "visitbench", [("pairwise", "own", 1)], lambda v, value=value: value, model, other)  # type: ignore[misc]
        files.append(file)
    summary, page, printed = scored(tmp_path / "out", "visitbench", *files)
    lines = sum(file.read_bytes().count(b"\n") for file in files)
    assert f"{lines} verdicts on" in page, "a battle is one verdict"
    backed = sum(conversation.turns[0].reference is not None for conversation in read_sample("visitbench"))
    board = summary["leaderboards"]["reference"]
    assert board["m"]["all"]["value"] == 100 and board["n"]["all"]["n"] == backed
    assert set(summary["systems"]) == {"tournament"}
    elo = summary["systems"]["tournament"]["elo"]["ratings"]
    assert elo["m"] > elo["n"] and elo["o"] > elo["n"] and sum(elo.values()) == pytest.approx(3000)
    assert "Tournament" in printed and "judged in" not in printed
    people = judged(tmp_path / "p.jsonl", "visitbench", [("pairwise", "own", 1)], lambda _: 0.0, "m", "n", judge="p")
    apart, _, _ = scored(tmp_path / "apart", "visitbench", *files, people)
    assert set(apart["systems"]) == {"tournament, judged by j", "tournament, judged by p"}
    files[-1].write_bytes(files[-1].read_bytes().replace(b'"argmax"', b'"expected"'))
    _, page, _ = scored(tmp_path / "mixed", "visitbench", *files)
    assert "The battles were judged in 2 ways" in page
    assert "o against n was judged otherwise than m: there score_kind" in page


def test_the_mean_of_tasks_of_alignmmbench(tmp_path: Path) -> None:
    file = judged(
        tmp_path / "j.jsonl", "alignmmbench", [("pointwise", "own", 1), ("pointwise", "no_image", 1)],
        lambda v: grades(v) if v.condition == "own" else 1.0,
    )  # fmt: skip
    summary, _, printed = scored(tmp_path / "out", "alignmmbench", file)
    conversations = read_sample("alignmmbench")
    lines = [line for _, line in jsonl.read(file, Judgment)]
    ratings = {line.sample.id: line.score or 0.0 for line in lines if line.condition == "own"}
    by_task: dict[str, list[float]] = {}
    for conversation in conversations:
        by_task.setdefault(conversation.turns[0].task or "", []).append(ratings[conversation.id])
    boards = summary["leaderboards"]
    mean_of_tasks = fmean(fmean(values) for values in by_task.values())
    assert boards["tasks"]["m"]["mean of tasks"]["value"] == pytest.approx(mean_of_tasks)
    assert boards["categories"]["m"]["mean of the questions"]["value"] == pytest.approx(fmean(ratings.values()))
    assert boards["tasks"]["m, without image"]["mean of tasks"]["value"] == pytest.approx(1)
    page = (tmp_path / "out/report.html").read_text("utf-8")
    rows = re.findall(r'<tr class="(strong)? *model" style=".*?"><th scope="row">(m.*?)</th>', page)
    assert rows[:2] == [("strong", "m"), ("", "m, without image")]  # what was judged without image is beside the point
    assert "∞" in printed


def test_a_mean_of_some_tasks_competes_with_no_other(tmp_path: Path) -> None:
    """Judged about 9 but for one task without a score, a model stands behind one of about 2."""
    conversations = read_sample("alignmmbench")
    unread = {conversation.id for conversation in conversations if conversation.turns[0].task == "OCR"}

    def partly(verdict: Judgment) -> float | str:
        return "no_rating" if verdict.sample.id in unread else 9.0 - int(verdict.sample.id[-1])

    first_turn = [("pointwise", "own", 1)]
    scores: dict[str, Score] = {
        "partly": partly,
        "low": lambda v: 2.0 + int(v.sample.id[-1]),
        "high": lambda v: 7.0 + 2 * int(v.sample.id[-1]),
    }
    files = write_judged(tmp_path, "alignmmbench", first_turn, lambda v: scores[v.system](v), scores)
    summary, _, _ = scored(tmp_path / "out", "alignmmbench", *files, "--max-failed", "1")
    assert list(summary["leaderboards"]["tasks"])[:3] == ["high", "low", "partly"]
    assert summary["leaderboards"]["tasks"]["partly"]["mean of tasks"]["value"] > 8
    words = ["--max-failed", "1", "--baseline", "low"]
    summary, _, printed = scored(tmp_path / "less", "alignmmbench", *files, *words)
    board, tasks = summary["leaderboards"]["tasks"], {conversation.turns[0].task for conversation in conversations}
    less = {name: board[name]["mean of tasks"]["difference"] for name in ("partly", "high")}
    shared = [board["partly"][task]["difference"]["mean"] for task in tasks - {"OCR"}]
    said = f"{len(shared)} of {len(tasks)}"
    assert less["partly"]["mean"] == pytest.approx(fmean(shared)) and less["partly"]["partly"] == said
    assert less["high"]["partly"] == "" and said in printed.partition("less low")[2]
    table = (tmp_path / "less" / "leaderboard-tasks.csv").read_text("utf-8")
    (row,) = (row for row in csv.DictReader(table.splitlines()) if row["model"] == "partly")
    assert row["mean of tasks less partly"] == said and row["Counting less partly"] == ""


def test_judgments_in_any_order_meet_their_questions(tmp_path: Path) -> None:
    file = judged(tmp_path / "j.jsonl", "convbench", [("direct", "own", 1)], lambda v: float(v.sample.id))
    other = tmp_path / "k.jsonl"
    other.write_text("\n".join(reversed(file.read_text("utf-8").splitlines())), "utf-8")
    words = ["--questions", sample("convbench")]
    first, second = (scored(tmp_path / path.stem, "convbench", path, *words)[0] for path in (file, other))
    assert first["systems"] == second["systems"] and first["leaderboards"] == second["leaderboards"]


def test_what_failed_or_was_never_judged_is_counted_and_bounded(tmp_path: Path) -> None:
    """Of six conversations three are judged, one of them in vain: 2 of 6, the others anything from 1 to 10."""
    file = judged(
        tmp_path / "j.jsonl", "convbench", [("direct", "own", 1)],
        lambda v: "image_missing" if v.sample.id == "2" else 8.0, only=3,
    )  # fmt: skip
    words = ["--questions", sample("convbench")]
    summary, page, printed = scored(tmp_path / "out", "convbench", file, *words, code=3)
    cell = summary["leaderboards"]["direct"]["m"]["S1"]
    assert (cell["value"], cell["n"], cell["failed"], cell["asked"]) == (8, 2, 1, 6)
    assert cell["low"] == pytest.approx((16 + 4) / 6) and cell["high"] == pytest.approx((16 + 40) / 6)
    for text in (printed, page):
        assert "33.3%" in text and "3.33 … 9.33" in text and "image_missing 1" in text
    assert scored(tmp_path / "all", "convbench", file, *words, "--max-failed", "1")[0] == {
        **summary, "files": summary["files"],
    }  # fmt: skip
    without = scored(tmp_path / "part", "convbench", file, code=3)[0]
    assert without["leaderboards"]["direct"]["m"]["S1"]["asked"] == 3


def test_two_judges_of_the_same_replies_agree_so_far(tmp_path: Path) -> None:
    """Equal in turn 1, in turn 2 for half of the six conversations, one of which the second judge could not judge."""

    def other(verdict: Judgment) -> float | str:
        if verdict.turn == 2 and verdict.sample.id == "1":
            return "no_rating"
        return 5.0 if verdict.turn == 1 or int(verdict.sample.id) <= 3 else 4.0

    turns = [("direct", "own", 1), ("direct", "own", 2)]
    first = judged(tmp_path / "a" / "j.jsonl", "convbench", [*turns, ("direct", "own", 3)], lambda v: 5.0, answer="x")
    second = judged(tmp_path / "b" / "j.jsonl", "convbench", turns, other, judge="k", answer="x")
    summary, page, printed = scored(tmp_path / "out", "convbench", first, second, "--max-failed", "1")
    cells = summary["leaderboards"]["agreement-direct"]["m: j and k"]
    assert cells["S1"]["value"] == 100 and "S3" not in cells
    assert (cells["S2"]["value"], cells["S2"]["n"], cells["S2"]["failed"]) == (40, 5, 1)
    assert (cells["S2"]["low"], cells["S2"]["high"]) == pytest.approx((100 * 2 / 6, 100 * 3 / 6))
    assert cells["all"]["value"] == pytest.approx(100 * 8 / 11)
    low, high = cells["S2"]["interval"]
    assert 0 <= low < 40 < high <= 100
    assert "m: j and k" in printed and "m: j and k" in page
    elsewhere = judged(tmp_path / "c.jsonl", "convbench", turns, other, judge="k", answer="y")
    summary, _, _ = scored(tmp_path / "no", "convbench", first, elsewhere, "--max-failed", "1")
    assert "agreement-direct" not in summary["leaderboards"]


def test_files_of_one_judge_are_apart_among_those_that_judge_the_same_replies(tmp_path: Path) -> None:
    """A judge that sees and the same one blind are two; who judged other replies of the model agrees with none."""
    turns = [("direct", "own", 1), ("direct", "own", 2)]

    def file(name: str, grade: float, judge: str = "j", answer: str | None = "x") -> Path:
        path = tmp_path / f"{name}.jsonl"
        return judged(path, "convbench", turns, lambda _: grade, judge=judge, answer=answer)

    people, seeing, blind = file("people", 5.0, judge="people"), file("seeing", 5.0), file("blind", 4.0)
    elsewhere = file("elsewhere", 5.0, judge="k", answer="y")
    summary, _, _ = scored(tmp_path / "out", "convbench", people, seeing, blind, elsewhere)
    pairs = summary["leaderboards"]["agreement-direct"]
    assert {name: (cells["all"]["value"], cells["all"]["n"]) for name, cells in pairs.items()} == {
        "m: people and m by j (seeing)": (100, 12),
        "m: people and m by j (blind)": (0, 12),
        "m: m by j (seeing) and m by j (blind)": (0, 12),
    }, "who judged other replies is not there"
    unknown = file("unknown", 5.0, judge="k", answer=None)
    summary, _, _ = scored(tmp_path / "unknown", "convbench", people, unknown)
    assert list(summary["leaderboards"]["agreement-direct"]) == ["m: people and k"]


def test_no_verdict_is_left_out_without_a_word(tmp_path: Path) -> None:
    """Conditions that ConvBench's tables lack, verdicts between two models, and each condition's tournament."""
    turns = [("direct", "own", 1), ("direct", "no_image", 1), ("direct", "own", 3)]
    file = judged(tmp_path / "j.jsonl", "convbench", turns, lambda v: 3.0 if v.condition == "own" else 2.0)
    summary, _, printed = scored(tmp_path / "out", "convbench", file)
    others = summary["leaderboards"]["other-direct"]["m"]
    assert {name: cell["value"] for name, cell in others.items()} == {"no_image, turn 1": 2}
    assert "Other verdicts, in no score above" in printed
    fight = judged(tmp_path / "f.jsonl", "convbench", [("pairwise", "own", 1)], lambda v: 0.5, opponent="n")
    summary, _, _ = scored(tmp_path / "fight", "convbench", fight)
    assert set(summary["leaderboards"]) == {"tournament-turn-1", "tournament-turn-1-wins"}
    assert summary["leaderboards"]["tournament-turn-1"]["m"]["win rate, %"]["value"] == 50
    graded = judged(tmp_path / "g.jsonl", "multiverse", [("pairwise", "own", 1)], lambda v: 0.5, opponent="n")
    summary, _, _ = scored(tmp_path / "graded", "multiverse", graded)
    (cells,) = summary["leaderboards"]["other-pairwise-against-n"].values()
    assert cells["own, turn 1"]["value"] == 0.5
    fights = [("pairwise", "own", 1), ("pairwise", "no_image", 1)]
    both = judged(
        tmp_path / "v.jsonl", "visitbench", fights, lambda v: 1.0 if v.condition == "own" else "empty",
        opponent="n", only=4,
    )  # fmt: skip
    words = ["--questions", sample("visitbench"), "--max-failed", "1"]
    summary, _, printed = scored(tmp_path / "visit", "visitbench", both, *words)
    systems = summary["systems"]
    count = len(read_sample("visitbench"))
    assert systems["tournament"]["elo"].keys() >= {"n", "ratings"} and systems["tournament"]["asked"]["m"] == count
    rate = summary["leaderboards"]["tournament-no_image"]["m"]["win rate, %"]
    assert (rate["n"], rate["failed"], rate["asked"]) == (0, 4, count)
    assert f"{100 * 4 / count:.2f} … 100.00" in printed and f"0.00 … {100 - 100 * 4 / count:.2f}" in printed


def test_what_has_no_reference_is_not_asked_in_sight_of_it(tmp_path: Path) -> None:
    """Instruction 3 has none: grades of the others are all, and so are battles in sight of the reference."""

    def without(file: Path, free: bool = False) -> Path:
        lines = [line for line in file.read_text("utf-8").splitlines() if json.loads(line)["sample"]["id"] != "3"]
        text = "\n".join(lines)
        free_ = text.replace('"setup":{', '"setup":{"reference_backed":false,')
        file.write_text(free_ if free else text, "utf-8")
        return file

    graded = without(judged(tmp_path / "g.jsonl", "visitbench", [("direct", "own", 1)], lambda _: 5.0))
    words = ["--questions", sample("visitbench")]
    summary, _, printed = scored(tmp_path / "graded", "visitbench", graded, *words)
    (cell,) = summary["leaderboards"]["other-direct"]["m"].values()
    assert (cell["n"], cell["asked"], cell["low"], cell["high"]) == (5, 5, 5, 5) and "100.0%" in printed
    for free in (False, True):
        fight = judged(tmp_path / "f.jsonl", "visitbench", [("pairwise", "own", 1)], lambda _: 1.0, opponent="n")
        summary, _, printed = scored(tmp_path / "fight", "visitbench", without(fight, free), *words)
        assert summary["systems"]["tournament"]["asked"] == dict.fromkeys("mn", 6 if free else 5)
        assert ("83.33 … 100.00" in printed) == free


def test_files_of_one_name_are_told_apart(tmp_path: Path) -> None:
    files = [
        judged(tmp_path / name / "judged.jsonl", "alignmmbench", [("pointwise", "own", 1)], lambda v, n=n: float(n))  # type: ignore[misc]
        for n, name in enumerate("ab", 2)
    ]
    summary, _, _ = scored(tmp_path / "out", "alignmmbench", *files)
    averages = sorted(row["mean of the questions"]["value"] for row in summary["leaderboards"]["categories"].values())
    assert averages == pytest.approx([2, 3])
    again = ["--benchmark", "alignmmbench"]
    assert_one_line_error(run("critic", "score", files[0], files[0], *again), "judged.jsonl", "given twice")
    (linked := files[0].with_name("linked.jsonl")).hardlink_to(files[0])
    assert_one_line_error(run("critic", "score", files[0], linked, *again), "judged.jsonl", "given twice")
    mixed = tmp_path / "mixed.jsonl"
    mixed.write_bytes(files[0].read_bytes() + files[0].read_bytes().replace(b'"argmax"', b'"expected"'))
    assert_one_line_error(run("critic", "score", mixed, *again), "mixed.jsonl", "score_kind 'argmax', here 'expected'")


def test_how_far_pairs_follow_the_place() -> None:
    """A first in either order: always the place. A then B: always the model."""
    conversation = build_conversation("c", ConversationTurn(prompt="q"), benchmark="visitbench")

    def line(*values: str) -> Judgment:
        given = [("model", values[0]), ("opponent", values[1])]
        calls = [msgspec.convert({"reply": "", "first": first, "value": value}, Call) for first, value in given]
        return of_turn(conversation, "pairwise", turn=1, score=0.5, calls=calls)

    some = [line("A", "A"), line("A", "B"), line("tie", "A"), line("B", "A"), line("tie", "tie")]
    ((words, large),) = order_effects([run_of(some)]).items()
    assert words.startswith("j: 2 of 5 pairs (40%) were judged otherwise in the other order and count as ties; ")
    assert "of 7 comparisons with a winner, the first answer won 5." in words and not large, "too few to warn"
    # Over all files of a judge; of another judge, whose verdicts follow no place, apart.
    steady = run_of([line("A", "B")] * 60, judge="k")
    effects = order_effects([run_of(some * 2), run_of(some * 2), steady])
    assert list(effects.values()) == [True, False] and "8 of 20 pairs" in next(iter(effects))
    once = [replace(verdict, calls=verdict.calls[:1]) for verdict in [line("A", "B")] * 70 + [line("B", "A")] * 50]
    assert order_effects([run_of(once)]) == {"j: of 120 comparisons with a winner, the first answer won 70.": False}
    assert list(order_effects([run_of([*once, *once[:60]])]).values()) == [True]
    scores = [replace(once[0], calls=[replace(call, first=None, value="0.7") for call in some[0].calls])]
    assert order_effects([run_of([])]) == order_effects([run_of(scores)]) == {}, "a head scores each answer alone"


def test_a_page_warns_of_order_and_blames_no_battle(tmp_path: Path) -> None:
    """What the papers ask of single answers is no lack of a battle, and what did not fail is not said."""
    turns: list[tuple[Any, str, int | None]] = [("pairwise", "own", turn) for turn in (1, 2, 3, None)]
    file = judged(tmp_path / "f.jsonl", "convbench", turns, lambda _: 0.5, opponent="n")
    calls = [msgspec.convert({"reply": "", "first": first, "value": "A"}, Call) for first in ("model", "opponent")]
    lines = [replace(line, calls=calls) for _, line in jsonl.read(file, Judgment)]
    file.write_bytes(b"\n".join(map(msgspec.json.encode, lines)))
    _, page, printed = scored(tmp_path / "out", "convbench", file)
    assert "no verdicts by" not in printed and "no condition" not in printed and "failed" not in printed
    assert "battles between models (paper: none)" in printed
    head = page[: page.index("<main>")]
    assert "j: 24 of 24 pairs (100%) were judged otherwise in the other order" in head and "24 verdicts on 6" in head
    visit = judged(tmp_path / "v.jsonl", "visitbench", turns[:1], lambda _: 0.5, opponent="n")
    _, page, printed = scored(tmp_path / "visit", "visitbench", visit)
    assert "battles between" not in printed and "were judged otherwise" not in page


def test_mistakes_end_in_one_line(tmp_path: Path) -> None:
    file = judged(tmp_path / "j.jsonl", "convbench", [("direct", "own", 1)], grades)
    two = tmp_path / "two.jsonl"
    two.write_bytes(file.read_bytes() + file.read_bytes().replace(b'"system":"m"', b'"system":"n"'))
    question = build_question(task="Counting", reference="5")
    singles = tmp_path / "singles.jsonl"
    jsonl.write(singles, [answered("q", question, "5")])
    replied = write_jsonl(tmp_path / "replies.jsonl", [{"conversation": {"benchmark": "convbench"}, "reply": "x"}])
    other = tmp_path / "other.csv"
    other.write_text(sample("convbench").read_text("utf-8").replace("What does the sign say?", "What?"), "utf-8")
    before = judged(tmp_path / "before.jsonl", "convbench", [("direct", "own", 1)], grades, only=3)
    for words, parts in [
        ([before, file, "--questions", other], ("conversation '4' of", "j.jsonl is not there")),
        ([file, "--benchmark", "convbench", "--questions", other], ("conversation '4' of", "not as here")),
        ([file, "--benchmark", "x"], ("choose alignmmbench",)),
        ([file, singles], ("singles.jsonl:1: judges alignmmbench, expected convbench",)),
        ([file, "--benchmark", "alignmmbench"], ("j.jsonl:1: judges convbench, expected alignmmbench",)),
        ([replied], ("replies.jsonl: no judgments; `critic judge ",)),
        ([two, "--benchmark", "convbench"], ("several models (m, n)",)),
        ([file, "--benchmark", "convbench", "--questions", sample("multiverse")], ("the sheet lacks",)),
        ([tmp_path / "none.jsonl", "--benchmark", "convbench"], ("no such file",)),
    ]:
        assert_one_line_error(run("critic", "score", *words, "--out", tmp_path / "out"), *parts)
    assert not (tmp_path / "out").exists()


def test_single_answers_count_by_their_own_ids(tmp_path: Path) -> None:
    counting = build_question(prompt="How many?", task="Counting", reference="two")
    other = replace(counting, prompt="Which?", task="OCR", group="h", reference=None)
    questions = {"a": counting, "b": counting, "c": other}
    answers = [answered(key, question, f"text {key}") for key, question in questions.items()]
    jsonl.write(tmp_path / "a.jsonl", answers)
    jsonl.write(tmp_path / "b.jsonl", [replace(line, setup=replace(line.setup, judge="k")) for line in answers])
    first, again = read_runs([tmp_path / "a.jsonl", tmp_path / "b.jsonl"], "alignmmbench").runs
    assert [(line.conversation.id, line.sample.id) for line in first.turns] == [(key, key) for key in "abc"]
    assert [(line.sample.length, line.score, line.protocol) for line in first.turns] == [(6, 3.0, "pointwise")] * 3
    for line, same in zip(first.turns, again.turns, strict=True):
        assert line.conversation is same.conversation
    odd = tmp_path / "odd.jsonl"
    jsonl.write(odd, [*answers, answered("a", other, "text")])
    assert_one_line_error(run("critic", "score", odd), "odd.jsonl:4: conversation 'a' reads otherwise")


def answered(key: str, question: Question, text: str) -> Judgment:
    verdict = Verdict(rating=3.0, distribution=[0.1] * 10)
    response = Response(id=key, question=question, text=text, system="m", human=HumanScore(score=3.0))
    return of_answer(response, score=3.0, verdict=verdict, reply="x" * 100)


@pytest.mark.parametrize(("form", "given"), [("correct", {"value": "yes"}), ("checklist", {"answers": [True, True]})])
def test_failures_count_on_the_scale_of_their_form(tmp_path: Path, form: str, given: dict[str, Any]) -> None:
    """A verdict that failed says neither yes nor a rating: the form tells which it would have been."""
    lines = []
    for n in range(4):
        question = build_question(f"q{n}", group="g", reference="r")
        verdict, score = (Verdict(**given), 1.0) if n else (Verdict(failure="no_verdict"), None)
        response = Response(id=f"r{n}", question=question, text="t", system="m")
        lines.append(of_answer(response, prompt=form, score_kind="expected", verdict=verdict, score=score))
    jsonl.write(tmp_path / "j.jsonl", lines)
    done = run("critic", "score", tmp_path / "j.jsonl", "--max-failed", "1")
    row = next(line for line in done.stdout.splitlines() if line.startswith("own, turn 1"))
    assert re.search(r"\b1\.00 +3 +1 +4 +75\.0%", row) and "checklist, 0 to 1" in done.stdout, done.stdout
