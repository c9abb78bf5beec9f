//! Jobs that failed for good.

use super::{
    Rest,
    extract::{self, Args, FromArgs, Json as Body, NoQuery, Query},
    jobs::{Paging, job_id},
    problem::{Error, Result},
    shown::{DeadLetter, Page, moment},
};
use crate::calls::Which;
use axum::{Json, extract::Path, http::StatusCode};
use hodei_api::convert;
use hodei_core::{
    id::{IdMap, JobId},
    job::Job,
    spec::Invalid,
};
use hodei_store::{DeadLetterFilter, DeadLetterPage};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

const DEFAULT_GROUPS: usize = 100;
const MAX_GROUPS: usize = 1000;

/// Which dead letters; all that is set must match.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
#[schema(as = DeadLetterFilter)]
pub struct LetterFilter {
    #[param(min_length = 1)]
    queue: Option<String>,
    #[param(min_length = 1)]
    task_type: Option<String>,
    /// As in an execution.
    #[param(min_length = 1)]
    failure_kind: Option<String>,
    /// The group of like errors.
    #[param(pattern = "^[0-9a-fA-F]{16}$")]
    #[schema(pattern = "^[0-9a-fA-F]{16}$")]
    fingerprint: Option<String>,
    /// Failed at or after.
    #[param(format = DateTime)]
    #[schema(format = DateTime)]
    from: Option<String>,
    /// Failed before.
    #[param(format = DateTime)]
    #[schema(format = DateTime)]
    to: Option<String>,
}

impl LetterFilter {
    fn read(self) -> std::result::Result<DeadLetterFilter, Invalid> {
        Ok(DeadLetterFilter {
            queue: self.queue,
            task_type: self.task_type,
            kind: self.failure_kind.map(|kind| convert::failure_kind(&kind)).transpose()?,
            fingerprint: self.fingerprint.map(|print| convert::fingerprint_from_wire(&print)).transpose()?,
            from: self.from.map(|text| extract::time("from", &text)).transpose()?,
            to: self.to.map(|text| extract::time("to", &text)).transpose()?,
        })
    }
}

impl FromArgs for LetterFilter {
    fn from_args(args: &mut Args) -> std::result::Result<Self, Invalid> {
        Ok(Self {
            queue: args.text("queue")?,
            task_type: args.text("task_type")?,
            failure_kind: args.text("failure_kind")?,
            fingerprint: args.text("fingerprint")?,
            from: args.text("from")?,
            to: args.text("to")?,
        })
    }
}

/// List dead letters
///
/// Those that failed last come first. A page may have fewer than asked for, even none, before the last.
#[utoipa::path(
    get, path = "/dead-letter", tag = "dead letters", params(LetterFilter, Paging),
    responses((status = 200, description = "A page of them", body = Page<DeadLetter>))
)]
pub async fn list(
    rest: Rest,
    Query((filter, paging)): Query<(LetterFilter, Paging)>,
) -> Result<Json<Page<DeadLetter>>> {
    let before = convert::letter_place(&paging.page_token.unwrap_or_default())?;
    let DeadLetterPage { letters, next } = rest.calls.dead_letters(filter.read()?, before, paging.limit).await?;
    let jobs = rest.calls.jobs(letters.iter().map(|letter| letter.job).collect()).await?;
    let jobs: IdMap<JobId, Job> = jobs.into_iter().map(|job| (job.id, job)).collect();
    let shown = letters.iter().map(|letter| convert::dead_letter_to_wire(letter, jobs.get(&letter.job)).into());
    Ok(Json(Page { items: shown.collect(), next_page_token: convert::letter_token(next) }))
}

/// Look at a dead letter
///
/// With the job itself.
#[utoipa::path(
    get, path = "/dead-letter/{job_id}", tag = "dead letters", params(("job_id" = uuid::Uuid, Path, description = "The job")),
    responses((status = 200, description = "The dead letter", body = DeadLetter))
)]
pub async fn get(rest: Rest, Path(id): Path<String>, Query(NoQuery): Query<NoQuery>) -> Result<Json<DeadLetter>> {
    let (letter, job) = rest.calls.dead_letter(job_id(&id)?).await?;
    let mut wire = convert::dead_letter_to_wire(&letter, Some(&job));
    wire.job = Some(rest.calls.whole(job).await?);
    Ok(Json(wire.into()))
}

#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct Groups {
    /// 100 unless it is given.
    #[param(minimum = 1, maximum = 1000, required = false)]
    limit: usize,
}

impl FromArgs for Groups {
    fn from_args(args: &mut Args) -> std::result::Result<Self, Invalid> {
        Ok(Self { limit: args.limit(DEFAULT_GROUPS, MAX_GROUPS)? })
    }
}

#[derive(Debug, Serialize, ToSchema)]
pub struct Stats {
    total: u64,
    /// The most frequent first.
    groups: Vec<Group>,
}

/// Like errors.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ErrorGroup)]
pub struct Group {
    fingerprint: String,
    failure_kind: &'static str,
    /// The error of one of them.
    example: String,
    count: u64,
    #[schema(format = DateTime)]
    first: String,
    #[schema(format = DateTime)]
    last: String,
}

/// Count dead letters by their errors
#[utoipa::path(
    get, path = "/dead-letter/stats", tag = "dead letters", params(Groups),
    responses((status = 200, description = "The errors", body = Stats))
)]
pub async fn stats(rest: Rest, Query(Groups { limit }): Query<Groups>) -> Result<Json<Stats>> {
    let (total, groups) = rest.calls.error_groups(limit).await?;
    let groups = groups.into_iter().map(|group| Group {
        fingerprint: convert::fingerprint_to_wire(group.fingerprint),
        failure_kind: group.kind.name(),
        example: group.example,
        count: group.count,
        first: moment(group.first.0),
        last: moment(group.last.0),
    });
    Ok(Json(Stats { total, groups: groups.collect() }))
}

/// One of the three; nothing is done to all there are unless that is said.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Chosen {
    #[schema(max_items = 10000, value_type = Vec<uuid::Uuid>)]
    job_ids: Vec<String>,
    filter: Option<LetterFilter>,
    all: bool,
}

impl Chosen {
    fn read(self) -> std::result::Result<Which, Invalid> {
        let ids = self.job_ids.iter().map(|id| convert::job_id(id)).collect::<std::result::Result<_, _>>();
        let ids = ids.map_err(|bad: Invalid| Invalid::new("job_ids", bad.problem))?;
        let filter = self.filter.unwrap_or_default().read().map_err(|bad| bad.within("filter"))?;
        Which::of(ids, filter, self.all)
    }
}

#[derive(Debug, Serialize, ToSchema)]
pub struct Replayed {
    /// How many.
    replayed: u64,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct Discarded {
    /// How many.
    discarded: u64,
}

/// Replay dead letters
///
/// Runs the jobs again, with all their attempts before them.
#[utoipa::path(
    post, path = "/dead-letter/replay", tag = "dead letters", request_body = Chosen,
    responses((status = 200, description = "How many were replayed", body = Replayed))
)]
pub async fn replay_many(
    rest: Rest,
    Query(NoQuery): Query<NoQuery>,
    Body(chosen): Body<Chosen>,
) -> Result<Json<Replayed>> {
    Ok(Json(Replayed { replayed: rest.calls.replay(chosen.read()?).await? }))
}

/// Discard dead letters
///
/// Takes them off this list; the jobs stay as they are.
#[utoipa::path(
    post, path = "/dead-letter/discard", tag = "dead letters", request_body = Chosen,
    responses((status = 200, description = "How many were discarded", body = Discarded))
)]
pub async fn discard_many(
    rest: Rest,
    Query(NoQuery): Query<NoQuery>,
    Body(chosen): Body<Chosen>,
) -> Result<Json<Discarded>> {
    Ok(Json(Discarded { discarded: rest.calls.discard(chosen.read()?).await? }))
}

/// Replay one dead letter
#[utoipa::path(
    post, path = "/dead-letter/{job_id}/replay", tag = "dead letters",
    params(("job_id" = uuid::Uuid, Path, description = "The job")),
    responses((status = 200, description = "It is replayed", body = Replayed))
)]
pub async fn replay(rest: Rest, Path(id): Path<String>, Query(NoQuery): Query<NoQuery>) -> Result<Json<Replayed>> {
    let id = job_id(&id)?;
    match rest.calls.replay(Which::These(vec![id])).await? {
        0 => Err(missing(id)),
        replayed => Ok(Json(Replayed { replayed })),
    }
}

/// Discard one dead letter
#[utoipa::path(
    delete, path = "/dead-letter/{job_id}", tag = "dead letters",
    params(("job_id" = uuid::Uuid, Path, description = "The job")),
    responses((status = 200, description = "It is off the list", body = Discarded))
)]
pub async fn discard(rest: Rest, Path(id): Path<String>, Query(NoQuery): Query<NoQuery>) -> Result<Json<Discarded>> {
    let id = job_id(&id)?;
    match rest.calls.discard(Which::These(vec![id])).await? {
        0 => Err(missing(id)),
        discarded => Ok(Json(Discarded { discarded })),
    }
}

fn missing(id: JobId) -> Error {
    Error::new(StatusCode::NOT_FOUND, format!("{id} is not in the dead-letter queue"))
}
