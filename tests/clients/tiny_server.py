"""An untrained tiny judge and a server for it: what the tests and measurements of serving share."""

import contextlib
import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from clients.forms import FORMS
from conftest import ROOT

CONTEXT = 1536


def make_judge(folder: Path) -> Path:
    """A judge whose replies are arbitrary: what it is asked for, the server has to see to."""
    sys.path.insert(0, str(ROOT / "train"))
    from tiny import TinySpec, random_model, train_tokenizer

    spec = TinySpec(
        vocab_size=800, hidden_size=64, intermediate_size=128, layers=2, heads=1, initializer_range=0.25, seed=1
    )
    prompts = [json.dumps(form.request["messages"]) for form in FORMS]
    tokenizer = train_tokenizer(((prompt, '{"Rating":7,"Reason":"It says so."}') for prompt in prompts), spec)
    random_model(spec, tokenizer, CONTEXT).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "critic.json").write_text(json.dumps({"weights": {"model.safetensors": "x"}}))
    return folder


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def serving(judge: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`serve/judge.py` on the judge: its process, and its URL without `/v1`."""
    words = [sys.executable, "serve/judge.py", str(judge), "--port", str(free_port()), "--log", str(judge / "log")]
    server = subprocess.Popen([*words, "--stop-with-parent", *options], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        ready = server.stdout.readline()
        assert ready.startswith("ready: "), (judge / "log").read_text("utf-8")[-3000:]
        yield server, ready.split()[1].removesuffix("/v1")
    finally:
        server.terminate()
        server.wait()
