"""Kinds of verdict that are ratings: a single rating, or a rating for each criterion and an overall rating."""

from collections.abc import Iterable, Sequence
from typing import Any

from msgspec.structs import replace

from critic.judging import parse
from critic.judging.distribution import scored, whole_rating
from critic.judging.kinds import AuditedPart, Kind, grade_schema, human_score
from critic.judging.prompt import Prompt
from critic.judging.targets import RATING, Label
from critic.records import TEN, Judgment, PromptInputs, Question, Response, Verdict


class RatingKind(Kind, frozen=True):
    """A rating on the prompt's scale."""

    rates = single_rating = True

    def values(self, prompt: Prompt, material: PromptInputs) -> dict[str, dict[str, Any]]:
        return {RATING: grade_schema(prompt)}

    def read(self, prompt: Prompt, material: PromptInputs, text: str, truncated: bool) -> Verdict:
        verdict = parse.parse_rating(text, truncated, prompt.scale)
        return verdict if prompt.scale == TEN else replace(verdict, scale=prompt.scale)

    def label(self, prompt: Prompt, shown: Sequence[Response]) -> Label | None:
        return whole_rating(human_score(shown[0]).score, prompt.scale)

    def audited(self, judgment: Judgment) -> Iterable[AuditedPart]:
        yield from super().audited(judgment)
        # A scoring head may rate by criteria beside.
        yield from criteria_parts(judgment, judgment.verdict.criteria)


class CriteriaKind(Kind, frozen=True):
    """A rating for each of the question's criteria, followed by an overall rating."""

    rates = True

    def values(self, prompt: Prompt, material: PromptInputs) -> dict[str, dict[str, Any]]:
        return {name: grade_schema(prompt) for name in [*material.criteria, RATING]}

    def read(self, prompt: Prompt, material: PromptInputs, text: str, truncated: bool) -> Verdict:
        by_name = {name: parse.parse_rating(text, truncated, prompt.scale, name) for name in material.criteria}
        return replace(
            parse.parse_rating(text, truncated, prompt.scale, RATING),
            criteria={name: replace(verdict, reason=None) for name, verdict in by_name.items()},
        )

    def label(self, prompt: Prompt, shown: Sequence[Response]) -> Label | None:
        human, named = human_score(shown[0]), shown[0].question.criteria
        if named.keys() != human.criteria.keys():
            return None
        by_name = {name: whole_rating(human.criteria[name], prompt.scale) for name in named}
        return {**by_name, RATING: whole_rating(human.score, prompt.scale)}

    def lacking(self, question: Question) -> str | None:
        return None if question.criteria else "the question has no criteria"

    def audited(self, judgment: Judgment) -> Iterable[AuditedPart]:
        yield from super().audited(judgment)
        yield from criteria_parts(judgment, judgment.conversation.criteria)


def criteria_parts(judgment: Judgment, names: Iterable[str]) -> Iterable[AuditedPart]:
    """Yield one value per criterion in `names`, with the judge's and the human score (1..10, or None) on it."""
    human = judgment.sample.human
    for name in names:
        verdict = judgment.verdict.criteria.get(name)
        score = None if verdict is None else scored(verdict, judgment.score_kind)
        people = human.criteria.get(name) if human else None
        yield AuditedPart(name=f"criterion={name}", criterion=name, judge=score, people=people)


KINDS = {"rating": RatingKind(), "criteria": CriteriaKind()}
