//! What reaches the brain, and what it wants done in return.

use crate::{
    id::{ExecutionId, JobId, WorkerId},
    job::{ClassId, Job, Progress},
    protocol::{Finished, Hello, StopReason},
    spec::{JobSpec, Priority},
    state::{IllegalEvent, StateKind},
    time::{Elapsed, Millis, Time},
    token::{Hash, TokenRefused, WorkerToken},
    worker::{WorkerInfo, WorkerRecord},
};
use std::sync::Arc;
use thiserror::Error;

/// Names the caller that waits for an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Caller(pub u64);

/// Names one connection of a worker. A later connection of the same worker has a larger number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Connection(pub u64);

#[derive(Clone, Debug)]
pub enum Input {
    Enqueue {
        caller: Caller,
        jobs: Vec<NewJob>,
    },
    Cancel {
        caller: Caller,
        job: JobId,
        reason: String,
    },
    Retry {
        caller: Caller,
        job: JobId,
    },
    CreateToken {
        caller: Caller,
        token: WorkerToken,
    },
    Register {
        caller: Caller,
        request: Registration,
    },
    Connect {
        worker: WorkerId,
        connection: Connection,
        hello: Hello,
    },
    Disconnect {
        worker: WorkerId,
        connection: Connection,
    },
    /// The lease counts from `at`, when the sign of life arrived, however long it then waited to be handled.
    Heartbeat {
        worker: WorkerId,
        at: Elapsed,
    },
    /// Something a worker tells of an execution. Over the stream nobody waits for the answer.
    Report {
        caller: Option<Caller>,
        worker: WorkerId,
        report: Report,
    },
    /// An operator wants the worker gone once it has finished what it runs.
    Drain {
        caller: Caller,
        worker: WorkerId,
    },
    /// The worker itself wants no more work on this connection.
    Pause {
        caller: Option<Caller>,
        worker: WorkerId,
    },
    Unregister {
        caller: Caller,
        worker: WorkerId,
    },
    /// Answers [`Effect::ReadReady`].
    Ready {
        class: ClassId,
        priority: Priority,
        limit: usize,
        jobs: Vec<Job>,
    },
    /// Answers [`Effect::ReadDue`].
    Due {
        limit: usize,
        jobs: Vec<Job>,
    },
    /// The server leaves in order and wants its workers to go on without it for this long.
    Park {
        lease: Millis,
    },
}

#[derive(Clone, Debug)]
pub struct NewJob {
    pub id: JobId,
    pub spec: JobSpec,
    /// The same as it is stored and sent; nothing in here reads it.
    pub payload: Arc<[u8]>,
}

#[derive(Clone, Debug)]
pub struct Registration {
    pub token: Hash,
    pub worker: Option<WorkerId>,
    /// Of the key that the worker proves.
    pub key: Hash,
    /// Of the credential that it will get.
    pub session: Hash,
    pub info: WorkerInfo,
}

#[derive(Clone, Debug)]
pub enum Report {
    Started { execution: ExecutionId, at: Time },
    Progress { execution: ExecutionId, progress: Progress },
    Finished(Finished),
}

impl Report {
    pub fn execution(&self) -> ExecutionId {
        match self {
            Report::Started { execution, .. } | Report::Progress { execution, .. } => *execution,
            Report::Finished(finished) => finished.execution,
        }
    }
}

/// Released only when the rows that led to it are durable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    Answer {
        caller: Caller,
        answer: Result<Answer, Refusal>,
    },
    Welcome {
        worker: WorkerId,
        connection: Connection,
        verdicts: Vec<Bound>,
    },
    Run {
        worker: WorkerId,
        connection: Connection,
        job: JobId,
        execution: ExecutionId,
        attempt: u32,
    },
    Stop {
        worker: WorkerId,
        connection: Connection,
        execution: ExecutionId,
        why: StopReason,
    },
    /// The result of this execution is settled: the worker may forget it.
    Acked {
        worker: WorkerId,
        connection: Connection,
        execution: ExecutionId,
    },
    Drain {
        worker: WorkerId,
        connection: Connection,
    },
    Close {
        worker: WorkerId,
        connection: Connection,
    },
    Park {
        worker: WorkerId,
        connection: Connection,
        lease: Millis,
    },
    /// Pending jobs of a line are wanted from the store.
    ReadReady {
        class: ClassId,
        priority: Priority,
        after: Option<u64>,
        limit: usize,
    },
    /// Delayed jobs, and pending ones with a deadline, are wanted from the store.
    ReadDue {
        after: Option<(Time, JobId)>,
        limit: usize,
    },
}

/// An execution that a worker named when it connected, and the job it is still bound to, if any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    pub execution: ExecutionId,
    pub job: Option<JobId>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    Done,
    State(StateKind),
    Registered(Box<WorkerRecord>),
}

/// Why the brain did not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Refusal {
    #[error("there is no job {0}")]
    NoSuchJob(JobId),
    #[error("there is no worker {0}")]
    NoSuchWorker(WorkerId),
    #[error(transparent)]
    Illegal(#[from] IllegalEvent),
    #[error(transparent)]
    Token(#[from] TokenRefused),
    #[error("more than {0} different combinations of queue and requirements wait already; use fewer of them")]
    TooManyClasses(usize),
}
