//! Which worker a job is given to: filters, then scores.

mod decision;
pub(crate) mod filters;
pub(crate) mod score;

pub use decision::{Choice, Considered, Decision};
pub use filters::{Dropped, Filter, Traits};
pub use score::{Score, Wishes};

use crate::{job::Job, provider::ProviderStrategy, requirements::Requirements, spec::JobSpec};
use serde::{Deserialize, Serialize};

/// What a job asks of the worker that runs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Needs<'a> {
    /// The type of its task, if that is what it runs.
    pub task_type: Option<&'a str>,
    pub requirements: &'a Requirements,
}

impl<'a> Needs<'a> {
    pub fn of(job: &'a Job) -> Self {
        Self { task_type: job.task_type.as_deref(), requirements: &job.requirements }
    }

    pub fn of_spec(spec: &'a JobSpec) -> Self {
        Self { task_type: spec.work.task_type(), requirements: &spec.requirements }
    }
}

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

impl FleetPolicy {
    pub fn name(self) -> &'static str {
        match self {
            FleetPolicy::Open => "open",
            FleetPolicy::Closed => "closed",
        }
    }

    pub fn parse(name: &str) -> Option<Self> {
        [FleetPolicy::Open, FleetPolicy::Closed].into_iter().find(|policy| policy.name() == name)
    }
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
