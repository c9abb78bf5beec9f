//! From a job to its first line where no worker is there yet: beside what it takes to start the same agent, or the same
//! container, by hand.

use crate::{
    cluster::Cluster,
    record::Figure,
    workloads::{REST, job},
};
use anyhow::{Context, Result, bail, ensure};
use hodei_api::{
    channel::Authorized,
    v1::{
        self, provider_management_service_client::ProviderManagementServiceClient as Providers,
        worker_admin_service_client::WorkerAdminServiceClient as Admin,
    },
};
use std::{
    io::Read,
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

/// Nearly empty: a shell and its tools.
const IMAGE: &str = "hodei-test/busybox:1";
const TIMES: usize = 10;
const PATIENCE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(5);

pub async fn measure(cluster: &mut Cluster, figure: Figure) -> Result<Figure> {
    cluster.start("server", &[]).await?;
    let mut figure = figure.with("an agent by hand", "ms", by_hand(cluster).await?);
    figure = figure.with("a connected worker", "ms", connected(cluster).await?);
    let mut providers = Providers::new(cluster.channel().await?);
    let spec = v1::ProviderSpec { name: "local".into(), kind: "process".into(), ..v1::ProviderSpec::default() };
    providers.add_provider(v1::AddProviderRequest { spec: Some(spec) }).await?;
    figure = figure.with("a process on demand", "ms", on_demand(cluster, template("local", "")).await?);
    figure = figure.with("a process from a warm pool", "ms", warm(cluster, template("local", "")).await?);
    // Workers outlive their server, so none may be left.
    providers.remove_provider(v1::RemoveProviderRequest { name: "local".into() }).await?;
    until(cluster, <[_]>::is_empty).await?;
    match (std::env::var("HODEI_TEST_DOCKER"), std::env::var("HODEI_TEST_AGENT")) {
        (Ok(host), Ok(agent)) => in_containers(cluster, figure, &host, Path::new(&agent)).await,
        _ => Ok(figure),
    }
}

async fn in_containers(cluster: &mut Cluster, figure: Figure, host: &str, agent: &Path) -> Result<Figure> {
    let figure = figure.with("docker run", "ms", docker_run(host)?);
    let agent = agent.to_str().context("a path that is not UTF-8")?;
    let settings = [("host", host), ("agent", agent), ("pull", "never")];
    let settings = settings.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    let spec = v1::ProviderSpec { name: "engine".into(), kind: "docker".into(), settings, ..Default::default() };
    Providers::new(cluster.channel().await?).add_provider(v1::AddProviderRequest { spec: Some(spec) }).await?;
    Ok(figure.with("a container on demand", "ms", on_demand(cluster, template("engine", IMAGE)).await?))
}

fn template(provider: &str, image: &str) -> v1::TemplateSpec {
    v1::TemplateSpec {
        name: "cold".into(),
        providers: vec![provider.into()],
        image: image.into(),
        reuse: "never".into(),
        ..v1::TemplateSpec::default()
    }
}

/// The agent is started when the job waits already, as a provider would.
async fn by_hand(cluster: &mut Cluster) -> Result<f64> {
    let mut times = Vec::new();
    for _ in 0..TIMES {
        let (jobs, logs) = (cluster.jobs().await?, cluster.logs().await?);
        let id = queue(jobs).await?;
        let began = Instant::now();
        let (started, seen) = tokio::join!(cluster.start_worker(1), first_line(logs, id));
        started?;
        times.push(seen?.saturating_duration_since(began));
        cluster.stop_worker();
    }
    Ok(median(times))
}

async fn connected(cluster: &mut Cluster) -> Result<f64> {
    cluster.start_worker(1).await?;
    let mut times = Vec::new();
    for _ in 0..TIMES {
        tokio::time::sleep(REST).await;
        times.push(to_first_line(cluster).await?);
    }
    cluster.stop_worker();
    Ok(median(times))
}

async fn on_demand(cluster: &Cluster, template: v1::TemplateSpec) -> Result<f64> {
    put(cluster, template).await?;
    let mut times = Vec::new();
    for _ in 0..TIMES {
        until(cluster, <[_]>::is_empty).await?;
        times.push(to_first_line(cluster).await?);
    }
    until(cluster, <[_]>::is_empty).await?;
    Ok(median(times))
}

async fn warm(cluster: &Cluster, template: v1::TemplateSpec) -> Result<f64> {
    put(cluster, v1::TemplateSpec { warm: 1, ..template }).await?;
    let mut times = Vec::new();
    for _ in 0..TIMES {
        until(cluster, |workers| matches!(workers, [one] if one.state() == v1::WorkerState::Ready)).await?;
        tokio::time::sleep(REST).await;
        times.push(to_first_line(cluster).await?);
    }
    Ok(median(times))
}

/// Prints one word in a container that the client of the engine starts.
fn docker_run(host: &str) -> Result<f64> {
    let mut times = Vec::new();
    for _ in 0..TIMES {
        let began = Instant::now();
        let mut docker = Command::new("docker");
        docker.args(["-H", host, "run", "--rm", IMAGE, "/bin/echo", "x"]).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = docker.spawn().context("cannot start docker")?;
        let mut byte = [0];
        child.stdout.take().context("no standard output")?.read_exact(&mut byte).context("docker printed nothing")?;
        times.push(began.elapsed());
        ensure!(child.wait()?.success(), "docker run failed");
    }
    Ok(median(times))
}

async fn put(cluster: &Cluster, spec: v1::TemplateSpec) -> Result<()> {
    Providers::new(cluster.channel().await?).put_template(v1::PutTemplateRequest { spec: Some(spec) }).await?;
    Ok(())
}

/// Waits until the workers that providers made are as they should be.
async fn until(cluster: &Cluster, holds: impl Fn(&[v1::Worker]) -> bool) -> Result<()> {
    let mut admin = Admin::new(cluster.channel().await?);
    let began = Instant::now();
    while began.elapsed() < PATIENCE {
        let mut workers = admin.list_workers(v1::ListWorkersRequest {}).await?.into_inner().workers;
        workers.retain(|worker| !worker.provider.is_empty());
        if holds(&workers) {
            return Ok(());
        }
        tokio::time::sleep(POLL).await;
    }
    bail!("the workers did not become what they should be")
}

async fn to_first_line(cluster: &Cluster) -> Result<Duration> {
    let (jobs, logs) = (cluster.jobs().await?, cluster.logs().await?);
    let began = Instant::now();
    let id = queue(jobs).await?;
    Ok(first_line(logs, id).await?.saturating_duration_since(began))
}

async fn queue(mut jobs: v1::job_execution_service_client::JobExecutionServiceClient<Authorized>) -> Result<String> {
    let spec = Some(job("/bin/echo", &["x"]));
    Ok(jobs.queue_job(v1::QueueJobRequest { job: spec }).await?.into_inner().job_id)
}

/// When it came.
async fn first_line(
    mut logs: v1::log_stream_service_client::LogStreamServiceClient<Authorized>,
    job_id: String,
) -> Result<Instant> {
    let mut lines = logs.subscribe_logs(v1::SubscribeLogsRequest { job_id, tail: None }).await?.into_inner();
    while let Some(batch) = lines.message().await? {
        if !batch.entries.is_empty() {
            return Ok(Instant::now());
        }
    }
    bail!("the job printed nothing")
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort();
    times.get(times.len() / 2).map_or(0.0, |time| time.as_secs_f64() * 1000.0)
}
