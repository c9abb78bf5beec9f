//! What is measured of Hodei.

use crate::{
    Cluster,
    cluster::{Memory, StoreKind},
    limits::{self, Limits},
    report::{self, mebibytes, percentiles},
};
use anyhow::{Context, Result};
use futures::future::try_join_all;
use hodei_api::v1;
use std::{
    path::Path,
    time::{Duration, Instant},
};

const PROCESS_JOBS: usize = 6000;
const WORKER_SLOTS: u32 = 32;
const CALLERS: usize = 16;
const CALLING: Duration = Duration::from_secs(4);
const LATENCY_JOBS: usize = 200;
const BULK: usize = 10_000;
/// Between two idle jobs: the system has come to rest.
pub const REST: Duration = Duration::from_millis(10);
/// How often it is looked whether all is done.
const POLL: Duration = Duration::from_millis(10);
const SETTLING: Duration = Duration::from_secs(2);

fn job(program: &str, args: &[&str]) -> v1::JobSpec {
    let args = args.iter().map(|arg| (*arg).to_owned()).collect();
    let shell = v1::ShellWork { program: program.to_owned(), args };
    v1::JobSpec { work: Some(v1::Work { kind: Some(v1::work::Kind::Shell(shell)) }), ..v1::JobSpec::default() }
}

pub async fn enqueue(cluster: &Cluster, spec: &v1::JobSpec, count: usize) -> Result<()> {
    let mut jobs = cluster.jobs().await?;
    for begin in (0..count).step_by(BULK) {
        let batch = vec![spec.clone(); BULK.min(count - begin)];
        jobs.queue_jobs(v1::QueueJobsRequest { jobs: batch }).await?;
    }
    Ok(())
}

/// Waits until no job is unfinished.
pub async fn until_done(cluster: &Cluster) -> Result<()> {
    use v1::JobState::{Delayed, Pending, Running, Scheduled};
    let states: Vec<i32> = [Delayed, Pending, Scheduled, Running].into_iter().map(Into::into).collect();
    let mut jobs = cluster.jobs().await?;
    loop {
        let request = v1::ListJobsRequest { states: states.clone(), page_size: 1, ..Default::default() };
        if jobs.list_jobs(request).await?.into_inner().jobs.is_empty() {
            return Ok(());
        }
        tokio::time::sleep(POLL).await;
    }
}

pub async fn process_jobs(hodei: &Path, kind: StoreKind, limits: &Limits) -> Result<()> {
    let mut cluster = Cluster::new(hodei, kind).await?;
    cluster.start("server", &[]).await?;
    cluster.start_worker(WORKER_SLOTS).await?;
    enqueue(&cluster, &job("/bin/true", &[]), 500).await?;
    until_done(&cluster).await?;
    let began = Instant::now();
    enqueue(&cluster, &job("/bin/true", &[]), PROCESS_JOBS).await?;
    until_done(&cluster).await?;
    let rate = PROCESS_JOBS as f64 / began.elapsed().as_secs_f64();
    // The limit before and after: the machine's mood may have changed.
    let limit = (limits.spawns_per_second + limits::spawn_loop()?) / 2.0;
    let figure = format!("{rate:.0} /s = {:.2} of the spawn loop ({limit:.0} /s)", rate / limit);
    report::line("process jobs of /bin/true, own cgroup, output kept", figure);
    Ok(())
}

pub async fn single_callers(hodei: &Path, kind: StoreKind) -> Result<()> {
    let mut cluster = Cluster::new(hodei, kind).await?;
    cluster.start("server", &[]).await?;
    let before = cluster.commits().await?;
    let began = Instant::now();
    let callers = (0..CALLERS).map(|_| async {
        let mut jobs = cluster.jobs().await?;
        let mut times = Vec::new();
        while began.elapsed() < CALLING {
            let call = Instant::now();
            jobs.queue_job(v1::QueueJobRequest { job: Some(job("/bin/true", &[])) }).await?;
            times.push(call.elapsed());
        }
        anyhow::Ok(times)
    });
    let times = try_join_all(callers).await?.concat();
    let seconds = began.elapsed().as_secs_f64();
    let after = cluster.commits().await?;
    let (commits, rows) = (after.0 - before.0, after.1 - before.1);
    report::line("enqueue, 16 single callers", format!("{:.0} jobs/s", times.len() as f64 / seconds));
    let shared =
        format!("{:.0} commits/s, {:.1} jobs per commit", commits as f64 / seconds, rows as f64 / commits as f64);
    report::line("  group commit", shared);
    report::line("  time of one call", percentiles(times));
    Ok(())
}

pub async fn idle_latency(hodei: &Path, kind: StoreKind, limits: &Limits) -> Result<()> {
    let mut cluster = Cluster::new(hodei, kind).await?;
    cluster.start("server", &[]).await?;
    cluster.start_worker(1).await?;
    let program = std::env::current_exe()?;
    let spec = job(program.to_str().context("a path that is not UTF-8")?, &["--stamp"]);
    let (mut jobs, mut logs) = (cluster.jobs().await?, cluster.logs().await?);
    let mut times = Vec::new();
    for _ in 0..LATENCY_JOBS {
        tokio::time::sleep(REST).await;
        let began = limits::now();
        let job_id = jobs.queue_job(v1::QueueJobRequest { job: Some(spec.clone()) }).await?.into_inner().job_id;
        let mut lines = logs.subscribe_logs(v1::SubscribeLogsRequest { job_id, tail: None }).await?.into_inner();
        while let Some(batch) = lines.message().await? {
            times.extend(batch.entries.iter().map(|entry| limits::parse_stamp(&entry.text).saturating_sub(began)));
        }
    }
    report::line("idle: enqueue call to the process's main", percentiles(times));
    let parts = format!("{} and {}", limits::median(&limits.sync), limits::median(&limits.spawn));
    report::line("  beside one synced write and one spawn (p50)", parts);
    Ok(())
}

pub async fn memory(hodei: &Path, kind: StoreKind) -> Result<()> {
    let mut apart = Cluster::new(hodei, kind).await?;
    apart.start("server", &[]).await?;
    apart.start_worker(2).await?;
    let mut together = Cluster::new(hodei, kind).await?;
    together.start("up", &["--slots", "8"]).await?;
    tokio::time::sleep(SETTLING).await;
    let (server, worker) = (apart.server()?.memory(), apart.worker()?.memory());
    let figure = |memory: Memory| format!("{} ({} its own)", mebibytes(memory.now), mebibytes(memory.own));
    report::line("memory, server idle", figure(server));
    report::line("memory, worker agent idle", figure(worker));
    report::line("memory, its guardian", figure(apart.worker()?.guardian()));
    report::line("memory, hodei up idle", figure(together.server()?.memory()));
    enqueue(&together, &job("/bin/true", &[]), PROCESS_JOBS).await?;
    until_done(&together).await?;
    report::line("memory, hodei up at most under load", mebibytes(together.server()?.memory().peak));
    Ok(())
}

pub async fn backlog(hodei: &Path, kind: StoreKind, count: usize) -> Result<()> {
    let mut cluster = Cluster::new(hodei, kind).await?;
    cluster.start("server", &[]).await?;
    let began = Instant::now();
    enqueue(&cluster, &job("/bin/true", &[]), count).await?;
    let rate = count as f64 / began.elapsed().as_secs_f64();
    let memory = cluster.server()?.memory();
    report::line(&format!("bulk enqueue of {count}, 10,000 a call"), format!("{rate:.0} jobs/s"));
    report::line("  memory of the server with that backlog", mebibytes(memory.now));
    cluster.stop_server();
    let took = cluster.start("server", &[]).await?;
    report::line("  start-up with that backlog", format!("{:.0} ms", took.as_secs_f64() * 1000.0));
    tokio::time::sleep(SETTLING).await;
    let memory = cluster.server()?.memory();
    report::line("  memory after start-up", mebibytes(memory.now));
    Ok(())
}
