//! JobExecutionService.

use super::{authenticate, closed, invalid, refused, time};
use crate::{
    calls::{Calls, Submitted, is_json, page_size, page_token},
    clock,
};
use futures::stream::BoxStream;
use hodei_api::{
    convert,
    v1::{self, job_execution_service_server::JobExecutionService},
};
use hodei_core::{
    brain::{Input, Report},
    id::{ExecutionId, JobId, ScheduleId, WorkerId},
    job::{Job, Progress},
    protocol::Finished,
    spec::Invalid,
    state::{Failure, FailureKind, Outcome},
};
use hodei_store::{Filter, Page};
use std::sync::Arc;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

const DEFAULT_PAGE: usize = 100;
const MAX_PAGE: usize = 1000;

pub struct Service {
    pub calls: Calls,
    pub closing: watch::Receiver<bool>,
}

#[tonic::async_trait]
impl JobExecutionService for Service {
    async fn queue_job(&self, request: Request<v1::QueueJobRequest>) -> Result<Response<v1::QueueJobResponse>, Status> {
        let calls = self.calls.by(request.extensions());
        let Submitted { id, existed } = calls.submit_one(request.into_inner().job.unwrap_or_default()).await?;
        Ok(Response::new(v1::QueueJobResponse { job_id: id.to_string(), existed }))
    }

    async fn queue_jobs(
        &self,
        request: Request<v1::QueueJobsRequest>,
    ) -> Result<Response<v1::QueueJobsResponse>, Status> {
        let calls = self.calls.by(request.extensions());
        let submitted = calls.submit(request.into_inner().jobs).await?;
        let job_ids = submitted.iter().map(|job| convert::id_text(job.id)).collect();
        let existed = (0..).zip(&submitted).filter(|(_, job)| job.existed).map(|(place, _)| place).collect();
        Ok(Response::new(v1::QueueJobsResponse { job_ids, existed }))
    }

    async fn get_job(&self, request: Request<v1::GetJobRequest>) -> Result<Response<v1::GetJobResponse>, Status> {
        let job = self.calls.find(job_id(&request.into_inner().job_id)?).await?;
        Ok(Response::new(v1::GetJobResponse { job: Some(self.calls.whole(job).await?) }))
    }

    async fn list_jobs(&self, request: Request<v1::ListJobsRequest>) -> Result<Response<v1::ListJobsResponse>, Status> {
        let v1::ListJobsRequest { states, queue, page_size: size, page_token: token, filter } = request.into_inner();
        let filter = filter.unwrap_or(v1::JobFilter { states, queue, ..v1::JobFilter::default() });
        let filter = filter_from_wire(filter).map_err(invalid)?;
        let limit = page_size(size, DEFAULT_PAGE, MAX_PAGE).map_err(invalid)?;
        let before = page_token(&token).map_err(invalid)?;
        let Page { jobs, next } = self.calls.list(filter, before, limit).await?;
        let next_page_token = next.map(|id| id.to_string()).unwrap_or_default();
        let outline = |job: &Job| convert::job_to_wire(job, convert::Stored::default(), String::new());
        Ok(Response::new(v1::ListJobsResponse { jobs: jobs.iter().map(outline).collect(), next_page_token }))
    }

    async fn cancel_job(
        &self,
        request: Request<v1::CancelJobRequest>,
    ) -> Result<Response<v1::CancelJobResponse>, Status> {
        let calls = self.calls.by(request.extensions());
        let v1::CancelJobRequest { job_id: id, reason } = request.into_inner();
        let state = calls.cancel(job_id(&id)?, reason).await?;
        Ok(Response::new(v1::CancelJobResponse { state: convert::state_to_wire(state).into() }))
    }

    async fn cancel_jobs(
        &self,
        request: Request<v1::CancelJobsRequest>,
    ) -> Result<Response<v1::CancelJobsResponse>, Status> {
        let calls = self.calls.by(request.extensions());
        let v1::CancelJobsRequest { filter, reason } = request.into_inner();
        let filter = filter.unwrap_or_default();
        let filter = filter_from_wire(filter).map_err(invalid)?;
        let cancelled = calls.cancel_all(filter, reason).await?;
        let cancelled = i64::try_from(cancelled).unwrap_or(i64::MAX);
        Ok(Response::new(v1::CancelJobsResponse { cancelled }))
    }

    async fn retry_job(&self, request: Request<v1::RetryJobRequest>) -> Result<Response<v1::RetryJobResponse>, Status> {
        let calls = self.calls.by(request.extensions());
        let state = calls.retry(job_id(&request.into_inner().job_id)?).await?;
        Ok(Response::new(v1::RetryJobResponse { state: convert::state_to_wire(state).into() }))
    }

    async fn resume_job(
        &self,
        request: Request<v1::ResumeJobRequest>,
    ) -> Result<Response<v1::ResumeJobResponse>, Status> {
        let calls = self.calls.by(request.extensions());
        let v1::ResumeJobRequest { job_id: id, payload } = request.into_inner();
        let state = calls.resume(job_id(&id)?, payload).await?;
        Ok(Response::new(v1::ResumeJobResponse { state: convert::state_to_wire(state).into() }))
    }

    async fn assign_job(
        &self,
        request: Request<v1::AssignJobRequest>,
    ) -> Result<Response<v1::AssignJobResponse>, Status> {
        let calls = self.calls.by(request.extensions());
        let v1::AssignJobRequest { job_id: id, worker_id } = request.into_inner();
        let worker = convert::worker_id(&worker_id).map_err(invalid)?;
        let state = calls.assign(job_id(&id)?, worker).await?;
        Ok(Response::new(v1::AssignJobResponse { state: convert::state_to_wire(state).into() }))
    }

    type WatchJobStream = BoxStream<'static, Result<v1::WatchJobResponse, Status>>;

    async fn watch_job(&self, request: Request<v1::WatchJobRequest>) -> Result<Response<Self::WatchJobStream>, Status> {
        let id = job_id(&request.into_inner().job_id)?;
        // The watch comes first: a change between the two is then seen twice rather than not at all.
        let watches = &self.calls.engine.shared().watches;
        let changes = watches.watch(id);
        let job = match self.calls.find(id).await {
            Ok(job) => job,
            Err(problem) => {
                drop(changes);
                watches.prune(id);
                return Err(problem.into());
            }
        };
        let (sender, receiver) = mpsc::channel(16);
        tokio::spawn(watch(self.calls.clone(), self.closing.clone(), job, changes, sender));
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }

    async fn start_job(&self, request: Request<v1::StartJobRequest>) -> Result<Response<v1::StartJobResponse>, Status> {
        let (worker, _) = authenticate(&self.calls, &request)?;
        let execution = convert::execution_id(&request.into_inner().execution_id).map_err(invalid)?;
        self.report(worker, Report::Started { execution, at: clock::now().wall }).await?;
        Ok(Response::new(v1::StartJobResponse {}))
    }

    async fn update_progress(
        &self,
        request: Request<v1::UpdateProgressRequest>,
    ) -> Result<Response<v1::UpdateProgressResponse>, Status> {
        let (worker, _) = authenticate(&self.calls, &request)?;
        let v1::UpdateProgressRequest { execution_id, percent, message } = request.into_inner();
        let execution = convert::execution_id(&execution_id).map_err(invalid)?;
        if !(0.0..=100.0).contains(&percent) {
            return Err(invalid(Invalid::new("percent", "must be between 0 and 100")));
        }
        let progress = Progress { basis_points: (percent * 100.0).round() as u16, message: convert::cut(message) };
        self.report(worker, Report::Progress { execution, progress, data: None }).await?;
        Ok(Response::new(v1::UpdateProgressResponse {}))
    }

    async fn complete_job(
        &self,
        request: Request<v1::CompleteJobRequest>,
    ) -> Result<Response<v1::CompleteJobResponse>, Status> {
        let (worker, _) = authenticate(&self.calls, &request)?;
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
        let (worker, _) = authenticate(&self.calls, &request)?;
        let v1::FailJobRequest { execution_id, error, exit_code } = request.into_inner();
        let execution = convert::execution_id(&execution_id).map_err(invalid)?;
        let failure = Failure { exit_code, ..Failure::new(FailureKind::Error, convert::cut(error)) };
        self.finish(worker, execution, Outcome::Failed(failure), None).await?;
        Ok(Response::new(v1::FailJobResponse {}))
    }
}

impl Service {
    async fn report(&self, worker: WorkerId, report: Report) -> Result<(), Status> {
        let input = |caller| Input::Report { caller: Some(caller), worker, report };
        self.calls.engine.call(0, input).await.map_err(refused)?;
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
        let finished = Finished { started_at: Some(now), result, ..Finished::new(execution, outcome, now) };
        self.report(worker, Report::Finished(finished, Vec::new())).await
    }
}

async fn watch(
    calls: Calls,
    mut closing: watch::Receiver<bool>,
    job: Job,
    mut changes: mpsc::Receiver<Arc<Job>>,
    sender: mpsc::Sender<Result<v1::WatchJobResponse, Status>>,
) {
    let (id, mut next) = (job.id, Some(job));
    while let Some(job) = next {
        let finished = job.state.kind().is_finished();
        let whole = calls.whole(job).await.map_err(Status::from);
        let job = whole.map(|job| v1::WatchJobResponse { job: Some(job) });
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
    calls.engine.shared().watches.prune(id);
}

fn job_id(text: &str) -> Result<JobId, Status> {
    convert::job_id(text).map_err(invalid)
}

fn filter_from_wire(wire: v1::JobFilter) -> Result<Filter, Invalid> {
    let text = |text: String| (!text.is_empty()).then_some(text);
    let states = wire.states.iter().map(|state| convert::state_from_wire(*state));
    let parent = text(wire.parent_id).map(|id| convert::job_id(&id)).transpose()?;
    let schedule = text(wire.schedule_id).map(|id| id.parse::<ScheduleId>());
    Ok(Filter {
        states: states.collect::<Result<_, _>>()?,
        queue: text(wire.queue),
        task_type: text(wire.task_type),
        tag: text(wire.tag),
        name: text(wire.name),
        parent,
        schedule: schedule.transpose().map_err(|_| Invalid::new("schedule_id", "is not a schedule's id (a UUID)"))?,
        from: time("from_ms", wire.from_ms)?,
        to: time("to_ms", wire.to_ms)?,
    })
}
