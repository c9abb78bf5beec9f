//! Health and readiness for probes.

use crate::engine::Engine;
use axum::{Json, Router, extract::State, http::StatusCode, routing::get};
use serde_json::{Value, json};
use std::sync::atomic::Ordering;

pub fn routes(engine: Engine) -> Router {
    Router::new()
        .route("/health", get(health))
        .route("/live", get(async || Json(json!({ "status": "ok" }))))
        .route("/ready", get(ready))
        .with_state(engine)
}

/// Readiness, and what the loop has done so far.
async fn health(State(engine): State<Engine>) -> (StatusCode, Json<Value>) {
    let (code, Json(mut body)) = ready(State(engine.clone())).await;
    let shared = engine.shared();
    body["commits"] = json!(shared.commits.load(Ordering::Relaxed));
    body["job_rows"] = json!(shared.job_rows.load(Ordering::Relaxed));
    (code, Json(body))
}

/// Ready when commands are taken: the loop turns and the database answers.
async fn ready(State(engine): State<Engine>) -> (StatusCode, Json<Value>) {
    let open = match engine.check_open() {
        Ok(()) => engine.ask(|_| ()).await,
        closed => closed,
    };
    match open {
        Ok(()) => (StatusCode::OK, Json(json!({ "status": "ready" }))),
        Err(error) => {
            let body = json!({ "status": "unavailable", "reason": error.to_string() });
            (StatusCode::SERVICE_UNAVAILABLE, Json(body))
        }
    }
}
