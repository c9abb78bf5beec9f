//! The rows that one turn of the brain wants written.

use crate::{
    id::JobId,
    job::{Execution, Job},
    state::{Event, Run},
    time::Time,
    token::{Hash, WorkerToken},
    worker::WorkerRecord,
};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// One final row for everything that changed, however often it changed in between.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// Counts the batches of one epoch from 1; with the epoch it makes a repeated commit harmless.
    pub number: u64,
    /// The brain's time. It never runs backwards, not even over a restart.
    pub now: Time,
    pub jobs: Vec<JobWrite>,
    /// Jobs that were given to workers and whose rows are left as they are: most change again within milliseconds.
    pub placements: Vec<Placement>,
    /// Batches whose placements are all in rows by now and need not be kept.
    pub settled: Vec<BatchId>,
    pub workers: Vec<WorkerRecord>,
    pub tokens: Vec<WorkerToken>,
    pub dropped_tokens: Vec<Hash>,
    /// Set when the server leaves in order: no lease given so far may be taken for expired before this time.
    pub parked_until: Option<Time>,
}

#[derive(Clone, Debug)]
pub struct JobWrite {
    pub job: Job,
    /// What the job was submitted as, on its first write only.
    pub payload: Option<Arc<[u8]>>,
    /// What the job left as its result, with the write that ends it.
    pub result: Option<Arc<[u8]>>,
}

/// A pending job went to a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    pub job: JobId,
    pub run: Run,
    pub at: Time,
}

impl Placement {
    /// Brings the job up to date, and says whether its row was behind.
    pub fn apply(&self, job: &mut Job) -> bool {
        let is_behind = job.executions.last().is_none_or(|last| last.id < self.run.execution);
        let Some(state) = is_behind.then(|| job.state.next(&Event::Assign(self.run), self.at).ok()).flatten() else {
            return false;
        };
        job.state = state;
        job.attempt += 1;
        job.begin(Execution::new(self.run, job.attempt, self.at));
        true
    }
}

/// Names a batch for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
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
    }
}
