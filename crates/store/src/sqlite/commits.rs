//! Takes commits in their order, on a thread of its own. A commit is entered in the ledger and answered, and its rows follow
//! with those of others. One that is too large for that goes to the tables at once, with all that was to follow, and is
//! answered when these are synced.

use super::{
    checkpoint::Checkpointer,
    entry::Entry,
    ledger::{self, Found, Ledger},
    progress::Progress,
    tables::{Inbox, Rows, Tables, TablesThread},
};
use crate::{Commit, Leadership, StoreError};
use rusqlite::Connection;
use std::{
    path::Path,
    sync::{
        Arc,
        mpsc::{Receiver, Sender, TryRecvError, channel},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};
use tokio::sync::oneshot;

/// Where the last commit came so soon after the one before it, so may the next, and to be woken for it would take about as
/// long: the thread stays awake meanwhile, and gives way to all who have something to do.
const SOON: Duration = Duration::from_micros(300);

type Reply<T> = oneshot::Sender<Result<T, StoreError>>;

pub enum Request {
    Lead(Reply<Leadership>),
    Commit(Arc<Commit>, Reply<()>),
}

/// The writing side as others see it.
pub struct Writer {
    requests: Option<Sender<Request>>,
    thread: Option<JoinHandle<()>>,
    tables: Arc<Inbox>,
    progress: Arc<Progress>,
}

impl Writer {
    pub fn start(connection: Connection, path: &Path) -> Result<Self, StoreError> {
        let (requests, inbox) = channel();
        let progress = Arc::new(Progress::default());
        let (commits, tables) = open(connection, path, &progress)?;
        let rows = TablesThread::start(tables, Checkpointer::start(path)?)?;
        let tables = rows.inbox();
        let thread = thread::Builder::new()
            .name("store-ledger".to_owned())
            .spawn(move || serve(commits, rows, &inbox))
            .map_err(|error| StoreError::Open(format!("no thread for the ledger: {error}")))?;
        Ok(Self { requests: Some(requests), thread: Some(thread), tables, progress })
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
        if behind.is_some() {
            self.tables.hurry();
        }
        let progress = Arc::clone(&self.progress);
        move || behind.map_or(Ok(()), |behind| progress.wait(behind))
    }
}

fn gone() -> StoreError {
    StoreError::Broken("the thread of the ledger has ended".to_owned())
}

impl Drop for Writer {
    /// Waits until what was asked is done and the file is closed.
    fn drop(&mut self) {
        self.requests = None;
        if let Some(thread) = self.thread.take() {
            // A panic in there was printed, and there is nothing left to do about it.
            thread.join().ok();
        }
    }
}

/// Both ends of the writing side, with what an earlier life left in the ledger brought into the tables.
pub fn open(connection: Connection, path: &Path, progress: &Arc<Progress>) -> Result<(Commits, Tables), StoreError> {
    let mut found = Found::open(path)?;
    let mut tables = Tables::new(connection, Arc::clone(progress));
    let taken = tables.recover(&mut found)?;
    Ok((Commits { ledger: found.renew()?, taken, progress: Arc::clone(progress) }, tables))
}

fn serve(mut commits: Commits, mut rows: TablesThread, inbox: &Receiver<Request>) {
    let mut soon = false;
    while let Some(request) = next(inbox, &mut soon) {
        // Whoever asked may have stopped waiting.
        match request {
            Request::Lead(reply) => _ = reply.send(commits.lead(&mut rows)),
            Request::Commit(commit, reply) => _ = reply.send(commits.commit(commit, &mut rows)),
        }
        commits.tend();
    }
    if rows.close() {
        commits.ledger.remove();
    }
}

/// Waits for the next request. None when nobody is left to ask.
fn next(inbox: &Receiver<Request>, soon: &mut bool) -> Option<Request> {
    let since = Instant::now();
    while *soon && since.elapsed() < SOON {
        match inbox.try_recv() {
            Err(TryRecvError::Empty) => thread::yield_now(),
            came => return came.ok(),
        }
    }
    let request = inbox.recv().ok();
    *soon = since.elapsed() < SOON;
    request
}

pub struct Commits {
    ledger: Ledger,
    /// Epoch and number of the last commit that was taken.
    taken: (u64, u64),
    progress: Arc<Progress>,
}

impl Commits {
    pub fn lead(&mut self, rows: &mut impl Rows) -> Result<Leadership, StoreError> {
        let leadership = rows.lead()?;
        self.taken = (leadership.epoch, 0);
        Ok(leadership)
    }

    pub fn commit(&mut self, commit: Arc<Commit>, rows: &mut impl Rows) -> Result<(), StoreError> {
        let (epoch, last) = self.taken;
        if commit.epoch != epoch {
            return Err(StoreError::Deposed { ours: commit.epoch, current: epoch });
        }
        let number = commit.batch.number;
        if number > last {
            self.take(Entry::of(commit)?, rows)?;
            self.taken = (epoch, number);
        }
        Ok(())
    }

    fn take(&mut self, entry: Entry, rows: &mut impl Rows) -> Result<(), StoreError> {
        if entry.size() > ledger::LARGEST || self.progress.is_failing() || self.ledger.is_full() {
            rows.write(entry)?;
            self.ledger.settle();
            return Ok(());
        }
        let count = self.progress.answered() + 1;
        self.ledger.enter(&entry, self.taken.1, count)?;
        rows.follow(entry, count);
        self.progress.answer();
        Ok(())
    }

    /// Sees to it that the ledger has room when it is needed. If it has none, a commit goes to the tables directly.
    pub fn tend(&mut self) {
        let needed = self.ledger.other_ends_with();
        let other_is_free = needed <= self.progress.durable();
        if self.ledger.is_half_full() && !other_is_free {
            self.progress.want_durable(needed);
        }
        if self.ledger.is_full() && other_is_free {
            self.ledger.turn();
        }
        if let Err(error) = self.ledger.tend() {
            tracing::debug!(%error, "the ledger is lengthened when it is needed");
        }
    }
}
