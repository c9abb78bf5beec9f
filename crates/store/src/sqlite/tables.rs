//! The tables, which follow the ledger on a thread of their own: rows of many commits at a time, without a sync for each.
//! What is too large for the ledger comes here directly, and is answered when it is synced.

use super::{
    checkpoint::Checkpointer,
    entry::Entry,
    ledger::Found,
    progress::Progress,
    write::{leadership, write_entry},
};
use crate::{Leadership, StoreError, record::unsigned};
use hodei_core::time::Time;
use rusqlite::{Connection, Transaction, TransactionBehavior};
use std::{
    path::PathBuf,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        mpsc::{SyncSender, sync_channel},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// So long without anything to write, the log is folded away.
const IDLE: Duration = Duration::from_millis(500);
/// How long rows may wait for those of other commits, unless somebody wants to read.
const DELAY: Duration = Duration::from_millis(25);
/// How long after a failure it is tried again.
const RETRY: Duration = Duration::from_millis(200);
/// Rows of so many bytes wait for no others: there is nothing left to be shared.
const MUCH: usize = 128 << 10;

/// What becomes of a commit behind the ledger.
pub trait Rows {
    /// It is in the ledger, as the `count`th of all that were entered; its rows may follow.
    fn follow(&mut self, entry: Entry, count: u64);
    /// It is in no ledger: returns when the tables hold it durably, with all that was to follow.
    fn write(&mut self, entry: Entry) -> Result<(), StoreError>;
    fn lead(&mut self) -> Result<Leadership, StoreError>;
}

/// The writing connection, and what its tables do not hold yet.
pub struct Tables {
    connection: Connection,
    buffer: Vec<u8>,
    /// In the ledger and not in the tables.
    waiting: Vec<Entry>,
    /// How many were entered in the ledger, up to the last that came here.
    count: u64,
    synchronous: Synchronous,
    progress: Arc<Progress>,
    /// Something was written lately.
    wrote: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Synchronous {
    /// A crash of the machine may undo the last transactions, but none in part.
    Normal,
    /// What was committed is on disk, with all that came before it.
    Full,
}

impl Tables {
    pub fn new(connection: Connection, progress: Arc<Progress>) -> Self {
        let (buffer, waiting, synchronous) = (Vec::new(), Vec::new(), Synchronous::Full);
        Self { connection, buffer, waiting, count: 0, synchronous, progress, wrote: true }
    }

    /// Brings in what an earlier life left in the ledger alone. Returns the last commit that is here.
    pub fn recover(&mut self, found: &mut Found) -> Result<(u64, u64), StoreError> {
        let transaction = Transaction::new_unchecked(&self.connection, TransactionBehavior::Immediate)?;
        let (epoch, mut last) = leadership(&transaction)?;
        let missing = std::mem::take(&mut found.commits).into_iter().filter(|found| found.place() > (epoch, last));
        for found in missing.collect::<Vec<_>>() {
            if found.place().0 != epoch || found.after != last {
                let problem = "its ledger does not continue it; if the database was put back from a copy, remove the two \
                               files beside it that end in -ledger-1 and -ledger-2";
                return Err(StoreError::Open(problem.into()));
            }
            last = found.place().1;
            write_entry(&transaction, &Entry::of(Arc::new(found.commit))?, &mut self.buffer)?;
        }
        transaction.commit()?;
        Ok((epoch, last))
    }

    pub fn is_behind(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Writes what waits. If it cannot be written now it stays in the ledger, and is tried again.
    pub fn catch_up(&mut self) {
        if let Err(error) = self.put(None, Synchronous::Normal) {
            tracing::warn!(%error, waiting = self.waiting.len(), "the tables cannot be written; trying again");
        }
    }

    /// All that waits and this commit, and whoever waits for it hears how it went.
    fn put(&mut self, entry: Option<&Entry>, synchronous: Synchronous) -> Result<(), StoreError> {
        let outcome = self.try_put(entry, synchronous);
        match &outcome {
            Ok(()) => self.progress.catch_up(self.count),
            Err(error) => self.progress.fail(error),
        }
        outcome
    }

    /// Whole or not at all. A transaction that is dropped on the way out is rolled back, so every failure leaves the
    /// connection usable.
    fn try_put(&mut self, entry: Option<&Entry>, synchronous: Synchronous) -> Result<(), StoreError> {
        self.set_synchronous(synchronous)?;
        if self.is_behind() || entry.is_some() {
            let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            for entry in self.waiting.iter().chain(entry) {
                write_entry(&transaction, entry, &mut self.buffer)?;
            }
            transaction.commit()?;
        }
        self.waiting.clear();
        self.wrote = true;
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

    /// Has the tables synced when the ledger waits for it, and says so when they are.
    pub fn tend(&mut self, checkpointer: &mut Checkpointer) {
        if let Some(count) = checkpointer.synced() {
            self.progress.set_durable(count);
        }
        if self.progress.wants_durable() && !self.is_behind() {
            checkpointer.sync(self.count);
        }
    }

    /// Leaves the tables complete, and tells whether everything is on disk then.
    fn close(mut self) -> bool {
        if let Err(error) = self.put(None, Synchronous::Full) {
            tracing::warn!(%error, "the tables are not complete; the rest of it is in the ledger");
            return false;
        }
        let log = self.connection.path().map(|path| PathBuf::from(format!("{path}-wal")));
        drop(self.connection);
        // The last connection copies SQLite's log into the file and removes it. While it is there, some of it may not be on
        // disk.
        log.is_some_and(|log| !log.exists())
    }

    #[cfg(test)]
    pub fn connection(&self) -> &Connection {
        &self.connection
    }
}

impl Rows for Tables {
    fn follow(&mut self, entry: Entry, count: u64) {
        self.waiting.push(entry);
        self.count = count;
    }

    fn write(&mut self, entry: Entry) -> Result<(), StoreError> {
        self.put(Some(&entry), Synchronous::Full)
    }

    fn lead(&mut self) -> Result<Leadership, StoreError> {
        self.put(None, Synchronous::Full)?;
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
}

/// The tables as the thread of the ledger sees them.
pub struct TablesThread {
    inbox: Arc<Inbox>,
    thread: JoinHandle<bool>,
}

impl TablesThread {
    pub fn start(tables: Tables, checkpointer: Checkpointer) -> Result<Self, StoreError> {
        let inbox = Arc::new(Inbox::default());
        let shared = Arc::clone(&inbox);
        let thread = thread::Builder::new()
            .name("store-tables".to_owned())
            .spawn(move || serve(tables, checkpointer, &shared))
            .map_err(|error| StoreError::Open(format!("no thread for the tables: {error}")))?;
        Ok(Self { inbox, thread })
    }

    pub fn inbox(&self) -> Arc<Inbox> {
        Arc::clone(&self.inbox)
    }

    /// Ends the thread, and tells whether the tables are complete and on disk.
    pub fn close(self) -> bool {
        self.inbox.change(|arrived| arrived.closed = true);
        // A panic in there was printed, and the ledger has what the tables have not.
        self.thread.join().unwrap_or(false)
    }

    fn ask<T>(&self, order: impl FnOnce(SyncSender<Result<T, StoreError>>) -> Order) -> Result<T, StoreError> {
        let (reply, answer) = sync_channel(1);
        self.inbox.change(|arrived| {
            if !arrived.gone {
                arrived.orders.push(order(reply));
            }
        });
        answer.recv().unwrap_or_else(|_| Err(StoreError::Broken("the thread of the tables has ended".into())))
    }
}

impl Rows for TablesThread {
    fn follow(&mut self, entry: Entry, count: u64) {
        self.inbox.follow(entry, count);
    }

    fn write(&mut self, entry: Entry) -> Result<(), StoreError> {
        self.ask(|reply| Order::Write(entry, reply))
    }

    fn lead(&mut self) -> Result<Leadership, StoreError> {
        self.ask(Order::Lead)
    }
}

enum Order {
    Write(Entry, SyncSender<Result<(), StoreError>>),
    Lead(SyncSender<Result<Leadership, StoreError>>),
}

/// What the thread of the tables finds when it looks. It is woken only when it is time to write: one wake-up serves many
/// commits.
#[derive(Default)]
pub struct Inbox {
    arrived: Mutex<Arrived>,
    changed: Condvar,
}

#[derive(Default)]
struct Arrived {
    entries: Vec<Entry>,
    count: u64,
    bytes: usize,
    /// When the first of them came.
    since: Option<Instant>,
    orders: Vec<Order>,
    /// Somebody waits to read what was answered.
    hurry: bool,
    closed: bool,
    /// Nobody looks any more.
    gone: bool,
}

impl Arrived {
    fn is_urgent(&self) -> bool {
        self.hurry || self.closed || !self.orders.is_empty() || self.bytes > MUCH
    }
}

impl Inbox {
    /// Somebody waits to read what was answered.
    pub fn hurry(&self) {
        self.change(|arrived| arrived.hurry = true);
    }

    fn follow(&self, entry: Entry, count: u64) {
        let mut arrived = self.lock();
        let was_asleep = arrived.since.is_none();
        arrived.since.get_or_insert_with(Instant::now);
        arrived.bytes += entry.size();
        arrived.entries.push(entry);
        arrived.count = count;
        let wake = was_asleep || arrived.bytes > MUCH;
        drop(arrived);
        if wake {
            self.changed.notify_one();
        }
    }

    /// Waits until it is time to write something, to try again, or to tidy up.
    fn next(&self, otherwise: Option<Instant>) -> Arrived {
        let mut arrived = self.lock();
        loop {
            let due = arrived.since.map(|since| since + DELAY).into_iter().chain(otherwise).min();
            let wait = due.map(|due| due.saturating_duration_since(Instant::now()));
            if arrived.is_urgent() || wait.is_some_and(|wait| wait.is_zero()) {
                let (count, gone) = (arrived.count, arrived.gone);
                return std::mem::replace(&mut *arrived, Arrived { count, gone, ..Arrived::default() });
            }
            arrived = match wait {
                Some(wait) => self.changed.wait_timeout(arrived, wait).unwrap_or_else(PoisonError::into_inner).0,
                None => self.changed.wait(arrived).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }

    fn change(&self, change: impl FnOnce(&mut Arrived)) {
        change(&mut self.lock());
        self.changed.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, Arrived> {
        self.arrived.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// When the thread of the tables ends, however it does, whoever waits for it hears of it.
struct Presence<'a>(&'a Inbox);

impl Drop for Presence<'_> {
    fn drop(&mut self) {
        self.0.change(|arrived| {
            arrived.gone = true;
            arrived.orders.clear();
        });
    }
}

fn serve(mut tables: Tables, mut checkpointer: Checkpointer, inbox: &Inbox) -> bool {
    let (_presence, _ended) = (Presence(inbox), tables.progress.ends_with_this());
    loop {
        let look_again = match tables.is_behind() {
            true => Some(RETRY),
            false => checkpointer.has_work().then_some(IDLE),
        };
        let arrived = inbox.next(look_again.map(|pause| Instant::now() + pause));
        let idle = arrived.since.is_none() && !arrived.is_urgent() && !tables.is_behind();
        tables.waiting.extend(arrived.entries);
        tables.count = arrived.count;
        for order in arrived.orders {
            // Whoever asked may be gone.
            match order {
                Order::Write(entry, reply) => _ = reply.send(tables.write(entry)),
                Order::Lead(reply) => _ = reply.send(tables.lead()),
            }
        }
        if tables.is_behind() {
            tables.catch_up();
        }
        if std::mem::take(&mut tables.wrote) || idle {
            checkpointer.tend(&tables.connection, idle);
        }
        tables.tend(&mut checkpointer);
        if arrived.closed {
            break;
        }
    }
    drop(checkpointer);
    tables.close()
}
