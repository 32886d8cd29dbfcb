"""Serving: mistakes end before anything is loaded. The real server is part of test_demo.py."""

import json
import socket
from pathlib import Path

import pytest
from conftest import assert_one_line_error, run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Looks like a model from outside; its configuration names no architecture."""
    made = tmp_path / "model"
    made.mkdir()
    (made / "config.json").write_text(json.dumps({"model_type": "none"}))
    (made / "tokenizer_config.json").write_text("{}")
    return made


def test_a_folder_that_is_no_model(tmp_path: Path) -> None:
    assert_one_line_error(run("serve/judge.py", tmp_path), "no model folder", "config.json")
    assert_one_line_error(run("serve/judge.py", tmp_path / "none"), "no such model folder")


def test_a_port_in_use(folder: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert_one_line_error(run("serve/judge.py", folder, "--port", str(port)), str(port), "--port")


def test_an_open_address_needs_a_key(folder: Path) -> None:
    assert_one_line_error(run("serve/judge.py", folder, "--host", "0.0.0.0"), "--api-key")
    assert_one_line_error(run("serve/judge.py", folder, "--host", "no.such.host.invalid"), "--host")


def test_a_server_that_does_not_come_up(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("vllm", reason="needs a serve extra")
    done = run("serve/judge.py", folder, "--port", "8765", "--log", tmp_path / "serve.log")
    assert_one_line_error(done, "before it was ready", "serve.log")
    assert "ready" not in done.stdout
