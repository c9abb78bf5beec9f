//! Workers as they describe themselves and as they are kept.

use crate::{
    id::{Incarnation, WorkerId},
    time::Time,
    token::Hash,
};
pub use hodei_supervise::Sla;
use serde::{Deserialize, Serialize};
use std::{collections::BTreeSet, sync::Arc};

/// What a worker says of itself when it registers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerInfo {
    pub name: String,
    pub version: String,
    pub hostname: String,
    pub capacity: Capacity,
    #[serde(default)]
    pub offer: Offer,
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
}

/// A registered worker, as it is stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerRecord {
    pub id: WorkerId,
    pub info: WorkerInfo,
    /// Of the secret that its sessions are opened with.
    pub session: Hash,
    /// The agent process that connected last.
    pub incarnation: Option<Incarnation>,
    pub phase: Phase,
    pub registered_at: Time,
}

/// How far a worker is in its life, as far as that must survive a restart of the server. Whether it is connected,
/// busy or unhealthy is seen anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Phase {
    Active,
    Draining,
    Terminated,
}

/// The state that people see.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum WorkerState {
    Connecting,
    Ready,
    Busy,
    Draining,
    Unhealthy,
    Terminated,
}

impl WorkerState {
    pub fn name(self) -> &'static str {
        match self {
            WorkerState::Connecting => "connecting",
            WorkerState::Ready => "ready",
            WorkerState::Busy => "busy",
            WorkerState::Draining => "draining",
            WorkerState::Unhealthy => "unhealthy",
            WorkerState::Terminated => "terminated",
        }
    }
}
