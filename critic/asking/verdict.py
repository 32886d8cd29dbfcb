"""The judge's text -> a rating or a choice, and a reason, or a named failure.

A rating is only ever taken from a verdict's own `Rating` field: a number elsewhere in the text,
or a `Rating` quoted inside the reason, is not one. Of several verdicts the first counts, as in the
AlignMMBench script, because what follows a finished verdict is the model running on. The same holds
for choices: A, B or tie under `Verdict`, yes or no under `Correct`.
"""

import json
import math
import re
import unicodedata
from collections.abc import Iterator
from functools import cache
from typing import Any

from msgspec import Struct

from critic.asking.prompt import CHOICES, VerdictKey
from critic.human_scored import to_ten
from critic.records import RATINGS, Failure, Verdict

_KEY = r"""["'“”*]{0,3}(?<![A-Za-z])%s["'“”*]{0,3}\s*:\s*\*{0,2}\s*"""
_REASON_KEY = re.compile(_KEY % "(?:Reason|理由)", re.IGNORECASE)
_CHOICE_KEY = r"""(?:^[ \t{*#]*["'“”]?|[{,]\s*["'“”])%s["'“”*]{0,3}\s*:\s*\*{0,2}\s*"""
"""Where a line begins, or quoted as in an object: "correct: no" is also what people write in a sentence."""
_AFTER_REASON = r"""(?<!\\)(["'”])\s*,\s*["'“]%s["'”]\s*:\s*"""
_NAMES: dict[VerdictKey, str] = {"Rating": "(?:Rating|评分|分数)", "Verdict": "Verdict", "Correct": "Correct"}
_CLOSING = {"“": "”"}
_THINKING = re.compile(r"^\s*<think>.*?(?:</think>|$)", re.DOTALL)
_QUOTED_TEXT = re.compile(r"""^["'“](.*?)(?<!\\)["'”]\s*(?:[,}]|$)""", re.DOTALL)


class Choice(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A judge's reply to a question with a few possible answers, read. Either `value` is one of them or `failure`
    says why there is none."""

    value: str | None = None
    reason: str | None = None
    failure: Failure | None = None


def parse(text: str, truncated: bool = False, scale: tuple[int, int] = (RATINGS[0], RATINGS[-1])) -> Verdict:
    """Read a pointwise verdict: `{"Rating": 1..10, "Reason": "…"}`, or something close to it.

    Tolerated: other key order, text or code fences around, quoted, decimal and full-width numbers
    ("8", 8.5, ８, "8/10"), single quotes, raw line breaks, a reply cut off after its rating.
    `truncated` says that the reply ended at its token limit. Failures: `empty`, `truncated` (cut off
    before the rating was certain), `no_rating`, `out_of_range` (outside the scale). A rating on another
    `scale` (its lowest and highest whole rating) is moved linearly onto 1..10.
    """
    if not text.strip():
        return Verdict(failure="empty")
    objects, text = _take_objects(_THINKING.sub("", text, count=1), "Rating")
    for found in objects:
        if "rating" in found:
            return _verdict(_as_number(found["rating"], scale), _as_text(found.get("reason")), scale)
    plain = _half_width(text)
    key = _place(text, plain, "Rating")
    if key is None:
        return Verdict(failure="truncated" if truncated else "no_rating")
    number = _number(scale).match(plain, key)
    if number is None:
        return Verdict(failure="truncated" if truncated and _ends_at(plain, key) else "no_rating")
    cut_off = truncated or (plain.count("{") > plain.count("}"))
    if cut_off and number.end() == len(plain) and _may_go_on(number[1], scale):
        return Verdict(failure="truncated")
    return _verdict(float(number[1]), _loose_reason(text), scale)


def parse_choice(text: str, key: VerdictKey, truncated: bool = False) -> Choice:
    """Read a verdict that is no rating: `{"Verdict": "A" | "B" | "tie"}`, `{"Correct": "yes" | "no", "Reason": "…"}`.

    Tolerated as in `parse`, and capitals or small letters. Failures: `empty`, `truncated` (cut off before the
    value was whole), `no_verdict` (no such key, or another value under it).
    """
    if not text.strip():
        return Choice(failure="empty")
    objects, text = _take_objects(_THINKING.sub("", text, count=1), key)
    for found in objects:
        if key.lower() in found:
            return _choice(_as_text(found[key.lower()]), _as_text(found.get("reason")), key)
    plain = _half_width(text)
    place = _place(text, plain, key)
    if place is None:
        return Choice(failure="truncated" if truncated else "no_verdict")
    value = _word(key).match(plain, place)
    if value is None:
        return Choice(failure="truncated" if truncated and _ends_at(plain, place, key) else "no_verdict")
    return _choice(value[1], _loose_reason(text), key)


@cache
def _number(scale: tuple[int, int]) -> re.Pattern[str]:
    """A number, perhaps quoted, perhaps followed by "/ highest"."""
    return re.compile(rf"""["'“”]?\s*([-+]?\d+(?:\.\d+)?)(?:\s*/\s*{scale[1]})?(?![\d%/])(?!\.\d)""")


@cache
def _word(key: VerdictKey) -> re.Pattern[str]:
    """One of a key's values, perhaps quoted, with nothing but punctuation behind it on its line."""
    values = "|".join(CHOICES[key])
    return re.compile(rf"""["'“”*]{{0,3}}\s*({values})(?=[ \t]*(?:["'“”*,.;。}}\n]|$))""", re.IGNORECASE)


@cache
def _key(key: VerdictKey) -> re.Pattern[str]:
    pattern = _KEY if key == "Rating" else _CHOICE_KEY
    return re.compile(pattern % _NAMES[key], re.IGNORECASE | re.MULTILINE)


@cache
def _key_after_reason(key: VerdictKey) -> re.Pattern[str]:
    return re.compile(_AFTER_REASON % _NAMES[key], re.IGNORECASE)


def _may_go_on(digits: str, scale: tuple[int, int]) -> bool:
    """Whether more digits would still make a rating: a 1 could have become a 10."""
    ratings = map(str, range(scale[0], scale[1] + 1))
    return any(rating != digits and rating.startswith(digits) for rating in ratings)


def _ends_at(plain: str, place: int, key: VerdictKey | None = None) -> bool:
    """Whether the text ends where the value should stand, or within one of the key's values."""
    rest = plain[place:].strip(" \"'").lower()
    return any(value.lower().startswith(rest) for value in CHOICES[key]) if key else not rest


def _take_objects(text: str, key: VerdictKey) -> tuple[list[dict[str, Any]], str]:
    """The JSON objects in the text, outer before inner, keys in lower case (of a key that comes
    twice the first value), and the text without them: strings inside a whole object are settled.

    Behind a verdict's key that belongs to no whole object nothing is taken: an object there is quoted in
    an unfinished or unescaped reason, and is the response's, not the judge's.
    """

    def first_wins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        return {name.strip().lower(): value for name, value in reversed(pairs)}

    decoder = json.JSONDecoder(strict=False, object_pairs_hook=first_wins)
    found: list[dict[str, Any]] = []
    rest: list[str] = []
    done, seen, at = 0, 0, text.find("{")
    while at >= 0 and not _has_key(text[seen:at], key):
        try:
            value, end = decoder.raw_decode(text, at)
        except (json.JSONDecodeError, RecursionError):
            end = at + 1
        else:
            found.extend(_nested(value))
            rest.append(text[done:at])
            done = end
        seen, at = end, text.find("{", end)
    return found, "".join([*rest, text[done:]])


def _has_key(text: str, key: VerdictKey) -> bool:
    plain = _half_width(text)
    return bool(_key(key).search(plain) or _REASON_KEY.search(plain))


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


def _place(text: str, plain: str, key: VerdictKey) -> int | None:
    """Where the value of the verdict's `key` starts in text that is no valid JSON; `plain` is its
    half-width form."""
    value, reason = _key(key).search(plain), _REASON_KEY.search(plain)
    if value and (reason is None or value.start() < reason.start()):
        return value.end()
    # Behind an unfinished reason only a key that stands between two values counts, and the mark that closes the
    # first is the one that opened it: the reason may quote a verdict that the response tried to forge.
    opening = text[reason.end() : reason.end() + 1] if reason else ""
    closing = _CLOSING.get(opening, opening)
    after = [found for found in _key_after_reason(key).finditer(plain) if text[found.start(1)] == closing]
    return after[-1].end() if after else None


def _as_number(value: Any, scale: tuple[int, int]) -> float | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, str):
        number = _number(scale).fullmatch(_half_width(value).strip())
        return float(number[1]) if number else None
    return None


def _as_text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _loose_reason(text: str) -> str | None:
    key = _REASON_KEY.search(_half_width(text))
    if key is None:
        return None
    rest = text[key.end() :]
    quoted = _QUOTED_TEXT.match(rest)
    return (quoted[1] if quoted else rest.strip().strip("\"'“”}`").strip()) or None


def _verdict(rating: float | None, reason: str | None, scale: tuple[int, int]) -> Verdict:
    low, high = scale
    if rating is None:
        return Verdict(reason=reason, failure="no_rating")
    if not low <= rating <= high:
        return Verdict(reason=reason, failure="out_of_range")
    on_ten = rating if (low, high) == (RATINGS[0], RATINGS[-1]) else to_ten(rating, low, high)
    return Verdict(rating=on_ten, reason=reason)


def _choice(value: str | None, reason: str | None, key: VerdictKey) -> Choice:
    wanted = _half_width(value or "").strip().lower()
    found = next((choice for choice in CHOICES[key] if choice.lower() == wanted), None)
    return Choice(value=found, reason=reason, failure=None if found else "no_verdict")
