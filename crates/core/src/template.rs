//! What a worker that a provider makes is to be like.

use crate::{
    requirements::{Capability, Taint},
    time::Millis,
    worker::Capacity,
};
use hodei_supervise::Sla;
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct WorkerTemplate {
    pub name: Arc<str>,
    /// Those that may make it; empty for any that can.
    pub providers: Vec<Arc<str>>,
    pub image: Option<Arc<str>>,
    pub capacity: Capacity,
    pub labels: BTreeMap<Arc<str>, Arc<str>>,
    pub taints: Vec<Taint>,
    pub capabilities: Vec<Capability>,
    pub zone: Option<Arc<str>>,
    pub environment: BTreeMap<String, String>,
    /// What runs tasks, by their types, written as for `hodei worker run --handler`.
    pub handlers: BTreeMap<Arc<str>, String>,
    /// Folders of the provider's machine that the worker sees, read-only.
    pub mounts: Vec<Mount>,
    /// The network that it is in, by the name that its provider knows; the provider's default when unset.
    pub network: Option<String>,
    pub sla: Sla,
    pub reuse: Reuse,
    /// How many stand ready with nothing to do.
    pub warm: u32,
    /// One with nothing to do goes after this long.
    pub idle_timeout: Millis,
    /// After this long it takes nothing new and goes.
    pub max_lifetime: Option<Millis>,
    /// Places of its warm pool whose workers failed for good: nothing is tried there until a person asks.
    pub given_up: BTreeSet<u32>,
    /// How many restarts the places of its warm pool have used, of those that its SLA allows.
    pub restarts: BTreeMap<u32, u32>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    pub source: String,
    pub target: String,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reuse {
    /// One job a worker.
    Never,
    /// Until it has nothing to do for the idle timeout, or has lived its time.
    #[default]
    Idle,
}

impl Default for WorkerTemplate {
    fn default() -> Self {
        Self {
            name: "".into(),
            providers: Vec::new(),
            image: None,
            capacity: Capacity { slots: 1, ..Capacity::default() },
            labels: BTreeMap::new(),
            taints: Vec::new(),
            capabilities: Vec::new(),
            zone: None,
            environment: BTreeMap::new(),
            handlers: BTreeMap::new(),
            mounts: Vec::new(),
            network: None,
            sla: Sla::default(),
            reuse: Reuse::default(),
            warm: 0,
            idle_timeout: Millis::seconds(60),
            max_lifetime: None,
            given_up: BTreeSet::new(),
            restarts: BTreeMap::new(),
        }
    }
}

impl Reuse {
    pub fn name(self) -> &'static str {
        match self {
            Reuse::Never => "never",
            Reuse::Idle => "idle",
        }
    }

    pub fn parse(name: &str) -> Option<Self> {
        [Reuse::Never, Reuse::Idle].into_iter().find(|reuse| reuse.name() == name)
    }
}
