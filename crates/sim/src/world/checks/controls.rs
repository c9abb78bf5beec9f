//! Queues that are paused, limited or ageing, and keys with their limits.

use super::{Ledger, Needs, Rule, World, broken};
use crate::{plan::QUEUES, store::Store, world::calls::Ask};
use hodei_core::{
    brain::QueueOrder,
    id::{ExecutionId, JobId},
    job::Job,
    queue::{QueueSettings, Rate},
    spec::{Concurrency, Priority},
    state::StateKind,
    time::{Millis, Time},
};
use std::{collections::BTreeMap, sync::Arc};

/// Places in line per millisecond.
const SEQ_PER_MS: u64 = 4096;

/// What people have ordered of queues, and how much of it is used.
#[derive(Default)]
pub(super) struct Controls {
    queues: BTreeMap<Arc<str>, Steered>,
    active: BTreeMap<Arc<str>, u32>,
    keys: BTreeMap<Arc<str>, u32>,
    /// Starts in each queue since its rate was last set.
    starts: BTreeMap<Arc<str>, Vec<Start>>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Steered {
    paused: bool,
    settings: QueueSettings,
}

struct Start {
    at: Time,
    job: JobId,
    execution: ExecutionId,
}

impl Controls {
    /// What was not durable never happened.
    pub fn restart(&mut self, store: &Store) {
        (self.active, self.keys) = Default::default();
        let steered = |(name, record): (&Arc<str>, &hodei_core::queue::QueueRecord)| {
            (Arc::clone(name), Steered { paused: record.paused, settings: record.settings })
        };
        self.queues = store.kept.queues.iter().map(steered).collect();
        for starts in self.starts.values_mut() {
            let durable = |start: &Start| {
                let job = store.latest(start.job);
                job.is_some_and(|job| job.executions.iter().any(|execution| execution.id == start.execution))
            };
            starts.retain(durable);
        }
    }

    fn of(&self, queue: &str) -> Steered {
        self.queues.get(queue).copied().unwrap_or_default()
    }

    pub fn begins(&mut self, job: &Job) {
        *self.active.entry(Arc::clone(&job.queue)).or_default() += 1;
        if let Some(Concurrency { key, .. }) = job.concurrency() {
            *self.keys.entry(Arc::clone(key)).or_default() += 1;
        }
    }

    pub fn ends(&mut self, job: &Job) {
        self.active.entry(Arc::clone(&job.queue)).and_modify(|active| *active -= 1);
        if let Some(Concurrency { key, .. }) = job.concurrency() {
            self.keys.entry(Arc::clone(key)).and_modify(|active| *active -= 1);
        }
    }

    fn active_in(&self, queue: &str) -> u32 {
        self.active.get(queue).copied().unwrap_or(0)
    }

    fn active_with(&self, key: &Concurrency) -> u32 {
        self.keys.get(&key.key).copied().unwrap_or(0)
    }

    fn is_full(&self, queue: &str) -> bool {
        self.of(queue).settings.concurrency.is_some_and(|limit| self.active_in(queue) >= limit)
    }
}

impl Ledger {
    pub fn steer(&mut self, queue: &Arc<str>, order: &QueueOrder) {
        let steered = self.controls.queues.entry(Arc::clone(queue)).or_default();
        match order {
            QueueOrder::Pause => steered.paused = true,
            QueueOrder::Resume => steered.paused = false,
            QueueOrder::Configure(settings) => {
                if steered.settings.rate != settings.rate {
                    self.controls.starts.remove(queue);
                }
                steered.settings = *settings;
            }
        }
    }

    pub fn blocked(&self, pick: usize) -> Option<JobId> {
        self.blocked.iter().nth(pick % self.blocked.len().max(1)).copied()
    }

    /// What somebody must do before everything can come to an end.
    pub fn loose_ends(&self) -> Vec<Ask> {
        let mut asks = Vec::new();
        for queue in QUEUES {
            let Steered { paused, settings } = self.controls.of(queue);
            asks.extend(paused.then_some(Ask::Queue(queue, QueueOrder::Resume)));
            let limited = settings != QueueSettings::default();
            asks.extend(limited.then(|| Ask::Queue(queue, QueueOrder::Configure(QueueSettings::default()))));
        }
        asks.extend(self.blocked.iter().map(|job| Ask::Resume(*job)));
        asks.extend(self.waiting.iter().filter(|job| self.waits_in_vain(**job)).map(|job| Ask::Cancel(*job)));
        asks
    }
}

impl World {
    /// Nothing starts that its queue or its key forbids.
    pub(super) fn check_may_start(&mut self, job: &Job) {
        let Some(now) = self.server.brain.as_ref().map(|brain| brain.time()) else { return };
        let controls = &mut self.ledger.controls;
        let Steered { paused, settings } = controls.of(&job.queue);
        if paused {
            broken(Rule::PausesHold, job.id, format!("it is {} in a paused queue", job.state.kind().name()));
        }
        let active = controls.active_in(&job.queue);
        if let Some(limit) = settings.concurrency.filter(|limit| active > *limit) {
            broken(
                Rule::SlotsAndLimits,
                job.id,
                format!("its queue has {active} jobs with workers, and may have {limit}"),
            );
        }
        if let Some(key) = job.concurrency().filter(|key| controls.active_with(key) > key.limit) {
            let active = controls.active_with(key);
            broken(Rule::SlotsAndLimits, job.id, format!("{active} jobs with the key {key:?} are with workers"));
        }
        let (Some(rate), Some(run)) = (settings.rate, job.state.run()) else { return };
        let starts = controls.starts.entry(Arc::clone(&job.queue)).or_default();
        starts.push(Start { at: now, job: job.id, execution: run.execution });
        let Rate { limit, period } = rate;
        let recent = starts.iter().filter(|start| start.at + period > now).count();
        if recent > limit as usize {
            broken(
                Rule::SlotsAndLimits,
                job.id,
                format!("{recent} jobs of its queue started in {period:?}, may be {limit}"),
            );
        }
    }

    /// What a job counts as, and its place.
    pub(super) fn rank(&self, queue: &str, (priority, seq): (Priority, u64)) -> (u64, u64) {
        let Some(brain) = &self.server.brain else { return (priority as u64, seq) };
        let ageing = self.ledger.controls.of(queue).settings.ageing;
        let since = Time((seq / SEQ_PER_MS) as i64);
        let risen = ageing.map_or(0, |wait| (brain.time() - since).0 / wait.0);
        ((priority as u64).saturating_sub(risen), seq)
    }

    /// Whether a queue is at its rate is for the brain to say, which counts whole spans of time.
    fn is_at_rate(&self, queue: &str) -> bool {
        let view = self.server.brain.as_ref().and_then(|brain| brain.queue(queue));
        let rate = self.ledger.controls.of(queue).settings.rate;
        rate.is_some() && view.is_some_and(|view| view.held_because.starts_with("may start"))
    }

    /// Whether something but a lack of room keeps such jobs from being placed.
    pub(super) fn is_held(&self, needs: &Needs) -> bool {
        let controls = &self.ledger.controls;
        let full = |key: &Concurrency| controls.active_with(key) >= key.limit;
        controls.of(&needs.queue).paused
            || controls.is_full(&needs.queue)
            || needs.key.as_ref().is_some_and(full)
            || self.is_at_rate(&needs.queue)
    }

    /// A job that only the rate of its queue keeps from a worker will be woken in time.
    pub(super) fn check_will_open(&self, job: JobId, needs: &Needs) {
        let Some(brain) = &self.server.brain else { return };
        let controls = &self.ledger.controls;
        let full = |key: &Concurrency| controls.active_with(key) >= key.limit;
        let otherwise =
            controls.of(&needs.queue).paused || controls.is_full(&needs.queue) || needs.key.as_ref().is_some_and(full);
        let Some(rate) = controls.of(&needs.queue).settings.rate.filter(|_| !otherwise) else { return };
        let latest = brain.time() + rate.period + rate.period;
        if brain.next_wake().0.is_none_or(|at| at > latest) {
            let (held, wake) = (brain.queue(&needs.queue).map(|view| view.held_because), brain.next_wake().0);
            let message = format!("it is {:?}, its queue {held:?}, and the next wake is {wake:?}", brain.time());
            broken(Rule::EveryWaitHasAReason, job, message);
        }
    }

    /// Whether words about a hold are true; None if they are about something else.
    pub(super) fn is_true_hold(&self, words: &str, needs: &Needs) -> Option<bool> {
        let controls = &self.ledger.controls;
        let Steered { paused, settings } = controls.of(&needs.queue);
        match words {
            "its queue is paused" => Some(paused),
            words if words.starts_with("its queue may have") => Some(controls.is_full(&needs.queue)),
            words if words.starts_with("its queue may start") => Some(settings.rate.is_some()),
            words if words.contains("concurrency key") => {
                Some(needs.key.as_ref().is_some_and(|key| controls.active_with(key) >= key.limit))
            }
            _ => None,
        }
    }

    /// Nothing that was delayed goes before its time, unless somebody hurried it.
    pub(super) fn check_delay(&self, before: Option<&Job>, job: &Job) {
        let Some(brain) = &self.server.brain else { return };
        let Some(hodei_core::state::State::Delayed { until, .. }) = before.map(|before| &before.state) else { return };
        let went = !matches!(job.state.kind(), StateKind::Delayed | StateKind::Cancelled);
        if went && brain.time() < *until && !self.ledger.ties.was_hurried(job.id) {
            let early: Millis = *until - brain.time();
            broken(Rule::LegalTransitions, job.id, format!("it goes {} ms before its time", early.0));
        }
    }
}
