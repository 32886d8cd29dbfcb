"""Measure the machine before training: free cores, the speed of bf16, memory, and the abilities of its GPU."""

import ctypes
import os
import timeit
from pathlib import Path
from typing import Literal

import psutil
import torch

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -2, -4, -8


def is_first() -> bool:
    """Return True in the first of a launcher's processes, and without a launcher."""
    return os.environ.get("RANK", "0") == "0"


def keep_memory() -> bool:
    """Let glibc keep freed memory instead of giving it back to the kernel. Return False without such a glibc.

    A step frees and takes gigabytes, and each page that comes anew from the kernel is a fault and is filled with
    zeros. Thresholds alone do not help: blocks of more than 32 MiB are always mapped anew. One arena serves all
    threads, as autograd's own thread frees what the main one takes. It takes some steps until blocks are reused.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    settings = {_M_MMAP_MAX: 0, _M_TRIM_THRESHOLD: 2**31 - 1, _M_TOP_PAD: 2**26, _M_ARENA_MAX: 1}
    return mallopt is not None and all(mallopt(name, value) == 1 for name, value in settings.items())


def trim_memory(usual: int) -> int:
    """Give free pages back if the process has grown too large, and return its usual size in bytes.

    Too large is half as much again as `usual` bytes (0: not known yet), or any size if the machine has less than half
    of `usual` left. Batches of ever new sizes leave holes that no block fits in; the process would grow to more than
    twice what a step needs.
    """
    now: int = psutil.Process().memory_info().rss
    release = getattr(ctypes.CDLL(None), "malloc_trim", None)
    little_left = psutil.virtual_memory().available < usual / 2
    if usual and release is not None and (now > 1.5 * usual or little_left):
        release(0)
    return usual or now


def count_allowed_cores(limits: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """Return how many cores this process may use, by its affinity and its container's quota."""
    cores = len(os.sched_getaffinity(0))
    try:
        quota, period = limits.read_text("utf-8").split()
        return max(1, min(cores, round(int(quota) / int(period))))
    except (OSError, ValueError):
        # No cgroup, or no quota ("max").
        return cores


def count_free_cores(seconds: float = 3.0) -> int:
    """Return how many cores this process may use and nobody used for `seconds`; at least 1.

    OpenMP's threads wait for one another, so that two are slower than one as soon as one of them shares its core.
    """
    busy: list[float] = psutil.cpu_percent(seconds, percpu=True)
    free = sum(1.0 - busy[core] / 100.0 for core in os.sched_getaffinity(0) if core < len(busy))
    return max(1, min(count_allowed_cores(), round(free)))


def choose_threads() -> int:
    """Return the number of threads of a process: the free cores, with a line if some are in use.

    Several processes share all cores, since each would take the start of the others for a load.
    """
    world, allowed = int(os.environ.get("WORLD_SIZE", "1")), count_allowed_cores()
    if world > 1:
        return max(1, allowed // world)
    free = count_free_cores()
    if free < allowed:
        print(f"{free} of {allowed} cores: the others are in use (--threads)", flush=True)
    return free


def time_matmul(dtype: torch.dtype, tokens: int = 64) -> float:
    """Return the seconds of the fastest of five matmuls of the size of a small model's layer.

    They are of few `tokens`, as emulated bf16 can take 150 times as long.
    """
    left, right = torch.ones(tokens, 1024, dtype=dtype), torch.ones(1024, 2048, dtype=dtype)
    return min(timeit.repeat(lambda: left @ right, repeat=6, number=1)[1:])


def choose_precision() -> tuple[Literal["bf16", "fp32"], str]:
    """Return bf16 if it is faster than fp32 (on a GPU: if it has bf16), else fp32, and the reason in words."""
    if torch.cuda.is_available():
        emulates = emulates_bf16()
        return ("fp32", emulates) if emulates else ("bf16", "the GPU has it")
    fp32, bf16 = time_matmul(torch.float32), time_matmul(torch.bfloat16)
    why = f"a matmul takes {1000 * bf16:.1f} ms in bf16, {1000 * fp32:.1f} ms in fp32"
    # Less than this gain is not worth its rounding.
    return ("bf16" if fp32 / bf16 >= 1.3 else "fp32"), why


def emulates_bf16() -> str | None:
    """Return a sentence about a GPU that computes bf16 by fp32, or None for one that has bf16.

    Those below compute capability 8.0 emulate it, and PyTorch counts them as having it.
    """
    if torch.cuda.is_bf16_supported(including_emulation=False):
        return None
    major, minor = torch.cuda.get_device_capability()
    return f"{torch.cuda.get_device_name()} (compute capability {major}.{minor}, below 8.0) only emulates bf16"


def describe_device(bf16: bool) -> str | None:
    """Return a warning about the device that trains, in `bf16` or not, or None for a GPU that has what is needed."""
    if torch.cuda.is_available():
        emulates = emulates_bf16() if bf16 else None
        return emulates and f"{emulates}, which is slow: fp32 may be faster"
    built = f"for CUDA {torch.version.cuda}" if torch.version.cuda else "without CUDA"
    return (
        f"no GPU is seen by PyTorch, built {built} (nvidia-smi shows the driver's); training on the CPU, which takes "
        "tiny recipes minutes and large bases days"
    )
