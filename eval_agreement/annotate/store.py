"""The store of labels: one SQLite file in write-ahead mode.

Each label is one transaction and is never changed. The newest label of a task counts; earlier ones are its history.
"""

import secrets
import sqlite3
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from critic.errors import UsageError, located
from eval_agreement.annotate.plan import Role, Task
from eval_agreement.annotate.schemes import LabelItem

_TABLES = (files("eval_agreement") / "annotate" / "page/tables.sql").read_text("utf-8")

_decode_item = msgspec.json.Decoder(LabelItem).decode

_ADD_TASK = "INSERT INTO tasks (rater, place, item, role, swapped) VALUES (?, ?, ?, ?, ?)"


class RaterVerdict(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A rater's label of an item.

    `choices`: answers by question key, with sides in the item's own order; empty if the item is skipped or broken.
    `skipped`: the reason for skipping, or "". `seconds`: how long the item was in view, if known.
    `edits`: corrections as (old text, new text), by `ShownPart.field`.
    """

    choices: dict[str, str] = field(default_factory=dict)
    reason: str = ""
    skipped: str = ""
    broken: bool = False
    seconds: float | None = None
    edits: dict[str, tuple[str, str]] = field(default_factory=dict)


class RaterTask(NamedTuple):
    """An item for a rater, with its newest label.

    `task`, `number`: numbers of the task and of the item in the database.
    `known`: known answers of a check by question key; None for other items.
    `label`: number of the newest label; 0 if there is none. `at`: its time, in seconds since 1970.
    """

    task: int
    rater: str
    number: int
    item: LabelItem
    role: Role
    swapped: bool
    known: dict[str, str] | None = None
    label: int = 0
    at: float = 0.0
    verdict: RaterVerdict = RaterVerdict()


class Stale(Exception):
    """Raised if a label comes from an outdated page: the task was labelled, or the item corrected, meanwhile."""


class Store:
    """A database of labels in the file `path`. Each thread has its own connection; each method is one transaction."""

    def __init__(self, path: Path) -> None:
        self.path, self._own = path, threading.local()

    @classmethod
    def find(cls, path: Path) -> "Store | None":
        """Return the store at `path`, or None if the file is missing or empty.

        Raises UsageError if the file is not a database of labels.
        """
        if not path.is_file() or not path.stat().st_size:
            return None
        store = cls(path)
        tables = {name for (name,) in store._rows("SELECT name FROM sqlite_master WHERE type = 'table'")}
        # An empty database may be left by an interrupted start; one with other tables is somebody else's.
        if tables and not {"facts", "tasks", "labels"} <= tables:
            raise UsageError(f"--db {path}: no database of labels")
        return store if tables else None

    def _database(self) -> sqlite3.Connection:
        """Return this thread's connection. Raises UsageError for a file that is no database."""
        if not hasattr(self._own, "database"):
            try:
                database = sqlite3.connect(self.path, timeout=30, isolation_level=None)
                database.execute("PRAGMA journal_mode = WAL")
                database.execute("PRAGMA synchronous = FULL")
            except sqlite3.DatabaseError as error:
                raise UsageError(f"--db {self.path}: no database of labels ({error})") from None
            self._own.database = database
        return self._own.database  # type: ignore[no-any-return]

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """Open a transaction for writing. Raises UsageError if the database cannot be written, as with a full disk."""
        # The connection commits, or rolls everything back.
        with located(f"--db {self.path}: cannot be written", sqlite3.DatabaseError), self._database() as database:
            database.execute("BEGIN IMMEDIATE")
            yield database

    def _rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        """Return all rows of a query."""
        return self._database().execute(query, values).fetchall()

    def facts(self) -> dict[str, Any]:
        """Return the settings of the plan by name, and the hashes of its files."""
        return {name: msgspec.json.decode(value) for name, value in self._rows("SELECT name, value FROM facts")}

    def raters(self) -> dict[str, str]:
        """Return the raters' names, keyed by the token of each rater's link."""
        return dict(self._rows("SELECT token, name FROM raters ORDER BY name"))

    def counts(self) -> dict[str, tuple[int, int]]:
        """Return (labels given, tasks) of each rater, keyed by name."""
        return {name: (done, tasks) for name, done, tasks in self._rows("SELECT name, done, tasks FROM raters")}

    def items(self) -> dict[int, LabelItem]:
        """Return all items by number."""
        return {number: _decode_item(shown) for number, shown in self._rows("SELECT id, shown FROM items ORDER BY id")}

    def create(
        self,
        facts: Mapping[str, Any],
        raters: Mapping[str, str],
        items: Sequence[LabelItem],
        known: Mapping[str, dict[str, str]],
        tasks: Iterable[Task],
    ) -> None:
        """Create the tables, and fill them with a plan.

        `facts`: settings by name. `raters`: token by name. `known`: known answers by item id.
        """
        # Pages and files for raters name items by number, because ids may reveal the model.
        numbers = {item.id: number for number, item in enumerate(items, 1)}
        with self._writing() as database:
            for statement in _TABLES.split(";\n"):
                database.execute(statement)
            encoded = [(name, msgspec.json.encode(value).decode()) for name, value in facts.items()]
            database.executemany("INSERT INTO facts VALUES (?, ?)", encoded)
            database.executemany("INSERT INTO raters (name, token) VALUES (?, ?)", raters.items())
            for item in items:
                answer = msgspec.json.encode(known[item.id]) if item.id in known else None
                row = (numbers[item.id], item.id, msgspec.json.encode(item), answer)
                database.execute("INSERT INTO items VALUES (?, ?, ?, ?)", row)
            planned = ((task.rater, task.place, numbers[task.item], task.role, task.swapped) for task in tasks)
            database.executemany(_ADD_TASK, planned)
            database.execute("UPDATE raters SET tasks = (SELECT count(*) FROM tasks WHERE rater = name)")

    def _select_tasks(self, which: str, *values: Any) -> list[RaterTask]:
        """Return the tasks that meet `which`, a condition in SQL with `values` for its question marks."""
        query = (
            "SELECT t.id, t.rater, t.item, i.shown, t.role, t.swapped, i.known, coalesce(t.label, 0), l.at, l.said "
            "FROM tasks t JOIN items i ON i.id = t.item LEFT JOIN labels l ON l.id = t.label "
            f"WHERE {which}"
        )
        tasks = []
        for task, rater, number, shown, role, swapped, known, label, at, encoded in self._rows(query, *values):
            answers = known and msgspec.json.decode(known)
            # A task that nobody has labelled has an empty verdict.
            verdict = msgspec.json.decode(encoded, type=RaterVerdict) if label else RaterVerdict()
            item = _decode_item(shown)
            tasks.append(RaterTask(task, rater, number, item, role, bool(swapped), answers, label, at, verdict))
        return tasks

    def opened(self, task: int, rater: str | None = None) -> RaterTask:
        """Return a task. Raises KeyError if its number is unknown, or if it belongs to another rater than `rater`."""
        for opened in self._select_tasks("t.id = ?", task):
            if rater in (None, opened.rater):
                return opened
        raise KeyError(task)

    def next(self, rater: str) -> RaterTask | None:
        """Return the rater's next task, or None if all are done."""
        tasks = self._select_tasks("t.rater = ? AND t.label IS NULL ORDER BY t.place LIMIT 1", rater)
        return tasks[0] if tasks else None

    def tasks(self, rater: str) -> list[RaterTask]:
        """Return all tasks of a rater, in their order."""
        return self._select_tasks("t.rater = ? ORDER BY t.place", rater)

    def last(self, rater: str, before: int = 0) -> int | None:
        """Return the number of the task that a rater labelled last, or None. A changed label counts as a new one.

        `before`: number of a label; only labels before it count. 0 for all.
        """
        query = "SELECT id FROM tasks WHERE rater = ? AND label < ? ORDER BY label DESC LIMIT 1"
        rows = self._rows(query, rater, before or 2**62)
        return rows[0][0] if rows else None

    def label(self, rater: str, task: int, seen: int, verdict: RaterVerdict, version: str = "") -> None:
        """Store a rater's label of a task. If the same page is sent twice, one label is stored.

        `seen`: number of the label that the page showed, 0 for none. `version`: version of the item on the page, "" for
        any.
        If the label corrects a text, all other raters label the item again.
        Raises Stale if the newest label or the item's version is another one, and KeyError for another rater's task.
        """
        with self._writing() as database:
            opened = self.opened(task, rater)
            if opened.label != seen or version not in ("", opened.item.version):
                # If a page is sent twice, only the time differs; its corrections are in the item by now.
                if opened.label and replace(opened.verdict, seconds=verdict.seconds, edits={}) == verdict:
                    return
                raise Stale
            row = (task, time.time(), msgspec.json.encode(verdict))
            cursor = database.execute("INSERT INTO labels (task, at, said) VALUES (?, ?, ?)", row)
            database.execute("UPDATE tasks SET label = ? WHERE id = ?", (cursor.lastrowid, task))
            database.execute("UPDATE raters SET done = done + ? WHERE name = ?", (not opened.label, rater))
            if verdict.edits:
                # All others who labelled it are asked again, because the text that they saw has changed.
                shown = msgspec.json.encode(opened.item.corrected(verdict.edits))
                item = "(SELECT item FROM tasks WHERE id = ?)"
                database.execute(f"UPDATE items SET shown = ? WHERE id = {item}", (shown, task))
                database.execute(f"UPDATE tasks SET label = NULL WHERE item = {item} AND id <> ?", (task, task))
                done = "SELECT count(*) FROM tasks WHERE rater = name AND label IS NOT NULL"
                database.execute(f"UPDATE raters SET done = ({done})")

    def edits(self) -> dict[int, list[dict[str, Any]]]:
        """Return corrections by item number: rater, time (seconds since 1970), field, old text, new text."""
        by_item = defaultdict[int, list[dict[str, Any]]](list)
        query = "SELECT t.item, t.rater, l.at, l.said FROM labels l JOIN tasks t ON t.id = l.task ORDER BY l.id"
        for number, rater, at, encoded in self._rows(query):
            for name, (old, new) in msgspec.json.decode(encoded, type=RaterVerdict).edits.items():
                by_item[number].append({"rater": rater, "at": at, "field": name, "old": old, "new": new})
        return by_item

    def find_task(self, rater: str, item: int, swapped: bool) -> RaterTask:
        """Return a rater's task for an item that was labelled in another program.

        Add the rater and the task if missing.
        `swapped`: whether that program exchanged the sides. The task is changed accordingly unless it is already
        labelled.
        """
        with self._writing() as database:
            named = (rater, secrets.token_urlsafe(16))
            database.execute("INSERT OR IGNORE INTO raters (name, token) VALUES (?, ?)", named)
            ((known,),) = self._rows("SELECT known FROM items WHERE id = ?", item)
            # Only checks have a known answer.
            role: Role = "item" if known is None else "check"
            added = database.execute(f"{_ADD_TASK} ON CONFLICT DO NOTHING", (rater, 0.0, item, role, swapped))
            database.execute("UPDATE raters SET tasks = tasks + ? WHERE name = ?", (added.rowcount, rater))
            turn = "UPDATE tasks SET swapped = ? WHERE rater = ? AND item = ? AND role = ? AND label IS NULL"
            database.execute(turn, (swapped, rater, item, role))
            return self._select_tasks("t.rater = ? AND t.item = ? AND t.role = ?", rater, item, role)[0]

    def labels(self) -> list[RaterTask]:
        """Return all labelled tasks with their newest labels, in the order in which these were given."""
        return self._select_tasks("t.label IS NOT NULL ORDER BY t.label")
