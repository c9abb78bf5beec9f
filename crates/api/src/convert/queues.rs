//! Queues and dead letters.

use super::{
    job_id,
    jobs::{count, signed},
};
use crate::v1;
use hodei_core::{
    brain::QueueView,
    dead_letter::{DeadLetter, Fingerprint},
    id::JobId,
    job::Job,
    queue::{QueueSettings, Rate},
    spec::Invalid,
    state::{FailureKind, Outcome},
    time::{Millis, Time},
};

pub fn queue_to_wire(view: QueueView) -> v1::Queue {
    let QueueSettings { rate, concurrency, ageing, max_jobs } = view.record.settings;
    let counts = view.counts.into_iter().filter(|(_, count)| *count > 0);
    v1::Queue {
        name: view.record.name.to_string(),
        paused: view.record.paused,
        settings: Some(v1::QueueSettings {
            rate_limit: rate.map_or(0, |rate| count(rate.limit)),
            rate_period_ms: rate.map_or(0, |rate| signed(rate.period.0)),
            concurrency: concurrency.map_or(0, count),
            ageing_ms: ageing.map_or(0, |ageing| signed(ageing.0)),
            max_jobs: max_jobs.map_or(0, count),
        }),
        counts: counts.map(|(state, count)| (state.name().to_owned(), signed(count))).collect(),
        held_because: view.held_because,
    }
}

pub fn settings_from_wire(wire: v1::QueueSettings) -> Result<QueueSettings, Invalid> {
    let limit = number("settings.rate_limit", wire.rate_limit.into())?;
    let period = number("settings.rate_period_ms", wire.rate_period_ms)?;
    let rate = match (limit, period) {
        (0, 0) => None,
        (limit, period) => Some(Rate { limit: u32::try_from(limit).unwrap_or(u32::MAX), period: Millis(period) }),
    };
    let concurrency = number("settings.concurrency", wire.concurrency.into())?;
    let ageing = number("settings.ageing_ms", wire.ageing_ms)?;
    let max_jobs = number("settings.max_jobs", wire.max_jobs.into())?;
    let settings = QueueSettings {
        rate,
        concurrency: (concurrency > 0).then_some(u32::try_from(concurrency).unwrap_or(u32::MAX)),
        ageing: (ageing > 0).then_some(Millis(ageing)),
        max_jobs: (max_jobs > 0).then_some(u32::try_from(max_jobs).unwrap_or(u32::MAX)),
    };
    settings.validate()?;
    Ok(settings)
}

fn number(field: &str, number: i64) -> Result<u64, Invalid> {
    u64::try_from(number).map_err(|_| Invalid::new(field, format!("{number} is negative; it must be zero or more")))
}

/// The word that names a group of like errors.
pub fn fingerprint_to_wire(fingerprint: Fingerprint) -> String {
    format!("{:016x}", fingerprint.0)
}

pub fn fingerprint_from_wire(text: &str) -> Result<Fingerprint, Invalid> {
    let bad = || Invalid::new("fingerprint", format!("'{text}' is not a fingerprint (16 hexadecimal digits)"));
    let number = u64::from_str_radix(text, 16).map_err(|_| bad())?;
    if text.len() == 16 { Ok(Fingerprint(number.cast_signed())) } else { Err(bad()) }
}

pub fn failure_kind(text: &str) -> Result<FailureKind, Invalid> {
    let names = || FailureKind::ALL.map(FailureKind::name).join(", ");
    FailureKind::parse(text).ok_or_else(|| {
        Invalid::new("failure_kind", format!("'{text}' is not a kind of failure; use one of {}", names()))
    })
}

/// Without `job`, what the letter itself knows.
pub fn dead_letter_to_wire(letter: &DeadLetter, job: Option<&Job>) -> v1::DeadLetter {
    let last = job.and_then(|job| job.executions.last());
    let detail = last.and_then(|execution| match &execution.outcome {
        Some(Outcome::Failed(failure)) => Some(failure.detail.clone()),
        _ => None,
    });
    v1::DeadLetter {
        job_id: letter.job.to_string(),
        name: job.map_or_else(String::new, |job| job.name.to_string()),
        queue: letter.queue.clone(),
        task_type: letter.task_type.clone().unwrap_or_default(),
        failed_at_ms: letter.failed_at.0,
        attempts: job.map_or(0, |job| count(job.attempt)),
        failure_kind: letter.kind.name().to_owned(),
        error: letter.error.clone(),
        detail: detail.unwrap_or_default(),
        worker_id: last.map_or_else(String::new, |execution| execution.worker.to_string()),
        fingerprint: fingerprint_to_wire(letter.fingerprint),
        job: None,
    }
}

/// Where a page of dead letters goes on.
pub fn letter_token(next: Option<(Time, JobId)>) -> String {
    next.map(|(at, id)| format!("{}.{id}", at.0)).unwrap_or_default()
}

pub fn letter_place(token: &str) -> Result<Option<(Time, JobId)>, Invalid> {
    let bad = || Invalid::new("page_token", "is not a token that this server gave");
    if token.is_empty() {
        return Ok(None);
    }
    let (at, id) = token.split_once('.').ok_or_else(bad)?;
    Ok(Some((Time(at.parse().map_err(|_| bad())?), job_id(id).map_err(|_| bad())?)))
}
