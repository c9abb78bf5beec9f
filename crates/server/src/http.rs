//! Health and readiness for probes.

use crate::engine::Engine;
use axum::{Json, Router, extract::State, http::StatusCode, routing::get};
use serde_json::{Value, json};

pub fn routes(engine: Engine) -> Router {
    Router::new()
        .route("/health", get(ready))
        .route("/live", get(async || Json(json!({ "status": "ok" }))))
        .route("/ready", get(ready))
        .with_state(engine)
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
