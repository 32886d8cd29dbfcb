"""Work on what is in memory already, in as many processes as there are cores: nothing is copied into them."""

import ctypes
import gc
import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Any

MANY_ROWS = 50_000
"""From so many rows on, work takes longer than a process takes to start."""

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_LARGE, _HUGE = 1 << 20, 1 << 25


def give_back(least: int = _LARGE) -> None:
    """Let glibc, where there is one, give every freed array of `least` bytes and more back to the kernel: else it keeps
    what was freed below others, each forked process holds that as well, and it is more than what is in use."""
    if (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)) is not None:
        mallopt(_M_MMAP_THRESHOLD, least)
        mallopt(_M_TRIM_THRESHOLD, 2 * least)


_TASKS: list[Callable[[], Any]] = []
"""What forked processes find: functions that could not be sent to them."""


def in_parallel(
    tasks: Sequence[Callable[[], Any]], got_on: Callable[[], object] = lambda: None, *, apart: bool = True
) -> list[Any]:
    """What the tasks give, in their order. They run in forked processes where these are to be had and `apart` is set,
    one to a core, each with one thread. `got_on` is called whenever one is done; the first error is raised."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if not apart or cores < 2 or "fork" not in multiprocessing.get_all_start_methods():
        if not apart:
            give_back(_HUGE)  # few rows: new pages for each block of resamples would take as long as the block itself
        found = []
        for task in tasks:
            found.append(task())
            got_on()
        return found
    _TASKS[:] = tasks
    gc.freeze()  # or collecting in a child would touch, and so copy, every object of the parent
    try:
        with ProcessPoolExecutor(min(cores, len(tasks)), multiprocessing.get_context("fork")) as pool:
            futures = [pool.submit(_do, number) for number in range(len(tasks))]
            for future in as_completed(futures):
                future.result()
                got_on()
            return [future.result() for future in futures]
    finally:
        gc.unfreeze()
        _TASKS.clear()


def _do(number: int) -> Any:
    from threadpoolctl import threadpool_limits  # noqa: PLC0415 - for these processes only

    with threadpool_limits(1):
        return _TASKS[number]()
