//! The numbered steps that bring a database to the shape this program knows, alike for both stores.

use crate::StoreError;
use hodei_core::{
    brain::{Batch, Placement},
    dead_letter::DeadLetter,
    id::JobId,
    job::Job,
    state::StateKind,
};
use std::collections::HashMap;

/// From this version on commits keep counts and dead letters. What was there before is taken in once.
const COUNTED: i64 = 3;

/// Jobs whose dead letters are made at once.
pub const DEAD_JOBS: usize = 5_000;
pub const DEAD_STATES: [StateKind; 2] = [StateKind::Failed, StateKind::TimedOut];

pub struct Migration {
    pub version: i64,
    pub name: &'static str,
    pub sqlite: &'static str,
    pub postgres: &'static str,
}

pub const ALL: &[Migration] = &[
    Migration {
        version: 1,
        name: "spine",
        sqlite: include_str!("../migrations/sqlite/0001_spine.sql"),
        postgres: include_str!("../migrations/postgres/0001_spine.sql"),
    },
    Migration {
        version: 2,
        name: "placements",
        sqlite: include_str!("../migrations/sqlite/0002_placements.sql"),
        postgres: include_str!("../migrations/postgres/0002_placements.sql"),
    },
    Migration {
        version: 3,
        name: "tasks",
        sqlite: include_str!("../migrations/sqlite/0003_tasks.sql"),
        postgres: include_str!("../migrations/postgres/0003_tasks.sql"),
    },
    Migration {
        version: 4,
        name: "fleet",
        sqlite: include_str!("../migrations/sqlite/0004_fleet.sql"),
        postgres: include_str!("../migrations/postgres/0004_fleet.sql"),
    },
    Migration {
        version: 5,
        name: "edges",
        sqlite: include_str!("../migrations/sqlite/0005_edges.sql"),
        postgres: include_str!("../migrations/postgres/0005_edges.sql"),
    },
    Migration {
        version: 6,
        name: "totals",
        sqlite: include_str!("../migrations/sqlite/0006_totals.sql"),
        postgres: include_str!("../migrations/postgres/0006_totals.sql"),
    },
    Migration {
        version: 7,
        name: "queues",
        sqlite: include_str!("../migrations/sqlite/0007_queues.sql"),
        postgres: include_str!("../migrations/postgres/0007_queues.sql"),
    },
    Migration {
        version: 8,
        name: "specs",
        sqlite: include_str!("../migrations/sqlite/0008_specs.sql"),
        postgres: include_str!("../migrations/postgres/0008_specs.sql"),
    },
    Migration {
        version: 9,
        name: "ledger",
        sqlite: include_str!("../migrations/sqlite/0009_ledger.sql"),
        postgres: include_str!("../migrations/postgres/0009_ledger.sql"),
    },
];

/// What is left to do for a database at version `applied` (0 for an empty one).
pub fn after(applied: i64) -> Result<impl Iterator<Item = &'static Migration>, StoreError> {
    let newest = ALL.last().map_or(0, |migration| migration.version);
    if applied > newest {
        return Err(StoreError::Open(format!(
            "it has schema version {applied} and this program knows versions up to {newest}; use a newer hodei"
        )));
    }
    Ok(ALL.iter().filter(move |migration| migration.version > applied))
}

/// Whether a database that was at this version has jobs that no commit has counted.
pub fn is_uncounted(applied: i64) -> bool {
    applied < COUNTED
}

/// The migration counts the rows. These jobs are with workers, and their rows do not say so yet.
pub fn count_placed(placements: Vec<Placement>, jobs: Vec<Job>) -> Batch {
    let placements: HashMap<JobId, Placement> =
        placements.into_iter().map(|placement| (placement.job, placement)).collect();
    let mut counts = Vec::new();
    for mut job in jobs {
        let before = job.state.kind();
        if placements.get(&job.id).is_some_and(|placement| placement.apply(&mut job)) {
            counts.extend([(job.queue.clone(), before, -1), (job.queue.clone(), job.state.kind(), 1)]);
        }
    }
    Batch { counts, ..Batch::default() }
}

/// The letters of jobs that failed for good before letters were kept.
pub fn letters_of(jobs: &[Job]) -> Batch {
    Batch { dead_letters: jobs.iter().filter_map(DeadLetter::of).collect(), ..Batch::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_count_from_one_without_gaps() {
        let versions: Vec<_> = ALL.iter().map(|migration| migration.version).collect();
        assert_eq!(versions, (1..=ALL.len() as i64).collect::<Vec<_>>());
    }

    #[test]
    fn a_newer_database_is_refused() {
        assert!(after(0).is_ok_and(|rest| rest.count() == ALL.len()));
        assert!(matches!(after(ALL.len() as i64 + 1), Err(StoreError::Open(_))));
    }
}
