//! Tasks run by a subprocess that lives on: many tasks one after the other and beside each other, over its standard input
//! and output.

mod crew;
mod message;
mod process;

use super::{Done, Program, Task, TaskError, TaskResult, view::View};
use crate::executor::{Executor, ExecutorEvent, ServiceCommand, inherited};
use crew::{Crew, Order};
use hodei_core::time::Millis;
use hodei_supervise::{PoolLimits, Sla};
use message::{ToProcess, frame};
use process::{Greeting, Keeper};
use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::{Path, PathBuf},
    sync::Arc,
};
use tokio::{
    runtime::Handle,
    select,
    sync::{mpsc, oneshot, watch},
    task::JoinHandle,
};

/// The module for Python, which every subprocess finds.
const PYTHON: &str = include_str!("../../../../python/hodei_handler.py");
/// What a task's side has not looked at yet may be so much; then its process waits.
const SAID: usize = 256;

/// A subprocess, and how many of it.
#[derive(Clone, Debug)]
pub struct Subprocess {
    pub program: Program,
    /// Absolute.
    pub directory: PathBuf,
    /// Beside what the worker itself has in its environment.
    pub environment: BTreeMap<String, String>,
    /// The most that there are at one time.
    pub processes: u32,
    /// So many are kept however little there is to do; the others come when they are needed.
    pub warm: u32,
    /// Those that are not kept end after so long without a task.
    pub idle: Millis,
    /// Tasks at one time in each; zero for as many as the worker has slots for.
    pub concurrency: u32,
    pub sla: Sla,
}

/// A task for a process.
struct Request {
    id: String,
    frame: Vec<u8>,
    said: mpsc::Sender<Said>,
}

impl std::fmt::Debug for Request {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Request").field(&self.id).finish()
    }
}

/// What comes back.
enum Said {
    /// A process has it, and takes orders.
    Taken(mpsc::UnboundedSender<Order>),
    Heartbeat,
    Progress(f64, String),
    Log(String, bool),
    Data(Value),
    Ended(Result<(Done, Vec<Vec<u8>>), TaskError>),
}

/// The processes of one handler.
#[derive(Debug)]
pub(super) struct Pool {
    crew: Arc<Crew>,
    closing: watch::Sender<bool>,
    keepers: Vec<JoinHandle<()>>,
}

impl Subprocess {
    /// Starts those that are kept, and waits until each has said which types it handles, or has failed. The types are unknown
    /// if all have; supervision goes on with them.
    pub(super) async fn start(
        &self,
        name: &str,
        executor: &Executor,
        slots: u32,
        outbox: mpsc::UnboundedSender<ExecutorEvent>,
        runtime: &Handle,
    ) -> Result<(Pool, Option<BTreeSet<String>>), String> {
        let processes = self.processes.max(1);
        let concurrency = if self.concurrency > 0 { self.concurrency } else { slots.div_ceil(processes) };
        let warm = self.warm.min(processes) as usize;
        let limits = PoolLimits { capacity: processes as usize, warm, ttl: self.idle.duration() };
        let command = self.command(&executor.scratch());
        let command = command.map_err(|error| format!("its module cannot be written: {error}"))?;
        let by_shell = matches!(self.program, Program::Line(_));
        let (closing, closed) = watch::channel(false);
        let (crew, places) = Crew::new(name, (command, by_shell), self.sla, concurrency, limits, closed, outbox);
        let (mut keepers, mut greetings) = (Vec::new(), Vec::new());
        for (place, orders) in (0..).zip(places) {
            // Without one that has said hello nobody knows what the handler is for.
            let first = (keepers.len() < warm.max(1)).then(|| {
                let (greeted, greeting) = oneshot::channel();
                greetings.push(greeting);
                greeted
            });
            let keeper = Keeper { crew: Arc::clone(&crew), place, slot: executor.service_slot(), orders, first };
            keepers.push(runtime.spawn(keeper.run()));
        }
        let pool = Pool { crew, closing, keepers };
        for greeting in greetings {
            if let Ok(Greeting::NoSuchCommand(problem)) = greeting.await {
                pool.close().await;
                return Err(problem);
            }
        }
        let types = pool.crew.types();
        Ok((pool, types))
    }

    /// It has the worker's environment, but for what is the worker's own business.
    fn command(&self, scratch: &Path) -> io::Result<ServiceCommand> {
        let modules = scratch.join("python");
        std::fs::create_dir_all(&modules)?;
        std::fs::write(modules.join("hodei_handler.py"), PYTHON)?;
        let mut environment = inherited();
        environment.extend(self.environment.clone());
        let path = environment.entry("PYTHONPATH".to_owned()).or_default();
        let after = if path.is_empty() { "" } else { ":" };
        *path = format!("{}{after}{path}", modules.display());
        Ok(ServiceCommand {
            args: self.program.args(),
            directory: self.directory.to_string_lossy().into_owned(),
            environment,
        })
    }
}

impl Pool {
    pub(super) fn runner(&self) -> Runner {
        Runner { crew: Arc::clone(&self.crew) }
    }

    pub(super) fn sla(&self) -> Sla {
        self.crew.sla
    }

    pub(super) fn is_given_up(&self) -> bool {
        self.crew.is_given_up()
    }

    /// Starts its processes anew: what was given up is tried again, and what runs is replaced once it has finished what it
    /// holds.
    pub(super) fn ask(&self) {
        self.crew.ask();
    }

    /// Tells the processes to end, and sees to it.
    pub(super) async fn close(self) {
        self.closing.send_replace(true);
        for keeper in self.keepers {
            _ = keeper.await;
        }
    }
}

/// Gives tasks to the processes.
#[derive(Clone, Debug)]
pub(super) struct Runner {
    crew: Arc<Crew>,
}

impl Runner {
    pub(super) fn handles(&self, task_type: &str) -> bool {
        self.crew.handles(task_type)
    }

    pub(super) async fn run(self, task: Task) -> TaskResult<Done> {
        let id = task.execution_id().to_string();
        let (said, mut heard) = mpsc::channel(SAID);
        let frame = job_frame(&task, &id).map_err(TaskError::fatal)?;
        let gone = || TaskError::retry("the subprocess is gone");
        self.crew.give(Request { id: id.clone(), frame, said });
        let mut held: Option<Held> = None;
        let mut told = false;
        loop {
            let said = select! {
                said = heard.recv() => said.ok_or_else(gone)?,
                () = task.stopping(), if !told => {
                    told = true;
                    match &held {
                        Some(held) => held.cancel(),
                        None => return Err("stopped before it began".into()),
                    }
                    continue;
                }
            };
            match said {
                Said::Taken(orders) => held = Some(Held { id: id.clone(), orders, done: false }),
                Said::Heartbeat => task.heartbeat(),
                Said::Progress(percent, message) => task.progress(percent, &message),
                Said::Log(text, false) => task.log(&text).await,
                Said::Log(text, true) => task.log_error(&text).await,
                Said::Data(data) => task.set_data(&data)?,
                Said::Ended(end) => {
                    if let Some(held) = &mut held {
                        held.done = true;
                    }
                    let (done, children) = end?;
                    task.add_children(children);
                    return Ok(done);
                }
            }
        }
    }
}

fn job_frame(task: &Task, id: &str) -> Result<Vec<u8>, String> {
    let spec = &task.assignment().spec;
    let plain = spec.environment.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    let secret = spec.secrets.iter().map(|(name, value)| (name.as_str(), value.0.as_str()));
    frame(&ToProcess::Job {
        id: id.to_owned(),
        view: View::of(task),
        environment: plain.chain(secret).collect(),
        timeout_ms: spec.timeouts.run.map(|limit| limit.0),
    })
}

/// A task that a process has. When nobody waits for it any more, it must not go on.
struct Held {
    id: String,
    orders: mpsc::UnboundedSender<Order>,
    done: bool,
}

impl Held {
    fn cancel(&self) {
        _ = self.orders.send(Order::Cancel(self.id.clone()));
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if !self.done {
            _ = self.orders.send(Order::Kill(std::mem::take(&mut self.id)));
        }
    }
}
