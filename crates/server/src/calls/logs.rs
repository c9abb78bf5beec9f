//! What jobs printed: pages of it, and all of it as it comes.

use super::{Calls, Problem};
use crate::logs::Reader;
use hodei_api::{logs::Chunk, v1};
use hodei_core::{
    id::{ExecutionId, JobId},
    job::Job,
    protocol::LogChunk,
    spec::Invalid,
};
use hodei_store::{LogPosition, LogSpan};
use std::collections::{HashMap, VecDeque};

/// Keeps a page inside what a client accepts, however long its lines are.
const PAGE_BYTES: usize = 2 << 20;

/// Where a reader of a log begins.
#[derive(Clone, Copy, Debug)]
pub enum LogStart {
    At(LogPosition),
    /// So many entries before the end of what is stored.
    Tail(u64),
}

impl LogStart {
    pub const BEGINNING: Self = Self::At(LogPosition::START);
}

/// Some entries, and where the next ones begin.
#[derive(Debug)]
pub struct LogPage {
    pub entries: Vec<v1::LogEntry>,
    pub next: Option<LogPosition>,
}

impl Calls {
    /// One page of what is stored.
    pub async fn log_page(&self, id: JobId, start: LogStart, limit: usize) -> Result<LogPage, Problem> {
        let attempts = Attempts::of(&self.find(id).await?);
        let mut position = self.log_position(id, start).await?;
        let (mut entries, mut bytes) = (Vec::new(), 0);
        loop {
            let chunks = self.engine.shared().store.logs(id, position, PAGE_BYTES / 4).await?;
            if chunks.is_empty() {
                return Ok(LogPage { entries, next: None });
            }
            for chunk in &chunks {
                for (entry, after) in unfold(chunk, position, &attempts)? {
                    if entries.len() >= limit || bytes >= PAGE_BYTES {
                        return Ok(LogPage { entries, next: Some(position) });
                    }
                    bytes += entry.text.len();
                    entries.push(entry);
                    position = after;
                }
            }
        }
    }

    /// All that is stored, then what comes, without gap or repeat.
    pub async fn follow_log(&self, id: JobId, start: LogStart) -> Result<LogWalk, Problem> {
        // The reader comes before the row: a job that ends in between then closes the reader.
        let mut reader = self.engine.shared().logs.read(id);
        let job = match self.find(id).await {
            Ok(job) => job,
            Err(problem) => {
                self.engine.shared().logs.abandon(reader);
                return Err(problem);
            }
        };
        if job.state.kind().is_finished() {
            self.engine.shared().logs.close(id);
        }
        reader.advance(self.log_position(id, start).await?);
        Ok(LogWalk { calls: self.clone(), attempts: Attempts::of(&job), reader, chunks: VecDeque::new() })
    }

    async fn log_position(&self, job: JobId, start: LogStart) -> Result<LogPosition, Problem> {
        let tail = match start {
            LogStart::At(position) => return Ok(position),
            LogStart::Tail(tail) => tail,
        };
        let chunks = self.engine.shared().store.log_tail(job, tail.max(1)).await?;
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
pub struct LogWalk {
    calls: Calls,
    attempts: Attempts,
    reader: Reader,
    /// Read and not given out yet.
    chunks: VecDeque<LogChunk>,
}

impl LogWalk {
    /// The next entries, at least one; none when the job has ended and all is read. Whoever drops the future of a call
    /// loses nothing.
    pub async fn next(&mut self) -> Result<Vec<v1::LogEntry>, Problem> {
        loop {
            let Some(chunk) = self.chunks.front() else {
                let store = &self.calls.engine.shared().store;
                self.chunks = self.reader.next(&**store).await?.into();
                if self.chunks.is_empty() {
                    return Ok(Vec::new());
                }
                continue;
            };
            if !self.attempts.0.contains_key(&chunk.execution) {
                self.attempts = Attempts::of(&self.calls.find(chunk.job).await?);
            }
            let entries = unfold(chunk, self.reader.position(), &self.attempts)?;
            self.chunks.pop_front();
            if let Some((_, after)) = entries.last() {
                self.reader.advance(*after);
                return Ok(entries.into_iter().map(|(entry, _)| entry).collect());
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
) -> Result<Vec<(v1::LogEntry, LogPosition)>, Problem> {
    let decoded = Chunk::decode(&chunk.data, chunk.count).map_err(|bad| Problem::Internal(bad.to_string()))?;
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

/// A position as clients carry it.
pub fn log_token(position: LogPosition) -> String {
    format!("{}:{}", position.execution, position.entry)
}

pub fn log_position(token: &str) -> Result<LogPosition, Invalid> {
    let bad = || Invalid::new("page_token", "is not a token that this server gave");
    let (execution, entry) = token.split_once(':').ok_or_else(bad)?;
    Ok(LogPosition { execution: execution.parse().map_err(|_| bad())?, entry: entry.parse().map_err(|_| bad())? })
}
