"""critic score of models that several judges judged, and of one model under two names."""

import re
import shlex
from pathlib import Path

import pytest
from conftest import run
from judgments import of_turn
from samples import build_conversation
from scoring import ASKED, grades, judged, scored

from critic import jsonl
from critic.records import ConversationTurn

QUESTIONS = 24
ASKED_ONCE: list[tuple[str, str, int | None]] = [("pointwise", "own", 1)]


def write_ratings(path: Path, model: str, judge: str, more: float = 0.0, questions: int = QUESTIONS) -> Path:
    """Write ratings 2 to 8 of a model's replies, `more` points higher; replies follow from the file name's model."""
    lines = []
    for number in range(questions):
        turn = ConversationTurn(prompt=f"Question {number}?", reference="r", task="OCR")
        conversation = build_conversation(f"{number}-0", turn, benchmark="alignmmbench", group=str(number))
        reply = f"{model.removesuffix(' again')} on {number}"
        score = 2.0 + (number * len(model)) % 7 + more
        lines.append(
            of_turn(conversation, "pointwise", system=model, judge=judge, turn=1, answer=reply, asked="a", score=score)
        )
    jsonl.write(path, lines)
    return path


def first_lines(page: str) -> list[str]:
    """Return the sentences at the head of a page."""
    (head,) = re.findall(r'<div class="verdict">\n(.*?)</div>', page, re.DOTALL)
    return re.findall(r"<p(?: class=\"decision\")?>(.*?)</p>", head)


def test_two_judges_are_said_before_any_ranking(tmp_path: Path) -> None:
    files = [
        write_ratings(tmp_path / "a.jsonl", "a", "old"),
        write_ratings(tmp_path / "bb.jsonl", "bb", "new judge", 1),
        write_ratings(tmp_path / "ccc.jsonl", "ccc", "new judge", 2),
    ]
    summary, page, printed = scored(tmp_path / "out", "alignmmbench", *files)
    judges = "2 judges gave these verdicts, each on a scale of its own: a by old; bb, ccc by new judge."
    assert judges in printed.splitlines()[2] and printed.index(judges) < printed.index("rank")
    assert first_lines(page)[0].startswith(judges) and "ranked only among those of one judge" in first_lines(page)[0]
    assert summary["places"]["tasks"]["a"] == [1, 1], "among those of the old judge"
    assert all(best <= worst <= 2 for best, worst in summary["places"]["tasks"].values())
    assert "mean of the models" not in summary["leaderboards"]["tasks"]
    # One judge: nothing to say, one ranking, and the mean.
    summary, page, printed = scored(tmp_path / "same", "alignmmbench", *files[1:])
    assert printed.startswith("Scores\n") and "judges gave" not in page
    assert "mean of the models" in summary["leaderboards"]["tasks"]


def test_the_road_to_one_scale_is_a_command_that_works(tmp_path: Path) -> None:
    """First it says what is missing; once both judges rated the same replies, its command converts the ratings."""
    (folder := tmp_path / "my runs").mkdir()
    files = [
        write_ratings(folder / "a.jsonl", "a", "old"),
        write_ratings(folder / "bb.jsonl", "bb", "new=1", 1),
    ]
    _, _, printed = scored(tmp_path / "out", "alignmmbench", *files)
    again = folder / "a-again.jsonl"
    (road,) = re.findall("^To put the ratings of a by old on the scale of new=1: (.*)$", printed, re.MULTILINE)
    assert f"judge its replies to 20 questions or more (`critic judge REPLIES.jsonl --out '{again}'`)" in road
    write_ratings(again, "a", "new=1", 1, questions=20)
    (command,) = re.findall("`(critic audit .*?)`", road)
    assert "by 20 answers that both scored" in run(*shlex.split(command), "--out", tmp_path / "audit", code=0).stdout
    # Given to the score as well, the file is found.
    _, _, printed = scored(tmp_path / "found", "alignmmbench", *files, again)
    assert command in printed and "critic judge" not in printed
    # 19 questions are too few for the audit, and the score knows.
    write_ratings(again, "a", "new=1", 1, questions=19)
    _, _, printed = scored(tmp_path / "few", "alignmmbench", *files, again)
    assert "20 questions or more" in printed and run(*shlex.split(command)).returncode == 2


def test_comparisons_are_not_offered_a_conversion(tmp_path: Path) -> None:
    files = [
        judged(tmp_path / f"{name}.jsonl", "visitbench", [("pairwise", "own", 1)], lambda _: 0.5, name, judge=judge)
        for name, judge in (("m", "j"), ("n", "k"))
    ]
    _, page, printed = scored(tmp_path / "out", "visitbench", *files)
    assert "Only ratings can be converted from one judge to another: let k judge what j judged." in printed
    assert "--exchange" not in printed + page


def test_judges_of_battles_each_have_a_leader(tmp_path: Path) -> None:
    """People find n better, the judge m: neither is first of all."""
    pair = [("pairwise", "own", 1)]
    files = [
        judged(tmp_path / "j.jsonl", "visitbench", pair, lambda _: 1.0, "m", "n", judge="j"),
        judged(tmp_path / "p.jsonl", "visitbench", pair, lambda _: 0.0, "m", "n", judge="people"),
    ]
    _, page, _ = scored(tmp_path / "out", "visitbench", *files)
    leaders = [line for line in first_lines(page) if line.startswith("By ")]
    assert [line.partition(" with ")[0] for line in leaders] == ["By j: m is first", "By people: n is first"]


def test_one_model_under_two_names_is_noticed(tmp_path: Path) -> None:
    """Nine of ten equal replies are; other replies, and two files of one name, are not."""
    first = write_ratings(tmp_path / "a.jsonl", "a", "j")
    second = write_ratings(tmp_path / "b.jsonl", "a again", "j", 1)
    _, page, printed = scored(tmp_path / "out", "alignmmbench", first, second)
    sentence = f"a and a again gave the same reply to 24 of {QUESTIONS} turns: is it one model under two names?"
    assert printed.splitlines()[3 - 1] == sentence and first_lines(page)[0] == sentence
    text = second.read_text("utf-8")
    second.write_text(text.replace("a on 1", "other on 1", 2), "utf-8")
    assert f"22 of {QUESTIONS} turns" in scored(tmp_path / "most", "alignmmbench", first, second)[2]
    second.write_text(text.replace("a on 1", "other on 1"), "utf-8")
    assert "two names" not in scored(tmp_path / "half", "alignmmbench", first, second)[2]
    (tmp_path / "more").mkdir()
    namesake = write_ratings(tmp_path / "more/a.jsonl", "a", "k")
    assert "two names" not in scored(tmp_path / "namesake", "alignmmbench", first, namesake)[2]


@pytest.mark.parametrize("failing", [0, 1])
def test_the_page_of_one_model_says_over_what_its_mean_is(tmp_path: Path, failing: int) -> None:
    """The sample has 8 questions of 6 of the paper's 13 tasks. OCR has one, whose verdict may be missing."""

    def rate(verdict: object) -> float | str:
        task = verdict.conversation.turns[0].task  # type: ignore[attr-defined]
        return "no_rating" if failing and task == "OCR" else 3.0

    file = judged(tmp_path / "j.jsonl", "alignmmbench", ASKED_ONCE, rate)
    _, page, _ = scored(tmp_path / "out", "alignmmbench", file, "--max-failed", "1")
    over = f"{6 - failing} of 13 tasks ({8 - failing} questions)"
    assert first_lines(page)[0].startswith(f"m has 3.00 of 10 over {over} in “mean of tasks”")
    assert "ahead of" not in page


def test_every_benchmark_says_what_its_only_score_is_out_of(tmp_path: Path) -> None:
    def score(verdict: object) -> float:
        return {"pairwise": 0.5, "checklist": 0.5}.get(verdict.protocol, 5.0)  # type: ignore[attr-defined]

    for benchmark in ("convbench", "multiverse", "visitbench"):
        file = judged(tmp_path / f"{benchmark}.jsonl", benchmark, ASKED[benchmark], score)
        _, page, _ = scored(tmp_path / benchmark, benchmark, file)
        assert re.match(r"m has \d\d\.\d\d of 100 over \d+ verdicts in “", first_lines(page)[0])


def test_rows_of_a_users_own_have_no_tasks_to_be_over(tmp_path: Path) -> None:
    """Eight questions of no task, and eight of two tasks that are not the paper's."""
    for tasks, over in ((1, "8 questions"), (2, "2 of 2 tasks (8 questions)")):
        file = judged(tmp_path / f"{tasks}.jsonl", "alignmmbench", ASKED_ONCE, grades)
        text = re.sub(
            r'"task":"\w+"', lambda match, n=tasks: f'"task":"own {len(match[0]) % n}"', file.read_text("utf-8")
        )
        file.write_text(text, "utf-8")
        _, page, _ = scored(tmp_path / f"out{tasks}", "alignmmbench", file)
        assert f" of 10 over {over} in “mean of tasks”" in first_lines(page)[0]
