//! A real server process under fire from its sockets. Whatever it is sent, afterwards it lives, answers what is right,
//! has not grown and has not panicked.

mod attack;
mod process;

use crate::{
    engine::Plan,
    proto::{Schema, Words},
    rng::Rng,
};
use anyhow::{Context, Result, ensure};
use attack::Attacker;
use hodei_api::channel::{ApiToken, Authorized};
use hodei_api::v1::{
    self, job_execution_service_client::JobExecutionServiceClient as Jobs,
    worker_admin_service_client::WorkerAdminServiceClient as Admin,
    worker_agent_service_client::WorkerAgentServiceClient as Agents,
};
use process::Server;
use std::{path::Path, time::Instant};
use tonic::transport::Endpoint;
use uuid::Uuid;

pub const NAME: &str = "live";

/// Attacks between two looks at the server.
const ROUND: u64 = 250;
/// The most that it may ever take: some requests of the largest size at once, and what it needs anyway.
const MOST_MEMORY: u64 = 1 << 30;
/// What may stay of it when nobody asks for anything any more.
const MOST_LEFT: u64 = 512 << 20;

/// Attacks a server of its own for as long as the plan says, and tells what was done.
pub fn run(hodei: &Path, plan: Plan) -> Result<String> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let told = runtime.block_on(fight(hodei, plan)).with_context(|| format!("the live server, seed {}", plan.seed));
    runtime.shutdown_background();
    told
}

async fn fight(hodei: &Path, plan: Plan) -> Result<String> {
    let mut server = Server::start(hodei).await?;
    let fought = rounds(&server, plan).await;
    let log = server.log();
    let fault = log.lines().find(|line| line.contains("panicked"));
    ensure!(fault.is_none(), "the server panicked: {}", fault.unwrap_or_default());
    server.alive().with_context(|| format!("the server is gone; it said: {log}"))?;
    fought
}

async fn rounds(server: &Server, plan: Plan) -> Result<String> {
    let schema = Schema::new();
    let mut rng = Rng::new(plan.seed);
    let mut words = settle(server).await?;
    let mut attacker = Attacker::new(server, &schema);
    attacker.floods().await;
    look(server).await.context("after floods of the largest size")?;
    let began = Instant::now();
    let mut done = 0;
    while done < plan.inputs && began.elapsed() < plan.time {
        for _ in 0..ROUND.min(plan.inputs - done) {
            attacker.attack(&words, &mut rng).await;
            done += 1;
        }
        look(server).await.with_context(|| format!("after {done} attacks"))?;
        words = settle(server).await?;
    }
    let speed = done as f64 / began.elapsed().as_secs_f64().max(0.001);
    drop(attacker);
    look(server).await?;
    let (now, most) = (server.memory("VmRSS:"), server.memory("VmHWM:"));
    ensure!(now <= MOST_LEFT, "the server still has {now} bytes of memory");
    Ok(format!("{NAME}: {done} inputs, {speed:.0} a second, {} MiB at most, {} MiB left", most >> 20, now >> 20))
}

async fn channel(server: &Server) -> Result<Authorized> {
    let channel = Endpoint::from_shared(format!("http://{}", server.grpc))?.connect().await?;
    Ok(ApiToken::new(&server.token)?.on(channel))
}

/// A job and a worker, so that attacks can be aimed.
async fn settle(server: &Server) -> Result<Words> {
    let channel = channel(server).await?;
    let token = Admin::new(channel.clone()).create_worker_token(v1::CreateWorkerTokenRequest::default()).await?;
    let token = token.into_inner();
    let capacity = Some(v1::Capacity { slots: 4, cpu_millis: 1000, memory_bytes: 1 << 30, ..v1::Capacity::default() });
    let info = Some(v1::WorkerInfo { name: "fuzz".into(), capacity, ..v1::WorkerInfo::default() });
    let register = v1::RegisterRequest { token: token.token, info, key: vec![7; 32], ..Default::default() };
    let session = Agents::new(channel.clone()).register(register).await?.into_inner().session;
    let job = queue(channel).await?;
    Ok(Words { ids: vec![job, token.worker_id.parse()?], session })
}

async fn queue(channel: Authorized) -> Result<Uuid> {
    let shell = v1::ShellWork { program: "true".into(), args: Vec::new() };
    let work = Some(v1::Work { kind: Some(v1::work::Kind::Shell(shell)) });
    let job = Some(v1::JobSpec { work, ..v1::JobSpec::default() });
    let answer = Jobs::new(channel).queue_job(v1::QueueJobRequest { job }).await?.into_inner();
    Ok(answer.job_id.parse()?)
}

/// The server is there, healthy, and does what it is asked.
async fn look(server: &Server) -> Result<()> {
    let live = server.get("/live").await.context("the health of the server")?;
    ensure!(live.starts_with("HTTP/1.1 200"), "the server is not well: {live}");
    let channel = channel(server).await.context("a new connection")?;
    let id = queue(channel.clone()).await.context("a correct job")?.to_string();
    let found = Jobs::new(channel).get_job(v1::GetJobRequest { job_id: id.clone() }).await.context("the job again")?;
    ensure!(found.into_inner().job.is_some_and(|job| job.id == id), "the server lost a job");
    let most = server.memory("VmHWM:");
    ensure!(most <= MOST_MEMORY, "the server took {most} bytes of memory");
    Ok(())
}
