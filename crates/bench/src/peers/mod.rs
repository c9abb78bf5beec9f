//! The peers: what each is, how it is set, and how each workload is measured of it.

mod drive;
mod install;
mod store;

pub use install::Places;

use crate::{
    limits,
    processes::{family, shared_once},
    record::{Durability, Figure, System, Workload},
};
use anyhow::{Context, Result, bail, ensure};
use drive::{Program, Stamps};
use install::Runtime;
use std::{
    process::{Command, Stdio},
    time::{Duration, Instant},
};
use store::{Kind, Store};

const CALLERS: usize = 16;
const CALLING: u32 = 4;
const LATENCY_JOBS: usize = 200;
/// Between two idle jobs: the system has come to rest.
const REST: Duration = Duration::from_millis(10);
const SETTLING: Duration = Duration::from_secs(2);
const TOOL_PROCESSES: usize = 4000;

/// One peer in one way to run it.
pub struct Peer {
    pub name: &'static str,
    runtime: Runtime,
    /// What its program calls it.
    system: &'static str,
    /// What tells its version.
    package: &'static str,
    store: Kind,
    durability: Durability,
    /// How many jobs: each measurement is to take a few seconds.
    bulk: usize,
    drain: usize,
    process: usize,
    settings: &'static str,
}

const BULLMQ: Peer = Peer {
    name: "BullMQ",
    runtime: Runtime::Node,
    system: "bullmq",
    package: "bullmq",
    store: Kind::Redis { synced: false },
    durability: Durability::Memory,
    bulk: 60_000,
    drain: 40_000,
    process: 2000,
    settings: "addBulk of 1,000; concurrency 200 (drain), 4 (process), 1 (latency); finished jobs removed; \
               Redis on loopback, no append-only file, no snapshots",
};
const APALIS_SQLITE: Peer = Peer {
    name: "apalis (SQLite)",
    runtime: Runtime::Apalis,
    system: "sqlite",
    package: "apalis-sqlite",
    store: Kind::Sqlite,
    durability: Durability::NotSynced,
    bulk: 120_000,
    drain: 60_000,
    process: 3000,
    settings: "push_bulk of 5,000; fetch of 1,000 and concurrency 1,000 (drain), 100 and 4 (process), 1 (latency); polls \
               every 5 ms; WAL, synchronous OFF, which its setup chooses",
};

pub const PEERS: [Peer; 13] = [
    BULLMQ,
    Peer {
        name: "BullMQ (synced)",
        store: Kind::Redis { synced: true },
        durability: Durability::Synced,
        settings: "as BullMQ, with appendonly yes, appendfsync always",
        ..BULLMQ
    },
    Peer {
        name: "graphile-worker",
        runtime: Runtime::Node,
        system: "graphile",
        package: "graphile-worker",
        store: Kind::Postgres,
        durability: Durability::Synced,
        bulk: 150_000,
        drain: 80_000,
        process: 2500,
        settings: "addJobs of 5,000; localQueue.size 500, completeJobBatchDelay 0, failJobBatchDelay 0, concurrentJobs 24 \
                   (drain), 4 (process); no batching, 1 (latency)",
    },
    Peer {
        name: "pg-boss",
        runtime: Runtime::Node,
        system: "pgboss",
        package: "pg-boss",
        store: Kind::Postgres,
        durability: Durability::Synced,
        bulk: 120_000,
        drain: 80_000,
        process: 2500,
        settings: "insert of 5,000; batchSize 1,000, localConcurrency 2, burstWhenBatchFull (drain), 20 and 4 (process), 1 \
                   (latency); LISTEN/NOTIFY on",
    },
    Peer {
        name: "DBOS",
        runtime: Runtime::Node,
        system: "dbos",
        package: "@dbos-inc/dbos-sdk",
        store: Kind::Postgres,
        durability: Durability::Synced,
        bulk: 8000,
        drain: 6000,
        process: 1000,
        settings: "workflow without steps; no bulk call, so 64 single calls at a time over 16 connections; queue polled \
                   every 5 ms, workerConcurrency 1,000 (16 for processes)",
    },
    Peer {
        name: "apalis (PostgreSQL)",
        runtime: Runtime::Apalis,
        system: "postgres",
        package: "apalis-postgres",
        store: Kind::Postgres,
        durability: Durability::Synced,
        bulk: 150_000,
        drain: 80_000,
        process: 3000,
        settings: "push_bulk of 5,000; fetch of 1,000 and concurrency 1,000 (drain), 100 and 4 (process), 1 (latency); \
                   LISTEN/NOTIFY, and polls every 5 ms",
    },
    APALIS_SQLITE,
    Peer {
        name: "apalis (SQLite, synced)",
        system: "sqlite-synced",
        durability: Durability::Synced,
        settings: "as apalis (SQLite), with synchronous FULL",
        ..APALIS_SQLITE
    },
    Peer {
        name: "Celery",
        runtime: Runtime::Python,
        system: "celery",
        package: "celery",
        store: Kind::Redis { synced: false },
        durability: Durability::Memory,
        bulk: 8000,
        drain: 8000,
        process: 1500,
        settings: "prefork with 2 processes (drain), 4 (process), 1 (latency), prefetch 100 each; results ignored; no bulk \
                   call, so one after the other over one connection; Redis on loopback, no append-only file, no snapshots",
    },
    Peer {
        name: "huey",
        runtime: Runtime::Python,
        system: "huey",
        package: "huey",
        store: Kind::Redis { synced: false },
        durability: Durability::Memory,
        bulk: 20_000,
        drain: 16_000,
        process: 1500,
        settings: "2 processes (drain), 4 (process), 1 thread (latency), blocking reads; results off; no bulk call, so `map`; \
                   Redis on loopback, no append-only file, no snapshots",
    },
    Peer {
        name: "HyperQueue",
        runtime: Runtime::Python,
        system: "hyperqueue",
        package: "hyperqueue",
        store: Kind::Folder,
        durability: Durability::Memory,
        bulk: 200_000,
        drain: 0,
        process: 1500,
        settings: "as its wheel brings it: server and worker (4 tasks at a time) are threads of one process, without a journal; bulk \
                   is one job of many tasks; output to /dev/null",
    },
    Peer {
        name: "GNU parallel",
        runtime: Runtime::Tool,
        system: "parallel",
        package: "parallel",
        store: Kind::Folder,
        durability: Durability::Memory,
        bulk: 0,
        drain: 0,
        process: TOOL_PROCESSES / 4,
        settings: "-j 4; a list of arguments, no queue",
    },
    Peer {
        name: "xargs -P",
        runtime: Runtime::Tool,
        system: "xargs",
        package: "xargs",
        store: Kind::Folder,
        durability: Durability::Memory,
        bulk: 0,
        drain: 0,
        process: TOOL_PROCESSES,
        settings: "-P 2 -n 1; a list of arguments, no queue, output not kept",
    },
];

impl Peer {
    /// Installs what it needs and tells which version that is.
    pub fn prepare(&self, places: &Places) -> Result<System> {
        if matches!(self.store, Kind::Redis { .. }) {
            install::debian("redis-server", "redis-server")?;
        }
        if self.system == "parallel" {
            install::debian("parallel", "parallel")?;
        }
        places.install(self.runtime)?;
        let version = places.version(self.runtime, self.package)?;
        Ok(System { name: self.name.into(), version, durability: self.durability })
    }

    pub fn settings(&self) -> &'static str {
        self.settings
    }

    /// HyperQueue has no handlers in a program, and the tools have no queue.
    pub fn has(&self, workload: Workload) -> bool {
        let compared = Workload::COMPARED.contains(&workload);
        match (self.runtime, self.store) {
            (Runtime::Tool, _) => workload == Workload::Process,
            (_, Kind::Folder) => compared && !matches!(workload, Workload::Drain | Workload::Latency),
            _ => compared && workload != Workload::Start,
        }
    }

    pub async fn measure(&self, places: &Places, who: &System, workload: Workload) -> Result<Figure> {
        let figure = Figure::of(who, workload, self.settings);
        if self.runtime == Runtime::Tool {
            return self.run_tool(figure);
        }
        let store = Store::new(self.store).await?;
        let stamps = Stamps::new().await?;
        let session = Session { peer: self, places, store, stamps };
        let figure = match workload {
            Workload::Callers => session.callers(figure).await,
            Workload::Bulk => session.bulk(figure).await,
            Workload::Drain => session.drain(figure, "drain", self.drain).await,
            Workload::Process => session.drain(figure, "process", self.process).await,
            Workload::Latency | Workload::Start => session.latency(figure).await,
            Workload::Memory => session.memory(figure).await,
            Workload::Lines
            | Workload::Handlers
            | Workload::Rest
            | Workload::Graph
            | Workload::Schedules
            | Workload::Placement
            | Workload::Cold
            | Workload::Backlog
            | Workload::Growth
            | Workload::Workers
            | Workload::Listing => bail!("no peer has this"),
        }?;
        session.store.end().await?;
        Ok(figure)
    }

    fn run_tool(&self, figure: Figure) -> Result<Figure> {
        let list: String = (0..self.process).map(|i| format!("{i}\n")).collect();
        let mut command = Command::new(self.system);
        match self.system {
            "xargs" => command.args(["-P", "2", "-n", "1", "/bin/true"]),
            _ => command.args(["--will-cite", "-j", "4", "/bin/true"]),
        };
        let began = Instant::now();
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn()?;
        let mut input = child.stdin.take().context("no standard input")?;
        std::io::Write::write_all(&mut input, list.as_bytes())?;
        drop(input);
        ensure!(child.wait()?.success(), "{} failed", self.system);
        Ok(figure.with("rate", "jobs/s", self.process as f64 / began.elapsed().as_secs_f64()))
    }
}

/// One measurement of one peer on a store of its own.
struct Session<'a> {
    peer: &'a Peer,
    places: &'a Places,
    store: Store,
    stamps: Stamps,
}

impl Session<'_> {
    fn command(&self) -> Result<Command> {
        let mut command = self.places.program(self.peer.runtime, self.peer.system);
        command.env("BENCH_URL", &self.store.url).env("BENCH_PORT", self.stamps.port()?.to_string());
        command.env("BENCH_STAMP", std::env::current_exe()?);
        Ok(command)
    }

    async fn producer(&self) -> Result<Program> {
        let mut command = self.command()?;
        command.arg("produce");
        Program::start(command, self.store.folder.path(), "produce").await.context("the enqueuing side")
    }

    async fn worker(&self, mode: &str, total: usize) -> Result<Program> {
        let mut command = self.command()?;
        command.args(["work", mode, &total.to_string()]);
        Program::start(command, self.store.folder.path(), "work").await.context("the worker")
    }

    /// A peer that is a server of its own has to run before anything can be enqueued.
    async fn server(&self, mode: &str) -> Result<Option<Program>> {
        match self.peer.store {
            Kind::Folder => Ok(Some(self.worker(mode, 1).await?)),
            _ => Ok(None),
        }
    }

    async fn callers(&self, figure: Figure) -> Result<Figure> {
        let _server = self.server("idle").await?;
        let mut producer = self.producer().await?;
        let answer = producer.ask(&format!("callers {CALLERS} {CALLING}")).await?;
        let rate = answer.jobs as f64 / answer.seconds;
        Ok(figure.with("rate", "jobs/s", rate).with("p50", "ms", answer.p50).with("p99", "ms", answer.p99))
    }

    async fn bulk(&self, figure: Figure) -> Result<Figure> {
        let _server = self.server("idle").await?;
        let mut producer = self.producer().await?;
        // The first batch pays for connections and plans.
        producer.ask(&format!("bulk {}", self.peer.bulk / 20)).await?;
        let answer = producer.ask(&format!("bulk {}", self.peer.bulk)).await?;
        Ok(figure.with("rate", "jobs/s", self.peer.bulk as f64 / answer.seconds))
    }

    /// From the start of the first handler until no job is waiting or active. A server of its own has its worker inside
    /// and begins at once, so there the enqueuing belongs to it.
    async fn drain(&self, figure: Figure, mode: &str, count: usize) -> Result<Figure> {
        let server = self.server(mode).await?;
        let mut producer = self.producer().await?;
        let mut began = u64::try_from(limits::now().as_micros())?;
        producer.ask(&format!("bulk {count}")).await?;
        let _worker = match server {
            Some(server) => server,
            None => {
                let worker = self.worker(mode, count).await?;
                let (mut started, first) = self.stamps.next().await?;
                while started < count as u64 {
                    started += self.stamps.next().await?.0;
                }
                began = first;
                worker
            }
        };
        let ended = producer.ask("settle").await?.at;
        let seconds = ended.saturating_sub(began) as f64 / 1e6;
        Ok(figure.with("rate", "jobs/s", count as f64 / seconds))
    }

    async fn latency(&self, figure: Figure) -> Result<Figure> {
        let server = self.server("latency").await?;
        let mut producer = self.producer().await?;
        let _worker = match server {
            Some(server) => server,
            None => self.worker("latency", 1).await?,
        };
        tokio::time::sleep(SETTLING).await;
        let mut times = Vec::new();
        for round in 0..LATENCY_JOBS + 5 {
            tokio::time::sleep(REST).await;
            let began = producer.ask("one").await?.began;
            let (_, started) = self.stamps.next().await?;
            // The first few load what a program loads lazily.
            if round >= 5 {
                times.push(Duration::from_micros(started.saturating_sub(began)));
            }
        }
        Ok(figure.with_percentiles("", times))
    }

    async fn memory(&self, figure: Figure) -> Result<Figure> {
        let server = self.server("latency").await?;
        // It prepares the store, and must not share the pages of a program with the worker afterwards.
        drop(self.producer().await?);
        let worker = match server {
            Some(server) => server,
            None => self.worker("latency", 1).await?,
        };
        tokio::time::sleep(SETTLING).await;
        let own = shared_once(&family(worker.pid()));
        Ok(figure.with_memory(own, self.store.memory().await?))
    }
}
