//! LogStreamService: what jobs printed, from the beginning or the end, and as it comes.

use super::{closed, invalid, unreadable};
use crate::{
    calls::{Calls, page_size},
    logs::Reader,
};
use futures::stream::BoxStream;
use hodei_api::{
    convert,
    logs::Chunk,
    v1::{self, log_stream_service_server::LogStreamService},
};
use hodei_core::{
    id::{ExecutionId, JobId},
    job::Job,
    protocol::LogChunk,
    spec::Invalid,
};
use hodei_store::{LogPosition, LogSpan};
use std::collections::HashMap;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

const DEFAULT_PAGE: usize = 1000;
const MAX_PAGE: usize = 10_000;
/// Keeps a page inside what a client accepts, however long its lines are.
const PAGE_BYTES: usize = 2 << 20;
/// Messages that wait for a reader; when they are full, the reader's walk stops until it has caught up.
const AHEAD: usize = 4;

pub struct Service {
    pub calls: Calls,
    pub closing: watch::Receiver<bool>,
}

type Sender = mpsc::Sender<Result<v1::LogEntries, Status>>;

#[tonic::async_trait]
impl LogStreamService for Service {
    type SubscribeLogsStream = BoxStream<'static, Result<v1::LogEntries, Status>>;

    async fn subscribe_logs(
        &self,
        request: Request<v1::SubscribeLogsRequest>,
    ) -> Result<Response<Self::SubscribeLogsStream>, Status> {
        let v1::SubscribeLogsRequest { job_id, tail } = request.into_inner();
        let id = convert::job_id(&job_id).map_err(invalid)?;
        let (sender, receiver) = mpsc::channel(AHEAD);
        // The reader comes before the row: a job that ends in between then closes the reader.
        let mut reader = self.calls.engine.shared().logs.read(id);
        let job = match self.calls.find(id).await {
            Ok(job) => job,
            Err(problem) => {
                self.calls.engine.shared().logs.abandon(reader);
                return Err(problem.into());
            }
        };
        if job.state.kind().is_finished() {
            self.calls.engine.shared().logs.close(id);
        }
        reader.advance(self.start(id, tail).await?);
        let walk = Walk { calls: self.calls.clone(), attempts: Attempts::of(&job), reader };
        tokio::spawn(walk.run(self.closing.clone(), sender));
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }

    async fn get_logs(&self, request: Request<v1::GetLogsRequest>) -> Result<Response<v1::GetLogsResponse>, Status> {
        let v1::GetLogsRequest { job_id, page_token, page_size: size, tail } = request.into_inner();
        let id = convert::job_id(&job_id).map_err(invalid)?;
        let limit = page_size(size, DEFAULT_PAGE, MAX_PAGE).map_err(invalid)?;
        let mut position = match page_token.as_str() {
            "" => self.start(id, tail).await?,
            token => position_of(token).map_err(invalid)?,
        };
        let attempts = Attempts::of(&self.calls.find(id).await?);
        let mut entries = Vec::new();
        let mut bytes = 0;
        let store = &self.calls.engine.shared().store;
        loop {
            let chunks = store.logs(id, position, PAGE_BYTES / 4).await.map_err(unreadable)?;
            if chunks.is_empty() {
                return Ok(Response::new(v1::GetLogsResponse { entries, next_page_token: String::new() }));
            }
            for chunk in &chunks {
                for (entry, after) in unfold(chunk, position, &attempts)? {
                    if entries.len() >= limit || bytes >= PAGE_BYTES {
                        return Ok(Response::new(v1::GetLogsResponse { entries, next_page_token: token_of(position) }));
                    }
                    bytes += entry.text.len();
                    entries.push(entry);
                    position = after;
                }
            }
        }
    }
}

impl Service {
    /// Where the last `tail` entries begin.
    async fn start(&self, job: JobId, tail: Option<u64>) -> Result<LogPosition, Status> {
        let Some(tail) = tail else { return Ok(LogPosition::START) };
        let chunks = self.calls.engine.shared().store.log_tail(job, tail.max(1)).await.map_err(unreadable)?;
        let stored: u64 = chunks.iter().map(|chunk| u64::from(chunk.count)).sum();
        let mut skip = stored.saturating_sub(tail);
        for chunk in &chunks {
            if skip < u64::from(chunk.count) {
                return Ok(LogPosition { execution: chunk.execution, entry: chunk.first + skip });
            }
            skip -= u64::from(chunk.count);
        }
        let end =
            |chunk: &LogSpan| LogPosition { execution: chunk.execution, entry: chunk.first + u64::from(chunk.count) };
        Ok(chunks.last().map_or(LogPosition::START, end))
    }
}

/// One reader on its way through a log.
struct Walk {
    calls: Calls,
    attempts: Attempts,
    reader: Reader,
}

impl Walk {
    async fn run(mut self, mut closing: watch::Receiver<bool>, sender: Sender) {
        let outcome = tokio::select! {
            outcome = self.walk(&sender) => outcome,
            () = closed(&mut closing) => Err(Status::unavailable("the server is shutting down; subscribe again")),
            () = sender.closed() => return,
        };
        if let Err(status) = outcome {
            _ = sender.send(Err(status)).await;
        }
    }

    async fn walk(&mut self, sender: &Sender) -> Result<(), Status> {
        loop {
            let store = &self.calls.engine.shared().store;
            let chunks = self.reader.next(&**store).await.map_err(unreadable)?;
            if chunks.is_empty() {
                return Ok(());
            }
            for chunk in chunks {
                if !self.attempts.0.contains_key(&chunk.execution) {
                    self.attempts = Attempts::of(&self.calls.find(chunk.job).await?);
                }
                let entries = unfold(&chunk, self.reader.position(), &self.attempts)?;
                let Some((_, after)) = entries.last() else { continue };
                let after = *after;
                let entries = entries.into_iter().map(|(entry, _)| entry).collect();
                if sender.send(Ok(v1::LogEntries { entries })).await.is_err() {
                    return Ok(());
                }
                self.reader.advance(after);
            }
        }
    }
}

/// Which attempt each execution was.
struct Attempts(HashMap<ExecutionId, u32>);

impl Attempts {
    fn of(job: &Job) -> Self {
        Self(job.executions.iter().map(|execution| (execution.id, execution.attempt)).collect())
    }
}

/// The entries of a chunk from `position` on, each with the position after it.
fn unfold(
    chunk: &LogChunk,
    position: LogPosition,
    attempts: &Attempts,
) -> Result<Vec<(v1::LogEntry, LogPosition)>, Status> {
    let decoded = Chunk::decode(&chunk.data, chunk.count).map_err(|bad| Status::data_loss(bad.to_string()))?;
    let execution = chunk.execution;
    let attempt = i32::try_from(attempts.0.get(&execution).copied().unwrap_or(0)).unwrap_or(i32::MAX);
    let execution_id = execution.to_string();
    let numbered = (chunk.first..).zip(decoded.entries());
    let wanted = numbered.filter(|(number, _)| LogPosition { execution, entry: *number } >= position);
    let wire = wanted.map(|(number, entry)| {
        let wire = v1::LogEntry {
            execution_id: execution_id.clone(),
            attempt,
            number,
            at_ms: entry.at_ms,
            stderr: entry.stderr,
            text: entry.text.to_vec().into(),
            unfinished: entry.unfinished,
        };
        (wire, LogPosition { execution, entry: number + 1 })
    });
    Ok(wire.collect())
}

pub(crate) fn token_of(position: LogPosition) -> String {
    format!("{}:{}", position.execution, position.entry)
}

pub(crate) fn position_of(token: &str) -> Result<LogPosition, Invalid> {
    let bad = || Invalid::new("page_token", "is not a token that this server gave");
    let (execution, entry) = token.split_once(':').ok_or_else(bad)?;
    Ok(LogPosition { execution: execution.parse().map_err(|_| bad())?, entry: entry.parse().map_err(|_| bad())? })
}
