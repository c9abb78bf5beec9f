//! What a server does by itself from time to time. Each service takes no input, works in bounded steps, and can be stopped
//! and started at any moment.

mod audit;
mod events;
mod retention;

use crate::{calls::Calls, engine::Engine, webhooks};
use std::time::Duration;
use tokio::{sync::watch, task::JoinSet};

/// Between two rounds of a service.
const ROUND: Duration = Duration::from_secs(60);

pub use audit::write as write_refusals;

/// Starts all services; they end when the server closes.
pub fn start(engine: &Engine, closing: &watch::Receiver<bool>, tasks: &mut JoinSet<()>) {
    let calls = Calls::new(engine.clone());
    tasks.spawn(until_closing(closing.clone(), retention::run(calls)));
    tasks.spawn(until_closing(closing.clone(), events::run(engine.clone())));
    tasks.spawn(until_closing(closing.clone(), audit::run(engine.clone())));
    tasks.spawn(until_closing(closing.clone(), webhooks::run(engine.clone())));
}

async fn until_closing(mut closing: watch::Receiver<bool>, service: impl Future<Output = ()>) {
    tokio::select! {
        () = service => {}
        _ = closing.wait_for(|closing| *closing) => {}
    }
}
