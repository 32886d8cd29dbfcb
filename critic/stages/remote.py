"""Inputs at object stores (s3://, gs://, any of fsspec's) on the command line: copied before a command reads them."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from critic.errors import UsageError, one_line

OTHERS = ("http", "https", "ray", "data")
"""What begins like a path at a store, and names a server or is an image itself."""

_WORD = re.compile(r"(?P<before>(?:[\w-]+=)?)(?P<url>(?P<scheme>[a-z][a-z0-9+]*)://[^:#]+)(?P<after>.*)", re.DOTALL)
"""An argument with a path in it: NAME=PATH, PATH:COLUMN."""


@contextmanager
def local_paths(words: Sequence[str]) -> Iterator[list[str]]:
    """A command's arguments with paths of copies for those at stores; the copies go when the command ends. Raises
    UsageError for an output at a store, where fsspec or what it needs for the store is not installed, and for what the
    store says."""
    matches = [_at_store(word) for word in words]
    if not any(matches):
        yield list(words)
        return
    local_words = list[str]()
    with TemporaryDirectory(prefix="critic-") as folder:
        for number, (word, match) in enumerate(zip(words, matches, strict=True)):
            if match is None:
                local_words.append(word)
                continue
            if match["before"] == "--out=" or (number and words[number - 1] == "--out"):
                raise UsageError(f"--out {match['url']}: outputs are local files; copy it there when it is complete")
            copies = _copied(match["url"], Path(folder) / str(number))
            local_words += [f"{match['before']}{path}{match['after']}" for path in copies]
        yield local_words


def _at_store(word: str) -> re.Match[str] | None:
    match = _WORD.fullmatch(word)
    return None if match is None or match["scheme"] in OTHERS else match


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
