//! `hodei pool …`: worker templates, and how many of their workers stand ready.

use crate::{
    args::{PoolArgs, PoolCommand, PoolFields},
    client::{Client, explain},
    exit, output,
};
use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use hodei_api::{json::fleet::Template, v1};
use hodei_core::requirements::{Capability, Taint};
use serde_json::{Value, json};
use std::path::Path;
use tonic::Code;

pub async fn run(client: &mut Client, command: PoolCommand, json: bool) -> Result<u8> {
    let mut providers = client.providers();
    let answer = match command {
        PoolCommand::List => return list(client, json).await,
        PoolCommand::Show { name } => providers.get_template(v1::GetTemplateRequest { name }).await,
        PoolCommand::Set(args) => {
            let spec = Some(wanted(client, *args).await?);
            providers.put_template(v1::PutTemplateRequest { spec }).await
        }
        PoolCommand::Remove { name } => return remove(client, name, json).await,
        PoolCommand::Restart { name } => providers.restart_template(v1::RestartTemplateRequest { name }).await,
    };
    show(&answer.map_err(|status| explain(&status))?.into_inner(), json);
    Ok(exit::OK)
}

async fn wanted(client: &mut Client, args: PoolArgs) -> Result<v1::TemplateSpec> {
    if let Some(path) = &args.file {
        let at = || format!("cannot use the template {}", path.display());
        return from_file(args.name, path).with_context(at);
    }
    let name = args.name.clone();
    let now = match client.providers().get_template(v1::GetTemplateRequest { name: name.clone() }).await {
        Ok(template) => template.into_inner().spec.unwrap_or_default(),
        Err(status) if status.code() == Code::NotFound => v1::TemplateSpec { name, ..v1::TemplateSpec::default() },
        Err(status) => return Err(explain(&status)),
    };
    Ok(changed(now, args.fields))
}

fn from_file(name: String, path: &Path) -> Result<v1::TemplateSpec> {
    let value: Value = serde_saphyr::from_str(&std::fs::read_to_string(path)?)?;
    let mut template: Template = hodei_api::json::read(value)?;
    if !template.name.is_empty() && template.name != name {
        bail!("name: the file has '{}', and the command line '{name}'", template.name);
    }
    template.name = name;
    Ok(template.into_wire()?)
}

/// Only what is named changes. A list that is named takes the place of the old one.
fn changed(mut spec: v1::TemplateSpec, fields: PoolFields) -> v1::TemplateSpec {
    let mut capacity = spec.capacity.unwrap_or_default();
    let signed = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    set(&mut capacity.slots, fields.slots);
    set(&mut capacity.cpu_millis, fields.cpu.map(|cores| signed(cores.0)));
    set(&mut capacity.memory_bytes, fields.memory.map(signed));
    set(&mut capacity.disk_bytes, fields.disk.map(signed));
    set(&mut capacity.gpus, fields.gpus);
    spec.capacity = Some(capacity);
    set(&mut spec.image, fields.image);
    set(&mut spec.zone, fields.zone);
    set(&mut spec.network, fields.network);
    set(&mut spec.warm, fields.warm);
    set(&mut spec.reuse, fields.reuse.map(word));
    set(&mut spec.sla, fields.sla.map(word));
    set(&mut spec.idle_timeout_ms, fields.idle_timeout.map(|length| signed(length.0)));
    set(&mut spec.max_lifetime_ms, fields.max_lifetime.map(|life| life.0.map_or(0, |length| signed(length.0))));
    set(&mut spec.providers, some(fields.provider));
    set(&mut spec.labels, some(fields.label).map(FromIterator::from_iter));
    set(&mut spec.environment, some(fields.env).map(FromIterator::from_iter));
    set(&mut spec.handlers, some(fields.handler).map(FromIterator::from_iter));
    let mount = |(source, target): (String, String)| v1::Mount { source, target };
    set(&mut spec.mounts, some(fields.mount).map(|mounts| mounts.into_iter().map(mount).collect()));
    set(&mut spec.taints, some(fields.taint.iter().map(taint).collect()));
    set(&mut spec.capabilities, some(fields.capability.iter().map(capability).collect()));
    spec
}

fn set<T>(field: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *field = value;
    }
}

fn some<T>(list: Vec<T>) -> Option<Vec<T>> {
    (!list.is_empty()).then_some(list)
}

fn word(value: impl ValueEnum) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

fn taint(taint: &Taint) -> v1::Taint {
    v1::Taint { key: taint.key.to_string(), value: taint.value.to_string(), effect: taint.effect.name().to_owned() }
}

fn capability(capability: &Capability) -> v1::Capability {
    let parameters = capability.parameters.iter().map(|(name, value)| (name.to_string(), value.to_string()));
    v1::Capability { name: capability.name.to_string(), parameters: parameters.collect() }
}

async fn remove(client: &mut Client, name: String, json: bool) -> Result<u8> {
    let request = v1::RemoveTemplateRequest { name: name.clone() };
    client.providers().remove_template(request).await.map_err(|status| explain(&status))?;
    match json {
        true => output::print_json(&json!({ "name": name, "removed": true })),
        false => output::println("no more of its workers are made"),
    }
    Ok(exit::OK)
}

async fn list(client: &mut Client, json: bool) -> Result<u8> {
    let answer = client.providers().list_templates(v1::ListTemplatesRequest {}).await;
    let templates = answer.map_err(|status| explain(&status))?.into_inner().templates;
    match json {
        true => output::print_json(&Value::Array(templates.iter().map(template_json).collect())),
        false => output::table(&COLUMNS, &templates.iter().map(row).collect::<Vec<_>>()),
    }
    Ok(exit::OK)
}

const COLUMNS: [output::Column; 9] = [
    ("POOL", 0),
    ("IMAGE", 3),
    ("REUSE", 5),
    ("SLA", 6),
    ("WARM", 0),
    ("COMING", 2),
    ("IDLE", 1),
    ("BUSY", 1),
    ("HELD", output::CUT),
];

fn row(template: &v1::Template) -> Vec<String> {
    let spec = template.spec.clone().unwrap_or_default();
    vec![
        spec.name,
        spec.image,
        spec.reuse,
        spec.sla,
        spec.warm.to_string(),
        template.coming.to_string(),
        template.idle.to_string(),
        template.busy.to_string(),
        template.held_because.lines().next().unwrap_or_default().to_owned(),
    ]
}

fn show(template: &v1::Template, json: bool) {
    if json {
        output::print_json(&template_json(template));
        return;
    }
    let spec = template.spec.clone().unwrap_or_default();
    let capacity = spec.capacity.unwrap_or_default();
    let some = |is: bool, text: String| if is { text } else { String::new() };
    let mut size = vec![format!("{} slots", capacity.slots)];
    size.extend((capacity.cpu_millis > 0).then(|| format!("{} cores", capacity.cpu_millis as f64 / 1000.0)));
    let memory = bytesize::ByteSize(u64::try_from(capacity.memory_bytes).unwrap_or(0));
    size.extend((capacity.memory_bytes > 0).then(|| memory.to_string()));
    output::lines(&[
        ("pool", spec.name),
        ("providers", spec.providers.join(", ")),
        ("image", spec.image),
        ("size", size.join(", ")),
        ("labels", pairs(&spec.labels)),
        ("zone", spec.zone),
        ("reuse", spec.reuse),
        ("sla", spec.sla),
        ("warm", spec.warm.to_string()),
        ("workers", format!("{} coming, {} idle, {} busy", template.coming, template.idle, template.busy)),
        ("idle for", output::span(spec.idle_timeout_ms)),
        ("lives for", some(spec.max_lifetime_ms > 0, output::span(spec.max_lifetime_ms))),
        ("handlers", pairs(&spec.handlers)),
        ("held", template.held_because.clone()),
    ]);
}

fn pairs(map: &std::collections::HashMap<String, String>) -> String {
    let mut pairs: Vec<String> = map.iter().map(|(key, value)| format!("{key}={value}")).collect();
    pairs.sort();
    pairs.join(", ")
}

fn template_json(template: &v1::Template) -> Value {
    let spec = Template::from_wire(template.spec.clone().unwrap_or_default());
    let mut value = serde_json::to_value(spec).unwrap_or_default();
    if let Value::Object(fields) = &mut value {
        fields.insert("coming".into(), template.coming.into());
        fields.insert("idle".into(), template.idle.into());
        fields.insert("busy".into(), template.busy.into());
        if !template.held_because.is_empty() {
            fields.insert("held_because".into(), template.held_because.clone().into());
        }
    }
    value
}
