//! Copies the write-ahead log back into the main file without holding up commits.
//!
//! A thread of its own copies most of the log while commits go on. What they added meanwhile is little; the writer
//! copies it between two commits, and as nothing is left then, the next commit begins the log from its start.

use super::{BUSY_TIMEOUT, ahead::Ahead, open_connection};
use crate::StoreError;
use rusqlite::{Connection, OpenFlags};
use std::{
    path::Path,
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

pub struct Checkpointer {
    orders: Option<Sender<()>>,
    done: Receiver<()>,
    thread: Option<JoinHandle<()>>,
    /// The thread was told to copy and has not answered.
    copying: bool,
    /// There may be pages in the log.
    dirty: bool,
    ahead: Ahead,
}

impl Checkpointer {
    pub fn start(path: &Path) -> Result<Self, StoreError> {
        let connection = open_connection(path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
        let ahead = Ahead::new(path, &connection)?;
        let (orders, inbox) = channel();
        let (outbox, done) = channel();
        let thread = thread::Builder::new()
            .name("store-checkpoint".to_owned())
            .spawn(move || copy_on_order(&connection, &inbox, &outbox))
            .map_err(|error| StoreError::Open(format!("no thread for checkpoints: {error}")))?;
        Ok(Self { orders: Some(orders), done, thread: Some(thread), copying: false, dirty: true, ahead })
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
        if self.copying {
            if self.done.try_recv().is_ok() {
                self.copying = false;
                self.finish(writer, idle)?;
            }
            return Ok(());
        }
        let log = checkpoint(writer, "NOOP")?;
        if log.left() > MANY_PAGES || (idle && log.pages > 0) {
            self.copying = self.orders.as_ref().is_some_and(|orders| orders.send(()).is_ok());
        }
        self.dirty &= log.pages > 0;
        if !idle {
            self.ahead.tend(writer, log.pages)?;
        }
        Ok(())
    }

    /// An idle writer has time to give the log's disk space back, if no reader is in the way.
    fn finish(&mut self, writer: &Connection, idle: bool) -> Result<(), StoreError> {
        if idle {
            writer.busy_timeout(Duration::ZERO)?;
            let log = checkpoint(writer, "TRUNCATE");
            writer.busy_timeout(BUSY_TIMEOUT)?;
            self.ahead.was_truncated();
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

fn copy_on_order(connection: &Connection, orders: &Receiver<()>, done: &Sender<()>) {
    while orders.recv().is_ok() {
        if let Err(error) = copy_most(connection) {
            tracing::warn!(%error, "the write-ahead log could not be copied; it is tried again");
        }
        if done.send(()).is_err() {
            return;
        }
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
