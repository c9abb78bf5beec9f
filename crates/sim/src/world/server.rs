//! The server: the loop around the brain, as `hodei-server` has it, and the disk under it.

use super::{Event, World, elapsed, links::link_key, note, wall};
use crate::{
    defect::Defect,
    dice::{Dice, For},
    plan::{Shape, payload_of, spec, spec_of},
    store::Commit,
    trace::About,
    world::{calls::Reply, child_id, run_name},
};
use hodei_core::{
    brain::{Bound, Brain, Caller, Config, Connection, Effect, Input, NewJob, Report},
    id::{ExecutionId, JobId, WorkerId},
    job::Job,
    protocol::{Assignment, Context, Finished, LogAck, LogChunk, ToWorker, Verdict, Welcome},
    state::StateKind,
    time::{Elapsed, Millis, Now},
};
use std::{
    borrow::Cow,
    collections::{BTreeMap, VecDeque},
};

/// A commit that takes longer than this is a stall of the store.
const STALL: u64 = 2000;
/// Between two tries at a commit, growing from the first to the last.
const FIRST_RETRY: u64 = 50;
const LAST_RETRY: u64 = 1000;
const LONGEST_SLEEP: u64 = 3_600_000;

pub(super) struct Server {
    /// Counts the lives of the process, also those that never came to lead.
    pub life: u64,
    pub brain: Option<Brain>,
    frozen: bool,
    closing: Closing,
    /// What reached it while it was stopped.
    backlog: VecDeque<(u64, Event)>,
    skew: i64,
    offset: u64,
    slow_until: u64,
    slow_by: u64,
    failing_until: u64,
    torn: bool,

    flights: VecDeque<Flight>,
    pub committed: u64,
    deferred: Vec<Input>,
    /// The number of the next log entry of each execution that has printed.
    log_next: BTreeMap<ExecutionId, u64>,
    /// The same, as far as it is durable.
    log_stored: BTreeMap<ExecutionId, u64>,
    logs: Vec<LogChunk>,
    acks: Vec<(u64, LogAck)>,
    eras: Vec<(JobId, usize)>,
    heartbeats: BTreeMap<WorkerId, Elapsed>,
    callers: BTreeMap<u64, (usize, u32)>,
    calls: u64,
    connections: u64,
    turns: u64,
    turn_scheduled: bool,
    /// Something came since the last turn.
    waiting: bool,
    wakes: u64,
    /// The last commit took so long that a silent worker may not be to blame.
    slow: bool,
    /// The store does not answer, so nothing new is taken.
    stalled: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Closing {
    No,
    /// What is decided shall become durable first. It is down for so long.
    Waits(u64),
    Parked(u64),
}

/// A batch on its way to the disk, and what waits for it.
struct Flight {
    commit: Commit,
    effects: Vec<Effect>,
    acks: Vec<(u64, LogAck)>,
    began: u64,
    tries: u64,
}

impl Server {
    pub fn new(dice: Dice) -> Self {
        let mut rng = dice.roll(For::Agent, u64::MAX, 0);
        Self {
            life: 0,
            brain: None,
            frozen: false,
            closing: Closing::No,
            backlog: VecDeque::new(),
            skew: 0,
            offset: rng.u64(0..1_000_000),
            slow_until: 0,
            slow_by: 0,
            failing_until: 0,
            torn: false,
            flights: VecDeque::new(),
            committed: 0,
            deferred: Vec::new(),
            log_next: BTreeMap::new(),
            log_stored: BTreeMap::new(),
            logs: Vec::new(),
            acks: Vec::new(),
            eras: Vec::new(),
            heartbeats: BTreeMap::new(),
            callers: BTreeMap::new(),
            calls: 0,
            connections: 0,
            turns: 0,
            turn_scheduled: false,
            waiting: false,
            wakes: 0,
            slow: false,
            stalled: false,
        }
    }

    pub fn is_up(&self) -> bool {
        self.brain.is_some()
    }

    pub fn is_frozen(&self) -> bool {
        self.frozen
    }

    pub fn is_idle(&self) -> bool {
        self.is_up() && !self.frozen && self.flights.is_empty() && self.deferred.is_empty() && self.logs.is_empty()
    }

    pub fn keep(&mut self, ticket: u64, event: Event) {
        self.backlog.push_back((ticket, event));
    }

    pub fn takes_streams(&self) -> bool {
        self.is_up() && self.closing == Closing::No
    }

    pub fn takes_calls(&self) -> bool {
        self.takes_streams() && !self.stalled
    }

    pub fn new_connection(&mut self) -> Connection {
        self.connections += 1;
        Connection(self.connections)
    }

    pub fn new_caller(&mut self, call: usize, attempt: u32) -> Caller {
        self.calls += 1;
        self.callers.insert(self.calls, (call, attempt));
        Caller(self.calls)
    }

    pub fn jump(&mut self, by: i64) {
        self.skew += by;
    }

    pub fn slow_disk(&mut self, until: u64, by: u64) {
        (self.slow_until, self.slow_by) = (until, by);
    }

    pub fn fail_disk(&mut self, until: u64, torn: bool) {
        (self.failing_until, self.torn) = (until, torn);
    }

    /// Everything that a process has in its memory.
    fn forget_life(&mut self) {
        self.brain = None;
        self.closing = Closing::No;
        self.frozen = false;
        self.flights.clear();
        self.committed = 0;
        self.deferred.clear();
        self.log_next.clear();
        self.log_stored.clear();
        self.logs.clear();
        self.acks.clear();
        self.eras.clear();
        self.heartbeats.clear();
        self.connections = 0;
        self.turn_scheduled = false;
        (self.slow, self.stalled) = (false, false);
    }
}

pub(super) fn config(shape: &Shape) -> Config {
    Config {
        lease: shape.lease,
        lease_grace: shape.grace,
        window: shape.window,
        registration: Millis(4000),
        ..Config::default()
    }
}

impl World {
    fn server_now(&self) -> Now {
        Now { wall: wall(self.now, self.server.skew), elapsed: elapsed(self.now, self.server.offset) }
    }

    pub(super) fn server_clock(&self) -> Elapsed {
        self.server_now().elapsed
    }

    pub(super) fn heartbeat_length(&self) -> Millis {
        Millis((self.shape.lease.0 / 6).clamp(50, 10_000))
    }

    // ---- life and death -----------------------------------------------------------------------------------------

    pub(super) fn boot_server(&mut self) {
        if self.server.is_up() {
            return;
        }
        self.server.life += 1;
        let mut loaded = self.store.lead();
        if self.is(Defect::PlacementForgotten) {
            loaded.placed.clear();
        }
        note!(self, "server", (), "starts, epoch {}", loaded.epoch);
        self.server.brain = Some(Brain::load(config(&self.shape), loaded, self.server_now()));
        self.reset_ledger();
        self.look_at_makers();
        self.nudge();
    }

    pub(super) fn crash_server(&mut self, down: u64) {
        if !self.server.is_up() {
            return;
        }
        // What was on its way to the disk got there, or not; nobody will ever say.
        if let Some(flight) = self.server.flights.front() {
            let number = flight.commit.batch.number;
            if self.dice.roll(For::Crash, self.server.life, number).bool() {
                let commit = flight.commit.clone();
                self.write(&commit);
            }
        }
        self.end_server(down);
    }

    fn end_server(&mut self, down: u64) {
        note!(self, "server", (), "is down");
        self.break_all_links();
        let callers = std::mem::take(&mut self.server.callers);
        for (call, attempt) in callers.into_values() {
            self.after(self.shape.link.1, Event::Answer(call, attempt, Reply::Unknown));
        }
        let unheard = std::mem::take(&mut self.server.backlog);
        for (_, event) in unheard {
            if let Event::CallArrives(call, attempt) = event {
                self.after(1, Event::Answer(call, attempt, Reply::Unknown));
            }
        }
        self.server.forget_life();
        self.after(down, Event::ServerBoots);
    }

    pub(super) fn freeze_server(&mut self, length: u64) {
        if self.server.is_up() && !self.server.frozen {
            self.server.frozen = true;
            self.after(length, Event::ServerThaws);
        }
    }

    pub(super) fn thaw_server(&mut self) {
        if self.server.frozen {
            note!(self, "server", (), "goes on");
            self.server.frozen = false;
            for (ticket, event) in std::mem::take(&mut self.server.backlog) {
                self.put_off(self.now, ticket, event);
            }
        }
    }

    pub(super) fn park_server(&mut self, down: u64) {
        if self.server.takes_streams() && !self.server.frozen {
            self.server.closing = Closing::Waits(down);
            self.nudge();
        }
    }

    // ---- inputs -------------------------------------------------------------------------------------------------

    pub(super) fn heartbeat(&mut self, worker: WorkerId) {
        let at = self.server_now().elapsed;
        self.server.heartbeats.insert(worker, at);
    }

    /// Hands an input to the loop, unless it takes no more.
    pub(super) fn tell(&mut self, input: Input) {
        if !self.server.takes_streams() {
            return;
        }
        self.set_clock();
        self.apply_or_defer(input);
        self.nudge();
    }

    fn set_clock(&mut self) {
        let now = self.server_now();
        if let Some(brain) = &mut self.server.brain {
            brain.clock(now);
        }
    }

    fn apply_or_defer(&mut self, input: Input) {
        let Some(brain) = &self.server.brain else { return };
        let at_once = match &input {
            _ if !self.server.deferred.is_empty() => false,
            Input::Connect { .. } => false,
            input => brain.missing(input).is_empty(),
        };
        if at_once {
            self.apply(input);
        } else {
            self.server.deferred.push(input);
        }
    }

    fn apply(&mut self, input: Input) {
        let Some(brain) = &mut self.server.brain else { return };
        match input {
            Input::Report { caller: None, worker, report: Report::Finished(ref finished, _) }
                if !is_logged(brain, &self.server.log_next, worker, finished) =>
            {
                note!(self, "server", (), "{} ended before its log came", run_name(finished.execution));
            }
            Input::SetQueue { ref queue, ref order, .. } => {
                self.ledger.steer(queue, order);
                brain.apply(input);
            }
            Input::Resume { job, .. } => {
                let blocked = |job: &&Job| job.state.kind() == StateKind::Blocked;
                let before = brain.job(job).filter(blocked).map(|job| job.executions.len());
                brain.apply(input);
                if let Some(executions) = before.filter(|_| brain.job(job).filter(blocked).is_none()) {
                    self.ledger.resumed(job, executions);
                }
            }
            Input::Retry { job, .. } => {
                let ended = |job: &Job| job.state.kind().is_finished();
                self.ledger.hurried(job);
                let before = brain.job(job).filter(|job| ended(job)).map(|job| job.executions.len());
                brain.apply(input);
                if let Some(executions) = before.filter(|_| brain.job(job).is_some_and(|job| !ended(job))) {
                    self.server.eras.push((job, executions));
                    self.ledger.retried(job, executions);
                }
            }
            input => brain.apply(input),
        }
    }

    /// The jobs that a run wants enqueued, as the server makes them of its report.
    pub(super) fn children_of(&mut self, finished: &Finished) -> Vec<NewJob> {
        let Some(time) = self.server.brain.as_ref().map(Brain::time) else { return Vec::new() };
        self.parents += u64::from(!finished.children.is_empty());
        let child = |(payload, n): (&Vec<u8>, u64)| {
            let kind = payload.first_chunk().map_or(0, |kind| u16::from_le_bytes(*kind));
            let mut spec = spec(kind, time);
            spec.tags = vec![run_name(finished.execution)];
            NewJob { id: child_id(self.parents, n), spec, payload: payload_of(kind, time) }
        };
        finished.children.iter().zip(0..).map(child).collect()
    }

    /// A chunk is stored if it continues what is there; a repeat, or one that nobody wants, is acknowledged only.
    pub(super) fn take_logs(&mut self, worker: WorkerId, link: u64, chunk: LogChunk) {
        let Some(brain) = &self.server.brain else { return };
        if self.server.closing != Closing::No {
            return;
        }
        let execution = chunk.execution;
        if brain.bound(worker, execution) != Some(chunk.job) {
            self.server.acks.push((link, LogAck { execution, entries: chunk.end() }));
            self.nudge();
            return;
        }
        let next = self.server.log_next.entry(execution).or_insert(0);
        if chunk.first > *next {
            self.close_down(link);
            return;
        }
        if chunk.first == *next {
            *next = chunk.end();
            self.server.logs.push(chunk);
        }
        let ack = LogAck { execution, entries: self.server.log_next[&execution] };
        if self.is(Defect::LogAckBeforeCommit) {
            self.send_down(link, ToWorker::Acked { results: Vec::new(), logs: vec![ack] });
        } else {
            self.server.acks.push((link, ack));
        }
        self.nudge();
    }

    /// Applies what had to wait for a row. Nothing is on its way to the disk, so what is read is current.
    fn resolve_deferred(&mut self) {
        for input in std::mem::take(&mut self.server.deferred) {
            let Some(brain) = &mut self.server.brain else { return };
            if let Input::Connect { worker, hello, .. } = &input {
                for execution in hello.held.iter().chain(&hello.ended) {
                    if brain.bound(*worker, *execution).is_some() {
                        let stored = self.store.log_entries(*execution);
                        self.server.log_next.entry(*execution).or_insert(stored);
                        self.server.log_stored.entry(*execution).or_insert(stored);
                    }
                }
            }
            let missing = brain.missing(&input);
            let latest = |job: JobId| self.store.latest(job).map(Cow::into_owned);
            brain.learn(self.store.kept.facts(&missing, latest));
            self.apply(input);
        }
    }

    // ---- turns --------------------------------------------------------------------------------------------------

    /// Something came: a turn follows soon, unless the disk must be waited for.
    pub(super) fn nudge(&mut self) {
        self.server.waiting = true;
        self.schedule_turn();
    }

    fn schedule_turn(&mut self) {
        if self.server.is_up() && !self.server.turn_scheduled && self.may_turn() {
            self.server.turns += 1;
            let wait = self.dice.roll(For::Turn, self.server.life, self.server.turns).u64(0..=2);
            self.server.turn_scheduled = true;
            self.after(wait, Event::Turn(self.server.life));
        }
    }

    fn may_turn(&self) -> bool {
        let flights = self.server.flights.len();
        let must_wait = self.server.closing != Closing::No || !self.server.deferred.is_empty();
        flights == 0 || (flights < self.shape.pipeline && !must_wait)
    }

    pub(super) fn turn_due(&mut self, life: u64) {
        if life == self.server.life && self.server.is_up() {
            self.server.turn_scheduled = false;
            if self.may_turn() {
                self.turn();
            }
        }
    }

    pub(super) fn wake(&mut self, life: u64, generation: u64) {
        if life == self.server.life && generation == self.server.wakes {
            self.nudge();
        }
    }

    fn turn(&mut self) {
        self.server.waiting = false;
        self.set_clock();
        self.resolve_deferred();
        let renewed = std::mem::take(&mut self.server.heartbeats);
        for (worker, at) in renewed {
            self.apply(Input::Heartbeat { worker, at });
        }
        if let Closing::Waits(down) = self.server.closing {
            self.server.closing = Closing::Parked(down);
            self.apply(Input::Park { lease: self.shape.parked_lease });
        }
        let Some(brain) = &mut self.server.brain else { return };
        let (batch, effects) = brain.turn(std::mem::take(&mut self.server.slow));
        let epoch = brain.epoch();
        self.check_turn(&batch);
        let logs = std::mem::take(&mut self.server.logs);
        let (acks, eras) = (std::mem::take(&mut self.server.acks), std::mem::take(&mut self.server.eras));
        let nothing = batch.is_empty() && logs.is_empty();
        let commit = Commit { epoch, batch, logs, eras };
        if nothing && self.server.flights.is_empty() {
            if let Some(brain) = &mut self.server.brain {
                brain.committed(&commit.batch);
            }
            self.release(effects, acks);
            self.closed();
        } else {
            let mut flight = Flight { commit, effects, acks, began: self.now, tries: 0 };
            if self.is(Defect::EffectBeforeCommit) {
                let (effects, acks) = (std::mem::take(&mut flight.effects), std::mem::take(&mut flight.acks));
                self.release(effects, acks);
            }
            self.server.flights.push_back(flight);
            if self.server.flights.len() == 1 {
                self.start_disk();
            }
        }
        self.schedule_wake();
    }

    fn schedule_wake(&mut self) {
        let Some(brain) = &self.server.brain else { return };
        let now = self.server_now();
        let (due, lease) = brain.next_wake();
        let due = due.map(|at| (at - now.wall).0);
        let lease = lease.map(|at| (at - now.elapsed).0);
        let soonest = due.into_iter().chain(lease).min().unwrap_or(LONGEST_SLEEP).min(LONGEST_SLEEP);
        self.server.wakes += 1;
        self.after(soonest + 1, Event::Wake(self.server.life, self.server.wakes));
    }

    // ---- the disk -----------------------------------------------------------------------------------------------

    fn start_disk(&mut self) {
        let Some(flight) = self.server.flights.front_mut() else { return };
        flight.tries += 1;
        let (number, tries) = (flight.commit.batch.number, flight.tries);
        let mut rng = self.dice.roll(For::Disk, (self.server.life << 32) | number, tries);
        let (low, high) = self.shape.disk;
        let slow = if self.server.slow_until > self.now { rng.u64(0..=self.server.slow_by) } else { 0 };
        self.after(rng.u64(low..=high) + slow, Event::Disk(self.server.life));
    }

    pub(super) fn disk(&mut self, life: u64) {
        if life != self.server.life {
            return;
        }
        let Some(flight) = self.server.flights.front() else { return };
        let fails = self.server.failing_until > self.now;
        let (number, tries) = (flight.commit.batch.number, flight.tries);
        let mut rng = self.dice.roll(For::Disk, (life << 32) | number, tries | (1 << 32));
        let fails = fails && rng.u8(..) < 200;
        if !fails || (self.server.torn && rng.bool()) {
            let commit = flight.commit.clone();
            self.write(&commit);
        }
        self.after(0, Event::Landed(life, !fails));
    }

    fn write(&mut self, commit: &Commit) {
        let recognise_repeats = !self.is(Defect::CommitAppliedTwice);
        let is_new = !self.store.has(commit);
        let written = self.store.commit(commit, recognise_repeats);
        self.check_commit(commit, written);
        if is_new {
            self.check_budgets(&commit.batch);
        }
    }

    pub(super) fn landed(&mut self, life: u64, well: bool) {
        if life != self.server.life || !self.server.is_up() {
            return;
        }
        let Some(flight) = self.server.flights.front() else { return };
        if !well && !self.is(Defect::CommitNotRepeated) {
            note!(self, "server", (), "batch {} could not be committed", flight.commit.batch.number);
            self.server.stalled = true;
            let wait = (FIRST_RETRY << flight.tries.min(10)).min(LAST_RETRY);
            self.after(wait, Event::DiskAgain(life));
            return;
        }
        let Some(Flight { commit, effects, acks, began, .. }) = self.server.flights.pop_front() else { return };
        for job in commit.batch.jobs.iter().map(|write| &write.job) {
            note!(self, "server", About::from(job.id), "is {} on disk", job.state.kind().name());
        }
        (self.server.slow, self.server.stalled) = (self.now - began > STALL, false);
        self.server.committed = commit.batch.number;
        for chunk in &commit.logs {
            self.server.log_stored.insert(chunk.execution, chunk.end());
        }
        for write in &commit.batch.jobs {
            for execution in write.job.executions.iter().filter(|execution| execution.outcome.is_some()) {
                self.server.log_next.remove(&execution.id);
                self.server.log_stored.remove(&execution.id);
            }
        }
        if let Some(brain) = &mut self.server.brain {
            brain.committed(&commit.batch);
        }
        self.check_memory(&commit.batch);
        self.release(effects, acks);
        self.closed();
        if !self.server.flights.is_empty() {
            self.start_disk();
        }
        if self.server.waiting {
            self.schedule_turn();
        }
    }

    pub(super) fn disk_again(&mut self, life: u64) {
        if life == self.server.life && self.server.is_up() {
            self.start_disk();
        }
    }

    /// The end of an orderly shutdown, once the last batch is durable and its effects are out.
    fn closed(&mut self) {
        if let Closing::Parked(down) = self.server.closing
            && self.server.flights.is_empty()
        {
            self.end_server(down);
        }
    }

    pub(super) fn read(&mut self, life: u64, effect: Effect) {
        if life != self.server.life {
            return;
        }
        let page = match effect {
            Effect::ReadReady { class, priority, after, limit, follows } => {
                let ahead = self.dice.roll(For::Read, life, self.tickets).u64(0..=follows % 8);
                let jobs = self.store.ready(class, priority, after, limit, follows + ahead);
                Input::Ready { class, priority, limit, jobs }
            }
            Effect::ReadDue { after, limit } => {
                let mut jobs = self.store.due(after, limit);
                if self.is(Defect::TimerLostAtRestart) && life > 1 && after.is_none() {
                    jobs.pop();
                }
                Input::Due { limit, jobs }
            }
            Effect::ReadDependents { of, each } => {
                let jobs = self.store.dependents(&of, each);
                Input::Dependents { of, each, jobs }
            }
            _ => return,
        };
        let (low, high) = self.shape.disk;
        let wait = self.dice.roll(For::Read, life, self.tickets).u64(low..=high + 3);
        self.after(wait, Event::Page(life, page));
    }

    pub(super) fn page(&mut self, life: u64, page: Input) {
        if life == self.server.life {
            self.tell(page);
        }
    }

    // ---- effects ------------------------------------------------------------------------------------------------

    fn release(&mut self, effects: Vec<Effect>, acks: Vec<(u64, LogAck)>) {
        let mut acked: BTreeMap<u64, (Vec<ExecutionId>, Vec<LogAck>)> = BTreeMap::new();
        let mut closing = Vec::new();
        for (link, ack) in acks {
            acked.entry(link).or_default().1.push(ack);
        }
        let life = self.server.life;
        for effect in effects {
            match effect {
                Effect::Answer { caller, answer } => {
                    if let Some((call, attempt)) = self.server.callers.remove(&caller.0) {
                        self.reply(call, attempt, Reply::Brain(answer));
                    }
                }
                Effect::ReadReady { .. } | Effect::ReadDue { .. } | Effect::ReadDependents { .. } => {
                    let (low, high) = self.shape.disk;
                    let wait = self.dice.roll(For::Read, life, self.tickets).u64(low..=high + 3);
                    self.after(wait, Event::Read(life, effect));
                }
                Effect::Acked { connection, execution, .. } => {
                    acked.entry(link_key(life, connection)).or_default().0.push(execution);
                }
                Effect::Close { connection, .. } => closing.push(link_key(life, connection)),
                Effect::Welcome { connection, verdicts, heartbeat, .. } => {
                    let verdict = |bound: &Bound| Verdict {
                        execution: bound.execution,
                        keep: bound.job.is_some(),
                        log_entries: self.server.log_stored.get(&bound.execution).copied().unwrap_or(0),
                    };
                    let held: Vec<Verdict> = verdicts.iter().map(verdict).collect();
                    self.check_welcome(&held);
                    let usual = self.heartbeat_length();
                    let heartbeat = heartbeat.map_or(usual, |heartbeat| heartbeat.min(usual));
                    let welcome = Welcome { lease: self.shape.lease, heartbeat, held };
                    self.send_down(link_key(life, connection), ToWorker::Welcome(welcome));
                }
                Effect::Run { worker, connection, job, execution, attempt, .. } => {
                    self.check_sent(worker, job, execution);
                    self.check_given(worker, execution);
                    note!(self, "server", About::from(job), "sends {} to {worker}", run_name(execution));
                    if let Some(payload) = self.store.payloads.get(&job) {
                        let assignment =
                            Assignment { job, execution, attempt, spec: spec_of(payload), context: Context::default() };
                        self.send_down(link_key(life, connection), ToWorker::Run(vec![assignment]));
                    }
                }
                Effect::Stop { connection, execution, why, .. } => {
                    self.send_down(link_key(life, connection), ToWorker::Stop { execution, why });
                }
                Effect::Create { .. } | Effect::Inspect { .. } | Effect::Destroy { .. } => self.ask_maker(effect),
                Effect::Drain { connection, within, .. } => {
                    self.send_down(link_key(life, connection), ToWorker::Drain { within });
                }
                Effect::RestartHandler { connection, handler, .. } => {
                    self.send_down(link_key(life, connection), ToWorker::RestartHandler { handler });
                }
                Effect::Park { connection, lease, .. } => {
                    self.send_down(link_key(life, connection), ToWorker::Park { lease });
                }
            }
        }
        for (link, (results, logs)) in acked {
            self.send_down(link, ToWorker::Acked { results, logs });
        }
        for link in closing {
            self.close_down(link);
        }
    }
}

/// Whether all that an execution printed before this end of it has come.
fn is_logged(brain: &Brain, log_next: &BTreeMap<ExecutionId, u64>, worker: WorkerId, finished: &Finished) -> bool {
    let came = log_next.get(&finished.execution).copied().unwrap_or(0);
    brain.bound(worker, finished.execution).is_none() || finished.log_entries <= came
}
