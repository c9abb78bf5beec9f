//! Where everything durable lives. A store knows nothing of scheduling: it writes the rows it is given, all or none,
//! and answers reads. [`Sqlite`] serves one machine from one file; [`Postgres`] serves many servers.

mod migration;
mod postgres;
mod record;
mod sqlite;

#[cfg(test)]
mod conformance;

pub use postgres::Postgres;
#[doc(hidden)] // for fuzzing: how a row is read and written
pub use record::{decode, encode};
pub use sqlite::Sqlite;

use futures::future::BoxFuture;
use hodei_core::{
    brain::{Batch, BatchId, Placement},
    id::{ExecutionId, JobId},
    job::{ClassId, Job},
    protocol::LogChunk,
    spec::Priority,
    state::StateKind,
    time::Time,
    token::WorkerToken,
    worker::WorkerRecord,
};
use std::{cmp::Reverse, collections::BTreeSet, sync::Arc};
use thiserror::Error;

pub type Answer<'a, T> = BoxFuture<'a, Result<T, StoreError>>;

/// Two implementations, one conformance suite.
pub trait Store: Send + Sync + 'static {
    /// Takes the lead: raises the epoch, so that commits of every earlier leader fail from now on.
    fn lead(&self) -> Answer<'_, Leadership>;

    /// Writes one commit whole or not at all, durably. A commit that this epoch has made already is answered with
    /// success and changes nothing, so a commit whose outcome is unknown can be repeated.
    fn commit(&self, commit: Arc<Commit>) -> Answer<'_, ()>;

    /// All jobs that are bound to a worker.
    fn active(&self) -> Answer<'_, Vec<Job>>;

    /// Placements that no commit has settled, the oldest first.
    fn placements(&self) -> Answer<'_, Vec<PlacedBatch>>;

    /// All registered workers that are not terminated.
    fn workers(&self) -> Answer<'_, Vec<WorkerRecord>>;

    fn tokens(&self) -> Answer<'_, Vec<WorkerToken>>;

    /// Every line in which some job waits.
    fn lanes(&self) -> Answer<'_, Vec<(ClassId, Priority)>>;

    /// Pending jobs of one line with a place after `after`, in order.
    fn ready(&self, class: ClassId, priority: Priority, after: Option<u64>, limit: usize) -> Answer<'_, Vec<Job>>;

    /// Delayed and pending jobs with a due time after `after`, in order of (due time, id).
    fn due(&self, after: Option<(Time, JobId)>, limit: usize) -> Answer<'_, Vec<Job>>;

    /// The jobs of these ids that exist, in any order.
    fn jobs(&self, ids: Vec<JobId>) -> Answer<'_, Vec<Job>>;

    /// What these jobs were submitted as, in any order.
    fn payloads(&self, ids: Vec<JobId>) -> Answer<'_, Vec<(JobId, Vec<u8>)>>;

    fn result(&self, id: JobId) -> Answer<'_, Option<Vec<u8>>>;

    /// Newest first, those with ids below `before`.
    fn list(&self, filter: Filter, before: Option<JobId>, limit: usize) -> Answer<'_, Vec<Job>>;

    /// Log chunks of a job in order of (execution, number): the chunk that contains `from`, and what follows, until
    /// about `bytes` are read (at least one chunk if there is one).
    fn logs(&self, job: JobId, from: LogPosition, bytes: usize) -> Answer<'_, Vec<LogChunk>>;

    /// Which entries the last chunks of a job hold that together have at least `entries` (all if there are fewer), in order.
    fn log_tail(&self, job: JobId, entries: u64) -> Answer<'_, Vec<LogSpan>>;

    /// For each of these executions the number of log entries stored; those without any are left out. Whoever commits
    /// chunks does so without gaps, so this is where the last one ends.
    fn log_entries(&self, executions: Vec<(JobId, ExecutionId)>) -> Answer<'_, Vec<(ExecutionId, u64)>>;
}

/// What a new leader finds.
#[derive(Clone, Debug)]
pub struct Leadership {
    pub epoch: u64,
    /// The time of the last commit.
    pub last: Time,
    /// Leases given by an earlier leader that left in order may run until then.
    pub parked_until: Option<Time>,
}

#[derive(Clone, Debug)]
pub struct Commit {
    pub epoch: u64,
    pub batch: Batch,
    pub logs: Vec<LogChunk>,
}

/// The placements of one batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacedBatch {
    pub id: BatchId,
    pub placements: Vec<Placement>,
}

#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// Any of these; empty for all.
    pub states: Vec<StateKind>,
    pub queue: Option<String>,
}

impl Filter {
    /// The walks that a listing is made of: one for each state, or a single one over all jobs.
    fn walks(&self) -> Vec<Option<StateKind>> {
        let states: BTreeSet<_> = self.states.iter().copied().collect();
        let all = states.is_empty() || states.len() == StateKind::ALL.len();
        if all { vec![None] } else { states.into_iter().map(Some).collect() }
    }
}

/// Merges the walks of a listing, each of which found its newest `limit` records.
fn newest_first(mut found: Vec<(JobId, Vec<u8>)>, limit: usize) -> Result<Vec<Job>, StoreError> {
    found.sort_unstable_by_key(|(id, _)| Reverse(*id));
    found.iter().take(limit).map(|(_, record)| record::decode(record)).collect()
}

/// A place in a job's log. Executions come in the order of their ids, which is the order of their making.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LogPosition {
    pub execution: ExecutionId,
    pub entry: u64,
}

/// Which entries a chunk holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogSpan {
    pub execution: ExecutionId,
    pub first: u64,
    pub count: u32,
}

impl LogPosition {
    pub const START: Self = Self { execution: ExecutionId::NIL, entry: 0 };

    /// Whether all of `chunk` lies before this place in the same execution.
    fn is_after(&self, chunk: &LogChunk) -> bool {
        self.execution == chunk.execution && self.entry >= chunk.end()
    }
}

#[derive(Debug, Error)]
pub enum StoreError {
    /// Another server leads: this one must stop writing and load again.
    #[error("another server has taken the lead (epoch {current}, ours {ours})")]
    Deposed { ours: u64, current: u64 },
    /// It may work later: the database is away, full or busy.
    #[error("the database is not available: {0}")]
    Unavailable(String),
    /// It will not work later either.
    #[error("the database refused: {0}")]
    Broken(String),
    #[error("cannot open the database: {0}")]
    Open(String),
}
