"""A verdict that is to be asked for: on which sample, in which form, and what the judge is shown."""

from collections.abc import Hashable

from msgspec import Struct
from msgspec.structs import replace

from critic.records import Failure, Judgment, PromptInputs, Sample

VerdictKey = tuple[str, str, str, str, str, int | None, str | None]
"""System, conversation, condition, protocol, judging, turn and opponent of a verdict."""


class PlannedVerdict(Struct, frozen=True, kw_only=True):
    """A verdict to ask for in a form.

    In a comparison the model stands first in `material`. `material` is None if a `problem` (failure and sentence)
    leaves nothing to judge. `judging` and `unjudged` are as in Judgment.
    """

    sample: Sample
    form: str
    protocol: str | None = None
    judging: str = "standard"
    unjudged: int = 0
    problem: tuple[Failure, str] | None = None
    material: PromptInputs | None = None

    def of(self, judgment: Judgment) -> Judgment:
        """Return the judgment of another planned verdict, which showed the judge the same, as that of this one."""
        how = {"protocol": self.protocol, "judging": self.judging, "unjudged": self.unjudged}
        return replace(judgment, sample=self.sample, **how)


def key(verdict: Judgment | PlannedVerdict) -> VerdictKey:
    """Return the key of a verdict, which no other verdict of its file has."""
    sample = verdict.sample
    protocol = verdict.protocol or "pointwise"
    return sample.system or "", sample.id, sample.condition, protocol, verdict.judging, sample.turn, sample.opponent


def key_in_file(verdict: Judgment | PlannedVerdict) -> Hashable:
    """Return the key by which the judgments of a file are told apart: of an answer out of a row its id."""
    return verdict.sample.key if verdict.protocol is None else key(verdict)
