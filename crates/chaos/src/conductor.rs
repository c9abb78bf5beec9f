//! Starts everything, does harm by the plan, heals, and lets the checker judge.

use crate::{
    Conduct, clock,
    daemon::{Daemon, children_named},
    disk::Disk,
    journal::FaultLog,
    plan::{Harm, Planned, Stage, Target, WORKERS, plan},
    postgres::Postgres,
    proxy::{Condition, Flow, Proxy},
    say,
};
use anyhow::{Context, Result, bail, ensure};
use hodei_api::channel::{ApiToken, Authorized};
use hodei_api::v1::{self, worker_admin_service_client::WorkerAdminServiceClient as Admin};
use rustix::process::Signal;
use std::{
    env, fs,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU16, Ordering},
    },
    time::{Duration, Instant},
};
use tempfile::TempDir;
use tokio::{
    io::AsyncWriteExt,
    process::{Child, ChildStdin},
    task::JoinSet,
};
use tonic::transport::Endpoint;

pub const SLOTS: u32 = 4;
/// The worker whose data is on a small disk.
const DISK_WORKER: usize = WORKERS - 1;
const PATIENCE: Duration = Duration::from_secs(60);
const ORDERLY: Duration = Duration::from_secs(12);
/// Short leases, so that a fault of some seconds is longer than one.
const CONFIG: &str = "[server]\nlease = \"3s\"\nlease_grace = \"1s\"\nparked_lease = \"8s\"\n";
/// As a shell says it of a program that Ctrl-C ended.
const INTERRUPTED: u8 = 130;
const WORKER_DISK_BYTES: u64 = 16 << 20;

pub async fn run(args: &Conduct) -> Result<ExitCode> {
    let folder = tempfile::Builder::new().prefix("hodei-chaos-").tempdir()?;
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755))?;
    let outcome = tokio::select! {
        outcome = on_stage(args, folder.path()) => outcome,
        _ = tokio::signal::ctrl_c() => {
            // Tasks that were doing harm let go of what they harmed; then nothing is mounted in the folder any more.
            tokio::time::sleep(Duration::from_millis(200)).await;
            return Ok(ExitCode::from(INTERRUPTED));
        }
    };
    let well = matches!(outcome, Ok(true));
    if !well {
        keep(folder);
    }
    Ok(if outcome? { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

#[allow(clippy::print_stderr)]
fn keep(folder: TempDir) {
    eprintln!("what the processes wrote is kept in {}", folder.keep().display());
}

async fn on_stage(args: &Conduct, folder: &Path) -> Result<bool> {
    let length = Duration::from_secs_f64(args.minutes * 60.0);
    let cast = Arc::new(Cast::assemble(args, folder, length).await?);
    let (mut checker, mut wishes) = cast.start_checker(args.seed)?;
    let length_ms = u64::try_from(length.as_millis())?;
    let faults = plan(args.seed, length_ms, cast.stage());
    say(&format!("chaos: seed {}, {} faults in {:.1} minutes", args.seed, faults.len(), args.minutes));

    let began = Instant::now();
    let mut tasks = JoinSet::new();
    for planned in faults {
        tokio::time::sleep(Duration::from_millis(planned.at_ms).saturating_sub(began.elapsed())).await;
        if let Some(status) = checker.try_wait()? {
            bail!("the checker ended before its time: {status}");
        }
        say(&format!("{:7.1} s  {planned}", began.elapsed().as_secs_f64()));
        let cast = Arc::clone(&cast);
        tasks.spawn(async move { cast.harm(planned).await });
    }
    tokio::time::sleep(length.saturating_sub(began.elapsed())).await;
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    say(&format!("{:7.1} s  all is healed", began.elapsed().as_secs_f64()));
    wishes.write_all(b"calm\n").await?;
    let well = checker.wait().await?.success();
    // Before their folders go.
    for daemon in cast.workers.iter().chain([&cast.server]) {
        daemon.kill().await;
    }
    Ok(well)
}

/// Everything that can be harmed.
struct Cast {
    folder: PathBuf,
    faults: FaultLog,
    server: Daemon,
    workers: Vec<Daemon>,
    links: Vec<Proxy>,
    client_link: Proxy,
    postgres: Option<Postgres>,
    server_disk: Option<Disk>,
    worker_disk: Option<Disk>,
    api_token: String,
}

impl Cast {
    async fn assemble(args: &Conduct, folder: &Path, length: Duration) -> Result<Self> {
        let faults = FaultLog::create(folder)?;
        fs::create_dir(folder.join("runs"))?;
        fs::write(folder.join("config.toml"), CONFIG)?;
        let postgres = match &args.postgres {
            Some(programs) => Some(Postgres::start(&folder.join("postgres"), programs, free_port()?).await?),
            None => None,
        };
        let (server_data, worker_data) = (folder.join("server"), |n: usize| folder.join(format!("worker-{n}")));
        // What the jobs leave grows with the time.
        let server_bytes = ((64 << 20) + length.as_secs() * (256 << 10)).min(1 << 30);
        let server_disk = if postgres.is_none() { small_disk(&server_data, server_bytes)? } else { None };
        let worker_disk = small_disk(&worker_data(DISK_WORKER), WORKER_DISK_BYTES)?;

        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()?));
        let command = hodei(&args.hodei, folder);
        let database = postgres.as_ref().map(Postgres::url);
        let http = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()?)).to_string();
        let build = move || {
            let mut server = command();
            server.args(["server", "--grpc", &address.to_string(), "--http", &http]).arg("--data").arg(&server_data);
            if let Some(url) = &database {
                server.args(["--database-url", url]);
            }
            server
        };
        let log = |name: &str| folder.join(format!("{name}.log"));
        let server = Daemon::start("the server", log("server"), "hodei is up", faults.clone(), Box::new(build)).await?;
        server.up(PATIENCE).await?;
        let api_token = api_token(&hodei(&args.hodei, folder), &folder.join("server"))?;
        let (mut workers, mut links) = (Vec::new(), Vec::new());
        for n in 0..WORKERS {
            let token = token(address, &api_token).await?;
            let link = Proxy::start(address).await?;
            let (command, data, url) = (hodei(&args.hodei, folder), worker_data(n), format!("http://{}", link.address));
            let build = move || {
                let mut worker = command();
                worker.args(["worker", "run", "--server", &url, "--token", &token, "--slots", &SLOTS.to_string()]);
                worker.arg("--name").arg(format!("worker-{n}")).arg("--data").arg(&data);
                worker
            };
            let name = format!("worker {n}");
            let log = log(&format!("worker-{n}"));
            workers.push(Daemon::start(&name, log, "the worker is up", faults.clone(), Box::new(build)).await?);
            links.push(link);
        }
        let client_link = Proxy::start(address).await?;
        let cast = Self {
            folder: folder.to_owned(),
            faults,
            server,
            workers,
            links,
            client_link,
            postgres,
            server_disk,
            worker_disk,
            api_token,
        };
        cast.all_connected(address).await?;
        Ok(cast)
    }

    async fn all_connected(&self, address: SocketAddr) -> Result<()> {
        let began = Instant::now();
        while began.elapsed() < PATIENCE {
            let workers =
                admin(address, &self.api_token)?.list_workers(v1::ListWorkersRequest {}).await?.into_inner().workers;
            if workers.iter().filter(|worker| worker.state() == v1::WorkerState::Ready).count() == WORKERS {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        bail!("the workers do not connect")
    }

    fn stage(&self) -> Stage {
        Stage { postgres: self.postgres.is_some(), disks: self.worker_disk.is_some() }
    }

    fn start_checker(&self, seed: u64) -> Result<(Child, ChildStdin)> {
        let mut checker = tokio::process::Command::new(env::current_exe()?);
        checker.args(["check", "--server", &format!("http://{}", self.client_link.address)]);
        checker.args(["--seed", &seed.to_string(), "--slots", &SLOTS.to_string()]);
        checker.arg("--folder").arg(&self.folder);
        checker.arg("--disk-worker").arg(self.folder.join(format!("worker-{DISK_WORKER}")));
        checker.env("HODEI_API_TOKEN", &self.api_token).stdin(Stdio::piped()).kill_on_drop(true);
        let mut checker = checker.spawn().context("cannot start the checker")?;
        let wishes = checker.stdin.take().context("the checker has no input")?;
        Ok((checker, wishes))
    }

    /// Does harm and puts it right again.
    async fn harm(&self, planned: Planned) -> Result<()> {
        let (began, lasting) = (clock::wall_ms(), Duration::from_millis(planned.ms));
        let mut what = planned.to_string();
        match planned.target {
            Target::Server | Target::Worker(_) => {
                let worker = || if let Target::Worker(n) = planned.target { self.workers.get(n) } else { None };
                if !harm_process(worker().unwrap_or(&self.server), planned.harm, lasting).await {
                    what.push_str(", and had to be killed");
                    say(&format!("           {} did not end when asked to, and was killed", planned.target));
                }
            }
            Target::Link(n) => {
                harm_links(self.links.get(n).into_iter(), planned.harm, lasting).await;
            }
            Target::AllLinks => harm_links(self.links.iter(), planned.harm, lasting).await,
            Target::ClientLink => harm_links(std::iter::once(&self.client_link), planned.harm, lasting).await,
            Target::Postgres => {
                harm_postgres(self.postgres.as_ref().context("no PostgreSQL")?, planned.harm, lasting).await?;
            }
            Target::ServerDisk => fill(self.server_disk.as_ref(), lasting).await,
            Target::WorkerDisk => fill(self.worker_disk.as_ref(), lasting).await,
        }
        self.faults.done(&planned.kind(), &what, began);
        Ok(())
    }
}

/// Returns whether it did what it was asked.
async fn harm_process(daemon: &Daemon, harm: Harm, lasting: Duration) -> bool {
    let mut obeyed = true;
    match harm {
        Harm::Freeze => {
            daemon.signal(Signal::STOP).await;
            tokio::time::sleep(lasting).await;
            daemon.signal(Signal::CONT).await;
            return true;
        }
        Harm::KillGuardian => {
            let agent = daemon.pid().await;
            for guardian in agent.into_iter().flat_map(|agent| children_named(agent, "guardian")) {
                _ = rustix::process::kill_process(guardian, Signal::KILL);
            }
            // Time to start another one: whoever kills both at the same moment has to end the jobs, too.
            tokio::time::sleep(lasting).await;
            return true;
        }
        Harm::Stop => obeyed = daemon.end(1, ORDERLY).await,
        Harm::GiveBack => obeyed = daemon.end(2, ORDERLY).await,
        _ => daemon.kill().await,
    }
    tokio::time::sleep(lasting).await;
    daemon.resume().await;
    obeyed
}

async fn harm_links(links: impl Iterator<Item = &Proxy> + Clone, harm: Harm, lasting: Duration) {
    let well = Condition::default();
    let condition = match harm {
        Harm::Hold => Condition { up: Flow::Hold, down: Flow::Hold, ..well },
        Harm::LoseUp => Condition { up: Flow::Lose, ..well },
        Harm::LoseDown => Condition { down: Flow::Lose, ..well },
        Harm::Slow => {
            let delay = Flow::Delay(Duration::from_millis(150));
            Condition { up: delay, down: delay, ..well }
        }
        _ => Condition { cut: true, ..well },
    };
    links.clone().for_each(|link| link.set(condition));
    tokio::time::sleep(lasting).await;
    links.for_each(Proxy::heal);
}

async fn harm_postgres(postgres: &Postgres, harm: Harm, lasting: Duration) -> Result<()> {
    match harm {
        Harm::Freeze => {
            postgres.signal(Signal::STOP, true);
            tokio::time::sleep(lasting).await;
            postgres.signal(Signal::CONT, true);
            return Ok(());
        }
        Harm::Stop => postgres.stop().await,
        harm => postgres.signal(Signal::KILL, harm == Harm::Kill),
    }
    tokio::time::sleep(lasting).await;
    postgres.resume().await
}

async fn fill(disk: Option<&Disk>, lasting: Duration) {
    let Some(disk) = disk else { return };
    let began = Instant::now();
    while began.elapsed() < lasting {
        disk.fill();
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    disk.empty();
}

/// `hodei` with nothing of the caller's own settings.
fn hodei(program: &Path, folder: &Path) -> impl Fn() -> Command + Send + Sync + 'static {
    let (program, folder) = (program.to_owned(), folder.to_owned());
    move || {
        let mut command = Command::new(&program);
        command.env_clear().env("PATH", env::var_os("PATH").unwrap_or_default()).env("HOME", &folder);
        command.arg("--config").arg(folder.join("config.toml")).current_dir(&folder);
        command
    }
}

/// Only root may mount. What gates a change must do all harm; elsewhere it is better to do the rest than nothing.
fn small_disk(path: &Path, bytes: u64) -> Result<Option<Disk>> {
    match Disk::mount(path, bytes) {
        Ok(disk) => Ok(Some(disk)),
        Err(error) if env::var_os("CI").is_none_or(|ci| ci != "true") => {
            say(&format!("WARNING: no disk will be full in this run: {error:#}"));
            Ok(None)
        }
        Err(error) => Err(error.context("full disks are needed when CI=true")),
    }
}

/// Below the ports that the system gives to those who connect: one of those could take the place of a server that is
/// away, or even be connected with itself.
fn free_port() -> Result<u16> {
    static GIVEN: AtomicU16 = AtomicU16::new(0);
    let start = 20_000 + u16::try_from(clock::boottime() / 1000 % 10_000)?;
    // The port before this one may not be in use yet.
    let start = start.max(GIVEN.load(Ordering::Relaxed) + 1);
    let free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    let port = (start..32_000).find(free).context("no port is free")?;
    GIVEN.store(port, Ordering::Relaxed);
    Ok(port)
}

/// A token for the role admin, by way of the server's socket.
fn api_token(hodei: &impl Fn() -> Command, data: &Path) -> Result<String> {
    let mut command = hodei();
    command.args(["token", "create", "api", "--role", "admin", "--data"]).arg(data);
    let made = command.output().context("cannot make an API token")?;
    ensure!(made.status.success(), "no API token: {}", String::from_utf8_lossy(&made.stderr));
    Ok(String::from_utf8(made.stdout)?.trim().to_owned())
}

fn admin(address: SocketAddr, api_token: &str) -> Result<Admin<Authorized>> {
    let channel = Endpoint::from_shared(format!("http://{address}"))?.connect_lazy();
    Ok(Admin::new(ApiToken::new(api_token)?.on(channel)))
}

async fn token(address: SocketAddr, api_token: &str) -> Result<String> {
    let request = v1::CreateWorkerTokenRequest::default();
    Ok(admin(address, api_token)?.create_worker_token(request).await?.into_inner().token)
}
