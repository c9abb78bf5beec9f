//! What kinds of workers providers make, and how many of each stand ready.

use super::{
    Rest,
    extract::{Json as Body, NoQuery, Query},
    problem::Result,
    shown::Page,
};
use axum::{Json, extract::Path, http::StatusCode};
use hodei_api::{convert, json::fleet};
use hodei_core::{
    brain::{TemplateOrder, TemplateView},
    spec::Invalid,
};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A kind of workers, and how many there are.
#[derive(Debug, Serialize, ToSchema)]
pub struct Template {
    spec: fleet::Template,
    /// Workers that are being made, stand ready with nothing to do, and run jobs.
    coming: i32,
    idle: i32,
    busy: i32,
    /// Why none is made just now.
    #[serde(skip_serializing_if = "String::is_empty")]
    held_because: String,
}

impl From<TemplateView> for Template {
    fn from(view: TemplateView) -> Self {
        let wire = convert::template_to_wire(view);
        Self {
            spec: fleet::Template::from_wire(wire.spec.unwrap_or_default()),
            coming: wire.coming,
            idle: wire.idle,
            busy: wire.busy,
            held_because: wire.held_because,
        }
    }
}

/// List worker templates
///
/// All of them by their names, on one page.
#[utoipa::path(
    get, path = "/templates", tag = "templates",
    responses((status = 200, description = "The templates", body = Page<Template>))
)]
pub async fn list(rest: Rest, Query(NoQuery): Query<NoQuery>) -> Result<Json<Page<Template>>> {
    let items = rest.calls.templates().await?.into_iter().map(Template::from).collect();
    Ok(Json(Page { items, next_page_token: String::new() }))
}

/// Look at a worker template
#[utoipa::path(
    get, path = "/templates/{name}", tag = "templates", params(("name" = String, Path, description = "The template")),
    responses((status = 200, description = "The template", body = Template))
)]
pub async fn get(rest: Rest, Path(name): Path<String>, Query(NoQuery): Query<NoQuery>) -> Result<Json<Template>> {
    Ok(Json(rest.calls.template(&name).await?.into()))
}

/// Make or change a worker template
///
/// Takes the place of the one of that name; workers that exist stay as they are.
#[utoipa::path(
    put, path = "/templates/{name}", tag = "templates", params(("name" = String, Path, description = "The template")),
    request_body = fleet::Template,
    responses((status = 200, description = "The template", body = Template))
)]
pub async fn put(
    rest: Rest,
    Path(name): Path<String>,
    Query(NoQuery): Query<NoQuery>,
    Body(mut template): Body<fleet::Template>,
) -> Result<Json<Template>> {
    if !template.name.is_empty() && template.name != name {
        return Err(Invalid::new("name", "differs from the one in the path; leave it out").into());
    }
    template.name = name;
    let template = convert::template_from_wire(template.into_wire()?)?;
    Ok(Json(rest.calls.put_template(template).await?.into()))
}

/// Remove a worker template
///
/// No more workers are made of it; those that exist go when they have nothing to do.
#[utoipa::path(
    delete, path = "/templates/{name}", tag = "templates", params(("name" = String, Path, description = "The template")),
    responses((status = 204, description = "It is gone"))
)]
pub async fn remove(rest: Rest, Path(name): Path<String>, Query(NoQuery): Query<NoQuery>) -> Result<StatusCode> {
    rest.calls.remove_template(&name).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Pool {
    /// How many stand ready with nothing to do.
    #[schema(minimum = 0, maximum = 1000)]
    warm: i32,
}

/// Set how many workers of a template stand ready
#[utoipa::path(
    put, path = "/templates/{name}/pool", tag = "templates",
    params(("name" = String, Path, description = "The template")),
    request_body = Pool,
    responses((status = 200, description = "The template", body = Template))
)]
pub async fn pool(
    rest: Rest,
    Path(name): Path<String>,
    Query(NoQuery): Query<NoQuery>,
    Body(pool): Body<Pool>,
) -> Result<Json<Template>> {
    Ok(Json(rest.calls.set_pool(&name, pool.warm).await?.into()))
}

/// Try again
///
/// After the workers of a template have failed for good.
#[utoipa::path(
    post, path = "/templates/{name}/restart", tag = "templates",
    params(("name" = String, Path, description = "The template")),
    responses((status = 200, description = "The template", body = Template))
)]
pub async fn restart(rest: Rest, Path(name): Path<String>, Query(NoQuery): Query<NoQuery>) -> Result<Json<Template>> {
    Ok(Json(rest.calls.set_template(&name, TemplateOrder::Restart).await?.into()))
}
