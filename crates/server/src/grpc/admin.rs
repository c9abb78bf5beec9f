//! WorkerAdminService: what operators do with workers.

use super::{invalid, refused};
use crate::{calls::Calls, clock, secrets};
use hodei_api::{
    convert,
    v1::{self, worker_admin_service_server::WorkerAdminService},
};
use hodei_core::{brain::Input, id::WorkerId, spec::Invalid, time::Millis, token::WorkerToken};
use tonic::{Request, Response, Status};
use uuid::Uuid;

const LONGEST_TTL: Millis = Millis::seconds(24 * 3600);

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
            "" => WorkerId(Uuid::now_v7()),
            given => convert::worker_id(given).map_err(invalid)?,
        };
        let ttl = self.ttl(ttl_ms).map_err(invalid)?;
        let token = secrets::new_token();
        let expires_at = clock::now().wall + ttl;
        let stored = WorkerToken { hash: secrets::hash(&token), worker, expires_at, used_by: None };
        calls.act(worker, 0, |caller| Input::CreateToken { caller, token: stored }).await.map_err(refused)?;
        let worker_id = worker.to_string();
        Ok(Response::new(v1::CreateWorkerTokenResponse { token, worker_id, expires_at_ms: expires_at.0 }))
    }

    async fn list_workers(
        &self,
        _: Request<v1::ListWorkersRequest>,
    ) -> Result<Response<v1::ListWorkersResponse>, Status> {
        let views = self.calls.engine.workers().await.map_err(refused)?;
        Ok(Response::new(v1::ListWorkersResponse { workers: views.iter().map(convert::view_to_wire).collect() }))
    }

    async fn drain_worker(
        &self,
        request: Request<v1::DrainWorkerRequest>,
    ) -> Result<Response<v1::DrainWorkerResponse>, Status> {
        let calls = self.calls.by(request.extensions());
        let worker = convert::worker_id(&request.into_inner().worker_id).map_err(invalid)?;
        calls.act(worker, 0, |caller| Input::Drain { caller, worker }).await.map_err(refused)?;
        Ok(Response::new(v1::DrainWorkerResponse {}))
    }
}

impl Service {
    fn ttl(&self, ms: i64) -> Result<Millis, Invalid> {
        match u64::try_from(ms) {
            Ok(0) => Ok(self.calls.engine.shared().options.token_ttl),
            Ok(ms) if Millis(ms) <= LONGEST_TTL => Ok(Millis(ms)),
            _ => Err(Invalid::new("ttl_ms", "must be between 1 ms and 24 hours; zero for the default")),
        }
    }
}
