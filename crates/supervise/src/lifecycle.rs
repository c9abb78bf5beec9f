//! The life of a worker, and the one function that moves it on.

use serde::{Deserialize, Serialize};
use thiserror::Error;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Lifecycle {
    #[default]
    Created,
    Starting,
    Running,
    Stopping,
    Stopped,
    /// For good: what takes its place is another one.
    Crashed,
}

/// What can happen to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// It is being brought up.
    Start,
    /// It has said that it is there.
    Ready,
    /// It is told to end.
    Stop,
    /// It is gone.
    Exit,
    /// One that has stopped is to run again.
    Renew,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("what is {} cannot {}", .from.name(), .step.name())]
pub struct IllegalMove {
    pub from: Lifecycle,
    pub step: Step,
}

impl Lifecycle {
    pub const ALL: [Lifecycle; 6] = [
        Lifecycle::Created,
        Lifecycle::Starting,
        Lifecycle::Running,
        Lifecycle::Stopping,
        Lifecycle::Stopped,
        Lifecycle::Crashed,
    ];

    /// The only way from one to another.
    pub fn next(self, step: Step) -> Result<Lifecycle, IllegalMove> {
        use Lifecycle::*;
        match (self, step) {
            (Created, Step::Start) => Ok(Starting),
            (Starting, Step::Ready) => Ok(Running),
            (Running, Step::Stop) => Ok(Stopping),
            // However it ends once it was told to, that is its end.
            (Stopping, Step::Exit) => Ok(Stopped),
            (Starting | Running, Step::Exit) => Ok(Crashed),
            (Stopped, Step::Renew) => Ok(Created),
            (from, step) => Err(IllegalMove { from, step }),
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Lifecycle::Created => "created",
            Lifecycle::Starting => "starting",
            Lifecycle::Running => "running",
            Lifecycle::Stopping => "stopping",
            Lifecycle::Stopped => "stopped",
            Lifecycle::Crashed => "crashed",
        }
    }

    /// Nothing of it is left that could run.
    pub fn is_over(self) -> bool {
        matches!(self, Lifecycle::Stopped | Lifecycle::Crashed)
    }
}

impl Step {
    pub const ALL: [Step; 5] = [Step::Start, Step::Ready, Step::Stop, Step::Exit, Step::Renew];

    fn name(self) -> &'static str {
        match self {
            Step::Start => "start",
            Step::Ready => "be ready",
            Step::Stop => "be stopped",
            Step::Exit => "exit",
            Step::Renew => "be renewed",
        }
    }
}
