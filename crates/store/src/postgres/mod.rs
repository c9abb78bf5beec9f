//! The store in PostgreSQL, for many servers. One connection writes, a small pool reads.

mod copy;
mod pages;
mod read;
mod rows;
#[cfg(test)]
mod tests;
mod write;

use crate::{
    Answer, AuditFilter, Commit, DeadLetterFilter, DeadLetterPage, DeliveryFilter, ErrorGroup, Filter, JobData,
    Leadership, LogPosition, LogSpan, Page, PlacedBatch, Store, StoreError, migration,
    record::{decode, signed, state_number},
};
use deadpool_postgres::{Manager, ManagerConfig, Object, Pool, PoolError, RecyclingMethod, Runtime};
use hodei_core::{
    access::{ApiToken, AuditEntry},
    brain::{Placement, Settling},
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
use rows::RowStatements;
use std::{str::FromStr, sync::Arc, time::Duration};
use tokio::{task::JoinHandle, time::timeout};
use tokio_postgres::{Client, Config, NoTls, Row, error::SqlState};
use uuid::Uuid;
use write::Writer;

/// Reads that run at once; more wait for their turn.
const READERS: usize = 8;
/// What takes longer counts as lost.
const CALL_LIMIT: Duration = Duration::from_secs(10);
/// Migrations may rewrite tables, and wait for another server that does.
const MIGRATION_LIMIT: Duration = Duration::from_secs(600);
/// The advisory lock under which one server at a time migrates.
const MIGRATION_LOCK: i64 = 0x686f_6465_6900;

/// For every connection. The server ends what we gave up on, so that a lost call holds no lock for long. All queries
/// are written for one index each, and stale statistics must not talk the planner out of it.
const SESSION_OPTIONS: &str = "-c statement_timeout=10s -c idle_in_transaction_session_timeout=15s \
    -c tcp_keepalives_idle=10 -c tcp_keepalives_interval=5 -c tcp_keepalives_count=3 \
    -c plan_cache_mode=force_generic_plan -c jit=off -c enable_seqscan=off -c enable_bitmapscan=off \
    -c enable_sort=off -c enable_incremental_sort=off -c enable_hashjoin=off -c enable_mergejoin=off";

/// A store that many servers share.
pub struct Postgres {
    readers: Pool,
    writer: Writer,
    limit: Duration,
}

impl Postgres {
    /// Connects, and brings the schema up to date. `url` is `postgres://user:password@host:port/database`.
    pub async fn connect(url: &str) -> Result<Self, StoreError> {
        Self::connect_within(url, CALL_LIMIT).await
    }

    /// `limit` is how long each call may take.
    async fn connect_within(url: &str, limit: Duration) -> Result<Self, StoreError> {
        let config = configure(url, limit)?;
        migrate(&config, limit).await.map_err(cannot_open)?;
        Ok(Self { readers: pool(&config, limit)?, writer: Writer::new(config, limit), limit })
    }

    fn read<'a, T, F>(&'a self, work: impl FnOnce(Object) -> F + Send + 'a) -> Answer<'a, T>
    where
        T: Send + 'a,
        F: Future<Output = Result<T, StoreError>> + Send + 'a,
    {
        Box::pin(async move {
            let client = self.readers.get().await.map_err(no_client)?;
            bounded(self.limit, work(client)).await
        })
    }
}

impl Store for Postgres {
    fn lead(&self) -> Answer<'_, Leadership> {
        Box::pin(self.writer.lead())
    }

    fn commit(&self, commit: Arc<Commit>) -> Answer<'_, ()> {
        Box::pin(self.writer.commit(commit))
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
        _follows: u64,
    ) -> Answer<'_, Vec<Job>> {
        // Every batch that was answered is in the tables.
        self.read(move |client| read::ready(client, class, priority, after, limit))
    }

    fn due(&self, after: Option<(Time, JobId)>, limit: usize) -> Answer<'_, Vec<Job>> {
        self.read(move |client| read::due(client, after, limit))
    }

    fn jobs(&self, ids: Vec<JobId>) -> Answer<'_, Vec<Job>> {
        self.read(move |client| read::jobs(client, ids))
    }

    fn payloads(&self, ids: Vec<JobId>) -> Answer<'_, Vec<(JobId, Vec<u8>)>> {
        self.read(move |client| read::payloads(client, ids))
    }

    fn results(&self, ids: Vec<JobId>) -> Answer<'_, Vec<(JobId, Vec<u8>)>> {
        self.read(move |client| read::results(client, ids))
    }

    fn data(&self, ids: Vec<JobId>) -> Answer<'_, Vec<JobData>> {
        self.read(move |client| read::data(client, ids))
    }

    fn list(&self, filter: Filter, before: Option<JobId>, limit: usize) -> Answer<'_, Page> {
        self.read(move |client| pages::list(client, filter, before, limit))
    }

    fn dependents(&self, of: Vec<Settling>, each: usize) -> Answer<'_, Vec<(JobId, Job)>> {
        self.read(move |client| read::dependents(client, of, each))
    }

    fn settling(&self) -> Answer<'_, Vec<Settling>> {
        self.read(read::settling)
    }

    fn keys(&self, keys: Vec<Arc<str>>) -> Answer<'_, Vec<(Arc<str>, JobId)>> {
        self.read(move |client| read::keys(client, keys))
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
        self.read(move |client| pages::dead_letters(client, filter, before, limit))
    }

    fn dead_letter(&self, job: JobId) -> Answer<'_, Option<DeadLetter>> {
        self.read(move |client| pages::dead_letter(client, job))
    }

    fn error_groups(&self, limit: usize) -> Answer<'_, (u64, Vec<ErrorGroup>)> {
        self.read(move |client| pages::error_groups(client, limit))
    }

    fn deliveries_due(&self, until: Time, limit: usize) -> Answer<'_, Vec<Delivery>> {
        self.read(move |client| pages::deliveries_due(client, until, limit))
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
        self.read(move |client| pages::deliveries(client, filter, before, limit))
    }

    fn delivery(&self, id: DeliveryId) -> Answer<'_, Option<Delivery>> {
        self.read(move |client| pages::delivery(client, id))
    }

    fn journal(&self, after: JournalId, limit: usize) -> Answer<'_, Vec<(JournalId, Vec<Change>)>> {
        self.read(move |client| pages::journal(client, after, limit))
    }

    fn journal_ends(&self) -> Answer<'_, Option<(JournalId, JournalId)>> {
        self.read(pages::journal_ends)
    }

    fn awaited(&self, jobs: Vec<JobId>) -> Answer<'_, Vec<JobId>> {
        self.read(move |client| read::awaited(client, jobs))
    }

    fn expired(
        &self,
        state: StateKind,
        before: Time,
        after: Option<JobId>,
        limit: usize,
    ) -> Answer<'_, (Vec<JobId>, Option<JobId>)> {
        self.read(move |client| pages::expired(client, state, before, after, limit))
    }

    fn api_tokens(&self) -> Answer<'_, Vec<ApiToken>> {
        self.read(read::api_tokens)
    }

    fn audit(&self, filter: AuditFilter, before: Option<u64>, limit: usize) -> Answer<'_, Vec<(u64, AuditEntry)>> {
        self.read(move |client| pages::audit(client, filter, before, limit))
    }

    fn logs(&self, job: JobId, from: LogPosition, bytes: usize) -> Answer<'_, Vec<LogChunk>> {
        self.read(move |client| read::logs(client, job, from, bytes))
    }

    fn log_tail(&self, job: JobId, entries: u64) -> Answer<'_, Vec<LogSpan>> {
        self.read(move |client| read::log_tail(client, job, entries))
    }

    fn log_entries(&self, executions: Vec<(JobId, ExecutionId)>) -> Answer<'_, Vec<(ExecutionId, u64)>> {
        self.read(move |client| read::log_entries(client, executions))
    }
}

fn configure(url: &str, limit: Duration) -> Result<Config, StoreError> {
    let mut config = Config::from_str(url).map_err(|error| StoreError::Open(error.to_string()))?;
    let options = format!("{} {SESSION_OPTIONS}", config.get_options().unwrap_or_default());
    config.application_name("hodei").connect_timeout(limit).options(options.trim_start());
    config.tcp_user_timeout(limit).keepalives(true).keepalives_idle(CALL_LIMIT);
    config.keepalives_interval(Duration::from_secs(5)).keepalives_retries(3);
    Ok(config)
}

fn pool(config: &Config, limit: Duration) -> Result<Pool, StoreError> {
    let manager =
        Manager::from_config(config.clone(), NoTls, ManagerConfig { recycling_method: RecyclingMethod::Fast });
    Pool::builder(manager)
        .max_size(READERS)
        .runtime(Runtime::Tokio1)
        .wait_timeout(Some(limit))
        .create_timeout(Some(limit))
        .recycle_timeout(Some(limit))
        .build()
        .map_err(|error| StoreError::Open(error.to_string()))
}

/// A connection and the task that moves its bytes.
struct Session {
    client: Client,
    task: JoinHandle<()>,
}

impl Session {
    async fn open(config: &Config, limit: Duration) -> Result<Self, StoreError> {
        let (client, connection) = bounded(limit, async { Ok(config.connect(NoTls).await?) }).await?;
        let task = tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::warn!(%error, "a connection to PostgreSQL was lost");
            }
        });
        Ok(Self { client, task })
    }
}

impl Drop for Session {
    /// Closes the socket at once: a transaction that is under way must end without waiting for an answer.
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn migrate(config: &Config, limit: Duration) -> Result<(), StoreError> {
    let mut session = Session::open(config, limit).await?;
    bounded(MIGRATION_LIMIT, migrate_in(&mut session.client)).await
}

async fn migrate_in(client: &mut Client) -> Result<(), StoreError> {
    let transaction = client.transaction().await?;
    transaction.batch_execute("SET LOCAL statement_timeout = 0").await?;
    transaction.execute("SELECT pg_advisory_xact_lock($1)", &[&MIGRATION_LOCK]).await?;
    transaction
        .batch_execute("CREATE TABLE IF NOT EXISTS schema_migrations (version bigint PRIMARY KEY, name text NOT NULL)")
        .await?;
    let row = transaction.query_one("SELECT coalesce(max(version), 0) FROM schema_migrations", &[]).await?;
    let applied = row.try_get(0)?;
    for step in migration::after(applied)? {
        transaction.batch_execute(step.postgres).await?;
        let sql = "INSERT INTO schema_migrations (version, name) VALUES ($1, $2)";
        transaction.execute(sql, &[&step.version, &step.name]).await?;
    }
    if migration::is_uncounted(applied) {
        take_in(transaction.client()).await?;
    }
    Ok(transaction.commit().await?)
}

/// What only the records say of jobs that were there before.
async fn take_in(client: &Client) -> Result<(), StoreError> {
    let statements = RowStatements::prepare(client).await?;
    let placements = client.query("SELECT record FROM placements ORDER BY epoch, batch", &[]).await?;
    let placements: Vec<Vec<Placement>> =
        placements.iter().map(|row| decode(row.try_get(0)?)).collect::<Result<_, StoreError>>()?;
    let placements = placements.concat();
    let ids: Vec<Uuid> = placements.iter().map(|placement| placement.job.0).collect();
    let jobs = decoded(&client.query("SELECT record FROM jobs WHERE id = ANY ($1)", &[&ids]).await?)?;
    write::add(client, &statements, migration::count_placed(placements, jobs)).await?;
    for state in migration::DEAD_STATES {
        let (state, limit) = (state_number(state), signed(migration::DEAD_JOBS as u64));
        let mut after = Some(JobId::NIL);
        while let Some(last) = after {
            let jobs = decoded(&client.query(pages::AFTER, &[&state, &last.0, &limit]).await?)?;
            write::add(client, &statements, migration::letters_of(&jobs)).await?;
            after = jobs.last().map(|job| job.id);
        }
    }
    Ok(())
}

fn decoded(rows: &[Row]) -> Result<Vec<Job>, StoreError> {
    rows.iter().map(|row| decode(row.try_get(0)?)).collect()
}

async fn bounded<T>(limit: Duration, call: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
    timeout(limit, call)
        .await
        .unwrap_or_else(|_| Err(StoreError::Unavailable(format!("no answer within {} s", limit.as_secs()))))
}

/// A server that is away now may be there later; anything else needs a person.
fn cannot_open(error: StoreError) -> StoreError {
    match error {
        StoreError::Broken(why) => StoreError::Open(why),
        other => other,
    }
}

fn no_client(error: PoolError) -> StoreError {
    match error {
        PoolError::Backend(error) => error.into(),
        other => StoreError::Unavailable(other.to_string()),
    }
}

impl From<tokio_postgres::Error> for StoreError {
    fn from(error: tokio_postgres::Error) -> Self {
        let text = match error.as_db_error() {
            Some(refusal) => refusal.to_string(),
            None => std::error::Error::source(&error).map_or(error.to_string(), |cause| format!("{error}: {cause}")),
        };
        if may_pass(&error) { Self::Unavailable(text) } else { Self::Broken(text) }
    }
}

/// Whether the same call may succeed later. An error without a code never reached the server or lost it.
fn may_pass(error: &tokio_postgres::Error) -> bool {
    error.code().is_none_or(|code| {
        // Connection, rollback, resources, locks, operator, system; and a server that is a standby for the moment.
        let passing = ["08", "40", "53", "55", "57", "58"];
        passing.iter().any(|class| code.code().starts_with(class)) || *code == SqlState::READ_ONLY_SQL_TRANSACTION
    })
}
