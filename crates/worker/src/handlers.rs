//! Tasks run by functions that are compiled into the worker.
//!
//! A handler is asked to stop and, after its grace, dropped where it waits. It lives in the agent's process: no guardian
//! ends it, so one that never waits cannot be stopped, and what it does after its lease is fenced by its execution alone.

mod run;
mod task;

pub(crate) use run::Tasks;
pub use task::Task;

use futures::future::{BoxFuture, FutureExt};
use hodei_core::{
    spec::{Invalid, check_task_type},
    worker::Offer,
};
use serde_json::Value;
use std::{collections::BTreeMap, error::Error, fmt, future::Future, sync::Arc};

/// The result that is kept for the job (none for null), or why the attempt failed.
pub type TaskResult = Result<Value, Box<dyn Error + Send + Sync>>;

type Handler = Arc<dyn Fn(Task) -> BoxFuture<'static, TaskResult> + Send + Sync>;

/// What a worker can do besides running processes: one function for each type of task.
#[derive(Clone, Default)]
pub struct Handlers {
    by_type: BTreeMap<Arc<str>, Handler>,
}

impl Handlers {
    /// Runs tasks of this type with this function; one that was there before is replaced.
    pub fn add<F, R>(&mut self, task_type: &str, handler: F) -> Result<(), Invalid>
    where
        F: Fn(Task) -> R + Send + Sync + 'static,
        R: Future<Output = TaskResult> + Send + 'static,
    {
        check_task_type("task type", task_type)?;
        self.by_type.insert(task_type.into(), Arc::new(move |task| handler(task).boxed()));
        Ok(())
    }

    pub fn is_empty(&self) -> bool {
        self.by_type.is_empty()
    }

    pub(crate) fn offer(&self, tasks_only: bool) -> Offer {
        Offer { task_types: self.by_type.keys().cloned().collect(), tasks_only }
    }

    fn get(&self, task_type: &str) -> Option<(Arc<str>, Handler)> {
        self.by_type.get_key_value(task_type).map(|(task_type, handler)| (Arc::clone(task_type), Arc::clone(handler)))
    }
}

impl fmt::Debug for Handlers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.by_type.keys()).finish()
    }
}
