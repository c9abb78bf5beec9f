//! WorkerAdminService: what operators do with workers.

use super::invalid;
use crate::calls::{Calls, NewWorkerToken};
use hodei_api::{
    convert,
    v1::{self, worker_admin_service_server::WorkerAdminService},
};
use tonic::{Request, Response, Status};

pub struct Service {
    pub calls: Calls,
}

#[tonic::async_trait]
impl WorkerAdminService for Service {
    async fn create_worker_token(
        &self,
        request: Request<v1::CreateWorkerTokenRequest>,
    ) -> Result<Response<v1::CreateWorkerTokenResponse>, Status> {
        let calls = self.calls.by(request.extensions());
        let v1::CreateWorkerTokenRequest { worker_id, ttl_ms } = request.into_inner();
        let worker = match worker_id.as_str() {
            "" => None,
            given => Some(convert::worker_id(given).map_err(invalid)?),
        };
        let NewWorkerToken { token, worker, expires_at } = calls.create_worker_token(worker, ttl_ms).await?;
        let worker_id = worker.to_string();
        Ok(Response::new(v1::CreateWorkerTokenResponse { token, worker_id, expires_at_ms: expires_at.0 }))
    }

    async fn list_workers(
        &self,
        _: Request<v1::ListWorkersRequest>,
    ) -> Result<Response<v1::ListWorkersResponse>, Status> {
        let views = self.calls.workers().await?;
        Ok(Response::new(v1::ListWorkersResponse { workers: views.iter().map(convert::view_to_wire).collect() }))
    }

    async fn drain_worker(
        &self,
        request: Request<v1::DrainWorkerRequest>,
    ) -> Result<Response<v1::DrainWorkerResponse>, Status> {
        let calls = self.calls.by(request.extensions());
        let v1::DrainWorkerRequest { worker_id, reason, deadline_ms } = request.into_inner();
        calls.drain(convert::worker_id(&worker_id).map_err(invalid)?, reason, deadline_ms).await?;
        Ok(Response::new(v1::DrainWorkerResponse {}))
    }

    async fn restart_handler(
        &self,
        request: Request<v1::RestartHandlerRequest>,
    ) -> Result<Response<v1::RestartHandlerResponse>, Status> {
        let calls = self.calls.by(request.extensions());
        let v1::RestartHandlerRequest { worker_id, handler } = request.into_inner();
        calls.restart_handler(convert::worker_id(&worker_id).map_err(invalid)?, handler).await?;
        Ok(Response::new(v1::RestartHandlerResponse {}))
    }
}
