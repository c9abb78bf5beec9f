//! A task as its handler sees it.

use super::{TaskError, run::is_json};
use crate::{
    chunks::{Chunks, Sink},
    executor::{ExecutorEvent, Masks, data_of, wall},
};
use hodei_api::{
    convert::MAX_RESULT,
    logs::{Entry, MAX_TEXT},
    v1,
};
use hodei_core::{
    id::{ExecutionId, JobId},
    job::Progress,
    protocol::{Assignment, DependencyResult, StopReason},
    spec::{Timeouts, Work},
};
use prost::Message;
use serde::{Serialize, de::DeserializeOwned};
use std::{
    sync::{Arc, Mutex as SyncMutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime, UNIX_EPOCH},
};
use tokio::{
    sync::{Mutex, Notify},
    time::{Instant, sleep_until},
};

const NULL: &[u8] = b"null";

/// One attempt at a job. Clones are the same one.
#[derive(Clone, Debug)]
pub struct Task {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    assignment: Assignment,
    task_type: Arc<str>,
    masks: Option<Arc<Masks>>,
    sink: Arc<Sink>,
    log: Mutex<Chunks>,
    said: SyncMutex<Said>,
    stop: SyncMutex<Option<Stop>>,
    stop_changed: Notify,
}

/// What the handler has said so far.
#[derive(Debug)]
struct Said {
    progress: Progress,
    /// If it rewrote them.
    data: Option<Vec<u8>>,
    children: Vec<Vec<u8>>,
    /// When it last gave a sign of itself.
    sign: Instant,
}

/// A job that this one depended on.
#[derive(Clone, Copy, Debug)]
pub struct Dependency<'t>(&'t DependencyResult);

impl Dependency<'_> {
    pub fn id(&self) -> JobId {
        self.0.job
    }

    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// What it left, or null: when it left nothing, did not succeed, or left too much to be sent along.
    pub fn result<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        serde_json::from_slice(self.0.result.as_deref().unwrap_or(NULL))
    }
}

/// The tick of a schedule that a job was made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tick<'t> {
    pub schedule: &'t str,
    pub at: SystemTime,
}

#[derive(Clone, Copy, Debug)]
struct Stop {
    why: Why,
    now: bool,
}

/// Why a task is ended from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    Asked(StopReason),
    Lease,
    Shutdown,
    /// It gave no sign of itself for too long.
    Silent,
}

impl Why {
    fn is_urgent(self) -> bool {
        matches!(self, Why::Lease | Why::Shutdown | Why::Asked(StopReason::Stale))
    }
}

impl Task {
    pub(super) fn new(assignment: Assignment, task_type: Arc<str>, masks: Option<Arc<Masks>>, sink: Arc<Sink>) -> Self {
        let log = Mutex::new(Chunks::new(assignment.job, assignment.execution, Arc::clone(&sink)));
        let (stop, stop_changed) = (SyncMutex::new(None), Notify::new());
        let said = Said { progress: Progress::default(), data: None, children: Vec::new(), sign: Instant::now() };
        let said = SyncMutex::new(said);
        Self { shared: Arc::new(Shared { assignment, task_type, masks, sink, log, said, stop, stop_changed }) }
    }

    pub fn job_id(&self) -> JobId {
        self.shared.assignment.job
    }

    /// Different for each attempt: whatever outside Hodei must happen once can be keyed by the job, and fenced by this.
    pub fn execution_id(&self) -> ExecutionId {
        self.shared.assignment.execution
    }

    /// Counts from 1.
    pub fn attempt(&self) -> u32 {
        self.shared.assignment.attempt
    }

    pub fn task_type(&self) -> &str {
        &self.shared.task_type
    }

    /// The payload as it was submitted: JSON.
    pub fn payload_bytes(&self) -> &[u8] {
        match &self.shared.assignment.spec.work {
            Work::Task { payload, .. } => payload,
            Work::Shell { .. } | Work::Script { .. } => &[],
        }
    }

    pub fn payload<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        serde_json::from_slice(self.payload_bytes())
    }

    /// A variable or secret of the job.
    pub fn variable(&self, name: &str) -> Option<&str> {
        let spec = &self.shared.assignment.spec;
        let secret = || spec.secrets.get(name).map(|secret| secret.0.as_str());
        spec.environment.get(name).map(String::as_str).or_else(secret)
    }

    /// The job's data, as an earlier attempt or this one left them: JSON, null if there are none.
    pub fn data_bytes(&self) -> Vec<u8> {
        let said = self.said();
        said.data.as_deref().or_else(|| data_of(&self.shared.assignment)).unwrap_or(NULL).to_vec()
    }

    pub fn data<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        serde_json::from_slice(&self.data_bytes())
    }

    /// Rewrites the job's data. They stay over attempts, snoozes and blocks.
    pub fn set_data(&self, data: &impl Serialize) -> Result<(), TaskError> {
        let data = serde_json::to_vec(data)?;
        if data.len() > MAX_RESULT {
            return Err(TaskError::fatal(format!(
                "the data are {} bytes; at most {MAX_RESULT} are allowed",
                data.len()
            )));
        }
        if !is_json(&data) {
            return Err(TaskError::fatal("the data are nested too deeply"));
        }
        let progress = {
            let mut said = self.said();
            said.sign = Instant::now();
            said.data = Some(data.clone());
            said.progress.clone()
        };
        self.report(progress, Some(data));
        Ok(())
    }

    /// What the job was resumed with after it was blocked: JSON, null if nothing resumed it.
    pub fn input_bytes(&self) -> &[u8] {
        self.shared.assignment.context.input.as_deref().unwrap_or(NULL)
    }

    pub fn input<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        serde_json::from_slice(self.input_bytes())
    }

    /// The jobs that this one depended on, with what they left.
    pub fn dependencies(&self) -> impl ExactSizeIterator<Item = Dependency<'_>> {
        self.shared.assignment.context.dependencies.iter().map(Dependency)
    }

    /// The schedule that made the job, and for when.
    pub fn tick(&self) -> Option<Tick<'_>> {
        let (schedule, at) = self.shared.assignment.context.tick.as_ref()?;
        let since = Duration::from_millis(u64::try_from(at.0).unwrap_or(0));
        Some(Tick { schedule, at: UNIX_EPOCH + since })
    }

    /// A job to be enqueued with the end of this one, if that is not a failure.
    pub fn enqueue(&self, child: impl Into<v1::JobSpec>) {
        self.said().children.push(child.into().encode_to_vec());
    }

    pub(super) fn add_children(&self, children: Vec<Vec<u8>>) {
        self.said().children.extend(children);
    }

    /// Tells how far it is, in percent.
    pub fn progress(&self, percent: f64, message: &str) {
        let basis_points = (percent.clamp(0.0, 100.0) * 100.0).round() as u16;
        let message = String::from_utf8_lossy(&self.masked(message)).into_owned();
        let progress = Progress { basis_points, message };
        {
            let mut said = self.said();
            said.sign = Instant::now();
            said.progress = progress.clone();
        }
        self.report(progress, None);
    }

    /// Tells that it is still at work: a job may have a limit for the time without any sign of it.
    pub fn heartbeat(&self) {
        self.said().sign = Instant::now();
    }

    fn said(&self) -> MutexGuard<'_, Said> {
        self.shared.said.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn report(&self, progress: Progress, data: Option<Vec<u8>>) {
        let execution = self.execution_id();
        self.tell(ExecutorEvent::Progress { execution, progress, data });
    }

    pub(super) fn tell(&self, event: ExecutorEvent) {
        self.shared.sink.tell(event);
    }

    /// Adds lines to the job's log. Waits while too much of it has not reached the server yet.
    pub async fn log(&self, text: &str) {
        self.print(text, false).await;
    }

    /// The same, as standard error.
    pub async fn log_error(&self, text: &str) {
        self.print(text, true).await;
    }

    /// Whether it has been asked to stop.
    pub fn is_stopping(&self) -> bool {
        self.stop_so_far().is_some()
    }

    /// Ends when it is asked to stop. After the job's grace the handler is dropped.
    pub async fn stopping(&self) {
        self.stopped().await;
    }

    /// Notes why it must end. The first reason stays; a later one may only hasten the end.
    pub(super) fn stop(&self, why: Why) {
        self.stop_so_far().get_or_insert(Stop { why, now: false }).now |= why.is_urgent();
        self.shared.stop_changed.notify_waiters();
    }

    fn stop_so_far(&self) -> MutexGuard<'_, Option<Stop>> {
        self.shared.stop.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) async fn stopped(&self) -> Why {
        self.stopped_if(|_| true).await.why
    }

    /// Ends when there is no time left for a polite end.
    pub(super) async fn stopped_now(&self) {
        self.stopped_if(|stop| stop.now).await;
    }

    async fn stopped_if(&self, such: impl Fn(&Stop) -> bool) -> Stop {
        loop {
            // It hears of all that changes from here on.
            let changed = self.shared.stop_changed.notified();
            let stop = *self.stop_so_far();
            if let Some(stop) = stop.filter(&such) {
                return stop;
            }
            changed.await;
        }
    }

    pub(super) fn timeouts(&self) -> Timeouts {
        self.shared.assignment.spec.timeouts
    }

    pub(super) fn assignment(&self) -> &Assignment {
        &self.shared.assignment
    }

    /// Ends when it has given no sign of itself for longer than it may.
    pub(super) async fn silent(&self) {
        let Some(limit) = self.timeouts().heartbeat else { return std::future::pending().await };
        loop {
            let until = self.said().sign + limit.duration();
            if until <= Instant::now() {
                return;
            }
            sleep_until(until).await;
        }
    }

    /// The data if the handler rewrote them, and the jobs that it wants enqueued.
    pub(super) fn leavings(&self) -> (Option<Vec<u8>>, Vec<Vec<u8>>) {
        let mut said = self.said();
        (said.data.take(), std::mem::take(&mut said.children))
    }

    pub(super) fn masked(&self, text: &str) -> Vec<u8> {
        match &self.shared.masks {
            Some(masks) => masks.apply(text.as_bytes()),
            None => text.as_bytes().to_vec(),
        }
    }

    async fn print(&self, text: &str, stderr: bool) {
        self.heartbeat();
        let (text, at_ms) = (self.masked(text), wall().0);
        let mut log = self.shared.log.lock().await;
        let waiting = log.due().is_some();
        for line in text.split(|byte| *byte == b'\n') {
            let pieces = line.chunks(MAX_TEXT);
            let last = pieces.len().saturating_sub(1);
            let empty = line.is_empty().then_some(line);
            for (n, text) in pieces.chain(empty).enumerate() {
                log.push(Entry { at_ms, stderr, unfinished: n < last, text });
                if log.is_full() {
                    log.emit().await;
                }
            }
        }
        log.emit_when_due().await;
        if let Some(due) = log.due().filter(|_| !waiting) {
            let task = self.clone();
            tokio::spawn(async move {
                sleep_until(due).await;
                task.shared.log.lock().await.emit().await;
            });
        }
    }

    /// Nothing more is printed: sends the rest and returns the number of entries.
    pub(super) async fn close_log(&self) -> u64 {
        let mut log = self.shared.log.lock().await;
        log.emit().await;
        log.entries()
    }
}
