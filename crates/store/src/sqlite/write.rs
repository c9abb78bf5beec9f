//! The one writer: commits are executed here, one after the other, on a thread of their own.

use super::{checkpoint::Checkpointer, rows};
use crate::{
    Commit, Leadership, StoreError,
    record::{JobColumns, encode, encode_compact, is_terminated, signed, unsigned},
};
use hodei_core::{
    brain::{Batch, JobWrite},
    protocol::LogChunk,
    time::Time,
    token::{Hash, WorkerToken},
    worker::WorkerRecord,
};
use rusqlite::{CachedStatement, Connection, Transaction, TransactionBehavior, params};
use std::{
    path::Path,
    sync::{
        Arc,
        mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    },
    thread::{self, JoinHandle},
    time::Duration,
};
use tokio::sync::oneshot;

/// So long without a request, the writer counts as idle and the log is folded away.
const IDLE: Duration = Duration::from_millis(500);

type Reply<T> = oneshot::Sender<Result<T, StoreError>>;

pub enum Request {
    Lead(Reply<Leadership>),
    Commit(Arc<Commit>, Reply<()>),
}

/// The writer as others see it.
pub struct WriterThread {
    requests: Option<Sender<Request>>,
    thread: Option<JoinHandle<()>>,
}

impl WriterThread {
    pub fn start(connection: Connection, path: &Path) -> Result<Self, StoreError> {
        let (requests, inbox) = channel();
        let checkpointer = Checkpointer::start(path)?;
        let thread = thread::Builder::new()
            .name("store-writer".to_owned())
            .spawn(move || serve(Writer::new(connection), checkpointer, inbox))
            .map_err(|error| StoreError::Open(format!("no thread for the writer: {error}")))?;
        Ok(Self { requests: Some(requests), thread: Some(thread) })
    }

    pub async fn ask<T>(&self, request: impl FnOnce(Reply<T>) -> Request) -> Result<T, StoreError> {
        let gone = || StoreError::Broken("the writer thread has ended".to_owned());
        let (reply, answer) = oneshot::channel();
        let requests = self.requests.as_ref().ok_or_else(gone)?;
        requests.send(request(reply)).map_err(|_| gone())?;
        answer.await.map_err(|_| gone())?
    }
}

impl Drop for WriterThread {
    /// Waits until what was asked is done and the file is closed.
    fn drop(&mut self) {
        self.requests = None;
        if let Some(thread) = self.thread.take() {
            // A panic in there was printed, and there is nothing left to do about it.
            thread.join().ok();
        }
    }
}

fn serve(mut writer: Writer, mut checkpointer: Checkpointer, inbox: Receiver<Request>) {
    loop {
        let wait = if checkpointer.has_work() { IDLE } else { Duration::MAX };
        let idle = match inbox.recv_timeout(wait) {
            Ok(request) => {
                writer.answer(request);
                false
            }
            Err(RecvTimeoutError::Timeout) => true,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        checkpointer.tend(&writer.connection, idle);
    }
}

/// The writing connection and what it reuses from one commit to the next.
pub struct Writer {
    connection: Connection,
    buffer: Vec<u8>,
}

impl Writer {
    pub fn new(connection: Connection) -> Self {
        Self { connection, buffer: Vec::new() }
    }

    fn answer(&mut self, request: Request) {
        // Whoever asked may have stopped waiting.
        match request {
            Request::Lead(reply) => _ = reply.send(self.lead()),
            Request::Commit(commit, reply) => _ = reply.send(self.commit(&commit)),
        }
    }

    pub fn lead(&mut self) -> Result<Leadership, StoreError> {
        let sql = "UPDATE leadership SET epoch = epoch + 1, batch = 0 RETURNING epoch, last_time, parked_until";
        let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let leadership = transaction.query_one(sql, (), |row| {
            Ok(Leadership {
                epoch: unsigned(row.get(0)?),
                last: Time(row.get(1)?),
                parked_until: row.get::<_, Option<i64>>(2)?.map(Time),
            })
        })?;
        transaction.commit()?;
        Ok(leadership)
    }

    /// A transaction that is dropped on the way out is rolled back, so every failure leaves the connection usable.
    pub fn commit(&mut self, commit: &Commit) -> Result<(), StoreError> {
        let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        if !take_turn(&transaction, commit)? {
            return Ok(());
        }
        write_jobs(&transaction, &commit.batch.jobs, &mut self.buffer)?;
        write_placements(&transaction, commit, &mut self.buffer)?;
        write_workers(&transaction, &commit.batch.workers, &mut self.buffer)?;
        write_tokens(&transaction, &commit.batch.tokens, &mut self.buffer)?;
        drop_tokens(&transaction, &commit.batch.dropped_tokens)?;
        write_logs(&transaction, &commit.logs)?;
        rows::write(&transaction, commit, &mut self.buffer)?;
        Ok(transaction.commit()?)
    }

    #[cfg(test)]
    pub fn connection(&self) -> &Connection {
        &self.connection
    }
}

/// Checks that the leader of this commit still leads and notes the commit's number. False if it was made before.
fn take_turn(transaction: &Transaction, commit: &Commit) -> Result<bool, StoreError> {
    let (epoch, batch): (i64, i64) = transaction
        .prepare_cached("SELECT epoch, batch FROM leadership")?
        .query_row((), |row| Ok((row.get(0)?, row.get(1)?)))?;
    if unsigned(epoch) != commit.epoch {
        return Err(StoreError::Deposed { ours: commit.epoch, current: unsigned(epoch) });
    }
    if commit.batch.number <= unsigned(batch) {
        return Ok(false);
    }
    note_turn(transaction, &commit.batch)?;
    Ok(true)
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

    fn write(&mut self, write: &JobWrite, buffer: &mut Vec<u8>) -> Result<(), StoreError> {
        let id = write.job.id.as_bytes();
        let touched = match &write.payload {
            Some(spec) => self.insert(write, spec, buffer)?,
            None => self.update(write, buffer)?,
        };
        if touched == 0 {
            report_odd_row(write);
        }
        if let Some(result) = &write.result {
            self.put_result.execute((id, &**result))?;
        }
        Ok(())
    }

    fn insert(&mut self, write: &JobWrite, spec: &[u8], buffer: &mut Vec<u8>) -> Result<usize, StoreError> {
        let job = columns_and_record(write, buffer)?;
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
            *buffer,
            small
        ])?)
    }

    fn update(&mut self, write: &JobWrite, buffer: &mut Vec<u8>) -> Result<usize, StoreError> {
        let job = columns_and_record(write, buffer)?;
        Ok(self.update.execute(params![job.id, job.state, job.seq, job.due_at, *buffer])?)
    }
}

fn columns_and_record<'a>(write: &'a JobWrite, buffer: &mut Vec<u8>) -> Result<JobColumns<'a>, StoreError> {
    buffer.clear();
    encode_compact(&write.job, buffer)?;
    Ok(JobColumns::of(&write.job))
}

/// An assertion that failed. The other rows of the commit are right, so they are kept.
fn report_odd_row(write: &JobWrite) {
    let expected = if write.payload.is_some() { "a new job has a row already" } else { "a known job has no row" };
    tracing::error!(job = %write.job.id, "{expected}; its write was left out");
}

fn write_jobs(transaction: &Transaction, jobs: &[JobWrite], buffer: &mut Vec<u8>) -> Result<(), StoreError> {
    if jobs.is_empty() {
        return Ok(());
    }
    let mut statements = JobStatements::prepare(transaction)?;
    jobs.iter().try_for_each(|write| statements.write(write, buffer))
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
