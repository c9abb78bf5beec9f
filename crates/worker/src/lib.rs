//! The worker: an agent that holds a session with the server, a guardian that starts processes for it, and handlers that
//! run tasks in it.

mod agent;
mod chunks;
mod end;
pub mod executor;
#[doc(hidden)]
pub mod fuzzing;
pub mod guardian;
mod handlers;
mod identity;
mod link;
mod spool;

pub use agent::{AgentError, AgentOptions, Processes, Wish, known_worker, run, wishes_of_signals};
pub use handlers::{
    Command, Dependency, Done, Endpoint, HandlerError, Handlers, Program, Subprocess, Task, TaskError, TaskResult, Tick,
};
pub use hodei_core::{
    id::JobId,
    spec::Invalid,
    worker::{Capacity, Sla, WorkerInfo},
};
pub use link::{Connect, LinkError};
pub use reqwest::{Url, header};
