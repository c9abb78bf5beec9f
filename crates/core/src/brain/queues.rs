//! Queues: how many jobs each has in which state, and what keeps its jobs from being started: a pause, the limits of the
//! queue, and the limits of concurrency keys.

use super::{
    Answer, Brain, QueueOrder, Refusal,
    ready::{Gate, Head},
};
use crate::{
    defect::{Defect, planted},
    journal::{Change, QueueChange},
    queue::{QueueRecord, QueueSettings, Rate},
    spec::Concurrency,
    state::StateKind,
    time::{Millis, Time},
};
use std::{
    collections::{BTreeSet, HashMap},
    fmt,
    sync::Arc,
};

const STATES: usize = StateKind::ALL.len();
/// Names are chosen by submitters and stay for as long as there are jobs of them.
const MAX_QUEUES: usize = 100_000;

/// By how much the number of jobs of a queue in a state has changed.
type Delta = (Arc<str>, StateKind, i64);

#[derive(Debug, Default)]
pub(super) struct Queues {
    queues: HashMap<Arc<str>, Queue>,
    /// Those with something new to write.
    dirty: Vec<Arc<str>>,
    /// Jobs with workers, by concurrency key.
    keys: HashMap<Arc<str>, u32>,
    /// When queues that are at their rate may start more.
    wakes: BTreeSet<(Time, Arc<str>)>,
}

#[derive(Debug, Default)]
pub(super) struct Queue {
    /// What was set for it, if anything.
    pub record: Option<QueueRecord>,
    counts: [i64; STATES],
    /// What of that is not written yet.
    deltas: [i64; STATES],
    dirty: bool,
    record_dirty: bool,
    /// Jobs with workers.
    active: u32,
    wake: Option<Time>,
}

/// What keeps the jobs of a queue from being started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hold {
    Paused,
    Concurrency(u32),
    Rate(Rate, Time),
}

impl fmt::Display for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Hold::Paused => f.write_str("is paused"),
            Hold::Concurrency(limit) => write!(f, "may have {limit} jobs with workers at one time, and has them"),
            Hold::Rate(Rate { limit, period }, _) => {
                write!(f, "may start {limit} jobs in {} ms, and has started them", period.0)
            }
        }
    }
}

/// A queue as people see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueView {
    pub record: QueueRecord,
    pub counts: Vec<(StateKind, u64)>,
    /// What keeps its jobs from being started just now, in words; empty when nothing does.
    pub held_because: String,
}

impl QueueView {
    /// A queue that has no jobs and no settings.
    pub fn empty(name: &str) -> Self {
        Queues::view(&name.into(), &Queue::default(), Time::default())
    }
}

impl Queue {
    fn hold(&self, now: Time) -> Option<Hold> {
        let record = self.record.as_ref()?;
        let QueueSettings { rate, concurrency, .. } = record.settings;
        if record.paused {
            return Some(Hold::Paused);
        }
        if let Some(limit) = concurrency.filter(|limit| self.active >= *limit) {
            return Some(Hold::Concurrency(limit));
        }
        rate.and_then(|rate| Some(Hold::Rate(rate, record.starts.allow(rate, now).err()?)))
    }

    /// Nothing would be lost with it.
    fn is_nothing(&self) -> bool {
        self.counts == [0; STATES] && self.active == 0 && self.record.as_ref().is_none_or(is_blank)
    }
}

fn is_blank(record: &QueueRecord) -> bool {
    !record.paused && record.settings == QueueSettings::default()
}

impl Queues {
    pub fn load(records: Vec<QueueRecord>, counts: Vec<(Arc<str>, StateKind, u64)>) -> Self {
        let mut queues = Self::default();
        for (name, state, count) in counts {
            queues.queues.entry(name).or_default().counts[state as usize] = i64::try_from(count).unwrap_or(i64::MAX);
        }
        for mut record in records.into_iter().filter(|record| !is_blank(record)) {
            record.paused &= !planted(Defect::PauseForgotten);
            let name = Arc::clone(&record.name);
            queues.queues.entry(name).or_default().record = Some(record);
        }
        queues
    }

    /// How fast the jobs of each queue rise that has them do so.
    pub fn ageing(&self) -> Vec<(Arc<str>, Millis)> {
        let wait = |queue: &Queue| queue.record.as_ref()?.settings.ageing;
        self.queues.iter().filter_map(|(name, queue)| Some((Arc::clone(name), wait(queue)?))).collect()
    }

    /// What keeps the jobs of a queue from being started.
    pub fn hold(&self, name: &str, now: Time) -> Option<Hold> {
        self.queues.get(name)?.hold(now)
    }

    pub fn is_paused(&self, name: &str) -> bool {
        self.queues.get(name).and_then(|queue| queue.record.as_ref()).is_some_and(|record| record.paused)
    }

    /// Whether as many jobs with this key are with workers as may be.
    fn with_key(&self, key: &str) -> u32 {
        self.keys.get(key).copied().unwrap_or(0)
    }

    pub fn is_full(&self, key: &Concurrency) -> bool {
        self.keys.get(&key.key).is_some_and(|active| *active >= key.limit)
    }

    /// A job went to a worker, in this life or an earlier one.
    pub fn occupy(&mut self, name: &Arc<str>, key: Option<&Concurrency>) {
        match self.queues.get_mut(name) {
            Some(queue) => queue.active += 1,
            None => self.touch(name).active += 1,
        }
        if let Some(Concurrency { key, .. }) = key {
            match self.keys.get_mut(key) {
                Some(active) => *active += 1,
                None => _ = self.keys.insert(Arc::clone(key), 1),
            }
        }
    }

    /// A job is not with a worker any more. Returns how many with its key are.
    fn vacate(&mut self, name: &str, key: Option<&Concurrency>) -> u32 {
        if let Some(queue) = self.queues.get_mut(name) {
            queue.active = queue.active.saturating_sub(1);
        }
        let Some((key, active)) = key.and_then(|Concurrency { key, .. }| Some((key, self.keys.get_mut(key)?))) else {
            return 0;
        };
        *active -= 1;
        let left = *active;
        if left == 0 {
            self.keys.remove(key);
        }
        left
    }

    /// A start counts against the rate of its queue, and is written with the batch that holds it.
    fn note_start(&mut self, name: &Arc<str>, now: Time) {
        let rate = self.queues.get(name).and_then(|queue| queue.record.as_ref()?.settings.rate);
        let Some(rate) = rate.filter(|_| !planted(Defect::StartNotCounted)) else { return };
        let queue = self.touch(name);
        queue.record_dirty = true;
        queue.record.iter_mut().for_each(|record| record.starts.note(rate, now));
    }

    /// The queue may start more jobs at this time.
    fn wake_at(&mut self, name: &Arc<str>, at: Time) {
        let Some(queue) = self.queues.get_mut(name).filter(|queue| queue.wake != Some(at)) else { return };
        if let Some(old) = queue.wake.replace(at) {
            self.wakes.remove(&(old, Arc::clone(name)));
        }
        self.wakes.insert((at, Arc::clone(name)));
    }

    fn pop_wake(&mut self, now: Time) -> Option<Arc<str>> {
        self.wakes.first().filter(|(at, _)| *at <= now)?;
        let (_, name) = self.wakes.pop_first()?;
        self.queues.get_mut(&name).into_iter().for_each(|queue| queue.wake = None);
        Some(name)
    }

    pub fn next_wake(&self) -> Option<Time> {
        self.wakes.first().map(|(at, _)| *at)
    }

    pub fn get(&self, name: &str) -> Option<&Queue> {
        self.queues.get(name)
    }

    /// How many jobs of a queue have not ended, and how many may be, if that is limited.
    pub fn room(&self, name: &str) -> Option<(u64, u32)> {
        let queue = self.queues.get(name)?;
        let most = queue.record.as_ref()?.settings.max_jobs?;
        let live = StateKind::ALL.into_iter().filter(|state| !state.is_finished());
        let holds: i64 = live.map(|state| queue.counts[state as usize]).sum();
        Some((u64::try_from(holds).unwrap_or(0), most))
    }

    /// A job of this queue went from one state to another; none is that of a job which is new or forgotten.
    pub fn count(&mut self, name: &Arc<str>, before: Option<StateKind>, after: Option<StateKind>) {
        let queue = self.touch(name);
        for (state, by) in before.map(|state| (state, -1)).into_iter().chain(after.map(|state| (state, 1))) {
            queue.counts[state as usize] += by;
            queue.deltas[state as usize] += by;
        }
    }

    /// What is to be written of a queue changes.
    pub fn touch(&mut self, name: &Arc<str>) -> &mut Queue {
        let queue = self.queues.entry(Arc::clone(name)).or_default();
        if !queue.dirty {
            queue.dirty = true;
            self.dirty.push(Arc::clone(name));
        }
        queue
    }

    /// Hands out what the batch must hold of them.
    pub fn take(&mut self) -> (Vec<QueueRecord>, Vec<Delta>) {
        let (mut records, mut counts) = (Vec::new(), Vec::new());
        for name in self.dirty.drain(..) {
            let Some(queue) = self.queues.get_mut(&name) else { continue };
            queue.dirty = false;
            if std::mem::take(&mut queue.record_dirty) {
                records.extend(queue.record.clone());
            }
            let deltas = std::mem::take(&mut queue.deltas);
            let changed = StateKind::ALL.into_iter().filter(|state| deltas[*state as usize] != 0);
            counts.extend(changed.map(|state| (Arc::clone(&name), state, deltas[state as usize])));
            if queue.is_nothing() {
                let wake = queue.wake.take();
                self.queues.remove(&name);
                wake.into_iter().for_each(|at| _ = self.wakes.remove(&(at, Arc::clone(&name))));
            }
        }
        (records, counts)
    }

    fn view(name: &Arc<str>, queue: &Queue, now: Time) -> QueueView {
        let count = |state: StateKind| (state, u64::try_from(queue.counts[state as usize]).unwrap_or(0));
        QueueView {
            record: queue.record.clone().unwrap_or_else(|| blank(name)),
            counts: StateKind::ALL.map(count).to_vec(),
            held_because: queue.hold(now).map(|hold| hold.to_string()).unwrap_or_default(),
        }
    }
}

fn blank(name: &Arc<str>) -> QueueRecord {
    let (settings, starts) = Default::default();
    QueueRecord { name: Arc::clone(name), paused: false, settings, starts }
}

impl Brain {
    /// The queues after this name, in the order of their names.
    pub fn queues(&self, after: Option<&str>, limit: usize) -> Vec<QueueView> {
        let mut names: Vec<&Arc<str>> = self.queues.queues.keys().filter(|name| after < Some(&***name)).collect();
        names.sort_unstable();
        names.truncate(limit);
        names.into_iter().filter_map(|name| Some(Queues::view(name, self.queues.get(name)?, self.now))).collect()
    }

    pub fn queue(&self, name: &str) -> Option<QueueView> {
        self.queues.queues.get_key_value(name).map(|(name, queue)| Queues::view(name, queue, self.now))
    }

    pub(super) fn set_queue(&mut self, name: &Arc<str>, order: QueueOrder) -> Result<Answer, Refusal> {
        self.check_queues([&**name].into_iter())?;
        let (now, queue) = (self.now, self.queues.touch(name));
        queue.record_dirty = true;
        let record = queue.record.get_or_insert_with(|| blank(name));
        let what = match order {
            QueueOrder::Pause => {
                record.paused = true;
                QueueChange::Paused
            }
            QueueOrder::Resume => {
                record.paused = false;
                QueueChange::Resumed
            }
            QueueOrder::Configure(settings) => {
                record.settings = settings;
                QueueChange::Configured
            }
        };
        let record = record.clone();
        self.ready.set_ageing(name, record.settings.ageing);
        if !planted(Defect::ResumeForgotten) {
            self.ready.release(&Gate::Queue(Arc::clone(name)));
        }
        self.moves.changes.push(Change::Queue { name: Arc::clone(name), what, at: now });
        Ok(Answer::Queue(Box::new(record)))
    }

    /// A job of this queue and with this key went to a worker.
    pub(super) fn occupied(&mut self, queue: &Arc<str>, key: Option<&Concurrency>) {
        self.queues.occupy(queue, key);
        self.queues.note_start(queue, self.now);
    }

    /// A job of this queue and with this key is not with its worker any more: another may be.
    pub(super) fn vacated(&mut self, queue: &Arc<str>, key: Option<&Concurrency>) {
        let left = self.queues.vacate(queue, key);
        if self.ready.holds_any() {
            self.ready.release(&Gate::Queue(Arc::clone(queue)));
            // Of the limits that the key is used with, this one is not reached any more.
            let gate = key.map(|key| Gate::Key(Concurrency { limit: left + 1, ..key.clone() }));
            gate.into_iter().for_each(|gate| self.ready.release(&gate));
        }
    }

    /// Queues whose rate allows a start again.
    pub(super) fn open_rates(&mut self) {
        while let Some(queue) = self.queues.pop_wake(self.now) {
            self.ready.release(&Gate::Queue(queue));
        }
    }

    /// Takes a class out of the running if its key or its queue lets nothing start now.
    pub(super) fn held_back(&mut self, head: &Head) -> bool {
        let job = head.job.and_then(|id| self.jobs.get(&id)).map(|entry| &entry.job);
        let known = job.map(|job| (&job.queue, job.concurrency())).or_else(|| self.ready.owner(head.class));
        let Some((queue, key)) = known else { return false };
        let by_queue = self.queues.hold(queue, self.now);
        let by_key = key.filter(|key| self.queues.is_full(key));
        let (gate, open) = match (by_key, by_queue) {
            (None, None) => return false,
            (Some(key), None) => (Gate::Key(key.clone()), Some(Gate::Queue(Arc::clone(queue)))),
            (Some(key), Some(_)) => (Gate::Key(key.clone()), None),
            (None, Some(_)) => (Gate::Queue(Arc::clone(queue)), key.cloned().map(Gate::Key)),
        };
        // Also when its key holds it: others that wait behind the queue were let go through it, one by one.
        if let Some(Hold::Rate(_, until)) = by_queue {
            let queue = Arc::clone(queue);
            self.queues.wake_at(&queue, until);
        }
        self.ready.hold(head.class, gate);
        open.into_iter().for_each(|gate| self.ready.release(&gate));
        true
    }

    /// What keeps a pending job from being started although workers may be free, in words.
    pub(super) fn why_held(&self, queue: &str, key: Option<&Concurrency>) -> Option<String> {
        let by_queue = self.queues.hold(queue, self.now).map(|hold| format!("its queue {hold}"));
        let full = || key.filter(|key| self.queues.is_full(key));
        let by_key = |Concurrency { key, limit }: &Concurrency| {
            format!("{limit} jobs with the concurrency key '{key}' may be with workers at one time, and are")
        };
        by_queue.or_else(|| full().map(by_key))
    }

    /// How many more jobs of a queue and key may be with workers at one time.
    pub(super) fn allowance(&self, queue: &str, key: Option<&Concurrency>) -> u32 {
        let of_queue = self.queues.get(queue).and_then(|queue| {
            let limit = queue.record.as_ref()?.settings.concurrency?;
            Some(limit.saturating_sub(queue.active))
        });
        let of_key = key.map(|Concurrency { key, limit }| limit.saturating_sub(self.queues.with_key(key)));
        of_queue.into_iter().chain(of_key).min().unwrap_or(u32::MAX)
    }

    /// Whether jobs of these queues can be taken.
    pub(super) fn check_queues<'a>(&self, names: impl Iterator<Item = &'a str>) -> Result<(), Refusal> {
        let full = self.queues.queues.len() >= MAX_QUEUES;
        match full && names.into_iter().any(|name| !self.queues.queues.contains_key(name)) {
            true => Err(Refusal::TooManyQueues(MAX_QUEUES)),
            false => Ok(()),
        }
    }
}
