//! Submitting jobs: one, some that belong together, and many.

use super::{
    Rest,
    extract::{self, JobsBody, MAX_JOBS_BODY, NoQuery, Query, blame, must_be},
    problem::{Error, Result},
    shown::Job,
};
use crate::{
    calls::{Calls, Problem, Submitted},
    clock,
};
use axum::{
    Json,
    extract::Request,
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use bytes::{Buf, Bytes, BytesMut};
use futures::{FutureExt, StreamExt, future::BoxFuture, stream::FuturesOrdered};
use hodei_api::{
    json::{self, Object, job_from_slice},
    v1,
};
use hodei_core::{brain::NewJob, spec::Invalid, time::Time};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Jobs that are stored in one step of a bulk.
const CHUNK: usize = 1000;
/// Steps of a bulk that are on their way at one time.
const UNDER_WAY: usize = 3;
/// Errors that a bulk tells.
const TOLD: usize = 100;

/// Submit a job
///
/// When this answers, the job cannot be lost any more.
#[utoipa::path(
    post, path = "/jobs", tag = "jobs", request_body = json::Job,
    params(("Idempotency-Key" = Option<String>, Header, description = "The same as `idempotency_key` in the job.",
        min_length = 1, max_length = 256, pattern = "^[!-~]+$")),
    responses(
        (status = 202, description = "The job, as it was stored", body = Job,
            headers(("Location" = String, description = "Where the job is found"))),
        (status = 200, description = "A job with this idempotency key was there already; this is it", body = Job,
            headers(("Location" = String, description = "Where the job is found"))),
    )
)]
pub async fn submit(
    rest: Rest,
    Query(NoQuery): Query<NoQuery>,
    headers: HeaderMap,
    JobsBody(body): JobsBody,
) -> Result<Response> {
    let mut spec = job_from_slice(&body, clock::now().wall).map_err(|bad| blame(&body, bad))?;
    if let Some(key) = headers.get("idempotency-key") {
        keyed(&mut spec, key)?;
    }
    let (submitted, job) = rest.calls.submit_shown(spec).await.map_err(told)?;
    let location = format!("{}/jobs/{}", super::PREFIX, job.id);
    let status = if submitted.existed { StatusCode::OK } else { StatusCode::ACCEPTED };
    Ok((status, [(header::LOCATION, location)], Json(Job::from(job))).into_response())
}

fn keyed(spec: &mut v1::JobSpec, key: &HeaderValue) -> std::result::Result<(), Invalid> {
    let bad = |problem: &str| Invalid::new("Idempotency-Key", problem);
    let key = key.to_str().map_err(|_| bad("must be visible ASCII"))?;
    if key.is_empty() {
        return Err(bad("is empty; leave it out"));
    }
    if !spec.idempotency_key.is_empty() && spec.idempotency_key != key {
        return Err(bad("differs from idempotency_key in the body"));
    }
    key.clone_into(&mut spec.idempotency_key);
    Ok(())
}

/// In JSON what a job runs stands beside its other fields.
fn plain(invalid: Invalid) -> Invalid {
    match invalid.field.strip_prefix("work.") {
        Some(field) => Invalid { field: field.to_owned(), ..invalid },
        None => invalid,
    }
}

pub fn told(problem: Problem) -> Error {
    match problem {
        Problem::Invalid(invalid) => plain(invalid).into(),
        problem => problem.into(),
    }
}

/// Jobs that belong together; they may depend on each other by their local names.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Batch {
    #[schema(value_type = Vec<json::Job>, min_items = 1, max_items = 10000)]
    jobs: Vec<Object<json::Job>>,
}

#[derive(Serialize, ToSchema)]
pub struct BatchAnswer {
    /// In the order of the request.
    jobs: Vec<BatchJob>,
}

#[derive(Serialize, ToSchema)]
pub struct BatchJob {
    #[schema(format = Uuid)]
    id: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    local_name: String,
    /// It was there already, by its idempotency key.
    existed: bool,
}

/// Submit jobs that belong together
///
/// All are stored or none. The body may also be the list itself.
#[utoipa::path(
    post, path = "/jobs/batch", tag = "jobs", request_body = Batch,
    responses((status = 202, description = "All are stored", body = BatchAnswer))
)]
pub async fn batch(
    rest: Rest,
    Query(NoQuery): Query<NoQuery>,
    JobsBody(body): JobsBody,
) -> Result<(StatusCode, Json<BatchAnswer>)> {
    let now = clock::now().wall;
    let specs = batch_specs(&body, now)?;
    let names: Vec<String> = specs.iter().map(|spec| spec.local_name.clone()).collect();
    let submitted = rest.calls.submit(specs).await.map_err(told)?;
    let jobs = submitted.into_iter().zip(names);
    let jobs = jobs.map(|(Submitted { id, existed }, local_name)| BatchJob { id: id.to_string(), local_name, existed });
    Ok((StatusCode::ACCEPTED, Json(BatchAnswer { jobs: jobs.collect() })))
}

fn batch_specs(body: &Bytes, now: Time) -> Result<Vec<v1::JobSpec>> {
    let bare = body.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'[');
    let jobs = match bare {
        true => extract::read_any::<Vec<Object<json::Job>>>(body).map_err(|bad| blame(body, in_jobs(bad)))?,
        false => extract::read::<Batch>(body)?.jobs,
    };
    let read = |(i, Object(job)): (usize, Object<json::Job>)| {
        job.into_wire(now).map_err(|bad| plain(bad).within(&format!("jobs[{i}]")).into())
    };
    jobs.into_iter().enumerate().map(read).collect()
}

/// Places in a bare list are told as those of the other form.
fn in_jobs(invalid: Invalid) -> Invalid {
    match invalid.field.starts_with('[') {
        true => Invalid { field: format!("jobs{}", invalid.field), ..invalid },
        false => invalid,
    }
}

#[derive(Debug, Default, Serialize, ToSchema)]
pub struct BulkAnswer {
    /// Jobs that were stored.
    accepted: u64,
    /// Lines whose jobs were there already, by their idempotency keys.
    existed: u64,
    /// Lines that were not stored.
    refused: u64,
    /// The first of what was wrong with those.
    errors: Vec<BulkError>,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct BulkError {
    /// Counts from 1.
    line: u64,
    field: String,
    detail: String,
}

/// Submit many jobs
///
/// One job a line, as JSON. They are read and stored as they come, 1,000 at a time, so nothing ties them together: lines that are not
/// valid are refused by themselves.
#[utoipa::path(
    post, path = "/jobs/bulk", tag = "jobs",
    request_body(content = String, content_type = "application/x-ndjson", description = "One job a line",
        example = "{\"task\":{\"type\":\"email.send\",\"payload\":{\"to\":\"ana\"}}}\n"),
    responses((status = 202, description = "What became of the lines", body = BulkAnswer))
)]
pub async fn bulk(
    rest: Rest,
    Query(NoQuery): Query<NoQuery>,
    request: Request,
) -> Result<(StatusCode, Json<BulkAnswer>)> {
    must_be(request.headers(), "application/x-ndjson")?;
    let mut body = request.into_body().into_data_stream();
    let mut load = Load::new(rest.calls);
    let (mut rest, mut bytes) = (BytesMut::new(), 0);
    while let Some(part) = body.next().await {
        let part = part.map_err(|error| extract::unread(&error, MAX_JOBS_BODY))?;
        bytes += part.len();
        if bytes > MAX_JOBS_BODY {
            return Err(load.broken_off(extract::too_large(MAX_JOBS_BODY)).await);
        }
        // What was left over has no end of a line in it.
        let mut seen = rest.len();
        rest.extend_from_slice(&part);
        while let Some(end) = rest[seen..].iter().position(|byte| *byte == b'\n') {
            let line = rest.split_to(seen + end);
            rest.advance(1);
            seen = 0;
            load.take(&line).await?;
        }
    }
    load.take(&rest).await?;
    Ok((StatusCode::ACCEPTED, Json(load.finish().await?)))
}

/// What became of a step.
type Step = std::result::Result<Vec<(u64, std::result::Result<Submitted, Invalid>)>, Problem>;

/// A bulk on its way.
struct Load {
    calls: Calls,
    now: Time,
    line: u64,
    /// The jobs of the next step, with their lines.
    next: Vec<(u64, NewJob)>,
    under_way: FuturesOrdered<BoxFuture<'static, Step>>,
    answer: BulkAnswer,
}

impl Load {
    fn new(calls: Calls) -> Self {
        let (now, next, under_way) = (clock::now().wall, Vec::new(), FuturesOrdered::new());
        Self { calls, now, line: 0, next, under_way, answer: BulkAnswer::default() }
    }

    async fn take(&mut self, line: &[u8]) -> Result<()> {
        self.line += 1;
        if line.trim_ascii().is_empty() {
            return Ok(());
        }
        match job_from_slice(line, self.now).and_then(|spec| self.calls.checked(spec)) {
            Ok(job) => self.next.push((self.line, job)),
            Err(invalid) => self.refuse(self.line, invalid),
        }
        if self.next.len() >= CHUNK {
            self.send().await?;
        }
        Ok(())
    }

    async fn send(&mut self) -> Result<()> {
        while self.under_way.len() >= UNDER_WAY {
            self.settle().await?;
        }
        let mut step = store(self.calls.clone(), std::mem::take(&mut self.next)).boxed();
        // Begun in the order of the lines, which is then the order of the jobs.
        match futures::poll!(&mut step) {
            std::task::Poll::Ready(done) => self.under_way.push_back(std::future::ready(done).boxed()),
            std::task::Poll::Pending => self.under_way.push_back(step),
        }
        Ok(())
    }

    /// Waits for the oldest step.
    async fn settle(&mut self) -> Result<()> {
        match self.under_way.next().await {
            Some(Ok(lines)) => lines.into_iter().for_each(|(line, outcome)| self.count(line, outcome)),
            Some(Err(problem)) => return Err(self.broken_off(problem.into()).await),
            None => {}
        }
        Ok(())
    }

    fn count(&mut self, line: u64, outcome: std::result::Result<Submitted, Invalid>) {
        match outcome {
            Ok(Submitted { existed: true, .. }) => self.answer.existed += 1,
            Ok(_) => self.answer.accepted += 1,
            Err(invalid) => self.refuse(line, invalid),
        }
    }

    fn refuse(&mut self, line: u64, invalid: Invalid) {
        self.answer.refused += 1;
        if self.answer.errors.len() < TOLD {
            let Invalid { field, problem } = plain(invalid);
            self.answer.errors.push(BulkError { line, field, detail: problem });
        }
    }

    /// An error in the middle says how far it came.
    async fn broken_off(&mut self, error: Error) -> Error {
        while let Some(step) = self.under_way.next().await {
            step.into_iter().flatten().for_each(|(line, outcome)| self.count(line, outcome));
        }
        let stored = self.answer.accepted + self.answer.existed;
        let status = StatusCode::from_u16(error.details().status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        Error::new(status, format!("{}; {stored} jobs were stored before", error.details().detail))
    }

    async fn finish(mut self) -> Result<BulkAnswer> {
        self.send().await?;
        while !self.under_way.is_empty() {
            self.settle().await?;
        }
        self.answer.errors.sort_by_key(|error| error.line);
        Ok(self.answer)
    }
}

/// Stores the jobs of some lines. One that names a job that is not there must not keep the others out.
async fn store(calls: Calls, jobs: Vec<(u64, NewJob)>) -> Step {
    if jobs.is_empty() {
        return Ok(Vec::new());
    }
    let (lines, jobs): (Vec<u64>, Vec<NewJob>) = jobs.into_iter().unzip();
    let dependent = jobs.iter().any(|job| !job.spec.depends_on.is_empty());
    let again = dependent.then(|| jobs.clone());
    match (calls.enqueue(jobs).await, again) {
        (Ok(submitted), _) => Ok(lines.into_iter().zip(submitted.into_iter().map(Ok)).collect()),
        (Err(Problem::Invalid(_)), Some(jobs)) => {
            let mut outcomes = Vec::with_capacity(jobs.len());
            for (line, job) in lines.into_iter().zip(jobs) {
                outcomes.push((line, alone(&calls, job).await?));
            }
            Ok(outcomes)
        }
        (Err(problem), _) => Err(problem),
    }
}

async fn alone(calls: &Calls, job: NewJob) -> std::result::Result<std::result::Result<Submitted, Invalid>, Problem> {
    let id = job.id;
    match calls.enqueue(vec![job]).await {
        Ok(submitted) => Ok(Ok(submitted.first().copied().unwrap_or(Submitted { id, existed: false }))),
        Err(Problem::Invalid(invalid)) => Ok(Err(invalid)),
        Err(problem) => Err(problem),
    }
}
