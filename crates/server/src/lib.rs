//! The server: one loop around the brain, and the doors to it.
//!
//! [`engine`] is the loop. [`grpc`] and [`rest`] are the doors; they change nothing themselves, they hand commands to the
//! engine and read from the store. [`listen`] decides who may knock.

mod access;
mod calls;
mod clock;
mod context;
mod dispatch;
mod engine;
mod events;
pub mod fleet;
#[doc(hidden)]
pub mod fuzzing;
mod grpc;
mod http;
pub mod listen;
mod logs;
mod maintenance;
mod options;
mod rest;
mod secrets;
mod server;
pub mod tls;
mod watch;
pub mod webhooks;

pub use options::Options;
pub use server::{Server, ServerError};
