//! The reads that give pages of what grows without end. Each looks at a bounded number of rows, or at those it returns.

use super::read::{blob, queue_counts, records, uuid};
use crate::{
    AuditFilter, DeadLetterFilter, DeadLetterPage, DeliveryFilter, ErrorGroup, Filter, Page, StoreError,
    listing::{LOOKS, Span, Walk, Walked, Walker, is_over, made_before, newest_first},
    record::{decode, delivery_number, signed, state_number, unsigned},
};
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
use rusqlite::{Connection, OptionalExtension, Statement, params};

// Rows that the columns show to be unwanted come without their records. Each statement names its index.
pub const EACH_JOB: &str = "
    SELECT id, CASE WHEN (?3 IS NULL OR queue = ?3) AND created_at >= ?4 AND created_at < ?5 THEN record END
    FROM jobs WHERE id >= ?1 AND id < ?2 ORDER BY id DESC";
pub const OF_STATE: &str = "
    SELECT id, CASE WHEN (?3 IS NULL OR queue = ?3) AND created_at >= ?4 AND created_at < ?5 THEN record END
    FROM jobs INDEXED BY jobs_state WHERE state = ?6 AND id >= ?1 AND id < ?2 ORDER BY id DESC";
pub const OF_QUEUE: &str = "
    SELECT id, CASE WHEN created_at >= ?4 AND created_at < ?5 THEN record END
    FROM jobs INDEXED BY jobs_queue WHERE queue = ?3 AND id >= ?1 AND id < ?2 ORDER BY id DESC";
pub const OVER: &str = "
    SELECT id, CASE WHEN created_at < ?4 THEN record END
    FROM jobs INDEXED BY jobs_state WHERE state = ?1 AND id > ?2 AND id < ?3 ORDER BY id";
pub const AFTER: &str = "
    SELECT record FROM jobs INDEXED BY jobs_state WHERE state = ?1 AND id > ?2 ORDER BY id LIMIT ?3";
pub const LETTERS: &str = "
    SELECT failed_at, job,
           CASE WHEN (?4 IS NULL OR queue = ?4) AND (?5 IS NULL OR task_type = ?5) AND (?6 IS NULL OR kind = ?6)
           THEN record END
    FROM dead_letters INDEXED BY dead_letters_time
    WHERE (failed_at, job) < (?1, ?2) AND failed_at >= ?3 ORDER BY failed_at DESC, job DESC";
pub const LETTERS_ALIKE: &str = "
    SELECT failed_at, job,
           CASE WHEN (?4 IS NULL OR queue = ?4) AND (?5 IS NULL OR task_type = ?5) AND (?6 IS NULL OR kind = ?6)
           THEN record END
    FROM dead_letters INDEXED BY dead_letters_alike
    WHERE fingerprint = ?7 AND (failed_at, job) < (?1, ?2) AND failed_at >= ?3 ORDER BY failed_at DESC, job DESC";
pub const ALL_LETTERS: &str = "SELECT count FROM dead_letter_total WHERE one = 1";
pub const LARGEST_GROUPS: &str = "
    SELECT fingerprint, count FROM dead_letter_groups INDEXED BY dead_letter_groups_count
    WHERE count > 0 ORDER BY count DESC, fingerprint DESC LIMIT ?1";
pub const OLDEST_ALIKE: &str = "
    SELECT failed_at FROM dead_letters INDEXED BY dead_letters_alike
    WHERE fingerprint = ?1 ORDER BY failed_at, job LIMIT 1";
pub const NEWEST_ALIKE: &str = "
    SELECT record FROM dead_letters INDEXED BY dead_letters_alike
    WHERE fingerprint = ?1 ORDER BY failed_at DESC, job DESC LIMIT 1";
pub const LETTER: &str = "SELECT record FROM dead_letters WHERE job = ?1";
pub const DELIVERY: &str = "SELECT record FROM deliveries WHERE id = ?1";
pub const DELIVERIES_DUE: &str = "
    SELECT record FROM deliveries INDEXED BY deliveries_due
    WHERE next_at IS NOT NULL AND next_at <= ?1 ORDER BY next_at, id LIMIT ?2";
pub const NEXT_DELIVERY: &str = "
    SELECT next_at FROM deliveries INDEXED BY deliveries_due
    WHERE next_at IS NOT NULL AND next_at > ?1 ORDER BY next_at LIMIT 1";
pub const DELIVERIES: &str = "SELECT record FROM deliveries WHERE id < ?1 ORDER BY id DESC LIMIT ?2";
pub const DELIVERIES_OF_STATE: &str = "
    SELECT record FROM deliveries INDEXED BY deliveries_state
    WHERE state = ?3 AND id < ?1 ORDER BY id DESC LIMIT ?2";
pub const DELIVERIES_OF_JOB: &str = "
    SELECT record FROM deliveries INDEXED BY deliveries_job
    WHERE job = ?3 AND id < ?1 AND (?4 IS NULL OR state = ?4) ORDER BY id DESC LIMIT ?2";
pub const JOURNAL: &str = "SELECT id, record FROM journal WHERE id > ?1 ORDER BY id LIMIT ?2";
pub const JOURNAL_FIRST: &str = "SELECT id FROM journal WHERE id > ?1 ORDER BY id LIMIT 1";
pub const JOURNAL_LAST: &str = "SELECT id FROM journal WHERE id > ?1 ORDER BY id DESC LIMIT 1";
pub const AUDIT: &str = "SELECT number, record FROM audit WHERE number < ?1 ORDER BY number DESC LIMIT ?2";
pub const AUDIT_OF_ACTOR: &str = "
    SELECT number, record FROM audit INDEXED BY audit_actor
    WHERE actor = ?3 AND number < ?1 ORDER BY number DESC LIMIT ?2";
pub const AUDIT_OF_ACTION: &str = "
    SELECT number, record FROM audit INDEXED BY audit_action
    WHERE action = ?3 AND number < ?1 ORDER BY number DESC LIMIT ?2";
pub const AUDIT_OF_BOTH: &str = "
    SELECT number, record FROM audit INDEXED BY audit_actor_action
    WHERE actor = ?3 AND action = ?4 AND number < ?1 ORDER BY number DESC LIMIT ?2";

#[cfg(test)]
pub const ALL: [&str; 25] = [
    ALL_LETTERS,
    LETTER,
    DELIVERY,
    AFTER,
    EACH_JOB,
    OF_STATE,
    OF_QUEUE,
    OVER,
    LETTERS,
    LETTERS_ALIKE,
    LARGEST_GROUPS,
    OLDEST_ALIKE,
    NEWEST_ALIKE,
    DELIVERIES_DUE,
    NEXT_DELIVERY,
    DELIVERIES,
    DELIVERIES_OF_STATE,
    DELIVERIES_OF_JOB,
    JOURNAL,
    JOURNAL_FIRST,
    JOURNAL_LAST,
    AUDIT,
    AUDIT_OF_ACTOR,
    AUDIT_OF_ACTION,
    AUDIT_OF_BOTH,
];

pub fn list(connection: &Connection, filter: &Filter, before: Option<JobId>, limit: usize) -> Result<Page, StoreError> {
    if limit == 0 {
        return Ok(Page::default());
    }
    let counts = filter.counted_queue().map_or(Ok(Vec::new()), |queue| queue_counts(connection, queue))?;
    let (walks, span) = (filter.walks(&counts), filter.span(before));
    let looks = LOOKS / walks.len();
    let walked = walks.into_iter().map(|way| walk(connection, filter, way, span, Walker::new(limit, looks)));
    Ok(newest_first(walked.collect::<Result<_, _>>()?, limit))
}

fn walk(
    connection: &Connection,
    filter: &Filter,
    way: Walk<'_>,
    span: Span,
    mut walker: Walker<JobId, Job>,
) -> Result<Walked<JobId, Job>, StoreError> {
    let (sql, state) = match way {
        Walk::All => (EACH_JOB, None),
        Walk::State(state) => (OF_STATE, Some(state)),
        Walk::Queue(_) => (OF_QUEUE, None),
    };
    let mut statement = connection.prepare_cached(sql)?;
    let times = (filter.from.map_or(i64::MIN, |from| from.0), filter.to.map_or(i64::MAX, |to| to.0));
    bind_each(&mut statement, params![span.from.as_bytes(), span.below.as_bytes(), filter.queue, times.0, times.1])?;
    if let Some(state) = state {
        statement.raw_bind_parameter(6, state_number(state))?;
    }
    let mut rows = statement.raw_query();
    while let Some(row) = rows.next()? {
        let job = match row.get_ref(1)?.as_blob_or_null().map_err(not_a_record)? {
            Some(record) => Some(decode::<Job>(record)?).filter(|job| filter.matches(job)),
            None => None,
        };
        if !walker.look(JobId(uuid(row, 0)?), job) {
            break;
        }
    }
    Ok(walker.end())
}

fn not_a_record(error: impl std::fmt::Display) -> StoreError {
    StoreError::Broken(format!("a record is no blob: {error}"))
}

fn bind_each(statement: &mut Statement<'_>, values: &[&dyn rusqlite::ToSql]) -> Result<(), StoreError> {
    for (i, value) in values.iter().enumerate() {
        statement.raw_bind_parameter(i + 1, value)?;
    }
    Ok(())
}

pub fn expired(
    connection: &Connection,
    state: StateKind,
    before: Time,
    after: Option<JobId>,
    limit: usize,
) -> Result<(Vec<JobId>, Option<JobId>), StoreError> {
    if limit == 0 {
        return Ok((Vec::new(), after));
    }
    let mut walker = Walker::new(limit, LOOKS);
    let mut statement = connection.prepare_cached(OVER)?;
    let after = after.unwrap_or(JobId::NIL);
    let mut rows =
        statement.query((state_number(state), after.as_bytes(), made_before(before).as_bytes(), before.0))?;
    while let Some(row) = rows.next()? {
        let id = JobId(uuid(row, 0)?);
        let job = row.get_ref(1)?.as_blob_or_null().map_err(not_a_record)?.map(decode::<Job>).transpose()?;
        let over = job.is_some_and(|job| is_over(&job, before));
        if !walker.look(id, over.then_some(id)) {
            break;
        }
    }
    let walked = walker.end();
    Ok((walked.found, walked.stopped))
}

/// Jobs in this state with ids after `after`, in order.
pub fn of_state(connection: &Connection, state: StateKind, after: JobId, limit: usize) -> Result<Vec<Job>, StoreError> {
    records(connection, AFTER, (state_number(state), after.as_bytes(), signed(limit as u64)))
}

pub fn dead_letters(
    connection: &Connection,
    filter: &DeadLetterFilter,
    before: Option<(Time, JobId)>,
    limit: usize,
) -> Result<DeadLetterPage, StoreError> {
    if limit == 0 {
        return Ok(DeadLetterPage::default());
    }
    let (below, from) = (filter.below(before), filter.from.map_or(i64::MIN, |from| from.0));
    let sql = if filter.fingerprint.is_some() { LETTERS_ALIKE } else { LETTERS };
    let mut statement = connection.prepare_cached(sql)?;
    let kind = filter.kind.map(FailureKind::name);
    bind_each(&mut statement, params![below.0.0, below.1.as_bytes(), from, filter.queue, filter.task_type, kind])?;
    if let Some(fingerprint) = filter.fingerprint {
        statement.raw_bind_parameter(7, fingerprint.0)?;
    }
    let mut walker = Walker::new(limit, LOOKS);
    let mut rows = statement.raw_query();
    while let Some(row) = rows.next()? {
        let letter = row.get_ref(2)?.as_blob_or_null().map_err(not_a_record)?.map(decode::<DeadLetter>).transpose()?;
        if !walker.look((Time(row.get(0)?), JobId(uuid(row, 1)?)), letter) {
            break;
        }
    }
    let walked = walker.end();
    Ok(DeadLetterPage { letters: walked.found, next: walked.stopped })
}

pub fn dead_letter(connection: &Connection, job: JobId) -> Result<Option<DeadLetter>, StoreError> {
    let found = records(connection, LETTER, (job.as_bytes(),))?;
    Ok(found.into_iter().next())
}

/// A group is shown by its newest letter.
pub fn error_groups(connection: &Connection, limit: usize) -> Result<(u64, Vec<ErrorGroup>), StoreError> {
    let total: i64 = connection.prepare_cached(ALL_LETTERS)?.query_row((), |row| row.get(0))?;
    let mut statement = connection.prepare_cached(LARGEST_GROUPS)?;
    let mut rows = statement.query((signed(limit as u64),))?;
    let mut groups = Vec::new();
    while let Some(row) = rows.next()? {
        let (fingerprint, count): (i64, i64) = (row.get(0)?, row.get(1)?);
        let first = connection.prepare_cached(OLDEST_ALIKE)?.query_row((fingerprint,), |row| row.get(0)).optional()?;
        let newest = records::<DeadLetter>(connection, NEWEST_ALIKE, (fingerprint,))?.into_iter().next();
        groups.extend(newest.zip(first).map(|(newest, first)| ErrorGroup::of(newest, unsigned(count), Time(first))));
    }
    Ok((unsigned(total), groups))
}

pub fn deliveries_due(connection: &Connection, until: Time, limit: usize) -> Result<Vec<Delivery>, StoreError> {
    records(connection, DELIVERIES_DUE, (until.0, signed(limit as u64)))
}

pub fn next_delivery(connection: &Connection) -> Result<Option<Time>, StoreError> {
    let next = connection.prepare_cached(NEXT_DELIVERY)?.query_row((i64::MIN,), |row| row.get(0)).optional()?;
    Ok(next.map(Time))
}

pub fn deliveries(
    connection: &Connection,
    filter: &DeliveryFilter,
    before: Option<DeliveryId>,
    limit: usize,
) -> Result<Vec<Delivery>, StoreError> {
    let (before, limit) = (before.map_or([u8::MAX; 16], |id| *id.as_bytes()), signed(limit as u64));
    let state = filter.state.map(delivery_number);
    match (filter.job, state) {
        (None, None) => records(connection, DELIVERIES, (before, limit)),
        (None, Some(state)) => records(connection, DELIVERIES_OF_STATE, (before, limit, state)),
        (Some(job), state) => records(connection, DELIVERIES_OF_JOB, (before, limit, job.as_bytes(), state)),
    }
}

pub fn delivery(connection: &Connection, id: DeliveryId) -> Result<Option<Delivery>, StoreError> {
    let found = records(connection, DELIVERY, (id.as_bytes(),))?;
    Ok(found.into_iter().next())
}

pub fn journal(
    connection: &Connection,
    after: JournalId,
    limit: usize,
) -> Result<Vec<(JournalId, Vec<Change>)>, StoreError> {
    let mut statement = connection.prepare_cached(JOURNAL)?;
    let mut rows = statement.query((signed(after.0), signed(limit as u64)))?;
    let mut entries = Vec::new();
    while let Some(row) = rows.next()? {
        entries.push((JournalId(unsigned(row.get(0)?)), decode(blob(row, 1)?)?));
    }
    Ok(entries)
}

pub fn journal_ends(connection: &Connection) -> Result<Option<(JournalId, JournalId)>, StoreError> {
    let end = |sql| connection.prepare_cached(sql)?.query_row((i64::MIN,), |row| row.get(0)).optional();
    let id = |number: i64| JournalId(unsigned(number));
    Ok(end(JOURNAL_FIRST)?.map(id).zip(end(JOURNAL_LAST)?.map(id)))
}

pub fn audit(
    connection: &Connection,
    filter: &AuditFilter,
    before: Option<u64>,
    limit: usize,
) -> Result<Vec<(u64, AuditEntry)>, StoreError> {
    let (sql, values) = match (&filter.actor, &filter.action) {
        (None, None) => (AUDIT, vec![]),
        (Some(actor), None) => (AUDIT_OF_ACTOR, vec![actor]),
        (None, Some(action)) => (AUDIT_OF_ACTION, vec![action]),
        (Some(actor), Some(action)) => (AUDIT_OF_BOTH, vec![actor, action]),
    };
    let mut statement = connection.prepare_cached(sql)?;
    bind_each(&mut statement, params![before.map_or(i64::MAX, signed), signed(limit as u64)])?;
    for (i, value) in values.into_iter().enumerate() {
        statement.raw_bind_parameter(i + 3, value)?;
    }
    let mut rows = statement.raw_query();
    let mut lines = Vec::new();
    while let Some(row) = rows.next()? {
        lines.push((unsigned(row.get(0)?), decode(blob(row, 1)?)?));
    }
    Ok(lines)
}
