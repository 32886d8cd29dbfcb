"""Judgments as tests write them: what is alike for all of them is filled in."""

from pathlib import Path
from typing import Any

from msgspec.structs import replace

from critic.backends import Backend
from critic.benchmarks import Run
from critic.images import Images
from critic.judging.judge import Judge, plan_response
from critic.records import GREEDY, Conversation, JudgeConfig, Judgment, Response, Sample, SamplingParams, Verdict


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


def of_answer(response: Response, other: Response | None = None, **given: Any) -> Judgment:
    """A judgment of an answer out of a row, or of two."""
    how: dict[str, Any] = {
        "judge": "j",
        "prompt": "pointwise",
        "score_kind": "argmax",
        "decoding": GREEDY,
        "prompt_hash": "h",
    }
    how |= {name: given.pop(name) for name in list(given) if name in how}
    prompt, prompt_hash = how.pop("prompt"), how.pop("prompt_hash")
    setup = JudgeConfig(**how, pointwise_prompt=prompt)
    sample = Sample.of(response, other)
    return Judgment(sample=sample, setup=setup, prompt=prompt, prompt_hash=prompt_hash, **given)


def of_turn(conversation: Conversation | str, protocol: str, **given: Any) -> Judgment:
    """A judgment of a model's answer to a turn of a conversation, or of the whole."""
    subject = (
        conversation
        if isinstance(conversation, Conversation)
        else Conversation(id=conversation, lang="en", group=conversation, turns=[])
    )
    where: dict[str, Any] = {
        "system": "m",
        "condition": "own",
        "turn": None,
        "opponent": None,
        "length": None,
        "answer": None,
    }
    where |= {name: given.pop(name) for name in list(given) if name in where}
    if where["answer"] is not None and where["length"] is None:
        where["length"] = len(where["answer"])
    sample = Sample(id=subject.id, conversation=subject, **where)
    verdict = given.pop("verdict", Verdict())
    said = {name: given.pop(name) for name in ("failure", "answers") if name in given}
    setup = given.pop("setup", None) or JudgeConfig(judge=given.get("judge", "j"), score_kind="argmax")
    given.pop("judge", None)
    form = {"direct": "direct_turn", "pairwise": "pairwise_turn"}.get(protocol, protocol)
    prompt = form if where["turn"] else form.replace("_turn", "_whole")
    fields = {"prompt": prompt, "prompt_hash": "h", **given}
    return Judgment(sample=sample, setup=setup, verdict=replace(verdict, **said), protocol=protocol, **fields)


def of_outcome(conversation: Conversation | str, protocol: str, outcome: float | str, **where: Any) -> Judgment:
    """Return a judgment of a turn or a whole that came to a score, or to the failure that is named."""
    result = {"failure" if isinstance(outcome, str) else "score": outcome}
    return of_turn(conversation, protocol, **where, **result)


def run_of(turns: list[Judgment], system: str = "m") -> Run:
    """Return a model's verdicts by the judge j as the run of one file."""
    setup = JudgeConfig(judge="j", score_kind="argmax")
    return Run(name=system, path=Path("x"), system=system, judge="j", setup=setup, turns=turns)
