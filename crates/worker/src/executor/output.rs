//! From a job's pipes to numbered chunks of log entries.

use super::{
    clock::{boottime, wall},
    lines::Lines,
    mask::{Masker, Masks},
    tail::Tail,
};
use crate::chunks::Chunks;
use hodei_api::logs::Entry;
use hodei_core::{id::ExecutionId, time::Elapsed};
use rustix::{fd::OwnedFd, io::Errno};
use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};
use tokio::{
    net::unix::pipe,
    select,
    sync::Notify,
    time::{Instant, sleep_until},
};
use tracing::warn;

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
    /// When it last gave a sign of itself, on the boot-time clock.
    sign: AtomicU64,
}

impl Phases {
    pub(super) fn sign(&self) {
        self.sign.store(boottime().0, Ordering::Relaxed);
    }

    pub(super) fn last_sign(&self) -> Elapsed {
        Elapsed(self.sign.load(Ordering::Relaxed))
    }
}

/// What is known of a job's output when it has ended.
#[derive(Debug)]
pub(super) struct Printed {
    pub entries: u64,
    /// The end of what it printed as errors.
    pub errors: String,
}

/// The way of a process's output into its chunks.
#[derive(Debug)]
pub(super) struct Output {
    pub execution: ExecutionId,
    pub chunks: Chunks,
    pub errors: Tail,
}

impl Output {
    /// Reads both streams to their end, or until nobody writes to them any more.
    pub(super) async fn pump(mut self, mut stdout: Stream, mut stderr: Stream, phases: &Phases) -> Printed {
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
        self.chunks.emit().await;
        Printed { entries: self.chunks.entries(), errors: self.errors.text() }
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
                ready = out.readable(), if stdout.open => {
                    phases.sign();
                    self.read(ready, &out, stdout, buffer).await;
                }
                ready = err.readable(), if stderr.open => {
                    phases.sign();
                    self.read(ready, &err, stderr, buffer).await;
                }
                () = sleep_until(self.chunks.due().unwrap_or_else(Instant::now)), if self.chunks.due().is_some() => self.chunks.emit().await,
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
        self.chunks.emit_when_due().await;
    }

    async fn split(&mut self, stream: &mut Stream, mut bytes: &[u8]) {
        if stream.stderr {
            self.errors.push(bytes);
        }
        let at_ms = wall().0;
        while !bytes.is_empty() {
            bytes = stream.lines.feed(bytes, |text, unfinished| {
                self.chunks.push(Entry { at_ms, stderr: stream.stderr, unfinished, text });
                !self.chunks.is_full()
            });
            if self.chunks.is_full() {
                self.chunks.emit().await;
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
            self.chunks.push(Entry { at_ms: wall().0, stderr: stream.stderr, unfinished: true, text: &text });
        }
        if self.chunks.is_full() {
            self.chunks.emit().await;
        }
    }
}
