//! How a task ends, as its handler says.

use crate::end::End;
use hodei_core::{
    state::{Failure, FailureKind, Outcome},
    time::Millis,
};
use serde_json::Value;
use std::{error::Error, fmt, time::Duration};

/// What a handler returns: what it made of the task, or why the attempt failed.
pub type TaskResult<T = Value> = Result<T, TaskError>;

/// The good ends of an attempt. A handler that only ever succeeds may return a [`Value`] in its place.
#[derive(Clone, Debug)]
pub struct Done(Kind);

#[derive(Clone, Debug)]
enum Kind {
    Value(Value),
    End(End),
}

impl Done {
    /// The task is done, with this result; null is none.
    pub fn value(result: impl Into<Value>) -> Self {
        Self(Kind::Value(result.into()))
    }

    /// The task is to be run again after this time. That uses up no attempt.
    pub fn snooze(delay: Duration) -> Self {
        Self(Kind::End(End::Snooze(Millis(u64::try_from(delay.as_millis()).unwrap_or(u64::MAX)))))
    }

    /// The task is to be run again when somebody resumes it with what it waits for. That uses up no attempt.
    pub fn block(reason: impl Into<String>) -> Self {
        Self(Kind::End(End::Block(reason.into())))
    }

    pub(super) fn end(end: End) -> Self {
        Self(Kind::End(end))
    }

    /// The outcome, and the result if there is one.
    pub(super) fn into_outcome(self) -> (Outcome, Value) {
        match self.0 {
            Kind::Value(result) => (Outcome::Succeeded, result),
            Kind::End(end) => (end.outcome(), Value::Null),
        }
    }
}

impl From<Value> for Done {
    fn from(result: Value) -> Self {
        Self::value(result)
    }
}

impl From<()> for Done {
    fn from((): ()) -> Self {
        Self::value(Value::Null)
    }
}

/// Why an attempt failed. Every error turns into one that is retried as the job's policy says.
pub struct TaskError {
    /// None if it was never begun: then it goes back to the queue, and the attempt does not count.
    failure: Option<Failure>,
}

impl TaskError {
    /// To try again would not help.
    pub fn fatal(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        let failure = failure_of(&*error.into());
        Self::of(Failure { fatal: true, ..failure })
    }

    /// To be tried again, as far as the job's policy allows it.
    pub fn retry(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::of(failure_of(&*error.into()))
    }

    pub(super) fn of(failure: Failure) -> Self {
        Self { failure: Some(failure) }
    }

    pub(super) fn given_back() -> Self {
        Self { failure: None }
    }

    pub(super) fn into_outcome(self) -> Outcome {
        self.failure.map_or(Outcome::Released, Outcome::Failed)
    }
}

fn failure_of(error: &(dyn Error + 'static)) -> Failure {
    let causes = causes(error);
    let message = causes.iter().fold(error.to_string(), |text, cause| format!("{text}: {cause}"));
    let detail = causes.iter().map(|cause| format!("\ncaused by: {cause}"));
    let detail = if causes.is_empty() { String::new() } else { format!("{error}{}", detail.collect::<String>()) };
    Failure { detail, ..Failure::new(FailureKind::Error, message) }
}

fn causes(error: &(dyn Error + 'static)) -> Vec<String> {
    let mut causes = Vec::new();
    let mut next = error.source();
    while let Some(cause) = next {
        causes.push(cause.to_string());
        next = cause.source();
    }
    causes
}

impl<E: Into<Box<dyn Error + Send + Sync>>> From<E> for TaskError {
    fn from(error: E) -> Self {
        Self::retry(error)
    }
}

impl fmt::Debug for TaskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.failure.as_ref().map_or("given back", |failure| &failure.message))
    }
}
