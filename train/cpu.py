"""Measure the machine before training: free cores, the speed of bf16, memory, and the abilities of its GPU."""

import ctypes
import os
import timeit
from typing import Literal

import psutil
import torch
from joblib import cpu_count

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -2, -4, -8


def is_first() -> bool:
    """Return True in the launcher's first process (rank 0), and without a launcher."""
    return os.environ.get("RANK", "0") == "0"


def say(text: str | None) -> None:
    """Print a line in the first process. None and "" are nothing to say."""
    if text and is_first():
        print(text, flush=True)


def keep_memory() -> bool:
    """Make glibc keep freed memory instead of returning it to the kernel. Return False if that is not possible.

    Each step frees and allocates gigabytes, and every new page from the kernel costs a fault and is zeroed. Thresholds
    alone do not help, because blocks above 32 MiB are always mapped anew. All threads share one arena, because
    autograd's thread frees what the main thread allocates. Blocks are reused only after some steps.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    settings = {_M_MMAP_MAX: 0, _M_TRIM_THRESHOLD: 2**31 - 1, _M_TOP_PAD: 2**26, _M_ARENA_MAX: 1}
    return mallopt is not None and all(mallopt(name, value) == 1 for name, value in settings.items())


def trim_memory(usual: int) -> int:
    """Give free memory back to the kernel if the process has grown too large, and return its usual size in bytes.

    `usual`: the size that the first call returned, or 0 at the first call, which measures it. The process is too large
    above 1.5 times `usual`, or at any size if the machine has less than half of `usual` available. Without this,
    batches of varying size fragment the memory, and the process grows to more than twice what a step needs.
    """
    now: int = psutil.Process().memory_info().rss
    release = getattr(ctypes.CDLL(None), "malloc_trim", None)
    little_left = psutil.virtual_memory().available < usual / 2
    if usual and release is not None and (now > 1.5 * usual or little_left):
        release(0)
    return usual or now


def count_free_cores(seconds: float = 3.0) -> int:
    """Return how many of the allowed cores were idle for `seconds`, at least 1.

    OpenMP's threads wait for each other, so two are slower than one as soon as one of them shares its core.
    """
    busy: list[float] = psutil.cpu_percent(seconds, percpu=True)
    free = sum(1.0 - busy[core] / 100.0 for core in os.sched_getaffinity(0) if core < len(busy))
    allowed: int = cpu_count()
    return max(1, min(allowed, round(free)))


def choose_threads() -> int:
    """Return the number of threads for this process: the free cores. Print a line if some cores are in use.

    Several processes divide all allowed cores evenly, because each would count the others' start-up as load.
    """
    world = int(os.environ.get("WORLD_SIZE", "1"))
    allowed: int = cpu_count()
    if world > 1:
        return max(1, allowed // world)
    free = count_free_cores()
    if free < allowed:
        print(f"{free} of {allowed} cores: the others are in use (--threads)", flush=True)
    return free


def time_matmul(dtype: torch.dtype, tokens: int = 64) -> float:
    """Return the seconds of the fastest of five matmuls with the size of a small model's layer.

    `tokens` is small because emulated bf16 can be 150 times as slow.
    """
    left, right = torch.ones(tokens, 1024, dtype=dtype), torch.ones(1024, 2048, dtype=dtype)
    return min(timeit.repeat(lambda: left @ right, repeat=6, number=1)[1:])


def choose_precision() -> tuple[Literal["bf16", "fp32"], str]:
    """Return "bf16" or "fp32", and a clause with the reason.

    On a CPU, bf16 is chosen if a matmul is at least 1.3 times as fast as in fp32; on a GPU, if it supports bf16.
    """
    if torch.cuda.is_available():
        emulates = emulates_bf16()
        return ("fp32", emulates) if emulates else ("bf16", "the GPU has it")
    fp32, bf16 = time_matmul(torch.float32), time_matmul(torch.bfloat16)
    why = f"a matmul takes {1000 * bf16:.1f} ms in bf16, {1000 * fp32:.1f} ms in fp32"
    # Less than this gain is not worth its rounding.
    return ("bf16" if fp32 / bf16 >= 1.3 else "fp32"), why


def emulates_bf16() -> str | None:
    """Return a warning for a GPU that only emulates bf16, or None if it supports bf16.

    GPUs below compute capability 8.0 emulate it, and PyTorch reports them as supporting it.
    """
    if torch.cuda.is_bf16_supported(including_emulation=False):
        return None
    major, minor = torch.cuda.get_device_capability()
    return f"{torch.cuda.get_device_name()} (compute capability {major}.{minor}, below 8.0) only emulates bf16"


def describe_device(bf16: bool) -> str | None:
    """Return a warning about the training device, or None for a suitable GPU. `bf16` is True if bf16 is used."""
    if torch.cuda.is_available():
        emulates = emulates_bf16() if bf16 else None
        return emulates and f"{emulates}, which is slow: fp32 may be faster"
    built = f"for CUDA {torch.version.cuda}" if torch.version.cuda else "without CUDA"
    return (
        f"no GPU is seen by PyTorch, built {built} (nvidia-smi shows the driver's); training on the CPU, which takes "
        "tiny recipes minutes and large bases days"
    )
