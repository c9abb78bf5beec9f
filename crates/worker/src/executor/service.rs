//! Processes that live longer than one job: the guardian starts and ends them as it does jobs, in slots of their own.

use super::{
    Executor, Shared, boottime,
    line::{Line, output_pipe},
    program,
    supervisor::Order,
};
use crate::guardian::message::{Control, Ended, Limits, Report, Start, StartError, Stopped};
use hodei_core::{
    id::ExecutionId,
    state::{Failure, FailureKind},
};
use rustix::{fd::OwnedFd, pipe::PipeFlags};
use std::{collections::BTreeMap, io, path::PathBuf, sync::Arc};
use tokio::net::unix::pipe;
use uuid::Uuid;

const PATH: &str = "PATH";

/// What to start.
#[derive(Clone, Debug)]
pub(crate) struct ServiceCommand {
    pub args: Vec<String>,
    pub directory: String,
    pub environment: BTreeMap<String, String>,
}

/// A place for one such process after the other.
#[derive(Debug)]
pub(crate) struct ServiceSlot {
    index: u32,
    shared: Arc<Shared>,
    line: Line,
    current: Option<ExecutionId>,
}

/// Our ends of the pipes of a process. The output is there to be read to its end after the process has ended.
#[derive(Debug)]
pub(crate) struct ServicePipes {
    pub stdin: pipe::Sender,
    pub stdout: pipe::Receiver,
    pub stderr: pipe::Receiver,
}

impl Executor {
    /// A slot beside those of the jobs.
    pub(crate) fn service_slot(&self) -> ServiceSlot {
        let shared = Arc::clone(&self.shared);
        let index = {
            let mut places = shared.places();
            places.services += 1;
            shared.config.slots + places.services - 1
        };
        ServiceSlot { index, line: Line::new(index, Arc::clone(&shared)), shared, current: None }
    }

    /// A folder that is removed with everything else of this worker's jobs.
    pub(crate) fn scratch(&self) -> PathBuf {
        self.shared.config.scratch.clone()
    }
}

impl ServiceSlot {
    /// Hands the process to the guardian. Whether it could be started is told by [`ServiceSlot::ended`].
    pub(crate) async fn start(&mut self, command: &ServiceCommand) -> Result<ServicePipes, Failure> {
        let failed = |error: io::Error| program::not_started(format!("no pipes for the process: {error}"));
        let (stdout, stdout_end) = output_pipe().map_err(failed)?;
        let (stderr, stderr_end) = output_pipe().map_err(failed)?;
        let (stdin_end, stdin) = input_pipe().map_err(failed)?;
        let execution = ExecutionId(Uuid::new_v4());
        let start = self.message(command, execution)?;
        self.line
            .send_start(&start, &[stdout_end, stderr_end, stdin_end])
            .await
            .map_err(|error| guardian_lost(&format!("the guardian could not be reached: {error}")))?;
        self.current = Some(execution);
        Ok(ServicePipes {
            stdin: pipe::Sender::from_owned_fd_unchecked(stdin).map_err(failed)?,
            stdout: pipe::Receiver::from_owned_fd_unchecked(stdout).map_err(failed)?,
            stderr: pipe::Receiver::from_owned_fd_unchecked(stderr).map_err(failed)?,
        })
    }

    fn message(&self, command: &ServiceCommand, execution: ExecutionId) -> Result<Start, Failure> {
        let path = command.environment.get(PATH).map_or(program::PATH, String::as_str);
        let name = command.args.first().map_or("", String::as_str);
        let program = program::find(name, path, &command.directory)?;
        let mut environment = command.environment.clone();
        environment.insert(program::SCRATCH.to_owned(), self.folder());
        environment.insert("HODEI_EXECUTION_ID".to_owned(), execution.to_string());
        let lease = *self.shared.lease.borrow();
        Ok(Start {
            execution,
            program,
            args: command.args.clone(),
            environment: environment.into_iter().collect(),
            directory: command.directory.clone(),
            limits: Limits::default(),
            stdin: true,
            deadline_ms: lease.map(|lease| lease.0),
        })
    }

    fn folder(&self) -> String {
        self.shared.config.scratch.join(format!("slot-{}", self.index)).to_string_lossy().into_owned()
    }

    /// Waits until the process and all that it started are gone, and says how that came.
    pub(crate) async fn ended(&mut self) -> Failure {
        loop {
            let report = match self.line.open() {
                Some((socket, _)) => socket.receive().await,
                None => None,
            };
            let failure = match report {
                Some(Report::Started { .. }) => continue,
                Some(Report::Ended(ended)) => failure_of(&ended),
                Some(Report::NotStarted(StartError::Lease)) => lease_over(),
                Some(Report::NotStarted(StartError::Limits { message })) => program::not_started(message),
                Some(Report::NotStarted(StartError::Spawn { errno })) => {
                    program::not_started(format!("it cannot be started: {}", io::Error::from_raw_os_error(errno)))
                }
                None => {
                    self.line.close();
                    guardian_lost("the worker's guardian was lost")
                }
            };
            self.current = None;
            return failure;
        }
    }

    /// Waits until the worker has a lease, without which nothing may run.
    pub(crate) async fn leased(&self) {
        let mut lease = self.shared.lease.subscribe();
        _ = lease.wait_for(|lease| lease.is_none_or(|until| until > boottime())).await;
    }

    /// Ends the process and all that it started, at once.
    pub(crate) fn kill(&self) {
        if let Some(execution) = self.current {
            let stop = Control::Stop { slot: self.index, execution, grace_ms: 0 };
            _ = self.shared.orders.send(Order::Control(stop));
        }
    }
}

fn failure_of(ended: &Ended) -> Failure {
    if ended.stopped == Some(Stopped::Lease) {
        return lease_over();
    }
    let kind = if ended.out_of_memory { FailureKind::OutOfMemory } else { FailureKind::Error };
    let message = match (ended.exit_code, ended.signal.unwrap_or_default()) {
        (Some(code), _) => format!("exited with code {code}"),
        (None, signal) => format!("killed by signal {signal}"),
    };
    Failure { exit_code: ended.exit_code, signal: ended.signal, ..Failure::new(kind, message) }
}

fn lease_over() -> Failure {
    Failure::new(FailureKind::WorkerLost, "the worker's lease has run out")
}

fn guardian_lost(message: &str) -> Failure {
    Failure::new(FailureKind::WorkerLost, message)
}

/// The reading end for the process, and the writing end for us.
fn input_pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let (reader, writer) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
    rustix::io::ioctl_fionbio(&writer, true)?;
    Ok((reader, writer))
}
