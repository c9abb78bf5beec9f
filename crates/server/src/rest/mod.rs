//! REST, under `/api/v1`: what [`crate::grpc`] says, in other words. One file per resource; [`routes`] is the table of all.

mod dead_letters;
mod docs;
mod events;
mod extract;
mod health;
mod jobs;
mod logs;
mod problem;
mod providers;
mod queues;
mod routes;
mod scheduler;
mod schedules;
mod shown;
mod submit;
mod templates;
mod webhooks;
mod workers;

use crate::{access, calls::Calls, engine::Engine};
use axum::{
    Router,
    extract::{FromRequestParts, Request, State},
    http::{HeaderName, HeaderValue, StatusCode, request::Parts},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::get,
};
use problem::Error;
use routes::Known;
use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};
use tokio::sync::watch;
use uuid::Uuid;

const PREFIX: &str = "/api/v1";
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// What the handlers work with.
#[derive(Clone)]
struct Rest {
    calls: Calls,
    /// Long answers end when the server closes.
    closing: watch::Receiver<bool>,
}

/// Handlers take it whole, made for the request that they answer.
impl FromRequestParts<Rest> for Rest {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, state: &Rest) -> Result<Self, Infallible> {
        Ok(Self { calls: state.calls.by(&parts.extensions), closing: state.closing.clone() })
    }
}

pub fn routes(engine: &Engine, closing: watch::Receiver<bool>, served: Arc<AtomicU64>) -> Router {
    let (router, known) = routes::served();
    let rest = Rest { calls: Calls::new(engine.clone()), closing };
    router
        .route_layer(middleware::from_fn_with_state(engine.clone(), access::http_layer))
        .route(&format!("{PREFIX}/openapi.json"), get(docs::openapi))
        .route(&format!("{PREFIX}/docs"), get(docs::page))
        .fallback(unknown)
        .method_not_allowed_fallback(wrong_method)
        .with_state(rest)
        .layer(middleware::from_fn_with_state(Arc::new(known), negotiate))
        .layer(middleware::from_fn_with_state(served, wrap))
}

async fn unknown(request: Request) -> Error {
    Error::new(StatusCode::NOT_FOUND, format!("there is nothing at {}; see {PREFIX}/docs", request.uri().path()))
}

async fn wrong_method(request: Request) -> Error {
    let detail = format!("{} has no method {}; see the header 'allow'", request.uri().path(), request.method());
    Error::new(StatusCode::METHOD_NOT_ALLOWED, detail)
}

/// Refuses what could only be answered in a form that the caller does not take.
async fn negotiate(State(known): State<Arc<Known>>, request: Request, next: Next) -> Response {
    match known.acceptable(&request) {
        Ok(()) => next.run(request).await,
        Err(error) => error.into_response(),
    }
}

/// The outermost layer: names the request, counts it, and gives errors their bodies.
async fn wrap(State(served): State<Arc<AtomicU64>>, request: Request, next: Next) -> Response {
    let id = request_id(&request);
    let mut response = problem::finish(next.run(request).await, &id).await;
    if let Ok(value) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(REQUEST_ID, value);
    }
    served.fetch_add(1, Ordering::Relaxed);
    response
}

/// The caller's own name for the request, if it is a plain word.
fn request_id(request: &Request) -> String {
    const LONGEST: usize = 128;
    let given = request.headers().get(REQUEST_ID).and_then(|value| value.to_str().ok());
    let plain = |id: &&str| !id.is_empty() && id.len() <= LONGEST && id.bytes().all(|byte| byte.is_ascii_graphic());
    given.filter(plain).map_or_else(|| Uuid::new_v4().to_string(), str::to_owned)
}
