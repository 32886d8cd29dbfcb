"""The store of labels: one SQLite file in write-ahead mode.

Each label is one transaction and is never changed. The newest label of a task counts; earlier ones are its history.
"""

import secrets
import sqlite3
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from critic.errors import UsageError, located
from eval_agreement.annotate.plan import Role, Task
from eval_agreement.annotate.schemes import LabelItem, ShownPart, exchanged

_VERSION = 1
"""Version of the tables (page/tables.sql), which each database keeps as its `user_version`; 0 in those made before it.
"""

_ADD_TASKS = "INSERT INTO tasks (rater, place, item, role, swapped)"


PlannedItem = tuple[LabelItem, dict[str, str] | None]
"""An item to label, and the known answers by question key if it is a check."""


class RaterVerdict(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A rater's label of an item.

    `choices`: answers by question key, with the item's sides, not those shown; empty if the item is skipped or broken.
    `reason`: the rater's reason for the choices. `skipped`: the reason for skipping, or "". `broken`: True if the rater
    reported the item as broken. `seconds`: how long the item was in view, None if unknown.
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

    @property
    def parts(self) -> list[ShownPart]:
        """The item's texts turn by turn, with sides as this rater sees them, A first.

        Their order must not tell which side was exchanged.
        """
        parts = [replace(part, side=exchanged(part.side, self.swapped)) for part in self.item.parts]
        return sorted(parts, key=lambda part: (part.turn, part.side))

    @property
    def chosen(self) -> dict[str, str]:
        """The rater's answers by question key, with sides as this rater sees them."""
        return {ask: exchanged(value, self.swapped) for ask, value in self.verdict.choices.items()}


# How SQLite decodes a column whose name in a query ends in one of these words, as in `shown AS "shown [item]"`.
sqlite3.register_converter("item", msgspec.json.Decoder(LabelItem).decode)
sqlite3.register_converter("verdict", msgspec.json.Decoder(RaterVerdict).decode)
sqlite3.register_converter("json", msgspec.json.decode)
sqlite3.register_converter("flag", lambda digit: digit == b"1")


def _read(script: str) -> str:
    """Return the text of a file in page/."""
    return (files("eval_agreement") / "annotate/page" / script).read_text("utf-8")


def _execute(database: sqlite3.Connection, script: str) -> None:
    """Execute the statements of a file in page/ within the open transaction."""
    for statement in _read(script).split(";\n"):
        database.execute(statement)


class Stale(Exception):
    """Raised if a label comes from an outdated page: the task was labelled, or the item corrected, meanwhile."""


class Store(threading.local):
    """A database of labels in the file `path`. Each thread has its own connection; each method is one transaction."""

    def __init__(self, path: Path) -> None:
        """Open the database. Python calls this again in each thread that uses the store.

        Raises UsageError for a file that is no database.
        """
        self.path = path
        with located(f"--db {path}: no database of labels", sqlite3.DatabaseError):
            decoded = sqlite3.PARSE_COLNAMES
            self._database = sqlite3.connect(path, timeout=30, isolation_level=None, detect_types=decoded)
            self._database.execute("PRAGMA journal_mode = WAL")
            self._database.execute("PRAGMA synchronous = FULL")

    @classmethod
    def find(cls, path: Path) -> "Store | None":
        """Return the store at `path`, or None if the file is missing or empty; upgrade an older version.

        Raises UsageError if the file is not a database of labels, or was made by a later version.
        """
        if not path.is_file() or not path.stat().st_size:
            return None
        store = cls(path)
        tables = {name for (name,) in store._rows("SELECT name FROM sqlite_master WHERE type = 'table'")}
        # An empty database may be left by an interrupted start; one with other tables is somebody else's.
        if tables and not {"facts", "tasks", "labels"} <= tables:
            raise UsageError(f"--db {path}: no database of labels")
        ((version,),) = store._rows("PRAGMA user_version")
        if version > _VERSION:
            raise UsageError(f"--db {path}: made by a later version of critic; update critic, or give another --db")
        if tables and version < _VERSION:
            columns = {name for _, name, *_ in store._rows("PRAGMA table_info(items)")}
            with store._writing() as database:
                if "probability" in columns:
                    _execute(database, "chances.sql")
                _execute(database, "upgrade.sql")
                _execute(database, "counts.sql")
        return store if tables else None

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """Open a transaction for writing. Raises UsageError if the database cannot be written, as with a full disk."""
        # The connection commits, or rolls everything back.
        with located(f"--db {self.path}: cannot be written", sqlite3.DatabaseError), self._database as database:
            database.execute("BEGIN IMMEDIATE")
            yield database

    def _rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        """Return all rows of a query."""
        return self._database.execute(query, values).fetchall()

    def facts(self) -> dict[str, Any]:
        """Return the settings of the plan by name, and the hashes of its files."""
        return dict(self._rows('SELECT name, value AS "value [json]" FROM facts'))

    def raters(self) -> dict[str, str]:
        """Return the raters' names, keyed by the token of each rater's link."""
        return dict(self._rows("SELECT token, name FROM raters ORDER BY name"))

    def counts(self) -> dict[str, tuple[int, int]]:
        """Return (labels given, tasks) of each rater, keyed by name."""
        return {name: (done, tasks) for name, done, tasks in self._rows("SELECT name, done, tasks FROM raters")}

    def items(self) -> dict[int, LabelItem]:
        """Return all items by number."""
        return dict(self._rows('SELECT id, shown AS "shown [item]" FROM items ORDER BY id'))

    def create(
        self, facts: Mapping[str, Any], raters: Mapping[str, str], items: Iterable[PlannedItem], tasks: Iterable[Task]
    ) -> None:
        """Create the tables, and fill them with a plan. `facts`: settings by name. `raters`: token by name."""
        with self._writing() as database:
            _execute(database, "tables.sql")
            encoded = [(name, msgspec.json.encode(value).decode()) for name, value in facts.items()]
            database.executemany("INSERT INTO facts VALUES (?, ?)", encoded)
            database.executemany("INSERT INTO raters (name, token) VALUES (?, ?)", raters.items())
            # Pages and files for raters name items by their number, because ids may reveal the model.
            rows = [(item.id, msgspec.json.encode(item), known and msgspec.json.encode(known)) for item, known in items]
            database.executemany("INSERT INTO items (key, shown, known) VALUES (?, ?, ?)", rows)
            values = "VALUES (?, ?, (SELECT id FROM items WHERE key = ?), ?, ?)"
            database.executemany(f"{_ADD_TASKS} {values}", tasks)
            _execute(database, "counts.sql")

    def _select_tasks(self, which: str, *values: Any) -> list[RaterTask]:
        """Return the tasks that meet the SQL condition `which`. `values` replace its question marks."""
        return [RaterTask(*row) for row in self._rows(f"{_read('tasks.sql')} WHERE {which}", *values)]

    def opened(self, task: int, rater: str | None = None) -> RaterTask:
        """Return a task. Raises KeyError if its number is unknown, or if it belongs to another rater than `rater`."""
        for opened in self._select_tasks("t.id = ? AND t.rater = coalesce(?, t.rater)", task, rater):
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
        Raises Stale if the task's newest label is not `seen`, or the item's version not `version`. Raises KeyError for
        another rater's task.
        """
        with self._writing() as database:
            opened = self.opened(task, rater)
            if opened.label != seen or version not in ("", opened.item.version):
                # If a page is sent twice, only the time differs; its corrections are in the item by now.
                if opened.label and replace(opened.verdict, seconds=verdict.seconds, edits={}) == verdict:
                    return
                raise Stale
            row = (task, time.time(), msgspec.json.encode(verdict))
            database.execute("INSERT INTO labels (task, at, said) VALUES (?, ?, ?)", row)
            database.execute("UPDATE tasks SET label = last_insert_rowid() WHERE id = ?", (task,))
            if verdict.edits:
                # All others who labelled it are asked again, because the text that they saw has changed.
                shown = msgspec.json.encode(opened.item.corrected(verdict.edits))
                database.execute("UPDATE items SET shown = ? WHERE id = ?", (shown, opened.number))
                database.execute("UPDATE tasks SET label = NULL WHERE item = ? AND id <> ?", (opened.number, task))

    def edits(self) -> dict[int, list[dict[str, Any]]]:
        """Return corrections by item number: rater, time (seconds since 1970), field, old text, new text."""
        by_item = defaultdict[int, list[dict[str, Any]]](list)
        for edit in self.query("edits"):
            by_item[edit.pop("item")].append(edit)
        return by_item

    def find_task(self, rater: str, item: int, swapped: bool) -> RaterTask:
        """Return a rater's task for an item that was labelled in another program.

        Add the rater and the task if missing.
        `swapped`: whether that program exchanged the sides. The task is changed accordingly unless it is already
        labelled.
        """
        # Only checks have a known answer.
        planned = "SELECT ?, 0, id, CASE WHEN known IS NULL THEN 'item' ELSE 'check' END, ? FROM items WHERE id = ?"
        turn = "ON CONFLICT (rater, item, role) DO UPDATE SET swapped = excluded.swapped WHERE label IS NULL"
        with self._writing() as database:
            named = (rater, secrets.token_urlsafe(16))
            database.execute("INSERT OR IGNORE INTO raters (name, token) VALUES (?, ?)", named)
            database.execute(f"{_ADD_TASKS} {planned} {turn}", (rater, swapped, item))
            return self._select_tasks("t.rater = ? AND t.item = ? AND t.role <> 'repeat'", rater, item)[0]

    def labels(self, item: int | None = None) -> list[RaterTask]:
        """Return all labelled tasks, or those of one item, with their newest labels, in the order these were given."""
        return self._select_tasks("t.label IS NOT NULL AND t.item = coalesce(?, t.item) ORDER BY t.label", item)

    def query(self, name: str, **values: Any) -> list[dict[str, Any]]:
        """Return the rows of the query page/`name`.sql, by column. `values` replace its named placeholders."""
        cursor = self._database.execute(_read(f"{name}.sql"), values)
        columns = [column for column, *_ in cursor.description]
        return [dict(zip(columns, row, strict=True)) for row in cursor]
