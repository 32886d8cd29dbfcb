"""Read how servers refuse: the field they do not accept, the wait they ask for, and an empty account."""

import math
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

_LIMIT = r"max[ _]?(?:completion[ _]?|output[ _]?|new[ _]?)?tokens"
_FORMAT = r"response.?(?:format|schema|mime.?type)|json.?(?:schema|object|mode)|structured|guided"
OPTIONAL = {
    "max_tokens": (_LIMIT, "asked with max_completion_tokens"),
    "max_completion_tokens": (_LIMIT, "asked without: its own limit holds"),
    "temperature": ("temperature", "asked without: its default holds, so replies may be sampled"),
    "seed": (r"(?:random[ _]?)?seed", "asked without: replies cannot be repeated"),
    "response_format": (_FORMAT, "asked without: nothing holds its replies to the form"),
    "logprobs": (r"(?:top[ _]?|response[ _]?)?log.?prob\w*", "asked without: ratings have no distribution"),
    "logit_bias": (r"logit.?bias", "asked without"),
}
"""Request fields that a server may do without: pattern of their names in refusals, and the consequence. `top_logprobs`
goes with `logprobs`."""

_PATTERNS = {
    # Chinese stands beside a name without a blank: \b would see no border.
    name: re.compile(f"(?<![A-Za-z0-9_])(?:{words})(?![A-Za-z0-9_])", re.IGNORECASE)
    for name, (words, _) in OPTIONAL.items()
}
_NEEDED = re.compile(r"(?:body[ .])?(?:messages|model)(?![A-Za-z0-9_])")
"""Fields that no request can do without."""


def drop_unsupported(body: Mapping[str, Any], unsupported: set[str]) -> dict[str, Any]:
    """Return the request without the fields that a server refuses; `max_completion_tokens` replaces `max_tokens`."""
    sent = {name: value for name, value in body.items() if name.removeprefix("top_") not in unsupported}
    if "max_tokens" in body.keys() - sent.keys() and "max_completion_tokens" not in unsupported:
        sent["max_completion_tokens"] = body["max_tokens"]
    return sent


def find_refused_fields(answer: Any, words: str, sent: Mapping[str, Any]) -> list[str]:
    """Return the OPTIONAL fields of `sent` that an error names, the most likely first.

    Servers name a field in a key of its own, `param` (OpenAI, Azure), `loc` (FastAPI: Mistral, vLLM) or `field`
    (Google), or only in their message (`words`). A refusal whose key names `messages` or `model` is about these.

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
    """Yield the values of an error's keys that name a field."""
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


_NO_CREDIT = re.compile(
    r"insufficient[ _]?(?:account[ _]?|user[ _]?)?(?:quota|balance|credits?|funds)|out of (?:credits|funds)"
    r"|(?:balance|credits?)(?: balance)? (?:is|are) (?:too low|insufficient|not enough|exhausted|empty)"
    r"|account (?:is|has been) (?:empty|in arrears|overdue|suspended)|(?:used all|exhausted)\b.{0,30} credits"
    r"|billing[ _]?(?:hard[ _]?limit|not[ _]?active)|check your billing|exceeded_current_quota|arrear|overdue"
    r"|good standing|payment required|monthly spending limit|欠费|余额不足|余额已用|账户已停|\(1113\)",
    re.IGNORECASE,
)
"""Messages of an empty account: OpenAI, Azure, Anthropic, DeepSeek, Moonshot, xAI, OpenRouter, SiliconFlow, Zhipu
(1113), DashScope (Arrearage), Volcengine (AccountOverdueError), MiniMax.

Google's "exceeded your current quota" is left out: it is also sent for a limit per minute.
"""


def is_out_of_credit(status: int, words: str, sent: bytes) -> bool:
    """Return whether a refusal says that the account is empty, and does not just repeat the request `sent`."""
    match = _NO_CREDIT.search(words)
    return status == 402 or (match is not None and match[0].encode() not in sent)


_DURATION = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m(?!s))?(?:(\d+(?:\.\d+)?)s)?(?:(\d+(?:\.\d+)?)ms)?")
_UNITS = (86400.0, 3600.0, 60.0, 1.0, 0.001)
_IN_BODY = re.compile(r'(?:"retryDelay": ?"|try again in )((?:\d+(?:\.\d+)?(?:ms|[dhms]))+)')
"""Wait in an error's body (Google, OpenAI)."""


def _parse_seconds(words: str) -> float | None:
    """Parse a wait: seconds, or a duration such as `6m0s` and `20ms`. Return None for anything else."""
    with suppress(ValueError):
        return number if math.isfinite(number := float(words)) else None
    parts = _DURATION.fullmatch(words.strip())
    if parts is None or not any(parts.groups()):
        return None
    return sum(float(part) * unit for part, unit in zip(parts.groups(), _UNITS, strict=True) if part)


def _parse_moment(words: str, now: datetime) -> float | None:
    """Parse a date and return the seconds until then: an HTTP date in any of its three forms (RFC 9110, section 5.6.7),
    or ISO 8601."""
    for read in (parsedate_to_datetime, datetime.fromisoformat):
        with suppress(ValueError, TypeError, OverflowError):
            moment = read(words)
            return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() - now.timestamp()
    return None


def _parse_wait(words: str, now: datetime) -> float | None:
    """Parse a wait in any spelling, in seconds. A number past 2001, in seconds or milliseconds, is a moment."""
    seconds = _parse_seconds(words)
    if seconds is None:
        return _parse_moment(words, now)
    if seconds > 1e9:
        return seconds / (1000 if seconds > 1e11 else 1) - now.timestamp()
    return seconds


def read_retry_after(headers: Mapping[str, str], body: str = "") -> float | None:
    """Return the seconds that a server asks to wait (0 or more), or None if it does not say.

    In this order: `retry-after-ms` (OpenAI, Azure), `Retry-After` in seconds or as a date (RFC 9110, section 10.2.3),
    the error's `body`, `ratelimit-reset` and its relatives. Dates are compared with the server's own clock (`Date`).
    The caller bounds the wait.

    >>> read_retry_after({"retry-after": "Sun, 06 Nov 1994 08:49:37 GMT", "date": "Sun, 06 Nov 1994 08:49:30 GMT"})
    7.0
    >>> read_retry_after({"x-ratelimit-reset-requests": "1m0.5s"})
    60.5
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
    """Return the seconds until the last of the used-up rate limits is reset, or None if no header says."""
    used_up, others = list[float](), list[float]()
    for name, value in fields.items():
        if "ratelimit" not in name or "reset" not in name or (wait := _parse_wait(value, now)) is None:
            continue
        # Of several limits, those that are not used up say nothing about this refusal.
        is_used_up = fields.get(name.replace("reset", "remaining"), "0") in ("0", "0.0")
        (used_up if is_used_up else others).append(wait)
    return max(used_up or others, default=None)
