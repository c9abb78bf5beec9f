//! What callers can do, whichever door they come through: [`crate::grpc`] and the others say the same things in their own
//! words.

mod access;
mod dead_letters;
mod jobs;
mod logs;
mod providers;
mod queues;
mod scheduler;
mod schedules;
mod webhooks;
mod workers;

pub use dead_letters::Which;
pub use jobs::{Submitted, page_token};
pub use logs::{LogPage, LogStart, LogWalk, log_position, log_token};
pub use schedules::{Backfill, Filled};
pub use workers::NewWorkerToken;

use crate::{
    access::Actor,
    engine::{CallError, Engine},
};
use hodei_core::{
    access::AuditEntry,
    brain::{Answer, Caller, Input, Refusal},
    spec::Invalid,
};
use hodei_store::{Aside, StoreError};
use http::Extensions;
use std::fmt::Display;
use thiserror::Error;

/// Everything that can be asked of a server. Cheap to clone.
#[derive(Clone)]
pub struct Calls {
    pub engine: Engine,
    /// Whoever asks, for the audit log; nobody when the server does something by itself.
    pub actor: Option<Actor>,
}

impl Calls {
    pub fn new(engine: Engine) -> Self {
        Self { engine, actor: None }
    }

    /// The same for the sender of a request, whom the door has put into its extensions.
    pub fn by(&self, request: &Extensions) -> Self {
        Self { engine: self.engine.clone(), actor: request.get::<Actor>().cloned() }
    }

    /// Hands a command to the brain. Whoever asked for it is in the audit log, with what it was done to and what became of it,
    /// as durably as the outcome itself.
    pub async fn act(
        &self,
        subject: impl Display,
        weight: usize,
        input: impl FnOnce(Caller) -> Input,
    ) -> Result<Answer, CallError> {
        self.engine.audited_call(weight, self.line(subject), input).await
    }

    /// A line about something that took several steps, or none that goes through the brain.
    pub fn audited(&self, subject: impl Display, outcome: impl Display) {
        let line = self.line(subject).map(|line| AuditEntry { outcome: outcome.to_string(), ..line });
        if let Some(line) = line {
            self.engine.note(Aside { audit: vec![line], ..Aside::default() });
        }
    }

    fn line(&self, subject: impl Display) -> Option<AuditEntry> {
        self.actor.as_ref().map(|actor| actor.line(subject))
    }
}

/// Why a call was not done.
#[derive(Debug, Error)]
pub enum Problem {
    #[error(transparent)]
    Invalid(#[from] Invalid),
    #[error("{0}")]
    NotFound(String),
    #[error("{0}")]
    Exists(String),
    /// It makes no sense as things are now.
    #[error("{0}")]
    Precondition(String),
    #[error("{0}")]
    Unauthenticated(String),
    #[error("{0}")]
    Exhausted(String),
    /// It was there once and is not kept any more.
    #[error("{0}")]
    Gone(String),
    /// Asking again later may help.
    #[error("{0}")]
    Unavailable(String),
    #[error("{0}")]
    Internal(String),
}

impl From<CallError> for Problem {
    fn from(error: CallError) -> Self {
        match error {
            CallError::Unavailable(why) => Problem::Unavailable(why),
            CallError::Refused(refusal) => refusal.into(),
        }
    }
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Self {
        let said = refusal.to_string();
        match refusal {
            Refusal::NoSuchJob(_)
            | Refusal::NoSuchWorker(_)
            | Refusal::NoSuchHandler(..)
            | Refusal::NoSuchSchedule
            | Refusal::NoSuchProvider(_)
            | Refusal::NoSuchTemplate(_) => Problem::NotFound(said),
            Refusal::Illegal(_)
            | Refusal::NotConnected(_)
            | Refusal::NotPlaced(_)
            | Refusal::DependencyForgotten
            | Refusal::ProviderHasWorkers(..) => Problem::Precondition(said),
            Refusal::Token(_) => Problem::Unauthenticated(said),
            Refusal::NoSuchDependency(id) => {
                Problem::Invalid(Invalid::new("depends_on", format!("there is no job {id}")))
            }
            Refusal::DependsOnExisting(id) => Problem::Invalid(Invalid::new(
                "depends_on",
                format!("{id} was there already under its idempotency key; name it by its id"),
            )),
            Refusal::ScheduleExists(_) | Refusal::ProviderExists(_) => Problem::Exists(said),
            Refusal::TooManySchedules(_)
            | Refusal::TooManyQueues(_)
            | Refusal::QueueFull { .. }
            | Refusal::TooManyClasses(_)
            | Refusal::TooManyProviders(_)
            | Refusal::TooManyTemplates(_) => Problem::Exhausted(said),
        }
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Broken(_) => Problem::Internal(error.to_string()),
            _ => Problem::Unavailable(error.to_string()),
        }
    }
}

/// The size of a page: `asked`, or the default when it is zero.
pub fn page_size(asked: i32, default: usize, max: usize) -> Result<usize, Invalid> {
    match usize::try_from(asked) {
        Ok(0) => Ok(default),
        Ok(size) if size <= max => Ok(size),
        _ => Err(Invalid::new("page_size", format!("must be between 1 and {max}"))),
    }
}

pub fn is_json(text: &[u8]) -> bool {
    serde_json::from_slice::<serde::de::IgnoredAny>(text).is_ok()
}

/// One line for people, such as a reason.
fn one_line(field: &str, text: &str) -> Result<(), Invalid> {
    const LONGEST: usize = 1024;
    match text.len() > LONGEST || text.chars().any(char::is_control) {
        true => Err(Invalid::new(field, format!("must be one line of at most {LONGEST} bytes"))),
        false => Ok(()),
    }
}
