//! Telling others that a job has ended.

use crate::{
    id::{DeliveryId, JobId},
    spec::Webhook,
    state::StateKind,
    time::{Millis, Time},
};
use serde::{Deserialize, Serialize};

/// A message that is owed, or that was delivered. Made in the commit that ends the job, so it cannot be lost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delivery {
    pub id: DeliveryId,
    pub job: JobId,
    /// The state that the job ended in.
    pub event: StateKind,
    pub to: Webhook,
    pub created_at: Time,
    pub state: DeliveryState,
    pub tries: Vec<DeliveryTry>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DeliveryState {
    Pending { next: Time },
    Delivered { at: Time },
    Failed { at: Time },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeliveryTry {
    pub at: Time,
    /// Of the answer, if one came.
    pub status: Option<u16>,
    pub error: String,
    pub took: Millis,
}

impl Delivery {
    pub fn new(id: DeliveryId, job: JobId, event: StateKind, to: Webhook, now: Time) -> Self {
        let state = DeliveryState::Pending { next: now };
        Self { id, job, event, to, created_at: now, state, tries: Vec::new() }
    }

    /// When it is to be tried next, if it is.
    pub fn due(&self) -> Option<Time> {
        match self.state {
            DeliveryState::Pending { next } => Some(next),
            _ => None,
        }
    }
}
