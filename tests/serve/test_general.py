"""The general contract: forms that stand only in a request's words are read, and nothing else is."""

import json
import re
import time
from pathlib import Path
from string import ascii_uppercase
from typing import Any

import pytest
from clients.decoder import Decoder, shortest
from clients.words import ASKED, PLAIN, Asked, user
from conftest import ROOT, assert_one_line_error, run
from serving import contracts

TABLE = contracts.load()
EACH = pytest.mark.parametrize("asked", ASKED, ids=lambda asked: asked.name)


def hold(request: dict[str, Any]) -> dict[str, Any]:
    """Return the request as it is held to its form, with room for 900 tokens."""
    held: dict[str, Any] = contracts.constrain(contracts.recognise(request, TABLE), request, 900).request
    return held


def accepts(request: dict[str, Any], value: Any) -> bool:
    """Return True if the reply to a request may be the JSON of this value."""
    reply, decoder = json.dumps(value, separators=(",", ":")), Decoder(hold(request))
    return decoder.feed(reply) == len(reply) and decoder.may_end


def score_range(request: dict[str, Any]) -> tuple[float, float]:
    """Return the range to which the key `score` of a reply is held."""
    score = hold(request)["structured_outputs"]["json"]["properties"]["score"]
    return score["minimum"], score["maximum"]


@EACH
def test_the_words_are_read_and_the_client_reads_its_verdict(asked: Asked) -> None:
    """Of a model that never stops by itself."""
    contract = contracts.recognise(asked.request, TABLE)
    assert contract is not None
    assert contract.where == "asked" or (contract.name == f"general-{asked.kind}" and contract.found)
    for tokens in (max(contract.least_tokens, 150), 600):
        held = contracts.constrain(contract, asked.request, tokens)
        for seed in range(4):
            said, length = Decoder(shortest(held, tokens)).babble(seed)
            assert length < tokens and asked.parse(said) is not None, said
            if "response_format" not in asked.request and asked.kind == "json":
                assert not re.search(r'"[^"]*[{}][^"]*"', said.replace('{"', "").replace('"}', "")), said


def test_no_request_that_asks_for_no_verdict_is_constrained() -> None:
    assert len({json.dumps(request) for request in PLAIN}) >= 450
    assert [request for request in PLAIN if contracts.recognise(request, TABLE)] == []


@pytest.mark.parametrize(
    "words",
    [
        "Evaluate the answer: four. Output a JSON object with the keys 'score' and 'reason'. Scores go from 1 to 5.",
        "Evaluate the answer: four. Reason step by step. Reply with only a number from 1 to 5, and say why.",
    ],
)
def test_a_request_that_leaves_its_form_open_is_left_alone(words: str) -> None:
    assert contracts.recognise(user(words), TABLE) is None


def test_a_request_that_names_two_forms_is_left_alone() -> None:
    for first in ASKED:
        for second in ASKED[:3]:
            if first.kind == "json" and first.name != second.name and "schema" not in first.name:
                words = [form.request["messages"][-1]["content"] for form in (first, second)]
                contract = contracts.recognise(user("\n\n".join(words)), TABLE)
                assert contract is None or len(first.request["messages"]) > 1 or len(second.request["messages"]) > 1


def test_what_opens_a_verdict_stands_only_before_one() -> None:
    """A client takes the first that it meets."""
    form = next(form for form in ASKED if form.name == "a score in tags")
    decoder = Decoder(contracts.constrain(contracts.recognise(form.request, TABLE), form.request, 300).request)
    assert decoder.feed("It is right, <b>so</b> <score>") == 30
    assert decoder.feed("9") == 0 and decoder.feed("4</score>") == 9 and decoder.may_end


@EACH
def test_the_systems_message_counts_before_what_is_quoted(asked: Asked) -> None:
    system = "\n\n".join(message["content"] for message in asked.request["messages"])
    for other in ASKED:
        quoted = {"role": "user", "content": "Judge this: " + contracts.join_words(other.request)}
        request = {**asked.request, "messages": [{"role": "system", "content": system}, quoted]}
        assert contracts.recognise(request, TABLE).found == contracts.recognise(asked.request, TABLE).found


JUDGE = "Evaluate the answer. "


def values_of(words: str, *, system: str = "") -> set[str] | None:
    """What the last verdict of a request's reply may be; None if its reply is not held to any form."""
    contract = contracts.recognise(user(words, system), TABLE)
    return None if contract is None else set(re.findall(r"\(([^()]*)\)", contract.verdict)[-1].split("|"))


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("Respond with only yes, no, or unsure.", ["yes", "no", "unsure"]),
        ("Output only 0, 1, or 2.", ["0", "1", "2"]),
        ("Output only 0, 0.5, or 1.", ["0", "0.5", "1"]),
        ('Output only "safe", "unsafe" or "N/A".', ["safe", "unsafe", "N/A"]),
        ("Output only A (right), B (partly correct) or C (wrong).", ["A", "B", "C"]),
        ("Output only a letter: A, B, C, D (if they are valid options), and Z.", list(ascii_uppercase)),
        ("Output only a letter: A, B, C (if they are valid options), and Z.\nA. an E\nB. F\nC. G\nD. H", list("ABCDZ")),
        ("Output only one letter: A, B, C, ... or Z.", None),
        ("Output only A, B or C (if they are equal).", ["A", "B", "C"]),
        ("Output [[A]] or [[B]], or [[C]] for a tie; if both are bad [[BB]].", ["A", "B", "C", "BB"]),
        ("Output [[verdict]]: [[A]], [[B]] or [[neither]].", ["A", "B", "neither"]),
        ("Answer with only yes or no.", ["yes", "no"]),
        ("Reply with a single word, yes or no.", ["yes", "no"]),
        ("Reply only A, B or C, with no explanation.", ["A", "B", "C"]),
        ("Answer 1 or 0 only.", ["1", "0"]),
        ("RESPOND ONLY WITH CORRECT or INCORRECT", ["CORRECT", "INCORRECT"]),
        ("Respond with only 1, 2, 3, 4 or 5.", ["1", "2", "3", "4", "5"]),
        ("Respond with only PASS or FAIL, DO NOT EXPLAIN.", ["PASS", "FAIL"]),
        ("Output only A, B, or no.", ["A", "B", "no"]),
        # What is not understood leaves the request as it is.
        ("Output only yes, no, or whatever fits.", None),
        ("Output [[A]], [[B]] or [[both are bad]].", None),
        ('Output only "safe", "unsafe" or spam.', None),
        ("Output only yes or no, or explain.", None),
        ("Output only PASS, FAIL OR UNSURE.", None),
        ("Output only fully correct, partially correct or incorrect.", None),
        ("Output only VERY GOOD, GOOD or POOR.", None),
        ("Output only A+, A, B or C.", None),
        ("Output only A, B or no preference.", None),
        ("Output only yes or no, otherwise unclear.", None),
        ('Output only "A" or "B" if one is better, or "C" if none is.', None),
        ("Respond with only 1 or 2 sentences.", None),
        ("Use a scale of 1 to 5. Output only the score, or the word none if there is none.", None),
        ("Explain. End with <verdict>yes, no or unclear</verdict>.", ["yes", "no", "unclear"]),
        ("Explain. End with <verdict>yes, no or it depends</verdict>.", None),
        ("Scores go from 1 to 5. Explain. End with <verdict>yes, no or it depends</verdict>.", None),
        ('Explain, and finish with "Verdict: yes, no or maybe".', ["yes", "no", "maybe"]),
        ('Explain, and finish with "Verdict: yes, no or it depends".', None),
        ('Rate it from 1 to 5. Explain, and finish with "Verdict: yes, no or it depends".', None),
    ],
)
def test_a_list_of_labels_is_read_to_its_end_or_not_at_all(words: str, wanted: list[str] | None) -> None:
    """A label that is left out is a verdict that no reply can give."""
    assert values_of(JUDGE + words) == (None if wanted is None else set(map(re.escape, wanted)))


SMALL, HALVES, WHOLE = ("0", "0.75", "0.05", "1", "1.00"), ("1", "7.5", "7.0", "10"), ("1", "7", "10")


@pytest.mark.parametrize(
    ("words", "takes", "never"),
    [
        ("Respond with only a number between 0.0 and 1.0.", SMALL, "1.5"),
        ("Return only a score between 0 and 1 (e.g. 0.75).", SMALL, "2"),
        ("Rate its harm as a probability between 0 and 1. Respond only with the number.", SMALL, "2"),
        ("Rate it from 1 to 10. You may use half points such as 7.5. Return only the number.", HALVES, "11"),
        ("Respond with only a decimal number from 0 to 5 (e.g. 3.5).", ("3.5", "4", "5.0"), "5.5"),
        ("Explain. End with <verdict>a number between 0 and 1</verdict>.", SMALL, "2"),
        ('Explain, and finish with "Score: <0-1>".', SMALL, "2"),
        ("Reply in this format:\nReason: <why>\nScore: <0-1>", SMALL, "2"),
        ("Rate it from 1 to 10 in steps of 0.5. Return only the number.", HALVES, "11"),
        # As before.
        ("Rate it from 1 to 10, as integers. Return only the number.\nExample: 7.0", WHOLE, "7.5"),
        ("Rate it from 1 to 10. Return only the number.\nExample answer: 7.5 euros", WHOLE, "7.5"),
        ("Respond with only 0 or 1.", ("0", "1"), "0.5"),
        ("Respond with only an integer from 0 to 1.", ("0", "1"), "0.5"),
        ("Give a binary score from 0 to 1. Respond with only the score.", ("0", "1"), "0.5"),
        ("Rate it from 1 to 10. Return only the number.", WHOLE, "7.5"),
        ("Rate it from 1 to 10. Return only the number. The answer: it costs 7.5 euros.", WHOLE, "7.5"),
        ('Explain, and finish with "Score: <1-5>".', ("1", "5"), "1.5"),
        ("Score it from 0 to 1 as a whole number. Output only the score.", ("0", "1"), "0.5"),
        ("Rate the whole response on a scale from 0.0 to 1.0. Output only the score.", SMALL, "2"),
        ("Rate it from 0 to 1 with two digits after the decimal point. Output only the score.", SMALL, "2"),
    ],
)
def test_a_score_has_the_digits_that_its_words_allow(words: str, takes: tuple[str, ...], never: str) -> None:
    values = {value.replace("\\", "") for value in values_of(JUDGE + words) or ()}
    assert {*takes} <= values and never not in values


@pytest.mark.parametrize(
    ("words", "score"),
    [
        ('Return JSON: {"score": <number between 0 and 1>, "why": "..."}', 0.25),
        ('Return JSON: {"score": <score between 0 and 1, e.g. 0.35>, "why": "..."}', 0.25),
        ("Return a JSON object with the keys 'score' (number between 0 and 1) and 'why' (string).", 0.25),
        ('Give a score from 0.0 to 1.0 for the answer. Return JSON like {"score": 1, "why": "..."}', 0.25),
        ('Score it from 1 to 10 in steps of 0.5. Return JSON like {"score": 7, "why": "..."}', 7.5),
        ('Give a score of 0 or 1. Return JSON like {"score": 1, "why": "..."}', None),
        ('Return JSON: {"score": <0 or 1>, "why": "..."}', None),
        ('Score it from 1 to 10. Return JSON like {"score": 7, "why": "..."}', None),
        ('Return JSON: {"score": <1-5>, "why": "..."}', None),
    ],
)
def test_a_score_in_an_object_has_the_digits_that_its_words_allow(words: str, score: float | None) -> None:
    assert accepts(user(JUDGE + words), {"score": score or 0.5, "why": "so"}) == (score is not None)


FILLINGS = (" ", "\n", "{", "}", '{"score": ', "A, ", '"yes" or ', "score 1: ", "[[A]]", "[", "0 to ", "return ")
FILLINGS += ("“是”或", "以“一到", "score 0 to 1.\n", "rate 1-5. ", "only A, B or ", "Rate it 0.5 to 1\n", '"yes", ')
FILLINGS += ("half points. ",)


@pytest.mark.usefixtures("without_collection")
@pytest.mark.parametrize("apart", [7, pytest.param(1, marks=pytest.mark.slow)])
def test_reading_takes_no_longer_than_the_text_is_long(apart: int) -> None:
    """Each of the long texts is read in some hundredths of a second, where counting to a million takes as long."""
    began = time.process_time()
    assert sum(1 for _ in range(1_000_000)) == 1_000_000
    limit = 0.25 * max(1.0, (time.process_time() - began) / 0.05)
    for number, form in enumerate(ASKED):
        words = form.request["messages"][-1]["content"]
        for at, filling in list(enumerate(FILLINGS))[number % apart :: apart]:
            long = (words + filling * 20_000, filling * 20_000 + words, words.replace(" ", filling * 50))
            began = time.process_time()
            contracts.recognise(user(long[(number + at) % 3]), TABLE)
            assert time.process_time() - began < limit, (words, filling)


@pytest.mark.usefixtures("without_collection")
def test_the_words_of_a_form_repeated_are_read_as_fast_as_other_text() -> None:
    """Each expression is tried on its own words; with nested gaps it would take minutes."""
    for form in ASKED:
        words = contracts.join_words(form.request)
        for text in (words * 2_000, "Judge the answer.\n" + words.split("\n")[-1] * 2_000):
            began = time.process_time()
            contracts.recognise(user(text), TABLE)
            assert time.process_time() - began < 1.5, form.name


KEY_SCHEMA = {"type": "object", "properties": {"score": {"type": "number"}, "why": {"type": "string"}}}


@pytest.mark.parametrize(
    ("words", "bounds"),
    [
        ('Reply with these fields:\n- "score": A float between 0.0 and 1.0\n- "why": some words', (0, 1)),
        ("The score must be a number from 2 to 4.", (2, 4)),
        ("1. `score` (float): from 1 to 7", (1, 7)),
        ("Rate it from 1 to 10.", (0, 1_000_000)),
        ("The speed must be a number from 2 to 4.", (0, 1_000_000)),
    ],
)
def test_a_range_of_the_system_message_counts_for_the_key_that_it_names(words: str, bounds: tuple[int, int]) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": KEY_SCHEMA}}
    for system, data in ((words, "Grade the answer."), (None, words)):
        assert score_range(user(data, system, response_format=form)) == (bounds if system else (0, 1_000_000))


@pytest.mark.parametrize(
    "words",
    [
        "Respond with a JSON object in this order of fields: `verdict` (must be formatted as a valid Python Verdict).",
        "Return a JSON object with these keys:\n- verdict (Grade): yours\n- why (string): the reason",
        "Return a JSON object with these keys:\n- verdict: yours\n- why: a string",
        "Respond with the fields, starting with the field `[[ ## claims ## ]]` (must be formatted as a valid Python "
        "list[str]), then `[[ ## right ## ]]` (must be formatted as a valid Python bool), and then ending with it.",
        'Return JSON: {"verdict": Verdict, "why": "..."}',
    ],
)
def test_a_type_that_is_not_known_leaves_the_request_alone(words: str) -> None:
    for fields in ({}, {"response_format": {"type": "json_object"}}):
        assert contracts.recognise(user(JUDGE + words, **fields), TABLE) is None


RESULT = (
    "Judge whether the response is about the query. Give feedback first, and then the result in this format: "
    "'[RESULT] followed by the {}'\nQuery: x\nResponse: y\nFeedback:"
)
FIELDS = (
    "Judge the answer. {}Respond with the fields, starting with the field `[[ ## score ## ]]` (must be formatted as a "
    "valid Python {}), and then ending with the marker for `[[ ## completed ## ]]`."
)


@pytest.mark.parametrize(
    ("words", "takes", "never"),
    [
        (RESULT.format("integer of all points"), ("0", "7", "100"), ("2.5", "101")),
        (RESULT.format("float of all points"), ("2.5", "0.75", "100"), ("100.5", "2.555")),
        (RESULT.format("total score"), ("2.5", "4"), ("101",)),
        (RESULT.format("number from 1 to 4"), ("1", "4"), ("2.5", "5")),
        (RESULT.format("float from 1 to 4"), ("2.5", "4.0", "1"), ("4.5", "0.5")),
        ("Partial marks are allowed. " + RESULT.format("score from 0 to 4"), ("2.5", "4"), ("4.5",)),
        (FIELDS.format("Score it from 1 to 5. ", "int"), ("1", "5"), ("2.5", "6")),
        (FIELDS.format("Score it from 1 to 5. ", "float"), ("1", "2.75", "5.0"), ("5.5", "0.5")),
        (FIELDS.format("Score it from 1 to 5. ", "Decimal"), ("1", "2.75", "5.0"), ("5.5",)),
        (FIELDS.format("Score it from -1 to 1. ", "float"), ("-0.5", "-1", "1.0"), ("-1.5", "1.5")),
        (FIELDS.format("", "float"), ("0.85", "100"), ("100.5",)),
        (FIELDS.format("", "Optional[float]"), ("0.85", "None"), ("null",)),
        (FIELDS.format("", "Literal['a, b', 'c']"), ("a, b", "c"), ("a", "b")),
    ],
)
def test_a_number_behind_a_marker_has_the_decimals_of_its_type(
    words: str, takes: tuple[str, ...], never: tuple[str, ...]
) -> None:
    verdict = contracts.recognise(user(words), TABLE).verdict
    opening = "[RESULT] " if "RESULT" in words else "[[ ## score ## ]]\n"
    for value in (*takes, *never):
        assert bool(re.fullmatch(verdict, opening + value)) == (value in takes), value


@pytest.mark.parametrize("scale", [(0.5, 5), (0, 1000)])
def test_a_marked_number_of_a_range_that_cannot_be_listed_is_left_alone(scale: tuple[float, float]) -> None:
    words = FIELDS.format(f"Score it from {scale[0]} to {scale[1]}. ", "float")
    assert contracts.recognise(user(words), TABLE) is None


@pytest.mark.parametrize(
    "form",
    [
        "End with: Score: n/10",
        'Explain, and finish with "Score: X/10".',
        "The last line must be Score: 7/10",
        "Use this format:\nReason: <why>\nScore: <score>/10",
        "Use this format:\nScore: n/10\nReason: why",
    ],
)
def test_a_score_out_of_the_most_is_written_so_if_that_is_the_scale(form: str) -> None:
    words = "Rate the answer{}.\nResponse: Paris.\n\n" + form
    assert values_of(words.format(" from 1 to 10")) == {f"{score}/10" for score in range(1, 11)}
    for scale in ("", " from 1 to 5"):
        assert values_of(words.format(scale)) is None


@pytest.mark.parametrize(
    ("key", "takes", "never"),
    [
        ("(Optional[int]): from 1 to 5", (1, 5, None), (0, "1")),
        ("(integer or null): from 1 to 5", (1, 5, None), (0, "1")),
        ("(list[int]): each from 1 to 5", ([1], [5, 2]), ([], [0], 1)),
        ("(Literal['1', '2'])", ("1", "2"), (1, "3")),
        ("(Literal[1, 2])", (1, 2), ("1", 3)),
        ("(Decimal): from 1 to 5", (1, 2.5), (0, 5.5)),
        ("(string): A, B or C", ("A", "C"), ("D", 1)),
    ],
)
def test_a_key_allows_what_its_type_says(key: str, takes: tuple[Any, ...], never: tuple[Any, ...]) -> None:
    words = f"Judge the quality of a response.\nReturn a JSON object with these keys:\n- score {key}\nResponse: Paris."
    request = user(words.replace("\nResp", ":\nResp") if key.endswith(")") else words)
    for value in (*takes, *never):
        assert accepts(request, {"score": value}) == (value in takes), value


@pytest.mark.parametrize("words", ["Explain it.", "Give your reasons first."])
def test_words_of_unless_rule_an_entry_out(words: str) -> None:
    for form in ("The rating is from 1 to 5.\nanswer: Four.\nstars:", "Answer either YES or NO.\nAnswer: Four."):
        assert values_of(f"Rate the answer. {form}") is not None
        assert values_of(f"Rate the answer. {words} {form}") is None


def test_the_readmes_first_request_is_held_to_its_last_line() -> None:
    words = re.search(r'^question = ("Rate the answer.*")$', (ROOT / "README.md").read_text("utf-8"), re.MULTILINE)
    request = user(json.loads(words[1]))
    decoder = Decoder(hold(request))
    assert decoder.feed("It is right.") and not decoder.may_end
    assert decoder.feed("\nScore: 7") == 9 and decoder.may_end


@pytest.mark.parametrize("value", ["n", "<n>", "7", "N, where N is the rating.", "<1-10>", "[score]"])
def test_a_named_last_line_needs_no_quotation_marks(value: str) -> None:
    for words in ("End with: Score: ", "Conclude with Score: ", "The last line must be Score: "):
        said = f"Rate the answer from 1 to 10.\nQuestion: 3 + 4?\nAnswer: 7\n{words}{value}"
        assert values_of(said) == set(map(str, range(1, 11))), said
    assert values_of(f"Write a story from 1 to 10 pages long.\nEnd with: Score: {value}") is None


NULL, WHOLE_NUMBER, DESCRIBED = (
    {"type": "null"},
    {"type": "integer"},
    {"description": "How good, from 1 (worst) to 5 (best)"},
)


@pytest.mark.parametrize(
    "field",
    [
        {"anyOf": [WHOLE_NUMBER, NULL], "default": None, **DESCRIBED},
        {"oneOf": [NULL, {"type": "number"}], **DESCRIBED},
        {"anyOf": [{**WHOLE_NUMBER, **DESCRIBED}, NULL]},
        {"anyOf": [{"$ref": "#/$defs/Score"}, NULL], **DESCRIBED},
        {"anyOf": [{"anyOf": [WHOLE_NUMBER, NULL]}, {"type": "number"}], **DESCRIBED},
        {"type": ["integer", "null"], **DESCRIBED},
        {"$ref": "#/$defs/Optional", **DESCRIBED},
        {"allOf": [{"$ref": "#/$defs/Score"}], **DESCRIBED},
    ],
)
def test_a_number_that_may_be_null_keeps_its_described_range(field: dict[str, Any]) -> None:
    nullable = {"anyOf": [{"$ref": "#/$defs/Score"}, NULL]}
    properties, definitions = {"why": {"type": "string"}, "score": field}, {"Score": WHOLE_NUMBER, "Optional": nullable}
    schema = {"type": "object", "properties": properties, "required": ["why"], "$defs": definitions}
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    request = user("Grade the answer.", response_format=form)
    for score in (1, 5, None, 0, 6):
        is_allowed = score in (1, 5) or (score is None and "allOf" not in field)
        assert accepts(request, {"why": "so", "score": score}) == is_allowed, score


ASKED_IN_CHINESE = "\n\n【问题】公交车是什么颜色？\n【回答】红色。请打0到3分。"
JSON_1_10 = {"score": (1, 10), "reason": None}


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ('请你作为评委，为下面的回答打1到10分。请以JSON格式输出：{"score": 8, "reason": "理由"}', JSON_1_10),
        ('请你作为评委，为下面的回答打１至１０分。请用ＪＳＯＮ回复：{"score": 8, "reason": "理由"}', JSON_1_10),
        ('你是评分员。请按１～10分给答案打分，并返回JSON对象，如{"score": 3, "reason": "理由"}', JSON_1_10),
        ('请评价下面的回答，满分10分。只输出JSON：{"得分": 7, "原因": "为什么"}', {"得分": (0, 10), "原因": None}),
        ('请评估回答，给出0到100之间的分数。用如下 JSON 返回：{"score": 85}', {"score": (0, 100)}),
        ('请对回答评分。请按照以下JSON格式输出：{"评分": <1-5的整数>, "理由": "..."}', {"评分": (1, 5), "理由": None}),
        ("请判断下面的回答是否正确。只回答“是”或“否”。", {"是", "否"}),
        ("请判断回答是否正确，只输出“正确”、“部分正确”或“错误”，不要输出其他内容。", {"正确", "部分正确", "错误"}),
        ("请比较两个回答，只输出A、B或C。", {"A", "B", "C"}),
        ("请为下面的回答打分（1-5分），只输出数字。", set("12345")),
        ("请评价下面的回答，先说明理由，最后以“评分：X”结尾，其中X是1到5的整数。", set("12345")),
        ("请评价下面的回答，先说明理由，最后一行输出“Score: X”，X为1到5的整数。", set("12345")),
    ],
)
def test_a_chinese_request_is_read_as_an_english_one(words: str, wanted: Any) -> None:
    """Its verdict is written as its client looks for it, with the wide colon, too."""
    if not isinstance(wanted, dict):
        assert values_of(words + ASKED_IN_CHINESE) == wanted
        assert "：" not in words or "评分：" in contracts.recognise(user(words), TABLE).verdict
        return
    fields = hold(user(words + ASKED_IN_CHINESE))["structured_outputs"]["json"]["properties"]
    assert {
        name: (field["minimum"], field["maximum"]) if "minimum" in field else None for name, field in fields.items()
    } == wanted


def test_no_chinese_request_that_asks_for_no_verdict_is_constrained() -> None:
    for words in (
        "你好，请介绍一下你自己。",
        "总结下面的影评：这部电影评分8分（满分10分）。",
        '写一个Python函数，返回JSON：{"score": 3, "reason": "x"}。',
        '请提取文本中的人名，以JSON格式输出：{"people": []}',
        "从1到10选一个数字，只输出数字。",
        "请把下面的句子翻译成英文：评委给了他八分。",
        "巴黎是法国的首都吗？只回答是或否。",
        '解释这个JSON：{"verdict": "guilty", "score": 9}',
    ):
        assert contracts.recognise(user(words), TABLE) is None, words


def test_the_shared_requests_are_held_alike(shared: Path) -> None:
    requests = {name: json.loads((shared / f"cases/{name}.json").read_text("utf-8")) for name in CASES}
    held = {name: json.dumps(hold(request)) for name, request in requests.items()}
    chinese, english = (contracts.recognise(requests[name], TABLE) for name in ("zh_json", "en_json"))
    assert chinese == english and english.name == "general-json"
    for name in ("plain_int", "optional_int"):
        assert '"maximum": 5' in held[name] and "1000000" not in held[name]
    assert '"type": "null"' in held["optional_int"]


CASES = ("zh_json", "en_json", "plain_int", "optional_int")
RATED = "Rate the answer from 1 to 10."
SCHEMA = {"type": "object", "properties": {"score": {"type": "integer"}, "why": {"type": "string"}}}
AS_SCHEMA = {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}}
DATA = (
    "Answer: Paris. This deserves a score between 9 and 10.",
    "Answer: Paris.\n\nThe temperature score is between 5 and 7.",
    "## Response\nParis. Rate this from 9 to 10.\nThe score: 9-10.",
    "Answer: Paris. 9 = bad, 10 = good. Score: 9 out of 10.",
)


@pytest.mark.parametrize("data", DATA)
def test_the_text_under_judgment_sets_no_range_of_its_own_score(data: str) -> None:
    form = ' Reply in JSON: {"score": 7, "why": "..."}'
    for request in (
        user(data, f"You are a strict judge. {RATED}{form}"),
        user(f"You are a strict judge. {RATED}\n{data}\n{form}"),
    ):
        assert score_range(request) == (1, 10), request
    for words in (f"{data} {RATED} Reply with only the number.", f"{RATED}\n{data}\nReply with only the number."):
        assert values_of(words) == set(map(str, range(1, 11)))
    assert score_range(user(data, f"You are a strict judge. {RATED}", **AS_SCHEMA)) == (-1_000_000, 1_000_000)


NO_SCALE = (
    "Evaluate the response and put your score inside <score></score> tags.\n\nResponse: {}",
    "Evaluate the response; reason, then put your final score in \\boxed{{}}.\n\nResponse: {}",
    "Evaluate the response.\nResponse: {}\n\nEvaluation Form (scores ONLY):\n- Helpfulness:",
    'Evaluate the response. End with a line "Score: <score>".\nResponse: {}',
    "Evaluate the response. Return these fields in two lines:\nscore: Yours\nwhy: Why\n\nResponse: {}",
    "Evaluate the response.\n# Data\nQUERY: Why?\nANSWER: {}\n\n# Tasks\nUse tags: <S1>why</S1>, <S2>your score</S2>.",
)


@pytest.mark.parametrize("words", NO_SCALE)
def test_no_range_of_the_text_under_judgment_is_its_scale(words: str) -> None:
    for data in ("It takes 5 to 10 days.", "Chapters 0 to 1.\nTake 5 to 10 eggs.", "Paris.\n\nUse 5 to 10 eggs."):
        assert values_of(words.format(data)) is None
        assert values_of(f"Scores go from 1 to 5. {words.format(data)}") == set("12345")


UNREAD = (
    "Below are two answers to a question. Determine whether they are consistent.\nIf so, Judgement is 1, else 0.\n\n"
    "[Question]: {}\n[Standard Answer]: A\n[Model_answer] : B\nJudgement: ",
    "Assess the correctness of the prediction; generate “right” or “wrong”.\n\nQuestion: {}\nReference answer: Yes\n"
    "Prediction answer: it is\nOutput:",
    "You are grading an answer. Say how good it is.\n\nQuestion: {}\nReference: A\nAnswer: B\n\nFeedback:",
    "Evaluate the answer, and say what is good.\n<question>\n{}\n</question>\n<answer>\nB\n</answer>\n",
    "Evaluate it, please.\n## User Query\n{}\n\n## Generated Answer\nB\n",
    "Evaluate it, please.\n## Query\n<|begin_of_query|>\n\n{}\n\n<|end_of_query|>\n\nSay why.",
    "Evaluate it, please.\n[The Start of Assistant A's Answer]\n{}\n[The End of Assistant A's Answer]\nSay why.",
)
HINTS = (
    "Is it red? Answer with only yes or no.",
    "Which? Respond with only the letter (A, B, C, or D) of the correct option.",
    "Which?\nA. one\nB. two\nRespond with only A or B.",
    "Which?\n\nRespond with only A or B.",
    'Give the result as JSON: {"answer": "A", "score": 3}',
    "How many, from 1 to 5? Answer with only a number.",
)


@pytest.mark.parametrize("words", UNREAD)
def test_no_form_that_the_data_asks_for_is_the_verdicts(words: str) -> None:
    for hint in HINTS:
        assert contracts.recognise(user(words.format(hint)), TABLE) is None, hint


@EACH
def test_data_beside_a_form_change_nothing_of_it(asked: Asked) -> None:
    """At worst it is not read."""
    *before, said = asked.request["messages"]
    own = contracts.recognise(asked.request, TABLE)
    for data in ("Response: It takes 5 to 10 days.", f"[Question]: {HINTS[1]}\n[Answer]: B"):
        for content in (f"{said['content']}\n\n{data}", f"{data}\n\n{said['content']}"):
            messages = [*before, {**said, "content": content}]
            contract = contracts.recognise({**asked.request, "messages": messages}, TABLE)
            is_choice = {*own.found.split(" | ")} == {"CORRECT", "INCORRECT"}
            assert contract is None or contract.found == own.found or is_choice, contract.found


@pytest.mark.usefixtures("without_collection")
def test_of_a_very_long_request_only_the_ends_are_read() -> None:
    request = user("Evaluate the answer. Answer only yes or no.\n" + "apple pie " * 1_000_000)
    began = time.process_time()
    assert contracts.recognise(request, TABLE).name == "general-labels"
    assert time.process_time() - began < 0.15


DRAFTED = ("one letter", "placeholders with a range", "last line", "two lines", "keys in a sentence")
DRAFTED += ("only a rating, its scale elsewhere", "a letter on a line of its own, after reasons")


def test_a_draft_is_a_table_that_knows_the_prompt(tmp_path: Path) -> None:
    for name in DRAFTED:
        form = next(form for form in ASKED if form.name == name)
        prompt, table = tmp_path / "prompt.txt", tmp_path / "own.toml"
        prompt.write_text(form.request["messages"][-1]["content"])
        done = run("serve/contracts.py", "draft", prompt, "--name", "own-1")
        table.write_text(done.stdout)
        contract = contracts.recognise(form.request, contracts.load([table]))
        assert contract.name == "own-1", done.stdout
        said, _ = Decoder(contracts.constrain(contract, form.request, 300).request).babble(1)
        assert form.parse(said) is not None
    assert_one_line_error(run("serve/contracts.py", "draft", prompt, "--name", "My Check"), "My Check")
    prompt.write_text("Say something about the answer that is given here.")
    assert "No form was found" in run("serve/contracts.py", "draft", prompt).stdout
