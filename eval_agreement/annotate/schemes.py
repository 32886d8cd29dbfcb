"""What people are asked, a scheme being an entry of SCHEMES, and an item as a page shows it.

ConvBench figure 7 (turns and the whole), AlignMMBench A.6.2 (the judge's own rubric), VisIT-Bench figures 11-15
(confirming).
"""

from typing import Any, Literal

from msgspec import Struct, field

from critic.judging.prompt import load
from critic.records import RATINGS, Language

Choices = dict[str, str]
"""Value -> the key that chooses it."""

TEN: Choices = {str(rating): str(rating % 10) for rating in RATINGS}
FIVE: Choices = {str(rating): str(rating) for rating in range(1, 6)}
BETTER: Choices = {"A": "a", "B": "b", "tie": "t", "both bad": "x"}
ITEMS: Choices = {"yes": "y", "no": "n", "cannot say": "c"}
CONFIRMED: Choices = {"yes": "y", "no": "n"}

OVERALL = "overall"


def exchanged(value: str, swapped: bool) -> str:
    """A choice or a side as the rater sees it, from the item's own order of sides, and back."""
    return {"A": "B", "B": "A"}.get(value, value) if swapped else value


class ShownPart(Struct, frozen=True, omit_defaults=True):
    """A text that is shown: what it is, of which turn (0: of all), and by which of two sides (A, B)."""

    kind: Literal["user", "assistant", "question", "reference", "caption", "focus", "answer"]
    text: str
    turn: int = 0
    side: str = ""


class Ask(Struct, frozen=True, omit_defaults=True):
    """One question about an item: `key` is what its label goes by, `text` what it asks beyond the scheme's words."""

    key: str
    text: str = ""
    turn: int = 0


class LabelItem(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a page shows (what is not in `parts` cannot reach a rater), and behind it what only the database knows: the
    `id` that labels are exported under, the `group` that must not be torn apart, `images` by path, and the `row` it was
    made of."""

    lang: Language
    parts: list[ShownPart]
    asks: list[Ask]
    task: str = ""
    id: str
    group: str
    images: list[str] = field(default_factory=list)
    row: dict[str, Any] = field(default_factory=dict)


class Scheme(Struct, frozen=True, kw_only=True):
    """How an item, made of a file of the kind `source`, is labelled: by one of the `choices`; of `two` sides whose
    order is drawn for each rater. `form` is the judge's, whose ranges and rules are shown beside it. `column` is where
    its labels stand in an audit's table; None where the rows come back with labels."""

    choices: Choices
    source: Literal["rows", "replies"] = "rows"
    form: str | None = None
    two: bool = False
    column: Literal["preference", "score", "verdict"] | None = None

    @property
    def rated(self) -> bool:
        """Whether choices are ratings, from 1."""
        return "1" in self.choices

    def rubric(self, lang: Language, task: str) -> list[tuple[str, str]]:
        """The judge's own ranges and the rules for the task, each with its label."""
        if self.form is None:
            return []
        prompt = load(self.form, lang)
        ranges = [(band.label, band.meaning) for band in reversed(prompt.ranges)] if self.rated else []
        known = prompt.tasks.get(task)
        return [*ranges, *(("•", rule) for rule in (known.rules if known else prompt.other_rules))]


SCHEMES: dict[str, Scheme] = {
    "pointwise": Scheme(choices=TEN, form="pointwise"),
    "scale_5": Scheme(choices=FIVE, form="scale_5"),
    "pairwise": Scheme(choices=BETTER, form="pairwise", two=True, column="preference"),
    "checklist": Scheme(choices=ITEMS, form="checklist"),
    "criteria": Scheme(choices=TEN, form="criteria"),
    "direct": Scheme(choices=TEN, source="replies", form="direct_turn", column="score"),
    "pairwise_conversation": Scheme(
        choices=BETTER, source="replies", form="pairwise_turn", two=True, column="preference"
    ),
    "confirm": Scheme(choices=CONFIRMED, column="verdict"),
}
"""Name -> scheme."""
