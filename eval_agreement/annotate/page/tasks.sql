-- In the order of RaterTask's fields (store.py), which adds a condition. A task that nobody has labelled has an empty verdict.
SELECT t.id, t.rater, t.item, i.shown AS "shown [item]", t.role, t.swapped AS "swapped [flag]", i.known AS "known [json]",
  coalesce(t.label, 0), l.at, coalesce(l.said, '{}') AS "said [verdict]"
FROM tasks t JOIN items i ON i.id = t.item LEFT JOIN labels l ON l.id = t.label
