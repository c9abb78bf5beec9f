//! WebhookService: what was told to whom when jobs ended.

use super::invalid;
use crate::calls::{Calls, page_size};
use hodei_api::{
    convert,
    v1::{self, webhook_service_server::WebhookService},
};
use hodei_store::DeliveryFilter;
use tonic::{Request, Response, Status};

const PAGE: usize = 100;
const MAX_PAGE: usize = 1000;

pub struct Service {
    pub calls: Calls,
}

#[tonic::async_trait]
impl WebhookService for Service {
    async fn list_deliveries(
        &self,
        request: Request<v1::ListDeliveriesRequest>,
    ) -> Result<Response<v1::ListDeliveriesResponse>, Status> {
        let request = request.into_inner();
        let size = page_size(request.page_size, PAGE, MAX_PAGE).map_err(invalid)?;
        let before = match request.page_token.as_str() {
            "" => None,
            token => Some(convert::delivery_id("page_token", token).map_err(invalid)?),
        };
        let job = match request.job_id.as_str() {
            "" => None,
            job => Some(convert::job_id(job).map_err(invalid)?),
        };
        let state = kind(convert::delivery_state(request.state).map_err(invalid)?);
        let deliveries = self.calls.deliveries(DeliveryFilter { job, state }, before, size).await?;
        let full = deliveries.len() >= size;
        let next = deliveries.last().filter(|_| full).map(|last| last.id.to_string()).unwrap_or_default();
        let deliveries = deliveries.iter().map(convert::delivery_to_wire).collect();
        Ok(Response::new(v1::ListDeliveriesResponse { deliveries, next_page_token: next }))
    }

    async fn redeliver(
        &self,
        request: Request<v1::RedeliverRequest>,
    ) -> Result<Response<v1::RedeliverResponse>, Status> {
        let calls = self.calls.by(request.extensions());
        let id = convert::delivery_id("delivery_id", &request.into_inner().delivery_id).map_err(invalid)?;
        calls.redeliver(id).await?;
        Ok(Response::new(v1::RedeliverResponse {}))
    }
}

fn kind(state: v1::DeliveryState) -> Option<hodei_store::DeliveryKind> {
    use hodei_store::DeliveryKind;
    match state {
        v1::DeliveryState::Unspecified => None,
        v1::DeliveryState::Pending => Some(DeliveryKind::Pending),
        v1::DeliveryState::Delivered => Some(DeliveryKind::Delivered),
        v1::DeliveryState::Failed => Some(DeliveryKind::Failed),
    }
}
