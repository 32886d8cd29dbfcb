"""The first replies show by which strategy ratings are read, and each prompt is rendered once."""

import asyncio
import math
from collections.abc import Callable

import pytest
from conftest import asked_of, scored_response
from judging.test_protocols import talk
from judgments import Recorder

from critic.backends import Reply, Request, Token
from critic.backends.scripted import ScriptedBackend
from critic.errors import Refused
from critic.judging.assignments import Assignment
from critic.judging.grader import ALTERNATIVES, AsStated, ByHead, ByProbe, FromTokens, Grader
from critic.judging.judge import Judge
from critic.judging.prompt import Prompt, render
from critic.records import JudgeConfig, Message, PromptInputs

EVEN = [(str(rating), math.log(1 / 9)) for rating in range(1, 10)]
"""Alternatives that hold the whole distribution but for what follows a 1."""


def answer_with(*, logprobs: bool = True, reasoned: bool = False, continues: bool = True) -> Callable[[Request], Reply]:
    """Return a judge that writes a 7; its own tokens show only half of the distribution."""

    def answer(request: Request) -> Reply:
        if request.classify:
            return Reply(text="", classes=[0.1] * 10)
        if request.continue_final:
            if not continues:
                raise Refused("refused", "the last message is no user's")
            tokens = [Token("1", EVEN), Token("0", [("0", math.log(0.5)), ("}", math.log(0.5))])]
            return Reply(text="1", tokens=tokens[: request.max_tokens] if logprobs else [])
        tokens = [Token('{"Rating":', []), Token("7", [*EVEN[:4], ("10", math.log(1 / 9))]), Token("}", [])]
        return Reply(text='{"Rating":7}', tokens=tokens if logprobs else [], reasoned=reasoned)

    return answer


@pytest.mark.parametrize(
    ("server", "answer", "strategy", "alternatives"),
    [
        ("head", answer_with(), ByHead, 0),
        ("vllm", answer_with(), ByProbe, None),
        ("vllm", answer_with(reasoned=True), FromTokens, ALTERNATIVES),
        ("vllm", answer_with(continues=False), FromTokens, ALTERNATIVES),
        ("vllm", answer_with(logprobs=False), AsStated, None),
        ("other", answer_with(), FromTokens, ALTERNATIVES),
        ("other", answer_with(logprobs=False), AsStated, ALTERNATIVES),
    ],
)
def test_the_first_reply_shows_the_strategy(
    server: str, answer: Callable[[Request], Reply], strategy: type, alternatives: int | None
) -> None:
    backend = Recorder(answer, {"is_vllm": server == "vllm", "is_classifier": server == "head"})
    grader = Grader(backend, JudgeConfig(judge="j", score_kind="expected"), 64, needs=None)
    request = asked_of("pointwise", scored_response())
    _, (verdict, _) = asyncio.run(grader.rate(request))
    assert type(grader.strategy) is strategy and grader.strategy.alternatives == alternatives
    assert grader.score_kind == ("argmax" if strategy is AsStated else "expected")
    assert (verdict.distribution is None) == (strategy is AsStated)


@pytest.mark.parametrize(("protocol", "times"), [("direct", 1), ("pairwise", 2)])
def test_a_prompt_is_rendered_once(protocol: str, times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both the hash in the record and the request are made from it."""
    rendered = []

    def count(prompt: Prompt, material: PromptInputs) -> list[Message]:
        rendered.append(material)
        return render(prompt, material)

    monkeypatch.setattr("critic.judging.forms.render", count)
    backend = ScriptedBackend(lambda request: Reply(text='{"Rating":7,"Verdict":"A"}'))
    judge = Judge(backend, JudgeConfig(judge="j", score_kind="argmax", order="both"), 64)
    planned = Assignment(transcript=talk(), protocol=protocol).plan(2, judge.setup)
    line = asyncio.run(judge.verdict_on(judge.prepare(planned)))
    assert line.failure is None and line.asked and len(rendered) == times


def test_a_head_compares_the_model_first_in_any_order() -> None:
    """A random order is drawn for the prompts, but the verdict names the model A."""
    served = {"is_classifier": True, "about": {"tie_band": 0.25}}
    backend = Recorder(lambda request: Reply(text="", classes=[float("> m2" in str(request.messages))]), served)
    orders = set()
    for seed in range(20):
        judge = Judge(backend, JudgeConfig(judge="j", score_kind="argmax", order="random", seed=seed), 64)
        prepared = judge.prepare(Assignment(transcript=talk(), protocol="pairwise").plan(2, judge.setup))
        orders.add(prepared.requests[0].first)
        line = asyncio.run(judge.verdict_on(prepared))
        assert (line.verdict.value, line.score) == ("A", 1.0)
    assert orders == {"model", "opponent"}
