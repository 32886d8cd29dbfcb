"""A judge published on a small hub of this machine: the files, the card that hubs read, and a kill in the middle."""

import base64
import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from subprocess import DEVNULL, Popen
from typing import Any

import pytest
from conftest import ROOT, assert_one_line_error, certify, command, run, run_apart

from critic.backends import identity
from critic.jsonl import write_json

pytest.importorskip("huggingface_hub")

RECIPE = {"revision": None, "max_source_tokens": 9, "max_target_tokens": 9}


class Hub(ThreadingHTTPServer):
    """Four of a hub's routes. `large`: what was uploaded, by SHA-256. `files`: what is committed, by path. `received`:
    the hashes in the order of their arrival. While `hung` is set, no upload ends.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Route)
        self.large, self.files, self.received = dict[str, bytes](), dict[str, bytes](), list[str]()
        self.hung, self.url = threading.Event(), f"http://127.0.0.1:{self.server_port}"


class Route(BaseHTTPRequestHandler):
    server: Hub

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"] or 0))
        hub, reply = self.server, dict[str, Any]()
        if self.path.endswith("/create"):
            reply = {"url": f"{hub.url}/me/judge"}
        elif "/preupload/" in self.path:
            for name in (file["path"] for file in json.loads(body)["files"]):
                mode = "lfs" if "safetensors" in name else "regular"
                reply.setdefault("files", []).append({"path": name, "uploadMode": mode, "shouldIgnore": False})
        elif self.path.endswith("/objects/batch"):
            reply["objects"] = json.loads(body)["objects"]
            for large in (each for each in reply["objects"] if each["oid"] not in hub.large):
                large["actions"] = {"upload": {"href": f"{hub.url}/{large['oid']}"}}
        elif "/commit/" in self.path:
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    hub.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
                elif line["key"] == "lfsFile":
                    hub.files[line["value"]["path"]] = hub.large[line["value"]["oid"]]
            reply = {"commitUrl": f"{hub.url}/me/judge/commit/1", "commitOid": "1"}
        self.answer(json.dumps(reply).encode())

    def do_PUT(self) -> None:
        self.server.received.append(self.path[1:])
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.server.hung.is_set() and len(self.server.received) > 1:
            return
        self.server.large[self.path[1:]] = body
        self.answer(b"")

    def answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def hub() -> Iterator[Hub]:
    with Hub() as server:
        threading.Thread(target=server.serve_forever).start()
        yield server
        server.shutdown()


@pytest.fixture
def judge(tmp_path: Path) -> Path:
    """A judge's folder as training leaves it, of two files of weights, with a checkpoint, and its certificate."""
    folder = tmp_path / "judge"
    recipe, base = RECIPE | {"base": str(tmp_path)}, {"licence": "Own Terms, https://own.example/terms"}
    write_json(folder / "critic.json", {"recipe": recipe, "base": base})
    for name in ("config.json", "tokenizer_config.json"):
        write_json(folder / name, {})
    for name in ("model-1.safetensors", "model-2.safetensors", "checkpoint-9/model.safetensors"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(name.encode() * 99)
    card = f"---\npipeline_tag: text-generation\nbase_model: {tmp_path}\n---\n\n# A judge\n\nMade from {tmp_path}.\n"
    (folder / "README.md").write_text(card)
    certify(tmp_path / "c.json", identity.own_name(str(folder), identity.read_notes(folder)))
    return folder


def test_what_was_sent_before_a_kill_is_not_sent_again(hub: Hub, judge: Path, tmp_path: Path) -> None:
    env = {"HF_ENDPOINT": hub.url, "HF_TOKEN": "hf_of_me", "HF_HUB_DISABLE_XET": "1", "HF_HUB_OFFLINE": "0"}
    env |= {"HOME": str(tmp_path), "PATH": "", "PYTHONPATH": str(ROOT)}
    words = ("critic", "push", judge, "me/judge", "--certificate", tmp_path / "c.json")
    hub.hung.set()
    with Popen(command(*words), env=env, cwd=ROOT, stdout=DEVNULL, stderr=DEVNULL) as process:
        while not hub.large or len(hub.received) < 2:
            assert process.poll() is None
        process.kill()
    assert not hub.files
    hub.hung.clear()
    assert run_apart(*words, env=env, code=0).stdout.endswith(f"published: {hub.url}/me/judge\n")
    assert sorted(hub.files) == [
        "README.md", "certificate.json", "config.json", "critic.json", "model-1.safetensors", "model-2.safetensors",
        "tokenizer_config.json",
    ]  # fmt: skip
    assert all(hub.files[name] == (judge / name).read_bytes() for name in hub.files if "model" in name)
    assert len(hub.received) == 3 and hub.files["certificate.json"] == (tmp_path / "c.json").read_bytes()

    from huggingface_hub import ModelCard

    card: Any = ModelCard(hub.files["README.md"].decode())
    terms, (result,) = (card.data.license, card.data.license_name, card.data.license_link), card.data.eval_results
    assert terms == ("other", "Own Terms", "https://own.example/terms") and card.data.base_model is None
    assert (result.metric_type, result.metric_value, result.dataset_revision) == ("mae", 0.8, "5a" * 32)
    assert result.metric_args == {"interval_95": [0.7, 0.95], "n": 60} and result.dataset_name == "people.csv"
    assert "mae 0.80 [0.70, 0.95]" in card.text and str(tmp_path) not in card.content


def test_what_may_not_be_published_is_refused(judge: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line, and nothing is sent: no licence known, terms that forbid, another judge's certificate, no network."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    push = ("critic", "push", judge, "me/judge")
    assert_one_line_error(run(*push), "me/judge: not published", "HF_HUB_OFFLINE")
    for base, licence, line in (
        ({"licence": "cc-by-nd-4.0"}, "mit", "its terms (cc-by-nd-4.0) forbid"),
        ({}, None, "the licence of someone/base is not known; name the judge's: --licence ID"),
    ):
        write_json(judge / "critic.json", {"recipe": RECIPE | {"base": "someone/base"}, "base": base})
        assert_one_line_error(run(*push, *(["--licence", licence] if licence else [])), line)
    shown = run(*push, "--licence", "MIT", "--dry-run", code=0).stdout
    assert "license: mit" in shown and "  config.json\n" in shown
    (judge / "config.json").write_text("{ }")
    assert_one_line_error(run(*push, "--licence", "mit", "--certificate", tmp_path / "c.json"), "it is of judge@")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert_one_line_error(run(*push), "pip install huggingface_hub")
