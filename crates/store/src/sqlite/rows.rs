//! What a commit writes besides jobs, placements, workers and logs. Most commits have nothing of it but a line of the
//! journal and a few counts.

use crate::{
    Commit, StoreError,
    record::{delivery_kind, delivery_number, encode, encode_compact, signed, state_number},
};
use hodei_core::{
    access::{ApiToken, AuditEntry},
    brain::{Batch, Edge, JobWrite, ScheduleWrite, Settling},
    dead_letter::DeadLetter,
    id::{JobId, ScheduleId},
    journal::JournalId,
    queue::QueueRecord,
    state::StateKind,
    webhook::Delivery,
};
use rusqlite::{OptionalExtension, Transaction};
use std::sync::Arc;

type Written = Result<(), StoreError>;

/// After the rows of jobs, to which some of it belongs. What is forgotten goes last, so that nothing of it stays.
pub fn write(transaction: &Transaction, commit: &Commit, buffer: &mut Vec<u8>) -> Written {
    let (batch, aside) = (&commit.batch, &commit.aside);
    write_data(transaction, &batch.jobs)?;
    write_edges(transaction, batch)?;
    write_settling(transaction, &batch.settling, &batch.told)?;
    write_keys(transaction, &batch.keys)?;
    write_queues(transaction, &batch.queues, buffer)?;
    write_counts(transaction, &batch.counts)?;
    write_schedules(transaction, &batch.schedules, &batch.dropped_schedules, buffer)?;
    write_fleet(transaction, batch, buffer)?;
    write_letters(transaction, batch, buffer)?;
    write_deliveries(transaction, &batch.deliveries, buffer)?;
    write_deliveries(transaction, &aside.deliveries, buffer)?;
    write_journal(transaction, commit, buffer)?;
    trim_journal(transaction, aside.journal_from)?;
    write_api_tokens(transaction, &aside.api_tokens, buffer)?;
    write_audit(transaction, &aside.audit, buffer)?;
    forget(transaction, &batch.forgotten)
}

// Each part replaces only itself.
const PUT_DATA: &str = "
    INSERT INTO job_data (id, data, input) VALUES (?1, ?2, ?3)
    ON CONFLICT DO UPDATE SET data = coalesce(excluded.data, data), input = coalesce(excluded.input, input)";

fn write_data(transaction: &Transaction, jobs: &[JobWrite]) -> Written {
    for write in jobs.iter().filter(|write| write.data.is_some() || write.input.is_some()) {
        let row = (write.job.id.as_bytes(), write.data.as_deref(), write.input.as_deref());
        transaction.prepare_cached(PUT_DATA)?.execute(row)?;
    }
    Ok(())
}

const INSERT_EDGE: &str = "INSERT INTO edges (dependency, dependent) VALUES (?1, ?2) ON CONFLICT DO NOTHING";
const DROP_EDGE: &str = "DELETE FROM edges WHERE dependency = ?1 AND dependent = ?2";

fn write_edges(transaction: &Transaction, batch: &Batch) -> Written {
    for (sql, edges) in [(INSERT_EDGE, &batch.edges), (DROP_EDGE, &batch.dropped_edges)] {
        if edges.is_empty() {
            continue;
        }
        let mut statement = transaction.prepare_cached(sql)?;
        for Edge { dependency, dependent } in edges {
            statement.execute((dependency.as_bytes(), dependent.as_bytes()))?;
        }
    }
    Ok(())
}

fn write_settling(transaction: &Transaction, marks: &[Settling], told: &[JobId]) -> Written {
    for mark in marks {
        let sql = "INSERT INTO settling (job, told) VALUES (?1, ?2) ON CONFLICT DO UPDATE SET told = excluded.told";
        transaction.prepare_cached(sql)?.execute((mark.job.as_bytes(), mark.told.as_ref().map(JobId::as_bytes)))?;
    }
    for job in told {
        transaction.prepare_cached("DELETE FROM settling WHERE job = ?1")?.execute((job.as_bytes(),))?;
    }
    Ok(())
}

fn write_keys(transaction: &Transaction, keys: &[(Arc<str>, JobId)]) -> Written {
    for (key, job) in keys {
        let sql = "INSERT INTO idempotency_keys (key, job) VALUES (?1, ?2) ON CONFLICT DO NOTHING";
        if transaction.prepare_cached(sql)?.execute((&**key, job.as_bytes()))? == 0 {
            tracing::error!(%job, "the idempotency key of a new job is taken; it stays with the first");
        }
    }
    Ok(())
}

fn write_queues(transaction: &Transaction, queues: &[QueueRecord], buffer: &mut Vec<u8>) -> Written {
    for queue in queues {
        buffer.clear();
        encode(queue, buffer)?;
        let sql =
            "INSERT INTO queues (name, record) VALUES (?1, ?2) ON CONFLICT DO UPDATE SET record = excluded.record";
        transaction.prepare_cached(sql)?.execute((&*queue.name, &**buffer))?;
    }
    Ok(())
}

const ADD_COUNT: &str = "
    INSERT INTO counts (queue, state, count) VALUES (?1, ?2, ?3)
    ON CONFLICT DO UPDATE SET count = count + excluded.count";

fn write_counts(transaction: &Transaction, counts: &[(Arc<str>, StateKind, i64)]) -> Written {
    for (queue, state, by) in counts {
        transaction.prepare_cached(ADD_COUNT)?.execute((&**queue, state_number(*state), by))?;
    }
    for (queue, state, _) in counts.iter().filter(|(_, _, by)| *by < 0) {
        let sql = "DELETE FROM counts WHERE queue = ?1 AND state = ?2 AND count = 0";
        transaction.prepare_cached(sql)?.execute((&**queue, state_number(*state)))?;
    }
    Ok(())
}

const PUT_SCHEDULE: &str = "
    INSERT INTO schedules (id, record, payload) VALUES (?1, ?2, ?3)
    ON CONFLICT DO UPDATE SET record = excluded.record, payload = excluded.payload";

fn write_schedules(
    transaction: &Transaction,
    schedules: &[ScheduleWrite],
    dropped: &[ScheduleId],
    buffer: &mut Vec<u8>,
) -> Written {
    for ScheduleWrite { record, payload, .. } in schedules {
        buffer.clear();
        encode(record, buffer)?;
        let id = record.id.as_bytes();
        match payload {
            Some(payload) => transaction.prepare_cached(PUT_SCHEDULE)?.execute((id, &**buffer, &**payload))?,
            None => {
                let sql = "UPDATE schedules SET record = ?2 WHERE id = ?1";
                transaction.prepare_cached(sql)?.execute((id, &**buffer))?
            }
        };
    }
    for id in dropped {
        transaction.prepare_cached("DELETE FROM schedules WHERE id = ?1")?.execute((id.as_bytes(),))?;
    }
    Ok(())
}

const PUT_PROVIDER: &str =
    "INSERT INTO providers (name, record) VALUES (?1, ?2) ON CONFLICT DO UPDATE SET record = excluded.record";
const PUT_TEMPLATE: &str =
    "INSERT INTO worker_templates (name, record) VALUES (?1, ?2) ON CONFLICT DO UPDATE SET record = excluded.record";

fn write_fleet(transaction: &Transaction, batch: &Batch, buffer: &mut Vec<u8>) -> Written {
    for provider in &batch.providers {
        buffer.clear();
        encode(provider, buffer)?;
        transaction.prepare_cached(PUT_PROVIDER)?.execute((&*provider.name, &**buffer))?;
    }
    for name in &batch.dropped_providers {
        transaction.prepare_cached("DELETE FROM providers WHERE name = ?1")?.execute((&**name,))?;
    }
    for template in &batch.templates {
        buffer.clear();
        encode(template, buffer)?;
        transaction.prepare_cached(PUT_TEMPLATE)?.execute((&*template.name, &**buffer))?;
    }
    for name in &batch.dropped_templates {
        transaction.prepare_cached("DELETE FROM worker_templates WHERE name = ?1")?.execute((&**name,))?;
    }
    if let Some(settings) = &batch.scheduler {
        buffer.clear();
        encode(settings, buffer)?;
        let sql =
            "INSERT INTO scheduler (one, record) VALUES (1, ?1) ON CONFLICT DO UPDATE SET record = excluded.record";
        transaction.prepare_cached(sql)?.execute((&**buffer,))?;
    }
    Ok(())
}

/// A job can be revived and fail again in one batch, so what goes goes first. A letter takes the place of an older one.
fn write_letters(transaction: &Transaction, batch: &Batch, buffer: &mut Vec<u8>) -> Written {
    for (job, _) in &batch.dropped_dead_letters {
        drop_letter(transaction, *job)?;
    }
    for letter in &batch.dead_letters {
        drop_letter(transaction, letter.job)?;
        insert_letter(transaction, letter, buffer)?;
    }
    Ok(())
}

const INSERT_LETTER: &str = "
    INSERT INTO dead_letters (job, failed_at, fingerprint, queue, task_type, kind, record)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)";
const ADD_TO_GROUP: &str = "
    INSERT INTO dead_letter_groups (fingerprint, count) VALUES (?1, 1) ON CONFLICT DO UPDATE SET count = count + 1";
const ADD_TO_TOTAL: &str = "UPDATE dead_letter_total SET count = count + ?1 WHERE one = 1";

fn insert_letter(transaction: &Transaction, letter: &DeadLetter, buffer: &mut Vec<u8>) -> Written {
    buffer.clear();
    encode(letter, buffer)?;
    transaction.prepare_cached(INSERT_LETTER)?.execute((
        letter.job.as_bytes(),
        letter.failed_at.0,
        letter.fingerprint.0,
        &letter.queue,
        &letter.task_type,
        letter.kind.name(),
        &**buffer,
    ))?;
    transaction.prepare_cached(ADD_TO_GROUP)?.execute((letter.fingerprint.0,))?;
    transaction.prepare_cached(ADD_TO_TOTAL)?.execute((1,))?;
    Ok(())
}

const DROP_LETTER: &str = "DELETE FROM dead_letters WHERE job = ?1 RETURNING fingerprint";

fn drop_letter(transaction: &Transaction, job: JobId) -> Written {
    let gone: Option<i64> =
        transaction.prepare_cached(DROP_LETTER)?.query_row((job.as_bytes(),), |row| row.get(0)).optional()?;
    let Some(fingerprint) = gone else { return Ok(()) };
    transaction.prepare_cached(ADD_TO_TOTAL)?.execute((-1,))?;
    let sql = "UPDATE dead_letter_groups SET count = count - 1 WHERE fingerprint = ?1";
    transaction.prepare_cached(sql)?.execute((fingerprint,))?;
    let sql = "DELETE FROM dead_letter_groups WHERE fingerprint = ?1 AND count <= 0";
    transaction.prepare_cached(sql)?.execute((fingerprint,))?;
    Ok(())
}

// A try may end after its job was forgotten: nothing of it comes back.
const PUT_DELIVERY: &str = "
    INSERT INTO deliveries (id, job, state, next_at, record)
    SELECT ?1, ?2, ?3, ?4, ?5 WHERE EXISTS (SELECT 1 FROM jobs WHERE id = ?2)
    ON CONFLICT DO UPDATE SET state = excluded.state, next_at = excluded.next_at, record = excluded.record";

fn write_deliveries(transaction: &Transaction, deliveries: &[Delivery], buffer: &mut Vec<u8>) -> Written {
    for delivery in deliveries {
        buffer.clear();
        encode(delivery, buffer)?;
        let state = delivery_number(delivery_kind(delivery));
        let next = delivery.due().map(|time| time.0);
        let row = (delivery.id.as_bytes(), delivery.job.as_bytes(), state, next, &**buffer);
        transaction.prepare_cached(PUT_DELIVERY)?.execute(row)?;
    }
    Ok(())
}

fn write_journal(transaction: &Transaction, commit: &Commit, buffer: &mut Vec<u8>) -> Written {
    if commit.batch.changes.is_empty() {
        return Ok(());
    }
    buffer.clear();
    encode_compact(&commit.batch.changes, buffer)?;
    let sql = "INSERT INTO journal (id, record) VALUES (?1, ?2)";
    transaction.prepare_cached(sql)?.execute((signed(commit.journal_id().0), &**buffer))?;
    Ok(())
}

const TRIM_JOURNAL: &str = "DELETE FROM journal WHERE id < ?1";

fn trim_journal(transaction: &Transaction, from: Option<JournalId>) -> Written {
    if let Some(from) = from {
        transaction.prepare_cached(TRIM_JOURNAL)?.execute((signed(from.0),))?;
    }
    Ok(())
}

fn write_api_tokens(transaction: &Transaction, tokens: &[ApiToken], buffer: &mut Vec<u8>) -> Written {
    for token in tokens {
        buffer.clear();
        encode(token, buffer)?;
        let sql =
            "INSERT INTO api_tokens (id, record) VALUES (?1, ?2) ON CONFLICT DO UPDATE SET record = excluded.record";
        transaction.prepare_cached(sql)?.execute((token.id.as_bytes(), &**buffer))?;
    }
    Ok(())
}

fn write_audit(transaction: &Transaction, lines: &[AuditEntry], buffer: &mut Vec<u8>) -> Written {
    for line in lines {
        buffer.clear();
        encode(line, buffer)?;
        let sql = "INSERT INTO audit (actor, action, record) VALUES (?1, ?2, ?3)";
        transaction.prepare_cached(sql)?.execute((&line.actor, &line.action, &**buffer))?;
    }
    Ok(())
}

#[cfg(test)]
pub const ALL: [&str; 5] = [DROP_EDGE, DROP_LETTER, ADD_TO_TOTAL, PUT_DELIVERY, TRIM_JOURNAL];

/// Everything that belongs to one job, besides its dead letter. What it waited for keeps the edge to it, and leads nowhere.
pub const FORGET: [&str; 9] = [
    "DELETE FROM jobs WHERE id = ?1",
    "DELETE FROM job_specs WHERE id = ?1",
    "DELETE FROM job_results WHERE id = ?1",
    "DELETE FROM job_data WHERE id = ?1",
    "DELETE FROM log_chunks WHERE job_id = ?1",
    "DELETE FROM edges WHERE dependency = ?1",
    "DELETE FROM settling WHERE job = ?1",
    "DELETE FROM idempotency_keys INDEXED BY idempotency_keys_job WHERE job = ?1",
    "DELETE FROM deliveries INDEXED BY deliveries_job WHERE job = ?1",
];

fn forget(transaction: &Transaction, jobs: &[JobId]) -> Written {
    for job in jobs {
        drop_letter(transaction, *job)?;
        for sql in FORGET {
            transaction.prepare_cached(sql)?.execute((job.as_bytes(),))?;
        }
    }
    Ok(())
}
