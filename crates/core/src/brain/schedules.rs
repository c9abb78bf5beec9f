//! Schedules: jobs by the clock.
//!
//! All schedules are in memory, ordered by their next ticks, so those that are not due cost nothing. The job of a tick, its
//! key and the schedule that is past this tick are rows of one batch: a crash makes neither two jobs of a tick nor none.

use super::{Answer, Brain, NewJob, Refusal, ScheduleOrder, ScheduleWrite, ScheduledJob};
use crate::{
    cron::Ticks,
    defect::{Defect, planted},
    id::{IdMap, JobId, ScheduleId},
    job::Job,
    journal::{Change, ScheduleChange},
    schedule::{Misfire, Overlap, ScheduleRecord},
    state::StateKind,
    time::{Millis, Time},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Bound,
    sync::Arc,
};

/// All of them stay in memory.
const MAX_SCHEDULES: usize = 100_000;
/// A tick that is later than this was missed.
const GRACE: Millis = Millis::seconds(60);
/// Missed ticks are counted one by one up to here; a week without a server has more seconds than anybody wants counted.
const COUNTED: usize = 10_000;
/// One turn fires this many schedules, or looks at this many ticks of them; the next one goes on.
const FIRED_PER_TURN: usize = 1000;
const TICKS_PER_TURN: usize = 20_000;
/// Unfinished jobs of one schedule that are remembered. Only triggers by hand could make more.
const MAX_LIVE: usize = 1000;

#[derive(Debug, Default)]
pub(super) struct Schedules {
    all: IdMap<ScheduleId, Schedule>,
    by_name: BTreeMap<Arc<str>, ScheduleId>,
    /// By their next ticks.
    due: BTreeSet<(Time, ScheduleId)>,
    /// Those with something new to write.
    dirty: BTreeSet<ScheduleId>,
    dropped: Vec<ScheduleId>,
    /// Those whose jobs have all ended while a tick waits for that.
    freed: BTreeSet<ScheduleId>,
}

#[derive(Debug)]
struct Schedule {
    record: ScheduleRecord,
    job: ScheduledJob,
    /// The job is not written yet.
    new_job: bool,
}

/// A schedule as people see it.
#[derive(Clone, Debug)]
pub struct ScheduleView {
    pub record: ScheduleRecord,
    pub job: ScheduledJob,
}

impl Schedules {
    pub fn load(loaded: Vec<(ScheduleRecord, ScheduledJob)>) -> Self {
        let mut schedules = Self::default();
        for (record, job) in loaded {
            schedules.by_name.insert(Arc::clone(&record.name), record.id);
            schedules.due.extend(record.next_tick.map(|at| (at, record.id)));
            schedules.freed.extend(record.waits_for_nothing().then_some(record.id));
            schedules.all.insert(record.id, Schedule { record, job, new_job: false });
        }
        schedules
    }

    /// When the next tick is.
    pub fn next(&self) -> Option<Time> {
        self.due.first().map(|(at, _)| *at)
    }

    pub fn any_runs(&self) -> bool {
        !self.due.is_empty()
    }

    /// Whether a job must stay in memory, so that a tick can replace it.
    pub fn needs(&self, job: &Job) -> bool {
        let Some(schedule) = job.extra.as_ref().and_then(|extra| extra.schedule) else { return false };
        let replaced = |schedule: &&Schedule| schedule.record.overlap == Overlap::Replace;
        self.all.get(&schedule).filter(replaced).is_some_and(|schedule| schedule.record.live.contains(&job.id))
    }

    /// Hands out what the batch must hold of them.
    pub fn take(&mut self) -> (Vec<ScheduleWrite>, Vec<ScheduleId>) {
        let mut writes = Vec::new();
        for id in std::mem::take(&mut self.dirty) {
            let Some(schedule) = self.all.get_mut(&id) else { continue };
            let job = std::mem::take(&mut schedule.new_job).then(|| schedule.job.clone());
            let (payload, spec) = job.map(|job| (job.payload, job.spec)).unzip();
            writes.push(ScheduleWrite { record: schedule.record.clone(), payload, spec });
        }
        (writes, std::mem::take(&mut self.dropped))
    }

    /// Changes a schedule, and keeps the clock in step with it.
    fn change<T>(&mut self, id: ScheduleId, change: impl FnOnce(&mut ScheduleRecord) -> T) -> Option<T> {
        let record = &mut self.all.get_mut(&id)?.record;
        let before = record.next_tick;
        let changed = change(record);
        if record.next_tick != before {
            before.map(|at| self.due.remove(&(at, id)));
            self.due.extend(record.next_tick.map(|at| (at, id)));
        }
        self.dirty.insert(id);
        Some(changed)
    }

    fn view(schedule: &Schedule) -> ScheduleView {
        ScheduleView { record: schedule.record.clone(), job: schedule.job.clone() }
    }

    /// Its jobs that are not in memory by themselves, if a schedule like `record` must be able to cancel them.
    pub fn to_replace(&self, record: &ScheduleRecord) -> &[JobId] {
        match self.all.get(&record.id) {
            Some(old) if record.overlap == Overlap::Replace => &old.record.live,
            _ => &[],
        }
    }
}

/// The key that keeps a tick from getting two jobs.
pub(super) fn tick_key(schedule: ScheduleId, tick: Time) -> Arc<str> {
    format!("{}{schedule}/{}", crate::schedule::KEY_PREFIX, tick.0).into()
}

/// The name that the schedule of this job had when it made it: the job's own is that and the tick.
pub(super) fn schedule_name(job: &Job) -> Arc<str> {
    job.name.rsplitn(3, '_').last().unwrap_or_default().into()
}

/// Ticks that are due, sorted by whether they are still on time.
struct DueTicks {
    /// Of those that were missed, the ones that are to be made up for.
    late: Vec<Time>,
    /// How many were missed besides.
    missed: u64,
    on_time: Vec<Time>,
    next: Option<Time>,
}

impl DueTicks {
    /// `first` is due.
    fn of(ticks: &Ticks, first: Time, now: Time, misfire: Misfire) -> Self {
        let deadline = Time(now.0.saturating_sub_unsigned(GRACE.0));
        let from_here = |first| std::iter::successors(first, |tick| ticks.next_after(*tick));
        let missed = from_here(Some(first)).take(COUNTED).take_while(|tick| *tick < deadline).count();
        let wanted = match misfire {
            Misfire::Skip => 0,
            Misfire::FireOnce => 1,
            Misfire::CatchUp(most) => most as usize,
        };
        let late: Vec<Time> = match missed {
            0 => Vec::new(),
            missed => {
                let latest = ticks.latest(Time(deadline.0 - 1), wanted.min(missed));
                latest.into_iter().filter(|tick| *tick >= first).collect()
            }
        };
        let first_on_time = if first >= deadline { Some(first) } else { ticks.next_after(Time(deadline.0 - 1)) };
        let most = if planted(Defect::NextTickFromNow) { 1 } else { usize::MAX };
        let on_time: Vec<Time> = from_here(first_on_time).take_while(|tick| *tick <= now).take(most).collect();
        let next = ticks.next_after(now);
        Self { missed: missed.saturating_sub(late.len()) as u64, late, on_time, next }
    }

    fn len(&self) -> usize {
        self.late.len() + self.on_time.len() + usize::try_from(self.missed).unwrap_or(usize::MAX)
    }
}

impl Brain {
    /// The schedules after this name, in the order of their names.
    pub fn schedules(&self, after: Option<&str>, limit: usize) -> Vec<ScheduleView> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let names = self.schedules.by_name.range::<str, _>((from, Bound::Unbounded));
        names.take(limit).filter_map(|(_, id)| self.schedules.all.get(id)).map(Schedules::view).collect()
    }

    /// By its id or by its name.
    pub fn schedule(&self, named: &str) -> Option<ScheduleView> {
        let id = named.parse().ok().or_else(|| self.schedules.by_name.get(named).copied())?;
        self.schedules.all.get(&id).map(Schedules::view)
    }

    pub(super) fn set_schedule(&mut self, id: ScheduleId, order: ScheduleOrder) -> Result<Answer, Refusal> {
        // A tick that is due came before this order.
        let next = self.schedules.all.get(&id).and_then(|schedule| schedule.record.next_tick);
        if let Some(at) = next.filter(|at| *at <= self.now) {
            self.fire_schedule(id, at);
        }
        match order {
            ScheduleOrder::Put { record, job } => return self.put_schedule(*record, job),
            _ if !self.schedules.all.contains_key(&id) => return Err(Refusal::NoSuchSchedule),
            ScheduleOrder::Enable => self.enable(id),
            ScheduleOrder::Disable => self.disable(id),
            ScheduleOrder::Delete => {
                self.delete_schedule(id);
                return Ok(Answer::Done);
            }
            ScheduleOrder::Trigger => return self.trigger(id),
            ScheduleOrder::Backfill { ticks } => return self.backfill(id, &ticks),
        }
        self.schedule_of(id)
    }

    fn schedule_of(&self, id: ScheduleId) -> Result<Answer, Refusal> {
        let schedule = self.schedules.all.get(&id).ok_or(Refusal::NoSuchSchedule)?;
        Ok(Answer::Schedule(Box::new(schedule.record.clone())))
    }

    fn note_schedule(&mut self, id: ScheduleId, what: ScheduleChange) {
        self.moves.changes.push(Change::Schedule { id, what, at: self.now });
    }

    /// A new schedule, or a new spec for one whose making is known.
    fn put_schedule(&mut self, mut record: ScheduleRecord, job: ScheduledJob) -> Result<Answer, Refusal> {
        let id = record.id;
        if self.schedules.by_name.get(&record.name).is_some_and(|other| *other != id) {
            return Err(Refusal::ScheduleExists(record.name));
        }
        let what = match self.schedules.all.get(&id) {
            Some(Schedule { record: old, .. }) => {
                record.inherit(old);
                ScheduleChange::Updated
            }
            None if record.created_at != Time::default() => return Err(Refusal::NoSuchSchedule),
            None if self.schedules.all.len() >= MAX_SCHEDULES => {
                return Err(Refusal::TooManySchedules(MAX_SCHEDULES));
            }
            None => {
                record.created_at = self.now;
                ScheduleChange::Created
            }
        };
        record.next_tick = self.next_tick(&record);
        self.remove_schedule(id);
        self.schedules.by_name.insert(Arc::clone(&record.name), id);
        self.schedules.due.extend(record.next_tick.map(|at| (at, id)));
        self.schedules.freed.extend(record.waits_for_nothing().then_some(id));
        self.schedules.all.insert(id, Schedule { record, job, new_job: true });
        self.schedules.dirty.insert(id);
        self.note_schedule(id, what);
        self.schedule_of(id)
    }

    fn next_tick(&self, record: &ScheduleRecord) -> Option<Time> {
        record.enabled.then(|| record.timing.next_after(record.created_at, self.now)).flatten()
    }

    /// Out of memory. Jobs that were there only to be replaced by its ticks may leave.
    fn remove_schedule(&mut self, id: ScheduleId) {
        let Some(Schedule { record, .. }) = self.schedules.all.remove(&id) else { return };
        self.schedules.by_name.remove(&record.name);
        record.next_tick.map(|at| self.schedules.due.remove(&(at, id)));
        self.schedules.dirty.remove(&id);
        self.schedules.freed.remove(&id);
        self.leaving.extend(record.live);
    }

    fn delete_schedule(&mut self, id: ScheduleId) {
        self.remove_schedule(id);
        self.schedules.dropped.push(id);
        self.note_schedule(id, ScheduleChange::Deleted);
    }

    fn enable(&mut self, id: ScheduleId) {
        let Some(record) = self.schedules.all.get(&id).map(|schedule| &schedule.record) else { return };
        if record.enabled {
            return;
        }
        let next = record.timing.next_after(record.created_at, self.now);
        self.schedules.change(id, |record| (record.enabled, record.next_tick) = (true, next));
        self.note_schedule(id, ScheduleChange::Enabled);
    }

    fn disable(&mut self, id: ScheduleId) {
        if self.schedules.all.get(&id).is_none_or(|schedule| !schedule.record.enabled) {
            return;
        }
        self.schedules.change(id, |record| {
            record.enabled = false;
            (record.next_tick, record.queued) = (None, None);
        });
        self.note_schedule(id, ScheduleChange::Disabled);
    }

    /// Makes a job now, whatever the schedule says. No tick of the schedule's own is at this time, so there is no key.
    fn trigger(&mut self, id: ScheduleId) -> Result<Answer, Refusal> {
        let job = self.job_of(id, self.now, true)?;
        let made = job.id;
        self.make(id, self.now, job);
        Ok(Answer::Job(made))
    }

    /// Makes the jobs of these ticks that have none. They are of the past: what may overlap now is no concern of theirs.
    fn backfill(&mut self, id: ScheduleId, ticks: &[Time]) -> Result<Answer, Refusal> {
        let mut made = 0;
        for tick in ticks {
            // Those that are still to come the schedule makes itself.
            if *tick > self.now || self.keys.contains_key(&tick_key(id, *tick)) {
                continue;
            }
            let job = self.job_of(id, *tick, false)?;
            self.check_new(std::slice::from_ref(&job))?;
            self.create(job, None, Some((id, *tick)));
            made += 1;
        }
        Ok(Answer::Count(made))
    }

    /// Fires the schedules that are due.
    pub(super) fn fire_schedules(&mut self) {
        for id in std::mem::take(&mut self.schedules.freed) {
            self.fire_queued(id);
        }
        let (mut fired, mut looked) = (0, 0);
        while let Some((at, id)) = self.schedules.due.first().copied()
            && at <= self.now
            && fired < FIRED_PER_TURN
            && looked < TICKS_PER_TURN
        {
            looked += self.fire_schedule(id, at);
            fired += 1;
        }
    }

    /// Handles all ticks of a schedule from `first` until now, and says how many they were.
    fn fire_schedule(&mut self, id: ScheduleId, first: Time) -> usize {
        let Some(Schedule { record, .. }) = self.schedules.all.get(&id) else { return 0 };
        let Ok(ticks) = record.timing.ticks(record.created_at) else {
            self.schedules.change(id, |record| record.next_tick = None);
            return 0;
        };
        let due = DueTicks::of(&ticks, first, self.now, record.misfire);
        self.schedules.change(id, |record| {
            record.next_tick = due.next;
            record.skipped += due.missed;
        });
        if due.missed > 0 {
            self.note_schedule(id, ScheduleChange::Skipped);
        }
        for tick in due.late.iter().chain(&due.on_time) {
            self.tick(id, *tick);
        }
        if planted(Defect::ScheduleNotWritten) {
            self.schedules.dirty.remove(&id);
        }
        due.len()
    }

    /// One tick, with regard to the jobs of earlier ones.
    fn tick(&mut self, id: ScheduleId, tick: Time) {
        let Some(Schedule { record, .. }) = self.schedules.all.get(&id) else { return };
        match record.overlap {
            _ if record.live.is_empty() => self.fire_tick(id, tick),
            Overlap::Allow => self.fire_tick(id, tick),
            Overlap::Skip => self.skip_tick(id),
            Overlap::Replace => {
                let reason = format!("replaced by the next run of schedule {}", record.name);
                for job in record.live.clone() {
                    // One that has been asked to stop already is left to it.
                    _ = self.cancel(job, reason.clone());
                }
                self.fire_tick(id, tick);
            }
            Overlap::QueueOne => {
                let gives_way = self.schedules.change(id, |record| record.queued.replace(tick).is_some());
                if gives_way == Some(true) {
                    self.skip_tick(id);
                }
            }
        }
    }

    /// All jobs of a schedule have ended: the tick that waited for that has its turn.
    fn fire_queued(&mut self, id: ScheduleId) {
        if !self.schedules.all.get(&id).is_some_and(|schedule| schedule.record.waits_for_nothing()) {
            return;
        }
        if let Some(Some(tick)) = self.schedules.change(id, |record| record.queued.take()) {
            self.fire_tick(id, tick);
        }
    }

    fn skip_tick(&mut self, id: ScheduleId) {
        self.schedules.change(id, |record| record.skipped += 1);
        self.note_schedule(id, ScheduleChange::Skipped);
    }

    /// A tick whose job the server has no room for is skipped.
    fn fire_tick(&mut self, id: ScheduleId, tick: Time) {
        match self.job_of(id, tick, false) {
            Ok(job) if self.check_new(std::slice::from_ref(&job)).is_ok() => self.make(id, tick, job),
            _ => self.skip_tick(id),
        }
    }

    /// The job of a tick; one that was asked for by hand has no key and tells its second.
    fn job_of(&mut self, id: ScheduleId, tick: Time, by_hand: bool) -> Result<NewJob, Refusal> {
        let job = JobId(self.make_id());
        let Schedule { record, job: ScheduledJob { spec, payload }, .. } =
            self.schedules.all.get(&id).ok_or(Refusal::NoSuchSchedule)?;
        let mut spec = crate::spec::JobSpec::clone(spec);
        spec.name = format!("{}_{}", record.name, record.timing.label(tick, by_hand));
        spec.idempotency_key = (!by_hand).then(|| tick_key(id, tick).to_string());
        spec.webhook = record.webhook.clone();
        Ok(NewJob { id: job, spec, payload: Arc::clone(payload) })
    }

    fn make(&mut self, id: ScheduleId, tick: Time, job: NewJob) {
        let made = job.id;
        self.create(job, None, Some((id, tick)));
        self.schedules.change(id, |record| {
            record.runs += 1;
            (record.last_tick, record.last_job) = (Some(tick), Some(made));
            if record.overlap != Overlap::Allow && record.live.len() < MAX_LIVE {
                record.live.push(made);
            }
        });
        self.note_schedule(id, ScheduleChange::Fired);
    }

    /// A job of a schedule is in another state than before.
    pub(super) fn schedule_moved(&mut self, job: JobId, id: ScheduleId, before: StateKind, state: StateKind) {
        let Some(Schedule { record, .. }) = self.schedules.all.get(&id) else { return };
        if state.is_finished() && record.live.contains(&job) {
            let queued = self.schedules.change(id, |record| {
                record.live.retain(|live| *live != job);
                record.waits_for_nothing()
            });
            if queued == Some(true) {
                self.schedules.freed.insert(id);
            }
        } else if before.is_finished() && record.overlap != Overlap::Allow && record.last_job == Some(job) {
            // Somebody sent the last one into line again.
            self.schedules.change(id, |record| record.live.push(job));
        }
    }
}

impl ScheduleRecord {
    /// A tick waits for the end of jobs, and all have ended.
    fn waits_for_nothing(&self) -> bool {
        self.queued.is_some() && self.live.is_empty()
    }

    /// Takes over what the schedule has done so far.
    fn inherit(&mut self, old: &ScheduleRecord) {
        (self.created_at, self.runs, self.skipped) = (old.created_at, old.runs, old.skipped);
        (self.last_tick, self.last_job) = (old.last_tick, old.last_job);
        if self.overlap != Overlap::Allow {
            self.live.clone_from(&old.live);
        }
        if self.overlap == Overlap::QueueOne && self.enabled {
            self.queued = old.queued;
        }
    }
}

#[cfg(feature = "inspect")]
impl Brain {
    /// How many schedules are on the clock.
    pub fn schedules_on_the_clock(&self) -> usize {
        self.schedules.due.len()
    }
}
