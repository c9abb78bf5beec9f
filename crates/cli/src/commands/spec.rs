//! From flags to a job.

use super::defaults::complete;
use crate::args::{BackoffArg, JobArgs, OnFailureArg, PriorityArg};
use anyhow::{Context, Result};
use hodei_api::{convert::requirements_to_wire, v1};
use hodei_core::time::Millis;
use std::{
    fs,
    io::{self, Read},
    path::Path,
    time::{SystemTime, UNIX_EPOCH},
};

/// A job of its own. `local`: it runs on this machine. `attempts`: how often, unless it is told otherwise.
pub fn build(args: JobArgs, local: bool, attempts: Option<i32>) -> Result<v1::JobSpec> {
    let name = match (&args.name, &args.script) {
        (Some(name), _) => name.clone(),
        (None, Some(script)) if script.as_os_str() != "-" => {
            script.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
        }
        _ => String::new(),
    };
    let mut job = v1::JobSpec {
        name,
        work: Some(v1::Work { kind: Some(work(&args)?) }),
        stdin: args.stdin.as_deref().map(|path| read("the standard input", path)).transpose()?.unwrap_or_default(),
        data: args.job_data.clone().map(String::into_bytes).unwrap_or_default(),
        idempotency_key: args.idempotency_key.clone().unwrap_or_default(),
        ..v1::JobSpec::default()
    };
    complete(&mut job, &shared(args, local)?);
    if let Some(retry) = &mut job.retry {
        retry.max_attempts = retry.max_attempts.or(attempts);
    }
    Ok(job)
}

/// What flags say that can hold for many jobs. Those that run on this machine begin in our folder unless told otherwise.
pub fn shared(args: JobArgs, local: bool) -> Result<v1::JobSpec> {
    let workdir = match &args.workdir {
        Some(folder) => Some(std::path::absolute(folder)?),
        None if local => std::env::current_dir().ok(),
        None => None,
    };
    Ok(v1::JobSpec {
        queue: args.queue.unwrap_or_default(),
        priority: args.priority.map_or(v1::Priority::Unspecified, priority).into(),
        environment: args.env.into_iter().collect(),
        secrets: args.secret.into_iter().collect(),
        working_directory: workdir.map(|folder| folder.to_string_lossy().into_owned()).unwrap_or_default(),
        requirements: Some(Box::new(requirements_to_wire(&args.needs.into()))),
        retry: Some(v1::RetryPolicy {
            max_attempts: args.max_attempts,
            delay_ms: ms(args.retry_delay),
            backoff: args.backoff.map_or(v1::Backoff::Unspecified, backoff).into(),
            ..v1::RetryPolicy::default()
        }),
        timeouts: Some(v1::Timeouts {
            queue_ms: ms(args.queue_timeout),
            run_ms: ms(args.timeout),
            kill_grace_ms: ms(args.kill_grace),
            heartbeat_ms: ms(args.heartbeat_timeout),
        }),
        run_at_ms: args.delay.map_or(0, |delay| now_ms().saturating_add(signed(delay.0))),
        description: args.description.unwrap_or_default(),
        tags: args.tags,
        depends_on: args.depends_on,
        on_dependency_failure: args.on_dependency_failure.map_or(0, |policy| on_failure(policy).into()),
        concurrency: args.concurrency.map(|(key, limit)| v1::Concurrency { key, limit }),
        webhook: args
            .webhook
            .map(|url| v1::Webhook { url, secret: args.webhook_secret.map(|secret| secret.0).unwrap_or_default() }),
        ..v1::JobSpec::default()
    })
}

fn work(args: &JobArgs) -> Result<v1::work::Kind> {
    if let Some(task_type) = &args.task {
        let payload = match args.payload.as_deref() {
            Some("-") => read("the payload", Path::new("-"))?,
            Some(json) => json.as_bytes().to_vec(),
            None => Vec::new(),
        };
        return Ok(v1::work::Kind::Task(v1::TaskWork { r#type: task_type.clone(), payload }));
    }
    if let Some(path) = &args.script {
        let content = String::from_utf8(read("the script", path)?).context("the script is not UTF-8")?;
        let interpreter = args.interpreter.clone().or_else(|| named_in(&content)).unwrap_or_default();
        return Ok(v1::work::Kind::Script(v1::ScriptWork { interpreter, content }));
    }
    let (program, args) =
        args.command.split_first().context("what shall it run? Give a COMMAND after '--', a --script or a --task")?;
    Ok(v1::work::Kind::Shell(v1::ShellWork { program: program.clone(), args: args.to_vec() }))
}

/// The interpreter that a script's first line asks for.
fn named_in(script: &str) -> Option<String> {
    let line = script.lines().next()?.strip_prefix("#!")?.trim();
    (!line.is_empty()).then(|| line.to_owned())
}

pub fn read(what: &str, path: &Path) -> Result<Vec<u8>> {
    if path.as_os_str() == "-" {
        let mut bytes = Vec::new();
        io::stdin().read_to_end(&mut bytes).with_context(|| format!("cannot read {what} from standard input"))?;
        return Ok(bytes);
    }
    fs::read(path).with_context(|| format!("cannot read {what} {}", path.display()))
}

fn ms(length: Option<Millis>) -> Option<i64> {
    length.map(|length| signed(length.0))
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn now_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| i64::try_from(now.as_millis()).unwrap_or(i64::MAX))
}

fn priority(priority: PriorityArg) -> v1::Priority {
    match priority {
        PriorityArg::Critical => v1::Priority::Critical,
        PriorityArg::High => v1::Priority::High,
        PriorityArg::Normal => v1::Priority::Normal,
        PriorityArg::Low => v1::Priority::Low,
    }
}

fn on_failure(policy: OnFailureArg) -> v1::OnDependencyFailure {
    match policy {
        OnFailureArg::Cancel => v1::OnDependencyFailure::Cancel,
        OnFailureArg::Wait => v1::OnDependencyFailure::Wait,
        OnFailureArg::Run => v1::OnDependencyFailure::Run,
    }
}

fn backoff(backoff: BackoffArg) -> v1::Backoff {
    match backoff {
        BackoffArg::Fixed => v1::Backoff::Fixed,
        BackoffArg::Exponential => v1::Backoff::Exponential,
        BackoffArg::Quadratic => v1::Backoff::Quadratic,
    }
}
