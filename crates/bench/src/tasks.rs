//! No-op tasks: what Hodei itself costs, beside which the work is nothing.

use crate::{
    cluster::{Cluster, StoreKind},
    limits,
    report::{self, percentiles},
    workloads::{REST, enqueue, until_done},
};
use anyhow::{Context, Result};
use hodei_api::v1;
use hodei_sdk::{Task, TaskResult, Value, Worker, json};
use std::{
    io::Write,
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

const SLOTS: u32 = 2000;
const LATENCY_TASKS: usize = 200;

/// What the worker process runs: told by its environment, so that its command line is that of no user.
pub async fn work() -> Result<()> {
    let variable = |name: &str| std::env::var(name).with_context(|| format!("{name} is not set"));
    let worker = Worker::new(variable("HODEI_SERVER")?)
        .token(variable("HODEI_TOKEN")?)
        .folder(variable("HODEI_DATA")?)
        .slots(variable("HODEI_SLOTS")?.parse()?)
        .handle("noop", noop)
        .handle("stamp", |_| async { Ok(json!(limits::now().as_nanos().to_string())) });
    Ok(worker.run().await?)
}

/// The first one tells when the work began.
async fn noop(task: Task) -> TaskResult {
    static BEGUN: AtomicBool = AtomicBool::new(false);
    if task.payload_bytes() == b"1" && !BEGUN.swap(true, Ordering::Relaxed) {
        let stamp = limits::now().as_nanos();
        writeln!(std::io::stdout(), "{stamp}")?;
    }
    Ok(Value::Null)
}

fn task(task_type: &str, payload: &str) -> v1::JobSpec {
    let task = v1::TaskWork { r#type: task_type.into(), payload: payload.into() };
    v1::JobSpec { work: Some(v1::Work { kind: Some(v1::work::Kind::Task(task)) }), ..v1::JobSpec::default() }
}

/// Tasks per second, from the start of the first handler until the last result is durable.
pub async fn drain(hodei: &Path, kind: StoreKind, count: usize) -> Result<()> {
    let mut cluster = Cluster::new(hodei, kind).await?;
    cluster.start("server", &[]).await?;
    let began = limits::now();
    enqueue(&cluster, &task("noop", "1"), count).await?;
    let enqueued = (limits::now() - began).as_secs_f64();
    report::line(&format!("bulk enqueue of {count} tasks"), format!("{:.0} /s", count as f64 / enqueued));
    let (before, rows) = cluster.commits().await?;
    let cpu = cluster.server()?.cpu();
    let began = cluster.start_task_worker(SLOTS).await?.first_line().await?;
    until_done(&cluster).await?;
    let took = limits::now().saturating_sub(limits::parse_stamp(began.as_bytes()));
    let (after, rows_after) = cluster.commits().await?;
    let rate = count as f64 / took.as_secs_f64();
    let per_task = |cpu: Duration| cpu.as_secs_f64() * 1e6 / count as f64;
    let (server, worker) = (cluster.server()?.cpu() - cpu, cluster.worker()?.cpu());
    report::line(
        "  computing",
        format!("{:.1} µs a task in the server, {:.1} in the worker", per_task(server), per_task(worker)),
    );
    report::line(
        &format!("drain of {count} no-op tasks"),
        format!("{rate:.0} /s, {} commits, {} rows", after - before, rows_after - rows),
    );
    Ok(())
}

pub async fn latency(hodei: &Path, kind: StoreKind) -> Result<()> {
    let mut cluster = Cluster::new(hodei, kind).await?;
    cluster.start("server", &[]).await?;
    cluster.start_task_worker(8).await?;
    let mut jobs = cluster.jobs().await?;
    let mut times = Vec::new();
    for _ in 0..LATENCY_TASKS {
        tokio::time::sleep(REST).await;
        let spec = task("stamp", "null");
        let began = limits::now();
        let job_id = jobs.queue_job(v1::QueueJobRequest { job: Some(spec) }).await?.into_inner().job_id;
        let mut watch = jobs.watch_job(v1::WatchJobRequest { job_id }).await?.into_inner();
        let mut last = Vec::new();
        while let Some(change) = watch.message().await? {
            last = change.job.unwrap_or_default().result;
        }
        let stamp: String = serde_json::from_slice(&last)?;
        times.push(limits::parse_stamp(stamp.as_bytes()).saturating_sub(began));
    }
    report::line("idle: enqueue call to the start of the handler", percentiles(times));
    Ok(())
}
