//! Health, for people and probes.

use super::{
    Rest,
    extract::{NoQuery, Query},
    problem::{Error, Result},
};
use crate::http::check;
use axum::{Json, http::StatusCode};
use serde::Serialize;
use std::sync::atomic::Ordering;
use utoipa::ToSchema;

#[derive(Debug, Serialize, ToSchema)]
pub struct Status {
    /// ok or ready.
    status: &'static str,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct Health {
    status: &'static str,
    version: &'static str,
    /// Commits and rows of jobs that this server has written since its start.
    commits: u64,
    job_rows: u64,
}

/// Readiness, and what the server has done so far
#[utoipa::path(
    get, path = "/health", tag = "health",
    responses((status = 200, description = "The server takes commands", body = Health))
)]
pub async fn whole(rest: Rest, Query(NoQuery): Query<NoQuery>) -> Result<Json<Health>> {
    must_be_ready(&rest).await?;
    let shared = rest.calls.engine.shared();
    Ok(Json(Health {
        status: "ready",
        version: env!("CARGO_PKG_VERSION"),
        commits: shared.commits.load(Ordering::Relaxed),
        job_rows: shared.job_rows.load(Ordering::Relaxed),
    }))
}

/// Whether the process lives
#[utoipa::path(
    get, path = "/live", tag = "health",
    responses((status = 200, description = "It does", body = Status))
)]
pub async fn live(Query(NoQuery): Query<NoQuery>) -> Json<Status> {
    Json(Status { status: "ok" })
}

/// Whether commands are taken
#[utoipa::path(
    get, path = "/ready", tag = "health",
    responses((status = 200, description = "They are", body = Status))
)]
pub async fn ready(rest: Rest, Query(NoQuery): Query<NoQuery>) -> Result<Json<Status>> {
    must_be_ready(&rest).await?;
    Ok(Json(Status { status: "ready" }))
}

async fn must_be_ready(rest: &Rest) -> Result<()> {
    check(&rest.calls.engine).await.map_err(|reason| Error::new(StatusCode::SERVICE_UNAVAILABLE, reason))
}
