-- Who makes workers, and what kinds of workers they make.
CREATE TABLE providers (name text NOT NULL PRIMARY KEY, record bytea NOT NULL);

CREATE TABLE worker_templates (name text NOT NULL PRIMARY KEY, record bytea NOT NULL);

-- One row, once an operator has changed anything.
CREATE TABLE scheduler (one boolean NOT NULL PRIMARY KEY CHECK (one), record bytea NOT NULL);

-- Names this database among all.
CREATE TABLE cluster (id text NOT NULL);

INSERT INTO cluster (id) VALUES (replace(gen_random_uuid()::text, '-', ''));
