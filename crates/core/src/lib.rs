//! What Hodei decides, as pure functions over plain data.
//!
//! Nothing here reads a clock, draws a random number, touches a file or waits. Time, seeds and rows come in as
//! arguments; rows to write and effects to perform go out as values. So both ends of the system, the server's
//! [`brain`] and the worker's [`session`], can be run in a simulation exactly as they run in production.

pub use hodei_supervise as supervise;

pub mod access;
pub mod brain;
pub mod bytes;
pub mod cron;
pub mod dead_letter;
pub mod defect;
pub mod id;
pub mod job;
pub mod journal;
pub mod placement;
pub mod protocol;
pub mod provider;
pub mod queue;
pub mod requirements;
pub mod retry;
pub mod schedule;
pub mod session;
pub mod spec;
pub mod state;
pub mod template;
pub mod time;
pub mod token;
pub mod webhook;
pub mod worker;
