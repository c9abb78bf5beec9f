//! Workers as they describe themselves and as they are kept.

use crate::{
    id::{Incarnation, JobId, WorkerId},
    requirements::{Capability, Isolation, Requirements, Taint},
    template::WorkerTemplate,
    time::Time,
    token::Hash,
};
pub use hodei_supervise::Sla;
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
    /// Its handlers that have processes of their own.
    #[serde(default)]
    pub handlers: Vec<HandlerInfo>,
}

/// A handler whose processes the worker supervises.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HandlerInfo {
    /// The type, or pattern of types, that it is there for.
    pub name: String,
    pub sla: Sla,
    /// False when it was given up: then the worker does not offer its types until a person asks.
    pub up: bool,
}

/// Whether a handler's pattern of types, such as `report.*`, is for this type.
pub fn fits(pattern: &str, task_type: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(prefix) => task_type.starts_with(prefix),
        None => task_type == pattern,
    }
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

impl Capacity {
    /// Whether there is a slot and what is asked for.
    pub fn fits(&self, asked: &Requirements) -> bool {
        self.slots > 0
            && self.cpu_millis >= asked.cpu_millis
            && self.memory_bytes >= asked.memory_bytes
            && self.disk_bytes >= asked.disk_bytes
            && self.gpus >= asked.gpus
    }

    /// Counts one more job that takes this.
    pub fn add(&mut self, asked: &Requirements) {
        self.slots += 1;
        self.cpu_millis += asked.cpu_millis;
        self.memory_bytes += asked.memory_bytes;
        self.disk_bytes += asked.disk_bytes;
        self.gpus += asked.gpus;
    }

    /// Counts one job less that takes this.
    pub fn remove(&mut self, asked: &Requirements) {
        self.slots -= 1;
        self.cpu_millis -= asked.cpu_millis;
        self.memory_bytes -= asked.memory_bytes;
        self.disk_bytes -= asked.disk_bytes;
        self.gpus -= asked.gpus;
    }

    /// What is left of it; nothing of that which more is used of than there is.
    pub fn without(&self, used: &Capacity) -> Capacity {
        Capacity {
            slots: self.slots.saturating_sub(used.slots),
            cpu_millis: self.cpu_millis.saturating_sub(used.cpu_millis),
            memory_bytes: self.memory_bytes.saturating_sub(used.memory_bytes),
            disk_bytes: self.disk_bytes.saturating_sub(used.disk_bytes),
            gpus: self.gpus.saturating_sub(used.gpus),
        }
    }

    /// Whether nothing of it is more than of the other.
    pub fn within(&self, other: &Capacity) -> bool {
        self.slots <= other.slots
            && self.cpu_millis <= other.cpu_millis
            && self.memory_bytes <= other.memory_bytes
            && self.disk_bytes <= other.disk_bytes
            && self.gpus <= other.gpus
    }
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
    /// Since when it wants to leave by itself. One that has left may come back with its session.
    #[serde(default)]
    pub leaving: Option<Time>,
    /// What became of jobs that it ran, by the types of their tasks; processes are under the empty name.
    #[serde(default)]
    pub history: BTreeMap<Arc<str>, Tally>,
}

/// A worker remembers how it fared with no more types of tasks than this.
const REMEMBERED_TYPES: usize = 64;

impl WorkerRecord {
    /// How it fared with tasks of this type so far.
    pub fn tally(&self, task_type: Option<&str>) -> Option<&Tally> {
        if self.history.is_empty() { None } else { self.history.get(task_type.unwrap_or_default()) }
    }

    pub(crate) fn remember(&mut self, task_type: Option<&Arc<str>>, success: bool) {
        if let Some(tally) = self.history.get_mut(task_type.map_or("", |task_type| task_type)) {
            tally.count(success);
        } else if self.history.len() < REMEMBERED_TYPES {
            let mut tally = Tally::default();
            tally.count(success);
            self.history.insert(task_type.cloned().unwrap_or_else(|| "".into()), tally);
        }
    }
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

impl Drain {
    /// This order after an earlier one: it changes only what it names.
    pub fn after(self, earlier: Option<&Drain>) -> Drain {
        let Some(earlier) = earlier else { return self };
        let reason = if self.reason.is_empty() { earlier.reason.clone() } else { self.reason };
        Drain { reason, deadline: self.deadline.or(earlier.deadline) }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    pub succeeded: u64,
    pub failed: u64,
}

impl Tally {
    /// Counts one more. Old ends fade: once there are many, each counts half.
    pub fn count(&mut self, success: bool) {
        const MANY: u64 = 1000;
        if self.succeeded + self.failed >= MANY {
            (self.succeeded, self.failed) = (self.succeeded / 2, self.failed / 2);
        }
        *(if success { &mut self.succeeded } else { &mut self.failed }) += 1;
    }
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
