//! The task scheduler: handlers outside the worker's process, REST, graphs, schedules.

use crate::{
    cluster::Cluster,
    limits,
    record::Figure,
    tasks::{self, task},
    workloads::{enqueue, until_done},
};
use anyhow::{Context, Result, ensure};
use axum::{Json, Router, routing::post};
use futures::future::try_join_all;
use hodei_api::v1;
use serde_json::{Value, json};
use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};
use tokio::net::TcpListener;

const HANDLED: usize = 30_000;
const WARM: usize = 500;
const SLOTS: u32 = 256;
/// Jobs of the graph, and in each of its layers: one that all others of the layer wait for, and one that waits for them.
const GRAPH: usize = 100_000;
const LAYER: usize = 1000;
/// Of the chains and fans whose cost for each job must be the same.
const SHORT: usize = 2500;
const LONG: usize = 10_000;
const SCHEDULES: usize = 50_000;
/// How long a server with schedules that have nothing to do is watched.
const IDLE: Duration = Duration::from_secs(10);
const CALLERS: usize = 16;
const CALLING: Duration = Duration::from_secs(4);
const BULK: usize = 10_000;
const BULK_JOBS: usize = 100_000;

const HANDLER: &str = "from hodei_handler import handler, run

@handler(\"noop\")
def noop(job):
    return None

run()
";

/// No-op tasks through one Python process, and through an HTTP endpoint.
pub async fn handlers(cluster: &mut Cluster, figure: Figure, folder: &Path) -> Result<Figure> {
    cluster.start("server", &[]).await?;
    let program = folder.join("noop.py");
    fs::write(&program, HANDLER)?;
    let subprocess = format!("noop=subprocess:python3 {}", program.display());
    let figure = figure.with("one Python process", "jobs/s", through(cluster, &subprocess).await?);
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let endpoint = format!("noop=http://{}/", listener.local_addr()?);
    let app = Router::new().route("/", post(async || Json(Value::Null)));
    let server = tokio::spawn(async move { axum::serve(listener, app).await });
    let rate = through(cluster, &endpoint).await;
    server.abort();
    Ok(figure.with("HTTP endpoint", "jobs/s", rate?))
}

async fn through(cluster: &mut Cluster, handler: &str) -> Result<f64> {
    cluster.start_worker_with(SLOTS, &["--handler", handler]).await?;
    let last = enqueue(cluster, &task("noop"), WARM).await?;
    until_done(cluster, &last).await?;
    let began = Instant::now();
    let last = enqueue(cluster, &task("noop"), HANDLED).await?;
    until_done(cluster, &last).await?;
    let rate = HANDLED as f64 / began.elapsed().as_secs_f64();
    cluster.stop_worker();
    Ok(rate)
}

/// What a job of a graph costs beside one that waits for nobody: enqueue and run together. Both are submitted alike, in
/// calls of 10,000, while a worker takes what is ready; the clock stops when none is unfinished.
pub async fn graph(cluster: &mut Cluster, figure: Figure) -> Result<Figure> {
    cluster.start("server", &[]).await?;
    let mut stamps = cluster.start_task_workers(1, tasks::SLOTS, &[("HODEI_COUNT", "0")]).await?;
    let last = enqueue(cluster, &task("noop"), WARM).await?;
    until_done(cluster, &last).await?;
    _ = stamps.next().await?;
    let alone = run_batches(cluster, |_| vec![task("noop"); BULK]).await?;
    let layers = |first: usize| (0..BULK).step_by(LAYER).flat_map(move |layer| fan(first + layer, LAYER)).collect();
    let linked = run_batches(cluster, layers).await?;
    let (short_chain, long_chain) = (cost_in(cluster, chain(SHORT)).await?, cost_in(cluster, chain(LONG)).await?);
    let (small_fan, large_fan) = (cost_in(cluster, fan(0, SHORT)).await?, cost_in(cluster, fan(0, LONG)).await?);
    Ok(figure
        .with("cost beside independent jobs", "times", linked.took.as_secs_f64() / alone.took.as_secs_f64())
        .with("a job of the graph", "µs", per_job(linked.took))
        .with("an independent job", "µs", per_job(alone.took))
        .with("server's processor time for a job of the graph", "µs", per_job(linked.server))
        .with("server's processor time for an independent job", "µs", per_job(alone.server))
        .with("rows of jobs written for a job of the graph", "", linked.rows as f64 / GRAPH as f64)
        .with("rows written for an independent job", "", alone.rows as f64 / GRAPH as f64)
        .with("a link of a chain of 10,000", "µs", long_chain)
        .with("cost of a link beside one of 2,500", "times", long_chain / short_chain)
        .with("a job of a fan-out and fan-in of 10,000", "µs", large_fan)
        .with("cost of a job of the fan beside one of 2,500", "times", large_fan / small_fan))
}

/// What each of these jobs costs, in microseconds, from the call until all are done.
async fn cost_in(cluster: &Cluster, jobs: impl Iterator<Item = v1::JobSpec>) -> Result<f64> {
    let jobs: Vec<v1::JobSpec> = jobs.collect();
    let (count, began) = (jobs.len(), Instant::now());
    let ids = cluster.jobs().await?.queue_jobs(v1::QueueJobsRequest { jobs }).await?.into_inner().job_ids;
    until_done(cluster, ids.last().context("no jobs")?).await?;
    Ok(began.elapsed().as_secs_f64() * 1e6 / count as f64)
}

fn chain(length: usize) -> impl Iterator<Item = v1::JobSpec> {
    (0..length).map(|place| v1::JobSpec {
        local_name: place.to_string(),
        depends_on: place.checked_sub(1).map(|before| before.to_string()).into_iter().collect(),
        ..task("noop")
    })
}

/// What it cost to have these jobs done.
struct Cost {
    took: Duration,
    server: Duration,
    rows: u64,
}

fn per_job(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6 / GRAPH as f64
}

async fn run_batches(cluster: &Cluster, batch: impl Fn(usize) -> Vec<v1::JobSpec>) -> Result<Cost> {
    let mut jobs = cluster.jobs().await?;
    let (server, (_, rows), began) = (cluster.server()?.cpu(), cluster.commits().await?, Instant::now());
    let mut ids = Vec::new();
    for first in (0..GRAPH).step_by(BULK) {
        ids = jobs.queue_jobs(v1::QueueJobsRequest { jobs: batch(first) }).await?.into_inner().job_ids;
    }
    until_done(cluster, ids.last().context("no jobs")?).await?;
    let took = began.elapsed();
    Ok(Cost { took, server: cluster.server()?.cpu() - server, rows: cluster.commits().await?.1 - rows })
}

/// One first, many that wait for it, and one that waits for them.
fn fan(number: usize, size: usize) -> impl Iterator<Item = v1::JobSpec> {
    let named = move |place: usize| format!("{number}-{place}");
    (0..size).map(move |place| {
        let depends_on = match place {
            0 => Vec::new(),
            last if last == size - 1 => (1..last).map(named).collect(),
            _ => vec![named(0)],
        };
        v1::JobSpec { local_name: named(place), depends_on, ..task("noop") }
    })
}

/// What a server takes of a core while its schedules wait.
pub async fn schedules(cluster: &mut Cluster, figure: Figure) -> Result<Figure> {
    cluster.start("server", &[]).await?;
    let client = cluster.schedules().await?;
    let began = Instant::now();
    let makers = (0..CALLERS).map(|maker| {
        let mut client = client.clone();
        async move {
            for number in (maker..SCHEDULES).step_by(CALLERS) {
                let spec = v1::ScheduleSpec {
                    name: format!("s{number}"),
                    timing: Some(v1::schedule_spec::Timing::Cron("0 0 1 1 *".into())),
                    job: Some(task("noop")),
                    ..v1::ScheduleSpec::default()
                };
                client.create_schedule(v1::CreateScheduleRequest { spec: Some(spec) }).await?;
            }
            anyhow::Ok(())
        }
    });
    try_join_all(makers).await?;
    let made = SCHEDULES as f64 / began.elapsed().as_secs_f64();
    tokio::time::sleep(Duration::from_secs(2)).await;
    let before = cluster.server()?.cpu();
    tokio::time::sleep(IDLE).await;
    let share = (cluster.server()?.cpu() - before).as_secs_f64() / IDLE.as_secs_f64();
    let memory = crate::processes::mebibytes(cluster.server()?.memory().now);
    cluster.stop_server();
    let start = cluster.start("server", &[]).await?;
    Ok(figure
        .with("of a core while they wait", "%", share * 100.0)
        .with("made", "/s", made)
        .with("server with them", "MiB", memory)
        .with("start-up with them", "ms", start.as_secs_f64() * 1000.0))
}

/// The same calls over REST and over gRPC, one after the other.
pub async fn rest(cluster: &mut Cluster, figure: Figure) -> Result<Figure> {
    cluster.start("server", &[]).await?;
    let client = reqwest::Client::builder().tcp_nodelay(true).build()?;
    let url = format!("http://{}/api/v1/jobs", cluster.http_address());
    let token = cluster.token().to_owned();
    let body = json!({ "shell": { "program": "/bin/true" } }).to_string();
    let single = rate(|| {
        let request = client.post(&url).bearer_auth(&token).header("content-type", "application/json");
        let request = request.body(body.clone()).send();
        async {
            let answer = request.await?;
            ensure!(answer.status() == 202, "REST answered {}", answer.status());
            answer.bytes().await?;
            Ok(())
        }
    })
    .await?;
    let jobs = try_join_all((0..CALLERS).map(|_| cluster.jobs())).await?;
    let spec = crate::workloads::job("/bin/true", &[]);
    let next = std::cell::Cell::new(0);
    let grpc = rate(|| {
        next.set(next.get() + 1);
        let mut jobs = jobs[next.get() % CALLERS].clone();
        let request = v1::QueueJobRequest { job: Some(spec.clone()) };
        async move {
            jobs.queue_job(request).await?;
            Ok(())
        }
    })
    .await?;
    let lines = format!("{body}\n").repeat(BULK);
    let began = Instant::now();
    for _ in 0..BULK_JOBS / BULK {
        let request = client.post(format!("{url}/bulk")).bearer_auth(&token);
        let request = request.header("content-type", "application/x-ndjson").body(lines.clone());
        let answer = request.send().await?;
        ensure!(answer.status().is_success(), "REST answered {}", answer.status());
        answer.bytes().await?;
    }
    let bulk = BULK_JOBS as f64 / began.elapsed().as_secs_f64();
    let began = Instant::now();
    enqueue(cluster, &spec, BULK_JOBS).await?;
    let grpc_bulk = BULK_JOBS as f64 / began.elapsed().as_secs_f64();
    Ok(figure
        .with("single beside gRPC", "times", single / grpc)
        .with("bulk beside gRPC", "times", bulk / grpc_bulk)
        .with("single", "jobs/s", single)
        .with("gRPC single", "jobs/s", grpc)
        .with("bulk", "jobs/s", bulk)
        .with("gRPC bulk", "jobs/s", grpc_bulk))
}

/// Calls a second of callers that each make one after the other.
async fn rate<C: Future<Output = Result<()>>>(call: impl Fn() -> C) -> Result<f64> {
    let began = limits::now();
    let callers = (0..CALLERS).map(|_| async {
        let mut made = 0usize;
        while limits::now().saturating_sub(began) < CALLING {
            call().await?;
            made += 1;
        }
        anyhow::Ok(made)
    });
    let made: usize = try_join_all(callers).await?.into_iter().sum();
    Ok(made as f64 / limits::now().saturating_sub(began).as_secs_f64())
}
