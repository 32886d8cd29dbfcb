"""Settings of the layer, and checks that the user's options for vLLM leave the server as it was checked.

vLLM's own parser reads the options before anything is loaded: once only critic's, and once critic's and the user's
together. The checks compare the parsed values. So abbreviations, underscores, `--config FILE` and dotted names are
resolved by vLLM.
"""

import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import msgspec

from critic.backends.identity import describe_settings, parse_options
from critic.errors import UsageError, notify

LAYER = ["--middleware", "layer.JudgeLayer"]
"""Comes after all other options: the last middleware is the outermost, and no request may bypass it."""

SETTINGS = "CRITIC_SERVE_LAYER"
"""Environment variable that passes the settings (JSON) from judge.py to the server process."""

GUARDED: dict[str, str] = msgspec.toml.decode(Path(__file__).with_name("guarded.toml").read_bytes())
"""vLLM settings that the user may not change after the -- -> the error message."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the layer.

    - `model`: the judge's own name. `aliases`: other names that it answers to.
    - `contracts`: paths of the operator's contract files.
    - `max_bytes`: the largest request body in bytes. `images`: True if the judge sees images.
    - `about`: fields to publish with the judge under /v1/models, such as the hash of its processor, the forms it was
      trained on, and its certificate with the certificate's hash.
    - `control_tokens`: the judge's control tokens, which no message may contain.
    - `as_learned`: True to convert clients' requests to a form that the judge was trained on, if possible.
    """

    model: str
    aliases: list[str]
    contracts: list[str]
    max_bytes: int
    images: bool
    about: dict[str, Any] = {}
    control_tokens: list[str] = []
    as_learned: bool = False


def list_aliases(own: Sequence[str], harnesses: Sequence[str], api_key: str | None) -> list[str]:
    """Return the names that clients may use, each once: the operator's `own`, and all that the harnesses ask for.

    `harnesses.toml` lists these names, and how an API key must begin for each harness. Print a warning if `api_key`
    begins otherwise. Raise UsageError for a harness that is not in the file.

    >>> names = list_aliases(["mine", "gpt-4o"], ["vlmevalkit", "lmms-eval"], "sk-1")
    >>> names[:3], len(names) == len({*names}), {"gpt-3.5-turbo-0125", "gpt-5-mini"} <= {*names}
    (['mine', 'gpt-4o', 'gpt-4-1106-preview'], True, True)
    >>> list_aliases([], ["vlm"], None)
    Traceback (most recent call last):
    critic.errors.UsageError: --alias-of vlm: unknown; choose vlmevalkit, lmms-eval, or name models by --alias
    """
    table = msgspec.toml.decode(Path(__file__).with_name("harnesses.toml").read_bytes())
    for name in harnesses:
        if name not in table:
            raise UsageError(f"--alias-of {name}: unknown; choose {', '.join(table)}, or name models by --alias")
        # Its log has only one line on it.
        if api_key and not api_key.startswith(key := table[name].get("key", "")):
            notify(f"{name}: some data sets ask a judge only if the key begins with {key}")
    return [*dict.fromkeys([*own, *(model for name in harnesses for model in table[name]["models"])])]


def build_parser() -> Any:
    """Return the argument parser of vLLM's server."""
    from vllm.entrypoints.launchers.cli_args import make_arg_parser  # noqa: PLC0415 - seconds
    from vllm.utils.argparse_utils import FlexibleArgumentParser  # noqa: PLC0415

    return make_arg_parser(FlexibleArgumentParser())


def check(parser: Any, ours: list[str], extra: list[str], aliases: Sequence[str] = ()) -> str:
    """Validate vLLM options, and return a description of those that change the judge (`describe_settings`).

    `ours` are the options that critic sets, `extra` those of the user. `aliases` are the judge's other names. Raise
    UsageError if `extra` has an unknown option, changes a guarded setting, or hides the layer from vLLM. Raise it too
    for an adapter whose name is one of `aliases`, or which was trained on another revision of the base.
    """
    expected, actual = parse_options(parser, [*ours, *LAYER]), parse_options(parser, [*ours, *extra, *LAYER])
    for name, problem in GUARDED.items():
        # Whatever the spelling, it is the parsed value that counts.
        if actual[name] != expected[name]:
            raise UsageError(problem)
    for adapter in actual["lora_modules"] or []:
        # vLLM would start, and answer with one of the two.
        if getattr(adapter, "name", "") in aliases:
            raise UsageError(f"{adapter.name} would be two judges: this one (--alias, --alias-of) and {adapter.path}")
        file = Path(getattr(adapter, "path", "")) / "adapter_config.json"
        commit = msgspec.json.decode(file.read_bytes()).get("revision") if file.is_file() else None
        # It was trained on another revision of the base.
        if commit and not Path(actual["model"]).is_dir() and actual["revision"] != commit:
            raise UsageError(f"{adapter.path} was trained over another revision of its base; add --revision {commit}")
    # A later middleware would see requests that the layer has not checked.
    if actual["middleware"][-1:] != LAYER[1:]:
        raise UsageError("what stands behind the -- hides the judge's layer from vLLM")
    return describe_settings(expected, actual)


def check_apart(ours: list[str], extra: list[str], aliases: Sequence[str]) -> str:
    """Return the result of `check`, run in a subprocess because importing vLLM takes much memory.

    Return "" at once if `extra` is empty. Raise UsageError as `check` does.
    """
    # Only critic's own options: nothing to check.
    if not extra:
        return ""
    with ProcessPoolExecutor(1, get_context("fork")) as pool:
        return pool.submit(_check, ours, extra, aliases).result()


def _check(ours: list[str], extra: list[str], aliases: Sequence[str]) -> str:
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    return check(build_parser(), ours, extra, aliases)
