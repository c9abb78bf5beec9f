//! What becomes of a job, and why.

use super::{Dropped, Score, Strategy};
use crate::id::WorkerId;
use std::sync::Arc;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    pub choice: Choice,
    /// In one sentence.
    pub reason: String,
    /// The best first, then those that were dropped.
    pub workers: Vec<Considered>,
    pub strategy: Strategy,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Choice {
    Assign(WorkerId),
    /// A worker is made for it.
    Provision {
        provider: Arc<str>,
        template: Arc<str>,
    },
    /// It waits.
    Enqueue,
    Reject,
}

/// A worker that was looked at for a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Considered {
    pub worker: WorkerId,
    pub name: String,
    pub fate: Result<Score, Dropped>,
}

impl Choice {
    pub fn name(&self) -> &'static str {
        match self {
            Choice::Assign(_) => "assign",
            Choice::Provision { .. } => "provision",
            Choice::Enqueue => "enqueue",
            Choice::Reject => "reject",
        }
    }
}
