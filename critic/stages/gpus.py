"""The option --gpus: run a stage in several processes of this node, one engine on each GPU, and merge their files.

Each process works on its --shard of the rows, in a file beside --out that stays: the same command resumes, on any
number of GPUs.
"""

import multiprocessing
import os
import re
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import Any

from critic import jsonl
from critic.backends.vllm import count_gpus, end_with_parent, list_devices
from critic.errors import UsageError, notify, one_line
from critic.stages.run import check_plain


def on_gpus(command: Callable[..., int]) -> Callable[..., int]:
    """Make a stage's command obey --gpus: run it in one process per engine, and merge the files that these write.

    The command must be decorated with `takes_options` and have an Endpoint. With --gpus it must be called with named
    arguments only, as the command line does.
    """

    @wraps(command)
    def spread(*words: Any, **given: Any) -> int:
        return command(*words, **given) if given.get("gpus") is None else _spread(spread, given)

    return spread


def _spread(command: Callable[..., int], options: dict[str, Any]) -> int:
    """Run a stage in one process per engine, and merge the files. Return the exit code of the merged file.

    `options`: the arguments of `command` by name.

    Raises UsageError if a model is no local folder or file, if options contradict --gpus, if a process ended with an
    error, or if --out was made without --gpus.
    """
    gpus, sources = options["gpus"], options.get("judge") or [options["model"] or ""]
    # A server manages its own GPUs.
    if options["base_url"] or not all(Path(source).exists() for source in sources):
        raise UsageError(f"--gpus {gpus}: needs a checkpoint folder that is there; servers have GPUs of their own")
    if options["shard"] or options["engine"] or options["budget"]:
        raise UsageError(f"--gpus {gpus}: cannot be used with --shard, --engine or --budget")
    devices = list_devices(gpus, max(1, count_gpus(options["vllm_options"] or [])))
    out = check_plain(jsonl.resolve_links(check_plain(options["out"])))
    folder = out.with_name(f"{out.name}.parts")
    with jsonl.lock_file(out):
        # A run that was killed has its number of shards in the names of its files.
        begun = [int(count) for path in folder.glob("*.jsonl") for count in re.findall(r"-of-(\d+)", path.name)]
        if out.is_file() and not begun:
            raise UsageError(f"{out}: made without --gpus; go on without it, or choose another --out")
        folder.mkdir(exist_ok=True)
        count = max(begun, default=len(devices))
        paths = [folder / f"{number}-of-{count}.jsonl" for number in range(1, count + 1)]
        options["gpus"] = None
        runs = [options | {"out": path, "shard": f"{number}/{count}"} for number, path in enumerate(paths, 1)]
        process = multiprocessing.get_context("spawn").Process
        work = [(command, runs[n :: len(devices)], device, folder) for n, device in enumerate(devices)]
        workers = [process(target=_work, args=args, name=f"GPU {args[2]}") for args in work]
        try:
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
        finally:
            # Whole process groups: an engine outlives a process that was killed, and keeps its GPU's memory.
            for worker in workers:
                with suppress(ProcessLookupError, TypeError):
                    os.killpg(worker.pid, signal.SIGKILL)  # type: ignore[arg-type]  # None: not started
        if lost := [f"{worker.name} ended with code {worker.exitcode}" for worker in workers if worker.exitcode]:
            raise UsageError(f"{', '.join(lost)} (logs in {folder}); the same command goes on, and nothing is lost")
        from critic.stages.merge import merge  # noqa: PLC0415 - a command of its own, which is needed only here

        return merge(paths, out, options["max_failed"])


def _work(command: Callable[..., int], runs: Sequence[Mapping[str, Any]], device: str, folder: Path) -> None:
    """The main function of a process: run the stage for each of its shards, one after another, on the GPUs `device`.

    `runs` holds the stage's options for each shard. The log is written to `folder`.
    """
    # A group of its own, which ends as one.
    os.setsid()
    end_with_parent()
    os.environ["CUDA_VISIBLE_DEVICES"] = device
    # The totals are printed once, of the merged file.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    # The progress bar of the first process stands for all.
    if runs and not runs[0]["shard"].startswith("1/"):
        os.dup2(os.open(folder / f"gpu-{device}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
    try:
        for options in runs:
            # Records leave out a value that is the default object itself; a text sent to another process is a copy.
            command(**{name: sys.intern(value) if type(value) is str else value for name, value in options.items()})
    except Exception as error:
        notify(error if isinstance(error, UsageError) else one_line(error))
        sys.exit(2)
