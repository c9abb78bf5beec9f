//! A job before it is submitted.

use hodei_api::v1::{self, work::Kind};
use serde_json::Value;
use std::time::{Duration, SystemTime};

/// What is to be done, and how. What is left out has the server's defaults; [`JobSpec`](v1::JobSpec) has every field, and
/// becomes a job with `from`.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    spec: v1::JobSpec,
}

impl Job {
    /// A task for a worker that handles this type.
    pub fn task(task_type: impl Into<String>, payload: &Value) -> Self {
        Self::of(Kind::Task(v1::TaskWork { r#type: task_type.into(), payload: payload.to_string().into() }))
    }

    /// A program and its arguments; no shell interprets them.
    pub fn command<A: Into<String>>(program: impl Into<String>, args: impl IntoIterator<Item = A>) -> Self {
        let args = args.into_iter().map(Into::into).collect();
        Self::of(Kind::Shell(v1::ShellWork { program: program.into(), args }))
    }

    /// A script for `/bin/sh`.
    pub fn script(content: impl Into<String>) -> Self {
        Self::of(Kind::Script(v1::ScriptWork { interpreter: String::new(), content: content.into() }))
    }

    fn of(kind: Kind) -> Self {
        v1::JobSpec { work: Some(v1::Work { kind: Some(kind) }), ..v1::JobSpec::default() }.into()
    }

    /// How people see it.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.spec.name = name.into();
        self
    }

    pub fn queue(mut self, queue: impl Into<String>) -> Self {
        self.spec.queue = queue.into();
        self
    }

    pub fn priority(mut self, priority: v1::Priority) -> Self {
        self.spec.set_priority(priority);
        self
    }

    /// A variable of its environment.
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.spec.environment.insert(name.into(), value.into());
        self
    }

    /// A variable whose value is masked in logs and never shown.
    pub fn secret(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.spec.secrets.insert(name.into(), value.into());
        self
    }

    /// How often it may run until it has succeeded.
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        let attempts = i32::try_from(attempts).unwrap_or(i32::MAX);
        self.spec.retry.get_or_insert_default().max_attempts = Some(attempts);
        self
    }

    /// How long one run of it may take.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.spec.timeouts.get_or_insert_default().run_ms = Some(millis(timeout));
        self
    }

    /// It waits until this time.
    pub fn run_at(mut self, time: SystemTime) -> Self {
        self.spec.run_at_ms = time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, millis);
        self
    }
}

impl From<Job> for v1::JobSpec {
    fn from(job: Job) -> Self {
        job.spec
    }
}

impl From<v1::JobSpec> for Job {
    fn from(spec: v1::JobSpec) -> Self {
        Self { spec }
    }
}

fn millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}
