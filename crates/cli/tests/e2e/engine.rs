//! The Docker engine of the tests, and what can befall it.

use crate::{
    cluster::Cluster,
    postgres::setting,
    process::{until, until_true},
};
use hodei_api::v1::ProviderHealth;
use rustix::process::{Pid, Signal, kill_process};
use std::{
    io::{self, Read, Write},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, copy, copy_bidirectional},
    net::{UnixListener, UnixStream as Stream},
    sync::{RwLock, RwLockReadGuard, RwLockWriteGuard, watch},
};

/// Held by all who need an engine that answers, so that it is stopped only when nobody else uses it.
static IN_USE: RwLock<()> = RwLock::const_new(());

enum Use {
    Shared { _guard: RwLockReadGuard<'static, ()> },
    Alone { _guard: RwLockWriteGuard<'static, ()> },
}

/// The engine and the agent that `cargo xtask test` provides.
pub struct Engine {
    pub socket: PathBuf,
    pub agent: String,
    pub image: String,
    _use: Use,
}

impl Engine {
    /// None where there is none: everything else is tested without.
    pub async fn find() -> Option<Self> {
        Self::of(Use::Shared { _guard: IN_USE.read().await })
    }

    /// For whoever stops it.
    pub async fn alone() -> Option<Self> {
        Self::of(Use::Alone { _guard: IN_USE.write().await })
    }

    fn of(in_use: Use) -> Option<Self> {
        let (host, agent) = (setting("HODEI_TEST_DOCKER")?, setting("HODEI_TEST_AGENT")?);
        let socket = host.strip_prefix("unix://")?.into();
        Some(Self { socket, agent, image: "hodei-test/busybox:1".to_owned(), _use: in_use })
    }

    /// One call of its interface. In the old version of HTTP the answer ends with the connection.
    pub fn ask(&self, method: &str, path: &str) -> String {
        let mut stream = UnixStream::connect(&self.socket).expect("the engine");
        let request = format!("{method} {path} HTTP/1.0\r\nHost: docker\r\nContent-Length: 0\r\n\r\n");
        stream.write_all(request.as_bytes()).expect("a request");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a body");
        assert!(head.contains(" 20"), "{method} {path}: {answer}");
        body.to_owned()
    }

    /// The names of the containers that carry this in their labels, whatever state they are in.
    pub fn names(&self, labelled: &str) -> Vec<String> {
        let listed: Vec<serde_json::Value> =
            serde_json::from_str(&self.ask("GET", "/containers/json?all=1")).expect("JSON");
        let ours = listed.iter().filter(|container| container["Labels"].to_string().contains(labelled));
        ours.map(|container| container["Names"][0].as_str().expect("a name").trim_start_matches('/').to_owned())
            .collect()
    }

    pub fn containers(&self, labelled: &str) -> usize {
        self.names(labelled).len()
    }

    pub async fn add_to(&self, cluster: &Cluster, name: &str, cap: &str, host: &Path) {
        self.add_with(cluster, name, cap, host, &["pull=never"]).await;
    }

    /// Adds it as a provider and waits until it is found to be well.
    pub async fn add_with(&self, cluster: &Cluster, name: &str, cap: &str, host: &Path, settings: &[&str]) {
        let host = format!("host=unix://{}", host.display());
        let agent = format!("agent={}", self.agent);
        let mut args = vec!["provider", "add", name, "--kind", "docker", "--cap", cap, "--set", &host, "--set", &agent];
        settings.iter().for_each(|setting| args.extend(["--set", setting]));
        cluster.hodei(&args).await.ok();
        provider_is(cluster, name, ProviderHealth::Healthy).await;
    }

    /// Its process; none where it is not one that these tests may stop.
    pub fn process(&self) -> Option<Pid> {
        let number = std::fs::read_to_string(self.socket.with_file_name("dockerd.pid")).ok()?;
        Pid::from_raw(number.trim().parse().ok()?)
    }

    pub async fn nothing_left(&self, cluster: &Cluster, labelled: &str) {
        until("no worker is left", || async { cluster.workers().await.is_empty().then_some(()) }).await;
        until_true("no container is left", || self.containers(labelled) == 0).await;
    }
}

pub async fn provider_is(cluster: &Cluster, name: &str, health: ProviderHealth) {
    until(&format!("{name} is {}", health.as_str_name()), || async {
        (cluster.provider(name).await.health() == health).then_some(())
    })
    .await;
}

/// An engine that goes on when this is dropped.
pub struct Stopped(pub Pid);

impl Drop for Stopped {
    fn drop(&mut self) {
        _ = kill_process(self.0, Signal::CONT);
    }
}

/// What befalls a call.
#[derive(Clone, Copy)]
pub enum Blow {
    /// The engine does what it is asked for, but nobody hears of it, and nobody gets through from then on.
    AnswerLost,
    /// Nobody gets through any more as soon as the engine has begun to answer.
    CutShort,
    /// The engine is stopped when the call lies before it.
    Stopped(Pid),
}

/// Stands before the engine's socket, and can be cut.
pub struct Cut {
    pub socket: PathBuf,
    gate: Arc<Gate>,
}

struct Gate {
    engine: PathBuf,
    open: watch::Sender<bool>,
    /// For the next call whose first line has this in it.
    trap: Mutex<Option<(&'static str, Blow)>>,
}

impl Cut {
    pub fn before(engine: &Engine, at: PathBuf) -> Self {
        let listener = UnixListener::bind(&at).expect("a socket");
        let open = watch::Sender::new(true);
        let gate = Arc::new(Gate { engine: engine.socket.clone(), open, trap: Mutex::default() });
        let passes = Arc::clone(&gate);
        tokio::spawn(async move {
            while let Ok((ours, _)) = listener.accept().await {
                let gate = Arc::clone(&passes);
                tokio::spawn(async move { gate.pass(ours).await });
            }
        });
        Self { socket: at, gate }
    }

    /// Closed, it lets nothing through, and ends what is under way.
    pub fn set(&self, open: bool) {
        self.gate.open.send_replace(open);
    }

    pub fn at_next(&self, call: &'static str, blow: Blow) {
        *self.gate.trap.lock().expect("a lock") = Some((call, blow));
    }

    pub async fn has_struck(&self) {
        until_true("the call was made", || self.gate.trap.lock().expect("a lock").is_none()).await;
    }
}

impl Gate {
    async fn pass(&self, ours: Stream) -> io::Result<()> {
        let mut open = self.open.subscribe();
        tokio::select! {
            _ = open.wait_for(|open| !*open) => Ok(()),
            done = self.converse(ours) => done,
        }
    }

    async fn converse(&self, mut ours: Stream) -> io::Result<()> {
        let mut theirs = Stream::connect(&self.engine).await?;
        let mut bytes = vec![0; 64 << 10];
        let size = ours.read(&mut bytes).await?;
        let blow = self.blow(&bytes[..size]);
        if let Some(Blow::Stopped(engine)) = blow {
            kill_process(engine, Signal::STOP)?;
        }
        theirs.write_all(&bytes[..size]).await?;
        if let Some(Blow::AnswerLost | Blow::CutShort) = blow {
            let (mut from_us, mut to_us) = ours.split();
            let (mut from_engine, mut to_engine) = theirs.split();
            let size = tokio::select! {
                size = from_engine.read(&mut bytes) => size?,
                _ = async { copy(&mut from_us, &mut to_engine).await?; std::future::pending::<io::Result<()>>().await } => 0,
            };
            if let Some(Blow::CutShort) = blow {
                to_us.write_all(&bytes[..size]).await?;
            }
            self.open.send_replace(false);
            return Ok(());
        }
        copy_bidirectional(&mut ours, &mut theirs).await.map(drop)
    }

    fn blow(&self, request: &[u8]) -> Option<Blow> {
        let line = request.split(|byte| *byte == b'\r').next().unwrap_or_default();
        let line = String::from_utf8_lossy(line);
        let mut trap = self.trap.lock().expect("a lock");
        trap.take_if(|(call, _)| line.contains(*call)).map(|(_, blow)| blow)
    }
}
