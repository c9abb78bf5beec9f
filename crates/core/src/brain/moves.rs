//! What follows when a job moves from one state to another, whatever moved it: counts, events, dead letters, webhooks, and
//! its schedule, and those that wait for its end.

use super::{Batch, Brain};
use crate::{
    dead_letter::{DeadLetter, Fingerprint},
    id::{DeliveryId, IdMap, JobId},
    journal::{Change, JobStep},
    state::StateKind,
    webhook::Delivery,
};
use std::{collections::BTreeMap, sync::Arc};

#[derive(Debug, Default)]
pub(super) struct Moves {
    pub changes: Vec<Change>,
    /// Where in `changes` a job is.
    jobs: IdMap<JobId, usize>,
    dead: BTreeMap<JobId, DeadLetter>,
    dropped: Vec<(JobId, Fingerprint)>,
    deliveries: Vec<Delivery>,
}

impl Moves {
    pub fn drop_dead_letter(&mut self, job: JobId, fingerprint: Fingerprint) {
        // One that this batch would have made has never been there.
        if self.dead.remove(&job).is_none() {
            self.dropped.push((job, fingerprint));
        }
    }

    fn note(&mut self, job: JobId, step: JobStep) {
        match self.jobs.get(&job).and_then(|place| self.changes.get_mut(*place)) {
            Some(Change::Job { steps, .. }) => steps.push(step),
            _ => {
                self.jobs.insert(job, self.changes.len());
                // Most that come to an end have started in the same commit.
                let mut steps = Vec::with_capacity(2);
                steps.push(step);
                self.changes.push(Change::Job { id: job, steps });
            }
        }
    }
}

impl Brain {
    /// A job is in another state than before, or new.
    pub(super) fn moved(&mut self, id: JobId, before: Option<StateKind>) {
        let Some(entry) = self.jobs.get(&id) else { return };
        let job = &entry.job;
        let (now, state, queue) = (self.now, job.state.kind(), Arc::clone(&job.queue));
        let schedule = job.extra.as_ref().and_then(|extra| extra.schedule);
        if before == Some(state) {
            return;
        }
        self.moves.note(id, JobStep { state, attempt: job.attempt, at: now });
        if let (Some(before), Some(schedule)) = (before, schedule) {
            self.schedule_moved(id, schedule, before, state);
        }
        self.queues.count(&queue, before, Some(state));
        self.note_activity(id, &queue, before.is_some_and(StateKind::is_active), state.is_active());
        if before.is_some_and(StateKind::is_dead) {
            self.revived(id);
        }
        if state.is_finished() {
            self.finished_for_good(id, state);
        }
    }

    fn note_activity(&mut self, id: JobId, queue: &Arc<str>, before: bool, after: bool) {
        if before == after {
            return;
        }
        let key = self.jobs.get(&id).and_then(|entry| entry.job.concurrency()).cloned();
        match after {
            true => self.occupied(queue, key.as_ref()),
            false => self.vacated(queue, key.as_ref()),
        }
    }

    fn finished_for_good(&mut self, id: JobId, state: StateKind) {
        let Some(entry) = self.jobs.get(&id) else { return };
        self.moves.dead.extend(DeadLetter::of(&entry.job).map(|letter| (id, letter)));
        let Some(extra) = &entry.job.extra else { return };
        let (webhook, has_dependents) = (extra.webhook.clone(), extra.has_dependents);
        if let Some(to) = webhook {
            let delivery = DeliveryId(self.make_id());
            self.moves.deliveries.push(Delivery::new(delivery, id, state, to, self.now));
        }
        if has_dependents {
            self.note_end(id);
        }
    }

    /// A job that had failed for good goes on.
    fn revived(&mut self, id: JobId) {
        let Some(entry) = self.jobs.get_mut(&id) else { return };
        let failure = entry.job.last_failure().cloned();
        if let Some(extra) = &mut entry.job_mut().extra {
            extra.rejected = None;
            if std::mem::take(&mut extra.discarded) {
                return;
            }
        }
        let task_type = entry.job.task_type.as_deref();
        let fingerprint = failure.map(|failure| Fingerprint::of(task_type, &failure));
        let fingerprint = fingerprint.unwrap_or_else(|| Fingerprint::never_ran(task_type));
        self.moves.drop_dead_letter(id, fingerprint);
    }

    pub(super) fn take_moves(&mut self, batch: &mut Batch) {
        let moves = &mut self.moves;
        moves.jobs.clear();
        batch.changes = std::mem::take(&mut moves.changes);
        batch.dead_letters = std::mem::take(&mut moves.dead).into_values().collect();
        batch.dropped_dead_letters = std::mem::take(&mut moves.dropped);
        batch.deliveries = std::mem::take(&mut moves.deliveries);
        let written = self.dependencies.take();
        (batch.edges, batch.dropped_edges) = (written.edges, written.dropped_edges);
        (batch.settling, batch.told) = (written.settling, written.told);
        (batch.queues, batch.counts) = self.queues.take();
        (batch.schedules, batch.dropped_schedules) = self.schedules.take();
        self.provisioning.take(batch);
        batch.keys = std::mem::take(&mut self.new_keys);
        batch.forgotten = std::mem::take(&mut self.forgotten);
        self.keys.clear();
    }
}
