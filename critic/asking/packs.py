"""Prompt packs: folders of prompt files that stand in for ours, tried out before anything is asked by them."""

from pathlib import Path

import jinja2
import msgspec

from critic.asking import conversation_prompt, prompt_files
from critic.asking import prompt as judge_prompt
from critic.asking.conversation_prompt import KINDS, Exchange, Kind, Material, Side, TurnJudgment
from critic.errors import UsageError
from critic.records import Language, Question, Response

_BAD = (ValueError, TypeError, LookupError, AttributeError)
"""What a template or a table of somebody else's may run into."""


def open_pack(folder: Path) -> str:
    """A prompt pack's name, NAME@HASH, by which the prompts know it from now on. Raises UsageError for a folder that is
    none, an unknown key, and a template that cannot be filled in."""
    name, tables = prompt_files.add_pack(folder)
    for path in tables:
        try:
            _try(path, name)
        except (*_BAD, jinja2.TemplateError, msgspec.MsgspecError) as error:
            raise UsageError(f"{folder / path}: {error}") from None
    return name


def _try(path: str, pack: str) -> None:
    """Fill in a specimen."""
    stem, _, language = path.removesuffix(".toml").replace("/", "_").rpartition("_")
    lang = msgspec.convert(language, Language)
    if stem == "conversations":
        for kind in KINDS:
            conversation_prompt.render(_specimen(kind, lang, pack))
        return
    prompt = judge_prompt.load(f"{pack}/{stem}", lang)
    if prompt.on_ten and '"Rating"' not in prompt.template:
        raise ValueError('the template shows no verdict with the key "Rating", and pointwise verdicts are such JSON')
    if not prompt.is_pair:
        question = Question(id="1", prompt="q", task="none", group="1", lang=lang, reference="r")
        judge_prompt.render(prompt, Response(id="1", question=question, text="t"))


def _specimen(kind: Kind, language: Language, pack: str) -> Material:
    """All that a prompt can show: of four turns the last is judged."""
    whole = kind.endswith("_whole")
    side = Side(earlier=[Exchange("q", "a")] * (4 if whole else 3), answer=None if whole else "a")
    return Material(
        kind=kind, language=language, caption="c", sides=[side] * (2 if kind.startswith("pairwise") else 1),
        question=None if whole else "q", references=["r"] * (4 if whole else 1), focus="f", checklist=["i"],
        verdicts=[TurnJudgment(1, "A")], text="t", pack=pack,
    )  # fmt: skip
