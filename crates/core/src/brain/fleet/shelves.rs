//! Workers by what they are. What a job asks of the nature of a worker is decided once for a shelf and not for every
//! worker on it, and remembered for all jobs that ask the same: so a decision looks at few workers, however many there are.

use crate::{
    defect::{Defect, planted},
    id::WorkerId,
    placement::{Needs, Traits, Wishes, score::Rank},
    requirements::{Constraints, Requirements},
    worker::Capacity,
};
use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, HashMap, btree_set},
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
};

/// So many kinds of jobs are remembered; when there are more, all are forgotten.
const KINDS: usize = 10_000;
/// Workers are told apart by so many labels that jobs ask for; when there are more, by all.
const ASKED_LABELS: usize = 1000;

#[derive(Debug, Default)]
pub(super) struct Shelves {
    /// None where one was cleared away.
    all: Vec<Option<Shelf>>,
    by_traits: BTreeMap<Arc<Traits>, usize>,
    /// Workers that can take a job now, on all shelves.
    open: usize,
    /// Which shelves are for which kind of job.
    kinds: HashMap<u64, Kind>,
    /// Labels that some job has asked for. Others make no difference: many workers have one that no other has.
    asked: BTreeSet<Arc<str>>,
    ask_all: bool,
}

/// Workers with the same traits.
#[derive(Debug)]
pub(super) struct Shelf {
    traits: Arc<Traits>,
    members: BTreeSet<WorkerId>,
    open: BTreeSet<(Rank, WorkerId)>,
    /// Nothing of this size fits on any of them as they are.
    too_big: Option<Capacity>,
}

/// Where a worker is.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Spot {
    shelf: usize,
    /// While it can take a job.
    rank: Option<Rank>,
}

/// Jobs that ask the same of the nature of a worker.
#[derive(Debug)]
struct Kind {
    task_type: Option<Arc<str>>,
    constraints: Option<Arc<Constraints>>,
    shelves: Vec<(usize, Wishes)>,
}

/// A worker that could be chosen; the least is the best.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Best {
    pub points: Reverse<u32>,
    pub rank: Rank,
    pub worker: WorkerId,
}

impl Shelf {
    pub fn open(&self) -> btree_set::Iter<'_, (Rank, WorkerId)> {
        self.open.iter()
    }
}

impl Shelves {
    /// Forgets where everybody is.
    pub fn clear(&mut self) {
        self.all.clear();
        self.by_traits.clear();
        self.kinds.clear();
        self.open = 0;
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.by_traits.len()
    }

    pub fn any_open(&self) -> bool {
        self.open > 0
    }

    pub fn put(&mut self, id: WorkerId, mut traits: Traits, rank: Option<Rank>) -> Spot {
        if !self.ask_all {
            traits.labels.retain(|key, _| self.asked.contains(key));
        }
        let shelf = self.by_traits.get(&traits).copied().unwrap_or_else(|| self.build(traits));
        let mut spot = Spot { shelf, rank: None };
        if let Some(shelf) = self.all[shelf].as_mut() {
            shelf.members.insert(id);
            shelf.too_big = None;
        }
        self.move_within(id, &mut spot, rank);
        spot
    }

    fn build(&mut self, traits: Traits) -> usize {
        let traits = Arc::new(traits);
        let shelf =
            Shelf { traits: Arc::clone(&traits), members: BTreeSet::new(), open: BTreeSet::new(), too_big: None };
        let place = self.all.iter().position(Option::is_none).unwrap_or_else(|| {
            self.all.push(None);
            self.all.len() - 1
        });
        self.all[place] = Some(shelf);
        self.by_traits.insert(traits, place);
        self.kinds.clear();
        place
    }

    pub fn take(&mut self, id: WorkerId, spot: &mut Spot) {
        self.move_within(id, spot, None);
        let Some(shelf) = self.all[spot.shelf].as_mut() else { return };
        shelf.members.remove(&id);
        if shelf.members.is_empty() {
            self.by_traits.remove(&shelf.traits);
            self.all[spot.shelf] = None;
            self.kinds.clear();
        }
    }

    /// Puts a worker where its rank wants it, or away from those that can take a job.
    pub fn move_within(&mut self, id: WorkerId, spot: &mut Spot, rank: Option<Rank>) {
        let Some(shelf) = self.all.get_mut(spot.shelf).and_then(Option::as_mut) else { return };
        if spot.rank == rank {
            return;
        }
        if let Some(old) = spot.rank {
            self.open -= usize::from(shelf.open.remove(&(old, id)));
        }
        if let Some(new) = rank {
            self.open += usize::from(shelf.open.insert((new, id)));
        }
        spot.rank = rank;
    }

    pub fn has_more_room(&mut self, spot: &Spot) {
        if let Some(shelf) = self.all.get_mut(spot.shelf).and_then(Option::as_mut)
            && !planted(Defect::RoomOverlooked)
        {
            shelf.too_big = None;
        }
    }

    /// Takes note of the labels that such jobs ask for; true if workers must be put on shelves anew because of them.
    pub fn learn(&mut self, needs: &Needs) -> bool {
        let Some(constraints) = needs.requirements.constraints.as_deref() else { return false };
        if self.ask_all || constraints.selector.iter().all(|expression| self.asked.contains(&expression.key)) {
            return false;
        }
        self.asked.extend(constraints.selector.iter().map(|expression| Arc::clone(&expression.key)));
        self.ask_all = self.asked.len() > ASKED_LABELS;
        true
    }

    /// The best of all shelves that are for such a job, as `pick` finds it on each. Where it finds none `by_size_alone`,
    /// nothing of that size need look again until there is more room.
    pub fn best(
        &mut self,
        needs: &Needs,
        by_size_alone: bool,
        pick: impl Fn(&Shelf, Wishes, Option<Best>) -> Option<Best>,
    ) -> Option<WorkerId> {
        let size = size_of(needs.requirements);
        let kind = kind_of(&mut self.kinds, &self.by_traits, needs);
        let mut best = None;
        for (place, wishes) in &kind.shelves {
            let Some(shelf) = self.all[*place].as_mut().filter(|shelf| !shelf.open.is_empty()) else { continue };
            if shelf.too_big.is_some_and(|too_big| too_big.within(&size)) {
                continue;
            }
            let better = pick(shelf, *wishes, best);
            if by_size_alone && better.is_none() && shelf.too_big.is_none_or(|too_big| size.within(&too_big)) {
                shelf.too_big = Some(size);
            }
            best = better;
        }
        best.map(|best: Best| best.worker)
    }

    /// All workers that such a job could be for by what they are.
    pub fn members(&mut self, needs: &Needs) -> impl Iterator<Item = WorkerId> {
        let kind = kind_of(&mut self.kinds, &self.by_traits, needs);
        let shelves = kind.shelves.iter().filter_map(|(place, _)| self.all[*place].as_ref());
        shelves.flat_map(|shelf| shelf.members.iter().copied())
    }
}

fn kind_of<'a>(kinds: &'a mut HashMap<u64, Kind>, shelves: &BTreeMap<Arc<Traits>, usize>, needs: &Needs) -> &'a Kind {
    let constraints = &needs.requirements.constraints;
    let mut hasher = DefaultHasher::new();
    (needs.task_type, constraints).hash(&mut hasher);
    let hash = hasher.finish();
    if kinds.len() >= KINDS && !kinds.contains_key(&hash) {
        kinds.clear();
    }
    let find = || {
        let passing = shelves.iter().filter(|(traits, _)| traits.unmet(needs).is_none());
        let mut passing: Vec<_> = passing.map(|(traits, place)| (*place, Wishes::of(needs, traits))).collect();
        // What is found on a good shelf makes it needless to look at worse ones.
        passing.sort_by_key(|(_, wishes)| Reverse(wishes.total()));
        Kind { task_type: needs.task_type.map(Arc::from), constraints: constraints.clone(), shelves: passing }
    };
    let kind = kinds.entry(hash).or_insert_with(find);
    // Two kinds with one hash take turns.
    if kind.task_type.as_deref() != needs.task_type || kind.constraints != *constraints {
        *kind = find();
    }
    kind
}

fn size_of(asked: &Requirements) -> Capacity {
    let mut size = Capacity::default();
    size.add(asked);
    size
}
