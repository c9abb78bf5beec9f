//! Jobs: specs in both directions, whole jobs out.

use super::{
    requirements::{requirements_from_wire, requirements_to_wire},
    webhooks::shown,
};
use crate::v1;
use hodei_core::{
    id::{ExecutionId, JobId, WorkerId},
    job::{Execution, Job},
    retry::{Backoff, RetryPolicy},
    spec::{Concurrency, Invalid, JobSpec, OnDependencyFailure, Priority, Secret, Timeouts, Webhook, Work},
    state::{FailureKind, Outcome, State, StateKind},
    time::{Millis, Time},
};
use prost::Message;
use std::sync::Arc;

const DEFAULT_QUEUE: &str = "default";
const DEFAULT_INTERPRETER: &str = "/bin/sh";
const NO_PAYLOAD: &[u8] = b"null";
const MASKED: &str = "***";
const LONGEST_DEFAULT_NAME: usize = 64;

pub fn job_id(text: &str) -> Result<JobId, Invalid> {
    text.parse().map_err(|_| Invalid::new("job_id", format!("'{text}' is not a job id (a UUID)")))
}

/// The same as its `to_string`, at less cost, for those who answer with many.
pub fn id_text(id: JobId) -> String {
    id.0.hyphenated().encode_lower(&mut [0; 36]).to_owned()
}

pub fn execution_id(text: &str) -> Result<ExecutionId, Invalid> {
    text.parse().map_err(|_| Invalid::new("execution_id", format!("'{text}' is not an execution id (a UUID)")))
}

pub fn worker_id(text: &str) -> Result<WorkerId, Invalid> {
    text.parse().map_err(|_| Invalid::new("worker_id", format!("'{text}' is not a worker id (a UUID)")))
}

/// A spec as it is stored and sent to workers: as its submitter wrote it, without any of the defaults. What only the
/// server has to know is kept beside it.
pub fn payload_of(spec: &mut v1::JobSpec) -> Arc<[u8]> {
    let webhook = spec.webhook.take();
    let payload = spec.encode_to_vec().into();
    spec.webhook = webhook;
    payload
}

/// What was stored by [`payload_of`].
pub fn spec_of_payload(payload: &[u8]) -> Result<JobSpec, Invalid> {
    let spec = v1::JobSpec::decode(payload).map_err(|_| Invalid::new("payload", "is not a job's spec"))?;
    spec_from_wire(spec)
}

pub fn spec_from_wire(spec: v1::JobSpec) -> Result<JobSpec, Invalid> {
    let work = work_from_wire(spec.work)?;
    Ok(JobSpec {
        name: if spec.name.is_empty() { default_name(&work) } else { spec.name },
        queue: if spec.queue.is_empty() { DEFAULT_QUEUE.to_owned() } else { spec.queue },
        work,
        priority: priority_from_wire(spec.priority)?,
        environment: spec.environment,
        secrets: spec.secrets.into_iter().map(|(name, value)| (name, Secret(value))).collect(),
        working_directory: (!spec.working_directory.is_empty()).then_some(spec.working_directory),
        stdin: spec.stdin,
        requirements: requirements_from_wire(spec.requirements.map_or_else(Default::default, |it| *it))?,
        retry: retry_from_wire(spec.retry.unwrap_or_default())?,
        timeouts: timeouts_from_wire(spec.timeouts.unwrap_or_default())?,
        run_at: run_at_from_wire(spec.run_at_ms)?,
        description: spec.description,
        data: spec.data,
        tags: spec.tags,
        depends_on: spec.depends_on.iter().map(|id| dependency(id)).collect::<Result<_, _>>()?,
        on_dependency_failure: on_failure_from_wire(spec.on_dependency_failure)?,
        idempotency_key: (!spec.idempotency_key.is_empty()).then_some(spec.idempotency_key),
        concurrency: spec.concurrency.map(concurrency_from_wire).transpose()?,
        webhook: spec.webhook.map(webhook_from_wire),
    })
}

fn dependency(text: &str) -> Result<JobId, Invalid> {
    let problem = || format!("'{text}' is neither a job id (a UUID) nor the local name of a job submitted with it");
    text.parse().map_err(|_| Invalid::new("depends_on", problem()))
}

fn on_failure_from_wire(number: i32) -> Result<OnDependencyFailure, Invalid> {
    use v1::OnDependencyFailure as Wire;
    match Wire::try_from(number) {
        Ok(Wire::Cancel | Wire::Unspecified) => Ok(OnDependencyFailure::Cancel),
        Ok(Wire::Wait) => Ok(OnDependencyFailure::Wait),
        Ok(Wire::Run) => Ok(OnDependencyFailure::Run),
        Err(_) => Err(Invalid::new(
            "on_dependency_failure",
            format!("{number} is not a policy; use 1 (cancel), 2 (wait) or 3 (run)"),
        )),
    }
}

fn on_failure_to_wire(policy: OnDependencyFailure) -> v1::OnDependencyFailure {
    match policy {
        OnDependencyFailure::Cancel => v1::OnDependencyFailure::Cancel,
        OnDependencyFailure::Wait => v1::OnDependencyFailure::Wait,
        OnDependencyFailure::Run => v1::OnDependencyFailure::Run,
    }
}

fn concurrency_from_wire(wire: v1::Concurrency) -> Result<Concurrency, Invalid> {
    let limit = not_negative("concurrency.limit", wire.limit.into())?;
    Ok(Concurrency { key: wire.key.into(), limit: saturating(limit) })
}

fn webhook_from_wire(wire: v1::Webhook) -> Webhook {
    Webhook { url: wire.url, secret: (!wire.secret.is_empty()).then_some(Secret(wire.secret)) }
}

/// What is shown has no credentials in its address either.
fn webhook_to_wire(webhook: &Webhook, in_full: bool) -> v1::Webhook {
    let secret = webhook.secret.as_ref();
    match in_full {
        true => {
            v1::Webhook { url: webhook.url.clone(), secret: secret.map(|secret| secret.0.clone()).unwrap_or_default() }
        }
        false => v1::Webhook { url: shown(&webhook.url), secret: secret.map_or("", |_| MASKED).to_owned() },
    }
}

/// A name that is always valid: whatever is wrong with the program must not be blamed on a name that nobody gave.
fn default_name(work: &Work) -> String {
    match work {
        Work::Shell { program, .. } => {
            let last = program.rsplit('/').find(|part| !part.is_empty()).unwrap_or_default();
            let name: String = last.chars().filter(|c| !c.is_control()).take(LONGEST_DEFAULT_NAME).collect();
            if name.is_empty() { "command".to_owned() } else { name }
        }
        Work::Script { .. } => "script".to_owned(),
        Work::Task { task_type, .. } => {
            let name: String = task_type.chars().filter(|c| !c.is_control()).take(LONGEST_DEFAULT_NAME).collect();
            if name.is_empty() { "task".to_owned() } else { name }
        }
    }
}

fn work_from_wire(work: Option<v1::Work>) -> Result<Work, Invalid> {
    match work.and_then(|work| work.kind) {
        Some(v1::work::Kind::Shell(shell)) => Ok(Work::Shell { program: shell.program, args: shell.args }),
        Some(v1::work::Kind::Script(script)) => {
            let given = script.interpreter;
            let interpreter = if given.is_empty() { DEFAULT_INTERPRETER.to_owned() } else { given };
            Ok(Work::Script { interpreter, content: script.content })
        }
        Some(v1::work::Kind::Task(task)) => {
            let payload = if task.payload.is_empty() { NO_PAYLOAD.to_vec() } else { task.payload };
            Ok(Work::Task { task_type: task.r#type, payload })
        }
        None => Err(Invalid::new("work", "must be set to what the job runs: shell, script or task")),
    }
}

fn priority_from_wire(number: i32) -> Result<Priority, Invalid> {
    use v1::Priority as Wire;
    match Wire::try_from(number) {
        Ok(Wire::Critical) => Ok(Priority::Critical),
        Ok(Wire::High) => Ok(Priority::High),
        Ok(Wire::Normal | Wire::Unspecified) => Ok(Priority::Normal),
        Ok(Wire::Low) => Ok(Priority::Low),
        Err(_) => Err(Invalid::new("priority", format!("{number} is not a priority; use 1 (critical) to 4 (low)"))),
    }
}

fn priority_to_wire(priority: Priority) -> v1::Priority {
    match priority {
        Priority::Critical => v1::Priority::Critical,
        Priority::High => v1::Priority::High,
        Priority::Normal => v1::Priority::Normal,
        Priority::Low => v1::Priority::Low,
    }
}

fn retry_from_wire(wire: v1::RetryPolicy) -> Result<RetryPolicy, Invalid> {
    let default = RetryPolicy::default();
    let attempts = wire.max_attempts.map(|n| not_negative("retry.max_attempts", n.into())).transpose()?;
    let jitter = wire.jitter_percent.map(|n| not_negative("retry.jitter_percent", n.into())).transpose()?;
    let kind = |name: &String| {
        FailureKind::parse(name)
            .ok_or_else(|| Invalid::new("retry.fatal_kinds", format!("'{name}' is not a kind of failure; {}", kinds())))
    };
    Ok(RetryPolicy {
        max_attempts: attempts.map_or(default.max_attempts, saturating),
        delay: millis("retry.delay_ms", wire.delay_ms)?.unwrap_or(default.delay),
        max_delay: millis("retry.max_delay_ms", wire.max_delay_ms)?.unwrap_or(default.max_delay),
        backoff: backoff_from_wire(wire.backoff)?,
        jitter_percent: jitter.map_or(default.jitter_percent, saturating),
        fatal_exit_codes: wire.fatal_exit_codes,
        fatal_kinds: wire.fatal_kinds.iter().map(kind).collect::<Result<_, _>>()?,
    })
}

/// Values too large for their type are refused by the bounds that validation knows.
fn saturating<T: TryFrom<u64> + MaxValue>(number: u64) -> T {
    T::try_from(number).unwrap_or(T::MAX)
}

trait MaxValue {
    const MAX: Self;
}

impl MaxValue for u32 {
    const MAX: Self = u32::MAX;
}

impl MaxValue for u8 {
    const MAX: Self = u8::MAX;
}

fn kinds() -> String {
    let names: Vec<_> = FailureKind::ALL.iter().map(|kind| kind.name()).collect();
    format!("use one of {}", names.join(", "))
}

fn backoff_from_wire(number: i32) -> Result<Backoff, Invalid> {
    use v1::Backoff as Wire;
    match Wire::try_from(number) {
        Ok(Wire::Fixed) => Ok(Backoff::Fixed),
        Ok(Wire::Exponential | Wire::Unspecified) => Ok(Backoff::Exponential),
        Ok(Wire::Quadratic) => Ok(Backoff::Quadratic),
        Err(_) => Err(Invalid::new("retry.backoff", format!("{number} is not a backoff; use 1, 2 or 3"))),
    }
}

fn timeouts_from_wire(wire: v1::Timeouts) -> Result<Timeouts, Invalid> {
    Ok(Timeouts {
        queue: millis("timeouts.queue_ms", wire.queue_ms)?,
        run: millis("timeouts.run_ms", wire.run_ms)?,
        kill_grace: millis("timeouts.kill_grace_ms", wire.kill_grace_ms)?.unwrap_or(Timeouts::default().kill_grace),
        heartbeat: millis("timeouts.heartbeat_ms", wire.heartbeat_ms)?,
    })
}

fn run_at_from_wire(ms: i64) -> Result<Option<Time>, Invalid> {
    let at = not_negative("run_at_ms", ms)?;
    Ok((at > 0).then_some(Time(ms)))
}

fn millis(field: &str, value: Option<i64>) -> Result<Option<Millis>, Invalid> {
    value.map(|value| not_negative(field, value).map(Millis)).transpose()
}

fn not_negative(field: &str, value: i64) -> Result<u64, Invalid> {
    u64::try_from(value).map_err(|_| Invalid::new(field, format!("{value} is negative; it must be zero or more")))
}

/// For a worker the secrets go along; for everybody else they are masked.
pub fn spec_to_wire(spec: &JobSpec, for_worker: bool) -> v1::JobSpec {
    let secret = |value: &Secret| if for_worker { value.0.clone() } else { MASKED.to_owned() };
    v1::JobSpec {
        name: spec.name.clone(),
        queue: spec.queue.clone(),
        work: Some(work_to_wire(&spec.work)),
        priority: priority_to_wire(spec.priority).into(),
        environment: spec.environment.clone(),
        secrets: spec.secrets.iter().map(|(name, value)| (name.clone(), secret(value))).collect(),
        working_directory: spec.working_directory.clone().unwrap_or_default(),
        stdin: spec.stdin.clone(),
        requirements: (!spec.requirements.is_empty()).then(|| Box::new(requirements_to_wire(&spec.requirements))),
        retry: Some(retry_to_wire(&spec.retry)),
        timeouts: Some(timeouts_to_wire(&spec.timeouts)),
        run_at_ms: spec.run_at.map_or(0, |at| at.0),
        description: spec.description.clone(),
        data: spec.data.clone(),
        tags: spec.tags.clone(),
        local_name: String::new(),
        depends_on: spec.depends_on.iter().map(JobId::to_string).collect(),
        on_dependency_failure: on_failure_to_wire(spec.on_dependency_failure).into(),
        idempotency_key: spec.idempotency_key.clone().unwrap_or_default(),
        concurrency: spec.concurrency.as_ref().map(concurrency_to_wire),
        webhook: spec.webhook.as_ref().map(|webhook| webhook_to_wire(webhook, for_worker)),
    }
}

fn concurrency_to_wire(concurrency: &Concurrency) -> v1::Concurrency {
    let limit = i32::try_from(concurrency.limit).unwrap_or(i32::MAX);
    v1::Concurrency { key: concurrency.key.to_string(), limit }
}

fn work_to_wire(work: &Work) -> v1::Work {
    let kind = match work {
        Work::Shell { program, args } => {
            v1::work::Kind::Shell(v1::ShellWork { program: program.clone(), args: args.clone() })
        }
        Work::Script { interpreter, content } => {
            v1::work::Kind::Script(v1::ScriptWork { interpreter: interpreter.clone(), content: content.clone() })
        }
        Work::Task { task_type, payload } => {
            v1::work::Kind::Task(v1::TaskWork { r#type: task_type.clone(), payload: payload.clone() })
        }
    };
    v1::Work { kind: Some(kind) }
}

fn retry_to_wire(retry: &RetryPolicy) -> v1::RetryPolicy {
    let backoff = match retry.backoff {
        Backoff::Fixed => v1::Backoff::Fixed,
        Backoff::Exponential => v1::Backoff::Exponential,
        Backoff::Quadratic => v1::Backoff::Quadratic,
    };
    v1::RetryPolicy {
        max_attempts: Some(count(retry.max_attempts)),
        delay_ms: Some(signed(retry.delay.0)),
        max_delay_ms: Some(signed(retry.max_delay.0)),
        backoff: backoff.into(),
        jitter_percent: Some(retry.jitter_percent.into()),
        fatal_exit_codes: retry.fatal_exit_codes.clone(),
        fatal_kinds: retry.fatal_kinds.iter().map(|kind| kind.name().to_owned()).collect(),
    }
}

fn timeouts_to_wire(timeouts: &Timeouts) -> v1::Timeouts {
    v1::Timeouts {
        queue_ms: timeouts.queue.map(|limit| signed(limit.0)),
        run_ms: timeouts.run.map(|limit| signed(limit.0)),
        kill_grace_ms: Some(signed(timeouts.kill_grace.0)),
        heartbeat_ms: timeouts.heartbeat.map(|limit| signed(limit.0)),
    }
}

pub(super) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

pub(super) fn count(number: u32) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

pub fn state_to_wire(kind: StateKind) -> v1::JobState {
    match kind {
        StateKind::Delayed => v1::JobState::Delayed,
        StateKind::Pending => v1::JobState::Pending,
        StateKind::Scheduled => v1::JobState::Scheduled,
        StateKind::Running => v1::JobState::Running,
        StateKind::Succeeded => v1::JobState::Succeeded,
        StateKind::Failed => v1::JobState::Failed,
        StateKind::TimedOut => v1::JobState::TimedOut,
        StateKind::Cancelled => v1::JobState::Cancelled,
        StateKind::Waiting => v1::JobState::Waiting,
        StateKind::Blocked => v1::JobState::Blocked,
    }
}

pub fn state_from_wire(number: i32) -> Result<StateKind, Invalid> {
    let wire = v1::JobState::try_from(number).ok();
    let known = |kind: &StateKind| Some(state_to_wire(*kind)) == wire;
    StateKind::ALL
        .into_iter()
        .find(known)
        .ok_or_else(|| Invalid::new("states", format!("{number} is not a state of a job; use 1 to 10")))
}

/// What is kept of a job besides its row.
#[derive(Clone, Debug, Default)]
pub struct Stored {
    pub payload: Option<Vec<u8>>,
    pub result: Option<Vec<u8>>,
    /// If it was rewritten.
    pub data: Option<Vec<u8>>,
}

/// A whole job. Without its spec, as in listings, what the job's own row knows stands in for it.
pub fn job_to_wire(job: &Job, stored: Stored, waiting_reason: String) -> v1::Job {
    let spec = stored.payload.and_then(|payload| spec_of_payload(&payload).ok());
    let extra = job.extra.as_deref();
    let webhook = extra.and_then(|extra| extra.webhook.clone());
    // A schedule names the jobs that it makes; their payload is always the same.
    let name = job.name.to_string();
    let spec = spec.map(|spec| JobSpec { name, webhook, ..spec });
    let data = stored.data.or_else(|| spec.as_ref().map(|spec| spec.data.clone())).unwrap_or_default();
    let delayed_until = match &job.state {
        State::Delayed { until, .. } => until.0,
        _ => 0,
    };
    v1::Job {
        id: job.id.to_string(),
        spec: Some(spec.map_or_else(|| outline(job), |spec| spec_to_wire(&spec, false))),
        state: state_to_wire(job.state.kind()).into(),
        attempt: count(job.attempt),
        created_at_ms: job.created_at.0,
        started_at_ms: job.started_at().map_or(0, |at| at.0),
        finished_at_ms: job.state.finished_at().map_or(0, |at| at.0),
        delayed_until_ms: delayed_until,
        cancel_reason: job.state.cancel().map(|cancel| cancel.reason.clone()),
        executions: job.executions.iter().map(execution_to_wire).collect(),
        result: stored.result.unwrap_or_default(),
        data,
        parent_id: extra.and_then(|extra| extra.parent).map(|id| id.to_string()).unwrap_or_default(),
        schedule_id: extra.and_then(|extra| extra.schedule).map(|id| id.to_string()).unwrap_or_default(),
        tick_ms: extra.and_then(|extra| extra.tick).map_or(0, |tick| tick.0),
        dependencies_left: extra.map_or(0, |extra| count(extra.waiting_on)),
        waiting_reason,
        rejected_because: job.rejected().map(|failure| failure.message.clone()).unwrap_or_default(),
    }
}

fn outline(job: &Job) -> v1::JobSpec {
    v1::JobSpec {
        name: job.name.to_string(),
        queue: job.queue.to_string(),
        work: None,
        priority: priority_to_wire(job.priority).into(),
        requirements: (!job.requirements.is_empty()).then(|| Box::new(requirements_to_wire(&job.requirements))),
        retry: Some(retry_to_wire(&job.retry)),
        timeouts: Some(timeouts_to_wire(&job.timeouts)),
        tags: job.extra.iter().flat_map(|extra| &extra.tags).map(|tag| tag.to_string()).collect(),
        concurrency: job.concurrency().map(concurrency_to_wire),
        ..v1::JobSpec::default()
    }
}

fn execution_to_wire(execution: &Execution) -> v1::Execution {
    let failure = match &execution.outcome {
        Some(Outcome::Failed(failure)) => Some(failure),
        _ => None,
    };
    let outcome = match &execution.outcome {
        None => "",
        Some(Outcome::Succeeded) => "succeeded",
        Some(Outcome::Failed(_)) => "failed",
        Some(Outcome::Cancelled) => "cancelled",
        Some(Outcome::Released) => "released",
        Some(Outcome::Snoozed { .. }) => "snoozed",
        Some(Outcome::Blocked { .. }) => "blocked",
    };
    let progress = execution.progress.clone().unwrap_or_default();
    v1::Execution {
        id: execution.id.to_string(),
        worker_id: execution.worker.to_string(),
        attempt: count(execution.attempt),
        assigned_at_ms: execution.assigned_at.0,
        started_at_ms: execution.started_at.map_or(0, |at| at.0),
        finished_at_ms: execution.finished_at.map_or(0, |at| at.0),
        outcome: outcome.to_owned(),
        failure_kind: failure.map_or("", |failure| failure.kind.name()).to_owned(),
        error: failure.map_or_else(String::new, |failure| failure.message.clone()),
        exit_code: match &execution.outcome {
            Some(Outcome::Succeeded) => Some(0),
            _ => failure.and_then(|failure| failure.exit_code),
        },
        signal: failure.and_then(|failure| failure.signal),
        progress_percent: f64::from(progress.basis_points) / 100.0,
        progress_message: progress.message,
        log_entries: signed(execution.log_entries),
        detail: failure.map_or_else(String::new, |failure| failure.detail.clone()),
    }
}
