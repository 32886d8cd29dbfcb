"""Judging prompts: wording, ranges and per-task rules as data, and a template. One a file in `critic/prompts/`.

A prompt that `extends` another holds only what differs from it. Its tables `flags.FLAG` say what is otherwise where the
prompt's name ends in `_FLAG`, whether it is asked so or not: `critic.judging.forms` says in what.

A prompt pack is a folder of such files that stand in for parts of ours, known by NAME@HASH once it is opened; PACK/NAME
is the prompt NAME with what the pack says otherwise.
"""

import hashlib
import string
import tomllib
from collections.abc import Iterable
from functools import cache, cached_property
from importlib.resources import files
from itertools import accumulate
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


def _compiled(template: str) -> jinja2.Template:
    """Sandboxed: the templates of a pack may be anyone's."""
    environment = ImmutableSandboxedEnvironment(
        undefined=jinja2.StrictUndefined, autoescape=False, keep_trailing_newline=True
    )
    return environment.from_string(template)


@cache
def names() -> tuple[str, ...]:
    """The packaged judging prompts, without their language; files that only others extend begin with an underscore."""
    stems = (Path(entry.name).stem for entry in (files("critic") / "prompts").iterdir() if entry.is_file())
    return tuple(sorted({stem.rpartition("_")[0] for stem in stems if not stem.startswith("_")}))


@cache
def split(name: str) -> tuple[str, tuple[str, ...], str]:
    """A prompt's name, `pairwise_turn_forced_in_full_2`, as that of its file, its flags, and what it is a pack's own
    prompt for, "" for nothing. Raises UsageError with the choices if there is none."""
    bases = [base for base in names() if f"{name}_".startswith(f"{base}_")]
    if not bases:
        raise UsageError(f"no judge prompt {name!r}; there is {', '.join(names())}")
    base = max(bases, key=len)
    rest, flags = name[len(base) + 1 :], list[str]()
    known = _content(base, LANGUAGES[0]).get("flags", {})
    while flag := next((flag for flag in known if f"{rest}_".startswith(f"{flag}_")), None):
        flags.append(flag)
        rest = rest[len(flag) + 1 :]
    if rest and rest not in VARIANTS:
        raise UsageError(f"no judge prompt {name!r}; {base} goes with {', '.join(known) or 'no flag'}")
    return base, tuple(flags), rest


def split_variant(name: str) -> tuple[str, str]:
    """A prompt's name without and with what it is a pack's own prompt for, "" for nothing."""
    base, flags, variant = split(name)
    return "_".join([base, *flags]), variant


@cache
def load(name: str, language: Language, sees: bool = False) -> Prompt:
    """The packaged prompt `name` in `language`, as PACK/NAME with what an open prompt pack says otherwise; for a judge
    that `sees` with the parts of its table `seeing`. Raises UsageError with the choices if there is none."""
    pack, _, plain = name.rpartition("/")
    plain_name, variant = split_variant(plain)
    if language not in LANGUAGES or (pack and pack not in _PACKS) or (variant and not pack):
        raise UsageError(f"no judge prompt {name!r} in {language!r}; there is {', '.join(names())}")
    content = _content(plain, language, pack)
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
    content["tasks"] = {name: _filled_rules(task, parts) for name, task in content.get("tasks", {}).items()}
    content.pop("flags", None)
    return msgspec.convert({**content, "name": plain_name, "language": language, "sees": sees}, Prompt)


def prompt_hash(name: str, sees: bool = False) -> str:
    """One hash for a prompt in all its languages; of a judge that `sees` also as it is asked where there is no
    picture."""
    wordings = [load(name, language, seen) for seen in ((False, True) if sees else (False,)) for language in LANGUAGES]
    return hashlib.sha256("".join(one.hash for one in wordings).encode()).hexdigest()[:16]


def _filled(text: str, values: dict[str, Any]) -> str:
    return string.Template(text).substitute(values)


def _filled_rules(task: dict[str, Any], parts: dict[str, str]) -> dict[str, Any]:
    return {**task, "rules": [string.Template(rule).safe_substitute(parts) for rule in task["rules"]]}


def _line(base: str, language: Language) -> list[str]:
    """A prompt's file behind those that it extends one after another."""
    line = [base]
    while extended := _file(line[0], language).get("extends"):
        line.insert(0, extended)
    return line


@cache
def _file(base: str, language: Language) -> dict[str, Any]:
    return tomllib.loads((files("critic") / "prompts" / f"{base}_{language}.toml").read_text("utf-8"))


def _content(name: str, language: Language, pack: str = "") -> dict[str, Any]:
    """A prompt's tables: those of its files, of its flags one after another, and at each step what a pack says
    otherwise; last what the pack says of its own variant."""
    theirs = _PACKS.get(pack, {})
    base, flags, variant = (name, (), "") if name in names() else split(name)
    steps, content = _line(base, language), dict[str, Any]()
    for step in steps:
        content = _over(content, _file(step, language))
        content = _over(content, theirs.get(f"{step}_{language}.toml", {}))
    for flag in flags:
        steps.append(f"{steps[-1]}_{flag}")
        content = _over(content, content["flags"][flag])
        content = _over(content, theirs.get(f"{steps[-1]}_{language}.toml", {}))
    for step in steps if variant else ():
        content = _over(content, theirs.get(f"{step}_{variant}_{language}.toml", {}))
    content.pop("extends", None)
    return content


def variant_of(name: str, wanted: Iterable[str]) -> str:
    """The name of a pack's prompt, PACK/NAME, or of the first variant of it that is `wanted` and there: for the prompt
    itself, for one that it extends, or for it without some of its flags."""
    pack, _, plain = name.rpartition("/")
    base, flags, _ = split(plain)
    steps = [*_line(base, LANGUAGES[0]), *accumulate((base, *flags), "{}_{}".format)]
    for variant in wanted:
        if any(f"{step}_{variant}_{language}.toml" in _PACKS[pack] for step in steps for language in LANGUAGES):
            return f"{name}_{variant}"
    return name


def _over(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Two tables as one, table by table; elsewhere what `above` says counts."""
    both = {key: _over(below[key], above[key]) for key in below.keys() & above.keys() if isinstance(below[key], dict)}
    return {**below, **above, **both}


_PACKS: dict[str, dict[str, dict[str, Any]]] = {}
"""The packs that were opened: NAME@HASH -> path in critic/prompts/ -> what the pack says otherwise. A pack's name is
that of its content, so opening one twice changes nothing."""


def has(pack: str, name: str) -> bool:
    """Whether a pack has a part in the prompt `name`, in any language."""
    return any(load(f"{pack}/{name}", language) != load(name, language) for language in LANGUAGES)


def add_pack(folder: Path) -> tuple[str, list[str]]:
    """A folder's prompt files under the folder's name and the first 16 hex digits of the SHA-256 of their paths and
    content, NAME@HASH; and the prompts that it has a part in, by path. Raises UsageError for a folder without any, a
    file that is none of ours, and bad TOML."""
    paths = [path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*.toml"))]
    if not paths:
        raise UsageError(f"{folder}: no prompt pack: expected files such as pointwise_en.toml, of {', '.join(names())}")
    digest, tables = hashlib.sha256(), dict[str, dict[str, Any]]()
    for path in paths:
        raw = (folder / path).read_bytes()
        name, _, language = path.removesuffix(".toml").rpartition("_")
        try:
            split(name)
            tables[path] = tomllib.loads(raw.decode())
        except (UsageError, ValueError) as error:
            raise UsageError(f"{folder / path}: {error}") from None
        if language not in LANGUAGES:
            raise UsageError(f"{folder / path}: a prompt's file ends in its language, {' or '.join(LANGUAGES)}")
        if "extends" in tables[path]:
            raise UsageError(f"{folder / path}: extends: a pack's prompt extends the one that it stands in for")
        digest.update(f"{path}\0{len(raw)}\0".encode() + raw)
    name = f"{folder.resolve().name}@{digest.hexdigest()[:16]}"
    _PACKS[name] = tables
    return name, paths
