//! Who makes workers: providers as they are configured, what they can do, how they fare, and what they say of what they made.

use crate::{
    id::WorkerId,
    requirements::Isolation,
    time::{Millis, Time},
};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, sync::Arc};

/// A provider as an operator added it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProviderRecord {
    pub name: Arc<str>,
    pub kind: ProviderKind,
    pub enabled: bool,
    /// No more workers of it than this at one time.
    pub cap: u32,
    /// What it costs by the hour, in thousandths of whatever the operator counts in; for the strategy `lowest_cost`.
    pub cost: u64,
    /// What its kind needs to know, such as the address of an engine.
    pub settings: BTreeMap<String, String>,
    pub added_at: Time,
    /// It goes when its workers are gone.
    #[serde(default)]
    pub leaving: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ProviderKind {
    Process,
    Docker,
}

/// How a provider is doing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum ProviderHealth {
    Healthy,
    Degraded(String),
    Unhealthy(String),
    /// Nobody has asked yet.
    #[default]
    Unknown,
}

/// What a provider can make.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProviderCapabilities {
    /// The strongest.
    pub isolation: Isolation,
    /// It makes workers in images.
    pub images: bool,
    pub gpus: u32,
    /// The largest worker; zero where it knows no limit.
    pub cpu_millis: u64,
    pub memory_bytes: u64,
    pub architectures: Vec<String>,
    /// From the call to a registered worker, as a rule.
    pub startup: Millis,
}

/// Which provider a worker is made by, of those that can.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum ProviderStrategy {
    #[default]
    FastestStartup,
    LowestCost,
    MostCapacity,
    RoundRobin,
    Healthiest,
}

/// Why a provider did not do what it was asked, by what would help.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ErrorClass {
    /// It is full: later, or elsewhere.
    Capacity,
    /// It may not make more: elsewhere.
    Quota,
    /// It does not know us: a person must help.
    Auth,
    /// There is no such image, or it cannot run a worker: no retry would help.
    Image,
    /// It does not answer.
    Unreachable,
    /// The worker never registered, or ended before it did.
    NeverCame,
    Other,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProviderFailure {
    pub class: ErrorClass,
    /// For people, with the end of what the worker printed where there is any.
    pub message: String,
}

/// Something that a provider made and that still exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instance {
    pub worker: WorkerId,
    pub state: InstanceState,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InstanceState {
    /// It is being made or runs.
    Alive,
    /// It ended and has not been removed.
    Exited(Exit),
}

/// How the process of a worker ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exit {
    pub code: Option<i32>,
    pub signal: Option<i32>,
    pub out_of_memory: bool,
    /// The end of what it printed.
    pub output: String,
}

impl ProviderRecord {
    /// Where a Docker provider says which engine it uses.
    const HOST: &str = "host";

    /// Whether what it made would still be found if it were this other one.
    pub fn is_where(&self, other: &Self) -> bool {
        let place = |record: &Self| (record.kind, record.settings.get(Self::HOST).cloned());
        place(self) == place(other)
    }
}

impl ProviderKind {
    pub const ALL: [ProviderKind; 2] = [ProviderKind::Process, ProviderKind::Docker];

    pub fn name(self) -> &'static str {
        match self {
            ProviderKind::Process => "process",
            ProviderKind::Docker => "docker",
        }
    }

    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

impl ProviderHealth {
    pub fn name(&self) -> &'static str {
        match self {
            ProviderHealth::Healthy => "healthy",
            ProviderHealth::Degraded(_) => "degraded",
            ProviderHealth::Unhealthy(_) => "unhealthy",
            ProviderHealth::Unknown => "unknown",
        }
    }

    pub fn reason(&self) -> &str {
        match self {
            ProviderHealth::Degraded(reason) | ProviderHealth::Unhealthy(reason) => reason,
            ProviderHealth::Healthy | ProviderHealth::Unknown => "",
        }
    }
}

impl ProviderStrategy {
    pub const ALL: [ProviderStrategy; 5] = [
        ProviderStrategy::FastestStartup,
        ProviderStrategy::LowestCost,
        ProviderStrategy::MostCapacity,
        ProviderStrategy::RoundRobin,
        ProviderStrategy::Healthiest,
    ];

    pub fn name(self) -> &'static str {
        match self {
            ProviderStrategy::FastestStartup => "fastest_startup",
            ProviderStrategy::LowestCost => "lowest_cost",
            ProviderStrategy::MostCapacity => "most_capacity",
            ProviderStrategy::RoundRobin => "round_robin",
            ProviderStrategy::Healthiest => "healthiest",
        }
    }

    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|strategy| strategy.name() == name)
    }
}

impl ErrorClass {
    pub fn name(self) -> &'static str {
        match self {
            ErrorClass::Capacity => "capacity",
            ErrorClass::Quota => "quota",
            ErrorClass::Auth => "auth",
            ErrorClass::Image => "image",
            ErrorClass::Unreachable => "unreachable",
            ErrorClass::NeverCame => "never_came",
            ErrorClass::Other => "other",
        }
    }
}
