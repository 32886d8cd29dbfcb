"""The one renderer of judging prompts, for training and for judging.

A prompt is a TOML file in `critic/prompts/`: wording, ranges and per-task rules as data, and a
Jinja template. What was written by users and models is quoted line by line ("> "), so that it
cannot close its section, and stripped of what a tokenizer would read as control tokens.
"""

import hashlib
import re
import tomllib
import unicodedata
from collections.abc import Callable
from functools import cache, cached_property
from importlib.resources import files
from typing import Any

import jinja2
import msgspec

from critic.errors import UsageError
from critic.records import RATINGS, Language, Message, Question, Response, Turn


class Range(msgspec.Struct, frozen=True):
    """A band of ratings, both ends included, with what it means."""

    low: int
    high: int
    meaning: str

    @property
    def label(self) -> str:
        return str(self.low) if self.low == self.high else f"{self.low}–{self.high}"


class TaskRules(msgspec.Struct, frozen=True):
    title: str
    rules: list[str]


class Prompt(msgspec.Struct, frozen=True, dict=True, kw_only=True, forbid_unknown_fields=True):
    """A judging prompt in one language. `hash` identifies its whole content."""

    name: str
    version: str
    language: Language
    template: str
    user: str
    assistant: str
    left_out: str
    history_left_out: str
    other_rules: list[str]
    ranges: list[Range]
    tasks: dict[str, TaskRules]

    @cached_property
    def hash(self) -> str:
        """First 16 hex digits of the SHA-256 of the content (canonical JSON, keys in file order)."""
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()[:16]

    @cached_property
    def compiled(self) -> jinja2.Template:
        return jinja2.Environment(undefined=jinja2.StrictUndefined, autoescape=False).from_string(self.template.strip())


VERDICT_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "Rating": {"type": "integer", "minimum": RATINGS[0], "maximum": RATINGS[-1]},
        "Reason": {"type": "string", "maxLength": 400},
    },
    "required": ["Rating", "Reason"],
    "additionalProperties": False,
}
"""JSON Schema of a pointwise verdict, in the order of the keys that training targets use."""


@cache
def load(name: str, language: Language) -> Prompt:
    """The packaged prompt `name` in `language`. Raises UsageError with the choices if there is none."""
    folder = files("critic") / "prompts"
    file = folder / f"{name}_{language}.toml"
    if not file.is_file():
        choices = sorted({entry.name.rsplit("_", 1)[0] for entry in folder.iterdir() if entry.name.endswith(".toml")})
        raise UsageError(f"no judge prompt {name!r} in {language!r}; there is {', '.join(choices)}")
    prompt = msgspec.convert(tomllib.loads(file.read_text("utf-8")), Prompt)
    covered = [rating for band in prompt.ranges for rating in range(band.low, band.high + 1)]
    if covered != list(RATINGS):
        raise UsageError(f"{file.name}: the ranges must cover {RATINGS[0]}..{RATINGS[-1]} once each, got {covered}")
    return prompt


def prompt_hash(name: str) -> str:
    """One hash for a prompt in all its languages."""
    both = "".join(load(name, language).hash for language in ("zh", "en"))
    return hashlib.sha256(both.encode()).hexdigest()[:16]


_LINE_ENDS = re.compile("\r\n|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]")
_CONTROL_TOKEN = re.compile(
    r"<[|｜][^\n<>]{0,48}?[|｜]?>|<[|｜]"
    r"|</?[A-Za-z0-9]*_[A-Za-z0-9_]*>"  # an underscore tells <im_end> and <BOS_TOKEN> from HTML
    r"|</?(?:s|unk|pad|bos|eos|sop|eop|eoh|eoa|mask|think|image|img)>"
    r"|<</?SYS>>|\[/?(?:INST|[A-Za-z]?MASK|IMG|ARGS|THINK|PREFIX|SUFFIX|MIDDLE|(?-i:[A-Z]+_[A-Z_]+))\]",
    re.IGNORECASE,
)
_LOOKALIKE = str.maketrans("<>[]|｜", "‹›［］¦¦")
_JOINER_BY_ASCII = re.compile("(?<=[\x00-\x7f])[\u200c\u200d]+|[\u200c\u200d]+(?=[\x00-\x7f])")
_BLANK = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u3164\uffa0")


def _visible(char: str) -> bool:
    """False for characters that hide or reorder text: controls, bidirectional marks, Unicode tags, variation
    selectors, blanks that are letters."""
    if char in _BLANK or "\u180b" <= char <= "\u180f" or "\ufe00" <= char <= "\ufe0f" or char >= "\U000e0100":
        return False
    kind = unicodedata.category(char)
    if kind == "Cs":
        return False
    if kind == "Cc":
        return char == "\t"
    return not (kind == "Cf" and char not in "\u200c\u200d")


def quote(text: str) -> str:
    """Text as quoted lines that stay one section whatever they contain.

    Every line starts with "> "; all Unicode line ends count. Hidden characters go, and sequences
    that chat templates use as control tokens (`<|im_end|>`, `</s>`, `[INST]`) are respelt with
    look-alike brackets, which no tokenizer reads as control tokens.
    """
    quoted = []
    for line in _LINE_ENDS.split(text.strip()):
        plain = _JOINER_BY_ASCII.sub("", "".join(char for char in line if _visible(char)))
        while (respelt := _CONTROL_TOKEN.sub(lambda found: found[0].translate(_LOOKALIKE), plain)) != plain:
            plain = respelt
        quoted.append(f"> {plain}".rstrip())
    return "\n".join(quoted)


def _history(prompt: Prompt, turns: list[Turn], dropped: int) -> str:
    parts = [prompt.history_left_out.format(n=dropped)] if dropped else []
    for turn in turns[dropped:]:
        parts.append(quote(prompt.user + turn.user))
        parts.append(quote(prompt.assistant + turn.assistant))
    return "\n".join(parts)


def _middle_out(prompt: Prompt, text: str, keep: int) -> str:
    """`text` with all but `keep` characters taken out of its middle, the place marked."""
    if keep >= len(text):
        return text
    head = (keep + 1) // 2
    tail = keep - head
    return text[:head] + prompt.left_out.format(n=len(text) - keep) + (text[-tail:] if tail else "")


class Kept(msgspec.Struct, frozen=True):
    """How much of each section a rendering keeps: turns dropped, characters kept (None = all)."""

    turns_dropped: int = 0
    reference: int | None = None
    response: int | None = None


def render(prompt: Prompt, response: Response, kept: Kept = Kept()) -> list[Message]:
    """The chat messages that ask for a verdict on `response`: one user message, whose first part,
    the rubric, is the same for every question of a language."""
    question: Question = response.question
    task = prompt.tasks.get(question.task)
    reference = question.reference or ""
    text = response.text
    content = prompt.compiled.render(
        ranges=prompt.ranges,
        task=task.title if task else quote(question.task).removeprefix("> ").replace("\n> ", " "),
        rules=task.rules if task else prompt.other_rules,
        history=_history(prompt, question.history, kept.turns_dropped),
        question=quote(question.prompt),
        reference=quote(_middle_out(prompt, reference, len(reference) if kept.reference is None else kept.reference)),
        response=quote(_middle_out(prompt, text, len(text) if kept.response is None else kept.response)),
    )
    return [{"role": "user", "content": content}]


class Fitted(msgspec.Struct, frozen=True):
    """A prompt that fits, and what was left out of it: turns of history, characters by section."""

    messages: list[Message]
    shortened: dict[str, int]


FLOOR = 200
"""Characters of reference and of response that shortening leaves: with less there is nothing to judge."""


def _most(low: int, high: int, fits: Callable[[int], bool]) -> int:
    """The largest k in low..high with fits(k), taking fits(low) for granted."""
    while low < high:
        middle = (low + high + 1) // 2
        if fits(middle):
            low = middle
        else:
            high = middle - 1
    return low


def fit(prompt: Prompt, response: Response, limit: int | None, count: Callable[[list[Message]], int]) -> Fitted | None:
    """The prompt for `response` in at most `limit` tokens as `count` counts them; None if it cannot fit.

    Left out in this order, each only as far as needed: the oldest history turns, the middle of the
    reference, the middle of the response; of the last two at least `FLOOR` characters stay. Rubric
    and question are never touched.
    """
    whole = render(prompt, response)
    if limit is None or count(whole) <= limit:
        return Fitted(whole, {})

    def fits(kept: Kept) -> bool:
        return count(render(prompt, response, kept)) <= limit

    turns, reference, text = response.question.history, response.question.reference or "", response.text
    all_turns, reference_floor, text_floor = len(turns), min(FLOOR, len(reference)), min(FLOOR, len(text))
    if fits(Kept(all_turns)):
        kept = Kept(all_turns - _most(0, all_turns, lambda left: fits(Kept(all_turns - left))))
    elif fits(Kept(all_turns, reference_floor)):
        kept = Kept(all_turns, _most(reference_floor, len(reference), lambda n: fits(Kept(all_turns, n))))
    elif fits(Kept(all_turns, reference_floor, text_floor)):
        kept = Kept(
            all_turns,
            reference_floor,
            _most(text_floor, len(text), lambda n: fits(Kept(all_turns, reference_floor, n))),
        )
    else:
        return None
    shortened = {
        "history": kept.turns_dropped,
        "reference": 0 if kept.reference is None else len(reference) - kept.reference,
        "response": 0 if kept.response is None else len(text) - kept.response,
    }
    return Fitted(render(prompt, response, kept), {name: n for name, n in shortened.items() if n})
