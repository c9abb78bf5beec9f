-- Who makes workers, and what kinds of workers they make.
CREATE TABLE providers (name TEXT NOT NULL PRIMARY KEY, record BLOB NOT NULL) STRICT;

CREATE TABLE worker_templates (name TEXT NOT NULL PRIMARY KEY, record BLOB NOT NULL) STRICT;

-- One row, once an operator has changed anything.
CREATE TABLE scheduler (one INTEGER PRIMARY KEY CHECK (one = 1), record BLOB NOT NULL) STRICT;

-- Names this database among all.
CREATE TABLE cluster (id TEXT NOT NULL) STRICT;

INSERT INTO cluster (id) VALUES (lower(hex(randomblob(16))));
