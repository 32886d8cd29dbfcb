"""The one renderer of judging prompts, for training and for judging.

A prompt is a TOML file in `critic/prompts/`: wording, ranges and per-task rules as data, and a
Jinja template. One that `extends` another holds only what differs from it. What was written by users
and models is quoted line by line ("> "), so that it cannot close its section, and stripped of what a
tokenizer would read as control tokens.
"""

import hashlib
import re
import string
import unicodedata
from collections.abc import Callable, Mapping
from functools import cache, cached_property
from importlib.resources import files
from typing import Any, Literal, get_args

import jinja2
import msgspec

from critic.asking import prompt_files
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


VerdictKey = Literal["Rating", "Verdict", "Correct"]
"""What a verdict says of an answer, or of two, under this key: its rating, which is better, whether it is right."""

CHOICES: dict[VerdictKey, tuple[str, ...]] = {"Verdict": ("A", "B", "tie"), "Correct": ("yes", "no")}
"""The values of the verdicts that are no rating."""


class Prompt(msgspec.Struct, frozen=True, dict=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A judging prompt in one language. `hash` identifies its whole content; `key` is that of a verdict's value."""

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
    key: VerdictKey = "Rating"

    @property
    def scale(self) -> tuple[int, int]:
        """The lowest and the highest rating."""
        return self.ranges[0].low, self.ranges[-1].high

    @property
    def on_ten(self) -> bool:
        """Whether a verdict is a rating on 1..10."""
        return self.key == "Rating" and self.scale == (RATINGS[0], RATINGS[-1])

    @property
    def is_pair(self) -> bool:
        """Whether the prompt shows two answers."""
        return self.key == "Verdict"

    @cached_property
    def hash(self) -> str:
        """First 16 hex digits of the SHA-256 of the content (canonical JSON, keys in file order)."""
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()[:16]

    @cached_property
    def compiled(self) -> jinja2.Template:
        return prompt_files.environment().from_string(self.template.strip())


REASON: dict[str, Any] = {"type": "string"}
"""JSON Schema of a reason. One that comes before the value has a longest length besides (`verdict_object`)."""

LONGEST_FIRST_REASON = 400
"""Characters of a reason that comes before the value."""


def verdict_object(properties: Mapping[str, Any]) -> dict[str, Any]:
    """JSON Schema of a verdict that has these keys, in this order.

    A reason before the value is bounded, so that the value comes at all. One behind it is cut off by the limit of
    tokens, if by anything: it costs a decoder more to count characters than to do all else.
    """
    if next(iter(properties), None) == "Reason":
        properties = {**properties, "Reason": {**REASON, "maxLength": LONGEST_FIRST_REASON}}
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(properties),
        "additionalProperties": False,
    }


VERDICT_SCHEMA: dict[str, Any] = verdict_object(
    {"Rating": {"type": "integer", "minimum": RATINGS[0], "maximum": RATINGS[-1]}, "Reason": REASON}
)
"""JSON Schema of a pointwise verdict, in the order of the keys that training targets use."""


def verdict_schema(prompt: Prompt) -> dict[str, Any]:
    """JSON Schema of the verdicts that a prompt asks for: the keys that its output format shows, in that order."""
    low, high = prompt.scale
    if prompt.key == "Rating":
        value: dict[str, Any] = {"type": "integer", "minimum": low, "maximum": high}
    else:
        value = {"type": "string", "enum": list(CHOICES[prompt.key])}
    places = {key: prompt.template.find(f'"{key}"') for key in (prompt.key, "Reason")}
    shown = sorted((key for key in places if places[key] >= 0), key=lambda key: places[key])
    return verdict_object({key: REASON if key == "Reason" else value for key in shown})


@cache
def names() -> tuple[str, ...]:
    """The packaged prompts, without their language."""
    found = (entry.name for entry in (files("critic") / "prompts").iterdir() if entry.name.endswith(".toml"))
    return tuple(sorted({name.rsplit("_", 1)[0] for name in found}))


@cache
def load(name: str, language: Language) -> Prompt:
    """The packaged prompt `name` in `language`, as PACK/NAME with what an open prompt pack says otherwise. Raises
    UsageError with the choices if there is none."""
    pack, _, plain = name.rpartition("/")
    if plain not in names() or language not in get_args(Language):
        raise UsageError(f"no judge prompt {name!r} in {language!r}; there is {', '.join(names())}")
    content = _content(plain, language, pack or None)
    bands = content["ranges"]
    covered = [rating for band in bands for rating in range(band["low"], band["high"] + 1)]
    low, high = covered[0], covered[-1]
    if covered != list(range(low, high + 1)):
        raise UsageError(f"{name}_{language}.toml: the ranges must cover {low}..{high} once each, got {covered}")
    parts = {part: _filled(text, low=low, high=high) for part, text in content.pop("parts", {}).items()}
    return msgspec.convert({**content, "template": _filled(content["template"], **parts)}, Prompt)


def _content(name: str, language: Language, pack: str | None) -> dict[str, Any]:
    """A prompt's file, and what it leaves out from the prompt that it extends."""
    content = prompt_files.content(f"{name}_{language}.toml", pack)
    extended = content.pop("extends", None)
    return prompt_files.over(_content(extended, language, pack), content) if extended else content


def _filled(text: str, **values: object) -> str:
    return string.Template(text).substitute(values)


def require_ten(name: str) -> None:
    """Raises UsageError for a prompt whose verdict is not a rating on 1..10, naming those whose verdict is."""
    if not load(name, "en").on_ten:
        choices = [each for each in names() if load(each, "en").on_ten]
        raise UsageError(f"prompt {name!r} asks for no rating on 1..10; choose {', '.join(choices)}")


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


def unquoted(quoted: str) -> str:
    """What `quote` gave without its marks: for prompts of other people that show texts as they are."""
    return "\n".join(line[2:] for line in quoted.split("\n"))


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
    """How much of each section a rendering keeps: turns dropped, characters kept (None = all); of two answers
    each keeps as many."""

    turns_dropped: int = 0
    reference: int | None = None
    response: int | None = None


def render(prompt: Prompt, response: Response, kept: Kept = Kept(), other: Response | None = None) -> list[Message]:
    """The chat messages that ask for a verdict on `response`: one user message, whose first part,
    the rubric, is the same for every question of a language.

    A prompt for pairs shows `response` as A and `other`, an answer to the same question, as B. Raises ValueError
    for an `other` too many or too few.
    """
    if prompt.is_pair != (other is not None):
        raise ValueError(f"prompt {prompt.name} shows {1 + prompt.is_pair} answers; `other` must agree")
    question: Question = response.question
    task = prompt.tasks.get(question.task)
    reference = question.reference or ""
    length = len(reference) if kept.reference is None else kept.reference
    shown = {
        "history": _history(prompt, question.history, kept.turns_dropped),
        "question": quote(question.prompt),
        "reference": quote(_middle_out(prompt, reference, length)),
        "response": _answer(prompt, response, kept),
        "other": _answer(prompt, other, kept) if other else "",
    }
    content = prompt.compiled.render(
        ranges=prompt.ranges,
        task=task.title if task else quote(question.task).removeprefix("> ").replace("\n> ", " "),
        rules=task.rules if task else prompt.other_rules,
        raw={name: unquoted(text) for name, text in shown.items()},
        **shown,
    )
    return [{"role": "user", "content": content}]


def _answer(prompt: Prompt, response: Response, kept: Kept) -> str:
    text = response.text
    return quote(_middle_out(prompt, text, len(text) if kept.response is None else kept.response))


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


def fit(
    prompt: Prompt,
    response: Response,
    limit: int | None,
    count: Callable[[list[Message]], int],
    other: Response | None = None,
) -> Fitted | None:
    """The prompt for `response` (and `other`, as in `render`) in at most `limit` tokens as `count` counts them;
    None if it cannot fit.

    Left out in this order, each only as far as needed: the oldest history turns, the middle of the
    reference, the middle of the response, or of both, the longer first; of reference and response at least
    `FLOOR` characters stay. Rubric and question are never touched.
    """
    whole = render(prompt, response, other=other)
    if limit is None or count(whole) <= limit:
        return Fitted(whole, {})

    def fits(kept: Kept) -> bool:
        return count(render(prompt, response, kept, other)) <= limit

    turns, reference = response.question.history, response.question.reference or ""
    lengths = [len(response.text), *([len(other.text)] if other else [])]
    all_turns, longest = len(turns), max(lengths)
    reference_floor, text_floor = min(FLOOR, len(reference)), min(FLOOR, longest)
    if fits(Kept(all_turns)):
        kept = Kept(all_turns - _most(0, all_turns, lambda left: fits(Kept(all_turns - left))))
    elif fits(Kept(all_turns, reference_floor)):
        kept = Kept(all_turns, _most(reference_floor, len(reference), lambda n: fits(Kept(all_turns, n))))
    elif fits(Kept(all_turns, reference_floor, text_floor)):
        kept = Kept(
            all_turns,
            reference_floor,
            _most(text_floor, longest, lambda n: fits(Kept(all_turns, reference_floor, n))),
        )
    else:
        return None
    shortened = {
        "history": kept.turns_dropped,
        "reference": 0 if kept.reference is None else len(reference) - kept.reference,
        "response": 0 if kept.response is None else sum(max(0, length - kept.response) for length in lengths),
    }
    return Fitted(render(prompt, response, kept, other), {name: n for name, n in shortened.items() if n})
