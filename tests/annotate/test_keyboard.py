"""A rater at the keyboard of a real Chromium, by its own protocol. Skipped where there is no Chromium."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from annotating import forked, planned, rows_file
from conftest import free_port

PROGRAM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(PROGRAM is None, reason="needs Chromium (Debian: apt-get install chromium)")

VIRTUAL = {"Enter": 13, "Escape": 27}


class Chromium:
    """One tab; `events` are what the browser said unasked."""

    def __init__(self, home: Path) -> None:
        client: Any = pytest.importorskip("websockets.sync.client")
        options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--remote-debugging-port=0"]
        words = [str(PROGRAM), *options, f"--user-data-dir={home}", "about:blank"]
        self.process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        ports, end = home / "DevToolsActivePort", time.monotonic() + 60
        while not (ports.is_file() and ports.read_text().count("\n")):
            assert time.monotonic() < end, "Chromium did not start"
            time.sleep(0.05)
        port = ports.read_text().split()[0]
        request = urllib.request.Request(f"http://127.0.0.1:{port}/json/new?about:blank", method="PUT")
        target = json.load(urllib.request.urlopen(request))
        self.open_socket = contextlib.ExitStack()
        self.socket = self.open_socket.enter_context(client.connect(target["webSocketDebuggerUrl"], max_size=None))
        self.count, self.events = 0, []  # type: ignore[var-annotated]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> Any:
        self.count += 1
        self.socket.send(json.dumps({"id": self.count, "method": method, "params": params}))
        while (message := json.loads(self.socket.recv(timeout=60))).get("id") != self.count:
            self.events.append(message)
        assert "error" not in message, message
        return message["result"]

    def js(self, code: str) -> Any:
        return self.call("Runtime.evaluate", expression=code, returnByValue=True)["result"].get("value")

    def until(self, code: str) -> None:
        end = time.monotonic() + 60
        while time.monotonic() < end:
            with contextlib.suppress(AssertionError):  # a page that is just being left answers nothing
                if self.js(code):
                    return
            time.sleep(0.02)
        raise AssertionError(f"{code}: {self.js('document.body.innerText')}")

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)
        self.until("document.readyState == 'complete' && location.href != 'about:blank'")

    def key(self, key: str) -> None:
        text = "\r" if key == "Enter" else key if len(key) == 1 else ""
        code = VIRTUAL.get(key, ord(key[0].upper()))
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, text=text, windowsVirtualKeyCode=code)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)

    def save(self) -> None:
        """Enter, and wait for the next page."""
        self.js("window.old = true")
        self.key("Enter")
        self.until("!window.old && document.readyState == 'complete'")


@pytest.fixture
def chromium(tmp_path: Path) -> Iterator[Chromium]:
    browser = Chromium(tmp_path / "home")
    try:
        yield browser
    finally:
        browser.open_socket.close()
        browser.process.kill()
        browser.process.wait()


def test_thirty_items_by_keyboard_over_a_kill(tmp_path: Path, chromium: Chromium) -> None:
    """The server is killed while a label is on its way: the page says so, tries again, and goes on by itself."""
    store = planned(tmp_path, rows=rows_file(tmp_path, 30))
    port = free_port()
    with forked(store.path, port) as (child, url):
        chromium.open(f"{url}/?rater=rater-1")
        for number in range(12):
            chromium.key(str(number % 10))
            chromium.save()
        os.kill(child, signal.SIGKILL)
        chromium.key("7")
        chromium.key("Enter")
        chromium.until("document.querySelector('#status').textContent.includes('no connection')")
        assert store.counts()["rater-1"][0] == 12
    with forked(store.path, port) as (_, url):
        chromium.until("document.title.includes('13 of 30') && document.readyState == 'complete'")
        for number in range(17):
            chromium.key(str(number % 10))
            if number == 3:
                chromium.key("r")
                chromium.call("Input.insertText", text="7 is fair")
                chromium.key("Escape")
            chromium.save()
        assert "30 of 30" in chromium.js("document.title") and "All done" in chromium.js("document.body.innerText")
        chromium.js("window.old = true")
        chromium.key("u")
        chromium.until("!window.old && document.readyState == 'complete'")
        chromium.key("2")
        chromium.save()
    given = list(store.labels())
    assert len(given) == 30 and [label.verdict.choices["overall"] for label in given][-1] == "2"
    assert [label.verdict.reason for label in given].count("7 is fair") == 1
    assert all(label.verdict.seconds is not None for label in given)
    _quiet(chromium)


def _quiet(chromium: Chromium) -> None:
    """No script failed, nothing broke the policy, and nothing was asked of anybody else."""
    assert not [event for event in chromium.events if event["method"] == "Runtime.exceptionThrown"]
    entries = [event["params"]["entry"] for event in chromium.events if event["method"] == "Log.entryAdded"]
    assert not [entry for entry in entries if entry["source"] != "network"], entries
    urls = {
        event["params"]["request"]["url"] for event in chromium.events if event["method"] == "Network.requestWillBeSent"
    }
    assert all(url.startswith(("http://127.0.0.1:", "data:")) for url in urls), urls


def test_skipping_double_clicks_and_many_questions(tmp_path: Path, chromium: Chromium) -> None:
    store = planned(tmp_path, "--scheme", "checklist", rows=rows_file(tmp_path, 4))
    with forked(store.path) as (_, url):
        chromium.open(f"{url}/?rater=rater-1")
        chromium.key("Enter")
        chromium.until("document.querySelector('#status').textContent.includes('every question')")
        chromium.key("y")
        chromium.key("n")
        chromium.js(
            "window.old = true; const b = document.querySelector('[type=submit]'); b.click(); b.click(); b.click()"
        )
        chromium.until("!window.old && document.readyState == 'complete'")
        chromium.key("s")
        chromium.call("Input.insertText", text="no idea")
        chromium.save()
        chromium.until("document.title.includes('2 of 4')")
    said = [label.verdict for label in store.labels()]
    assert [verdict.choices for verdict in said] == [{"item=1": "yes", "item=2": "no"}, {}]
    assert said[1].skipped == "no idea"
    assert store._rows("SELECT count(*) FROM labels") == [(2,)]
