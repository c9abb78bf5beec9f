//! The one writer, on a thread of its own. A commit is entered in the ledger and answered, and its rows follow with those of
//! others. One that is too large for that is written to the tables at once, with all that was to follow, and answered when
//! these are synced.

use super::{
    checkpoint::Checkpointer,
    entry::Entry,
    ledger::{self, Found, Ledger},
    progress::Progress,
    rows,
};
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
    path::{Path, PathBuf},
    sync::{
        Arc,
        mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};
use tokio::sync::oneshot;

/// So long without a request, the writer counts as idle and the log is folded away.
const IDLE: Duration = Duration::from_millis(500);
/// How long rows may wait for those of other commits, unless somebody wants to read.
const DELAY: Duration = Duration::from_millis(5);
/// How long after a failure it is tried again.
const RETRY: Duration = Duration::from_millis(200);
/// Rows of so many bytes wait for no others: there is nothing left to be shared.
const MUCH: usize = 128 << 10;

type Reply<T> = oneshot::Sender<Result<T, StoreError>>;

pub enum Request {
    Lead(Reply<Leadership>),
    Commit(Arc<Commit>, Reply<()>),
    /// Somebody waits to read what was answered.
    CatchUp,
}

/// The writer as others see it.
pub struct WriterThread {
    requests: Option<Sender<Request>>,
    thread: Option<JoinHandle<()>>,
    progress: Arc<Progress>,
}

impl WriterThread {
    pub fn start(connection: Connection, path: &Path) -> Result<Self, StoreError> {
        let (requests, inbox) = channel();
        let progress = Arc::new(Progress::default());
        let writer = Writer::new(connection, path, Arc::clone(&progress))?;
        let checkpointer = Checkpointer::start(path)?;
        let thread = thread::Builder::new()
            .name("store-writer".to_owned())
            .spawn(move || serve(writer, checkpointer, inbox))
            .map_err(|error| StoreError::Open(format!("no thread for the writer: {error}")))?;
        Ok(Self { requests: Some(requests), thread: Some(thread), progress })
    }

    pub async fn ask<T>(&self, request: impl FnOnce(Reply<T>) -> Request) -> Result<T, StoreError> {
        let (reply, answer) = oneshot::channel();
        let requests = self.requests.as_ref().ok_or_else(gone)?;
        requests.send(request(reply)).map_err(|_| gone())?;
        answer.await.map_err(|_| gone())?
    }

    /// For a reader: waits until the tables hold everything that was answered before this was called.
    pub fn caught_up(&self) -> impl FnOnce() -> Result<(), StoreError> + Send + use<> {
        let behind = self.progress.behind();
        if let (Some(_), Some(requests)) = (&behind, &self.requests) {
            // If it cannot be sent the writer has ended, and those who wait hear of it.
            requests.send(Request::CatchUp).ok();
        }
        let progress = Arc::clone(&self.progress);
        move || behind.map_or(Ok(()), |behind| progress.wait(behind))
    }
}

fn gone() -> StoreError {
    StoreError::Broken("the writer thread has ended".to_owned())
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
    let _ended = writer.progress.ends_with_this();
    loop {
        let wait = writer.patience().unwrap_or(if checkpointer.has_work() { IDLE } else { Duration::MAX });
        let idle = match inbox.recv_timeout(wait) {
            Ok(request) => {
                writer.answer(request);
                false
            }
            Err(RecvTimeoutError::Timeout) => !writer.is_behind(),
            Err(RecvTimeoutError::Disconnected) => break,
        };
        if writer.patience() == Some(Duration::ZERO) {
            writer.catch_up();
        }
        if std::mem::take(&mut writer.wrote) || idle {
            checkpointer.tend(&writer.connection, idle);
        }
        writer.tend_ledger(&mut checkpointer);
    }
    drop(checkpointer);
    writer.close();
}

/// The writing connection, what its tables do not hold yet, and what it reuses from one commit to the next.
pub struct Writer {
    connection: Connection,
    buffer: Vec<u8>,
    ledger: Ledger,
    /// Epoch and number of the last commit that was taken.
    taken: (u64, u64),
    /// In the ledger and not in the tables, since then.
    waiting: Vec<Entry>,
    waiting_bytes: usize,
    since: Option<Instant>,
    /// The tables could not be written when that was last tried.
    failing: bool,
    synchronous: Synchronous,
    progress: Arc<Progress>,
    /// So many of those that were entered in the ledger are durable in the tables.
    durable: u64,
    /// Something was written to the tables lately.
    wrote: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Synchronous {
    /// A crash of the machine may undo the last transactions, but none in part.
    Normal,
    /// What was committed is on disk, with all that came before it.
    Full,
}

impl Writer {
    /// Brings the tables up to date with what an earlier life left in the ledger.
    pub fn new(connection: Connection, path: &Path, progress: Arc<Progress>) -> Result<Self, StoreError> {
        let mut found = Found::open(path)?;
        let mut buffer = Vec::new();
        let taken = recover(&connection, &mut found, &mut buffer)?;
        let ledger = found.renew()?;
        Ok(Self {
            connection,
            buffer,
            ledger,
            taken,
            waiting: Vec::new(),
            waiting_bytes: 0,
            since: None,
            failing: false,
            synchronous: Synchronous::Full,
            progress,
            durable: 0,
            wrote: true,
        })
    }

    fn answer(&mut self, request: Request) {
        // Whoever asked may have stopped waiting.
        match request {
            Request::Lead(reply) => _ = reply.send(self.lead()),
            Request::Commit(commit, reply) => _ = reply.send(self.commit(commit)),
            Request::CatchUp => self.catch_up(),
        }
    }

    pub fn lead(&mut self) -> Result<Leadership, StoreError> {
        self.write(None, Synchronous::Full)?;
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
        self.taken = (leadership.epoch, 0);
        Ok(leadership)
    }

    pub fn commit(&mut self, commit: Arc<Commit>) -> Result<(), StoreError> {
        let (epoch, number) = self.taken;
        if commit.epoch != epoch {
            return Err(StoreError::Deposed { ours: commit.epoch, current: epoch });
        }
        if commit.batch.number <= number {
            return Ok(());
        }
        self.taken = self.take(Entry::of(commit)?)?;
        Ok(())
    }

    /// Returns its place among all commits.
    fn take(&mut self, entry: Entry) -> Result<(u64, u64), StoreError> {
        let taken = (entry.commit.epoch, entry.commit.batch.number);
        if entry.size() > ledger::LARGEST || self.failing || self.ledger.is_full() {
            self.write(Some(&entry), Synchronous::Full)?;
            return Ok(taken);
        }
        self.ledger.enter(&entry, self.taken.1, self.progress.answered() + 1)?;
        self.since.get_or_insert_with(Instant::now);
        self.waiting_bytes += entry.size();
        self.waiting.push(entry);
        self.progress.answer();
        Ok(taken)
    }

    pub fn is_behind(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// How long what waits may go on waiting.
    fn patience(&self) -> Option<Duration> {
        let delay = match self.failing {
            true => RETRY,
            false if self.waiting_bytes > MUCH => Duration::ZERO,
            false => DELAY,
        };
        self.since.map(|since| delay.saturating_sub(since.elapsed()))
    }

    /// Writes what waits to the tables. If it cannot be written now it stays in the ledger, and is tried again.
    pub fn catch_up(&mut self) {
        if let Err(error) = self.write(None, Synchronous::Normal) {
            tracing::warn!(%error, waiting = self.waiting.len(), "the tables cannot be written; trying again");
            self.since = Some(Instant::now());
            self.progress.fail(&error);
        }
    }

    /// All that waits and this commit, whole or not at all. A transaction that is dropped on the way out is rolled back,
    /// so every failure leaves the connection usable.
    fn write(&mut self, entry: Option<&Entry>, synchronous: Synchronous) -> Result<(), StoreError> {
        self.failing = true;
        self.set_synchronous(synchronous)?;
        if self.is_behind() || entry.is_some() {
            let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            for entry in self.waiting.iter().chain(entry) {
                write_entry(&transaction, entry, &mut self.buffer)?;
            }
            transaction.commit()?;
        }
        (self.failing, self.wrote) = (false, true);
        self.waiting.clear();
        (self.since, self.waiting_bytes) = (None, 0);
        self.progress.catch_up();
        // A commit that is synced takes with it what was written before.
        if entry.is_some() && synchronous == Synchronous::Full {
            self.durable = self.progress.answered();
            self.ledger.settle();
        }
        Ok(())
    }

    fn set_synchronous(&mut self, synchronous: Synchronous) -> Result<(), StoreError> {
        if self.synchronous != synchronous {
            let word = match synchronous {
                Synchronous::Normal => "NORMAL",
                Synchronous::Full => "FULL",
            };
            self.connection.pragma_update(None, "synchronous", word)?;
            self.synchronous = synchronous;
        }
        Ok(())
    }

    /// Sees to it that the ledger has room when it is needed. If it has none, a commit goes to the tables directly.
    pub fn tend_ledger(&mut self, checkpointer: &mut Checkpointer) {
        self.durable = checkpointer.synced().unwrap_or(self.durable);
        let other_is_free = self.ledger.other_ends_with() <= self.durable;
        if self.ledger.is_half_full() && !other_is_free && !self.is_behind() {
            checkpointer.sync(self.progress.answered());
        }
        if self.ledger.is_full() && other_is_free {
            self.ledger.turn();
        }
        if let Err(error) = self.ledger.tend() {
            tracing::debug!(%error, "the ledger is lengthened when it is needed");
        }
    }

    /// Leaves the tables complete, and then nothing else.
    fn close(mut self) {
        if let Err(error) = self.write(None, Synchronous::Full) {
            tracing::warn!(%error, "the tables are not complete; the rest of it is in the ledger");
            return;
        }
        let folded = self.connection.path().map(|path| PathBuf::from(format!("{path}-wal")));
        drop(self.connection);
        // The last connection copies SQLite's log into the file and removes it. While it is there, some of it may not be on
        // disk.
        if folded.is_some_and(|log| !log.exists()) {
            self.ledger.remove();
        }
    }

    #[cfg(test)]
    pub fn durable(&self) -> u64 {
        self.durable
    }

    #[cfg(test)]
    pub fn is_failing(&self) -> bool {
        self.failing
    }

    #[cfg(test)]
    pub fn connection(&self) -> &Connection {
        &self.connection
    }
}

/// What is in the ledger and not in the tables comes to be there. Returns the last commit that is.
fn recover(connection: &Connection, found: &mut Found, buffer: &mut Vec<u8>) -> Result<(u64, u64), StoreError> {
    let transaction = Transaction::new_unchecked(connection, TransactionBehavior::Immediate)?;
    let (epoch, mut last) = leadership(&transaction)?;
    let missing = std::mem::take(&mut found.commits).into_iter().filter(|found| found.place() > (epoch, last));
    for found in missing.collect::<Vec<_>>() {
        if found.place().0 != epoch || found.after != last {
            let problem = "its ledger does not continue it; if the database was put back from a copy, remove the two files \
                           beside it that end in -ledger-1 and -ledger-2";
            return Err(StoreError::Open(problem.into()));
        }
        last = found.place().1;
        write_entry(&transaction, &Entry::of(Arc::new(found.commit))?, buffer)?;
    }
    transaction.commit()?;
    Ok((epoch, last))
}

fn write_entry(transaction: &Transaction, entry: &Entry, buffer: &mut Vec<u8>) -> Result<(), StoreError> {
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
fn leadership(transaction: &Transaction) -> Result<(u64, u64), StoreError> {
    let mut statement = transaction.prepare_cached("SELECT epoch, batch FROM leadership")?;
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
    entry.jobs().try_for_each(|(write, record)| statements.write(write, record))
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
