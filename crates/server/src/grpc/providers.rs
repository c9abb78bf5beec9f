//! ProviderManagementService: who makes workers, and what kinds of workers they make.

use super::invalid;
use crate::{calls::Calls, clock};
use hodei_api::{
    convert,
    v1::{self, provider_management_service_server::ProviderManagementService},
};
use hodei_core::brain::{ProviderOrder, ProviderView, TemplateOrder, TemplateView};
use tonic::{Request, Response, Status};

pub struct Service {
    pub calls: Calls,
}

type Answer<T> = Result<Response<T>, Status>;

fn provider(view: ProviderView) -> Response<v1::Provider> {
    Response::new(convert::provider_to_wire(view))
}

fn template(view: TemplateView) -> Response<v1::Template> {
    Response::new(convert::template_to_wire(view))
}

#[tonic::async_trait]
impl ProviderManagementService for Service {
    async fn list_providers(&self, _: Request<v1::ListProvidersRequest>) -> Answer<v1::ListProvidersResponse> {
        let providers = self.calls.providers().await?.into_iter().map(convert::provider_to_wire).collect();
        Ok(Response::new(v1::ListProvidersResponse { providers }))
    }

    async fn get_provider(&self, request: Request<v1::GetProviderRequest>) -> Answer<v1::Provider> {
        Ok(provider(self.calls.provider(&request.into_inner().name).await?))
    }

    async fn add_provider(&self, request: Request<v1::AddProviderRequest>) -> Answer<v1::Provider> {
        let calls = self.calls.by(request.extensions());
        let spec = request.into_inner().spec.unwrap_or_default();
        let record = convert::provider_from_wire(spec, clock::now().wall).map_err(invalid)?;
        Ok(provider(calls.add_provider(record).await?))
    }

    async fn put_provider(&self, request: Request<v1::PutProviderRequest>) -> Answer<v1::Provider> {
        let calls = self.calls.by(request.extensions());
        let spec = request.into_inner().spec.unwrap_or_default();
        let record = convert::provider_from_wire(spec, clock::now().wall).map_err(invalid)?;
        Ok(provider(calls.put_provider(record).await?))
    }

    async fn remove_provider(&self, request: Request<v1::RemoveProviderRequest>) -> Answer<v1::RemoveProviderResponse> {
        self.calls.by(request.extensions()).remove_provider(&request.into_inner().name).await?;
        Ok(Response::new(v1::RemoveProviderResponse {}))
    }

    async fn enable_provider(&self, request: Request<v1::EnableProviderRequest>) -> Answer<v1::Provider> {
        let calls = self.calls.by(request.extensions());
        Ok(provider(calls.set_provider(&request.into_inner().name, ProviderOrder::Enable).await?))
    }

    async fn disable_provider(&self, request: Request<v1::DisableProviderRequest>) -> Answer<v1::Provider> {
        let calls = self.calls.by(request.extensions());
        Ok(provider(calls.set_provider(&request.into_inner().name, ProviderOrder::Disable).await?))
    }

    async fn check_provider(&self, request: Request<v1::CheckProviderRequest>) -> Answer<v1::Provider> {
        let calls = self.calls.by(request.extensions());
        Ok(provider(calls.check_provider(&request.into_inner().name).await?))
    }

    async fn list_templates(&self, _: Request<v1::ListTemplatesRequest>) -> Answer<v1::ListTemplatesResponse> {
        let templates = self.calls.templates().await?.into_iter().map(convert::template_to_wire).collect();
        Ok(Response::new(v1::ListTemplatesResponse { templates }))
    }

    async fn get_template(&self, request: Request<v1::GetTemplateRequest>) -> Answer<v1::Template> {
        Ok(template(self.calls.template(&request.into_inner().name).await?))
    }

    async fn put_template(&self, request: Request<v1::PutTemplateRequest>) -> Answer<v1::Template> {
        let calls = self.calls.by(request.extensions());
        let spec = request.into_inner().spec.unwrap_or_default();
        Ok(template(calls.put_template(convert::template_from_wire(spec).map_err(invalid)?).await?))
    }

    async fn remove_template(&self, request: Request<v1::RemoveTemplateRequest>) -> Answer<v1::RemoveTemplateResponse> {
        self.calls.by(request.extensions()).remove_template(&request.into_inner().name).await?;
        Ok(Response::new(v1::RemoveTemplateResponse {}))
    }

    async fn set_pool(&self, request: Request<v1::SetPoolRequest>) -> Answer<v1::Template> {
        let calls = self.calls.by(request.extensions());
        let v1::SetPoolRequest { name, warm } = request.into_inner();
        Ok(template(calls.set_pool(&name, warm).await?))
    }

    async fn restart_template(&self, request: Request<v1::RestartTemplateRequest>) -> Answer<v1::Template> {
        let calls = self.calls.by(request.extensions());
        Ok(template(calls.set_template(&request.into_inner().name, TemplateOrder::Restart).await?))
    }
}
