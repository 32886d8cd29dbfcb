"""`critic STAGE …`: each stage is a module with a command, imported only when it is asked for."""

import sys
from collections.abc import Callable
from functools import wraps
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from critic.errors import UsageError

STAGES = {
    "judge": ("critic.judge", "Score responses with a judge behind an OpenAI-compatible server."),
    "score": ("critic.score", "Benchmark scores from judgments: per task, per category, overall."),
    "audit": ("eval_agreement.audit", "How well the judge agrees with people: tables and an HTML report."),
    "demo": ("critic.demo", "The whole main job on a small sample world: train, serve, judge, audit."),
}
"""Stage name -> module (its command is `main`), one-line help."""


def _exits(function: Callable[..., int | None]) -> Callable[..., None]:
    """`function` ending in an exit code: its own, 2 with one line for the caller's mistake, 130 for Ctrl-C."""

    @wraps(function)
    def command(*args: Any, **options: Any) -> None:
        try:
            code = function(*args, **options) or 0
        except UsageError as error:
            print(f"error: {error}", file=sys.stderr)
            code = 2
        except KeyboardInterrupt:
            print("interrupted; run the same command again to go on", file=sys.stderr)
            code = 130
        raise typer.Exit(code)

    return command


def _app(name: str, function: Callable[..., int | None]) -> typer.Typer:
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command(name)(_exits(function))
    return app


class _OnDemand(TyperGroup):
    def list_commands(self, ctx: Any) -> list[str]:
        return list(STAGES)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in STAGES:
            return None
        return get_command(_app(cmd_name, import_module(STAGES[cmd_name][0]).main))

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Stages"):
            formatter.write_dl([(name, text) for name, (_, text) in STAGES.items()])


def run_program(function: Callable[..., int | None]) -> None:
    """Run the one command of a program that is started by path (`python data/human_scores.py …`)."""
    _app("program", function)()


def main() -> None:
    app = typer.Typer(cls=_OnDemand, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)

    @app.callback()
    def critic() -> None:
        """Train, serve, use and audit a local judge for vision-language models."""

    app()
