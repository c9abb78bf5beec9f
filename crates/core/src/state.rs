//! The states of a job and the one function that moves it between them.

use crate::{
    defect::{Defect, planted},
    id::{ExecutionId, WorkerId},
    time::{Millis, Time},
};
use serde::{Deserialize, Serialize};
use thiserror::Error;

#[cfg(test)]
mod tests;

/// Where a job stands, with what is known of it there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum State {
    /// Not before `until`.
    Delayed {
        until: Time,
        reason: DelayReason,
    },
    /// Ready, in the queue.
    Pending {
        since: Time,
    },
    /// Bound to a worker and an execution, not started.
    Scheduled {
        run: Run,
        since: Time,
        cancel: Option<Cancel>,
    },
    /// The worker started it.
    Running {
        run: Run,
        since: Time,
        cancel: Option<Cancel>,
    },
    Succeeded {
        at: Time,
    },
    /// Attempts used up, or an error that is not retried.
    Failed {
        at: Time,
    },
    /// Attempts used up and the last one ran out of time, or it waited in the queue too long.
    TimedOut {
        at: Time,
    },
    Cancelled {
        at: Time,
        cancel: Cancel,
    },
    /// Some job that it depends on has not succeeded yet.
    Waiting {
        since: Time,
    },
    /// Its handler waits for something from outside.
    Blocked {
        since: Time,
        reason: String,
    },
}

/// The execution that an active job is bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    pub execution: ExecutionId,
    pub worker: WorkerId,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DelayReason {
    /// The submitter asked for it.
    Scheduled,
    /// It waits for its next attempt.
    Retry,
    /// Its handler asked for it.
    Snoozed,
}

/// A request to cancel: who asked is in the audit log, why is here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cancel {
    pub reason: String,
    pub at: Time,
}

/// A state without its data: what people filter by and what is indexed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum StateKind {
    Delayed,
    Pending,
    Scheduled,
    Running,
    Succeeded,
    Failed,
    TimedOut,
    Cancelled,
    Waiting,
    Blocked,
}

/// Why an attempt ended badly.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    pub kind: FailureKind,
    pub message: String,
    pub exit_code: Option<i32>,
    pub signal: Option<i32>,
    /// No retry would help: whoever ran it says so.
    #[serde(default)]
    pub fatal: bool,
    /// The end of what it printed as errors, or its stack.
    #[serde(default)]
    pub detail: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum FailureKind {
    /// The program ended with a code other than zero.
    ExitCode,
    /// A signal that Hodei did not send ended it.
    Signal,
    /// The kernel killed it at its memory limit.
    OutOfMemory,
    /// The program does not exist.
    NotFound,
    /// The program exists and could not be started.
    NotStarted,
    /// The handler of the job reported an error.
    Error,
    /// It ran longer than allowed.
    RunTimeout,
    /// It waited in the queue longer than allowed.
    QueueTimeout,
    /// Its worker was lost.
    WorkerLost,
    /// No sign came from the job itself for longer than allowed.
    HeartbeatTimeout,
    /// Nothing can run it: it was never given to a worker.
    Rejected,
    /// No worker can be made in the image that it asks for.
    Image,
}

/// How an execution ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    Succeeded,
    Failed(Failure),
    /// Stopped because a cancel was asked for.
    Cancelled,
    /// Given back in good order (drain, shutdown): it does not count as a run.
    Released,
    /// Its handler wants to be run again later: it does not count as a run.
    Snoozed {
        delay: Millis,
    },
    /// Its handler waits for something from outside: it does not count as a run.
    Blocked {
        reason: String,
    },
}

impl Outcome {
    /// Whether the run counts against the attempts of its job.
    pub fn counts(&self) -> bool {
        !matches!(self, Outcome::Released | Outcome::Snoozed { .. } | Outcome::Blocked { .. })
    }
}

/// What can happen to a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The time it was delayed to has come.
    Due,
    /// A worker was chosen.
    Assign(Run),
    /// The worker started it.
    Start(ExecutionId),
    /// The worker tells how far it is.
    Progress(ExecutionId),
    /// The attempt succeeded.
    Succeed(ExecutionId),
    /// The attempt failed; `then` is what the retry policy decided.
    Fail(ExecutionId, AfterFailure),
    /// The attempt was given back in order.
    Release(ExecutionId),
    /// The worker confirms that a cancelled attempt is gone.
    ConfirmCancel(ExecutionId),
    /// A user wants it cancelled.
    Cancel(String),
    /// It waited in the queue too long.
    QueueTimeout,
    /// Nothing can run it, and nothing will.
    Reject,
    /// A user wants it run again.
    Retry,
    /// The same, and something that it depends on has not succeeded.
    RetryWhenSatisfied,
    /// All that it depends on is done; it may have to wait for its time still.
    Satisfied(Option<Time>),
    /// Its handler wants to be run again at this time.
    Snooze(ExecutionId, Time),
    /// Its handler waits for something from outside.
    Block(ExecutionId, String),
    /// What it was blocked on has come.
    Resume,
}

/// What follows a failed attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterFailure {
    RetryAt(Time),
    RetryNow,
    /// No attempt is left, or none would help.
    GiveUp,
    /// The same, and the last attempt ran out of time.
    GiveUpTimedOut,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum IllegalEvent {
    #[error("a {} job cannot take the event '{event}'", state.name())]
    NotInThisState { state: StateKind, event: &'static str },
    #[error("execution {0} is stale: the job is not bound to it")]
    Stale(ExecutionId),
}

impl State {
    /// The state that `event` leads to at `now`, or why it cannot happen here. Nothing else changes a state.
    pub fn next(&self, event: &Event, now: Time) -> Result<State, IllegalEvent> {
        use State::*;
        self.fence(event)?;
        match (self, event) {
            (Delayed { .. }, Event::Due) => Ok(Pending { since: now }),
            (Waiting { .. }, Event::Satisfied(until)) => Ok(match until {
                Some(until) if *until > now => Delayed { until: *until, reason: DelayReason::Scheduled },
                _ => Pending { since: now },
            }),
            (Blocked { .. }, Event::Resume) => Ok(Pending { since: now }),
            (Waiting { .. } | Delayed { .. } | Pending { .. } | Blocked { .. }, Event::Cancel(reason)) => {
                Ok(Cancelled { at: now, cancel: Cancel { reason: reason.clone(), at: now } })
            }
            (Delayed { reason: DelayReason::Retry | DelayReason::Snoozed, .. }, Event::Retry) => {
                Ok(Pending { since: now })
            }

            (Pending { .. }, Event::Assign(run)) => Ok(Scheduled { run: *run, since: now, cancel: None }),
            (Pending { .. }, Event::QueueTimeout) => Ok(TimedOut { at: now }),
            (Pending { .. }, Event::Reject) => Ok(Failed { at: now }),

            (Scheduled { run, cancel, .. }, Event::Start(_)) => {
                Ok(Running { run: *run, since: now, cancel: cancel.clone() })
            }
            (Running { .. }, Event::Progress(_)) => Ok(self.clone()),
            (Running { .. }, Event::Succeed(_)) => Ok(Succeeded { at: now }),

            (Scheduled { cancel, .. } | Running { cancel, .. }, Event::Fail(_, then)) => {
                Ok(cancelled_or(cancel, now, || match then {
                    AfterFailure::RetryAt(until) => Delayed { until: *until, reason: DelayReason::Retry },
                    AfterFailure::RetryNow => Pending { since: now },
                    AfterFailure::GiveUp => Failed { at: now },
                    AfterFailure::GiveUpTimedOut => TimedOut { at: now },
                }))
            }
            (Scheduled { cancel, .. } | Running { cancel, .. }, Event::Release(_)) => {
                Ok(cancelled_or(cancel, now, || Pending { since: now }))
            }
            (Running { cancel, .. }, Event::Snooze(_, until)) => {
                Ok(cancelled_or(cancel, now, || Delayed { until: *until, reason: DelayReason::Snoozed }))
            }
            (Running { cancel, .. }, Event::Block(_, reason)) => {
                Ok(cancelled_or(cancel, now, || Blocked { since: now, reason: reason.clone() }))
            }
            (
                Scheduled { cancel: Some(cancel), .. } | Running { cancel: Some(cancel), .. },
                Event::ConfirmCancel(_),
            ) => Ok(Cancelled { at: now, cancel: cancel.clone() }),

            (Scheduled { run, since, cancel }, Event::Cancel(reason)) => {
                Ok(Scheduled { run: *run, since: *since, cancel: first_cancel(cancel, reason, now) })
            }
            (Running { run, since, cancel }, Event::Cancel(reason)) => {
                Ok(Running { run: *run, since: *since, cancel: first_cancel(cancel, reason, now) })
            }

            (Failed { .. } | TimedOut { .. } | Cancelled { .. }, Event::Retry) => Ok(Pending { since: now }),
            (Failed { .. } | TimedOut { .. } | Cancelled { .. }, Event::RetryWhenSatisfied) => {
                Ok(Waiting { since: now })
            }

            _ => Err(IllegalEvent::NotInThisState { state: self.kind(), event: event.name() }),
        }
    }

    /// An event that names an execution must name the one the job is bound to.
    fn fence(&self, event: &Event) -> Result<(), IllegalEvent> {
        match event.execution() {
            Some(_) if planted(Defect::NoFencing) => Ok(()),
            Some(named) if self.run().map(|run| run.execution) != Some(named) => Err(IllegalEvent::Stale(named)),
            _ => Ok(()),
        }
    }

    /// The execution it is bound to, if it is active.
    pub fn run(&self) -> Option<&Run> {
        match self {
            State::Scheduled { run, .. } | State::Running { run, .. } => Some(run),
            _ => None,
        }
    }

    /// The cancel that was asked for and is not confirmed yet, or that ended it.
    pub fn cancel(&self) -> Option<&Cancel> {
        match self {
            State::Scheduled { cancel, .. } | State::Running { cancel, .. } => cancel.as_ref(),
            State::Cancelled { cancel, .. } => Some(cancel),
            _ => None,
        }
    }

    pub fn kind(&self) -> StateKind {
        match self {
            State::Delayed { .. } => StateKind::Delayed,
            State::Pending { .. } => StateKind::Pending,
            State::Scheduled { .. } => StateKind::Scheduled,
            State::Running { .. } => StateKind::Running,
            State::Succeeded { .. } => StateKind::Succeeded,
            State::Failed { .. } => StateKind::Failed,
            State::TimedOut { .. } => StateKind::TimedOut,
            State::Cancelled { .. } => StateKind::Cancelled,
            State::Waiting { .. } => StateKind::Waiting,
            State::Blocked { .. } => StateKind::Blocked,
        }
    }

    pub fn finished_at(&self) -> Option<Time> {
        match self {
            State::Succeeded { at } | State::Failed { at } | State::TimedOut { at } | State::Cancelled { at, .. } => {
                Some(*at)
            }
            _ => None,
        }
    }
}

fn cancelled_or(cancel: &Option<Cancel>, now: Time, otherwise: impl FnOnce() -> State) -> State {
    match cancel {
        Some(cancel) => State::Cancelled { at: now, cancel: cancel.clone() },
        None => otherwise(),
    }
}

/// The first cancel stays: a second one changes neither its time nor its reason.
fn first_cancel(cancel: &Option<Cancel>, reason: &str, now: Time) -> Option<Cancel> {
    cancel.clone().or_else(|| Some(Cancel { reason: reason.to_owned(), at: now }))
}

impl Event {
    pub fn name(&self) -> &'static str {
        match self {
            Event::Due => "due",
            Event::Assign(_) => "assign",
            Event::Start(_) => "start",
            Event::Progress(_) => "progress",
            Event::Succeed(_) => "succeed",
            Event::Fail(..) => "fail",
            Event::Release(_) => "release",
            Event::ConfirmCancel(_) => "confirm cancel",
            Event::Cancel(_) => "cancel",
            Event::QueueTimeout => "queue timeout",
            Event::Reject => "reject",
            Event::Retry => "retry",
            Event::RetryWhenSatisfied => "retry when satisfied",
            Event::Satisfied(_) => "satisfied",
            Event::Snooze(..) => "snooze",
            Event::Block(..) => "block",
            Event::Resume => "resume",
        }
    }

    fn execution(&self) -> Option<ExecutionId> {
        match self {
            Event::Start(id)
            | Event::Progress(id)
            | Event::Succeed(id)
            | Event::Fail(id, _)
            | Event::Release(id)
            | Event::Snooze(id, _)
            | Event::Block(id, _)
            | Event::ConfirmCancel(id) => Some(*id),
            _ => None,
        }
    }
}

impl StateKind {
    pub const ALL: [StateKind; 10] = [
        StateKind::Delayed,
        StateKind::Pending,
        StateKind::Scheduled,
        StateKind::Running,
        StateKind::Succeeded,
        StateKind::Failed,
        StateKind::TimedOut,
        StateKind::Cancelled,
        StateKind::Waiting,
        StateKind::Blocked,
    ];

    pub fn name(self) -> &'static str {
        match self {
            StateKind::Delayed => "delayed",
            StateKind::Pending => "pending",
            StateKind::Scheduled => "scheduled",
            StateKind::Running => "running",
            StateKind::Succeeded => "succeeded",
            StateKind::Failed => "failed",
            StateKind::TimedOut => "timed_out",
            StateKind::Cancelled => "cancelled",
            StateKind::Waiting => "waiting",
            StateKind::Blocked => "blocked",
        }
    }

    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    pub fn is_finished(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed | Self::TimedOut | Self::Cancelled)
    }

    /// Failed for good: in the dead-letter queue.
    pub fn is_dead(self) -> bool {
        matches!(self, Self::Failed | Self::TimedOut)
    }

    /// Bound to a worker.
    pub fn is_active(self) -> bool {
        matches!(self, Self::Scheduled | Self::Running)
    }
}

impl Failure {
    pub fn new(kind: FailureKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), exit_code: None, signal: None, fatal: false, detail: String::new() }
    }

    pub fn exit(code: i32) -> Self {
        Self { exit_code: Some(code), ..Self::new(FailureKind::ExitCode, format!("exited with code {code}")) }
    }

    pub fn signal(signal: i32) -> Self {
        Self { signal: Some(signal), ..Self::new(FailureKind::Signal, format!("killed by signal {signal}")) }
    }
}

impl FailureKind {
    pub const ALL: [FailureKind; 12] = [
        FailureKind::ExitCode,
        FailureKind::Signal,
        FailureKind::OutOfMemory,
        FailureKind::NotFound,
        FailureKind::NotStarted,
        FailureKind::Error,
        FailureKind::RunTimeout,
        FailureKind::QueueTimeout,
        FailureKind::WorkerLost,
        FailureKind::HeartbeatTimeout,
        FailureKind::Rejected,
        FailureKind::Image,
    ];

    pub fn name(self) -> &'static str {
        match self {
            FailureKind::ExitCode => "exit_code",
            FailureKind::Signal => "signal",
            FailureKind::OutOfMemory => "out_of_memory",
            FailureKind::NotFound => "not_found",
            FailureKind::NotStarted => "not_started",
            FailureKind::Error => "error",
            FailureKind::RunTimeout => "run_timeout",
            FailureKind::QueueTimeout => "queue_timeout",
            FailureKind::WorkerLost => "worker_lost",
            FailureKind::HeartbeatTimeout => "heartbeat_timeout",
            FailureKind::Rejected => "rejected",
            FailureKind::Image => "image",
        }
    }

    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}
