//! Jobs that wait for others, that wait for a word, that come from others, or that are asked for twice.

use super::{Ledger, Rule, World, broken};
use crate::world::{job_name, run_name};
use hodei_core::{
    brain::{NewJob, Refusal},
    id::{ExecutionId, JobId},
    job::{Execution, Job},
    protocol::Finished,
    spec::OnDependencyFailure,
    state::{Outcome, StateKind},
};
use std::collections::{BTreeSet, HashMap, HashSet};

/// What ties jobs to each other and to people, as far as those know who made the ties.
#[derive(Default)]
pub(super) struct Ties {
    depends: HashMap<JobId, (Vec<JobId>, OnDependencyFailure)>,
    /// Jobs that have ended at some time.
    ended: HashSet<JobId>,
    /// Blocked jobs that were resumed, with the number of executions that they had.
    resumed: BTreeSet<(JobId, usize)>,
    /// Jobs that somebody wanted run at once.
    hurried: HashSet<JobId>,
    keys: HashMap<String, JobId>,
    /// How many jobs a run wants enqueued with its end.
    children: HashMap<ExecutionId, usize>,
}

impl Ties {
    /// What was not durable never happened: these jobs are blocked.
    pub fn restart(&mut self, blocked: &BTreeSet<JobId>) {
        self.resumed.retain(|(job, _)| !blocked.contains(job));
    }

    pub fn has_ended(&mut self, job: JobId) {
        self.ended.insert(job);
    }

    pub fn was_hurried(&self, job: JobId) -> bool {
        self.hurried.contains(&job)
    }

    pub fn declares(&mut self, finished: &Finished) {
        if !finished.children.is_empty() {
            self.children.insert(finished.execution, finished.children.len());
        }
    }
}

impl Ledger {
    pub fn linked(&mut self, job: &NewJob) {
        if !job.spec.depends_on.is_empty() {
            self.ties.depends.insert(job.id, (job.spec.depends_on.clone(), job.spec.on_dependency_failure));
        }
    }

    pub fn resumed(&mut self, job: JobId, executions: usize) {
        self.ties.resumed.insert((job, executions));
    }

    pub fn hurried(&mut self, job: JobId) {
        self.ties.hurried.insert(job);
    }

    fn kind(&self, job: JobId) -> Option<StateKind> {
        self.truth.get(&job).map(|job| job.state.kind()).or(self.gone.get(&job).copied())
    }

    /// One of the jobs that have ended and that may be deleted. A key that is free again may be used again: nothing that
    /// has one is deleted here.
    pub fn disposable(&self, pick: usize) -> Option<JobId> {
        let keyed: HashSet<JobId> = self.ties.keys.values().copied().collect();
        let ended = |job: &&JobId| self.truth.get(job).is_some_and(|job| job.state.kind().is_finished());
        let all: Vec<&JobId> = self.acknowledged.iter().filter(ended).filter(|job| !keyed.contains(job)).collect();
        // Rather those that others depend on.
        let needed: HashSet<&JobId> = self.ties.depends.values().flat_map(|(before, _)| before).collect();
        let (mut choice, others): (Vec<&JobId>, Vec<&JobId>) = all.into_iter().partition(|job| needed.contains(job));
        choice.extend(others.into_iter().take(choice.len().max(1)));
        choice.get(pick % choice.len().max(1)).map(|job| **job)
    }

    pub fn dependents_of(&self, job: JobId) -> Vec<JobId> {
        let depends = |id: &&JobId| self.ties.depends.get(id).is_some_and(|(before, _)| before.contains(&job));
        self.acknowledged.iter().filter(depends).copied().collect()
    }

    /// The first of those that this job depends on that cannot have been done when it was told of their ends: one that
    /// had failed may have been retried since.
    fn not_done(&self, job: JobId) -> Option<JobId> {
        let (before, policy) = self.ties.depends.get(&job)?;
        let may_be_done = |id: &JobId| {
            self.kind(*id) == Some(StateKind::Succeeded)
                || (*policy == OnDependencyFailure::Run && self.ties.ended.contains(id))
        };
        before.iter().find(|id| !may_be_done(id)).copied()
    }

    /// Whether all that this job depends on is done, beyond doubt.
    fn all_done(&self, job: JobId) -> bool {
        let Some((before, policy)) = self.ties.depends.get(&job) else { return true };
        let is_done = |kind: StateKind| match policy {
            OnDependencyFailure::Run => kind.is_finished(),
            _ => kind == StateKind::Succeeded,
        };
        before.iter().all(|id| self.kind(*id).is_some_and(is_done))
    }

    /// One of those that it depends on has ended without success.
    fn failed_before(&self, job: JobId) -> Option<JobId> {
        let failed =
            |id: &&JobId| self.kind(**id).is_some_and(|kind| kind.is_finished() && kind != StateKind::Succeeded);
        self.ties.depends.get(&job)?.0.iter().find(failed).copied()
    }

    /// Whether a waiting job waits for one that will not succeed unless somebody does something.
    pub(super) fn waits_in_vain(&self, job: JobId) -> bool {
        self.failed_before(job).is_some()
    }
}

impl World {
    /// What must hold of a job that is in another state than before, when all of the turn is known.
    pub(super) fn check_move(&self, before: Option<&Job>, job: &Job) {
        self.check_delay(before, job);
        let (old, new) = (before.map(|before| before.state.kind()), job.state.kind());
        let begins = matches!(old, None | Some(StateKind::Waiting | StateKind::Cancelled));
        if begins
            && !matches!(new, StateKind::Waiting | StateKind::Cancelled)
            && let Some(open) = self.ledger.not_done(job.id)
        {
            let message = format!("it is {} before {} is done", new.name(), job_name(open));
            broken(Rule::DependenciesHold, job.id, message);
        }
        let known = before.map_or(0, |before| before.executions.len());
        for (n, pair) in job.executions.windows(2).enumerate().skip(known.saturating_sub(1)) {
            self.check_resumed(job, n + 1, &pair[0]);
        }
    }

    /// After a run that blocked comes another only when somebody resumed the job, or cancelled and retried it.
    fn check_resumed(&self, job: &Job, executions: usize, last: &Execution) {
        let blocked = matches!(last.outcome, Some(Outcome::Blocked { .. }));
        let free = self.ledger.ties.resumed.contains(&(job.id, executions)) || self.ledger.eras.contains_key(&job.id);
        if blocked && !free {
            let message = format!("{} blocked, and it runs again although nobody resumed it", run_name(last.id));
            broken(Rule::BlockedUntilResumed, job.id, message);
        }
    }

    /// A job whose dependencies are done is not left waiting, and one that cannot go on is cancelled.
    pub(super) fn check_waiting(&self) {
        if self.server.brain.as_ref().is_none_or(|brain| brain.is_reading()) {
            return;
        }
        for job in &self.ledger.waiting {
            if self.ledger.all_done(*job) {
                broken(Rule::DependenciesHold, *job, "it waits although all that it depends on is done");
            }
            let policy = self.ledger.ties.depends.get(job).map(|(_, policy)| *policy);
            if policy == Some(OnDependencyFailure::Cancel)
                && !self.ledger.eras.contains_key(job)
                && let Some(failed) = self.ledger.failed_before(*job)
            {
                broken(Rule::DependenciesHold, *job, format!("it waits although {} has failed", job_name(failed)));
            }
        }
    }

    /// Nobody waits for what was deleted, unless it had done what it was to do.
    pub(super) fn check_deleted(&self) {
        if self.ledger.gone.is_empty() {
            return;
        }
        for job in &self.ledger.waiting {
            let Some((before, OnDependencyFailure::Cancel | OnDependencyFailure::Wait)) =
                self.ledger.ties.depends.get(job)
            else {
                continue;
            };
            let lost = |id: &&JobId| self.ledger.gone.get(id).is_some_and(|kind| *kind != StateKind::Succeeded);
            if let Some(lost) = before.iter().find(lost) {
                broken(Rule::DependenciesHold, *job, format!("it waits for {}, which was deleted", job_name(*lost)));
            }
        }
    }

    /// Jobs that a run wants enqueued come with its end, or not at all.
    pub(super) fn check_children(&self, moved: &[(Option<Job>, &Job)]) {
        let mut found: HashMap<&str, usize> = HashMap::new();
        for (_, job) in moved.iter().filter(|(before, _)| before.is_none()) {
            if let Some(extra) = job.extra.as_ref().filter(|extra| extra.parent.is_some()) {
                extra.tags.iter().for_each(|tag| *found.entry(tag).or_default() += 1);
            }
        }
        for (before, job) in moved {
            let open = |execution: &&Execution| {
                let old = before.as_ref().and_then(|old| old.executions.iter().find(|old| old.id == execution.id));
                old.is_none_or(|old| old.outcome.is_none())
            };
            for execution in job.executions.iter().filter(|execution| execution.outcome.is_some()).filter(open) {
                let with = matches!(
                    execution.outcome,
                    Some(Outcome::Succeeded | Outcome::Snoozed { .. } | Outcome::Blocked { .. })
                );
                let declared = self.ledger.ties.children.get(&execution.id).copied().unwrap_or(0);
                let wanted = if with { declared } else { 0 };
                let made = found.remove(run_name(execution.id).as_str()).unwrap_or(0);
                if wanted != made {
                    let message = format!("{} wanted {wanted} jobs, and {made} were made", run_name(execution.id));
                    broken(Rule::ChildrenComeWithTheirParent, job.id, message);
                }
            }
        }
        if let Some((run, made)) = found.into_iter().next() {
            let message = format!("{made} jobs of {run} were made, whose end was not accepted");
            broken(Rule::ChildrenComeWithTheirParent, (), message);
        }
    }

    pub(in crate::world) fn check_one_job(&mut self, key: &str, job: JobId) {
        let first = *self.ledger.ties.keys.entry(key.to_owned()).or_insert(job);
        if first != job {
            broken(Rule::OneJobPerKey, job, format!("{} has its idempotency key, too", job_name(first)));
        }
    }

    /// Nothing that people enqueue here can be refused, unless it depends on what was deleted.
    pub(in crate::world) fn check_refusal(&self, refusal: &Refusal) {
        if let Refusal::NoSuchDependency(job) = refusal
            && self.ledger.gone.contains_key(job)
        {
            return;
        }
        broken(Rule::NothingAcknowledgedIsLost, (), format!("jobs were refused: {refusal}"));
    }
}
