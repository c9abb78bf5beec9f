//! Queues: how many jobs each has in which state.

use super::{Answer, Brain, QueueOrder, Refusal};
use crate::{
    journal::{Change, QueueChange},
    queue::QueueRecord,
    state::StateKind,
};
use std::{collections::HashMap, sync::Arc};

const STATES: usize = StateKind::ALL.len();
/// Names are chosen by submitters and stay for as long as there are jobs of them.
const MAX_QUEUES: usize = 100_000;

#[derive(Debug, Default)]
pub(super) struct Queues {
    queues: HashMap<Arc<str>, Queue>,
    /// Those with something new to write.
    dirty: Vec<Arc<str>>,
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
}

/// A queue as people see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueView {
    pub record: QueueRecord,
    pub counts: Vec<(StateKind, u64)>,
    /// Why nothing of it starts, in words, when that is not for want of workers.
    pub held_because: String,
}

impl QueueView {
    /// A queue that has no jobs and no settings.
    pub fn empty(name: &str) -> Self {
        Queues::view(&name.into(), &Queue::default())
    }
}

impl Queues {
    pub fn load(records: Vec<QueueRecord>, counts: Vec<(Arc<str>, StateKind, u64)>) -> Self {
        let mut queues = Self::default();
        for (name, state, count) in counts {
            queues.queues.entry(name).or_default().counts[state as usize] = i64::try_from(count).unwrap_or(i64::MAX);
        }
        for record in records {
            let name = Arc::clone(&record.name);
            queues.queues.entry(name).or_default().record = Some(record);
        }
        queues
    }

    pub fn get(&self, name: &str) -> Option<&Queue> {
        self.queues.get(name)
    }

    /// One job more or less is in this state.
    pub fn count(&mut self, name: &Arc<str>, state: StateKind, by: i64) {
        let queue = self.touch(name);
        queue.counts[state as usize] += by;
        queue.deltas[state as usize] += by;
    }

    /// What is to be written of a queue changes.
    pub fn touch(&mut self, name: &Arc<str>) -> &mut Queue {
        if !self.queues.contains_key(name) {
            self.queues.insert(Arc::clone(name), Queue::default());
        }
        let queue = self.queues.get_mut(name).unwrap_or_else(|| unreachable!("it was put there"));
        if !queue.dirty {
            queue.dirty = true;
            self.dirty.push(Arc::clone(name));
        }
        queue
    }

    /// Hands out what the batch must hold of them.
    pub fn take(&mut self) -> (Vec<QueueRecord>, Vec<(Arc<str>, StateKind, i64)>) {
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
            if queue.record.is_none() && queue.counts == [0; STATES] {
                self.queues.remove(&name);
            }
        }
        (records, counts)
    }

    fn view(name: &Arc<str>, queue: &Queue) -> QueueView {
        let count = |state: StateKind| (state, u64::try_from(queue.counts[state as usize]).unwrap_or(0));
        let record = queue.record.clone().unwrap_or_else(|| blank(name));
        QueueView { record, counts: StateKind::ALL.map(count).to_vec(), held_because: String::new() }
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
        names.into_iter().filter_map(|name| Some(Queues::view(name, self.queues.get(name)?))).collect()
    }

    pub fn queue(&self, name: &str) -> Option<QueueView> {
        self.queues.queues.get_key_value(name).map(|(name, queue)| Queues::view(name, queue))
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
        self.moves.changes.push(Change::Queue { name: Arc::clone(name), what, at: now });
        Ok(Answer::Queue(Box::new(record)))
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
