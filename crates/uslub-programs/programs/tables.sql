-- Indices, groups, joins, updates, a rollback and a check of the whole file.
CREATE INDEX items_by_name ON items (name);
CREATE INDEX items_by_group ON items (kind, number);
SELECT count(*), sum(number), count(DISTINCT name), max(length(text)) FROM items;
SELECT kind, count(*), sum(number), min(name), max(text) FROM items GROUP BY kind ORDER BY kind;
SELECT name, count(*) AS uses, group_concat(kind) FROM (SELECT name, kind FROM items ORDER BY id)
  GROUP BY name ORDER BY uses DESC, name LIMIT 50;
BEGIN;
UPDATE items SET text = upper(text) || name WHERE number % 5 = 0;
DELETE FROM items WHERE kind = 7;
COMMIT;
BEGIN;
DELETE FROM items;
ROLLBACK;
SELECT count(*) FROM items AS a JOIN items AS b ON a.name = b.name AND a.id < b.id WHERE a.kind = 3;
WITH RECURSIVE walk (id, path) AS (
  SELECT 1, 'root'
  UNION ALL
  SELECT id + 1, substr(path || '/' || id, -200) FROM walk WHERE id < 5000
)
SELECT max(id), sum(length(path)) FROM walk;
VACUUM;
PRAGMA integrity_check;
