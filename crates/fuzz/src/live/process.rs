//! The server's process.

use anyhow::{Context, Result, bail, ensure};
use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

const PATIENCE: Duration = Duration::from_secs(60);

/// Ends with this value.
pub struct Server {
    process: Child,
    log: PathBuf,
    pub grpc: String,
    pub http: String,
    /// For the role admin.
    pub token: String,
    folder: TempDir,
}

impl Drop for Server {
    fn drop(&mut self) {
        _ = self.process.kill();
        _ = self.process.wait();
    }
}

impl Server {
    pub async fn start(hodei: &Path) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let log = folder.path().join("server.log");
        let out = File::create(&log)?;
        let mut command = Command::new(hodei);
        command.args(["server", "--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0"]).arg("--data").arg(folder.path());
        command.env_clear().env("HOME", folder.path()).env("HODEI_LOG", "warn");
        command.stdin(Stdio::null()).stdout(out.try_clone()?).stderr(out);
        let process = command.spawn().with_context(|| format!("cannot run {}", hodei.display()))?;
        let (grpc, http) = (String::new(), String::new());
        let mut server = Self { process, log, grpc, http, token: String::new(), folder };
        let began = Instant::now();
        while began.elapsed() < PATIENCE {
            server.alive()?;
            if let Some((grpc, http)) = addresses(&server.log()) {
                (server.grpc, server.http) = (grpc, http);
                server.token = new_token(hodei, server.folder.path())?;
                return Ok(server);
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        bail!("the server does not come up: {}", server.log())
    }

    pub fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    pub fn alive(&mut self) -> Result<()> {
        let ended = self.process.try_wait()?;
        ensure!(ended.is_none(), "the server ended with {}", ended.unwrap_or_default());
        Ok(())
    }

    /// A number of bytes from what the kernel knows of the process.
    pub fn memory(&self, field: &str) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.process.id())).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix(field));
        line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0) * 1024
    }

    pub async fn get(&self, path: &str) -> Result<String> {
        let exchange = async {
            let mut stream = TcpStream::connect(&self.http).await?;
            stream.write_all(format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").as_bytes()).await?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await?;
            Ok(answer)
        };
        tokio::time::timeout(PATIENCE, exchange).await.context("no answer")?
    }
}

/// By way of the server's socket.
fn new_token(hodei: &Path, data: &Path) -> Result<String> {
    let mut command = Command::new(hodei);
    command.args(["token", "create", "api", "--role", "admin", "--data"]).arg(data).env_clear().env("HOME", data);
    let made = command.output().context("cannot make an API token")?;
    ensure!(made.status.success(), "no API token: {}", String::from_utf8_lossy(&made.stderr));
    Ok(String::from_utf8(made.stdout)?.trim().to_owned())
}

/// From the line that says that the server is up.
fn addresses(log: &str) -> Option<(String, String)> {
    let line = log.lines().find_map(|line| line.strip_prefix("hodei is up: gRPC on "))?;
    let (grpc, rest) = line.split_once(", health on ")?;
    let http = rest.split_once("/ready")?.0.trim_start_matches("http://");
    Some((grpc.to_owned(), http.to_owned()))
}
