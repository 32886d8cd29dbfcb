"""Load judging prompts (wording, rating bands, rules by task, template) from the files in `critic/prompts/`.

A prompt that `extends` another file holds only the differences. Its table `flags.FLAG` holds the differences of the
variant whose name ends in `_FLAG`. `critic.judging.forms` lists the flags of each form.
"""

import hashlib
import string
import tomllib
from functools import cache, cached_property
from importlib.resources import files
from typing import Any, get_args

import jinja2
import msgspec
from msgspec import Struct, field

from critic.errors import UsageError
from critic.records import TEN, Language

LANGUAGES: tuple[Language, ...] = get_args(Language)

EXTRACTION = "extraction"
"""Name of the prompt that asks which verdict a judge's unreadable reply comes to."""


class Range(Struct, frozen=True):
    """A band of ratings, `low` and `high` included, and its meaning."""

    low: int
    high: int
    meaning: str

    @property
    def label(self) -> str:
        return str(self.low) if self.low == self.high else f"{self.low}–{self.high}"


class TaskRules(Struct, frozen=True):
    title: str
    rules: list[str]


class Prompt(Struct, frozen=True, dict=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A judging prompt in one language.

    - `key`: the key of the verdict's value: "Rating", "Verdict" (the better of two) or "Correct". A checklist has one
      key per item instead; free text has none.
    - `left_out`, `history_left_out`: texts in place of the middle of a shortened text, and of omitted earlier
      exchanges.
    - `general`, `tasks`, `other_rules`: rules for all tasks, rules by task, and rules for tasks that are not in
      `tasks`.
    - `user`, `assistant`, `turn`, `item`: labels of messages, turns and checklist items.
    - `indent`: spaces before further lines of an earlier message, so that no line passes for another message.
    - `sides`, `tie`: names of the two compared sides, and of a tie.
    - `sees`: the wording is for a judge that sees the images.
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
    key: str = "Rating"
    general: list[str] = field(default_factory=list)
    turn: str = ""
    item: str = ""
    indent: str = ""
    sides: list[str] = field(default_factory=list)
    tie: str = ""
    sees: bool = False

    @property
    def scale(self) -> tuple[int, int]:
        """Return the lowest and the highest rating."""
        return (self.ranges[0].low, self.ranges[-1].high) if self.ranges else TEN

    @property
    def on_ten(self) -> bool:
        """Return True if a verdict is a rating on 1..10."""
        return self.key == "Rating" and self.scale == TEN

    @cached_property
    def hash(self) -> str:
        """Return the first 16 hex digits of the SHA-256 of the prompt (JSON, fields in their defined order)."""
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()[:16]

    @cached_property
    def compiled(self) -> jinja2.Template:
        environment = jinja2.Environment(undefined=jinja2.StrictUndefined, autoescape=False, keep_trailing_newline=True)
        return environment.from_string(self.template.strip())


@cache
def load(name: str, language: Language, sees: bool = False) -> Prompt:
    """Return the packaged prompt `name` in `language`.

    `sees`: use the wording for a judge that sees images (the file's table `seeing`). Raise UsageError if there is no
    such prompt, or if its ranges do not cover each rating once.
    """
    content = _read_content(name, language)
    if content is None:
        raise UsageError(f"no judge prompt {name!r} in {language}")
    values = {}
    if bands := content.get("ranges"):
        covered = [rating for band in bands for rating in range(band["low"], band["high"] + 1)]
        low, high = covered[0], covered[-1]
        if covered != list(range(low, high + 1)):
            raise UsageError(f"{name}_{language}.toml: the ranges must cover {low}..{high} once each, got {covered}")
        values = {"low": low, "high": high}
    parts, seeing = content.pop("parts", {}), content.pop("seeing", {})
    parts = {part: _fill(text, values) for part, text in (parts | seeing if sees else parts).items()}
    content["template"] = _fill(content["template"], parts)
    content["general"] = [_fill(rule, parts) for rule in content.get("general", [])]
    for task in content.get("tasks", {}).values():
        task["rules"] = [string.Template(rule).safe_substitute(parts) for rule in task["rules"]]
    content.pop("flags", None)
    return msgspec.convert({**content, "name": name, "language": language, "sees": sees}, Prompt)


@cache
def prompt_hash(name: str, sees: bool = False) -> str:
    """Return one hash of a prompt in all its languages.

    `sees`: hash the wordings with images and without, as a judge that sees images gets both.
    """
    wordings = [load(name, language, seen) for seen in ((False, True) if sees else (False,)) for language in LANGUAGES]
    return hashlib.sha256("".join(wording.hash for wording in wordings).encode()).hexdigest()[:16]


def _fill(text: str, values: dict[str, Any]) -> str:
    return string.Template(text).substitute(values)


def _read_content(name: str, language: Language) -> dict[str, Any] | None:
    """Return a prompt's tables, or None if there is no such prompt.

    They are those of the file that its file extends, overridden by its own, then by each flag at the end of its name.
    """
    file = files("critic") / "prompts" / f"{name}_{language}.toml"
    if file.is_file():
        content = tomllib.loads(file.read_text("utf-8"))
        return _merge(_read_content(content.pop("extends", ""), language) or {}, content)
    # Names of files and flags have underscores too: the last flag may begin at any of them.
    base, _, flag = name.rpartition("_")
    while base:
        plain = _read_content(base, language)
        if plain is not None and flag in plain.get("flags", {}):
            return _merge(plain, plain["flags"][flag])
        base, _, word = base.rpartition("_")
        flag = f"{word}_{flag}"
    return None


def _merge(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Merge two tables recursively; other values of `above` replace those of `below`."""
    both = {key: _merge(below[key], above[key]) for key in below.keys() & above.keys() if isinstance(below[key], dict)}
    return {**below, **above, **both}
