//! What was told to whom when jobs ended.

use super::{
    Rest,
    extract::{Args, FromArgs, NoQuery, Query},
    jobs::Paging,
    problem::Result,
    shown::{Page, maybe, moment},
};
use axum::{Json, extract::Path, http::StatusCode};
use hodei_api::{convert, v1};
use hodei_core::spec::Invalid;
use hodei_store::{DeliveryFilter, DeliveryKind};
use serde::Serialize;
use utoipa::{IntoParams, ToSchema};

#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct Which {
    /// Only of this job.
    #[param(format = Uuid)]
    job_id: Option<String>,
    /// Only in this state.
    #[param(value_type = Option<DeliveryState>)]
    state: Option<String>,
}

impl FromArgs for Which {
    fn from_args(args: &mut Args) -> std::result::Result<Self, Invalid> {
        Ok(Self { job_id: args.text("job_id")?, state: args.text("state")? })
    }
}

/// What became of a delivery.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DeliveryState {
    /// Not accepted yet; more tries follow.
    Pending,
    Delivered,
    /// Every try failed, or no other would help.
    Failed,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct Delivery {
    id: String,
    #[schema(format = Uuid)]
    job_id: String,
    /// Such as job.succeeded.
    event: String,
    /// Without its query.
    url: String,
    state: DeliveryState,
    #[schema(format = DateTime)]
    created_at: String,
    /// Of a pending one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    next_at: Option<String>,
    tries: Vec<DeliveryTry>,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct DeliveryTry {
    #[schema(format = DateTime)]
    at: String,
    /// Left out when no answer came.
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<i32>,
    #[serde(skip_serializing_if = "String::is_empty")]
    error: String,
    took_ms: i64,
}

impl From<v1::Delivery> for Delivery {
    fn from(wire: v1::Delivery) -> Self {
        let state = match wire.state() {
            v1::DeliveryState::Delivered => DeliveryState::Delivered,
            v1::DeliveryState::Failed => DeliveryState::Failed,
            v1::DeliveryState::Pending | v1::DeliveryState::Unspecified => DeliveryState::Pending,
        };
        let tries = wire.tries.into_iter().map(|one| DeliveryTry {
            at: moment(one.at_ms),
            status: (one.status != 0).then_some(one.status),
            error: one.error,
            took_ms: one.took_ms,
        });
        Self {
            tries: tries.collect(),
            id: wire.id,
            job_id: wire.job_id,
            event: wire.event,
            url: wire.url,
            state,
            created_at: moment(wire.created_at_ms),
            next_at: maybe(wire.next_at_ms),
        }
    }
}

/// List deliveries
///
/// Newest first.
#[utoipa::path(
    get, path = "/webhooks/deliveries", tag = "webhooks", params(Which, Paging),
    responses((status = 200, description = "A page of them", body = Page<Delivery>))
)]
pub async fn list(rest: Rest, Query((which, paging)): Query<(Which, Paging)>) -> Result<Json<Page<Delivery>>> {
    let job = which.job_id.map(|id| convert::job_id(&id)).transpose()?;
    let state = which.state.map(|name| kind(&name)).transpose()?;
    let before = paging.page_token.map(|token| convert::delivery_id("page_token", &token)).transpose()?;
    let found = rest.calls.deliveries(DeliveryFilter { job, state }, before, paging.limit).await?;
    let last = found.last().filter(|_| found.len() >= paging.limit).map(|last| last.id.to_string());
    let items = found.iter().map(|delivery| convert::delivery_to_wire(delivery).into()).collect();
    Ok(Json(Page { items, next_page_token: last.unwrap_or_default() }))
}

fn kind(name: &str) -> std::result::Result<DeliveryKind, Invalid> {
    match name {
        "pending" => Ok(DeliveryKind::Pending),
        "delivered" => Ok(DeliveryKind::Delivered),
        "failed" => Ok(DeliveryKind::Failed),
        _ => Err(Invalid::new("state", format!("'{name}' is not one of pending, delivered and failed"))),
    }
}

#[derive(Debug, Serialize, ToSchema)]
pub struct Redelivered {
    id: String,
}

/// Deliver again
///
/// Now, whatever became of it.
#[utoipa::path(
    post, path = "/webhooks/deliveries/{id}/redeliver", tag = "webhooks",
    params(("id" = uuid::Uuid, Path, description = "The delivery")),
    responses((status = 202, description = "It is due now", body = Redelivered))
)]
pub async fn redeliver(
    rest: Rest,
    Path(id): Path<String>,
    Query(NoQuery): Query<NoQuery>,
) -> Result<(StatusCode, Json<Redelivered>)> {
    let id = convert::delivery_id("id", &id)?;
    rest.calls.redeliver(id).await?;
    Ok((StatusCode::ACCEPTED, Json(Redelivered { id: id.to_string() })))
}
