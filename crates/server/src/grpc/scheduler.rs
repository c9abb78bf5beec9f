//! SchedulerService: where jobs run, and why.

use crate::calls::Calls;
use hodei_api::{
    convert,
    v1::{self, scheduler_service_server::SchedulerService},
};
use hodei_core::{brain::QueueView, state::StateKind};
use tonic::{Request, Response, Status};

pub struct Service {
    pub calls: Calls,
}

#[tonic::async_trait]
impl SchedulerService for Service {
    async fn schedule_job(
        &self,
        request: Request<v1::ScheduleJobRequest>,
    ) -> Result<Response<v1::SchedulingDecision>, Status> {
        let decision = self.calls.decide(request.into_inner().job.unwrap_or_default()).await?;
        Ok(Response::new(convert::decision_to_wire(decision, None)))
    }

    async fn get_scheduling_decision(
        &self,
        request: Request<v1::GetSchedulingDecisionRequest>,
    ) -> Result<Response<v1::SchedulingDecision>, Status> {
        let id = convert::job_id(&request.into_inner().job_id).map_err(super::invalid)?;
        let (decision, state) = self.calls.decision(id).await?;
        Ok(Response::new(convert::decision_to_wire(decision, Some(state))))
    }

    async fn configure_scheduler(
        &self,
        request: Request<v1::ConfigureSchedulerRequest>,
    ) -> Result<Response<v1::SchedulerSettings>, Status> {
        let calls = self.calls.by(request.extensions());
        let settings = calls.change_scheduler(request.into_inner()).await?;
        Ok(Response::new(convert::scheduler_to_wire(settings)))
    }

    async fn get_queue_status(
        &self,
        request: Request<v1::GetQueueStatusRequest>,
    ) -> Result<Response<v1::GetQueueStatusResponse>, Status> {
        let queues = self.calls.queue_status(request.into_inner().queue).await?;
        let settings = Some(convert::scheduler_to_wire(self.calls.scheduler().await?));
        Ok(Response::new(v1::GetQueueStatusResponse { queues: queues.into_iter().map(status).collect(), settings }))
    }

    async fn get_available_workers(
        &self,
        request: Request<v1::GetAvailableWorkersRequest>,
    ) -> Result<Response<v1::GetAvailableWorkersResponse>, Status> {
        let views = self.calls.available_workers(request.into_inner().job).await?;
        let workers = views.iter().map(convert::view_to_wire).collect();
        Ok(Response::new(v1::GetAvailableWorkersResponse { workers }))
    }
}

fn status(view: QueueView) -> v1::QueueStatus {
    let wire = convert::queue_to_wire(view);
    let count = |state: StateKind| wire.counts.get(state.name()).copied().unwrap_or_default();
    v1::QueueStatus {
        pending: count(StateKind::Pending),
        running: count(StateKind::Running) + count(StateKind::Scheduled),
        delayed: count(StateKind::Delayed),
        waiting: count(StateKind::Waiting) + count(StateKind::Blocked),
        queue: wire.name,
        held_because: wire.held_because,
    }
}
