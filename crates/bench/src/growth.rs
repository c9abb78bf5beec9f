//! What a job costs when there are many others, or many workers.

use crate::{
    cluster::{Cluster, StoreKind},
    processes::mebibytes,
    record::Figure,
    tasks::{COUNT, SLOTS, rate_of, task},
    workloads::enqueue,
};
use anyhow::Result;
use hodei_api::v1;
use std::{path::Path, time::Instant};

const FEW: usize = 10_000;
const MANY: usize = 10_000_000;
/// Jobs whose cost is measured.
const SAMPLE: usize = 400_000;
const FEW_WORKERS: usize = 10;
const MANY_WORKERS: usize = 1000;
/// Slots of each of the many.
const EACH: u32 = 4;

pub async fn growth(program: &Path, kind: StoreKind, figure: Figure) -> Result<Figure> {
    let few = drained_beside(&mut Cluster::new(program, kind).await?, FEW).await?;
    let mut cluster = Cluster::new(program, kind).await?;
    cluster.start("server", &[]).await?;
    let first = enqueued(&cluster, SAMPLE).await?;
    let between = enqueued(&cluster, MANY - 2 * SAMPLE).await?;
    until_settled(&cluster).await?;
    let last = enqueued(&cluster, SAMPLE).await?;
    let full = cluster.server()?.memory().now;
    cluster.stop_server();
    until_written().await?;
    let took = cluster.start("server", &[]).await?;
    let many = rate_of(&mut cluster, 1, SLOTS, SAMPLE).await?;
    let after = cluster.server()?.memory().peak;
    cluster.end().await?;
    Ok(figure
        .with("cost of a job beside 10,000,000 pending", "× that beside 10,000", few / many)
        .with("drain beside 10,000", "jobs/s", few)
        .with("drain beside 10,000,000", "jobs/s", many)
        .with("cost of an enqueue beside 10,000,000 pending", "× that of the first", first / last)
        .with("enqueue of nearly 10,000,000 on end", "jobs/s", between)
        .with("server with them", "MiB", mebibytes(full))
        .with("start-up with them", "ms", took.as_secs_f64() * 1000.0)
        .with("server at most after start-up and draining", "MiB", mebibytes(after)))
}

pub async fn workers(program: &Path, kind: StoreKind, figure: Figure) -> Result<Figure> {
    let many = among_workers(program, kind, MANY_WORKERS, EACH).await?;
    let few = among_workers(program, kind, FEW_WORKERS, EACH).await?;
    let large = among_workers(program, kind, FEW_WORKERS, SLOTS / FEW_WORKERS as u32).await?;
    Ok(figure
        .with("cost of a job with 1,000 workers", "× that with 10 like them", few.rate / many.rate)
        .with("cost beside 10 with as many slots in all", "times", large.rate / many.rate)
        .with("server's processor time of a job", "× that with 10 like them", many.cpu / few.cpu)
        .with("processor time beside 10 with as many slots in all", "times", many.cpu / large.cpu)
        .with("drain with 1,000 workers", "jobs/s", many.rate)
        .with("with 10 of as many slots in all", "jobs/s", large.rate)
        .with("with 10 like them", "jobs/s", few.rate))
}

async fn enqueued(cluster: &Cluster, count: usize) -> Result<f64> {
    let began = Instant::now();
    enqueue(cluster, &task("noop"), count).await?;
    Ok(count as f64 / began.elapsed().as_secs_f64())
}

/// A listing waits for all rows that were still to follow: the next jobs come to a store at rest, as the first did.
async fn until_settled(cluster: &Cluster) -> Result<()> {
    let request = v1::ListJobsRequest { page_size: 1, ..Default::default() };
    cluster.jobs().await?.list_jobs(request).await?;
    Ok(())
}

/// The disk has come to rest: millions of jobs leave the system gigabytes to write, which is no part of what the next one costs.
async fn until_written() -> Result<()> {
    Ok(tokio::task::spawn_blocking(rustix::fs::sync).await?)
}

/// The rate at which a sample goes through while so many others wait behind it. The server has just been started, as it has
/// where there are very many: it knows no job by heart.
async fn drained_beside(cluster: &mut Cluster, others: usize) -> Result<f64> {
    cluster.start("server", &[]).await?;
    enqueue(cluster, &task("noop"), SAMPLE + others).await?;
    cluster.stop_server();
    until_written().await?;
    cluster.start("server", &[]).await?;
    rate_of(cluster, 1, SLOTS, SAMPLE).await
}

/// What a job costs where so many workers, each with so many slots, are connected when the first one is given out.
struct Cost {
    /// Jobs in a second.
    rate: f64,
    /// Seconds of the server's processor time for a job.
    cpu: f64,
}

async fn among_workers(program: &Path, kind: StoreKind, workers: usize, slots: u32) -> Result<Cost> {
    let mut cluster = Cluster::new(program, kind).await?;
    cluster.start("server", &[]).await?;
    let (mut queues, name) = (cluster.queues().await?, "default".to_owned());
    queues.pause_queue(v1::PauseQueueRequest { name: name.clone() }).await?;
    enqueue(&cluster, &task("noop"), SAMPLE + FEW).await?;
    let mut stamps = cluster.start_task_workers(workers, slots, &[(COUNT, &SAMPLE.to_string())]).await?;
    cluster.until_workers(workers, |_| true).await?;
    queues.resume_queue(v1::ResumeQueueRequest { name }).await?;
    let (first, before) = (stamps.next().await?, cluster.server()?.cpu());
    let (last, after) = (stamps.next().await?, cluster.server()?.cpu());
    cluster.end().await?;
    let jobs = SAMPLE as f64;
    Ok(Cost { rate: jobs / last.saturating_sub(first).as_secs_f64(), cpu: (after - before).as_secs_f64() / jobs })
}
