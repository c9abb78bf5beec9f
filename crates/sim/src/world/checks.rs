//! What must hold, whatever happens.

mod controls;
mod links;
mod placement;

use super::{World, agent::Entry, job_name, run_name};
use crate::{store::Commit, trace::About};
use controls::Controls;
use hodei_core::{
    brain::{Batch, Refusal, WorkerView},
    id::{ExecutionId, JobId, WorkerId},
    job::{ClassId, Execution, Job},
    journal::Change,
    protocol::Verdict,
    requirements::Requirements,
    spec::{Concurrency, Priority},
    state::{Failure, FailureKind, Outcome, State, StateKind},
    worker::Capacity,
};
use links::Ties;
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt,
    sync::Arc,
};

/// Checks that look at everything are made once in so many turns or commits, and at the end.
const SELDOM: u64 = 32;
/// A job remembers no more executions than this; beyond it they cannot be counted.
const HISTORY: usize = 50;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    NothingAcknowledgedIsLost,
    OneResult,
    OneLiveRun,
    LegalTransitions,
    AttemptsAreCounted,
    SlotsAndLimits,
    StrictOrder,
    EveryWaitHasAReason,
    EverythingComesUp,
    LogsAreWhole,
    MemoryIsBounded,
    StoreAndMemoryAgree,
    EverythingFinishes,
    OneJobPerTick,
    OverlapPolicy,
    DependenciesHold,
    PausesHold,
    BlockedUntilResumed,
    OneJobPerKey,
    ChildrenComeWithTheirParent,
    RejectedOnlyWhenHopeless,
    NoWorkerLeaked,
    CapsHold,
    PoolIsHealthy,
    RestartBudget,
    OneJobAWorker,
    /// An assertion of the code itself.
    Assertion,
}

/// A rule that did not hold.
#[derive(Clone, Debug)]
pub struct Broken {
    pub rule: Rule,
    pub about: About,
    pub message: String,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: ", self.rule)?;
        if let Some(job) = self.about.job {
            write!(f, "{}: ", job_name(job))?;
        }
        if let Some(agent) = self.about.agent {
            write!(f, "worker {agent}: ")?;
        }
        f.write_str(&self.message)
    }
}

#[track_caller]
pub(super) fn broken(rule: Rule, about: impl Into<About>, message: impl Into<String>) -> ! {
    std::panic::panic_any(Broken { rule, about: about.into(), message: message.into() })
}

/// The jobs of one class that wait, in order.
type Line = BTreeMap<(Priority, u64), (JobId, Needs)>;

/// What a job wants of its worker.
#[derive(Clone, Debug)]
struct Needs {
    queue: Arc<str>,
    key: Option<Concurrency>,
    task_type: Option<Arc<str>>,
    requirements: Requirements,
}

impl Needs {
    fn of(job: &Job) -> Self {
        let (queue, key) = (Arc::clone(&job.queue), job.concurrency().cloned());
        Self { queue, key, task_type: job.task_type.clone(), requirements: job.requirements.clone() }
    }

    fn fit_in(&self, room: &Capacity) -> bool {
        room.fits(&self.requirements)
    }

    fn are_met_by(&self, agent: &super::Agent) -> bool {
        placement::may_run(&agent.info(), self.task_type.as_deref(), &self.requirements)
    }

    fn are_offered_by(&self, agent: &super::Agent) -> bool {
        agent.info().offer.includes(self.task_type.as_deref())
    }
}

/// What the world knows for sure, beside what the brain and the store believe.
#[derive(Default)]
pub(super) struct Ledger {
    /// Every job as the last turn left it, durable or not.
    pub(super) truth: BTreeMap<JobId, Job>,
    /// Those that wait, by class, and what each worker is bound to do.
    pending: BTreeMap<ClassId, Line>,
    bound: BTreeMap<WorkerId, Capacity>,
    open: usize,
    waiting: BTreeSet<JobId>,
    blocked: BTreeSet<JobId>,
    controls: Controls,
    ties: Ties,
    /// How many executions a job had when it was last retried by hand.
    eras: HashMap<JobId, usize>,
    acknowledged: Vec<JobId>,
    /// Jobs that somebody deleted, and how they had ended.
    gone: HashMap<JobId, StateKind>,
    sent: HashMap<ExecutionId, (JobId, WorkerId)>,
    /// Ends that workers really reported, and whether their spool must still have them.
    reported: HashMap<ExecutionId, Vec<Outcome>>,
    owed: HashMap<ExecutionId, bool>,
    live: HashMap<JobId, (usize, ExecutionId)>,
    runs: HashMap<JobId, u64>,
    turns: u64,
    commits: u64,
}

impl Ledger {
    pub fn finished(&self) -> u64 {
        (self.truth.len() - self.open) as u64
    }

    pub fn job_of(&self, execution: ExecutionId) -> Option<JobId> {
        self.sent.get(&execution).map(|(job, _)| *job)
    }

    pub fn acknowledged(&self, pick: usize) -> Option<JobId> {
        self.acknowledged.get(pick % self.acknowledged.len().max(1)).copied()
    }

    pub fn retried(&mut self, job: JobId, executions: usize) {
        self.eras.insert(job, executions);
    }

    pub fn count_run(&mut self, job: JobId) -> u64 {
        let runs = self.runs.entry(job).or_default();
        *runs += 1;
        *runs
    }

    pub fn runs_of(&self, job: JobId) -> u64 {
        self.runs.get(&job).copied().unwrap_or(0)
    }

    pub fn process_ended(&mut self, job: JobId, execution: ExecutionId) {
        if self.live.get(&job).is_some_and(|(_, live)| *live == execution) {
            self.live.remove(&job);
        }
    }

    fn index(&mut self, job: &Job) {
        if let State::Pending { .. } = job.state {
            let place = (job.priority, job.seq);
            self.pending.entry(job.class()).or_default().insert(place, (job.id, Needs::of(job)));
        }
        if let Some(run) = job.state.run() {
            let used = self.bound.entry(run.worker).or_default();
            used.add(&job.requirements);
            self.controls.begins(job);
        }
        match job.state.kind() {
            StateKind::Waiting => _ = self.waiting.insert(job.id),
            StateKind::Blocked => _ = self.blocked.insert(job.id),
            _ => {}
        }
        self.open += usize::from(!job.state.kind().is_finished());
    }

    fn unindex(&mut self, job: &Job) {
        if let State::Pending { .. } = job.state
            && let Some(class) = self.pending.get_mut(&job.class())
        {
            class.remove(&(job.priority, job.seq));
            if class.is_empty() {
                self.pending.remove(&job.class());
            }
        }
        if let Some(run) = job.state.run()
            && let Some(used) = self.bound.get_mut(&run.worker)
        {
            used.remove(&job.requirements);
            self.controls.ends(job);
        }
        self.waiting.remove(&job.id);
        self.blocked.remove(&job.id);
        self.open -= usize::from(!job.state.kind().is_finished());
    }

    fn forget(&mut self, id: JobId) {
        if let Some(job) = self.truth.remove(&id) {
            self.unindex(&job);
            self.gone.insert(id, job.state.kind());
        }
    }

    fn put(&mut self, job: &Job) -> Option<Job> {
        let before = self.truth.insert(job.id, job.clone());
        if let Some(before) = &before {
            self.unindex(before);
        }
        self.index(job);
        before
    }
}

/// The first of each priority of a class.
fn firsts(line: &Line) -> impl Iterator<Item = (&(Priority, u64), &(JobId, Needs))> {
    Priority::ALL.into_iter().filter_map(|priority| line.range((priority, 0)..=(priority, u64::MAX)).next())
}

/// Whether the server ended an execution without a word of its worker.
fn by_server(execution: &Execution) -> bool {
    match &execution.outcome {
        Some(Outcome::Failed(failure)) if failure.kind == FailureKind::WorkerLost => is_given_away(failure),
        Some(Outcome::Cancelled | Outcome::Released) => execution.log_entries == 0,
        _ => false,
    }
}

/// The server says what became of the worker. An agent that tells of itself uses other words.
fn is_given_away(failure: &Failure) -> bool {
    failure.kind == FailureKind::WorkerLost
        && failure.message.starts_with("its worker ")
        && failure.message != OF_ITSELF
}

const NONE_IS_MADE: &str = ", and none is made: ";
const OF_ITSELF: &str = "its worker agent died";
const CAME_BACK: &str = "its worker came back without it";
const NOBODY_ASKED: &str = "stopped by its worker although nobody asked for it";

impl World {
    /// What was not durable never happened.
    pub(super) fn reset_ledger(&mut self) {
        let ledger = &mut self.ledger;
        (ledger.truth, ledger.pending, ledger.bound, ledger.open) = Default::default();
        (ledger.waiting, ledger.blocked) = Default::default();
        ledger.controls.restart(&self.store);
        for job in self.store.jobs.keys().filter_map(|id| self.store.latest(*id)) {
            ledger.put(&job);
        }
        ledger.eras = self.store.eras.iter().map(|(job, era)| (*job, *era)).collect();
        ledger.gone.retain(|job, _| !self.store.jobs.contains_key(job));
        let Ledger { ties, blocked, .. } = ledger;
        ties.restart(blocked);
    }

    // ---- after each turn ----------------------------------------------------------------------------------------

    /// After a turn, whose batch is not durable yet.
    pub(super) fn check_turn(&mut self, batch: &Batch) {
        // Also ends that a retry in the same turn has undone.
        for change in &batch.changes {
            if let Change::Job { id, steps } = change
                && steps.iter().any(|step| step.state.is_finished())
            {
                self.ledger.ties.has_ended(*id);
            }
        }
        let (mut assigned, mut moved) = (Vec::new(), Vec::new());
        let placed: Vec<Job> = batch.placements.iter().map(|placement| self.placed_now(placement.job)).collect();
        for job in batch.jobs.iter().map(|write| &*write.job).chain(&placed) {
            let before = self.ledger.put(job);
            self.check_job(before.as_ref(), job);
            let run = job.state.run().copied();
            if run.is_some() && run != before.as_ref().and_then(|before| before.state.run().copied()) {
                assigned.push(job);
            }
            moved.push((before, job));
        }
        batch.forgotten.iter().for_each(|job| self.ledger.forget(*job));
        self.check_schedules(batch);
        self.check_capacity();
        assigned.iter().for_each(|job| self.check_may_start(job));
        assigned.iter().for_each(|job| self.check_order(job));
        moved.iter().for_each(|(before, job)| self.check_move(before.as_ref(), job));
        self.check_children(&moved);
        self.check_deleted();
        self.check_waits(batch);
        let newly = |before: &Option<Job>| before.as_ref().is_none_or(|before| before.rejected().is_none());
        moved.iter().filter(|(before, _)| newly(before)).for_each(|(_, job)| self.check_rejected(job));
        self.check_hopeless();
        self.check_makers(batch);
        self.ledger.turns += 1;
        if self.ledger.turns.is_multiple_of(SELDOM) {
            self.ledger.truth.values().for_each(|job| self.check_comes_up(job));
            self.check_waiting();
        }
    }

    /// A job that was given to a worker without a write of its row.
    fn placed_now(&self, job: JobId) -> Job {
        let Some(placed) = self.server.brain.as_ref().and_then(|brain| brain.placed(job)) else {
            broken(Rule::StoreAndMemoryAgree, job, "it was placed and the brain does not know it");
        };
        placed.clone()
    }

    fn check_job(&self, before: Option<&Job>, job: &Job) {
        let transitions = |holds: bool, what: &str| {
            if !holds {
                broken(Rule::LegalTransitions, job.id, format!("{what}: {before:?} then {job:?}"));
            }
        };
        let open = job.executions.iter().filter(|execution| execution.outcome.is_none()).count();
        transitions(open == usize::from(job.state.run().is_some()), "one open execution while it is active, else none");
        let poisonous = job.losses >= hodei_core::brain::Config::default().loss_limit;
        transitions(!poisonous || job.state.kind().is_finished(), "it lost too many workers");
        self.check_attempts(job);

        let succeeded = job.executions.iter().filter(|execution| execution.outcome == Some(Outcome::Succeeded));
        if succeeded.count() > 1 {
            broken(Rule::OneResult, job.id, "two results were accepted");
        }
        let known = before.map_or(0, |before| before.executions.len());
        if let Some(before) = before {
            if before.state.kind() == StateKind::Succeeded && before.state != job.state {
                broken(Rule::OneResult, job.id, format!("it had succeeded, and now is {:?}", job.state));
            }
            let ended = before.state.kind().is_finished();
            let retried = self.ledger.eras.get(&job.id) == Some(&before.executions.len());
            transitions(!ended || before.state == job.state || retried, "it had ended and nobody retried it");
            if job.executions.len() < HISTORY {
                for (old, new) in before.executions.iter().zip(&job.executions) {
                    transitions(old.outcome.is_none() || old == new, "what ended does not change");
                }
                transitions(before.executions.len() <= job.executions.len(), "it forgets an execution");
            }
        }
        for execution in job.executions.iter().skip(known.saturating_sub(1)) {
            self.check_outcome(job.id, execution);
        }
    }

    fn check_attempts(&self, job: &Job) {
        if job.executions.len() >= HISTORY {
            return;
        }
        let era = self.ledger.eras.get(&job.id).copied().unwrap_or(0);
        let of_era = || job.executions.iter().skip(era);
        let uncounted = |execution: &&Execution| {
            matches!(execution.outcome, Some(Outcome::Released | Outcome::Snoozed { .. } | Outcome::Blocked { .. }))
        };
        let runs = of_era().count() - of_era().filter(uncounted).count();
        let is_loss = |execution: &&Execution| matches!(&execution.outcome, Some(Outcome::Failed(failure)) if failure.kind == FailureKind::WorkerLost);
        let losses = of_era().filter(is_loss).count();
        let right = job.attempt as usize == runs && job.losses as usize == losses;
        if !right || job.attempt > job.retry.max_attempts {
            let message = format!("counted {} runs and {} losses, had {runs} and {losses}", job.attempt, job.losses);
            broken(Rule::AttemptsAreCounted, job.id, format!("{message}, may have {} runs", job.retry.max_attempts));
        }
    }

    /// What a worker is said to have reported, it did report.
    fn check_outcome(&self, job: JobId, execution: &Execution) {
        let Some(outcome) = &execution.outcome else { return };
        let given_away = matches!(outcome, Outcome::Failed(failure) if is_given_away(failure));
        if let Some((at, live)) = self.ledger.live.get(&job)
            && given_away
            && *live == execution.id
        {
            let about = About { job: Some(job), agent: Some(*at) };
            broken(Rule::OneLiveRun, about, format!("{} is given up while it lives on {at}", run_name(*live)));
        }
        let reported = |wanted: &Outcome| {
            self.ledger.reported.get(&execution.id).is_some_and(|reported| reported.contains(wanted))
        };
        let true_words = match outcome {
            Outcome::Failed(failure) if failure.message == CAME_BACK => {
                if self.ledger.owed.get(&execution.id) == Some(&true) {
                    let message = format!("the result of {} was in the spool", run_name(execution.id));
                    broken(Rule::NothingAcknowledgedIsLost, job, message);
                }
                true
            }
            Outcome::Failed(failure) if is_given_away(failure) => true,
            Outcome::Failed(failure) if failure.message == NOBODY_ASKED => reported(&Outcome::Cancelled),
            Outcome::Succeeded | Outcome::Failed(_) => reported(outcome),
            Outcome::Snoozed { .. } | Outcome::Blocked { .. } => reported(outcome),
            Outcome::Cancelled | Outcome::Released => true,
        };
        if !true_words {
            let message = format!("nobody reported {outcome:?} of {}", run_name(execution.id));
            broken(Rule::OneResult, job, message);
        }
    }

    fn check_capacity(&self) {
        let Some(brain) = &self.server.brain else { return };
        for (index, agent) in self.agents.iter().enumerate() {
            let Some(free) = brain.free_on(agent.id) else { continue };
            let (whole, used) = (agent.capacity, self.ledger.bound.get(&agent.id).copied().unwrap_or_default());
            let sum = Capacity {
                slots: free.slots + used.slots,
                cpu_millis: free.cpu_millis + used.cpu_millis,
                memory_bytes: free.memory_bytes + used.memory_bytes,
                disk_bytes: free.disk_bytes + used.disk_bytes,
                gpus: free.gpus + used.gpus,
            };
            if sum != whole {
                let message = format!("of {whole:?} it has {free:?} free while its jobs take {used:?}");
                broken(Rule::SlotsAndLimits, index, message);
            }
        }
    }

    /// Nothing that ranks before `job` and fits in the room it was given waits, in memory or in the store.
    fn check_order(&self, job: &Job) {
        let Some(run) = job.state.run() else { return };
        let Some(free) = self.server.brain.as_ref().and_then(|brain| brain.free_on(run.worker)) else { return };
        let Some(agent) = self.agents.iter().find(|agent| agent.id == run.worker) else { return };
        if !Needs::of(job).are_met_by(agent) {
            broken(Rule::SlotsAndLimits, job.id, format!("it went to {}, which is not for it", agent.index));
        }
        let mut room = free;
        room.add(&job.requirements);
        let place = self.rank(&job.queue, (job.priority, job.seq));
        for (other_place, (other, needs)) in self.ledger.pending.values().flat_map(firsts) {
            let fits = needs.fit_in(&room) && needs.are_met_by(agent);
            if fits && self.rank(&needs.queue, *other_place) < place && !self.is_held(needs) {
                broken(Rule::StrictOrder, job.id, format!("was placed although {} waits before it", job_name(*other)));
            }
        }
    }

    fn check_waits(&self, batch: &Batch) {
        let Some(brain) = &self.server.brain else { return };
        let views = brain.workers();
        let takes_jobs = |view: &WorkerView| brain.takes_jobs(view.record.id);
        if !brain.is_reading() {
            for (job, needs) in self.ledger.pending.values().filter_map(|class| class.values().next()) {
                let met = |view: &&WorkerView| {
                    placement::may_run(&view.record.info, needs.task_type.as_deref(), &needs.requirements)
                };
                let mut for_it = views.iter().filter(met);
                if for_it.any(|view| takes_jobs(view) && needs.fit_in(&view.free)) {
                    if !self.is_held(needs) {
                        broken(Rule::EveryWaitHasAReason, *job, "it waits although a worker has room for it");
                    }
                    self.check_will_open(*job, needs);
                }
            }
        }
        for job in batch.jobs.iter().map(|write| &write.job) {
            self.check_comes_up(job);
            let kind = job.state.kind();
            if kind.is_finished() || kind == StateKind::Running {
                continue;
            }
            let reason = brain.waiting_reason(job);
            let true_words = match reason.as_str() {
                "waits for its time" | "waits before its next attempt" | "asked to be run again later" => {
                    kind == StateKind::Delayed
                }
                "its worker has not started it yet" => kind == StateKind::Scheduled,
                words if words.starts_with("waits to be resumed") => kind == StateKind::Blocked,
                words if words.ends_with("that it depends on") => kind == StateKind::Waiting,
                words => kind == StateKind::Pending && self.is_true(words, &Needs::of(job)),
            };
            if !true_words {
                broken(Rule::EveryWaitHasAReason, job.id, format!("it is {kind:?} and its reason is '{reason}'"));
            }
        }
    }

    /// Whether what is said of all pending jobs with such needs is so.
    fn is_true(&self, words: &str, needs: &Needs) -> bool {
        let Some(brain) = &self.server.brain else { return false };
        let connected = || self.agents.iter().filter(|agent| brain.is_connected(agent.id));
        let offering = || connected().filter(|agent| needs.are_offered_by(agent));
        let meeting = || connected().filter(|agent| needs.are_met_by(agent));
        let fitting = || meeting().filter(|agent| needs.fit_in(&agent.capacity));
        if let Some(true_words) = self.is_true_hold(words, needs) {
            return true_words;
        }
        match words {
            words if words.starts_with("a worker is being made") => self.makes_workers(),
            words if words.contains(NONE_IS_MADE) => {
                let (why, unmade) = words.split_once(NONE_IS_MADE).unwrap_or_default();
                (self.makes_workers() || unmade.starts_with("no provider makes")) && self.is_true(why, needs)
            }
            "no connected worker runs processes" => needs.task_type.is_none() && offering().next().is_none(),
            words if words.starts_with("no connected worker handles tasks") => {
                needs.task_type.is_some() && offering().next().is_none()
            }
            "no worker is connected" => connected().next().is_none(),
            "no connected worker is large enough for its requirements" => {
                meeting().next().is_some() && fitting().next().is_none()
            }
            words if words.starts_with("no connected worker") || words.contains("has a taint that it does not") => {
                offering().next().is_some() && meeting().next().is_none()
            }
            "every worker that fits is leaving" => {
                let leaves = |agent: &&super::Agent| !brain.takes_jobs(agent.id);
                fitting().next().is_some() && fitting().filter(leaves).count() == fitting().count()
            }
            "a worker has room and its turn is coming" => brain.is_reading(),
            "every worker that fits is busy" => {
                let busy = |agent: &super::Agent| brain.free_on(agent.id).is_some_and(|free| !needs.fit_in(&free));
                fitting().any(|agent| brain.takes_jobs(agent.id))
                    && fitting().all(|agent| !brain.takes_jobs(agent.id) || busy(agent))
            }
            _ => false,
        }
    }

    fn check_comes_up(&self, job: &Job) {
        if let Some(brain) = &self.server.brain
            && !brain.will_reach(job)
        {
            broken(Rule::EverythingComesUp, job.id, format!("its line or its timer passes it over: {:?}", job.state));
        }
    }

    // ---- after each commit --------------------------------------------------------------------------------------

    pub(super) fn check_commit(&self, commit: &Commit, written: Result<(), String>) {
        if let Err(why) = written {
            broken(Rule::StoreAndMemoryAgree, (), why);
        }
        for chunk in &commit.logs {
            let stored = self.store.logs.get(&chunk.execution).map_or(&[][..], Vec::as_slice);
            if !stored.iter().copied().eq(0..stored.len() as u64) {
                let message = format!("the log of {} is not in order: {stored:?}", run_name(chunk.execution));
                broken(Rule::LogsAreWhole, chunk.job, message);
            }
        }
        for job in commit.batch.jobs.iter().map(|write| &write.job) {
            for execution in job.executions.iter().filter(|execution| execution.outcome.is_some()) {
                let stored = self.store.log_entries(execution.id);
                if !by_server(execution) && stored != execution.log_entries {
                    let name = run_name(execution.id);
                    let message = format!("{name} ended with {stored} of {} lines stored", execution.log_entries);
                    broken(Rule::LogsAreWhole, job.id, message);
                }
            }
        }
    }

    /// What is in memory has a reason to be there, and says what the store says.
    pub(super) fn check_memory(&mut self, batch: &Batch) {
        self.ledger.commits += 1;
        let Some(brain) = &self.server.brain else { return };
        for write in &batch.jobs {
            if let Some(job) = brain.job(write.job.id)
                && job.state.kind().is_finished()
                && *job == *write.job
                && !brain.has_use_for(job)
            {
                broken(Rule::MemoryIsBounded, job.id, "it ended and is still in memory");
            }
        }
        let (line, timers) = brain.windows();
        let (window, slots) = (self.shape.window, self.agents.iter().map(|agent| agent.capacity.slots as usize).sum());
        let slots: usize = slots;
        // A line keeps up to eight windows of released jobs, and reads one more.
        if line > 10 * window + slots || timers > 3 * window {
            broken(Rule::MemoryIsBounded, (), format!("a line of {line} and {timers} timers for a window of {window}"));
        }
        if !self.ledger.commits.is_multiple_of(SELDOM) {
            return;
        }
        for job in brain.settled_by(self.server.committed) {
            let stored = self.store.latest(job.id);
            if stored.as_deref() != Some(job) {
                broken(Rule::StoreAndMemoryAgree, job.id, format!("memory has {job:?}, the store {stored:?}"));
            }
            if !brain.has_use_for(job) {
                broken(Rule::MemoryIsBounded, job.id, format!("nothing holds it in memory: {job:?}"));
            }
        }
        if !brain.executions_are_bound() {
            broken(Rule::StoreAndMemoryAgree, (), "an execution is known that no job is bound to");
        }
        self.check_counts();
    }

    /// What is counted step by step is what a count of all rows finds.
    fn check_counts(&self) {
        let jobs: Vec<_> = self.store.jobs.keys().filter_map(|id| self.store.latest(*id)).collect();
        if let Err(why) = self.store.kept.check_counts(jobs.iter().map(|job| &**job)) {
            broken(Rule::StoreAndMemoryAgree, (), why);
        }
    }

    // ---- what was promised --------------------------------------------------------------------------------------

    pub(super) fn check_acknowledged(&mut self, job: JobId) {
        if !self.is_kept(job) {
            broken(Rule::NothingAcknowledgedIsLost, job, "it was acknowledged and is not stored");
        }
        self.ledger.acknowledged.push(job);
    }

    /// Whether it is stored, or was until somebody deleted it.
    fn is_kept(&self, job: JobId) -> bool {
        self.store.jobs.contains_key(&job) || self.ledger.gone.contains_key(&job)
    }

    pub(super) fn check_cancelled(&self, job: JobId, kind: StateKind) {
        let Some(stored) = self.store.jobs.get(&job) else {
            if self.is_kept(job) {
                return;
            }
            broken(Rule::NothingAcknowledgedIsLost, job, "its cancel was acknowledged and it is not stored");
        };
        let forgotten = kind == StateKind::Cancelled
            && stored.state.kind() != StateKind::Cancelled
            && !self.ledger.eras.contains_key(&job);
        if forgotten {
            broken(Rule::NothingAcknowledgedIsLost, job, format!("it was cancelled and is {:?}", stored.state));
        }
    }

    pub(super) fn check_retried(&self, job: JobId, pending: bool) {
        if pending && !self.is_kept(job) {
            broken(Rule::NothingAcknowledgedIsLost, job, "its retry was acknowledged and it is not stored");
        }
    }

    pub(super) fn check_registration(&self, agent: usize, refusal: &Refusal) {
        broken(Rule::NothingAcknowledgedIsLost, agent, format!("it could not register: {refusal}"));
    }

    /// An assignment that leaves the server is durable, and goes to one worker only.
    pub(super) fn check_sent(&mut self, worker: WorkerId, job: JobId, execution: ExecutionId) {
        let stored = self.store.latest(job);
        let durable = stored.is_some_and(|job| job.executions.iter().any(|known| known.id == execution));
        if !durable {
            let message = format!("{} was sent before it was durable", run_name(execution));
            broken(Rule::NothingAcknowledgedIsLost, job, message);
        }
        let before = self.ledger.sent.insert(execution, (job, worker));
        if before.is_some_and(|before| before != (job, worker)) {
            broken(Rule::OneLiveRun, job, format!("{} went to two workers", run_name(execution)));
        }
    }

    /// A worker forgets the lines that a welcome calls stored.
    pub(super) fn check_welcome(&self, verdicts: &[Verdict]) {
        for Verdict { execution, log_entries, .. } in verdicts.iter().filter(|verdict| verdict.keep) {
            let stored = self.store.log_entries(*execution);
            if *log_entries > stored {
                let about = About { job: self.ledger.job_of(*execution), agent: None };
                let message = format!("{} has {stored} lines stored, not {log_entries}", run_name(*execution));
                broken(Rule::NothingAcknowledgedIsLost, about, message);
            }
        }
    }

    pub(super) fn note_spooled(&mut self, entry: &Entry) {
        if let Entry::Finished(finished) = entry {
            self.ledger.ties.declares(finished);
            let reported = self.ledger.reported.entry(finished.execution).or_default();
            if !reported.contains(&finished.outcome) {
                reported.push(finished.outcome.clone());
            }
            self.ledger.owed.insert(finished.execution, true);
        }
    }

    /// A worker forgets what is stored, or what nobody wants any more.
    pub(super) fn check_forgotten(&mut self, at: usize, entry: &Entry) {
        let execution = entry.execution();
        if let Entry::Finished(_) = entry {
            self.ledger.owed.insert(execution, false);
        }
        let Some(job) = self.ledger.job_of(execution) else { return };
        let stored = self.store.latest(job).and_then(|job| job.state.run().copied());
        let wanted = stored.is_some_and(|run| run.execution == execution);
        let safe = match entry {
            Entry::Finished(_) => !wanted,
            Entry::Logs(chunk) => !wanted || self.store.log_entries(execution) >= chunk.end(),
        };
        if !safe {
            let about = About { job: Some(job), agent: Some(at) };
            let message =
                format!("the worker forgot what {} printed or became, which is not stored", run_name(execution));
            broken(Rule::NothingAcknowledgedIsLost, about, message);
        }
    }

    /// A process begins.
    pub(super) fn check_start(&mut self, at: usize, job: JobId, execution: ExecutionId) {
        if let Some((other, live)) = self.ledger.live.insert(job, (at, execution)) {
            let message = format!("{} starts on {at} while {} lives on {other}", run_name(execution), run_name(live));
            broken(Rule::OneLiveRun, About { job: Some(job), agent: Some(at) }, message);
        }
        let live = self.agents[at].processes.values().filter(|process| process.live).count();
        let slots = self.agents[at].capacity.slots as usize;
        if live > slots {
            broken(Rule::SlotsAndLimits, at, format!("{live} processes live on {slots} slots"));
        }
    }

    pub(super) fn check_leaves_nothing(&self, at: usize) {
        let agent = &self.agents[at];
        if !agent.processes.is_empty() || !agent.spool.is_empty() {
            broken(Rule::NothingAcknowledgedIsLost, at, "it left with something in its hands");
        }
    }

    // ---- the end ------------------------------------------------------------------------------------------------

    pub(super) fn everything_is_done(&self) -> bool {
        let settled = |agent: &super::Agent| {
            agent.is_awake() && agent.session.is_up() && agent.processes.is_empty() && agent.spool.is_empty()
        };
        let forgotten = self.server.brain.as_ref().is_some_and(|brain| brain.jobs_in_memory() == 0);
        self.ledger.open == 0
            && self.server.is_idle()
            && forgotten
            && !self.open_calls()
            && self.agents.iter().filter(|agent| !agent.is_made()).all(settled)
            && self.makers_are_done()
    }

    /// It has been quiet for long enough.
    pub(super) fn check_progress(&self) {
        if let Some(job) = self.ledger.truth.values().find(|job| !job.state.kind().is_finished()) {
            broken(Rule::EverythingFinishes, job.id, format!("it never ended: {:?}", job.state));
        }
        for (at, agent) in self.agents.iter().enumerate().filter(|(_, agent)| !agent.is_made()) {
            if !agent.is_awake() || !agent.session.is_up() {
                broken(Rule::EverythingFinishes, at, "it does not come back");
            }
            if !agent.processes.is_empty() || !agent.spool.is_empty() {
                broken(Rule::EverythingFinishes, at, "it keeps something that nobody wants");
            }
        }
        self.check_makers_end();
        broken(Rule::EverythingFinishes, (), "the server does not come to rest");
    }

    pub(super) fn check_end(&self) {
        self.check_counts();
        for (id, job) in &self.ledger.truth {
            if self.store.jobs.get(id) != Some(job) {
                broken(Rule::StoreAndMemoryAgree, *id, "the store has something else than was decided");
            }
        }
        for job in &self.ledger.acknowledged {
            if !self.is_kept(*job) {
                broken(Rule::NothingAcknowledgedIsLost, *job, "it was acknowledged and is gone");
            }
        }
    }
}
