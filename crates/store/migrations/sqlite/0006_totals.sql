-- How many dead letters there are. Groups of them may be as many as they, and nothing is counted by scanning.
CREATE TABLE dead_letter_total (one INTEGER NOT NULL PRIMARY KEY CHECK (one = 1), count INTEGER NOT NULL) STRICT;
INSERT INTO dead_letter_total (one, count) SELECT 1, coalesce(sum(count), 0) FROM dead_letter_groups;
