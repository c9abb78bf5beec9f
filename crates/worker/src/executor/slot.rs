//! A slot's task: it runs one assignment after the other.

use super::{
    ExecutorEvent, Shared,
    clock::{boottime, wall},
    exchange,
    folder::Folder,
    line::{Line, output_pipe},
    mask::Masks,
    output::{Output, Phases, Printed, Stream},
    program,
    progress::ProgressLines,
    supervisor::Order,
    tail::Tail,
};
use crate::{
    chunks::{Chunks, Sink},
    guardian::message::{self, Control, Ended, Report, Start, StartError, Stopped},
};
use hodei_core::{
    id::ExecutionId,
    protocol::{Assignment, Finished, StopReason},
    spec::Timeouts,
    state::{Failure, FailureKind, Outcome},
    time::{Millis, Time},
};
use std::{io, sync::Arc};
use tokio::{
    net::unix::pipe,
    select,
    sync::mpsc,
    time::{Instant, sleep_until},
};
use tracing::{debug, warn};

/// For a slot's task.
#[derive(Debug)]
pub(super) enum Command {
    Run(Assignment),
    Stop { execution: ExecutionId, why: StopReason },
}

/// Why an execution is being stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Why {
    Asked(StopReason),
    /// It gave no sign of itself for too long.
    Silent,
    Shutdown,
}

/// What became of an execution's process.
#[derive(Debug)]
enum End {
    NotStarted(StartError),
    Ended(Ended),
    /// The guardian is gone, and a new one has made sure that the job is, too.
    Lost,
}

#[derive(Debug)]
pub(super) struct SlotTask {
    index: u32,
    shared: Arc<Shared>,
    folder: Option<Folder>,
    line: Line,
}

impl SlotTask {
    pub(super) fn new(index: u32, shared: Arc<Shared>) -> Self {
        Self { index, line: Line::new(index, Arc::clone(&shared)), shared, folder: None }
    }

    /// Runs what it is given until the executor shuts down or is dropped.
    pub(super) async fn serve(mut self, mut commands: mpsc::UnboundedReceiver<Command>) {
        let mut shutdown = self.shared.shutdown.subscribe();
        loop {
            let command = select! {
                command = commands.recv() => command,
                _ = shutdown.wait_for(|shutdown| *shutdown) => None,
            };
            match command {
                Some(Command::Run(assignment)) => self.run(assignment, &mut commands).await,
                // It has ended by itself.
                Some(Command::Stop { .. }) => {}
                None => return,
            }
        }
    }

    async fn run(&mut self, assignment: Assignment, commands: &mut mpsc::UnboundedReceiver<Command>) {
        let execution = assignment.execution;
        let finished = match self.execute(&assignment, commands).await {
            Ok(finished) => finished,
            Err(failure) => Finished::new(execution, Outcome::Failed(failure), wall()),
        };
        self.shared.release(execution, self.index);
        self.shared.sink.tell(ExecutorEvent::Ended(finished));
        if let Some(folder) = &mut self.folder
            && let Err(error) = folder.tidy().await
        {
            warn!(slot = self.index, %error, "the slot's folder cannot be cleaned, and is made anew");
            self.folder = None;
        }
    }

    async fn execute(
        &mut self,
        assignment: &Assignment,
        commands: &mut mpsc::UnboundedReceiver<Command>,
    ) -> Result<Finished, Failure> {
        let spec = &assignment.spec;
        let masks = Masks::new(spec.secrets.values())
            .map_err(|error| program::not_started(format!("the secrets cannot be masked: {error}")))?;
        let shared = self.shared.clone();
        let lease = *shared.lease.borrow();
        let start = program::prepare(assignment, self.folder()?, &shared.account, lease)?;
        let no_pipes = |error: io::Error| program::not_started(format!("no pipes for the job's output: {error}"));
        let (stdout, stdout_end) = output_pipe().map_err(no_pipes)?;
        let (stderr, stderr_end) = output_pipe().map_err(no_pipes)?;
        let stdin = (!spec.stdin.is_empty()).then(|| message::memory_file("stdin", &spec.stdin)).transpose();
        let stdin = stdin.map_err(|error| program::not_started(format!("no file for the job's input: {error}")))?;
        let mut fds = vec![stdout_end, stderr_end];
        fds.extend(stdin);
        self.line
            .send_start(&start, &fds)
            .await
            .map_err(|error| program::not_started(format!("the job could not be handed to the guardian: {error}")))?;
        drop(fds);

        let execution = assignment.execution;
        let chunks = Chunks::new(assignment.job, execution, Arc::clone(&shared.sink));
        let output = Output { execution, chunks, errors: Tail::default() };
        let stdout = Stream::new(stdout, false, masks.as_ref());
        let stderr = Stream::new(stderr, true, masks.as_ref());
        let phases = Phases::default();
        let mut watch = Watch::new(assignment, masks);
        let end = async {
            let end = self.watch(&mut watch, commands, &phases).await;
            phases.ended.notify_one();
            end
        };
        let (end, printed) = tokio::join!(end, output.pump(stdout, stderr, &phases));
        Ok(self.finished(&watch, &end, printed, &start, assignment))
    }

    fn folder(&mut self) -> Result<&Folder, Failure> {
        if self.folder.is_none() {
            let made = Folder::create(&self.shared.config.scratch, self.index);
            self.folder = Some(made.map_err(|error| {
                program::not_started(format!("the worker's scratch folder cannot be used: {error}"))
            })?);
        }
        self.folder.as_ref().ok_or_else(|| program::not_started("the slot has no folder".to_owned()))
    }

    /// Follows a job from the moment it was handed over until all of it is gone.
    async fn watch(
        &mut self,
        watch: &mut Watch,
        commands: &mut mpsc::UnboundedReceiver<Command>,
        phases: &Phases,
    ) -> End {
        let Some((socket, generation)) = self.line.open() else { return End::Lost };
        let (shared, lost) = (&self.shared, generation);
        let reports = self.folder.as_ref().map(|folder| &folder.reports);
        let mut shutdown = shared.shutdown.subscribe();
        let end = loop {
            let stop = select! {
                report = socket.receive() => match report {
                    Some(Report::Started { at }) => {
                        watch.started(at);
                        phases.sign();
                        phases.live.notify_one();
                        shared.sink.tell(ExecutorEvent::Started { execution: watch.execution, at });
                        watch.due_stop()
                    }
                    Some(Report::NotStarted(error)) => break End::NotStarted(error),
                    Some(Report::Ended(ended)) => {
                        if watch.started_at.is_none() {
                            watch.started(ended.started);
                            shared.sink.tell(ExecutorEvent::Started { execution: watch.execution, at: ended.started });
                        }
                        break End::Ended(ended)
                    }
                    None => break End::Lost,
                },
                command = commands.recv() => match command {
                    Some(Command::Stop { execution, why }) if execution == watch.execution => watch.stop(Why::Asked(why)),
                    Some(_) => None,
                    None => watch.stop(Why::Shutdown),
                },
                _ = shutdown.wait_for(|shutdown| *shutdown), if watch.why != Some(Why::Shutdown) => watch.stop(Why::Shutdown),
                () = sleep_until(watch.run_until()), if watch.may_time_out() => watch.stop(Why::Asked(StopReason::RunTimeout)),
                () = sleep_until(watch.silent_at(phases)), if watch.may_be_silent() => {
                    // It may have given a sign in the meantime.
                    if watch.silent_at(phases) <= Instant::now() { watch.stop(Why::Silent) } else { None }
                }
                () = readable(reports) => {
                    phases.sign();
                    watch.read_progress(reports, pipe::Receiver::try_read);
                    None
                }
                () = sleep_until(watch.progress_due()), if watch.may_report() => {
                    if let Some(progress) = watch.progress.take() {
                        watch.report(&shared.sink, progress);
                    }
                    None
                }
            };
            if let Some(grace) = stop {
                let stop = Control::Stop { slot: self.index, execution: watch.execution, grace_ms: grace.0 };
                _ = shared.orders.send(Order::Control(stop));
            }
        };
        // The runtime may not have heard yet that there is more.
        watch.read_progress(reports, |reports, bytes| Ok(rustix::io::read(reports, bytes)?));
        if let Some(progress) = watch.progress.finish() {
            watch.report(&shared.sink, progress);
        }
        if matches!(end, End::Lost) {
            self.line.close();
            self.line.await_guardian_after(lost).await;
        }
        end
    }

    fn finished(
        &mut self,
        watch: &Watch,
        end: &End,
        printed: Printed,
        start: &Start,
        assignment: &Assignment,
    ) -> Finished {
        let finished_at = if let End::Ended(ended) = end { ended.finished } else { wall() };
        let outcome = match watch.outcome(end, start) {
            Outcome::Failed(failure) => Outcome::Failed(Failure { detail: printed.errors, ..failure }),
            other => other,
        };
        let mut finished = Finished {
            started_at: watch.started_at,
            log_entries: printed.entries,
            ..Finished::new(watch.execution, outcome, finished_at)
        };
        if let Some(folder) = &mut self.folder
            && folder.look()
        {
            exchange::collect(folder, assignment, &mut finished);
        }
        if let End::Ended(ended) = end {
            debug!(execution = %watch.execution, outcome = ?finished.outcome, usage = ?ended.usage, "ended");
        }
        finished
    }
}

/// One execution, as its slot's task follows it.
#[derive(Debug)]
struct Watch {
    execution: ExecutionId,
    timeouts: Timeouts,
    masks: Option<Arc<Masks>>,
    started_at: Option<Time>,
    run_until: Option<Instant>,
    why: Option<Why>,
    progress: ProgressLines,
}

impl Watch {
    fn new(assignment: &Assignment, masks: Option<Arc<Masks>>) -> Self {
        Self {
            execution: assignment.execution,
            timeouts: assignment.spec.timeouts,
            masks,
            started_at: None,
            run_until: None,
            why: None,
            progress: ProgressLines::default(),
        }
    }

    fn started(&mut self, at: Time) {
        self.started_at = Some(at);
        self.run_until = self.timeouts.run.map(|run| Instant::now() + run.duration());
    }

    /// Notes why it must end. The first reason stays; a later one may only hasten the end. Returns the grace of the stop
    /// that the guardian must hear of now.
    fn stop(&mut self, why: Why) -> Option<Millis> {
        let hastens = matches!(why, Why::Shutdown | Why::Asked(StopReason::Stale));
        let news = self.why.is_none() || hastens;
        self.why.get_or_insert(why);
        if !news || self.started_at.is_none() {
            return None;
        }
        Some(if hastens { Millis::ZERO } else { self.timeouts.kill_grace })
    }

    /// The grace of a stop that came before the guardian could have known the job.
    fn due_stop(&self) -> Option<Millis> {
        self.why.map(|why| match why {
            Why::Shutdown | Why::Asked(StopReason::Stale) => Millis::ZERO,
            Why::Asked(_) | Why::Silent => self.timeouts.kill_grace,
        })
    }

    fn may_time_out(&self) -> bool {
        self.run_until.is_some() && self.why.is_none()
    }

    fn may_be_silent(&self) -> bool {
        self.timeouts.heartbeat.is_some() && self.started_at.is_some() && self.why.is_none()
    }

    /// When it will have been silent for too long.
    fn silent_at(&self, phases: &Phases) -> Instant {
        let quiet = boottime() - phases.last_sign();
        let limit = self.timeouts.heartbeat.unwrap_or_default();
        Instant::now() + limit.duration().saturating_sub(quiet.duration())
    }

    /// The job may be faster with its first report than the guardian with the word of its start, which comes first.
    fn may_report(&self) -> bool {
        self.started_at.is_some() && self.progress.due().is_some()
    }

    fn run_until(&self) -> Instant {
        self.run_until.unwrap_or_else(Instant::now)
    }

    fn progress_due(&self) -> Instant {
        self.progress.due().unwrap_or_else(Instant::now)
    }

    fn read_progress(
        &mut self,
        reports: Option<&pipe::Receiver>,
        read: impl Fn(&pipe::Receiver, &mut [u8]) -> io::Result<usize>,
    ) {
        let mut bytes = [0; 4096];
        while let Some(reports) = reports
            && let Ok(size) = read(reports, &mut bytes)
            && size > 0
        {
            self.progress.feed(&bytes[..size]);
        }
    }

    fn report(&self, sink: &Sink, mut progress: hodei_core::job::Progress) {
        if let Some(masks) = &self.masks {
            progress.message = String::from_utf8_lossy(&masks.apply(progress.message.as_bytes())).into_owned();
        }
        sink.tell(ExecutorEvent::Progress { execution: self.execution, progress, data: None });
    }

    fn outcome(&self, end: &End, start: &Start) -> Outcome {
        match end {
            End::NotStarted(StartError::Lease) => lease_ran_out(),
            End::NotStarted(StartError::Limits { message }) => {
                Outcome::Failed(program::not_started(format!("the job's limits cannot be set: {message}")))
            }
            End::NotStarted(StartError::Spawn { errno }) => Outcome::Failed(program::refused(*errno, &start.program)),
            End::Lost => {
                Outcome::Failed(Failure::new(FailureKind::WorkerLost, "stopped: the worker's guardian was lost"))
            }
            End::Ended(ended) => match ended.stopped {
                Some(Stopped::Lease) => lease_ran_out(),
                Some(Stopped::Asked) => self.stopped(ended),
                None => by_itself(ended),
            },
        }
    }

    /// The outcome of an execution that we ended.
    fn stopped(&self, ended: &Ended) -> Outcome {
        match self.why {
            Some(Why::Shutdown) => Outcome::Released,
            Some(Why::Asked(StopReason::RunTimeout)) => {
                let limit = self.timeouts.run.unwrap_or_default().duration();
                let failure = Failure::new(FailureKind::RunTimeout, format!("ran longer than {limit:?}"));
                Outcome::Failed(Failure { exit_code: ended.exit_code, signal: ended.signal, ..failure })
            }
            Some(Why::Silent) => {
                let limit = self.timeouts.heartbeat.unwrap_or_default().duration();
                let failure =
                    Failure::new(FailureKind::HeartbeatTimeout, format!("gave no sign of itself for {limit:?}"));
                Outcome::Failed(Failure { exit_code: ended.exit_code, signal: ended.signal, ..failure })
            }
            _ => Outcome::Cancelled,
        }
    }
}

fn by_itself(ended: &Ended) -> Outcome {
    if ended.out_of_memory {
        let failure = Failure::new(FailureKind::OutOfMemory, "killed at its memory limit");
        return Outcome::Failed(Failure { exit_code: ended.exit_code, signal: ended.signal, ..failure });
    }
    match (ended.exit_code, ended.signal) {
        (Some(0), _) => Outcome::Succeeded,
        (Some(code), _) => Outcome::Failed(Failure::exit(code)),
        (None, signal) => Outcome::Failed(Failure::signal(signal.unwrap_or_default())),
    }
}

fn lease_ran_out() -> Outcome {
    Outcome::Failed(Failure::new(FailureKind::WorkerLost, "stopped: the lease ran out"))
}

async fn readable(reports: Option<&pipe::Receiver>) {
    match reports {
        Some(reports) => _ = reports.readable().await,
        None => std::future::pending().await,
    }
}
