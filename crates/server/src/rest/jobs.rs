//! Jobs: looking, cancelling, retrying, resuming.

use super::{
    Rest,
    extract::{self, Args, FromArgs, Json as Body, MaybeJson, NoQuery, Query},
    problem::Result,
    shown::{self, JobState, Page},
};
use crate::calls::page_token;
use axum::{Json, extract::Path};
use hodei_api::convert;
use hodei_core::{
    id::{JobId, ScheduleId},
    job::Job,
    spec::Invalid,
    state::StateKind,
};
use hodei_store::Filter;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::{IntoParams, ToSchema};

const DEFAULT_PAGE: usize = 100;
const MAX_PAGE: usize = 1000;

/// The id of a job in a path.
pub fn job_id(text: &str) -> std::result::Result<JobId, Invalid> {
    convert::job_id(text).map_err(|bad| Invalid::new("id", bad.problem))
}

/// Which jobs; all that is set must match.
#[derive(Clone, Debug, Default, Deserialize, ToSchema, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct JobFilter {
    /// Any of these states.
    #[param(rename = "state", value_type = Vec<JobState>, required = false)]
    #[schema(value_type = Vec<JobState>)]
    pub states: Vec<String>,
    #[param(min_length = 1)]
    pub queue: Option<String>,
    #[param(min_length = 1)]
    pub task_type: Option<String>,
    #[param(min_length = 1)]
    pub tag: Option<String>,
    #[param(min_length = 1)]
    pub name: Option<String>,
    /// The job that made them.
    #[param(format = Uuid)]
    #[schema(format = Uuid)]
    pub parent_id: Option<String>,
    /// The schedule that made them.
    #[param(format = Uuid)]
    #[schema(format = Uuid)]
    pub schedule_id: Option<String>,
    /// Made at or after.
    #[param(format = DateTime)]
    #[schema(format = DateTime)]
    pub from: Option<String>,
    /// Made before.
    #[param(format = DateTime)]
    #[schema(format = DateTime)]
    pub to: Option<String>,
}

impl JobFilter {
    fn read(self) -> std::result::Result<Filter, Invalid> {
        let id = |field: &str, text: String| -> std::result::Result<JobId, Invalid> {
            text.parse().map_err(|_| Invalid::new(field, format!("'{text}' is not an id (a UUID)")))
        };
        let schedule = |text: String| -> std::result::Result<ScheduleId, Invalid> {
            text.parse().map_err(|_| Invalid::new("schedule_id", format!("'{text}' is not an id (a UUID)")))
        };
        Ok(Filter {
            states: self.states.iter().map(|name| state(name)).collect::<std::result::Result<_, _>>()?,
            queue: self.queue,
            task_type: self.task_type,
            tag: self.tag,
            name: self.name,
            parent: self.parent_id.map(|text| id("parent_id", text)).transpose()?,
            schedule: self.schedule_id.map(schedule).transpose()?,
            from: self.from.map(|text| extract::time("from", &text)).transpose()?,
            to: self.to.map(|text| extract::time("to", &text)).transpose()?,
        })
    }
}

fn state(name: &str) -> std::result::Result<StateKind, Invalid> {
    let names = || StateKind::ALL.map(StateKind::name).join(", ");
    let found = StateKind::ALL.into_iter().find(|kind| kind.name() == name);
    found.ok_or_else(|| Invalid::new("state", format!("'{name}' is not a state of a job; use one of {}", names())))
}

impl FromArgs for JobFilter {
    fn from_args(args: &mut Args) -> std::result::Result<Self, Invalid> {
        Ok(Self {
            states: args.many("state"),
            queue: args.text("queue")?,
            task_type: args.text("task_type")?,
            tag: args.text("tag")?,
            name: args.text("name")?,
            parent_id: args.text("parent_id")?,
            schedule_id: args.text("schedule_id")?,
            from: args.text("from")?,
            to: args.text("to")?,
        })
    }
}

/// Which page.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct Paging {
    /// 100 unless it is given.
    #[param(minimum = 1, maximum = 1000, required = false)]
    pub limit: usize,
    /// `next_page_token` of the page before.
    #[param(min_length = 1)]
    pub page_token: Option<String>,
}

impl FromArgs for Paging {
    fn from_args(args: &mut Args) -> std::result::Result<Self, Invalid> {
        Ok(Self { limit: args.limit(DEFAULT_PAGE, MAX_PAGE)?, page_token: args.text("page_token")? })
    }
}

impl<A: FromArgs, B: FromArgs> FromArgs for (A, B) {
    fn from_args(args: &mut Args) -> std::result::Result<Self, Invalid> {
        Ok((A::from_args(args)?, B::from_args(args)?))
    }
}

/// List jobs
///
/// Newest first. A page may have fewer than asked for, even none, before the last.
#[utoipa::path(
    get, path = "/jobs", tag = "jobs", params(JobFilter, Paging),
    responses((status = 200, description = "A page of them", body = Page<shown::Job>))
)]
pub async fn list(rest: Rest, Query((filter, paging)): Query<(JobFilter, Paging)>) -> Result<Json<Page<shown::Job>>> {
    let before = page_token(&paging.page_token.unwrap_or_default())?;
    let page = rest.calls.list(filter.read()?, before, paging.limit).await?;
    let outline = |job: &Job| convert::job_to_wire(job, convert::Stored::default(), String::new()).into();
    let items = page.jobs.iter().map(outline).collect();
    Ok(Json(Page { items, next_page_token: page.next.map(|id| id.to_string()).unwrap_or_default() }))
}

/// Look at a job
#[utoipa::path(
    get, path = "/jobs/{id}", tag = "jobs", params(("id" = uuid::Uuid, Path, description = "The job")),
    responses((status = 200, description = "The job", body = shown::Job))
)]
pub async fn get(rest: Rest, Path(id): Path<String>, Query(NoQuery): Query<NoQuery>) -> Result<Json<shown::Job>> {
    whole(&rest, job_id(&id)?).await
}

pub async fn whole(rest: &Rest, id: JobId) -> Result<Json<shown::Job>> {
    let job = rest.calls.find(id).await?;
    Ok(Json(rest.calls.whole(job).await?.into()))
}

#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CancelBody {
    /// For people.
    #[schema(max_length = 1024, pattern = "^[^\\x00-\\x1f\\x7f-\\x9f]*$")]
    reason: String,
}

/// Cancel a job
///
/// One that runs is asked to stop and becomes cancelled when its worker confirms.
#[utoipa::path(
    post, path = "/jobs/{id}/cancel", tag = "jobs", params(("id" = uuid::Uuid, Path, description = "The job")),
    request_body = Option<CancelBody>,
    responses(
        (status = 200, description = "The job as it is now", body = shown::Job),
        (status = 409, description = "The job is finished"),
    )
)]
pub async fn cancel(
    rest: Rest,
    Path(id): Path<String>,
    Query(NoQuery): Query<NoQuery>,
    MaybeJson(body): MaybeJson<CancelBody>,
) -> Result<Json<shown::Job>> {
    let id = job_id(&id)?;
    rest.calls.cancel(id, body.reason).await?;
    whole(&rest, id).await
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CancelMany {
    filter: JobFilter,
    #[serde(default)]
    #[schema(max_length = 1024, pattern = "^[^\\x00-\\x1f\\x7f-\\x9f]*$")]
    reason: String,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct Cancelled {
    /// How many.
    cancelled: u64,
}

/// Cancel every job that matches
///
/// Those that are finished stay as they are, and what is submitted meanwhile may be missed. A filter that says nothing is refused.
#[utoipa::path(
    post, path = "/jobs/cancel", tag = "jobs", request_body = CancelMany,
    responses((status = 200, description = "How many were cancelled", body = Cancelled))
)]
pub async fn cancel_many(
    rest: Rest,
    Query(NoQuery): Query<NoQuery>,
    Body(body): Body<CancelMany>,
) -> Result<Json<Cancelled>> {
    let filter = body.filter.read().map_err(|bad| bad.within("filter"))?;
    Ok(Json(Cancelled { cancelled: rest.calls.cancel_all(filter, body.reason).await? }))
}

/// Run a job again
///
/// One that failed, timed out or was cancelled, with all its attempts before it.
#[utoipa::path(
    post, path = "/jobs/{id}/retry", tag = "jobs", params(("id" = uuid::Uuid, Path, description = "The job")),
    responses(
        (status = 200, description = "The job as it is now", body = shown::Job),
        (status = 409, description = "The job is not one that ended badly"),
    )
)]
pub async fn retry(rest: Rest, Path(id): Path<String>, Query(NoQuery): Query<NoQuery>) -> Result<Json<shown::Job>> {
    let id = job_id(&id)?;
    rest.calls.retry(id).await?;
    whole(&rest, id).await
}

#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ResumeBody {
    /// What it waits for; its next execution finds it.
    #[schema(value_type = Option<serde_json::Value>)]
    payload: Option<Box<RawValue>>,
}

/// Give a blocked job what it waits for
#[utoipa::path(
    post, path = "/jobs/{id}/resume", tag = "jobs", params(("id" = uuid::Uuid, Path, description = "The job")),
    request_body = Option<ResumeBody>,
    responses(
        (status = 200, description = "The job as it is now", body = shown::Job),
        (status = 409, description = "The job is not blocked"),
    )
)]
pub async fn resume(
    rest: Rest,
    Path(id): Path<String>,
    Query(NoQuery): Query<NoQuery>,
    MaybeJson(body): MaybeJson<ResumeBody>,
) -> Result<Json<shown::Job>> {
    let id = job_id(&id)?;
    let payload = body.payload.map_or_else(Vec::new, |payload| payload.get().as_bytes().to_vec());
    rest.calls.resume(id, payload).await?;
    whole(&rest, id).await
}
