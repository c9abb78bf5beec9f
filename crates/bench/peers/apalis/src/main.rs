//! apalis on PostgreSQL and SQLite, in the words that README.md in the folder above describes.

use anyhow::{Context, Result, bail};
use apalis::prelude::*;
use apalis_core::{task::data::Data, worker::builder::WorkerBuilder};
use apalis_postgres::PostgresStorage;
use apalis_sqlite::SqliteStorage;
use sqlx::{
    PgPool, SqlitePool,
    postgres::PgPoolOptions,
    sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous},
};
use std::{
    env,
    future::Future,
    net::UdpSocket,
    str::FromStr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};
use tokio::io::{AsyncBufReadExt, BufReader};

const QUEUE: &str = "bench";

/// Microseconds of the system's clock.
fn now() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros()
}

#[tokio::main]
async fn main() -> Result<()> {
    let args: Vec<String> = env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let url = env::var("BENCH_URL").context("BENCH_URL is not set")?;
    if args.contains(&"work") {
        // The measuring program is gone when its end of the pipe is closed, however it ended.
        tokio::spawn(async {
            let mut lines = BufReader::new(tokio::io::stdin()).lines();
            while let Ok(Some(_)) = lines.next_line().await {}
            std::process::exit(0);
        });
    }
    match args[..] {
        ["postgres", "produce"] => produce(Postgres::open(&url).await?).await,
        ["sqlite", "produce"] => produce(Sqlite::open(&url, SqliteSynchronous::Off).await?).await,
        ["sqlite-synced", "produce"] => produce(Sqlite::open(&url, SqliteSynchronous::Full).await?).await,
        ["postgres", "work", mode, total] => Postgres::open(&url).await?.work(mode, total.parse()?).await,
        ["sqlite", "work", mode, total] => {
            Sqlite::open(&url, SqliteSynchronous::Off).await?.work(mode, total.parse()?).await
        }
        ["sqlite-synced", "work", mode, total] => {
            Sqlite::open(&url, SqliteSynchronous::Full).await?.work(mode, total.parse()?).await
        }
        _ => bail!("use: SYSTEM produce, or SYSTEM work MODE N"),
    }
}

/// One of the two storages, as the enqueuing side needs it.
trait Producer: Clone + Send + Sync + 'static {
    fn one(&self) -> impl Future<Output = Result<()>> + Send;
    fn bulk(&self, count: usize) -> impl Future<Output = Result<()>> + Send;
    fn empty(&self) -> impl Future<Output = Result<bool>> + Send;
}

#[derive(Clone)]
struct Postgres(PgPool);

impl Postgres {
    const BATCH: usize = 5000;

    async fn open(url: &str) -> Result<Self> {
        let pool = PgPoolOptions::new().max_connections(16).connect(url).await?;
        PostgresStorage::setup(&pool).await?;
        Ok(Self(pool))
    }

    fn storage(&self, batch: usize) -> PostgresStorage<u32> {
        PostgresStorage::new(&self.0).with_config(apalis_postgres::Config::default().queue(QUEUE).batch_size(batch))
    }

    async fn work(&self, mode: &str, total: usize) -> Result<()> {
        let (batch, concurrency) = settings(mode);
        let told = Arc::new(Told::new(mode, total)?);
        // New jobs are announced by the database; the interval goes on while there is a backlog.
        let backend = self.storage(batch).with_pubsub().poll_with_interval(Duration::from_millis(5));
        let worker = WorkerBuilder::new("worker").backend(backend).data(told).concurrency(concurrency).build(handle);
        println!("{{\"ready\":true}}");
        worker.run().await.map_err(|error| anyhow::anyhow!("{error}"))
    }
}

impl Producer for Postgres {
    async fn one(&self) -> Result<()> {
        self.storage(1).push(7).await.map_err(|error| anyhow::anyhow!("{error}"))
    }

    async fn bulk(&self, count: usize) -> Result<()> {
        for begin in (0..count).step_by(Self::BATCH) {
            let jobs = vec![7; Self::BATCH.min(count - begin)];
            self.storage(1).push_bulk(jobs).await.map_err(|error| anyhow::anyhow!("{error}"))?;
        }
        Ok(())
    }

    async fn empty(&self) -> Result<bool> {
        let open = "SELECT 1 FROM apalis.jobs WHERE status <> 'Done' LIMIT 1";
        Ok(sqlx::query(open).fetch_optional(&self.0).await?.is_none())
    }
}

#[derive(Clone)]
struct Sqlite(SqlitePool);

impl Sqlite {
    const BATCH: usize = 5000;

    async fn open(url: &str, synchronous: SqliteSynchronous) -> Result<Self> {
        let options = SqliteConnectOptions::from_str(url)?
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(synchronous)
            .busy_timeout(Duration::from_secs(30));
        // `setup` turns syncing off on the connection that it uses, so it gets one of its own.
        let setup = SqlitePool::connect_with(options.clone()).await?;
        SqliteStorage::setup(&setup).await?;
        setup.close().await;
        // More than one connection only makes writers wait for each other.
        Ok(Self(SqlitePoolOptions::new().max_connections(1).connect_with(options).await?))
    }

    fn storage(&self, batch: usize) -> SqliteStorage<u32> {
        SqliteStorage::new(&self.0).with_config(apalis_sqlite::Config::default().queue(QUEUE).batch_size(batch))
    }

    async fn work(&self, mode: &str, total: usize) -> Result<()> {
        let (batch, concurrency) = settings(mode);
        let told = Arc::new(Told::new(mode, total)?);
        // Its announcements do not cross processes, so it has to ask.
        let backend = self.storage(batch).poll_with_interval(Duration::from_millis(5));
        let worker = WorkerBuilder::new("worker").backend(backend).data(told).concurrency(concurrency).build(handle);
        println!("{{\"ready\":true}}");
        worker.run().await.map_err(|error| anyhow::anyhow!("{error}"))
    }
}

impl Producer for Sqlite {
    async fn one(&self) -> Result<()> {
        self.storage(1).push(7).await.map_err(|error| anyhow::anyhow!("{error}"))
    }

    async fn bulk(&self, count: usize) -> Result<()> {
        for begin in (0..count).step_by(Self::BATCH) {
            let jobs = vec![7; Self::BATCH.min(count - begin)];
            self.storage(1).push_bulk(jobs).await.map_err(|error| anyhow::anyhow!("{error}"))?;
        }
        Ok(())
    }

    async fn empty(&self) -> Result<bool> {
        let open = "SELECT 1 FROM Jobs WHERE status <> 'Done' LIMIT 1";
        Ok(sqlx::query(open).fetch_optional(&self.0).await?.is_none())
    }
}

/// How many jobs are fetched and acknowledged at a time, and how many run.
fn settings(mode: &str) -> (usize, usize) {
    match mode {
        "drain" => (1000, 1000),
        "process" => (100, 4),
        _ => (1, 1),
    }
}

/// Tells the measuring program how many handlers have started.
struct Told {
    process: bool,
    each: bool,
    total: usize,
    seen: AtomicUsize,
    told: AtomicUsize,
    socket: UdpSocket,
}

impl Told {
    fn new(mode: &str, total: usize) -> Result<Self> {
        let socket = UdpSocket::bind("127.0.0.1:0")?;
        socket.connect(("127.0.0.1", env::var("BENCH_PORT")?.parse()?))?;
        let (seen, told) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Ok(Self { process: mode == "process", each: mode == "latency", total, seen, told, socket })
    }

    fn started(&self) {
        let time = now();
        let seen = self.seen.fetch_add(1, Relaxed) + 1;
        if self.each || seen == 1 || seen == self.total {
            let told = self.told.swap(seen, Relaxed);
            _ = self.socket.send(format!("{} {time}", seen - told).as_bytes());
        }
    }
}

async fn handle(_job: u32, told: Data<Arc<Told>>) -> Result<(), BoxDynError> {
    told.started();
    if told.process {
        tokio::process::Command::new("/bin/true").output().await?;
    }
    Ok(())
}

async fn produce(system: impl Producer) -> Result<()> {
    println!("{{\"ready\":true}}");
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Some(line) = lines.next_line().await? {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (began, clock) = (now(), Instant::now());
        match words[..] {
            ["callers", count, seconds] => callers(&system, count.parse()?, seconds.parse()?).await?,
            ["bulk", count] => {
                system.bulk(count.parse()?).await?;
                println!("{{\"seconds\":{}}}", clock.elapsed().as_secs_f64());
            }
            ["one"] => {
                system.one().await?;
                println!("{{\"began\":{began}}}");
            }
            ["settle"] => {
                while !system.empty().await? {
                    tokio::time::sleep(Duration::from_millis(3)).await;
                }
                println!("{{\"at\":{}}}", now());
            }
            _ => bail!("no such command: {line}"),
        }
    }
    Ok(())
}

async fn callers(system: &impl Producer, count: usize, seconds: f64) -> Result<()> {
    let began = Instant::now();
    let callers: Vec<_> = (0..count)
        .map(|_| {
            let system = system.clone();
            tokio::spawn(async move {
                let mut times = Vec::new();
                while began.elapsed().as_secs_f64() < seconds {
                    let call = Instant::now();
                    system.one().await?;
                    times.push(call.elapsed().as_secs_f64() * 1000.0);
                }
                anyhow::Ok(times)
            })
        })
        .collect();
    let mut times = Vec::new();
    for caller in callers {
        times.extend(caller.await??);
    }
    let took = began.elapsed().as_secs_f64();
    times.sort_by(f64::total_cmp);
    let at = |share: f64| times.get(((times.len() as f64 - 1.0) * share).round() as usize).copied().unwrap_or_default();
    let (jobs, p50, p99) = (times.len(), at(0.5), at(0.99));
    println!("{{\"jobs\":{jobs},\"seconds\":{took},\"p50\":{p50},\"p99\":{p99}}}");
    Ok(())
}
