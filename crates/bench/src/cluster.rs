//! A server and a worker as users start them, each a process of its own, on loopback.

use crate::processes;
use anyhow::{Context, Result, bail};
use hodei_api::channel::{self, ApiToken, Authorized};
use hodei_api::v1::{
    CreateWorkerTokenRequest, ListWorkersRequest, Worker, WorkerState,
    dead_letter_service_client::DeadLetterServiceClient as DeadLetters,
    job_execution_service_client::JobExecutionServiceClient as Jobs,
    log_stream_service_client::LogStreamServiceClient as Logs, queue_service_client::QueueServiceClient as Queues,
    schedule_service_client::ScheduleServiceClient as Schedules,
    worker_admin_service_client::WorkerAdminServiceClient as Admin,
};
use std::{
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, Stdio},
    str::FromStr,
    time::{Duration, Instant},
};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreKind {
    Sqlite,
    Postgres,
}

impl StoreKind {
    pub fn name(self) -> &'static str {
        match self {
            StoreKind::Sqlite => "SQLite",
            StoreKind::Postgres => "PostgreSQL",
        }
    }
}

impl FromStr for StoreKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "sqlite" => Ok(StoreKind::Sqlite),
            "postgres" => Ok(StoreKind::Postgres),
            _ => Err("use sqlite or postgres".into()),
        }
    }
}

/// One data folder and the processes on it; all end with it.
pub struct Cluster {
    hodei: PathBuf,
    folder: TempDir,
    kind: StoreKind,
    database: Option<Database>,
    server: Option<Process>,
    worker: Option<Process>,
    grpc: String,
    http: String,
    token: String,
}

pub struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

impl Process {
    pub fn pid(&self) -> u32 {
        self.0.id()
    }

    pub fn memory(&self) -> Memory {
        Memory::of(self.0.id())
    }

    /// What its threads have computed so far, with those that have ended.
    pub fn cpu(&self) -> Duration {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.0.id())).unwrap_or_default();
        // The name, in brackets, may have spaces. After it, user and system time are the twelfth and thirteenth field.
        let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields).split_whitespace();
        let ticks: u64 = fields.skip(11).take(2).filter_map(|ticks| ticks.parse::<u64>().ok()).sum();
        Duration::from_millis(ticks * 1000 / rustix::param::clock_ticks_per_second())
    }
}

/// Resident memory of one process: now, and at most so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct Memory {
    pub now: u64,
    pub peak: u64,
}

impl Memory {
    fn of(pid: u32) -> Self {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
            kib.unwrap_or(0) * 1024
        };
        Self { now: field("VmRSS:"), peak: field("VmHWM:") }
    }
}

/// What a worker of the SDK tells while it works.
pub struct Stamps {
    lines: Option<BufReader<ChildStdout>>,
}

impl Stamps {
    pub async fn next(&mut self) -> Result<Duration> {
        let mut lines = self.lines.take().context("nothing to read from")?;
        let read = move || -> Result<_> {
            let mut line = String::new();
            lines.read_line(&mut line)?;
            Ok((line, lines))
        };
        let (line, lines) = tokio::task::spawn_blocking(read).await??;
        self.lines = Some(lines);
        Ok(crate::limits::parse_stamp(line.as_bytes()))
    }
}

impl Cluster {
    /// An empty store, and nothing running on it yet.
    pub async fn new(hodei: &Path, kind: StoreKind) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let database = match kind {
            StoreKind::Sqlite => None,
            StoreKind::Postgres => Some(Database::new().await?),
        };
        Ok(Self {
            hodei: hodei.to_owned(),
            folder,
            kind,
            database,
            server: None,
            worker: None,
            grpc: free_address()?,
            http: free_address()?,
            token: String::new(),
        })
    }

    /// Starts `hodei server` or `hodei up` and returns how long it took until it was ready.
    pub async fn start(&mut self, command: &str, args: &[&str]) -> Result<Duration> {
        let mut process = self.command("server");
        process.arg(command).args(["--grpc", &self.grpc, "--http", &self.http]).args(args);
        process.arg("--data").arg(self.folder.path().join("server"));
        if let Some(database) = &self.database {
            process.args(["--database-url", &database.url]);
        }
        let began = Instant::now();
        self.server = Some(Process(process.spawn().context("cannot start the server")?));
        self.until_ready().await?;
        let took = began.elapsed();
        self.token = self.new_token()?;
        Ok(took)
    }

    /// An API token, by way of the server's socket.
    fn new_token(&self) -> Result<String> {
        let mut command = Command::new(&self.hodei);
        command.args(["token", "create", "api", "--role", "admin", "--data"]).arg(self.folder.path().join("server"));
        let made = command.env_remove("HODEI_SERVER").output().context("cannot make an API token")?;
        if !made.status.success() {
            bail!("no API token: {}", String::from_utf8_lossy(&made.stderr));
        }
        Ok(String::from_utf8(made.stdout)?.trim().to_owned())
    }

    pub fn token(&self) -> &str {
        &self.token
    }

    pub fn kind(&self) -> StoreKind {
        self.kind
    }

    pub fn server(&self) -> Result<&Process> {
        self.server.as_ref().context("no server runs")
    }

    pub fn worker(&self) -> Result<&Process> {
        self.worker.as_ref().context("no worker runs")
    }

    /// Ends everything and removes the database.
    pub async fn end(mut self) -> Result<()> {
        (self.worker, self.server) = (None, None);
        match self.database.take() {
            Some(database) => database.remove().await,
            None => Ok(()),
        }
    }

    pub fn stop_server(&mut self) {
        self.server = None;
    }

    pub async fn start_worker(&mut self, slots: u32) -> Result<()> {
        self.start_worker_with(slots, &[]).await
    }

    pub fn stop_worker(&mut self) {
        self.worker = None;
    }

    pub fn http_address(&self) -> &str {
        &self.http
    }

    pub async fn schedules(&self) -> Result<Schedules<Authorized>> {
        Ok(Schedules::new(self.channel().await?))
    }

    pub async fn start_worker_with(&mut self, slots: u32, args: &[&str]) -> Result<()> {
        let request = CreateWorkerTokenRequest::default();
        let token = Admin::new(self.channel().await?).create_worker_token(request).await?.into_inner();
        let mut process = self.command("worker");
        process.args(["worker", "run", "--server", &self.address(), "--token", &token.token]);
        let folder = self.folder.path().join(format!("worker-{}", token.worker_id));
        process.args(["--slots", &slots.to_string()]).args(args).arg("--data").arg(folder);
        self.worker = Some(Process(process.spawn().context("cannot start the worker")?));
        self.until_workers(1, |worker| worker.id == token.worker_id).await
    }

    /// Waits until so many of these workers are ready.
    pub async fn until_workers(&self, count: usize, these: impl Fn(&Worker) -> bool) -> Result<()> {
        let mut admin = Admin::new(self.channel().await?);
        let began = Instant::now();
        while began.elapsed() < PATIENCE {
            let workers = admin.list_workers(ListWorkersRequest {}).await?.into_inner().workers;
            let ready = workers.iter().filter(|worker| worker.state() == WorkerState::Ready && these(worker));
            if ready.count() >= count {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        bail!("the workers did not come up")
    }

    /// A process with so many workers of the SDK, with the handlers of `tasks.rs`.
    pub async fn start_task_workers(&mut self, workers: usize, slots: u32, env: &[(&str, &str)]) -> Result<Stamps> {
        let mut admin = Admin::new(self.channel().await?);
        let mut tokens = Vec::new();
        for _ in 0..workers {
            tokens.push(admin.create_worker_token(CreateWorkerTokenRequest::default()).await?.into_inner().token);
        }
        let mut process = self.logged(Command::new(std::env::current_exe()?), "worker");
        process.arg("--work").stdout(Stdio::piped()).envs(env.iter().copied());
        process.env("HODEI_SERVER", self.address()).env(crate::tasks::TOKENS, tokens.join(","));
        process.env("HODEI_SLOTS", slots.to_string()).env("HODEI_DATA", self.folder.path().join("worker"));
        let mut child = process.spawn().context("cannot start the worker")?;
        let stdout = child.stdout.take().context("no standard output")?;
        self.worker = Some(Process(child));
        Ok(Stamps { lines: Some(BufReader::new(stdout)) })
    }

    fn command(&self, name: &str) -> Command {
        self.logged(Command::new(&self.hodei), name)
    }

    fn logged(&self, mut command: Command, name: &str) -> Command {
        let log = fs::File::create(self.folder.path().join(format!("{name}.log")));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log.map_or(Stdio::null(), Stdio::from));
        command.env("HODEI_LOG", "warn");
        command
    }

    async fn until_ready(&self) -> Result<()> {
        let began = Instant::now();
        while began.elapsed() < PATIENCE {
            if self.http("/ready").await.is_ok_and(|answer| answer.starts_with("HTTP/1.1 200")) {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        bail!("the server did not become ready: {}", fs::read_to_string(self.folder.path().join("server.log"))?)
    }

    async fn http(&self, path: &str) -> Result<String> {
        let mut stream = TcpStream::connect(&self.http).await?;
        stream.write_all(format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok(answer)
    }

    /// Commits that the server has made so far, and the rows of jobs that they wrote.
    pub async fn commits(&self) -> Result<(u64, u64)> {
        let answer = self.http("/health").await?;
        let body = answer.split_once("\r\n\r\n").context("no body")?.1;
        let health: serde_json::Value = serde_json::from_str(body)?;
        let count = |name: &str| health[name].as_u64().with_context(|| format!("no {name} in {body}"));
        Ok((count("commits")?, count("job_rows")?))
    }

    pub fn address(&self) -> String {
        format!("http://{}", self.grpc)
    }

    pub async fn channel(&self) -> Result<Authorized> {
        let channel = channel::connect(tonic::transport::Endpoint::from_shared(self.address())?).await?;
        Ok(ApiToken::new(&self.token)?.on(channel))
    }

    pub async fn jobs(&self) -> Result<Jobs<Authorized>> {
        Ok(Jobs::new(self.channel().await?).max_decoding_message_size(64 << 20))
    }

    pub async fn queues(&self) -> Result<Queues<Authorized>> {
        Ok(Queues::new(self.channel().await?))
    }

    pub async fn dead_letters(&self) -> Result<DeadLetters<Authorized>> {
        Ok(DeadLetters::new(self.channel().await?))
    }

    pub async fn logs(&self) -> Result<Logs<Authorized>> {
        Ok(Logs::new(self.channel().await?))
    }
}

pub fn free_address() -> Result<String> {
    Ok(std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string())
}

/// Every measurement on PostgreSQL begins with an empty database of its own.
pub struct Database {
    pub url: String,
    name: String,
}

impl Database {
    pub async fn new() -> Result<Self> {
        let name = format!("bench_{}_{}", std::process::id(), crate::limits::now().as_nanos());
        // What earlier measurements left to be written is not to be paid by this one.
        for statement in ["CHECKPOINT", &format!("CREATE DATABASE {name}")] {
            Self::administer(statement).await?;
        }
        let url = Self::server_url()?;
        let (server, _) = url.rsplit_once('/').context("the URL has no database")?;
        Ok(Self { url: format!("{server}/{name}"), name })
    }

    fn server_url() -> Result<String> {
        std::env::var("HODEI_TEST_POSTGRES").context("HODEI_TEST_POSTGRES is not set; use 'cargo xtask bench'")
    }

    async fn administer(statement: &str) -> Result<Vec<tokio_postgres::SimpleQueryMessage>> {
        let (client, connection) = tokio_postgres::connect(&Self::server_url()?, tokio_postgres::NoTls).await?;
        tokio::spawn(connection);
        Ok(client.simple_query(statement).await?)
    }

    /// The process that all others of the server descend from.
    pub async fn server() -> Result<u32> {
        let (client, connection) = tokio_postgres::connect(&Self::server_url()?, tokio_postgres::NoTls).await?;
        tokio::spawn(connection);
        let backend: i32 = client.query_one("SELECT pg_backend_pid()", &[]).await?.get(0);
        processes::parent(u32::try_from(backend)?).context("the server runs on another machine")
    }

    pub async fn version() -> Result<String> {
        let rows = Self::administer("SHOW server_version").await?;
        let row = rows.iter().find_map(|message| match message {
            tokio_postgres::SimpleQueryMessage::Row(row) => row.get(0),
            _ => None,
        });
        Ok(row.unwrap_or_default().to_owned())
    }

    pub async fn remove(self) -> Result<()> {
        Self::administer(&format!("DROP DATABASE {} WITH (FORCE)", self.name)).await?;
        Ok(())
    }
}
