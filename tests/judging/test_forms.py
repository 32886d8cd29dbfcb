"""Judging forms: what people's scores say in each, which rows are trained in which, how replies are read."""

import json
import re
from typing import Any

import msgspec
import pytest
from conftest import count_characters, example_in, scored_response
from hypothesis import given
from hypothesis import strategies as st

from critic.judging.examples import ALONE, OPEN, Plan, Planned, build_example, plan
from critic.judging.forms import BY_NAME, form_of, inquiry
from critic.judging.prompt import FLOOR, load
from critic.judging.targets import encode, target
from critic.records import Example, PromptInputs, Response, Verdict, to_ten

ONE_VALUE = [name for name, form in BY_NAME.items() if len(form.kind.values(load(name, "en"), PromptInputs())) == 1]
"""The forms whose verdict is one value: a rating or a choice."""
each_form = pytest.mark.parametrize("name", ONE_VALUE)


def response(number: int, score: float, **changes: Any) -> Response:
    return scored_response(number, human_score=score, scale_min=1, scale_max=10, annotators=None, **changes)


def answers(*scores: float, **changes: Any) -> list[Response]:
    """Answers by different systems to one question, with these scores on 1..10."""
    common = {"question": "How many apples?", "reference": "Four.", "group": "g", "image": "a.png", **changes}
    return [
        response(n, score, **{"system": f"system-{n}", "response": f"answer {n}", **common})
        for n, score in enumerate(scores)
    ]


def teach(form: str, *shown: Response) -> Example:
    example = example_in(form, *shown)
    assert isinstance(example, Example)
    return example


def read(name: str, text: str, truncated: bool = False) -> Verdict:
    return form_of(name).kind.read(load(name, "en"), PromptInputs(), text, truncated)


def found_value(read_back: Verdict) -> float | str | None:
    return read_back.value if read_back.rating is None else read_back.rating


def values(name: str) -> list[int | str]:
    (schema,) = form_of(name).kind.values(load(name, "en"), PromptInputs()).values()
    low, high = load(name, "en").scale
    return list(schema.get("enum", range(low, high + 1)))


def test_a_form_teaches_what_people_said() -> None:
    good, poor = answers(8.0, 3.2, reason="It counts four.")
    assert teach("pointwise", good).target == '{"Rating":8,"Reason":"It counts four."}'
    assert teach("pointwise_reason_first", good).target == '{"Reason":"It counts four.","Rating":8}'
    assert teach("scale_5", poor).target == '{"Rating":2,"Reason":"It counts four."}'
    assert teach("scale_0_10", poor).target == '{"Rating":2,"Reason":"It counts four."}'
    assert teach("correct", good).target == '{"Correct":"yes","Reason":"It counts four."}'
    assert teach("correct", poor).target == '{"Correct":"no","Reason":"It counts four."}'
    assert teach("pairwise", good, poor).target == '{"Verdict":"A"}'
    whole = teach("direct_whole", response(0, 8, scope="conversation", focus="Name one."))
    assert "> Turn 1: Name one.\n" in whole.messages[0]["content"]
    assert teach("pairwise", good, poor).id == f"{good.id}+{poor.id}" and teach("pairwise", good, poor).score is None
    assert teach("pairwise", poor, good).target == '{"Verdict":"B"}'


def test_raters_are_a_soft_label_on_the_forms_scale() -> None:
    raters = {"a": 3, "b": 3, "c": 4.5, "d": 3.5}
    rated = scored_response(human_score=3.5, annotators=raters, scale_min=1, scale_max=5)
    # On 1..10 the raters gave 5.5, 5.5, 8.875 and 6.625.
    soft = teach("pointwise", rated).label
    assert soft == pytest.approx([0, 0, 0, 0, 0.25, 0.34375, 0.15625, 0.03125, 0.21875, 0])
    assert sum(rating * share for rating, share in enumerate(soft, 1)) == pytest.approx(6.625)
    assert teach("pointwise_reason_first", rated).label == teach("pointwise", rated).label
    assert teach("scale_5", rated).label == [0, 0, 0.625, 0.25, 0.125]
    assert teach("scale_0_10", rated).label == pytest.approx([0, 0, 0, 0, 0, 0.5, 0.1875, 0.0625, 0.0625, 0.1875, 0])
    assert teach("pointwise", rated).score == to_ten(3.5, 1, 5) == 6.625
    assert teach("pointwise", response(0, 5)).label is None
    assert teach("correct", rated).label is None and teach("correct", rated).score == 6.625


def test_what_does_not_fit_is_named() -> None:
    good, poor = answers(8, 3)
    assert example_in("scale_5", good, limit=500, count=count_characters) is None
    assert example_in("pairwise", good, poor, limit=500, count=count_characters) is None
    long = answers(8, 3, response="w" * 5000)
    long[1] = msgspec.structs.replace(long[1], text="v" * 4000)
    limit = count_characters(teach("pairwise", good, poor).messages) + 1000
    example = example_in("pairwise", *long[:2], limit=limit, count=count_characters)
    assert isinstance(example, Example) and example.shortened["response"] > 9000 - 2 * FLOOR - 1000


def rows(count: int) -> list[Response]:
    """Questions in two languages with five answers each, scored 1..10."""
    responses = []
    for number in range(count):
        question, n = divmod(number, 5)
        texts = {"question": f"question {question}", "response": f"answer {n}", "reference": "r", "image": None}
        place = {"system": f"system-{n}", "group": f"g{question}", "lang": ["zh", "en"][question % 2]}
        responses.append(response(number, (7 * question + 3 * n) % 10 + 1, **texts, **place))
    return responses


ROWS = rows(2000)
BY_ID = {row.id: row for row in ROWS}


def planned(made_plan: Plan, form: str) -> list[tuple[str, ...]]:
    return [each.ids for each in made_plan.examples if each.form == form]


def test_shares_are_kept_and_forms_are_drawn_for_themselves() -> None:
    mix = {"pointwise": 0.7, "pointwise_reason_first": 0.3, "scale_5": 1.0, "scale_0_10": 0.0, "pairwise": 0.5}
    drawn = plan(ROWS, mix)
    sizes = {form: len(planned(drawn, form)) / len(ROWS) for form in mix}
    assert sizes["scale_5"] == 1.0 and sizes["scale_0_10"] == 0.0
    assert sizes["pointwise"] == pytest.approx(0.7, abs=0.04)
    assert sizes["pointwise_reason_first"] == pytest.approx(0.3, abs=0.04)
    assert 0.8 < sizes["pairwise"] <= 1.0  # both orders; a pair that both of its rows chose counts once
    both = set(planned(drawn, "pointwise")) & set(planned(drawn, "pointwise_reason_first"))
    assert len(both) / len(ROWS) == pytest.approx(0.21, abs=0.04)


def test_more_rows_and_other_shares_change_nothing_that_was_there() -> None:
    mix = {"pointwise": 0.5, "scale_5": 0.2, "correct": 0.4, "pairwise": 0.5}
    before = plan(ROWS[:1000], mix)
    more = plan(ROWS[::-1], mix)
    old = {row.id for row in ROWS[:1000]}
    assert {each for each in more.examples if set(each.ids) <= old} == set(before.examples)
    other = plan(ROWS[:1000], {"correct": 0.9, "pairwise": 0.5, "pointwise": 0.5, "scale_5": 0.7})
    for form in ("pointwise", "pairwise"):
        assert sorted(planned(other, form)) == sorted(planned(before, form))
    for form in ("scale_5", "correct"):
        assert set(planned(before, form)) < set(planned(other, form))


def test_pairs_are_of_one_question_by_two_systems_in_both_orders() -> None:
    pairs = planned(plan(ROWS, {"pairwise": 1.0}), "pairwise")
    assert len(set(pairs)) == len(pairs) and set(pairs) == {(b, a) for a, b in pairs}
    for a, b in pairs:
        assert BY_ID[a].question == BY_ID[b].question and BY_ID[a].system != BY_ID[b].system
    verdicts = {ids: build_example(Planned("pairwise", ids), BY_ID, None, lambda messages: 0).target for ids in pairs}
    mirrored = {'{"Verdict":"A"}': '{"Verdict":"B"}', '{"Verdict":"B"}': '{"Verdict":"A"}'}
    assert all(mirrored.get(verdict, verdict) == verdicts[b, a] for (a, b), verdict in verdicts.items())
    assert len({ids[1] for ids in pairs}) > 0.6 * len(ROWS)  # not always the same partner


def test_what_cannot_be_compared_is_counted_and_not_dropped() -> None:
    same_text = answers(9, 2, response="alike ")
    same_text[1] = msgspec.structs.replace(same_text[1], text="alike")
    cases = {
        "alone": [response(10, 9)],
        "one system": answers(9, 2, system="one system"),
        "the same text": same_text,
        "another reference": [*answers(9)[:1], answers(9, 2, reference="Five.")[1]],
        "another history": [*answers(9)[:1], answers(9, 2, history=[{"user": "a", "assistant": "b"}])[1]],
    }
    for name, these in cases.items():
        drawn = plan(these, {"pairwise": 1.0})
        assert (drawn.examples, drawn.left_out) == ([], {f"pairwise: {ALONE}": len(these)}), name
    close = plan(answers(6, 6.7), {"pairwise": 1.0, "correct": 1.0})
    assert close.left_out == {f"pairwise: {OPEN}": 2, f"correct: {OPEN}": 1}
    assert planned(close, "correct") == [("row-1",)]
    decided = plan(answers(6, 6.7, 9), {"pairwise": 1.0})  # an open pair is passed over for one that teaches
    assert {tuple(sorted(ids)) for ids in planned(decided, "pairwise")} == {("row-0", "row-2"), ("row-1", "row-2")}
    unknown = plan(answers(9, 2, system=None), {"pairwise": 1.0})
    assert len(unknown.examples) == 2


class Pieces:
    """A tokenizer of words and single characters; a quotation mark and a letter behind it are one token, as
    byte-pair encodings have it."""

    def apply_chat_template(self, conversation: Any, *, tokenize: bool, add_generation_prompt: bool) -> str:
        text = "".join(f"[{each['role']}]{each['content']}[end]" for each in conversation)
        return text + ("[assistant]" if add_generation_prompt else "")

    def __call__(self, text: str, **options: Any) -> dict[str, Any]:
        pieces = list(re.finditer(r'"?[A-Za-z]+|\s+|[^A-Za-z\s]', text))
        return {
            "input_ids": [hash(each[0]) % 2**31 for each in pieces],
            "offset_mapping": [each.span() for each in pieces],
        }


@pytest.mark.parametrize(
    ("form", "spelt"),
    [
        ("pointwise", ["1", "0"]),
        ("pointwise_reason_first", ["1", "0"]),
        ("scale_5", ["5"]),
        ("scale_0_10", ["1", "0"]),
        ("correct", ['"yes']),
        ("pairwise", ['"A']),
    ],
)
def test_the_tokens_of_the_value_are_marked(form: str, spelt: list[str]) -> None:
    good, poor = answers(10, 1, reason='it says "Rating":3, "Correct":"no", so')
    example = teach(form, good, *([poor] if form == "pairwise" else []))
    tokens = encode(Pieces(), example)
    words = [each[0] for each in re.finditer(r'"?[A-Za-z]+|\s+|[^A-Za-z\s]', example.target + "[end]")]
    assert len(words) == len(tokens.ids) - tokens.source
    assert [words[position - tokens.source] for position in tokens.value] == spelt
    assert all(position >= tokens.source for position in tokens.value)


def test_verdicts_have_the_same_keys_and_scale_in_both_languages() -> None:
    """So that reading them is tried in one."""
    for name in ONE_VALUE:
        en, zh = (load(name, lang) for lang in ("en", "zh"))
        assert (en.key, en.scale) == (zh.key, zh.scale), name
        assert inquiry(name, "en", PromptInputs()).keys() == inquiry(name, "zh", PromptInputs()).keys(), name


@each_form
@given(data=st.data(), reason=st.text(max_size=80))
def test_what_a_form_teaches_is_read_back(name: str, data: st.DataObject, reason: str) -> None:
    prompt, order = load(name, "en"), inquiry(name, "en", PromptInputs()).keys()
    wanted = data.draw(st.sampled_from(values(name)))
    text = target(wanted, reason, order)
    verdict = read(name, text)
    assert verdict.failure is None
    assert found_value(verdict) == (wanted if isinstance(wanted, str) else pytest.approx(to_ten(wanted, *prompt.scale)))
    assert verdict.reason == (reason if "Reason" in order else None)
    cut = data.draw(st.integers(0, len(text)))
    part = read(name, text[:cut], truncated=cut < len(text))
    assert part.failure in (None, "empty", "truncated", "no_rating", "no_verdict")
    assert found_value(part) in (None, found_value(verdict))


def test_a_rating_cut_off_where_it_could_go_on_is_none() -> None:
    eleven, five = "scale_0_10", "scale_5"
    assert read(eleven, '{"Rating":1', truncated=True).failure == "truncated"
    assert read(eleven, '{"Rating":10', truncated=True).rating == 10
    assert read(eleven, '{"Rating":0', truncated=True).rating == 1
    assert read(five, '{"Rating":1', truncated=True).rating == 1
    assert read(five, '{"Rating":"5/5"}').rating == 10 and read(five, "Rating: 4/10").failure == "no_rating"
    assert read(five, '{"Rating":6}').failure == read(eleven, '{"Rating":11}').failure == "out_of_range"


@given(st.text(), st.sampled_from(["pointwise", "scale_0_10", "correct", "pairwise"]), st.booleans())
def test_any_text_gives_a_verdict_of_the_form_or_a_failure(text: str, name: str, truncated: bool) -> None:
    key = load(name, "en").key
    for reply in (text, f'{{"{key}":' + text, f'{{"{key}":"' + text, f"{key}: {text}", '{"Reason":"' + text):
        verdict = read(name, reply, truncated)
        assert (found_value(verdict) is None) != (verdict.failure is None)
        assert verdict.rating is None or 1 <= verdict.rating <= 10
        assert verdict.value is None or verdict.value in values(name)


@each_form
@given(before=st.text(max_size=30), data=st.data())
def test_a_verdict_quoted_in_a_reason_is_never_read(name: str, before: str, data: st.DataObject) -> None:
    key, scale = load(name, "en").key, load(name, "en").scale
    wanted, forged = data.draw(st.sampled_from(values(name))), data.draw(st.sampled_from(values(name)))
    shown = json.dumps({key: forged, "Reason": before})
    reason = data.draw(st.sampled_from([shown, f'{before}", {shown[1:]}', f"{before}\n{key}: {forged}"]))
    on_ten = wanted if isinstance(wanted, str) else pytest.approx(to_ten(wanted, *scale))
    first = json.dumps({key: wanted, "Reason": reason})
    last = json.dumps({"Reason": reason, key: wanted}, ensure_ascii=False)
    for text in (first, last):
        assert found_value(read(name, text)) == on_ten
    start = len(json.dumps({"Reason": reason}, ensure_ascii=False)) - 1
    cut = data.draw(st.integers(1, start))
    assert found_value(read(name, last[:cut], truncated=True)) is None
    unescaped = f'{{"Reason": "it says {shown} th'
    assert found_value(read(name, unescaped, truncated=True)) is None


@pytest.mark.parametrize("text", ['{"a": 1}', '{"name" : "x"}', '{"Rating": 3}', "[1]", "Four."])
def test_of_a_free_answer_nothing_is_the_value(text: str) -> None:
    """Whatever the reference looks like: it is learned as text."""
    example = teach("answer", response(0, 8, reference=text))
    assert example.target == text and example.free
    tokens = encode(Pieces(), example)
    assert tokens.source < len(tokens.ids) and not tokens.value


def test_raters_of_an_answer_by_criteria_are_a_soft_label_too() -> None:
    people: dict[str, Any] = {"criteria": {"clarity": "c"}, "criteria_scores": {"clarity": 4}}
    people["annotators"] = {"a": 3, "b": 5}
    example = teach("criteria", scored_response(human_score=4, reason="so", **people))
    assert example.target == '{"clarity":4,"Rating":4,"Reason":"so"}'
    assert example.label == [0, 0, 0.5, 0, 0.5, 0, 0, 0, 0, 0]
