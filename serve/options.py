"""Whether options of vLLM leave alone what the server guards: read by vLLM's own parser, before anything is loaded.

    python serve/options.py '["--model", "runs/demo/judge", "--port", "8000"]' '["--max-num-seqs", "8"]'

A program of its own, as vLLM takes seconds and memory to import. The first list is ours, the second the user's. What
counts is what both come to: abbreviations, underscores, `--config FILE` and dotted names are vLLM's to resolve.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from critic.backends.identity import other_settings, parsed
from critic.errors import UsageError

LAYER = ["--middleware", "layer.JudgeLayer"]
"""Behind all other options: the last middleware is the outermost, and no request may go round it."""

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
    "model": BEFORE.format("the model"),
    "model_tag": BEFORE.format("the model"),
    "served_model_name": "--served-model-name is set already; --alias, before the --, adds names",
    "ssl_keyfile": "the server answers in plain HTTP: put a TLS proxy before it instead of --ssl-keyfile",
    "ssl_certfile": "the server answers in plain HTTP: put a TLS proxy before it instead of --ssl-certfile",
}
"""vLLM's settings that move the server, or its key, and what is said to who changes one."""


class Told(NamedTuple):
    """What the layer has to know of vLLM's settings: whether vLLM reads calls of tools from free replies, and whether
    a request that names no temperature gets its most likely reply; and what makes another judge (`other_settings`)."""

    auto_tools: bool = False
    greedy: bool = True
    others: str = ""


def vllm_parser() -> Any:
    """The parser of vLLM's server."""
    from vllm.entrypoints.launchers.cli_args import make_arg_parser  # noqa: PLC0415 - seconds
    from vllm.utils.argparse_utils import FlexibleArgumentParser  # noqa: PLC0415

    return make_arg_parser(FlexibleArgumentParser())


def check(parser: Any, ours: list[str], extra: list[str]) -> Told:
    """What vLLM's settings come to. Raises UsageError where `extra`, the user's options, are none of vLLM's, or change
    a guarded setting."""
    wanted, found = parsed(parser, [*ours, *LAYER]), parsed(parser, [*ours, *extra, *LAYER])
    for name, problem in GUARDED.items():
        if found[name] != wanted[name]:
            raise UsageError(problem)
    if found["middleware"][-1:] != LAYER[1:]:
        raise UsageError("what stands behind the -- hides the judge's layer from vLLM")
    return Told(
        bool(found["enable_auto_tool_choice"]),
        (found["override_generation_config"] or {}).get("temperature") == 0,
        other_settings(wanted, found),
    )


def check_apart(ours: list[str], extra: list[str]) -> Told:
    """`check` in a process of its own; nothing is started for no options."""
    if not extra:
        return Told()
    words = [sys.executable, str(Path(__file__)), *map(json.dumps, (ours, extra))]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise UsageError(done.stderr.strip().splitlines()[-1])
    return Told(*json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    try:
        print(json.dumps(check(vllm_parser(), *map(json.loads, sys.argv[1:]))))
    except UsageError as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main()
