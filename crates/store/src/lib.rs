//! Where everything durable lives. A store knows nothing of scheduling: it writes the rows it is given, all or none,
//! and answers reads. [`Sqlite`] serves one machine from one file; [`Postgres`] serves many servers.

mod listing;
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
    access::{ApiToken, AuditEntry},
    brain::{Batch, BatchId, Placement, Settling},
    dead_letter::{DeadLetter, Fingerprint},
    id::{DeliveryId, ExecutionId, JobId, ScheduleId},
    job::{ClassId, Job},
    journal::{Change, JournalId},
    placement::SchedulerSettings,
    protocol::LogChunk,
    provider::ProviderRecord,
    queue::QueueRecord,
    schedule::ScheduleRecord,
    spec::Priority,
    state::{FailureKind, StateKind},
    template::WorkerTemplate,
    time::Time,
    token::WorkerToken,
    webhook::Delivery,
    worker::WorkerRecord,
};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
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

    /// Pending jobs of one line with a place after `after`, in order, as they were after the batch `follows` of the present
    /// epoch, or after any later one.
    fn ready(
        &self,
        class: ClassId,
        priority: Priority,
        after: Option<u64>,
        limit: usize,
        follows: u64,
    ) -> Answer<'_, Vec<Job>>;

    /// Delayed and pending jobs with a due time after `after`, in order of (due time, id).
    fn due(&self, after: Option<(Time, JobId)>, limit: usize) -> Answer<'_, Vec<Job>>;

    /// The jobs of these ids that exist, in any order.
    fn jobs(&self, ids: Vec<JobId>) -> Answer<'_, Vec<Job>>;

    /// What these jobs were submitted as, in any order.
    fn payloads(&self, ids: Vec<JobId>) -> Answer<'_, Vec<(JobId, Vec<u8>)>>;

    /// What these jobs left as their results, in any order; those that left none are left out.
    fn results(&self, ids: Vec<JobId>) -> Answer<'_, Vec<(JobId, Vec<u8>)>>;

    /// What was rewritten of these jobs' data and what resumed them, in any order.
    fn data(&self, ids: Vec<JobId>) -> Answer<'_, Vec<JobData>>;

    /// Newest first, those with ids below `before`. Looks at a bounded number of rows: a page may have fewer than `limit`
    /// jobs, even none, and still say where the next begins.
    fn list(&self, filter: Filter, before: Option<JobId>, limit: usize) -> Answer<'_, Page>;

    /// The jobs that depend on each of these and have not been told, in the order of their ids, at most so many of each.
    /// With each comes the one it depends on.
    fn dependents(&self, of: Vec<Settling>, each: usize) -> Answer<'_, Vec<(JobId, Job)>>;

    /// Ends that have not been told to all dependents.
    fn settling(&self) -> Answer<'_, Vec<Settling>>;

    /// Of these idempotency keys, those that are taken, and by which jobs.
    fn keys(&self, keys: Vec<Arc<str>>) -> Answer<'_, Vec<(Arc<str>, JobId)>>;

    fn queues(&self) -> Answer<'_, Vec<QueueRecord>>;

    /// How many jobs each queue has in each state, where there are any.
    fn counts(&self) -> Answer<'_, Vec<(Arc<str>, StateKind, u64)>>;

    /// All schedules, with the payloads of the jobs that they make.
    fn schedules(&self) -> Answer<'_, Vec<(ScheduleRecord, Vec<u8>)>>;

    /// In the order of their names.
    fn providers(&self) -> Answer<'_, Vec<ProviderRecord>>;

    /// In the order of their names.
    fn templates(&self) -> Answer<'_, Vec<WorkerTemplate>>;

    /// Names this database among all: what is made elsewhere on its behalf is marked with it.
    fn cluster(&self) -> Answer<'_, String>;

    /// None while nobody has changed anything.
    fn scheduler(&self) -> Answer<'_, Option<SchedulerSettings>>;

    /// Newest first, those that failed before `before`. Bounded like `list`.
    fn dead_letters(
        &self,
        filter: DeadLetterFilter,
        before: Option<(Time, JobId)>,
        limit: usize,
    ) -> Answer<'_, DeadLetterPage>;

    /// The dead letter of this job, if it is in the dead-letter queue.
    fn dead_letter(&self, job: JobId) -> Answer<'_, Option<DeadLetter>>;

    /// How many dead letters there are, and the largest groups of like errors.
    fn error_groups(&self, limit: usize) -> Answer<'_, (u64, Vec<ErrorGroup>)>;

    /// Deliveries that are due, the longest due first.
    fn deliveries_due(&self, until: Time, limit: usize) -> Answer<'_, Vec<Delivery>>;

    /// When the next delivery is due, if any is owed.
    fn next_delivery(&self) -> Answer<'_, Option<Time>>;

    /// Newest first, those with ids below `before`.
    fn deliveries(&self, filter: DeliveryFilter, before: Option<DeliveryId>, limit: usize)
    -> Answer<'_, Vec<Delivery>>;

    fn delivery(&self, id: DeliveryId) -> Answer<'_, Option<Delivery>>;

    /// What commits changed, those after `after`, in order.
    fn journal(&self, after: JournalId, limit: usize) -> Answer<'_, Vec<(JournalId, Vec<Change>)>>;

    /// The first and the last entry of the journal that are kept.
    fn journal_ends(&self) -> Answer<'_, Option<(JournalId, JournalId)>>;

    /// Those of these jobs that unfinished ones depend on.
    fn awaited(&self, jobs: Vec<JobId>) -> Answer<'_, Vec<JobId>>;

    /// Finished jobs in this state that were made before `before` and finished before it, with ids after `after`, in
    /// order. Bounded like `list`: the second value is where to go on.
    fn expired(
        &self,
        state: StateKind,
        before: Time,
        after: Option<JobId>,
        limit: usize,
    ) -> Answer<'_, (Vec<JobId>, Option<JobId>)>;

    fn api_tokens(&self) -> Answer<'_, Vec<ApiToken>>;

    /// Newest first, those with numbers below `before`, each with its number.
    fn audit(&self, filter: AuditFilter, before: Option<u64>, limit: usize) -> Answer<'_, Vec<(u64, AuditEntry)>>;

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
    pub aside: Aside,
}

impl Commit {
    /// The place of its changes in the journal.
    pub fn journal_id(&self) -> JournalId {
        JournalId((self.epoch << 40) | self.batch.number)
    }
}

/// What is kept and the brain has no part in.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Aside {
    pub api_tokens: Vec<ApiToken>,
    pub audit: Vec<AuditEntry>,
    /// How far deliveries have come.
    pub deliveries: Vec<Delivery>,
    /// Entries of the journal before this one are not needed any more.
    pub journal_from: Option<JournalId>,
}

impl Aside {
    pub fn add(&mut self, other: Aside) {
        self.api_tokens.extend(other.api_tokens);
        self.audit.extend(other.audit);
        self.deliveries.extend(other.deliveries);
        self.journal_from = self.journal_from.max(other.journal_from);
    }

    pub fn is_empty(&self) -> bool {
        self.api_tokens.is_empty() && self.audit.is_empty() && self.deliveries.is_empty() && self.journal_from.is_none()
    }
}

/// What the store has of a job's data besides its payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobData {
    pub job: JobId,
    pub data: Option<Vec<u8>>,
    pub input: Option<Vec<u8>>,
}

/// A page of a listing.
#[derive(Clone, Debug, Default)]
pub struct Page {
    pub jobs: Vec<Job>,
    /// Where the next one begins; none after the last.
    pub next: Option<JobId>,
}

#[derive(Clone, Debug, Default)]
pub struct DeadLetterPage {
    pub letters: Vec<DeadLetter>,
    pub next: Option<(Time, JobId)>,
}

/// Errors of one fingerprint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ErrorGroup {
    pub fingerprint: Fingerprint,
    pub kind: FailureKind,
    pub example: String,
    pub count: u64,
    pub first: Time,
    pub last: Time,
}

impl ErrorGroup {
    /// A group of so many letters, of which this one is the newest.
    fn of(newest: DeadLetter, count: u64, first: Time) -> Self {
        let DeadLetter { fingerprint, kind, error, failed_at, .. } = newest;
        Self { fingerprint, kind, example: error, count, first, last: failed_at }
    }
}

/// All that is set must match.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeadLetterFilter {
    pub queue: Option<String>,
    pub task_type: Option<String>,
    pub kind: Option<FailureKind>,
    pub fingerprint: Option<Fingerprint>,
    /// Failed at or after, and before.
    pub from: Option<Time>,
    pub to: Option<Time>,
}

#[derive(Clone, Debug, Default)]
pub struct DeliveryFilter {
    pub job: Option<JobId>,
    pub state: Option<DeliveryKind>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeliveryKind {
    Pending,
    Delivered,
    Failed,
}

#[derive(Clone, Debug, Default)]
pub struct AuditFilter {
    pub actor: Option<String>,
    pub action: Option<String>,
}

/// The placements of one batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacedBatch {
    pub id: BatchId,
    pub placements: Vec<Placement>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Any of these; empty for all.
    pub states: Vec<StateKind>,
    pub queue: Option<String>,
    pub task_type: Option<String>,
    pub tag: Option<String>,
    pub name: Option<String>,
    pub parent: Option<JobId>,
    pub schedule: Option<ScheduleId>,
    /// Created at or after, and before.
    pub from: Option<Time>,
    pub to: Option<Time>,
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
