"""The kinds of verdict, objects in the tables of this folder's modules.

Each says what a verdict holds as JSON Schema, how a reply is read, which verdict people's scores make right, how the
judge is asked for it, and what an audit compares.

A form (critic.judging.forms) names its kind. critic/judging/README.md says how to add one.
"""

from collections.abc import Iterable, Sequence
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, ClassVar, Literal

from msgspec import Struct

from critic.judging.prompt import Prompt
from critic.judging.targets import Label
from critic.records import HumanScore, Judgment, PromptInputs, Question, Response, Verdict

POINTS = {"A": 1.0, "yes": 1.0, "tie": 0.5, "B": 0.0, "no": 0.0}
"""Choice -> its score (0..1) for the answer that stands first."""


class AuditedPart(Struct, frozen=True, kw_only=True):
    """One thing that a judgment says and that people can say as well.

    `type` is what is compared: a score on 1..10, a preference (a or b), or a yes or no. `name` tells the parts of one
    judgment apart ("item=2"); "" is the verdict as a whole. `judge` and `people` are a score or a choice (of POINTS);
    None is a failed judgment, or no label of people's. Scores may be by a `criterion`.
    """

    type: Literal["score", "preference", "yes or no"] = "score"
    name: str = ""
    criterion: str | None = None
    judge: float | str | None = None
    people: float | str | None = None


class Kind(Struct, frozen=True):
    """A kind of verdict. An entry overrides `values`, `read` and `label`, and of the rest what differs.

    - `rates`: the verdict ends in an overall rating under RATING. It is read with its distribution; other verdicts are
      taken as they are stated, and `score` makes a number of them.
    - `single_rating`: that rating is all, so that a scoring head can give it without a reply.
    - `is_verdict`: false for an answer of the judge's own, which is asked for within another form only.
    - `scored_as`: the protocol whose scale its scores are on where rows are judged: pointwise 1..10, checklist 0..1.
    - `reason_last`: a reason may stand behind the values.
    """

    rates: ClassVar[bool] = False
    single_rating: ClassVar[bool] = False
    is_verdict: ClassVar[bool] = True
    scored_as: ClassVar[str] = "pointwise"
    reason_last: ClassVar[bool] = True

    def values(self, prompt: Prompt, material: PromptInputs) -> dict[str, dict[str, Any]]:
        """Return the JSON Schema of each of the verdict's values by key; empty if the verdict is free text."""
        raise NotImplementedError

    def read(self, prompt: Prompt, material: PromptInputs, text: str, truncated: bool) -> Verdict:
        """Read the verdict in a reply; one that cannot be read is a named failure."""
        raise NotImplementedError

    def label(self, prompt: Prompt, shown: Sequence[Response]) -> Label | None:
        """Return the verdict that people's scores of the responses shown make right, or None if they leave it open."""
        raise NotImplementedError

    def key(self, prompt: Prompt) -> str:
        """Return the key of the first value that the prompt's output format shows by name."""
        return prompt.key

    def lacking(self, question: Question) -> str | None:
        """Return why verdicts of this kind cannot be given on answers to the question, or None."""
        return None

    def score(self, verdict: Verdict) -> float | None:
        """Return the score of a verdict that was read: 1..10, or 0..1 of a choice or a checklist."""
        return verdict.rating

    def audited(self, judgment: Judgment) -> Iterable[AuditedPart]:
        """Return what an audit compares with people's labels: the score, unless the kind says otherwise."""
        human = judgment.sample.human
        return [AuditedPart(judge=judgment.score, people=human.score if human else None)]


@cache
def load(name: str) -> Kind:
    """Return the kind of a name, out of the tables `KINDS` of this folder's modules."""
    modules = (import_module(f"{__name__}.{module.name}") for module in iter_modules(__path__))
    kinds: dict[str, Kind] = {name: kind for module in modules for name, kind in module.KINDS.items()}
    return kinds[name]


def preferred(score: float) -> str:
    """Return the choice nearest to a comparison's score (0..1) for the answer that stands first."""
    return "tie" if score == POINTS["tie"] else "A" if score > POINTS["tie"] else "B"


def human_score(response: Response) -> HumanScore:
    """Return people's score. Raises ValueError for a response that people did not score."""
    if response.human is None:
        raise ValueError(f"response {response.id} has no human score")
    return response.human


def grade_schema(prompt: Prompt) -> dict[str, Any]:
    """Return the JSON Schema of a rating on the prompt's scale."""
    low, high = prompt.scale
    return {"type": "integer", "minimum": low, "maximum": high}


def graded(score: float) -> str:
    """Return a rating as a prompt shows it."""
    return f"{score:.3g}"
