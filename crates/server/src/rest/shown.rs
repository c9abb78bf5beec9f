//! What answers are made of. A field that does not apply is left out; no field is ever null.

use hodei_api::{convert, json, v1};
use serde::Serialize;
use serde_json::value::RawValue;
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// A page of a listing.
#[derive(Debug, Serialize, ToSchema)]
pub struct Page<T> {
    pub items: Vec<T>,
    /// Where the next page begins; left out on the last.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub next_page_token: String,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct Job {
    #[schema(format = Uuid)]
    pub id: String,
    pub state: JobState,
    /// Runs so far.
    pub attempt: i32,
    #[schema(format = DateTime)]
    pub created_at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    pub started_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    pub finished_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    pub delayed_until: Option<String>,
    /// A cancel was asked for and is not confirmed yet, or it ended the job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cancel_reason: Option<String>,
    /// Why it is not running, in words.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub waiting_reason: String,
    /// Why it failed without having been given to a worker.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub rejected_because: String,
    /// How many of those it depends on have not succeeded yet.
    #[serde(skip_serializing_if = "is_zero")]
    pub dependencies_left: i32,
    /// The job that made it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub parent_id: String,
    /// The schedule that made it, and for which tick.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub schedule_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    pub tick: Option<String>,
    /// As its handler left it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub data: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub result: Option<Box<RawValue>>,
    pub executions: Vec<Execution>,
    /// As it was submitted, with the defaults filled in; secrets are shown as ***. In listings without what it runs.
    pub spec: json::Job,
}

#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum JobState {
    Delayed,
    Waiting,
    Pending,
    Scheduled,
    Running,
    Blocked,
    Succeeded,
    Failed,
    TimedOut,
    Cancelled,
}

impl From<v1::JobState> for JobState {
    fn from(wire: v1::JobState) -> Self {
        match wire {
            v1::JobState::Delayed => JobState::Delayed,
            v1::JobState::Waiting => JobState::Waiting,
            v1::JobState::Pending | v1::JobState::Unspecified => JobState::Pending,
            v1::JobState::Scheduled => JobState::Scheduled,
            v1::JobState::Running => JobState::Running,
            v1::JobState::Blocked => JobState::Blocked,
            v1::JobState::Succeeded => JobState::Succeeded,
            v1::JobState::Failed => JobState::Failed,
            v1::JobState::TimedOut => JobState::TimedOut,
            v1::JobState::Cancelled => JobState::Cancelled,
        }
    }
}

/// One run of a job.
#[derive(Debug, Serialize, ToSchema)]
pub struct Execution {
    #[schema(format = Uuid)]
    pub id: String,
    #[schema(format = Uuid)]
    pub worker_id: String,
    pub attempt: i32,
    #[schema(format = DateTime)]
    pub assigned_at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    pub started_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    pub finished_at: Option<String>,
    /// succeeded, failed, cancelled, released, snoozed or blocked; left out while it lives.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub outcome: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub failure_kind: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub error: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    pub progress_percent: f64,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub progress_message: String,
    pub log_entries: i64,
    /// The end of what it printed as errors, or its stack.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub detail: String,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands out references")]
fn is_zero(number: &i32) -> bool {
    *number == 0
}

/// A moment as RFC 3339 writes it. One that no calendar has becomes the last that it has.
pub fn moment(ms: i64) -> String {
    jiff::Timestamp::from_millisecond(ms).unwrap_or(jiff::Timestamp::MAX).to_string()
}

/// None for zero, which stands for none on the wire.
pub fn maybe(ms: i64) -> Option<String> {
    (ms != 0).then(|| moment(ms))
}

fn raw(json: &[u8]) -> Option<Box<RawValue>> {
    if json.is_empty() { None } else { serde_json::from_slice(json).ok() }
}

impl From<v1::Job> for Job {
    fn from(mut job: v1::Job) -> Self {
        let state = job.state().into();
        let mut spec = json::Job::from_wire(job.spec.take().unwrap_or_default());
        // The data as it is now stands beside the spec.
        spec.data = None;
        Self {
            state,
            attempt: job.attempt,
            created_at: moment(job.created_at_ms),
            started_at: maybe(job.started_at_ms),
            finished_at: maybe(job.finished_at_ms),
            delayed_until: maybe(job.delayed_until_ms),
            cancel_reason: job.cancel_reason,
            waiting_reason: job.waiting_reason,
            rejected_because: job.rejected_because,
            dependencies_left: job.dependencies_left,
            parent_id: job.parent_id,
            schedule_id: job.schedule_id,
            tick: maybe(job.tick_ms),
            data: raw(&job.data),
            result: raw(&job.result),
            executions: job.executions.into_iter().map(Execution::from).collect(),
            id: job.id,
            spec,
        }
    }
}

impl From<v1::Execution> for Execution {
    fn from(run: v1::Execution) -> Self {
        Self {
            id: run.id,
            worker_id: run.worker_id,
            attempt: run.attempt,
            assigned_at: moment(run.assigned_at_ms),
            started_at: maybe(run.started_at_ms),
            finished_at: maybe(run.finished_at_ms),
            outcome: run.outcome,
            failure_kind: run.failure_kind,
            error: run.error,
            exit_code: run.exit_code,
            signal: run.signal,
            progress_percent: run.progress_percent,
            progress_message: run.progress_message,
            log_entries: run.log_entries,
            detail: run.detail,
        }
    }
}

#[derive(Debug, Serialize, ToSchema)]
pub struct LogEntry {
    #[schema(format = Uuid)]
    pub execution_id: String,
    pub attempt: i32,
    /// Counts from 0 in each execution.
    pub number: u64,
    #[schema(format = DateTime)]
    pub at: String,
    pub stderr: bool,
    /// Without its newline; what is not UTF-8 is replaced by U+FFFD.
    pub text: String,
    /// The line goes on in the next entry of the same stream, or the output ended without a newline.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub unfinished: bool,
}

impl From<v1::LogEntry> for LogEntry {
    fn from(entry: v1::LogEntry) -> Self {
        Self {
            execution_id: entry.execution_id,
            attempt: entry.attempt,
            number: entry.number,
            at: moment(entry.at_ms),
            stderr: entry.stderr,
            text: String::from_utf8_lossy(&entry.text).into_owned(),
            unfinished: entry.unfinished,
        }
    }
}

#[derive(Debug, Serialize, ToSchema)]
pub struct Queue {
    pub name: String,
    pub paused: bool,
    pub settings: ShownSettings,
    /// Jobs in each state that has any.
    pub counts: BTreeMap<String, i64>,
    /// Why nothing of it starts, in words, when that is not for want of workers.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub held_because: String,
}

/// Zero for what is not limited.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = CurrentSettings)]
pub struct ShownSettings {
    pub rate_limit: i32,
    pub rate_period_ms: i64,
    pub concurrency: i32,
    pub ageing_ms: i64,
    pub max_jobs: i32,
}

impl From<v1::Queue> for Queue {
    fn from(queue: v1::Queue) -> Self {
        let v1::QueueSettings { rate_limit, rate_period_ms, concurrency, ageing_ms, max_jobs } =
            queue.settings.unwrap_or_default();
        Self {
            name: queue.name,
            paused: queue.paused,
            settings: ShownSettings { rate_limit, rate_period_ms, concurrency, ageing_ms, max_jobs },
            counts: queue.counts.into_iter().collect(),
            held_because: queue.held_because,
        }
    }
}

#[derive(Debug, Serialize, ToSchema)]
pub struct DeadLetter {
    #[schema(format = Uuid)]
    pub job_id: String,
    pub name: String,
    pub queue: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub task_type: String,
    #[schema(format = DateTime)]
    pub failed_at: String,
    pub attempts: i32,
    /// The last error.
    pub failure_kind: String,
    pub error: String,
    /// The end of what it printed as errors, or its stack.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub detail: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub worker_id: String,
    /// The group of like errors.
    pub fingerprint: String,
    /// Not in listings.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job: Option<Job>,
}

impl From<v1::DeadLetter> for DeadLetter {
    fn from(letter: v1::DeadLetter) -> Self {
        Self {
            job_id: letter.job_id,
            name: letter.name,
            queue: letter.queue,
            task_type: letter.task_type,
            failed_at: moment(letter.failed_at_ms),
            attempts: letter.attempts,
            failure_kind: letter.failure_kind,
            error: letter.error,
            detail: letter.detail,
            worker_id: letter.worker_id,
            fingerprint: letter.fingerprint,
            job: letter.job.map(Job::from),
        }
    }
}

#[derive(Debug, Serialize, ToSchema)]
pub struct Worker {
    #[schema(format = Uuid)]
    pub id: String,
    pub name: String,
    pub hostname: String,
    pub version: String,
    /// creating, connecting, ready, busy, draining, unhealthy, terminating or terminated.
    pub state: &'static str,
    /// Executions it holds.
    pub running: i32,
    pub capacity: Capacity,
    /// Free of reservations.
    pub free: Capacity,
    /// The types of tasks that it has handlers for.
    pub task_types: Vec<String>,
    /// It starts no processes: shell and script work is not for it.
    pub tasks_only: bool,
    /// Its handlers that have processes of their own.
    pub handlers: Vec<Handler>,
    pub labels: BTreeMap<String, String>,
    pub taints: Vec<json::Taint>,
    pub capabilities: Vec<json::Capability>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub zone: String,
    /// process, container or vm.
    pub isolation: &'static str,
    /// The image that it runs in, if it runs in one.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub image: String,
    #[schema(format = DateTime)]
    pub registered_at: String,
    /// Who made it, of what template; left out for one that came by itself.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub provider: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub template: String,
    /// Why it leaves.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub drain_reason: String,
}

/// A handler whose processes the worker supervises.
#[derive(Debug, Serialize, ToSchema)]
pub struct Handler {
    /// The type, or pattern of types, that it is there for.
    pub name: String,
    /// critical, high, normal or best-effort.
    pub sla: String,
    /// Its types are not offered until somebody restarts it.
    pub given_up: bool,
}

impl From<v1::HandlerInfo> for Handler {
    fn from(wire: v1::HandlerInfo) -> Self {
        Self { name: wire.name, sla: wire.sla, given_up: wire.given_up }
    }
}

#[derive(Debug, Default, Serialize, ToSchema)]
pub struct Capacity {
    pub slots: i32,
    pub cpu_millis: i64,
    pub memory_bytes: i64,
    pub disk_bytes: i64,
    pub gpus: i32,
}

impl From<v1::Capacity> for Capacity {
    fn from(wire: v1::Capacity) -> Self {
        let v1::Capacity { slots, cpu_millis, memory_bytes, disk_bytes, gpus } = wire;
        Self { slots, cpu_millis, memory_bytes, disk_bytes, gpus }
    }
}

impl From<&hodei_core::brain::WorkerView> for Worker {
    fn from(view: &hodei_core::brain::WorkerView) -> Self {
        let wire = convert::view_to_wire(view);
        let info = wire.info.unwrap_or_default();
        Self {
            id: wire.id,
            name: info.name,
            hostname: info.hostname,
            version: info.version,
            state: view.state.name(),
            running: wire.running,
            capacity: info.capacity.unwrap_or_default().into(),
            free: wire.free.unwrap_or_default().into(),
            task_types: info.task_types,
            tasks_only: info.tasks_only,
            handlers: info.handlers.into_iter().map(Into::into).collect(),
            labels: info.labels.into_iter().collect(),
            taints: info.taints.into_iter().map(json::Taint::from_wire).collect(),
            capabilities: info.capabilities.into_iter().map(json::Capability::from_wire).collect(),
            zone: info.zone,
            isolation: view.record.info.isolation.name(),
            image: info.image,
            registered_at: moment(wire.registered_at_ms),
            provider: wire.provider,
            template: wire.template,
            drain_reason: wire.drain_reason,
        }
    }
}
