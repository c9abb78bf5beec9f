//! From a job's pipes to numbered chunks of log entries.

use super::{
    ExecutorEvent,
    clock::wall,
    lines::Lines,
    mask::{Masker, Masks},
};
use hodei_api::logs::{Encoder, Entry};
use hodei_core::{
    id::{ExecutionId, JobId},
    protocol::LogChunk,
};
use rustix::{fd::OwnedFd, io::Errno};
use std::{io, sync::Arc, time::Duration};
use tokio::{
    net::unix::pipe,
    select,
    sync::{Notify, Semaphore, mpsc, watch},
    time::{Instant, sleep_until},
};
use tracing::warn;

/// Entries wait at most this long for more to share their chunk.
const LINGER: Duration = Duration::from_millis(20);
/// As much as a pipe holds.
const READ: usize = 64 << 10;

/// One of a job's two streams.
#[derive(Debug)]
pub(super) struct Stream {
    pipe: OwnedFd,
    stderr: bool,
    open: bool,
    masker: Option<Masker>,
    lines: Lines,
}

impl Stream {
    /// The pipe's reading end must not block.
    pub(super) fn new(pipe: OwnedFd, stderr: bool, masks: Option<&Arc<Masks>>) -> Self {
        Self { pipe, stderr, open: true, masker: masks.cloned().map(Masker::new), lines: Lines::default() }
    }

    /// The same pipe, watched by the runtime.
    fn watched(&self) -> io::Result<pipe::Receiver> {
        pipe::Receiver::from_owned_fd_unchecked(self.pipe.try_clone()?)
    }
}

/// How far the job is.
#[derive(Debug, Default)]
pub(super) struct Phases {
    /// It goes on long enough for its output to be worth following. What a shorter job prints is read at its end.
    pub live: Notify,
    /// Nobody writes any more.
    pub ended: Notify,
}

/// Where an execution's entries go.
#[derive(Debug)]
pub(super) struct Output {
    pub job: JobId,
    pub execution: ExecutionId,
    pub events: mpsc::UnboundedSender<ExecutorEvent>,
    pub budget: Arc<Semaphore>,
    /// True when nobody gives budget back any more.
    pub shutdown: watch::Receiver<bool>,
    encoder: Encoder,
    /// The number of the next entry that is not in a chunk yet.
    next: u64,
    last_emit: Option<Instant>,
    emit_at: Option<Instant>,
}

impl Output {
    pub(super) fn new(
        job: JobId,
        execution: ExecutionId,
        events: mpsc::UnboundedSender<ExecutorEvent>,
        budget: Arc<Semaphore>,
        shutdown: watch::Receiver<bool>,
    ) -> Self {
        let (encoder, next, last_emit, emit_at) = (Encoder::default(), 0, None, None);
        Self { job, execution, events, budget, shutdown, encoder, next, last_emit, emit_at }
    }

    /// Reads both streams to their end, or until nobody writes to them any more. Returns the number of entries.
    pub(super) async fn pump(mut self, mut stdout: Stream, mut stderr: Stream, phases: &Phases) -> u64 {
        let mut buffer = Vec::new();
        let live = select! {
            () = phases.live.notified() => true,
            () = phases.ended.notified() => false,
        };
        if live && let Err(error) = self.follow(&mut stdout, &mut stderr, &mut buffer, phases).await {
            warn!(execution = %self.execution, %error, "the job's output cannot be followed and is cut off");
            (stdout.open, stderr.open) = (false, false);
        }
        self.drain(&mut stdout, &mut buffer).await;
        self.drain(&mut stderr, &mut buffer).await;
        self.emit().await;
        self.next
    }

    /// Reads what comes while it comes.
    async fn follow(
        &mut self,
        stdout: &mut Stream,
        stderr: &mut Stream,
        buffer: &mut Vec<u8>,
        phases: &Phases,
    ) -> io::Result<()> {
        let (out, err) = (stdout.watched()?, stderr.watched()?);
        while stdout.open || stderr.open {
            select! {
                ready = out.readable(), if stdout.open => self.read(ready, &out, stdout, buffer).await,
                ready = err.readable(), if stderr.open => self.read(ready, &err, stderr, buffer).await,
                () = sleep_until(self.emit_at.unwrap_or_else(Instant::now)), if self.emit_at.is_some() => self.emit().await,
                () = phases.ended.notified() => break,
            }
        }
        Ok(())
    }

    async fn read(&mut self, ready: io::Result<()>, pipe: &pipe::Receiver, stream: &mut Stream, buffer: &mut Vec<u8>) {
        buffer.resize(READ, 0);
        match ready.and_then(|()| pipe.try_read(buffer)) {
            Ok(0) => self.close(stream).await,
            Ok(size) => self.take(stream, &buffer[..size]).await,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => self.close(stream).await,
        }
    }

    /// Reads what the pipe still holds. It asks the kernel itself, since the runtime may not have heard of it yet. A pipe
    /// that is empty and not at its end was handed to a stranger, who is not waited for.
    async fn drain(&mut self, stream: &mut Stream, buffer: &mut Vec<u8>) {
        while stream.open {
            buffer.resize(READ, 0);
            match rustix::io::read(&stream.pipe, &mut buffer[..]) {
                Ok(size) if size > 0 => self.take(stream, &buffer[..size]).await,
                Err(Errno::INTR) => {}
                _ => self.close(stream).await,
            }
        }
    }

    async fn take(&mut self, stream: &mut Stream, bytes: &[u8]) {
        match &mut stream.masker {
            None => self.split(stream, bytes).await,
            Some(masker) => {
                let mut shown = Vec::with_capacity(bytes.len());
                masker.feed(bytes, &mut shown);
                self.split(stream, &shown).await;
            }
        }
        self.emit_when_due().await;
    }

    async fn split(&mut self, stream: &mut Stream, mut bytes: &[u8]) {
        let at_ms = wall().0;
        while !bytes.is_empty() {
            bytes = stream.lines.feed(bytes, |text, unfinished| {
                self.encoder.push(Entry { at_ms, stderr: stream.stderr, unfinished, text });
                !self.encoder.is_full()
            });
            if self.encoder.is_full() {
                self.emit().await;
            }
        }
    }

    async fn close(&mut self, stream: &mut Stream) {
        stream.open = false;
        if let Some(masker) = &mut stream.masker {
            let mut shown = Vec::new();
            masker.finish(&mut shown);
            self.split(stream, &shown).await;
        }
        if let Some(text) = stream.lines.last() {
            self.encoder.push(Entry { at_ms: wall().0, stderr: stream.stderr, unfinished: true, text: &text });
        }
        if self.encoder.is_full() {
            self.emit().await;
        }
    }

    /// A quiet job's line goes out at once; those of a busy one wait a little for company.
    async fn emit_when_due(&mut self) {
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

    /// Closes the chunk and sends it once there is budget for it. Until then the job's pipes fill up and it waits.
    async fn emit(&mut self) {
        self.emit_at = None;
        if self.encoder.is_empty() {
            return;
        }
        let (data, count) = self.encoder.finish();
        let bytes = u32::try_from(data.len()).unwrap_or(u32::MAX);
        select! {
            permit = self.budget.acquire_many(bytes) => if let Ok(permit) = permit { permit.forget() },
            _ = self.shutdown.wait_for(|shutdown| *shutdown) => {}
        }
        let chunk = LogChunk { job: self.job, execution: self.execution, first: self.next, count, data: data.into() };
        self.next = chunk.end();
        self.last_emit = Some(Instant::now());
        _ = self.events.send(ExecutorEvent::Logs(chunk));
    }
}
