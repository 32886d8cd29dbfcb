"""Read why a server refused a request: a field that it does not accept, a wait that it requests, an empty account."""

import math
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

from msgspec import toml

_FILE = toml.decode(Path(__file__).with_suffix(".toml").read_bytes())

OPTIONAL: dict[str, list[str]] = _FILE["optional"]
"""Request fields that may be omitted: name -> [pattern of the field's name in error messages, consequence in words]."""

_PATTERNS = {
    # Chinese stands beside a name without a blank: \b would see no border.
    name: re.compile(f"(?<![A-Za-z0-9_])(?:{words})(?![A-Za-z0-9_])", re.IGNORECASE)
    for name, (words, _) in OPTIONAL.items()
}
_NEEDED = re.compile(r"(?:body[ .])?(?:messages|model)(?![A-Za-z0-9_])")
"""Matches the names of fields that every request needs."""


def drop_unsupported(body: Mapping[str, Any], unsupported: set[str]) -> dict[str, Any]:
    """Return the request body without the fields whose names are in `unsupported`.

    If `max_tokens` is dropped, `max_completion_tokens` takes its place, unless that is unsupported too. `top_logprobs`
    is dropped together with `logprobs`.
    """
    sent = {name: value for name, value in body.items() if name.removeprefix("top_") not in unsupported}
    if "max_tokens" in body.keys() - sent.keys() and "max_completion_tokens" not in unsupported:
        sent["max_completion_tokens"] = body["max_tokens"]
    return sent


def find_refused_fields(answer: Any, words: str, sent: Mapping[str, Any]) -> list[str]:
    """Return the names of the OPTIONAL fields that a server's error rejects, the most likely one first.

    Servers name the field under a key `param` (OpenAI, Azure), `loc` (FastAPI: Mistral, vLLM) or `field` (Google), or
    only in their message. If such a key names `messages` or `model`, the message is ignored.

    Args:
        answer: The server's decoded answer.
        words: The error message in it.
        sent: The request body. Only fields in it are returned.

    >>> find_refused_fields({"error": {"param": "temperature"}}, "Unsupported value.", {"temperature": 0.0, "seed": 1})
    ['temperature']
    """
    places = list(_walk_places(answer))
    candidates = {name: pattern for name, pattern in _PATTERNS.items() if name in sent}
    others = [place for place in places if not _NEEDED.match(place)]
    named = [name for place in others for name, pattern in candidates.items() if pattern.search(place)]
    if named or len(others) < len(places):
        return list(dict.fromkeys(named))
    # The message names the culprit first, and often others beside it.
    positions = {name: match.start() for name, pattern in candidates.items() if (match := pattern.search(words))}
    return sorted(positions, key=positions.__getitem__)


def _walk_places(answer: Any, depth: int = 6) -> Iterator[str]:
    """Yield the values of the keys `param`, `loc` and `field` in a decoded answer, as text, down to `depth` levels."""
    if not depth:
        return
    if isinstance(answer, list):
        for item in answer:
            yield from _walk_places(item, depth - 1)
    elif isinstance(answer, dict):
        for name, value in answer.items():
            if name in ("param", "loc", "field") and value:
                yield " ".join(map(str, value)) if isinstance(value, list) else str(value)
            # FastAPI repeats the request in `input`.
            elif name != "input":
                yield from _walk_places(value, depth - 1)


_NO_CREDIT = re.compile("|".join(_FILE["no_credit"]), re.IGNORECASE)
"""Matches messages about an empty account."""


def is_out_of_credit(status: int, words: str, sent: bytes) -> bool:
    """Return True if a refusal says that the account is empty.

    Args:
        status: The HTTP status; 402 always says so.
        words: The error message.
        sent: The request body. A phrase that also occurs in it does not count, since servers may repeat the request.
    """
    match = _NO_CREDIT.search(words)
    return status == 402 or (match is not None and match[0].encode() not in sent)


_DURATION = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m(?!s))?(?:(\d+(?:\.\d+)?)s)?(?:(\d+(?:\.\d+)?)ms)?")
_UNITS = (86400.0, 3600.0, 60.0, 1.0, 0.001)
_IN_BODY = re.compile(r'(?:"retryDelay": ?"|try again in )((?:\d+(?:\.\d+)?(?:ms|[dhms]))+)')
"""Matches the requested wait in the body of an error (Google, OpenAI)."""


def _parse_seconds(words: str) -> float | None:
    """Parse a number of seconds, or a duration such as `6m0s` or `20ms`. Return seconds, or None if it is neither."""
    with suppress(ValueError):
        return number if math.isfinite(number := float(words)) else None
    parts = _DURATION.fullmatch(words.strip())
    if parts is None or not any(parts.groups()):
        return None
    return sum(float(part) * unit for part, unit in zip(parts.groups(), _UNITS, strict=True) if part)


def _parse_moment(words: str, now: datetime) -> float | None:
    """Parse an HTTP date (RFC 9110, section 5.6.7) or ISO 8601 date. Return the seconds from `now` until that date.

    Return None if the text is not such a date.
    """
    for read in (parsedate_to_datetime, datetime.fromisoformat):
        with suppress(ValueError, TypeError, OverflowError):
            moment = read(words)
            return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() - now.timestamp()
    return None


def _parse_wait(words: str, now: datetime) -> float | None:
    """Parse a wait: seconds, a duration, a date or a Unix time. Return seconds from `now`, or None if it is none.

    A number above 1e9 is a Unix time in seconds, a number above 1e11 one in milliseconds.
    """
    seconds = _parse_seconds(words)
    if seconds is None:
        return _parse_moment(words, now)
    if seconds > 1e9:
        return seconds / (1000 if seconds > 1e11 else 1) - now.timestamp()
    return seconds


def read_retry_after(headers: Mapping[str, str], body: str = "") -> float | None:
    """Return the seconds (0 or more) that a server asks the client to wait, or None if it does not say.

    The first of these that is present counts: the header `retry-after-ms` (OpenAI, Azure), `Retry-After` in seconds or
    as a date (RFC 9110, section 10.2.3), the error's `body`, and headers such as `ratelimit-reset`. Dates are compared
    with the server's own clock (header `Date`). The result has no upper limit.

    >>> [read_retry_after({"Retry-After": wait}) for wait in ("3", "2.5", "1m30s", "-3", "soon", "nan")]
    [3.0, 2.5, 90.0, 0.0, None, None]
    >>> read_retry_after({"retry-after-ms": "1500", "Retry-After": "9"}), read_retry_after({})
    (1.5, None)

    Dates in the three formats of RFC 9110, and a date in the past:

    >>> clock = {"Date": "Sun, 29 Nov 2026 12:00:00 GMT"}
    >>> read_retry_after({"Retry-After": "Sun, 29 Nov 2026 12:00:07 GMT", **clock})
    7.0
    >>> read_retry_after({"Retry-After": "Sunday, 29-Nov-26 12:00:07 GMT", **clock})
    7.0
    >>> read_retry_after({"Retry-After": "Sun Nov 29 12:00:07 2026", **clock})
    7.0
    >>> read_retry_after({"Retry-After": "Sun, 29 Nov 2026 11:59:00 GMT", **clock})
    0.0

    Errors that state the wait (Google, OpenAI):

    >>> read_retry_after({}, '{"error": {"details": [{"retryDelay": "34.5s"}]}}')
    34.5
    >>> read_retry_after({}, "Rate limit reached. Please try again in 1m2s.")
    62.0

    Headers with the time at which a rate limit is reset. If some limits are used up, the others are ignored:

    >>> read_retry_after({"x-ratelimit-reset-requests": "6m0.5s"}), read_retry_after({"RateLimit-Reset": "12"})
    (360.5, 12.0)
    >>> read_retry_after({"anthropic-ratelimit-requests-reset": "2026-11-29T12:00:07+00:00", **clock})
    7.0
    >>> [read_retry_after({"X-RateLimit-Reset": time, **clock}) for time in ("1795953607", "1795953607000")]
    [7.0, 7.0]
    >>> read_retry_after({"x-ratelimit-reset-requests": "1s", "x-ratelimit-reset-tokens": "20ms"})
    1.0
    >>> free = {"x-ratelimit-reset-requests": "8h0m0s", "x-ratelimit-remaining-requests": "500"}
    >>> read_retry_after({"x-ratelimit-reset-tokens": "20ms", "x-ratelimit-remaining-tokens": "0", **free})
    0.02
    """
    fields = {name.lower(): value.strip() for name, value in headers.items()}
    now = datetime.now(UTC)
    with suppress(ValueError, TypeError, KeyError):
        now = parsedate_to_datetime(fields["date"]).replace(tzinfo=UTC)
    if milliseconds := _parse_seconds(fields.get("retry-after-ms", "")):
        return max(milliseconds / 1000, 0.0)
    wait = _parse_wait(fields.get("retry-after", ""), now)
    if wait is None and (in_body := _IN_BODY.search(body)):
        wait = _parse_seconds(in_body[1])
    if wait is None:
        wait = _find_reset(fields, now)
    return None if wait is None else max(wait, 0.0)


def _find_reset(fields: Mapping[str, str], now: datetime) -> float | None:
    """Return the seconds from `now` until all exhausted rate limits are reset, or None if no header states it.

    `fields`: header name in lower case -> value.
    """
    used_up, others = list[float](), list[float]()
    for name, value in fields.items():
        if "ratelimit" not in name or "reset" not in name or (wait := _parse_wait(value, now)) is None:
            continue
        # Of several limits, those that are not used up say nothing about this refusal.
        is_used_up = fields.get(name.replace("reset", "remaining"), "0") in ("0", "0.0")
        (used_up if is_used_up else others).append(wait)
    return max(used_up or others, default=None)
