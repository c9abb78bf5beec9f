//! Schedules: people make them, and what they make is counted tick by tick.

use super::{
    World,
    calls::{Ask, Call},
    checks::{Rule, broken},
};
use crate::{
    plan::{Scheduled, payload_of, spec},
    trace::About,
};
use hodei_core::{
    brain::{Batch, Caller, Input, ScheduleOrder, ScheduledJob},
    id::ScheduleId,
    job::Job,
    schedule::{Overlap, ScheduleRecord, Timing},
    time::Time,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};
use uuid::Uuid;

/// The first try that gets through has the name; those after it are refused.
pub(super) fn put(caller: Caller, key: u64, attempt: u32, scheduled: Scheduled, now: Time) -> Input {
    let id = ScheduleId(Uuid::from_u128((2 << 64) | (u128::from(key) << 32) | u128::from(attempt)));
    let record = Box::new(ScheduleRecord {
        id,
        name: format!("schedule {key}").into(),
        description: String::new(),
        timing: Timing::Every(scheduled.every),
        overlap: scheduled.overlap,
        misfire: scheduled.misfire,
        enabled: true,
        created_at: Time::default(),
        last_tick: None,
        next_tick: None,
        runs: 0,
        skipped: 0,
        last_job: None,
        live: Vec::new(),
        queued: None,
        webhook: None,
    });
    let job = ScheduledJob { spec: Arc::new(spec(0, now)), payload: payload_of(0, now) };
    Input::SetSchedule { caller, schedule: id, order: ScheduleOrder::Put { record, job } }
}

fn tick_of(job: &Job) -> Option<(ScheduleId, Time)> {
    let extra = job.extra.as_ref()?;
    extra.schedule.zip(extra.tick)
}

impl World {
    /// Once it is calm nobody wants more jobs.
    pub(super) fn end_schedules(&mut self) {
        let enabled = self.store.kept.schedules.values().map(|(record, _)| record).filter(|record| record.enabled);
        let ids = enabled.map(|record| record.id).filter(|id| !self.calls.iter().any(|call| call.disables(*id)));
        let ids: Vec<ScheduleId> = ids.collect();
        for (key, id) in (0..).zip(ids) {
            self.call(Call::new(key, Ask::Disable(id)));
        }
    }

    /// Every tick that a schedule is past has its one job, or was skipped as its policies say, or waits.
    pub(super) fn check_schedules(&self, batch: &Batch) {
        let touched: BTreeMap<ScheduleId, &ScheduleRecord> =
            batch.schedules.iter().map(|write| (write.record.id, &write.record)).collect();
        let made = batch.jobs.iter().filter(|write| write.payload.is_some()).filter_map(|write| tick_of(&write.job));
        let mut seen: BTreeMap<ScheduleId, BTreeSet<Time>> = made.map(|(id, _)| (id, BTreeSet::new())).collect();
        seen.extend(touched.keys().map(|id| (*id, BTreeSet::new())));
        if seen.is_empty() {
            return;
        }
        let mut live: BTreeMap<ScheduleId, usize> = BTreeMap::new();
        for job in self.ledger.truth.values() {
            let Some((id, tick)) = tick_of(job) else { continue };
            let Some(ticks) = seen.get_mut(&id) else { continue };
            if !ticks.insert(tick) {
                broken(Rule::OneJobPerTick, job.id, format!("the tick {tick:?} of {id} has another job, too"));
            }
            *live.entry(id).or_default() += usize::from(!job.state.kind().is_finished());
        }
        for (id, record) in touched {
            check_record(record, &seen[&id], live.get(&id).copied().unwrap_or(0));
        }
    }
}

fn check_record(record: &ScheduleRecord, ticks: &BTreeSet<Time>, live: usize) {
    let Timing::Every(step) = record.timing else { return };
    let outside = |message: String| -> ! { broken(Rule::OneJobPerTick, About::default(), message) };
    if let Some(odd) = ticks.iter().find(|tick| !(**tick - record.created_at).0.is_multiple_of(step.0)) {
        outside(format!("{odd:?} is no tick of {}", record.name));
    }
    // One that is disabled may have dropped a tick that waited.
    if let Some(next) = record.next_tick {
        let past = (next - record.created_at).0 / step.0 - 1;
        let accounted = ticks.len() as u64 + record.skipped + u64::from(record.queued.is_some());
        if past != accounted || record.runs != ticks.len() as u64 {
            outside(format!("of {past} ticks {accounted} are accounted for: {} jobs, {record:?}", ticks.len()));
        }
    }
    let alone = matches!(record.overlap, Overlap::Skip | Overlap::QueueOne);
    if (alone && live > 1) || (record.overlap != Overlap::Allow && live != record.live.len()) {
        broken(Rule::OverlapPolicy, About::default(), format!("{live} jobs are not finished: {record:?}"));
    }
}
