//! The loop: takes what is waiting, lets the brain decide, commits once, then releases what was decided.
//!
//! While a commit is under way the brain already works on the next batch. Under load batches grow by themselves, so one
//! sync of the disk is shared by thousands of jobs; when idle a single job pays for one.

mod commit;
mod load;

use crate::{
    access::{self, Access},
    clock,
    context::{self, Ended},
    dispatch::{self, Links, Parcel, Parcels, Payloads},
    events::Events,
    fleet::{Errand, Fleet},
    logs::Logs,
    options::Options,
    watch::Watches,
    webhooks::Outbox,
};
use futures::future::{BoxFuture, FutureExt};
use hodei_core::{
    access::AuditEntry,
    brain::{Answer, Batch, Bound, Brain, Caller, Connection, Effect, Facts, Input, Refusal, Report, WorkerView},
    id::{ExecutionId, IdMap, IdSet, WorkerId},
    protocol::{Finished, LogAck, LogChunk, ToWorker, Verdict, Welcome},
    state::StateKind,
    time::{Elapsed, Millis},
    token::Hash,
    worker::Phase,
};
use hodei_store::{Aside, Commit, Store, StoreError};
use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::{
        Arc, Mutex, PoisonError, RwLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};
use thiserror::Error;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

/// Inputs that one batch may take.
const BATCH_INPUTS: usize = 16_384;
/// Log bytes that one batch may take; what comes beyond waits for the next, so that jobs are not kept waiting.
const BATCH_LOG_BYTES: usize = 4 << 20;
/// How long reports of workers wait for others, from the last commit on.
const PACE: Duration = Duration::from_millis(2);
/// Kilobytes of requests that may wait at one time.
const INBOX_KIB: usize = 256 << 10;
/// How long a request may wait for room before it is sent away.
const ROOM_PATIENCE: Duration = Duration::from_secs(2);
/// A commit that takes longer than this is a stall of the store.
const STALL: Duration = Duration::from_secs(2);
/// A commit that may be made so soon is waited for awake, because to be woken for it would take a good part of that.
const SOON: Duration = Duration::from_micros(600);
const LONGEST_SLEEP: Duration = Duration::from_secs(3600);
const READ_AGAIN: Duration = Duration::from_millis(200);
/// How long an orderly end may take.
const LAST_PATIENCE: Duration = Duration::from_secs(10);

/// The way in. Cheap to clone.
#[derive(Clone)]
pub struct Engine {
    inbox: mpsc::UnboundedSender<Message>,
    shared: Arc<Shared>,
}

/// What the doors may use without going through the loop.
pub struct Shared {
    pub store: Arc<dyn Store>,
    pub options: Options,
    pub links: Arc<Links>,
    pub logs: Logs,
    pub watches: Watches,
    pub events: Events,
    /// Told when there is something to deliver.
    pub outbox: Outbox,
    /// Told what is to be done at providers.
    pub fleet: Fleet,
    pub access: Access,
    room: Arc<Semaphore>,
    /// The last try at a commit failed.
    failing: AtomicBool,
    /// Since when a commit is under way, in milliseconds of the clock that goes on; zero if none is.
    committing_since: AtomicU64,
    closing: AtomicBool,
    /// Commits so far, and the rows of jobs in them: how well they are shared.
    pub commits: AtomicU64,
    pub job_rows: AtomicU64,
    callers: AtomicU64,
    connections: AtomicU64,
    /// Signs of life since the last turn. They pass beside the inbox, because a lease must be renewed while the store
    /// stalls.
    heartbeats: Mutex<HashMap<WorkerId, Elapsed>>,
    sessions: RwLock<HashMap<WorkerId, Hash>>,
}

enum Message {
    Call {
        caller: Caller,
        input: Input,
        waiting: Waiting,
    },
    Input(Input),
    /// What a worker tells of executions, in its order.
    Reports {
        worker: WorkerId,
        reports: Vec<Report>,
    },
    Logs {
        worker: WorkerId,
        connection: Connection,
        chunk: LogChunk,
    },
    /// Rows that the brain has no part in, and who waits until they are durable.
    Keep {
        aside: Aside,
        kept: Option<oneshot::Sender<()>>,
    },
    Ask(Box<dyn FnOnce(&Brain) + Send>),
    Stop(Stop),
}

impl Message {
    /// How much of what a batch may take it is.
    fn inputs(&self) -> usize {
        if let Message::Reports { reports, .. } = self { reports.len() } else { 1 }
    }
}

type Reply = Result<Answer, CallError>;

/// Somebody who waits for an answer.
struct Waiting {
    reply: oneshot::Sender<Reply>,
    /// What the audit log will say of the call, but for its outcome.
    audit: Option<AuditEntry>,
    _room: OwnedSemaphorePermit,
}

/// A wish to end the loop, answered with whether it was granted.
struct Stop {
    /// Only if no job is left to run, and this holds.
    only_if: Option<Condition>,
    granted: oneshot::Sender<bool>,
}

pub type Condition = Box<dyn Fn() -> bool + Send>;

#[derive(Debug, Error)]
pub enum CallError {
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// Nothing was stored, or nobody knows; asking again later may help.
    #[error("{0}")]
    Unavailable(String),
}

impl Engine {
    /// Takes the lead, loads, and starts the loop. The second value ends when the loop does.
    pub async fn start(
        store: Arc<dyn Store>,
        options: Options,
    ) -> Result<(Self, BoxFuture<'static, LoopEnd>), StoreError> {
        let brain = load::load(&*store, &options).await?;
        let access = Access::new(store.api_tokens().await?);
        let (inbox, messages) = mpsc::unbounded_channel();
        let shared = Arc::new(Shared {
            store: Arc::clone(&store),
            links: Arc::default(),
            logs: Logs::default(),
            watches: Watches::default(),
            events: Events::default(),
            outbox: Outbox::default(),
            fleet: Fleet::default(),
            access,
            room: Arc::new(Semaphore::new(INBOX_KIB)),
            failing: AtomicBool::new(false),
            committing_since: AtomicU64::new(0),
            closing: AtomicBool::new(false),
            commits: AtomicU64::new(0),
            job_rows: AtomicU64::new(0),
            callers: AtomicU64::new(0),
            connections: AtomicU64::new(0),
            heartbeats: Mutex::default(),
            sessions: RwLock::new(
                brain.kept_workers().filter_map(|worker| Some((worker.id, worker.session?))).collect(),
            ),
            options,
        });
        let (parcels, waiting) = mpsc::unbounded_channel();
        let payloads = Arc::new(Mutex::new(Payloads::default()));
        let ended = Arc::new(Mutex::new(Ended::default()));
        let (links, cached, left) = (Arc::clone(&shared.links), Arc::clone(&payloads), Arc::clone(&ended));
        let dispatcher = tokio::spawn(dispatch::run(store, links, cached, left, waiting));
        let turning = Loop {
            brain,
            shared: Arc::clone(&shared),
            messages,
            parcels,
            payloads,
            ended,
            callers: HashMap::new(),
            log_next: IdMap::default(),
            logs: Vec::new(),
            log_bytes: 0,
            aside: Aside::default(),
            keeping: Vec::new(),
            deferred: Vec::new(),
            flight: None,
            urgent: false,
            last_commit: Instant::now(),
            stalled: false,
            quick: false,
            inbox: inbox.clone(),
            dispatcher,
        };
        let engine = Self { inbox, shared };
        Ok((engine, tokio::spawn(turning.run()).map(flatten).boxed()))
    }

    pub fn shared(&self) -> &Shared {
        &self.shared
    }

    /// Hands a command to the brain and waits until its outcome is durable. `weight` is about the size of it.
    pub async fn call(&self, weight: usize, input: impl FnOnce(Caller) -> Input) -> Reply {
        self.audited_call(weight, None, input).await
    }

    /// The same, with a line in the audit log that is as durable as the outcome.
    pub async fn audited_call(
        &self,
        weight: usize,
        audit: Option<AuditEntry>,
        input: impl FnOnce(Caller) -> Input,
    ) -> Reply {
        let room = self.room(weight).await?;
        let caller = Caller(self.shared.callers.fetch_add(1, Ordering::Relaxed));
        let (reply, answer) = oneshot::channel();
        let waiting = Waiting { reply, audit, _room: room };
        self.inbox.send(Message::Call { caller, input: input(caller), waiting }).map_err(|_| going_away())?;
        answer.await.map_err(|_| {
            CallError::Unavailable(
                "the server stopped before it could say whether this was stored; look before you try again".into(),
            )
        })?
    }

    async fn room(&self, weight: usize) -> Result<OwnedSemaphorePermit, CallError> {
        self.check_open()?;
        let kib = u32::try_from((1 + weight / 1024).min(INBOX_KIB)).unwrap_or(1);
        let room = Arc::clone(&self.shared.room).acquire_many_owned(kib);
        match tokio::time::timeout(ROOM_PATIENCE, room).await {
            Ok(Ok(permit)) => Ok(permit),
            _ => Err(CallError::Unavailable("the server is overloaded: too many requests wait; try again".into())),
        }
    }

    /// Why no command can be taken now, if so.
    pub fn check_open(&self) -> Result<(), CallError> {
        if self.is_closing() {
            return Err(going_away());
        }
        if self.shared.store_stalls() {
            return Err(CallError::Unavailable("the database is not answering; try again".into()));
        }
        Ok(())
    }

    pub fn is_closing(&self) -> bool {
        self.shared.closing.load(Ordering::Relaxed)
    }

    /// An event of a worker. Nobody waits for it; how much a worker may send is bounded by its window.
    pub fn tell(&self, input: Input) {
        _ = self.inbox.send(Message::Input(input));
    }

    /// What one message of a worker tells of its executions.
    pub fn reports(&self, worker: WorkerId, reports: Vec<Report>) {
        _ = self.inbox.send(Message::Reports { worker, reports });
    }

    pub fn logs(&self, worker: WorkerId, connection: Connection, chunk: LogChunk) {
        _ = self.inbox.send(Message::Logs { worker, connection, chunk });
    }

    /// Writes rows that the brain has no part in, and returns when they are durable.
    pub async fn keep(&self, aside: Aside) -> Result<(), CallError> {
        self.check_open()?;
        let (kept, done) = oneshot::channel();
        self.inbox.send(Message::Keep { aside, kept: Some(kept) }).map_err(|_| going_away())?;
        done.await.map_err(|_| going_away())
    }

    /// The same without waiting.
    pub fn note(&self, aside: Aside) {
        _ = self.inbox.send(Message::Keep { aside, kept: None });
    }

    /// Looks at the brain as it is now, between two inputs.
    pub async fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&Brain) -> T + Send + 'static,
    ) -> Result<T, CallError> {
        let (reply, answer) = oneshot::channel();
        let ask = move |brain: &Brain| _ = reply.send(question(brain));
        self.inbox.send(Message::Ask(Box::new(ask))).map_err(|_| going_away())?;
        answer.await.map_err(|_| going_away())
    }

    pub async fn workers(&self) -> Result<Vec<WorkerView>, CallError> {
        self.ask(Brain::workers).await
    }

    pub fn new_connection(&self) -> Connection {
        Connection(self.shared.connections.fetch_add(1, Ordering::Relaxed) + 1)
    }

    pub fn heartbeat(&self, worker: WorkerId) {
        lock(&self.shared.heartbeats).insert(worker, clock::now().elapsed);
    }

    /// Whether `session` is the hash of this worker's credential.
    pub fn is_session(&self, worker: WorkerId, session: Hash) -> bool {
        let sessions = self.shared.sessions.read().unwrap_or_else(PoisonError::into_inner);
        sessions.get(&worker) == Some(&session)
    }

    /// Commits what is decided, parks the leases and ends the loop; with a condition only if no job is left to run
    /// and it holds then. Commands that come later are refused.
    pub async fn stop(&self, only_if: Option<Condition>) -> bool {
        let (granted, answer) = oneshot::channel();
        match self.inbox.send(Message::Stop(Stop { only_if, granted })) {
            Ok(()) => answer.await.unwrap_or(true),
            Err(_) => true,
        }
    }
}

impl Shared {
    /// Whether the store takes nothing at the moment, or takes too long for it.
    fn store_stalls(&self) -> bool {
        let since = self.committing_since.load(Ordering::Relaxed);
        let slow = since != 0 && (clock::now().elapsed - Elapsed(since)).duration() > STALL;
        slow || self.failing.load(Ordering::Relaxed)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn going_away() -> CallError {
    CallError::Unavailable("the server is shutting down; try again".into())
}

/// How the loop ended: well, or because the store refuses to go on.
pub type LoopEnd = Result<(), StoreError>;

fn flatten(joined: Result<LoopEnd, tokio::task::JoinError>) -> LoopEnd {
    joined.unwrap_or_else(|error| Err(StoreError::Broken(format!("the loop died: {error}"))))
}

/// Log acknowledgements that wait for a commit.
type Acks = Vec<(Connection, LogAck)>;

struct Loop {
    brain: Brain,
    shared: Arc<Shared>,
    messages: mpsc::UnboundedReceiver<Message>,
    parcels: mpsc::UnboundedSender<Parcels>,
    payloads: Arc<Mutex<Payloads>>,
    ended: Arc<Mutex<Ended>>,
    callers: HashMap<Caller, Waiting>,
    /// The number of the next log entry of every execution that has printed.
    log_next: IdMap<ExecutionId, u64>,
    logs: Vec<LogChunk>,
    log_bytes: usize,
    aside: Aside,
    /// Those who wait for it.
    keeping: Vec<oneshot::Sender<()>>,
    /// Inputs that name what is not in memory; it is read when no commit is under way.
    deferred: Vec<Input>,
    flight: Option<Flight>,
    /// Something came that should not wait for company.
    urgent: bool,
    last_commit: Instant,
    /// The last commit took so long that a silent worker may not be to blame.
    stalled: bool,
    /// The last commit was made in less time than [`SOON`].
    quick: bool,
    inbox: mpsc::UnboundedSender<Message>,
    dispatcher: tokio::task::JoinHandle<()>,
}

/// A batch on its way to the disk, and what waits for it.
struct Flight {
    commit: Arc<Commit>,
    effects: Vec<Effect>,
    keeping: Vec<oneshot::Sender<()>>,
    acks: Acks,
    outcome: BoxFuture<'static, Result<(), StoreError>>,
    began: Instant,
}

#[allow(clippy::large_enum_variant, reason = "it lives for one turn of the loop and is never stored")]
enum Event {
    Message(Option<Message>),
    Committed(Result<(), StoreError>),
    Wake,
}

/// Gives way to all who have something to do, here and on this processor, and comes back.
async fn stay_awake() {
    std::thread::yield_now();
    tokio::task::yield_now().await;
}

impl Loop {
    async fn run(mut self) -> LoopEnd {
        let mut acks = Vec::new();
        loop {
            let mut stop = None;
            match self.next_event().await {
                Event::Message(None) => return Ok(()),
                Event::Message(Some(message)) => {
                    self.brain.clock(clock::now());
                    self.take(message, &mut acks, &mut stop);
                    // Whoever is about to say something, too, shares the commit.
                    if self.flight.is_none() {
                        tokio::task::yield_now().await;
                    }
                    self.take_waiting(&mut acks, &mut stop);
                }
                Event::Committed(outcome) => {
                    outcome?;
                    self.land();
                }
                Event::Wake => {}
            }
            if let Some(wish) = stop {
                return self.finish(acks, wish).await;
            }
            if self.flight.is_none() && self.wait_for_company().is_zero() {
                self.resolve_deferred().await;
                self.turn(&mut acks);
            }
        }
    }

    /// How long to wait for more to share the next commit. Whoever waits for an answer is not kept waiting; what workers
    /// report may wait a moment when the last commit has only just been made, and others have something to report.
    fn wait_for_company(&self) -> Duration {
        match self.urgent || self.log_bytes >= BATCH_LOG_BYTES || self.brain.runs_nothing() {
            true => Duration::ZERO,
            false => PACE.saturating_sub(self.last_commit.elapsed()),
        }
    }

    async fn next_event(&mut self) -> Event {
        let pause = self.wait_for_company();
        let sleep = if pause.is_zero() { self.until_wake() } else { pause };
        let full = self.log_bytes >= BATCH_LOG_BYTES;
        match &mut self.flight {
            Some(flight) => tokio::select! {
                biased;
                outcome = &mut flight.outcome => Event::Committed(outcome),
                message = self.messages.recv(), if !full => Event::Message(message),
                () = stay_awake(), if self.quick && flight.began.elapsed() < SOON => Event::Wake,
            },
            None => tokio::select! {
                biased;
                message = self.messages.recv() => Event::Message(message),
                () = tokio::time::sleep(sleep) => Event::Wake,
            },
        }
    }

    fn until_wake(&self) -> Duration {
        let now = clock::now();
        let (due, lease) = self.brain.next_wake();
        let due = due.map(|at| at - now.wall);
        let lease = lease.map(|at| at - now.elapsed);
        // A millisecond more than asked: a timer that fires a hair early would find nothing due.
        let soonest = due.into_iter().chain(lease).min().map(|wait| Millis(wait.0 + 1).duration());
        soonest.unwrap_or(LONGEST_SLEEP).min(LONGEST_SLEEP)
    }

    /// Everything else that is waiting, as far as one batch takes it.
    fn take_waiting(&mut self, acks: &mut Acks, stop: &mut Option<Stop>) {
        let mut taken = 0;
        while taken < BATCH_INPUTS && stop.is_none() && self.log_bytes < BATCH_LOG_BYTES {
            let Ok(message) = self.messages.try_recv() else { return };
            taken += message.inputs();
            self.take(message, acks, stop);
        }
    }

    fn take(&mut self, message: Message, acks: &mut Acks, stop: &mut Option<Stop>) {
        let can_wait = matches!(message, Message::Logs { .. } | Message::Ask(_) | Message::Reports { .. });
        self.urgent |= !can_wait;
        match message {
            Message::Call { caller, input, waiting } => {
                self.callers.insert(caller, waiting);
                self.apply_or_defer(input);
            }
            Message::Keep { aside, kept } => {
                self.aside.add(aside);
                self.keeping.extend(kept);
            }
            Message::Input(input) => self.apply_or_defer(input),
            Message::Reports { worker, reports } => {
                let told = |report| Input::Report { caller: None, worker, report };
                reports.into_iter().map(told).for_each(|input| self.apply_or_defer(input));
            }
            Message::Logs { worker, connection, chunk } => self.take_logs(worker, connection, chunk, acks),
            Message::Ask(question) => question(&self.brain),
            Message::Stop(Stop { only_if: Some(holds), granted }) if self.brain.has_work() || !holds() => {
                _ = granted.send(false);
            }
            Message::Stop(wish) => *stop = Some(wish),
        }
    }

    fn apply_or_defer(&mut self, input: Input) {
        // In the order of their coming: a disconnect must not overtake its connect.
        let at_once = match &input {
            _ if !self.deferred.is_empty() => false,
            // How much is stored of what the worker names must be read first.
            Input::Connect { .. } => false,
            input => self.brain.missing(input).is_empty(),
        };
        if at_once { self.apply(input) } else { self.deferred.push(input) }
    }

    fn apply(&mut self, input: Input) {
        match &input {
            Input::Enqueue { jobs, .. } => {
                let mut payloads = lock(&self.payloads);
                jobs.iter().for_each(|job| payloads.put(job.id, Arc::clone(&job.payload)));
            }
            Input::Report { caller: None, worker, report: Report::Finished(finished, _) }
                if !self.is_logged(*worker, finished) =>
            {
                // A piece of its log did not come: the stream is closed for that, and both come again on the next.
                tracing::error!(execution = %finished.execution, "a result came before its log");
                return;
            }
            _ => {}
        }
        self.brain.apply(input);
    }

    /// Whether all that an execution printed before this end of it has come.
    fn is_logged(&self, worker: WorkerId, finished: &Finished) -> bool {
        let came = || self.log_next.get(&finished.execution).copied().unwrap_or(0);
        finished.log_entries == 0
            || finished.log_entries <= came()
            || self.brain.bound(worker, finished.execution).is_none()
    }

    /// A chunk is stored if it continues what is there. A repeat was stored already; of a stale execution nothing is
    /// kept; both are acknowledged, because the worker has no further use for them.
    fn take_logs(&mut self, worker: WorkerId, connection: Connection, chunk: LogChunk, acks: &mut Acks) {
        let execution = chunk.execution;
        if self.brain.bound(worker, execution) != Some(chunk.job) {
            acks.push((connection, LogAck { execution, entries: chunk.end() }));
            return;
        }
        let next = self.log_next.entry(execution).or_insert(0);
        if chunk.first > *next {
            tracing::error!(%execution, got = chunk.first, want = *next, "a log chunk is missing; closing the stream");
            _ = self.parcels.send(vec![(connection, Parcel::Close)]);
            return;
        }
        if chunk.first == *next {
            *next = chunk.end();
            self.log_bytes += chunk.data.len() + 64;
            self.logs.push(chunk);
        }
        acks.push((connection, LogAck { execution, entries: *next }));
    }

    /// Reads what deferred inputs name, and applies them. No commit is under way, so what is read is current.
    async fn resolve_deferred(&mut self) {
        if self.deferred.is_empty() {
            return;
        }
        let inputs = std::mem::take(&mut self.deferred);
        match self.facts(&inputs).await {
            Ok(facts) => {
                self.brain.clock(clock::now());
                self.brain.learn(facts);
                inputs.into_iter().for_each(|input| self.apply(input));
            }
            Err(error) => self.fail_deferred(inputs, &error),
        }
    }

    async fn facts(&mut self, inputs: &[Input]) -> Result<Facts, StoreError> {
        let (mut jobs, mut keys, mut awaited) = (IdSet::default(), HashSet::new(), IdSet::default());
        let (mut executions, mut dependents) = (Vec::new(), IdSet::default());
        for input in inputs {
            if let Input::Connect { worker, hello, .. } = input {
                let named = hello.held.iter().chain(&hello.ended);
                executions.extend(named.filter_map(|id| Some((self.brain.bound(*worker, *id)?, *id))));
            }
            let missing = self.brain.missing(input);
            jobs.extend(missing.jobs);
            keys.extend(missing.keys);
            awaited.extend(missing.awaited);
            dependents.extend(missing.dependents);
        }
        executions.retain(|(_, execution)| !self.log_next.contains_key(execution));
        if !executions.is_empty() {
            self.log_next.extend(self.shared.store.log_entries(executions).await?);
        }
        let store = &self.shared.store;
        let dependencies = context::dependencies_of(&**store, dependents).await?;
        let named = dependencies.iter().flat_map(|(_, ids)| ids);
        jobs.extend(named.filter(|id| !self.brain.knows(**id)));
        let (jobs, keys): (Vec<_>, Vec<_>) = (jobs.into_iter().collect(), keys.into_iter().collect());
        Ok(Facts {
            jobs: if jobs.is_empty() { Vec::new() } else { store.jobs(jobs).await? },
            keys: if keys.is_empty() { HashMap::new() } else { store.keys(keys).await?.into_iter().collect() },
            awaited: if awaited.is_empty() { Vec::new() } else { store.awaited(awaited.into_iter().collect()).await? },
            dependencies,
        })
    }

    fn fail_deferred(&mut self, inputs: Vec<Input>, error: &StoreError) {
        for input in inputs {
            match input {
                Input::Cancel { caller, .. }
                | Input::Retry { caller, .. }
                | Input::Resume { caller, .. }
                | Input::Many { caller, .. }
                | Input::Enqueue { caller, .. }
                | Input::SetSchedule { caller, .. } => {
                    self.answer(caller, Err(CallError::Unavailable(error.to_string())));
                }
                // The worker tries again by itself.
                Input::Connect { connection, .. } => _ = self.parcels.send(vec![(connection, Parcel::Close)]),
                other => self.apply(other),
            }
        }
    }

    fn answer(&mut self, caller: Caller, answer: Reply) {
        if let Some(waiting) = self.callers.remove(&caller) {
            _ = waiting.reply.send(answer);
        }
    }

    fn turn(&mut self, acks: &mut Acks) {
        self.urgent = false;
        self.renew_leases();
        self.brain.clock(clock::now());
        let (batch, effects) = self.brain.turn(std::mem::take(&mut self.stalled));
        let logs = std::mem::take(&mut self.logs);
        self.log_bytes = 0;
        self.audit(&effects);
        let (aside, keeping) = (std::mem::take(&mut self.aside), std::mem::take(&mut self.keeping));
        if batch.is_empty() && logs.is_empty() && aside.is_empty() {
            self.brain.committed(&batch);
            self.release(effects, std::mem::take(acks));
            return;
        }
        let commit = Arc::new(Commit { epoch: self.brain.epoch(), batch, logs, aside });
        let outcome = commit::until_done(Arc::clone(&self.shared), Arc::clone(&commit)).boxed();
        let began = Instant::now();
        self.last_commit = began;
        self.shared.committing_since.store(clock::now().elapsed.0.max(1), Ordering::Relaxed);
        self.flight = Some(Flight { commit, effects, keeping, acks: std::mem::take(acks), outcome, began });
    }

    /// What is answered with this batch goes into the audit log with it.
    fn audit(&mut self, effects: &[Effect]) {
        for effect in effects {
            let Effect::Answer { caller, answer } = effect else { continue };
            if let Some(line) = self.callers.get_mut(caller).and_then(|waiting| waiting.audit.take()) {
                access::answered(&mut self.aside.audit, line, answer);
            }
        }
    }

    fn renew_leases(&mut self) {
        let renewed = std::mem::take(&mut *lock(&self.shared.heartbeats));
        for (worker, at) in renewed {
            self.brain.apply(Input::Heartbeat { worker, at });
        }
    }

    /// A batch is durable: what waited for it may go out.
    fn land(&mut self) {
        let Some(Flight { commit, effects, keeping, acks, began, .. }) = self.flight.take() else { return };
        let (Commit { batch, logs, .. }, took) = (&*commit, began.elapsed());
        self.shared.committing_since.store(0, Ordering::Relaxed);
        self.stalled = took > STALL;
        self.quick = took < SOON;
        if self.stalled {
            tracing::warn!(?took, "the database was slow");
        }
        self.shared.commits.fetch_add(1, Ordering::Relaxed);
        self.shared.job_rows.fetch_add(batch.jobs.len() as u64, Ordering::Relaxed);
        self.shared.logs.publish(logs);
        self.shared.watches.publish(batch, |id| self.brain.placed(id));
        self.shared.logs.close_finished(&batch.jobs);
        self.shared.events.publish(commit.journal_id(), &batch.changes);
        self.shared.outbox.notify_if(!batch.deliveries.is_empty());
        self.shared.fleet.note(batch);
        keeping.into_iter().for_each(|kept| _ = kept.send(()));
        self.note_sessions(batch);
        self.forget_ended(batch);
        let mut ended = lock(&self.ended);
        batch.jobs.iter().for_each(|write| ended.note(write));
        drop(ended);
        self.release(effects, acks);
        // Last, because it takes a while and nobody waits for it.
        self.brain.committed(batch);
    }

    /// Nothing more is printed by an execution that has ended, and a job that was never sent may have ended, too.
    fn forget_ended(&mut self, batch: &Batch) {
        let mut payloads = lock(&self.payloads);
        if !payloads.is_empty() {
            // That of one that succeeded has been sent.
            let unsent = |kind: StateKind| kind.is_finished() && kind != StateKind::Succeeded;
            let unsent = batch.jobs.iter().filter(|write| unsent(write.job.state.kind()));
            unsent.for_each(|write| _ = payloads.take(write.job.id));
        }
        drop(payloads);
        if self.log_next.is_empty() {
            return;
        }
        let executions = batch.jobs.iter().flat_map(|write| &write.job.executions);
        for execution in executions.filter(|execution| execution.outcome.is_some()) {
            self.log_next.remove(&execution.id);
        }
    }

    fn note_sessions(&self, batch: &Batch) {
        if batch.workers.is_empty() {
            return;
        }
        let mut sessions = self.shared.sessions.write().unwrap_or_else(PoisonError::into_inner);
        for worker in &batch.workers {
            match worker.phase {
                Phase::Terminated => _ = sessions.remove(&worker.id),
                _ => sessions.extend(worker.session.map(|session| (worker.id, session))),
            }
        }
    }

    fn release(&mut self, effects: Vec<Effect>, acks: Acks) {
        let mut parcels = Parcels::new();
        let mut acked: BTreeMap<Connection, (Vec<ExecutionId>, Vec<LogAck>)> = BTreeMap::new();
        for (connection, ack) in acks {
            acked.entry(connection).or_default().1.push(ack);
        }
        for effect in effects {
            match effect {
                Effect::Answer { caller, answer } => self.answer(caller, answer.map_err(CallError::Refused)),
                Effect::ReadReady { class, priority, after, limit, follows } => self.read(move |store| {
                    async move {
                        let jobs = store.ready(class, priority, after, limit, follows).await?;
                        Ok(Input::Ready { class, priority, limit, jobs })
                    }
                    .boxed()
                }),
                Effect::ReadDue { after, limit } => self.read(move |store| {
                    async move { Ok(Input::Due { limit, jobs: store.due(after, limit).await? }) }.boxed()
                }),
                Effect::ReadDependents { of, each } => self.read(move |store| {
                    let of = of.clone();
                    async move {
                        let jobs = store.dependents(of.clone(), each).await?;
                        Ok(Input::Dependents { of, each, jobs })
                    }
                    .boxed()
                }),
                Effect::Create { worker, origin } => self.shared.fleet.send(Errand::Create { worker, origin }),
                Effect::Destroy { worker, provider, output } => {
                    self.shared.fleet.send(Errand::Destroy { worker, provider, output });
                }
                Effect::Inspect { worker, provider } => {
                    self.shared.fleet.send(Errand::Inspect { worker, provider });
                }
                Effect::Acked { connection, execution, .. } => acked.entry(connection).or_default().0.push(execution),
                for_worker => parcels.extend(self.parcel(for_worker)),
            }
        }
        for (connection, (results, logs)) in acked {
            parcels.push((connection, Parcel::Message(ToWorker::Acked { results, logs })));
        }
        if !parcels.is_empty() {
            _ = self.parcels.send(parcels);
        }
    }

    fn parcel(&self, effect: Effect) -> Option<(Connection, Parcel)> {
        match effect {
            Effect::Welcome { connection, verdicts, heartbeat, .. } => {
                let verdict = |bound: &Bound| Verdict {
                    execution: bound.execution,
                    keep: bound.job.is_some(),
                    log_entries: self.log_stored(bound.execution),
                };
                let held = verdicts.iter().map(verdict).collect();
                let (lease, usual) = (self.shared.options.lease, self.shared.options.heartbeat());
                let heartbeat = heartbeat.map_or(usual, |heartbeat| heartbeat.min(usual));
                Some((connection, Parcel::Message(ToWorker::Welcome(Welcome { lease, heartbeat, held }))))
            }
            Effect::Run { connection, job, execution, attempt, more, .. } => {
                Some((connection, Parcel::Run { job, execution, attempt, more }))
            }
            Effect::Stop { connection, execution, why, .. } => {
                Some((connection, Parcel::Message(ToWorker::Stop { execution, why })))
            }
            Effect::Drain { connection, within, .. } => Some((connection, Parcel::Message(ToWorker::Drain { within }))),
            Effect::RestartHandler { connection, handler, .. } => {
                Some((connection, Parcel::Message(ToWorker::RestartHandler { handler })))
            }
            Effect::Park { connection, lease, .. } => Some((connection, Parcel::Message(ToWorker::Park { lease }))),
            Effect::Close { connection, .. } => Some((connection, Parcel::Close)),
            Effect::Answer { .. }
            | Effect::Create { .. }
            | Effect::Inspect { .. }
            | Effect::Destroy { .. }
            | Effect::Acked { .. }
            | Effect::ReadReady { .. }
            | Effect::ReadDue { .. }
            | Effect::ReadDependents { .. } => None,
        }
    }

    /// How many log entries of an execution are durable. What an older stream brought since the last commit is not: a
    /// worker that forgot it now would lose it with the next crash.
    fn log_stored(&self, execution: ExecutionId) -> u64 {
        let waiting = self.logs.iter().find(|chunk| chunk.execution == execution).map(|chunk| chunk.first);
        waiting.or_else(|| self.log_next.get(&execution).copied()).unwrap_or(0)
    }

    /// Reads in the background, as often as it takes, and feeds what was found to the brain.
    fn read(&self, read: impl Fn(Arc<dyn Store>) -> BoxFuture<'static, Result<Input, StoreError>> + Send + 'static) {
        let (store, inbox) = (Arc::clone(&self.shared.store), self.inbox.clone());
        tokio::spawn(async move {
            loop {
                match read(Arc::clone(&store)).await {
                    Ok(input) => {
                        _ = inbox.send(Message::Input(input));
                        return;
                    }
                    Err(error) => tracing::warn!(%error, "cannot read from the database; trying again"),
                }
                tokio::time::sleep(READ_AGAIN).await;
            }
        });
    }

    /// The last turn: what is decided becomes durable, the workers are told to go on alone, and their streams end.
    async fn finish(mut self, mut acks: Acks, wish: Stop) -> LoopEnd {
        self.shared.closing.store(true, Ordering::Relaxed);
        self.messages.close();
        while let Ok(message) = self.messages.try_recv() {
            if let Message::Call { waiting, .. } = message {
                _ = waiting.reply.send(Err(going_away()));
            }
        }
        let last = async {
            self.fly_home().await?;
            self.resolve_deferred().await;
            self.brain.apply(Input::Park { lease: self.shared.options.parked_lease });
            self.turn(&mut acks);
            self.fly_home().await
        };
        let ended = tokio::time::timeout(LAST_PATIENCE, last).await;
        let ended = ended.unwrap_or_else(|_| Err(StoreError::Unavailable("no answer while shutting down".into())));
        drop(self.parcels);
        _ = self.dispatcher.await;
        self.shared.links.close_all();
        _ = wish.granted.send(true);
        ended
    }

    async fn fly_home(&mut self) -> LoopEnd {
        if let Some(flight) = &mut self.flight {
            (&mut flight.outcome).await?;
            self.land();
        }
        Ok(())
    }
}
