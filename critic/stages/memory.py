"""The memory and the GPUs that a stage took."""

import os
import shutil
import subprocess
import threading
from pathlib import Path
from typing import Any

EVERY = 5.0
"""Seconds between two looks at memory."""


class PeakMemory:
    """The most memory, in MiB, that this process and those that it started had at once, and by how much more of each
    GPU was in use than when it began: looked at every few seconds. A server elsewhere is not seen."""

    def __init__(self) -> None:
        self.host, self._gpus = 0, list[tuple[str, int, int]]()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "PeakMemory":
        self._gpus = [(name, used, used) for name, used in _gpus()]
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()
        self._look()

    def facts(self) -> dict[str, Any]:
        gpus = [{"name": name, "mib": most - first} for name, first, most in self._gpus if most > first]
        return {"peak_memory_mib": self.host, **({"gpus": gpus} if gpus else {})}

    def _watch(self) -> None:
        self._look()
        while not self._end.wait(EVERY):
            self._look()

    def _look(self) -> None:
        self.host = max(self.host, _resident())
        if self._gpus:
            now = _gpus()
            self._gpus = [
                (name, first, max(most, used)) for (name, first, most), (_, used) in zip(self._gpus, now, strict=False)
            ]


def _resident() -> int:
    """MiB of memory that this process and its descendants hold; 0 where /proc does not say."""
    parents, pages = dict[int, int](), dict[int, int]()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            # The name before the last bracket may hold anything.
            fields = stat.read_text("utf-8", "replace").rpartition(")")[2].split()
        except OSError:
            continue  # it has ended
        number = int(stat.parent.name)
        parents[number], pages[number] = int(fields[1]), int(fields[21])

    def mine(number: int) -> bool:
        while number > 1 and number != os.getpid():
            number = parents.get(number, 0)
        return number == os.getpid()

    return sum(held for number, held in pages.items() if mine(number)) * os.sysconf("SC_PAGESIZE") // 2**20


def _gpus() -> list[tuple[str, int]]:
    """Name and MiB in use of each GPU, as nvidia-smi tells."""
    if shutil.which("nvidia-smi") is None:
        return []
    words = ["nvidia-smi", "--query-gpu=name,memory.used", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=30, check=True)
        rows = [line.rpartition(",") for line in done.stdout.splitlines()]
        return [(name.strip(), int(used)) for name, _, used in rows]
    except (OSError, ValueError, subprocess.SubprocessError):
        return []
