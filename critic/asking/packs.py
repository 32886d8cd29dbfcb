"""Prompt packs: folders of prompt files that stand in for ours, tried out before anything is asked by them."""

from collections.abc import Iterable
from pathlib import Path

import jinja2
import msgspec

from critic.asking.forms import IN_FULL, Form, form_of
from critic.asking.prompt import LANGUAGES, add_pack, load
from critic.asking.render import Exchange, Material, Side, TurnJudgment, render
from critic.errors import UsageError
from critic.records import Language

_BAD = (ValueError, TypeError, LookupError, AttributeError)
"""What a template or a table of somebody else's may run into."""


def open_pack(folder: Path) -> str:
    """A prompt pack's name, NAME@HASH, by which the prompts know it from now on. Raises UsageError for a folder that is
    none, an unknown key, and a template that cannot be filled in."""
    name, paths = add_pack(folder)
    for path in paths:
        try:
            _try(path, name)
        except (UsageError, jinja2.TemplateError, msgspec.MsgspecError) as error:
            raise UsageError(f"{folder / path}: {error}") from None
        except _BAD as error:
            raise UsageError(f"{folder / path}: not a prompt of ours: {type(error).__name__}: {error}") from None
    return name


def _try(path: str, pack: str) -> None:
    """Fill in a specimen."""
    stem, _, language = path.removesuffix(".toml").rpartition("_")
    prompt = load(f"{pack}/{stem}", msgspec.convert(language, Language))
    if prompt.key == "Rating" and prompt.constrained and not prompt.verbatim and '"Rating"' not in prompt.template:
        raise UsageError('the template shows no verdict with the key "Rating", and its verdicts are such JSON')
    render(prompt, _specimen(form_of(stem)))


def try_turns(name: str, turns: Iterable[int], of: int) -> None:
    """Fill in a pack's prompt, PACK/NAME, for these turns of conversations of so many, in every language. Raises
    UsageError where it shows turns that the judge of one does not see."""
    for turn in turns:
        shown = _specimen(form_of(name), turn, of, of) if IN_FULL in name else _specimen(form_of(name), turn, turn, 1)
        for language in LANGUAGES:
            try:
                render(load(name, language), shown)
            except UsageError as error:
                what = f"at turn {turn} of {of} it shows a turn that is not there"
                raise UsageError(f"{error}: {what}; --sight all shows those behind it, too") from None


def _specimen(form: Form, turn: int = 4, of: int = 4, references: int = 4) -> Material:
    """All that a prompt can show of conversations of so many turns: one turn is judged, or the whole of them."""
    whole = form.scope == "conversation"
    earlier, later = [Exchange("q", "a")] * (of if whole else turn - 1), [Exchange("q", "a")] * (of - turn)
    side = Side(earlier=earlier, answer=None if whole else "a", later=[] if whole else later)
    return Material(
        caption="c",
        sides=[side] * (2 if form.pair else 1),
        question=None if whole else "q",
        references=["r"] * references,
        focus="f",
        checklist=["i"],
        criteria={"c": "m"},
        own_answer="o",
        verdicts=[TurnJudgment(1, "A")],
        text="t" if form.scope == "verdict" else None,
    )
