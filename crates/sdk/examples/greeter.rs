//! A worker that greets. Start a server, make a token, and give both:
//!
//! ```sh
//! hodei up &
//! HODEI_SERVER=http://127.0.0.1:7070 HODEI_TOKEN=$(hodei token create worker) cargo run --example greeter
//! hodei run --task greet --payload '{"name": "Ada"}'
//! ```

use hodei_sdk::{Task, TaskResult, Worker, WorkerError, json};
use serde::Deserialize;
use std::{env, time::Duration};

#[derive(Deserialize)]
struct Greeting {
    name: String,
}

async fn greet(task: Task) -> TaskResult {
    let Greeting { name } = task.payload()?;
    for percent in [0, 50, 100] {
        task.progress(percent.into(), "thinking of what to say");
        task.log(&format!("{percent} %")).await;
        tokio::select! {
            () = tokio::time::sleep(Duration::from_millis(200)) => {}
            () = task.stopping() => return Err("asked to stop".into()),
        }
    }
    Ok(json!({ "greeting": format!("Hello, {name}!") }))
}

#[tokio::main]
async fn main() -> Result<(), WorkerError> {
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let server = env::var("HODEI_SERVER").unwrap_or_else(|_| "http://127.0.0.1:7070".to_owned());
    let folder = env::temp_dir().join("hodei-greeter");
    let mut worker = Worker::new(server).folder(folder).slots(4).handle("greet", greet);
    if let Ok(token) = env::var("HODEI_TOKEN") {
        worker = worker.token(token);
    }
    worker.run().await
}
