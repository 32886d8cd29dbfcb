"""Inputs at object stores (s3://, gs://, any of fsspec's) on the command line: copied before a command reads them."""

import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from critic.errors import UsageError, one_line

_AT_STORE = re.compile(r"((?:[\w-]+=)?)((?!(?:https?|ray|data):)[a-z][a-z0-9+]*://[^:#]+)(.*)", re.DOTALL)
"""An argument with a path in it, NAME=PATH or PATH:COLUMN; what names a server, or is an image itself, is none."""


@contextmanager
def local_paths(words: Sequence[str]) -> Iterator[list[str]]:
    """A command's arguments with paths of copies for those at stores; the copies go when the command ends. Raises
    UsageError for an output at a store, where fsspec or what it needs for the store is not installed, and for what the
    store says."""
    local_words = list[str]()
    with ExitStack() as copies_end:
        for number, word in enumerate(words):
            match = _AT_STORE.fullmatch(word)
            if match is None:
                local_words.append(word)
                continue
            before, url, after = match.groups()
            if before == "--out=" or words[number - 1 : number] == ["--out"]:
                raise UsageError(f"--out {url}: outputs are local files; copy it there when it is complete")
            folder = copies_end.enter_context(TemporaryDirectory(prefix="critic-"))
            local_words += [f"{before}{path}{after}" for path in _copied(url, Path(folder))]
        yield local_words


def _copied(url: str, folder: Path) -> list[Path]:
    """Copies of a file with its sidecar, of a folder with all in it, or of what a pattern (`*`) fits."""
    try:
        import fsspec  # noqa: PLC0415 - not part of a plain installation

        store, path = fsspec.core.url_to_fs(url)
    except (ImportError, ValueError) as error:
        needs = "pip install 'critic[remote]', with s3fs for s3:// and gcsfs for gs://"
        raise UsageError(f"{url}: {one_line(error)}; {needs}") from None
    try:
        names = sorted(store.glob(path.rstrip("/")))
        for number, name in enumerate(names):
            copy = f"{folder}/{number}/"
            store.get(name, copy, recursive=True)
            if store.exists(sidecar := f"{name}.run.json"):
                store.get(sidecar, copy)
    except Exception as error:  # each store's library has errors of its own
        raise UsageError(f"{url}: {one_line(error)}") from None
    if not names:
        raise UsageError(f"{url}: no such file")
    return [folder / str(number) / Path(name).name for number, name in enumerate(names)]
