-- A line for each answer that can be compared, and each item that a rater called broken (without points), without checks and repeats.
-- :points is a JSON object: choice -> number. `apart`: difference of the question's highest and lowest number. `place`: the questions'
-- order, that of most difference first.
WITH given AS (
  SELECT t.item, i.key AS id, t.rater, CAST(l.said AS TEXT) AS said, json_extract(CAST(i.shown AS TEXT), '$.group') AS cluster
  FROM tasks t JOIN labels l ON l.id = t.label JOIN items i ON i.id = t.item WHERE t.role = 'item'
), answers AS (
  SELECT g.item, g.id, g.cluster, g.rater, c.key AS ask, c.value AS choice, p.value AS points
  FROM given g, json_each(said, '$.choices') c, json_each(:points) p
  WHERE p.key = c.value AND NOT coalesce(json_extract(said, '$.broken'), 0)
  UNION ALL SELECT item, id, cluster, rater, '', 'broken', NULL FROM given WHERE json_extract(said, '$.broken')
), compared AS (
  SELECT *, max(points) OVER (PARTITION BY item, ask) - min(points) OVER (PARTITION BY item, ask) AS apart FROM answers
)
SELECT *, dense_rank() OVER (ORDER BY apart DESC, item, ask) AS place FROM compared ORDER BY place, rater
