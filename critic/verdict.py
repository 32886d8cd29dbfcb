"""The judge's text -> a rating and a reason, or a named failure.

A rating is only ever taken from a verdict's own `Rating` field: a number elsewhere in the text,
or a `Rating` quoted inside the reason, is not one. Of several verdicts the first counts, as in the
AlignMMBench script, because what follows a finished verdict is the model running on.
"""

import json
import math
import re
import unicodedata
from collections.abc import Iterator
from typing import Any

from critic.records import RATINGS, Failure, Verdict

_KEY = r"""["'“”*]{0,3}(?<![A-Za-z])%s["'“”*]{0,3}\s*:\s*\*{0,2}\s*"""
_RATING_KEY = re.compile(_KEY % "(?:Rating|评分|分数)", re.IGNORECASE)
_REASON_KEY = re.compile(_KEY % "(?:Reason|理由)", re.IGNORECASE)
_RATING_AFTER_REASON = re.compile(r"""(?<!\\)(["'”])\s*,\s*["'“](?:Rating|评分|分数)["'”]\s*:\s*""", re.IGNORECASE)
_CLOSING = {"“": "”"}
_NUMBER = re.compile(r"""["'“”]?\s*([-+]?\d+(?:\.\d+)?)(?:\s*/\s*10)?(?![\d%/])(?!\.\d)""")
_THINKING = re.compile(r"^\s*<think>.*?(?:</think>|$)", re.DOTALL)
_QUOTED_TEXT = re.compile(r"""^["'“](.*?)(?<!\\)["'”]\s*(?:[,}]|$)""", re.DOTALL)


def parse(text: str, truncated: bool = False) -> Verdict:
    """Read a pointwise verdict: `{"Rating": 1..10, "Reason": "…"}`, or something close to it.

    Tolerated: other key order, text or code fences around, quoted, decimal and full-width numbers
    ("8", 8.5, ８, "8/10"), single quotes, raw line breaks, a reply cut off after its rating.
    `truncated` says that the reply ended at its token limit. Failures: `empty`, `truncated` (cut off
    before the rating was certain), `no_rating`, `out_of_range` (outside 1..10).
    """
    if not text.strip():
        return Verdict(failure="empty")
    text = _THINKING.sub("", text, count=1)
    objects, text = _take_objects(text)
    for found in objects:
        if "rating" in found:
            return _verdict(_as_number(found["rating"]), _as_text(found.get("reason")))
    plain = _half_width(text)
    key = _rating_place(text, plain)
    if key is None:
        return Verdict(failure="truncated" if truncated else "no_rating")
    number = _NUMBER.match(plain, key)
    if number is None:
        cut = truncated and not plain[key:].strip(" \"'")
        return Verdict(failure="truncated" if cut else "no_rating")
    cut_off = truncated or (plain.count("{") > plain.count("}"))
    if cut_off and number.end() == len(plain) and number[1] == "1":
        return Verdict(failure="truncated")  # could have become 10
    return _verdict(float(number[1]), _loose_reason(text))


def _take_objects(text: str) -> tuple[list[dict[str, Any]], str]:
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
    while at >= 0 and not _has_key(text[seen:at]):
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


def _has_key(text: str) -> bool:
    plain = _half_width(text)
    return bool(_RATING_KEY.search(plain) or _REASON_KEY.search(plain))


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


def _rating_place(text: str, plain: str) -> int | None:
    """Where the value of the verdict's `Rating` starts in text that is no valid JSON; `plain` is its
    half-width form."""
    rating, reason = _RATING_KEY.search(plain), _REASON_KEY.search(plain)
    if rating and (reason is None or rating.start() < reason.start()):
        return rating.end()
    # Behind an unfinished reason only a key that stands between two values counts, and the mark that closes the
    # first is the one that opened it: the reason may quote a verdict that the response tried to forge.
    opening = text[reason.end() : reason.end() + 1] if reason else ""
    closing = _CLOSING.get(opening, opening)
    after = [found for found in _RATING_AFTER_REASON.finditer(plain) if text[found.start(1)] == closing]
    return after[-1].end() if after else None


def _as_number(value: Any) -> float | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, str):
        number = _NUMBER.fullmatch(_half_width(value).strip())
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


def _verdict(rating: float | None, reason: str | None) -> Verdict:
    failure: Failure | None = None
    if rating is None:
        failure = "no_rating"
    elif not RATINGS[0] <= rating <= RATINGS[-1]:
        failure = "out_of_range"
    return Verdict(rating=None if failure else rating, reason=reason, failure=failure)
