//! JobExecutionService.

use super::{authenticate, closed, invalid, refused, unreadable};
use crate::{clock, engine::Engine};
use futures::stream::BoxStream;
use hodei_api::{
    convert,
    v1::{self, job_execution_service_server::JobExecutionService},
};
use hodei_core::{
    brain::{Answer, Input, NewJob, Report},
    id::{ExecutionId, JobId, WorkerId},
    job::{Job, Progress},
    protocol::Finished,
    spec::{Invalid, Work},
    state::{Failure, FailureKind, Outcome, StateKind},
};
use hodei_store::Filter;
use std::sync::Arc;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};
use uuid::Uuid;

const MAX_JOBS: usize = 10_000;
const DEFAULT_PAGE: usize = 100;
const MAX_PAGE: usize = 1000;
const MAX_REASON: usize = 1024;

pub struct Service {
    pub engine: Engine,
    pub closing: watch::Receiver<bool>,
}

#[tonic::async_trait]
impl JobExecutionService for Service {
    async fn queue_job(&self, request: Request<v1::QueueJobRequest>) -> Result<Response<v1::QueueJobResponse>, Status> {
        let job =
            self.checked(request.into_inner().job.unwrap_or_default()).map_err(|bad| invalid(bad.within("job")))?;
        let ids = self.enqueue(vec![job]).await?;
        let job_id = ids.into_iter().next().map(|id| id.to_string()).unwrap_or_default();
        Ok(Response::new(v1::QueueJobResponse { job_id }))
    }

    async fn queue_jobs(
        &self,
        request: Request<v1::QueueJobsRequest>,
    ) -> Result<Response<v1::QueueJobsResponse>, Status> {
        let jobs = request.into_inner().jobs;
        if jobs.is_empty() || jobs.len() > MAX_JOBS {
            let problem = format!("has {} jobs; it must have between 1 and {MAX_JOBS}", jobs.len());
            return Err(invalid(Invalid::new("jobs", problem)));
        }
        let named = |(i, job)| self.checked(job).map_err(|bad: Invalid| invalid(bad.within(&format!("jobs[{i}]"))));
        let jobs = jobs.into_iter().enumerate().map(named).collect::<Result<Vec<_>, _>>()?;
        let ids = self.enqueue(jobs).await?;
        Ok(Response::new(v1::QueueJobsResponse { job_ids: ids.iter().map(JobId::to_string).collect() }))
    }

    async fn get_job(&self, request: Request<v1::GetJobRequest>) -> Result<Response<v1::GetJobResponse>, Status> {
        let job = self.find(&request.into_inner().job_id).await?;
        Ok(Response::new(v1::GetJobResponse { job: Some(self.whole(job).await?) }))
    }

    async fn list_jobs(&self, request: Request<v1::ListJobsRequest>) -> Result<Response<v1::ListJobsResponse>, Status> {
        let request = request.into_inner();
        let states = request.states.iter().map(|state| convert::state_from_wire(*state));
        let states = states.collect::<Result<_, _>>().map_err(invalid)?;
        let queue = (!request.queue.is_empty()).then_some(request.queue);
        let limit = page_size(request.page_size, DEFAULT_PAGE, MAX_PAGE).map_err(invalid)?;
        let before = page_token(&request.page_token).map_err(invalid)?;
        let store = &self.engine.shared().store;
        let mut jobs = store.list(Filter { states, queue }, before, limit + 1).await.map_err(unreadable)?;
        let more = jobs.len() > limit;
        jobs.truncate(limit);
        let next_page_token = jobs.last().filter(|_| more).map(|job| job.id.to_string()).unwrap_or_default();
        let jobs = jobs.iter().map(|job| convert::job_to_wire(job, None, None, String::new())).collect();
        Ok(Response::new(v1::ListJobsResponse { jobs, next_page_token }))
    }

    async fn cancel_job(
        &self,
        request: Request<v1::CancelJobRequest>,
    ) -> Result<Response<v1::CancelJobResponse>, Status> {
        let v1::CancelJobRequest { job_id, reason } = request.into_inner();
        let job = convert::job_id(&job_id).map_err(invalid)?;
        if reason.len() > MAX_REASON || reason.chars().any(char::is_control) {
            return Err(invalid(Invalid::new("reason", format!("must be one line of at most {MAX_REASON} bytes"))));
        }
        let answer = self.engine.call(0, |caller| Input::Cancel { caller, job, reason }).await.map_err(refused)?;
        Ok(Response::new(v1::CancelJobResponse { state: state_of(&answer) }))
    }

    async fn retry_job(&self, request: Request<v1::RetryJobRequest>) -> Result<Response<v1::RetryJobResponse>, Status> {
        let job = convert::job_id(&request.into_inner().job_id).map_err(invalid)?;
        let answer = self.engine.call(0, |caller| Input::Retry { caller, job }).await.map_err(refused)?;
        Ok(Response::new(v1::RetryJobResponse { state: state_of(&answer) }))
    }

    type WatchJobStream = BoxStream<'static, Result<v1::WatchJobResponse, Status>>;

    async fn watch_job(&self, request: Request<v1::WatchJobRequest>) -> Result<Response<Self::WatchJobStream>, Status> {
        let job_id = request.into_inner().job_id;
        let id = convert::job_id(&job_id).map_err(invalid)?;
        // The watch comes first: a change between the two is then seen twice rather than not at all.
        let changes = self.engine.shared().watches.watch(id);
        let job = match self.find(&job_id).await {
            Ok(job) => job,
            Err(status) => {
                drop(changes);
                self.engine.shared().watches.prune(id);
                return Err(status);
            }
        };
        let (sender, receiver) = mpsc::channel(16);
        tokio::spawn(watch(self.engine.clone(), self.closing.clone(), job, changes, sender));
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }

    async fn start_job(&self, request: Request<v1::StartJobRequest>) -> Result<Response<v1::StartJobResponse>, Status> {
        let worker = authenticate(&self.engine, request.metadata())?;
        let execution = convert::execution_id(&request.into_inner().execution_id).map_err(invalid)?;
        self.report(worker, Report::Started { execution, at: clock::now().wall }).await?;
        Ok(Response::new(v1::StartJobResponse {}))
    }

    async fn update_progress(
        &self,
        request: Request<v1::UpdateProgressRequest>,
    ) -> Result<Response<v1::UpdateProgressResponse>, Status> {
        let worker = authenticate(&self.engine, request.metadata())?;
        let v1::UpdateProgressRequest { execution_id, percent, message } = request.into_inner();
        let execution = convert::execution_id(&execution_id).map_err(invalid)?;
        if !(0.0..=100.0).contains(&percent) {
            return Err(invalid(Invalid::new("percent", "must be between 0 and 100")));
        }
        let progress = Progress { basis_points: (percent * 100.0).round() as u16, message: convert::cut(message) };
        self.report(worker, Report::Progress { execution, progress }).await?;
        Ok(Response::new(v1::UpdateProgressResponse {}))
    }

    async fn complete_job(
        &self,
        request: Request<v1::CompleteJobRequest>,
    ) -> Result<Response<v1::CompleteJobResponse>, Status> {
        let worker = authenticate(&self.engine, request.metadata())?;
        let v1::CompleteJobRequest { execution_id, result } = request.into_inner();
        let execution = convert::execution_id(&execution_id).map_err(invalid)?;
        if result.len() > convert::MAX_RESULT {
            let problem = format!("must be at most {} bytes", convert::MAX_RESULT);
            return Err(invalid(Invalid::new("result", problem)));
        }
        if !result.is_empty() && !is_json(&result) {
            return Err(invalid(Invalid::new("result", "must be JSON")));
        }
        let result = (!result.is_empty()).then_some(result);
        self.finish(worker, execution, Outcome::Succeeded, result).await?;
        Ok(Response::new(v1::CompleteJobResponse {}))
    }

    async fn fail_job(&self, request: Request<v1::FailJobRequest>) -> Result<Response<v1::FailJobResponse>, Status> {
        let worker = authenticate(&self.engine, request.metadata())?;
        let v1::FailJobRequest { execution_id, error, exit_code } = request.into_inner();
        let execution = convert::execution_id(&execution_id).map_err(invalid)?;
        let failure = Failure { exit_code, ..Failure::new(FailureKind::Error, convert::cut(error)) };
        self.finish(worker, execution, Outcome::Failed(failure), None).await?;
        Ok(Response::new(v1::FailJobResponse {}))
    }
}

impl Service {
    fn checked(&self, spec: v1::JobSpec) -> Result<NewJob, Invalid> {
        let payload = convert::payload_of(&spec);
        let spec = convert::spec_from_wire(spec)?;
        if let Work::Task { payload, .. } = &spec.work
            && !is_json(payload)
        {
            return Err(Invalid::new("work.task.payload", "must be JSON"));
        }
        spec.validate(&self.engine.shared().options.limits)?;
        Ok(NewJob { id: JobId(Uuid::now_v7()), spec, payload })
    }

    async fn enqueue(&self, jobs: Vec<NewJob>) -> Result<Vec<JobId>, Status> {
        let weight = jobs.iter().map(|job| 512 + job.payload.len()).sum();
        let ids = jobs.iter().map(|job| job.id).collect();
        self.engine.call(weight, |caller| Input::Enqueue { caller, jobs }).await.map_err(refused)?;
        Ok(ids)
    }

    async fn find(&self, job_id: &str) -> Result<Job, Status> {
        let id = convert::job_id(job_id).map_err(invalid)?;
        find(&self.engine, id).await
    }

    async fn whole(&self, job: Job) -> Result<v1::Job, Status> {
        whole(&self.engine, job).await
    }

    async fn report(&self, worker: WorkerId, report: Report) -> Result<(), Status> {
        let input = |caller| Input::Report { caller: Some(caller), worker, report };
        self.engine.call(0, input).await.map_err(refused)?;
        Ok(())
    }

    async fn finish(
        &self,
        worker: WorkerId,
        execution: ExecutionId,
        outcome: Outcome,
        result: Option<Vec<u8>>,
    ) -> Result<(), Status> {
        let now = clock::now().wall;
        let finished = Finished { execution, outcome, started_at: Some(now), finished_at: now, log_entries: 0, result };
        self.report(worker, Report::Finished(finished)).await
    }
}

pub(super) async fn find(engine: &Engine, id: JobId) -> Result<Job, Status> {
    let found = engine.shared().store.jobs(vec![id]).await.map_err(unreadable)?;
    let job = found.into_iter().next().ok_or_else(|| Status::not_found(format!("there is no job {id}")))?;
    if job.state.kind() != StateKind::Pending {
        return Ok(job);
    }
    // Its row may be behind.
    let placed = engine.ask(move |brain| brain.placed(id).cloned()).await.map_err(refused)?;
    Ok(placed.unwrap_or(job))
}

/// A job with its payload, its result and the reason why it waits.
async fn whole(engine: &Engine, job: Job) -> Result<v1::Job, Status> {
    let store = &engine.shared().store;
    let payload = store.payloads(vec![job.id]).await.map_err(unreadable)?.into_iter().next().map(|(_, bytes)| bytes);
    let result = store.result(job.id).await.map_err(unreadable)?;
    let kind = job.state.kind();
    let reason = match kind.is_finished() {
        true => String::new(),
        false => {
            let waiting = job.clone();
            engine.ask(move |brain| brain.waiting_reason(&waiting)).await.map_err(refused)?
        }
    };
    Ok(convert::job_to_wire(&job, payload.as_deref(), result, reason))
}

async fn watch(
    engine: Engine,
    mut closing: watch::Receiver<bool>,
    job: Job,
    mut changes: mpsc::Receiver<Arc<Job>>,
    sender: mpsc::Sender<Result<v1::WatchJobResponse, Status>>,
) {
    let (id, mut next) = (job.id, Some(job));
    while let Some(job) = next {
        let finished = job.state.kind().is_finished();
        let job = whole(&engine, job).await.map(|job| v1::WatchJobResponse { job: Some(job) });
        if sender.send(job).await.is_err() || finished {
            break;
        }
        next = tokio::select! {
            change = changes.recv() => change.map(Arc::unwrap_or_clone),
            () = closed(&mut closing) => None,
            () = sender.closed() => break,
        };
        if next.is_none() {
            _ = sender.send(Err(Status::unavailable("the watch was interrupted; watch again"))).await;
        }
    }
    drop(changes);
    engine.shared().watches.prune(id);
}

fn is_json(text: &[u8]) -> bool {
    serde_json::from_slice::<serde::de::IgnoredAny>(text).is_ok()
}

fn state_of(answer: &Answer) -> i32 {
    match answer {
        Answer::State(kind) => convert::state_to_wire(*kind).into(),
        _ => 0,
    }
}

/// The size of a page: `asked`, or the default when it is zero.
pub(crate) fn page_size(asked: i32, default: usize, max: usize) -> Result<usize, Invalid> {
    match usize::try_from(asked) {
        Ok(0) => Ok(default),
        Ok(size) if size <= max => Ok(size),
        _ => Err(Invalid::new("page_size", format!("must be between 1 and {max}"))),
    }
}

pub(crate) fn page_token(token: &str) -> Result<Option<JobId>, Invalid> {
    let bad = || Invalid::new("page_token", "is not a token that this server gave");
    if token.is_empty() { Ok(None) } else { token.parse().map(Some).map_err(|_| bad()) }
}
