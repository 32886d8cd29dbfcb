"""One judge for every form: what it asks, what it reads, and what a judgment of single responses keeps of it."""

import asyncio
import json
import math
from collections.abc import Callable
from typing import Any

import pytest
from conftest import scored_response as response
from hypothesis import given
from hypothesis import strategies as st
from judgments import Recorder, ResponseJudge

from critic.backends import Reply, Request, Token
from critic.errors import Transient
from critic.judging.forms import inquiry
from critic.records import GREEDY, Judgment, PromptInputs, Response, SamplingParams

CRITERIA = {"clarity": "Is it easy to follow?", "depth of detail": "Does it say enough?"}


def judged(
    form: str,
    answer: Callable[[Request], Reply],
    *shown: Response,
    vllm: bool = True,
    decoding: SamplingParams = GREEDY,
) -> Judgment:
    backend = Recorder(answer, {"is_vllm": vllm})
    judge = ResponseJudge(backend, "judge", form, "expected", 256, decoding, needs=None)
    return asyncio.run(judge.judge(*shown))


def chances(**shares: float) -> Token:
    """A token's alternatives, by what they say behind an underscore."""
    return Token(next(iter(shares))[1:], [(name[1:], math.log(share)) for name, share in shares.items()])


def verdict(**values: Any) -> str:
    return json.dumps(values, separators=(",", ":"))


def test_every_criterion_has_its_own_rating() -> None:
    """The distribution is the overall rating's, behind all that was written before it."""
    requests: list[Request] = []

    def answer(request: Request) -> Reply:
        requests.append(request)
        if request.continue_final:
            assert request.messages[-1]["content"] == '{"clarity":3,"depth of detail":8,"Rating":'
            return Reply(text="", tokens=[chances(_6=0.75, _8=0.25), chances(**{"_,": 1.0})])
        return Reply(text='{"clarity":3,"depth of detail":8,"Rating":6,"Reason":"so"}')

    judgment = judged("criteria", answer, response(criteria=CRITERIA))
    assert requests[0].schema is not None
    assert list(requests[0].schema["properties"]) == ["clarity", "depth of detail", "Rating", "Reason"]
    assert all(f"> {name}: {meaning}" in requests[0].messages[0]["content"] for name, meaning in CRITERIA.items())
    assert (judgment.score, judgment.verdict.rating, judgment.verdict.reason) == (6.5, 6, "so") and len(requests) == 2
    assert {key: part.rating for key, part in judgment.verdict.criteria.items()} == {"clarity": 3, "depth of detail": 8}


def test_a_criterion_that_is_missing_fails_by_itself() -> None:
    reply = Reply(
        text='{"clarity":30,"Rating":6,"Reason":"so"}', tokens=[Token('{"clarity":30,"Rating":', []), chances(_6=1.0)]
    )
    judgment = judged("criteria", lambda request: reply, response(criteria=CRITERIA), vllm=False)
    assert judgment.verdict.failure is None and judgment.score == 6
    failures = {name: part.failure for name, part in judgment.verdict.criteria.items()}
    assert failures == {"clarity": "out_of_range", "depth of detail": "no_rating"}


NAMED = ("Writing style", "Style", "Overall rating", "Main reason")
"""Names of criteria that end as others do, or as the keys beside them."""


@pytest.mark.parametrize(
    "text",
    [
        '{"Writing style":2,"Style":9,"Overall rating":3,"Main reason":5,"Rating":8,"Reason":"The answer is',
        "{'Writing style': 2, 'Style': 9, 'Overall rating': 3, 'Main reason': 5, 'Rating': 8, 'Reason': 'The answer is",
        "**Writing style**: 2\n**Style**: 9\n- Overall rating: 3\n- Main reason: 5\nRating: 8\nReason: The answer is",
        "Writing style: 2, Style: 9, Overall rating: 3, Main reason: 5, Rating: 8, Reason: The answer is",
    ],
)
@pytest.mark.parametrize("end", ["", '"}'])
def test_no_criterion_has_the_grade_of_another_whose_name_ends_alike(text: str, end: str) -> None:
    request = inquiry("criteria", "en", PromptInputs(criteria=dict.fromkeys(NAMED, "?")))
    parsed = request.read(text + end, truncated=not end)
    assert (parsed.rating, [parsed.criteria[name].rating for name in NAMED]) == (8, [2, 9, 3, 5]), parsed
    assert parsed.reason == "The answer is"


@given(st.permutations(NAMED), st.data())
def test_a_cut_gives_no_criterion_another_grade(order: list[str], data: st.DataObject) -> None:
    request = inquiry("criteria", "en", PromptInputs(criteria=dict.fromkeys(order, "?")))
    grades = {name: data.draw(st.integers(1, 10)) for name in [*order, "Rating"]}
    text = verdict(**grades, Reason=data.draw(st.text(max_size=20)))
    parsed = request.read(text[: data.draw(st.integers(0, len(text)))], truncated=True)
    assert parsed.rating in (None, grades["Rating"])
    assert all(part.rating in (None, grades[name]) for name, part in parsed.criteria.items())


def test_the_judge_commits_itself_before_it_sees_the_answer() -> None:
    shown = response(response="I see 3 apples.", reference="There are 4 apples.")
    requests: list[Request] = []

    def answer(request: Request) -> Reply:
        requests.append(request)
        if request.continue_final:
            return Reply(text="", tokens=[chances(_7=1.0)])
        return Reply(text="I count five." if len(requests) == 1 else verdict(Rating=7, Reason="so"))

    judgment = judged("commit_first", answer, shown)
    first, second = (request.messages[0]["content"] for request in requests[:2])
    assert shown.question.prompt in first and requests[0].schema is None
    assert "3 apples" not in first and "4 apples" not in first
    assert "> I count five." in second and "3 apples" in second and "4 apples" in second
    assert (judgment.score, judgment.reply) == (7, verdict(Rating=7, Reason="so"))
    assert [call.value for call in judgment.calls] == ["I count five.", "7", None]
    nothing = judged("commit_first", lambda request: Reply(text=" "), shown)
    assert nothing.verdict.failure == "empty" and nothing.score is None


def test_what_a_judge_thinks_is_not_its_own_answer() -> None:
    prompts: list[str] = []

    def answer(request: Request) -> Reply:
        prompts.append(request.messages[0]["content"])
        thought = "<think>Three? No.</think>\nI count five."
        return Reply(text=thought if len(prompts) == 1 else verdict(Rating=7, Reason=""))

    judged("commit_first", answer, response(), vllm=False)
    assert "> I count five." in prompts[1] and "Three" not in prompts[1]
    cut = judged("commit_first", lambda request: Reply(text="<think>hmm, let me", truncated=True), response())
    assert (cut.verdict.failure, cut.score, len(cut.calls)) == ("truncated", None, 1)
    only = judged("commit_first", lambda request: Reply(text="<think>hmm</think> "), response())
    assert (only.verdict.failure, only.score, len(only.calls)) == ("empty", None, 1)


def test_two_answers_are_compared_in_both_orders() -> None:
    """What comes of which two verdicts is in test_protocols.py."""
    alpha, omega = response(0, response="alpha"), response(1, response="omega")

    def answer(request: Request) -> Reply:
        text = request.messages[0]["content"]
        return Reply(text=verdict(Verdict="A" if text.index("> alpha") < text.index("> omega") else "tie"))

    judgment = judged("pairwise", answer, alpha, omega)
    assert (judgment.score, judgment.verdict.value, judgment.sample.key) == (0.5, "tie", "row-0+row-1")
    assert judgment.sample.other is not None and judgment.sample.other.response == omega
    assert [(call.first, call.value) for call in judgment.calls] == [("model", "A"), ("opponent", "tie")]


def test_choices_and_checklists_are_scored_by_their_share() -> None:
    assert judged("correct", lambda request: Reply(text=verdict(Correct="yes", Reason="r")), response()).score == 1.0
    assert judged("correct", lambda request: Reply(text=verdict(Correct="no", Reason="r")), response()).score == 0.0
    items = response(checklist=["Four?", "Green?"])
    judgment = judged("checklist", lambda request: Reply(text='{"1":"yes","2":"no"}'), items)
    assert judgment.score == 0.5 and judgment.verdict.answers == [True, False]
    half = judged("checklist", lambda request: Reply(text='{"1":"yes"}'), items)
    assert half.score is None and half.verdict.failure == "no_verdict" and half.verdict.answers == [True, None]


@pytest.mark.parametrize(
    ("form", "first", "shares", "score", "regex"),
    [
        ("scale_5", chances(_1=0.5, _5=0.5), [0.5, 0, 0, 0, 0.5], 5.5, "[1-5],.*"),
        ("scale_0_10", chances(_0=0.5, _5=0.5), [0.5, 0, 0, 0, 0, 0.5, 0, 0, 0, 0, 0], 3.25, "(10|[0-9]),.*"),
    ],
)
def test_every_scale_has_distributions(form: str, first: Token, shares: list[float], score: float, regex: str) -> None:
    """The distribution is over the scale's own ratings; the score and what is said of it are on 1..10."""

    def answer(request: Request) -> Reply:
        if request.continue_final:
            assert request.regex == regex
            return Reply(text="", tokens=[first])
        return Reply(text=verdict(Rating=5, Reason="so"))

    judgment = judged(form, answer, response())
    assert judgment.verdict.distribution == shares and judgment.score == score
    assert judgment.verdict.rating == (10 if form == "scale_5" else 5.5)
    assert judgment.verdict.summary is not None and judgment.verdict.summary.expected == score


def test_of_ten_on_another_scale_what_follows_a_one_is_asked() -> None:
    def answer(request: Request) -> Reply:
        if request.continue_final:
            assert request.forced_token == "1"
            return Reply(text="", tokens=[chances(_1=0.8, _0=0.2), chances(_0=0.25, **{"_,": 0.75})])
        return Reply(text=verdict(Rating=1, Reason="so"))

    judgment = judged("scale_0_10", answer, response())
    assert judgment.verdict.distribution == pytest.approx([0.2, 0.6, 0, 0, 0, 0, 0, 0, 0, 0, 0.2])


def test_whole_conversations_are_judged_where_they_were_scored() -> None:
    history = [{"user": "Hello?", "assistant": "Hi."}]
    whole = response(history=history, scope="conversation")
    prompts: list[str] = []

    def answer(request: Request) -> Reply:
        prompts.append(request.messages[0]["content"])
        return Reply(text=verdict(Rating=4, Reason="so"), tokens=[Token('{"Rating":', []), chances(_4=1.0)])

    assert judged("direct_whole", answer, whole, vllm=False).score == 4
    assert "> User: Hello?\n> Assistant: Hi.\n> User: How many" in prompts[0] and "# Question" not in prompts[0]


@pytest.mark.parametrize(
    ("form", "cached", "tokens", "attempts"),
    [
        ("pointwise", (), (4600, 46, 20), 2),
        ("pointwise", (0,), (600, 6, 10), 1),
        ("pointwise", (0, 1), (0, 0, 0), 0),
        ("pairwise", (), (9200, 92, 40), 2),
    ],
)
def test_a_cut_reply_is_counted_too(form: str, cached: tuple[int, ...], tokens: tuple[int, ...], attempts: int) -> None:
    """As the server counts it: the whole prompt was read, and tokens were written until the context was full. What came
    from the cache took none."""
    calls: list[int] = []

    def answer(request: Request) -> Reply:
        number, whole = len(calls), len(request.messages[0]["content"]) > 3936
        calls.append(number)
        text = verdict(Verdict="A") if form == "pairwise" else verdict(Rating=7, Reason="so")
        return Reply(
            text=text[:5] if whole else text,
            truncated=whole,
            prompt_tokens=4000 if whole else 600,
            cached_tokens=40 if whole else 6,
            completion_tokens=10,
            attempts=0 if number in cached else 2 if whole else 1,
        )

    backend = Recorder(answer, {"context": 4000})
    wordy, other = response(0, response="word " * 1000), response(1, response="omega")
    judge = ResponseJudge(backend, "judge", form, "argmax", 64)
    line = asyncio.run(judge.judge(wordy, other if form == "pairwise" else None))
    assert line.verdict.failure is None and line.shortened and len(calls) == (4 if form == "pairwise" else 2)
    assert (line.prompt_tokens, line.cached_tokens, line.completion_tokens, line.attempts) == (*tokens, attempts)


def test_a_reply_that_is_complete_is_kept_whatever_room_was_left() -> None:
    whole = Reply(text=verdict(Rating=7, Reason="so"), prompt_tokens=3990, completion_tokens=10)
    backend = Recorder(lambda request: whole, {"context": 4000})
    judgment = asyncio.run(ResponseJudge(backend, "judge", "pointwise", "argmax", 64).judge(response()))
    assert (judgment.score, judgment.prompt_tokens, judgment.shortened, len(backend.requests)) == (7, 3990, {}, 1)


@pytest.mark.parametrize(
    ("form", "lost", "text"),
    [
        ("pointwise", 1, verdict(Rating=7, Reason="so")),
        ("commit_first", 1, "I count five."),
        ("pairwise", 0, verdict(Verdict="A")),
    ],
)
def test_what_was_paid_before_a_call_was_lost_is_counted(form: str, lost: int, text: str) -> None:
    """And beside it: an order that is asked at the same time."""
    calls = 0

    def answer(request: Request) -> Reply:
        nonlocal calls
        calls += 1
        if calls == lost + 1:
            raise Transient("HTTP 500 (after 3 tries)", tries=3)
        tokens = [chances(_6=0.5, _8=0.5), chances(**{"_,": 1.0})] if request.continue_final else []
        return Reply(text=text, tokens=tokens, prompt_tokens=100, cached_tokens=40, completion_tokens=9)

    shown = [response(), response(1, response="omega")][: 2 if form == "pairwise" else 1]
    judgment = judged(form, answer, *shown)
    assert (judgment.verdict.failure, judgment.attempts) == ("server_error", 3)
    paid, spent = calls - 1, (judgment.prompt_tokens, judgment.cached_tokens, judgment.completion_tokens)
    assert paid >= 1 and spent == (100 * paid, 40 * paid, 9 * paid)
