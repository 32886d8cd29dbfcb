"""What people are asked, a scheme being an entry of SCHEMES, and an item as a page shows it: ConvBench figure 7,
AlignMMBench A.6.2 (the judge's own rubric), VisIT-Bench figures 11-15 (page/schemes.toml)."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from critic.judging.prompt import load
from critic.records import Language
from eval_agreement.sentences import texts_of

Choices = dict[str, str]
"""Value -> the key that chooses it."""

OVERALL = "overall"


def exchanged(value: str, swapped: bool) -> str:
    """A choice or a side as the rater sees it, from the item's own order of sides, and back."""
    return {"A": "B", "B": "A"}.get(value, value) if swapped else value


Kind = Literal["user", "assistant", "question", "reference", "caption", "focus", "checklist", "answer", "task"]


class ShownPart(Struct, frozen=True, omit_defaults=True):
    """A text that is shown: what it is, of which turn (0: of all), and by which of two sides (A, B)."""

    kind: Kind
    text: str
    turn: int = 0
    side: str = ""

    @property
    def field(self) -> str:
        """What its edits go by, empty where it may not be edited; a checklist's text has an item a line."""
        editable = self.kind in ("reference", "caption", "focus", "checklist")
        return f"{self.kind} {self.turn or ''}".strip() if editable else ""


class Ask(Struct, frozen=True, omit_defaults=True):
    """One question about an item: `key` is what its label goes by, `text` what it asks beyond the scheme's words.
    `longest`: characters of a written answer; `after` (KEY=CHOICE): asked only after that answer."""

    key: str
    text: str = ""
    turn: int = 0
    longest: int = 0
    after: str = ""


class LabelItem(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a page shows (what is not in `parts` cannot reach a rater), and what only the database knows: the `id` of
    its labels, the `group` of its question, `images` by path, and the `row` it was made of."""

    lang: Language
    parts: list[ShownPart]
    asks: list[Ask]
    task: str = ""
    id: str
    group: str
    images: list[str] = field(default_factory=list)
    row: dict[str, Any] = field(default_factory=dict)

    @property
    def version(self) -> str:
        """Which texts it has."""
        return hashlib.blake2b(msgspec.json.encode(self.parts), digest_size=8).hexdigest()

    def texts(self) -> dict[str, str]:
        """What may be corrected, by field."""
        return {part.field: part.text for part in self.parts if part.field}

    def corrected(self, edits: Mapping[str, tuple[str, str]]) -> "LabelItem":
        new = [replace(part, text=edits.get(part.field, ("", part.text))[1]) for part in self.parts]
        return replace(self, parts=new)


class Scheme(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How an item of a file of the kind `source` is labelled: by one of the `choices`; of `two` sides whose order is
    drawn. `form` is the judge's, whose rules are shown. `column` is where labels stand in an audit's table. Raters may
    correct the texts of one that `edits`. One of `asks` of its own `shows` columns, and the picture in `images`."""

    choices: Choices = {}
    source: Literal["rows", "replies", "columns", "benchmark"] = "rows"
    form: str | None = None
    two: bool = False
    column: Literal["preference", "score", "verdict"] | None = None
    edits: bool = False
    shows: dict[Kind, str] = {}
    images: str | None = None
    asks: list[Ask] = []

    @property
    def sides(self) -> Sequence[str]:
        return ("A", "B") if self.two else ("",)

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


_CONTENT = texts_of("annotate/page/schemes.toml")
SCHEMES = {
    name: msgspec.convert({**entry, "choices": _CONTENT["choices"][entry.get("choices", "words")]}, Scheme)
    for name, entry in _CONTENT["schemes"].items()
}
"""Name -> scheme."""


def read_choices(item: LabelItem, scheme: Scheme, replies: Mapping[str, str], swapped: bool = False) -> dict[str, str]:
    """The answers to an item's questions by key, in its own order of sides. Raises ValueError for a wrong one."""
    answers, choices = dict[str, str](), {choice.lower(): choice for choice in scheme.choices}
    for ask in item.asks:
        before, _, choice = ask.after.rpartition("=")
        if before and answers.get(before) != choice:
            continue
        answer = replies.get(ask.key, "").strip()
        if not (0 < len(answer) <= ask.longest if ask.longest else answer.lower() in choices):
            expected = f"1 to {ask.longest} characters" if ask.longest else f"one of {', '.join(scheme.choices)}"
            raise ValueError(f"{ask.key} is {answer[:40]!r}; expected {expected}")
        answers[ask.key] = answer if ask.longest else exchanged(choices[answer.lower()], swapped)
    return answers
