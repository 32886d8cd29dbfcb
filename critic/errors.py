"""Errors (a caller's mistake, a failed call), functions that make foreign text safe to print and store, and hashes."""

import hashlib
import json
import os
import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from importlib.metadata import distribution
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

# Only for type checking: records.py does not import this module, and this module needs only a type from it.
if TYPE_CHECKING:
    from critic.records import Failure

T = TypeVar("T")

SECRET_NAME = re.compile(r"key|token|secret|passw|signature|credential|auth|^(?:sig|pwd)$", re.IGNORECASE)
"""Matches the names of URL parameters whose values are secrets."""

MASK = "***"

_MASKS = msgspec.toml.decode(Path(__file__).with_name("masks.toml").read_bytes(), type=dict[str, list[tuple[str, str]]])
_SECRETS = [(re.compile(secret), public) for secret, public in _MASKS["masks"]]


def mask(text: str, secrets: Iterable[str] = ()) -> str:
    """Return `text` with passwords and API keys removed or replaced by "***".

    Passwords and keys in URLs, keys in known formats, and the given `secrets` are recognized. Given secrets of five or
    fewer characters stay, because local servers use keys such as "none".

    >>> mask("no route to http://me:pw@host/v1?key=k1&n=2 (Bearer abcd1234)")
    'no route to http://host/v1?key=***&n=2 (Bearer ***)'
    >>> mask("http://me:p@ss@h/v1 is down"), mask("at /v1?a=1&api-key=k&token=t")
    ('http://h/v1 is down', 'at /v1?a=1&api-key=***&token=***')
    >>> mask("Authorization: Bearer abcdefg"), mask("Incorrect API key provided: abc-1.")
    ('Authorization: Bearer ***', 'Incorrect API key provided: ***')
    >>> mask("key sk-ab*****yz, gsk_0123456789, AIzaSyA0123456")
    'key ***, ***, ***'

    Ordinary words stay:

    >>> mask("Bearer authentication needs --api-key or OPENAI_API_KEY; max_tokens: 300, prompt tokens: 5; a sk-y")
    'Bearer authentication needs --api-key or OPENAI_API_KEY; max_tokens: 300, prompt tokens: 5; a sk-y'
    """
    # Local servers are given keys such as "EMPTY" and "none", which occur in ordinary messages.
    for secret in secrets:
        text = text.replace(secret, MASK) if len(secret) > 5 else text
    for pattern, public in _SECRETS:
        text = pattern.sub(public, text)
    return text


class UsageError(Exception):
    """A mistake of the caller. The message is one line that says what was expected. The program exits with code 2."""


class Hopeless(UsageError):
    """A server that fails until somebody acts: the account is empty, or the API key is wrong."""


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return "did you mean X? ", where X is the most similar of `names`, or "" if none is similar.

    >>> did_you_mean("jugde", ["judge", "score"])
    'did you mean judge? '
    """
    alike = get_close_matches(name, list(names), n=1)
    return f"did you mean {alike[0]}? " if alike else ""


class Transient(Exception):
    """A failed call that may succeed if repeated, such as a timeout, a reset connection, or status 429 or 5xx.

    `retry_after`: the wait in seconds that the server requests, or None.
    `tries`: number of tries so far.
    """

    failure: "Failure" = "server_error"

    def __init__(self, message: str, retry_after: float | None = None, tries: int = 1) -> None:
        super().__init__(message)
        self.retry_after, self.tries = retry_after, tries


class Refused(Exception):
    """A call that the server refuses however often it is repeated, for instance with status 400.

    `failure`: the short name of the reason.
    `fields`: names of the optional request fields that the server rejects.
    """

    tries = 1

    def __init__(self, failure: "Failure", message: str, fields: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.failure, self.fields = failure, fields

    def __reduce__(self) -> tuple[Any, ...]:
        # Ray pickles errors between processes. By default, unpickling would call __init__ with only the message.
        return Refused, (self.failure, str(self))


def notify(text: object) -> None:
    """Print a line to standard error, separate from the results on standard output."""
    print(text, file=sys.stderr)


def install_extra(extra: str) -> str:
    """Return the pip command that adds an extra (such as "serve") to this installation of critic.

    critic is on no package index, so the command names the clone that it runs from, or the folder, wheel or repository
    that pip installed it from (PEP 610).
    """
    clone = Path(__file__).parents[1]
    if (clone / "pyproject.toml").is_file():
        return f"pip install -e {shlex.quote(f'{os.path.relpath(clone)}[{extra}]')}"
    place = json.loads(distribution("critic").read_text("direct_url.json") or "{}")
    at = f" @ {'git+' * ('vcs_info' in place)}{place['url']}" if place else ""
    return f"pip install {shlex.quote(f'critic[{extra}]{at}')}"


LONGEST_QUOTE = 200
"""Most characters of a cell, a line or a value that an error message quotes."""


def quoted(value: object) -> str:
    """Return a value as error messages quote it: on one line.

    If it is longer than LONGEST_QUOTE characters, it is cut and followed by its length.

    >>> quoted("N/A"), quoted(3.5)
    ("'N/A'", '3.5')
    """
    text = value if isinstance(value, str) else repr(value)
    if len(text) <= LONGEST_QUOTE:
        return repr(value)
    beginning = repr(text[:LONGEST_QUOTE]) if isinstance(value, str) else text[:LONGEST_QUOTE]
    return f"{beginning}… ({len(text)} characters)"


def shorten_line(text: str) -> str:
    """Return a text on one line. If it is longer than LONGEST_QUOTE characters, cut its middle.

    >>> shorten_line("not\\n a number")
    'not a number'
    """
    line = " ".join(text.split())
    return line if len(line) <= LONGEST_QUOTE else f"{line[: LONGEST_QUOTE - 60]}…{line[-59:]}"


def one_line(error: BaseException) -> str:
    """Return an error's type and message, without secrets, on one line of at most 300 characters.

    >>> one_line(ValueError("http://me:pw@host\\nis down"))
    'ValueError: http://host is down'
    """
    return mask(" ".join(f"{type(error).__name__}: {error}".split()))[:300]


@contextmanager
def report_write_errors(path: Path) -> Iterator[None]:
    """Turn an OSError raised in the body (full disk, missing permission) into a UsageError that names `path`."""
    try:
        yield
    except OSError as error:
        problem = f"cannot be written: {error.strerror or error}"
        raise UsageError(f"{path}: {problem}; once it can be, run the same command again") from None


@contextmanager
def refusing(path: Path, problem: str) -> Iterator[None]:
    """Turn any error raised in the body into a UsageError with the message `path: problem: …`.

    A UsageError passes unchanged. Use this to read files of other programs: a damaged file can raise errors of many
    types.
    """
    try:
        yield
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(f"{path}: {problem}: {one_line(error)}") from None


@contextmanager
def located(place: object, *kinds: type[Exception]) -> Iterator[None]:
    """Turn errors of the types `kinds` raised in the body into a UsageError with the message `place: …`.

    The message of another library's error is put on one line and shortened if it is long.

    >>> with located("rows.jsonl:7", ValueError):
    ...     int("seven")
    Traceback (most recent call last):
    critic.errors.UsageError: rows.jsonl:7: invalid literal for int() with base 10: 'seven'
    """
    try:
        yield
    except kinds as error:
        raise UsageError(f"{place}: {error if isinstance(error, UsageError) else shorten_line(str(error))}") from None


def replace_surrogates(value: Any) -> Any:
    """Return a JSON value without lone surrogates, which UTF-8 cannot encode; each becomes U+FFFD.

    Surrogates that stand for the undecodable bytes of a file name (surrogateescape) are decoded as UTF-8 first.
    """
    if isinstance(value, str):
        try:
            return value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        except UnicodeEncodeError:
            # UTF-16 joins a pair of surrogates to one character, and replaces a lone one.
            return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    if isinstance(value, dict):
        return {replace_surrogates(name): replace_surrogates(item) for name, item in value.items()}
    return [replace_surrogates(item) for item in value] if isinstance(value, list | tuple) else value


def encode(record: Any) -> bytes:
    """Encode a record as JSON, replacing lone surrogates. Raises RecursionError if the record is nested too deeply."""
    # Nearly all records have no surrogates, so they are searched for only if encoding fails.
    try:
        return msgspec.json.encode(record)
    except UnicodeEncodeError:
        return msgspec.json.encode(replace_surrogates(msgspec.to_builtins(record)))


def hash_value(value: Any, digits: int = 64) -> str:
    """Return the first `digits` hex digits of the SHA-256 of a text, of bytes, or of another value as JSON (`encode`).

    >>> hash_value("abc", 8), hash_value(b"abc", 8), hash_value(["abc"], 8)
    ('ba7816bf', 'ba7816bf', '02f393ea')
    """
    content = value.encode() if isinstance(value, str) else value if isinstance(value, bytes) else encode(value)
    return hashlib.sha256(content).hexdigest()[:digits]


def loads(content: bytes | str, *, unique: bool = False) -> Any:
    """Parse JSON that another program wrote; accept NaN and replace lone surrogates.

    Set `unique` to reject repeated keys. Raises ValueError if the text is not JSON, is nested too deeply, or repeats a
    key although `unique` is set.

    >>> loads('{"score": 7, "score": 8}', unique=True)
    Traceback (most recent call last):
        ...
    ValueError: the key 'score' is there twice; keep the one that is meant
    """
    text = content if isinstance(content, str) else content.decode("utf-8", "replace")
    try:
        return replace_surrogates(json.loads(text, object_pairs_hook=_build_unique if unique else None))
    except RecursionError:
        raise ValueError("nested too deep") from None


def _build_unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Build a dict from the (key, value) pairs of a JSON object. Raises ValueError if a key is repeated."""
    table = dict(pairs)
    if len(table) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {quoted(twice)} is there twice; keep the one that is meant")
    return table


def decode(content: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    """Decode JSON with `decoder`, replacing lone surrogates.

    Raises ValueError if the content does not fit the decoder's type, or is nested too deeply.
    """
    try:
        return decoder.decode(content)
    except RecursionError:
        raise ValueError("nested too deep") from None
    except msgspec.DecodeError:
        # Only the escape of a surrogate is worth a second, slower reading.
        if b"\\ud" not in content.lower():
            raise
        return decoder.decode(encode(loads(content)))
