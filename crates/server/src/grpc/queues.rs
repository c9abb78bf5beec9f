//! QueueService: looking at queues and steering them.

use super::invalid;
use crate::calls::{Calls, page_size};
use hodei_api::{
    convert,
    v1::{self, queue_service_server::QueueService},
};
use hodei_core::brain::QueueOrder;
use tonic::{Request, Response, Status};

const DEFAULT_PAGE: usize = 100;
const MAX_PAGE: usize = 1000;

pub struct Service {
    pub calls: Calls,
}

#[tonic::async_trait]
impl QueueService for Service {
    async fn list_queues(
        &self,
        request: Request<v1::ListQueuesRequest>,
    ) -> Result<Response<v1::ListQueuesResponse>, Status> {
        let v1::ListQueuesRequest { page_size: size, page_token } = request.into_inner();
        let limit = page_size(size, DEFAULT_PAGE, MAX_PAGE).map_err(invalid)?;
        let after = (!page_token.is_empty()).then_some(page_token);
        let views = self.calls.queues(after, limit).await?;
        let full = views.len() == limit;
        let last = views.last().filter(|_| full).map(|view| view.record.name.to_string());
        let queues = views.into_iter().map(convert::queue_to_wire).collect();
        Ok(Response::new(v1::ListQueuesResponse { queues, next_page_token: last.unwrap_or_default() }))
    }

    async fn get_queue(&self, request: Request<v1::GetQueueRequest>) -> Result<Response<v1::GetQueueResponse>, Status> {
        let view = self.calls.queue(request.into_inner().name).await?;
        Ok(Response::new(v1::GetQueueResponse { queue: Some(convert::queue_to_wire(view)) }))
    }

    async fn pause_queue(
        &self,
        request: Request<v1::PauseQueueRequest>,
    ) -> Result<Response<v1::PauseQueueResponse>, Status> {
        let queue = set(&self.calls.by(request.extensions()), request.into_inner().name, QueueOrder::Pause).await?;
        Ok(Response::new(v1::PauseQueueResponse { queue: Some(queue) }))
    }

    async fn resume_queue(
        &self,
        request: Request<v1::ResumeQueueRequest>,
    ) -> Result<Response<v1::ResumeQueueResponse>, Status> {
        let queue = set(&self.calls.by(request.extensions()), request.into_inner().name, QueueOrder::Resume).await?;
        Ok(Response::new(v1::ResumeQueueResponse { queue: Some(queue) }))
    }

    async fn configure_queue(
        &self,
        request: Request<v1::ConfigureQueueRequest>,
    ) -> Result<Response<v1::ConfigureQueueResponse>, Status> {
        let calls = self.calls.by(request.extensions());
        let v1::ConfigureQueueRequest { name, settings } = request.into_inner();
        let settings = convert::settings_from_wire(settings.unwrap_or_default()).map_err(invalid)?;
        let queue = set(&calls, name, QueueOrder::Configure(settings)).await?;
        Ok(Response::new(v1::ConfigureQueueResponse { queue: Some(queue) }))
    }
}

async fn set(calls: &Calls, name: String, order: QueueOrder) -> Result<v1::Queue, Status> {
    Ok(convert::queue_to_wire(calls.set_queue(name, order).await?))
}
