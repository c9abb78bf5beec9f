//! What is served over plain HTTP: REST, and health where probes look for it.

use crate::{access, engine::Engine, rest};
use axum::{Json, Router, extract::State, http::StatusCode, middleware::from_fn_with_state, routing::get};
use hodei_store::Filter;
use serde_json::{Value, json};
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::sync::watch;

/// A probe that waits longer learns no more.
const PATIENCE: Duration = Duration::from_secs(2);

pub fn routes(engine: &Engine, closing: watch::Receiver<bool>, served: Arc<AtomicU64>) -> Router {
    let probes = Router::new()
        .route("/health", get(health))
        .route("/live", get(live))
        .route("/health/live", get(live))
        .route("/ready", get(ready))
        .route("/health/ready", get(ready))
        .layer(from_fn_with_state(engine.clone(), access::http_layer))
        .with_state(engine.clone());
    probes.merge(rest::routes(engine, closing, served))
}

async fn live() -> Json<Value> {
    Json(json!({ "status": "ok" }))
}

/// Readiness, and what the loop has done so far.
async fn health(State(engine): State<Engine>) -> (StatusCode, Json<Value>) {
    let (code, Json(mut body)) = ready(State(engine.clone())).await;
    let shared = engine.shared();
    body["commits"] = json!(shared.commits.load(Ordering::Relaxed));
    body["job_rows"] = json!(shared.job_rows.load(Ordering::Relaxed));
    (code, Json(body))
}

async fn ready(State(engine): State<Engine>) -> (StatusCode, Json<Value>) {
    match check(&engine).await {
        Ok(()) => (StatusCode::OK, Json(json!({ "status": "ready" }))),
        Err(reason) => (StatusCode::SERVICE_UNAVAILABLE, Json(json!({ "status": "unavailable", "reason": reason }))),
    }
}

/// Ready when commands are taken: the loop turns and the database answers.
pub async fn check(engine: &Engine) -> Result<(), String> {
    let open = tokio::time::timeout(PATIENCE, open(engine)).await;
    open.unwrap_or_else(|_| Err("the database is not answering".to_owned()))
}

/// An idle loop knows nothing of its database, so the database is asked, too.
async fn open(engine: &Engine) -> Result<(), String> {
    engine.check_open().map_err(|error| error.to_string())?;
    engine.ask(|_| ()).await.map_err(|error| error.to_string())?;
    let newest = engine.shared().store.list(Filter::default(), None, 1).await;
    newest.map(drop).map_err(|error| error.to_string())
}
