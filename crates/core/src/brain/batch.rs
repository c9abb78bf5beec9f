//! The rows that one turn of the brain wants written.

use crate::{
    bytes,
    dead_letter::{DeadLetter, Fingerprint},
    id::{JobId, ScheduleId},
    job::{Execution, Job},
    journal::Change,
    placement::SchedulerSettings,
    provider::ProviderRecord,
    queue::QueueRecord,
    schedule::ScheduleRecord,
    spec::JobSpec,
    state::{Event, Run, State, StateKind},
    template::WorkerTemplate,
    time::Time,
    token::{Hash, WorkerToken},
    webhook::Delivery,
    worker::WorkerRecord,
};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// One final row for everything that changed, however often it changed in between.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Batch {
    /// Counts the batches of one epoch from 1; with the epoch it makes a repeated commit harmless.
    pub number: u64,
    /// The brain's time. It never runs backwards, not even over a restart.
    pub now: Time,
    /// Left out where a batch is written as a whole: stores have a form of their own for jobs.
    #[serde(skip)]
    pub jobs: Vec<JobWrite>,
    /// Jobs that went on and whose rows are left as they are: most change again within milliseconds.
    pub placements: Vec<Placement>,
    /// Batches whose placements are all in rows by now and need not be kept.
    pub settled: Vec<BatchId>,
    pub workers: Vec<WorkerRecord>,
    pub tokens: Vec<WorkerToken>,
    pub dropped_tokens: Vec<Hash>,
    /// Set when the server leaves in order: no lease given so far may be taken for expired before this time.
    pub parked_until: Option<Time>,
    /// Who waits for whom, of jobs that are new in this batch.
    pub edges: Vec<Edge>,
    /// Edges along which nothing will be told any more.
    pub dropped_edges: Vec<Edge>,
    /// Jobs whose end has been told to only some of those that wait for it.
    pub settling: Vec<Settling>,
    /// Jobs whose end has been told to all.
    pub told: Vec<JobId>,
    /// Idempotency keys of jobs that are new in this batch.
    pub keys: Vec<(Arc<str>, JobId)>,
    pub queues: Vec<QueueRecord>,
    pub scheduler: Option<SchedulerSettings>,
    pub providers: Vec<ProviderRecord>,
    pub dropped_providers: Vec<Arc<str>>,
    pub templates: Vec<WorkerTemplate>,
    pub dropped_templates: Vec<Arc<str>>,
    /// By how much the numbers of jobs have changed.
    pub counts: Vec<(Arc<str>, StateKind, i64)>,
    pub schedules: Vec<ScheduleWrite>,
    pub dropped_schedules: Vec<ScheduleId>,
    pub dead_letters: Vec<DeadLetter>,
    /// Jobs that are not in the dead-letter queue any more, with the groups they were in.
    pub dropped_dead_letters: Vec<(JobId, Fingerprint)>,
    pub deliveries: Vec<Delivery>,
    /// Jobs that are forgotten, with everything that belongs to them.
    pub forgotten: Vec<JobId>,
    /// What event streams tell of this batch.
    pub changes: Vec<Change>,
}

/// `dependent` waits for `dependency`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Edge {
    pub dependency: JobId,
    pub dependent: JobId,
}

/// The end of `job` has been told to those that wait for it up to `told`, in the order of their ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settling {
    pub job: JobId,
    pub told: Option<JobId>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ScheduleWrite {
    pub record: ScheduleRecord,
    /// What the jobs are submitted as that it makes, when that is new.
    #[serde(with = "bytes::optional")]
    pub payload: Option<Arc<[u8]>>,
    /// The same as it is understood. Stores keep the payload alone, of which it can be made again.
    #[serde(skip)]
    pub spec: Option<Arc<JobSpec>>,
}

#[derive(Clone, Debug)]
pub struct JobWrite {
    /// Shared with the brain until one of them changes it.
    pub job: Arc<Job>,
    /// What the job was submitted as, on its first write only.
    pub payload: Option<Arc<[u8]>>,
    /// What the job left as its result, with the write that ends it.
    pub result: Option<Arc<[u8]>>,
    /// What took the place of its data.
    pub data: Option<Arc<[u8]>>,
    /// What resumed it.
    pub input: Option<Arc<[u8]>>,
}

/// A job went on and its row does not say so: it got a place in line because nothing it waited for is left, or a worker, or both.
/// The latest of a job says it all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    pub job: JobId,
    /// With which worker, if it has one.
    pub run: Option<Run>,
    pub at: Time,
    /// Its place in line, if its row still waits for others.
    #[serde(default)]
    pub released_to: Option<u64>,
}

impl Placement {
    /// Brings the job up to date, and says whether its row was behind.
    pub fn apply(&self, job: &mut Job) -> bool {
        let Some(state) = self.is_ahead_of(job).then(|| self.next(&job.state)).flatten() else { return false };
        if let Some(seq) = self.released_to {
            job.extra_mut().waiting_on = 0;
            job.seq = seq;
        }
        job.state = state;
        if let Some(run) = self.run {
            job.attempt += 1;
            job.begin(Execution::new(run, job.attempt, self.at));
        }
        true
    }

    /// Places in line and executions are given in a rising order, so a row tells whether it was written later.
    fn is_ahead_of(&self, job: &Job) -> bool {
        match self.run {
            Some(run) => job.executions.last().is_none_or(|last| last.id < run.execution),
            None => self.released_to.is_some_and(|seq| job.seq < seq),
        }
    }

    fn next(&self, state: &State) -> Option<State> {
        let released = self.released_to.map(|_| Event::Satisfied(None));
        let mut events = released.into_iter().chain(self.run.map(Event::Assign));
        events.try_fold(state.clone(), |state, event| state.next(&event, self.at).ok())
    }
}

/// Names a batch for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct BatchId {
    pub epoch: u64,
    pub number: u64,
}

impl Batch {
    pub fn is_empty(&self) -> bool {
        self.jobs.is_empty()
            && self.placements.is_empty()
            && self.settled.is_empty()
            && self.workers.is_empty()
            && self.tokens.is_empty()
            && self.dropped_tokens.is_empty()
            && self.parked_until.is_none()
            && self.edges.is_empty()
            && self.dropped_edges.is_empty()
            && self.settling.is_empty()
            && self.told.is_empty()
            && self.keys.is_empty()
            && self.queues.is_empty()
            && self.scheduler.is_none()
            && self.providers.is_empty()
            && self.dropped_providers.is_empty()
            && self.templates.is_empty()
            && self.dropped_templates.is_empty()
            && self.counts.is_empty()
            && self.schedules.is_empty()
            && self.dropped_schedules.is_empty()
            && self.dead_letters.is_empty()
            && self.dropped_dead_letters.is_empty()
            && self.deliveries.is_empty()
            && self.forgotten.is_empty()
            && self.changes.is_empty()
    }
}
