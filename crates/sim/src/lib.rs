//! Whole clusters in one process, by seed.
//!
//! A seed stands for a [`Plan`]: a cluster, what its users want, and what goes wrong. A [`World`](world::World) acts it
//! out with the real brain and the real worker session, one event a step, and checks after each what must always hold.
//! The same seed gives the same history, so a failure can be replayed, told and cut down.

mod defect;
mod dice;
mod plan;
mod run;
mod shrink;
mod store;
mod trace;
mod world;

pub use defect::Defect;
pub use plan::{Fault, Plan};
pub use run::{Failure, Tally, run, run_many, trace_of};
pub use shrink::report;
pub use world::Rule;
