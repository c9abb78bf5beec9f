-- The record is the truth about a job; the columns beside it exist to be indexed. Rows keep their rowid: SQLite
-- compares whole records, overflow pages included, while it searches a table without one, and records can be long.
CREATE TABLE jobs (
    id BLOB NOT NULL PRIMARY KEY,
    state INTEGER NOT NULL,
    queue TEXT NOT NULL,
    class INTEGER NOT NULL,
    priority INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    due_at INTEGER,
    created_at INTEGER NOT NULL,
    record BLOB NOT NULL
) STRICT;

CREATE INDEX jobs_ready ON jobs (class, priority, seq) WHERE state = 1;
CREATE INDEX jobs_due ON jobs (due_at, id) WHERE due_at IS NOT NULL;
CREATE INDEX jobs_state ON jobs (state, id);

CREATE TABLE job_specs (id BLOB NOT NULL PRIMARY KEY, spec BLOB NOT NULL) STRICT;

CREATE TABLE job_results (id BLOB NOT NULL PRIMARY KEY, result BLOB NOT NULL) STRICT;

CREATE TABLE workers (id BLOB NOT NULL PRIMARY KEY, terminated INTEGER NOT NULL, record BLOB NOT NULL) STRICT;

CREATE INDEX workers_live ON workers (id) WHERE terminated = 0;

CREATE TABLE worker_tokens (hash BLOB NOT NULL PRIMARY KEY, record BLOB NOT NULL) STRICT;

CREATE TABLE log_chunks (
    job_id BLOB NOT NULL,
    execution_id BLOB NOT NULL,
    first INTEGER NOT NULL,
    count INTEGER NOT NULL,
    data BLOB NOT NULL,
    PRIMARY KEY (job_id, execution_id, first)
) STRICT;

CREATE TABLE leadership (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    epoch INTEGER NOT NULL,
    batch INTEGER NOT NULL,
    last_time INTEGER NOT NULL,
    parked_until INTEGER
) STRICT;

INSERT INTO leadership (one, epoch, batch, last_time) VALUES (1, 0, 0, 0);
