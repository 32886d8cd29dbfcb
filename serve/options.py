"""The options that the server's layer gets, and those of vLLM, which must leave alone what the server guards.

vLLM's options are read by vLLM's own parser, before anything is loaded. What counts is what our options and the user's
come to: abbreviations, underscores, `--config FILE` and dotted names are vLLM's to resolve.
"""

import json
import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import msgspec

from critic.backends.identity import describe_settings, parse_options
from critic.errors import UsageError

LAYER = ["--middleware", "layer.JudgeLayer"]
"""Behind all other options: the last middleware is the outermost, and no request may go round it."""

SETTINGS = "CRITIC_SERVE_LAYER"
"""The environment variable that carries the settings (JSON) from judge.py to the server process."""

BEFORE = "{} belongs before the --, where it is checked"
GUARDED = {
    "host": BEFORE.format("--host"),
    "port": BEFORE.format("--port"),
    "api_key": BEFORE.format("--api-key"),
    "uds": "--uds would move the server away from the address that is checked",
    "root_path": "--root-path would move the routes that the judge's layer knows",
    "grpc": "--grpc would serve without the judge's layer",
    "grpc_port": "--grpc-port would serve without the judge's layer",
    "data_parallel_multi_port_external_lb": "this load balancer would serve on ports that are not checked",
    "data_parallel_supervisor_port": "--data-parallel-supervisor-port would serve on a port that is not checked",
    "headless": "--headless would serve nothing",
    "data_parallel_size": BEFORE.format("--gpus N instead of --data-parallel-size"),
    "api_server_count": "--api-server-count: --gpus N, before the --, starts a process of the API for each engine",
    "model": BEFORE.format("the model"),
    "model_tag": BEFORE.format("the model"),
    "served_model_name": "--served-model-name is set already; --alias, before the --, adds names",
    "ssl_keyfile": "the server answers in plain HTTP: put a TLS proxy before it instead of --ssl-keyfile",
    "ssl_certfile": "the server answers in plain HTTP: put a TLS proxy before it instead of --ssl-certfile",
}
"""vLLM's settings that move the server, or its key, and what is said to who changes one."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """`model` is the true name; `contracts` are the operator's files; `images` says whether the judge sees them.
    `about` stands beside the judge's name under /v1/models: the hash of its processor, the forms that it was trained
    in, its certificate and that one's hash. `control_tokens` are the judge's own, which no message may hold.
    `as_learned`: clients' questions are asked in a form that the judge learned, where their parts are found."""

    model: str
    aliases: list[str]
    contracts: list[str]
    max_bytes: int
    images: bool
    about: dict[str, Any] = {}
    control_tokens: list[str] = []
    as_learned: bool = False


def build_parser() -> Any:
    """Build the parser of vLLM's server."""
    from vllm.entrypoints.launchers.cli_args import make_arg_parser  # noqa: PLC0415 - seconds
    from vllm.utils.argparse_utils import FlexibleArgumentParser  # noqa: PLC0415

    return make_arg_parser(FlexibleArgumentParser())


def check(parser: Any, ours: list[str], extra: list[str]) -> str:
    """Return vLLM's settings that make another judge (`describe_settings`).

    Raises UsageError if `extra`, the user's options, are none of vLLM's or change a guarded setting.
    """
    expected, actual = parse_options(parser, [*ours, *LAYER]), parse_options(parser, [*ours, *extra, *LAYER])
    for name, problem in GUARDED.items():
        # Whatever the spelling, it is the parsed value that counts.
        if actual[name] != expected[name]:
            raise UsageError(problem)
    check_adapters(actual)
    # A middleware behind ours would see requests that ours has not checked.
    if actual["middleware"][-1:] != LAYER[1:]:
        raise UsageError("what stands behind the -- hides the judge's layer from vLLM")
    return describe_settings(expected, actual)


def check_adapters(settings: dict[str, Any]) -> None:
    """Raise UsageError for an adapter over another revision of a hub's model than the one that is served."""
    for adapter in settings["lora_modules"] or []:
        file = Path(getattr(adapter, "path", "")) / "adapter_config.json"
        commit = json.loads(file.read_text("utf-8")).get("revision") if file.is_file() else None
        if commit and not Path(settings["model"]).is_dir() and settings["revision"] != commit:
            raise UsageError(f"{adapter.path} was trained over another revision of its base; add --revision {commit}")


def check_apart(ours: list[str], extra: list[str]) -> str:
    """Run `check` in a process of its own, as vLLM takes much memory to import; without options start nothing."""
    # vLLM's defaults are ours.
    if not extra:
        return ""
    with ProcessPoolExecutor(1, get_context("fork")) as pool:
        return pool.submit(_check, ours, extra).result()


def _check(ours: list[str], extra: list[str]) -> str:
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    return check(build_parser(), ours, extra)
