"""Start the fine-tuning of a judge: the command `critic train`, and the program for `deepspeed train/sft.py`.

Options and recipe are checked first, so that a mistake causes one message and not one from every process. Then
DeepSpeed's launcher starts this program once per process, and each process trains (run.py).

    critic train tiny --train runs/first/data/train.jsonl --out runs/first/judge --set training.max_steps=150
    critic train critic-6b-full --train DATA/train.jsonl --out runs/critic-6b -- --num_gpus 4
    critic train --soup runs/seed-1 runs/seed-2 runs/seed-3 --internal DATA/internal.jsonl --out runs/soup
"""

import contextlib
import io
import os
import signal
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from critic import human_scored, jsonl, tables
from critic.cli import INTERRUPTED, run_program
from critic.errors import UsageError, install_extra, notify, one_line
from critic.stages import options as shared
from critic.stages.demo import free_port


def find_recipe(recipe: str) -> Path:
    """Return the path of a recipe, given as a file or as the name of a recipe in `recipes/`.

    Raise UsageError if it is neither.
    """
    known = {file.stem: file for file in sorted(Path(__file__).parent.glob("recipes/*.yaml"))}
    path = Path(recipe)
    # A file of that name goes before a recipe of ours.
    if path.is_file():
        return path
    if recipe in known:
        return known[recipe]
    raise UsageError(f"{recipe}: no such recipe; give a file, or one of {', '.join(known)}")


def count_processes(parsed: Any) -> int:
    """Return how many processes DeepSpeed's launcher will start, or 0 if it finds no device.

    `parsed` are the launcher's parsed options. Raise UsageError if they ask for more GPUs than there are.
    """
    from deepspeed.accelerator import get_accelerator  # noqa: PLC0415 - as in main
    from deepspeed.launcher import runner  # noqa: PLC0415

    pool = runner.fetch_hostfile(parsed.hostfile) if Path(parsed.hostfile).is_file() else None
    # Without a hostfile the launcher starts only processes of this machine.
    pool = pool or {"localhost": get_accelerator().device_count()}
    chosen = runner.parse_inclusion_exclusion(pool, parsed.include, parsed.exclude)
    nodes = list(chosen.values())[: parsed.num_nodes if parsed.num_nodes > 0 else None]
    fewest = min(map(len, nodes), default=0)
    # On a CPU any number can be started.
    if parsed.num_gpus > fewest and get_accelerator().device_name() == "cuda":
        raise UsageError(f"--num_gpus {parsed.num_gpus}: there are {fewest} GPUs here (see nvidia-smi)")
    return sum(parsed.num_gpus if parsed.num_gpus > 0 else len(devices) for devices in nodes)


def end_children(number: int, _: object) -> None:
    """Pass the signal `number` on to this process's children. The launcher ends when its children have ended.

    DeepSpeed's launcher passes signals on only if there are several nodes. On one node the training would continue
    after the command has ended.
    """
    import psutil  # noqa: PLC0415 - as in main

    for child in psutil.Process().children():
        child.send_signal(number)


def launch(options: list[str], program: list[str], check: Callable[[int], object]) -> int | None:
    """Run a program in the processes of DeepSpeed's launcher, and return the exit code.

    - `options`: options of the launcher. `program`: the script and its arguments.
    - `check`: called with the number of processes before they start.

    Return None without starting anything if it would be one process on this machine and `options` is empty. The caller
    then runs the program in its own process. Raise UsageError if the launcher rejects its options.
    """
    from deepspeed.launcher import runner  # noqa: PLC0415 - as in main

    # The processes' own messages say what went wrong; the launcher would only add the command and its code.
    words = ["--log_level", "critical", *options, *program]
    usage = io.StringIO()
    try:
        with contextlib.redirect_stderr(usage):
            parsed = runner.parse_args(words)
    except SystemExit:
        message = (usage.getvalue().splitlines() or ["see `deepspeed --help`"])[-1]
        raise UsageError(f"DeepSpeed's launcher: {message.partition('error: ')[2] or message}") from None
    # A word that is no option would be taken for the program to start.
    if parsed.user_script != program[0]:
        raise UsageError(f"DeepSpeed's launcher takes options alone, not {parsed.user_script!r}")
    is_here = not Path(parsed.hostfile).is_file()
    if is_here and not any(option.startswith("--master_port") for option in options):
        # DeepSpeed's own is one for all trainings of a machine.
        words = ["--master_port", str(free_port()), *words]
    try:
        if count := count_processes(parsed):
            check(count)
        # The launcher would start two more Pythons for it, each of which imports PyTorch and DeepSpeed again.
        if count == 1 and is_here and not options:
            return None
        signal.signal(signal.SIGTERM, end_children)
        runner.main(words)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
        if code not in (0, 1, 2, INTERRUPTED):
            notify(f"training ended with code {code}; run the same command again to go on")
        return code
    except (AssertionError, ValueError, RuntimeError, NotImplementedError) as error:
        raise UsageError(f"DeepSpeed's launcher: {one_line(error)}") from None
    return 0


def write_renamed(rows: Path, out: Path, own: human_scored.OwnColumns, **options: Any) -> Path:
    """Write the rows in critic's columns to `out`, for all processes to read, and return `out`.

    `own` describes the user's columns; `options` go to `human_scored.walk`. Raise UsageError as that function does.
    """
    # Rows with these flags are counted as left out where rows are learned from.
    flags = frozenset(human_scored.UNUSABLE_FLAGS)
    left_out = Counter[str]()
    jsonl.write(out, (raw for _, raw, _ in human_scored.walk(rows, left_out, flags, own=own, **options)))
    human_scored.say_left_out(left_out)
    return out


def main(
    recipe: str,
    out: Annotated[Path, typer.Option()],
    train: Path | None = None,
    launcher: Annotated[list[str] | None, typer.Argument()] = None,
    internal: Path | None = None,
    soup: Annotated[bool, typer.Option("--soup")] = False,
    overrides: Annotated[list[str] | None, typer.Option("--set")] = None,
    cache: Path | None = None,
    data_root: Annotated[Path | None, typer.Option(show_default="that of the rows")] = None,
    threads: Annotated[int | None, typer.Option(min=1)] = None,
    mapped: shared.Mapped = None,
    scale: shared.OwnScale = None,
    lang: shared.OwnLanguage = None,
    local_rank: Annotated[int | None, typer.Option("--local_rank", hidden=True)] = None,
) -> int:
    """Fine-tune a judge on human-scored rows (rerun the same command to resume), or average judges (--soup).
    \f
    - recipe: Recipe: a YAML file, or a name in train/recipes, such as tiny.
    - out: Folder for the judge, a Hugging Face model folder.
    - train: Human-scored rows to learn from: JSONL, CSV, a folder.
    - launcher: Options for DeepSpeed's launcher, after --, such as --num_gpus 2.
    - internal: Human-scored rows to judge in training (recipe: evaluation) or mixing a soup.
    - soup: Average judges of several seeds; name their folders instead of a recipe.
    - overrides: KEY=VALUE to set in the recipe, such as training.max_steps=100.
    - cache: Folder to cache token ids [default: critic in HF_HOME].
    - data_root: Folder of images.
    - threads: CPU threads per process [default: the idle cores].
    """
    own = human_scored.OwnColumns.parse(mapped, scale, lang)
    if soup:
        if train or overrides or cache or threads or own:
            raise UsageError("--soup takes judges, --out, --internal (columns as in JUDGE/rows) and --data-root only")
        from soup import main as average_judges  # noqa: PLC0415 - as below

        return average_judges([recipe, *(launcher or [])], out, internal, data_root)
    if train is None:
        raise UsageError("give --train ROWS, which people scored, or average finished judges: --soup")
    config = find_recipe(recipe)
    is_launched = "LOCAL_RANK" in os.environ
    # The launcher also set which GPU would be this process's.
    if is_launched and os.environ.get("DS_ACCELERATOR") == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    import torch  # noqa: PLC0415 - these take seconds, for which --help need not wait

    # DeepSpeed, which is imported next, would warn of it in every process.
    if not torch.cuda.is_available():
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    import preflight  # noqa: PLC0415
    import trainer_args  # noqa: PLC0415
    from recipe import read_recipe  # noqa: PLC0415
    from recipe_keys import judges, list_made_files  # noqa: PLC0415

    settings = read_recipe(config, overrides)
    if (settings.evaluation is None) != (internal is None):
        missing = "--internal FILE" if internal is None else "an evaluation section in the recipe"
        raise UsageError(f"to evaluate while training, give {missing} too")
    data_root = data_root or (train if train.is_dir() else train.parent)
    if not is_launched:
        trainer_args.check(settings)
        preflight.require_device(settings)
        preflight.require_served_tokens(settings)
        columns, teachers = judges(settings)
        beside = map(Path, [*list_made_files(settings), settings.foreign or train])
        for file in [*tables.list_files(train), internal or train, *beside]:
            file.stat()
        if own:
            train = write_renamed(train, out / "rows" / "train.jsonl", own, judges=columns, unlabelled=bool(teachers))
            internal = internal and write_renamed(internal, out / "rows" / "internal.jsonl", own)
        program = [__file__, str(config), "--train", str(train), "--out", str(out)]
        forwarded = {"--internal": internal, "--cache": cache, "--data-root": data_root, "--threads": threads}
        for name, value in forwarded.items():
            program += [name, str(value)] if value is not None else []
        for override in overrides or []:
            program += ["--set", override]
        most = settings.training.get("per_device_train_batch_size", 1)
        code = launch(launcher or [], program, partial(trainer_args.micro_batch, settings.global_batch, most))
        if code is not None:
            return code
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"} | place
    import run  # noqa: PLC0415

    run.main(run.TrainingRun(settings, train, out, data_root, internal, cache, threads))
    return 0


if __name__ == "__main__":
    try:
        run_program(main)
    except ImportError as error:
        notify(f"error: train/sft.py: {error}; {install_extra('train')}")
        raise SystemExit(2) from None
