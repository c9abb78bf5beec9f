//! Workers as they describe themselves and as they are kept.

use crate::{
    id::{Incarnation, JobId, WorkerId},
    requirements::{Capability, Isolation, Taint},
    template::WorkerTemplate,
    time::Time,
    token::Hash,
};
use hodei_supervise::Sla;
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// What a worker says of itself when it registers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerInfo {
    pub name: String,
    pub version: String,
    pub hostname: String,
    pub capacity: Capacity,
    #[serde(default)]
    pub offer: Offer,
    #[serde(default)]
    pub ip: String,
    #[serde(default)]
    pub labels: BTreeMap<Arc<str>, Arc<str>>,
    #[serde(default)]
    pub taints: Vec<Taint>,
    #[serde(default)]
    pub capabilities: Vec<Capability>,
    #[serde(default)]
    pub zone: Option<Arc<str>>,
    /// How well its jobs are kept from the rest of the machine.
    #[serde(default)]
    pub isolation: Isolation,
    /// The image that it runs in, if it runs in one.
    #[serde(default)]
    pub image: Option<Arc<str>>,
    #[serde(default)]
    pub sla: Sla,
}

/// What kinds of work a worker runs.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Offer {
    /// The types of tasks that it has handlers for.
    pub task_types: BTreeSet<Arc<str>>,
    /// It starts no processes, so shell and script work is not for it.
    pub tasks_only: bool,
}

impl Offer {
    pub fn includes(&self, task_type: Option<&str>) -> bool {
        match task_type {
            Some(task_type) => self.task_types.contains(task_type),
            None => !self.tasks_only,
        }
    }
}

/// What a worker has to give. A job takes one slot and reserves what it asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capacity {
    pub slots: u32,
    pub cpu_millis: u64,
    pub memory_bytes: u64,
    #[serde(default)]
    pub disk_bytes: u64,
    #[serde(default)]
    pub gpus: u32,
}

/// A registered worker, as it is stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerRecord {
    pub id: WorkerId,
    pub info: WorkerInfo,
    /// Of the secret that its sessions are opened with, once it has registered.
    pub session: Option<Hash>,
    /// The agent process that connected last.
    pub incarnation: Option<Incarnation>,
    pub phase: Phase,
    /// When it registered; of one that has not, when it was asked for.
    pub registered_at: Time,
    /// Who made it, unless it came by itself.
    #[serde(default)]
    pub origin: Option<Box<Origin>>,
    /// Why it must go and by when, while it drains.
    #[serde(default)]
    pub drain: Option<Drain>,
    /// What became of jobs that it ran, by the types of their tasks; processes are under the empty name.
    #[serde(default)]
    pub history: BTreeMap<Arc<str>, Tally>,
}

/// How a worker came to be that a provider made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    pub provider: Arc<str>,
    /// As it was when the worker was asked for.
    pub template: Arc<WorkerTemplate>,
    /// The job that it was made for, if it was for one.
    pub job: Option<JobId>,
    pub asked_at: Time,
    /// It has been given a job.
    pub used: bool,
}

/// An order to leave.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drain {
    pub reason: String,
    /// What still runs then is given back.
    pub deadline: Option<Time>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    pub succeeded: u64,
    pub failed: u64,
}

/// How far a worker is in its life, as far as that must survive a restart of the server. Whether it is connected,
/// busy or unhealthy is seen anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Phase {
    /// Its provider has been or will be asked to make it.
    Creating,
    /// Its provider has made it, and it has not registered yet.
    Connecting,
    Active,
    Draining,
    /// Its provider has been or will be asked to remove it.
    Terminating,
    Terminated,
}

/// The state that people see.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum WorkerState {
    Creating,
    Connecting,
    Ready,
    Busy,
    Draining,
    Unhealthy,
    Terminating,
    Terminated,
}

impl WorkerState {
    pub const ALL: [WorkerState; 8] = [
        WorkerState::Creating,
        WorkerState::Connecting,
        WorkerState::Ready,
        WorkerState::Busy,
        WorkerState::Draining,
        WorkerState::Unhealthy,
        WorkerState::Terminating,
        WorkerState::Terminated,
    ];

    pub fn name(self) -> &'static str {
        match self {
            WorkerState::Creating => "creating",
            WorkerState::Connecting => "connecting",
            WorkerState::Ready => "ready",
            WorkerState::Busy => "busy",
            WorkerState::Draining => "draining",
            WorkerState::Unhealthy => "unhealthy",
            WorkerState::Terminating => "terminating",
            WorkerState::Terminated => "terminated",
        }
    }

    /// The states that may come next, and no others.
    pub fn next(self) -> &'static [WorkerState] {
        use WorkerState::{Busy, Connecting, Creating, Draining, Ready, Terminated, Terminating, Unhealthy};
        match self {
            Creating => &[Connecting, Terminated, Unhealthy],
            Connecting => &[Ready, Terminated, Unhealthy],
            Ready => &[Busy, Draining, Terminating, Unhealthy],
            Busy => &[Ready, Draining, Unhealthy],
            Draining => &[Terminating, Unhealthy],
            Unhealthy => &[Ready, Terminating],
            Terminating => &[Terminated],
            Terminated => &[],
        }
    }
}
