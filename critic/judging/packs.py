"""Read prompt packs: folders with the judging prompts of a paper, as its program has them. Texts are data, never run.

A pack has one TOML file per prompt, with the fields of `PackFile`. critic/stages/README.md shows one.
"""

import re
from collections.abc import Mapping
from itertools import cycle
from pathlib import Path
from typing import Any

import msgspec
import regex
from msgspec.structs import replace

from critic.errors import UsageError, hash_value, located
from critic.judging.forms import BY_NAME, FORMS
from critic.judging.prompt import LANGUAGES, PARTS, PARTS_OF_TURNS, Prompt, load
from critic.records import Language

_PLACE = re.compile(r"\{\{ *([\w.]+) *\}\}")
_PART = re.compile(rf"{'|'.join(PARTS)}|(?:{'|'.join(PARTS_OF_TURNS)})\.[1-9]")
_LANGUAGE, _TURN = re.compile(rf"_({'|'.join(LANGUAGES)})$"), re.compile("_[1-9]$")
"""Match the ends of a file's stem: the language if the prompt is for one, and before it the turn if it is for one."""


class PackFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One prompt of a pack.

    - `template`: the user message that ends the prompt; `{{ response }}` is the place of a part (PARTS).
    - `system`: the system message. `before`: messages between it and the template, the user's and the assistant's in
      turn.
    - `verdict`: a regular expression with one group, which is the verdict in the reply (the last match counts).
    """

    template: str
    system: str = ""
    before: list[str] = []
    verdict: str = ""

    def __post_init__(self) -> None:
        if self.verdict and regex.compile(self.verdict).groups != 1:
            raise ValueError(f"verdict: expected one group around the verdict, got {self.verdict!r}")


class Pack(msgspec.Struct, frozen=True):
    """An open pack. `name` is NAME@HASH; `prompts` holds the messages and pieces of each file by the file's stem."""

    name: str
    folder: Path
    prompts: dict[str, dict[str, Any]]

    @property
    def forms(self) -> list[str]:
        """Return the forms that the pack has prompts for, each once."""
        return list(dict.fromkeys(map(_find_form, self.prompts)))

    def prompt(self, ours: Prompt, form: str, turn: int | None) -> Prompt:
        """Return our prompt for a form with the pack's texts. Raise UsageError if the pack has none."""
        base = max((name for name in FORMS if f"{form}_".startswith(f"{name}_")), key=len)
        names = (f"{base}_{turn}", form, base)
        for stem in (f"{name}{language}" for name in names for language in (f"_{ours.language}", "")):
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


def own_pack(about: Mapping[str, Any]) -> Pack | None:
    """Return the prompts that a judge trained elsewhere brings along (`critic adopt`), or None.

    `about`: what is known of the judge (`ModelInfo.about`).
    """
    return Pack(folder=Path("the judge"), **about["pack"]) if "pack" in about else None


def open_pack(folder: Path) -> Pack:
    """Read the pack in a folder. Raise UsageError for a missing part, naming the file."""
    prompts = {}
    for path in sorted(folder.glob("*.toml")):
        with located(path, OSError, ValueError, regex.error):
            prompts[path.stem] = _read_prompt(path)
    if not prompts:
        raise UsageError(f"--prompt-pack {folder}: no folder with .toml files")
    return Pack(f"{folder.resolve().name}@{hash_value(prompts, 8)}", folder, prompts)


def _find_form(stem: str) -> str:
    """Return the form that a prompt is for, by the stem of its file.

    >>> list(map(_find_form, ["direct_turn_2_zh", "scale_5", "scale_5_en", "pointwise"]))
    ['direct_turn', 'scale_5', 'scale_5', 'pointwise']
    """
    name = _LANGUAGE.sub("", stem)
    return name if name in BY_NAME else _TURN.sub("", name)


def _read_prompt(path: Path) -> dict[str, Any]:
    """Return the fields of Prompt that a file replaces. Raise ValueError or OSError if it cannot be used."""
    form = _find_form(path.stem)
    if form not in {*FORMS, *BY_NAME}:
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
    own = {"verdict": file.verdict} if file.verdict else {}
    return {"opening": [{"role": role, "content": text} for role, text in said], "pieces": pieces, **own}
