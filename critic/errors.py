"""The two families of errors, the caller's mistake and what is worth another try; text from outside made sound."""

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

if TYPE_CHECKING:  # the records know nothing of errors, and errors no more of records than a name
    from critic.records import Failure

T = TypeVar("T")


class UsageError(Exception):
    """The caller's mistake: one line that says what was expected. Ends a program with exit code 2."""


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
    """A call the server will refuse however often it is repeated (4xx); `failure` is its short name."""

    tries = 1

    def __init__(self, failure: "Failure", message: str) -> None:
        super().__init__(message)
        self.failure = failure

    def __reduce__(self) -> tuple[Any, ...]:
        return Refused, (self.failure, str(self))


def one_line(error: BaseException) -> str:
    """An error's kind and words on one line of at most 300 characters."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Raises UsageError for what the system says against writing: a full disk, a missing right."""
    try:
        yield
    except OSError as error:
        problem = f"cannot be written: {error.strerror or error}"
        raise UsageError(f"{path}: {problem}; once it can be, run the same command again") from None


def whole(value: Any) -> Any:
    """A JSON value without halves of characters (lone surrogates), which no file can hold: U+FFFD stands for each. What
    stands for a file name's bytes outside the locale's encoding (surrogateescape) is read as UTF-8."""
    if isinstance(value, str):
        try:
            return value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        except UnicodeEncodeError:
            return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    if isinstance(value, dict):
        return {whole(name): whole(item) for name, item in value.items()}
    return [whole(item) for item in value] if isinstance(value, list | tuple) else value


def encode(record: Any) -> bytes:
    """A record as JSON, its texts `whole`. Raises RecursionError."""
    try:
        return msgspec.json.encode(record)
    except UnicodeEncodeError:
        return msgspec.json.encode(whole(msgspec.to_builtins(record)))


def loads(content: bytes | str) -> Any:
    """JSON of another program, its texts `whole`; NaN is taken. Raises ValueError for what is no JSON, and for what is
    nested too deep."""
    text = content if isinstance(content, str) else content.decode("utf-8", "replace")
    try:
        return whole(json.loads(text))
    except RecursionError:
        raise ValueError("nested too deep") from None


def decode(content: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    """What the decoder reads, its texts `whole`. Raises ValueError as `loads` does."""
    try:
        return decoder.decode(content)
    except RecursionError:
        raise ValueError("nested too deep") from None
    except msgspec.DecodeError:
        if b"\\ud" not in content.lower():  # the escape of half a character
            raise
        return decoder.decode(encode(loads(content)))
