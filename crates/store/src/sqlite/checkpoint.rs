//! Copies the write-ahead log back into the main file without holding up commits.
//!
//! A thread of its own copies most of the log while commits go on. What they added meanwhile is little; the writer
//! copies it between two commits, and as nothing is left then, the next commit begins the log from its start. The same
//! thread syncs the log when the ledger needs it.

use super::{BUSY_TIMEOUT, open_connection};
use crate::StoreError;
use rusqlite::{Connection, OpenFlags};
use std::{
    fs::File,
    io,
    path::{Path, PathBuf},
    sync::mpsc::{Receiver, Sender, channel},
    thread::{self, JoinHandle},
    time::Duration,
};

/// Pages in the log before it is copied: enough that a page which changes often is copied once.
const MANY_PAGES: i64 = 8192;
/// So few pages the writer copies by itself.
const FEW_PAGES: i64 = 512;
/// Commits that outrun the copying do so no more than this many times.
const ROUNDS: usize = 4;

enum Order {
    Copy,
    Sync,
}

enum Done {
    Copied,
    /// Whether it was.
    Synced(bool),
}

pub struct Checkpointer {
    orders: Option<Sender<Order>>,
    done: Receiver<Done>,
    thread: Option<JoinHandle<()>>,
    /// The thread was told to copy and has not answered.
    copying: bool,
    copied: bool,
    /// It was told to sync the log when this many commits of the ledger were in it.
    syncing: Option<u64>,
    synced: Option<u64>,
    /// There may be pages in the log.
    dirty: bool,
}

impl Checkpointer {
    pub fn start(path: &Path) -> Result<Self, StoreError> {
        let connection = open_connection(path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
        let mut log = path.as_os_str().to_owned();
        log.push("-wal");
        let (orders, inbox) = channel();
        let (outbox, done) = channel();
        let thread = thread::Builder::new()
            .name("store-checkpoint".to_owned())
            .spawn(move || work(&connection, &PathBuf::from(log), &inbox, &outbox))
            .map_err(|error| StoreError::Open(format!("no thread for checkpoints: {error}")))?;
        let thread = Some(thread);
        let (copying, copied, syncing, synced) = (false, false, None, None);
        Ok(Self { orders: Some(orders), done, thread, copying, copied, syncing, synced, dirty: true })
    }

    /// Has the log synced, which holds so many commits of the ledger.
    pub fn sync(&mut self, count: u64) {
        if self.syncing.is_none() && self.order(Order::Sync) {
            self.syncing = Some(count);
        }
    }

    /// How many commits of the ledger were in the log that was last synced.
    pub fn synced(&mut self) -> Option<u64> {
        self.listen();
        self.synced
    }

    #[cfg(test)]
    pub fn is_syncing(&self) -> bool {
        self.syncing.is_some()
    }

    fn order(&self, order: Order) -> bool {
        self.orders.as_ref().is_some_and(|orders| orders.send(order).is_ok())
    }

    fn listen(&mut self) {
        for done in self.done.try_iter() {
            match done {
                Done::Copied => (self.copying, self.copied) = (false, true),
                Done::Synced(well) => {
                    let count = self.syncing.take();
                    self.synced = count.filter(|_| well).or(self.synced);
                }
            }
        }
    }

    /// Whether it wants to be tended soon even if nothing is committed.
    pub fn has_work(&self) -> bool {
        self.dirty
    }

    /// The writer calls this between commits, and now and then when there are none.
    pub fn tend(&mut self, writer: &Connection, idle: bool) {
        self.dirty |= !idle;
        if let Err(error) = self.advance(writer, idle) {
            tracing::warn!(%error, "the write-ahead log could not be copied; it is tried again");
        }
    }

    fn advance(&mut self, writer: &Connection, idle: bool) -> Result<(), StoreError> {
        self.listen();
        if std::mem::take(&mut self.copied) {
            self.finish(writer, idle)?;
        }
        if self.copying {
            return Ok(());
        }
        let log = checkpoint(writer, "NOOP")?;
        if log.left() > MANY_PAGES || (idle && log.pages > 0) {
            self.copying = self.order(Order::Copy);
        }
        self.dirty &= log.pages > 0;
        Ok(())
    }

    /// An idle writer has time to give the log's disk space back, if no reader is in the way.
    fn finish(&mut self, writer: &Connection, idle: bool) -> Result<(), StoreError> {
        if idle {
            writer.busy_timeout(Duration::ZERO)?;
            let log = checkpoint(writer, "TRUNCATE");
            writer.busy_timeout(BUSY_TIMEOUT)?;
            self.dirty = log?.pages > 0;
        } else {
            checkpoint(writer, "PASSIVE")?;
        }
        Ok(())
    }
}

impl Drop for Checkpointer {
    fn drop(&mut self) {
        self.orders = None;
        if let Some(thread) = self.thread.take() {
            // A panic in there was printed, and the log is copied by whoever opens the file next.
            thread.join().ok();
        }
    }
}

fn work(connection: &Connection, log: &Path, orders: &Receiver<Order>, done: &Sender<Done>) {
    while let Ok(order) = orders.recv() {
        let word = match order {
            Order::Copy => {
                if let Err(error) = copy_most(connection) {
                    tracing::warn!(%error, "the write-ahead log could not be copied; it is tried again");
                }
                Done::Copied
            }
            Order::Sync => {
                let outcome = sync(log);
                if let Err(error) = &outcome {
                    tracing::warn!(%error, "the write-ahead log could not be synced; it is tried again");
                }
                Done::Synced(outcome.is_ok())
            }
        };
        if done.send(word).is_err() {
            return;
        }
    }
}

/// What is not in the log any more was synced when it was copied.
fn sync(log: &Path) -> io::Result<()> {
    match File::open(log) {
        Ok(log) => log.sync_data(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

fn copy_most(connection: &Connection) -> Result<(), StoreError> {
    for _ in 0..ROUNDS {
        checkpoint(connection, "PASSIVE")?;
        if checkpoint(connection, "NOOP")?.left() <= FEW_PAGES {
            break;
        }
    }
    Ok(())
}

struct Log {
    pages: i64,
    copied: i64,
}

impl Log {
    fn left(&self) -> i64 {
        self.pages - self.copied
    }
}

fn checkpoint(connection: &Connection, mode: &str) -> Result<Log, StoreError> {
    let mut statement = connection.prepare_cached(&format!("PRAGMA wal_checkpoint({mode})"))?;
    Ok(statement.query_row((), |row| Ok(Log { pages: row.get(1)?, copied: row.get(2)? }))?)
}
