//! Where a peer keeps its jobs: an empty store for each measurement, and its processes.

use crate::{
    cluster::{Database, free_address},
    processes::{family, shared_once},
};
use anyhow::{Context, Result, bail};
use std::{
    fs,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};
use tempfile::TempDir;

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Redis {
        synced: bool,
    },
    Postgres,
    Sqlite,
    /// The peer has a server of its own, which keeps its files in a folder.
    Folder,
}

/// An empty store; it ends and is removed with this.
pub struct Store {
    pub folder: TempDir,
    pub url: String,
    redis: Option<Child>,
    database: Option<Database>,
}

impl Store {
    pub async fn new(kind: Kind) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let mut store = Self { folder, url: String::new(), redis: None, database: None };
        match kind {
            Kind::Redis { synced } => store.start_redis(synced)?,
            Kind::Postgres => {
                let database = Database::new().await?;
                store.url = database.url.clone();
                store.database = Some(database);
            }
            Kind::Sqlite => store.url = format!("sqlite://{}", store.folder.path().join("jobs.db").display()),
            Kind::Folder => {
                let path = store.folder.path().join("server");
                fs::create_dir(&path)?;
                store.url = path.display().to_string();
            }
        }
        Ok(store)
    }

    fn start_redis(&mut self, synced: bool) -> Result<()> {
        let address = free_address()?;
        let (host, port) = address.split_once(':').context("an address without a port")?;
        let append = if synced { ["yes", "always"] } else { ["no", "no"] };
        // It ends with this program, however that ends.
        let mut redis = Command::new("setpriv");
        redis.args(["--pdeathsig", "KILL", "--", "redis-server"]);
        redis.args(["--bind", host, "--port", port, "--save", ""]).arg("--dir").arg(self.folder.path());
        redis.args(["--appendonly", append[0], "--appendfsync", append[1]]);
        redis.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        self.redis = Some(redis.spawn().context("cannot start redis-server")?);
        let began = Instant::now();
        while std::net::TcpStream::connect(&address).is_err() {
            if began.elapsed() > Duration::from_secs(10) {
                bail!("Redis did not come up");
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        self.url = format!("redis://{address}/0");
        Ok(())
    }

    /// Bytes that the database's processes take; what they share is counted once.
    pub async fn memory(&self) -> Result<Option<u64>> {
        if let Some(redis) = &self.redis {
            return Ok(Some(shared_once(&[redis.id()])));
        }
        match self.database {
            Some(_) => Ok(Some(shared_once(&family(Database::server().await?)))),
            None => Ok(None),
        }
    }

    pub async fn end(mut self) -> Result<()> {
        match self.database.take() {
            Some(database) => database.remove().await,
            None => Ok(()),
        }
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        if let Some(redis) = &mut self.redis {
            _ = redis.kill();
            _ = redis.wait();
        }
    }
}
