"""The attacks of `attacks.toml`, by which an answer tries to sway its judge, and how rows are marked with them."""

import hashlib
import tomllib
from collections.abc import Collection, Sequence
from functools import cache
from importlib.resources import files
from itertools import cycle
from typing import Any

import jinja2
import msgspec
from msgspec import Struct

from critic.errors import UsageError
from critic.records import Judgment

PromptLayout = dict[str, Any]
"""What an attacker knows of a judging prompt: its language, and the other variables of the attacks' templates."""

SEPARATOR, CLEAN = "#", "clean"
"""The id of an attacked row is ORIGINAL#ATTACK, of the unattacked one ORIGINAL#clean. No attack's name holds
the separator, so the last one in an id is ours whatever the original id is like."""

_ENVIRONMENT = jinja2.Environment(undefined=jinja2.StrictUndefined, autoescape=False)
_ENVIRONMENT.filters |= {
    # ASCII as invisible Unicode tags (U+E0020..U+E007E); other characters go.
    "tags": lambda text: "".join(chr(0xE0000 + ord(char)) for char in text if " " <= char <= "~"),
    # UTF-8 as invisible variation selectors, one a byte (U+FE00..U+FE0F, U+E0100..U+E01EF).
    "selectors": lambda text: "".join(chr(byte + (0xFE00 if byte < 16 else 0xE00F0)) for byte in text.encode()),
    # A character without width behind every character, five kinds in turn.
    "zero_width": lambda text: "".join(
        char + hidden for char, hidden in zip(text, cycle("\u200b\u200d\u2060\u200c\ufeff"), strict=False)
    ),
    # Backwards under a right-to-left override: displayed forwards, read backwards.
    "bidi": lambda text: f"\u202e{text[::-1]}\u202c",
    # ASCII as full-width forms (U+FF01..U+FF5E).
    "full_width": lambda text: text.translate({code: code + 0xFEE0 for code in range(0x21, 0x7F)}),
}


_template = cache(_ENVIRONMENT.from_string)


class Attack(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An entry of `attacks.toml`: templates that put an answer beside what is to sway its judge."""

    name: str
    aim: str
    en: str
    zh: str
    control: bool = False

    def text(self, answer: str, layout: PromptLayout) -> str:
        """The attacked answer. It holds `answer` as it stands."""
        return _template(getattr(self, layout["language"])).render(answer=answer, **layout)


class Suite(Struct, frozen=True):
    """The attacks by name, in the file's order, the harmless control, and the hash of their content."""

    attacks: dict[str, Attack]
    control: Attack
    hash: str

    @property
    def entries(self) -> dict[str, Attack]:
        """Control and attacks by name: everything that an answer may be marked with, but CLEAN."""
        return {self.control.name: self.control, **self.attacks}


@cache
def suite() -> Suite:
    """The packaged attacks. `hash` is the first 16 hex digits of the SHA-256 of their canonical JSON."""
    content = tomllib.loads((files("eval_agreement") / "attacks.toml").read_text("utf-8"))
    entries = msgspec.convert(content["attacks"], list[Attack])
    (control,) = [entry for entry in entries if entry.control]
    attacks = {entry.name: entry for entry in entries if not entry.control}
    return Suite(attacks, control, hashlib.sha256(msgspec.json.encode(entries)).hexdigest()[:16])


def by_mark(judgments: Sequence[Judgment], marks: Collection[str]) -> dict[str, dict[str, Judgment]]:
    """The judgments of each mark, CLEAN among them, by the ids of the answers as they were.

    Raises UsageError for none, an id with another mark or that comes twice, a variant of an answer that is not judged
    as it was, and for a second judge, prompt or kind of score.
    """
    if not judgments:
        raise UsageError("no judgments of rows that `critic attack` made")
    for name in ("judge", "prompt_hash", "score_kind"):
        values = sorted({getattr(judgment, name) for judgment in judgments})
        if len(values) > 1:
            raise UsageError(f"attacked answers judged with {name} {' and '.join(values)}; expected one")
    found: dict[str, dict[str, Judgment]] = {mark: {} for mark in marks}
    for judgment in judgments:
        marked = judgment.sample.id
        original, _, mark = marked.rpartition(SEPARATOR)
        if not original or mark not in found:
            raise UsageError(f"response id {marked!r} ends in the name of no attack; judge rows of `critic attack`")
        if original in found[mark]:
            raise UsageError(f"duplicate response id {marked!r}")
        found[mark][original] = judgment
    for mark, variants in found.items():
        if missing := sorted(variants.keys() - found[CLEAN].keys()):
            clean = missing[0] + SEPARATOR + CLEAN
            raise UsageError(f"{clean!r} is not judged, but its variant {mark} is; judge the whole file")
    return found
