//! The rows of commits, as statements. Whole or not at all: whoever calls this holds the transaction.

use super::{entry::Entry, rows};
use crate::{
    Commit, StoreError,
    record::{JobColumns, encode, encode_compact, is_terminated, signed, unsigned},
};
use hodei_core::{
    brain::{Batch, JobWrite},
    protocol::LogChunk,
    token::{Hash, WorkerToken},
    worker::WorkerRecord,
};
use rusqlite::{CachedStatement, Connection, Transaction, params};

pub fn write_entry(transaction: &Transaction, entry: &Entry, buffer: &mut Vec<u8>) -> Result<(), StoreError> {
    let commit = &*entry.commit;
    take_turn(transaction, commit)?;
    write_jobs(transaction, entry)?;
    write_placements(transaction, commit, buffer)?;
    write_workers(transaction, &commit.batch.workers, buffer)?;
    write_tokens(transaction, &commit.batch.tokens, buffer)?;
    drop_tokens(transaction, &commit.batch.dropped_tokens)?;
    write_logs(transaction, &commit.logs)?;
    rows::write(transaction, commit, buffer)
}

/// Epoch and number of the last commit in the tables.
pub fn leadership(connection: &Connection) -> Result<(u64, u64), StoreError> {
    let mut statement = connection.prepare_cached("SELECT epoch, batch FROM leadership")?;
    Ok(statement.query_row((), |row| Ok((unsigned(row.get(0)?), unsigned(row.get(1)?))))?)
}

/// Notes the commit's number, if its leader still leads.
fn take_turn(transaction: &Transaction, commit: &Commit) -> Result<(), StoreError> {
    let (current, _) = leadership(transaction)?;
    match current == commit.epoch {
        true => note_turn(transaction, &commit.batch),
        false => Err(StoreError::Deposed { ours: commit.epoch, current }),
    }
}

fn note_turn(transaction: &Transaction, batch: &Batch) -> Result<(), StoreError> {
    let sql = "UPDATE leadership
               SET batch = ?1, last_time = max(last_time, ?2), parked_until = coalesce(?3, parked_until)";
    let parked_until = batch.parked_until.map(|time| time.0);
    transaction.prepare_cached(sql)?.execute((signed(batch.number), batch.now.0, parked_until))?;
    Ok(())
}

const INSERT_JOB: &str = "
    INSERT INTO jobs (id, state, queue, class, priority, seq, due_at, created_at, record, spec)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10) ON CONFLICT DO NOTHING";
// What a job is never changes; where it stands does.
const UPDATE_JOB: &str = "
    UPDATE jobs SET state = ?2, seq = ?3, due_at = ?4, record = ?5 WHERE id = ?1";
/// Rows that are written before others get a chance to run. Nobody waits for them, and somebody may wait for the processor:
/// a thread that wakes where this one computes would lose a whole slice of time to it.
const AT_A_TIME: usize = 8;
/// Specs of up to so many bytes are kept in the rows of their jobs.
const SMALL_SPEC: usize = 512;
const INSERT_SPEC: &str = "INSERT INTO job_specs (id, spec) VALUES (?1, ?2) ON CONFLICT DO NOTHING";
const PUT_RESULT: &str = "
    INSERT INTO job_results (id, result) VALUES (?1, ?2) ON CONFLICT DO UPDATE SET result = excluded.result";

/// The statements that job rows are written with, looked up once per commit.
struct JobStatements<'a> {
    insert: CachedStatement<'a>,
    update: CachedStatement<'a>,
    insert_spec: CachedStatement<'a>,
    put_result: CachedStatement<'a>,
}

impl<'a> JobStatements<'a> {
    fn prepare(transaction: &'a Transaction) -> Result<Self, StoreError> {
        Ok(Self {
            insert: transaction.prepare_cached(INSERT_JOB)?,
            update: transaction.prepare_cached(UPDATE_JOB)?,
            insert_spec: transaction.prepare_cached(INSERT_SPEC)?,
            put_result: transaction.prepare_cached(PUT_RESULT)?,
        })
    }

    fn write(&mut self, write: &JobWrite, record: &[u8]) -> Result<(), StoreError> {
        let job = JobColumns::of(&write.job);
        let touched = match &write.payload {
            Some(spec) => self.insert(write, &job, record, spec)?,
            None => self.update.execute(params![job.id, job.state, job.seq, job.due_at, record])?,
        };
        if touched == 0 {
            report_odd_row(write);
        }
        if let Some(result) = &write.result {
            self.put_result.execute((job.id, &**result))?;
        }
        Ok(())
    }

    fn insert(&mut self, write: &JobWrite, job: &JobColumns, record: &[u8], spec: &[u8]) -> Result<usize, StoreError> {
        let small = Some(spec).filter(|spec| spec.len() <= SMALL_SPEC);
        if small.is_none() {
            self.insert_spec.execute((job.id, spec))?;
        }
        Ok(self.insert.execute(params![
            job.id,
            job.state,
            job.queue,
            write.job.class().0,
            job.priority,
            job.seq,
            job.due_at,
            job.created_at,
            record,
            small
        ])?)
    }
}

/// An assertion that failed. The other rows of the commit are right, so they are kept.
fn report_odd_row(write: &JobWrite) {
    let expected = if write.payload.is_some() { "a new job has a row already" } else { "a known job has no row" };
    tracing::error!(job = %write.job.id, "{expected}; its write was left out");
}

fn write_jobs(transaction: &Transaction, entry: &Entry) -> Result<(), StoreError> {
    if entry.commit.batch.jobs.is_empty() {
        return Ok(());
    }
    let mut statements = JobStatements::prepare(transaction)?;
    for (place, (write, record)) in entry.jobs().enumerate() {
        statements.write(write, record)?;
        if (place + 1) % AT_A_TIME == 0 {
            std::thread::yield_now();
        }
    }
    Ok(())
}

fn write_placements(transaction: &Transaction, commit: &Commit, buffer: &mut Vec<u8>) -> Result<(), StoreError> {
    let batch = &commit.batch;
    if !batch.placements.is_empty() {
        buffer.clear();
        encode_compact(&batch.placements, buffer)?;
        let sql = "INSERT INTO placements (epoch, batch, record) VALUES (?1, ?2, ?3)";
        transaction.prepare_cached(sql)?.execute((signed(commit.epoch), signed(batch.number), &**buffer))?;
    }
    for id in &batch.settled {
        let sql = "DELETE FROM placements WHERE epoch = ?1 AND batch = ?2";
        transaction.prepare_cached(sql)?.execute((signed(id.epoch), signed(id.number)))?;
    }
    Ok(())
}

fn write_workers(transaction: &Transaction, workers: &[WorkerRecord], buffer: &mut Vec<u8>) -> Result<(), StoreError> {
    let sql = "INSERT INTO workers (id, terminated, record) VALUES (?1, ?2, ?3)
               ON CONFLICT DO UPDATE SET terminated = excluded.terminated, record = excluded.record";
    for worker in workers {
        buffer.clear();
        encode(worker, buffer)?;
        let row = (worker.id.as_bytes(), is_terminated(worker), &**buffer);
        transaction.prepare_cached(sql)?.execute(row)?;
    }
    Ok(())
}

fn write_tokens(transaction: &Transaction, tokens: &[WorkerToken], buffer: &mut Vec<u8>) -> Result<(), StoreError> {
    let sql = "INSERT INTO worker_tokens (hash, record) VALUES (?1, ?2)
               ON CONFLICT DO UPDATE SET record = excluded.record";
    for token in tokens {
        buffer.clear();
        encode(token, buffer)?;
        transaction.prepare_cached(sql)?.execute((&token.hash.0, &**buffer))?;
    }
    Ok(())
}

fn drop_tokens(transaction: &Transaction, hashes: &[Hash]) -> Result<(), StoreError> {
    for hash in hashes {
        transaction.prepare_cached("DELETE FROM worker_tokens WHERE hash = ?1")?.execute((&hash.0,))?;
    }
    Ok(())
}

fn write_logs(transaction: &Transaction, chunks: &[LogChunk]) -> Result<(), StoreError> {
    let sql = "INSERT INTO log_chunks (job_id, execution_id, first, count, data) VALUES (?1, ?2, ?3, ?4, ?5)
               ON CONFLICT DO NOTHING";
    if chunks.is_empty() {
        return Ok(());
    }
    let mut statement = transaction.prepare_cached(sql)?;
    for chunk in chunks {
        let key = (chunk.job.as_bytes(), chunk.execution.as_bytes(), signed(chunk.first));
        statement.execute((key.0, key.1, key.2, chunk.count, &*chunk.data))?;
    }
    Ok(())
}
