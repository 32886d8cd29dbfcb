-- Counts each rater's tasks and labels, and keeps the counts: the next page is no later among 100,000 tasks than among ten.
-- Executed behind tables.sql and the plan's tasks, or upgrade.sql: a trigger for each task would take longer than the rest.
UPDATE raters SET tasks = (SELECT count(*) FROM tasks WHERE rater = name),
  done = (SELECT count(label) FROM tasks WHERE rater = name);
CREATE TRIGGER count_task AFTER INSERT ON tasks BEGIN
  UPDATE raters SET tasks = tasks + 1 WHERE name = new.rater; END;
CREATE TRIGGER count_label AFTER UPDATE OF label ON tasks BEGIN
  UPDATE raters SET done = done + (new.label IS NOT NULL) - (old.label IS NOT NULL) WHERE name = new.rater; END;
PRAGMA user_version = 1
