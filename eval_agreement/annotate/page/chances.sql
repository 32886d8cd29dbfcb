-- The chance of an item to be drawn for labelling, which 0.1.0 kept beside it, goes into its source row: the export names it, and an
-- audit weights by it. Executed before upgrade.sql, of databases that have the column.
UPDATE items SET shown = CAST(json_set(CAST(shown AS TEXT), '$.row.label_probability', probability) AS BLOB)
WHERE probability IS NOT NULL
