"""One response judged: by a judge, or by a panel of several."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from critic.asking import rating
from critic.asking.asker import Asked, Asker, Rated, with_mixture
from critic.asking.examples import verdict_keys
from critic.asking.prompt import fit, load, prompt_hash, render
from critic.backends import Backend
from critic.errors import Refused, Transient
from critic.records import GREEDY, Decoding, Failure, Judgment, Member, Response, Verdict


class Judge:
    """A judge model with one prompt and one way of scoring."""

    def __init__(
        self,
        backend: Backend,
        name: str,
        prompt: str,
        score_kind: str,
        max_tokens: int,
        decoding: Decoding = GREEDY,
    ) -> None:
        self.backend, self.name, self.prompt = backend, name, prompt
        self.score_kind, self.max_tokens, self.decoding = score_kind, max_tokens, decoding
        self.prompt_hash = prompt_hash(prompt)
        self._asker = Asker(backend, score_kind, max_tokens, decoding)

    async def judge(self, response: Response) -> Judgment:
        """One judgment: a score, or a named failure. Never raises for what a server does."""
        prompt = load(self.prompt, response.question.lang)
        asked = Asked(
            key=response.id,
            whole=render(prompt, response),
            shorten=partial(fit, prompt, response),
            keys=verdict_keys(prompt),
        )
        try:
            return self._judgment(response, await self._asker.rate(asked))
        except Transient as error:
            return self._failed(response, "server_error", str(error))
        except Refused as error:
            return self._failed(response, error.failure, str(error))

    def origin(self) -> dict[str, Any]:
        """The fields of a judgment that say how it was made: those of one file are all alike."""
        return {
            "judge": self.name,
            "prompt": self.prompt,
            "prompt_hash": self.prompt_hash,
            "score_kind": self.score_kind,
            "decoding": self.decoding,
        }

    def _judgment(self, response: Response, rated: Rated) -> Judgment:
        verdicts = [reading.verdict for reading in rated.readings]
        return Judgment(
            response=response,
            **self.origin(),
            verdict=rated.verdict,
            score=rated.score,
            reply=rated.calls[0].text,
            shortened=rated.fitted.shortened,
            prompt_tokens=sum(call.prompt_tokens for call in rated.calls),
            cached_tokens=sum(call.cached_tokens for call in rated.calls),
            completion_tokens=sum(call.completion_tokens for call in rated.calls),
            attempts=max(call.attempts for call in rated.calls),
            samples=verdicts if len(verdicts) > 1 else [],
        )

    def _failed(self, response: Response, failure: Failure, detail: str) -> Judgment:
        return Judgment(response=response, **self.origin(), verdict=Verdict(failure=failure), detail=detail)


def panel_judgment(members: Sequence[Judgment], how: str, name: str) -> Judgment:
    """One response judged by a panel: the members' scores and ratings made one by `how` (rating.AGGREGATES).

    A panel judges whole or not at all: where a member failed, the judgment fails with the member's failure and
    `detail` names the member, because a mean over those who are left is another panel's.
    """
    parts = [Member(judge=one.judge, score=one.score, verdict=one.verdict) for one in members]
    first = members[0]
    common: dict[str, Any] = {
        "response": first.response,
        "judge": name,
        "prompt": first.prompt,
        "prompt_hash": first.prompt_hash,
        "score_kind": first.score_kind,
        "decoding": first.decoding,
        "members": parts,
        "prompt_tokens": sum(one.prompt_tokens for one in members),
        "cached_tokens": sum(one.cached_tokens for one in members),
        "completion_tokens": sum(one.completion_tokens for one in members),
        "attempts": max(one.attempts for one in members),
    }
    for one in members:
        if one.verdict.failure is not None:
            detail = f"{one.judge}: {one.detail or one.verdict.failure}"
            return Judgment(**common, verdict=Verdict(failure=one.verdict.failure), detail=detail)
    aggregate = rating.AGGREGATES[how]
    ratings = [one.verdict.rating for one in members if one.verdict.rating is not None]
    found = with_mixture(Verdict(rating=float(aggregate(ratings))), [one.verdict for one in members])
    score = float(aggregate([one.score for one in members if one.score is not None]))
    return Judgment(**common, verdict=found, score=score)
