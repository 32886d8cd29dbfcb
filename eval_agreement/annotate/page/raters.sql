-- A line for each rater: progress, pace, and how the checks and the repeats were answered. Only the newest label of a task counts.
WITH given AS (
  SELECT t.rater, t.item, t.role, CAST(i.known AS TEXT) AS known, CAST(l.said AS TEXT) AS said
  FROM tasks t JOIN labels l ON l.id = t.label JOIN items i ON i.id = t.item
), times AS (
  SELECT rater, json_extract(said, '$.seconds') AS seconds FROM given WHERE json_extract(said, '$.seconds') IS NOT NULL
), ranked AS (
  SELECT rater, seconds, row_number() OVER (PARTITION BY rater ORDER BY seconds) AS place, count(*) OVER (PARTITION BY rater) AS n
  FROM times
), pace AS (
  -- The median: the middle one, or the mean of the two in the middle.
  SELECT rater, avg(seconds) AS seconds FROM ranked WHERE place IN ((n + 1) / 2, (n + 2) / 2) GROUP BY rater
), skips AS (
  SELECT rater, count(*) AS skipped FROM given WHERE NOT EXISTS (SELECT 1 FROM json_each(said, '$.choices')) GROUP BY rater
), checks AS (
  -- Right if every known answer was given. A skipped check says nothing about the rater.
  SELECT rater, count(*) AS checks, sum(NOT EXISTS (
    SELECT 1 FROM json_each(known) k LEFT JOIN json_each(said, '$.choices') c ON c.key = k.key WHERE c.value IS NOT k.value)) AS correct
  FROM given WHERE known IS NOT NULL AND EXISTS (SELECT 1 FROM json_each(said, '$.choices')) GROUP BY rater
), repeats AS (
  SELECT a.rater, count(*) AS repeats, sum(x.value = y.value) AS same
  FROM given a JOIN given b ON b.rater = a.rater AND b.item = a.item AND a.role = 'item' AND b.role = 'repeat',
    json_each(a.said, '$.choices') x, json_each(b.said, '$.choices') y
  WHERE x.key = y.key GROUP BY a.rater
)
-- Who has not begun is expected to be as fast as the others.
SELECT name, done, tasks, coalesce(skipped, 0) AS skipped, pace.seconds,
  (tasks - done) * coalesce(pace.seconds, (SELECT avg(seconds) FROM pace)) AS left, checks, correct, repeats, same
FROM raters LEFT JOIN pace ON pace.rater = name LEFT JOIN skips ON skips.rater = name
  LEFT JOIN checks ON checks.rater = name LEFT JOIN repeats ON repeats.rater = name
ORDER BY name
