//! A task as its handler sees it.

use crate::{
    chunks::Chunks,
    executor::{ExecutorEvent, Masks, wall},
};
use hodei_api::logs::{Entry, MAX_TEXT};
use hodei_core::{
    id::{ExecutionId, JobId},
    job::Progress,
    protocol::{Assignment, StopReason},
    spec::{JobSpec, Timeouts, Work},
};
use serde::de::DeserializeOwned;
use std::sync::Arc;
use tokio::{
    sync::{Mutex, mpsc, watch},
    time::sleep_until,
};

/// One attempt at a job. Clones are the same one.
#[derive(Clone, Debug)]
pub struct Task {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    job: JobId,
    execution: ExecutionId,
    attempt: u32,
    task_type: Arc<str>,
    spec: Arc<JobSpec>,
    masks: Option<Arc<Masks>>,
    events: mpsc::UnboundedSender<ExecutorEvent>,
    stop: watch::Sender<Option<Stop>>,
    log: Mutex<Chunks>,
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
}

impl Why {
    fn is_urgent(self) -> bool {
        matches!(self, Why::Lease | Why::Shutdown | Why::Asked(StopReason::Stale))
    }
}

impl Task {
    pub(super) fn new(
        assignment: Assignment,
        task_type: Arc<str>,
        masks: Option<Arc<Masks>>,
        events: mpsc::UnboundedSender<ExecutorEvent>,
        log: Chunks,
    ) -> Self {
        let Assignment { job, execution, attempt, spec, .. } = assignment;
        let (stop, log) = (watch::Sender::new(None), Mutex::new(log));
        Self { shared: Arc::new(Shared { job, execution, attempt, task_type, spec, masks, events, stop, log }) }
    }

    pub fn job_id(&self) -> JobId {
        self.shared.job
    }

    /// Different for each attempt: whatever outside Hodei must happen once can be keyed by the job, and fenced by this.
    pub fn execution_id(&self) -> ExecutionId {
        self.shared.execution
    }

    /// Counts from 1.
    pub fn attempt(&self) -> u32 {
        self.shared.attempt
    }

    pub fn task_type(&self) -> &str {
        &self.shared.task_type
    }

    /// The payload as it was submitted: JSON.
    pub fn payload_bytes(&self) -> &[u8] {
        match &self.shared.spec.work {
            Work::Task { payload, .. } => payload,
            Work::Shell { .. } | Work::Script { .. } => &[],
        }
    }

    pub fn payload<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        serde_json::from_slice(self.payload_bytes())
    }

    /// A variable or secret of the job.
    pub fn variable(&self, name: &str) -> Option<&str> {
        let spec = &self.shared.spec;
        let secret = || spec.secrets.get(name).map(|secret| secret.0.as_str());
        spec.environment.get(name).map(String::as_str).or_else(secret)
    }

    /// Tells how far it is, in percent.
    pub fn progress(&self, percent: f64, message: &str) {
        let basis_points = (percent.clamp(0.0, 100.0) * 100.0).round() as u16;
        let message = String::from_utf8_lossy(&self.masked(message)).into_owned();
        let progress = Progress { basis_points, message };
        let execution = self.shared.execution;
        _ = self.shared.events.send(ExecutorEvent::Progress { execution, progress, data: None });
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
        self.shared.stop.borrow().is_some()
    }

    /// Ends when it is asked to stop. After the job's grace the handler is dropped.
    pub async fn stopping(&self) {
        self.stopped().await;
    }

    /// Notes why it must end. The first reason stays; a later one may only hasten the end.
    pub(super) fn stop(&self, why: Why) {
        self.shared.stop.send_modify(|stop| {
            let stop = stop.get_or_insert(Stop { why, now: false });
            stop.now |= why.is_urgent();
        });
    }

    pub(super) async fn stopped(&self) -> Why {
        let mut stops = self.shared.stop.subscribe();
        let stop = stops.wait_for(Option::is_some).await.ok().and_then(|stop| *stop);
        stop.map_or(Why::Shutdown, |stop| stop.why)
    }

    /// Ends when there is no time left for a polite end.
    pub(super) async fn stopped_now(&self) {
        let mut stops = self.shared.stop.subscribe();
        _ = stops.wait_for(|stop| stop.is_some_and(|stop| stop.now)).await;
    }

    pub(super) fn timeouts(&self) -> Timeouts {
        self.shared.spec.timeouts
    }

    fn masked(&self, text: &str) -> Vec<u8> {
        match &self.shared.masks {
            Some(masks) => masks.apply(text.as_bytes()),
            None => text.as_bytes().to_vec(),
        }
    }

    async fn print(&self, text: &str, stderr: bool) {
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
