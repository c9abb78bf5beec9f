//! Schedules: specs in, whole schedules out.

use super::jobs::{count, signed, spec_to_wire};
use crate::v1::{self, schedule_spec::Timing as Wire};
use hodei_core::{
    brain::ScheduleView,
    id::ScheduleId,
    schedule::{Misfire, Overlap, ScheduleRecord, Timing},
    spec::{Invalid, label},
    time::{Millis, Time},
};

/// The jobs' names are longer by their ticks.
const NAME_BYTES: usize = 200;
const DESCRIPTION_BYTES: usize = 4096;
const MAX_CATCH_UP: i32 = 1000;

/// A schedule that has done nothing yet. What it makes is not looked at.
pub fn schedule_from_wire(id: ScheduleId, spec: &v1::ScheduleSpec) -> Result<ScheduleRecord, Invalid> {
    label("name", &spec.name)?;
    if spec.name.len() > NAME_BYTES {
        return Err(Invalid::new("name", format!("must be at most {NAME_BYTES} bytes long")));
    }
    if spec.name.parse::<ScheduleId>().is_ok() {
        return Err(Invalid::new("name", "looks like an id; choose a name for people"));
    }
    if spec.description.len() > DESCRIPTION_BYTES {
        return Err(Invalid::new("description", format!("must be at most {DESCRIPTION_BYTES} bytes")));
    }
    Ok(ScheduleRecord {
        id,
        name: spec.name.as_str().into(),
        description: spec.description.clone(),
        timing: timing_from_wire(spec)?,
        overlap: overlap_from_wire(spec.overlap)?,
        misfire: misfire_from_wire(spec.misfire, spec.catch_up)?,
        enabled: !spec.disabled,
        created_at: Time::default(),
        last_tick: None,
        next_tick: None,
        runs: 0,
        skipped: 0,
        last_job: None,
        live: Vec::new(),
        queued: None,
        webhook: None,
    })
}

/// When a schedule like this would run.
pub fn timing_from_wire(spec: &v1::ScheduleSpec) -> Result<Timing, Invalid> {
    let timing = match &spec.timing {
        Some(Wire::Cron(expression)) => {
            Timing::Cron { expression: expression.clone(), time_zone: spec.time_zone.clone() }
        }
        Some(Wire::EveryMs(_)) if !spec.time_zone.is_empty() => {
            return Err(Invalid::new("time_zone", "an interval has no time zone; leave it out, or use cron"));
        }
        Some(Wire::EveryMs(length)) => Timing::Every(Millis(u64::try_from(*length).unwrap_or(0))),
        None => return Err(Invalid::new("cron", "must be set, such as '0 3 * * *', or every_ms instead")),
    };
    timing.checked()
}

fn overlap_from_wire(number: i32) -> Result<Overlap, Invalid> {
    match v1::Overlap::try_from(number) {
        Ok(v1::Overlap::Allow | v1::Overlap::Unspecified) => Ok(Overlap::Allow),
        Ok(v1::Overlap::Skip) => Ok(Overlap::Skip),
        Ok(v1::Overlap::Replace) => Ok(Overlap::Replace),
        Ok(v1::Overlap::QueueOne) => Ok(Overlap::QueueOne),
        Err(_) => Err(Invalid::new(
            "overlap",
            format!("{number} is not a policy; use 1 (allow), 2 (skip), 3 (replace) or 4 (queue one)"),
        )),
    }
}

fn misfire_from_wire(number: i32, catch_up: i32) -> Result<Misfire, Invalid> {
    let misfire = match v1::Misfire::try_from(number) {
        Ok(v1::Misfire::Skip) => Misfire::Skip,
        Ok(v1::Misfire::FireOnce | v1::Misfire::Unspecified) => Misfire::FireOnce,
        Ok(v1::Misfire::CatchUp) => {
            let allowed = u32::try_from(catch_up).ok().filter(|_| (1..=MAX_CATCH_UP).contains(&catch_up));
            let problem = || format!("is {catch_up}; it must be between 1 and {MAX_CATCH_UP}");
            return allowed.map(Misfire::CatchUp).ok_or_else(|| Invalid::new("catch_up", problem()));
        }
        Err(_) => {
            let problem = format!("{number} is not a policy; use 1 (skip), 2 (fire once) or 3 (catch up)");
            return Err(Invalid::new("misfire", problem));
        }
    };
    match catch_up {
        0 => Ok(misfire),
        _ => Err(Invalid::new("catch_up", "is only for the policy 3 (catch up); leave it out")),
    }
}

/// Secrets are masked, and the job has no name of its own: the tick gives it one.
pub fn schedule_to_wire(view: &ScheduleView) -> v1::Schedule {
    let ScheduleView { record, job } = view;
    let spec = hodei_core::spec::JobSpec { webhook: record.webhook.clone(), ..(*job.spec).clone() };
    let job = v1::JobSpec { name: String::new(), ..spec_to_wire(&spec, false) };
    let (timing, time_zone) = match &record.timing {
        Timing::Cron { expression, time_zone } => (Wire::Cron(expression.clone()), time_zone.clone()),
        Timing::Every(length) => (Wire::EveryMs(signed(length.0)), String::new()),
    };
    let overlap = match record.overlap {
        Overlap::Allow => v1::Overlap::Allow,
        Overlap::Skip => v1::Overlap::Skip,
        Overlap::Replace => v1::Overlap::Replace,
        Overlap::QueueOne => v1::Overlap::QueueOne,
    };
    let (misfire, catch_up) = match record.misfire {
        Misfire::Skip => (v1::Misfire::Skip, 0),
        Misfire::FireOnce => (v1::Misfire::FireOnce, 0),
        Misfire::CatchUp(most) => (v1::Misfire::CatchUp, count(most)),
    };
    v1::Schedule {
        id: record.id.to_string(),
        spec: Some(v1::ScheduleSpec {
            name: record.name.to_string(),
            timing: Some(timing),
            time_zone,
            job: Some(job),
            overlap: overlap.into(),
            misfire: misfire.into(),
            catch_up,
            disabled: !record.enabled,
            description: record.description.clone(),
        }),
        created_at_ms: record.created_at.0,
        last_tick_ms: record.last_tick.map_or(0, |tick| tick.0),
        next_tick_ms: record.next_tick.map_or(0, |tick| tick.0),
        runs: signed(record.runs),
        skipped: signed(record.skipped),
        last_job_id: record.last_job.map(|job| job.to_string()).unwrap_or_default(),
    }
}
