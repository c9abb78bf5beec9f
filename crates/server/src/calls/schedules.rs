//! Schedules: making, changing, looking, running them by hand, filling a past range.

use super::{Calls, Problem};
use crate::clock;
use hodei_api::{convert, v1};
use hodei_core::{
    brain::{Answer, Input, ScheduleOrder, ScheduleView, ScheduledJob},
    cron::Ticks,
    id::{JobId, ScheduleId},
    schedule::{ScheduleRecord, Timing},
    spec::{Invalid, Webhook},
    time::Time,
};
use std::sync::Arc;
use uuid::Uuid;

/// All schedules are in memory, with what they make.
const MAX_PAYLOAD: usize = 64 << 10;
const MAX_PREVIEW: usize = 1000;
/// Ticks that are filled in one commit, and the bytes of their jobs.
const STEP: usize = 1000;
const STEP_BYTES: usize = 8 << 20;
const MAX_TICKS: usize = 1_000_000;

/// How far a backfill is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Filled {
    pub made: u64,
    /// Ticks that had their jobs already.
    pub existed: u64,
    pub total: u64,
}

/// A past range that is being filled, step by step.
pub struct Backfill {
    calls: Calls,
    schedule: ScheduleId,
    ticks: Ticks,
    /// Ticks at or after, and before.
    from: Time,
    to: Time,
    step: usize,
    pub filled: Filled,
}

impl Calls {
    pub async fn create_schedule(&self, spec: v1::ScheduleSpec) -> Result<ScheduleView, Problem> {
        let id = ScheduleId(Uuid::now_v7());
        let mut record = convert::schedule_from_wire(id, &spec).map_err(within_spec)?;
        comes(&record.timing, clock::now().wall).map_err(within_spec)?;
        let (job, webhook) = self.scheduled_job(spec.job.unwrap_or_default())?;
        record.webhook = webhook;
        self.put_schedule(record, job).await
    }

    /// Takes the place of the spec; without a job, that stays as it is.
    pub async fn update_schedule(&self, named: String, spec: v1::ScheduleSpec) -> Result<ScheduleView, Problem> {
        let ScheduleView { record: old, job } = self.schedule(named).await?;
        let mut record = convert::schedule_from_wire(old.id, &spec).map_err(within_spec)?;
        record.created_at = old.created_at;
        comes(&record.timing, old.created_at.max(clock::now().wall)).map_err(within_spec)?;
        let (job, webhook) = match spec.job {
            Some(job) => self.scheduled_job(job)?,
            None => (job, old.webhook),
        };
        record.webhook = webhook;
        self.put_schedule(record, job).await
    }

    async fn put_schedule(&self, record: ScheduleRecord, job: ScheduledJob) -> Result<ScheduleView, Problem> {
        let (schedule, weight) = (record.id, 512 + job.payload.len());
        let subject = format!("{schedule} {}", record.name);
        let order = ScheduleOrder::Put { record: Box::new(record), job };
        self.act(subject, weight, |caller| Input::SetSchedule { caller, schedule, order }).await?;
        self.schedule(schedule.to_string()).await
    }

    /// What a schedule makes: a job like any other, but for what its ticks decide.
    fn scheduled_job(&self, job: v1::JobSpec) -> Result<(ScheduledJob, Option<Webhook>), Invalid> {
        let checked = no_tick_of_its_own(&job).and_then(|()| self.checked(job));
        let mut job = checked.map_err(|bad| within_spec(bad.within("job")))?;
        if job.payload.len() > MAX_PAYLOAD {
            let problem = format!("is {} bytes; at most {MAX_PAYLOAD} are allowed for a schedule", job.payload.len());
            return Err(Invalid::new("spec.job", problem));
        }
        let webhook = job.spec.webhook.take();
        Ok((ScheduledJob { spec: Arc::new(job.spec), payload: job.payload }, webhook))
    }

    /// By its id or by its name.
    pub async fn schedule(&self, named: String) -> Result<ScheduleView, Problem> {
        let missing = Problem::NotFound(format!("there is no schedule '{named}'"));
        self.engine.ask(move |brain| brain.schedule(&named)).await?.ok_or(missing)
    }

    /// In the order of their names.
    pub async fn schedules(&self, after: Option<String>, limit: usize) -> Result<Vec<ScheduleView>, Problem> {
        Ok(self.engine.ask(move |brain| brain.schedules(after.as_deref(), limit)).await?)
    }

    async fn order(&self, named: String, order: ScheduleOrder) -> Result<(ScheduleId, Answer), Problem> {
        let record = self.schedule(named).await?.record;
        let (schedule, subject) = (record.id, format!("{} {}", record.id, record.name));
        let answer = self.act(subject, 0, |caller| Input::SetSchedule { caller, schedule, order }).await?;
        Ok((schedule, answer))
    }

    pub async fn delete_schedule(&self, named: String) -> Result<(), Problem> {
        self.order(named, ScheduleOrder::Delete).await.map(|_| ())
    }

    pub async fn enable_schedule(&self, named: String) -> Result<ScheduleView, Problem> {
        let (schedule, _) = self.order(named, ScheduleOrder::Enable).await?;
        self.schedule(schedule.to_string()).await
    }

    pub async fn disable_schedule(&self, named: String) -> Result<ScheduleView, Problem> {
        let (schedule, _) = self.order(named, ScheduleOrder::Disable).await?;
        self.schedule(schedule.to_string()).await
    }

    pub async fn trigger_schedule(&self, named: String) -> Result<JobId, Problem> {
        match self.order(named, ScheduleOrder::Trigger).await?.1 {
            Answer::Job(job) => Ok(job),
            _ => Err(Problem::Internal("the brain answered something else".into())),
        }
    }

    /// The next ticks of a schedule that exists.
    pub async fn preview_schedule(&self, named: String, after: i64, count: i32) -> Result<Vec<Time>, Problem> {
        let record = self.schedule(named).await?.record;
        Ok(preview(&record.timing, record.created_at, after, count)?)
    }

    /// The next ticks of a schedule that would be made now.
    pub fn preview_spec(&self, spec: &v1::ScheduleSpec, after: i64, count: i32) -> Result<Vec<Time>, Problem> {
        let timing = convert::timing_from_wire(spec).map_err(within_spec)?;
        Ok(preview(&timing, clock::now().wall, after, count)?)
    }

    /// Ticks that have not come yet are not of the past, whatever the range.
    pub async fn backfill_schedule(&self, named: String, from: i64, to: i64) -> Result<Backfill, Problem> {
        let ScheduleView { record, job } = self.schedule(named).await?;
        if from < 0 {
            return Err(Invalid::new("from_ms", "must not be negative").into());
        }
        if to <= from {
            return Err(Invalid::new("to_ms", "must be after from_ms").into());
        }
        let ticks = record.timing.ticks(record.created_at).map_err(|bad| Problem::Internal(bad.to_string()))?;
        let (from, to) = (Time(from), Time(to).min(clock::now().wall));
        let total = count_ticks(&ticks, from, to).await?;
        let step = (STEP_BYTES / job.payload.len().max(1)).clamp(1, STEP);
        let filled = Filled { total, ..Filled::default() };
        Ok(Backfill { calls: self.clone(), schedule: record.id, ticks, from, to, step, filled })
    }
}

impl Backfill {
    /// Fills some more. When nothing is left to do, that is none.
    pub async fn go_on(&mut self) -> Result<Option<Filled>, Problem> {
        let ticks = self.ticks.between(self.from, self.to, self.step);
        let Some(last) = ticks.last() else { return Ok(None) };
        self.from = Time(last.0 + 1);
        let (schedule, count) = (self.schedule, ticks.len() as u64);
        let order = ScheduleOrder::Backfill { ticks };
        let weight = 512 * self.step;
        let input = |caller| Input::SetSchedule { caller, schedule, order };
        let subject = format!("{schedule}, {count} ticks");
        let Answer::Count(made) = self.calls.act(subject, weight, input).await? else {
            return Err(Problem::Internal("the brain answered something else".into()));
        };
        self.filled.made += made;
        self.filled.existed += count - made;
        Ok(Some(self.filled))
    }
}

fn within_spec(bad: Invalid) -> Invalid {
    bad.within("spec")
}

/// Whether there will ever be a tick.
fn comes(timing: &Timing, now: Time) -> Result<(), Invalid> {
    match (timing, timing.next_after(now, now)) {
        (_, Some(_)) => Ok(()),
        (Timing::Cron { expression, .. }, None) => {
            Err(Invalid::new("cron", format!("'{expression}' never comes; choose a day that its months have")))
        }
        (Timing::Every(_), None) => Err(Invalid::new("every_ms", "never comes; choose a shorter interval")),
    }
}

/// A tick decides when its job runs, what it is called, and that there is only one.
fn no_tick_of_its_own(job: &v1::JobSpec) -> Result<(), Invalid> {
    let wrong = [
        ("name", !job.name.is_empty(), "jobs of a schedule are named after it and their ticks; leave it out"),
        ("run_at_ms", job.run_at_ms != 0, "the schedule decides when its jobs run; leave it out"),
        ("depends_on", !job.depends_on.is_empty(), "jobs of a schedule depend on no others; leave it out"),
        ("local_name", !job.local_name.is_empty(), "jobs of a schedule come alone; leave it out"),
        ("idempotency_key", !job.idempotency_key.is_empty(), "every tick has a key of its own; leave it out"),
    ];
    match wrong.into_iter().find(|(_, set, _)| *set) {
        Some((field, _, problem)) => Err(Invalid::new(field, problem)),
        None => Ok(()),
    }
}

fn preview(timing: &Timing, created_at: Time, after: i64, count: i32) -> Result<Vec<Time>, Invalid> {
    let count = match usize::try_from(count) {
        Ok(0) => 5,
        Ok(count) if count <= MAX_PREVIEW => count,
        _ => return Err(Invalid::new("count", format!("must be between 1 and {MAX_PREVIEW}"))),
    };
    let after = match after {
        0 => clock::now().wall,
        ms if ms > 0 => Time(ms),
        _ => return Err(Invalid::new("after_ms", "must not be negative")),
    };
    let ticks = timing.ticks(created_at)?;
    Ok(ticks.between(Time(after.0.saturating_add(1)), Time(i64::MAX), count))
}

/// How many ticks a range has. Others get their turn in between.
async fn count_ticks(ticks: &Ticks, mut from: Time, to: Time) -> Result<u64, Invalid> {
    let mut total = 0;
    loop {
        let some = ticks.between(from, to, STEP);
        total += some.len();
        let Some(last) = some.last().filter(|_| some.len() == STEP) else { return Ok(total as u64) };
        if total > MAX_TICKS {
            return Err(Invalid::new(
                "from_ms",
                format!("the range has more than {MAX_TICKS} ticks; choose a shorter one"),
            ));
        }
        from = Time(last.0 + 1);
        tokio::task::yield_now().await;
    }
}
