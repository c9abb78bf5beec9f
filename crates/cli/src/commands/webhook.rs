//! `hodei webhook …`, and how a server is told to deliver.

use crate::{
    args::{Common, DeliveryStateArg},
    client::{Client, Target, explain},
    config::{Config, Webhooks},
    exit, output,
};
use anyhow::{Context, Result, anyhow, bail};
use hodei_api::v1;
use hodei_core::time::Millis;
use hodei_server::webhooks::{Guard, Key, MOST_TRIES, Settings};
use serde_json::{Value, json};
use std::{
    fs::{self, File},
    io::{ErrorKind, Write},
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

/// The server's own secret, in the data folder.
const SECRET: &str = "webhook.secret";

/// What the configuration says, with the secret of the data folder when it has none.
pub fn settings(config: &Webhooks, folder: &Path) -> Result<Settings> {
    if config.retry.len() >= MOST_TRIES {
        bail!("webhooks.retry: there are {} waits; at most {} are allowed", config.retry.len(), MOST_TRIES - 1);
    }
    if config.timeout == Millis::ZERO {
        bail!("webhooks.timeout: must be longer than nothing");
    }
    let allow = config.allow.iter().map(|text| text.parse().map_err(|problem| anyhow!("webhooks.allow: {problem}")));
    Ok(Settings {
        key: key(config, folder)?,
        retry: config.retry.clone(),
        timeout: config.timeout,
        guard: Guard { allow_private: config.allow_private, allow: allow.collect::<Result<_>>()? },
        ..Settings::default()
    })
}

fn key(config: &Webhooks, folder: &Path) -> Result<Key> {
    if !config.secret.0.is_empty() {
        return Key::parse(&config.secret.0).map_err(|problem| anyhow!("webhooks.secret: {problem}"));
    }
    let path = folder.join(SECRET);
    let here = || format!("cannot use the secret of webhooks in {}", path.display());
    let text = match fs::read_to_string(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            make(&path).with_context(here)?;
            fs::read_to_string(&path)
        }
        read => read,
    };
    Key::parse(&text.with_context(here)?).map_err(|problem| anyhow!("it {problem}")).with_context(here)
}

/// Makes a secret unless somebody else has just done so. The file appears whole.
fn make(path: &Path) -> Result<()> {
    let new = path.with_extension(format!("new-{}", std::process::id()));
    let mut file = File::options().create(true).truncate(true).write(true).mode(0o600).open(&new)?;
    writeln!(file, "{}", Key::random().secret().0)?;
    file.sync_all()?;
    let linked = fs::hard_link(&new, path);
    fs::remove_file(&new)?;
    match linked {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error.into()),
        _ => Ok(()),
    }
}

pub fn secret(common: &Common, config: &Config) -> Result<u8> {
    let configured = !config.webhooks.secret.0.is_empty();
    if !configured && !matches!(Target::of(common, config)?, Target::Folder { .. }) {
        bail!("a server's secret is in its configuration or its data folder: ask on its machine, without --server");
    }
    let folder = config.data_folder(common.data.as_deref())?;
    if !configured && !folder.join(SECRET).exists() {
        bail!("no server has run on {} yet; its first start makes the secret", folder.display());
    }
    let secret = key(&config.webhooks, &folder)?.secret();
    match common.json {
        true => output::print_json(&json!({ "secret": secret.0 })),
        false => output::println(&secret.0),
    }
    Ok(exit::OK)
}

pub async fn list(
    client: &mut Client,
    job: Option<String>,
    state: Option<DeliveryStateArg>,
    limit: u32,
    json: bool,
) -> Result<u8> {
    let (job_id, state) = (job.unwrap_or_default(), state.map_or(v1::DeliveryState::Unspecified, wire_state));
    let mut deliveries = Vec::new();
    let mut page_token = String::new();
    while deliveries.len() < limit as usize {
        let page_size = i32::try_from((limit as usize - deliveries.len()).min(1000)).unwrap_or(1000);
        let request = v1::ListDeliveriesRequest { job_id: job_id.clone(), state: state.into(), page_size, page_token };
        let page = client.webhooks().list_deliveries(request).await.map_err(|status| explain(&status))?.into_inner();
        deliveries.extend(page.deliveries);
        page_token = page.next_page_token;
        if page_token.is_empty() {
            break;
        }
    }
    match json {
        true => output::print_json(&Value::Array(deliveries.iter().map(delivery_json).collect())),
        false => output::table(&COLUMNS, &deliveries.iter().map(row).collect::<Vec<_>>()),
    }
    Ok(exit::OK)
}

pub async fn redeliver(client: &mut Client, id: String, json: bool) -> Result<u8> {
    let request = v1::RedeliverRequest { delivery_id: id.clone() };
    client.webhooks().redeliver(request).await.map_err(|status| explain(&status))?;
    match json {
        true => output::print_json(&json!({ "delivery_id": id })),
        false => output::println("it is sent again"),
    }
    Ok(exit::OK)
}

const COLUMNS: [output::Column; 8] =
    [("ID", 0), ("JOB", 3), ("EVENT", 1), ("STATE", 0), ("TRIES", 4), ("LAST", 2), ("CREATED", 5), ("URL", 6)];

fn row(delivery: &v1::Delivery) -> Vec<String> {
    let last = delivery.tries.last().map(|one| match (one.error.as_str(), one.status) {
        ("", status) => status.to_string(),
        (error, _) => error.to_owned(),
    });
    vec![
        delivery.id.clone(),
        delivery.job_id.clone(),
        delivery.event.clone(),
        state_name(delivery.state()),
        delivery.tries.len().to_string(),
        last.unwrap_or_default(),
        output::ago(delivery.created_at_ms),
        delivery.url.clone(),
    ]
}

fn delivery_json(delivery: &v1::Delivery) -> Value {
    let time = |ms: i64| (ms != 0).then(|| output::timestamp(ms));
    let tries = delivery.tries.iter().map(|one| {
        json!({
            "at": time(one.at_ms),
            "status": (one.status != 0).then_some(one.status),
            "error": (!one.error.is_empty()).then_some(&one.error),
            "took_ms": one.took_ms,
        })
    });
    json!({
        "id": delivery.id,
        "job_id": delivery.job_id,
        "event": delivery.event,
        "url": delivery.url,
        "state": state_name(delivery.state()),
        "created_at": time(delivery.created_at_ms),
        "next_at": time(delivery.next_at_ms),
        "tries": tries.collect::<Vec<_>>(),
    })
}

fn state_name(state: v1::DeliveryState) -> String {
    state.as_str_name().trim_start_matches("DELIVERY_STATE_").to_ascii_lowercase()
}

fn wire_state(state: DeliveryStateArg) -> v1::DeliveryState {
    match state {
        DeliveryStateArg::Pending => v1::DeliveryState::Pending,
        DeliveryStateArg::Delivered => v1::DeliveryState::Delivered,
        DeliveryStateArg::Failed => v1::DeliveryState::Failed,
    }
}
