//! What a server and a worker say to each other, free of any wire format.

use crate::{
    id::{ExecutionId, Incarnation, JobId},
    job::Progress,
    journal::Supervision,
    spec::JobSpec,
    state::Outcome,
    time::{Millis, Time},
    worker::WorkerInfo,
};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// From the worker to the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FromWorker {
    /// The first message on every stream: who is there and what it holds.
    Hello(Hello),
    /// A sign of life. `sent` comes back in the answer, so that the worker counts its lease from the moment it asked.
    Heartbeat {
        sent: u64,
    },
    Started {
        execution: ExecutionId,
        at: Time,
    },
    Progress {
        execution: ExecutionId,
        progress: Progress,
        /// JSON that takes the place of the job's data.
        data: Option<Vec<u8>>,
    },
    Logs(LogChunk),
    Finished(Finished),
    /// From now on it wants nothing more; what it gives back must not come to it again.
    Leaving,
    /// What it is from now on.
    Info(Box<WorkerInfo>),
    /// Word of what it watches over.
    Supervision(Supervision),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    pub incarnation: Incarnation,
    /// What it is now, when that may differ from what it was when it registered.
    pub info: Option<Box<WorkerInfo>>,
    /// Executions that it was given and that have not ended.
    pub held: Vec<ExecutionId>,
    /// Ended ones whose result the server has not acknowledged; they follow on the stream.
    pub ended: Vec<ExecutionId>,
    /// It finishes what it holds and wants nothing more.
    pub leaving: bool,
}

/// The end of an execution.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finished {
    pub execution: ExecutionId,
    pub outcome: Outcome,
    /// When the process started, if it did: a result implies its start, whose own message may be lost.
    pub started_at: Option<Time>,
    pub finished_at: Time,
    /// The number of log entries that came before it.
    pub log_entries: u64,
    /// JSON that the job left as its result.
    pub result: Option<Vec<u8>>,
    /// JSON that takes the place of the job's data.
    pub data: Option<Vec<u8>>,
    /// Jobs to enqueue with this end, each as a submitter would send it.
    pub children: Vec<Vec<u8>>,
}

impl Finished {
    /// The end of an execution that left nothing behind.
    pub fn new(execution: ExecutionId, outcome: Outcome, finished_at: Time) -> Self {
        Self {
            execution,
            outcome,
            started_at: None,
            finished_at,
            log_entries: 0,
            result: None,
            data: None,
            children: Vec::new(),
        }
    }
}

/// Log entries of one execution, numbered from `first` on, in the codec of the `api` crate. A chunk never changes
/// once it is made, so a repeat is recognised by its number alone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogChunk {
    pub job: JobId,
    pub execution: ExecutionId,
    pub first: u64,
    pub count: u32,
    #[serde(with = "crate::bytes")]
    pub data: Arc<[u8]>,
}

impl LogChunk {
    /// The number of the entry that comes after it.
    pub fn end(&self) -> u64 {
        self.first + u64::from(self.count)
    }
}

/// From the server to the worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToWorker {
    /// The answer to `Hello`: what becomes of each execution it named.
    Welcome(Welcome),
    Run(Vec<Assignment>),
    Stop {
        execution: ExecutionId,
        why: StopReason,
    },
    /// The lease is good for `lease` from the moment the heartbeat with `sent` left.
    Lease {
        sent: u64,
        lease: Millis,
    },
    /// The server goes away in order and comes back: the lease is good for this long from the last sign of life that it
    /// has answered.
    Park {
        lease: Millis,
    },
    /// Stored for good: the worker may forget them.
    Acked {
        results: Vec<ExecutionId>,
        logs: Vec<LogAck>,
    },
    /// Take no more work; end when what runs has ended, and give back what still runs after `within`.
    Drain {
        within: Option<Millis>,
    },
    /// A person wants the processes of this handler started anew.
    RestartHandler {
        handler: String,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Welcome {
    pub lease: Millis,
    pub heartbeat: Millis,
    pub held: Vec<Verdict>,
}

/// What the server wants done with an execution that a worker named in its `Hello`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    pub execution: ExecutionId,
    pub keep: bool,
    /// Log entries that are stored already.
    pub log_entries: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogAck {
    pub execution: ExecutionId,
    /// All entries below this number are stored.
    pub entries: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignment {
    pub job: JobId,
    pub execution: ExecutionId,
    pub attempt: u32,
    pub spec: Arc<JobSpec>,
    pub context: Context,
}

/// What a job finds besides its spec; most find nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Context {
    /// The job's data as its last execution left it, if that differs from the spec's.
    pub data: Option<Vec<u8>>,
    /// What resumed it, if it was blocked.
    pub input: Option<Vec<u8>>,
    pub dependencies: Vec<DependencyResult>,
    /// The schedule that made it, and for which tick.
    pub tick: Option<(String, Time)>,
}

/// What a job that this one depends on left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DependencyResult {
    pub job: JobId,
    pub name: String,
    /// None when it left none, did not succeed, or is too large to be sent along.
    pub result: Option<Vec<u8>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// A user cancelled the job.
    Cancelled,
    /// It ran longer than allowed.
    RunTimeout,
    /// The job is no longer bound to this execution.
    Stale,
}
