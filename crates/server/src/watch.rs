//! Who wants to hear of changes to a job.

use hodei_core::{brain::Batch, id::JobId, job::Job};
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};
use tokio::sync::mpsc;

/// Changes that a watcher may leave unread before it is cut off.
const PATIENCE: usize = 1024;

#[derive(Debug, Default)]
pub struct Watches {
    by_job: Mutex<HashMap<JobId, Vec<mpsc::Sender<Arc<Job>>>>>,
}

impl Watches {
    /// Every durable change of the job from now on. The channel closes when the watcher is too slow.
    pub fn watch(&self, job: JobId) -> mpsc::Receiver<Arc<Job>> {
        let (sender, receiver) = mpsc::channel(PATIENCE);
        self.lock().entry(job).or_default().push(sender);
        receiver
    }

    /// Drops the watchers of a job that have gone away.
    pub fn prune(&self, job: JobId) {
        let mut watches = self.lock();
        if let Some(watchers) = watches.get_mut(&job) {
            watchers.retain(|watcher| !watcher.is_closed());
            if watchers.is_empty() {
                watches.remove(&job);
            }
        }
    }

    /// `placed` finds a job that was given to a worker without a write of its row.
    pub fn publish<'a>(&self, batch: &'a Batch, placed: impl Fn(JobId) -> Option<&'a Job>) {
        let mut watches = self.lock();
        if watches.is_empty() {
            return;
        }
        let placed = batch.placements.iter().filter_map(|placement| placed(placement.job));
        for job in placed.chain(batch.jobs.iter().map(|write| &*write.job)) {
            let Some(watchers) = watches.get_mut(&job.id) else { continue };
            let change = Arc::new(job.clone());
            watchers.retain(|watcher| watcher.try_send(Arc::clone(&change)).is_ok());
            if watchers.is_empty() || job.state.kind().is_finished() {
                watches.remove(&job.id);
            }
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<JobId, Vec<mpsc::Sender<Arc<Job>>>>> {
        self.by_job.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
