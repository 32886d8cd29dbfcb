"""The judge's text -> a rating, a choice or the answers to a checklist, and a reason, or a named failure.

A rating is only ever taken from a verdict's own `Rating` field: a number elsewhere in the text,
or a `Rating` quoted inside the reason, is not one. Of several verdicts the first counts, as in the
AlignMMBench script, because what follows a finished verdict is the model running on. The same holds
for choices: A, B or tie under `Verdict`, yes or no under `Correct`.
"""

import json
import math
import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

from critic.records import TEN, Failure, Scale, Verdict, to_ten

# A key as models write it: bare, quoted or bold, with any colon and perhaps bold behind it. No letter may stand before
# it, or the key would be found at the end of a longer word.
_KEY = r"""["'“”*]{0,3}(?<![A-Za-z])%s["'“”*]{0,3}\s*:\s*\*{0,2}\s*"""

# Where a line begins, or quoted as in an object: "correct: no" is also what people write in a sentence.
_CHOICE_KEY = r"""(?:^[ \t{*#]*["'“”]?|[{,]\s*["'“”])%s["'“”*]{0,3}\s*:\s*\*{0,2}\s*"""

# Where a line begins or behind a comma: the names of criteria may end as others do, or as the keys beside them.
_CRITERION_KEY = r"""(?:^[ \t*#-]*|[{,]\s*)["'“”*]{0,3}%s["'“”*]{0,3}\s*:\s*\*{0,2}\s*"""

# The mark that ends a reason, the comma, and the quoted key of the value behind it: what follows an unfinished reason
# counts only where it stands between two values of the same object. An escaped mark is part of the reason.
_AFTER_REASON = r"""(?<!\\)(["'”])\s*,\s*["'“]%s["'”]\s*:\s*"""

# What the keys are also called.
_NAMES = {"Rating": "(?:Rating|评分|分数)", "Reason": "(?:Reason|理由)"}

Keys = tuple[re.Pattern[str], re.Pattern[str]]
"""How the key of a verdict's value looks in text, and that of its reason."""

_CLOSING = {"“": "”"}

# Thoughts before the answer, closed or cut off: no verdict is read out of a draft.
_THINKING = re.compile(r"\s*<think>.*?(?:</think>|\Z)", re.DOTALL)

# The end of thoughts whose beginning the chat template wrote: not a mark that is spoken of in a sentence.
_THOUGHTS_END = re.compile(r"^[ \t]*</think>|</think>(?=[ \t\r]*(?:$|\{|```))", re.MULTILINE)

# A reply that begins with its verdict has no thoughts before it.
_VERDICT_FIRST = re.compile(
    r"""(?:```\w*)?[\s"'“*#]*(?:\[?\{|\[\[|\d{1,3}["']?\s*[:.)：]\s*["']?(?:yes|no)\b"""
    r"""|(?:rating|score|verdict|correct|reason|评分|分数|理由)["'”*]{0,3}\s*[:：])""",
    re.IGNORECASE,
)

# A quoted text up to the unescaped mark that a comma, a brace or the end follows: marks inside it do not end it.
_QUOTED_TEXT = re.compile(r"""^["'“](.*?)(?<!\\)["'”]\s*(?:[,}]|$)""", re.DOTALL)

# What a verdict in free text is followed by: the end of its sentence or line, or of what marks it.
_ENDS = r"""(?=[ \t]*(?:["'”’*_.!。)\]}]|is (?:slightly |much |clearly )?better|$))"""
_FINAL = r"^[\s*_#>\"“-]*(?:my )?final (?:answer|verdict)[\s*_]*(?::|is:?)[\s*_]*"
_PLAYER = r"(?:(?:the\s+)?(?:response|assistant|conversation)\s+(?:from\s+assistant\s+)?)"
_COMPARED = r"A\s*(?:=|[<>]{1,2})\s*B"

_STATED = tuple(
    re.compile(pattern, re.IGNORECASE | re.MULTILINE)
    for pattern in (
        # Not behind other words: "I cannot say that overall …" states nothing, nor does what is quoted in a sentence.
        r"(?:^[\s*_#>\"“-]*|[.!?:;。][\s*_]*)(?:(?:therefore|thus|hence|so|in conclusion|in summary)\W{1,3})?"
        rf"overall\W{{1,3}}{_PLAYER}([AB])\s+is\s+(?:slightly\s+|much\s+|clearly\s+)?(?:the\s+)?better\b",
        rf"{_FINAL}{_PLAYER}?([AB]|tie){_ENDS}",
        rf"\[\[\s*([ABC]|tie|{_COMPARED})\s*\]\]",
        rf"(?:{_FINAL}|^[\s*_#>-]*)({_COMPARED})[\s*_.]*$",
    )
)
"""How judges of other benchmarks end a comparison: ConvBench and VisIT-Bench (figures 17 to 20 and 25; 16 to 18),
MT-Bench's [[A]], where [[C]] is a tie, and A=B, A>B, A>>B."""

_STATED_RATING = re.compile(
    r"""(?<![A-Za-z])(?:rating|score|评分|分数)["'”*_]{0,3}\s*:\s*[\[({*_"'“ ]*(?P<named>[-+]?\d+(?:\.\d+)?)"""
    r"|\[\[\s*(?P<marked>[-+]?\d+(?:\.\d+)?)",
    re.IGNORECASE,
)
"""A rating behind its name, perhaps in brackets, or alone in two pairs of them (ConvBench, MultiVerse, MT-Bench)."""

# What may follow a rating, perhaps in marks: its own scale's highest, but neither the rest of a longer number or of a
# range, nor the highest of another scale.
_BEHIND_RATING = (
    r"(?:\s*/\s*%(highest)d)?(?![\d%%/])(?!\.\d)"
    r"""(?![*_"'”’\])}]*[ \t]*(?:to|or|[-–—~到至或])[ \t]*[*_"'“(\[]*\d)"""
    r"""(?![*_"'”’\])}]*[ \t]*\(?[ \t]*(?:(?:out[ \t]+)?of|/)[ \t]*(?!%(highest)d(?!\d))\d)"""
)

_QUOTED_REASON = re.compile(r"""["'“](?:Reason|理由)["'”]\s*:""", re.IGNORECASE)

_OPEN_REASON = re.compile(r"(?:^|[.!?;,。{])[\s*_#>-]*(?:Reason|理由)[\s*_]*:", re.IGNORECASE | re.MULTILINE)

# What a judge quotes, of one paragraph at most, or of a line where the mark may also be an apostrophe or a fence.
_QUOTATION = re.compile(
    r"""(?<![A-Za-z0-9])"(?:[^"\n]|\n(?!\s*\n))*"(?![A-Za-z0-9])"""
    r"""|(?<![A-Za-z0-9])'(?:[^'\n]|(?<=[A-Za-z])'(?=[A-Za-z]))*'(?![A-Za-z0-9])"""
    r"|“(?:[^“”\n]|\n(?!\s*\n))*”|‘[^‘’\n]*’|「[^「」]*」|『[^『』]*』|`[^`\n]+`"
)

# What may stand before a judge's own statement in its line or sentence.
_LEAD = (
    r"[\s*_#>`{-]*(?:(?:so|therefore|thus|hence|my|the|final|overall|verdict|answer|judge?ment|choice|rating|score|is)\b"
    r"""[\s*_:,]*)*["'“]?"""
)
_LINE_BEGINS = re.compile(rf"^{_LEAD}\Z", re.IGNORECASE | re.MULTILINE)
_WORD = re.compile(r"\w")
_MARKS = re.compile(r"""[.!?:;。]?[\s*_#>"“-]*""")
_SENTENCE_BEGINS = re.compile(rf"(?:^|[.!?。]\s){_LEAD}\Z", re.IGNORECASE | re.MULTILINE)
_LONGEST_LEAD = 80
"""Characters: a search for where a line begins must not go through all of it for each mark in it."""

# An item of a checklist: a number where an object's key or a line begins, a colon or a point, and the answer alone.
_ITEM = re.compile(r"""(?:^|[{,\n])\s*["']?(\d{1,3})["']?\s*[:.)：]\s*["']?(yes|no)\b""", re.IGNORECASE)


def parse(
    text: str, truncated: bool = False, scale: Scale = TEN, key: str = "Rating", criteria: bool = False
) -> Verdict:
    """Read a pointwise verdict: `{"Rating": 1..10, "Reason": "…"}`, or something close to it. Where ratings by several
    `criteria` stand in it, that under `key`.

    Tolerated: other key order, text or code fences around, quoted, decimal and full-width numbers ("8", 8.5, ８,
    "8/10"), single quotes, raw line breaks, a reply cut off after its rating. `truncated` says that the reply ended at
    its token limit. Failures: `empty`, `truncated` (cut off before the rating was certain), `no_rating`, `out_of_range`
    (outside the scale). A rating on another `scale` (its lowest and highest whole rating) is moved linearly onto 1..10.
    """

    def made(value: Any, reason: str | None) -> Verdict:
        rating = _as_number(value, scale)
        return Verdict(reason=reason, failure="no_rating") if rating is None else _rated(rating, scale, reason)

    ratings = [str(rating) for rating in range(scale[0], scale[1] + 1)]
    return _parsed(text, truncated, key, _keys(key, criteria), _number(scale), ratings, made, "no_rating")


def parse_choice(text: str, key: str, values: Sequence[str], truncated: bool = False) -> Verdict:
    """Read a verdict that is one of a few `values`: `{"Verdict": "A"}`, `{"Correct": "yes", "Reason": "…"}`. Tolerated
    as in `parse`, and capitals or small letters. Failures: `empty`, `truncated` (cut off before the value was whole),
    `no_verdict` (no such key, or another value under it)."""

    def made(value: Any, reason: str | None) -> Verdict:
        wanted = _half_width(value).strip().lower() if isinstance(value, str) else ""
        found = next((choice for choice in values if choice.lower() == wanted), None)
        return Verdict(value=found, reason=reason, failure=None if found else "no_verdict")

    return _parsed(text, truncated, key, _keys(key), _word(tuple(values)), values, made, "no_verdict")


def _parsed(
    text: str,
    truncated: bool,
    key: str,
    keys: Keys,
    pattern: re.Pattern[str],
    values: Sequence[str],
    made: Callable[[Any, str | None], Verdict],
    missing: Failure,
) -> Verdict:
    """The verdict `made` of the value under `key` and of the reason: in a JSON object or, where there is none with that
    key, in what looks like a part of one."""
    if not text.strip():
        return Verdict(failure="empty")
    objects, text = _take_objects(text[answer_at(text) :], keys)
    for found in objects:
        if key.lower() in found:
            reason = found.get("reason")
            return made(found[key.lower()], reason if isinstance(reason, str) else None)
    plain = _half_width(text)
    place = _place(text, plain, key, keys)
    value = None if place is None else pattern.match(plain, place)
    if value is None:
        # Cut off before the key, where the value should stand, or within it.
        rest = "" if place is None else plain[place:].strip(" \"'").lower()
        cut_off = truncated and any(one.lower().startswith(rest) for one in values)
        return Verdict(failure="truncated" if cut_off else missing)
    cut_off = truncated or plain.count("{") > plain.count("}")
    # A 1 could have become a 10.
    if cut_off and value.end() == len(plain) and any(one != value[1] and one.startswith(value[1]) for one in values):
        return Verdict(failure="truncated")
    return made(value[1], _loose_reason(text, keys[1]))


def _rated(rating: float, scale: Scale, reason: str | None = None) -> Verdict:
    if not scale[0] <= rating <= scale[1]:
        return Verdict(reason=reason, failure="out_of_range")
    return Verdict(rating=float(rating) if scale == TEN else to_ten(rating, *scale), reason=reason)


def answer_at(text: str) -> int:
    """Where in a reply the answer begins, behind the thoughts; the reply's length where these are cut off. The chat
    template may have written their `<think>`."""
    if opened := _THINKING.match(text):
        return opened.end()
    ends = [] if _VERDICT_FIRST.match(text.lstrip()) else _THOUGHTS_END.finditer(text)
    return next((end.end() for end in ends if not _in_reason(text[: end.start()])), 0)


def _in_reason(before: str) -> bool:
    """Whether a text ends within a quoted reason, which may say anything."""
    keys = [*_QUOTED_REASON.finditer(before)]
    return bool(keys) and _QUOTED_TEXT.match(before[keys[-1].end() :].lstrip()) is None


def without_thoughts(text: str) -> str:
    """A reply without the thoughts that come before the answer."""
    return text[answer_at(text) :].strip()


def stated_rating(text: str, scale: Scale = TEN) -> Verdict | None:
    """The one rating that a reply states in a form of the papers: `Rating: [[7]]`, `Rating:{5}`, `{"score": "7"}`,
    `Final Rating: 4`. None where it states none, `no_rating` where it states several that differ."""
    objects, text = _take_objects(text[answer_at(text) :], _keys("Rating"))
    given = (_as_number(one.get("rating", one.get("score")), scale) for one in objects)
    plain, found = _half_width(text), {rating for rating in given if rating is not None}
    for one in _own(plain, _STATED_RATING):
        if _behind(scale).match(plain, one.end()):
            found.add(float(one["named"] or one["marked"]))
    if len(found) != 1:
        return Verdict(failure="no_rating") if found else None
    (rating,) = found
    return _rated(rating, scale)


def stated_choice(text: str, values: Sequence[str]) -> Verdict | None:
    """The one of A, B and tie that a reply states in a form of the papers: `Overall, Response A is better.`, `Final
    Answer: B`, `[[C]]`, `A=B`. None where it states none, `no_verdict` where it states several that differ, or one
    that is not among `values`."""
    plain = _half_width(text[answer_at(text) :])
    said = {re.sub(r"\s", "", one[1]).lower() for form in _STATED for one in _own(plain, form)}
    meant = {"A" if one in ("a", "a>b", "a>>b") else "B" if one in ("b", "a<b", "a<<b") else "tie" for one in said}
    if not meant:
        return None
    value = meant.pop()
    return Verdict(failure="no_verdict") if meant or value not in values else Verdict(value=value)


def _own(plain: str, form: re.Pattern[str]) -> Iterator[re.Match[str]]:
    """Where a judge states what a `form` looks for, and does not quote what the response claims: not within quotation
    marks, nor in a reason, behind whose key a statement begins its own line or is the last sentence, and none at all
    counts in an object."""
    if _QUOTED_REASON.search(plain):  # unfinished
        return
    quoted, reason = _quoted(plain), _OPEN_REASON.search(plain)
    for one in form.finditer(plain):
        marks = _MARKS.match(plain, one.start())
        at = marks.end() if marks else one.start()
        begins = _LINE_BEGINS if _WORD.search(plain, one.end()) else _SENTENCE_BEGINS
        argued = reason is not None and at >= reason.end() and not _led(begins, plain, at)
        if not argued and not any(start <= at and one.end() <= end for start, end in quoted):
            yield one


def _quoted(plain: str) -> list[tuple[int, int]]:
    """From where to where something is quoted in a sentence: in a line or a sentence of its own it is said."""
    found = _QUOTATION.finditer(plain)
    return [one.span() for one in found if not _led(_SENTENCE_BEGINS, plain, one.start())]


def _led(begins: re.Pattern[str], plain: str, at: int) -> bool:
    """Whether nothing but what may lead to a statement stands before a place, behind where its line or sentence
    `begins`."""
    return begins.search(plain, max(0, at - _LONGEST_LEAD), at) is not None


def parse_checklist(text: str, items: int, truncated: bool = False) -> Verdict:
    """Read the answers to a checklist's items (from 1): `{"1":"yes","2":"no"}`, or lists of "1: yes" or "1. yes". An
    item without an answer, or answered both ways, is None; then the failure is `empty`, `truncated` or `no_verdict`.
    Where a reason stands in the same object, what is said in it answers nothing."""
    found: dict[int, set[bool]] = {}
    said, reason = without_thoughts(text), None
    objects, _ = _take_objects(said, _keys("Checklist"))
    if whole := next((one for one in objects if isinstance(one.get("reason"), str)), None):
        reason, said = whole.pop("reason"), json.dumps(whole)
    elif _QUOTED_REASON.search(said):  # unfinished
        said = ""
    for number, word in _ITEM.findall(said):
        found.setdefault(int(number), set()).add(word.lower() == "yes")
    answers = [next(iter(one)) if len(one) == 1 else None for one in (found.get(n, set()) for n in range(1, items + 1))]
    if None not in answers:
        return Verdict(answers=answers, reason=reason)
    return Verdict(
        answers=answers,
        reason=reason,
        failure="empty" if not text.strip() else "truncated" if truncated else "no_verdict",
    )


@cache
def _number(scale: Scale) -> re.Pattern[str]:
    """A number, perhaps quoted, perhaps followed by "/ highest"."""
    return re.compile(r"""["'“”]?\s*([-+]?\d+(?:\.\d+)?)""" + _behind(scale).pattern, re.IGNORECASE)


@cache
def _behind(scale: Scale) -> re.Pattern[str]:
    return re.compile(_BEHIND_RATING % {"highest": scale[1]}, re.IGNORECASE)


@cache
def _word(values: tuple[str, ...]) -> re.Pattern[str]:
    """One of the values, perhaps quoted, with nothing but punctuation behind it on its line."""
    return re.compile(rf"""["'“”*]{{0,3}}\s*({"|".join(values)})(?=[ \t]*(?:["'“”*,.;。}}\n]|$))""", re.IGNORECASE)


@cache
def _compiled(pattern: str, key: str) -> re.Pattern[str]:
    return re.compile(pattern % _NAMES.get(key, re.escape(key)), re.IGNORECASE | re.MULTILINE)


def _keys(key: str, criteria: bool = False) -> Keys:
    if criteria:
        return _compiled(_CRITERION_KEY, key), _compiled(_CRITERION_KEY, "Reason")
    return _compiled(_CHOICE_KEY if key in ("Verdict", "Correct") else _KEY, key), _compiled(_KEY, "Reason")


def _take_objects(text: str, keys: Keys) -> tuple[list[dict[str, Any]], str]:
    """The JSON objects in the text, outer before inner, keys in lower case (of a key that comes twice the first value),
    and the text without them: strings inside a whole object are settled. Behind a verdict's key that belongs to no
    whole object nothing is taken: an object there is quoted in an unfinished or unescaped reason, and is the
    response's, not the judge's."""

    def first_wins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        return {name.strip().lower(): value for name, value in reversed(pairs)}

    decoder = json.JSONDecoder(strict=False, object_pairs_hook=first_wins)
    found: list[dict[str, Any]] = []
    rest: list[str] = []
    done, seen, at = 0, 0, text.find("{")
    while at >= 0:
        before = _half_width(text[seen:at])
        if any(key.search(before) for key in keys):
            break
        try:
            value, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            end = at + 1
        else:
            found.extend(_nested(value))
            rest.append(text[done:at])
            done = end
        seen, at = end, text.find("{", end)
    return found, "".join([*rest, text[done:]])


def _nested(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
        for inner in value.values():
            yield from _nested(inner)


def _half_width(text: str) -> str:
    """Full-width digits and punctuation as their plain forms, one character for one, so that
    positions stay comparable."""
    wide = (unicodedata.normalize("NFKC", char) for char in text)
    return "".join(plain if len(plain) == 1 else char for char, plain in zip(text, wide, strict=True))


def _place(text: str, plain: str, key: str, keys: Keys) -> int | None:
    """Where the value of the verdict's `key` starts in text that is no valid JSON; `plain` is its half-width form."""
    quoted, reason = _quoted(plain), keys[1].search(plain)
    found = (one for one in keys[0].finditer(plain) if not any(start < one.end() < end for start, end in quoted))
    value = next(found, None)
    if value and (reason is None or value.start() < reason.start()):
        return value.end()
    # Behind an unfinished reason only a key that stands between two values counts, and the mark that closes the
    # first is the one that opened it: the reason may quote a verdict that the response tried to forge.
    opening = text[reason.end() : reason.end() + 1] if reason else ""
    closing = _CLOSING.get(opening, opening)
    after = [one for one in _compiled(_AFTER_REASON, key).finditer(plain) if text[one.start(1)] == closing]
    return after[-1].end() if after else None


def _as_number(value: Any, scale: Scale) -> float | None:
    if isinstance(value, str):
        number = _number(scale).fullmatch(_half_width(value).strip())
        value = float(number[1]) if number else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if isinstance(value, int) or math.isfinite(value) else None


def _loose_reason(text: str, key: re.Pattern[str]) -> str | None:
    place = key.search(_half_width(text))
    if place is None:
        return None
    rest = text[place.end() :]
    quoted = _QUOTED_TEXT.match(rest)
    return (quoted[1] if quoted else rest.strip().strip("\"'“”}`").strip()) or None
