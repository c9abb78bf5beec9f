//! AccessService: tokens, and who did what.

use super::invalid;
use crate::calls::{Calls, page_size};
use hodei_api::{
    convert,
    v1::{self, access_service_server::AccessService},
};
use hodei_core::spec::Invalid;
use hodei_store::AuditFilter;
use tonic::{Request, Response, Status};

const DEFAULT_PAGE: usize = 100;
const MAX_PAGE: usize = 1000;

pub struct Service {
    pub calls: Calls,
}

#[tonic::async_trait]
impl AccessService for Service {
    async fn create_api_token(
        &self,
        request: Request<v1::CreateApiTokenRequest>,
    ) -> Result<Response<v1::CreateApiTokenResponse>, Status> {
        let calls = self.calls.by(request.extensions());
        let v1::CreateApiTokenRequest { name, role, ttl_ms } = request.into_inner();
        let role = convert::role_from_wire(role).map_err(invalid)?;
        let ttl = convert::optional_length("ttl_ms", ttl_ms).map_err(invalid)?;
        let (token, info) = calls.create_api_token(name, role, ttl).await?;
        let info = Some(convert::api_token_to_wire(&info));
        Ok(Response::new(v1::CreateApiTokenResponse { token, info }))
    }

    async fn list_api_tokens(
        &self,
        _: Request<v1::ListApiTokensRequest>,
    ) -> Result<Response<v1::ListApiTokensResponse>, Status> {
        let tokens = self.calls.api_tokens().iter().map(convert::api_token_to_wire).collect();
        Ok(Response::new(v1::ListApiTokensResponse { tokens }))
    }

    async fn revoke_api_token(
        &self,
        request: Request<v1::RevokeApiTokenRequest>,
    ) -> Result<Response<v1::RevokeApiTokenResponse>, Status> {
        let calls = self.calls.by(request.extensions());
        let id = request.into_inner().id;
        let id = id.parse().map_err(|_| invalid(Invalid::new("id", "is not the id of an API token (a UUID)")))?;
        calls.revoke_api_token(id).await?;
        Ok(Response::new(v1::RevokeApiTokenResponse {}))
    }

    async fn list_audit(
        &self,
        request: Request<v1::ListAuditRequest>,
    ) -> Result<Response<v1::ListAuditResponse>, Status> {
        let v1::ListAuditRequest { page_size: size, page_token: token, actor, action } = request.into_inner();
        let limit = page_size(size, DEFAULT_PAGE, MAX_PAGE).map_err(invalid)?;
        let before = page_token(&token).map_err(invalid)?;
        let text = |text: String| (!text.is_empty()).then_some(text);
        let filter = AuditFilter { actor: text(actor), action: text(action) };
        let found = self.calls.audit_log(filter, before, limit).await?;
        let next = found.last().filter(|_| found.len() >= limit).map(|(number, _)| number.to_string());
        let entries = found.iter().map(|(_, entry)| convert::audit_to_wire(entry)).collect();
        Ok(Response::new(v1::ListAuditResponse { entries, next_page_token: next.unwrap_or_default() }))
    }
}

fn page_token(token: &str) -> Result<Option<u64>, Invalid> {
    let bad = |_| Invalid::new("page_token", "is not a token that this server gave");
    if token.is_empty() { Ok(None) } else { token.parse().map(Some).map_err(bad) }
}
