//! Supervision: who lives, who produces, and what follows when one does not.
//!
//! The [`Swarm`] looks after *health*: heartbeats, lives, the pool of warm ones. The [`Supervisor`] looks after *output*: is
//! the work that was taken being produced, and may what failed be tried again. Neither can do the other's part: the one has
//! no way to hear of work, the other none to hear of heartbeats. Whoever owns both carries news between them.
//!
//! Both are generic over what is supervised, by a key. There is one pair for each kind of worker (a handler, a template of
//! workers), whose members can take each other's place and have the same [`Sla`]. Neither reads a clock: time is what has
//! passed since an origin that the owner chose.

mod crash;
mod lifecycle;
mod pool;
mod sla;
mod supervisor;
mod swarm;

pub use crash::{Cause, Class, Crash, Fingerprint, IMMEDIATE, STDERR_TAIL};
pub use lifecycle::{IllegalMove, Lifecycle, Step};
pub use pool::{Healthy, Pool, PoolLimits};
pub use sla::{HANG_BEATS, Sla, UnknownSla};
pub use supervisor::{Ask, Event, EventKind, GOOD_WORK, Output, Stalled, Supervisor, Verdict};
pub use swarm::{Health, Refused, Request, Swarm};
