//! `hodei worker …`

use crate::{
    args::{Common, TraitArgs, WorkerArgs},
    client::{Client, IdentityFiles, Target, explain},
    commands::handlers::handlers,
    config::{self, Config, Handler},
    exit, output,
};
use anyhow::{Result, bail};
use futures::future::FutureExt;
use hodei_api::v1;
use hodei_core::time::Millis;
use hodei_worker::{AgentOptions, Capacity, Connect, LinkError, Processes, WorkerInfo, guardian::GuardianCommand};
use rustix::{
    fs::statvfs,
    system::{sysinfo, uname},
};
use serde_json::{Value, json};
use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::Arc,
};

/// A few full chunks of output must fit, or a job could never print.
const SMALLEST_SPOOL: u64 = 4 << 20;
/// The folder of the worker inside the data folder.
pub const FOLDER: &str = "worker";

pub async fn run(common: &Common, config: &Config, args: WorkerArgs) -> Result<u8> {
    super::serve::log_to_stderr();
    let target = match common.server.as_deref().unwrap_or(&config.connect) {
        "" => bail!("a worker needs a server: give its address with --server or HODEI_SERVER"),
        url => Target::parse(url, common)?.proving(identity(&args)?),
    };
    let folder = config.data_folder(common.data.as_deref())?.join(FOLDER);
    let connect = move || {
        let target = target.clone();
        async move { target.channel().await.map_err(|error| LinkError::Unreachable(format!("{error:#}"))) }.boxed()
    };
    let options = AgentOptions {
        token: args.token.clone(),
        worker: args.worker_id,
        ..agent(config, Arc::new(connect), folder, args.name.as_deref(), &args.traits, &args.handler)?
    };
    hodei_worker::run(options, hodei_worker::wishes_of_signals()).await?;
    Ok(exit::OK)
}

fn identity(args: &WorkerArgs) -> Result<Option<IdentityFiles>> {
    let (Some(cert), Some(key)) = (args.tls_cert.clone(), args.tls_key.clone()) else { return Ok(None) };
    let files = IdentityFiles { cert, key };
    files.check()?;
    Ok(Some(files))
}

/// An agent as the configuration has it, with more handlers.
pub fn agent(
    config: &Config,
    connect: Connect,
    folder: PathBuf,
    name: Option<&str>,
    traits: &TraitArgs,
    more: &[Handler],
) -> Result<AgentOptions> {
    let host = uname().nodename().to_string_lossy().into_owned();
    let named = name.or(Some(config.worker.name.as_str()).filter(|name| !name.is_empty()));
    let info = WorkerInfo {
        name: named.unwrap_or(&host).to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        hostname: host.clone(),
        capacity: capacity(&config.worker, traits, &folder),
        ..described(&config.worker, traits)
    };
    Ok(AgentOptions {
        connect,
        token: None,
        worker: None,
        info,
        folder,
        spool_bytes: usize::try_from(config.worker.spool.max(SMALLEST_SPOOL))
            .unwrap_or(usize::MAX)
            .min(tokio::sync::Semaphore::MAX_PERMITS),
        processes: Some(Processes {
            pids_limit: config.worker.pids_limit,
            pass_environment: traits.pass_environment,
            guardian: GuardianCommand::default(),
        }),
        handlers: handlers(config.handler.iter().chain(more))?,
    })
}

/// What jobs may reserve: as told, or what the machine has.
fn capacity(config: &config::Worker, traits: &TraitArgs, folder: &Path) -> Capacity {
    let cores = std::thread::available_parallelism().map_or(1, usize::from) as u64;
    let slots = traits.slots.or(Some(config.slots).filter(|slots| *slots > 0));
    let memory = || sysinfo().totalram * u64::from(sysinfo().mem_unit);
    Capacity {
        slots: slots.unwrap_or(u32::try_from(cores).unwrap_or(1)),
        cpu_millis: traits.cpu.or(config.cpu).map_or(cores * 1000, |cores| cores.0),
        memory_bytes: traits.memory.or(config.memory).unwrap_or_else(memory),
        disk_bytes: traits.disk.or(config.disk).unwrap_or_else(|| free_disk(folder)),
        gpus: traits.gpus.unwrap_or(config.gpus),
    }
}

/// What is free where this folder is or will be, in whole GiB: it changes all the time.
fn free_disk(folder: &Path) -> u64 {
    let there = folder.ancestors().find(|folder| folder.exists());
    let free = there.and_then(|folder| statvfs(folder).ok()).map_or(0, |disk| disk.f_bavail * disk.f_frsize);
    free >> 30 << 30
}

/// What a worker is like.
fn described(config: &config::Worker, traits: &TraitArgs) -> WorkerInfo {
    let text = |given: &Option<String>, configured: &str| {
        given.as_deref().or(Some(configured).filter(|text| !text.is_empty())).map(Arc::from)
    };
    WorkerInfo {
        labels: config.labels.iter().chain(&traits.label).cloned().collect(),
        taints: config.taints.iter().chain(&traits.taint).cloned().collect(),
        capabilities: config.capabilities.iter().chain(&traits.capability).cloned().collect(),
        zone: text(&traits.zone, &config.zone),
        isolation: traits.isolation.unwrap_or(config.isolation),
        image: text(&traits.image, &config.image),
        sla: traits.sla.unwrap_or_default(),
        ..WorkerInfo::default()
    }
}

pub async fn list(client: &mut Client, json: bool) -> Result<u8> {
    let answer = client.admin().list_workers(v1::ListWorkersRequest {}).await.map_err(|status| explain(&status))?;
    let workers = answer.into_inner().workers;
    if json {
        output::print_json(&Value::Array(workers.iter().map(worker_json).collect()));
    } else {
        output::table(&COLUMNS, &workers.iter().map(row).collect::<Vec<_>>());
    }
    Ok(exit::OK)
}

const COLUMNS: [output::Column; 12] = [
    ("ID", 0),
    ("NAME", 3),
    ("STATE", 0),
    ("JOBS", 1),
    ("FREE", 4),
    ("POOL", 2),
    ("LEAVES BECAUSE", 5),
    ("ZONE", 7),
    ("LABELS", 8),
    ("TAINTS", 6),
    ("RUNS", 10),
    ("HANDLERS", 9),
];

fn row(worker: &v1::Worker) -> Vec<String> {
    let info = worker.info.clone().unwrap_or_default();
    let free = worker.free.unwrap_or_default();
    let processes = (!info.tasks_only).then(|| "processes".to_owned());
    let offer = processes.into_iter().chain(info.task_types).collect::<Vec<_>>().join(", ");
    let handlers = info.handlers.iter().map(handler).collect::<Vec<_>>().join(", ");
    vec![
        worker.id.clone(),
        info.name,
        output::worker_state_name(worker.state()),
        format!("{}/{}", worker.running, info.capacity.unwrap_or_default().slots),
        format!("{} cpu, {}", free.cpu_millis as f64 / 1000.0, memory(free.memory_bytes)),
        match worker.provider.as_str() {
            "" => String::new(),
            provider => format!("{} ({provider})", worker.template),
        },
        worker.drain_reason.clone(),
        info.zone,
        pairs(&info.labels),
        info.taints.iter().map(taint).collect::<Vec<_>>().join(", "),
        offer,
        handlers,
    ]
}

fn memory(bytes: i64) -> bytesize::ByteSize {
    bytesize::ByteSize(u64::try_from(bytes).unwrap_or(0))
}

/// A handler with processes of its own.
fn handler(handler: &v1::HandlerInfo) -> String {
    let state = if handler.given_up { ", given up" } else { "" };
    format!("{} ({}{state})", handler.name, handler.sla)
}

fn pairs(labels: &HashMap<String, String>) -> String {
    let mut pairs: Vec<String> = labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
    pairs.sort();
    pairs.join(", ")
}

fn taint(taint: &v1::Taint) -> String {
    let value = if taint.value.is_empty() { String::new() } else { format!("={}", taint.value) };
    let effect = if taint.effect == "PreferNoSchedule" { ":PreferNoSchedule" } else { "" };
    format!("{}{value}{effect}", taint.key)
}

fn worker_json(worker: &v1::Worker) -> Value {
    let info = worker.info.clone().unwrap_or_default();
    let capacity = |has: v1::Capacity| {
        json!({
            "slots": has.slots,
            "cpu_millis": has.cpu_millis,
            "memory_bytes": has.memory_bytes,
            "disk_bytes": has.disk_bytes,
            "gpus": has.gpus,
        })
    };
    let taints = info.taints.iter().map(taint).collect::<Vec<_>>();
    let capability = |has: &v1::Capability| json!({ "name": has.name, "parameters": has.parameters });
    let capabilities = info.capabilities.iter().map(capability).collect::<Vec<_>>();
    json!({
        "id": worker.id,
        "name": info.name,
        "version": info.version,
        "hostname": info.hostname,
        "state": output::worker_state_name(worker.state()),
        "running": worker.running,
        "capacity": capacity(info.capacity.unwrap_or_default()),
        "task_types": info.task_types,
        "tasks_only": info.tasks_only,
        "handlers": info.handlers.iter().map(|handler| {
            json!({ "name": handler.name, "sla": handler.sla, "given_up": handler.given_up })
        }).collect::<Vec<_>>(),
        "labels": info.labels,
        "taints": taints,
        "capabilities": capabilities,
        "zone": (!info.zone.is_empty()).then_some(info.zone),
        "isolation": if info.isolation.is_empty() { "process" } else { &info.isolation },
        "image": (!info.image.is_empty()).then_some(info.image),
        "free": capacity(worker.free.unwrap_or_default()),
        "registered_at": output::timestamp(worker.registered_at_ms),
        "provider": (!worker.provider.is_empty()).then_some(&worker.provider),
        "template": (!worker.template.is_empty()).then_some(&worker.template),
        "drain_reason": (!worker.drain_reason.is_empty()).then_some(&worker.drain_reason),
    })
}

pub async fn drain(
    client: &mut Client,
    id: String,
    deadline: Option<Millis>,
    reason: String,
    json: bool,
) -> Result<u8> {
    let deadline_ms = deadline.map_or(0, |length| i64::try_from(length.0.max(1)).unwrap_or(i64::MAX));
    let request = v1::DrainWorkerRequest { worker_id: id.clone(), reason, deadline_ms };
    client.admin().drain_worker(request).await.map_err(|status| explain(&status))?;
    match (json, deadline) {
        (true, _) => output::print_json(&json!({ "worker_id": id, "state": "draining" })),
        (false, None) => output::println("draining: it finishes what it runs, takes nothing new, and leaves"),
        (false, Some(_)) => {
            let within = output::span(deadline_ms);
            output::println(&format!(
                "draining: it takes nothing new and leaves; what still runs after {within} is given back"
            ));
        }
    }
    Ok(exit::OK)
}

pub async fn restart(client: &mut Client, id: String, handler: String, json: bool) -> Result<u8> {
    let request = v1::RestartHandlerRequest { worker_id: id.clone(), handler: handler.clone() };
    client.admin().restart_handler(request).await.map_err(|status| explain(&status))?;
    match json {
        true => output::print_json(&json!({ "worker_id": id, "handler": handler, "state": "restarting" })),
        false => output::println("restarting: 'hodei events --kind supervision' tells how it goes"),
    }
    Ok(exit::OK)
}
