-- Listings of one queue, the newest first.
CREATE INDEX jobs_queue ON jobs (queue, id);

-- Who waits for whom. A row is its key, so these tables are their own index.
CREATE TABLE edges (
    dependency BLOB NOT NULL,
    dependent BLOB NOT NULL,
    PRIMARY KEY (dependency, dependent)
) STRICT, WITHOUT ROWID;

CREATE INDEX edges_dependent ON edges (dependent);

-- Ends that have been told to only some of those that wait for them. Short-lived.
CREATE TABLE settling (job BLOB NOT NULL PRIMARY KEY, told BLOB) STRICT;

CREATE TABLE idempotency_keys (key TEXT NOT NULL PRIMARY KEY, job BLOB NOT NULL) STRICT, WITHOUT ROWID;

CREATE INDEX idempotency_keys_job ON idempotency_keys (job);

CREATE TABLE queues (name TEXT NOT NULL PRIMARY KEY, record BLOB NOT NULL) STRICT;

-- Kept by differences from one commit to the next; a number that comes to nothing has no row.
CREATE TABLE counts (
    queue TEXT NOT NULL,
    state INTEGER NOT NULL,
    count INTEGER NOT NULL,
    PRIMARY KEY (queue, state)
) STRICT, WITHOUT ROWID;

INSERT INTO counts (queue, state, count) SELECT queue, state, count(*) FROM jobs GROUP BY queue, state;

CREATE TABLE schedules (id BLOB NOT NULL PRIMARY KEY, record BLOB NOT NULL, payload BLOB NOT NULL) STRICT;

-- What took the place of a job's data, and what resumed it.
CREATE TABLE job_data (id BLOB NOT NULL PRIMARY KEY, data BLOB, input BLOB) STRICT;

CREATE TABLE dead_letters (
    job BLOB NOT NULL PRIMARY KEY,
    failed_at INTEGER NOT NULL,
    fingerprint INTEGER NOT NULL,
    queue TEXT NOT NULL,
    task_type TEXT,
    kind TEXT NOT NULL,
    record BLOB NOT NULL
) STRICT;

CREATE INDEX dead_letters_time ON dead_letters (failed_at, job);
CREATE INDEX dead_letters_alike ON dead_letters (fingerprint, failed_at, job);

-- How many letters of each fingerprint there are; what they say is in the letters.
CREATE TABLE dead_letter_groups (fingerprint INTEGER NOT NULL PRIMARY KEY, count INTEGER NOT NULL) STRICT;

CREATE INDEX dead_letter_groups_count ON dead_letter_groups (count, fingerprint);

CREATE TABLE deliveries (
    id BLOB NOT NULL PRIMARY KEY,
    job BLOB NOT NULL,
    state INTEGER NOT NULL,
    next_at INTEGER,
    record BLOB NOT NULL
) STRICT;

CREATE INDEX deliveries_due ON deliveries (next_at, id) WHERE next_at IS NOT NULL;
CREATE INDEX deliveries_job ON deliveries (job, id);
CREATE INDEX deliveries_state ON deliveries (state, id);

CREATE TABLE journal (id INTEGER PRIMARY KEY, record BLOB NOT NULL) STRICT;

CREATE TABLE api_tokens (id BLOB NOT NULL PRIMARY KEY, record BLOB NOT NULL) STRICT;

-- Numbers are never given twice, whatever is deleted.
CREATE TABLE audit (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    actor TEXT NOT NULL,
    action TEXT NOT NULL,
    record BLOB NOT NULL
) STRICT;

CREATE INDEX audit_actor ON audit (actor, number);
CREATE INDEX audit_action ON audit (action, number);
CREATE INDEX audit_actor_action ON audit (actor, action, number);
