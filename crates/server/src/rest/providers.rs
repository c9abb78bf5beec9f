//! Who makes workers.

use super::{
    Rest,
    extract::{Json as Body, NoQuery, Query},
    problem::Result,
    shown::{Page, moment},
};
use crate::clock;
use axum::{Json, extract::Path, http::StatusCode};
use hodei_api::{convert, json::fleet, v1};
use hodei_core::{
    brain::{ProviderOrder, ProviderView},
    spec::Invalid,
};
use serde::Serialize;
use utoipa::ToSchema;

/// Somebody who makes workers, and how it fares.
#[derive(Debug, Serialize, ToSchema)]
pub struct Provider {
    spec: fleet::Provider,
    enabled: bool,
    /// healthy, degraded, unhealthy or unknown.
    health: &'static str,
    /// Why it is degraded or unhealthy.
    #[serde(skip_serializing_if = "String::is_empty")]
    reason: String,
    capabilities: Capabilities,
    /// Workers that exist or are being made.
    workers: i32,
    /// Why nothing is asked of it just now.
    #[serde(skip_serializing_if = "String::is_empty")]
    held_because: String,
    #[schema(format = DateTime)]
    added_at: String,
}

/// What a provider can make.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ProviderCapabilities)]
pub struct Capabilities {
    /// The strongest: process, container or vm.
    isolation: String,
    /// It makes workers in images.
    images: bool,
    gpus: i32,
    /// The largest worker; zero where no limit is known.
    cpu_millis: i64,
    memory_bytes: i64,
    architectures: Vec<String>,
    startup_ms: i64,
}

impl From<v1::ProviderCapabilities> for Capabilities {
    fn from(wire: v1::ProviderCapabilities) -> Self {
        let v1::ProviderCapabilities { isolation, images, gpus, cpu_millis, memory_bytes, .. } = wire;
        let (architectures, startup_ms) = (wire.architectures, wire.startup_ms);
        Self { isolation, images, gpus, cpu_millis, memory_bytes, architectures, startup_ms }
    }
}

impl From<ProviderView> for Provider {
    fn from(view: ProviderView) -> Self {
        let health = view.health.name();
        let wire = convert::provider_to_wire(view);
        Self {
            spec: fleet::Provider::from_wire(wire.spec.unwrap_or_default()),
            enabled: wire.enabled,
            health,
            reason: wire.reason,
            capabilities: wire.capabilities.unwrap_or_default().into(),
            workers: wire.workers,
            held_because: wire.held_because,
            added_at: moment(wire.added_at_ms),
        }
    }
}

/// List providers
///
/// All of them by their names, on one page.
#[utoipa::path(
    get, path = "/providers", tag = "providers",
    responses((status = 200, description = "The providers", body = Page<Provider>))
)]
pub async fn list(rest: Rest, Query(NoQuery): Query<NoQuery>) -> Result<Json<Page<Provider>>> {
    let items = rest.calls.providers().await?.into_iter().map(Provider::from).collect();
    Ok(Json(Page { items, next_page_token: String::new() }))
}

/// Add a provider
///
/// From now on it makes workers for jobs that fit none.
#[utoipa::path(
    post, path = "/providers", tag = "providers", request_body = fleet::Provider,
    responses(
        (status = 201, description = "The provider", body = Provider),
        (status = 409, description = "There is one of that name"),
    )
)]
pub async fn add(
    rest: Rest,
    Query(NoQuery): Query<NoQuery>,
    Body(provider): Body<fleet::Provider>,
) -> Result<(StatusCode, Json<Provider>)> {
    let record = convert::provider_from_wire(provider.into_wire(), clock::now().wall)?;
    Ok((StatusCode::CREATED, Json(rest.calls.add_provider(record).await?.into())))
}

/// Add or change a provider
///
/// Takes the place of the one of that name; its workers stay. One that has workers cannot be moved elsewhere.
#[utoipa::path(
    put, path = "/providers/{name}", tag = "providers", params(("name" = String, Path, description = "The provider")),
    request_body = fleet::Provider,
    responses(
        (status = 200, description = "The provider", body = Provider),
        (status = 409, description = "It has workers where it is now"),
    )
)]
pub async fn put(
    rest: Rest,
    Path(name): Path<String>,
    Query(NoQuery): Query<NoQuery>,
    Body(provider): Body<fleet::Provider>,
) -> Result<Json<Provider>> {
    if provider.name != name {
        return Err(Invalid::new("name", "differs from the one in the path").into());
    }
    let record = convert::provider_from_wire(provider.into_wire(), clock::now().wall)?;
    Ok(Json(rest.calls.put_provider(record).await?.into()))
}

/// Look at a provider
#[utoipa::path(
    get, path = "/providers/{name}", tag = "providers", params(("name" = String, Path, description = "The provider")),
    responses((status = 200, description = "The provider", body = Provider))
)]
pub async fn get(rest: Rest, Path(name): Path<String>, Query(NoQuery): Query<NoQuery>) -> Result<Json<Provider>> {
    Ok(Json(rest.calls.provider(&name).await?.into()))
}

/// Remove a provider
///
/// Its workers finish what they run and go; nothing more is asked of it.
#[utoipa::path(
    delete, path = "/providers/{name}", tag = "providers", params(("name" = String, Path, description = "The provider")),
    responses((status = 204, description = "It goes when its workers are gone"))
)]
pub async fn remove(rest: Rest, Path(name): Path<String>, Query(NoQuery): Query<NoQuery>) -> Result<StatusCode> {
    rest.calls.remove_provider(&name).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Ask a provider how it is
///
/// At once, and not from what was heard last.
#[utoipa::path(
    post, path = "/providers/{name}/health", tag = "providers",
    params(("name" = String, Path, description = "The provider")),
    responses((status = 200, description = "The provider", body = Provider))
)]
pub async fn check(rest: Rest, Path(name): Path<String>, Query(NoQuery): Query<NoQuery>) -> Result<Json<Provider>> {
    Ok(Json(rest.calls.check_provider(&name).await?.into()))
}

/// Let a provider make workers
#[utoipa::path(
    post, path = "/providers/{name}/enable", tag = "providers",
    params(("name" = String, Path, description = "The provider")),
    responses((status = 200, description = "The provider", body = Provider))
)]
pub async fn enable(rest: Rest, Path(name): Path<String>, Query(NoQuery): Query<NoQuery>) -> Result<Json<Provider>> {
    Ok(Json(rest.calls.set_provider(&name, ProviderOrder::Enable).await?.into()))
}

/// Let a provider make no more workers
///
/// It keeps those that it has.
#[utoipa::path(
    post, path = "/providers/{name}/disable", tag = "providers",
    params(("name" = String, Path, description = "The provider")),
    responses((status = 200, description = "The provider", body = Provider))
)]
pub async fn disable(rest: Rest, Path(name): Path<String>, Query(NoQuery): Query<NoQuery>) -> Result<Json<Provider>> {
    Ok(Json(rest.calls.set_provider(&name, ProviderOrder::Disable).await?.into()))
}
