"""Numbers beside two answers are preferences, and never scores of one answer; turns have their own texts."""

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import rows_of, write_csv, write_jsonl, write_xlsx

from critic.errors import UsageError
from critic.stats.verdicts import TIE, A, B
from eval_agreement.reading.inputs import parse_codes, parse_sources
from eval_agreement.reading.loaders import find_kind, read_labels, read_scores
from eval_agreement.reading.result_formats import guess
from eval_agreement.reading.tables import TableOptions

WORDS = ["a", "tie", "b", "a", "b", "b"]


def pairs(
    path: Path, people: list[Any], judge: list[Any], names: tuple[str, str] = ("response_a", "response_b")
) -> Path:
    answers = dict(zip(names, ("first", "second answer"), strict=True))
    ids = [f"p{number}" for number in range(len(people))]
    return write_csv(path, rows_of(id=ids, **answers, human=people, judge=judge))


@pytest.mark.parametrize("codes", [(0, 1, 2), (-1, 0, 1), (1, 2, 3), (1, 0.5, 0), (2, 0, -2)])
def test_numbers_beside_two_answers_are_read_by_what_was_said_of_them_or_refused(
    tmp_path: Path, codes: tuple[float, ...]
) -> None:
    meant = dict(zip(("a", "tie", "b"), codes, strict=True))
    coded = [meant[word] for word in WORDS]
    path = pairs(tmp_path / "t.csv", coded, coded[::-1])
    options = [f"{code}={word}" for word, code in meant.items()]
    for sources in (lambda: guess([path]), lambda: audited(path, [])):
        with pytest.raises(UsageError, match=r"human holds numbers beside two answers \(.*--map \S+=a --map \S+=tie"):
            sources()
    for kind, people, judges in (guess([path], TableOptions(codes=parse_codes(options))), audited(path, options)):
        assert kind == "preference"
        sample = read_labels(people, judges, kind)
        (human,), (judge,) = sample.people.values(), sample.judges.values()
        assert human.tolist() == [A, TIE, B, A, B, B] and judge.tolist() == [B, B, A, B, TIE, A]


def audited(path: Path, options: list[str]) -> Any:
    people, judges = parse_sources(f"{path}:human", [f"j={path}:judge"], TableOptions(codes=parse_codes(options)))
    assert people
    kind = find_kind(people)
    (read_scores(people, judges) if kind == "score" else read_labels(people, judges, kind))
    return kind, people, judges


def test_one_and_two_are_the_first_and_the_second_answer(tmp_path: Path) -> None:
    path = pairs(tmp_path / "t.csv", [1, 2, "", 2], ["a", "b", "tie", "a"], ("Answer 1", "Answer 2"))
    kind, people, judges = guess([path])
    sample = read_labels(people, judges, kind)
    assert next(iter(sample.people.values())).tolist()[:2] == [A, B]
    assert next(iter(sample.judges.values())).tolist() == [A, B, TIE, A]


def test_a_judge_that_answers_in_codes_is_refused_beside_people_in_words(tmp_path: Path) -> None:
    path = pairs(tmp_path / "t.csv", WORDS, [0, 1, 2, 0, 2, -1])
    with pytest.raises(UsageError, match=r"judge holds numbers beside two answers \(-1, 0, 1, 2\)"):
        guess([path])
    with pytest.raises(UsageError, match=r"two answers \(-1\).*--map -1=tie"):
        audited(path, ["0=a", "1=tie", "2=b"])
    _, people, judges = guess([path], TableOptions(codes=parse_codes(["0=a", "1=tie", "2=b", "-1=none"])))
    assert read_labels(people, judges, "preference").judges["judge"].tolist()[:5] == [A, TIE, B, A, B]


def conversation(number: int, style: str) -> Any:
    said = [(f"ask {number}", f"say {number}"), ("more", "word " * (number + 1))]
    if style == "pairs":
        return [{"user": user, "assistant": assistant} for user, assistant in said]
    role, content = ("from", "value") if style == "sharegpt" else ("role", "content")
    names = ("human", "gpt") if style == "sharegpt" else ("user", "assistant")
    messages = [{role: name, content: text} for pair in said for name, text in zip(names, pair, strict=True)]
    messages = [{role: "system", content: "Be kind."}, *messages]
    return json.dumps(messages) if style == "json" else messages


@pytest.mark.parametrize("style", ["messages", "pairs", "sharegpt", "json"])
@pytest.mark.parametrize("first", [1, 0])
def test_a_turn_is_audited_with_its_own_texts(tmp_path: Path, style: str, first: int) -> None:
    numbers = [0, 0, 1, 1, 2, 2, 3, 3]
    about = {"id": [f"q{number}" for number in numbers], "turn": [first, first + 1] * 4, "judge": 2}
    talks = [conversation(number, style) for number in numbers]
    path = write_jsonl(tmp_path / "t.jsonl", rows_of(**about, conversation=talks, human=numbers))
    kind, people, judges = guess([path])
    sample = read_scores(people, judges)
    assert kind == "score" and sample.ids[:2] == [f"q0/{first}", f"q0/{first + 1}"]
    texts = [(answer.question.prompt, answer.text) for answer in sample.responses if answer]
    assert texts[::2] == [(f"ask {number}", f"say {number}") for number in range(4)]
    assert texts[1::2] == [("more", "word " * number) for number in range(1, 5)]
    assert len({*sample.group}) == 4, "turns of one conversation are one group"


def test_pairs_of_conversations_have_the_lengths_of_their_turn(tmp_path: Path) -> None:
    about = {"question_id": 1, "model_a": "x", "model_b": "y", "winner": "model_a"}
    talks = {f"conversation_{side}": conversation(number, "messages") for side, number in (("a", 0), ("b", 3))}
    rows = [{**about, **talks, "turn": turn, "judge": judge} for turn in (1, 2) for judge in ("expert_1", "gpt4")]
    kind, people, judges = guess([write_jsonl(tmp_path / "t.jsonl", rows)])
    sample = read_labels(people, judges, kind)
    assert [*map(int, sample.length_a)] == [5, 5] and [*map(int, sample.length_b)] == [5, 20]
    rows[0]["turn"] = 3
    with pytest.raises(UsageError, match=r"t\.jsonl:1: a verdict on turn 3 of a conversation that has 2"):
        guess([write_jsonl(tmp_path / "t.jsonl", rows)])
    whole = [{name: cell for name, cell in row.items() if name != "turn"} for row in rows[1:3]]
    _, people, _ = guess([write_jsonl(tmp_path / "t.jsonl", whole)])
    assert people.texts("response_b") == ["say 3\nword word word word "]


def test_text_that_a_workbook_has_cut_is_a_note_of_the_audit(tmp_path: Path) -> None:
    rows = rows_of(id=[*"abcd"], response=["x", "x" * 40_000, "x", "x"], human=[1, 2, 3, 4], judge=[4, 3, 2, 1])
    _, people, judges = guess([write_xlsx(tmp_path / "t.xlsx", rows)])
    assert any("t.xlsx:row 3 has a text of 32767 characters" in note for note in read_scores(people, judges).notes)
