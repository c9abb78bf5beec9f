//! The agent's side of the guardian's start.

use super::{
    Socket,
    message::{self, Control, Init, Isolation, Mechanism, Ready},
};
use hodei_core::id::WorkerId;
use std::{
    ffi::OsString,
    io,
    path::{Path, PathBuf},
    process::Stdio,
};
use tokio::process::{Child, Command};

/// How to start a guardian: a program that calls [`super::main`] when it is run with these arguments.
#[derive(Clone, Debug)]
pub struct GuardianCommand {
    pub program: PathBuf,
    pub args: Vec<OsString>,
    /// The mechanism to use; the best one that the host allows if left out.
    pub mechanism: Option<Mechanism>,
}

impl Default for GuardianCommand {
    /// This program itself, with the argument `guardian`.
    fn default() -> Self {
        Self { program: "/proc/self/exe".into(), args: vec!["guardian".into()], mechanism: None }
    }
}

/// A running guardian.
#[derive(Debug)]
pub(crate) struct GuardianProcess {
    pub process: Child,
    pub control: Socket,
    pub isolation: Isolation,
}

impl GuardianCommand {
    /// Starts a guardian and waits until it is ready: nothing of a former life runs any more then.
    pub(crate) async fn start(&self, worker: WorkerId, pids_limit: u32, scratch: &Path) -> io::Result<GuardianProcess> {
        let (ours, theirs) = message::socket_pair()?;
        // It needs nothing of the agent's environment, and jobs must not find any of it there.
        let process = Command::new(&self.program)
            .args(&self.args)
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            .spawn()?;
        let control = Socket::new(ours)?;
        let init = Init { worker, pids_limit, scratch: scratch.to_owned(), mechanism: self.mechanism };
        control.send(&Control::Init(init), &[]).await?;
        match control.receive().await {
            Some(Ready(isolation)) => Ok(GuardianProcess { process, control, isolation }),
            None => Err(io::Error::new(io::ErrorKind::BrokenPipe, "the guardian ended before it was ready")),
        }
    }
}
