//! The reads. Each runs on a connection of the pool, beside the writer.

use crate::{
    JobData, LogPosition, LogSpan, PlacedBatch, StoreError,
    record::{decode, priority_number, priority_of, signed, state_of, unsigned},
};
use deadpool_postgres::Object;
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
use serde::de::DeserializeOwned;
use std::sync::Arc;
use tokio_postgres::{Row, types::ToSql};
use uuid::Uuid;

// The statements on tables that grow, each written for one index.
pub const ACTIVE: &str = "SELECT record FROM jobs WHERE state IN (2, 3)";
pub const LANES: &str = "
    WITH RECURSIVE lane AS (
        (SELECT class, priority FROM jobs WHERE state = 1 ORDER BY class, priority LIMIT 1)
        UNION ALL
        SELECT next.class, next.priority FROM lane CROSS JOIN LATERAL (
            SELECT class, priority FROM jobs
            WHERE state = 1 AND (class, priority) > (lane.class, lane.priority)
            ORDER BY class, priority LIMIT 1
        ) AS next
    )
    SELECT class, priority FROM lane";
pub const READY: &str = "
    SELECT record FROM jobs WHERE state = 1 AND class = $1 AND priority = $2 AND seq > $3
    ORDER BY seq LIMIT $4";
pub const DUE: &str = "
    SELECT record FROM jobs WHERE due_at IS NOT NULL AND (due_at, id) > ($1, $2)
    ORDER BY due_at, id LIMIT $3";
pub const DEPENDENTS: &str = "
    SELECT ended.job, waiting.record FROM unnest($1::uuid[], $2::uuid[]) AS ended (job, told)
    CROSS JOIN LATERAL (
        SELECT job.record FROM edges
        CROSS JOIN LATERAL (SELECT record FROM jobs WHERE jobs.id = edges.dependent OFFSET 0) AS job
        WHERE edges.dependency = ended.job AND edges.dependent > ended.told
        ORDER BY edges.dependency, edges.dependent LIMIT $3
    ) AS waiting";
pub const AWAITED: &str = "
    SELECT ended.id FROM unnest($1::uuid[]) AS ended (id) CROSS JOIN LATERAL (
        SELECT 1 FROM edges CROSS JOIN LATERAL (SELECT state FROM jobs WHERE jobs.id = edges.dependent OFFSET 0) AS job
        WHERE edges.dependency = ended.id AND job.state NOT IN (4, 5, 6, 7) LIMIT 1
    ) AS unfinished";

pub async fn active(client: Object) -> Result<Vec<Job>, StoreError> {
    records(&client, ACTIVE, &[]).await
}

pub async fn placements(client: Object) -> Result<Vec<PlacedBatch>, StoreError> {
    let sql = "SELECT epoch, batch, record FROM placements ORDER BY epoch, batch";
    let batch = |row: &Row| {
        let id = BatchId { epoch: unsigned(row.try_get(0)?), number: unsigned(row.try_get(1)?) };
        Ok(PlacedBatch { id, placements: decode(row.try_get(2)?)? })
    };
    client.query(sql, &[]).await?.iter().map(batch).collect()
}

pub async fn workers(client: Object) -> Result<Vec<WorkerRecord>, StoreError> {
    records(&client, "SELECT record FROM workers WHERE NOT terminated", &[]).await
}

pub async fn tokens(client: Object) -> Result<Vec<WorkerToken>, StoreError> {
    records(&client, "SELECT record FROM worker_tokens", &[]).await
}

/// Leaps from one line to the next, so that it costs lines and not jobs.
pub async fn lanes(client: Object) -> Result<Vec<(ClassId, Priority)>, StoreError> {
    let rows = query(&client, LANES, &[]).await?;
    rows.iter().map(|row| Ok((ClassId(row.try_get(0)?), priority_of(row.try_get(1)?)?))).collect()
}

pub async fn ready(
    client: Object,
    class: ClassId,
    priority: Priority,
    after: Option<u64>,
    limit: usize,
) -> Result<Vec<Job>, StoreError> {
    let key = (class.0, priority_number(priority), after.map_or(-1, signed), signed(limit as u64));
    records(&client, READY, &[&key.0, &key.1, &key.2, &key.3]).await
}

pub async fn due(client: Object, after: Option<(Time, JobId)>, limit: usize) -> Result<Vec<Job>, StoreError> {
    let (time, id) = after.unwrap_or((Time(i64::MIN), JobId::NIL));
    records(&client, DUE, &[&time.0, &id.0, &signed(limit as u64)]).await
}

pub async fn jobs(client: Object, ids: Vec<JobId>) -> Result<Vec<Job>, StoreError> {
    records(&client, "SELECT record FROM jobs WHERE id = ANY ($1)", &[&uuids(&ids)]).await
}

pub async fn payloads(client: Object, ids: Vec<JobId>) -> Result<Vec<(JobId, Vec<u8>)>, StoreError> {
    let rows = query(&client, "SELECT id, spec FROM job_specs WHERE id = ANY ($1)", &[&uuids(&ids)]).await?;
    rows.iter().map(|row| Ok((JobId(row.try_get(0)?), row.try_get(1)?))).collect()
}

pub async fn results(client: Object, ids: Vec<JobId>) -> Result<Vec<(JobId, Vec<u8>)>, StoreError> {
    let ids: Vec<Uuid> = ids.iter().map(|id| id.0).collect();
    let rows = query(&client, "SELECT id, result FROM job_results WHERE id = ANY($1)", &[&ids]).await?;
    rows.iter().map(|row| Ok((JobId(row.try_get(0)?), row.try_get(1)?))).collect()
}

pub async fn data(client: Object, ids: Vec<JobId>) -> Result<Vec<JobData>, StoreError> {
    let rows = query(&client, "SELECT id, data, input FROM job_data WHERE id = ANY ($1)", &[&uuids(&ids)]).await?;
    let data = |row: &Row| Ok(JobData { job: JobId(row.try_get(0)?), data: row.try_get(1)?, input: row.try_get(2)? });
    rows.iter().map(data).collect()
}

pub async fn dependents(client: Object, of: Vec<Settling>, each: usize) -> Result<Vec<(JobId, Job)>, StoreError> {
    let jobs: Vec<Uuid> = of.iter().map(|mark| mark.job.0).collect();
    let told: Vec<Uuid> = of.iter().map(|mark| mark.told.unwrap_or(JobId::NIL).0).collect();
    let rows = query(&client, DEPENDENTS, &[&jobs, &told, &signed(each as u64)]).await?;
    let found = |row: &Row| Ok((JobId(row.try_get(0)?), decode::<Job>(row.try_get(1)?)?));
    let mut found = rows.iter().map(found).collect::<Result<Vec<_>, StoreError>>()?;
    found.sort_unstable_by_key(|(dependency, job)| (*dependency, job.id));
    Ok(found)
}

pub async fn awaited(client: Object, jobs: Vec<JobId>) -> Result<Vec<JobId>, StoreError> {
    let jobs: Vec<Uuid> = jobs.iter().map(|job| job.0).collect();
    let rows = query(&client, AWAITED, &[&jobs]).await?;
    rows.iter().map(|row| Ok(JobId(row.try_get(0)?))).collect()
}

pub async fn settling(client: Object) -> Result<Vec<Settling>, StoreError> {
    let rows = client.query("SELECT job, told FROM settling ORDER BY job", &[]).await?;
    let mark =
        |row: &Row| Ok(Settling { job: JobId(row.try_get(0)?), told: row.try_get::<_, Option<Uuid>>(1)?.map(JobId) });
    rows.iter().map(mark).collect()
}

pub async fn keys(client: Object, keys: Vec<Arc<str>>) -> Result<Vec<(Arc<str>, JobId)>, StoreError> {
    // PostgreSQL has no text with a NUL, and refuses to look for one.
    let texts: Vec<&str> = keys.iter().map(|key| &**key).filter(|key| !key.contains('\0')).collect();
    let rows = query(&client, "SELECT key, job FROM idempotency_keys WHERE key = ANY ($1)", &[&texts]).await?;
    rows.iter().map(|row| Ok((row.try_get::<_, &str>(0)?.into(), JobId(row.try_get(1)?)))).collect()
}

pub async fn queues(client: Object) -> Result<Vec<QueueRecord>, StoreError> {
    records(&client, "SELECT record FROM queues ORDER BY name", &[]).await
}

pub async fn counts(client: Object) -> Result<Vec<(Arc<str>, StateKind, u64)>, StoreError> {
    let sql = "SELECT queue, state, count FROM counts WHERE count > 0 ORDER BY queue, state";
    let count =
        |row: &Row| Ok((row.try_get::<_, &str>(0)?.into(), state_of(row.try_get(1)?)?, unsigned(row.try_get(2)?)));
    query(&client, sql, &[]).await?.iter().map(count).collect()
}

pub async fn queue_counts(client: &Object, queue: &str) -> Result<Vec<(StateKind, u64)>, StoreError> {
    let rows = query(client, "SELECT state, count FROM counts WHERE queue = $1", &[&queue]).await?;
    rows.iter().map(|row| Ok((state_of(row.try_get(0)?)?, unsigned(row.try_get(1)?)))).collect()
}

pub async fn schedules(client: Object) -> Result<Vec<(ScheduleRecord, Vec<u8>)>, StoreError> {
    let rows = client.query("SELECT record, payload FROM schedules ORDER BY id", &[]).await?;
    rows.iter().map(|row| Ok((decode(row.try_get(0)?)?, row.try_get(1)?))).collect()
}

pub async fn providers(client: Object) -> Result<Vec<ProviderRecord>, StoreError> {
    records(&client, "SELECT record FROM providers ORDER BY name COLLATE \"C\"", &[]).await
}

pub async fn templates(client: Object) -> Result<Vec<WorkerTemplate>, StoreError> {
    records(&client, "SELECT record FROM worker_templates ORDER BY name COLLATE \"C\"", &[]).await
}

pub async fn cluster(client: Object) -> Result<String, StoreError> {
    Ok(client.query_one("SELECT id FROM cluster", &[]).await?.try_get(0)?)
}

pub async fn scheduler(client: Object) -> Result<Option<SchedulerSettings>, StoreError> {
    Ok(records(&client, "SELECT record FROM scheduler", &[]).await?.pop())
}

pub async fn api_tokens(client: Object) -> Result<Vec<ApiToken>, StoreError> {
    records(&client, "SELECT record FROM api_tokens ORDER BY id", &[]).await
}

/// Chunks that one query looks at.
const LOG_PAGE: i64 = 500;

/// The window sum ends each page at about the bytes that are wanted.
pub async fn logs(client: Object, job: JobId, from: LogPosition, bytes: usize) -> Result<Vec<LogChunk>, StoreError> {
    let sql = "SELECT execution_id, first, count, data FROM (
                   SELECT *, sum(octet_length(data)) OVER (ORDER BY execution_id, first) - octet_length(data) AS read
                   FROM (
                       SELECT * FROM log_chunks WHERE job_id = $1 AND (execution_id, first) > ($2, $3)
                       ORDER BY execution_id, first LIMIT $5
                   ) AS page
               ) AS chunk
               WHERE read < $4 ORDER BY execution_id, first";
    let mut after = (from.execution.0, chunk_at(&client, job, from).await? - 1);
    let mut chunks: Vec<LogChunk> = Vec::new();
    let mut left = bytes.max(1);
    while left > 0 {
        let rows = query(&client, sql, &[&job.0, &after.0, &after.1, &signed(left as u64), &LOG_PAGE]).await?;
        let Some(last) = rows.last() else { break };
        after = (last.try_get(0)?, last.try_get(1)?);
        for row in &rows {
            let chunk = log_chunk(job, row)?;
            if !from.is_after(&chunk) {
                left = left.saturating_sub(chunk.data.len());
                chunks.push(chunk);
            }
        }
    }
    Ok(chunks)
}

/// The number that the chunk which may contain this position begins with.
async fn chunk_at(client: &Object, job: JobId, from: LogPosition) -> Result<i64, StoreError> {
    let sql = "SELECT first FROM log_chunks WHERE job_id = $1 AND execution_id = $2 AND first <= $3
               ORDER BY first DESC LIMIT 1";
    let entry = signed(from.entry);
    let rows = query(client, sql, &[&job.0, &from.execution.0, &entry]).await?;
    Ok(rows.first().map(|row| row.try_get(0)).transpose()?.unwrap_or(entry))
}

/// The window sum ends the last page where enough entries are held.
pub async fn log_tail(client: Object, job: JobId, entries: u64) -> Result<Vec<LogSpan>, StoreError> {
    let sql = "SELECT execution_id, first, count FROM (
                   SELECT *, (sum(count) OVER (ORDER BY execution_id DESC, first DESC) - count)::bigint AS held
                   FROM (
                       SELECT execution_id, first, count FROM log_chunks
                       WHERE job_id = $1 AND (execution_id, first) < ($2, $3)
                       ORDER BY execution_id DESC, first DESC LIMIT $5
                   ) AS page
               ) AS chunk
               WHERE held < $4 ORDER BY execution_id DESC, first DESC";
    let mut before = (Uuid::max(), i64::MAX);
    let mut spans = Vec::new();
    let mut left = entries;
    while left > 0 {
        let rows = query(&client, sql, &[&job.0, &before.0, &before.1, &signed(left), &LOG_PAGE]).await?;
        let Some(last) = rows.last() else { break };
        before = (last.try_get(0)?, last.try_get(1)?);
        for row in &rows {
            let execution = ExecutionId(row.try_get(0)?);
            let count = u32::try_from(row.try_get::<_, i64>(2)?).unwrap_or(u32::MAX);
            left = left.saturating_sub(count.into());
            spans.push(LogSpan { execution, first: unsigned(row.try_get(1)?), count });
        }
    }
    spans.reverse();
    Ok(spans)
}

pub async fn log_entries(
    client: Object,
    executions: Vec<(JobId, ExecutionId)>,
) -> Result<Vec<(ExecutionId, u64)>, StoreError> {
    let sql =
        "SELECT wanted.execution_id, last.entries FROM unnest($1::uuid[], $2::uuid[]) AS wanted (job_id, execution_id)
               CROSS JOIN LATERAL (
                   SELECT first + count AS entries FROM log_chunks
                   WHERE job_id = wanted.job_id AND execution_id = wanted.execution_id
                   ORDER BY first DESC LIMIT 1
               ) AS last";
    let (jobs, executions): (Vec<_>, Vec<_>) = executions.iter().map(|(job, execution)| (job.0, execution.0)).unzip();
    let rows = query(&client, sql, &[&jobs, &executions]).await?;
    rows.iter().map(|row| Ok((ExecutionId(row.try_get(0)?), unsigned(row.try_get(1)?)))).collect()
}

pub async fn query(client: &Object, sql: &str, params: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>, StoreError> {
    let statement = client.prepare_cached(sql).await?;
    Ok(client.query(&statement, params).await?)
}

pub async fn records<T: DeserializeOwned>(
    client: &Object,
    sql: &str,
    params: &[&(dyn ToSql + Sync)],
) -> Result<Vec<T>, StoreError> {
    query(client, sql, params).await?.iter().map(|row| decode(row.try_get(0)?)).collect()
}

fn log_chunk(job: JobId, row: &Row) -> Result<LogChunk, StoreError> {
    Ok(LogChunk {
        job,
        execution: ExecutionId(row.try_get(0)?),
        first: unsigned(row.try_get(1)?),
        count: u32::try_from(row.try_get::<_, i64>(2)?).unwrap_or(u32::MAX),
        data: row.try_get::<_, &[u8]>(3)?.into(),
    })
}

fn uuids(ids: &[JobId]) -> Vec<Uuid> {
    ids.iter().map(|id| id.0).collect()
}
