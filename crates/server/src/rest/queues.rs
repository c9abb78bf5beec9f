//! Queues: looking at them and steering them.

use super::{
    Rest,
    extract::{Json as Body, NoQuery, Query},
    jobs::Paging,
    problem::Result,
    shown::{Page, Queue},
};
use axum::{Json, extract::Path};
use hodei_api::{convert, v1};
use hodei_core::brain::QueueOrder;
use serde::Deserialize;
use utoipa::ToSchema;

/// List queues
///
/// By their names. A queue need not be made: that of a job exists.
#[utoipa::path(
    get, path = "/queues", tag = "queues", params(Paging),
    responses((status = 200, description = "A page of them", body = Page<Queue>))
)]
pub async fn list(rest: Rest, Query(paging): Query<Paging>) -> Result<Json<Page<Queue>>> {
    let views = rest.calls.queues(paging.page_token, paging.limit).await?;
    let last = views.last().filter(|_| views.len() == paging.limit).map(|view| view.record.name.to_string());
    let items = views.into_iter().map(|view| convert::queue_to_wire(view).into()).collect();
    Ok(Json(Page { items, next_page_token: last.unwrap_or_default() }))
}

/// Look at a queue
///
/// One that nothing is known of is empty, not missing.
#[utoipa::path(
    get, path = "/queues/{name}", tag = "queues", params(("name" = String, Path, description = "The queue")),
    responses((status = 200, description = "The queue", body = Queue))
)]
pub async fn get(rest: Rest, Path(name): Path<String>, Query(NoQuery): Query<NoQuery>) -> Result<Json<Queue>> {
    Ok(Json(convert::queue_to_wire(rest.calls.queue(name).await?).into()))
}

/// Pause a queue
///
/// Nothing more of it starts; what runs goes on.
#[utoipa::path(
    post, path = "/queues/{name}/pause", tag = "queues", params(("name" = String, Path, description = "The queue")),
    responses((status = 200, description = "The queue", body = Queue))
)]
pub async fn pause(rest: Rest, Path(name): Path<String>, Query(NoQuery): Query<NoQuery>) -> Result<Json<Queue>> {
    set(&rest, name, QueueOrder::Pause).await
}

/// Resume a queue
#[utoipa::path(
    post, path = "/queues/{name}/resume", tag = "queues", params(("name" = String, Path, description = "The queue")),
    responses((status = 200, description = "The queue", body = Queue))
)]
pub async fn resume(rest: Rest, Path(name): Path<String>, Query(NoQuery): Query<NoQuery>) -> Result<Json<Queue>> {
    set(&rest, name, QueueOrder::Resume).await
}

/// What limits a queue; what is left out or zero does not.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
#[schema(as = QueueSettings)]
pub struct Settings {
    /// Starts in any span of `rate_period_ms`.
    #[schema(minimum = 0, maximum = 1000000)]
    rate_limit: i32,
    #[schema(minimum = 0)]
    rate_period_ms: i64,
    /// Jobs with workers at one time.
    #[schema(minimum = 0, maximum = 1000000)]
    concurrency: i32,
    /// A job that has waited this long counts as one priority higher, after twice as long as two.
    #[schema(minimum = 0)]
    ageing_ms: i64,
    /// Jobs that have not ended; while there are as many, further ones are refused (429).
    #[schema(minimum = 0)]
    max_jobs: i32,
}

/// Set what limits a queue
///
/// Takes the place of the settings.
#[utoipa::path(
    put, path = "/queues/{name}/settings", tag = "queues", params(("name" = String, Path, description = "The queue")),
    request_body = Settings,
    responses((status = 200, description = "The queue", body = Queue))
)]
pub async fn configure(
    rest: Rest,
    Path(name): Path<String>,
    Query(NoQuery): Query<NoQuery>,
    Body(settings): Body<Settings>,
) -> Result<Json<Queue>> {
    let Settings { rate_limit, rate_period_ms, concurrency, ageing_ms, max_jobs } = settings;
    let wire = v1::QueueSettings { rate_limit, rate_period_ms, concurrency, ageing_ms, max_jobs };
    set(&rest, name, QueueOrder::Configure(convert::settings_from_wire(wire)?)).await
}

async fn set(rest: &Rest, name: String, order: QueueOrder) -> Result<Json<Queue>> {
    Ok(Json(convert::queue_to_wire(rest.calls.set_queue(name, order).await?).into()))
}
