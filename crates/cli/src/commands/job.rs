//! `hodei job …`

use crate::{
    args::{JobFilterArgs, StateArg, SubmitArgs},
    client::{Client, did_nothing, explain, is_leaving},
    commands::{file, follow, run, spec},
    exit, output,
};
use anyhow::{Result, bail};
use hodei_api::v1;
use hodei_core::time::Millis;
use serde_json::{Value, json};
use std::{path::Path, time::Duration};

/// Tries at a job that the server refused because it was leaving: nothing of it was stored.
const TRIES: usize = 5;
const PAUSE: Duration = Duration::from_millis(200);

pub async fn queue(client: &mut Client, spec: v1::JobSpec) -> Result<String> {
    for _ in 0..TRIES {
        let request = v1::QueueJobRequest { job: Some(spec.clone()) };
        match client.jobs().queue_job(request).await {
            Ok(answer) => return Ok(answer.into_inner().job_id),
            Err(status) if is_leaving(&status) => {
                tokio::time::sleep(PAUSE).await;
                client.reconnect().await?;
            }
            Err(status) if did_nothing(&status) => return Err(explain(&status)),
            Err(status) => {
                let advice = "the job may have been stored, or not; with --key it is safe to submit it again";
                return Err(explain(&status).context(advice));
            }
        }
    }
    bail!("the server keeps shutting down; try again")
}

pub async fn submit(client: &mut Client, args: SubmitArgs, json: bool) -> Result<u8> {
    if let Some(path) = &args.file {
        let shared = spec::shared(args.job, client.is_local())?;
        return file::submit(client, path, &shared, json).await;
    }
    let spec = spec::build(args.job, client.is_local(), None)?;
    let id = queue(client, spec).await?;
    run::print_id(&id, json);
    Ok(exit::OK)
}

pub async fn list(client: &mut Client, filter: JobFilterArgs, limit: u32, json: bool) -> Result<u8> {
    let filter = wire_filter(filter);
    let mut jobs = Vec::new();
    let mut page_token = String::new();
    while jobs.len() < limit as usize {
        let page_size = i32::try_from((limit as usize - jobs.len()).min(1000)).unwrap_or(1000);
        let filter = Some(filter.clone());
        let request = v1::ListJobsRequest { page_size, page_token, filter, ..v1::ListJobsRequest::default() };
        let page = client.jobs().list_jobs(request).await.map_err(|status| explain(&status))?.into_inner();
        jobs.extend(page.jobs);
        page_token = page.next_page_token;
        if page_token.is_empty() {
            break;
        }
    }
    if json {
        output::print_json(&Value::Array(jobs.iter().map(output::job_json).collect()));
    } else {
        output::table(&COLUMNS, &jobs.iter().map(row).collect::<Vec<_>>());
    }
    Ok(exit::OK)
}

const COLUMNS: [output::Column; 8] =
    [("ID", 0), ("NAME", 1), ("QUEUE", 3), ("PRIORITY", 6), ("STATE", 0), ("RUNS", 5), ("CREATED", 2), ("TOOK", 4)];

fn row(job: &v1::Job) -> Vec<String> {
    let spec = job.spec.clone().unwrap_or_default();
    let took = match (job.started_at_ms, job.finished_at_ms) {
        (0, _) | (_, 0) => String::new(),
        (started, finished) => output::span((finished - started).max(0)),
    };
    vec![
        job.id.clone(),
        spec.name.clone(),
        spec.queue.clone(),
        output::priority_name(spec.priority()),
        output::state_name(job.state()),
        job.attempt.to_string(),
        output::ago(job.created_at_ms),
        took,
    ]
}

fn wire_filter(args: JobFilterArgs) -> v1::JobFilter {
    let from = |length: Millis| output::now_ms().saturating_sub_unsigned(length.0).max(1);
    v1::JobFilter {
        states: args.state.iter().map(|state| wire_state(*state).into()).collect(),
        queue: args.queue.unwrap_or_default(),
        task_type: args.task_type.unwrap_or_default(),
        tag: args.tag.unwrap_or_default(),
        name: args.name.unwrap_or_default(),
        parent_id: args.parent.unwrap_or_default(),
        schedule_id: args.schedule.unwrap_or_default(),
        from_ms: args.since.map_or(0, from),
        to_ms: 0,
    }
}

fn wire_state(state: StateArg) -> v1::JobState {
    match state {
        StateArg::Delayed => v1::JobState::Delayed,
        StateArg::Pending => v1::JobState::Pending,
        StateArg::Scheduled => v1::JobState::Scheduled,
        StateArg::Running => v1::JobState::Running,
        StateArg::Succeeded => v1::JobState::Succeeded,
        StateArg::Failed => v1::JobState::Failed,
        StateArg::TimedOut => v1::JobState::TimedOut,
        StateArg::Cancelled => v1::JobState::Cancelled,
        StateArg::Waiting => v1::JobState::Waiting,
        StateArg::Blocked => v1::JobState::Blocked,
    }
}

pub async fn get(client: &mut Client, id: String, json: bool) -> Result<u8> {
    let answer = client.jobs().get_job(v1::GetJobRequest { job_id: id }).await.map_err(|status| explain(&status))?;
    let job = answer.into_inner().job.unwrap_or_default();
    if json {
        output::print_json(&output::job_json(&job));
    } else {
        describe(&job);
    }
    Ok(exit::OK)
}

pub fn describe(job: &v1::Job) {
    let spec = job.spec.clone().unwrap_or_default();
    let mut lines: Vec<(&str, String)> = vec![
        ("id", job.id.clone()),
        ("name", spec.name.clone()),
        ("queue", spec.queue.clone()),
        ("priority", output::priority_name(spec.priority())),
        ("state", output::state_name(job.state())),
        ("why", job.waiting_reason.clone()),
        ("rejected", job.rejected_because.clone()),
        (
            "runs",
            format!("{} of {}", job.attempt, spec.retry.as_ref().and_then(|retry| retry.max_attempts).unwrap_or(0)),
        ),
        ("work", work_line(&spec)),
        ("folder", spec.working_directory.clone()),
        ("timeouts", spec.timeouts.map(timeouts_line).unwrap_or_default()),
        ("retry", spec.retry.clone().map(retry_line).unwrap_or_default()),
        ("webhook", spec.webhook.clone().map(|webhook| webhook.url).unwrap_or_default()),
        ("asks for", spec.requirements.clone().map(|it| asks_for(*it)).unwrap_or_default()),
        ("created", output::timestamp(job.created_at_ms)),
        ("not before", output::timestamp(job.delayed_until_ms)),
        ("started", output::timestamp(job.started_at_ms)),
        ("finished", output::timestamp(job.finished_at_ms)),
        ("cancel", job.cancel_reason.clone().unwrap_or_default()),
        ("about", spec.description.clone()),
        ("tags", spec.tags.join(", ")),
        ("key", spec.idempotency_key.clone()),
        (
            "limit",
            spec.concurrency.as_ref().map_or_else(String::new, |limit| format!("{} of {}", limit.limit, limit.key)),
        ),
        ("depends on", spec.depends_on.join(" ")),
        ("on failure", on_failure_line(&spec)),
        ("parent", job.parent_id.clone()),
        ("schedule", job.schedule_id.clone()),
        ("tick", output::timestamp(job.tick_ms)),
        ("data", String::from_utf8_lossy(&job.data).into_owned()),
        ("result", String::from_utf8_lossy(&job.result).into_owned()),
    ];
    for execution in &job.executions {
        lines.push(("run", execution_line(execution)));
    }
    output::lines(&lines);
}

pub fn work_line(spec: &v1::JobSpec) -> String {
    match spec.work.as_ref().and_then(|work| work.kind.as_ref()) {
        Some(v1::work::Kind::Shell(shell)) => {
            format!("{} {}", shell.program, shell.args.join(" ")).trim_end().to_owned()
        }
        Some(v1::work::Kind::Script(script)) => {
            format!("{} script, {} bytes", script.interpreter, script.content.len())
        }
        Some(v1::work::Kind::Task(task)) => format!("task {} {}", task.r#type, String::from_utf8_lossy(&task.payload)),
        None => String::new(),
    }
}

fn timeouts_line(timeouts: v1::Timeouts) -> String {
    let told = [
        ("run", timeouts.run_ms),
        ("queue", timeouts.queue_ms),
        ("heartbeat", timeouts.heartbeat_ms),
        ("kill grace", timeouts.kill_grace_ms),
    ];
    told.into_iter().filter_map(|(name, ms)| Some(format!("{name} {}", length(ms?)))).collect::<Vec<_>>().join(", ")
}

fn retry_line(retry: v1::RetryPolicy) -> String {
    let backoff = match retry.backoff() {
        v1::Backoff::Unspecified => None,
        backoff => Some(backoff.as_str_name().trim_start_matches("BACKOFF_").to_ascii_lowercase()),
    };
    let codes = retry.fatal_exit_codes.iter().map(i32::to_string).chain(retry.fatal_kinds.iter().cloned());
    let fatal = codes.collect::<Vec<_>>().join(" ");
    let told = [
        backoff,
        retry.delay_ms.map(|ms| format!("after {}", length(ms))),
        retry.max_delay_ms.map(|ms| format!("at most {}", length(ms))),
        retry.jitter_percent.map(|percent| format!("jitter {percent}%")),
        (!fatal.is_empty()).then(|| format!("never after {fatal}")),
    ];
    told.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// As it is written in flags.
fn length(ms: i64) -> String {
    humantime::format_duration(Duration::from_millis(u64::try_from(ms).unwrap_or(0))).to_string()
}

/// Only of those that depend on others.
fn on_failure_line(spec: &v1::JobSpec) -> String {
    match (spec.depends_on.is_empty(), spec.on_dependency_failure()) {
        (true, _) | (_, v1::OnDependencyFailure::Unspecified) => String::new(),
        (false, policy) => policy.as_str_name().trim_start_matches("ON_DEPENDENCY_FAILURE_").to_ascii_lowercase(),
    }
}

/// What it asks of its worker, as JSON would have it, without what is zero.
fn asks_for(wire: v1::Requirements) -> String {
    let Ok(Value::Object(asked)) = serde_json::to_value(hodei_api::json::Requirements::from_wire(wire)) else {
        return String::new();
    };
    let asked = asked.into_iter().filter(|(_, value)| *value != json!(0));
    asked.map(|(name, value)| format!("{name} {value}")).collect::<Vec<_>>().join(", ")
}

fn execution_line(execution: &v1::Execution) -> String {
    let mut parts = vec![
        format!("#{}", execution.attempt),
        if execution.outcome.is_empty() { "open".to_owned() } else { execution.outcome.clone() },
    ];
    parts.extend((!execution.error.is_empty()).then(|| format!("({})", execution.error)));
    if execution.started_at_ms > 0 && execution.finished_at_ms > 0 {
        parts.push(format!("in {}", output::span((execution.finished_at_ms - execution.started_at_ms).max(0))));
    }
    if execution.progress_percent > 0.0 || !execution.progress_message.is_empty() {
        parts.push(format!("{}% {}", execution.progress_percent, execution.progress_message));
    }
    parts.push(format!("on worker {}", execution.worker_id));
    parts.join(" ")
}

pub async fn cancel(client: &mut Client, id: String, reason: String, json: bool) -> Result<u8> {
    let request = v1::CancelJobRequest { job_id: id.clone(), reason };
    let answer = client.jobs().cancel_job(request).await.map_err(|status| explain(&status))?.into_inner();
    match (json, answer.state()) {
        (true, state) => output::print_json(&json!({ "job_id": id, "state": output::state_name(state) })),
        (false, v1::JobState::Cancelled) => output::println("cancelled"),
        (false, _) => output::println("asked to stop; it is cancelled when its worker confirms"),
    }
    Ok(exit::OK)
}

pub async fn cancel_all(client: &mut Client, filter: JobFilterArgs, reason: String, json: bool) -> Result<u8> {
    let request = v1::CancelJobsRequest { filter: Some(wire_filter(filter)), reason };
    let cancelled = client.jobs().cancel_jobs(request).await.map_err(|status| explain(&status))?.into_inner().cancelled;
    match json {
        true => output::print_json(&json!({ "cancelled": cancelled })),
        false => output::println(&format!("cancelled {cancelled}; those that run are asked to stop")),
    }
    Ok(exit::OK)
}

pub async fn resume(client: &mut Client, id: String, payload: Option<String>, json: bool) -> Result<u8> {
    let payload = match payload.as_deref() {
        Some("-") => spec::read("the payload", Path::new("-"))?,
        Some(json) => json.as_bytes().to_vec(),
        None => Vec::new(),
    };
    let request = v1::ResumeJobRequest { job_id: id.clone(), payload };
    let answer = client.jobs().resume_job(request).await.map_err(|status| explain(&status))?.into_inner();
    let state = output::state_name(answer.state());
    match json {
        true => output::print_json(&json!({ "job_id": id, "state": state })),
        false => output::println(&state),
    }
    Ok(exit::OK)
}

pub async fn retry(client: &mut Client, id: String, json: bool) -> Result<u8> {
    let request = v1::RetryJobRequest { job_id: id.clone() };
    let answer = client.jobs().retry_job(request).await.map_err(|status| explain(&status))?.into_inner();
    let state = output::state_name(answer.state());
    match json {
        true => output::print_json(&json!({ "job_id": id, "state": state })),
        false => output::println(&state),
    }
    Ok(exit::OK)
}

pub async fn wait(mut client: Client, id: String, timeout: Option<Millis>, json: bool) -> Result<u8> {
    let ended = follow::end(&mut client, &id);
    let job = match timeout {
        None => ended.await?,
        Some(limit) => match tokio::time::timeout(limit.duration(), ended).await {
            Ok(job) => job?,
            Err(_) => {
                bail!("job {id} has not ended after {}", output::span(i64::try_from(limit.0).unwrap_or(i64::MAX)))
            }
        },
    };
    match json {
        true => output::print_json(&output::job_json(&job)),
        false => output::println(&output::state_name(job.state())),
    }
    Ok(exit::of(&job))
}
