"""Read prompt packs: folders with the original judging prompts of a paper, to use in place of our prompts.

A pack has one TOML file per prompt, with the fields of `PackFile`. The texts are data; nothing in them is executed.
critic/stages/README.md shows a pack.
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
"""Match the endings of a prompt file's stem: the language and, before it, the turn. Both are optional."""


class PackFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of one file of a pack: a prompt.

    - `template`: the last user message. Placeholders such as `{{ response }}` are replaced by parts (prompt.PARTS).
    - `system`: the system message; "" for none.
    - `before`: example messages between the two, alternately the user's and the assistant's.
    - `verdict`: regular expression with one group that matches the verdict in a reply; the last match counts. "" to
      parse replies as usual.
    """

    template: str
    system: str = ""
    before: list[str] = []
    verdict: str = ""

    def __post_init__(self) -> None:
        if self.verdict and regex.compile(self.verdict).groups != 1:
            raise ValueError(f"verdict: expected one group around the verdict, got {self.verdict!r}")


class Pack(msgspec.Struct, frozen=True):
    """A prompt pack that was read.

    - `name`: NAME@HASH, with the folder's name and a hash of the prompts.
    - `prompts`: stem of a file -> the fields of Prompt that it replaces (`opening`, `pieces`, `verdict`).
    """

    name: str
    folder: Path
    prompts: dict[str, dict[str, Any]]

    @property
    def forms(self) -> list[str]:
        """Return the names of the forms that the pack has prompts for, each once."""
        return list(dict.fromkeys(map(_find_form, self.prompts)))

    def prompt(self, ours: Prompt, form: str, turn: int | None) -> Prompt:
        """Return the prompt `ours` with its texts replaced by those of the pack's most specific file.

        The first file that exists is used: for the form and this turn, for the form with its flags, for the form
        without flags. Of each, a file for the prompt's language comes before one for all languages. Raise UsageError if
        there is none.

        Args:
            ours: Our prompt for the form.
            form: The name of the form, flags included.
            turn: The number of the turn (from 1); None for the whole conversation.
        """
        base = max((name for name in FORMS if f"{form}_".startswith(f"{name}_")), key=len)
        names = (f"{base}_{turn}", form, base)
        for stem in (f"{name}{language}" for name in names for language in (f"_{ours.language}", "")):
            if stem in self.prompts:
                return replace(ours, **self.prompts[stem])
        raise UsageError(f"--prompt-pack {self.folder}: has no {base}.toml, which is needed here ({ours.language})")

    def check(self, form: str, turn: int | None, language: Language, seen: int) -> None:
        """Raise UsageError if the pack's prompt for a form and turn is missing, or shows what the judge may not see.

        Args:
            turn: The number of the turn (from 1); None for the whole conversation, whose judge sees turn verdicts.
            seen: The last turn that the judge may see.
        """
        for part in self.prompt(load(form, language), form, turn).pieces[1::2]:
            # The verdicts of turns are shown to the judge of the whole conversation.
            if int(part.partition(".")[2] or 0) > seen or (turn and part.startswith("verdict")):
                there = f"{seen} turns are seen{', and no verdicts' * bool(turn)}"
                shown = f"shows {part} for {form} of turn {turn or 'whole'}, where {there}"
                raise UsageError(f"--prompt-pack {self.folder}: {shown}; --turn-context all shows all turns")


def own_pack(about: Mapping[str, Any]) -> Pack | None:
    """Return the prompts that belong to a judge trained elsewhere (`critic adopt`) as a pack, or None if it has none.

    `about`: the published facts about the judge (`ModelInfo.about`).
    """
    return Pack(folder=Path("the judge"), **about["pack"]) if "pack" in about else None


def open_pack(folder: Path) -> Pack:
    """Read the pack in a folder. Raise UsageError, naming the file, if a prompt is invalid or there is none."""
    prompts = {}
    for path in sorted(folder.glob("*.toml")):
        with located(path, OSError, ValueError, regex.error):
            prompts[path.stem] = _read_prompt(path)
    if not prompts:
        raise UsageError(f"--prompt-pack {folder}: no folder with .toml files")
    return Pack(f"{folder.resolve().name}@{hash_value(prompts, 8)}", folder, prompts)


def _find_form(stem: str) -> str:
    """Return the name of the form that a prompt file is for, by the file's stem.

    >>> list(map(_find_form, ["direct_turn_2_zh", "scale_5", "scale_5_en", "pointwise"]))
    ['direct_turn', 'scale_5', 'scale_5', 'pointwise']
    """
    name = _LANGUAGE.sub("", stem)
    return name if name in BY_NAME else _TURN.sub("", name)


def _read_prompt(path: Path) -> dict[str, Any]:
    """Return the fields of Prompt that a prompt file replaces. Raise ValueError or OSError if it is invalid."""
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
