//! The reads. Each runs in one short transaction on a connection of its own, beside the writer.

use super::open_connection;
use crate::{
    JobData, LogPosition, LogSpan, PlacedBatch, StoreError,
    record::{decode, priority_number, priority_of, signed, state_number, state_of, unsigned},
};
use hodei_core::{
    access::ApiToken,
    brain::{BatchId, Settling},
    id::{ExecutionId, JobId},
    job::{ClassId, Job},
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
    worker::WorkerRecord,
};
use rusqlite::{Connection, OpenFlags, OptionalExtension, Params, Row};
use serde::de::DeserializeOwned;
use std::{
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
};
use tokio::sync::Semaphore;

/// Reads that run at once; more wait for their turn.
const READERS: usize = 4;

/// Connections that only read, opened when they are first needed.
pub struct Readers {
    path: PathBuf,
    idle: Mutex<Vec<Connection>>,
    turns: Arc<Semaphore>,
}

impl Readers {
    pub fn new(path: PathBuf) -> Self {
        Self { path, idle: Mutex::default(), turns: Arc::new(Semaphore::new(READERS)) }
    }

    /// Waits for `ready` first, off the runtime's threads.
    pub async fn run<T: Send + 'static>(
        readers: Arc<Self>,
        ready: impl FnOnce() -> Result<(), StoreError> + Send + 'static,
        work: impl FnOnce(&Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let failed = |error: String| StoreError::Broken(format!("a read did not run: {error}"));
        let turn = Arc::clone(&readers.turns).acquire_owned().await.map_err(|error| failed(error.to_string()))?;
        let read = move || {
            let _turn = turn;
            ready()?;
            readers.read(work)
        };
        tokio::task::spawn_blocking(read).await.map_err(|error| failed(error.to_string()))?
    }

    /// A connection on which a read failed is not used again.
    fn read<T>(&self, work: impl FnOnce(&Connection) -> Result<T, StoreError>) -> Result<T, StoreError> {
        let connection = self.take()?;
        let transaction = connection.unchecked_transaction()?;
        let answer = work(&transaction)?;
        transaction.finish()?;
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(connection);
        Ok(answer)
    }

    fn take(&self) -> Result<Connection, StoreError> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        idle.map_or_else(|| open_connection(&self.path, OpenFlags::SQLITE_OPEN_READ_ONLY), Ok)
    }
}

// The statements on tables that grow. Each names its index, so that no statistics are needed to choose it.
pub const ACTIVE: &str = "SELECT record FROM jobs INDEXED BY jobs_state WHERE state = ?1";
// SQLite seeks to the first row that equals the key and walks on from there, so the key must be past the whole line.
pub const NEXT_LANE: &str = "
    SELECT class, priority FROM jobs INDEXED BY jobs_ready
    WHERE state = 1 AND (class, priority, seq) > (?1, ?2, 0x7fffffffffffffff) ORDER BY class, priority, seq LIMIT 1";
pub const READY: &str = "
    SELECT record FROM jobs INDEXED BY jobs_ready
    WHERE state = 1 AND class = ?1 AND priority = ?2 AND seq > ?3 ORDER BY seq LIMIT ?4";
pub const DUE: &str = "
    SELECT record FROM jobs INDEXED BY jobs_due
    WHERE due_at IS NOT NULL AND (due_at, id) > (?1, ?2) ORDER BY due_at, id LIMIT ?3";
pub const DEPENDENTS: &str = "
    SELECT jobs.record FROM edges CROSS JOIN jobs ON jobs.id = edges.dependent
    WHERE edges.dependency = ?1 AND edges.dependent > ?2 ORDER BY edges.dependent LIMIT ?3";
// The cross join keeps SQLite from beginning with the jobs.
pub const AWAITED: &str = "
    SELECT 1 FROM edges CROSS JOIN jobs ON jobs.id = edges.dependent
    WHERE edges.dependency = ?1 AND jobs.state NOT IN (4, 5, 6, 7) LIMIT 1";
pub const JOB: &str = "SELECT record FROM jobs WHERE id = ?1";
pub const PAYLOAD: &str = "
    SELECT coalesce(spec, (SELECT spec FROM job_specs WHERE job_specs.id = jobs.id)) FROM jobs WHERE id = ?1";
pub const RESULT: &str = "SELECT result FROM job_results WHERE id = ?1";
pub const DATA: &str = "SELECT data, input FROM job_data WHERE id = ?1";
pub const KEY: &str = "SELECT job FROM idempotency_keys WHERE key = ?1";
pub const COUNTS_OF_QUEUE: &str = "SELECT state, count FROM counts WHERE queue = ?1";
pub const LOGS: &str = "
    SELECT execution_id, first, count, data FROM log_chunks
    WHERE job_id = ?1 AND (execution_id, first) >= (?2, ?3) ORDER BY execution_id, first";
pub const LOG_CHUNK_AT: &str = "
    SELECT max(first) FROM log_chunks WHERE job_id = ?1 AND execution_id = ?2 AND first <= ?3";
pub const LOG_TAIL: &str = "
    SELECT execution_id, first, count FROM log_chunks WHERE job_id = ?1 ORDER BY execution_id DESC, first DESC";
pub const LOG_END: &str = "
    SELECT first + count FROM log_chunks WHERE job_id = ?1 AND execution_id = ?2 ORDER BY first DESC LIMIT 1";

#[cfg(test)]
pub const ALL: [&str; 16] = [
    ACTIVE,
    NEXT_LANE,
    READY,
    DUE,
    DEPENDENTS,
    AWAITED,
    JOB,
    PAYLOAD,
    RESULT,
    DATA,
    KEY,
    COUNTS_OF_QUEUE,
    LOGS,
    LOG_CHUNK_AT,
    LOG_TAIL,
    LOG_END,
];

pub fn active(connection: &Connection) -> Result<Vec<Job>, StoreError> {
    let active = StateKind::ALL.into_iter().filter(|kind| kind.is_active());
    let mut jobs = Vec::new();
    for kind in active {
        jobs.extend(records::<Job>(connection, ACTIVE, (state_number(kind),))?);
    }
    Ok(jobs)
}

pub fn placements(connection: &Connection) -> Result<Vec<PlacedBatch>, StoreError> {
    let mut statement = connection.prepare("SELECT epoch, batch, record FROM placements ORDER BY epoch, batch")?;
    let mut rows = statement.query(())?;
    let mut found = Vec::new();
    while let Some(row) = rows.next()? {
        let id = BatchId { epoch: unsigned(row.get(0)?), number: unsigned(row.get(1)?) };
        found.push(PlacedBatch { id, placements: decode(blob(row, 2)?)? });
    }
    Ok(found)
}

pub fn workers(connection: &Connection) -> Result<Vec<WorkerRecord>, StoreError> {
    records(connection, "SELECT record FROM workers INDEXED BY workers_live WHERE terminated = 0", ())
}

pub fn tokens(connection: &Connection) -> Result<Vec<WorkerToken>, StoreError> {
    records(connection, "SELECT record FROM worker_tokens", ())
}

/// Leaps from one line to the next, so that it costs lines and not jobs.
pub fn lanes(connection: &Connection) -> Result<Vec<(ClassId, Priority)>, StoreError> {
    let mut next = connection.prepare_cached(NEXT_LANE)?;
    let mut lanes = Vec::new();
    let mut last = (i64::MIN, i16::MIN);
    while let Some(lane) = next.query_row(last, |row| Ok((row.get(0)?, row.get(1)?))).optional()? {
        lanes.push((ClassId(lane.0), priority_of(lane.1)?));
        last = lane;
    }
    Ok(lanes)
}

pub fn ready(
    connection: &Connection,
    class: ClassId,
    priority: Priority,
    after: Option<u64>,
    limit: usize,
) -> Result<Vec<Job>, StoreError> {
    records(connection, READY, (class.0, priority_number(priority), after.map_or(-1, signed), signed(limit as u64)))
}

pub fn due(connection: &Connection, after: Option<(Time, JobId)>, limit: usize) -> Result<Vec<Job>, StoreError> {
    let (time, id) = after.unwrap_or((Time(i64::MIN), JobId::NIL));
    records(connection, DUE, (time.0, id.as_bytes(), signed(limit as u64)))
}

pub fn jobs(connection: &Connection, ids: &[JobId]) -> Result<Vec<Job>, StoreError> {
    let mut statement = connection.prepare_cached(JOB)?;
    let mut jobs = Vec::with_capacity(ids.len());
    for id in ids {
        let mut rows = statement.query((id.as_bytes(),))?;
        if let Some(row) = rows.next()? {
            jobs.push(decode(blob(row, 0)?)?);
        }
    }
    Ok(jobs)
}

pub fn payloads(connection: &Connection, ids: &[JobId]) -> Result<Vec<(JobId, Vec<u8>)>, StoreError> {
    let mut statement = connection.prepare_cached(PAYLOAD)?;
    let mut payloads = Vec::with_capacity(ids.len());
    for id in ids {
        let mut rows = statement.query((id.as_bytes(),))?;
        if let Some(row) = rows.next()? {
            payloads.push((*id, blob(row, 0)?.to_vec()));
        }
    }
    Ok(payloads)
}

pub fn results(connection: &Connection, ids: &[JobId]) -> Result<Vec<(JobId, Vec<u8>)>, StoreError> {
    let mut statement = connection.prepare_cached(RESULT)?;
    let mut found = Vec::new();
    for id in ids {
        let result = statement.query_row((id.as_bytes(),), |row| row.get(0)).optional()?;
        found.extend(result.map(|result| (*id, result)));
    }
    Ok(found)
}

pub fn data(connection: &Connection, ids: &[JobId]) -> Result<Vec<JobData>, StoreError> {
    let mut statement = connection.prepare_cached(DATA)?;
    let mut found = Vec::new();
    for id in ids {
        let data = statement
            .query_row((id.as_bytes(),), |row| Ok(JobData { job: *id, data: row.get(0)?, input: row.get(1)? }));
        found.extend(data.optional()?);
    }
    Ok(found)
}

pub fn dependents(connection: &Connection, of: &[Settling], each: usize) -> Result<Vec<(JobId, Job)>, StoreError> {
    let mut statement = connection.prepare_cached(DEPENDENTS)?;
    let mut found = Vec::new();
    for Settling { job, told } in of {
        let told = told.unwrap_or(JobId::NIL);
        let mut rows = statement.query((job.as_bytes(), told.as_bytes(), signed(each as u64)))?;
        while let Some(row) = rows.next()? {
            found.push((*job, decode(blob(row, 0)?)?));
        }
    }
    Ok(found)
}

pub fn awaited(connection: &Connection, jobs: &[JobId]) -> Result<Vec<JobId>, StoreError> {
    let mut statement = connection.prepare_cached(AWAITED)?;
    let mut found = Vec::new();
    for job in jobs {
        if statement.exists((job.as_bytes(),))? {
            found.push(*job);
        }
    }
    Ok(found)
}

pub fn settling(connection: &Connection) -> Result<Vec<Settling>, StoreError> {
    let mut statement = connection.prepare("SELECT job, told FROM settling ORDER BY job")?;
    let mut rows = statement.query(())?;
    let mut marks = Vec::new();
    while let Some(row) = rows.next()? {
        let told = row.get::<_, Option<Vec<u8>>>(1)?.and_then(|id| JobId::from_slice(&id));
        marks.push(Settling { job: JobId(uuid(row, 0)?), told });
    }
    Ok(marks)
}

pub fn keys(connection: &Connection, keys: &[Arc<str>]) -> Result<Vec<(Arc<str>, JobId)>, StoreError> {
    let mut statement = connection.prepare_cached(KEY)?;
    let mut taken = Vec::new();
    for key in keys {
        let mut rows = statement.query((&**key,))?;
        if let Some(row) = rows.next()? {
            taken.push((Arc::clone(key), JobId(uuid(row, 0)?)));
        }
    }
    Ok(taken)
}

pub fn queues(connection: &Connection) -> Result<Vec<QueueRecord>, StoreError> {
    records(connection, "SELECT record FROM queues ORDER BY name", ())
}

pub fn counts(connection: &Connection) -> Result<Vec<(Arc<str>, StateKind, u64)>, StoreError> {
    let sql = "SELECT queue, state, count FROM counts WHERE count > 0 ORDER BY queue, state";
    let mut statement = connection.prepare_cached(sql)?;
    let mut rows = statement.query(())?;
    let mut counts = Vec::new();
    while let Some(row) = rows.next()? {
        counts.push((row.get(0)?, state_of(row.get(1)?)?, unsigned(row.get(2)?)));
    }
    Ok(counts)
}

pub fn queue_counts(connection: &Connection, queue: &str) -> Result<Vec<(StateKind, u64)>, StoreError> {
    let mut statement = connection.prepare_cached(COUNTS_OF_QUEUE)?;
    let mut rows = statement.query((queue,))?;
    let mut counts = Vec::new();
    while let Some(row) = rows.next()? {
        counts.push((state_of(row.get(0)?)?, unsigned(row.get(1)?)));
    }
    Ok(counts)
}

pub fn schedules(connection: &Connection) -> Result<Vec<(ScheduleRecord, Vec<u8>)>, StoreError> {
    let mut statement = connection.prepare("SELECT record, payload FROM schedules ORDER BY id")?;
    let mut rows = statement.query(())?;
    let mut schedules = Vec::new();
    while let Some(row) = rows.next()? {
        schedules.push((decode(blob(row, 0)?)?, row.get(1)?));
    }
    Ok(schedules)
}

pub fn providers(connection: &Connection) -> Result<Vec<ProviderRecord>, StoreError> {
    records(connection, "SELECT record FROM providers ORDER BY name", ())
}

pub fn templates(connection: &Connection) -> Result<Vec<WorkerTemplate>, StoreError> {
    records(connection, "SELECT record FROM worker_templates ORDER BY name", ())
}

pub fn cluster(connection: &Connection) -> Result<String, StoreError> {
    Ok(connection.query_one("SELECT id FROM cluster", (), |row| row.get(0))?)
}

pub fn scheduler(connection: &Connection) -> Result<Option<SchedulerSettings>, StoreError> {
    Ok(records(connection, "SELECT record FROM scheduler", ())?.pop())
}

pub fn api_tokens(connection: &Connection) -> Result<Vec<ApiToken>, StoreError> {
    records(connection, "SELECT record FROM api_tokens ORDER BY id", ())
}

pub fn logs(connection: &Connection, job: JobId, from: LogPosition, bytes: usize) -> Result<Vec<LogChunk>, StoreError> {
    let start = (job.as_bytes(), from.execution.as_bytes(), chunk_at(connection, job, from)?);
    let mut statement = connection.prepare_cached(LOGS)?;
    let mut rows = statement.query(start)?;
    let mut chunks: Vec<LogChunk> = Vec::new();
    let mut read = 0;
    while let Some(row) = rows.next()? {
        let chunk = log_chunk(job, row)?;
        if from.is_after(&chunk) {
            continue;
        }
        read += chunk.data.len();
        chunks.push(chunk);
        if read >= bytes {
            break;
        }
    }
    Ok(chunks)
}

/// The number that the chunk which may contain this position begins with.
fn chunk_at(connection: &Connection, job: JobId, from: LogPosition) -> Result<i64, StoreError> {
    let key = (job.as_bytes(), from.execution.as_bytes(), signed(from.entry));
    let first: Option<i64> = connection.prepare_cached(LOG_CHUNK_AT)?.query_row(key, |row| row.get(0))?;
    Ok(first.unwrap_or(signed(from.entry)))
}

pub fn log_tail(connection: &Connection, job: JobId, entries: u64) -> Result<Vec<LogSpan>, StoreError> {
    let mut statement = connection.prepare_cached(LOG_TAIL)?;
    let mut rows = statement.query((job.as_bytes(),))?;
    let mut spans = Vec::new();
    let mut held = 0;
    while held < entries
        && let Some(row) = rows.next()?
    {
        let execution = ExecutionId(uuid(row, 0)?);
        let span = LogSpan { execution, first: unsigned(row.get(1)?), count: row.get(2)? };
        held += u64::from(span.count);
        spans.push(span);
    }
    spans.reverse();
    Ok(spans)
}

pub fn log_entries(
    connection: &Connection,
    executions: &[(JobId, ExecutionId)],
) -> Result<Vec<(ExecutionId, u64)>, StoreError> {
    let mut statement = connection.prepare_cached(LOG_END)?;
    let mut counts = Vec::new();
    for (job, execution) in executions {
        let end = statement.query_row((job.as_bytes(), execution.as_bytes()), |row| row.get(0)).optional()?;
        counts.extend(end.map(|end| (*execution, unsigned(end))));
    }
    Ok(counts)
}

pub fn records<T: DeserializeOwned>(
    connection: &Connection,
    sql: &str,
    key: impl Params,
) -> Result<Vec<T>, StoreError> {
    let mut statement = connection.prepare_cached(sql)?;
    let mut rows = statement.query(key)?;
    let mut found = Vec::new();
    while let Some(row) = rows.next()? {
        found.push(decode(blob(row, 0)?)?);
    }
    Ok(found)
}

fn log_chunk(job: JobId, row: &Row) -> Result<LogChunk, StoreError> {
    Ok(LogChunk {
        job,
        execution: ExecutionId(uuid(row, 0)?),
        first: unsigned(row.get(1)?),
        count: row.get(2)?,
        data: blob(row, 3)?.into(),
    })
}

pub fn blob<'a>(row: &'a Row, column: usize) -> Result<&'a [u8], StoreError> {
    row.get_ref(column)?.as_blob().map_err(|error| StoreError::Broken(format!("column {column}: {error}")))
}

pub fn uuid(row: &Row, column: usize) -> Result<uuid::Uuid, StoreError> {
    uuid::Uuid::from_slice(blob(row, column)?).map_err(|error| StoreError::Broken(format!("column {column}: {error}")))
}
