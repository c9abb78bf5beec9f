-- The record is the truth about a job; the columns beside it exist to be indexed.
CREATE TABLE jobs (
    id uuid NOT NULL PRIMARY KEY,
    state smallint NOT NULL,
    queue text NOT NULL,
    class bigint NOT NULL,
    priority smallint NOT NULL,
    seq bigint NOT NULL,
    due_at bigint,
    created_at bigint NOT NULL,
    record bytea NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);

CREATE INDEX jobs_ready ON jobs (class, priority, seq) WHERE state = 1;
CREATE INDEX jobs_due ON jobs (due_at, id) WHERE due_at IS NOT NULL;
CREATE INDEX jobs_state ON jobs (state, id);

CREATE TABLE job_specs (id uuid NOT NULL PRIMARY KEY, spec bytea NOT NULL);

CREATE TABLE job_results (id uuid NOT NULL PRIMARY KEY, result bytea NOT NULL);

CREATE TABLE workers (id uuid NOT NULL PRIMARY KEY, terminated boolean NOT NULL, record bytea NOT NULL);

CREATE INDEX workers_live ON workers (id) WHERE NOT terminated;

CREATE TABLE worker_tokens (hash bytea NOT NULL PRIMARY KEY, record bytea NOT NULL);

CREATE TABLE log_chunks (
    job_id uuid NOT NULL,
    execution_id uuid NOT NULL,
    first bigint NOT NULL,
    count bigint NOT NULL,
    data bytea NOT NULL,
    PRIMARY KEY (job_id, execution_id, first)
);

-- Chunks come compressed.
ALTER TABLE log_chunks ALTER COLUMN data SET STORAGE EXTERNAL;

CREATE TABLE leadership (
    one smallint PRIMARY KEY CHECK (one = 1),
    epoch bigint NOT NULL,
    batch bigint NOT NULL,
    last_time bigint NOT NULL,
    parked_until bigint
);

INSERT INTO leadership (one, epoch, batch, last_time) VALUES (1, 0, 0, 0);
