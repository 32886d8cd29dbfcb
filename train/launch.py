"""`critic train RECIPE …`: options and recipe are checked here, then DeepSpeed's launcher starts sft.py with them.

So a mistake in them is one line, before any process is started, and not a line of each process.
"""

import contextlib
import io
import os
import sys
from collections.abc import Mapping
from inspect import Signature, signature
from pathlib import Path
from typing import Annotated, Any

import command
import typer

from critic import human_scored
from critic.cli import INTERRUPTED
from critic.errors import UsageError, one_line

PROGRAM, RECIPES = Path(__file__).with_name("sft.py"), Path(__file__).with_name("recipes")


def recipe_file(recipe: str) -> Path:
    """A recipe by its path, or by its name where it is one of ours. Raises UsageError where it is neither."""
    known = {file.stem: file for file in sorted(RECIPES.glob("*.yaml"))}
    path = Path(recipe)
    if path.is_file():
        return path
    if (name := recipe.removesuffix(".yaml")) in known:
        return known[name]
    raise UsageError(f"{recipe}: no such recipe; give a file, or one of {', '.join(known)}")


def as_words(context: typer.Context, options: Mapping[str, Any]) -> list[str]:
    """Options as they are written on a command line; those that are not set are left out."""
    words = []
    for option in context.command.params:
        values = options.get(str(option.name))
        for value in values if isinstance(values, list) else [values]:
            if value is not None and value is not False:
                words += [option.opts[0]] if value is True else [option.opts[0], str(value)]
    return words


def launch(options: list[str], program: list[str]) -> int:
    """Run a program in the processes of DeepSpeed's launcher; its exit code. Raises UsageError for what the launcher
    does not take."""
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
    if parsed.user_script != program[0]:
        raise UsageError(f"DeepSpeed's launcher takes options alone, not {parsed.user_script!r}")
    try:
        runner.main(words)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
        if code not in (0, 1, 2, INTERRUPTED):
            print(f"training ended with code {code}; run the same command again to go on", file=sys.stderr)
        return code
    except (AssertionError, ValueError, RuntimeError, NotImplementedError) as error:
        raise UsageError(f"DeepSpeed's launcher: {one_line(error)}") from None
    return 0


def main(
    *,
    context: typer.Context,
    recipe: Annotated[str, typer.Argument(help="A recipe: a file (YAML), or the name of one of ours, such as tiny.")],
    launcher: Annotated[
        list[str] | None, typer.Argument(help="Behind --: more options of DeepSpeed's launcher.")
    ] = None,
    num_gpus: Annotated[int | None, typer.Option("--num_gpus", min=1, help="GPUs of a node [default: all].")] = None,
    include: Annotated[str | None, typer.Option(help="The GPUs to use, such as localhost:0,1.")] = None,
    hostfile: Annotated[
        Path | None, typer.Option(exists=True, help="Several nodes: a line `NAME slots=8` for each.")
    ] = None,
    no_ssh: Annotated[bool, typer.Option("--no_ssh", help="The command is started on each node by itself.")] = False,
    node_rank: Annotated[int | None, typer.Option("--node_rank", min=0, help="With it, which node this is.")] = None,
    master_addr: Annotated[str | None, typer.Option("--master_addr", help="Address of the first node.")] = None,
    master_port: Annotated[
        int | None, typer.Option("--master_port", help="A port of its own, beside another training [default: 29500].")
    ] = None,
    **options: Any,
) -> int:
    """Fine-tune a judge on human-scored rows; started again, it goes on from the newest checkpoint."""
    config = recipe_file(recipe)
    import torch  # noqa: PLC0415 - these take seconds, for which --help need not wait

    if not torch.cuda.is_available():  # DeepSpeed, which is imported next, would warn of it in every process
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    import trainer_args  # noqa: PLC0415
    from recipe import read_with_options  # noqa: PLC0415

    on_recipe = (options[name] for name in ("overrides", "keep", "internal", "init"))
    trainer_args.check(read_with_options(config, *on_recipe))
    for file in [*human_scored.files(options["train"]), *filter(None, [options["internal"]])]:
        file.stat()
    launcher_options = {name: context.params[name] for name in LAUNCHER}
    program = [str(PROGRAM), "--config", str(config), *as_words(context, options)]
    return launch([*as_words(context, launcher_options), *(launcher or [])], program)


def _with_options_of_sft() -> Signature:
    """What Typer reads the options from: those of sft.py are declared in command.py alone."""
    own = signature(main).parameters
    of_sft = [each.replace(kind=each.KEYWORD_ONLY) for each in signature(command.main).parameters.values()]
    of_sft = [each for each in of_sft if each.name not in ("config", "local_rank")]
    first = [own[name] for name in ARGUMENTS]
    return Signature([*first, *of_sft, *(own[name] for name in LAUNCHER)])


ARGUMENTS = ("context", "recipe", "launcher")
LAUNCHER = [name for name in signature(main).parameters if name not in (*ARGUMENTS, "options")]
main.__signature__ = _with_options_of_sft()  # type: ignore[attr-defined]
