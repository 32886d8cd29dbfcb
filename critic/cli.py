"""The command `critic STAGE …`: each stage is a module with a command, imported only on request."""

import inspect
import re
import sys
from collections.abc import Callable, Collection
from errno import EDQUOT, ENOSPC
from functools import partial, wraps
from importlib import import_module
from importlib.metadata import version
from io import TextIOWrapper
from pathlib import Path
from tempfile import gettempdir
from typing import Annotated, Any, TypeVar, get_origin

import typer
from msgspec import Struct, toml
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from critic.errors import UsageError, did_you_mean, install_extra, mask, notify

Code = TypeVar("Code", bound=int | None)
"""What a command returns: its exit code, or None for 0."""

INTERRUPTED = 130
"""Exit code with which Typer ends a command after Ctrl-C."""


class _Words(Struct, forbid_unknown_fields=True):
    """The content of `cli.toml`, which explains it."""

    first: str
    shorter: list[tuple[str, str]]
    renamed: dict[str, str]
    stages: dict[str, tuple[str, str]]


_WORDS = toml.decode(Path(__file__).with_suffix(".toml").read_bytes(), type=_Words)

STAGES = _WORDS.stages
"""Stage name -> (module or program, one-line help). The stage's command is the function `main` there."""

_INSTALLED, _CLONE = Path(__file__).with_name("programs"), Path(__file__).parents[1]
"""Folders in which the programs of train/ and serve/ are: inside the package if it was installed from a wheel
(pyproject.toml), else in the root of the clone."""

_FULL = "No space left on device"
"""Message of a full disk in errors other than OSError, such as those of safetensors."""

_LOOP = "Symlink loop from"
"""Message of Path.resolve for symbolic links that form a loop."""

RARELY_NEEDED = "Rarely needed"
"""Title of the group of options that --help shows last."""

_EXAMPLE = re.compile(r"^ *((?:critic|python|deepspeed) .*(?:\\\n.*)*)", re.MULTILINE)
"""A command in the docstring of a stage's module."""

_PARAMETER = re.compile(r"^- (\w+): (.*(?:\n  .*)*)", re.MULTILINE)
"""The help of a parameter or option in the docstring of a command or a Struct."""

_new_app = partial(typer.Typer, rich_markup_mode=None, pretty_exceptions_enable=False)


def _load(stage: str) -> Callable[..., int | None]:
    """Import a stage and return its command.

    For a program (a .py file in train/ or serve/) its folder is put first on sys.path, as if Python had been started
    with it.
    """
    module = STAGES[stage][0]
    if module.endswith(".py"):
        program = (_INSTALLED if _INSTALLED.is_dir() else _CLONE) / module
        sys.path.insert(0, str(program.parent))
        module = program.stem
    command: Callable[..., int | None] = import_module(module).main
    return command


class _Command(TyperCommand):
    """A command whose --help groups the options, and ends with the examples from its module's docstring.

    Lines "- NAME: text" at the end of the function's docstring, after a form feed, are the help of its parameters.
    """

    def __init__(self, *words: Any, **given: Any) -> None:
        super().__init__(*words, **given)
        parameters: dict[str | None, Any] = {parameter.name: parameter for parameter in self.params}
        for name, text in _PARAMETER.findall((self.help or "").partition("\f")[2]):
            parameters[name].help = re.sub(r"\n +", " ", text)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            usual = "Arguments" if parameter.param_type_name == "argument" else "Options"
            if record := parameter.get_help_record(ctx):
                names, text = record
                for words, short in _WORDS.shorter:
                    names, text = re.sub(words, short, names), re.sub(words, short, text)
                groups.setdefault(getattr(parameter, "rich_help_panel", None) or usual, []).append((names, text))
        # Rare options stand in several places of the signature; a reader meets them last.
        for title, records in sorted(groups.items(), key=lambda group: group[0] == RARELY_NEEDED):
            with formatter.section(title):
                formatter.write_dl(records, col_max=24)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        module = sys.modules[getattr(self.callback, "__module__", __name__)]
        _, _, text = (module.__doc__ or "").partition("\n")
        if examples := _EXAMPLE.findall(text):
            formatter.write("\nExamples:\n" + "".join(f"  {example}\n" for example in examples))


_HELP = {"help_option_names": ["-h", "--help"]}


def _build_app(name: str, function: Callable[..., int | None]) -> typer.Typer:
    """Build a Typer app whose only command is `function`, called `name`."""
    app = _new_app(add_completion=False)
    app.command(name, cls=_Command, context_settings=_HELP)(function)
    return app


class _OnDemand(TyperGroup):
    """The group of all stages as commands. A stage's module is imported only when the stage is run."""

    completes = False
    """True during shell completion of stage names; no stage is imported then."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(STAGES)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in STAGES:
            raise UsageError(f"no stage {cmd_name!r}; {did_you_mean(cmd_name, STAGES)}there are {', '.join(STAGES)}")
        # Importing the stage would take longer than a user waits for a completion.
        if self.completes:
            return TyperCommand(cmd_name, help=STAGES[cmd_name][1])
        return get_command(_build_app(cmd_name, _load(cmd_name)))

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Stages"):
            formatter.write_dl([(name, text) for name, (_, text) in STAGES.items()])

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        self.completes = True
        return super().shell_complete(ctx, incomplete)


def _read_options(struct: type[Struct]) -> dict[str, inspect.Parameter]:
    """Return the fields of a Struct as parameters of a command. Items "- NAME: text" of its docstring are the help of
    their options, which are plain ones unless the fields are annotated with others."""
    fields = dict(inspect.signature(struct).parameters)
    for name, text in _PARAMETER.findall(inspect.getdoc(struct) or ""):
        kind: Any = fields[name].annotation
        kind = kind if get_origin(kind) is Annotated else Annotated[kind, typer.Option()]
        kind.__metadata__[0].help = re.sub(r"\n +", " ", text)
        fields[name] = fields[name].replace(annotation=kind)
    return fields


def takes_options(command: Callable[..., Code], names: Collection[str] | None = None) -> Callable[..., Code]:
    """Turn parameters of a command that are Structs of options, such as Endpoint, into one option per field.

    A field that several Structs have becomes one option, which sets it in all of them. `names` are the fields to offer;
    None offers all. Fields that are not offered keep their defaults.
    """
    own = inspect.signature(command, eval_str=True)
    structs, every = dict[str, type[Struct]](), dict[str, inspect.Parameter]()
    for parameter in own.parameters.values():
        if inspect.isclass(parameter.annotation) and issubclass(parameter.annotation, Struct):
            structs[parameter.name] = parameter.annotation
            offered = _read_options(parameter.annotation)
            every |= {name: offered[name] for name in offered if names is None or name in names}

    @wraps(command)
    def called(*words: Any, **options: Any) -> Code:
        given = {name: options.pop(name) for name in every if name in options}
        # One option fills every Struct that has a field of its name.
        for name, struct in structs.items():
            options[name] = struct(**{field: given[field] for field in struct.__struct_fields__ if field in given})
        return command(*words, **options)

    parameters = [parameter for parameter in own.parameters.values() if parameter.name not in structs]
    called.__signature__ = own.replace(parameters=[*parameters, *every.values()])  # type: ignore[attr-defined]  # for Typer
    return called


def _find_extra(words: list[str]) -> str:
    """Return the pip extra that the stage words[0] needs ("train" or "serve"), or "" if it needs none."""
    return STAGES[words[0]][0].rpartition("/")[0] if words and words[0] in STAGES else ""


def _translate_names(words: list[str]) -> list[str]:
    """Return the command line with renamed commands and options replaced by their current names.

    >>> _translate_names(["people", "--sight=all", "card"])
    ['import-grades', '--turn-context=all', 'card']
    """
    today = list[str]()
    for number, word in enumerate(words):
        name, equals, value = word.partition("=")
        # A command comes first; elsewhere `people` may be a file.
        is_renamed = name in _WORDS.renamed and (number == 0 or name.startswith("--"))
        today.append(f"{_WORDS.renamed[name]}{equals}{value}" if is_renamed else word)
    return today


def _run(app: typer.Typer, name: str | None = None) -> None:
    """Run a Typer app and exit the process with the command's code (0 if it returns None).

    Print one line and exit with 2 for a mistake of the caller, such as a UsageError or a full disk. Exit with 130 after
    Ctrl-C. `name` is the program's name in messages; None takes it from sys.argv.
    """
    # A file's name may hold bytes that the locale cannot write.
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        code = app(_translate_names(sys.argv[1:]), prog_name=name, standalone_mode=False) or 0
    except Exception as error:
        if isinstance(error, UsageError):
            message = str(error)
        # Typer has its own copy of Click, so its errors are recognized by what they can do.
        elif hasattr(error, "format_message"):
            message = f"{' '.join(error.format_message().split())} (see --help)"
        elif isinstance(error, ImportError) and (extra := _find_extra(sys.argv[1:])):
            message = f"critic {sys.argv[1]}: {' '.join(str(error).split())}; {install_extra(extra)}"
        elif getattr(error, "errno", None) in (ENOSPC, EDQUOT) or _FULL in str(error):
            where = f"temporary files in {gettempdir()}, or what is written (TMPDIR=FOLDER moves them)"
            file = getattr(error, "filename", None) or where
            message = f"{getattr(error, 'strerror', None) or _FULL}: {file}; make room and run the same command again"
        # From Path.resolve, before Python 3.13.
        elif isinstance(error, RuntimeError) and _LOOP in str(error):
            message = f"{error}; a symbolic link leads back to itself"
        elif isinstance(error, OSError) and error.filename is not None and error.strerror is not None:
            message = f"{error.filename}: {error.strerror}"
        else:
            raise
        notify(f"error: {mask(message)}")
        code = 2
    if code == INTERRUPTED:
        notify("interrupted; run the same command again to go on")
    sys.exit(code)


def run_program(function: Callable[..., int | None]) -> None:
    """Run `function` as the only command of a program that is started by path (`python data/human_scores.py …`)."""
    _run(_build_app("program", function))


def main() -> None:
    """Run the command line of `critic`."""
    app = _new_app(cls=_OnDemand, context_settings=_HELP)

    @app.callback(invoke_without_command=True)
    def critic(
        context: typer.Context,
        show_version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
    ) -> int | None:
        """Train, serve, use and audit a local judge for vision-language models."""
        if show_version:
            print(f"critic {version('critic')}")
            return 0
        if context.invoked_subcommand is None:
            print(f"{context.get_help()}\n\n{_WORDS.first}")
            return 2
        return None

    _run(app, "critic")
