//! The reads that give pages of what grows without end. Each looks at a bounded number of rows, or at those it returns.

use super::read::{query, queue_counts, records};
use crate::{
    AuditFilter, DeadLetterFilter, DeadLetterPage, DeliveryFilter, ErrorGroup, Filter, Page, StoreError,
    listing::{LOOKS, Span, Walk, Walked, Walker, is_over, made_before, newest_first},
    record::{decode, delivery_number, signed, state_number, unsigned},
};
use deadpool_postgres::Object;
use futures::future::try_join_all;
use hodei_core::{
    access::AuditEntry,
    dead_letter::DeadLetter,
    id::{DeliveryId, JobId},
    job::Job,
    journal::{Change, JournalId},
    state::{FailureKind, StateKind},
    time::Time,
    webhook::Delivery,
};
use tokio_postgres::Row;
use uuid::Uuid;

// Rows that the columns show to be unwanted come without their records. Both ends of a walk are compared as whole keys and
// the order names all of the key, so that only one index serves, whatever the planner thinks of the others.
pub const EACH_JOB: &str = "
    SELECT id, CASE WHEN ($3::text IS NULL OR queue = $3) AND created_at >= $4 AND created_at < $5 THEN record END
    FROM jobs WHERE id >= $1 AND id < $2 ORDER BY id DESC LIMIT $6";
pub const OF_STATE: &str = "
    SELECT id, CASE WHEN ($3::text IS NULL OR queue = $3) AND created_at >= $4 AND created_at < $5 THEN record END
    FROM jobs WHERE (state, id) >= ($7::smallint, $1) AND (state, id) < ($7::smallint, $2)
    ORDER BY state DESC, id DESC LIMIT $6";
// The rows of jobs change all the time, and each change would cost an entry in an index on their queue.
pub const OF_QUEUE: &str = "
    SELECT specs.id, CASE WHEN jobs.created_at >= $4 AND jobs.created_at < $5 THEN jobs.record END
    FROM (
        SELECT queue, id FROM job_specs WHERE (queue, id) >= ($3::text, $1) AND (queue, id) < ($3::text, $2)
        ORDER BY queue DESC, id DESC LIMIT $6
    ) AS specs
    CROSS JOIN LATERAL (SELECT created_at, record FROM jobs WHERE jobs.id = specs.id OFFSET 0) AS jobs
    ORDER BY specs.queue DESC, specs.id DESC";
pub const OVER: &str = "
    SELECT id, CASE WHEN created_at < $4 THEN record END
    FROM jobs WHERE (state, id) > ($1::smallint, $2) AND (state, id) < ($1::smallint, $3) ORDER BY state, id LIMIT $5";
pub const AFTER: &str = "
    SELECT record FROM jobs WHERE (state, id) > ($1::smallint, $2::uuid) AND state <= $1 ORDER BY state, id LIMIT $3";
pub const LETTERS: &str = "
    SELECT failed_at, job, CASE WHEN ($4::text IS NULL OR queue = $4) AND ($5::text IS NULL OR task_type = $5)
                                     AND ($6::text IS NULL OR kind = $6) THEN record END
    FROM dead_letters WHERE (failed_at, job) < ($1, $2) AND failed_at >= $3
    ORDER BY failed_at DESC, job DESC LIMIT $7";
pub const LETTERS_ALIKE: &str = "
    SELECT failed_at, job, CASE WHEN ($4::text IS NULL OR queue = $4) AND ($5::text IS NULL OR task_type = $5)
                                     AND ($6::text IS NULL OR kind = $6) THEN record END
    FROM dead_letters
    WHERE (fingerprint, failed_at, job) < ($8::bigint, $1, $2) AND (fingerprint, failed_at) >= ($8::bigint, $3)
    ORDER BY fingerprint DESC, failed_at DESC, job DESC LIMIT $7";
pub const ALL_LETTERS: &str = "SELECT count FROM dead_letter_total WHERE one";
pub const LARGEST_GROUPS: &str = "
    SELECT largest.count, oldest.failed_at, newest.record
    FROM (
        SELECT fingerprint, count FROM dead_letter_groups WHERE count > 0
        ORDER BY count DESC, fingerprint DESC LIMIT $1
    ) AS largest
    CROSS JOIN LATERAL (
        SELECT failed_at FROM dead_letters WHERE fingerprint = largest.fingerprint
        ORDER BY fingerprint, failed_at, job LIMIT 1
    ) AS oldest
    CROSS JOIN LATERAL (
        SELECT record FROM dead_letters WHERE fingerprint = largest.fingerprint
        ORDER BY fingerprint DESC, failed_at DESC, job DESC LIMIT 1
    ) AS newest";
pub const LETTER: &str = "SELECT record FROM dead_letters WHERE job = $1";
pub const DELIVERY: &str = "SELECT record FROM deliveries WHERE id = $1";
pub const DELIVERIES_DUE: &str = "
    SELECT record FROM deliveries WHERE next_at IS NOT NULL AND next_at <= $1 ORDER BY next_at, id LIMIT $2";
pub const NEXT_DELIVERY: &str = "
    SELECT next_at FROM deliveries WHERE next_at IS NOT NULL ORDER BY next_at, id LIMIT 1";
pub const DELIVERIES: &str = "SELECT record FROM deliveries WHERE id < $1 ORDER BY id DESC LIMIT $2";
pub const DELIVERIES_OF_STATE: &str = "
    SELECT record FROM deliveries WHERE (state, id) < ($3::smallint, $1) AND state >= $3
    ORDER BY state DESC, id DESC LIMIT $2";
pub const DELIVERIES_OF_JOB: &str = "
    SELECT record FROM deliveries WHERE (job, id) < ($3, $1) AND job >= $3 AND ($4::smallint IS NULL OR state = $4)
    ORDER BY job DESC, id DESC LIMIT $2";
pub const JOURNAL: &str = "SELECT id, record FROM journal WHERE id > $1 ORDER BY id LIMIT $2";
pub const JOURNAL_ENDS: &str = "
    SELECT first.id, last.id FROM (SELECT id FROM journal ORDER BY id LIMIT 1) AS first
    CROSS JOIN (SELECT id FROM journal ORDER BY id DESC LIMIT 1) AS last";
pub const AUDIT: &str = "SELECT number, record FROM audit WHERE number < $1 ORDER BY number DESC LIMIT $2";
pub const AUDIT_OF_ACTOR: &str = "
    SELECT number, record FROM audit WHERE (actor, number) < ($3::bytea, $1) AND actor >= $3
    ORDER BY actor DESC, number DESC LIMIT $2";
pub const AUDIT_OF_ACTION: &str = "
    SELECT number, record FROM audit WHERE (action, number) < ($3::bytea, $1) AND action >= $3
    ORDER BY action DESC, number DESC LIMIT $2";
pub const AUDIT_OF_BOTH: &str = "
    SELECT number, record FROM audit
    WHERE (actor, action, number) < ($3::bytea, $4::bytea, $1) AND (actor, action) >= ($3::bytea, $4::bytea)
    ORDER BY actor DESC, action DESC, number DESC LIMIT $2";

pub async fn list(client: Object, filter: Filter, before: Option<JobId>, limit: usize) -> Result<Page, StoreError> {
    if limit == 0 || is_nowhere(&filter.queue) {
        return Ok(Page::default());
    }
    let counts = match filter.counted_queue() {
        Some(queue) => queue_counts(&client, queue).await?,
        None => Vec::new(),
    };
    let (walks, span) = (filter.walks(&counts), filter.span(before));
    let looks = LOOKS / walks.len();
    let walked = walks.into_iter().map(|way| walk(&client, &filter, way, span, Walker::new(limit, looks)));
    Ok(newest_first(try_join_all(walked).await?, limit))
}

/// PostgreSQL has no text with a NUL, and refuses to look for one.
fn is_nowhere(text: &Option<String>) -> bool {
    text.as_ref().is_some_and(|text| text.contains('\0'))
}

async fn walk(
    client: &Object,
    filter: &Filter,
    way: Walk<'_>,
    span: Span,
    mut walker: Walker<JobId, Job>,
) -> Result<Walked<JobId, Job>, StoreError> {
    let times = (filter.from.map_or(i64::MIN, |from| from.0), filter.to.map_or(i64::MAX, |to| to.0));
    let (queue, mut below) = (&filter.queue, span.below);
    loop {
        let page = walker.appetite(filter.wants_all_of(way));
        let limit = signed(page as u64);
        let rows = match way {
            Walk::All => query(client, EACH_JOB, &[&span.from, &below, queue, &times.0, &times.1, &limit]).await?,
            Walk::State(state) => {
                let state = state_number(state);
                query(client, OF_STATE, &[&span.from, &below, queue, &times.0, &times.1, &limit, &state]).await?
            }
            Walk::Queue(queue) => {
                query(client, OF_QUEUE, &[&span.from, &below, &queue, &times.0, &times.1, &limit]).await?
            }
        };
        for row in &rows {
            below = row.try_get(0)?;
            let job = record::<Job>(row, 1)?.filter(|job| filter.matches(job));
            if !walker.look(JobId(below), job) {
                return Ok(walker.end());
            }
        }
        if rows.len() < page {
            return Ok(walker.end());
        }
    }
}

fn record<T: serde::de::DeserializeOwned>(row: &Row, column: usize) -> Result<Option<T>, StoreError> {
    row.try_get::<_, Option<&[u8]>>(column)?.map(decode).transpose()
}

pub async fn expired(
    client: Object,
    state: StateKind,
    before: Time,
    after: Option<JobId>,
    limit: usize,
) -> Result<(Vec<JobId>, Option<JobId>), StoreError> {
    if limit == 0 {
        return Ok((Vec::new(), after));
    }
    let mut walker = Walker::new(limit, LOOKS);
    let (state, below, mut after) = (state_number(state), made_before(before), after.unwrap_or(JobId::NIL).0);
    loop {
        let page = walker.appetite(false);
        let rows = query(&client, OVER, &[&state, &after, &below, &before.0, &signed(page as u64)]).await?;
        let mut go_on = rows.len() == page;
        for row in &rows {
            after = row.try_get(0)?;
            let over = record::<Job>(row, 1)?.is_some_and(|job| is_over(&job, before));
            if !walker.look(JobId(after), over.then_some(JobId(after))) {
                go_on = false;
                break;
            }
        }
        if !go_on {
            let walked = walker.end();
            return Ok((walked.found, walked.stopped));
        }
    }
}

pub async fn dead_letters(
    client: Object,
    filter: DeadLetterFilter,
    before: Option<(Time, JobId)>,
    limit: usize,
) -> Result<DeadLetterPage, StoreError> {
    if limit == 0 || is_nowhere(&filter.queue) || is_nowhere(&filter.task_type) {
        return Ok(DeadLetterPage::default());
    }
    let from = filter.from.map_or(i64::MIN, |from| from.0);
    let kind = filter.kind.map(FailureKind::name);
    let (queue, task_type) = (&filter.queue, &filter.task_type);
    let any = queue.is_none() && task_type.is_none() && kind.is_none();
    let mut below = filter.below(before);
    let mut walker = Walker::new(limit, LOOKS);
    loop {
        let page = walker.appetite(any);
        let number = signed(page as u64);
        let (time, job) = (below.0.0, below.1.0);
        let rows = match filter.fingerprint {
            None => query(&client, LETTERS, &[&time, &job, &from, queue, task_type, &kind, &number]).await?,
            Some(alike) => {
                let sql = LETTERS_ALIKE;
                query(&client, sql, &[&time, &job, &from, queue, task_type, &kind, &number, &alike.0]).await?
            }
        };
        let mut go_on = rows.len() == page;
        for row in &rows {
            below = (Time(row.try_get(0)?), JobId(row.try_get(1)?));
            if !walker.look(below, record::<DeadLetter>(row, 2)?) {
                go_on = false;
                break;
            }
        }
        if !go_on {
            let walked = walker.end();
            return Ok(DeadLetterPage { letters: walked.found, next: walked.stopped });
        }
    }
}

pub async fn dead_letter(client: Object, job: JobId) -> Result<Option<DeadLetter>, StoreError> {
    Ok(records(&client, LETTER, &[&job.0]).await?.into_iter().next())
}

/// A group is shown by its newest letter.
pub async fn error_groups(client: Object, limit: usize) -> Result<(u64, Vec<ErrorGroup>), StoreError> {
    let total = query(&client, ALL_LETTERS, &[]).await?;
    let total = total.first().map(|row| row.try_get(0)).transpose()?.unwrap_or(0);
    let rows = query(&client, LARGEST_GROUPS, &[&signed(limit as u64)]).await?;
    let group = |row: &Row| {
        let newest: DeadLetter = decode(row.try_get(2)?)?;
        Ok(ErrorGroup::of(newest, unsigned(row.try_get(0)?), Time(row.try_get(1)?)))
    };
    Ok((unsigned(total), rows.iter().map(group).collect::<Result<_, StoreError>>()?))
}

pub async fn deliveries_due(client: Object, until: Time, limit: usize) -> Result<Vec<Delivery>, StoreError> {
    records(&client, DELIVERIES_DUE, &[&until.0, &signed(limit as u64)]).await
}

pub async fn next_delivery(client: Object) -> Result<Option<Time>, StoreError> {
    let rows = query(&client, NEXT_DELIVERY, &[]).await?;
    Ok(rows.first().map(|row| row.try_get(0)).transpose()?.map(Time))
}

pub async fn deliveries(
    client: Object,
    filter: DeliveryFilter,
    before: Option<DeliveryId>,
    limit: usize,
) -> Result<Vec<Delivery>, StoreError> {
    let (before, limit) = (before.map_or(Uuid::max(), |id| id.0), signed(limit as u64));
    let state = filter.state.map(delivery_number);
    match (filter.job, state) {
        (None, None) => records(&client, DELIVERIES, &[&before, &limit]).await,
        (None, Some(state)) => records(&client, DELIVERIES_OF_STATE, &[&before, &limit, &state]).await,
        (Some(job), state) => records(&client, DELIVERIES_OF_JOB, &[&before, &limit, &job.0, &state]).await,
    }
}

pub async fn delivery(client: Object, id: DeliveryId) -> Result<Option<Delivery>, StoreError> {
    Ok(records(&client, DELIVERY, &[&id.0]).await?.into_iter().next())
}

pub async fn journal(
    client: Object,
    after: JournalId,
    limit: usize,
) -> Result<Vec<(JournalId, Vec<Change>)>, StoreError> {
    let rows = query(&client, JOURNAL, &[&signed(after.0), &signed(limit as u64)]).await?;
    rows.iter().map(|row| Ok((JournalId(unsigned(row.try_get(0)?)), decode(row.try_get(1)?)?))).collect()
}

pub async fn journal_ends(client: Object) -> Result<Option<(JournalId, JournalId)>, StoreError> {
    let rows = query(&client, JOURNAL_ENDS, &[]).await?;
    let ends = |row: &Row| Ok((JournalId(unsigned(row.try_get(0)?)), JournalId(unsigned(row.try_get(1)?))));
    rows.first().map(ends).transpose()
}

pub async fn audit(
    client: Object,
    filter: AuditFilter,
    before: Option<u64>,
    limit: usize,
) -> Result<Vec<(u64, AuditEntry)>, StoreError> {
    let (before, limit) = (before.map_or(i64::MAX, signed), signed(limit as u64));
    let (actor, action) = (filter.actor.as_deref().map(str::as_bytes), filter.action.as_deref().map(str::as_bytes));
    let rows = match (actor, action) {
        (None, None) => query(&client, AUDIT, &[&before, &limit]).await?,
        (Some(actor), None) => query(&client, AUDIT_OF_ACTOR, &[&before, &limit, &actor]).await?,
        (None, Some(action)) => query(&client, AUDIT_OF_ACTION, &[&before, &limit, &action]).await?,
        (Some(actor), Some(action)) => query(&client, AUDIT_OF_BOTH, &[&before, &limit, &actor, &action]).await?,
    };
    rows.iter().map(|row| Ok((unsigned(row.try_get(0)?), decode(row.try_get(1)?)?))).collect()
}
