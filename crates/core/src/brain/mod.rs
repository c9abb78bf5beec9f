//! The brain: everything the server decides.
//!
//! [`Brain::apply`] takes one input at a time and changes what is in memory. [`Brain::turn`] then fires timers, places
//! ready jobs and hands out the rows to write with the effects that may be released once they are durable.
//! [`Brain::committed`] says that they are. The brain may run ahead of the store by as many batches as the caller likes.

mod batch;
mod dependencies;
mod facts;
mod fleet;
mod input;
#[cfg(feature = "inspect")]
mod inspect;
mod jobs;
#[cfg(any(test, feature = "inspect"))]
mod kept;
mod moves;
mod pages;
mod placements;
mod placing;
mod provisioning;
mod queues;
mod ready;
mod schedules;
mod standing;
mod timers;
mod workers;

#[cfg(test)]
mod tests;

pub use batch::{Batch, BatchId, Edge, JobWrite, Placement, ScheduleWrite, Settling};
pub use facts::{Facts, Missing};
pub use fleet::WorkerView;
pub use input::{
    Answer, Bound, Caller, Connection, Effect, Input, ManyJobs, NewJob, ProviderOrder, QueueOrder, Refusal,
    Registration, Report, RunMore, ScheduleOrder, ScheduledJob, TemplateOrder,
};
#[cfg(any(test, feature = "inspect"))]
pub use kept::Kept;
pub use provisioning::{ProviderView, TemplateView};
pub use queues::QueueView;
pub use schedules::ScheduleView;

use crate::{
    defect::{Defect, planted},
    id::{ExecutionId, IdMap, JobId, ScheduleId, WorkerId, made},
    job::{ClassId, Execution, Job, Progress, Texts},
    placement::{Needs, SchedulerSettings},
    protocol::{Finished, Hello, StopReason},
    provider::ProviderRecord,
    queue::QueueRecord,
    schedule::ScheduleRecord,
    spec::Priority,
    state::{AfterFailure, DelayReason, Event, Failure, FailureKind, IllegalEvent, Outcome, Run, State, StateKind},
    template::WorkerTemplate,
    time::{Elapsed, Millis, Now, Time},
    token::{Hash, TokenRefused, WorkerToken},
    worker::{Phase, WorkerRecord},
};
use dependencies::{Dependencies, waits_for};
use fleet::Fleet;
use moves::Moves;
use pages::Reads;
use placements::Placements;
use provisioning::Provisioning;
use queues::Queues;
use ready::{Keep, Ready};
use schedules::Schedules;
use standing::Standing;
use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::Arc,
};
use timers::Timers;
use uuid::Uuid;

#[derive(Clone, Debug)]
pub struct Config {
    /// How long a worker may go on without hearing from the server.
    pub lease: Millis,
    /// How much longer the server waits before it gives the work to others.
    pub lease_grace: Millis,
    /// A job that lost this many workers is not tried again.
    pub loss_limit: u32,
    /// How many jobs of the head of a line, and how many timers, are kept in memory.
    pub window: usize,
    /// How many classes may have waiting jobs at one time.
    pub class_limit: usize,
    /// How long a worker that was made may take to register.
    pub registration: Millis,
    /// Decides the jitter of retries.
    pub seed: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            lease: Millis::seconds(60),
            lease_grace: Millis::seconds(5),
            loss_limit: 3,
            window: 8192,
            class_limit: 100_000,
            registration: Millis::seconds(60),
            seed: 0,
        }
    }
}

/// Expired tokens are remembered this long, so that their refusal can say why.
const TOKEN_MEMORY: Millis = Millis::seconds(3600);
/// A pause between two turns that is longer than this was a pause of the server itself: nobody could renew a lease.
const STALL: Millis = Millis::seconds(2);
/// So the brain asks to be woken more often than that while there are leases to watch.
const LEASE_WATCH: Millis = Millis::seconds(1);
/// Places in line per millisecond: they follow the clock, so they go on rising after a restart.
const SEQ_PER_MS: u64 = 4096;

/// No leader that committed up to this time gave away a later place in line.
fn last_seq_of(time: Time) -> u64 {
    u64::try_from(time.0 + 1).unwrap_or(0) * SEQ_PER_MS
}

#[derive(Debug)]
pub struct Brain {
    config: Config,
    epoch: u64,
    now: Time,
    elapsed: Elapsed,
    seq: u64,
    /// Ids that this life has made.
    made: u64,
    batch: u64,

    jobs: IdMap<JobId, Entry>,
    texts: Texts,
    executions: IdMap<ExecutionId, JobId>,
    ready: Ready,
    timers: Timers,
    fleet: Fleet,
    tokens: HashMap<Hash, WorkerToken>,
    placements: Placements,
    dependencies: Dependencies,
    queues: Queues,
    schedules: Schedules,
    provisioning: Provisioning,
    moves: Moves,
    /// Idempotency keys that this turn has asked for or made, and whose they are.
    keys: HashMap<Arc<str>, JobId>,
    new_keys: Vec<(Arc<str>, JobId)>,
    forgotten: Vec<JobId>,

    dirty_jobs: Vec<JobId>,
    dirty_workers: BTreeSet<WorkerId>,
    gone_workers: Vec<WorkerRecord>,
    /// What people have been told of workers, and whom there may be news of.
    standing: Standing,
    dirty_tokens: BTreeSet<Hash>,
    /// Workers whose histories changed and are not to be written just yet, and when they are.
    changed_histories: BTreeSet<WorkerId>,
    write_histories_at: Elapsed,
    /// Jobs that could be run may have become jobs that nothing can run.
    recheck: bool,
    /// For how long leases are parked as the server leaves.
    parking: Option<Millis>,
    /// Leases that an earlier leader parked may not be over.
    parked: bool,
    /// Classes whose lines changed in this turn.
    touched: Vec<ClassId>,
    reads: Reads,
    /// Jobs that lost their place in memory.
    leaving: Vec<JobId>,
    effects: Vec<Effect>,
}

#[derive(Debug)]
struct Entry {
    job: Arc<Job>,
    /// What the job says, at hand.
    class: ClassId,
    /// The batch of its last change.
    batch: u64,
    /// The batch that gave it to its worker, while that is not in its row.
    placed: Option<u64>,
    payload: Option<Arc<[u8]>>,
    result: Option<Arc<[u8]>>,
    data: Option<Arc<[u8]>>,
    input: Option<Arc<[u8]>>,
}

impl Entry {
    /// A job as the store has it.
    fn stored(job: impl Into<Arc<Job>>) -> Self {
        let job = job.into();
        Self::of_class(job.class(), job)
    }

    /// The same, of one whose class is known.
    fn of_class(class: ClassId, job: Arc<Job>) -> Self {
        Self { job, class, batch: 0, placed: None, payload: None, result: None, data: None, input: None }
    }

    /// To be changed. What is on its way to the store stays as it is.
    fn job_mut(&mut self) -> &mut Job {
        Arc::make_mut(&mut self.job)
    }
}

/// What a new leader reads before it starts.
#[derive(Clone, Debug, Default)]
pub struct Loaded {
    pub epoch: u64,
    pub last: Time,
    pub parked_until: Option<Time>,
    pub active: Vec<Job>,
    /// Placements that may not be in rows yet, with those rows, and the batches that held them.
    pub placed: Vec<(Placement, Job)>,
    pub placed_in: Vec<BatchId>,
    pub workers: Vec<WorkerRecord>,
    pub tokens: Vec<WorkerToken>,
    pub lanes: Vec<(ClassId, Priority)>,
    pub queues: Vec<QueueRecord>,
    pub counts: Vec<(Arc<str>, StateKind, u64)>,
    pub schedules: Vec<(ScheduleRecord, ScheduledJob)>,
    /// The unfinished jobs of schedules whose ticks replace them.
    pub replaceable: Vec<Job>,
    /// Ends that are being told, with the jobs that ended.
    pub settling: Vec<(Settling, Job)>,
    pub scheduler: SchedulerSettings,
    pub providers: Vec<ProviderRecord>,
    pub templates: Vec<WorkerTemplate>,
}

impl Brain {
    /// Takes up where the last leader stopped. The effects of the first turn ask for the heads of all lines.
    pub fn load(config: Config, loaded: Loaded, now: Now) -> Self {
        let mut brain = Self {
            ready: Ready::new(config.window),
            timers: Timers::new(config.window),
            config,
            epoch: loaded.epoch,
            now: loaded.last.max(now.wall),
            elapsed: now.elapsed,
            seq: last_seq_of(loaded.last),
            made: 0,
            batch: 1,
            jobs: IdMap::default(),
            texts: Texts::default(),
            executions: IdMap::default(),
            fleet: Fleet::default(),
            tokens: loaded.tokens.into_iter().map(|token| (token.hash, token)).collect(),
            placements: Placements::default(),
            dependencies: Dependencies::default(),
            queues: Queues::load(loaded.queues, loaded.counts),
            schedules: Schedules::load(loaded.schedules),
            provisioning: Provisioning::load(loaded.scheduler, loaded.providers, loaded.templates),
            moves: Moves::default(),
            keys: HashMap::new(),
            new_keys: Vec::new(),
            forgotten: Vec::new(),
            dirty_jobs: Vec::new(),
            dirty_workers: BTreeSet::new(),
            gone_workers: Vec::new(),
            standing: Standing::default(),
            dirty_tokens: BTreeSet::new(),
            changed_histories: BTreeSet::new(),
            write_histories_at: now.elapsed,
            recheck: true,
            parking: None,
            parked: false,
            touched: Vec::new(),
            reads: Reads::default(),
            leaving: Vec::new(),
            effects: Vec::new(),
        };
        brain.fleet.set_scheduler(loaded.scheduler);
        // Nobody knows when the last signs of life came, so every lease begins anew.
        let parked = loaded.parked_until.filter(|_| !planted(Defect::ParkForgotten));
        // All of what was left at the last commit: what the wall clock did since then says nothing.
        let parked = parked.map_or(Millis::ZERO, |until| until - loaded.last);
        brain.parked = parked > Millis::ZERO;
        brain.take_back_made(&loaded.workers);
        for record in loaded.workers {
            let id = record.id;
            brain.fleet.add(record, now.elapsed + brain.config.lease);
            brain.fleet.update(id, |worker| worker.parked_until = now.elapsed + parked);
        }
        brain.ready.clock(brain.now);
        for (queue, wait) in brain.queues.ageing() {
            brain.ready.set_ageing(&queue, Some(wait));
        }
        for job in loaded.active {
            brain.take_back(job);
        }
        let mut in_line = Vec::new();
        for (placement, job) in loaded.placed {
            let id = job.id;
            if brain.take_back_placed(placement, job) {
                in_line.push(id);
            }
        }
        brain.placements.inherited(loaded.placed_in);
        for job in loaded.replaceable {
            brain.jobs.entry(job.id).or_insert_with(|| Entry::stored(job));
        }
        for (mark, job) in loaded.settling {
            if !planted(Defect::TellingForgotten) {
                brain.go_on_telling(mark, job);
            }
        }
        brain.standing = Standing::of(&brain.fleet);
        for (class, priority) in loaded.lanes {
            let wanted = brain.ready.expect(class, priority, brain.batch);
            brain.read_ready(wanted);
        }
        // Others of their lines may be in the store, and come first.
        in_line.into_iter().for_each(|id| brain.index(id));
        brain
    }

    /// An active job that an earlier leader placed.
    fn take_back(&mut self, job: Job) {
        if let Some(run) = job.state.run().copied() {
            self.executions.insert(run.execution, job.id);
            self.fleet.update(run.worker, |worker| worker.hold(run.execution, &job.requirements));
            self.queues.occupy(&job.queue, job.concurrency().filter(|_| !planted(Defect::KeyForgotten)));
        }
        if let Some(at) = job.due_at() {
            self.timers.pin(at, job.id);
        }
        self.jobs.insert(job.id, Entry::stored(job));
    }

    // ---- reading ------------------------------------------------------------------------------------------------

    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Whether a command on this job can be applied without asking the store for it.
    pub fn knows(&self, job: JobId) -> bool {
        self.jobs.contains_key(&job)
    }

    /// The job that this worker runs under this execution, unless it is stale.
    pub fn bound(&self, worker: WorkerId, execution: ExecutionId) -> Option<JobId> {
        if planted(Defect::NoFencing) {
            let had_it = |entry: &&Entry| entry.job.executions.iter().any(|known| known.id == execution);
            return self.jobs.values().find(had_it).map(|entry| entry.job.id);
        }
        let job = *self.executions.get(&execution)?;
        let run = self.jobs.get(&job)?.job.state.run()?;
        (run.worker == worker && run.execution == execution).then_some(job)
    }

    /// The workers that there are.
    pub fn workers(&self) -> Vec<WorkerView> {
        self.fleet.views()
    }

    /// All workers that are kept, those too that have left and may come back.
    pub fn kept_workers(&self) -> impl Iterator<Item = &WorkerRecord> {
        self.fleet.iter().map(|worker| &worker.record)
    }

    /// The worker that a token can register.
    pub fn token_worker(&self, token: Hash) -> Option<WorkerId> {
        self.tokens.get(&token).map(|token| token.worker)
    }

    /// Whether no worker has anything to report.
    pub fn runs_nothing(&self) -> bool {
        self.executions.is_empty()
    }

    /// Whether any job will move, or be made, although nobody from outside does anything. Jobs that are not in memory wait
    /// behind some that are, or are being read; those that depend on others move with them.
    pub fn has_work(&self) -> bool {
        let moves = |job: &Job| match job.state.kind() {
            StateKind::Waiting | StateKind::Blocked => false,
            StateKind::Pending => !self.queues.is_paused(&job.queue),
            kind => !kind.is_finished(),
        };
        let promised = self.provisioning.has_work();
        promised
            || !self.reads.none_open()
            || self.schedules.any_runs()
            || self.jobs.values().any(|entry| moves(&entry.job))
    }

    /// Why a job is not running, in words.
    pub fn waiting_reason(&self, job: &Job) -> String {
        match &job.state {
            State::Delayed { reason: DelayReason::Scheduled, .. } => "waits for its time".into(),
            State::Delayed { reason: DelayReason::Retry, .. } => "waits before its next attempt".into(),
            State::Delayed { reason: DelayReason::Snoozed, .. } => "asked to be run again later".into(),
            State::Waiting { .. } => waits_for(job),
            State::Blocked { reason, .. } => format!("waits to be resumed: {reason}"),
            State::Scheduled { .. } => "its worker has not started it yet".into(),
            State::Pending { .. } => {
                let held = self.why_held(&job.queue, job.concurrency());
                let made = || self.what_is_made(job.class());
                held.or_else(made).unwrap_or_else(|| self.why_unplaced(&Needs::of(job)))
            }
            _ => String::new(),
        }
    }

    /// When the brain must be woken although nothing reaches it.
    pub fn next_wake(&self) -> (Option<Time>, Option<Elapsed>) {
        let expiry = self.fleet.next_expiry(self.config.lease_grace);
        let lease = expiry.map(|at| at.min(self.elapsed + LEASE_WATCH));
        let order = self.queues.next_wake().into_iter().chain(self.ready.next_rise());
        let due = self.timers.next().into_iter().chain(order).chain(self.schedules.next()).min();
        let others = self.placements.next_wake().into_iter().chain(self.provisioning.next_wake());
        (due, lease.into_iter().chain(others).min())
    }

    // ---- the turn -----------------------------------------------------------------------------------------------

    /// Sets the clocks. Time never runs backwards, and a pause of the server itself costs no worker its lease.
    pub fn clock(&mut self, now: Now) {
        let gap = now.elapsed - self.elapsed;
        if gap > STALL {
            self.fleet.extend_leases(gap);
            self.forgive(gap);
        }
        self.now = self.now.max(now.wall);
        self.elapsed = self.elapsed.max(now.elapsed);
    }

    /// Applies one input. What it names must be in memory or have been learned, as far as it exists.
    pub fn apply(&mut self, input: Input) {
        match input {
            Input::Enqueue { caller, jobs } => {
                let answer = self.enqueue(jobs, None);
                self.answer(caller, answer);
            }
            Input::Resume { caller, job, payload } => {
                let answer = self.resume(job, payload);
                self.answer(caller, answer);
            }
            Input::CatchUp { caller } => {
                self.catch_up();
                self.answer(caller, Ok(Answer::Done));
            }
            Input::Many { caller, jobs, what } => {
                let count = self.many(&jobs, &what);
                self.answer(caller, Ok(Answer::Count(count)));
            }
            Input::Cancel { caller, job, reason } => {
                let answer = self.cancel(job, reason);
                self.answer(caller, answer);
            }
            Input::Retry { caller, job } => {
                let answer = self.retry(job);
                self.answer(caller, answer);
            }
            Input::Assign { caller, job, worker } => {
                let answer = self.assign_by_hand(job, worker);
                self.answer(caller, answer);
            }
            Input::SetQueue { caller, queue, order } => {
                let answer = self.set_queue(&queue, order);
                self.answer(caller, answer);
            }
            Input::SetSchedule { caller, schedule, order } => {
                let answer = self.set_schedule(schedule, order);
                self.answer(caller, answer);
            }
            Input::SetScheduler { caller, settings } => {
                let answer = self.set_scheduler(settings);
                self.answer(caller, Ok(answer));
            }
            Input::SetProvider { caller, provider, order } => {
                let answer = self.set_provider(&provider, order);
                self.answer(caller, answer);
            }
            Input::SetTemplate { caller, template, order } => {
                let answer = self.set_template(&template, order);
                self.answer(caller, answer);
            }
            Input::ProviderSeen { provider, health, capabilities } => {
                self.provider_seen(&provider, health, capabilities);
            }
            Input::ProviderHas { provider, instances, asked } => self.provider_has(&provider, &instances, asked),
            Input::Inspected { worker, state } => self.inspected(worker, state),
            Input::Created { worker, outcome } => self.created(worker, outcome),
            Input::Destroyed { worker, outcome, output } => self.destroyed(worker, outcome, &output),
            Input::CreateToken { caller, token } => {
                self.dirty_tokens.insert(token.hash);
                self.tokens.insert(token.hash, token);
                self.answer(caller, Ok(Answer::Done));
            }
            Input::Register { caller, request } => {
                let answer = self.register(request);
                self.answer(caller, answer);
            }
            Input::Connect { worker, connection, hello } => self.connect(worker, connection, hello),
            Input::Disconnect { worker, connection } => self.disconnect(worker, connection),
            Input::Heartbeat { worker, at } => self.renew(worker, at),
            Input::Report { caller, worker, report } => self.report(caller, worker, report),
            Input::Drain { caller, worker, order } => {
                let answer = self.drain(worker, order);
                self.answer(caller, answer);
            }
            Input::Pause { caller, worker } => {
                let answer = self.pause(worker);
                if let Some(caller) = caller {
                    self.answer(caller, answer);
                }
            }
            Input::Unregister { caller, worker } => {
                let answer = self.unregister(worker);
                self.answer(caller, answer);
            }
            Input::Describe { worker, connection, info } => self.describe(worker, connection, *info),
            Input::Supervised { worker, news } => self.supervised(worker, news),
            Input::RestartHandler { caller, worker, handler } => {
                let answer = self.restart_handler(worker, handler);
                self.answer(caller, answer);
            }
            Input::Ready { class, priority, limit, jobs } => self.take_ready(class, priority, limit, jobs),
            Input::Due { limit, jobs } => self.take_due(limit, jobs),
            Input::Dependents { of, each, jobs } => self.take_dependents(&of, each, jobs),
            Input::Park { lease } => self.park(lease),
        }
    }

    /// Ends a turn: fires what is due (unless `frozen`, when lost time must not cost a lease), places what is ready, and
    /// hands out what to write and what to do once it is written.
    pub fn turn(&mut self, frozen: bool) -> (Batch, Vec<Effect>) {
        self.fire_timers();
        if !frozen {
            self.expire_leases();
        }
        self.forget_old_tokens();
        self.forget_departed();
        self.write_late_placements();
        self.fire_schedules();
        self.tell_dependents();
        // What is rejected may let others go on, which may be rejected in turn.
        while self.reject_hopeless() {
            self.tell_dependents();
        }
        self.ready.clock(self.now);
        self.open_rates();
        self.place();
        self.write_releases();
        self.provision();
        self.see_off();
        self.tell_standing();
        self.write_histories();
        self.ask_for_more();
        (self.take_batch(), std::mem::take(&mut self.effects))
    }

    /// The batch with this number is durable: what changed no later and need not stay leaves memory.
    pub fn committed(&mut self, batch: &Batch) {
        let leaving = std::mem::take(&mut self.leaving);
        for id in batch.jobs.iter().map(|write| write.job.id).chain(leaving) {
            let Some(entry) = self.jobs.get(&id) else { continue };
            if entry.batch <= batch.number && !self.stays(entry) {
                self.jobs.remove(&id);
            }
        }
    }

    fn stays(&self, entry: &Entry) -> bool {
        let Entry { job, class, .. } = entry;
        let kind = job.state.kind();
        kind.is_active()
            || self.dependencies.needs(job.id)
            || self.schedules.needs(job)
            || (!kind.is_finished() && (self.ready.holds(*class, job) || self.timer_held(job)))
    }

    fn timer_held(&self, job: &Job) -> bool {
        job.due_at().is_some_and(|at| self.timers.holds(at, job.id))
    }

    fn take_batch(&mut self) -> Batch {
        // A burst takes places in line ahead of the clock; the stored time must not lag behind them.
        let now = self.now.max(Time((self.seq / SEQ_PER_MS) as i64));
        let mut batch = Batch { number: self.batch, now, ..Batch::default() };
        batch.jobs.reserve_exact(self.dirty_jobs.len());
        for id in self.dirty_jobs.drain(..) {
            if let Some(entry) = self.jobs.get_mut(&id) {
                let (payload, result) = (entry.payload.take(), entry.result.take());
                let (data, input) = (entry.data.take(), entry.input.take());
                batch.jobs.push(JobWrite { job: Arc::clone(&entry.job), payload, result, data, input });
            }
        }
        self.placements.note_rows(batch.jobs.len(), self.config.window.div_ceil(16), self.elapsed);
        (batch.placements, batch.settled) = self.placements.take(self.batch, self.elapsed);
        let changed = std::mem::take(&mut self.dirty_workers);
        let workers = changed.iter().filter_map(|id| self.fleet.get(*id)).map(|worker| worker.record.clone());
        // One that went and came back is there.
        let gone = self.gone_workers.drain(..).filter(|record| self.fleet.get(record.id).is_none());
        batch.workers = gone.chain(workers).collect();
        for hash in std::mem::take(&mut self.dirty_tokens) {
            match self.tokens.get(&hash) {
                Some(token) => batch.tokens.push(token.clone()),
                None => batch.dropped_tokens.push(hash),
            }
        }
        self.take_moves(&mut batch);
        if self.parking.is_some() || (self.parked && !batch.is_empty()) {
            batch.parked_until = Some(now + self.parked_for());
        }
        self.batch += 1;
        batch
    }

    /// How long leases that were parked are still good for. Every batch says it anew in its own time, so that no leader
    /// has to rely on a wall clock that may be set.
    fn parked_for(&mut self) -> Millis {
        let left = self.fleet.iter().map(|worker| worker.parked_until - self.elapsed).max();
        let left = left.unwrap_or(Millis::ZERO);
        let parking = self.parking.take();
        self.parked = left > Millis::ZERO && parking.is_none();
        left.max(parking.unwrap_or(Millis::ZERO))
    }

    fn answer(&mut self, caller: Caller, answer: Result<Answer, Refusal>) {
        self.effects.push(Effect::Answer { caller, answer });
    }

    // ---- jobs ---------------------------------------------------------------------------------------------------

    fn state_of(&self, id: JobId) -> Result<Answer, Refusal> {
        Ok(Answer::State(self.entry(id)?.job.state.kind()))
    }

    fn entry(&self, id: JobId) -> Result<&Entry, Refusal> {
        self.jobs.get(&id).ok_or(Refusal::NoSuchJob(id))
    }

    fn run_of(&self, id: JobId) -> Option<Run> {
        self.jobs.get(&id).and_then(|entry| entry.job.state.run()).copied()
    }

    /// The only place where a job's state changes.
    fn step(&mut self, id: JobId, event: &Event) -> Result<(), Refusal> {
        let Entry { job, .. } = self.entry(id)?;
        let (before, state) = (job.state.kind(), job.state.next(event, self.now)?);
        self.unindex(id);
        let keeps_place = matches!(event, Event::Fail(..) | Event::Release(_) | Event::Assign(_));
        let seq = if keeps_place { None } else { Some(self.next_seq()) };
        if let Some(entry) = self.jobs.get_mut(&id) {
            let job = entry.job_mut();
            job.state = state;
            job.seq = seq.filter(|_| matches!(job.state, State::Pending { .. })).unwrap_or(job.seq);
        }
        match event {
            Event::Satisfied(_) => self.index_as(id, Keep::AnyPlace),
            _ => self.index(id),
        }
        match event {
            Event::Assign(run) => self.note_placement(id, *run),
            Event::Satisfied(_) => self.note_release(id),
            _ => self.mark(id),
        }
        self.moved(id, Some(before));
        Ok(())
    }

    /// A job whose row this batch writes anyway needs no other word of its placement.
    fn note_placement(&mut self, id: JobId, run: Run) {
        let (number, at, released) = (self.batch, self.now, self.dependencies.take_released(id));
        if let Some(entry) = self.jobs.get_mut(&id)
            && (released || entry.batch != number)
        {
            let earlier = entry.placed.replace(number);
            entry.batch = number;
            let released_to = (released || earlier.is_some()).then_some(entry.job.seq);
            if let Some(number) = earlier {
                self.placements.written(BatchId { epoch: self.epoch, number }, id);
            }
            self.placements.add(Placement { job: id, run: Some(run), at, released_to });
        }
        self.reads.note_change(id, number);
    }

    /// Takes a job out of line and off the clock.
    fn unindex(&mut self, id: JobId) {
        let Some(entry) = self.jobs.get(&id) else { return };
        if let Some(at) = entry.job.due_at() {
            self.timers.remove(at, id);
        }
        if let State::Pending { .. } = entry.job.state {
            let class = entry.class;
            self.ready.remove(class, &entry.job);
            self.touch(class);
        }
    }

    /// Puts a job in line and on the clock, as its state wants it.
    fn index(&mut self, id: JobId) {
        self.index_as(id, Keep::AtTheHead);
    }

    fn index_as(&mut self, id: JobId, keep: Keep) {
        let Some(entry) = self.jobs.get(&id) else { return };
        match entry.job.due_at() {
            Some(at) if entry.job.state.kind().is_active() => self.timers.pin(at, id),
            Some(at) => self.leaving.extend(self.timers.insert(at, id)),
            None => {}
        }
        if let State::Pending { .. } = entry.job.state {
            let class = entry.class;
            self.ready.insert(class, &entry.job, keep);
            self.touch(class);
        }
    }

    fn touch(&mut self, class: ClassId) {
        self.provisioning.stir();
        if self.touched.last() != Some(&class) {
            self.touched.push(class);
        }
    }

    fn mark(&mut self, id: JobId) {
        let released = self.dependencies.take_released(id);
        if let Some(entry) = self.jobs.get_mut(&id)
            && (released || entry.batch != self.batch || entry.placed == Some(self.batch))
        {
            entry.batch = self.batch;
            if let Some(number) = entry.placed.take() {
                self.placements.written(BatchId { epoch: self.epoch, number }, id);
            }
            self.dirty_jobs.push(id);
        }
        self.reads.note_change(id, self.batch);
    }

    fn next_seq(&mut self) -> u64 {
        let floor = u64::try_from(self.now.0).unwrap_or(0) * SEQ_PER_MS;
        self.seq = (self.seq + 1).max(floor);
        self.seq
    }

    fn make_id(&mut self) -> Uuid {
        self.made += 1;
        made(self.now.0, self.epoch, self.made)
    }

    /// Tells the worker of a scheduled job about it; one that is away hears of it when it connects.
    fn send_run(&mut self, id: JobId) {
        let Some(entry) = self.jobs.get(&id) else { return };
        let Some(run) = entry.job.state.run() else { return };
        if let Some(connection) = self.fleet.get(run.worker).and_then(|worker| worker.connection) {
            let (worker, execution, attempt) = (run.worker, run.execution, entry.job.attempt);
            let more = self.more_of(&entry.job);
            self.effects.push(Effect::Run { worker, connection, job: id, execution, attempt, more });
        }
    }

    fn stop(&mut self, run: Run, why: StopReason) {
        if let Some(connection) = self.fleet.get(run.worker).and_then(|worker| worker.connection) {
            self.effects.push(Effect::Stop { worker: run.worker, connection, execution: run.execution, why });
        }
    }

    // ---- executions ---------------------------------------------------------------------------------------------

    fn report(&mut self, caller: Option<Caller>, worker: WorkerId, report: Report) {
        let execution = report.execution();
        let ends = matches!(report, Report::Finished(..));
        let answer = match (self.bound(worker, execution), report) {
            (None, _) => Err(IllegalEvent::Stale(execution).into()),
            (Some(job), Report::Started { at, .. }) => self.started(job, execution, at),
            (Some(job), Report::Progress { progress, data, .. }) => self.progress(job, execution, progress, data),
            (Some(job), Report::Finished(finished, children)) => self.finished(job, finished, children),
        };
        match caller {
            Some(caller) => self.answer(caller, answer.map(|()| Answer::Done)),
            // A stale result is settled too: the worker has no further use for it.
            None if ends => self.acked(worker, execution),
            None => {}
        }
    }

    fn acked(&mut self, worker: WorkerId, execution: ExecutionId) {
        if let Some(connection) = self.fleet.get(worker).and_then(|worker| worker.connection) {
            self.effects.push(Effect::Acked { worker, connection, execution });
        }
    }

    fn started(&mut self, id: JobId, execution: ExecutionId, at: Time) -> Result<(), Refusal> {
        self.step(id, &Event::Start(execution))?;
        if let Some(current) = self.jobs.get_mut(&id).and_then(|entry| entry.job_mut().current_mut()) {
            current.started_at = Some(at);
        }
        self.note_begun(id, execution);
        Ok(())
    }

    /// Ends the current execution of a job and frees its place.
    fn end(&mut self, id: JobId, event: &Event, outcome: Outcome, at: Time, log_entries: u64) -> Result<(), Refusal> {
        let job = &self.entry(id)?.job;
        job.state.next(event, self.now)?;
        let (run, needs) = (job.state.run().copied(), job.requirements.clone());
        self.note_history(id, &outcome);
        if let Some(entry) = self.jobs.get_mut(&id) {
            let lost = matches!(&outcome, Outcome::Failed(failure) if failure.kind == FailureKind::WorkerLost);
            let job = entry.job_mut();
            job.losses += u32::from(lost && !planted(Defect::LossNotCounted));
            let counts =
                outcome.counts() || matches!(outcome, Outcome::Blocked { .. }) && planted(Defect::BlockCounted);
            job.attempt -= u32::from(!counts).min(job.attempt);
            if let Some(current) = job.current_mut() {
                (current.finished_at, current.outcome, current.log_entries) = (Some(at), Some(outcome), log_entries);
            }
        }
        self.step(id, event)?;
        if let Some(run) = run {
            self.executions.remove(&run.execution);
            if !planted(Defect::SlotNotReleased) {
                self.fleet.update(run.worker, |worker| worker.release(run.execution, &needs));
            }
            self.note_freed(run.worker, run.execution);
        }
        Ok(())
    }

    /// What follows this failure of a job.
    fn after(&self, id: JobId, execution: ExecutionId, failure: &Failure) -> AfterFailure {
        let Some(entry) = self.jobs.get(&id) else { return AfterFailure::GiveUp };
        let (job, lost) = (&entry.job, failure.kind == FailureKind::WorkerLost);
        let poisonous = lost && job.losses + 1 >= self.config.loss_limit;
        if poisonous || !job.retry.allows(job.attempt, failure) {
            return match failure.kind {
                FailureKind::RunTimeout | FailureKind::HeartbeatTimeout => AfterFailure::GiveUpTimedOut,
                _ => AfterFailure::GiveUp,
            };
        }
        let seed = self.config.seed ^ execution.0.as_u64_pair().1;
        match job.retry.delay_after(job.attempt, seed) {
            _ if lost => AfterFailure::RetryNow,
            Millis::ZERO => AfterFailure::RetryNow,
            delay => AfterFailure::RetryAt(self.now + delay),
        }
    }

    /// Ends an execution because its worker is gone or has forgotten it.
    fn lose(&mut self, execution: ExecutionId, why: &str) {
        let Some(id) = self.executions.get(&execution).copied() else { return };
        let failure = Failure::new(FailureKind::WorkerLost, why);
        let event = Event::Fail(execution, self.after(id, execution, &failure));
        self.conclude(id, &event, Outcome::Failed(failure));
    }

    /// Ends an execution by the server's own decision, which the state machine always allows for a bound one.
    fn conclude(&mut self, id: JobId, event: &Event, outcome: Outcome) {
        let ended = self.end(id, event, outcome, self.now, 0);
        debug_assert!(ended.is_ok(), "{ended:?}");
    }

    // ---- timers and pages ---------------------------------------------------------------------------------------

    fn fire_timers(&mut self) {
        while let Some(id) = self.timers.pop_due(self.now) {
            let Some(entry) = self.jobs.get(&id) else { continue };
            match &entry.job.state {
                State::Delayed { .. } => self.fire(id, &Event::Due),
                State::Pending { .. } => self.fire(id, &Event::QueueTimeout),
                State::Running { run, .. } => self.stop(*run, StopReason::RunTimeout),
                _ => {}
            }
        }
    }

    fn fire(&mut self, id: JobId, event: &Event) {
        let fired = self.step(id, event);
        debug_assert!(fired.is_ok(), "{fired:?}");
    }
}
