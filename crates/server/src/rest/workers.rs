//! Workers: looking at them, letting them in, sending them home.

use super::{
    Rest,
    extract::{self, MaybeJson, NoQuery, Query},
    problem::Result,
    shown::{Page, Worker, moment},
};
use crate::calls::NewWorkerToken;
use axum::{Json, extract::Path, http::StatusCode};
use hodei_api::convert;
use hodei_core::{id::WorkerId, spec::Invalid};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

fn worker_id(text: &str) -> std::result::Result<WorkerId, Invalid> {
    convert::worker_id(text).map_err(|bad| Invalid::new("id", bad.problem))
}

/// List workers
///
/// All of them, on one page.
#[utoipa::path(
    get, path = "/workers", tag = "workers",
    responses((status = 200, description = "The workers", body = Page<Worker>))
)]
pub async fn list(rest: Rest, Query(NoQuery): Query<NoQuery>) -> Result<Json<Page<Worker>>> {
    let views = rest.calls.workers().await?;
    Ok(Json(Page { items: views.iter().map(Worker::from).collect(), next_page_token: String::new() }))
}

/// Look at a worker
#[utoipa::path(
    get, path = "/workers/{id}", tag = "workers", params(("id" = uuid::Uuid, Path, description = "The worker")),
    responses((status = 200, description = "The worker", body = Worker))
)]
pub async fn get(rest: Rest, Path(id): Path<String>, Query(NoQuery): Query<NoQuery>) -> Result<Json<Worker>> {
    Ok(Json((&rest.calls.worker(worker_id(&id)?).await?).into()))
}

#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct DrainBody {
    /// For people.
    #[schema(max_length = 1024, pattern = "^[^\\x00-\\x1f\\x7f-\\x9f]*$")]
    reason: String,
    /// What still runs after this long is given back; no limit when it is left out or zero.
    #[schema(minimum = 0)]
    deadline_ms: i64,
}

/// Send a worker home
///
/// It finishes what it runs, takes nothing new and leaves.
#[utoipa::path(
    post, path = "/workers/{id}/drain", tag = "workers", params(("id" = uuid::Uuid, Path, description = "The worker")),
    request_body = Option<DrainBody>,
    responses((status = 202, description = "The worker as it is now", body = Worker))
)]
pub async fn drain(
    rest: Rest,
    Path(id): Path<String>,
    Query(NoQuery): Query<NoQuery>,
    MaybeJson(body): MaybeJson<DrainBody>,
) -> Result<(StatusCode, Json<Worker>)> {
    let id = worker_id(&id)?;
    rest.calls.drain(id, body.reason, body.deadline_ms).await?;
    Ok((StatusCode::ACCEPTED, Json((&rest.calls.worker(id).await?).into())))
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RestartBody {
    /// One of the worker's handlers, by name.
    handler: String,
}

/// Start the processes of a handler anew
///
/// What was given up is tried again, and what runs is replaced once it has finished what it holds.
#[utoipa::path(
    post, path = "/workers/{id}/restart", tag = "workers", params(("id" = uuid::Uuid, Path, description = "The worker")),
    request_body = RestartBody,
    responses(
        (status = 202, description = "The worker as it is now", body = Worker),
        (status = 409, description = "The worker is not connected"),
    )
)]
pub async fn restart(
    rest: Rest,
    Path(id): Path<String>,
    Query(NoQuery): Query<NoQuery>,
    extract::Json(body): extract::Json<RestartBody>,
) -> Result<(StatusCode, Json<Worker>)> {
    let id = worker_id(&id)?;
    rest.calls.restart_handler(id, body.handler).await?;
    Ok((StatusCode::ACCEPTED, Json((&rest.calls.worker(id).await?).into())))
}

#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TokenBody {
    /// A new id is made when it is left out.
    #[schema(format = Uuid)]
    worker_id: Option<String>,
    /// How long the token is good for; the server's default when it is left out or zero.
    #[schema(minimum = 0, maximum = 86400000)]
    ttl_ms: i64,
}

#[derive(Serialize, ToSchema)]
pub struct WorkerToken {
    /// It is shown this once.
    token: String,
    #[schema(format = Uuid)]
    worker_id: String,
    #[schema(format = DateTime)]
    expires_at: String,
}

/// Make a token for one worker
///
/// It is used up when the worker registers, and kept only as a hash.
#[utoipa::path(
    post, path = "/workers/tokens", tag = "workers", request_body = Option<TokenBody>,
    responses((status = 201, description = "The token", body = WorkerToken))
)]
pub async fn create_token(
    rest: Rest,
    Query(NoQuery): Query<NoQuery>,
    MaybeJson(body): MaybeJson<TokenBody>,
) -> Result<(StatusCode, Json<WorkerToken>)> {
    let worker = body.worker_id.map(|id| convert::worker_id(&id)).transpose()?;
    let NewWorkerToken { token, worker, expires_at } = rest.calls.create_worker_token(worker, body.ttl_ms).await?;
    let (worker_id, expires_at) = (worker.to_string(), moment(expires_at.0));
    Ok((StatusCode::CREATED, Json(WorkerToken { token, worker_id, expires_at })))
}
