"""The prompts that judge conversations: one file a language in `critic/prompts/conversations/`, one renderer.

What users, models and data sets wrote is quoted as in `critic.asking.prompt`.
"""

import hashlib
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any, Literal, get_args

import jinja2
import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from critic.asking.prompt import FLOOR, Fitted, quote, unquoted
from critic.asking.prompt_files import content, environment
from critic.errors import UsageError
from critic.records import Language, Message

Kind = Literal["direct_turn", "direct_whole", "quality", "checklist", "pairwise_turn", "pairwise_whole", "extraction"]
KINDS: tuple[Kind, ...] = get_args(Kind)


class Wording(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What one kind of prompt says. `output_…` are other output formats than the usual one.

    Prompts of other people (`critic.stages.pack`) have a `template` of their own, perhaps a `system` message, and where
    their verdict is free text it is not `constrained`, but read by the second, short question.
    """

    opening: str
    rules: list[str]
    output: str
    output_forced: str = ""
    output_rating: str = ""
    output_checklist: str = ""
    template: str = ""
    system: str = ""
    constrained: bool = True


Output = Literal["output", "output_forced", "output_rating", "output_checklist"]


class Prompts(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The prompts of one language: their common template, its words, and the wording of each kind."""

    version: str
    language: Language
    template: str
    left_out: str
    turns_left_out: str
    user: str
    assistant: str
    turn: str
    item: str
    sides: list[str]
    tie: str
    prompts: dict[Kind, Wording]


@cache
def _compiled(template: str) -> jinja2.Template:
    return environment(trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True).from_string(template)


@cache
def load(language: Language, pack: str | None = None) -> Prompts:
    """The packaged prompts, with what an open prompt pack says otherwise."""
    return msgspec.convert(content(f"conversations/{language}.toml", pack), Prompts)


@cache
def prompt_hash(kind: Kind, pack: str | None = None) -> str:
    """First 16 hex digits of the SHA-256 of what a kind of prompt says, in all languages."""
    said = []
    for language in get_args(Language):
        prompts = load(language, pack)
        common = replace(prompts, prompts={kind: prompts.prompts[kind]})
        said.append(msgspec.json.encode(common))
    return hashlib.sha256(b"\n".join(said)).hexdigest()[:16]


class Exchange(Struct, frozen=True):
    """A question and what was replied."""

    question: str
    answer: str


class Side(Struct, frozen=True, kw_only=True):
    """What one assistant said: the exchanges that count, oldest first, and where a turn is judged its reply to it."""

    earlier: list[Exchange] = field(default_factory=list)
    answer: str | None = None


class TurnJudgment(Struct, frozen=True):
    """What was said of a turn before: a grade or a side's label, and the reason, if there was one."""

    turn: int
    verdict: str
    reason: str | None = None


class Material(Struct, frozen=True, kw_only=True):
    """All that a prompt shows. `question` is None where a whole conversation is judged; `references` are by turn from
    1, None where a turn has none; two `sides` are compared. `pack`: the prompt pack, as `prompt_files` names it."""

    kind: Kind
    language: Language
    output: Output = "output"
    caption: str | None = None
    sides: list[Side] = field(default_factory=list)
    question: str | None = None
    references: list[str | None] = field(default_factory=list)
    focus: str | None = None
    checklist: list[str] = field(default_factory=list)
    verdicts: list[TurnJudgment] = field(default_factory=list)
    text: str | None = None
    pack: str | None = None


class Kept(Struct, frozen=True):
    """How much a rendering keeps: earlier exchanges, characters of each reference, of each reply (None: all)."""

    history: int | None = None
    reference: int | None = None
    response: int | None = None


def render(material: Material, kept: Kept = Kept()) -> list[Message]:
    """The chat messages: one user message whose first part, the rules, is alike for all of a kind and language.

    Raises UsageError where a pack's template asks for what the material does not have, such as a fourth turn.
    """
    prompts = load(material.language, material.pack)
    wording = prompts.prompts[material.kind]
    labels = prompts.sides if len(material.sides) > 1 else [""]
    shown = [_side(prompts, material, side, kept) for side in material.sides]
    values: dict[str, Any] = {
        "opening": wording.opening,
        "rules": wording.rules,
        "output": getattr(wording, material.output),
        "caption": quote(material.caption or "") if material.caption else "",
        "sides": [{"label": label, **side} for label, side in zip(labels, shown, strict=False)],
        "question": quote(material.question) if material.question is not None else "",
        "references": _references(prompts, material, kept),
        "focus": quote(material.focus) if material.focus else "",
        "checklist": "\n".join(_labelled(prompts.item.format(n=n), one) for n, one in enumerate(material.checklist, 1)),
        "verdicts": "\n".join(_judged(prompts, one) for one in material.verdicts),
        "material": quote(_cut(prompts, material.text, kept.response)) if material.text else "",
    }
    try:
        if wording.template:
            values["raw"] = _raw(prompts, material, kept, values)
        said = _compiled(wording.template or prompts.template.strip()).render(values)
        system = _compiled(wording.system).render(values)
    except jinja2.TemplateError as error:
        raise UsageError(f"prompt pack {material.pack}: {material.kind}, {material.language}: {error}") from None
    return [*([{"role": "system", "content": system}] if system else []), {"role": "user", "content": said}]


RAW = (
    *("caption", "question", "reference", "focus", "checklist", "verdicts", "text"),
    *("answer", "answer_a", "answer_b", "conversation", "conversation_a", "conversation_b"),
)
RAW_BY_TURN = ("questions", "references", "answers", "answers_a", "answers_b")
"""The texts that a pack's template can show as they are, `raw.NAME`, "" where there is none; and lists by turn from 0,
the earlier turns included. Of two answers `answer_a` stands first."""


def _raw(prompts: Prompts, material: Material, kept: Kept, values: Mapping[str, Any]) -> dict[str, Any]:
    """What a prompt shows without quoting it: hidden characters and control tokens go all the same."""

    def plain(text: str | None, keep: int | None = None) -> str:
        return unquoted(quote(_cut(prompts, text or "", keep)))

    found: dict[str, Any] = {name: unquoted(values[name]) for name in ("caption", "question", "focus")}
    found |= {name: unquoted(values[name]) for name in ("checklist", "verdicts")}
    found["text"] = unquoted(values["material"])
    found["references"] = [plain(one, kept.reference) for one in material.references]
    found["reference"] = "\n".join(found["references"])
    first = material.sides[0] if material.sides else Side()
    asked = [one.question for one in first.earlier] + ([material.question] if material.question is not None else [])
    found["questions"] = [plain(one) for one in asked]
    shown = [*zip(material.sides, values["sides"], strict=False)]
    for suffix, (side, parts) in zip(("_a", "_b"), [*shown, (Side(), {}), (Side(), {})], strict=False):
        replies = [one.answer for one in side.earlier] + ([side.answer] if side.answer is not None else [])
        found[f"answers{suffix}"] = [plain(one, kept.response) for one in replies]
        found[f"answer{suffix}"] = unquoted(parts.get("answer", ""))
        found[f"conversation{suffix}"] = unquoted(parts.get("earlier", ""))
    return found | {name: found[f"{name}_a"] for name in ("answer", "answers", "conversation")}


def _side(prompts: Prompts, material: Material, side: Side, kept: Kept) -> dict[str, str]:
    whole = material.question is None
    dropped = 0 if whole or kept.history is None else max(0, len(side.earlier) - kept.history)
    lines = [prompts.turns_left_out.format(n=dropped)] if dropped else []
    for exchange in side.earlier[dropped:]:
        lines.append(_labelled(prompts.user, exchange.question))
        lines.append(_labelled(prompts.assistant, _cut(prompts, exchange.answer, kept.response)))
    answer = "" if side.answer is None else quote(_cut(prompts, side.answer, kept.response))
    return {"earlier": "\n".join(lines), "answer": answer}


def _references(prompts: Prompts, material: Material, kept: Kept) -> str:
    given = [(number, text) for number, text in enumerate(material.references, 1) if text is not None]
    numbered = len(material.references) > 1
    return "\n".join(
        _labelled(prompts.turn.format(n=number) if numbered else "", _cut(prompts, text, kept.reference))
        for number, text in given
    )


def _judged(prompts: Prompts, one: TurnJudgment) -> str:
    reason = f". {one.reason}" if one.reason else ""
    return _labelled(prompts.turn.format(n=one.turn), one.verdict + reason)


def _labelled(label: str, text: str) -> str:
    """A quoted text behind a label of ours; its further lines are set in, so that none can pass for another label."""
    first, *rest = quote(text).split("\n")
    return "\n".join(
        [f"> {label}{first[2:]}".rstrip(), *((f">   {line[2:]}".rstrip() if label else line) for line in rest)]
    )


def _cut(prompts: Prompts, text: str, keep: int | None) -> str:
    """`text` with all but `keep` characters taken out of its middle, the place marked."""
    if keep is None or keep >= len(text):
        return text
    tail = keep // 2
    mark = prompts.left_out.format(n=len(text) - keep)
    return text[: keep - tail] + mark + (text[-tail:] if tail else "")


def fit(material: Material, limit: int, count: Callable[[list[Message]], int]) -> Fitted | None:
    """The prompt in at most `limit` tokens as `count` counts them, None if it cannot fit.

    Left out in this order, each only as far as needed: the oldest earlier exchanges (not of a conversation that is
    itself judged), the middle of the references, the middle of the replies; of the longest of each at least
    `judge_prompt.FLOOR` characters stay. Rules, questions, captions and checklists are never touched.
    """

    def fits(kept: Kept) -> bool:
        return count(render(material, kept)) <= limit

    kept = Kept()
    if fits(kept):
        return Fitted(render(material), {})
    for name, floor in (("history", 0), ("reference", FLOOR), ("response", FLOOR)):
        most = _longest(material, name)
        least = min(floor, most)
        with_ = partial(replace, kept)
        if fits(with_(**{name: least})):
            sizes = range(least + 1, most + 1)
            over = bisect_left(sizes, True, key=lambda size: not fits(with_(**{name: size})))
            kept = with_(**{name: least + over})
            return Fitted(render(material, kept), _left_out(material, kept))
        kept = with_(**{name: least})
    return None


def _texts(material: Material, name: str) -> Sequence[str]:
    if name == "reference":
        return [text for text in material.references if text is not None]
    spoken = [exchange.answer for side in material.sides for exchange in side.earlier]
    spoken += [side.answer for side in material.sides if side.answer is not None]
    return [*spoken, *([material.text] if material.text else [])]


def _longest(material: Material, name: str) -> int:
    if name == "history":
        return max((len(side.earlier) for side in material.sides), default=0) if material.question is not None else 0
    return max(map(len, _texts(material, name)), default=0)


def _left_out(material: Material, kept: Kept) -> dict[str, int]:
    """Exchanges of the history, characters of references and of replies."""
    found = {}
    if material.question is not None and kept.history is not None:
        found["history"] = max(max(0, len(side.earlier) - kept.history) for side in material.sides)
    for name, keep in (("reference", kept.reference), ("response", kept.response)):
        if keep is not None:
            found[name] = sum(max(0, len(text) - keep) for text in _texts(material, name))
    return {name: n for name, n in found.items() if n}
