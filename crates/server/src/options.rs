//! What can be set on a server.

use crate::{fleet, webhooks};
use hodei_core::{brain, spec::Limits, time::Millis};

#[derive(Clone, Debug)]
pub struct Options {
    pub lease: Millis,
    pub lease_grace: Millis,
    /// How long workers may go on alone after an orderly shutdown.
    pub parked_lease: Millis,
    /// How long a worker token is good for unless its maker says otherwise.
    pub token_ttl: Millis,
    pub limits: Limits,
    /// Jobs of the head of each line that are kept in memory.
    pub window: usize,
    /// How long finished jobs are kept, with their logs and results; for ever when unset.
    pub retention: Option<Millis>,
    /// How far back event streams can go.
    pub events_kept: Millis,
    pub webhooks: webhooks::Settings,
    pub fleet: fleet::Settings,
}

impl Default for Options {
    fn default() -> Self {
        let brain = brain::Config::default();
        Self {
            lease: brain.lease,
            lease_grace: brain.lease_grace,
            parked_lease: Millis::seconds(600),
            token_ttl: Millis::seconds(300),
            limits: Limits::default(),
            window: brain.window,
            retention: None,
            events_kept: Millis::seconds(3600),
            webhooks: webhooks::Settings::default(),
            fleet: fleet::Settings::default(),
        }
    }
}

impl Options {
    /// Six signs of life fit in a lease, so that a few may be lost; ten seconds apart is often enough for any lease.
    pub fn heartbeat(&self) -> Millis {
        Millis((self.lease.0 / 6).clamp(50, 10_000))
    }

    pub(crate) fn brain(&self, seed: u64) -> brain::Config {
        brain::Config {
            lease: self.lease,
            lease_grace: self.lease_grace,
            window: self.window,
            registration: self.fleet.registration,
            seed,
            ..brain::Config::default()
        }
    }
}
