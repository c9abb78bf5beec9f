//! The worker's stream: its messages at the server, up to the brain, and the server's at the worker, up to its session.

use crate::{
    engine::{Target, Trace},
    proto::{Schema, Words},
    rng::Rng,
};
use bytes::Bytes;
use hodei_api::{convert, v1, wire};
use hodei_core::{
    brain::{Brain, Caller, Config, Connection, Effect, Input, Loaded, NewJob, Registration, Report},
    id::{ExecutionId, Incarnation, JobId, WorkerId},
    job::Progress,
    protocol::{self, Hello},
    session::{Action, Record, RecordId, RecordKind, Session},
    spec::{JobSpec, Work},
    time::{Elapsed, Millis, Now, Time},
    token::{Hash, WorkerToken},
    worker::{Capacity, WorkerInfo},
};
use prost::Message;
use std::sync::Arc;
use uuid::Uuid;

const WORKER: WorkerId = WorkerId(Uuid::from_u128(1));
const FIRST: Connection = Connection(1);
const SLOTS: u32 = 2;
const WALL: i64 = 1_700_000_000_000;

fn job_id(n: u128) -> JobId {
    JobId(Uuid::from_u128(100 + n))
}

fn info() -> WorkerInfo {
    let capacity = Capacity { slots: SLOTS, cpu_millis: 4000, memory_bytes: 1 << 30, ..Capacity::default() };
    WorkerInfo { name: "w".into(), capacity, ..WorkerInfo::default() }
}

/// What a worker sends.
pub struct FromWorker {
    schema: Schema,
    words: Words,
}

impl FromWorker {
    pub fn new() -> Self {
        let (_, executions) = brain();
        let mut ids: Vec<Uuid> = executions.iter().map(|id| id.0).collect();
        ids.extend([WORKER.0, job_id(0).0, job_id(1).0]);
        Self { schema: Schema::new(), words: Words { ids, ..Words::default() } }
    }
}

impl Target for FromWorker {
    fn name(&self) -> &'static str {
        "from-worker"
    }

    fn seeds(&self, rng: &mut Rng) -> Vec<Vec<u8>> {
        self.schema.good(".hodei.v1.WorkerMessage", &self.words, rng)
    }

    fn generate(&self, rng: &mut Rng) -> Vec<u8> {
        self.schema.wild(".hodei.v1.WorkerMessage", &self.words, rng)
    }

    fn run(&mut self, input: &[u8], trace: &mut Trace) {
        let message: v1::WorkerMessage = match wire::decode(Bytes::copy_from_slice(input)) {
            Ok(message) => message,
            Err(error) => return trace.refused(&error),
        };
        let events = match convert::events_from_wire(message) {
            Ok(events) => events,
            Err(invalid) => return trace.refused(&invalid),
        };
        let again = v1::WorkerMessage::decode(&convert::events_to_wire(events.clone()).encode_to_vec()[..]);
        let again = again.ok().and_then(|message| convert::events_from_wire(message).ok());
        assert_eq!(again.as_ref(), Some(&events), "what was taken is the same when it is sent on");
        if !events.is_empty() {
            trace.accepted();
        }
        feed(events, trace);
    }
}

/// A brain with a worker that runs what it has room for, while more waits; and the executions it made.
fn brain() -> (Brain, Vec<ExecutionId>) {
    let now = Now { wall: Time(WALL), elapsed: Elapsed(1000) };
    let mut brain = Brain::load(Config::default(), Loaded { epoch: 1, ..Loaded::default() }, now);
    let caller = Caller(1);
    let token = WorkerToken { hash: Hash([1; 32]), worker: WORKER, expires_at: Time(WALL + 9999), used_by: None };
    brain.apply(Input::CreateToken { caller, token });
    let (token, key, session) = (Hash([1; 32]), Hash([2; 32]), Hash([3; 32]));
    let request = Registration { token, worker: None, key, session, info: Box::new(info()) };
    brain.apply(Input::Register { caller, request });
    let incarnation = Incarnation(Uuid::from_u128(9));
    let hello = Hello { incarnation, info: None, held: Vec::new(), ended: Vec::new(), leaving: false };
    brain.apply(Input::Connect { worker: WORKER, connection: FIRST, hello });
    let spec = JobSpec::new("job", Work::Shell { program: "true".into(), args: Vec::new() });
    let jobs = (0..4).map(|n| NewJob { id: job_id(n), spec: spec.clone(), payload: Arc::from([]) }).collect();
    brain.apply(Input::Enqueue { caller, jobs });
    let (batch, effects) = brain.turn(false);
    brain.committed(&batch);
    let runs = effects.iter().filter_map(|effect| match effect {
        Effect::Run { execution, .. } => Some(*execution),
        _ => None,
    });
    let executions = runs.collect();
    (brain, executions)
}

/// Hands events to a brain as the server does, lets time pass, and drops the worker.
fn feed(events: Vec<protocol::FromWorker>, trace: &mut Trace) {
    use protocol::FromWorker as From;
    let (mut brain, _) = brain();
    let mut connection = FIRST;
    for event in events {
        let input = match event {
            From::Hello(hello) => {
                connection = Connection(connection.0 + 1);
                Input::Connect { worker: WORKER, connection, hello }
            }
            From::Heartbeat { .. } => Input::Heartbeat { worker: WORKER, at: Elapsed(1500) },
            From::Started { execution, at } => told(Report::Started { execution, at }),
            From::Progress { execution, progress, data } => {
                told(Report::Progress { execution, progress, data: data.map(Into::into) })
            }
            From::Finished(finished) => told(Report::Finished(finished, Vec::new())),
            From::Leaving => Input::Pause { caller: None, worker: WORKER },
            From::Info(info) => Input::Describe { worker: WORKER, connection, info },
            From::Supervision(news) => Input::Supervised { worker: WORKER, news },
            From::Logs(chunk) => {
                assert!(chunk.end() > chunk.first);
                continue;
            }
        };
        brain.apply(input);
    }
    for step in [0, 1_000, 100_000, 40_000_000_000] {
        brain.clock(Now { wall: Time(WALL + step), elapsed: Elapsed(2000 + step.unsigned_abs()) });
        let (batch, effects) = brain.turn(false);
        effects.iter().for_each(|effect| trace.say(kind(effect)));
        for write in &batch.jobs {
            trace.say(&format!("{:?}", write.job.state.kind()));
            _ = convert::job_to_wire(&write.job, convert::Stored::default(), brain.waiting_reason(&write.job));
        }
        brain.committed(&batch);
    }
    _ = brain.workers().iter().map(convert::view_to_wire).count();
}

fn told(report: Report) -> Input {
    Input::Report { caller: None, worker: WORKER, report }
}

fn kind(effect: &Effect) -> &'static str {
    match effect {
        Effect::Answer { .. } => "answer",
        Effect::Welcome { .. } => "welcome",
        Effect::Run { .. } => "run",
        Effect::Stop { .. } => "stop",
        Effect::Acked { .. } => "acked",
        Effect::Drain { .. } => "drain",
        Effect::Create { .. } => "create",
        Effect::Inspect { .. } => "inspect",
        Effect::Destroy { .. } => "destroy",
        Effect::RestartHandler { .. } => "restart handler",
        Effect::Close { .. } => "close",
        Effect::Park { .. } => "park",
        Effect::ReadReady { .. } => "read ready",
        Effect::ReadDue { .. } | Effect::ReadDependents { .. } => "read due",
    }
}

/// What a server sends.
pub struct ToWorker {
    schema: Schema,
    words: Words,
}

impl ToWorker {
    pub fn new() -> Self {
        let ids = (1..5).map(Uuid::from_u128).collect();
        Self { schema: Schema::new(), words: Words { ids, ..Words::default() } }
    }
}

impl Target for ToWorker {
    fn name(&self) -> &'static str {
        "to-worker"
    }

    fn seeds(&self, rng: &mut Rng) -> Vec<Vec<u8>> {
        self.schema.good(".hodei.v1.ServerMessage", &self.words, rng)
    }

    fn generate(&self, rng: &mut Rng) -> Vec<u8> {
        self.schema.wild(".hodei.v1.ServerMessage", &self.words, rng)
    }

    /// A message of many small parts makes the session do as many small things.
    fn memory(&self, length: usize) -> usize {
        (64 << 20) + 64 * length
    }

    fn run(&mut self, input: &[u8], trace: &mut Trace) {
        let message: v1::ServerMessage = match wire::decode(Bytes::copy_from_slice(input)) {
            Ok(message) => message,
            Err(error) => return trace.refused(&error),
        };
        let mut worker = Agent::new();
        for event in message.events {
            match convert::from_server(event) {
                Ok(message) => {
                    let again = convert::to_worker(message.clone()).into_iter().next().map(convert::from_server);
                    assert_eq!(again, Some(Ok(message.clone())), "what was taken is the same when it is sent on");
                    trace.accepted();
                    worker.session.received(message, Elapsed(worker.now));
                    worker.act(trace);
                }
                Err(invalid) => trace.refused(&invalid),
            }
        }
        worker.live_on(trace);
    }
}

/// A session and the least of an agent that makes it go on.
struct Agent {
    session: Session,
    now: u64,
    records: u64,
    running: Vec<ExecutionId>,
}

impl Agent {
    /// It has just connected, with results of an earlier life to deliver.
    fn new() -> Self {
        let left = |n: u64| {
            let execution = ExecutionId(Uuid::from_u128(n.into()));
            let logs = Record { id: RecordId(2 * n), execution, kind: RecordKind::Logs { end: 10 }, bytes: 100 };
            [logs, Record { id: RecordId(2 * n + 1), kind: RecordKind::Finished, ..logs }]
        };
        let recovered = [left(1), left(2)].concat();
        let mut session = Session::new(Incarnation(Uuid::from_u128(7)), info(), recovered);
        session.connected(Elapsed(1000));
        Self { session, now: 1000, records: 100, running: Vec::new() }
    }

    fn act(&mut self, trace: &mut Trace) {
        for action in self.session.take_actions() {
            match action {
                Action::Run(given) => {
                    trace.say("run");
                    self.session.started(given.execution, Time(WALL));
                    self.session.progress(given.execution, Progress::default(), None);
                    self.running.push(given.execution);
                }
                Action::Conclude(finished) => {
                    trace.say("conclude");
                    self.spool(finished.execution, RecordKind::Finished);
                }
                Action::Stop { .. } => trace.say("stop"),
                Action::Send(_) => trace.say("send"),
                Action::SendRecord(_) => trace.say("send record"),
                Action::Forget(_) => trace.say("forget"),
                Action::SetLease(_) => trace.say("lease"),
                Action::RestartHandler(_) => trace.say("restart handler"),
                Action::Reconnect => trace.say("reconnect"),
                Action::Exit { .. } => trace.say("exit"),
            }
        }
    }

    fn spool(&mut self, execution: ExecutionId, kind: RecordKind) {
        self.records += 1;
        self.session.spooled(Record { id: RecordId(self.records), execution, kind, bytes: 500_000 });
    }

    /// Jobs print and end, time passes, the link breaks and comes back.
    fn live_on(&mut self, trace: &mut Trace) {
        for execution in std::mem::take(&mut self.running) {
            self.spool(execution, RecordKind::Logs { end: 5 });
            let succeeded = hodei_core::state::Outcome::Succeeded;
            let finished =
                protocol::Finished { log_entries: 5, ..protocol::Finished::new(execution, succeeded, Time(WALL)) };
            if self.session.ended(finished).is_some() {
                self.spool(execution, RecordKind::Finished);
            }
            self.act(trace);
        }
        for _ in 0..3 {
            self.now = self.session.next_wake().0.max(self.now).saturating_add(1);
            self.session.tick(Elapsed(self.now));
            self.act(trace);
        }
        self.session.disconnected();
        self.session.connected(Elapsed(self.now));
        let welcome = protocol::Welcome { lease: Millis(60_000), heartbeat: Millis(10_000), held: Vec::new() };
        self.session.received(protocol::ToWorker::Welcome(welcome), Elapsed(self.now));
        self.act(trace);
        self.session.release();
        self.act(trace);
    }
}
