//! Runs assignments as processes and turns what they do into events.
//!
//! Each slot has a task of its own here and a thread of its own in the guardian, which starts the processes and sees to
//! their end. The tasks pass things on to each other and to the agent all the time, so they are best on one thread with it:
//! there that wakes nobody. A job that prints nothing, reports nothing and leaves nothing costs little more than its process.

mod clock;
mod exchange;
mod folder;
mod line;
mod lines;
mod mask;
mod output;
mod program;
mod progress;
mod service;
mod slot;
mod supervisor;
mod tail;

pub use clock::{boottime, wall};
pub(crate) use exchange::{data_of, dependencies_json};
pub(crate) use lines::Lines;
pub(crate) use mask::Masks;
pub(crate) use program::{SCRATCH, inherited};
pub(crate) use service::{ServiceCommand, ServicePipes, ServiceSlot};
pub(crate) use tail::Tail;

use crate::{
    chunks::Sink,
    guardian::{GuardianCommand, GuardianProcess, Isolation},
};
use hodei_core::{
    id::{ExecutionId, WorkerId},
    job::Progress,
    journal::Supervision,
    protocol::{Assignment, Finished, LogChunk, StopReason},
    time::{Elapsed, Time},
};
use program::Account;
use slot::{Command, SlotTask};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    io,
    os::unix::fs::DirBuilderExt,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use supervisor::{Order, Supervisor};
use thiserror::Error;
use tokio::{
    runtime::Handle,
    sync::{Semaphore, mpsc, watch},
    task::JoinHandle,
};

#[derive(Clone, Debug)]
pub struct ExecutorConfig {
    pub worker: WorkerId,
    pub slots: u32,
    /// A folder of the worker's own. It is made, and removed at the end.
    pub scratch: PathBuf,
    /// The most processes and threads that one job may have.
    pub pids_limit: u32,
    /// One permit for each byte of log data that is not acknowledged. Whoever gets a chunk gives its bytes back when the
    /// server has it; until then the jobs wait. It must hold a few full chunks.
    pub log_budget: Arc<Semaphore>,
    /// Whether jobs find the environment of this process, but for what is Hodei's own.
    pub pass_environment: bool,
    pub guardian: GuardianCommand,
}

/// What happened to an execution, of which `Ended` is the last, or to a handler.
#[derive(Debug)]
pub enum ExecutorEvent {
    Started {
        execution: ExecutionId,
        at: Time,
    },
    Progress {
        execution: ExecutionId,
        progress: Progress,
        data: Option<Vec<u8>>,
    },
    Logs(LogChunk),
    Ended(Finished),
    /// The subprocesses of a handler: whether tasks of these types can be run.
    Handler {
        name: String,
        types: BTreeSet<String>,
        up: bool,
    },
    /// Something that people should know of those who watch over them.
    Supervision(Supervision),
}

#[derive(Debug, Error)]
pub enum ExecutorError {
    #[error("the scratch folder {} cannot be used: {error}", path.display())]
    Scratch { path: PathBuf, error: io::Error },
    #[error("the guardian cannot be started: {0}")]
    Guardian(io::Error),
}

/// A handle on the executor; clones are the same one.
#[derive(Clone, Debug)]
pub struct Executor {
    shared: Arc<Shared>,
    slots: Arc<Mutex<Slots>>,
    isolation: Isolation,
}

/// What the slots' tasks share.
#[derive(Debug)]
struct Shared {
    config: ExecutorConfig,
    account: Account,
    sink: Arc<Sink>,
    orders: mpsc::UnboundedSender<Order>,
    lease: watch::Sender<Option<Elapsed>>,
    /// Counts the guardians that have become ready.
    generation: watch::Sender<u64>,
    shutdown: watch::Sender<bool>,
    places: Mutex<Places>,
}

/// Which slot runs what.
#[derive(Debug)]
struct Places {
    free: BTreeSet<u32>,
    taken: HashMap<ExecutionId, u32>,
    /// Slots beside those of the jobs, for processes that live longer.
    services: u32,
}

#[derive(Debug)]
struct Slots {
    tasks: Vec<(mpsc::UnboundedSender<Command>, JoinHandle<()>)>,
    supervisor: Option<JoinHandle<()>>,
    runtime: Handle,
}

impl ExecutorConfig {
    async fn start_guardian(&self) -> io::Result<GuardianProcess> {
        self.guardian.start(self.worker, self.pids_limit, &self.scratch).await
    }
}

impl Shared {
    fn places(&self) -> MutexGuard<'_, Places> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn release(&self, execution: ExecutionId, slot: u32) {
        let mut places = self.places();
        places.taken.remove(&execution);
        places.free.insert(slot);
    }
}

impl Executor {
    /// Makes the scratch folder and starts the guardian, which first ends what a former life of this worker left.
    pub async fn start(
        config: ExecutorConfig,
        events: mpsc::UnboundedSender<ExecutorEvent>,
    ) -> Result<Self, ExecutorError> {
        let config = ExecutorConfig { scratch: make_scratch(&config.scratch)?, ..config };
        let guardian = config.start_guardian().await.map_err(ExecutorError::Guardian)?;
        let isolation = guardian.isolation.clone();
        let (orders, for_guardian) = mpsc::unbounded_channel();
        let (lease, lease_seen) = watch::channel(None);
        let generation = watch::Sender::new(0);
        let supervisor = Supervisor {
            config: config.clone(),
            guardian,
            orders: for_guardian,
            lease: lease_seen,
            generation: generation.clone(),
        };
        let runtime = Handle::current();
        let supervisor = Some(runtime.spawn(supervisor.run()));
        let places = Places { free: (0..config.slots).collect(), taken: HashMap::new(), services: 0 };
        let environment = if config.pass_environment { program::inherited() } else { BTreeMap::new() };
        let budget = Arc::clone(&config.log_budget);
        let shutdown = watch::Sender::new(false);
        let sink = Arc::new(Sink { events, budget, shutdown: shutdown.subscribe() });
        let shared = Arc::new(Shared {
            config,
            account: Account::of_this_process(environment),
            sink,
            orders,
            lease,
            generation,
            shutdown,
            places: Mutex::new(places),
        });
        let slots = Arc::new(Mutex::new(Slots { tasks: Vec::new(), supervisor, runtime }));
        Ok(Self { shared, slots, isolation })
    }

    /// How jobs are kept together on this host, and which limits it enforces.
    pub fn isolation(&self) -> &Isolation {
        &self.isolation
    }

    /// Runs an assignment in the lowest free slot. There must be one.
    pub fn run(&self, assignment: Assignment) {
        let slot = {
            let mut places = self.shared.places();
            let Some(slot) = places.free.pop_first() else {
                tracing::error!(execution = %assignment.execution, "no slot is free; the assignment is dropped");
                return;
            };
            places.taken.insert(assignment.execution, slot);
            slot
        };
        self.command(slot, Command::Run(assignment));
    }

    /// Stops an execution, if it is one of ours: politely, then after its grace by force. A stale one is not worth the grace.
    pub fn stop(&self, execution: ExecutionId, why: StopReason) {
        let slot = self.shared.places().taken.get(&execution).copied();
        if let Some(slot) = slot {
            self.command(slot, Command::Stop { execution, why });
        }
    }

    /// Nothing runs past this moment on the boot-time clock unless a later one is set before.
    pub fn set_lease(&self, deadline: Elapsed) {
        self.shared.lease.send_replace(Some(deadline));
    }

    /// Kills what runs, waits for its end, and removes the scratch folder and the groups.
    pub async fn shutdown(self) {
        self.shared.shutdown.send_replace(true);
        let (tasks, supervisor) = {
            let mut slots = self.slots();
            (std::mem::take(&mut slots.tasks), slots.supervisor.take())
        };
        for (_, task) in tasks {
            _ = task.await;
        }
        let scratch = self.shared.config.scratch.clone();
        _ = self.shared.orders.send(Order::Leave);
        if let Some(supervisor) = supervisor {
            _ = supervisor.await;
        }
        _ = tokio::task::spawn_blocking(move || std::fs::remove_dir_all(scratch)).await;
    }

    /// Slots come to life when they are first used; the lowest are used first.
    fn command(&self, slot: u32, command: Command) {
        let mut slots = self.slots();
        while slots.tasks.len() <= slot as usize {
            let (sender, receiver) = mpsc::unbounded_channel();
            let task = SlotTask::new(slots.tasks.len() as u32, self.shared.clone());
            let task = slots.runtime.spawn(task.serve(receiver));
            slots.tasks.push((sender, task));
        }
        _ = slots.tasks[slot as usize].0.send(command);
    }

    fn slots(&self) -> MutexGuard<'_, Slots> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The folder, private to its owner, by its absolute path: jobs are told of it and have other working directories.
fn make_scratch(path: &std::path::Path) -> Result<PathBuf, ExecutorError> {
    let failed = |error| ExecutorError::Scratch { path: path.to_owned(), error };
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(failed)?;
    let path = path.canonicalize().map_err(failed)?;
    if path.to_str().is_none() {
        return Err(failed(io::Error::new(io::ErrorKind::InvalidInput, "its path is not UTF-8")));
    }
    Ok(path)
}
