"""The command line `critic STAGE …`. A stage, such as `judge`, is a module with a command, imported when it is run."""

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
"""The type of a command's return value: the exit code, or None for 0."""

INTERRUPTED = 130
"""Exit code of a command that Typer ends after Ctrl-C."""


class _Words(Struct, forbid_unknown_fields=True):
    """The content of `cli.toml`, whose comments explain the fields."""

    first: str
    shorter: list[tuple[str, str]]
    renamed: dict[str, str]
    stages: dict[str, tuple[str, str]]


_WORDS = toml.decode(Path(__file__).with_suffix(".toml").read_bytes(), type=_Words)

STAGES = _WORDS.stages
"""Stage name -> (module or program, one-line help). The stage's command is the function `main` of the module."""

_INSTALLED, _CLONE = Path(__file__).with_name("programs"), Path(__file__).parents[1]
"""Folders that may contain the programs of train/ and serve/: one inside the package, if it was installed from a wheel
(pyproject.toml), else the root of the clone."""

_FULL = "No space left on device"
"""Text in errors other than OSError (such as those of safetensors) that means a full disk."""

_LOOP = "Symlink loop from"
"""Text in the error of Path.resolve if symbolic links form a loop."""

RARELY_NEEDED = "Rarely needed"
"""Title of the group of options that --help shows last."""

_EXAMPLE = re.compile(r"^ *((?:critic|python|deepspeed) .*(?:\\\n.*)*)", re.MULTILINE)
"""Matches an example command in the docstring of a stage's module."""

_PARAMETER = re.compile(r"^- (\w+): (.*(?:\n  .*)*)", re.MULTILINE)
"""Matches the help of a parameter or option ("- NAME: text") in the docstring of a command or a Struct."""

_new_app = partial(typer.Typer, rich_markup_mode=None, pretty_exceptions_enable=False)


def _load(stage: str) -> Callable[..., int | None]:
    """Import the module of a stage and return its command.

    If the stage is a program (a .py file in train/ or serve/), the program's folder is put first on sys.path, as when
    Python runs the program.
    """
    module = STAGES[stage][0]
    if module.endswith(".py"):
        program = (_INSTALLED if _INSTALLED.is_dir() else _CLONE) / module
        sys.path.insert(0, str(program.parent))
        module = program.stem
    command: Callable[..., int | None] = import_module(module).main
    return command


class _Command(TyperCommand):
    """A command whose --help groups the options and ends with the example commands in its module's docstring.

    Items "- NAME: text" after a form feed in the docstring of the command's function are the help of its parameters.
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
        # Rarely needed options come last, wherever they are in the signature.
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
    """The group of commands, one per stage. A stage's module is imported only when the stage is run."""

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
    """Return the fields of a Struct as parameters of a command, by name.

    The item "- NAME: text" in the Struct's docstring is the help of the field NAME. A field becomes a plain option,
    unless it is annotated with another one.
    """
    fields = dict(inspect.signature(struct).parameters)
    for name, text in _PARAMETER.findall(inspect.getdoc(struct) or ""):
        kind: Any = fields[name].annotation
        kind = kind if get_origin(kind) is Annotated else Annotated[kind, typer.Option()]
        kind.__metadata__[0].help = re.sub(r"\n +", " ", text)
        fields[name] = fields[name].replace(annotation=kind)
    return fields


def takes_options(command: Callable[..., Code], names: Collection[str] | None = None) -> Callable[..., Code]:
    """Turn the parameters of a command that are Structs of options, such as Endpoint, into one option per field.

    If several Structs have a field of the same name, one option sets the field in all of them.

    `names`: names of the fields to offer as options; None offers all. Other fields keep their defaults.
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
    """Return the pip extra ("train" or "serve") that a command line needs, or "" if it needs none.

    `words`: the arguments after `critic`; the first is the stage.
    """
    return STAGES[words[0]][0].rpartition("/")[0] if words and words[0] in STAGES else ""


def _translate_names(words: list[str]) -> list[str]:
    """Return the arguments of a command line with old names of commands and options replaced by the current ones.

    >>> _translate_names(["people", "--sight=all", "card"])
    ['import-grades', '--turn-context=all', 'card']
    """
    today = list[str]()
    for number, word in enumerate(words):
        name, equals, value = word.partition("=")
        # A command comes first; elsewhere a word such as `people` may be the name of a file.
        is_renamed = name in _WORDS.renamed and (number == 0 or name.startswith("--"))
        today.append(f"{_WORDS.renamed[name]}{equals}{value}" if is_renamed else word)
    return today


def _run(app: typer.Typer, name: str | None = None) -> None:
    """Run a Typer app and exit the process with the command's exit code (0 if it returns None).

    After a mistake of the caller, such as a UsageError or a full disk, print one line and exit with 2. After Ctrl-C,
    exit with 130. `name`: the program's name in messages; None takes it from sys.argv.
    """
    # A file's name may hold bytes that the locale cannot write.
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        code = app(_translate_names(sys.argv[1:]), prog_name=name, standalone_mode=False) or 0
    except Exception as error:
        if isinstance(error, UsageError):
            message = str(error)
        # Typer has its own copy of Click, so Click's errors are recognized by this method.
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
