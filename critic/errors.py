"""The two families of errors, the caller's mistake and what is worth another try; text from outside made sound."""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

if TYPE_CHECKING:  # the records know nothing of errors, and errors no more of records than a name
    from critic.records import Failure

T = TypeVar("T")


SECRET_NAME = re.compile(r"key|token|secret|passw|signature|credential|auth|^(?:sig|pwd)$", re.IGNORECASE)
"""Names of a URL's parameters whose values are secrets."""

MASK = "***"

_SECRETS = (
    (re.compile(r"(\w://)[^/\s\"'<>]*@"), r"\1"),  # user and password (RFC 3986, section 3.2.1)
    (
        re.compile(
            r"(?i)([?&](?:[\w.-]*(?:key|token|secret|passw|signature|credential|auth)\w*|sig|pwd)=)[^&\s\"'<>]+"
        ),
        rf"\1{MASK}",
    ),
    (re.compile(r"(?i)\b((?:bearer|basic) )(?!auth|token|realm)[^\s\"',;<>)]{4,}"), rf"\1{MASK}"),
    (re.compile(r"(?i)(api[-_ ]?key(?: provided)?[\"']?\s*[:=]\s*[\"']?)[^\s\"',;&<>})]+"), rf"\1{MASK}"),
    # Keys by their makers' prefixes: OpenAI and many others, Groq, xAI, Google. Servers repeat them with stars inside.
    (re.compile(r"\b(sk|pk|gsk|xai)-[\w*-]{6,}|\bgsk_\w{8,}|\bAIza[\w-]{8,}"), MASK),
    (re.compile(r"\b\w+\*{3,}\w*"), MASK),
)


def mask(text: str, secrets: Iterable[str] = ()) -> str:
    """Return `text` without passwords and keys in URLs, without what looks like a key, and without the `secrets`.

    >>> mask("no route to http://me:pw@host/v1?key=k1&n=2 (Bearer abcd1234)")
    'no route to http://host/v1?key=***&n=2 (Bearer ***)'
    """
    # Local servers are given keys such as "EMPTY" and "none", which are words of messages.
    for secret in secrets:
        text = text.replace(secret, MASK) if len(secret) > 5 else text
    for pattern, public in _SECRETS:
        text = pattern.sub(public, text)
    return text


class UsageError(Exception):
    """The caller's mistake: one line that says what was expected. Ends a program with exit code 2."""


class Hopeless(UsageError):
    """A server that will answer nothing until somebody sees to it: its account is empty, or the key is wrong."""


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """The one of the names that an unknown one is like, as a question to put before all of them; "" for none."""
    alike = get_close_matches(name, list(names), n=1)
    return f"did you mean {alike[0]}? " if alike else ""


class Transient(Exception):
    """A call that may succeed if repeated: time-outs, resets, 429 and 5xx. `retry_after` is the server's own wish in
    seconds, if it named one, `tries` how often it was made."""

    failure: "Failure" = "server_error"

    def __init__(self, message: str, retry_after: float | None = None, tries: int = 1) -> None:
        super().__init__(message)
        self.retry_after, self.tries = retry_after, tries


class Refused(Exception):
    """A call the server will refuse however often it is repeated (4xx); `failure` is its short name. `fields` are those
    of the request that the server names, which it may do without."""

    tries = 1

    def __init__(self, failure: "Failure", message: str, fields: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.failure, self.fields = failure, fields

    def __reduce__(self) -> tuple[Any, ...]:
        return Refused, (self.failure, str(self))


LONGEST_QUOTE = 200
"""Characters of a cell, a line or a value that an error quotes at most."""


def quoted(value: object) -> str:
    """Return a value as error lines quote it, on one line: of a longer one the beginning, and how long it is.

    >>> quoted("N/A"), quoted(3.5)
    ("'N/A'", '3.5')
    """
    text = value if isinstance(value, str) else repr(value)
    if len(text) <= LONGEST_QUOTE:
        return repr(value)
    beginning = repr(text[:LONGEST_QUOTE]) if isinstance(value, str) else text[:LONGEST_QUOTE]
    return f"{beginning}… ({len(text)} characters)"


def shorten_line(text: str) -> str:
    """Return a list of names, or a message that may quote a value, on one line: of a longer one both ends."""
    line = " ".join(text.split())
    return line if len(line) <= LONGEST_QUOTE else f"{line[: LONGEST_QUOTE - 60]}…{line[-59:]}"


def one_line(error: BaseException) -> str:
    """Return an error's kind and words on one line of at most 300 characters, without secrets."""
    return mask(" ".join(f"{type(error).__name__}: {error}".split()))[:300]


@contextmanager
def report_write_errors(path: Path) -> Iterator[None]:
    """Raises UsageError for what the system says against writing: a full disk, a missing right."""
    try:
        yield
    except OSError as error:
        problem = f"cannot be written: {error.strerror or error}"
        raise UsageError(f"{path}: {problem}; once it can be, run the same command again") from None


def replace_surrogates(value: Any) -> Any:
    """A JSON value without halves of characters (lone surrogates), which no file can hold: U+FFFD stands for each. What
    stands for a file name's bytes outside the locale's encoding (surrogateescape) is read as UTF-8."""
    if isinstance(value, str):
        try:
            return value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        except UnicodeEncodeError:
            return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    if isinstance(value, dict):
        return {replace_surrogates(name): replace_surrogates(item) for name, item in value.items()}
    return [replace_surrogates(item) for item in value] if isinstance(value, list | tuple) else value


def encode(record: Any) -> bytes:
    """A record as JSON, its texts `replace_surrogates`. Raises RecursionError."""
    try:
        return msgspec.json.encode(record)
    except UnicodeEncodeError:
        return msgspec.json.encode(replace_surrogates(msgspec.to_builtins(record)))


def loads(content: bytes | str, *, unique: bool = False) -> Any:
    """Return JSON of another program, its texts `replace_surrogates`; NaN is taken. Raise ValueError for what is no JSON, for what
    is nested too deep and, if keys are to be `unique`, for an object that has one twice."""
    text = content if isinstance(content, str) else content.decode("utf-8", "replace")
    try:
        return replace_surrogates(json.loads(text, object_pairs_hook=_build_unique if unique else None))
    except RecursionError:
        raise ValueError("nested too deep") from None


def _build_unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {quoted(twice)} is there twice; keep the one that is meant")
    return table


def decode(content: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    """What the decoder reads, its texts `replace_surrogates`. Raises ValueError as `loads` does."""
    try:
        return decoder.decode(content)
    except RecursionError:
        raise ValueError("nested too deep") from None
    except msgspec.DecodeError:
        if b"\\ud" not in content.lower():  # the escape of half a character
            raise
        return decoder.decode(encode(loads(content)))
