"""Read prompt packs: folders with the judging prompts of a paper, as its program has them. Texts are data, never run.

A pack has one TOML file per prompt, with the fields of `PackFile`. critic/stages/README.md shows one.
"""

import hashlib
import re
from itertools import cycle
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from critic.errors import UsageError, located
from critic.judging.forms import FORMS
from critic.judging.prompt import LANGUAGES, PARTS, PARTS_OF_TURNS, Prompt, load
from critic.records import Language

_PLACE = re.compile(r"\{\{ *([\w.]+) *\}\}")
_PART = re.compile(rf"{'|'.join(PARTS)}|(?:{'|'.join(PARTS_OF_TURNS)})\.[1-9]")
_FILE = re.compile(rf"(?P<form>\w+?)(?:_[1-9])?(?:_({'|'.join(LANGUAGES)}))?")
"""Matches a file's stem: form without flags, turn if the prompt is for one turn only, language if it is for one."""


class PackFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One prompt of a pack.

    - `template`: the user message that ends the prompt; `{{ response }}` is the place of a part (PARTS).
    - `system`: the system message. `before`: messages between it and the template, the user's and the assistant's in
      turn.
    """

    template: str
    system: str = ""
    before: list[str] = []


class Pack(msgspec.Struct, frozen=True):
    """An open pack. `name` is NAME@HASH; `prompts` holds the messages and pieces of each file by the file's stem."""

    name: str
    folder: Path
    prompts: dict[str, dict[str, Any]]

    def prompt(self, ours: Prompt, form: str, turn: int | None) -> Prompt:
        """Return our prompt for a form with the pack's texts. Raise UsageError if the pack has none."""
        base = max((name for name in FORMS if f"{form}_".startswith(f"{name}_")), key=len)
        for stem in (f"{base}_{turn}_{ours.language}", f"{base}_{turn}", f"{base}_{ours.language}", base):
            if stem in self.prompts:
                return replace(ours, **self.prompts[stem])
        raise UsageError(f"--prompt-pack {self.folder}: has no {base}.toml, which is needed here ({ours.language})")

    def check(self, form: str, turn: int | None, language: Language, seen: int) -> None:
        """Raise UsageError if the pack has no prompt for a form and turn, or one that shows turns after turn `seen`."""
        for part in self.prompt(load(form, language), form, turn).pieces[1::2]:
            # The verdicts of turns are shown to the judge of the whole conversation.
            if int(part.partition(".")[2] or 0) > seen or (turn and part.startswith("verdict")):
                there = f"{seen} turns are seen{', and no verdicts' * bool(turn)}"
                shown = f"shows {part} for {form} of turn {turn or 'whole'}, where {there}"
                raise UsageError(f"--prompt-pack {self.folder}: {shown}; --turn-context all shows all turns")


def open_pack(folder: Path) -> Pack:
    """Read the pack in a folder. Raise UsageError for a missing part, naming the file."""
    prompts = {}
    for path in sorted(folder.glob("*.toml")):
        with located(path, OSError, ValueError):
            prompts[path.stem] = _read_prompt(path)
    if not prompts:
        raise UsageError(f"--prompt-pack {folder}: no folder with .toml files")
    digest = hashlib.sha256(msgspec.json.encode(prompts)).hexdigest()[:8]
    return Pack(f"{folder.resolve().name}@{digest}", folder, prompts)


def _read_prompt(path: Path) -> dict[str, Any]:
    """Return the fields of Prompt that a file replaces. Raise ValueError or OSError if it cannot be used."""
    known = _FILE.fullmatch(path.stem)
    form = known["form"] if known else ""
    if form not in FORMS:
        raise ValueError(f"name it FORM.toml, FORM_TURN.toml or FORM_LANGUAGE.toml, with a form of {', '.join(FORMS)}")
    # Windows programs begin files with a mark.
    file = msgspec.toml.decode(path.read_text("utf-8-sig"), type=PackFile)
    pieces = _PLACE.split(file.template)
    for part in pieces[1::2]:
        if not _PART.fullmatch(part):
            parts = f"{', '.join(PARTS)}, or of a turn {', '.join(f'{name}.1' for name in PARTS_OF_TURNS)}"
            raise ValueError(f"{{{{ {part} }}}} is no part; expected {parts}")
    if any(brace in text for text in (*pieces[::2], file.system, *file.before) for brace in ("{{", "{%")):
        raise ValueError("{{ or {% stands around no part; only the template has parts, each as {{ part }}")
    sides = (("response", "history"), ("other", "history_other"))[: len(load(form, LANGUAGES[0]).sides) or 1]
    for side, conversation in sides:
        wanted = conversation if form.endswith("_whole") else side
        if not any(part == wanted or part.startswith(f"{side}.") for part in pieces[1::2]):
            raise ValueError(f"the template shows no {{{{ {wanted} }}}}")
    if len(file.before) % 2:
        raise ValueError("before: expected the user's and the assistant's message in turn")
    said = [("system", file.system)] if file.system else []
    said += zip(cycle(("user", "assistant")), file.before)
    return {"opening": [{"role": role, "content": text} for role, text in said], "pieces": pieces}
