//! The two processes of a peer and the words between them and this program; see `peers/README.md` of this crate.

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use std::{
    fs::File,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines},
    net::UdpSocket,
    process::{Child, ChildStdin, ChildStdout},
    time::timeout,
};

/// No measurement takes longer than this; a peer that hangs is a gap.
const PATIENCE: Duration = Duration::from_secs(120);

/// What a program says; which fields are there depends on the command.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Answer {
    pub ready: bool,
    pub jobs: u64,
    pub seconds: f64,
    pub p50: f64,
    pub p99: f64,
    /// Microseconds of the system's clock.
    pub began: u64,
    pub at: u64,
}

/// A program of a peer; everything that it started ends with it.
pub struct Program {
    child: Child,
    input: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
    log: PathBuf,
}

impl Program {
    /// Starts it and waits until it is ready.
    pub async fn start(mut command: Command, folder: &Path, name: &str) -> Result<Self> {
        let log = folder.join(format!("{name}.log"));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(File::create(&log)?).current_dir(folder);
        // A group of its own: some peers fork workers that outlive their parent.
        command.process_group(0);
        let mut child = tokio::process::Command::from(command).spawn().context("cannot start the program")?;
        let input = child.stdin.take().context("no standard input")?;
        let lines = BufReader::new(child.stdout.take().context("no standard output")?).lines();
        let mut program = Self { child, input, lines, log };
        program.answer().await?;
        Ok(program)
    }

    pub async fn ask(&mut self, command: &str) -> Result<Answer> {
        self.input.write_all(format!("{command}\n").as_bytes()).await?;
        self.answer().await.with_context(|| format!("after '{command}'"))
    }

    /// Some peers greet on standard output; only objects are answers.
    async fn answer(&mut self) -> Result<Answer> {
        loop {
            let line = timeout(PATIENCE, self.lines.next_line()).await.context("no answer")??;
            match line {
                Some(line) if line.starts_with('{') => return Ok(serde_json::from_str(&line)?),
                Some(_) => {}
                None => bail!("the program ended: {}", last_lines(&self.log)),
            }
        }
    }

    pub fn pid(&self) -> u32 {
        self.child.id().unwrap_or_default()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let group = i32::try_from(self.pid()).ok().and_then(rustix::process::Pid::from_raw);
        if let Some(group) = group {
            _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        }
    }
}

fn last_lines(log: &Path) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(3)..].join(" | ")
}

/// Where handlers tell that they have started.
pub struct Stamps {
    socket: UdpSocket,
}

impl Stamps {
    pub async fn new() -> Result<Self> {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0")?;
        // A worker of several processes sends one for each job.
        rustix::net::sockopt::set_socket_recv_buffer_size(&socket, 8 << 20)?;
        socket.set_nonblocking(true)?;
        Ok(Self { socket: UdpSocket::from_std(socket)? })
    }

    pub fn port(&self) -> Result<u16> {
        Ok(self.socket.local_addr()?.port())
    }

    /// How many more handlers have started, and when the last of them did, in microseconds.
    pub async fn next(&self) -> Result<(u64, u64)> {
        let mut buffer = [0; 64];
        let length = timeout(PATIENCE, self.socket.recv(&mut buffer)).await.context("no handler has started")??;
        let text = std::str::from_utf8(&buffer[..length])?;
        let (count, time) = text.trim().split_once(' ').context("a malformed stamp")?;
        Ok((count.parse()?, time.parse()?))
    }
}
