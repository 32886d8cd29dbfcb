"""--gpus: a stage in several processes of this node, one engine on each GPU, and one file of what they make. Each works
on its --shard of the rows, in a file beside --out that stays: the same command goes on, on any number of GPUs.
"""

import ctypes
import multiprocessing
import os
import re
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from critic import jsonl
from critic.errors import UsageError, one_line
from critic.stages import merge
from critic.stages.run import check_plain


def on_gpus(command: Callable[..., int], options: Mapping[str, Any], devices: Sequence[str]) -> int:
    """Run the command of a stage in one process for each of `devices` (CUDA_VISIBLE_DEVICES), and merge what they made
    into its --out. Raises UsageError where one of them did not come to its end."""
    out = check_plain(jsonl.resolved(check_plain(options["out"])))
    folder = out.with_name(f"{out.name}.parts")
    with jsonl.alone(out):
        if out.is_file() and not folder.is_dir():
            raise UsageError(f"{out}: made without --gpus; go on without it, or choose another --out")
        folder.mkdir(exist_ok=True)
        begun = (re.search(r"-of-(\d+)\.jsonl$", path.name) for path in folder.iterdir())
        count = max((int(match[1]) for match in begun if match), default=len(devices))
        paths = [folder / f"{number}-of-{count}.jsonl" for number in range(1, count + 1)]
        words = {**options, "gpus": None}
        runs = [words | {"out": path, "shard": f"{number}/{count}"} for number, path in enumerate(paths, 1)]
        if failed := _run_all(command, {device: runs[n :: len(devices)] for n, device in enumerate(devices)}, folder):
            raise UsageError(f"{'; '.join(failed)}; the same command goes on, and nothing is lost")
        return merge.main(paths, out, options["max_failed"])


def _run_all(command: Callable[..., int], runs: Mapping[str, Sequence[Mapping[str, Any]]], folder: Path) -> list[str]:
    """The runs of each device, one after another; why those ended that did not finish."""
    context = multiprocessing.get_context("spawn")
    # The first one's progress bar stands for all.
    logs = {device: folder / f"gpu-{device}.log" if n else None for n, device in enumerate(runs)}
    workers = {
        device: context.Process(target=_work, args=(command, mine, device, logs[device]))
        for device, mine in runs.items()
    }
    try:
        for worker in workers.values():
            worker.start()
        for worker in workers.values():
            worker.join()
    finally:
        for worker in workers.values():
            worker.terminate()
    return [f"GPU {name}: {_reason(one.exitcode, logs[name])}" for name, one in workers.items() if one.exitcode]


def _reason(code: int | None, log: Path | None) -> str:
    said = re.findall("^error: (.*)$", log.read_text("utf-8", "replace"), re.MULTILINE) if log and code == 2 else []
    return said[-1] if said else f"its process ended with code {code}"


def _work(command: Callable[..., int], runs: Sequence[Mapping[str, Any]], device: str, log: Path | None) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # end with the process that started this one, however that ends
    os.environ["CUDA_VISIBLE_DEVICES"] = device
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what it comes to is said of the whole
    if log is not None:
        os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
    try:
        for options in runs:
            # Records leave out what is the very default, as a text is that was not sent from another process.
            command(**{name: sys.intern(value) if type(value) is str else value for name, value in options.items()})
    except Exception as error:
        print(f"error: {error if isinstance(error, UsageError) else one_line(error)}", file=sys.stderr)
        sys.exit(2)
