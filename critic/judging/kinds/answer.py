"""Answer: free text, the judge's own answer to the question."""

from collections.abc import Iterable, Sequence
from typing import Any

from critic.judging.kinds import AuditedPart, Kind
from critic.judging.prompt import Prompt
from critic.judging.targets import Label
from critic.judging.thoughts import without_thoughts
from critic.records import Judgment, PromptInputs, Response, Verdict


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


KINDS = {"answer": AnswerKind()}
