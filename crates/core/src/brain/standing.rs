//! What people are told of the states of workers: every step, in an order that the states allow.

use super::{Brain, Fleet};
use crate::{id::WorkerId, journal::Change, worker::WorkerState};
use std::collections::{BTreeMap, HashMap, VecDeque};

#[derive(Debug, Default)]
pub(super) struct Standing {
    told: BTreeMap<WorkerId, WorkerState>,
    /// Those that may be in another state than was told, and why.
    watched: BTreeMap<WorkerId, String>,
}

impl Standing {
    /// What was told of these was told by an earlier leader.
    pub fn of(fleet: &Fleet) -> Self {
        let there = fleet.iter().filter(|worker| !worker.has_left());
        let told = there.map(|worker| (worker.record.id, worker.standing())).collect();
        Self { told, watched: BTreeMap::new() }
    }
}

impl Brain {
    /// The state of this worker may have changed; the end of the turn will tell.
    pub(super) fn watch_worker(&mut self, id: WorkerId, why: &str) {
        let noted = self.standing.watched.entry(id).or_default();
        if !why.is_empty() {
            why.clone_into(noted);
        }
    }

    pub(super) fn watched_workers(&self) -> Vec<WorkerId> {
        self.standing.watched.keys().copied().collect()
    }

    /// Tells it now: the worker may be gone before the turn ends, which looks at it again.
    pub(super) fn tell_standing_of(&mut self, id: WorkerId, why: &str) {
        if let Some(standing) = self.fleet.get(id).map(|worker| worker.standing()) {
            self.tell_state(id, standing, why);
            self.watch_worker(id, "");
        }
    }

    pub(super) fn tell_standing(&mut self) {
        for (id, why) in std::mem::take(&mut self.standing.watched) {
            let state = self.fleet.get(id).map_or(WorkerState::Terminated, |worker| worker.standing());
            if state != WorkerState::Terminated || self.standing.told.contains_key(&id) {
                self.tell_state(id, state, &why);
            }
        }
    }

    /// Another agent process is another life.
    pub(super) fn reborn(&mut self, id: WorkerId) {
        if self.standing.told.contains_key(&id) {
            self.standing.told.insert(id, WorkerState::Connecting);
        }
    }

    /// Tells of this state, and of those that lie on the way to it.
    pub(super) fn tell_state(&mut self, id: WorkerId, state: WorkerState, why: &str) {
        let steps = match self.standing.told.get(&id) {
            Some(told) => way(*told, state),
            None => vec![state],
        };
        let last = steps.len().saturating_sub(1);
        for (i, state) in steps.into_iter().enumerate() {
            let why = if i == last { why.to_owned() } else { String::new() };
            self.moves.changes.push(Change::Worker { id, state, at: self.now, why });
        }
        match state {
            WorkerState::Terminated => _ = self.standing.told.remove(&id),
            state => _ = self.standing.told.insert(id, state),
        }
    }
}

/// The shortest way from one state to another, without the first.
fn way(from: WorkerState, to: WorkerState) -> Vec<WorkerState> {
    let mut before: HashMap<WorkerState, WorkerState> = HashMap::new();
    let mut open = VecDeque::from([from]);
    while let Some(state) = open.pop_front() {
        for next in state.next().iter().filter(|next| **next != from) {
            before.entry(*next).or_insert_with(|| {
                open.push_back(*next);
                state
            });
        }
    }
    if !before.contains_key(&to) {
        return Vec::new();
    }
    let step_back = |state: &WorkerState| before.get(state).copied().filter(|before| *before != from);
    let mut way: Vec<WorkerState> = std::iter::successors(Some(to), step_back).collect();
    way.reverse();
    way
}

#[cfg(test)]
mod tests {
    use super::*;
    use WorkerState::*;

    #[test]
    fn ways_keep_to_the_states_that_may_follow() {
        assert_eq!(way(Ready, Ready), []);
        assert_eq!(way(Connecting, Busy), [Ready, Busy]);
        assert_eq!(way(Busy, Terminating), [Ready, Terminating]);
        assert_eq!(way(Draining, Terminated), [Terminating, Terminated]);
        assert_eq!(way(Creating, Terminated), [Terminated]);
        for from in WorkerState::ALL {
            for to in WorkerState::ALL {
                let steps: Vec<WorkerState> = [from].into_iter().chain(way(from, to)).collect();
                assert!(
                    steps.windows(2).all(|pair| pair[0].next().contains(&pair[1])),
                    "{from:?} to {to:?}: {steps:?}"
                );
            }
        }
    }
}
