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

async fn put_provider(client: &mut Providers<Channel>, spec: v1::ProviderSpec) -> Result<()> {
    let wanted = convert::provider_from_wire(spec.clone(), Time(0))?;
    match client.get_provider(v1::GetProviderRequest { name: spec.name.clone() }).await {
        Err(status) if status.code() == Code::NotFound => {
            client
                .add_provider(v1::AddProviderRequest { spec: Some(spec) })
                .await
                .map_err(|status| explain(&status))?;
        }
        Err(status) => return Err(explain(&status)),
        Ok(there) => {
            let there = convert::provider_from_wire(there.into_inner().spec.unwrap_or_default(), Time(0))?;
            let differs = (there.kind, there.cap, there.cost, &there.settings)
                != (wanted.kind, wanted.cap, wanted.cost, &wanted.settings);
            if differs {
                let name = spec.name;
                output::note(&format!(
                    "the provider '{name}' is there already and other than in the configuration; to have it as it is written, \
                     remove it first: hodei provider remove {name}"
                ));
            }
        }
    }
    Ok(())
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
