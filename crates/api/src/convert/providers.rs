//! Providers and worker templates: as people add them, and as they are seen.

use super::{
    jobs::{count, signed},
    requirements::{
        self, capabilities_from_wire, capabilities_to_wire, map_to_wire, some_text, taints_from_wire, taints_to_wire,
    },
    workers::{MAX_SLOTS, capacity_to_wire},
};
use crate::v1;
use hodei_core::{
    brain::{ProviderView, TemplateView},
    provider::{ProviderCapabilities, ProviderHealth, ProviderKind, ProviderRecord},
    spec::{Invalid, check_task_type},
    supervise::{Sla, UnknownSla},
    template::{Mount, Reuse, WorkerTemplate},
    time::{Millis, Time},
    worker::Capacity,
};
use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

const DEFAULT_CAP: u32 = 10;
const MAX_CAP: i32 = 100_000;
const MAX_ITEMS: usize = 64;
/// Of a path, a command line, the value of a variable.
const MAX_TEXT: usize = 4096;
/// It becomes part of names that providers give.
const MAX_NAME: usize = 63;
const LONGEST: Millis = Millis::seconds(366 * 24 * 3600);

/// The name of a provider or of a template: it is part of addresses and of labels elsewhere.
pub fn fleet_name(field: &str, name: &str) -> Result<Arc<str>, Invalid> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let begins = name.starts_with(|c: char| c.is_ascii_alphanumeric());
    if !begins || name.len() > MAX_NAME || !name.chars().all(plain) {
        let problem = format!(
            "must begin with a letter or digit and have only letters, digits, '-', '_' and '.', at most {MAX_NAME}"
        );
        return Err(Invalid::new(field, problem));
    }
    Ok(name.into())
}

/// What its settings mean is for its kind to say.
pub fn provider_from_wire(wire: v1::ProviderSpec, now: Time) -> Result<ProviderRecord, Invalid> {
    let kinds = || ProviderKind::ALL.map(ProviderKind::name).join(" or ");
    let unknown = || Invalid::new("kind", format!("'{}' is not a kind of provider; use {}", wire.kind, kinds()));
    let cap = match wire.cap {
        0 => DEFAULT_CAP,
        1..=MAX_CAP => wire.cap.unsigned_abs(),
        _ => return Err(Invalid::new("cap", format!("must be between 1 and {MAX_CAP}"))),
    };
    Ok(ProviderRecord {
        name: fleet_name("name", &wire.name)?,
        kind: ProviderKind::parse(&wire.kind).ok_or_else(unknown)?,
        enabled: true,
        cap,
        cost: u64::try_from(wire.cost).map_err(|_| Invalid::new("cost", "must not be negative"))?,
        settings: texts("settings", wire.settings)?,
        added_at: now,
        leaving: false,
    })
}

pub fn provider_to_wire(view: ProviderView) -> v1::Provider {
    let ProviderView { record, health, capabilities, workers, held_because } = view;
    let kind = match health {
        ProviderHealth::Healthy => v1::ProviderHealth::Healthy,
        ProviderHealth::Degraded(_) => v1::ProviderHealth::Degraded,
        ProviderHealth::Unhealthy(_) => v1::ProviderHealth::Unhealthy,
        ProviderHealth::Unknown => v1::ProviderHealth::Unknown,
    };
    v1::Provider {
        spec: Some(v1::ProviderSpec {
            name: record.name.to_string(),
            kind: record.kind.name().to_owned(),
            cap: count(record.cap),
            cost: signed(record.cost),
            settings: record.settings.into_iter().collect(),
        }),
        enabled: record.enabled,
        health: kind.into(),
        reason: health.reason().to_owned(),
        capabilities: Some(provider_capabilities_to_wire(capabilities)),
        workers: count(workers),
        held_because,
        added_at_ms: record.added_at.0,
    }
}

fn provider_capabilities_to_wire(capabilities: ProviderCapabilities) -> v1::ProviderCapabilities {
    v1::ProviderCapabilities {
        isolation: capabilities.isolation.name().to_owned(),
        images: capabilities.images,
        gpus: count(capabilities.gpus),
        cpu_millis: signed(capabilities.cpu_millis),
        memory_bytes: signed(capabilities.memory_bytes),
        architectures: capabilities.architectures,
        startup_ms: signed(capabilities.startup.0),
    }
}

/// Each of them is a worker that exists.
const MOST_WARM: i32 = 1000;

/// How many stand ready.
pub fn warm_from_wire(warm: i32) -> Result<u32, Invalid> {
    match u32::try_from(warm) {
        Ok(count) if warm <= MOST_WARM => Ok(count),
        _ => Err(Invalid::new("warm", format!("must be between 0 and {MOST_WARM}"))),
    }
}

pub fn template_from_wire(wire: v1::TemplateSpec) -> Result<WorkerTemplate, Invalid> {
    let reuse = match wire.reuse.as_str() {
        "" => Reuse::default(),
        name => Reuse::parse(name)
            .ok_or_else(|| Invalid::new("reuse", format!("'{name}' is not a way of reuse; use never or idle")))?,
    };
    let bad_sla = |unknown: UnknownSla| Invalid::new("sla", unknown.to_string());
    if wire.providers.len() > MAX_ITEMS {
        return Err(Invalid::new("providers", format!("must be at most {MAX_ITEMS}")));
    }
    let idle = length("idle_timeout_ms", wire.idle_timeout_ms)?;
    let mut template = WorkerTemplate {
        name: fleet_name("name", &wire.name)?,
        providers: wire.providers.iter().map(|name| fleet_name("providers", name)).collect::<Result<_, _>>()?,
        image: some_text("image", &wire.image)?,
        capacity: capacity_from_wire(wire.capacity.unwrap_or_default())?,
        labels: requirements::map("labels", wire.labels)?,
        taints: taints_from_wire("taints", wire.taints)?,
        capabilities: capabilities_from_wire("capabilities", wire.capabilities)?,
        zone: some_text("zone", &wire.zone)?,
        environment: environment_from_wire(wire.environment)?,
        handlers: handlers_from_wire(wire.handlers)?,
        mounts: mounts_from_wire(wire.mounts)?,
        network: some_text("network", &wire.network)?.map(|network| network.to_string()),
        reuse,
        sla: if wire.sla.is_empty() { Sla::default() } else { Sla::parse(&wire.sla).map_err(bad_sla)? },
        warm: warm_from_wire(wire.warm)?,
        max_lifetime: length("max_lifetime_ms", wire.max_lifetime_ms)?,
        ..WorkerTemplate::default()
    };
    template.idle_timeout = idle.unwrap_or(template.idle_timeout);
    Ok(template)
}

pub fn template_to_wire(view: TemplateView) -> v1::Template {
    v1::Template {
        spec: Some(template_spec_to_wire(view.template)),
        coming: count(view.coming),
        idle: count(view.idle),
        busy: count(view.busy),
        held_because: view.held_because,
    }
}

pub fn template_spec_to_wire(template: WorkerTemplate) -> v1::TemplateSpec {
    let mount = |mount: Mount| v1::Mount { source: mount.source, target: mount.target };
    let handler = |(task_type, command): (Arc<str>, String)| (task_type.to_string(), command);
    v1::TemplateSpec {
        name: template.name.to_string(),
        providers: template.providers.iter().map(ToString::to_string).collect(),
        image: template.image.as_deref().unwrap_or_default().to_owned(),
        capacity: Some(capacity_to_wire(&template.capacity)),
        labels: map_to_wire(&template.labels),
        taints: taints_to_wire(&template.taints),
        capabilities: capabilities_to_wire(&template.capabilities),
        zone: template.zone.as_deref().unwrap_or_default().to_owned(),
        environment: template.environment.into_iter().collect(),
        handlers: template.handlers.into_iter().map(handler).collect(),
        mounts: template.mounts.into_iter().map(mount).collect(),
        network: template.network.unwrap_or_default(),
        reuse: template.reuse.name().to_owned(),
        warm: count(template.warm),
        idle_timeout_ms: signed(template.idle_timeout.0),
        max_lifetime_ms: template.max_lifetime.map_or(0, |length| signed(length.0)),
        sla: template.sla.name().to_owned(),
    }
}

/// One slot unless it says otherwise; zero elsewhere is no limit.
fn capacity_from_wire(wire: v1::Capacity) -> Result<Capacity, Invalid> {
    let slots = if wire.slots == 0 { 1 } else { wire.slots };
    if !(1..=MAX_SLOTS).contains(&slots) {
        return Err(Invalid::new("capacity.slots", format!("must be between 1 and {MAX_SLOTS}")));
    }
    let number = |field: &str, value: i64| {
        u64::try_from(value).map_err(|_| Invalid::new(format!("capacity.{field}"), "must not be negative"))
    };
    Ok(Capacity {
        slots: slots.unsigned_abs(),
        cpu_millis: number("cpu_millis", wire.cpu_millis)?,
        memory_bytes: number("memory_bytes", wire.memory_bytes)?,
        disk_bytes: number("disk_bytes", wire.disk_bytes)?,
        gpus: u32::try_from(number("gpus", wire.gpus.into())?).unwrap_or(0),
    })
}

fn environment_from_wire(wire: HashMap<String, String>) -> Result<BTreeMap<String, String>, Invalid> {
    for name in wire.keys() {
        let field = || format!("environment.{name}");
        if name.contains('=') {
            return Err(Invalid::new(field(), "a variable's name must not contain '='"));
        }
        if name.starts_with("HODEI_") {
            return Err(Invalid::new(field(), "names that begin with HODEI_ are set by the server; choose another"));
        }
    }
    texts("environment", wire)
}

/// A type, or a pattern of types, and what `hodei worker run --handler` takes after its '='.
fn handlers_from_wire(wire: HashMap<String, String>) -> Result<BTreeMap<Arc<str>, String>, Invalid> {
    for (task_type, command) in &wire {
        check_task_type("handlers", task_type)?;
        if task_type.contains('=') {
            return Err(Invalid::new("handlers", "the type of a task must not contain '='"));
        }
        if command.trim().is_empty() {
            return Err(Invalid::new(format!("handlers.{task_type}"), "must be a command, subprocess:… or http://…"));
        }
    }
    let handlers = texts("handlers", wire)?;
    Ok(handlers.into_iter().map(|(task_type, command)| (task_type.into(), command)).collect())
}

fn mounts_from_wire(wire: Vec<v1::Mount>) -> Result<Vec<Mount>, Invalid> {
    if wire.len() > MAX_ITEMS {
        return Err(Invalid::new("mounts", format!("must be at most {MAX_ITEMS}")));
    }
    let path = |field: String, path: String| {
        let whole = path.starts_with('/') && path.len() <= MAX_TEXT;
        // Engines write a mount as source:target:options.
        let odd = path.contains(':') || path.chars().any(char::is_control) || path.split('/').any(|part| part == "..");
        if whole && !odd { Ok(path) } else { Err(Invalid::new(field, "must be an absolute path without ':' or '..'")) }
    };
    let one = |(i, wire): (usize, v1::Mount)| {
        let source = path(format!("mounts[{i}].source"), wire.source)?;
        let target = path(format!("mounts[{i}].target"), wire.target)?;
        if target.trim_end_matches('/').is_empty() {
            return Err(Invalid::new(format!("mounts[{i}].target"), "must not be the root of the worker"));
        }
        Ok(Mount { source, target })
    };
    wire.into_iter().enumerate().map(one).collect()
}

fn texts(field: &str, wire: HashMap<String, String>) -> Result<BTreeMap<String, String>, Invalid> {
    if wire.len() > MAX_ITEMS {
        return Err(Invalid::new(field, format!("must be at most {MAX_ITEMS}")));
    }
    for (name, value) in &wire {
        if name.is_empty() || name.len() > MAX_TEXT || name.chars().any(char::is_control) {
            return Err(Invalid::new(field, format!("a name must be one line of at most {MAX_TEXT} bytes")));
        }
        if value.len() > MAX_TEXT || value.contains('\0') {
            let problem = format!("must be at most {MAX_TEXT} bytes, none of them NUL");
            return Err(Invalid::new(format!("{field}.{name}"), problem));
        }
    }
    Ok(wire.into_iter().collect())
}

/// None when zero.
fn length(field: &str, ms: i64) -> Result<Option<Millis>, Invalid> {
    match u64::try_from(ms).map(Millis) {
        Ok(Millis(0)) => Ok(None),
        Ok(length) if length <= LONGEST => Ok(Some(length)),
        _ => Err(Invalid::new(field, "must be between zero and 366 days")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template() -> v1::TemplateSpec {
        v1::TemplateSpec {
            name: "small".into(),
            providers: vec!["docker".into()],
            image: "busybox:1".into(),
            handlers: [("email.send".to_owned(), "./send".to_owned())].into(),
            mounts: vec![v1::Mount { source: "/a".into(), target: "/b".into() }],
            idle_timeout_ms: 5000,
            ..v1::TemplateSpec::default()
        }
    }

    #[test]
    fn a_template_comes_back_as_it_went() {
        let core = template_from_wire(template()).expect("a template");
        assert_eq!((core.capacity.slots, core.idle_timeout), (1, Millis(5000)));
        assert_eq!(template_from_wire(template_spec_to_wire(core.clone())).expect("a template"), core);
    }

    #[test]
    fn each_bad_field_of_a_template_is_named() {
        let rejected = |change: fn(&mut v1::TemplateSpec)| {
            let mut wire = template();
            change(&mut wire);
            template_from_wire(wire).expect_err("must be refused").field
        };
        assert_eq!(rejected(|t| t.name = "../etc".into()), "name");
        assert_eq!(rejected(|t| t.name = String::new()), "name");
        assert_eq!(rejected(|t| t.reuse = "always".into()), "reuse");
        assert_eq!(rejected(|t| t.sla = "best".into()), "sla");
        assert_eq!(rejected(|t| t.warm = -1), "warm");
        assert_eq!(rejected(|t| t.mounts[0].target = "b".into()), "mounts[0].target");
        assert_eq!(rejected(|t| t.mounts[0].target = "/".into()), "mounts[0].target");
        assert_eq!(rejected(|t| t.mounts[0].source = "/a/../b".into()), "mounts[0].source");
        assert_eq!(rejected(|t| t.mounts[0].source = "/a:/c".into()), "mounts[0].source");
        assert_eq!(rejected(|t| _ = t.environment.insert("HODEI_TOKEN".into(), "x".into())), "environment.HODEI_TOKEN");
        assert_eq!(rejected(|t| _ = t.handlers.insert("a b".into(), "x".into())), "handlers");
        assert_eq!(rejected(|t| _ = t.handlers.insert("a".into(), " ".into())), "handlers.a");
        assert_eq!(rejected(|t| t.max_lifetime_ms = -1), "max_lifetime_ms");
        assert_eq!(rejected(|t| t.capacity = Some(v1::Capacity { slots: -1, ..Default::default() })), "capacity.slots");
    }

    #[test]
    fn each_bad_field_of_a_provider_is_named() {
        let spec = |kind: &str, cap| v1::ProviderSpec {
            name: "p".into(),
            kind: kind.into(),
            cap,
            ..v1::ProviderSpec::default()
        };
        let read = |spec| provider_from_wire(spec, Time(1));
        assert_eq!(read(spec("process", 0)).expect("a provider").cap, DEFAULT_CAP);
        assert_eq!(read(spec("vm", 0)).expect_err("kind").field, "kind");
        assert_eq!(read(spec("docker", -1)).expect_err("cap").field, "cap");
        assert_eq!(read(v1::ProviderSpec { cost: -1, ..spec("docker", 1) }).expect_err("cost").field, "cost");
    }
}
