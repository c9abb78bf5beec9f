//! The store in one file, and a ledger beside it. One thread enters commits in the ledger and answers them, one writes their rows
//! to the tables, a few connections read, and another copies the write-ahead log back into the file so that nobody waits
//! for it.

mod checkpoint;
mod commits;
mod entry;
mod ledger;
mod pages;
mod progress;
mod read;
mod rows;
mod tables;
#[cfg(test)]
mod tests;
mod write;

use crate::{
    Answer, Aside, AuditFilter, Commit, DeadLetterFilter, DeadLetterPage, DeliveryFilter, ErrorGroup, Filter, JobData,
    Leadership, LogPosition, LogSpan, Page, PlacedBatch, Store, StoreError, migration,
};
use commits::{Request, Writer};
use hodei_core::{
    access::{ApiToken, AuditEntry},
    brain::Settling,
    dead_letter::DeadLetter,
    id::{DeliveryId, ExecutionId, JobId},
    job::{ClassId, Job},
    journal::{Change, JournalId},
    placement::SchedulerSettings,
    protocol::LogChunk,
    provider::ProviderRecord,
    queue::QueueRecord,
    schedule::ScheduleRecord,
    spec::Priority,
    state::StateKind,
    template::WorkerTemplate,
    time::Time,
    token::WorkerToken,
    webhook::Delivery,
    worker::WorkerRecord,
};
use read::Readers;
use rusqlite::{Connection, ErrorCode, OpenFlags, Transaction, TransactionBehavior};
use std::{fs::OpenOptions, io, os::unix::fs::OpenOptionsExt, path::Path, sync::Arc, time::Duration};
use write::leadership;

/// How long a connection waits for a lock that another process holds.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// More than the statements of this crate, so that each is prepared once per connection.
const STATEMENTS: usize = 128;

/// A store in a file of this machine.
pub struct Sqlite {
    // Readers go first, so that the writer is the last to leave and folds the log into the file.
    readers: Arc<Readers>,
    writer: Writer,
}

impl Sqlite {
    /// Opens the database, and makes it first if there is none. It is readable by its owner only.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, StoreError> {
        let path = path.as_ref().to_path_buf();
        let writer = open_for_writing(&path).map_err(|error| cannot_open(&path, error))?;
        Ok(Self { writer: Writer::start(writer, &path)?, readers: Arc::new(Readers::new(path)) })
    }

    fn read<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> Answer<'_, T> {
        Box::pin(Readers::run(Arc::clone(&self.readers), self.writer.caught_up(), work))
    }

    /// Reads what the tables may hold already although they are behind. If `early` finds that they do not, `work` reads when
    /// they hold all that was answered.
    fn read_early<T: Send + 'static>(
        &self,
        early: impl FnOnce(&Connection) -> Result<Option<T>, StoreError> + Send + 'static,
        work: impl FnOnce(&Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> Answer<'_, T> {
        Box::pin(async move {
            match Readers::run(Arc::clone(&self.readers), || Ok(()), early).await? {
                Some(found) => Ok(found),
                None => self.read(work).await,
            }
        })
    }
}

impl Store for Sqlite {
    fn lead(&self) -> Answer<'_, Leadership> {
        Box::pin(self.writer.ask(Request::Lead))
    }

    fn commit(&self, commit: Arc<Commit>) -> Answer<'_, ()> {
        Box::pin(self.writer.ask(|answer| Request::Commit(commit, answer)))
    }

    fn active(&self) -> Answer<'_, Vec<Job>> {
        self.read(read::active)
    }

    fn placements(&self) -> Answer<'_, Vec<PlacedBatch>> {
        self.read(read::placements)
    }

    fn workers(&self) -> Answer<'_, Vec<WorkerRecord>> {
        self.read(read::workers)
    }

    fn tokens(&self) -> Answer<'_, Vec<WorkerToken>> {
        self.read(read::tokens)
    }

    fn lanes(&self) -> Answer<'_, Vec<(ClassId, Priority)>> {
        self.read(read::lanes)
    }

    fn ready(
        &self,
        class: ClassId,
        priority: Priority,
        after: Option<u64>,
        limit: usize,
        follows: u64,
    ) -> Answer<'_, Vec<Job>> {
        let page = move |connection: &Connection| read::ready(connection, class, priority, after, limit);
        let early = move |connection: &Connection| {
            let (_, batch) = leadership(connection)?;
            (batch >= follows).then(|| page(connection)).transpose()
        };
        self.read_early(early, page)
    }

    fn due(&self, after: Option<(Time, JobId)>, limit: usize) -> Answer<'_, Vec<Job>> {
        self.read(move |connection| read::due(connection, after, limit))
    }

    fn jobs(&self, ids: Vec<JobId>) -> Answer<'_, Vec<Job>> {
        self.read(move |connection| read::jobs(connection, &ids))
    }

    fn payloads(&self, ids: Vec<JobId>) -> Answer<'_, Vec<(JobId, Vec<u8>)>> {
        // What a job was submitted as never changes.
        let wanted = ids.clone();
        let early = move |connection: &Connection| {
            let found = read::payloads(connection, &wanted)?;
            Ok((found.len() == wanted.len()).then_some(found))
        };
        self.read_early(early, move |connection| read::payloads(connection, &ids))
    }

    fn results(&self, ids: Vec<JobId>) -> Answer<'_, Vec<(JobId, Vec<u8>)>> {
        self.read(move |connection| read::results(connection, &ids))
    }

    fn data(&self, ids: Vec<JobId>) -> Answer<'_, Vec<JobData>> {
        self.read(move |connection| read::data(connection, &ids))
    }

    fn list(&self, filter: Filter, before: Option<JobId>, limit: usize) -> Answer<'_, Page> {
        self.read(move |connection| pages::list(connection, &filter, before, limit))
    }

    fn dependents(&self, of: Vec<Settling>, each: usize) -> Answer<'_, Vec<(JobId, Job)>> {
        self.read(move |connection| read::dependents(connection, &of, each))
    }

    fn settling(&self) -> Answer<'_, Vec<Settling>> {
        self.read(read::settling)
    }

    fn keys(&self, keys: Vec<Arc<str>>) -> Answer<'_, Vec<(Arc<str>, JobId)>> {
        self.read(move |connection| read::keys(connection, &keys))
    }

    fn queues(&self) -> Answer<'_, Vec<QueueRecord>> {
        self.read(read::queues)
    }

    fn counts(&self) -> Answer<'_, Vec<(Arc<str>, StateKind, u64)>> {
        self.read(read::counts)
    }

    fn schedules(&self) -> Answer<'_, Vec<(ScheduleRecord, Vec<u8>)>> {
        self.read(read::schedules)
    }

    fn providers(&self) -> Answer<'_, Vec<ProviderRecord>> {
        self.read(read::providers)
    }

    fn templates(&self) -> Answer<'_, Vec<WorkerTemplate>> {
        self.read(read::templates)
    }

    fn cluster(&self) -> Answer<'_, String> {
        self.read(read::cluster)
    }

    fn scheduler(&self) -> Answer<'_, Option<SchedulerSettings>> {
        self.read(read::scheduler)
    }

    fn dead_letters(
        &self,
        filter: DeadLetterFilter,
        before: Option<(Time, JobId)>,
        limit: usize,
    ) -> Answer<'_, DeadLetterPage> {
        self.read(move |connection| pages::dead_letters(connection, &filter, before, limit))
    }

    fn dead_letter(&self, job: JobId) -> Answer<'_, Option<DeadLetter>> {
        self.read(move |connection| pages::dead_letter(connection, job))
    }

    fn error_groups(&self, limit: usize) -> Answer<'_, (u64, Vec<ErrorGroup>)> {
        self.read(move |connection| pages::error_groups(connection, limit))
    }

    fn deliveries_due(&self, until: Time, limit: usize) -> Answer<'_, Vec<Delivery>> {
        self.read(move |connection| pages::deliveries_due(connection, until, limit))
    }

    fn next_delivery(&self) -> Answer<'_, Option<Time>> {
        self.read(pages::next_delivery)
    }

    fn deliveries(
        &self,
        filter: DeliveryFilter,
        before: Option<DeliveryId>,
        limit: usize,
    ) -> Answer<'_, Vec<Delivery>> {
        self.read(move |connection| pages::deliveries(connection, &filter, before, limit))
    }

    fn delivery(&self, id: DeliveryId) -> Answer<'_, Option<Delivery>> {
        self.read(move |connection| pages::delivery(connection, id))
    }

    fn journal(&self, after: JournalId, limit: usize) -> Answer<'_, Vec<(JournalId, Vec<Change>)>> {
        self.read(move |connection| pages::journal(connection, after, limit))
    }

    fn journal_ends(&self) -> Answer<'_, Option<(JournalId, JournalId)>> {
        self.read(pages::journal_ends)
    }

    fn awaited(&self, jobs: Vec<JobId>) -> Answer<'_, Vec<JobId>> {
        self.read(move |connection| read::awaited(connection, &jobs))
    }

    fn expired(
        &self,
        state: StateKind,
        before: Time,
        after: Option<JobId>,
        limit: usize,
    ) -> Answer<'_, (Vec<JobId>, Option<JobId>)> {
        self.read(move |connection| pages::expired(connection, state, before, after, limit))
    }

    fn api_tokens(&self) -> Answer<'_, Vec<ApiToken>> {
        self.read(read::api_tokens)
    }

    fn audit(&self, filter: AuditFilter, before: Option<u64>, limit: usize) -> Answer<'_, Vec<(u64, AuditEntry)>> {
        self.read(move |connection| pages::audit(connection, &filter, before, limit))
    }

    fn logs(&self, job: JobId, from: LogPosition, bytes: usize) -> Answer<'_, Vec<LogChunk>> {
        self.read(move |connection| read::logs(connection, job, from, bytes))
    }

    fn log_tail(&self, job: JobId, entries: u64) -> Answer<'_, Vec<LogSpan>> {
        self.read(move |connection| read::log_tail(connection, job, entries))
    }

    fn log_entries(&self, executions: Vec<(JobId, ExecutionId)>) -> Answer<'_, Vec<(ExecutionId, u64)>> {
        self.read(move |connection| read::log_entries(connection, &executions))
    }
}

fn open_for_writing(path: &Path) -> Result<Connection, StoreError> {
    make_private_file(path).map_err(|error| StoreError::Open(error.to_string()))?;
    let mut connection = open_connection(path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    connection.execute_batch(include_str!("writer.sql"))?;
    migrate(&mut connection)?;
    Ok(connection)
}

/// Every connection is used by one thread at a time, so SQLite need not lock.
fn open_connection(path: &Path, access: OpenFlags) -> Result<Connection, StoreError> {
    let connection = Connection::open_with_flags(path, access | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS);
    Ok(connection)
}

/// SQLite gives its log files the permissions of the main file.
fn make_private_file(path: &Path) -> io::Result<()> {
    OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path).map(drop)
}

fn migrate(connection: &mut Connection) -> Result<(), StoreError> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    transaction.execute_batch(
        "CREATE TABLE IF NOT EXISTS schema_migrations (version INTEGER PRIMARY KEY, name TEXT NOT NULL) STRICT",
    )?;
    let applied: i64 =
        transaction.query_one("SELECT coalesce(max(version), 0) FROM schema_migrations", (), |row| row.get(0))?;
    for step in migration::after(applied)? {
        transaction.execute_batch(step.sqlite)?;
        transaction
            .execute("INSERT INTO schema_migrations (version, name) VALUES (?1, ?2)", (step.version, step.name))?;
    }
    if migration::is_uncounted(applied) {
        take_in(&transaction)?;
    }
    Ok(transaction.commit()?)
}

/// What only the records say of jobs that were there before.
fn take_in(transaction: &Transaction) -> Result<(), StoreError> {
    let mut buffer = Vec::new();
    let mut write = |batch| {
        let commit = Commit { epoch: 0, batch, logs: Vec::new(), aside: Aside::default() };
        rows::write(transaction, &commit, &mut buffer)
    };
    let placements: Vec<_> = read::placements(transaction)?.into_iter().flat_map(|batch| batch.placements).collect();
    let ids: Vec<JobId> = placements.iter().map(|placement| placement.job).collect();
    write(migration::count_placed(placements, read::jobs(transaction, &ids)?))?;
    for state in migration::DEAD_STATES {
        let mut after = Some(JobId::NIL);
        while let Some(last) = after {
            let jobs = pages::of_state(transaction, state, last, migration::DEAD_JOBS)?;
            write(migration::letters_of(&jobs))?;
            after = jobs.last().map(|job| job.id);
        }
    }
    Ok(())
}

fn cannot_open(path: &Path, error: StoreError) -> StoreError {
    let why = match error {
        StoreError::Unavailable(why) | StoreError::Broken(why) | StoreError::Open(why) => why,
        StoreError::Deposed { .. } => return error,
    };
    StoreError::Open(format!("{}: {why}", path.display()))
}

impl From<rusqlite::Error> for StoreError {
    fn from(error: rusqlite::Error) -> Self {
        if may_pass(&error) { Self::Unavailable(error.to_string()) } else { Self::Broken(error.to_string()) }
    }
}

/// Whether the same call may succeed later: a disk can be freed, mounted or unlocked again.
fn may_pass(error: &rusqlite::Error) -> bool {
    matches!(
        error.sqlite_error_code(),
        Some(
            ErrorCode::DiskFull
                | ErrorCode::SystemIoFailure
                | ErrorCode::DatabaseBusy
                | ErrorCode::DatabaseLocked
                | ErrorCode::CannotOpen
                | ErrorCode::ReadOnly
                | ErrorCode::PermissionDenied
                | ErrorCode::OutOfMemory
                | ErrorCode::FileLockingProtocolFailed
                | ErrorCode::OperationInterrupted
                | ErrorCode::SchemaChanged
        )
    )
}
