-- A line for each correction of a text, in the order of the labels: an edit is [old text, new text].
SELECT t.item, t.rater, l.at, e.key AS field, json_extract(e.value, '$[0]') AS old, json_extract(e.value, '$[1]') AS new
FROM labels l JOIN tasks t ON t.id = l.task, json_each(CAST(l.said AS TEXT), '$.edits') e ORDER BY l.id, e.id
