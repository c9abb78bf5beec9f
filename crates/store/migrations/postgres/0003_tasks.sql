-- Listings of one queue, the newest first.
CREATE INDEX jobs_queue ON jobs (queue, id);

-- Who waits for whom.
CREATE TABLE edges (
    dependency uuid NOT NULL,
    dependent uuid NOT NULL,
    PRIMARY KEY (dependency, dependent)
);

CREATE INDEX edges_dependent ON edges (dependent);

-- Ends that have been told to only some of those that wait for them. Short-lived.
CREATE TABLE settling (job uuid NOT NULL PRIMARY KEY, told uuid)
WITH (autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_cost_delay = 0);

CREATE TABLE idempotency_keys (key text NOT NULL PRIMARY KEY, job uuid NOT NULL);

CREATE INDEX idempotency_keys_job ON idempotency_keys (job);

CREATE TABLE queues (name text NOT NULL PRIMARY KEY, record bytea NOT NULL)
WITH (fillfactor = 50, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_cost_delay = 0);

-- Kept by differences from one commit to the next; a number that comes to nothing has no row. Few rows, written by every
-- commit.
CREATE TABLE counts (
    queue text NOT NULL,
    state smallint NOT NULL,
    count bigint NOT NULL,
    PRIMARY KEY (queue, state)
) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_cost_delay = 0);

INSERT INTO counts (queue, state, count) SELECT queue, state, count(*) FROM jobs GROUP BY queue, state;

CREATE TABLE schedules (id uuid NOT NULL PRIMARY KEY, record bytea NOT NULL, payload bytea NOT NULL);

-- What took the place of a job's data, and what resumed it.
CREATE TABLE job_data (id uuid NOT NULL PRIMARY KEY, data bytea, input bytea);

CREATE TABLE dead_letters (
    job uuid NOT NULL PRIMARY KEY,
    failed_at bigint NOT NULL,
    fingerprint bigint NOT NULL,
    queue text NOT NULL,
    task_type text,
    kind text NOT NULL,
    record bytea NOT NULL
);

CREATE INDEX dead_letters_time ON dead_letters (failed_at, job);
CREATE INDEX dead_letters_alike ON dead_letters (fingerprint, failed_at, job);

-- How many letters of each fingerprint there are; what they say is in the letters.
CREATE TABLE dead_letter_groups (fingerprint bigint NOT NULL PRIMARY KEY, count bigint NOT NULL);

CREATE INDEX dead_letter_groups_count ON dead_letter_groups (count, fingerprint);

CREATE TABLE deliveries (
    id uuid NOT NULL PRIMARY KEY,
    job uuid NOT NULL,
    state smallint NOT NULL,
    next_at bigint,
    record bytea NOT NULL
);

CREATE INDEX deliveries_due ON deliveries (next_at, id) WHERE next_at IS NOT NULL;
CREATE INDEX deliveries_job ON deliveries (job, id);
CREATE INDEX deliveries_state ON deliveries (state, id);

-- Grows at one end and is cut at the other.
CREATE TABLE journal (id bigint NOT NULL PRIMARY KEY, record bytea NOT NULL)
WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);

CREATE TABLE api_tokens (id uuid NOT NULL PRIMARY KEY, record bytea NOT NULL);

-- Who did what may come from a request as it was, and a text here takes no NUL: a line must never fail its commit.
CREATE TABLE audit (
    number bigint NOT NULL GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    actor bytea NOT NULL,
    action bytea NOT NULL,
    record bytea NOT NULL
);

CREATE INDEX audit_actor ON audit (actor, number);
CREATE INDEX audit_action ON audit (action, number);
CREATE INDEX audit_actor_action ON audit (actor, action, number);
