"""The two families of errors: the caller's mistake, and what is worth another try."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the records know nothing of errors, and errors no more of records than a name
    from critic.records import Failure


class UsageError(Exception):
    """The caller's mistake: one line that says what was expected. Ends a program with exit code 2."""


class Transient(Exception):
    """A call that may succeed if repeated: time-outs, resets, 429 and 5xx. `retry_after` is the server's own wish in
    seconds, if it named one, `tries` how often it was made."""

    def __init__(self, message: str, retry_after: float | None = None, tries: int = 1) -> None:
        super().__init__(message)
        self.retry_after, self.tries = retry_after, tries


class Refused(Exception):
    """A call the server will refuse however often it is repeated (4xx); `failure` is its short name."""

    def __init__(self, failure: "Failure", message: str) -> None:
        super().__init__(message)
        self.failure = failure


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
