//! The reads. Each runs on a connection of the pool, beside the writer.

use crate::{
    Filter, LogPosition, LogSpan, Page, PlacedBatch, StoreError, newest_first,
    record::{decode, priority_number, priority_of, signed, state_number, unsigned},
};
use deadpool_postgres::Object;
use hodei_core::{
    brain::BatchId,
    id::{ExecutionId, JobId},
    job::{ClassId, Job},
    protocol::LogChunk,
    spec::Priority,
    time::Time,
    token::WorkerToken,
    worker::WorkerRecord,
};
use serde::de::DeserializeOwned;
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
pub const ANY_STATE: &str = "
    SELECT id, record FROM jobs
    WHERE id < $1 AND ($2::text IS NULL OR queue = $2) ORDER BY id DESC LIMIT $3";
// Only the index on (state, id) gives this order, whatever the planner thinks of the primary key.
pub const ONE_STATE: &str = "
    SELECT id, record FROM jobs
    WHERE (state, id) < ($4::smallint, $1) AND state >= $4 AND ($2::text IS NULL OR queue = $2)
    ORDER BY state DESC, id DESC LIMIT $3";

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

pub async fn list(client: Object, filter: Filter, before: Option<JobId>, limit: usize) -> Result<Page, StoreError> {
    let before = before.map_or(Uuid::max(), |id| id.0);
    let limit_number = signed(limit as u64);
    let mut found = Vec::new();
    for state in filter.walks() {
        let rows = match state.map(state_number) {
            None => query(&client, ANY_STATE, &[&before, &filter.queue, &limit_number]).await?,
            Some(state) => query(&client, ONE_STATE, &[&before, &filter.queue, &limit_number, &state]).await?,
        };
        for row in rows {
            found.push((JobId(row.try_get(0)?), row.try_get(1)?));
        }
    }
    newest_first(found, limit)
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

async fn query(client: &Object, sql: &str, params: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>, StoreError> {
    let statement = client.prepare_cached(sql).await?;
    Ok(client.query(&statement, params).await?)
}

async fn records<T: DeserializeOwned>(
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
