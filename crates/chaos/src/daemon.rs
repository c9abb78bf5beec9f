//! A process that should run, is harmed on purpose, and is started again when it ended by itself.

use crate::{clock, journal::FaultLog};
use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use std::{
    fs::{self, OpenOptions},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::{
    process::Child,
    sync::{Mutex, MutexGuard},
};

const LOOK: Duration = Duration::from_millis(200);
/// Between the end of one that ended by itself and its next start, as whoever looks after processes leaves some.
const BREATH: Duration = Duration::from_millis(800);

type Build = Box<dyn Fn() -> Command + Send + Sync>;

/// Shared by those who harm it and the task that looks after it.
#[derive(Clone)]
pub struct Daemon {
    pub name: String,
    inner: Arc<Mutex<Inner>>,
}

struct Inner {
    build: Build,
    log: PathBuf,
    /// What it prints once it can be used.
    up_line: &'static str,
    /// Where in its log this life of it began.
    log_start: u64,
    child: Option<Child>,
    wanted: bool,
}

impl Daemon {
    /// Starts it, and again whenever it ends by itself while it should run.
    pub async fn start(
        name: &str,
        log: PathBuf,
        up_line: &'static str,
        faults: FaultLog,
        build: Build,
    ) -> Result<Self> {
        let inner = Inner { build, log, up_line, log_start: 0, child: None, wanted: true };
        let daemon = Self { name: name.to_owned(), inner: Arc::new(Mutex::new(inner)) };
        daemon.lock().await.spawn()?;
        tokio::spawn(daemon.clone().look_after(faults));
        Ok(daemon)
    }

    /// Waits until it can be used.
    pub async fn up(&self, patience: Duration) -> Result<()> {
        let began = Instant::now();
        while !self.lock().await.was_up() {
            ensure!(began.elapsed() < patience, "{} does not come up", self.name);
            tokio::time::sleep(LOOK).await;
        }
        Ok(())
    }

    async fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().await
    }

    async fn look_after(self, faults: FaultLog) {
        loop {
            tokio::time::sleep(LOOK).await;
            let mut inner = self.lock().await;
            if !inner.wanted {
                continue;
            }
            let ended = inner.child.as_mut().and_then(|child| child.try_wait().ok().flatten());
            if let Some(status) = ended {
                // One that could not start while its store or its disk was away may try again. One that was up must
                // not leave by itself.
                faults.ended_by_itself(&self.name, &status.to_string(), inner.was_up(), clock::wall_ms());
                inner.child = None;
                drop(inner);
                tokio::time::sleep(BREATH).await;
                self.start_if_wanted().await;
            }
        }
    }

    pub async fn pid(&self) -> Option<Pid> {
        Pid::from_raw(i32::try_from(self.lock().await.child.as_ref()?.id()?).ok()?)
    }

    pub async fn signal(&self, signal: Signal) {
        if let Some(pid) = self.pid().await {
            _ = kill_process(pid, signal);
        }
    }

    /// kill -9, and nobody starts it again until [`Daemon::resume`].
    pub async fn kill(&self) {
        let mut inner = self.lock().await;
        inner.wanted = false;
        if let Some(mut child) = inner.child.take() {
            _ = child.kill().await;
        }
    }

    /// Asks it to end, once or twice, and kills it if it does not. Returns whether it ended by itself.
    pub async fn end(&self, times: u32, patience: Duration) -> bool {
        let mut inner = self.lock().await;
        inner.wanted = false;
        let Some(mut child) = inner.child.take() else { return true };
        let pid = child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        for _ in 0..times {
            if let Some(pid) = pid {
                _ = kill_process(pid, Signal::TERM);
            }
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
        let ended = tokio::time::timeout(patience, child.wait()).await.is_ok();
        if !ended {
            _ = child.kill().await;
        }
        ended
    }

    pub async fn resume(&self) {
        self.lock().await.wanted = true;
        self.start_if_wanted().await;
    }

    async fn start_if_wanted(&self) {
        let mut inner = self.lock().await;
        if inner.wanted && inner.child.is_none() {
            _ = inner.spawn();
        }
    }
}

impl Inner {
    fn spawn(&mut self) -> Result<()> {
        let log = OpenOptions::new().create(true).append(true).open(&self.log).context("a log file")?;
        self.log_start = log.metadata()?.len();
        let mut command = (self.build)();
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let program = command.get_program().display().to_string();
        let mut command = tokio::process::Command::from(command);
        command.kill_on_drop(true);
        self.child = Some(command.spawn().with_context(|| format!("cannot start {program}"))?);
        Ok(())
    }

    fn was_up(&self) -> bool {
        let log = fs::read(&self.log).unwrap_or_default();
        let life = usize::try_from(self.log_start).ok().and_then(|start| log.get(start..)).unwrap_or_default();
        String::from_utf8_lossy(life).contains(self.up_line)
    }
}

/// The children of a process whose command line has this word.
pub fn children_named(of: Pid, word: &str) -> Vec<Pid> {
    let threads = fs::read_dir(format!("/proc/{}/task", of.as_raw_nonzero())).into_iter().flatten().flatten();
    let lists = threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    let pids = lists.flat_map(|list| list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<i32>>());
    let named = |pid: &i32| {
        let line = fs::read(Path::new("/proc").join(pid.to_string()).join("cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0).any(|argument| argument == word.as_bytes())
    };
    pids.filter(named).filter_map(Pid::from_raw).collect()
}
