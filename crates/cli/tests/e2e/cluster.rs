//! A server and its workers, each a process.

use crate::{
    client::Client,
    process::{Daemon, Home, Ran, run, until},
};
use hodei_api::v1;
use rustix::process::Signal;
use std::{
    ops::Deref,
    path::PathBuf,
    process::Command,
    sync::{Arc, Mutex},
};

/// A short lease, so that tests of lost workers are short, too.
pub const SHORT_LEASE: [&str; 4] = ["--lease", "2s", "--lease-grace", "1s"];

pub struct Cluster {
    pub server: Daemon,
    /// The address for gRPC, such as http://127.0.0.1:7070.
    pub grpc: String,
    pub http: String,
    /// For the role admin.
    pub api_token: String,
    flags: Vec<String>,
    starts: u32,
    pub client: Client,
    pub home: Home,
}

pub struct Worker {
    pub id: String,
    pub daemon: Daemon,
}

impl Deref for Cluster {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

impl Cluster {
    pub async fn start() -> Self {
        Self::with(&[]).await
    }

    /// A server with these flags and no worker.
    pub async fn with(flags: &[&str]) -> Self {
        Self::of("server", flags).await
    }

    /// `hodei up`: a server with a worker in one process.
    pub async fn up(flags: &[&str]) -> Self {
        Self::of("up", flags).await
    }

    /// `hodei up` with this configuration.
    pub async fn up_with(config: &str) -> Self {
        let home = Home::new();
        let path = home.write("config.toml", config);
        Self::at(home, "up", &["--config", path.to_str().expect("UTF-8")]).await
    }

    /// A server with this configuration and no worker.
    pub async fn with_config(config: &str) -> Self {
        let home = Home::new();
        let path = home.write("config.toml", config);
        Self::at(home, "server", &["--config", path.to_str().expect("UTF-8")]).await
    }

    async fn of(command: &str, flags: &[&str]) -> Self {
        Self::at(Home::new(), command, flags).await
    }

    /// In a folder that already has what the flags name.
    pub async fn at(home: Home, command: &str, flags: &[&str]) -> Self {
        let flags: Vec<String> = [&[command], flags].concat().iter().map(|flag| (*flag).to_owned()).collect();
        let server = launch(&home, &flags, "127.0.0.1:0", 0);
        let client = Client::of_socket(&home.path("data").join("hodei.sock"));
        let (grpc, http, api_token) = (String::new(), String::new(), String::new());
        let mut cluster = Self { server, grpc, http, api_token, flags, starts: 0, client, home };
        cluster.await_up().await;
        cluster.api_token = cluster.client.api_token(v1::Role::Admin, 0).await.0;
        cluster
    }

    async fn await_up(&mut self) {
        let line = self.server.said("hodei is up: gRPC on ").await;
        let (grpc, rest) = line.split_once(", health on ").expect("two addresses");
        let (http, _) = rest.split_once("/ready").expect("an address for health");
        let scheme = http.split_once("://").expect("a URL").0;
        self.grpc = format!("{scheme}://{grpc}");
        self.http = http.to_owned();
    }

    /// Starts the server again on the same data and at the same address, after it was ended.
    pub async fn start_server(&mut self) {
        self.starts += 1;
        let grpc = self.grpc.split_once("://").expect("a URL").1;
        self.server = launch(&self.home, &self.flags, grpc, self.starts);
        self.await_up().await;
    }

    /// kill -9 and a new start.
    pub async fn crash_server(&mut self) {
        self.server.kill();
        self.start_server().await;
    }

    /// SIGTERM, and waits for the end.
    pub async fn stop_server(&mut self) {
        self.server.signal(Signal::TERM);
        let status = self.server.ended().await;
        assert!(status.success(), "{status}");
    }

    /// Starts a worker with these flags and waits until it is connected.
    pub async fn worker(&self, name: &str, flags: &[&str]) -> Worker {
        let token = self.token("", 0).await;
        let (data, socket) = (self.home.path(name), self.socket());
        let data = data.to_str().expect("UTF-8");
        let common = ["worker", "run", "--server", &socket, "--data", data, "--name", name, "--token", &token.token];
        let worker = Worker { id: token.worker_id, daemon: self.home.daemon(name, &[&common[..], flags].concat()) };
        self.connected(&worker.id).await;
        worker
    }

    /// Starts the agent of a worker again, which needs no token for it.
    pub async fn restart_worker(&self, name: &str, flags: &[&str]) -> Daemon {
        let (data, socket) = (self.home.path(name), self.socket());
        let common = ["worker", "run", "--server", &socket, "--data", data.to_str().expect("UTF-8"), "--name", name];
        self.home.daemon(&format!("{name}-again"), &[&common[..], flags].concat())
    }

    /// Whom to trust, if the server makes its own certificates.
    pub fn authority(&self) -> PathBuf {
        self.home.path("data").join("tls").join("ca.pem")
    }

    pub fn socket(&self) -> String {
        format!("unix:{}", self.home.path("data").join("hodei.sock").display())
    }

    /// Waits until a worker can be given jobs, or is busy with some.
    pub async fn connected(&self, worker: &str) {
        let there = [v1::WorkerState::Ready, v1::WorkerState::Busy];
        until("the worker is connected", || async {
            let workers = self.workers().await;
            workers.iter().any(|known| known.id == worker && there.contains(&known.state())).then_some(())
        })
        .await;
    }

    /// `hodei` as a client of this server.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = self.home.command();
        command.args(args).env("HODEI_SERVER", &self.grpc).env("HODEI_API_TOKEN", &self.api_token);
        command
    }

    pub async fn hodei(&self, args: &[&str]) -> Ran {
        run(self.command(args)).await
    }

    /// The status of a GET on the server's HTTP address, such as "200 OK".
    pub async fn probe(&self, path: &str) -> String {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let address = self.http.trim_start_matches("http://");
        let mut stream = tokio::net::TcpStream::connect(address).await.expect("a connection");
        let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.expect("a request");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("an answer");
        let status = answer.lines().next().and_then(|line| line.strip_prefix("HTTP/1.1 "));
        status.expect("a status line").to_owned()
    }
}

fn launch(home: &Home, flags: &[String], grpc: &str, starts: u32) -> Daemon {
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let addresses = ["--grpc", grpc, "--http", "127.0.0.1:0"];
    home.daemon(&format!("server-{starts}"), &[&flags[..], &addresses].concat())
}

/// What happens from now on.
pub struct Heard(Arc<Mutex<Vec<v1::Event>>>);

impl Heard {
    pub async fn of(cluster: &Cluster, kind: &str) -> Self {
        let request = v1::StreamEventsRequest { kinds: vec![kind.into()], ..Default::default() };
        let mut stream = cluster.events().stream_events(request).await.expect("events").into_inner();
        let heard = Arc::new(Mutex::new(Vec::new()));
        let list = Arc::clone(&heard);
        tokio::spawn(async move {
            while let Ok(Some(batch)) = stream.message().await {
                list.lock().expect("a list").extend(batch.events);
            }
        });
        Self(heard)
    }

    /// The first that has this in it, as `type detail`.
    pub async fn of_something(&self, words: &str) -> String {
        until(&format!("'{words}' is told"), || async {
            let heard = self.0.lock().expect("a list");
            let said = heard.iter().map(|event| format!("{} {}", event.r#type, event.detail));
            said.into_iter().find(|said| said.contains(words))
        })
        .await
    }

    /// The types of what was told of one thing, in order, up to this one.
    pub async fn of_one(&self, subject: &str, last: &str) -> Vec<String> {
        until(&format!("{subject} is {last}"), || async {
            let heard = self.0.lock().expect("a list");
            let of_it = heard.iter().filter(|event| event.subject == subject);
            let types: Vec<String> = of_it.map(|event| event.r#type.clone()).collect();
            types.iter().any(|told| told == last).then_some(types)
        })
        .await
    }
}
