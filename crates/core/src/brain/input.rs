//! What reaches the brain, and what it wants done in return.

use super::Settling;
use crate::{
    id::{ExecutionId, JobId, ScheduleId, WorkerId},
    job::{ClassId, Job, Progress},
    journal::Supervision,
    placement::SchedulerSettings,
    protocol::{Finished, Hello, StopReason},
    provider::{Instance, InstanceState, ProviderCapabilities, ProviderFailure, ProviderHealth, ProviderRecord},
    queue::{QueueRecord, QueueSettings},
    schedule::ScheduleRecord,
    spec::{JobSpec, Priority},
    state::{IllegalEvent, StateKind},
    template::WorkerTemplate,
    time::{Elapsed, Millis, Time},
    token::{Hash, TokenRefused, WorkerToken},
    worker::{Drain, Origin, WorkerInfo, WorkerRecord},
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
    /// An operator gives a waiting job to a worker.
    Assign {
        caller: Caller,
        job: JobId,
        worker: WorkerId,
    },
    /// Gives a blocked job what it waits for.
    Resume {
        caller: Caller,
        job: JobId,
        payload: Arc<[u8]>,
    },
    /// Writes all rows that are behind, for somebody who is about to go by what rows say.
    CatchUp {
        caller: Caller,
    },
    /// Does the same to many jobs; those for which it makes no sense are left as they are. Answered with a count.
    Many {
        caller: Caller,
        jobs: Vec<JobId>,
        what: ManyJobs,
    },
    SetQueue {
        caller: Caller,
        queue: Arc<str>,
        order: QueueOrder,
    },
    SetSchedule {
        caller: Caller,
        schedule: ScheduleId,
        order: ScheduleOrder,
    },
    SetScheduler {
        caller: Caller,
        settings: SchedulerSettings,
    },
    SetProvider {
        caller: Caller,
        provider: Arc<str>,
        order: ProviderOrder,
    },
    SetTemplate {
        caller: Caller,
        template: Arc<str>,
        order: TemplateOrder,
    },
    /// A provider was asked how it is.
    ProviderSeen {
        provider: Arc<str>,
        health: ProviderHealth,
        capabilities: ProviderCapabilities,
    },
    /// All that a provider has of ours. It was asked at `asked`: what was made since then need not be in it.
    ProviderHas {
        provider: Arc<str>,
        instances: Vec<Instance>,
        asked: Elapsed,
    },
    /// What became of [`Effect::Inspect`]: none when its provider has no such worker.
    Inspected {
        worker: WorkerId,
        state: Option<InstanceState>,
    },
    /// What became of [`Effect::Create`].
    Created {
        worker: WorkerId,
        outcome: Result<(), ProviderFailure>,
    },
    /// What became of [`Effect::Destroy`], with the end of what the worker printed where that was asked for.
    Destroyed {
        worker: WorkerId,
        outcome: Result<(), ProviderFailure>,
        output: String,
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
        order: Drain,
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
    /// The worker is something else from now on.
    Describe {
        worker: WorkerId,
        connection: Connection,
        info: Box<WorkerInfo>,
    },
    /// Word of what a worker watches over.
    Supervised {
        worker: WorkerId,
        news: Supervision,
    },
    /// A person wants the processes of a worker's handler started anew.
    RestartHandler {
        caller: Caller,
        worker: WorkerId,
        handler: String,
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
    /// Answers [`Effect::ReadDependents`]: what each waits for, and the jobs that wait for it in the order of their ids.
    Dependents {
        of: Vec<Settling>,
        each: usize,
        jobs: Vec<(JobId, Job)>,
    },
    /// The server leaves in order and wants its workers to go on without it for this long.
    Park {
        lease: Millis,
    },
}

/// What to do to many jobs at once.
#[derive(Clone, Debug)]
pub enum ManyJobs {
    Cancel {
        reason: String,
    },
    /// Out of the dead-letter queue and into line again.
    Replay,
    /// Out of the dead-letter queue.
    Discard,
    /// Out of the database, if they are finished.
    Forget,
}

#[derive(Clone, Debug)]
pub enum QueueOrder {
    Pause,
    Resume,
    Configure(QueueSettings),
}

#[derive(Clone, Debug)]
pub enum ProviderOrder {
    Add(Box<ProviderRecord>),
    /// A new one, or another form of one that is there; its workers stay, and so does whether it is enabled.
    Put(Box<ProviderRecord>),
    Enable,
    Disable,
    /// Its workers are drained; it is gone when they are.
    Remove,
}

#[derive(Clone, Debug)]
pub enum TemplateOrder {
    /// A new one, or another form of one that is there; workers that exist stay as they are.
    Put(Box<WorkerTemplate>),
    Remove,
    /// How many stand ready.
    Warm(u32),
    /// A person wants to see it tried again.
    Restart,
}

#[derive(Clone, Debug)]
pub enum ScheduleOrder {
    /// A new one, or a new spec for an old one; what it has done so far stays.
    Put {
        record: Box<ScheduleRecord>,
        job: ScheduledJob,
    },
    Enable,
    Disable,
    Delete,
    Trigger,
    /// Makes the jobs of these past ticks, in order.
    Backfill {
        ticks: Vec<Time>,
    },
}

/// The job that a schedule makes.
#[derive(Clone, Debug)]
pub struct ScheduledJob {
    pub spec: Arc<JobSpec>,
    pub payload: Arc<[u8]>,
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
    /// Apart, so that inputs that come by the thousand are not as large as this one.
    pub info: Box<WorkerInfo>,
}

#[derive(Clone, Debug)]
pub enum Report {
    Started {
        execution: ExecutionId,
        at: Time,
    },
    Progress {
        execution: ExecutionId,
        progress: Progress,
        data: Option<Arc<[u8]>>,
    },
    /// With the jobs that it wants enqueued.
    Finished(Finished, Vec<NewJob>),
}

impl Report {
    pub fn execution(&self) -> ExecutionId {
        match self {
            Report::Started { execution, .. } | Report::Progress { execution, .. } => *execution,
            Report::Finished(finished, _) => finished.execution,
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
        /// How often it must show that it lives, where its SLA says so.
        heartbeat: Option<Millis>,
    },
    Run {
        worker: WorkerId,
        connection: Connection,
        job: JobId,
        execution: ExecutionId,
        attempt: u32,
        /// What the worker must know besides the payload, if anything.
        more: Option<Box<RunMore>>,
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
        within: Option<Millis>,
    },
    /// The provider is to make this worker. Asked again after a restart of the server: to make one that is there changes
    /// nothing.
    Create {
        worker: WorkerId,
        origin: Box<Origin>,
    },
    /// Is it still there? Its stream broke.
    Inspect {
        worker: WorkerId,
        provider: Arc<str>,
    },
    /// The provider is to remove this worker, and to say before what it printed if `output`. To remove one that is not
    /// there changes nothing.
    Destroy {
        worker: WorkerId,
        provider: Arc<str>,
        output: bool,
    },
    RestartHandler {
        worker: WorkerId,
        connection: Connection,
        handler: String,
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
    /// Pending jobs of a line are wanted from the store, as they were after the batch `follows` of this life or later.
    ReadReady {
        class: ClassId,
        priority: Priority,
        after: Option<u64>,
        limit: usize,
        follows: u64,
    },
    /// Delayed jobs, and pending ones with a deadline, are wanted from the store.
    ReadDue {
        after: Option<(Time, JobId)>,
        limit: usize,
    },
    /// Jobs that depend on these are wanted from the store, in the order of their ids, so many of each.
    ReadDependents {
        of: Vec<Settling>,
        each: usize,
    },
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunMore {
    /// The results of those it depends on.
    pub depends: bool,
    /// Its data, and what resumed it.
    pub has_data: bool,
    /// The name of its schedule, and the tick.
    pub tick: Option<(Arc<str>, Time)>,
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
    /// The job that was handed in by itself, as it was stored: nobody has to read it to show it.
    New(Arc<Job>),
    /// Places in the request of jobs that were there already, and which they are.
    Existed(Vec<(usize, JobId)>),
    Count(u64),
    Queue(Box<QueueRecord>),
    Schedule(Box<ScheduleRecord>),
    /// The job that was made.
    Job(JobId),
    Registered(Box<WorkerRecord>),
    Scheduler(SchedulerSettings),
    Provider(Box<ProviderRecord>),
    Template(Box<WorkerTemplate>),
}

/// Why the brain did not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Refusal {
    #[error("there is no job {0}")]
    NoSuchJob(JobId),
    #[error("there is no worker {0}")]
    NoSuchWorker(WorkerId),
    #[error("worker {0} is not connected")]
    NotConnected(WorkerId),
    #[error("worker {0} has no handler '{1}' with processes of its own")]
    NoSuchHandler(WorkerId, String),
    #[error(transparent)]
    Illegal(#[from] IllegalEvent),
    #[error(transparent)]
    Token(#[from] TokenRefused),
    #[error("the job is not placed: {0}")]
    NotPlaced(String),
    #[error("depends_on: there is no job {0}")]
    NoSuchDependency(JobId),
    #[error("it waits for a job that did not succeed and is no longer kept; submit it anew, without that dependency")]
    DependencyForgotten,
    #[error("depends_on: {0} was there already under its idempotency key; name it by its id")]
    DependsOnExisting(JobId),
    #[error("there is no provider '{0}'")]
    NoSuchProvider(Arc<str>),
    #[error("name: a provider '{0}' exists already; change it with 'hodei provider set {0}', or choose another name")]
    ProviderExists(Arc<str>),
    #[error(
        "the provider '{0}' still has {1} workers where it is now; let them go before it is moved: hodei provider remove {0}"
    )]
    ProviderHasWorkers(Arc<str>, u32),
    #[error("there is no worker template '{0}'")]
    NoSuchTemplate(Arc<str>),
    #[error("there are {0} providers already, which is as many as one server keeps")]
    TooManyProviders(usize),
    #[error("there are {0} worker templates already, which is as many as one server keeps")]
    TooManyTemplates(usize),
    #[error("there is no such schedule")]
    NoSuchSchedule,
    #[error("name: a schedule '{0}' exists already; choose another name or update that one")]
    ScheduleExists(Arc<str>),
    #[error("there are {0} schedules already, which is as many as one server keeps; delete some")]
    TooManySchedules(usize),
    #[error("there are {0} queues already, which is as many as one server keeps; use fewer names")]
    TooManyQueues(usize),
    #[error(
        "the queue '{queue}' is full: {holds} of at most {most} jobs in it have not ended; submit fewer, wait until some have ended, or raise the limit with 'hodei queue set {queue} --max-jobs N'"
    )]
    QueueFull { queue: String, holds: u64, most: u32 },
    #[error("more than {0} different combinations of queue and requirements wait already; use fewer of them")]
    TooManyClasses(usize),
}
