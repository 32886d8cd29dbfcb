"""Labelling schemes (SCHEMES), and items as a page shows them.

Sources: ConvBench figure 7, AlignMMBench A.6.2 (the judge's own rubric), VisIT-Bench figures 11-15. The texts are in
page/schemes.toml.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from critic.errors import located
from critic.images import Image, ImageError, Images
from critic.judging.prompt import load
from critic.records import Language
from eval_agreement.sentences import texts_of

Choices = dict[str, str]
"""The values that raters choose from, each with the keyboard key that selects it."""

OVERALL = "overall"
"""Key of the question about the whole item."""


def exchanged(value: str, swapped: bool) -> str:
    """Return a choice or a side, with A and B exchanged if `swapped`. A second call converts it back.

    >>> exchanged("A", True), exchanged("tie", True), exchanged("A", False)
    ('B', 'tie', 'A')
    """
    return {"A": "B", "B": "A"}.get(value, value) if swapped else value


Kind = Literal[
    "user", "assistant", "question", "reference", "caption", "focus", "checklist", "answer", "judgment", "task"
]


class ShownPart(Struct, frozen=True, omit_defaults=True):
    """A text shown to raters.

    `turn`: the turn that the text belongs to, or 0 for the whole conversation. `side`: A, B, or "" for a single side.
    """

    kind: Kind
    text: str
    turn: int = 0
    side: str = ""

    @property
    def field(self) -> str:
        """Key of corrections of this text, such as "reference 2"; "" if raters may not correct it.

        A checklist has one item per line.
        """
        editable = self.kind in ("reference", "caption", "focus", "checklist")
        return f"{self.kind} {self.turn or ''}".strip() if editable else ""


class Ask(Struct, frozen=True, omit_defaults=True):
    """A question to raters about an item.

    `key`: name of its answer. `text`: its wording; "" for the usual wording of the scheme.
    `turn`: the turn asked about, or 0 for the whole item.
    `longest`: most characters of a written answer, or 0 for a choice.
    `after`: KEY=CHOICE asks the question only if question KEY was answered with CHOICE; "" asks it always.
    """

    key: str
    text: str = ""
    turn: int = 0
    longest: int = 0
    after: str = ""


class LabelItem(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An item to label. Raters see its `parts`, `asks` and pictures.

    These fields stay in the database: `id`, `group` (the question, as cluster), `images` (paths of the pictures) and
    `row` (the source row).
    """

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
        """Hash of the item's texts; it changes if a text is corrected."""
        return hashlib.blake2b(msgspec.json.encode(self.parts), digest_size=8).hexdigest()

    def texts(self) -> dict[str, str]:
        """Return the texts that raters may correct, keyed by `ShownPart.field`."""
        return {part.field: part.text for part in self.parts if part.field}

    def corrected(self, edits: Mapping[str, tuple[str, str]]) -> "LabelItem":
        """Return the item with corrected texts. `edits`: (old text, new text) by `ShownPart.field`."""
        new = [replace(part, text=edits.get(part.field, ("", part.text))[1]) for part in self.parts]
        return replace(self, parts=new)


def load_pictures(item: LabelItem, images: Images | None) -> list[Image]:
    """Return the pictures of an item; [] without `images`. Raises UsageError if one cannot be read."""
    with located(item.id, ImageError):
        return [] if images is None else [images.load(name) for name in item.images]


class Scheme(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A labelling scheme.

    `choices`: values that raters choose from. `source`: kind of the file that items come from.
    `form`: form of judging whose rules the page shows, or None. `two`: the item has two sides in random order.
    `column`: column for the labels in an audit's table; None if the export is no such table. `edits`: raters may
    correct texts.
    `asks`: the scheme's own questions. With these, `shows` maps shown parts to table columns, and `images` is the
    picture's column.
    """

    choices: Choices = {}
    source: Literal["rows", "replies", "judgments", "columns", "benchmark"] = "rows"
    form: str | None = None
    two: bool = False
    column: Literal["preference", "score", "verdict"] | None = None
    edits: bool = False
    shows: dict[Kind, str] = {}
    images: str | None = None
    asks: list[Ask] = []

    @property
    def sides(self) -> Sequence[str]:
        """Names of an item's sides: A and B, or "" for a single side."""
        return ("A", "B") if self.two else ("",)

    @property
    def rated(self) -> bool:
        """True if the choices are ratings that begin at 1."""
        return "1" in self.choices

    def rubric(self, lang: Language, task: str) -> list[tuple[str, str]]:
        """Return the rubric as pairs (label, text): the judge's rating ranges, highest first, then the rules of `task`.

        Empty for a scheme with its own questions.
        """
        # A scheme of its own explains itself in its questions.
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
"""Labelling schemes by name."""


def read_choices(item: LabelItem, scheme: Scheme, replies: Mapping[str, str], swapped: bool = False) -> dict[str, str]:
    """Check a rater's replies, and return the answers by question key.

    `replies`: by question key; choices may be in any case. `swapped`: True if the rater saw the sides exchanged; the
    answers returned name the item's own sides. Questions that depend on another answer are skipped if that answer was
    not given.
    Raises ValueError if a question has no answer, or for an unknown choice or a text that is too long.
    """
    answers, choices = dict[str, str](), {choice.lower(): choice for choice in scheme.choices}
    for ask in item.asks:
        before, _, choice = ask.after.rpartition("=")
        # A question that depends on another answer is not asked after any other one.
        if before and answers.get(before) != choice:
            continue
        answer = replies.get(ask.key, "").strip()
        if not (0 < len(answer) <= ask.longest if ask.longest else answer.lower() in choices):
            expected = f"1 to {ask.longest} characters" if ask.longest else f"one of {', '.join(scheme.choices)}"
            raise ValueError(f"{ask.key} is {answer[:40]!r}; expected {expected}")
        answers[ask.key] = answer if ask.longest else exchanged(choices[answer.lower()], swapped)
    return answers
