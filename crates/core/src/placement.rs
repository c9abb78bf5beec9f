//! Which worker a job is given to: filters, then scores.

use crate::provider::ProviderStrategy;
use serde::{Deserialize, Serialize};

/// How the server decides where jobs run. One for the whole server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SchedulerSettings {
    pub strategy: Strategy,
    /// A worker with a score below this, out of 100, is passed over.
    pub threshold: u8,
    pub fleet: FleetPolicy,
    pub provider_strategy: ProviderStrategy,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Strategy {
    /// The best score.
    #[default]
    Smart,
    /// Each in turn.
    RoundRobin,
    /// The one with the fewest jobs.
    LeastConnections,
    /// The one with the most free resources.
    ResourcePriority,
    /// The one that matches the most of what the job would rather have.
    Affinity,
}

/// What becomes of a job that nothing present can run and nothing can be made for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum FleetPolicy {
    /// It waits: another worker may come.
    #[default]
    Open,
    /// It is rejected: all workers that there will be are there.
    Closed,
}

impl Strategy {
    pub const ALL: [Strategy; 5] = [
        Strategy::Smart,
        Strategy::RoundRobin,
        Strategy::LeastConnections,
        Strategy::ResourcePriority,
        Strategy::Affinity,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Strategy::Smart => "smart",
            Strategy::RoundRobin => "round_robin",
            Strategy::LeastConnections => "least_connections",
            Strategy::ResourcePriority => "resource_priority",
            Strategy::Affinity => "affinity",
        }
    }

    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|strategy| strategy.name() == name)
    }
}
