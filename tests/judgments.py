"""Judgments as tests write them, and judges that are asked: what is alike for all of them is filled in."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from critic.backends import Backend, Reply, Request
from critic.backends.scripted import ScriptedBackend
from critic.benchmarks import Run
from critic.images import Images
from critic.judging.judge import Judge, plan_response
from critic.records import GREEDY, Conversation, JudgeConfig, Judgment, Response, Sample, SamplingParams, Verdict


class Recorder(ScriptedBackend):
    """Remembers the requests; `answer` may be a coroutine function, and `served` is what it says of its model."""

    def __init__(self, answer: Callable[[Request], Any], served: dict[str, Any] | None = None) -> None:
        super().__init__(answer)
        self.served = replace(self.served, **(served or {}))
        self.requests: list[Request] = []

    async def chat(self, request: Request) -> Reply:
        self.requests.append(request)
        reply = self.answer(request)
        return await reply if asyncio.iscoroutine(reply) else reply


class ResponseJudge(Judge):
    """A judge of single responses, by one form."""

    def __init__(
        self,
        backend: Backend,
        name: str,
        form: str,
        score_kind: str,
        max_tokens: int,
        decoding: SamplingParams = GREEDY,
        images: Images | None = None,
        needs: str | None = "--score",
    ) -> None:
        setup = JudgeConfig(judge=name, score_kind=score_kind, decoding=decoding, pointwise_prompt=form)
        super().__init__(backend, setup, max_tokens, images, needs)

    async def judge(self, response: Response, other: Response | None = None) -> Judgment:
        return await self.verdict_on(self.prepare(plan_response(self.setup.pointwise_prompt, response, other)))


def take(given: dict[str, Any], *names: str) -> dict[str, Any]:
    """Remove from `given`, and return, the arguments with these names."""
    return {name: given.pop(name) for name in names if name in given}


def of_answer(response: Response, other: Response | None = None, **given: Any) -> Judgment:
    """Build a judgment of an answer out of a row, or of two."""
    how = {"judge": "j", "score_kind": "argmax", **take(given, "judge", "score_kind", "decoding")}
    fields = {"prompt": "pointwise", "prompt_hash": "h", **given}
    setup = JudgeConfig(**how, pointwise_prompt=fields["prompt"])
    return Judgment(sample=Sample.of(response, other), setup=setup, **fields)


def of_turn(conversation: Conversation | str, protocol: str, **given: Any) -> Judgment:
    """Build a judgment of a model's answer to a turn of a conversation, or of the whole."""
    if isinstance(conversation, str):
        conversation = Conversation(id=conversation, lang="en", group=conversation, turns=[])
    where = {"system": "m", **take(given, "system", "condition", "turn", "opponent", "length", "answer")}
    sample = Sample(id=conversation.id, conversation=conversation, **where)
    if sample.answer is not None and sample.length is None:
        sample = replace(sample, length=len(sample.answer))
    judge = given.pop("judge", "j")
    setup = given.pop("setup", None) or JudgeConfig(judge=judge, score_kind="argmax")
    verdict = replace(given.pop("verdict", Verdict()), **take(given, "failure", "answers"))
    form = {"direct": "direct_turn", "pairwise": "pairwise_turn"}.get(protocol, protocol)
    prompt = form if sample.turn else form.replace("_turn", "_whole")
    fields = {"prompt": prompt, "prompt_hash": "h", **given}
    return Judgment(sample=sample, setup=setup, verdict=verdict, protocol=protocol, **fields)


def of_outcome(conversation: Conversation | str, protocol: str, outcome: float | str, **where: Any) -> Judgment:
    """Return a judgment of a turn or a whole that came to a score, or to the failure that is named."""
    result = {"failure" if isinstance(outcome, str) else "score": outcome}
    return of_turn(conversation, protocol, **where, **result)


def run_of(turns: list[Judgment], system: str = "m", judge: str = "j") -> Run:
    """Return a model's verdicts by a judge as the run of one file."""
    setup = JudgeConfig(judge=judge, score_kind="argmax")
    return Run(name=system, path=Path("x"), system=system, judge=judge, setup=setup, turns=turns)
