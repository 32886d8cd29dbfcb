"""A rater at the keyboard of a real Chromium, by its own protocol. Skipped where there is no Chromium."""

import os
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from annotating import forked, planned, rows_file
from chromium import Chromium
from conftest import free_port


@pytest.fixture
def chromium(tmp_path: Path) -> Iterator[Chromium]:
    with closing(Chromium(tmp_path / "home")) as browser:
        yield browser


def save(chromium: Chromium) -> None:
    """Enter, and wait for the next page."""
    chromium.js("window.old = true")
    chromium.key("Enter")
    chromium.until("!window.old && document.readyState == 'complete'")


def test_thirty_items_by_keyboard_over_a_kill(tmp_path: Path, chromium: Chromium) -> None:
    """The server is killed while a label is on its way: the page says so, tries again, and goes on by itself."""
    store = planned(tmp_path, rows=rows_file(tmp_path, 30))
    port = free_port()
    with forked(store.path, port) as (child, url):
        chromium.open(f"{url}/?rater=rater-1")
        for number in range(12):
            chromium.key(str(number % 10))
            save(chromium)
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
            save(chromium)
        assert "30 of 30" in chromium.js("document.title") and "All done" in chromium.js("document.body.innerText")
        chromium.js("window.old = true")
        chromium.key("u")
        chromium.until("!window.old && document.readyState == 'complete'")
        chromium.key("2")
        save(chromium)
    given = list(store.labels())
    assert len(given) == 30 and [label.verdict.choices["overall"] for label in given][-1] == "2"
    assert [label.verdict.reason for label in given].count("7 is fair") == 1
    assert all(label.verdict.seconds is not None for label in given)
    _quiet(chromium)


def _quiet(chromium: Chromium) -> None:
    """No script failed, nothing broke the policy, and nothing was asked of anybody else."""
    assert not chromium.complaints()
    urls = {
        event["params"]["request"]["url"] for event in chromium.events if event["method"] == "Network.requestWillBeSent"
    }
    assert all(url.startswith(("http://127.0.0.1:", "data:")) for url in urls), urls


def test_skipping_double_clicks_and_many_questions(tmp_path: Path, chromium: Chromium) -> None:
    store = planned(tmp_path, "--scheme", "checklist", rows=rows_file(tmp_path, 4))
    with forked(store.path) as (_, url):
        chromium.open(f"{url}/?rater=rater-1")
        shown = "document.querySelector('dialog').open"
        chromium.key("?")
        assert chromium.js(shown) and chromium.js("document.activeElement.closest('dialog').ariaModal !== 'false'")
        # What is behind the list takes no key: neither an answer nor the reason's field.
        chromium.key("y")
        chromium.key("r")
        chromium.key("Escape")
        # The focus leaves the closed list with the next frame; until then Enter would be for its button.
        chromium.until(f"!{shown} && !document.activeElement.closest('dialog')")
        assert not chromium.js("document.querySelector('input:checked') || document.activeElement.name")
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
        save(chromium)
        chromium.until("document.title.includes('2 of 4')")
    said = [label.verdict for label in store.labels()]
    assert [verdict.choices for verdict in said] == [{"item=1": "yes", "item=2": "no"}, {}]
    assert said[1].skipped == "no idea"
    assert store._rows("SELECT count(*) FROM labels") == [(2,)]
