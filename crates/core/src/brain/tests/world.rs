//! A server, workers that run the real session, and the links between them, all of which may fail at any step. What
//! must always hold is checked in `world/checks.rs` after each turn and commit.

mod checks;

use super::*;
use crate::{
    protocol::{Assignment, FromWorker, ToWorker, Verdict, Welcome},
    session::{Action, Record, RecordId, RecordKind, Session},
};
use std::collections::{BTreeMap, VecDeque};

const HEARTBEAT: Millis = Millis::seconds(1);

pub(super) fn config() -> Config {
    Config { lease: Millis::seconds(4), lease_grace: Millis::seconds(1), window: 4, ..Config::default() }
}

/// One thing that happens. Numbers choose among what is there.
#[derive(Clone, Debug)]
pub(super) enum Step {
    Enqueue {
        kind: u8,
        count: u8,
    },
    Cancel(u8),
    Retry(u8),
    Pass(u16),
    Turn {
        frozen: bool,
    },
    Commit,
    Read(u8),
    Page(u8),
    /// A message of a worker reaches the server, or one of the server reaches the worker.
    Up(u8),
    Down(u8),
    Connect(u8),
    /// A stream breaks; what was under way to the server may be lost with it.
    Cut {
        agent: u8,
        lose: bool,
    },
    Start(u8),
    Progress(u8),
    Finish {
        agent: u8,
        how: u8,
    },
    /// A worker says again what was settled long ago.
    Stale(u8),
    /// An agent dies with its processes and a new one takes its place.
    Rebirth(u8),
    /// An agent does nothing, until it is frozen no more.
    Freeze(u8),
    Thaw(u8),
    Drain(u8),
    Restart,
    Park,
}

enum Up {
    Hello(Connection, Hello),
    Heartbeat(u64),
    Report(Report),
    Leaving,
    Closed(Connection),
    Unregister,
}

struct Process {
    job: JobId,
    started: Option<Time>,
    stop: Option<StopReason>,
    /// The guardian ended it, and the agent has not seen it yet.
    killed: bool,
}

struct Agent {
    id: WorkerId,
    life: u128,
    session: Session,
    frozen: bool,
    connection: Option<Connection>,
    lease: Elapsed,
    processes: BTreeMap<ExecutionId, Process>,
    spool: BTreeMap<RecordId, Finished>,
    records: u64,
    up: VecDeque<Up>,
    down: VecDeque<ToWorker>,
    past: Vec<ExecutionId>,
}

pub(super) struct World {
    server: Server,
    agents: Vec<Agent>,
    made: u64,
    connections: u64,
    lives: u128,
    tokens: u8,
    /// Every job as the last turn left it, durable or not.
    truth: BTreeMap<JobId, Job>,
    /// Jobs that a user wanted run again since the last turn.
    retried: HashSet<JobId>,
    sent_to: HashMap<ExecutionId, WorkerId>,
    succeeded: HashSet<ExecutionId>,
}

fn capacity(n: usize) -> Capacity {
    [slots(1), slots(2), Capacity { slots: 3, cpu_millis: 1000, memory_bytes: 100 }][n % 3]
}

/// Eight kinds of job; the last fits nowhere and so must not wait for ever.
fn kind(kind: u8, now: Time) -> JobSpec {
    spec_with(|spec| {
        spec.retry.delay = Millis(300);
        spec.priority = Priority::ALL[usize::from(kind) % 4];
        match kind / 4 % 8 {
            0 | 1 => {}
            2 => spec.queue = "other".into(),
            3 => spec.run_at = Some(now + Millis(u64::from(kind) * 50)),
            4 => spec.timeouts.queue = Some(Millis(500 + u64::from(kind) * 40)),
            5 => spec.timeouts.run = Some(Millis(700)),
            6 => spec.requirements = Requirements { cpu_millis: 600, memory_bytes: 60 },
            _ => {
                spec.requirements.cpu_millis = 1_000_000;
                spec.timeouts.queue = Some(Millis(3000));
            }
        }
        if kind.is_multiple_of(5) {
            (spec.retry.max_attempts, spec.retry.delay) = (6, Millis::ZERO);
        }
    })
}

impl World {
    pub fn new(agents: usize) -> Self {
        let mut world = Self {
            server: Server::new(config()),
            agents: Vec::new(),
            made: 0,
            connections: 0,
            lives: 0,
            tokens: 0,
            truth: BTreeMap::new(),
            retried: HashSet::new(),
            sent_to: HashMap::new(),
            succeeded: HashSet::new(),
        };
        for n in 0..agents {
            let id = worker_id(n as u128);
            world.register(id, capacity(n));
            let agent = world.newborn(id, capacity(n), Vec::new());
            world.agents.push(agent);
        }
        world
    }

    fn register(&mut self, worker: WorkerId, capacity: Capacity) {
        self.tokens = self.tokens.wrapping_add(1);
        let hash = Hash([self.tokens; 32]);
        let expires_at = self.server.brain.now + Millis::seconds(300);
        let token = WorkerToken { hash, worker, expires_at, used_by: None };
        self.server.input(Input::CreateToken { caller: Caller(0), token });
        let request = registration(hash, capacity);
        self.server.input(Input::Register { caller: Caller(0), request });
        // A worker has its credential only once that is durable.
        self.turn(false);
        self.commit_all();
    }

    fn newborn(&mut self, id: WorkerId, capacity: Capacity, left: Vec<(RecordId, Finished)>) -> Agent {
        self.lives += 1;
        let record = |(id, finished): &(RecordId, Finished)| Record {
            id: *id,
            execution: finished.execution,
            kind: RecordKind::Finished,
            bytes: 100,
        };
        let recovered = left.iter().map(record).collect();
        let records = left.last().map_or(0, |(id, _)| id.0 + 1);
        Agent {
            id,
            life: self.lives,
            session: Session::new(incarnation(self.lives), WorkerInfo { capacity, ..WorkerInfo::default() }, recovered),
            frozen: false,
            connection: None,
            lease: Elapsed(u64::MAX),
            processes: BTreeMap::new(),
            spool: left.into_iter().collect(),
            records,
            up: VecDeque::new(),
            down: VecDeque::new(),
            past: Vec::new(),
        }
    }

    pub fn take(&mut self, step: &Step) {
        match *step {
            Step::Enqueue { kind, count } => self.enqueue(kind, count),
            Step::Cancel(pick) => self.command(pick, |caller, job| Input::Cancel { caller, job, reason: "r".into() }),
            Step::Retry(pick) => {
                self.retried.extend(self.job(pick));
                self.command(pick, |caller, job| Input::Retry { caller, job });
            }
            Step::Pass(length) => self.pass(Millis(u64::from(length))),
            Step::Turn { frozen } => self.turn(frozen),
            Step::Commit => self.commit(),
            Step::Read(pick) => self.server.read(pick.into()),
            Step::Page(pick) => self.server.deliver_page(pick.into()),
            Step::Up(agent) => self.up(self.index(agent)),
            Step::Down(agent) => self.down(self.index(agent)),
            Step::Connect(agent) => self.connect(self.index(agent)),
            Step::Cut { agent, lose } => self.cut(self.index(agent), lose),
            Step::Start(agent) => self.start(self.index(agent)),
            Step::Progress(agent) => self.progress(self.index(agent)),
            Step::Finish { agent, how } => self.finish(self.index(agent), how),
            Step::Stale(agent) => self.stale(self.index(agent)),
            Step::Rebirth(agent) => self.rebirth(self.index(agent)),
            Step::Freeze(agent) => {
                let at = self.index(agent);
                self.agents[at].frozen = true;
            }
            Step::Thaw(agent) => self.thaw(self.index(agent)),
            Step::Drain(agent) => {
                let worker = self.agents[self.index(agent)].id;
                self.server.input(Input::Drain { caller: Caller(0), worker });
            }
            Step::Restart => self.restart(),
            Step::Park => self.park(),
        }
    }

    fn index(&self, pick: u8) -> usize {
        usize::from(pick) % self.agents.len()
    }

    fn job(&self, pick: u8) -> Option<JobId> {
        self.truth.keys().nth(usize::from(pick) % self.truth.len().max(1)).copied()
    }

    // ---- the server ----

    fn enqueue(&mut self, what: u8, count: u8) {
        let spec = kind(what, self.server.brain.now);
        let first = self.made;
        self.made += u64::from(count);
        let jobs =
            (first..self.made).map(|n| NewJob { id: job_id(n), spec: spec.clone(), payload: Arc::from([]) }).collect();
        self.server.input(Input::Enqueue { caller: Caller(0), jobs });
    }

    fn command(&mut self, pick: u8, input: impl FnOnce(Caller, JobId) -> Input) {
        if let Some(job) = self.job(pick) {
            self.server.input(input(Caller(0), job));
        }
    }

    fn pass(&mut self, length: Millis) {
        self.server.advance(length);
        let now = self.server.now.elapsed;
        for agent in 0..self.agents.len() {
            self.guard(agent);
            if !self.agents[agent].frozen {
                self.agents[agent].session.tick(now);
                self.pump(agent);
            }
        }
    }

    fn turn(&mut self, frozen: bool) {
        let (batch, _) = self.server.turn(frozen);
        let batch = batch.clone();
        self.check_turn(&batch);
    }

    fn commit(&mut self) {
        self.server.commit();
        for effect in std::mem::take(&mut self.server.released) {
            self.release(effect);
        }
        self.check_memory();
    }

    fn commit_all(&mut self) {
        while !self.server.uncommitted.is_empty() {
            self.commit();
        }
    }

    /// What was not durable never happened.
    fn restart(&mut self) {
        self.server.restart();
        let store = &self.server.store;
        self.truth = store.jobs.keys().filter_map(|id| Some((*id, store.latest(*id)?))).collect();
        for agent in 0..self.agents.len() {
            self.agents[agent].up.clear();
            self.break_link(agent);
        }
    }

    /// The server leaves in order: its last words reach those who are awake.
    fn park(&mut self) {
        self.server.input(Input::Park { lease: Millis::seconds(8) });
        self.turn(false);
        self.commit_all();
        for agent in 0..self.agents.len() {
            while !self.agents[agent].frozen && !self.agents[agent].down.is_empty() {
                self.down(agent);
            }
        }
        self.restart();
    }

    /// What was meant for an old connection goes nowhere.
    fn release(&mut self, effect: Effect) {
        let (worker, connection, message) = match effect {
            Effect::Welcome { worker, connection, verdicts } => {
                let verdict =
                    |bound: Bound| Verdict { execution: bound.execution, keep: bound.job.is_some(), log_entries: 0 };
                let held = verdicts.into_iter().map(verdict).collect();
                let welcome = Welcome { lease: self.server.config.lease, heartbeat: HEARTBEAT, held };
                (worker, connection, Some(ToWorker::Welcome(welcome)))
            }
            Effect::Run { worker, connection, job, execution, attempt } => {
                let before = self.sent_to.insert(execution, worker);
                assert!(before.is_none_or(|before| before == worker), "one execution went to two workers");
                let assignment = Assignment { job, execution, attempt, spec: Arc::new(spec()) };
                (worker, connection, Some(ToWorker::Run(vec![assignment])))
            }
            Effect::Stop { worker, connection, execution, why } => {
                (worker, connection, Some(ToWorker::Stop { execution, why }))
            }
            Effect::Acked { worker, connection, execution } => {
                (worker, connection, Some(ToWorker::Acked { results: vec![execution], logs: vec![] }))
            }
            Effect::Drain { worker, connection } => (worker, connection, Some(ToWorker::Drain)),
            Effect::Park { worker, connection, lease } => (worker, connection, Some(ToWorker::Park { lease })),
            Effect::Close { worker, connection } => (worker, connection, None),
            _ => return,
        };
        let Some(at) = self.agents.iter().position(|agent| agent.id == worker) else { return };
        if self.agents[at].connection == Some(connection) {
            match message {
                Some(message) => self.agents[at].down.push_back(message),
                None => self.cut(at, false),
            }
        }
    }

    // ---- the links ----

    fn connect(&mut self, at: usize) {
        if self.agents[at].connection.is_some() || self.agents[at].frozen {
            return;
        }
        self.connections += 1;
        self.agents[at].connection = Some(Connection(self.connections));
        self.agents[at].session.connected(self.server.now.elapsed);
        self.pump(at);
    }

    fn cut(&mut self, at: usize, lose: bool) {
        let agent = &mut self.agents[at];
        let Some(connection) = agent.connection else { return };
        if lose {
            agent.up.retain(|message| !matches!(message, Up::Report(_) | Up::Heartbeat(_)));
        }
        agent.up.push_back(Up::Closed(connection));
        self.break_link(at);
    }

    /// The agent finds out at once, or when it is thawed: nothing reaches it before.
    fn break_link(&mut self, at: usize) {
        let agent = &mut self.agents[at];
        (agent.connection, agent.down) = (None, VecDeque::new());
        agent.session.disconnected();
    }

    fn up(&mut self, at: usize) {
        let Some(message) = self.agents[at].up.pop_front() else { return };
        let worker = self.agents[at].id;
        let input = match message {
            Up::Hello(connection, hello) => Input::Connect { worker, connection, hello },
            Up::Leaving => Input::Pause { caller: None, worker },
            Up::Heartbeat(sent) => {
                if self.agents[at].connection.is_some() {
                    let lease = self.server.config.lease;
                    self.agents[at].down.push_back(ToWorker::Lease { sent, lease });
                }
                Input::Heartbeat { worker, at: self.server.now.elapsed }
            }
            Up::Report(report) => {
                if let Report::Finished(Finished { outcome: Outcome::Succeeded, execution, .. }) = &report {
                    self.succeeded.insert(*execution);
                }
                Input::Report { caller: None, worker, report }
            }
            Up::Closed(connection) => Input::Disconnect { worker, connection },
            Up::Unregister => Input::Unregister { caller: Caller(0), worker },
        };
        self.server.input(input);
    }

    fn down(&mut self, at: usize) {
        let now = self.server.now.elapsed;
        let agent = &mut self.agents[at];
        if agent.frozen || agent.connection.is_none() {
            return;
        }
        if let Some(message) = agent.down.pop_front() {
            agent.session.received(message, now);
            self.pump(at);
        }
    }

    // ---- the agents ----

    /// Carries out what a session wants.
    fn pump(&mut self, at: usize) {
        loop {
            let actions = self.agents[at].session.take_actions();
            if actions.is_empty() {
                return;
            }
            actions.into_iter().for_each(|action| self.act(at, action));
        }
    }

    fn act(&mut self, at: usize, action: Action) {
        match action {
            Action::Send(message) => self.send(at, message),
            Action::SendRecord(id) => {
                let finished = self.agents[at].spool[&id].clone();
                self.send(at, FromWorker::Finished(finished));
            }
            Action::Forget(id) => _ = self.agents[at].spool.remove(&id),
            Action::Run(assignment) => self.run(at, &assignment),
            Action::Stop { execution, why } => {
                if let Some(process) = self.agents[at].processes.get_mut(&execution) {
                    process.stop = Some(why);
                }
            }
            Action::Conclude(finished) => self.spool(at, finished),
            Action::SetLease(until) => self.agents[at].lease = until,
            Action::Reconnect => self.cut(at, false),
            Action::Exit { .. } => self.leave(at),
        }
    }

    fn send(&mut self, at: usize, message: FromWorker) {
        let agent = &mut self.agents[at];
        let Some(connection) = agent.connection else { return };
        agent.up.push_back(match message {
            FromWorker::Hello(hello) => Up::Hello(connection, hello),
            FromWorker::Heartbeat { sent } => Up::Heartbeat(sent),
            FromWorker::Started { execution, at } => Up::Report(Report::Started { execution, at }),
            FromWorker::Progress { execution, progress } => Up::Report(Report::Progress { execution, progress }),
            FromWorker::Finished(finished) => Up::Report(Report::Finished(finished)),
            FromWorker::Leaving => Up::Leaving,
            FromWorker::Logs(_) => return,
        });
    }

    fn run(&mut self, at: usize, assignment: &Assignment) {
        let Assignment { job, execution, .. } = *assignment;
        for other in &self.agents {
            let live = other.processes.values().any(|process| process.job == job && !process.killed);
            assert!(!live, "{job} would have two live processes");
        }
        let process = Process { job, started: None, stop: None, killed: false };
        self.agents[at].processes.insert(execution, process);
        self.agents[at].past.push(execution);
    }

    fn spool(&mut self, at: usize, finished: Finished) {
        let agent = &mut self.agents[at];
        let (id, execution) = (RecordId(agent.records), finished.execution);
        agent.records += 1;
        agent.spool.insert(id, finished);
        agent.session.spooled(Record { id, execution, kind: RecordKind::Finished, bytes: 100 });
    }

    /// Ends what outlived the lease, whether the agent is awake or not.
    fn guard(&mut self, at: usize) {
        let agent = &mut self.agents[at];
        if self.server.now.elapsed >= agent.lease {
            agent.processes.values_mut().for_each(|process| process.killed = true);
        }
        if !agent.frozen {
            let killed = agent.processes.iter().filter(|(_, process)| process.killed).map(|(id, _)| *id);
            for execution in killed.collect::<Vec<_>>() {
                self.end(at, execution, Outcome::Failed(Failure::signal(9)));
            }
        }
    }

    fn end(&mut self, at: usize, execution: ExecutionId, outcome: Outcome) {
        let now = self.server.now.wall;
        let Some(process) = self.agents[at].processes.remove(&execution) else { return };
        let finished = Finished { started_at: process.started, ..ended(execution, outcome, now) };
        if let Some(finished) = self.agents[at].session.ended(finished) {
            self.spool(at, finished);
        }
        self.pump(at);
    }

    fn first_process(&self, at: usize, wanted: impl Fn(&Process) -> bool) -> Option<ExecutionId> {
        let agent = &self.agents[at];
        let mut found = agent.processes.iter().filter(|(_, process)| wanted(process)).map(|(id, _)| *id);
        found.next().filter(|_| !agent.frozen)
    }

    fn start(&mut self, at: usize) {
        let Some(execution) = self.first_process(at, |process| process.started.is_none()) else { return };
        let now = self.server.now.wall;
        let agent = &mut self.agents[at];
        if let Some(process) = agent.processes.get_mut(&execution) {
            process.started = Some(now);
        }
        agent.session.started(execution, now);
        self.pump(at);
    }

    fn progress(&mut self, at: usize) {
        let Some(execution) = self.first_process(at, |process| process.started.is_some()) else { return };
        self.agents[at].session.progress(execution, Progress { basis_points: 5000, message: "half".into() });
        self.pump(at);
    }

    fn finish(&mut self, at: usize, how: u8) {
        let Some(execution) = self.first_process(at, |process| process.started.is_some() || process.stop.is_some())
        else {
            return;
        };
        let outcome = match (self.agents[at].processes[&execution].stop, how % 4) {
            (Some(StopReason::RunTimeout), _) => Outcome::Failed(Failure::new(FailureKind::RunTimeout, "late")),
            (Some(_), _) => Outcome::Cancelled,
            (None, 0 | 1) => Outcome::Succeeded,
            (None, 2) => Outcome::Failed(Failure::exit(1)),
            (None, _) => Outcome::Released,
        };
        self.end(at, execution, outcome);
    }

    fn stale(&mut self, at: usize) {
        let agent = &mut self.agents[at];
        let now = self.server.now.wall;
        let ended_already = |id: &&ExecutionId| !agent.processes.contains_key(id);
        let known_end = |id: &&ExecutionId| !agent.spool.values().any(|finished| finished.execution == **id);
        let Some(old) = agent.past.iter().filter(ended_already).rfind(known_end).copied() else { return };
        let failed = ended(old, Outcome::Failed(Failure::exit(99)), now);
        agent.up.push_back(Up::Report(Report::Started { execution: old, at: now }));
        agent.up.push_back(Up::Report(Report::Finished(failed)));
    }

    fn rebirth(&mut self, at: usize) {
        self.cut(at, true);
        let id = self.agents[at].id;
        let left = std::mem::take(&mut self.agents[at].spool).into_iter().collect();
        let (up, past) = (std::mem::take(&mut self.agents[at].up), std::mem::take(&mut self.agents[at].past));
        self.agents[at] = Agent { up, past, ..self.newborn(id, capacity(at), left) };
        self.pump(at);
    }

    fn thaw(&mut self, at: usize) {
        self.agents[at].frozen = false;
        self.guard(at);
        self.pump(at);
    }

    /// A drained worker goes, and another takes its name.
    fn leave(&mut self, at: usize) {
        let agent = &mut self.agents[at];
        assert!(agent.processes.is_empty() && agent.spool.is_empty(), "it left with something in its hands");
        agent.up.push_back(Up::Unregister);
        self.break_link(at);
        while !self.agents[at].up.is_empty() {
            self.up(at);
        }
        let id = self.agents[at].id;
        self.register(id, capacity(at));
        self.agents[at] = self.newborn(id, capacity(at), Vec::new());
    }

    /// Faults stop and everybody does his work.
    pub fn calm_down(&mut self) {
        for at in 0..self.agents.len() {
            self.thaw(at);
        }
        for _ in 0..400 {
            self.pass(Millis(250));
            for at in 0..self.agents.len() {
                self.connect(at);
                self.work_off(at);
            }
            self.turn(false);
            self.commit_all();
            while !self.server.reads.is_empty() || !self.server.pages.is_empty() {
                self.server.read(0);
                self.server.deliver_page(0);
            }
            let idle = self.agents.iter().all(|agent| agent.up.is_empty() && agent.down.is_empty());
            if idle && self.truth.values().all(|job| job.state.kind().is_finished()) {
                break;
            }
        }
        self.turn(false);
        self.commit_all();
        self.check_end();
    }

    fn work_off(&mut self, at: usize) {
        while !self.agents[at].up.is_empty() || !self.agents[at].down.is_empty() {
            self.up(at);
            self.down(at);
        }
        for _ in 0..4 {
            self.start(at);
            self.finish(at, 0);
        }
    }
}
