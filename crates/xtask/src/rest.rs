//! Holds a running server to the document that it serves: schemathesis makes requests of what the document says, good ones
//! and bad ones, and looks for server errors, undocumented answers, and bad requests that were accepted.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};

use crate::test::{cargo, complete};

/// Requests of each kind for each operation.
const EXAMPLES: &str = "20";
/// Streams that end with their jobs or never; the end-to-end tests follow them.
const STREAMS: [&str; 3] = ["events.follow", "jobs.follow", "jobs.follow_logs"];
const PATIENCE: Duration = Duration::from_secs(60);

/// `python` tells where the Python with schemathesis is; without one, which CI does not allow, there is nothing to do.
pub fn in_tests(root: &Path, python: &[(&str, String)]) -> Result<()> {
    let Some((_, python)) = python.first() else {
        eprintln!("warning: REST is not held to its document");
        return Ok(());
    };
    cargo(root, &["build", "-p", "hodei"], &[])?;
    let server = Server::start(root)?;
    let mut check = Command::new(python);
    check.args(["-m", "schemathesis.cli", "--config-file"]).arg(sources(root).join("schemathesis.toml"));
    check.arg("run").arg(format!("{}/api/v1/openapi.json", server.http));
    check.args(["--checks", "all", "--max-examples", EXAMPLES, "--continue-on-failure"]);
    // Whoever sends wrong tokens without end is answered 429, and who may do what is tested end to end.
    check.args(["--exclude-checks", "ignored_auth"]);
    // Always the same: a failure here is one of the change at hand.
    check.args(["--seed", "1"]);
    check.args(["--request-timeout", "20", "--generation-database", "none", "--no-color", "--workers", "2"]);
    check.args(["--suppress-health-check", "filter_too_much,too_slow"]).env("SCHEMATHESIS_HOOKS", "hooks");
    check.env("PYTHONPATH", sources(root)).env("PYTHONDONTWRITEBYTECODE", "1");
    check.args(["--header", &format!("Authorization: Bearer {}", server.token(root)?)]);
    for stream in STREAMS {
        check.args(["--exclude-operation-id", stream]);
    }
    complete(check.current_dir(&server.folder)).with_context(|| server.last_words())
}

fn sources(root: &Path) -> PathBuf {
    root.join("crates/xtask/python")
}

/// `hodei up` in a folder of its own; gone when it is dropped.
struct Server {
    child: Child,
    folder: PathBuf,
    http: String,
}

impl Server {
    fn start(root: &Path) -> Result<Self> {
        let folder = root.join(format!("target/rest/run-{}", std::process::id()));
        fs::create_dir_all(&folder)?;
        let log = File::create(folder.join("log"))?;
        let mut up = Command::new(root.join("target/debug/hodei"));
        up.args(["up", "--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0", "--data"]).arg(folder.join("data"));
        up.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).current_dir(&folder);
        let child = up.spawn().context("cannot start hodei")?;
        let mut server = Self { child, folder, http: String::new() };
        server.http = server.address()?;
        Ok(server)
    }

    /// An API token, made over the socket in the data folder.
    fn token(&self, root: &Path) -> Result<String> {
        let mut create = Command::new(root.join("target/debug/hodei"));
        create.arg("--data").arg(self.folder.join("data")).args(["token", "create", "api", "--role", "admin"]);
        let made = create.output().context("cannot run hodei")?;
        ensure!(made.status.success(), "no token: {}", String::from_utf8_lossy(&made.stderr));
        Ok(String::from_utf8_lossy(&made.stdout).trim().to_owned())
    }

    /// Where it says that it can be reached.
    fn address(&mut self) -> Result<String> {
        let began = Instant::now();
        while began.elapsed() < PATIENCE {
            let said = self.log();
            let line = said.lines().find_map(|line| line.split_once(", health on ")?.1.split_once("/ready"));
            if let Some((http, _)) = line {
                return Ok(http.to_owned());
            }
            if self.child.try_wait()?.is_some() {
                break;
            }
            thread::sleep(Duration::from_millis(20));
        }
        bail!("hodei does not come up: {}", self.last_words())
    }

    /// The workers that requests have made it make: they outlive it, and their environment names its folder.
    fn workers(&self) -> Vec<Pid> {
        let folder = self.folder.as_os_str().as_encoded_bytes();
        let names_it = |pid: &Pid| {
            let environment = fs::read(format!("/proc/{}/environ", pid.as_raw_nonzero())).unwrap_or_default();
            environment.windows(folder.len()).any(|part| part == folder)
        };
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = entries.filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?));
        pids.filter(names_it).collect()
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.join("log")).unwrap_or_default()
    }

    fn last_words(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
        for worker in self.workers() {
            _ = kill_process(worker, Signal::KILL);
        }
        _ = fs::remove_dir_all(&self.folder);
    }
}
