//! No-op tasks: what Hodei itself costs, beside which the work is nothing.

use crate::{
    cluster::Cluster,
    limits,
    record::Figure,
    workloads::{REST, enqueue, until_done},
};
use anyhow::{Context, Result};
use futures::future::try_join_all;
use hodei_api::v1;
use hodei_sdk::{Task, TaskError, TaskResult, Value, Worker, json};
use std::{
    io::Write,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

const DRAINED: usize = 200_000;
/// Enough that the worker always has something to do while the last results are being stored.
pub const SLOTS: u32 = 4000;
const LATENCY_TASKS: usize = 200;

/// What a worker process is told by its environment.
pub const TOKENS: &str = "HODEI_TOKENS";
pub const COUNT: &str = "HODEI_COUNT";

/// The worker process of a measurement: one worker for each token.
pub async fn work() -> Result<()> {
    let variable = |name: &str| std::env::var(name).with_context(|| format!("{name} is not set"));
    let (server, folder) = (variable("HODEI_SERVER")?, variable("HODEI_DATA")?);
    let (slots, count) = (variable("HODEI_SLOTS")?.parse()?, variable(COUNT)?.parse()?);
    let tokens = variable(TOKENS)?;
    let workers = tokens.split(',').enumerate().map(|(n, token)| {
        let worker = Worker::new(&server).token(token).folder(format!("{folder}/{n}")).slots(slots);
        let worker = worker.handle("noop", move |task| noop(task, count));
        let worker = worker.handle("fail", |_| async { Err::<Value, _>(TaskError::fatal("no such customer")) });
        worker.handle("stamp", |_| async { Ok(json!(limits::now().as_nanos().to_string())) }).run()
    });
    try_join_all(workers).await?;
    Ok(())
}

/// The first of them tells when the work began, and the one with this number how far it is.
async fn noop(_: Task, count: usize) -> TaskResult {
    static BEGUN: AtomicUsize = AtomicUsize::new(0);
    let number = BEGUN.fetch_add(1, Ordering::Relaxed) + 1;
    if number == 1 || number == count {
        let stamp = limits::now().as_nanos();
        writeln!(std::io::stdout(), "{stamp}")?;
    }
    Ok(Value::Null)
}

pub fn task(task_type: &str) -> v1::JobSpec {
    let task = v1::TaskWork { r#type: task_type.into(), payload: b"null".to_vec() };
    v1::JobSpec { work: Some(v1::Work { kind: Some(v1::work::Kind::Task(task)) }), ..v1::JobSpec::default() }
}

/// From the start of the first handler until the last result is durable.
pub async fn drain(cluster: &mut Cluster, figure: Figure) -> Result<Figure> {
    cluster.start("server", &[]).await?;
    let last = enqueue(cluster, &task("noop"), DRAINED).await?;
    let (commits, _) = cluster.commits().await?;
    let server = cluster.server()?.cpu();
    let mut stamps = cluster.start_task_workers(1, SLOTS, &[(COUNT, "0")]).await?;
    let began = stamps.next().await?;
    until_done(cluster, &last).await?;
    let took = limits::now().saturating_sub(began);
    let per_task = |cpu: Duration| cpu.as_secs_f64() * 1e6 / DRAINED as f64;
    let figure = figure.with("rate", "jobs/s", DRAINED as f64 / took.as_secs_f64());
    let figure = figure.with("commits", "/s", (cluster.commits().await?.0 - commits) as f64 / took.as_secs_f64());
    let figure = figure.with("server's processor time", "µs/job", per_task(cluster.server()?.cpu() - server));
    Ok(figure.with("worker's processor time", "µs/job", per_task(cluster.worker()?.cpu())))
}

/// From the enqueue call to the start of the handler.
pub async fn latency(cluster: &mut Cluster, figure: Figure) -> Result<Figure> {
    cluster.start("server", &[]).await?;
    cluster.start_task_workers(1, 8, &[(COUNT, "0")]).await?;
    let mut jobs = cluster.jobs().await?;
    let mut times = Vec::new();
    for _ in 0..LATENCY_TASKS {
        tokio::time::sleep(REST).await;
        let request = v1::QueueJobRequest { job: Some(task("stamp")) };
        let began = limits::now();
        let job_id = jobs.queue_job(request).await?.into_inner().job_id;
        let mut watch = jobs.watch_job(v1::WatchJobRequest { job_id }).await?.into_inner();
        let mut last = Vec::new();
        while let Some(change) = watch.message().await? {
            last = change.job.unwrap_or_default().result;
        }
        let stamp: String = serde_json::from_slice(&last)?;
        times.push(limits::parse_stamp(stamp.as_bytes()).saturating_sub(began));
    }
    Ok(figure.with_percentiles("", times))
}

/// Tasks per second between the first handler's start and that of the one with the number `count`.
pub async fn rate_of(cluster: &mut Cluster, workers: usize, slots: u32, count: usize) -> Result<f64> {
    let mut stamps = cluster.start_task_workers(workers, slots, &[(COUNT, &count.to_string())]).await?;
    let (first, last) = (stamps.next().await?, stamps.next().await?);
    Ok(count as f64 / last.saturating_sub(first).as_secs_f64())
}
