//! A PostgreSQL of its own, which is killed, frozen, stopped and started again.

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

/// PostgreSQL refuses to run as root; its packages bring this user.
const ACCOUNT: &str = "postgres";
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub struct Postgres {
    folder: PathBuf,
    programs: PathBuf,
    port: u16,
}

impl Postgres {
    /// Makes a cluster with the programs in `programs` and starts it.
    pub async fn start(folder: &Path, programs: &Path, port: u16) -> Result<Self> {
        fs::create_dir_all(folder)?;
        let postgres = Self { folder: folder.to_owned(), programs: programs.to_owned(), port };
        if rustix::process::geteuid().is_root() {
            complete(Command::new("chown").arg(ACCOUNT).arg(folder))?;
        }
        let make = ["-A", "trust", "-U", ACCOUNT, "-E", "UTF8", "--locale=C", "--no-sync"];
        complete(&mut postgres.program("initdb", &make))?;
        // Sockets are not used, and a path to one may be too long.
        let settings = format!(
            "listen_addresses = '127.0.0.1'\nport = {port}\nunix_socket_directories = ''\nfsync = on\nmax_connections = 50\n"
        );
        let file = postgres.data().join("postgresql.conf");
        fs::write(&file, fs::read_to_string(&file)? + &settings)?;
        postgres.resume().await?;
        Ok(postgres)
    }

    pub fn url(&self) -> String {
        format!("postgres://{ACCOUNT}@127.0.0.1:{}/postgres", self.port)
    }

    fn data(&self) -> PathBuf {
        self.folder.join("data")
    }

    /// One of its programs, run by the account that owns the data.
    fn program(&self, name: &str, args: &[&str]) -> Command {
        let mut command = Command::new("setpriv");
        if rustix::process::geteuid().is_root() {
            command.args([&format!("--reuid={ACCOUNT}"), &format!("--regid={ACCOUNT}"), "--clear-groups"]);
        }
        command.arg("--").arg(self.programs.join(name)).args(args).arg("-D").arg(self.data());
        command.current_dir(&self.folder);
        command
    }

    /// Starts it again. What a killed one left behind may be in the way for a moment.
    pub async fn resume(&self) -> Result<()> {
        let log = self.folder.join("postgres.log");
        let log = log.to_str().context("the folder's name is not UTF-8")?;
        let began = Instant::now();
        loop {
            let mut start = self.program("pg_ctl", &["start", "--wait", "--silent", "-l", log]);
            start.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            let started = tokio::process::Command::from(start).status().await?.success();
            // One that took too long to say so runs all the same, and another cannot be started beside it.
            if started || self.runs().await {
                return Ok(());
            }
            if began.elapsed() > PATIENCE {
                bail!("PostgreSQL does not start: {}", fs::read_to_string(log).unwrap_or_default());
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    async fn runs(&self) -> bool {
        let mut status = self.program("pg_ctl", &["status"]);
        status.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let there = tokio::process::Command::from(status).status().await.is_ok_and(|status| status.success());
        there && tokio::net::TcpStream::connect(("127.0.0.1", self.port)).await.is_ok()
    }

    /// A quick stop in order: those who are connected are sent away.
    pub async fn stop(&self) {
        let stop = self.program("pg_ctl", &["stop", "--wait", "--silent", "--mode=fast"]);
        _ = tokio::process::Command::from(stop).status().await;
    }

    /// Sends a signal to the main process, or to it and all those that serve.
    pub fn signal(&self, signal: Signal, everyone: bool) {
        let file = fs::read_to_string(self.data().join("postmaster.pid")).unwrap_or_default();
        let Some(main) = file.lines().next().and_then(|line| line.trim().parse::<i32>().ok()) else { return };
        let mut pids = vec![main];
        if everyone {
            pids.extend(children(main));
        }
        for pid in pids.into_iter().filter_map(Pid::from_raw) {
            _ = kill_process(pid, signal);
        }
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.signal(Signal::CONT, true);
        self.signal(Signal::KILL, true);
    }
}

fn children(of: i32) -> Vec<i32> {
    let names = fs::read_dir("/proc").into_iter().flatten().flatten().map(|entry| entry.file_name());
    let pids = names.filter_map(|name| name.to_str()?.parse::<i32>().ok());
    let parents: BTreeMap<i32, i32> = pids.filter_map(|pid| Some((pid, parent(pid)?))).collect();
    parents.into_iter().filter(|(_, parent)| *parent == of).map(|(pid, _)| pid).collect()
}

fn parent(pid: i32) -> Option<i32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
}

fn complete(command: &mut Command) -> Result<()> {
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("cannot run {command:?}"))?;
    if !output.status.success() {
        bail!("{command:?}: {}\n{}", output.status, String::from_utf8_lossy(&output.stderr).trim_end());
    }
    Ok(())
}
