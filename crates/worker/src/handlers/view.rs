//! A task as handlers outside this program are told of it.

use super::Task;
use crate::executor::dependencies_json;
use serde::Serialize;
use serde_json::{Value, json};

#[derive(Debug, Serialize)]
pub(super) struct View<'t> {
    pub job_id: String,
    pub execution_id: String,
    pub attempt: u32,
    pub task_type: &'t str,
    pub payload: Value,
    pub data: Value,
    /// What resumed it.
    pub input: Value,
    /// Objects with `id`, `name` and `result`.
    pub dependencies: Value,
    /// An object with `schedule` and `at`, for what a schedule made.
    pub tick: Value,
}

impl<'t> View<'t> {
    pub(super) fn of(task: &'t Task) -> Self {
        // What the server took as JSON is JSON.
        let parsed = |json: &[u8]| serde_json::from_slice(json).unwrap_or_default();
        let context = &task.assignment().context;
        let tick = context.tick.as_ref().map(|(schedule, at)| json!({ "schedule": schedule, "at": at.rfc3339() }));
        Self {
            job_id: task.job_id().to_string(),
            execution_id: task.execution_id().to_string(),
            attempt: task.attempt(),
            task_type: task.task_type(),
            payload: parsed(task.payload_bytes()),
            data: parsed(&task.data_bytes()),
            input: parsed(task.input_bytes()),
            dependencies: dependencies_json(&context.dependencies),
            tick: tick.unwrap_or_default(),
        }
    }
}
