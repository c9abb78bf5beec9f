//! The same promises with PostgreSQL, and while PostgreSQL itself is away.

use crate::{
    client::{Client, may_pass, shell},
    cluster::Cluster,
    crash::{LONG_LINES, all_ended, check, jobs_survive_crashes, note_start},
    http::Http,
    process::{run, until, until_true},
};
use hodei_api::v1::{self, JobState};
use rustix::process::{Pid, Signal, kill_process};
use std::{
    env, fs,
    net::TcpListener,
    path::PathBuf,
    process::Command,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};
use tempfile::TempDir;
use tonic::Code;

/// A PostgreSQL server that tests may make databases in.
const SERVER: &str = "HODEI_TEST_POSTGRES";
/// The folder of PostgreSQL's programs, for tests that stop their own.
const PROGRAMS: &str = "HODEI_TEST_PG_BIN";
/// PostgreSQL does not run as root.
const ACCOUNT: &str = "postgres";

/// What a variable says; without it the test is skipped, but never on CI.
pub fn setting(name: &str) -> Option<String> {
    let value = env::var(name).ok();
    if value.is_none() {
        assert!(env::var_os("CI").is_none(), "{name} must be set on CI");
        #[allow(clippy::print_stderr)]
        {
            eprintln!("skipped: {name} is not set; 'cargo xtask test' sets it");
        }
    }
    value
}

/// A database of one test. The server it is on is thrown away after the run, and the database with it.
pub async fn database() -> Option<String> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let server = setting(SERVER)?;
    let name = format!("hodei_e2e_{}_{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    let (client, connection) = tokio_postgres::connect(&server, tokio_postgres::NoTls).await.expect("PostgreSQL");
    tokio::spawn(connection);
    client.batch_execute(&format!("CREATE DATABASE {name}")).await.expect("a database");
    let (base, _) = server.rsplit_once('/').expect("a database in the URL");
    Some(format!("{base}/{name}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_server_on_postgres_loses_nothing_and_restarts_nothing() {
    let Some(url) = database().await else { return };
    jobs_survive_crashes(Cluster::with(&["--database-url", &url]).await).await;
}

/// A PostgreSQL of one test, which may be stopped, frozen and started again.
struct Postgres {
    folder: TempDir,
    programs: PathBuf,
    port: u16,
}

impl Postgres {
    async fn start() -> Option<Self> {
        let programs = PathBuf::from(setting(PROGRAMS)?);
        let folder = TempDir::new().expect("a temporary folder");
        let port = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a free port").port();
        let postgres = Self { folder, programs, port };
        if rustix::process::geteuid().is_root() {
            let mut chown = Command::new("chown");
            chown.arg(ACCOUNT).arg(postgres.folder.path());
            run(chown).await.ok();
        }
        let make = ["-A", "trust", "-U", ACCOUNT, "-E", "UTF8", "--locale=C", "--no-sync"];
        run(postgres.program("initdb", &make)).await.ok();
        let settings = format!(
            "listen_addresses = '127.0.0.1'\nport = {port}\nunix_socket_directories = '{}'\nfsync = on\n",
            postgres.folder.path().display()
        );
        let file = postgres.data().join("postgresql.conf");
        let defaults = fs::read_to_string(&file).expect("a configuration");
        fs::write(file, defaults + &settings).expect("a configuration");
        postgres.resume().await;
        Some(postgres)
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// One of its programs, run by the account that owns the data.
    fn program(&self, name: &str, args: &[&str]) -> Command {
        let mut command = Command::new("setpriv");
        if rustix::process::geteuid().is_root() {
            command.args([&format!("--reuid={ACCOUNT}"), &format!("--regid={ACCOUNT}"), "--clear-groups"]);
        }
        command.arg("--").arg(self.programs.join(name)).args(args).arg("-D").arg(self.data());
        command.current_dir(self.folder.path());
        command
    }

    async fn resume(&self) {
        // Its output is a file: a pipe would stay open for as long as the server runs.
        let log = self.folder.path().join("log");
        let args = ["start", "--wait", "--silent", "-l", log.to_str().expect("UTF-8")];
        run(self.program("pg_ctl", &args)).await.ok();
    }

    /// As if its power had failed.
    fn stop(&self) {
        let stopped = self.program("pg_ctl", &["stop", "--wait", "--silent", "--mode=immediate"]).status();
        assert!(stopped.is_ok_and(|status| status.success()));
    }

    fn signal(&self, signal: Signal) {
        for pid in self.processes() {
            _ = kill_process(pid, signal);
        }
    }

    /// The main process and those that serve its clients.
    fn processes(&self) -> Vec<Pid> {
        let file = fs::read_to_string(self.data().join("postmaster.pid")).unwrap_or_default();
        let Some(main) = file.lines().next().and_then(|line| Pid::from_raw(line.parse().ok()?)) else {
            return Vec::new();
        };
        let children = crate::process::descendants(main);
        [main].into_iter().chain(children.into_iter().filter_map(Pid::from_raw)).collect()
    }

    fn url(&self) -> String {
        format!("postgres://{ACCOUNT}@127.0.0.1:{}/postgres", self.port)
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
    }
}

/// Hands in jobs one by one until it is told to stop, and keeps what was acknowledged.
#[derive(Default)]
struct Load {
    acknowledged: Mutex<Vec<String>>,
    refusals: Mutex<Vec<tonic::Status>>,
    enough: AtomicBool,
}

impl Load {
    async fn run(self: Arc<Self>, client: Client, spec: v1::JobSpec) {
        while !self.enough.load(Ordering::Relaxed) {
            match client.jobs().queue_job(v1::QueueJobRequest { job: Some(spec.clone()) }).await {
                Ok(answer) => self.acknowledged.lock().expect("a list").push(answer.into_inner().job_id),
                Err(status) => self.refusals.lock().expect("a list").push(status),
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    fn count(&self) -> usize {
        self.acknowledged.lock().expect("a list").len()
    }
}

/// How a job is refused. Nothing, if it is neither refused nor taken at once: that call waits.
async fn refusal(client: &Client, spec: v1::JobSpec) -> Option<tonic::Status> {
    let mut jobs = client.jobs();
    let call = jobs.queue_job(v1::QueueJobRequest { job: Some(spec) });
    match tokio::time::timeout(Duration::from_millis(500), call).await {
        Ok(Ok(_)) => panic!("acknowledged while there was nowhere to keep it"),
        Ok(Err(status)) => Some(status),
        Err(_) => None,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_while_postgres_is_stopped_under_load() {
    let Some(postgres) = Postgres::start().await else { return };
    // Leases much shorter than the outage: they are renewed without the database, or all would be lost.
    let cluster = Cluster::with(&["--lease", "2s", "--lease-grace", "1s", "--database-url", &postgres.url()]).await;
    let _workers = (cluster.worker("a", &["--slots", "3"]).await, cluster.worker("b", &["--slots", "3"]).await);
    let note = note_start(&cluster.home);
    let (short, long) = (
        format!("{note}; echo line 1; echo oops >&2; echo line 2; sleep 0.05; echo line 3"),
        format!("{note}; for n in $(seq {LONG_LINES}); do echo line $n; sleep 0.2; done"),
    );
    let long = v1::JobSpec { name: "long".into(), ..shell(long) };
    let mut acknowledged = vec![cluster.queue(long.clone()).await, cluster.queue(long).await];
    let load = Arc::new(Load::default());
    let submitting: Vec<_> =
        (0..3).map(|_| tokio::spawn(Arc::clone(&load).run(cluster.client.clone(), shell(&short)))).collect();
    until_true("jobs are taken", || load.count() > 50).await;
    assert_eq!(cluster.probe("/ready").await, "200 OK");

    postgres.stop();
    let stopped = Instant::now();
    until("it is not ready", || async { cluster.probe("/ready").await.starts_with("503").then_some(()) }).await;
    assert_eq!(cluster.probe("/live").await, "200 OK");
    let refusal = until("a call is refused", || async { refusal(&cluster, shell(&short)).await }).await;
    assert!(refusal.message().contains("database"), "it says why: {refusal:?}");
    let taken = load.count();
    while stopped.elapsed() < Duration::from_secs(10) {
        assert_eq!(load.count(), taken, "acknowledged while there was nowhere to keep it");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    postgres.resume().await;
    until_true("jobs are taken again", || load.count() > taken + 30).await;
    until("it is ready again", || async { (cluster.probe("/ready").await == "200 OK").then_some(()) }).await;

    // Frozen is another way to be away: calls hang instead of failing.
    postgres.signal(Signal::STOP);
    until("it is not ready", || async { cluster.probe("/ready").await.starts_with("503").then_some(()) }).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let taken = load.count();
    postgres.signal(Signal::CONT);
    until_true("jobs are taken again", || load.count() > taken + 30).await;
    load.enough.store(true, Ordering::Relaxed);
    for task in submitting {
        task.await.expect("a client");
    }

    let refusals = load.refusals.lock().expect("a list").clone();
    assert!(refusals.iter().all(|status| status.code() == Code::Unavailable && may_pass(status)), "{refusals:?}");
    acknowledged.append(&mut load.acknowledged.lock().expect("a list"));
    let jobs = all_ended(&cluster.client, acknowledged.len()).await;
    // Each has one execution: no worker lost its lease.
    check(&cluster, &jobs, &acknowledged).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_server_knows_that_its_database_is_away() {
    let Some(postgres) = Postgres::start().await else { return };
    let cluster = Cluster::with(&["--database-url", &postgres.url()]).await;
    assert_eq!(cluster.probe("/ready").await, "200 OK");
    postgres.stop();
    assert!(cluster.probe("/ready").await.starts_with("503"));
    let away = Http::new(&cluster.http, &cluster.api_token).get("/ready").await;
    assert_eq!(away.header("retry-after"), "1");
    away.problem(503);
    let mut jobs = cluster.jobs();
    let refused = jobs.queue_job(v1::QueueJobRequest { job: Some(shell("true")) });
    let refused = tokio::time::timeout(Duration::from_secs(3), refused).await;
    assert!(!matches!(refused, Ok(Ok(_))), "nothing is acknowledged that is not kept: {refused:?}");
    postgres.resume().await;
    until("it is ready again", || async { (cluster.probe("/ready").await == "200 OK").then_some(()) }).await;
    let id = cluster.queue(shell("true")).await;
    let _worker = cluster.worker("a", &["--slots", "1"]).await;
    assert_eq!(cluster.ended(&id).await.state(), JobState::Succeeded);
}
