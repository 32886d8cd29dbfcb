"""Prompt packs: folders of prompt files that stand in for ours, tried out before anything is asked by them."""

from pathlib import Path

import jinja2
import msgspec

from critic.errors import UsageError
from critic.judging.forms import Form, form_of
from critic.judging.prompt import add_pack, load
from critic.judging.render import Candidate, Exchange, PromptInputs, TurnJudgment, render
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


def _specimen(form: Form) -> PromptInputs:
    """All that a prompt can show of a conversation of four turns: the last one is judged, or the whole of it."""
    whole = form.scope == "conversation"
    side = Candidate(earlier=[Exchange("q", "a")] * (4 if whole else 3), answer=None if whole else "a")
    return PromptInputs(
        caption="c",
        sides=[side] * (2 if form.pair else 1),
        question=None if whole else "q",
        references=["r"] * 4,
        focus="f",
        checklist=["i"],
        criteria={"c": "m"},
        own_answer="o",
        verdicts=[TurnJudgment(1, "A")],
        text="t" if form.scope == "verdict" else None,
    )
