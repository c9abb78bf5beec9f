//! `hodei worker …`

use crate::{
    args::{Common, WorkerArgs},
    client::{Client, Target, explain},
    commands::handlers::handlers,
    config::{Config, Handler},
    exit, output,
    values::Cores,
};
use anyhow::{Result, bail};
use futures::future::FutureExt;
use hodei_api::v1;
use hodei_core::time::Millis;
use hodei_worker::{AgentOptions, Capacity, Connect, LinkError, Processes, WorkerInfo, guardian::GuardianCommand};
use rustix::system::{sysinfo, uname};
use serde_json::{Value, json};
use std::{path::PathBuf, sync::Arc};

/// A few full chunks of output must fit, or a job could never print.
const SMALLEST_SPOOL: u64 = 4 << 20;
/// The folder of the worker inside the data folder.
pub const FOLDER: &str = "worker";

pub async fn run(common: &Common, config: &Config, args: WorkerArgs) -> Result<u8> {
    super::serve::log_to_stderr();
    let target = match common.server.as_deref().unwrap_or(&config.connect) {
        "" => bail!("a worker needs a server: give its address with --server or HODEI_SERVER"),
        url => Target::parse(url, common)?,
    };
    let folder = config.data_folder(common.data.as_deref())?.join(FOLDER);
    let connect = move || {
        let target = target.clone();
        async move { target.channel().await.map_err(|error| LinkError::Unreachable(format!("{error:#}"))) }.boxed()
    };
    let options = AgentOptions {
        token: args.token.clone(),
        worker: args.worker_id,
        ..agent(config, Arc::new(connect), folder, &Size::of(&args), &args.handler)?
    };
    hodei_worker::run(options, hodei_worker::wishes_of_signals()).await?;
    Ok(exit::OK)
}

/// How large a worker is, its name, and what its jobs find.
#[derive(Clone, Debug, Default)]
pub struct Size {
    pub name: Option<String>,
    pub slots: Option<u32>,
    pub cpu: Option<Cores>,
    pub memory: Option<u64>,
    pub pass_environment: bool,
}

impl Size {
    fn of(args: &WorkerArgs) -> Self {
        Self {
            name: args.name.clone(),
            slots: args.slots,
            cpu: args.cpu,
            memory: args.memory,
            pass_environment: args.pass_environment,
        }
    }
}

/// An agent as the configuration has it, with more handlers.
pub fn agent(
    config: &Config,
    connect: Connect,
    folder: PathBuf,
    size: &Size,
    more: &[Handler],
) -> Result<AgentOptions> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from) as u64;
    let host = uname().nodename().to_string_lossy().into_owned();
    let named = size.name.clone().or_else(|| Some(config.worker.name.clone()).filter(|name| !name.is_empty()));
    let slots = size.slots.or(Some(config.worker.slots).filter(|slots| *slots > 0));
    let memory = sysinfo();
    let capacity = Capacity {
        slots: slots.unwrap_or(u32::try_from(cores).unwrap_or(1)),
        cpu_millis: size.cpu.or(config.worker.cpu).map_or(cores * 1000, |cores| cores.0),
        memory_bytes: size.memory.or(config.worker.memory).unwrap_or(memory.totalram * u64::from(memory.mem_unit)),
        ..Capacity::default()
    };
    Ok(AgentOptions {
        connect,
        token: None,
        worker: None,
        info: WorkerInfo {
            name: named.unwrap_or_else(|| host.clone()),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            hostname: host,
            capacity,
            ..WorkerInfo::default()
        },
        folder,
        spool_bytes: usize::try_from(config.worker.spool.max(SMALLEST_SPOOL))
            .unwrap_or(usize::MAX)
            .min(tokio::sync::Semaphore::MAX_PERMITS),
        processes: Some(Processes {
            pids_limit: config.worker.pids_limit,
            pass_environment: size.pass_environment,
            guardian: GuardianCommand::default(),
        }),
        handlers: handlers(config.handler.iter().chain(more))?,
    })
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

const COLUMNS: [output::Column; 10] = [
    ("ID", 0),
    ("NAME", 1),
    ("STATE", 0),
    ("RUNNING", 2),
    ("SLOTS", 3),
    ("FREE CPU", 4),
    ("FREE MEMORY", 5),
    ("RUNS", 8),
    ("POOL", 6),
    ("LEAVES BECAUSE", 7),
];

fn row(worker: &v1::Worker) -> Vec<String> {
    let info = worker.info.clone().unwrap_or_default();
    let free = worker.free.unwrap_or_default();
    let processes = (!info.tasks_only).then(|| "processes".to_owned());
    let offer = processes.into_iter().chain(info.task_types).collect::<Vec<_>>().join(", ");
    vec![
        worker.id.clone(),
        info.name,
        output::worker_state_name(worker.state()),
        worker.running.to_string(),
        info.capacity.unwrap_or_default().slots.to_string(),
        format!("{}", free.cpu_millis as f64 / 1000.0),
        bytesize::ByteSize(u64::try_from(free.memory_bytes).unwrap_or(0)).to_string(),
        offer,
        match worker.provider.as_str() {
            "" => String::new(),
            provider => format!("{} ({provider})", worker.template),
        },
        worker.drain_reason.clone(),
    ]
}

fn worker_json(worker: &v1::Worker) -> Value {
    let info = worker.info.clone().unwrap_or_default();
    let capacity = |capacity: v1::Capacity| json!({ "slots": capacity.slots, "cpu_millis": capacity.cpu_millis, "memory_bytes": capacity.memory_bytes });
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
