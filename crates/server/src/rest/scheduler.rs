//! The scheduler: what it decides, why, and by what settings.

use super::{
    Rest,
    extract::{JobsBody, Json as Body, NoQuery, Query, blame},
    jobs::{job_id, whole},
    problem::Result,
    shown::{self, Page, Worker},
    submit::told,
};
use crate::clock;
use axum::{Json, extract::Path};
use hodei_api::{
    convert,
    json::{self, job_from_slice},
    v1,
};
use hodei_core::spec::Invalid;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// How the server decides where jobs run; what is left out has its default.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
#[schema(as = SchedulerSettings)]
pub struct Settings {
    /// smart (the default), round_robin, least_connections, resource_priority or affinity.
    strategy: String,
    /// Workers with a lower score are passed over.
    #[schema(minimum = 0, maximum = 100)]
    threshold: i32,
    /// open (the default), or closed: a job that nothing present can run is rejected.
    fleet: String,
    /// fastest_startup (the default), lowest_cost, most_capacity, round_robin or healthiest.
    provider_strategy: String,
}

impl From<v1::SchedulerSettings> for Settings {
    fn from(wire: v1::SchedulerSettings) -> Self {
        let v1::SchedulerSettings { strategy, threshold, fleet, provider_strategy } = wire;
        Self { strategy, threshold, fleet, provider_strategy }
    }
}

#[derive(Debug, Serialize, ToSchema)]
pub struct Decision {
    /// assign, provision, enqueue or reject.
    decision: &'static str,
    /// Why, in one sentence.
    reason: String,
    /// The worker that it goes to.
    #[serde(skip_serializing_if = "String::is_empty")]
    worker_id: String,
    /// Who makes a worker for it, and from which template.
    #[serde(skip_serializing_if = "String::is_empty")]
    provider: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    template: String,
    strategy: String,
    /// Of the job, if it exists.
    #[serde(skip_serializing_if = "String::is_empty")]
    state: String,
    /// Every worker: its score, or what dropped it. The best first.
    workers: Vec<Considered>,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct Considered {
    #[schema(format = Uuid)]
    worker_id: String,
    name: String,
    /// The filter that dropped it.
    #[serde(skip_serializing_if = "String::is_empty")]
    filter: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    why: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    score: Option<Score>,
}

/// Out of 100: 30, 25, 20, 15 and 10.
#[derive(Debug, Serialize, ToSchema)]
pub struct Score {
    total: f64,
    capacity: f64,
    load: f64,
    affinity: f64,
    zone: f64,
    history: f64,
}

impl From<v1::SchedulingDecision> for Decision {
    fn from(wire: v1::SchedulingDecision) -> Self {
        let decision = match wire.decision() {
            v1::Decision::Assign => "assign",
            v1::Decision::Provision => "provision",
            v1::Decision::Enqueue | v1::Decision::Unspecified => "enqueue",
            v1::Decision::Reject => "reject",
        };
        let score = |wire: v1::Score| Score {
            total: wire.total,
            capacity: wire.capacity,
            load: wire.load,
            affinity: wire.affinity,
            zone: wire.zone,
            history: wire.history,
        };
        let considered = |wire: v1::Considered| Considered {
            worker_id: wire.worker_id,
            name: wire.name,
            filter: wire.filter,
            why: wire.why,
            score: wire.score.map(score),
        };
        Self {
            decision,
            reason: wire.reason,
            worker_id: wire.worker_id,
            provider: wire.provider,
            template: wire.template,
            strategy: wire.strategy,
            state: wire.state,
            workers: wire.workers.into_iter().map(considered).collect(),
        }
    }
}

/// Look at the settings of the scheduler
#[utoipa::path(
    get, path = "/scheduler", tag = "scheduler",
    responses((status = 200, description = "The settings", body = Settings))
)]
pub async fn get(rest: Rest, Query(NoQuery): Query<NoQuery>) -> Result<Json<Settings>> {
    Ok(Json(convert::scheduler_to_wire(rest.calls.scheduler().await?).into()))
}

/// Set how the server decides where jobs run
///
/// Takes the place of the settings.
#[utoipa::path(
    put, path = "/scheduler", tag = "scheduler", request_body = Settings,
    responses((status = 200, description = "The settings", body = Settings))
)]
pub async fn configure(
    rest: Rest,
    Query(NoQuery): Query<NoQuery>,
    Body(settings): Body<Settings>,
) -> Result<Json<Settings>> {
    let Settings { strategy, threshold, fleet, provider_strategy } = settings;
    let wire = v1::SchedulerSettings { strategy, threshold, fleet, provider_strategy };
    let settings = rest.calls.set_scheduler(convert::scheduler_from_wire(wire)?).await?;
    Ok(Json(convert::scheduler_to_wire(settings).into()))
}

/// Ask where a job would run
///
/// Nothing is queued.
#[utoipa::path(
    post, path = "/scheduler/decisions", tag = "scheduler", request_body = json::Job,
    responses((status = 200, description = "What would become of it now", body = Decision))
)]
pub async fn preview(rest: Rest, Query(NoQuery): Query<NoQuery>, JobsBody(body): JobsBody) -> Result<Json<Decision>> {
    let spec = job_from_slice(&body, clock::now().wall).map_err(|bad| blame(&body, bad))?;
    let decision = rest.calls.decide(spec).await.map_err(told)?;
    Ok(Json(convert::decision_to_wire(decision, None).into()))
}

/// Explain where a job runs, or why it waits
#[utoipa::path(
    get, path = "/jobs/{id}/decision", tag = "jobs", params(("id" = uuid::Uuid, Path, description = "The job")),
    responses((status = 200, description = "The decision", body = Decision))
)]
pub async fn explain(rest: Rest, Path(id): Path<String>, Query(NoQuery): Query<NoQuery>) -> Result<Json<Decision>> {
    let (decision, state) = rest.calls.decision(job_id(&id)?).await?;
    Ok(Json(convert::decision_to_wire(decision, Some(state)).into()))
}

/// List workers that could take a job now
///
/// All of them, on one page.
#[utoipa::path(
    get, path = "/scheduler/workers", tag = "scheduler",
    responses((status = 200, description = "The workers", body = Page<Worker>))
)]
pub async fn workers(rest: Rest, Query(NoQuery): Query<NoQuery>) -> Result<Json<Page<Worker>>> {
    let views = rest.calls.available_workers(None).await?;
    Ok(Json(Page { items: views.iter().map(Worker::from).collect(), next_page_token: String::new() }))
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AssignBody {
    #[schema(format = Uuid)]
    worker_id: String,
}

/// Give a waiting job to a worker by hand
///
/// Ahead of those before it in line. What it asks of a worker and the limits of its queue hold.
#[utoipa::path(
    post, path = "/jobs/{id}/assign", tag = "jobs", params(("id" = uuid::Uuid, Path, description = "The job")),
    request_body = AssignBody,
    responses(
        (status = 200, description = "The job as it is now", body = shown::Job),
        (status = 409, description = "The job does not wait, or the worker cannot take it"),
    )
)]
pub async fn assign(
    rest: Rest,
    Path(id): Path<String>,
    Query(NoQuery): Query<NoQuery>,
    Body(body): Body<AssignBody>,
) -> Result<Json<shown::Job>> {
    let (id, bad) = (job_id(&id)?, |bad: Invalid| Invalid::new("worker_id", bad.problem));
    rest.calls.assign(id, convert::worker_id(&body.worker_id).map_err(bad)?).await?;
    whole(&rest, id).await
}
