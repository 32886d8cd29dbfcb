-- Version 1 (counts.sql). A change needs another version, in store.py as well, and an upgrade.sql that leads to it.
-- A label is a row that is added, and never changed: the newest of a task counts, the others are its history.
CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE items (id INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, shown BLOB NOT NULL, known BLOB);
CREATE TABLE raters (name TEXT PRIMARY KEY, token TEXT NOT NULL UNIQUE, tasks INTEGER NOT NULL DEFAULT 0,
  done INTEGER NOT NULL DEFAULT 0) WITHOUT ROWID;
CREATE TABLE tasks (id INTEGER PRIMARY KEY, rater TEXT NOT NULL, place REAL NOT NULL,
  item INTEGER NOT NULL REFERENCES items, role TEXT NOT NULL, swapped INTEGER NOT NULL, label INTEGER,
  UNIQUE (rater, item, role));
CREATE INDEX open_tasks ON tasks (rater, place) WHERE label IS NULL;
CREATE INDEX labelled_tasks ON tasks (rater, label);
CREATE TABLE labels (id INTEGER PRIMARY KEY, task INTEGER NOT NULL REFERENCES tasks, at REAL NOT NULL,
  said BLOB NOT NULL)
