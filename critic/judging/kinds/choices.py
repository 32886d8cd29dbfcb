"""Kinds of verdict in words: right or wrong, the better of two answers, a checklist, or the judge's own answer."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from critic.errors import UsageError
from critic.judging import parse
from critic.judging.distribution import whole_rating
from critic.judging.kinds import POINTS, AuditedPart, Kind, human_score, preferred
from critic.judging.prompt import Prompt
from critic.judging.targets import Label
from critic.judging.thoughts import without_thoughts
from critic.records import Judgment, PromptInputs, Question, Response, Verdict

RIGHT, WRONG = 7, 5
"""Thresholds for the human score on 1..10, rounded half up.

An answer is right from 7 (few errors at most) and wrong up to 5 (more than half of it is wrong; AlignMMBench §4.1). At
6 it counts as neither.
"""

TIE, APART = 0.5, 1.0
"""Differences of two human scores on 1..10.

Two answers that differ by less than TIE are tied. If they differ by APART or more, one is better. A difference in
between gives no label.
"""

YES_NO: dict[bool | None, str | None] = {True: "yes", False: "no", None: None}
"""Answer to a checklist item (None: no answer) -> choice."""


def is_right(scores: Sequence[float]) -> str | None:
    """Return "yes" if an answer is right by its human score `scores[0]` (1..10), "no" if it is wrong, or None for a 6.

    >>> [is_right([score]) for score in (10, 6.5, 6.49, 5.5, 5.49, 5, 1)]
    ['yes', 'yes', None, None, 'no', 'no', 'no']
    """
    rating = whole_rating(scores[0])
    return "yes" if rating >= RIGHT else "no" if rating <= WRONG else None


def is_better(scores: Sequence[float]) -> str | None:
    """Return the better of two answers ("A", "B" or "tie") by their human scores (1..10).

    Return None if the difference lies between TIE and APART.

    >>> [is_better(scores) for scores in ([8, 7], [1, 10], [7, 7], [2.3, 1.3])]
    ['A', 'B', 'tie', 'A']
    >>> [is_better([score, 7]) for score in (7.49, 7.5, 7.99, 6.5)]
    ['tie', None, None, None]
    """
    ahead = round(scores[0] - scores[1], 9)
    if abs(ahead) < TIE:
        return "tie"
    return None if abs(ahead) < APART else "A" if ahead > 0 else "B"


class ChoiceKind(Kind, frozen=True):
    """A verdict that is one of a few `choices`.

    `right`: function from the human scores (1..10) of the one or two answers that are judged to the correct choice, or
    to None if they do not decide it.
    """

    choices: tuple[str, ...]
    right: Callable[[Sequence[float]], str | None]

    scored_as = "checklist"

    def values(self, prompt: Prompt, material: PromptInputs) -> dict[str, dict[str, Any]]:
        return {prompt.key: {"type": "string", "enum": list(self.choices)}}

    def read(self, prompt: Prompt, material: PromptInputs, text: str, truncated: bool) -> Verdict:
        return parse.parse_choice(text, prompt.key, self.choices, truncated)

    def label(self, prompt: Prompt, shown: Sequence[Response]) -> Label | None:
        if (preference := shown[0].preference) is not None:
            choice: str | None = preferred(preference)
        else:
            choice = self.right([human_score(response).score for response in shown])
        return choice if choice in self.choices else None

    def score(self, verdict: Verdict) -> float:
        return POINTS[verdict.value or ""]

    def audited(self, judgment: Judgment) -> Iterable[AuditedPart]:
        sample = judgment.sample
        # Two rows that are compared have a human score each; a preference is in one row.
        scores = [answer.human.score for answer in (sample, sample.other) if answer and answer.human]
        people = self.right(scores) if len(scores) == (1 if "yes" in self.choices else 2) else None
        if sample.preference is not None:
            people = preferred(sample.preference)
        judge = judgment.verdict.value
        if judge not in POINTS:  # people's verdicts, and those of older files, have a score only
            judge = None if judgment.score is None else preferred(judgment.score)
        yield AuditedPart(type="yes or no" if "yes" in self.choices else "preference", judge=judge, people=people)


class ChecklistKind(Kind, frozen=True):
    """A yes or no for each item of the question's checklist. The score is the share of yes (MultiVerse §4)."""

    scored_as = "checklist"
    reason_last = False

    def values(self, prompt: Prompt, material: PromptInputs) -> dict[str, dict[str, Any]]:
        numbers = map(str, range(1, len(material.checklist) + 1))
        return {number: {"type": "string", "enum": ["yes", "no"]} for number in numbers}

    def key(self, prompt: Prompt) -> str:
        return "1"

    def read(self, prompt: Prompt, material: PromptInputs, text: str, truncated: bool) -> Verdict:
        return parse.parse_checklist(text, len(material.checklist), truncated)

    def label(self, prompt: Prompt, shown: Sequence[Response]) -> Label | None:
        answers = human_score(shown[0]).answers
        if not answers or None in answers:
            return None
        return {str(number): "yes" if answer else "no" for number, answer in enumerate(answers, 1)}

    def lacking(self, question: Question) -> str | None:
        return None if question.checklist else "the question has no checklist"

    def score(self, verdict: Verdict) -> float:
        return sum(map(bool, verdict.answers)) / len(verdict.answers)

    def audited(self, judgment: Judgment) -> Iterable[AuditedPart]:
        """Return the judge's and people's answer to each checklist item.

        Raise UsageError if they answered different numbers of items.
        """
        human, asked = judgment.sample.human, judgment.sample.asked
        people = (human.answers if human else []) or [None] * len(asked.checklist if asked else ())
        # A judge that was never asked has no answers, which are as many failures as there are items.
        answers = judgment.verdict.answers or [None] * len(people)
        if len(answers) != len(people):
            raise UsageError(f"people's and the judge's answers are not alike: {len(people)} and {len(answers)}")
        for number, (judge, person) in enumerate(zip(answers, people, strict=True), 1):
            yield AuditedPart(type="yes or no", name=f"item={number}", judge=YES_NO[judge], people=YES_NO[person])


class AnswerKind(Kind, frozen=True):
    """Free text: the judge's own answer to the question, without thoughts. The correct answer is the reference."""

    is_verdict = False

    def values(self, prompt: Prompt, material: PromptInputs) -> dict[str, dict[str, Any]]:
        return {}

    def read(self, prompt: Prompt, material: PromptInputs, text: str, truncated: bool) -> Verdict:
        answer = without_thoughts(text)
        cut_off = truncated and bool(text.strip())  # among the thoughts
        return Verdict(value=answer) if answer else Verdict(failure="truncated" if cut_off else "empty")

    def label(self, prompt: Prompt, shown: Sequence[Response]) -> Label | None:
        return shown[0].question.reference or None

    def audited(self, judgment: Judgment) -> Iterable[AuditedPart]:
        return []


KINDS = {
    "answer": AnswerKind(),
    "correct": ChoiceKind(("yes", "no"), is_right),
    "better": ChoiceKind(("A", "B", "tie"), is_better),
    "forced": ChoiceKind(("A", "B"), is_better),
    "checklist": ChecklistKind(),
}
