"""The kinds of verdict: a rating, a choice, a checklist or free text. Each module of this folder has a table `KINDS`.

A kind defines the JSON Schema of a verdict, how a reply is parsed, which verdict is correct according to human scores,
and which values an audit compares.

Each form (critic.judging.forms) names its kind. critic/judging/README.md says how to add a kind.
"""

from collections.abc import Iterable, Sequence
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, ClassVar, Literal

from msgspec import Struct

from critic.judging.prompt import Prompt
from critic.judging.targets import Label
from critic.records import HumanScore, Judgment, PromptInputs, Question, Response, Verdict

POINTS = {"A": 1.0, "yes": 1.0, "tie": 0.5, "B": 0.0, "no": 0.0}
"""Choice -> score (0..1) of the first (or only) answer."""


class AuditedPart(Struct, frozen=True, kw_only=True):
    """One value of a judgment that people can label as well, for comparison in an audit.

    - `type`: a score on 1..10, a preference (A, B or tie), or a yes or no.
    - `name`: tells the parts of one judgment apart, such as "item=2"; "" is the verdict as a whole.
    - `criterion`: the criterion that a score rates; None for the overall score and for other types.
    - `judge`: the judge's value, a score or a key of POINTS; None if the judgment failed.
    - `people`: the human value, likewise; None if there is no human label.
    """

    type: Literal["score", "preference", "yes or no"] = "score"
    name: str = ""
    criterion: str | None = None
    judge: float | str | None = None
    people: float | str | None = None


class Kind(Struct, frozen=True):
    """A kind of verdict. Subclasses define `values`, `read` and `label`, and override other members as needed.

    - `rates`: the verdict has an overall rating under the key RATING, whose probability distribution is read as well.
      Verdicts of other kinds have no distribution; `score` turns them into a number.
    - `single_rating`: the overall rating is the whole verdict, so a scoring head can give it without generating text.
    - `is_verdict`: False if the reply is the judge's own answer to the question, which is only requested as the first
      step of another form.
    - `scored_as`: the protocol whose score range applies to single answers: "pointwise" (1..10) or "checklist" (0..1).
    - `reason_last`: True if the output format may have a reason after the values.
    """

    rates: ClassVar[bool] = False
    single_rating: ClassVar[bool] = False
    is_verdict: ClassVar[bool] = True
    scored_as: ClassVar[str] = "pointwise"
    reason_last: ClassVar[bool] = True

    def values(self, prompt: Prompt, material: PromptInputs) -> dict[str, dict[str, Any]]:
        """Return the JSON Schema of each value of the verdict, by the value's key; {} for free text.

        `material`: the inputs of the prompt, which may determine the keys, such as the criteria of a question.
        """
        raise NotImplementedError

    def read(self, prompt: Prompt, material: PromptInputs, text: str, truncated: bool) -> Verdict:
        """Parse the verdict in the reply `text`. If there is none, the verdict's `failure` says why.

        `truncated`: the reply ended at its token limit.
        """
        raise NotImplementedError

    def label(self, prompt: Prompt, shown: Sequence[Response]) -> Label | None:
        """Return the correct verdict according to the human scores of responses, or None if they do not decide it.

        `shown`: the one or two responses that the prompt shows, in its order.
        """
        raise NotImplementedError

    def key(self, prompt: Prompt) -> str:
        """Return the JSON key of the first value in the prompt's output format."""
        return prompt.key

    def lacking(self, question: Question) -> str | None:
        """Return why answers to the question cannot get this kind of verdict, in words, or None if they can."""
        return None

    def score(self, verdict: Verdict) -> float | None:
        """Return the score of a verdict without failure: 1..10, or 0..1 for a choice or a checklist."""
        return verdict.rating

    def audited(self, judgment: Judgment) -> Iterable[AuditedPart]:
        """Return the values of a judgment that an audit compares with human labels; by default, only the score."""
        human = judgment.sample.human
        return [AuditedPart(judge=judgment.score, people=human.score if human else None)]


def load(name: str) -> Kind:
    """Return the kind called `name` from the `KINDS` tables of this folder's modules.

    Raise KeyError if there is none.
    """
    modules = (import_module(f"{__name__}.{module.name}") for module in iter_modules(__path__))
    kinds: dict[str, Kind] = {name: kind for module in modules for name, kind in module.KINDS.items()}
    return kinds[name]


def preferred(score: float) -> str:
    """Convert the score of a comparison (0..1) to a choice: "A" above 0.5, "B" below, else "tie"."""
    return "tie" if score == POINTS["tie"] else "A" if score > POINTS["tie"] else "B"


def human_score(response: Response) -> HumanScore:
    """Return the human score of a response. Raise ValueError if it has none."""
    if response.human is None:
        raise ValueError(f"response {response.id} has no human score")
    return response.human


def grade_schema(prompt: Prompt) -> dict[str, Any]:
    """Return the JSON Schema of a rating on the prompt's scale."""
    low, high = prompt.scale
    return {"type": "integer", "minimum": low, "maximum": high}


def graded(score: float) -> str:
    """Format a rating with up to three significant digits, as it is written in prompts."""
    return f"{score:.3g}"
