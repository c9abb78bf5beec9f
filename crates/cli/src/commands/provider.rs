//! `hodei provider …`

use crate::{
    args::{ProviderArgs, ProviderCommand},
    client::{Client, explain},
    exit, output,
};
use anyhow::Result;
use clap::ValueEnum;
use hodei_api::v1;
use serde_json::{Value, json};

pub async fn run(client: &mut Client, command: ProviderCommand, json: bool) -> Result<u8> {
    let mut providers = client.providers();
    let answer = match command {
        ProviderCommand::List => return list(client, json).await,
        ProviderCommand::Add(args) => providers.add_provider(v1::AddProviderRequest { spec: Some(spec(args)) }).await,
        ProviderCommand::Set(args) => providers.put_provider(v1::PutProviderRequest { spec: Some(spec(args)) }).await,
        ProviderCommand::Health { name } => providers.check_provider(v1::CheckProviderRequest { name }).await,
        ProviderCommand::Enable { name } => providers.enable_provider(v1::EnableProviderRequest { name }).await,
        ProviderCommand::Disable { name } => providers.disable_provider(v1::DisableProviderRequest { name }).await,
        ProviderCommand::Remove { name } => return remove(client, name, json).await,
    };
    let provider = answer.map_err(|status| explain(&status))?.into_inner();
    show(&provider, json);
    Ok(exit::OK)
}

fn spec(args: ProviderArgs) -> v1::ProviderSpec {
    let kind = args.kind.to_possible_value().map(|kind| kind.get_name().to_owned()).unwrap_or_default();
    let settings = args.settings.into_iter().collect();
    v1::ProviderSpec { name: args.name, kind, cap: args.cap, cost: args.cost, settings }
}

async fn remove(client: &mut Client, name: String, json: bool) -> Result<u8> {
    let request = v1::RemoveProviderRequest { name: name.clone() };
    client.providers().remove_provider(request).await.map_err(|status| explain(&status))?;
    match json {
        true => output::print_json(&json!({ "name": name, "removed": true })),
        false => output::println("its workers finish what they run and go; nothing more is asked of it"),
    }
    Ok(exit::OK)
}

async fn list(client: &mut Client, json: bool) -> Result<u8> {
    let answer = client.providers().list_providers(v1::ListProvidersRequest {}).await;
    let providers = answer.map_err(|status| explain(&status))?.into_inner().providers;
    match json {
        true => output::print_json(&Value::Array(providers.iter().map(provider_json).collect())),
        false => output::table(&COLUMNS, &providers.iter().map(row).collect::<Vec<_>>()),
    }
    Ok(exit::OK)
}

const COLUMNS: [output::Column; 6] =
    [("PROVIDER", 0), ("KIND", 2), ("HEALTH", 0), ("WORKERS", 1), ("CAP", 3), ("HELD", output::CUT)];

fn health_name(provider: &v1::Provider) -> String {
    provider.health().as_str_name().trim_start_matches("PROVIDER_HEALTH_").to_ascii_lowercase()
}

fn row(provider: &v1::Provider) -> Vec<String> {
    let spec = provider.spec.clone().unwrap_or_default();
    let held = if provider.held_because.is_empty() { &provider.reason } else { &provider.held_because };
    vec![
        spec.name,
        spec.kind,
        if provider.enabled { health_name(provider) } else { "disabled".to_owned() },
        provider.workers.to_string(),
        spec.cap.to_string(),
        held.lines().next().unwrap_or_default().to_owned(),
    ]
}

fn show(provider: &v1::Provider, json: bool) {
    if json {
        output::print_json(&provider_json(provider));
        return;
    }
    let spec = provider.spec.clone().unwrap_or_default();
    let can = provider.capabilities.clone().unwrap_or_default();
    let mut settings: Vec<String> = spec.settings.iter().map(|(name, value)| format!("{name}={value}")).collect();
    settings.sort();
    output::lines(&[
        ("provider", spec.name),
        ("kind", spec.kind),
        ("state", if provider.enabled { "enabled".to_owned() } else { "disabled".to_owned() }),
        ("health", health_name(provider)),
        ("because", provider.reason.clone()),
        ("held", provider.held_because.clone()),
        ("workers", format!("{} of at most {}", provider.workers, spec.cap)),
        ("isolation", can.isolation),
        ("settings", settings.join(", ")),
    ]);
}

fn provider_json(provider: &v1::Provider) -> Value {
    let spec = provider.spec.clone().unwrap_or_default();
    let can = provider.capabilities.clone().unwrap_or_default();
    json!({
        "name": spec.name,
        "kind": spec.kind,
        "cap": spec.cap,
        "cost": spec.cost,
        "settings": spec.settings,
        "enabled": provider.enabled,
        "health": health_name(provider),
        "reason": (!provider.reason.is_empty()).then_some(&provider.reason),
        "held_because": (!provider.held_because.is_empty()).then_some(&provider.held_because),
        "workers": provider.workers,
        "capabilities": {
            "isolation": can.isolation,
            "images": can.images,
            "gpus": can.gpus,
            "cpu_millis": can.cpu_millis,
            "memory_bytes": can.memory_bytes,
            "architectures": can.architectures,
            "startup_ms": can.startup_ms,
        },
        "added_at": output::timestamp(provider.added_at_ms),
    })
}
