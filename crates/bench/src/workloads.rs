//! What is measured of Hodei: a server and a worker as processes of their own, with the settings that users get.

use crate::{
    cluster::{Cluster, Database, StoreKind},
    cold, growth, limits, lines, listing, placement,
    processes::{family, mebibytes, shared_once},
    record::{Durability, Figure, System, Workload},
    scheduler, tasks,
};
use anyhow::{Context, Result};
use futures::future::try_join_all;
use hodei_api::v1;
use hodei_sdk::{Client, Job};
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
const BULK_JOBS: usize = 150_000;
/// Between two idle jobs: the system has come to rest.
pub const REST: Duration = Duration::from_millis(10);
/// How often it is looked whether all is done.
const POLL: Duration = Duration::from_millis(10);
const SETTLING: Duration = Duration::from_secs(2);

/// Hodei on one of its stores.
pub struct Hodei<'a> {
    pub program: &'a Path,
    pub kind: StoreKind,
    pub backlog: usize,
    /// Callers have a connection each and share nothing, as if each were a program of its own.
    pub apart: bool,
}

impl Hodei<'_> {
    pub fn system(&self) -> System {
        let apart = if self.apart { ", a connection each" } else { "" };
        let name = format!("Hodei ({}){apart}", self.kind.name());
        System { name, version: env!("CARGO_PKG_VERSION").into(), durability: Durability::Synced }
    }

    /// How the callers are arranged matters to callers alone.
    pub fn has(&self, workload: Workload) -> bool {
        match workload {
            Workload::Callers => true,
            // It has no store.
            Workload::Placement => !self.apart && self.kind == StoreKind::Sqlite,
            _ => !self.apart,
        }
    }

    pub async fn measure(&self, workload: Workload) -> Result<Figure> {
        let mut cluster = Cluster::new(self.program, self.kind).await?;
        let figure = |settings: &str| Figure::of(&self.system(), workload, settings);
        let measured = match workload {
            Workload::Callers if self.apart => {
                callers_apart(&mut cluster, figure("a gRPC connection for each caller")).await?
            }
            Workload::Callers => single_callers(&mut cluster, figure("all share one `Client` of the SDK")).await?,
            Workload::Bulk => bulk(&mut cluster, figure("QueueJobs of 10,000")).await?,
            Workload::Process => {
                process_jobs(&mut cluster, figure("32 slots; own cgroup for each job, output kept")).await?
            }
            Workload::Start => idle_start(&mut cluster, figure("1 slot")).await?,
            Workload::Memory => memory(&mut cluster, figure("server and worker with its guardian")).await?,
            Workload::Backlog => backlog(&mut cluster, figure("QueueJobs of 10,000"), self.backlog).await?,
            Workload::Drain => {
                let settings = format!("{} slots; handler compiled into the worker", tasks::SLOTS);
                tasks::drain(&mut cluster, figure(&settings)).await?
            }
            Workload::Latency => tasks::latency(&mut cluster, figure("8 slots")).await?,
            Workload::Handlers => {
                let folder = tempfile::tempdir()?;
                scheduler::handlers(&mut cluster, figure("256 slots"), folder.path()).await?
            }
            Workload::Rest => scheduler::rest(&mut cluster, figure("16 callers, a connection each")).await?,
            Workload::Graph => {
                scheduler::graph(&mut cluster, figure("fan-out and fan-in of 1,000; no-op tasks")).await?
            }
            Workload::Placement => placement::measure(figure("10,000 slots; in the server's brain alone"))?,
            Workload::Cold => cold::measure(&mut cluster, figure("reuse never, median of 10")).await?,
            Workload::Schedules => scheduler::schedules(&mut cluster, figure("due once a year")).await?,
            Workload::Lines => lines::follow(&mut cluster, figure("one job, one reader")).await?,
            Workload::Growth => growth::growth(self.program, self.kind, figure("")).await?,
            Workload::Workers => growth::workers(self.program, self.kind, figure("4 slots each")).await?,
            Workload::Listing => {
                let settings = "pages of 100; 20 queues, 1 % failed; every look 200 times";
                listing::listing(self.program, self.kind, figure(settings)).await?
            }
        };
        cluster.end().await?;
        Ok(measured)
    }
}

pub fn job(program: &str, args: &[&str]) -> v1::JobSpec {
    let args = args.iter().map(|arg| (*arg).to_owned()).collect();
    let shell = v1::ShellWork { program: program.to_owned(), args };
    v1::JobSpec { work: Some(v1::Work { kind: Some(v1::work::Kind::Shell(shell)) }), ..v1::JobSpec::default() }
}

/// Returns the id of the last of them.
pub async fn enqueue(cluster: &Cluster, spec: &v1::JobSpec, count: usize) -> Result<String> {
    let (mut jobs, mut ids) = (cluster.jobs().await?, Vec::new());
    for begin in (0..count).step_by(BULK) {
        let batch = vec![spec.clone(); BULK.min(count - begin)];
        ids = jobs.queue_jobs(v1::QueueJobsRequest { jobs: batch }).await?.into_inner().job_ids;
    }
    ids.pop().context("no job was enqueued")
}

/// Waits until no job is unfinished. It begins to look when this one has ended, which was the last to come: whoever looks
/// takes time from what is measured, and the peers are not looked at earlier either.
pub async fn until_done(cluster: &Cluster, last: &str) -> Result<()> {
    use v1::JobState::{Delayed, Pending, Running, Scheduled, Waiting};
    let states: Vec<i32> = [Delayed, Pending, Scheduled, Running, Waiting].into_iter().map(Into::into).collect();
    let mut jobs = cluster.jobs().await?;
    let mut watch = jobs.watch_job(v1::WatchJobRequest { job_id: last.into() }).await?.into_inner();
    while watch.message().await?.is_some() {}
    loop {
        let request = v1::ListJobsRequest { states: states.clone(), page_size: 1, ..Default::default() };
        if jobs.list_jobs(request).await?.into_inner().jobs.is_empty() {
            return Ok(());
        }
        tokio::time::sleep(POLL).await;
    }
}

async fn process_jobs(cluster: &mut Cluster, figure: Figure) -> Result<Figure> {
    cluster.start("server", &[]).await?;
    cluster.start_worker(WORKER_SLOTS).await?;
    let last = enqueue(cluster, &job("/bin/true", &[]), 500).await?;
    until_done(cluster, &last).await?;
    let began = Instant::now();
    let last = enqueue(cluster, &job("/bin/true", &[]), PROCESS_JOBS).await?;
    until_done(cluster, &last).await?;
    Ok(figure.with("rate", "jobs/s", PROCESS_JOBS as f64 / began.elapsed().as_secs_f64()))
}

/// Callers that are tasks of one program.
async fn single_callers(cluster: &mut Cluster, figure: Figure) -> Result<Figure> {
    cluster.start("server", &[]).await?;
    let client = Client::connect(cluster.address())?.token(cluster.token())?;
    let submit = || client.submit(Job::command("/bin/true", [""; 0]));
    let callers = (0..CALLERS).map(|_| calls(async || submit().await.map(drop).map_err(Into::into)));
    rate_of_calls(cluster, figure, callers).await
}

async fn callers_apart(cluster: &mut Cluster, figure: Figure) -> Result<Figure> {
    cluster.start("server", &[]).await?;
    let clients = try_join_all((0..CALLERS).map(|_| cluster.jobs())).await?;
    let callers = clients.into_iter().map(|jobs| {
        calls(async move || {
            let request = v1::QueueJobRequest { job: Some(job("/bin/true", &[])) };
            jobs.clone().queue_job(request).await?;
            Ok(())
        })
    });
    rate_of_calls(cluster, figure, callers).await
}

/// One call after the other; how long each took.
async fn calls(call: impl AsyncFn() -> Result<()>) -> Result<Vec<Duration>> {
    let (began, mut times) = (Instant::now(), Vec::new());
    while began.elapsed() < CALLING {
        let asked = Instant::now();
        call().await?;
        times.push(asked.elapsed());
    }
    Ok(times)
}

async fn rate_of_calls(
    cluster: &Cluster,
    figure: Figure,
    callers: impl Iterator<Item = impl Future<Output = Result<Vec<Duration>>>>,
) -> Result<Figure> {
    let before = cluster.commits().await?;
    let began = Instant::now();
    let times = try_join_all(callers).await?.concat();
    let seconds = began.elapsed().as_secs_f64();
    let after = cluster.commits().await?;
    let (commits, rows) = (after.0 - before.0, after.1 - before.1);
    let figure = figure.with("rate", "jobs/s", times.len() as f64 / seconds).with_percentiles("", times);
    let figure = figure.with("commits", "/s", commits as f64 / seconds);
    Ok(figure.with("jobs per commit", "", rows as f64 / commits as f64))
}

async fn bulk(cluster: &mut Cluster, figure: Figure) -> Result<Figure> {
    cluster.start("server", &[]).await?;
    enqueue(cluster, &job("/bin/true", &[]), BULK).await?;
    let began = Instant::now();
    enqueue(cluster, &job("/bin/true", &[]), BULK_JOBS).await?;
    Ok(figure.with("rate", "jobs/s", BULK_JOBS as f64 / began.elapsed().as_secs_f64()))
}

async fn idle_start(cluster: &mut Cluster, figure: Figure) -> Result<Figure> {
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
    Ok(figure.with_percentiles("", times))
}

async fn memory(cluster: &mut Cluster, figure: Figure) -> Result<Figure> {
    cluster.start("server", &[]).await?;
    cluster.start_worker(2).await?;
    tokio::time::sleep(SETTLING).await;
    let (server, worker) = (family(cluster.server()?.pid()), family(cluster.worker()?.pid()));
    let all = [server.as_slice(), worker.as_slice()].concat();
    let database = match cluster.kind() {
        StoreKind::Sqlite => None,
        StoreKind::Postgres => Some(shared_once(&family(Database::server().await?))),
    };
    let figure = figure
        .with_memory(shared_once(&all), database)
        .with("server", "MiB", mebibytes(cluster.server()?.memory().now))
        .with("worker", "MiB", mebibytes(cluster.worker()?.memory().now));
    let last = enqueue(cluster, &job("/bin/true", &[]), PROCESS_JOBS).await?;
    until_done(cluster, &last).await?;
    let peak = |memory: crate::cluster::Memory| mebibytes(memory.peak);
    Ok(figure.with("server at most under load", "MiB", peak(cluster.server()?.memory())).with(
        "worker at most under load",
        "MiB",
        peak(cluster.worker()?.memory()),
    ))
}

async fn backlog(cluster: &mut Cluster, figure: Figure, count: usize) -> Result<Figure> {
    cluster.start("server", &[]).await?;
    let began = Instant::now();
    enqueue(cluster, &job("/bin/true", &[]), count).await?;
    let rate = count as f64 / began.elapsed().as_secs_f64();
    let full = cluster.server()?.memory().now;
    cluster.stop_server();
    let took = cluster.start("server", &[]).await?;
    tokio::time::sleep(SETTLING).await;
    Ok(figure
        .with("rate", "jobs/s", rate)
        .with("jobs", "", count as f64)
        .with("server with them", "MiB", mebibytes(full))
        .with("start-up with them", "ms", took.as_secs_f64() * 1000.0)
        .with("server after start-up", "MiB", mebibytes(cluster.server()?.memory().now)))
}
