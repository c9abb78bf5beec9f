//! Log lines on their way from the store to readers.
//!
//! A reader walks the log by position and asks for more when told that there is more. So each reads at its own pace: none
//! misses a line, none sees one twice, and none slows a job. The last lines of every live job are kept in memory, so
//! that readers who keep up cost the store nothing.

use hodei_core::{brain::JobWrite, id::JobId, protocol::LogChunk};
use hodei_store::{LogPosition, Store, StoreError};
use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};
use tokio::sync::watch;

/// Entries of each live job that are kept in memory …
const RING_ENTRIES: u64 = 1000;
/// … unless they are larger than this: the store has them all.
const RING_BYTES: usize = 128 << 10;
/// What a reader takes from the store at one time.
const PAGE_BYTES: usize = 512 << 10;

#[derive(Debug, Default)]
pub struct Logs {
    live: Mutex<HashMap<JobId, Arc<Live>>>,
}

#[derive(Debug)]
struct Live {
    ring: Mutex<Ring>,
    /// Rises with every chunk that was stored.
    changes: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Ring {
    chunks: VecDeque<LogChunk>,
    entries: u64,
    bytes: usize,
}

impl Logs {
    /// These chunks are stored now.
    pub fn publish(&self, chunks: &[LogChunk]) {
        for chunk in chunks {
            let live = self.live(chunk.job);
            lock(&live.ring).push(chunk.clone());
            live.changes.send_modify(|changes| *changes += 1);
        }
    }

    /// These rows are stored now: the readers of finished jobs may end.
    pub fn close_finished(&self, writes: &[JobWrite]) {
        let mut live = lock(&self.live);
        if live.is_empty() {
            return;
        }
        for write in writes.iter().filter(|write| write.job.state.kind().is_finished()) {
            live.remove(&write.job.id);
        }
    }

    /// A reader that begins at the beginning. Whoever finds that the job has ended already closes it.
    pub fn read(&self, job: JobId) -> Reader {
        let live = self.live(job);
        let changes = live.changes.subscribe();
        Reader { job, position: LogPosition::START, live: Arc::downgrade(&live), changes }
    }

    /// A reader that cannot begin, because there is no such job or nobody can tell. Others who read the same job go on.
    pub fn abandon(&self, reader: Reader) {
        let job = reader.job;
        drop(reader);
        let mut live = lock(&self.live);
        let idle = |live: &Arc<Live>| live.changes.receiver_count() == 0 && lock(&live.ring).chunks.is_empty();
        if live.get(&job).is_some_and(idle) {
            live.remove(&job);
        }
    }

    /// Nothing more will be printed: readers end when they have read what is stored.
    pub fn close(&self, job: JobId) {
        lock(&self.live).remove(&job);
    }

    fn live(&self, job: JobId) -> Arc<Live> {
        let new = || Arc::new(Live { ring: Mutex::default(), changes: watch::Sender::new(0) });
        Arc::clone(lock(&self.live).entry(job).or_insert_with(new))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Ring {
    fn push(&mut self, chunk: LogChunk) {
        self.entries += u64::from(chunk.count);
        self.bytes += chunk.data.len();
        self.chunks.push_back(chunk);
        while let Some(first) = self.chunks.front()
            && (self.entries - u64::from(first.count) >= RING_ENTRIES || self.bytes > RING_BYTES)
        {
            self.entries -= u64::from(first.count);
            self.bytes -= first.data.len();
            self.chunks.pop_front();
        }
    }

    /// What follows `position`, if the ring reaches back to it.
    fn after(&self, position: LogPosition) -> Option<Vec<LogChunk>> {
        let at = |chunk: &LogChunk, entry| LogPosition { execution: chunk.execution, entry };
        let first = self.chunks.front()?;
        let covered = position >= at(first, first.first);
        covered.then(|| self.chunks.iter().filter(|chunk| at(chunk, chunk.end()) > position).cloned().collect())
    }
}

#[derive(Debug)]
pub struct Reader {
    job: JobId,
    position: LogPosition,
    live: Weak<Live>,
    changes: watch::Receiver<u64>,
}

impl Reader {
    /// The next chunks, which may begin before [`Reader::position`]; none at the end of the log.
    pub async fn next(&mut self, store: &dyn Store) -> Result<Vec<LogChunk>, StoreError> {
        loop {
            // An error means that the job has ended; what it printed is stored by then.
            let ended = self.changes.has_changed().is_err();
            self.changes.mark_unchanged();
            let chunks = match self.in_memory() {
                Some(chunks) => chunks,
                None => store.logs(self.job, self.position, PAGE_BYTES).await?,
            };
            if !chunks.is_empty() || ended {
                return Ok(chunks);
            }
            _ = self.changes.changed().await;
        }
    }

    fn in_memory(&self) -> Option<Vec<LogChunk>> {
        lock(&self.live.upgrade()?.ring).after(self.position)
    }

    pub fn position(&self) -> LogPosition {
        self.position
    }

    /// Everything before `position` was delivered.
    pub fn advance(&mut self, position: LogPosition) {
        self.position = position;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_that_cannot_begin_ends_no_other_and_leaves_nothing() {
        let (logs, job) = (Logs::default(), JobId(uuid::Uuid::from_u128(1)));
        let (first, second) = (logs.read(job), logs.read(job));
        logs.abandon(second);
        assert!(first.changes.has_changed().is_ok(), "the job has not ended");
        logs.abandon(first);
        assert!(lock(&logs.live).is_empty());
    }
}
