//! A job as the brain and the store know it: everything that decides, without its payload.

use crate::{
    id::{ExecutionId, JobId, ScheduleId, WorkerId},
    requirements::Requirements,
    retry::RetryPolicy,
    spec::{Concurrency, JobSpec, OnDependencyFailure, Priority, Timeouts, Webhook},
    state::{Failure, Outcome, Run, State},
    time::Time,
};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// How many ended executions a job remembers; older ones give way to newer ones.
const HISTORY: usize = 50;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    pub id: JobId,
    pub name: Arc<str>,
    pub queue: Arc<str>,
    pub priority: Priority,
    pub requirements: Requirements,
    pub retry: RetryPolicy,
    pub timeouts: Timeouts,
    pub state: State,
    /// Its place in line: smaller goes first inside one priority.
    pub seq: u64,
    /// Runs so far that count against `retry.max_attempts`.
    pub attempt: u32,
    /// Workers that were lost while they held it.
    pub losses: u32,
    pub created_at: Time,
    /// The executions so far, the current one last.
    pub executions: Vec<Execution>,
    /// The type of its task, if that is what it runs: only workers that declare it are asked.
    #[serde(default)]
    pub task_type: Option<Arc<str>>,
    #[serde(default)]
    pub extra: Option<Box<Extra>>,
}

/// What most jobs have nothing of.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Extra {
    pub tags: Vec<Arc<str>>,
    /// The job that made it.
    pub parent: Option<JobId>,
    pub schedule: Option<ScheduleId>,
    /// Which tick of the schedule it is for.
    pub tick: Option<Time>,
    pub concurrency: Option<Concurrency>,
    pub webhook: Option<Webhook>,
    pub key: Option<Arc<str>>,
    /// It depends on others, whose results it may read. Which ones is in its payload and in the edges.
    pub depends: bool,
    /// How many of them have not succeeded yet.
    pub waiting_on: u32,
    pub on_dependency_failure: OnDependencyFailure,
    /// Not before this time, even when all it depends on has succeeded.
    pub not_before: Option<Time>,
    /// Others depend on it.
    pub has_dependents: bool,
    /// Its data was rewritten, or something resumed it: the store has more of it than its payload.
    pub has_data: bool,
    /// It failed for good and was taken out of the dead-letter queue.
    pub discarded: bool,
    /// Why it failed without having been given to a worker.
    pub rejected: Option<Failure>,
}

/// One attempt at a job on one worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Execution {
    pub id: ExecutionId,
    pub worker: WorkerId,
    pub attempt: u32,
    pub assigned_at: Time,
    pub started_at: Option<Time>,
    pub finished_at: Option<Time>,
    pub outcome: Option<Outcome>,
    pub progress: Option<Progress>,
    /// How many log entries it printed; known once it ended.
    pub log_entries: u64,
}

impl Execution {
    pub(crate) fn new(run: Run, attempt: u32, now: Time) -> Self {
        Self {
            id: run.execution,
            worker: run.worker,
            attempt,
            assigned_at: now,
            started_at: None,
            finished_at: None,
            outcome: None,
            progress: None,
            log_entries: 0,
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// Hundredths of a percent, so that it compares exactly.
    pub basis_points: u16,
    pub message: String,
}

/// The texts of the last job that was made: jobs that come together often have them in common.
#[derive(Debug, Default)]
pub(crate) struct Texts {
    name: Option<Arc<str>>,
    queue: Option<Arc<str>>,
    task_type: Option<Arc<str>>,
}

impl Texts {
    fn shared(last: &mut Option<Arc<str>>, text: &str) -> Arc<str> {
        match last {
            Some(last) if **last == *text => Arc::clone(last),
            _ => Arc::clone(last.insert(text.into())),
        }
    }
}

impl Job {
    pub fn new(id: JobId, spec: &JobSpec, state: State, seq: u64, now: Time) -> Self {
        Self::with_texts(&mut Texts::default(), id, spec, state, seq, now)
    }

    pub(crate) fn with_texts(texts: &mut Texts, id: JobId, spec: &JobSpec, state: State, seq: u64, now: Time) -> Self {
        Self {
            id,
            name: Texts::shared(&mut texts.name, &spec.name),
            queue: Texts::shared(&mut texts.queue, &spec.queue),
            task_type: spec.work.task_type().map(|text| Texts::shared(&mut texts.task_type, text)),
            priority: spec.priority,
            requirements: spec.requirements.clone(),
            retry: spec.retry.clone(),
            timeouts: spec.timeouts,
            state,
            seq,
            attempt: 0,
            losses: 0,
            created_at: now,
            executions: Vec::new(),
            extra: Extra::of(spec).map(Box::new),
        }
    }

    /// What it has that most jobs have not, to be changed.
    pub fn extra_mut(&mut self) -> &mut Extra {
        self.extra.get_or_insert_default()
    }

    pub fn concurrency(&self) -> Option<&Concurrency> {
        self.extra.as_ref()?.concurrency.as_ref()
    }

    /// Whether it has ended and would wait for others if somebody retried it.
    pub fn waits_if_retried(&self) -> bool {
        self.state.kind().is_finished() && self.extra.as_ref().is_some_and(|extra| extra.waiting_on > 0)
    }

    /// When something must happen to this job by itself, if ever.
    pub fn due_at(&self) -> Option<Time> {
        match &self.state {
            State::Delayed { until, .. } => Some(*until),
            State::Pending { since } => self.timeouts.queue.map(|limit| *since + limit),
            State::Running { since, .. } => self.timeouts.run.map(|limit| *since + limit),
            _ => None,
        }
    }

    /// The kind of place this job needs. Jobs of one class fit the same workers.
    pub fn class(&self) -> ClassId {
        ClassId::of(&self.queue, self.task_type.as_deref(), &self.requirements, self.concurrency())
    }

    pub fn current(&self) -> Option<&Execution> {
        self.state.run().and_then(|_| self.executions.last())
    }

    pub(crate) fn current_mut(&mut self) -> Option<&mut Execution> {
        self.state.run()?;
        self.executions.last_mut()
    }

    /// Why it failed without having been given to a worker.
    pub fn rejected(&self) -> Option<&Failure> {
        self.extra.as_ref()?.rejected.as_ref()
    }

    /// Why the last attempt failed, if it did, or there was none.
    pub fn last_failure(&self) -> Option<&Failure> {
        self.rejected().or_else(|| self.last_failed_attempt())
    }

    fn last_failed_attempt(&self) -> Option<&Failure> {
        self.executions.iter().rev().find_map(|execution| match &execution.outcome {
            Some(Outcome::Failed(failure)) => Some(failure),
            _ => None,
        })
    }

    pub fn started_at(&self) -> Option<Time> {
        self.executions.last().and_then(|execution| execution.started_at)
    }

    pub(crate) fn begin(&mut self, execution: Execution) {
        if self.executions.len() >= HISTORY {
            self.executions.remove(0);
        }
        self.executions.push(execution);
    }
}

impl Extra {
    fn of(spec: &JobSpec) -> Option<Self> {
        let extra = Self {
            tags: spec.tags.iter().map(|tag| tag.as_str().into()).collect(),
            concurrency: spec.concurrency.clone(),
            webhook: spec.webhook.clone(),
            key: spec.idempotency_key.as_deref().map(Into::into),
            depends: !spec.depends_on.is_empty(),
            on_dependency_failure: spec.on_dependency_failure,
            not_before: spec.run_at.filter(|_| !spec.depends_on.is_empty()),
            ..Self::default()
        };
        (extra != Self::default()).then_some(extra)
    }
}

/// A stable number for (queue, task type, requirements, concurrency), the same on every server and after every restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ClassId(pub i64);

impl ClassId {
    /// Should two keys ever get one number, their jobs share a line; each is still placed by its own needs.
    pub fn of(
        queue: &str,
        task_type: Option<&str>,
        requirements: &Requirements,
        concurrency: Option<&Concurrency>,
    ) -> Self {
        let mut hash = Fnv::default();
        hash.write(queue.as_bytes());
        hash.write(&[0]);
        requirements.write_key(&mut hash);
        hash.write(task_type.unwrap_or_default().as_bytes());
        if let Some(Concurrency { key, limit }) = concurrency {
            hash.write(&[0]);
            hash.write(key.as_bytes());
            hash.write(&limit.to_le_bytes());
        }
        Self(hash.number())
    }
}

/// FNV-1a, for numbers that go into databases.
pub(crate) struct Fnv(u64);

impl Default for Fnv {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Fnv {
    pub fn write(&mut self, bytes: &[u8]) {
        let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        self.0 = bytes.iter().fold(self.0, step);
    }

    pub fn number(self) -> i64 {
        self.0 as i64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// These numbers are in databases: a change of the hash would hide every waiting job.
    #[test]
    fn class_numbers_never_change() {
        let none = Requirements::default();
        assert_eq!(ClassId::of("default", None, &none, None).0, 8_885_092_610_290_255_130);
        assert_ne!(ClassId::of("a", None, &none, None), ClassId::of("b", None, &none, None));
        assert_ne!(ClassId::of("a", None, &none, None), ClassId::of("a", Some("t"), &none, None));
        let big = Requirements::of(2000, 1 << 30);
        assert_ne!(ClassId::of("a", None, &none, None), ClassId::of("a", None, &big, None));
        let key = |key: &str, limit| Concurrency { key: key.into(), limit };
        let keyed = |with| ClassId::of("a", None, &none, Some(&with));
        assert_ne!(ClassId::of("a", None, &none, None), keyed(key("k", 1)));
        assert_ne!(keyed(key("l", 1)), keyed(key("k", 1)));
        assert_ne!(keyed(key("k", 2)), keyed(key("k", 1)));
    }
}
