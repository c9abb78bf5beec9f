//! Workers: the agent around the real session, its spool on disk, and the guardian with the processes of the jobs, which
//! lives on when the agent dies or stands still.

use super::{
    Event, World,
    calls::{Ask, Call},
    elapsed, is_child, note, run_name, wall, worker_id,
};
use crate::{
    defect::Defect,
    dice::{Dice, For},
    plan::{Plan, TASK, Way, traits},
    trace::About,
};
use hodei_core::{
    id::{ExecutionId, Incarnation, JobId, WorkerId},
    job::Progress,
    protocol::{Assignment, Finished, FromWorker, LogChunk, StopReason},
    session::{Action, Record, RecordId, RecordKind, Session},
    state::{Failure, FailureKind, Outcome},
    time::{Elapsed, Millis, Time},
    worker::{Capacity, Offer, WorkerInfo},
};
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};
use uuid::Uuid;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// There is no process.
    Dead,
    Awake,
    Frozen,
}

pub(super) struct Agent {
    pub index: usize,
    pub id: WorkerId,
    pub capacity: Capacity,
    traits: u8,
    /// What it says of itself, if a provider made it.
    made: Option<Box<WorkerInfo>>,
    gone: bool,
    /// Counts the agent processes, and how often this worker registered.
    pub life: u64,
    pub registrations: u64,
    phase: Phase,
    pub session: Session,
    offset: u64,
    skew: i64,
    backlog: VecDeque<(u64, Event)>,
    ticks: u64,

    pub link: Option<u64>,
    pub attempt: u64,
    pub failures: u32,
    /// Nothing passes to or from the server before then.
    pub cut_up_until: u64,
    pub cut_down_until: u64,
    pub slow: (u64, u64, Way),

    pub spool: BTreeMap<RecordId, Entry>,
    records: u64,
    /// How long it stays away once it has been asked to end and is done.
    leaving: Option<u64>,

    // The guardian's side.
    lease: Option<Elapsed>,
    leases: u64,
    pub processes: BTreeMap<ExecutionId, Process>,
    past: Vec<ExecutionId>,
}

#[derive(Clone, Debug)]
pub(super) enum Entry {
    Logs(LogChunk),
    Finished(Finished),
}

impl Entry {
    pub fn execution(&self) -> ExecutionId {
        match self {
            Entry::Logs(chunk) => chunk.execution,
            Entry::Finished(finished) => finished.execution,
        }
    }
}

#[derive(Debug)]
pub(super) struct Process {
    pub job: JobId,
    pub live: bool,
    /// How it will end if nobody stops it.
    fate: Outcome,
    /// The kinds of the jobs that it will want enqueued with its end.
    children: Vec<u16>,
    stop: Option<StopReason>,
    lapsed: bool,
    ended: bool,
    started: Option<Time>,
    /// Lines that reached the agent.
    lines: u64,
}

/// What the guardian tells the agent.
#[derive(Debug)]
pub(super) enum Notice {
    Started(ExecutionId, Time),
    Progress(ExecutionId),
    Printed(ExecutionId, u64),
    Ended(ExecutionId, Outcome),
}

impl Agent {
    /// What it says of itself: some run processes, some tasks, some both.
    pub fn info(&self) -> WorkerInfo {
        if let Some(info) = &self.made {
            return (**info).clone();
        }
        let handles = if self.index.is_multiple_of(3) { BTreeSet::new() } else { BTreeSet::from([Arc::from(TASK)]) };
        let offer = Offer { task_types: handles, tasks_only: self.index % 3 == 2 };
        WorkerInfo { capacity: self.capacity, offer, ..traits(self.index, self.traits) }
    }

    /// One that a provider makes.
    pub fn made(index: usize, id: WorkerId, info: WorkerInfo, dice: Dice) -> Self {
        let agent = Self::with(index, info.capacity, dice);
        Self { id, made: Some(Box::new(info)), ..agent }
    }

    pub fn new(index: usize, plan: &Plan, dice: Dice) -> Self {
        Self::with(index, plan.shape.capacities[index], dice)
    }

    pub fn is_made(&self) -> bool {
        self.made.is_some()
    }

    /// Its process is over and nothing starts another.
    pub fn is_gone(&self) -> bool {
        self.gone
    }

    pub fn gone(&mut self) {
        (self.gone, self.phase, self.link) = (true, Phase::Dead, None);
        self.backlog.clear();
    }

    fn with(index: usize, capacity: Capacity, dice: Dice) -> Self {
        let mut rng = dice.roll(For::Agent, index as u64, 0);
        Self {
            index,
            id: worker_id(index),
            capacity,
            traits: dice.roll(For::Agent, index as u64, 1).u8(..),
            made: None,
            gone: false,
            life: 0,
            registrations: 0,
            phase: Phase::Dead,
            session: Session::new(Incarnation(Uuid::nil()), WorkerInfo::default(), Vec::new()),
            offset: rng.u64(0..1_000_000),
            skew: rng.i64(-5000..5000),
            backlog: VecDeque::new(),
            ticks: 0,
            link: None,
            attempt: 0,
            failures: 0,
            cut_up_until: 0,
            cut_down_until: 0,
            slow: (0, 0, Way::Both),
            spool: BTreeMap::new(),
            records: 0,
            leaving: None,
            lease: None,
            leases: 0,
            processes: BTreeMap::new(),
            past: Vec::new(),
        }
    }

    pub fn is_awake(&self) -> bool {
        self.phase == Phase::Awake
    }

    pub fn is_frozen(&self) -> bool {
        self.phase == Phase::Frozen
    }

    pub fn keep(&mut self, ticket: u64, event: Event) {
        self.backlog.push_back((ticket, event));
    }

    /// Its own clock, which counts from another beginning than everybody else's.
    pub fn clock(&self, now: u64) -> Elapsed {
        elapsed(now, self.offset)
    }

    fn wall(&self, now: u64) -> Time {
        wall(now, self.skew)
    }

    fn lease_is_over(&self, now: u64) -> bool {
        self.lease.is_none_or(|lease| self.clock(now) >= lease)
    }

    fn append(&mut self, entry: Entry) -> Record {
        self.records += 1;
        let id = RecordId(self.records);
        let kind = match &entry {
            Entry::Logs(chunk) => RecordKind::Logs { end: chunk.end() },
            Entry::Finished(_) => RecordKind::Finished,
        };
        let record = Record { id, execution: entry.execution(), kind, bytes: 100 };
        self.spool.insert(id, entry);
        record
    }

    /// Opens the spool as a new agent does: an execution that has a log but no end was running when the last agent died.
    fn recover(&mut self, now: Time) -> Vec<Record> {
        let mut unended: BTreeMap<ExecutionId, u64> = BTreeMap::new();
        for entry in self.spool.values() {
            match entry {
                Entry::Logs(chunk) => _ = unended.insert(chunk.execution, chunk.end()),
                Entry::Finished(finished) => _ = unended.remove(&finished.execution),
            }
        }
        for (execution, log_entries) in unended {
            let outcome = Outcome::Failed(Failure::new(FailureKind::WorkerLost, "its worker agent died"));
            let end = Finished { log_entries, ..Finished::new(execution, outcome, now) };
            self.append(Entry::Finished(end));
        }
        let record = |(id, entry): (&RecordId, &Entry)| {
            let kind = match entry {
                Entry::Logs(chunk) => RecordKind::Logs { end: chunk.end() },
                Entry::Finished(_) => RecordKind::Finished,
            };
            Record { id: *id, execution: entry.execution(), kind, bytes: 100 }
        };
        self.spool.iter().map(record).collect()
    }
}

impl World {
    // ---- life and death -----------------------------------------------------------------------------------------

    pub(super) fn boot_agent(&mut self, at: usize, life: u64) {
        let now = self.now;
        let agent = &mut self.agents[at];
        if agent.life != life || agent.phase != Phase::Dead || agent.gone {
            return;
        }
        agent.life += 1;
        agent.phase = Phase::Awake;
        agent.attempt += 1;
        (agent.leaving, agent.lease, agent.failures) = (None, None, 0);
        let leftovers: Vec<ExecutionId> = agent.processes.keys().copied().collect();
        if !self.is(Defect::GuardianIgnoresDeath) {
            leftovers.into_iter().for_each(|execution| self.kill(at, execution));
        }
        if self.is(Defect::SpoolDropped) {
            self.agents[at].spool.clear();
        }
        let agent = &mut self.agents[at];
        let time = agent.wall(now);
        let records = agent.recover(time);
        let incarnation = Incarnation(Uuid::from_u128((agent.index as u128) << 64 | u128::from(agent.life)));
        agent.session = Session::new(incarnation, agent.info(), records);
        let spooled: Vec<Entry> = self.agents[at].spool.values().cloned().collect();
        spooled.iter().for_each(|entry| self.note_spooled(entry));
        note!(self, "agent", at, "starts, life {}", self.agents[at].life);
        self.open(at);
        self.pump(at);
    }

    pub(super) fn crash_agent(&mut self, at: usize, down: u64) {
        if self.agents[at].phase == Phase::Dead {
            return;
        }
        let key = self.agents[at].attempt;
        let lose = self.dice.roll(For::Agent, at as u64, (key << 1) | 1).bool();
        if let Some(link) = self.agents[at].link {
            self.break_link(link, lose, 20, 0);
        }
        self.agent_is_gone(at, down);
    }

    /// The process ends, however; its guardian notices that the pipe is closed.
    fn agent_is_gone(&mut self, at: usize, down: u64) {
        let agent = &mut self.agents[at];
        (agent.phase, agent.link) = (Phase::Dead, None);
        agent.backlog.clear();
        let life = agent.life;
        let notices = self.dice.roll(For::Agent, at as u64, life << 1).u64(1..50);
        self.after(notices, Event::PipeCloses(at, life));
        if self.agents[at].is_made() {
            self.agents[at].gone = true;
        } else {
            self.after(down.max(60), Event::AgentBoots(at, life));
        }
    }

    pub(super) fn joins_anew(&mut self, at: usize) {
        let agent = &mut self.agents[at];
        (agent.phase, agent.link) = (Phase::Dead, None);
        agent.backlog.clear();
        agent.registrations += 1;
        self.after(1, Event::PipeCloses(at, self.agents[at].life));
        self.register(at);
    }

    /// Its provider ends it with all that it started.
    pub(super) fn remove_agent(&mut self, at: usize) {
        if let Some(link) = self.agents[at].link {
            self.break_link(link, true, 20, 0);
        }
        let running: Vec<ExecutionId> = self.agents[at].processes.keys().copied().collect();
        running.into_iter().for_each(|execution| self.kill(at, execution));
        self.agents[at].gone();
    }

    pub(super) fn freeze_agent(&mut self, at: usize, length: u64) {
        let agent = &mut self.agents[at];
        if agent.phase == Phase::Awake {
            agent.phase = Phase::Frozen;
            let life = agent.life;
            self.after(length, Event::AgentThaws(at, life));
        }
    }

    pub(super) fn thaw_agent(&mut self, at: usize, life: u64) {
        let agent = &mut self.agents[at];
        if agent.life == life && agent.phase == Phase::Frozen {
            agent.phase = Phase::Awake;
            let backlog = std::mem::take(&mut agent.backlog);
            note!(self, "agent", at, "goes on");
            backlog.into_iter().for_each(|(ticket, event)| self.put_off(self.now, ticket, event));
        }
    }

    /// A signal asks the agent to end.
    pub(super) fn end_agent(&mut self, at: usize, give_back: bool, down: u64) {
        let agent = &mut self.agents[at];
        if agent.phase != Phase::Awake {
            return;
        }
        agent.leaving = Some(down);
        if give_back {
            agent.session.release();
        } else {
            agent.session.leave(false);
        }
        self.pump(at);
    }

    // ---- what the session wants ---------------------------------------------------------------------------------

    pub(super) fn tick(&mut self, at: usize, life: u64, generation: u64) {
        let agent = &mut self.agents[at];
        if agent.phase == Phase::Awake && agent.life == life && agent.ticks == generation {
            let now = agent.clock(self.now);
            agent.session.tick(now);
            self.pump(at);
        }
    }

    /// Carries out what the session wants; some of it makes the session want more.
    pub(super) fn pump(&mut self, at: usize) {
        loop {
            let actions = self.agents[at].session.take_actions();
            if actions.is_empty() || self.agents[at].phase == Phase::Dead {
                break;
            }
            actions.into_iter().for_each(|action| self.act(at, action));
        }
        let agent = &mut self.agents[at];
        if agent.phase != Phase::Dead {
            agent.ticks += 1;
            let wait = (agent.session.next_wake() - agent.clock(self.now)).0;
            let (life, generation) = (agent.life, agent.ticks);
            self.after(wait, Event::Tick(at, life, generation));
        }
    }

    fn act(&mut self, at: usize, action: Action) {
        match action {
            Action::Send(message) => self.say(at, message),
            Action::SendRecord(id) => match self.agents[at].spool.get(&id).cloned() {
                Some(Entry::Logs(chunk)) => self.say(at, FromWorker::Logs(chunk)),
                Some(Entry::Finished(finished)) => self.say(at, FromWorker::Finished(finished)),
                None => {}
            },
            Action::Forget(id) => {
                if let Some(entry) = self.agents[at].spool.remove(&id) {
                    self.check_forgotten(at, &entry);
                }
            }
            Action::Run(assignment) => self.start(at, &assignment),
            Action::Stop { execution, why } => self.stop(at, execution, why),
            Action::Conclude(mut finished) => {
                finished.finished_at = self.agents[at].wall(self.now);
                self.keep_record(at, Entry::Finished(finished));
            }
            Action::SetLease(until) => self.set_lease(at, until),
            // What is simulated has no handlers with processes of their own.
            Action::RestartHandler(_) => {}
            Action::Reconnect => {
                note!(self, "agent", at, "gives up its stream");
                self.drop_stream(at);
            }
            Action::Exit { for_good } => self.exit(at, for_good),
        }
    }

    fn say(&mut self, at: usize, message: FromWorker) {
        if let Some(link) = self.agents[at].link {
            self.send_up(link, message);
        }
    }

    pub(super) fn drop_stream(&mut self, at: usize) {
        let agent = &mut self.agents[at];
        if let Some(link) = agent.link.take() {
            agent.session.disconnected();
            agent.attempt += 1;
            let (life, attempt) = (agent.life, agent.attempt);
            self.hang_up(link);
            self.after(1, Event::Reopen(at, life, attempt));
        }
    }

    fn keep_record(&mut self, at: usize, entry: Entry) {
        self.note_spooled(&entry);
        let record = self.agents[at].append(entry);
        self.agents[at].session.spooled(record);
    }

    fn exit(&mut self, at: usize, for_good: bool) {
        if self.agents[at].phase == Phase::Dead {
            return;
        }
        self.check_leaves_nothing(at);
        note!(self, "agent", at, "ends{}", if for_good { " for good" } else { "" });
        if let Some(link) = self.agents[at].link {
            self.hang_up(link);
        }
        if for_good {
            let agent = &mut self.agents[at];
            (agent.phase, agent.link) = (Phase::Dead, None);
            agent.backlog.clear();
            self.call(Call::new(at as u64, Ask::Unregister(at)));
        } else {
            let down = self.agents[at].leaving.unwrap_or(0);
            self.agent_is_gone(at, down);
        }
    }

    // ---- the guardian and its processes -------------------------------------------------------------------------

    fn set_lease(&mut self, at: usize, until: Elapsed) {
        let agent = &mut self.agents[at];
        agent.lease = Some(until);
        agent.leases += 1;
        let (wait, generation) = ((until - agent.clock(self.now)).0, agent.leases);
        self.after(wait, Event::LeaseEnds(at, generation));
    }

    pub(super) fn lease_ends(&mut self, at: usize, generation: u64) {
        let agent = &self.agents[at];
        if agent.leases != generation || !agent.lease_is_over(self.now) || self.is(Defect::GuardianIgnoresLease) {
            return;
        }
        let running: Vec<ExecutionId> = agent.processes.keys().copied().collect();
        for execution in running {
            if let Some(process) = self.agents[at].processes.get_mut(&execution) {
                process.lapsed = true;
                self.ends(at, execution);
            }
        }
    }

    pub(super) fn pipe_closes(&mut self, at: usize, life: u64) {
        if self.agents[at].life == life && !self.is(Defect::GuardianIgnoresDeath) {
            let running: Vec<ExecutionId> = self.agents[at].processes.keys().copied().collect();
            running.into_iter().for_each(|execution| self.kill(at, execution));
        }
    }

    /// It is gone, and nobody is there to be told.
    fn kill(&mut self, at: usize, execution: ExecutionId) {
        if let Some(process) = self.agents[at].processes.remove(&execution)
            && process.live
        {
            note!(self, "guardian", About::from((Some(process.job), at)), "kills {}", run_name(execution));
            self.ledger.process_ended(process.job, execution);
        }
    }

    fn start(&mut self, at: usize, assignment: &Assignment) {
        let Assignment { job, execution, .. } = *assignment;
        let n = self.ledger.count_run(job);
        let mut rng = self.dice.roll(For::Process, job.0.as_u64_pair().1, n);
        let fate = match rng.u8(..100) {
            0..68 => Outcome::Succeeded,
            68..83 => Outcome::Failed(Failure::exit(1)),
            83..86 => Outcome::Failed(Failure::signal(11)),
            86..93 => Outcome::Snoozed { delay: Millis(rng.u64(1..1500)) },
            _ => Outcome::Blocked { reason: "waits for a word".into() },
        };
        // Children have no children, or there would be no end to them.
        let may_have = !is_child(job) && rng.u8(..) < 30;
        let children = if may_have { (0..rng.u16(1..4)).map(|_| rng.u16(0..80)).collect() } else { Vec::new() };
        let process = Process {
            job,
            live: false,
            fate,
            children,
            stop: None,
            lapsed: false,
            ended: false,
            started: None,
            lines: 0,
        };
        self.agents[at].processes.insert(execution, process);
        self.agents[at].past.push(execution);
        self.after(rng.u64(0..20), Event::Begins(at, execution));
    }

    pub(super) fn begins(&mut self, at: usize, execution: ExecutionId) {
        let now = self.now;
        let over = self.agents[at].lease_is_over(now) && !self.is(Defect::GuardianIgnoresLease);
        let agent = &mut self.agents[at];
        let time = agent.wall(now);
        let Some(process) = agent.processes.get_mut(&execution).filter(|process| !process.ended) else { return };
        if over || process.stop.is_some() {
            process.lapsed |= over;
            self.ends(at, execution);
            return;
        }
        let job = process.job;
        (process.live, process.started) = (true, Some(time));
        note!(self, "guardian", About::from((Some(job), at)), "starts {}", run_name(execution));
        self.check_start(at, job, execution);
        self.inform(at, Notice::Started(execution, time));
        let n = self.ledger.runs_of(job);
        let mut rng = self.dice.roll(For::Process, job.0.as_u64_pair().1, n | (1 << 32));
        let length = match rng.u64(..100) {
            chance if chance < self.shape.long_jobs => rng.u64(2000..3 * self.shape.lease.0),
            80.. => rng.u64(400..2000),
            _ => rng.u64(5..400),
        };
        for _ in 0..rng.u64(0..4) {
            let (when, lines) = (rng.u64(0..length), rng.u64(1..4));
            self.after(when, Event::Prints(at, execution, lines));
        }
        self.after(length, Event::Ends(at, execution));
    }

    pub(super) fn prints(&mut self, at: usize, execution: ExecutionId, lines: u64) {
        let live = self.agents[at].processes.get(&execution).is_some_and(|process| process.live);
        if live && lines > 0 {
            self.inform(at, Notice::Printed(execution, lines));
            if lines == 3 {
                self.inform(at, Notice::Progress(execution));
            }
        }
    }

    fn stop(&mut self, at: usize, execution: ExecutionId, why: StopReason) {
        let Some(process) = self.agents[at].processes.get_mut(&execution) else { return };
        if process.stop.is_none() {
            process.stop = Some(why);
            let job = process.job;
            let mut rng = self.dice.roll(For::Process, job.0.as_u64_pair().1, self.ledger.runs_of(job) | (2 << 32));
            self.after(rng.u64(0..300), Event::Ends(at, execution));
        }
    }

    /// A process ends by itself, or because it was stopped.
    pub(super) fn ends(&mut self, at: usize, execution: ExecutionId) {
        let Some(process) = self.agents[at].processes.get_mut(&execution).filter(|process| !process.ended) else {
            return;
        };
        process.ended = true;
        let (job, was_live) = (process.job, std::mem::replace(&mut process.live, false));
        let outcome = match (process.stop, process.lapsed) {
            (_, true) => Outcome::Failed(Failure::new(FailureKind::WorkerLost, "stopped: the lease ran out")),
            (Some(StopReason::RunTimeout), _) => Outcome::Failed(Failure::new(FailureKind::RunTimeout, "late")),
            (Some(_), _) => Outcome::Cancelled,
            (None, _) => process.fate.clone(),
        };
        if was_live {
            self.ledger.process_ended(job, execution);
        }
        note!(self, "guardian", About::from((Some(job), at)), "{} ends: {outcome:?}", run_name(execution));
        self.inform(at, Notice::Ended(execution, outcome));
        if self.agents[at].phase == Phase::Dead {
            self.agents[at].processes.remove(&execution);
        }
    }

    // ---- what the guardian tells the agent ----------------------------------------------------------------------

    fn inform(&mut self, at: usize, notice: Notice) {
        if self.agents[at].phase != Phase::Dead {
            let life = self.agents[at].life;
            self.after(0, Event::Notice(at, life, notice));
        }
    }

    pub(super) fn notice(&mut self, at: usize, life: u64, notice: Notice) {
        let now = self.now;
        let agent = &mut self.agents[at];
        if agent.life != life || agent.phase != Phase::Awake {
            return;
        }
        match notice {
            Notice::Started(execution, time) => agent.session.started(execution, time),
            Notice::Progress(execution) => {
                agent.session.progress(execution, Progress { basis_points: 5000, message: "half".into() }, None);
            }
            Notice::Printed(execution, lines) => {
                let Some(process) = agent.processes.get_mut(&execution) else { return };
                let (job, first) = (process.job, process.lines);
                process.lines += lines;
                let count = u32::try_from(lines).unwrap_or(u32::MAX);
                let chunk = LogChunk { job, execution, first, count, data: [].into() };
                self.keep_record(at, Entry::Logs(chunk));
            }
            Notice::Ended(execution, outcome) => {
                let finished_at = agent.wall(now);
                let Some(process) = agent.processes.remove(&execution) else { return };
                let (started_at, log_entries) = (process.started, process.lines);
                let children = process.children.iter().map(|kind| kind.to_le_bytes().to_vec()).collect();
                let finished =
                    Finished { started_at, log_entries, children, ..Finished::new(execution, outcome, finished_at) };
                if let Some(finished) = self.agents[at].session.ended(finished) {
                    self.keep_record(at, Entry::Finished(finished));
                }
            }
        }
        self.pump(at);
    }

    /// A confused worker says something of an execution that is long over.
    pub(super) fn repeat_old_news(&mut self, at: usize) {
        let agent = &self.agents[at];
        let over = |id: &&ExecutionId| {
            !agent.processes.contains_key(id) && !agent.spool.values().any(|entry| entry.execution() == **id)
        };
        let Some(old) = agent.past.iter().rfind(over).copied().filter(|_| agent.is_awake()) else { return };
        let time = agent.wall(self.now);
        let outcome = Outcome::Failed(Failure::exit(99));
        let (started_at, finished_at) = (Some(time), time);
        let failed = Finished { started_at, ..Finished::new(old, outcome, finished_at) };
        if self.agents[at].session.is_up() {
            self.say(at, FromWorker::Started { execution: old, at: time });
            self.say(at, FromWorker::Finished(failed));
        }
    }
}
