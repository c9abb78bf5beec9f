//! Hodei from Rust: jobs are submitted with a [`Client`], and tasks are handled by a [`Worker`].
//!
//! A worker is a program of yours. It declares which types of tasks it handles, takes those that a server gives it, and
//! reports what became of them; retries, timeouts, cancellation and crashes are Hodei's business.
//!
//! ```no_run
//! use hodei_sdk::{Task, Worker, json};
//!
//! # async fn example() -> Result<(), hodei_sdk::WorkerError> {
//! Worker::new("http://127.0.0.1:7070")
//!     .token("from `hodei token create worker`")
//!     .slots(8)
//!     .handle("greet", |task: Task| async move {
//!         let name: String = task.payload()?;
//!         task.log(&format!("greeting {name}")).await;
//!         Ok(json!(format!("hello, {name}")))
//!     })
//!     .run()
//!     .await
//! # }
//! ```

mod client;
mod job;
mod worker;

pub use client::{Client, ClientError};
pub use hodei_api::v1::{JobSpec, Priority};
pub use hodei_worker::{Dependency, Done, JobId, Task, TaskError, TaskResult, Tick};
pub use job::Job;
pub use serde_json::{Value, json};
pub use worker::{Worker, WorkerError};
