"""Judging prompts: wording, ranges and per-task rules as data, and a template. One a file in `critic/prompts/`.

A prompt that `extends` another holds only what differs from it. A prompt pack is a folder of such files that stand in
for parts of ours, known by NAME@HASH once it is opened; PACK/NAME is the prompt NAME with what the pack says otherwise.
"""

import hashlib
import re
import string
import tomllib
from collections.abc import Iterable
from functools import cache, cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, get_args

import jinja2
import msgspec
from jinja2.sandbox import ImmutableSandboxedEnvironment
from msgspec import Struct, field

from critic.errors import UsageError
from critic.records import RATINGS, Language

LANGUAGES: tuple[Language, ...] = get_args(Language)

VerdictKey = Literal["Rating", "Verdict", "Correct", "Checklist", "Answer"]
"""Under which key a verdict says what it says: a rating, which of two is better, whether an answer is right. A
checklist has a key for each of its items instead, and an answer of the judge's own is free text."""


class Range(Struct, frozen=True):
    """A band of ratings, both ends included, with what it means."""

    low: int
    high: int
    meaning: str

    @property
    def label(self) -> str:
        return str(self.low) if self.low == self.high else f"{self.low}–{self.high}"


class TaskRules(Struct, frozen=True):
    title: str
    rules: list[str]


class PackMessage(Struct, frozen=True, forbid_unknown_fields=True):
    role: Literal["user", "assistant"]
    content: str


VARIANTS = ("1", "2", "3", "4", "backed")
"""What a pack may have prompts of its own for: a turn by its number, and a comparison in sight of the reference. Their
names end so, `pairwise_turn_2`; they extend the prompt without the ending."""


class Prompt(Struct, frozen=True, dict=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A judging prompt in one language. `hash` identifies its whole content; `key` is that of a verdict's value.

    `general` are the rules for all tasks, `tasks` those of single ones and `other_rules` those of any other. `indent`
    sets in the further lines of an earlier message, so that none of them passes for another message. `sides` name the
    two that are compared, `tie` neither. `system` is the template of a system message, `before` are messages between it
    and the prompt, as they stand: what was agreed on, examples with their answers. `constrained`: the verdict is
    JSON; otherwise (a pack's prompts) it is free text, which a second, short question reads. `verbatim`: the template
    is somebody else's text, in which no white space is ours to strip. `sees`: it is worded for a judge that is shown
    the pictures.
    """

    name: str
    version: str
    language: Language
    template: str
    user: str
    assistant: str
    left_out: str
    history_left_out: str
    other_rules: list[str] = field(default_factory=list)
    ranges: list[Range] = field(default_factory=list)
    tasks: dict[str, TaskRules] = field(default_factory=dict)
    key: VerdictKey = "Rating"
    general: list[str] = field(default_factory=list)
    turn: str = ""
    item: str = ""
    indent: str = ""
    sides: list[str] = field(default_factory=list)
    tie: str = ""
    system: str = ""
    before: list[PackMessage] = field(default_factory=list)
    constrained: bool = True
    verbatim: bool = False
    sees: bool = False

    @property
    def scale(self) -> tuple[int, int]:
        """The lowest and the highest rating."""
        return (self.ranges[0].low, self.ranges[-1].high) if self.ranges else (RATINGS[0], RATINGS[-1])

    @property
    def on_ten(self) -> bool:
        """Whether a verdict is a rating on 1..10."""
        return self.key == "Rating" and self.scale == (RATINGS[0], RATINGS[-1])

    @cached_property
    def hash(self) -> str:
        """First 16 hex digits of the SHA-256 of the content (canonical JSON, keys in the order of the fields)."""
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()[:16]

    @cached_property
    def compiled(self) -> tuple[jinja2.Template | None, jinja2.Template]:
        """The templates of the system message, None of an empty one, and of the user's."""
        system = _compiled(self.system) if self.system else None
        return system, _compiled(self.template if self.verbatim else self.template.strip())

    @cached_property
    def shows_raw(self) -> bool:
        """Whether it shows texts as they are, `raw.NAME`, instead of quoting them."""
        return "raw" in self.template or "raw" in self.system


class _Environment(ImmutableSandboxedEnvironment):
    """Sandboxed: the templates of a pack may be anyone's."""

    def getattr(self, obj: Any, attribute: str) -> Any:
        if isinstance(obj, Range) and attribute in ("label", "meaning"):  # texts, and most of what is asked for
            return getattr(obj, attribute)
        return super().getattr(obj, attribute)


def _compiled(template: str) -> jinja2.Template:
    environment = _Environment(undefined=jinja2.StrictUndefined, autoescape=False, keep_trailing_newline=True)
    return environment.from_string(template)


@cache
def names() -> tuple[str, ...]:
    """The packaged prompts, without their language."""
    return tuple(sorted({name.removesuffix(".toml").rpartition("_")[0] for name in _packaged()}))


@cache
def load(name: str, language: Language, sees: bool = False) -> Prompt:
    """The packaged prompt `name` in `language`, as PACK/NAME with what an open prompt pack says otherwise; for a judge
    that `sees` with the parts of its table `seeing`. Raises UsageError with the choices if there is none."""
    pack, _, plain = name.rpartition("/")
    if (
        plain not in (*names(), *(variants(pack) if pack in _PACKS else ()))
        or language not in LANGUAGES
        or (pack and pack not in _PACKS)
    ):
        raise UsageError(f"no judge prompt {name!r} in {language!r}; there is {', '.join(names())}")
    content = _content(plain, language, pack or None)
    values = {}
    if bands := content.get("ranges"):
        covered = [rating for band in bands for rating in range(band["low"], band["high"] + 1)]
        low, high = covered[0], covered[-1]
        if covered != list(range(low, high + 1)):
            raise UsageError(f"{plain}_{language}.toml: the ranges must cover {low}..{high} once each, got {covered}")
        values = {"low": low, "high": high}
    parts, seeing = content.pop("parts", {}), content.pop("seeing", {})
    parts = {part: _filled(text, values) for part, text in (parts | seeing if sees else parts).items()}
    content["template"] = _filled(content["template"], parts)
    content["general"] = [_filled(rule, parts) for rule in content.get("general", [])]
    for task in content.get("tasks", {}).values():
        task["rules"] = [string.Template(rule).safe_substitute(parts) for rule in task["rules"]]
    return msgspec.convert({**content, "sees": sees}, Prompt)


def prompt_hash(name: str, sees: bool = False) -> str:
    """One hash for a prompt in all its languages; of a judge that `sees` also as it is asked where there is no
    picture."""
    wordings = [load(name, language, seen) for seen in ((False, True) if sees else (False,)) for language in LANGUAGES]
    return hashlib.sha256("".join(one.hash for one in wordings).encode()).hexdigest()[:16]


def _filled(text: str, values: dict[str, Any]) -> str:
    return string.Template(text).substitute(values)


def _content(name: str, language: Language, pack: str | None, alone: bool = False) -> dict[str, Any]:
    """A prompt's file, what it leaves out taken from the prompt that it extends, and what a pack says otherwise."""
    path = f"{name}_{language}.toml"
    base, variant = split_variant(name)
    if variant and pack:
        content = _content(base, language, pack)
        for each in reversed(_line(base, language)):
            content = _over(content, _PACKS[pack].get(f"{each}_{variant}_{language}.toml", {}))
        return content
    ours = tomllib.loads((files("critic") / "prompts" / path).read_text("utf-8"))
    if alone:
        return ours
    content = _over(ours, _PACKS[pack].get(path, {})) if pack else ours
    extended = content.pop("extends", None)
    return _over(_content(extended, language, pack), content) if extended else content


def split_variant(name: str) -> tuple[str, str]:
    """A prompt's name without and with what it is a variant for, "" for none."""
    base, _, variant = name.rpartition("_")
    return (base, variant) if variant in VARIANTS and base in names() else (name, "")


@cache
def _line(name: str, language: Language) -> list[str]:
    """A prompt, and those that it extends one after another."""
    found = [name]
    while extended := _content(found[-1], language, None, alone=True).get("extends"):
        found.append(extended)
    return found


@cache
def variants(pack: str) -> set[str]:
    """The names of a pack's variants, of a prompt that others extend for these as well."""
    given = {split_variant(path.removesuffix(".toml").rpartition("_")[0]) for path in _PACKS[pack]}
    return {
        f"{name}_{variant}"
        for base, variant in given
        if variant
        for name in names()
        if base in _line(name, LANGUAGES[0])
    }


def variant_of(name: str, wanted: Iterable[str]) -> str:
    """The name of a pack's prompt, PACK/NAME, or of the first variant of it that is `wanted` and there."""
    pack, _, plain = name.rpartition("/")
    there = variants(pack) if pack in _PACKS else set()
    return next((f"{name}_{variant}" for variant in wanted if f"{plain}_{variant}" in there), name)


def _over(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Two tables as one, table by table; elsewhere what `above` says counts."""
    both = {key: _over(below[key], above[key]) for key in below.keys() & above.keys() if isinstance(below[key], dict)}
    return {**below, **above, **both}


_PACKS: dict[str, dict[str, dict[str, Any]]] = {}
"""The packs that were opened: NAME@HASH -> path in critic/prompts/ -> what the pack says otherwise. A pack's name is
that of its content, so opening one twice changes nothing."""

_OF_CONVERSATIONS = {f"conversations/{language}.toml": language for language in LANGUAGES}
"""Where packs kept the prompts of conversations, a table each, until each prompt had a file of its own."""


@cache
def _packaged() -> frozenset[str]:
    """The files of judging prompts, by their path in critic/prompts/; those that others extend and that are no prompts
    by themselves begin with an underscore."""
    names = (entry.name for entry in (files("critic") / "prompts").iterdir())
    return frozenset(name for name in names if name.endswith(".toml") and not name.startswith("_"))


def has(pack: str, name: str) -> bool:
    """Whether a pack has a part in the prompt `name`, in any language."""
    return any(load(f"{pack}/{name}", language) != load(name, language) for language in LANGUAGES)


def add_pack(folder: Path) -> tuple[str, list[str]]:
    """A folder's prompt files under the folder's name and the first 16 hex digits of the SHA-256 of their paths and
    content, NAME@HASH; and the prompts that it has a part in, by path. Raises UsageError for a folder without any, a
    file that is none of ours, and bad TOML."""
    found = {path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*.toml"))}
    choices = ", ".join(sorted(_packaged()))
    if not found:
        raise UsageError(f"{folder}: no prompt pack: expected a folder with some of {choices}")
    digest, tables = hashlib.sha256(), dict[str, dict[str, Any]]()
    for path, raw in found.items():
        plain = split_variant(path.removesuffix(".toml").rpartition("_")[0])[0]
        if f"{plain}_{path.rpartition('_')[2]}" not in _packaged() and path not in _OF_CONVERSATIONS:
            raise UsageError(f"{folder / path}: stands in for none of {choices}")
        try:
            table = tomllib.loads(raw.decode())
        except ValueError as error:
            raise UsageError(f"{folder / path}: {error}") from None
        if language := _OF_CONVERSATIONS.get(path):
            tables |= _separate(folder / path, table, language)
        elif "extends" in table:
            raise UsageError(f"{folder / path}: extends: a pack's prompt extends the one that it stands in for")
        else:
            tables[path] = table
        digest.update(f"{path}\0{len(raw)}\0".encode() + raw)
    name = f"{folder.resolve().name}@{digest.hexdigest()[:16]}"
    _PACKS[name] = tables
    return name, list(tables)


_OUTPUTS = ("forced", "rating", "checklist")
"""Other output formats of a prompt, which are prompts of their own now."""

_WORDING = {"opening", "rules", "output", "template", "system", "constrained", *(f"output_{name}" for name in _OUTPUTS)}
_OURS = re.compile(r"\b(opening|rules|output|material)\b")
_TAG = re.compile(r"{[{%].*?[%}]}", re.DOTALL)


def _separate(file: Path, table: dict[str, Any], language: Language) -> dict[str, dict[str, Any]]:
    """The prompts of a file that holds one in each table. Raises UsageError for what it cannot hold."""
    made: dict[str, dict[str, Any]] = {}
    prompts = table.pop("prompts", None)
    if table or not isinstance(prompts, dict) or not prompts:
        raise UsageError(f"{file}: expected tables [prompts.NAME] and nothing else, got {', '.join(table) or 'none'}")
    for name, wording in prompts.items():
        if name not in names() or not isinstance(wording, dict) or wording.keys() - _WORDING:
            raise UsageError(f"{file}: [prompts.{name}]: NAME is one of {', '.join(names())}, with {sorted(_WORDING)}")
        rules, template = wording.get("rules", []), wording.get("template", "")
        texts = [wording.get(key, "") for key in wording.keys() - {"rules", "constrained"}]
        if not isinstance(rules, list) or not all(isinstance(text, str) for text in [*rules, *texts]):
            raise UsageError(f"{file}: [prompts.{name}]: rules is a list of texts, what is worded is text")
        if any(_OURS.search(tag) for tag in _TAG.findall(template)):
            raise UsageError(f"{file}: [prompts.{name}]: a pack's template shows raw.NAME, our words are written out")
        content: dict[str, Any] = {key: wording[key] for key in ("system", "constrained") if key in wording}
        if template:
            content |= {"template": _literal(template), "verbatim": True}
        if rules:
            content["general"] = [_literal(rule) for rule in rules]
        parts = {part: _literal(wording[part]) for part in ("opening", "output") if part in wording}
        made[name] = {**content, "parts": parts}
        others = {f"{name}_{other}": wording.get(f"output_{other}") for other in _OUTPUTS}
        made |= {other: {"parts": {"output": _literal(text)}} for other, text in others.items() if text is not None}
    return {f"{name}_{language}.toml": content for name, content in made.items()}


def _literal(text: str) -> str:
    """A text in which no part of ours is filled in."""
    return text.replace("$", "$$")
