//! Schedules: what makes jobs by the clock.

use crate::{
    id::{JobId, ScheduleId},
    spec::Webhook,
    time::{Millis, Time},
};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Idempotency keys that begin like this are those of ticks.
pub const KEY_PREFIX: &str = "schedule/";

/// A schedule with what it has done so far. The job that it makes is kept beside it, as it was submitted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScheduleRecord {
    pub id: ScheduleId,
    pub name: Arc<str>,
    pub description: String,
    pub timing: Timing,
    pub overlap: Overlap,
    pub misfire: Misfire,
    pub enabled: bool,
    pub created_at: Time,
    pub last_tick: Option<Time>,
    /// None when it is disabled or will never run again.
    pub next_tick: Option<Time>,
    pub runs: u64,
    pub skipped: u64,
    pub last_job: Option<JobId>,
    /// Its jobs that are not finished, unless they may overlap.
    pub live: Vec<JobId>,
    /// The tick that waits until they are.
    pub queued: Option<Time>,
    /// That of its job, whose payload goes to workers and has no part of it.
    #[serde(default)]
    pub webhook: Option<Webhook>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Timing {
    /// A cron expression in a time zone by its IANA name.
    Cron { expression: String, time_zone: String },
    /// From the schedule's making on.
    Every(Millis),
}

/// What happens at a tick while jobs of earlier ticks are not finished.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Overlap {
    #[default]
    Allow,
    Skip,
    Replace,
    QueueOne,
}

/// What happens with ticks that passed while no server ran.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Misfire {
    Skip,
    #[default]
    FireOnce,
    /// Up to so many of them, the latest ones.
    CatchUp(u32),
}

impl Overlap {
    pub const ALL: [Overlap; 4] = [Overlap::Allow, Overlap::Skip, Overlap::Replace, Overlap::QueueOne];

    pub fn name(self) -> &'static str {
        match self {
            Overlap::Allow => "allow",
            Overlap::Skip => "skip",
            Overlap::Replace => "replace",
            Overlap::QueueOne => "queue_one",
        }
    }

    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|overlap| overlap.name() == name)
    }
}
