//! Tells others that jobs have ended, signed as [Standard Webhooks](https://www.standardwebhooks.com) describes.
//!
//! A delivery is owed from the commit that ended its job until the commit that says what became of it. Between the two the
//! message may be sent and the server may die: then it is sent again under the same id, so whoever receives can tell.

mod deliverer;
mod guard;
mod lines;
mod message;
mod outbox;
mod post;
mod settle;
mod signature;

pub(crate) use deliverer::{Redelivery, run};
pub use guard::{Guard, Network};
pub(crate) use outbox::Outbox;
pub use post::{Resolve, SystemResolver};
pub use signature::Key;

use hodei_core::time::Millis;
use std::{fmt, sync::Arc};

/// Tries that are remembered of a delivery, and so the most that a plan can have.
pub const MOST_TRIES: usize = 20;

/// How webhooks are delivered.
#[derive(Clone)]
pub struct Settings {
    /// What is signed with, unless a job brings its own.
    pub key: Key,
    /// The waits after the first try, the second, and so on. After the last of them a delivery has failed.
    pub retry: Vec<Millis>,
    /// How long one try may take, with all redirects.
    pub timeout: Millis,
    pub guard: Guard,
    pub resolver: Arc<dyn Resolve>,
}

impl Default for Settings {
    fn default() -> Self {
        const HOUR: u64 = 3600;
        let seconds = [5, 300, 1800, 2 * HOUR, 5 * HOUR, 10 * HOUR, 14 * HOUR, 20 * HOUR, 24 * HOUR];
        Self {
            key: Key::random(),
            retry: seconds.map(Millis::seconds).to_vec(),
            timeout: Millis::seconds(15),
            guard: Guard::default(),
            resolver: Arc::new(SystemResolver),
        }
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key: _, retry, timeout, guard, resolver: _ } = self;
        f.debug_struct("Settings")
            .field("retry", retry)
            .field("timeout", timeout)
            .field("guard", guard)
            .finish_non_exhaustive()
    }
}
