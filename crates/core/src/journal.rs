//! What a commit changed, in order: the source of all event streams.

use crate::{
    id::{JobId, ScheduleId, WorkerId},
    provider::{ProviderFailure, ProviderHealth},
    state::StateKind,
    time::Time,
    worker::WorkerState,
};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// One thing that changed, and what it went through in this commit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Change {
    Job {
        id: JobId,
        steps: Vec<JobStep>,
    },
    Worker {
        id: WorkerId,
        state: WorkerState,
        at: Time,
        /// For people, where there is more to say.
        #[serde(default)]
        why: String,
    },
    Schedule {
        id: ScheduleId,
        what: ScheduleChange,
        at: Time,
    },
    Queue {
        name: Arc<str>,
        what: QueueChange,
        at: Time,
    },
    Provider {
        name: Arc<str>,
        what: ProviderChange,
        at: Time,
    },
    Template {
        name: Arc<str>,
        what: TemplateChange,
        at: Time,
    },
    Supervision {
        worker: WorkerId,
        news: Supervision,
    },
}

/// Word of those who watch over something that lives and works.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Supervision {
    /// What is watched over: a handler of the worker, or nothing for the worker itself.
    pub what: Arc<str>,
    /// Such as `worker_replaced`.
    pub event: Arc<str>,
    /// For people.
    pub detail: String,
    pub at: Time,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobStep {
    pub state: StateKind,
    pub attempt: u32,
    pub at: Time,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ScheduleChange {
    Created,
    Updated,
    Deleted,
    Enabled,
    Disabled,
    Fired,
    Skipped,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum QueueChange {
    Paused,
    Resumed,
    Configured,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ProviderChange {
    Added,
    /// It has another cap, cost or settings.
    Changed,
    Removed,
    Enabled,
    Disabled,
    Health(ProviderHealth),
    /// It could not make or remove a worker.
    Failed(ProviderFailure),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TemplateChange {
    Put,
    Removed,
    /// One of its workers took the place of one that failed.
    Replaced,
    /// One in its warm pool failed: it ended, hangs, or does not begin what it took.
    Crashed(String),
    Hanging(String),
    NotProducing(String),
    /// Its workers fail, and no more are made until a person asks.
    FailedPermanent(String),
    /// A person asked.
    Restarted,
}

/// The place of a commit among all commits that changed something.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct JournalId(pub u64);
