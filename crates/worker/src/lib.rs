//! The worker: an agent that holds a session with the server, and a guardian that starts processes for it.

mod agent;
pub mod executor;
#[doc(hidden)]
pub mod fuzzing;
pub mod guardian;
mod identity;
mod link;
mod spool;

pub use agent::{AgentError, AgentOptions, Wish, known_worker, run};
pub use link::{Connect, LinkError};
