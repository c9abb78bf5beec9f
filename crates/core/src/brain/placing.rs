//! Which job goes to which worker, which go to none, and why.

use super::*;
use crate::{
    placement::{Choice, Decision, FleetPolicy},
    spec::JobSpec,
};

/// Histories are worth a write this often.
const HISTORIES_EVERY: Millis = Millis::seconds(10);

impl Brain {
    /// Gives ready jobs to free workers, best first. A class that fits nowhere is passed over and hides no other.
    pub(super) fn place(&mut self) {
        let mut passed = None;
        while self.fleet.any_free()
            && let Some(head) = self.ready.head_after(passed)
        {
            if self.held_back(&head) {
                continue;
            }
            // What comes next is still in the store; to go on with less would break the order.
            let Some(id) = head.job else { break };
            let worker = self.jobs.get(&id).and_then(|Entry { job, .. }| self.fleet.pick(&Needs::of(job)));
            match worker {
                Some(worker) if self.assign(id, worker) => {}
                _ => {
                    self.ready.pass(head.class);
                    passed = Some(head);
                }
            }
        }
    }

    fn assign(&mut self, id: JobId, worker: WorkerId) -> bool {
        let execution = ExecutionId(self.make_id());
        if let Some(entry) = self.jobs.get_mut(&id)
            && (entry.job.attempt == 0 || !planted(Defect::RetryNotCounted))
        {
            entry.job_mut().attempt += 1;
        }
        let bound = self.step(id, &Event::Assign(Run { execution, worker }));
        debug_assert!(bound.is_ok(), "{bound:?}");
        let Some(entry) = self.jobs.get_mut(&id).filter(|_| bound.is_ok()) else { return false };
        let (attempt, needs) = (entry.job.attempt, entry.job.requirements.clone());
        entry.job_mut().begin(Execution::new(Run { execution, worker }, attempt, self.now));
        self.executions.insert(execution, id);
        self.fleet.give(worker, execution, &needs);
        self.note_taken(worker, execution);
        self.send_run(id);
        true
    }

    /// Gives a waiting job to the worker that an operator chose, ahead of those before it in line. What it asks of a worker
    /// and the limits of its queue and key hold as ever.
    pub(super) fn assign_by_hand(&mut self, id: JobId, worker: WorkerId) -> Result<Answer, Refusal> {
        let job = &self.entry(id)?.job;
        let execution = ExecutionId(Uuid::nil());
        job.state.next(&Event::Assign(Run { execution, worker }), self.now)?;
        if let Some(held) = self.why_held(&job.queue, job.concurrency()) {
            return Err(Refusal::NotPlaced(held));
        }
        let target = self.fleet.get(worker).ok_or(Refusal::NoSuchWorker(worker))?;
        if let Err(dropped) = target.fate(&Needs::of(job), 0) {
            return Err(Refusal::NotPlaced(format!("worker {worker}: {}", dropped.why)));
        }
        self.assign(id, worker);
        self.state_of(id)
    }

    // ---- rejections ---------------------------------------------------------------------------------------------

    /// In a closed fleet: fails those that nothing can run, as far as they may not have been looked at before. True if
    /// there were any.
    pub(super) fn reject_hopeless(&mut self) -> bool {
        let recheck = std::mem::take(&mut self.recheck);
        if self.scheduler().fleet == FleetPolicy::Open {
            return false;
        }
        let mut rejected = false;
        let mut classes: Vec<ClassId> =
            if recheck { self.ready.all().collect() } else { std::mem::take(&mut self.touched) };
        classes.sort_unstable();
        classes.dedup();
        for class in &classes {
            while let Some(id) = self.ready.head_of(*class).and_then(|head| head.job)
                && self.is_hopeless(id)
            {
                self.reject(id, Failure::new(FailureKind::Rejected, self.why_hopeless(id)));
                rejected = true;
            }
        }
        self.touched.extend(classes);
        rejected
    }

    fn is_hopeless(&mut self, id: JobId) -> bool {
        let Some(entry) = self.jobs.get(&id) else { return false };
        let needs = Needs::of(&entry.job);
        if planted(Defect::RejectedWhenBusy) {
            return self.fleet.pick(&needs).is_none();
        }
        !self.fleet.could_run(&needs) && !self.could_ever_provision(&needs)
    }

    fn why_hopeless(&self, id: JobId) -> String {
        let why = self.jobs.get(&id).map(|entry| self.fleet.why_wait(&Needs::of(&entry.job)));
        format!("the fleet is closed and {}", why.unwrap_or_default())
    }

    /// Fails a waiting job that no worker will be given.
    pub(super) fn reject(&mut self, id: JobId, failure: Failure) {
        let Some(entry) = self.jobs.get_mut(&id).filter(|entry| entry.job.state.kind() == StateKind::Pending) else {
            return;
        };
        entry.job_mut().extra_mut().rejected = Some(failure);
        self.fire(id, &Event::Reject);
    }

    // ---- decisions ----------------------------------------------------------------------------------------------

    /// What would become of such a job now, if it were the first in line.
    pub fn decide(&self, spec: &JobSpec) -> Decision {
        let held = self.why_held(&spec.queue, spec.concurrency.as_ref());
        self.decide_for(&Needs::of_spec(spec), held)
    }

    /// What became of a job that exists, or will: where it runs, or why it waits.
    pub fn decision_on(&self, job: &Job) -> Decision {
        let held = match &job.state {
            State::Pending { .. } => self.why_held(&job.queue, job.concurrency()),
            State::Delayed { .. } | State::Waiting { .. } | State::Blocked { .. } => Some(self.waiting_reason(job)),
            _ => None,
        };
        let decision = self.decide_for(&Needs::of(job), held);
        let given_to = job.executions.last().map(|execution| execution.worker);
        let (choice, reason) = match (&job.state, given_to) {
            (State::Pending { .. } | State::Delayed { .. } | State::Waiting { .. } | State::Blocked { .. }, _) => {
                return decision;
            }
            (State::Scheduled { run, .. } | State::Running { run, .. }, _) => {
                (Choice::Assign(run.worker), "it was given to this worker".to_owned())
            }
            (state, Some(worker)) => (Choice::Assign(worker), format!("it ran here and is {}", state.kind().name())),
            (_, None) => match job.rejected() {
                Some(failure) => (Choice::Reject, failure.message.clone()),
                None => (Choice::Enqueue, format!("it was never given to a worker and is {}", job.state.kind().name())),
            },
        };
        Decision { choice, reason, ..decision }
    }

    fn decide_for(&self, needs: &Needs, held: Option<String>) -> Decision {
        let (best, workers) = self.fleet.consider(needs);
        let strategy = self.scheduler().strategy;
        let (choice, reason) = match (held, best) {
            (Some(held), _) => (Choice::Enqueue, held),
            (None, Some(worker)) => (Choice::Assign(worker), format!("it is the best by {}", strategy.name())),
            (None, None) => self.without_worker(needs),
        };
        Decision { choice, reason, workers, strategy }
    }

    fn without_worker(&self, needs: &Needs) -> (Choice, String) {
        let why = self.fleet.why_wait(needs);
        let closed = self.scheduler().fleet == FleetPolicy::Closed;
        match self.could_provision(needs) {
            Ok((provider, template)) => {
                let reason = format!("{why}; {provider} makes one from the template {template}");
                (Choice::Provision { provider, template }, reason)
            }
            Err(_) if closed && !self.fleet.can_run(needs) && !self.could_ever_provision(needs) => {
                (Choice::Reject, format!("the fleet is closed and {why}"))
            }
            Err(_) => (Choice::Enqueue, self.why_unplaced(needs)),
        }
    }

    /// Why such a job has no worker, and why none is made for it.
    pub(super) fn why_unplaced(&self, needs: &Needs) -> String {
        let why = self.fleet.why_wait(needs);
        match self.why_unmade(needs) {
            Some(unmade) => format!("{why}, and none is made: {unmade}"),
            None => why,
        }
    }

    /// Workers that could take a job now; such a job, if one is given.
    pub fn available(&self, spec: Option<&JobSpec>) -> Vec<WorkerView> {
        let threshold = self.scheduler().threshold;
        let takes = |worker: &&fleet::Worker| match spec {
            Some(spec) => worker.fate(&Needs::of_spec(spec), threshold).is_ok(),
            None => worker.room().is_some(),
        };
        self.fleet.iter().filter(takes).map(fleet::Worker::view).collect()
    }

    // ---- histories ----------------------------------------------------------------------------------------------

    /// Counts how a job ended for the worker that ran it, unless it says nothing of the worker.
    pub(super) fn note_history(&mut self, id: JobId, outcome: &Outcome) {
        let success = match outcome {
            Outcome::Succeeded => true,
            Outcome::Failed(failure) if failure.kind != FailureKind::WorkerLost => false,
            _ => return,
        };
        let Some(Entry { job, .. }) = self.jobs.get(&id) else { return };
        let (Some(run), task_type) = (job.state.run().copied(), job.task_type.clone()) else { return };
        self.fleet.remember(run.worker, task_type.as_ref(), success);
        self.changed_histories.insert(run.worker);
    }

    pub(super) fn write_histories(&mut self) {
        if self.elapsed < self.write_histories_at || self.changed_histories.is_empty() {
            return;
        }
        self.write_histories_at = self.elapsed + HISTORIES_EVERY;
        self.dirty_workers.append(&mut self.changed_histories);
    }
}
