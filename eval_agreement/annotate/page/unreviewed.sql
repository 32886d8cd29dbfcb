-- A line for each item without a label that counts, and why: of the newest label, or that nobody has labelled it.
SELECT i.key AS id, CASE WHEN l.id IS NULL THEN 'not reviewed yet' WHEN json_extract(CAST(l.said AS TEXT), '$.broken') THEN 'broken'
  ELSE 'skipped: ' || json_extract(CAST(l.said AS TEXT), '$.skipped') END AS why
FROM items i LEFT JOIN labels l ON l.id = (SELECT max(label) FROM tasks WHERE item = i.id)
WHERE NOT EXISTS (SELECT 1 FROM tasks t JOIN labels n ON n.id = t.label, json_each(CAST(n.said AS TEXT), '$.choices')
  WHERE t.item = i.id AND t.role = 'item' AND NOT coalesce(json_extract(CAST(n.said AS TEXT), '$.broken'), 0))
ORDER BY i.id
