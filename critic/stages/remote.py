"""Paths at object stores (s3://, gs://, any of fsspec's) on the command line.

A file that grows line by line cannot grow there, so a command works on local copies: what it reads is fetched first,
what it writes is sent when it is whole. Until then it is kept here, and the same command on this machine goes on.
Copies of what was read go when the command ends, or with the last of those that run at the same time: they share them.
What a killed one left serves the next.
"""

import fcntl
import hashlib
import os
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from critic import jsonl
from critic.errors import UsageError, one_line

OTHERS = ("http", "https", "ray", "data")
"""What begins like a path at a store, and names a server or is an image itself."""

_FETCHED = 0
"""When a file of an output was last written, where it is as it was fetched."""

_WORD = re.compile(r"(?P<before>(?:[\w-]+=)?)(?P<url>(?P<scheme>[a-z][a-z0-9+]*)://[^:#]+)(?P<after>.*)", re.DOTALL)
"""An argument with a path in it: NAME=PATH, PATH:COLUMN."""


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "critic"


@contextmanager
def _copies() -> Iterator[None]:
    """While copies of inputs are in use. The system lets go of the lock of a command that is killed."""
    _cache().mkdir(parents=True, exist_ok=True)
    with (_cache() / "in.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        try:
            yield
        finally:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                fcntl.flock(lock, fcntl.LOCK_UN)  # also for processes that were forked and are not gone yet
            else:
                shutil.rmtree(_cache() / "in", ignore_errors=True)


class AtStore:
    """Raises UsageError where fsspec or what it needs for the store is not installed, and for what the store says."""

    def __init__(self, url: str) -> None:
        try:
            import fsspec  # noqa: PLC0415 - not part of a plain installation

            self.files, self.path = fsspec.core.url_to_fs(url)
        except (ImportError, ValueError) as error:
            needs = "pip install 'critic[remote]', with s3fs for s3:// and gcsfs for gs://"
            raise UsageError(f"{url}: {one_line(error)}; {needs}") from None
        self.url = url.rstrip("/")
        self.folder = _cache() / "out" / hashlib.sha256(self.url.encode()).hexdigest()[:16]
        self.local = self.folder / self.url.rpartition("/")[2]

    @contextmanager
    def _speaking(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # each store's library has errors of its own
            raise UsageError(f"{self.url}: {one_line(error)}") from None

    def fetched(self) -> list[Path]:
        """Local copies of the file, of the folder with all in it, or of what a pattern (`*`) fits; a file that did not
        change is not fetched again."""
        with self._speaking():
            found = sorted(self.files.glob(self.path)) if "*" in self.path else [self.path]
            if not found or not self.files.exists(found[0]):
                raise FileNotFoundError("no such file")
            return [self._copied(path) for path in found]

    def _copied(self, path: str) -> Path:
        folder = self.files.isdir(path)
        # A folder is fetched anew each time, and not under the hands of another command.
        key = hashlib.sha256(f"{path} {os.getpid()}".encode()).hexdigest() if folder else self.files.ukey(path)
        local = _cache() / "in" / str(key)[:16] / path.rstrip("/").rpartition("/")[2]
        if folder:
            shutil.rmtree(local, ignore_errors=True)
            self.files.get(path.rstrip("/") + "/", f"{local}/", recursive=True)
            return local
        if not local.is_file():
            self._get(path, local)
        self._get_sidecar(path, local)
        return local

    def _get_sidecar(self, path: str, local: Path) -> None:
        if self.files.exists(said := f"{path}.run.json"):
            self._get(said, jsonl.sidecar(local))
        else:
            jsonl.sidecar(local).unlink(missing_ok=True)

    def _get(self, path: str, local: Path) -> None:
        local.parent.mkdir(parents=True, exist_ok=True)
        partial = local.with_name(f"{local.name}.{os.getpid()}")
        try:
            self.files.get_file(path, str(partial))
            partial.replace(local)
        finally:
            partial.unlink(missing_ok=True)

    def begin(self) -> Path:
        """Where the output is made: what is left of a run that did not end, or what is there, which may be resumed."""
        with self._speaking():
            if not self._made():
                # All or nothing: a part of it would be taken for what a run left.
                fetched = self.folder.with_name(f"{self.folder.name}.{os.getpid()}")
                if self.files.isfile(self.path):
                    self._fetch(fetched)
                shutil.rmtree(self.folder, ignore_errors=True)
                if fetched.is_dir():
                    fetched.replace(self.folder)
        return self.local

    def _fetch(self, folder: Path) -> None:
        """Fetch the output's file, those of a panel's members that its sidecar names, and their sidecars. Another file
        whose name is like a member's is none of ours."""
        whole, beside = folder / self.local.name, self.path.rpartition("/")[0]
        self._get(self.path, whole)
        self._get_sidecar(self.path, whole)
        for name in (Path(one["file"]).name for one in jsonl.facts(whole).get("members") or []):
            if self.files.isfile(path := f"{beside}/{name}"):
                self._get(path, folder / name)
                self._get_sidecar(path, folder / name)
        for file in folder.iterdir():
            os.utime(file, (_FETCHED, _FETCHED))

    def _made(self) -> list[Path]:
        """The files in the folder that are not as they were fetched."""
        files = (file for file in self.folder.rglob("*") if file.is_file() and not file.name.endswith(".partial"))
        return [file for file in files if file.stat().st_mtime != _FETCHED]

    def send(self) -> None:
        """Send what was made, what says that it is whole last, and not beside what says it of a file before."""
        made, said = self._made(), f"{self.path}.run.json"
        with self._speaking():
            if {self.local, jsonl.sidecar(self.local)} & {*made} and self.files.exists(said):
                self.files.rm_file(said)
            for file in sorted(made, key=lambda file: (file.name.endswith(".run.json"), file)):
                to = f"{self.path.rstrip('/').rpartition('/')[0]}/{file.relative_to(self.folder)}"
                self.files.makedirs(to.rpartition("/")[0], exist_ok=True)
                self.files.put_file(str(file), to)
        shutil.rmtree(self.folder, ignore_errors=True)


@contextmanager
def local_paths(words: Sequence[str]) -> Iterator[tuple[list[str], list[AtStore]]]:
    """A command's arguments with local paths for those at stores, and the stores of what it writes (`--out`), to which
    the caller has to `send` it."""
    given = [found if (found := _WORD.fullmatch(word)) and found["scheme"] not in OTHERS else None for word in words]
    if not any(given):
        yield list(words), []
        return
    made, outputs = list[str](), list[AtStore]()
    with _copies():
        for number, (word, found) in enumerate(zip(words, given, strict=True)):
            if found is None:
                made.append(word)
                continue
            store = AtStore(found["url"])
            if found["before"] == "--out=" or (number and words[number - 1] == "--out"):
                outputs.append(store)
                paths = [store.begin()]
            else:
                paths = store.fetched()
            made += [f"{found['before']}{path}{found['after']}" for path in paths]
        try:
            yield made, outputs
        except BaseException:
            for store in outputs:
                if store.folder.is_dir():
                    said = f"{store.url}: nothing was sent; what there is stays in {store.folder}"
                    print(f"{said}, and the same command here goes on with it", file=sys.stderr)
            raise
