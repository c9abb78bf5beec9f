//! One file per command, or per group of commands.

pub mod audit;
mod defaults;
pub mod dlq;
pub mod events;
pub mod file;
pub mod fleet;
pub mod follow;
pub mod handlers;
pub mod job;
pub mod logs;
pub mod pool;
pub mod provider;
pub mod queue;
pub mod run;
pub mod schedule;
pub mod scheduler;
pub mod serve;
pub mod spec;
pub mod token;
pub mod webhook;
pub mod worker;
