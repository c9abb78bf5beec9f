-- How many dead letters there are. Groups of them may be as many as they, and nothing is counted by scanning.
CREATE TABLE dead_letter_total (one boolean NOT NULL PRIMARY KEY CHECK (one), count bigint NOT NULL);
INSERT INTO dead_letter_total (one, count) SELECT true, coalesce(sum(count), 0) FROM dead_letter_groups;
