-- A small spec is kept in the row of its job: that is two trees less to write for each. Larger ones stay in their table, so
-- that an update of the row does not write them again.
ALTER TABLE jobs ADD COLUMN spec BLOB;
