//! What a simulation may look at, besides what everybody sees. Nothing here changes anything.

use super::Brain;
use crate::{
    id::{JobId, WorkerId},
    job::Job,
    state::StateKind,
    time::Time,
    worker::{Capacity, Phase},
};

impl Brain {
    /// The brain's own time.
    pub fn time(&self) -> Time {
        self.now
    }

    /// A job as the last input left it, if it is in memory.
    pub fn job(&self, id: JobId) -> Option<&Job> {
        self.jobs.get(&id).map(|entry| &*entry.job)
    }

    pub fn jobs_in_memory(&self) -> usize {
        self.jobs.len()
    }

    /// The jobs in memory whose last change is in a batch up to this one.
    pub fn settled_by(&self, batch: u64) -> impl Iterator<Item = &Job> {
        self.jobs.values().filter(move |entry| entry.batch <= batch).map(|entry| &*entry.job)
    }

    /// Whether something keeps a job in memory once its last change is durable.
    pub fn has_use_for(&self, job: &Job) -> bool {
        self.jobs.get(&job.id).is_some_and(|entry| self.stays(entry)) || self.leaving.contains(&job.id)
    }

    /// Whether every execution that is known belongs to an active job in memory.
    pub fn executions_are_bound(&self) -> bool {
        let active = self.jobs.values().filter(|entry| entry.job.state.kind().is_active());
        active.count() == self.executions.len()
    }

    /// Whether a job that waits for a place or for a time will come up.
    pub fn will_reach(&self, job: &Job) -> bool {
        let kind = job.state.kind();
        let in_line = kind != StateKind::Pending || self.ready.will_reach(job);
        let timer = job.due_at().filter(|_| !kind.is_active());
        in_line && timer.is_none_or(|at| self.timers.will_reach(at, job.id))
    }

    /// The longest part of a line that is in memory, and how many timers are.
    pub fn windows(&self) -> (usize, usize) {
        (self.ready.longest_window(), self.timers.window_len())
    }

    /// Whether a part of a line or of the timers is on its way from the store.
    pub fn is_reading(&self) -> bool {
        !self.reads.none_open()
    }

    pub fn is_connected(&self, worker: WorkerId) -> bool {
        self.fleet.get(worker).is_some_and(|worker| worker.connection.is_some())
    }

    /// Whether a worker would take a job if it had room.
    pub fn takes_jobs(&self, worker: WorkerId) -> bool {
        self.fleet.get(worker).is_some_and(|worker| worker.is_open())
    }

    /// Those who stand in warm pools, and whether they are well: at work for us, and not given up.
    pub fn pooled(&self) -> Vec<(WorkerId, bool)> {
        let is_well = |id: &WorkerId| {
            self.fleet.get(*id).is_some_and(|worker| worker.record.phase == Phase::Active && !worker.lost)
        };
        self.provisioning.pooled().map(|id| (id, is_well(&id))).collect()
    }

    pub fn free_on(&self, worker: WorkerId) -> Option<Capacity> {
        self.fleet.get(worker).map(|worker| worker.view().free)
    }
}
