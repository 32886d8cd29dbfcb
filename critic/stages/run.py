"""What the stages that ask a model share: where replies come from, work side by side, a file that grows."""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from critic import jsonl
from critic.backends import Backend
from critic.backends.openai import OpenAIBackend
from critic.backends.scripted import from_file
from critic.backends.vllm import VllmBackend
from critic.errors import UsageError


def open_backend(
    option: str, value: str, connect: Callable[[str], OpenAIBackend], model: str | None, vllm_options: list[str]
) -> Backend:
    """What `option` names: a server (URL or URL#MODEL), a checkpoint folder, or a file of scripted replies.

    Raises UsageError for anything else.
    """
    url, _, named = value.partition("#")
    if "://" in value:
        backend = connect(url)
        backend.choose(named or model)
        return backend
    path = Path(value)
    if path.is_dir():
        return VllmBackend(path, vllm_options)
    if path.is_file():
        return from_file(path)
    raise UsageError(f"{option} {value}: expected a checkpoint folder, a server's URL, URL#MODEL, or a file of replies")


async def side_by_side(work: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run side by side; the first error ends the others."""
    tasks = [asyncio.create_task(one) for one in work]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


class Writer:
    """Appends records to `out`, none behind a line that could not be written whole."""

    def __init__(self, out: Path) -> None:
        self._out, self._broken = out, False
        with writing(out):
            self._file = jsonl.Appender(out)

    def append(self, record: Any) -> None:
        if self._broken:
            return
        self._broken = True
        with writing(self._out):
            self._file.append(record)
        self._broken = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            with writing(self._out):
                self._file.__exit__(kind, error, trace)
        except UsageError:
            if kind is None:  # else the first error says more
                raise


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Raises UsageError for what the system says against writing: a full disk, a missing right."""
    try:
        yield
    except OSError as error:
        problem = error.strerror or str(error)
        raise UsageError(f"{path}: cannot be written: {problem}; then run the same command again to go on") from None


def listed(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.most_common())
