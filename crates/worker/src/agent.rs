//! The agent: one loop that carries what happens to the session and does what the session says.

use crate::{
    executor::{self, Executor, ExecutorConfig, ExecutorError, ExecutorEvent},
    guardian::GuardianCommand,
    handlers::{HandlerError, Handlers, Pools, Tasks},
    identity::Identity,
    link::{self, Connect, LinkError, Stream},
    spool::{Entry, Spool},
};
use futures::future::{BoxFuture, FutureExt};
use hodei_api::{convert, v1, wire::WorkerMessage};
use hodei_core::{
    id::{ExecutionId, IdMap, Incarnation, WorkerId},
    protocol::{Assignment, FromWorker},
    session::{Action, Session},
    time::{Elapsed, Time},
    worker::WorkerInfo,
};
use std::{
    collections::BTreeSet,
    fs::File,
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};
use thiserror::Error;
use tokio::{
    runtime::Handle,
    signal::unix::{SignalKind, signal},
    sync::{Semaphore, mpsc, oneshot, watch},
};
use uuid::Uuid;

/// Events of jobs that are handled before the next look at anything else.
const BATCH: usize = 4096;
/// How long messages wait for others, from the last one that was sent on.
const PACE: Duration = Duration::from_millis(2);
/// The same where many come: a message, and the server's commit for it, costs about as much for one event as for ten.
const CROWDED_PACE: Duration = Duration::from_millis(8);
/// A message with so many events shows that more will come.
const CROWD: usize = 4;
/// A message with so many events waits for no others: there is nothing left to be shared.
const FULL: usize = 512;

/// How long the server may take to hear that this worker leaves.
const FAREWELL: Duration = Duration::from_secs(2);

pub struct AgentOptions {
    pub connect: Connect,
    pub token: Option<String>,
    pub worker: Option<WorkerId>,
    pub info: WorkerInfo,
    /// The folder of this worker: identity, spool, scratch. One agent at a time uses it.
    pub folder: PathBuf,
    /// Log data that may wait for the server; when it is used up, jobs wait to print.
    pub spool_bytes: usize,
    /// How processes are run; none if this worker runs tasks alone.
    pub processes: Option<Processes>,
    pub handlers: Handlers,
}

/// What a worker needs to run shell and script work.
#[derive(Clone, Debug)]
pub struct Processes {
    pub pids_limit: u32,
    /// Whether jobs find the environment of this process, but for what is Hodei's own.
    pub pass_environment: bool,
    pub guardian: GuardianCommand,
}

/// What the agent's owner wants of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Wish {
    #[default]
    Work,
    /// Finish what runs, take nothing new, then end.
    Finish,
    /// Stop what runs, give it back, then end.
    GiveBack,
}

async fn told_to_leave(wishes: &mut watch::Receiver<Wish>) {
    if wishes.wait_for(|wish| !matches!(wish, Wish::Work)).await.is_err() {
        std::future::pending().await
    }
}

/// What the signals of this process wish for: the first lets jobs finish, the second gives them back.
pub fn wishes_of_signals() -> watch::Receiver<Wish> {
    let (wish, wishes) = watch::channel(Wish::Work);
    tokio::spawn(async move {
        let signals = (signal(SignalKind::interrupt()), signal(SignalKind::terminate()));
        let (Ok(mut interrupt), Ok(mut terminate)) = signals else { return };
        for next in [Wish::Finish, Wish::GiveBack] {
            tokio::select! { _ = interrupt.recv() => {}, _ = terminate.recv() => {} }
            wish.send_replace(next);
        }
    });
    wishes
}

#[derive(Debug, Error)]
pub enum AgentError {
    #[error(transparent)]
    Link(#[from] LinkError),
    #[error(transparent)]
    Executor(#[from] ExecutorError),
    #[error(transparent)]
    Handler(#[from] HandlerError),
    #[error("cannot use the worker's folder {}: {error}", folder.display())]
    Folder { folder: PathBuf, error: io::Error },
    #[error("no thread for the agent: {0}")]
    Thread(io::Error),
    #[error("the agent died")]
    Died,
    #[error("another worker agent runs in {}; give this one a folder of its own with --data", .0.display())]
    Taken(PathBuf),
}

/// Runs a worker until it is told to end, is drained for good, or is refused by the server.
///
/// Handlers of tasks run in the runtime of the caller. Without processes the agent does, too; with them, it and its
/// executor have a thread to themselves, because they wake each other all the time.
pub async fn run(options: AgentOptions, wishes: watch::Receiver<Wish>) -> Result<(), AgentError> {
    let for_handlers = Handle::current();
    if options.processes.is_none() {
        // Among the other tasks of the runtime, where what it wakes and what wakes it is one queue away. The task that
        // waits for the whole program is on a thread of its own.
        return tokio::spawn(live(options, wishes, for_handlers)).await.unwrap_or(Err(AgentError::Died));
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(AgentError::Thread)?;
    let (mut done, ended) = oneshot::channel();
    let thread = move || {
        let outcome = runtime.block_on(async {
            tokio::select! {
                outcome = live(options, wishes, for_handlers) => outcome,
                () = done.closed() => Ok(()),
            }
        });
        _ = done.send(outcome);
    };
    std::thread::Builder::new().name("agent".to_owned()).spawn(thread).map_err(AgentError::Thread)?;
    ended.await.unwrap_or(Err(AgentError::Died))
}

async fn live(
    mut options: AgentOptions,
    mut wishes: watch::Receiver<Wish>,
    for_handlers: Handle,
) -> Result<(), AgentError> {
    let tasks_only = options.processes.is_none();
    options.info.offer = options.handlers.offer(tasks_only);
    let _lock = lock(&options)?;
    let in_folder = |error| AgentError::Folder { folder: options.folder.clone(), error };
    let mut identity = Identity::load(&options.folder).map_err(in_folder)?;
    let token = options.token.as_deref();
    tokio::select! {
        registered = link::register(&options.connect, &mut identity, token, options.worker, &options.info) => registered?,
        () = told_to_leave(&mut wishes) => return Ok(()),
    }
    let (Some(worker), Some(session)) = (identity.worker, identity.session.clone()) else {
        return Err(LinkError::NoToken.into());
    };

    let (spool, recovered) = Spool::open(&options.folder.join("spool"), executor::wall()).map_err(in_folder)?;
    let budget = Arc::new(Semaphore::new(options.spool_bytes));
    let (events, received) = mpsc::unbounded_channel();
    let executor = match options.processes {
        Some(processes) => {
            let config = ExecutorConfig {
                worker,
                slots: options.info.capacity.slots,
                scratch: options.folder.join("scratch"),
                pids_limit: processes.pids_limit,
                log_budget: Arc::clone(&budget),
                pass_environment: processes.pass_environment,
                guardian: processes.guardian,
            };
            Some(Executor::start(config, events.clone()).await?)
        }
        None => None,
    };
    let slots = options.info.capacity.slots;
    let pools = options.handlers.start(executor.as_ref(), slots, &events, &for_handlers).await?;
    options.info.offer = options.handlers.offer(tasks_only);
    options.info.handlers = pools.infos();
    let isolation = executor.as_ref().map(|executor| executor.isolation().to_string());
    tracing::info!(%worker, isolation, tasks = ?options.handlers, "the worker is up");

    let incarnation = Incarnation(Uuid::new_v4());
    let mut agent = Agent {
        state: Session::new(incarnation, options.info, recovered),
        connect: options.connect,
        session,
        tasks: Tasks::start(options.handlers, for_handlers, events, Arc::clone(&budget)),
        executor: executor.clone(),
        pools,
        spool,
        budget,
        stream: None,
        outgoing: WorkerMessage::default(),
        starts: IdMap::default(),
        freed: 0,
        last_sent: Instant::now(),
        pace: PACE,
        ending: None,
        giving_back: false,
    };
    let outcome = agent.run(received, wishes).await;
    agent.pools.close().await;
    if let Some(executor) = executor {
        executor.shutdown().await;
    }
    outcome
}

/// The worker that an agent in this folder was before.
pub fn known_worker(folder: &Path) -> Option<WorkerId> {
    Identity::load(folder).ok()?.worker
}

/// Held for as long as the agent lives.
fn lock(options: &AgentOptions) -> Result<File, AgentError> {
    let folder = &options.folder;
    let open = || -> io::Result<File> {
        std::fs::create_dir_all(folder)?;
        File::options().create(true).truncate(false).write(true).open(folder.join("lock"))
    };
    let file = open().map_err(|error| AgentError::Folder { folder: folder.clone(), error })?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(std::fs::TryLockError::WouldBlock) => Err(AgentError::Taken(folder.clone())),
        Err(std::fs::TryLockError::Error(error)) => Err(AgentError::Folder { folder: folder.clone(), error }),
    }
}

struct Agent {
    state: Session,
    connect: Connect,
    session: String,
    executor: Option<Executor>,
    pools: Pools,
    tasks: Tasks,
    spool: Spool,
    budget: Arc<Semaphore>,
    stream: Option<Stream>,
    outgoing: WorkerMessage,
    /// Starts that have not been told yet. What ends before the next message goes needs no word of its start: its end
    /// says when that was.
    starts: IdMap<ExecutionId, Time>,
    /// Slots that have become free since the last message: the server does not know of it yet.
    freed: usize,
    last_sent: Instant,
    /// How long the next message waits for company from then on.
    pace: Duration,
    /// Set when everything is done; true when the worker leaves for good.
    ending: Option<bool>,
    /// It waits for nobody: what is spooled is delivered in its next life.
    giving_back: bool,
}

enum Happening {
    Event(Option<ExecutorEvent>),
    Message(Option<v1::ServerMessage>),
    Opened(Result<Stream, LinkError>),
    Wish(Wish),
    Tick,
}

impl Agent {
    async fn run(
        &mut self,
        mut events: mpsc::UnboundedReceiver<ExecutorEvent>,
        mut wishes: watch::Receiver<Wish>,
    ) -> Result<(), AgentError> {
        let mut opening = self.open();
        loop {
            match self.next(&mut events, &mut wishes, &mut opening).await {
                Happening::Event(None) => return Ok(()),
                Happening::Event(Some(event)) => {
                    self.take_event(event);
                    // Others that are ready have more to tell. What is taken together is written and sent together.
                    tokio::task::yield_now().await;
                    for _ in 0..BATCH {
                        let Ok(event) = events.try_recv() else { break };
                        self.take_event(event);
                    }
                }
                Happening::Message(Some(message)) => self.take_message(message),
                Happening::Message(None) => self.drop_stream(),
                Happening::Opened(Ok(stream)) => {
                    self.stream = Some(stream);
                    self.state.connected(executor::boottime());
                }
                Happening::Opened(Err(error)) => return Err(error.into()),
                Happening::Wish(wish) => self.wish(wish),
                Happening::Tick => self.state.tick(executor::boottime()),
            }
            self.act();
            self.send();
            // Nobody to give it back to: what is spooled is delivered in the next life.
            if self.giving_back && !self.state.is_up() && self.state.runs_nothing() {
                self.ending.get_or_insert(false);
            }
            if let Some(for_good) = self.ending.take()
                && self.leave(for_good).await?
            {
                return Ok(());
            }
            if self.stream.is_none() && opening.is_none() {
                opening = self.open();
            }
        }
    }

    async fn next(
        &mut self,
        events: &mut mpsc::UnboundedReceiver<ExecutorEvent>,
        wishes: &mut watch::Receiver<Wish>,
        opening: &mut Option<BoxFuture<'static, Result<Stream, LinkError>>>,
    ) -> Happening {
        let tick = match self.outgoing.is_empty() && self.starts.is_empty() {
            true => until(self.state.next_wake()),
            false => self.wait_for_company(),
        };
        let message = async {
            match &mut self.stream {
                Some(stream) => stream.incoming.message().await.ok().flatten(),
                None => std::future::pending().await,
            }
        };
        let opened = async {
            match opening {
                Some(opening) => opening.await,
                None => std::future::pending().await,
            }
        };
        let happening = tokio::select! {
            event = events.recv() => Happening::Event(event),
            message = message => Happening::Message(message),
            stream = opened => Happening::Opened(stream),
            Ok(()) = wishes.changed() => Happening::Wish(*wishes.borrow_and_update()),
            () = tokio::time::sleep(tick) => Happening::Tick,
        };
        if matches!(happening, Happening::Opened(_)) {
            *opening = None;
        }
        happening
    }

    fn open(&self) -> Option<BoxFuture<'static, Result<Stream, LinkError>>> {
        Some(link::open(Arc::clone(&self.connect), self.session.clone()).boxed())
    }

    fn take_event(&mut self, event: ExecutorEvent) {
        match event {
            ExecutorEvent::Started { execution, at } => self.state.started(execution, at),
            ExecutorEvent::Progress { execution, progress, data } => self.state.progress(execution, progress, data),
            ExecutorEvent::Logs(chunk) => self.keep(Entry::Logs(chunk)),
            ExecutorEvent::Ended(finished) => {
                // Its end says when it began, unless something that came before the end needs to be told first.
                self.act();
                self.starts.remove(&finished.execution);
                self.freed += 1;
                if let Some(finished) = self.state.ended(finished) {
                    self.keep(Entry::Finished(finished));
                }
            }
            ExecutorEvent::Handler { name, types, up } => self.offer(&name, types, up),
            ExecutorEvent::Supervision(news) => self.state.supervised(news),
        }
    }

    /// Tells the server what is run here from now on.
    fn offer(&mut self, handler: &str, types: BTreeSet<String>, up: bool) {
        let mut info = self.state.info().clone();
        info.handlers.iter_mut().filter(|info| info.name == handler).for_each(|info| info.up = up);
        for task_type in types.into_iter().map(Arc::from) {
            match up {
                true => info.offer.task_types.insert(task_type),
                false => info.offer.task_types.remove(&task_type),
            };
        }
        self.state.redescribe(info);
    }

    fn keep(&mut self, entry: Entry) {
        let record = self.spool.append(entry);
        self.state.spooled(record);
    }

    fn take_message(&mut self, message: v1::ServerMessage) {
        let now = executor::boottime();
        for event in message.events {
            match convert::from_server(event) {
                Ok(message) => self.state.received(message, now),
                Err(error) => tracing::error!(%error, "the server sent what this worker does not understand"),
            }
        }
    }

    fn drop_stream(&mut self) {
        if self.stream.take().is_some() {
            tracing::info!("the stream to the server ended; reconnecting");
            self.forget_outgoing();
            self.state.disconnected();
        }
    }

    /// Does what the session says; some of it makes the session say more.
    fn act(&mut self) {
        while let Some(action) = self.state.next_action() {
            self.perform(action);
        }
    }

    fn perform(&mut self, action: Action) {
        match action {
            Action::Send(FromWorker::Started { execution, at }) => _ = self.starts.insert(execution, at),
            Action::Send(message) => {
                self.tell_starts();
                self.say(message);
            }
            Action::SendRecord(id) => match self.spool.read(id) {
                Ok(event) => self.outgoing.push_encoded(&event),
                Err(error) => tracing::error!(%error, "a spooled record cannot be read back"),
            },
            Action::Forget(id) => self.budget.add_permits(self.spool.forget(id)),
            Action::Run(assignment) => self.start(assignment),
            Action::Stop { execution, why } => {
                if !self.tasks.stop(execution, why)
                    && let Some(executor) = &self.executor
                {
                    executor.stop(execution, why);
                }
            }
            Action::Conclude(mut finished) => {
                finished.finished_at = executor::wall();
                self.keep(Entry::Finished(finished));
            }
            Action::SetLease(deadline) => {
                self.tasks.set_lease(deadline);
                if let Some(executor) = &self.executor {
                    executor.set_lease(deadline);
                }
            }
            Action::RestartHandler(handler) => {
                if !self.pools.restart(&handler) {
                    tracing::warn!(handler, "there is no such handler to be started anew");
                }
            }
            Action::Reconnect => self.drop_stream(),
            Action::Exit { for_good } => self.ending = Some(for_good),
        }
    }

    fn start(&self, assignment: Assignment) {
        let spec = Arc::clone(&assignment.spec);
        match (spec.work.task_type(), &self.executor) {
            (Some(task_type), executor) => match (self.tasks.as_process(&assignment, task_type), executor) {
                (Some(process), Some(executor)) => executor.run(process),
                _ => self.tasks.run(assignment, task_type),
            },
            (None, Some(executor)) => executor.run(assignment),
            (None, None) => self.tasks.refuse_process(assignment.execution),
        }
    }

    /// What is sent is on disk first.
    fn send(&mut self) {
        if let Err(error) = self.spool.flush() {
            tracing::error!(%error, "cannot write the spool; results are kept in memory");
        }
        if self.stream.is_none() {
            self.forget_outgoing();
        }
        if !self.wait_for_company().is_zero() {
            return;
        }
        self.tell_starts();
        if let Some(stream) = self.stream.as_ref().filter(|_| !self.outgoing.is_empty()) {
            let message = std::mem::take(&mut self.outgoing);
            self.freed = 0;
            self.pace = if message.len() < CROWD { PACE } else { CROWDED_PACE };
            _ = stream.outgoing.send(message);
            self.last_sent = Instant::now();
        }
    }

    fn tell_starts(&mut self) {
        for (execution, at) in std::mem::take(&mut self.starts) {
            self.say(FromWorker::Started { execution, at });
        }
    }

    fn say(&mut self, message: FromWorker) {
        self.outgoing.push(&v1::WorkerEvent { kind: Some(convert::to_server(message)) });
    }

    /// The session says again what must be said when there is a new stream.
    fn forget_outgoing(&mut self) {
        self.outgoing.clear();
        self.starts.clear();
    }

    /// What is to be said may wait a moment when something was said only just before, and there is more to come. But not
    /// while half of the slots have nothing to do for want of it.
    fn wait_for_company(&self) -> Duration {
        let idle = 2 * self.freed >= self.state.info().capacity.slots as usize;
        match idle || self.state.runs_nothing() || self.outgoing.len() >= FULL {
            true => Duration::ZERO,
            false => self.pace.saturating_sub(self.last_sent.elapsed()),
        }
    }

    fn wish(&mut self, wish: Wish) {
        match wish {
            Wish::Work => {}
            Wish::Finish => {
                tracing::info!("finishing what runs; a second signal gives it back");
                self.state.leave(false);
            }
            Wish::GiveBack => {
                self.giving_back = true;
                self.state.release();
            }
        }
    }

    /// False if something came that must be given back first.
    async fn leave(&mut self, for_good: bool) -> Result<bool, AgentError> {
        if for_good {
            link::unregister(&self.connect, &self.session, "drained").await?;
        } else if let Some(stream) = self.stream.take() {
            let last = stream.finish(std::mem::take(&mut self.outgoing));
            let late = tokio::time::timeout(FAREWELL, last).await.unwrap_or_default();
            self.state.disconnected();
            late.into_iter().for_each(|message| self.take_message(message));
            self.ending = None;
            self.act();
            self.send();
            if self.state.owes() && !self.giving_back {
                return Ok(false);
            }
        }
        self.tasks.shut_down();
        Ok(true)
    }
}

fn until(when: Elapsed) -> Duration {
    (when - executor::boottime()).duration()
}
