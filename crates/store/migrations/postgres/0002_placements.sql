-- What one commit gave to workers without writing the rows of the jobs. Short-lived: a few rows at any time.
CREATE TABLE placements (
    epoch bigint NOT NULL,
    batch bigint NOT NULL,
    record bytea NOT NULL,
    PRIMARY KEY (epoch, batch)
) WITH (autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_cost_delay = 0);
