//! Schedules: jobs by the clock.

use super::{
    Rest,
    events::closed,
    extract::{self, Args, FromArgs, Json as Body, NoQuery, Query},
    jobs::Paging,
    problem::{Error, Result},
    shown::{Page, maybe, moment},
};
use crate::calls::{Backfill, Filled, Problem};
use axum::{
    Json,
    body::Body as HttpBody,
    extract::Path,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use hodei_api::{
    convert,
    json::{self, Object},
    v1::{self, schedule_spec::Timing},
};
use hodei_core::{brain::ScheduleView, spec::Invalid, time::Time};
use serde::{Deserialize, Serialize};
use std::convert::Infallible;
use tokio::sync::watch;
use utoipa::{IntoParams, ToSchema};

/// When to make which jobs.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ScheduleSpec)]
pub struct Spec {
    /// Unique.
    #[schema(min_length = 1, max_length = 200, pattern = "^[^\\x00-\\x1f\\x7f-\\x9f]+$")]
    name: String,
    #[serde(default)]
    #[schema(max_length = 4096)]
    description: String,
    /// Five fields, six with seconds in front, or @hourly, @daily, @weekly, @monthly, @yearly. Either this or an interval.
    #[schema(example = "0 3 * * *")]
    cron: Option<String>,
    /// From the schedule's making on, in steps of this length.
    #[schema(example = "5m")]
    every: Option<String>,
    #[schema(minimum = 1)]
    every_ms: Option<i64>,
    /// IANA, such as Europe/Madrid; UTC when it is left out. For cron only.
    #[serde(default)]
    time_zone: String,
    /// What happens at a tick while jobs of earlier ticks are not finished; allow when it is left out.
    overlap: Option<Overlap>,
    /// What happens with ticks that passed while no server ran; fire_once when it is left out.
    misfire: Option<Misfire>,
    /// With the policy catch_up: at most so many of them, the latest ones.
    #[serde(default)]
    #[schema(minimum = 0, maximum = 1000)]
    catch_up: i32,
    #[serde(default)]
    disabled: bool,
    /// What to run, without a name, a time, dependencies and a key of its own. An update without it leaves it as it is.
    #[schema(value_type = Option<json::Job>)]
    job: Option<Object<json::Job>>,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Overlap {
    Allow,
    Skip,
    /// The earlier ones are cancelled.
    Replace,
    /// One tick waits until they are finished; later ones take its place.
    QueueOne,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Misfire {
    Skip,
    FireOnce,
    CatchUp,
}

impl Spec {
    fn into_wire(self, now: Time) -> std::result::Result<v1::ScheduleSpec, Invalid> {
        let every = json::length("every", self.every.as_deref(), self.every_ms)?;
        let timing = match (self.cron, every) {
            (Some(_), Some(_)) => return Err(Invalid::new("cron", "give cron or an interval, not both")),
            (Some(cron), None) => Some(Timing::Cron(cron)),
            (None, every) => every.map(Timing::EveryMs),
        };
        let overlap = self.overlap.map_or(v1::Overlap::Unspecified, |overlap| match overlap {
            Overlap::Allow => v1::Overlap::Allow,
            Overlap::Skip => v1::Overlap::Skip,
            Overlap::Replace => v1::Overlap::Replace,
            Overlap::QueueOne => v1::Overlap::QueueOne,
        });
        let misfire = self.misfire.map_or(v1::Misfire::Unspecified, |misfire| match misfire {
            Misfire::Skip => v1::Misfire::Skip,
            Misfire::FireOnce => v1::Misfire::FireOnce,
            Misfire::CatchUp => v1::Misfire::CatchUp,
        });
        let job = self.job.map(|Object(job)| job.into_wire(now).map_err(|bad| bad.within("job")));
        Ok(v1::ScheduleSpec {
            name: self.name,
            timing,
            time_zone: self.time_zone,
            job: job.transpose()?,
            overlap: overlap.into(),
            misfire: misfire.into(),
            catch_up: self.catch_up,
            disabled: self.disabled,
            description: self.description,
        })
    }
}

#[derive(Serialize, ToSchema)]
pub struct Schedule {
    #[schema(format = Uuid)]
    id: String,
    name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    description: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    cron: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    every_ms: Option<i64>,
    #[serde(skip_serializing_if = "String::is_empty")]
    time_zone: String,
    overlap: Overlap,
    misfire: Misfire,
    #[serde(skip_serializing_if = "Option::is_none")]
    catch_up: Option<i32>,
    disabled: bool,
    /// Secrets are shown as ***.
    job: json::Job,
    #[schema(format = DateTime)]
    created_at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    last_tick: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    next_tick: Option<String>,
    /// Jobs that it has made.
    runs: i64,
    /// Ticks without a job, by its policies.
    skipped: i64,
    /// The job of the last tick.
    #[serde(skip_serializing_if = "String::is_empty")]
    last_job_id: String,
}

impl From<&ScheduleView> for Schedule {
    fn from(view: &ScheduleView) -> Self {
        let wire = convert::schedule_to_wire(view);
        let spec = wire.spec.unwrap_or_default();
        let overlap = match spec.overlap() {
            v1::Overlap::Skip => Overlap::Skip,
            v1::Overlap::Replace => Overlap::Replace,
            v1::Overlap::QueueOne => Overlap::QueueOne,
            v1::Overlap::Allow | v1::Overlap::Unspecified => Overlap::Allow,
        };
        let misfire = match spec.misfire() {
            v1::Misfire::Skip => Misfire::Skip,
            v1::Misfire::CatchUp => Misfire::CatchUp,
            v1::Misfire::FireOnce | v1::Misfire::Unspecified => Misfire::FireOnce,
        };
        let (cron, every_ms) = match spec.timing {
            Some(Timing::Cron(cron)) => (Some(cron), None),
            Some(Timing::EveryMs(every)) => (None, Some(every)),
            None => (None, None),
        };
        Self {
            id: wire.id,
            name: spec.name,
            description: spec.description,
            cron,
            every_ms,
            time_zone: spec.time_zone,
            overlap,
            misfire,
            catch_up: (spec.catch_up != 0).then_some(spec.catch_up),
            disabled: spec.disabled,
            job: json::Job::from_wire(spec.job.unwrap_or_default()),
            created_at: moment(wire.created_at_ms),
            last_tick: maybe(wire.last_tick_ms),
            next_tick: maybe(wire.next_tick_ms),
            runs: wire.runs,
            skipped: wire.skipped,
            last_job_id: wire.last_job_id,
        }
    }
}

/// The body is the spec itself, and times are not in milliseconds here.
fn told(problem: Problem) -> Error {
    let Problem::Invalid(Invalid { field, problem }) = problem else { return problem.into() };
    let field = field.strip_prefix("spec.").unwrap_or(&field);
    let field = match field {
        "from_ms" | "to_ms" | "after_ms" => field.trim_end_matches("_ms"),
        field => field,
    };
    Invalid { field: field.replace("job.work.", "job."), problem: problem.replace("from_ms", "from") }.into()
}

/// Make a schedule
#[utoipa::path(
    post, path = "/schedules", tag = "schedules", request_body = Spec,
    responses(
        (status = 201, description = "The schedule", body = Schedule,
            headers(("Location" = String, description = "Where the schedule is found"))),
        (status = 409, description = "There is one of this name"),
    )
)]
pub async fn create(rest: Rest, Query(NoQuery): Query<NoQuery>, Body(spec): Body<Spec>) -> Result<Response> {
    let spec = spec.into_wire(crate::clock::now().wall)?;
    let made = Schedule::from(&rest.calls.create_schedule(spec).await.map_err(told)?);
    let location = format!("{}/schedules/{}", super::PREFIX, made.id);
    Ok((StatusCode::CREATED, [(header::LOCATION, location)], Json(made)).into_response())
}

/// List schedules
///
/// By their names.
#[utoipa::path(
    get, path = "/schedules", tag = "schedules", params(Paging),
    responses((status = 200, description = "A page of them", body = Page<Schedule>))
)]
pub async fn list(rest: Rest, Query(paging): Query<Paging>) -> Result<Json<Page<Schedule>>> {
    let views = rest.calls.schedules(paging.page_token, paging.limit).await?;
    let last = views.last().filter(|_| views.len() == paging.limit).map(|view| view.record.name.to_string());
    Ok(Json(Page { items: views.iter().map(Schedule::from).collect(), next_page_token: last.unwrap_or_default() }))
}

/// Look at a schedule
#[utoipa::path(
    get, path = "/schedules/{schedule}", tag = "schedules",
    params(("schedule" = String, Path, description = "Its id or its name")),
    responses((status = 200, description = "The schedule", body = Schedule))
)]
pub async fn get(rest: Rest, Path(named): Path<String>, Query(NoQuery): Query<NoQuery>) -> Result<Json<Schedule>> {
    Ok(Json((&rest.calls.schedule(named).await?).into()))
}

/// Change a schedule
///
/// Takes the place of its spec; what it has done so far stays.
#[utoipa::path(
    put, path = "/schedules/{schedule}", tag = "schedules", request_body = Spec,
    params(("schedule" = String, Path, description = "Its id or its name")),
    responses(
        (status = 200, description = "The schedule", body = Schedule),
        (status = 409, description = "There is another one of this name"),
    )
)]
pub async fn update(
    rest: Rest,
    Path(named): Path<String>,
    Query(NoQuery): Query<NoQuery>,
    Body(spec): Body<Spec>,
) -> Result<Json<Schedule>> {
    let spec = spec.into_wire(crate::clock::now().wall)?;
    Ok(Json((&rest.calls.update_schedule(named, spec).await.map_err(told)?).into()))
}

/// Delete a schedule
///
/// Its jobs stay.
#[utoipa::path(
    delete, path = "/schedules/{schedule}", tag = "schedules",
    params(("schedule" = String, Path, description = "Its id or its name")),
    responses((status = 204, description = "It is gone"))
)]
pub async fn delete(rest: Rest, Path(named): Path<String>, Query(NoQuery): Query<NoQuery>) -> Result<StatusCode> {
    rest.calls.delete_schedule(named).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Let a schedule go on
#[utoipa::path(
    post, path = "/schedules/{schedule}/enable", tag = "schedules",
    params(("schedule" = String, Path, description = "Its id or its name")),
    responses((status = 200, description = "The schedule", body = Schedule))
)]
pub async fn enable(rest: Rest, Path(named): Path<String>, Query(NoQuery): Query<NoQuery>) -> Result<Json<Schedule>> {
    Ok(Json((&rest.calls.enable_schedule(named).await?).into()))
}

/// Hold a schedule
#[utoipa::path(
    post, path = "/schedules/{schedule}/disable", tag = "schedules",
    params(("schedule" = String, Path, description = "Its id or its name")),
    responses((status = 200, description = "The schedule", body = Schedule))
)]
pub async fn disable(rest: Rest, Path(named): Path<String>, Query(NoQuery): Query<NoQuery>) -> Result<Json<Schedule>> {
    Ok(Json((&rest.calls.disable_schedule(named).await?).into()))
}

#[derive(Serialize, ToSchema)]
pub struct Triggered {
    #[schema(format = Uuid)]
    job_id: String,
}

/// Make a job of a schedule now
///
/// Whatever the schedule says.
#[utoipa::path(
    post, path = "/schedules/{schedule}/trigger", tag = "schedules",
    params(("schedule" = String, Path, description = "Its id or its name")),
    responses((status = 202, description = "The job", body = Triggered))
)]
pub async fn trigger(
    rest: Rest,
    Path(named): Path<String>,
    Query(NoQuery): Query<NoQuery>,
) -> Result<(StatusCode, Json<Triggered>)> {
    let job_id = rest.calls.trigger_schedule(named).await?.to_string();
    Ok((StatusCode::ACCEPTED, Json(Triggered { job_id })))
}

#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct Ahead {
    /// 5 unless it is given.
    #[param(minimum = 1, maximum = 1000, required = false)]
    count: i32,
    /// Ticks after this moment; after now unless it is given.
    #[param(format = DateTime)]
    after: Option<String>,
}

impl FromArgs for Ahead {
    fn from_args(args: &mut Args) -> std::result::Result<Self, Invalid> {
        let count = args.parsed("count", "a number")?.unwrap_or(5);
        match count {
            1.. => Ok(Self { count, after: args.text("after")? }),
            _ => Err(Invalid::new("count", "must be at least 1")),
        }
    }
}

impl Ahead {
    fn after(&self) -> std::result::Result<i64, Invalid> {
        self.after.as_ref().map_or(Ok(0), |text| extract::time("after", text).map(|at| at.0))
    }
}

#[derive(Serialize, ToSchema)]
pub struct Ticks {
    #[schema(value_type = Vec<String>)]
    ticks: Vec<String>,
}

fn ticks(found: &[Time]) -> Json<Ticks> {
    Json(Ticks { ticks: found.iter().map(|tick| moment(tick.0)).collect() })
}

/// See when a schedule runs next
#[utoipa::path(
    get, path = "/schedules/{schedule}/preview", tag = "schedules",
    params(("schedule" = String, Path, description = "Its id or its name"), Ahead),
    responses((status = 200, description = "Its next ticks", body = Ticks))
)]
pub async fn preview(rest: Rest, Path(named): Path<String>, Query(ahead): Query<Ahead>) -> Result<Json<Ticks>> {
    let after = ahead.after()?;
    Ok(ticks(&rest.calls.preview_schedule(named, after, ahead.count).await.map_err(told)?))
}

/// See when a schedule would run
///
/// Nothing is stored.
#[utoipa::path(
    post, path = "/schedules/preview", tag = "schedules", request_body = Spec, params(Ahead),
    responses((status = 200, description = "Its first ticks", body = Ticks))
)]
pub async fn preview_spec(rest: Rest, Query(ahead): Query<Ahead>, Body(spec): Body<Spec>) -> Result<Json<Ticks>> {
    let spec = spec.into_wire(crate::clock::now().wall)?;
    Ok(ticks(&rest.calls.preview_spec(&spec, ahead.after()?, ahead.count).map_err(told)?))
}

/// A past range.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Range {
    /// Ticks at or after.
    #[schema(format = DateTime)]
    from: String,
    /// Ticks before.
    #[schema(format = DateTime)]
    to: String,
}

/// How far a backfill is.
#[derive(Serialize, ToSchema)]
#[schema(as = BackfillProgress)]
pub struct Progress {
    made: u64,
    /// Ticks that had their jobs already.
    existed: u64,
    /// Of how many ticks in all.
    total: u64,
}

/// Make the jobs of a past range
///
/// A tick that has its job already gets no second one. The answer is a line of JSON after each step, which says how far it is; one with
/// the field `error` is the last, and what was made before it is kept.
#[utoipa::path(
    post, path = "/schedules/{schedule}/backfill", tag = "schedules", request_body = Range,
    params(("schedule" = String, Path, description = "Its id or its name")),
    responses((status = 202, description = "How far it is, line by line", content((Progress = "application/x-ndjson"))))
)]
pub async fn backfill(
    rest: Rest,
    Path(named): Path<String>,
    Query(NoQuery): Query<NoQuery>,
    Body(range): Body<Range>,
) -> Result<Response> {
    let (from, to) = (extract::time("from", &range.from)?, extract::time("to", &range.to)?);
    let backfill = rest.calls.backfill_schedule(named, from.0, to.0).await.map_err(told)?;
    let filling = Filling { next: Some(Ok(backfill.filled)), backfill, closing: rest.closing };
    let lines = HttpBody::from_stream(futures::stream::unfold(filling, Filling::line));
    Ok((StatusCode::ACCEPTED, [(header::CONTENT_TYPE, "application/x-ndjson")], lines).into_response())
}

struct Filling {
    next: Option<std::result::Result<Filled, Problem>>,
    backfill: Backfill,
    closing: watch::Receiver<bool>,
}

impl Filling {
    async fn line(mut self) -> Option<(std::result::Result<Bytes, Infallible>, Self)> {
        let next = match self.next.take() {
            Some(first) => first,
            None => tokio::select! {
                filled = self.backfill.go_on() => filled.transpose()?,
                () = closed(&mut self.closing) => return None,
            },
        };
        let line = match next {
            Ok(Filled { made, existed, total }) => serde_json::to_vec(&Progress { made, existed, total }),
            Err(problem) => serde_json::to_vec(&serde_json::json!({ "error": Error::from(problem).details() })),
        };
        let mut line = line.unwrap_or_default();
        line.push(b'\n');
        Some((Ok(line.into()), self))
    }
}
