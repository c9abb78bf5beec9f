-- What one commit gave to workers without writing the rows of the jobs. Short-lived: a few rows at any time.
CREATE TABLE placements (
    epoch INTEGER NOT NULL,
    batch INTEGER NOT NULL,
    record BLOB NOT NULL,
    PRIMARY KEY (epoch, batch)
) STRICT;
