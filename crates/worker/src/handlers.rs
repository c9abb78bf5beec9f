//! What runs tasks: functions that are compiled into the worker, commands, subprocesses that live on, and HTTP endpoints.
//!
//! All but commands are functions here. A function is asked to stop and, after its grace, dropped where it waits. It lives
//! in the agent's process: no guardian ends it, so one that never waits cannot be stopped, and what it does after its lease
//! is fenced by its execution alone. Commands and subprocesses are started, and ended, by the guardian.

mod command;
mod done;
mod http;
mod run;
mod subprocess;
mod task;
mod view;

pub use command::{Command, Program};
pub use done::{Done, TaskError, TaskResult};
pub use http::Endpoint;
pub(crate) use run::Tasks;
pub use subprocess::Subprocess;
pub use task::{Dependency, Task, Tick};

use crate::executor::{Executor, ExecutorEvent};
use futures::future::{BoxFuture, FutureExt};
use hodei_core::{
    spec::{Invalid, check_task_type},
    worker::{HandlerInfo, Offer, fits},
};
use std::{collections::BTreeMap, fmt, future::Future, sync::Arc};
use subprocess::{Pool, Runner};
use thiserror::Error;
use tokio::{runtime::Handle, sync::mpsc};

type Handler = Arc<dyn Fn(Task) -> BoxFuture<'static, TaskResult<Done>> + Send + Sync>;

/// What a worker can do besides running processes: one handler for each type of task.
#[derive(Clone, Default)]
pub struct Handlers {
    functions: BTreeMap<Arc<str>, Handler>,
    commands: BTreeMap<Arc<str>, Arc<Command>>,
    /// By the type, or the pattern of types, that each is there for.
    subprocesses: BTreeMap<String, Subprocess>,
    /// Those of the subprocesses that have not said at the start what they handle, and may yet.
    late: Vec<Runner>,
    client: Option<reqwest::Client>,
}

/// The subprocesses of a worker.
#[derive(Debug, Default)]
pub(crate) struct Pools(Vec<(String, Pool)>);

#[derive(Debug, Error)]
#[error("the handler for {task_type} cannot be used: {problem}")]
pub struct HandlerError {
    pub task_type: String,
    pub problem: String,
}

impl Handlers {
    /// Runs tasks of this type with this function; one that was there before is replaced.
    pub fn add<F, R, D>(&mut self, task_type: &str, handler: F) -> Result<(), Invalid>
    where
        F: Fn(Task) -> R + Send + Sync + 'static,
        R: Future<Output = TaskResult<D>> + Send + 'static,
        D: Into<Done>,
    {
        check_task_type("task type", task_type)?;
        let handler = move |task| handler(task).map(|ended| ended.map(Into::into)).boxed();
        self.functions.insert(task_type.into(), Arc::new(handler));
        Ok(())
    }

    /// Runs tasks of this type with a command, once for each.
    pub fn add_command(&mut self, task_type: &str, command: Command) -> Result<(), Invalid> {
        self.check_new(task_type)?;
        self.commands.insert(task_type.into(), Arc::new(command));
        Ok(())
    }

    /// Runs tasks of this type by asking an HTTP endpoint.
    pub fn add_http(&mut self, task_type: &str, endpoint: Endpoint) -> Result<(), Invalid> {
        self.check_new(task_type)?;
        let client = match &self.client {
            Some(client) => client.clone(),
            None => http::client().map_err(|error| Invalid::new("http", error.to_string()))?,
        };
        self.client = Some(client.clone());
        let endpoint = Arc::new(endpoint);
        self.add(task_type, move |task| {
            let (endpoint, client) = (Arc::clone(&endpoint), client.clone());
            async move { endpoint.run(&client, task).await }
        })
    }

    /// Runs tasks of this type, or of all types that a pattern such as `report.*` fits and that the subprocess says it
    /// handles.
    pub fn add_subprocess(&mut self, pattern: &str, subprocess: Subprocess) -> Result<(), Invalid> {
        match pattern.strip_suffix('*') {
            Some("") => {}
            Some(prefix) => self.check_new(prefix)?,
            None => self.check_new(pattern)?,
        }
        if self.subprocesses.insert(pattern.to_owned(), subprocess).is_some() {
            return Err(Invalid::new("task type", format!("there are two handlers for {pattern}")));
        }
        Ok(())
    }

    fn check_new(&self, task_type: &str) -> Result<(), Invalid> {
        check_task_type("task type", task_type)?;
        if task_type.contains('*') {
            let problem = format!("'{task_type}' is a pattern, which only a subprocess can have, and only at its end");
            return Err(Invalid::new("task type", problem));
        }
        let taken = self.functions.contains_key(task_type)
            || self.commands.contains_key(task_type)
            || self.subprocesses.contains_key(task_type);
        match taken {
            true => Err(Invalid::new("task type", format!("there are two handlers for {task_type}"))),
            false => Ok(()),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.functions.is_empty() && self.commands.is_empty() && self.subprocesses.is_empty() && self.late.is_empty()
    }

    pub(crate) fn offer(&self, tasks_only: bool) -> Offer {
        let exact = self.subprocesses.keys().filter(|pattern| !pattern.ends_with('*'));
        let exact = exact.map(|task_type| Arc::from(task_type.as_str()));
        let functions = self.functions.keys().chain(self.commands.keys()).cloned();
        Offer { task_types: functions.chain(exact).collect(), tasks_only }
    }

    /// Starts the subprocesses, which say what they handle. From then on they are functions like the others. One that fails
    /// is tried again by its supervision, and keeps no other from working.
    pub(crate) async fn start(
        &mut self,
        executor: Option<&Executor>,
        slots: u32,
        events: &mpsc::UnboundedSender<ExecutorEvent>,
        runtime: &Handle,
    ) -> Result<Pools, HandlerError> {
        let mut pools = Pools::default();
        for (pattern, subprocess) in std::mem::take(&mut self.subprocesses) {
            let failed = |problem: String| HandlerError { task_type: pattern.clone(), problem };
            let executor = executor.ok_or_else(|| failed("this worker starts no processes".to_owned()))?;
            let (pool, types) =
                subprocess.start(&pattern, executor, slots, events.clone(), runtime).await.map_err(failed)?;
            let runner = pool.runner();
            pools.0.push((pattern.clone(), pool));
            let Some(types) = types else {
                self.late.push(runner);
                continue;
            };
            let fitting: Vec<_> = types.iter().filter(|task_type| fits(&pattern, task_type)).collect();
            if fitting.is_empty() {
                return Err(failed(format!("it handles {types:?}, and none of these is asked for")));
            }
            for task_type in fitting {
                self.check_new(task_type).map_err(|bad| failed(bad.to_string()))?;
                let runner = runner.clone();
                let added = self.add(task_type, move |task| runner.clone().run(task));
                added.map_err(|bad| failed(bad.to_string()))?;
            }
        }
        Ok(pools)
    }

    fn get(&self, task_type: &str) -> Option<(Arc<str>, Handler)> {
        let known = self.functions.get_key_value(task_type);
        let known = known.map(|(task_type, handler)| (Arc::clone(task_type), Arc::clone(handler)));
        known.or_else(|| {
            let runner = self.late.iter().find(|runner| runner.handles(task_type))?.clone();
            Some((task_type.into(), Arc::new(move |task| runner.clone().run(task).boxed()) as Handler))
        })
    }

    fn command(&self, task_type: &str) -> Option<&Command> {
        self.commands.get(task_type).map(|command| &**command)
    }
}

impl Pools {
    /// Tells all subprocesses to end, and sees to it.
    pub(crate) async fn close(self) {
        futures::future::join_all(self.0.into_iter().map(|(_, pool)| pool.close())).await;
    }

    pub(crate) fn infos(&self) -> Vec<HandlerInfo> {
        let info = |(name, pool): &(String, Pool)| HandlerInfo {
            name: name.clone(),
            sla: pool.sla(),
            up: !pool.is_given_up(),
        };
        self.0.iter().map(info).collect()
    }

    /// A person wants the processes of a handler started anew. False if there is no such handler.
    pub(crate) fn restart(&self, handler: &str) -> bool {
        let found = self.0.iter().find(|(name, _)| name == handler);
        found.map(|(_, pool)| pool.ask()).is_some()
    }
}

impl fmt::Debug for Handlers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.offer(false).task_types).finish()
    }
}
