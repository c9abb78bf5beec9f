//! Feeds every door of Hodei with what nobody should send, and watches for panics, memory and time.
//!
//! [`targets`] are the doors, [`engine`] makes the inputs and watches, [`live`] does the same to a server process over
//! its sockets. A short run is part of the tests; `cargo xtask fuzz` runs for as long as it is told to.

mod alloc;
pub mod engine;
pub mod live;
mod mutate;
mod proto;
mod rng;
pub mod targets;
