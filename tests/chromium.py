"""A real Chromium for tests, driven by its own protocol (DevTools) over a pipe. Skipped where there is none."""

import json
import os
import select
import shutil
import time
from contextlib import suppress
from itertools import count
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen
from typing import Any

import pytest

VIRTUAL = {"Enter": 13, "Escape": 27}


class Chromium:
    """One tab. `events` are what the browser said unasked since a page was opened; its keys are real."""

    def __init__(self, home: Path) -> None:
        program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
        if program is None:
            pytest.skip("needs Chromium (Debian: apt-get install chromium)")
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--remote-debugging-pipe"]
        # It reads messages from descriptor 3 and writes them to 4.
        command = ["bash", "-c", 'exec "$0" "$@" 3<&0 4>&1', program, *options, f"--user-data-dir={home}"]
        self.process = Popen(command, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, bufsize=0)
        self._read, self._numbers, self._tab, self.events = b"", count(), dict[str, str](), list[dict[str, Any]]()
        tab = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._tab = {"sessionId": self.call("Target.attachToTarget", targetId=tab, flatten=True)["sessionId"]}
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def _receive(self) -> dict[str, Any]:
        assert self.process.stdout
        while b"\0" not in self._read:
            ready, _, _ = select.select([self.process.stdout], [], [], 60)
            more = os.read(self.process.stdout.fileno(), 1 << 20) if ready else b""
            assert more, "Chromium says nothing"
            self._read += more
        message, _, self._read = self._read.partition(b"\0")
        return json.loads(message)  # type: ignore[no-any-return]

    def call(self, method: str, **params: Any) -> Any:
        message = {"id": next(self._numbers), "method": method, "params": params, **self._tab}
        assert self.process.stdin and self.process.stdin.write(json.dumps(message).encode() + b"\0")
        while (reply := self._receive()).get("id") != message["id"]:
            self.events.append(reply)
        assert "error" not in reply, reply
        return reply["result"]

    def js(self, code: str) -> Any:
        result = self.call("Runtime.evaluate", expression=code, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def until(self, code: str) -> None:
        end = time.monotonic() + 60
        while time.monotonic() < end:
            with suppress(AssertionError):  # a page that is just being left answers nothing
                if self.js(code):
                    return
            time.sleep(0.02)
        raise AssertionError(f"{code}: {self.js('document.body.innerText')}")

    def wait_for(self, method: str, **facts: Any) -> None:
        """Wait for an event that has the facts among its parameters."""
        while not any(each["method"] == method and facts.items() <= each["params"].items() for each in self.events):
            self.events.append(self._receive())

    def open(self, url: str) -> None:
        self.events.clear()
        self.call("Page.navigate", url=url)
        self.wait_for("Page.loadEventFired")

    def key(self, key: str) -> None:
        text = "\r" if key == "Enter" else key if len(key) == 1 else ""
        code = VIRTUAL.get(key, ord(key[0].upper()))
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, text=text, windowsVirtualKeyCode=code)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)

    def complaints(self) -> list[dict[str, Any]]:
        """Return the scripts that failed, and what broke a page's policy."""
        failed = [event for event in self.events if event["method"] == "Runtime.exceptionThrown"]
        entries = [event["params"]["entry"] for event in self.events if event["method"] == "Log.entryAdded"]
        return failed + [entry for entry in entries if entry["source"] != "network"]

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
