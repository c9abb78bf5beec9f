//! The providers and worker templates of the configuration: put in place when the server starts.

use crate::{client::explain, config::Config, output};
use anyhow::{Context, Result};
use hodei_api::{
    convert,
    v1::{self, provider_management_service_client::ProviderManagementServiceClient as Providers},
};
use hodei_core::time::Time;
use hodei_worker::Connect;
use tonic::{Code, transport::Channel};

pub async fn put(config: &Config, connect: Connect) -> Result<()> {
    if config.provider.is_empty() && config.template.is_empty() {
        return Ok(());
    }
    let mut client = Providers::new(connect().await?);
    for provider in &config.provider {
        let at = || format!("the provider '{}' of the configuration", provider.name);
        put_provider(&mut client, provider.clone().into_wire()).await.with_context(at)?;
    }
    for template in &config.template {
        let at = || format!("the template '{}' of the configuration", template.name);
        let wire = template.clone().into_wire().with_context(at)?;
        put_template(&mut client, wire).await.with_context(at)?;
    }
    Ok(())
}

/// What the configuration says of a provider holds, whatever it was before. Only one that has workers elsewhere stays as it is.
async fn put_provider(client: &mut Providers<Channel>, spec: v1::ProviderSpec) -> Result<()> {
    let wanted = convert::provider_from_wire(spec.clone(), Time(0))?;
    let there = match client.get_provider(v1::GetProviderRequest { name: spec.name.clone() }).await {
        Err(status) if status.code() == Code::NotFound => None,
        Err(status) => return Err(explain(&status)),
        Ok(there) => Some(convert::provider_from_wire(there.into_inner().spec.unwrap_or_default(), Time(0))?),
    };
    if there.as_ref() == Some(&wanted) {
        return Ok(());
    }
    match client.put_provider(v1::PutProviderRequest { spec: Some(spec) }).await {
        Err(status) if status.code() == Code::FailedPrecondition => {
            output::note(&format!("not as in the configuration: {}", status.message()));
            Ok(())
        }
        answer => answer.map(drop).map_err(|status| explain(&status)),
    }
}

async fn put_template(client: &mut Providers<Channel>, spec: v1::TemplateSpec) -> Result<()> {
    let wanted = convert::template_from_wire(spec.clone())?;
    let there = match client.get_template(v1::GetTemplateRequest { name: spec.name.clone() }).await {
        Err(status) if status.code() == Code::NotFound => None,
        Err(status) => return Err(explain(&status)),
        Ok(there) => Some(convert::template_from_wire(there.into_inner().spec.unwrap_or_default())?),
    };
    if there.as_ref() != Some(&wanted) {
        client.put_template(v1::PutTemplateRequest { spec: Some(spec) }).await.map_err(|status| explain(&status))?;
    }
    Ok(())
}
