//! ScheduleService: jobs by the clock.

use super::{closed, invalid};
use crate::calls::{Backfill, Calls, Filled, page_size};
use futures::stream::BoxStream;
use hodei_api::{
    convert,
    v1::{self, schedule_service_server::ScheduleService},
};
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

const DEFAULT_PAGE: usize = 100;
const MAX_PAGE: usize = 1000;

pub struct Service {
    pub calls: Calls,
    pub closing: watch::Receiver<bool>,
}

type Progress = Result<v1::BackfillScheduleResponse, Status>;

#[tonic::async_trait]
impl ScheduleService for Service {
    async fn create_schedule(
        &self,
        request: Request<v1::CreateScheduleRequest>,
    ) -> Result<Response<v1::CreateScheduleResponse>, Status> {
        let view =
            self.calls.by(request.extensions()).create_schedule(request.into_inner().spec.unwrap_or_default()).await?;
        Ok(Response::new(v1::CreateScheduleResponse { schedule: Some(convert::schedule_to_wire(&view)) }))
    }

    async fn update_schedule(
        &self,
        request: Request<v1::UpdateScheduleRequest>,
    ) -> Result<Response<v1::UpdateScheduleResponse>, Status> {
        let calls = self.calls.by(request.extensions());
        let v1::UpdateScheduleRequest { schedule, spec } = request.into_inner();
        let view = calls.update_schedule(schedule, spec.unwrap_or_default()).await?;
        Ok(Response::new(v1::UpdateScheduleResponse { schedule: Some(convert::schedule_to_wire(&view)) }))
    }

    async fn get_schedule(
        &self,
        request: Request<v1::GetScheduleRequest>,
    ) -> Result<Response<v1::GetScheduleResponse>, Status> {
        let view = self.calls.schedule(request.into_inner().schedule).await?;
        Ok(Response::new(v1::GetScheduleResponse { schedule: Some(convert::schedule_to_wire(&view)) }))
    }

    async fn list_schedules(
        &self,
        request: Request<v1::ListSchedulesRequest>,
    ) -> Result<Response<v1::ListSchedulesResponse>, Status> {
        let v1::ListSchedulesRequest { page_size: size, page_token } = request.into_inner();
        let limit = page_size(size, DEFAULT_PAGE, MAX_PAGE).map_err(invalid)?;
        let views = self.calls.schedules((!page_token.is_empty()).then_some(page_token), limit).await?;
        let last = views.last().filter(|_| views.len() == limit).map(|view| view.record.name.to_string());
        let schedules = views.iter().map(convert::schedule_to_wire).collect();
        Ok(Response::new(v1::ListSchedulesResponse { schedules, next_page_token: last.unwrap_or_default() }))
    }

    async fn delete_schedule(
        &self,
        request: Request<v1::DeleteScheduleRequest>,
    ) -> Result<Response<v1::DeleteScheduleResponse>, Status> {
        self.calls.by(request.extensions()).delete_schedule(request.into_inner().schedule).await?;
        Ok(Response::new(v1::DeleteScheduleResponse {}))
    }

    async fn enable_schedule(
        &self,
        request: Request<v1::EnableScheduleRequest>,
    ) -> Result<Response<v1::EnableScheduleResponse>, Status> {
        let view = self.calls.by(request.extensions()).enable_schedule(request.into_inner().schedule).await?;
        Ok(Response::new(v1::EnableScheduleResponse { schedule: Some(convert::schedule_to_wire(&view)) }))
    }

    async fn disable_schedule(
        &self,
        request: Request<v1::DisableScheduleRequest>,
    ) -> Result<Response<v1::DisableScheduleResponse>, Status> {
        let view = self.calls.by(request.extensions()).disable_schedule(request.into_inner().schedule).await?;
        Ok(Response::new(v1::DisableScheduleResponse { schedule: Some(convert::schedule_to_wire(&view)) }))
    }

    async fn trigger_schedule(
        &self,
        request: Request<v1::TriggerScheduleRequest>,
    ) -> Result<Response<v1::TriggerScheduleResponse>, Status> {
        let job = self.calls.by(request.extensions()).trigger_schedule(request.into_inner().schedule).await?;
        Ok(Response::new(v1::TriggerScheduleResponse { job_id: job.to_string() }))
    }

    async fn preview_schedule(
        &self,
        request: Request<v1::PreviewScheduleRequest>,
    ) -> Result<Response<v1::PreviewScheduleResponse>, Status> {
        let v1::PreviewScheduleRequest { schedule, spec, count, after_ms } = request.into_inner();
        let ticks = match spec {
            Some(spec) => self.calls.preview_spec(&spec, after_ms, count)?,
            None => self.calls.preview_schedule(schedule, after_ms, count).await?,
        };
        Ok(Response::new(v1::PreviewScheduleResponse { ticks_ms: ticks.iter().map(|tick| tick.0).collect() }))
    }

    type BackfillScheduleStream = BoxStream<'static, Progress>;

    async fn backfill_schedule(
        &self,
        request: Request<v1::BackfillScheduleRequest>,
    ) -> Result<Response<Self::BackfillScheduleStream>, Status> {
        let calls = self.calls.by(request.extensions());
        let v1::BackfillScheduleRequest { schedule, from_ms, to_ms } = request.into_inner();
        let backfill = calls.backfill_schedule(schedule, from_ms, to_ms).await?;
        let (sender, receiver) = mpsc::channel(1);
        tokio::spawn(fill(backfill, self.closing.clone(), sender));
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }
}

/// Tells how far it is after every step. Nobody who listens, nothing more to do.
async fn fill(mut backfill: Backfill, mut closing: watch::Receiver<bool>, sender: mpsc::Sender<Progress>) {
    let mut filled = Ok(Some(backfill.filled));
    while let Ok(Some(far)) = filled {
        if sender.send(Ok(progress(far))).await.is_err() {
            return;
        }
        filled = tokio::select! {
            filled = backfill.go_on() => filled,
            () = closed(&mut closing) => {
                let why = "the backfill was interrupted; ask for it again, what it made is kept";
                _ = sender.send(Err(Status::unavailable(why))).await;
                return;
            }
        };
    }
    if let Err(problem) = filled {
        _ = sender.send(Err(problem.into())).await;
    }
}

fn progress(filled: Filled) -> v1::BackfillScheduleResponse {
    let number = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    v1::BackfillScheduleResponse {
        made: number(filled.made),
        existed: number(filled.existed),
        total: number(filled.total),
    }
}
