//! From log entries to numbered chunks, for whatever prints.

use crate::executor::ExecutorEvent;
use hodei_api::logs::{Encoder, Entry};
use hodei_core::{
    id::{ExecutionId, JobId},
    protocol::LogChunk,
};
use std::{sync::Arc, time::Duration};
use tokio::{
    select,
    sync::{Semaphore, mpsc, watch},
    time::Instant,
};

/// Entries wait at most this long for more to share their chunk.
const LINGER: Duration = Duration::from_millis(20);

/// Where whatever runs tells of itself.
#[derive(Debug)]
pub(crate) struct Sink {
    pub events: mpsc::UnboundedSender<ExecutorEvent>,
    /// See [`crate::executor::ExecutorConfig::log_budget`].
    pub budget: Arc<Semaphore>,
    /// True when nobody gives budget back any more.
    pub shutdown: watch::Receiver<bool>,
}

impl Sink {
    pub(crate) fn tell(&self, event: ExecutorEvent) {
        _ = self.events.send(event);
    }
}

/// Where the entries of one execution go.
#[derive(Debug)]
pub(crate) struct Chunks {
    job: JobId,
    execution: ExecutionId,
    sink: Arc<Sink>,
    encoder: Encoder,
    /// The number of the next entry that is not in a chunk yet.
    next: u64,
    last_emit: Option<Instant>,
    emit_at: Option<Instant>,
}

impl Chunks {
    pub(crate) fn new(job: JobId, execution: ExecutionId, sink: Arc<Sink>) -> Self {
        let (encoder, next, last_emit, emit_at) = (Encoder::default(), 0, None, None);
        Self { job, execution, sink, encoder, next, last_emit, emit_at }
    }

    /// The number of entries in all chunks so far.
    pub(crate) fn entries(&self) -> u64 {
        self.next
    }

    /// When [`Chunks::emit`] must be called although nothing more is printed.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.emit_at
    }

    /// Adds an entry. When the chunk is full it must be emitted before the next.
    pub(crate) fn push(&mut self, entry: Entry<'_>) {
        self.encoder.push(entry);
    }

    pub(crate) fn is_full(&self) -> bool {
        self.encoder.is_full()
    }

    /// A quiet job's line goes out at once; those of a busy one wait a little for company.
    pub(crate) async fn emit_when_due(&mut self) {
        if self.encoder.is_empty() || self.emit_at.is_some() {
            return;
        }
        let now = Instant::now();
        if self.last_emit.is_none_or(|last| now >= last + LINGER) {
            self.emit().await;
        } else {
            self.emit_at = Some(now + LINGER);
        }
    }

    /// Closes the chunk and sends it once there is budget for it. Until then whoever prints waits.
    pub(crate) async fn emit(&mut self) {
        self.emit_at = None;
        if self.encoder.is_empty() {
            return;
        }
        let (data, count) = self.encoder.finish();
        let bytes = u32::try_from(data.len()).unwrap_or(u32::MAX);
        let mut shutdown = self.sink.shutdown.clone();
        select! {
            permit = self.sink.budget.acquire_many(bytes) => if let Ok(permit) = permit { permit.forget() },
            _ = shutdown.wait_for(|shutdown| *shutdown) => {}
        }
        let chunk = LogChunk { job: self.job, execution: self.execution, first: self.next, count, data: data.into() };
        self.next = chunk.end();
        self.last_emit = Some(Instant::now());
        self.sink.tell(ExecutorEvent::Logs(chunk));
    }
}
