//! What an input names and memory does not hold: it is read from the store before the input is applied.

use super::{Brain, Entry, Input, ManyJobs, NewJob, Report, ScheduleOrder, schedules::tick_key};
use crate::{
    id::{IdSet, JobId},
    job::Job,
};
use std::{collections::HashMap, sync::Arc};

/// What must be read before an input can be applied.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Missing {
    pub jobs: Vec<JobId>,
    /// Idempotency keys.
    pub keys: Vec<Arc<str>>,
    /// Jobs of which it must be known whether unfinished ones depend on them.
    pub awaited: Vec<JobId>,
    /// Jobs of which it must be known what they depend on. Those jobs are to be read, too.
    pub dependents: Vec<JobId>,
}

/// What was read, while nothing was on its way to the store.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    pub jobs: Vec<Job>,
    /// Of the keys that were asked for, those that are taken.
    pub keys: HashMap<Arc<str>, JobId>,
    /// Of the jobs that were asked for, those that unfinished ones depend on.
    pub awaited: Vec<JobId>,
    /// Of the jobs that were asked for and are stored, what each depends on, whether or not it is still there.
    pub dependencies: Vec<(JobId, Vec<JobId>)>,
}

impl Missing {
    pub fn is_empty(&self) -> bool {
        self.jobs.is_empty() && self.keys.is_empty() && self.awaited.is_empty() && self.dependents.is_empty()
    }
}

impl Brain {
    /// What `input` names and is not in memory. When this is empty it can be applied at once.
    pub fn missing(&self, input: &Input) -> Missing {
        let mut missing = Missing::default();
        match input {
            Input::Cancel { job, .. } | Input::Resume { job, .. } | Input::Assign { job, .. } => {
                missing.jobs.extend((!self.knows(*job)).then_some(*job));
            }
            Input::Retry { job, .. } => {
                missing.jobs.extend((!self.knows(*job)).then_some(*job));
                let known = self.jobs.get(job).map(|entry| entry.job.waits_if_retried());
                missing.dependents.extend(known.unwrap_or(true).then_some(*job));
            }
            Input::Many { jobs, what, .. } => {
                missing.jobs.extend(jobs.iter().filter(|job| !self.knows(**job)));
                if matches!(what, ManyJobs::Forget) {
                    missing.awaited.extend(jobs);
                }
            }
            Input::Enqueue { jobs, .. } | Input::Report { report: Report::Finished(_, jobs), .. } => {
                self.missing_of(jobs, &mut missing);
            }
            Input::SetSchedule { schedule, order: ScheduleOrder::Backfill { ticks }, .. } => {
                missing.keys.extend(ticks.iter().map(|tick| tick_key(*schedule, *tick)));
            }
            Input::SetSchedule { order: ScheduleOrder::Put { record, .. }, .. } => {
                let live = self.schedules.to_replace(record).iter();
                missing.jobs.extend(live.filter(|job| !self.knows(**job)));
            }
            _ => {}
        }
        missing
    }

    fn missing_of(&self, jobs: &[NewJob], missing: &mut Missing) {
        let linked = |job: &NewJob| !job.spec.depends_on.is_empty() || job.spec.idempotency_key.is_some();
        if !jobs.iter().any(linked) {
            return;
        }
        let new: IdSet<JobId> = jobs.iter().map(|job| job.id).collect();
        let named: IdSet<JobId> = jobs.iter().flat_map(|job| job.spec.depends_on.iter().copied()).collect();
        missing.jobs.extend(named.into_iter().filter(|id| !new.contains(id) && !self.knows(*id)));
        missing.keys.extend(jobs.iter().filter_map(|job| job.spec.idempotency_key.as_deref()).map(Arc::from));
    }

    /// Takes in what was read, until the turn that uses it is durable.
    pub fn learn(&mut self, facts: Facts) {
        // The store still has what this turn has forgotten.
        for job in facts.jobs.into_iter().filter(|job| !self.forgotten.contains(&job.id)) {
            self.leaving.push(job.id);
            self.jobs.entry(job.id).or_insert_with(|| Entry::stored(job));
        }
        self.keys.extend(facts.keys);
        self.dependencies.awaited.extend(facts.awaited);
        self.dependencies.of.extend(facts.dependencies);
    }
}
