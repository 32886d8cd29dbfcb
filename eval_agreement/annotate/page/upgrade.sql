-- From version 0 to 1. Layouts until 2026-11-27 had a label name its rater, and a task its wave, and left neither empty.
-- Surplus columns of items stay: they may be empty.
CREATE TABLE new_tasks (id INTEGER PRIMARY KEY, rater TEXT NOT NULL, place REAL NOT NULL,
  item INTEGER NOT NULL REFERENCES items, role TEXT NOT NULL, swapped INTEGER NOT NULL, label INTEGER,
  UNIQUE (rater, item, role));
INSERT INTO new_tasks SELECT id, rater, place, item, role, swapped, label FROM tasks;
CREATE TABLE new_labels (id INTEGER PRIMARY KEY, task INTEGER NOT NULL REFERENCES tasks, at REAL NOT NULL,
  said BLOB NOT NULL);
INSERT INTO new_labels SELECT id, task, at, said FROM labels;
DROP TABLE labels;
DROP TABLE tasks;
ALTER TABLE new_tasks RENAME TO tasks;
ALTER TABLE new_labels RENAME TO labels;
CREATE INDEX open_tasks ON tasks (rater, place) WHERE label IS NULL;
CREATE INDEX labelled_tasks ON tasks (rater, label)
