//! The workers as the brain sees them: who is there, what is free, whose lease runs out.

mod shelves;

use super::input::Connection;
use crate::{
    id::{ExecutionId, WorkerId},
    placement::{
        Considered, Dropped, Filter, Needs, SchedulerSettings, Score, Strategy, Traits, Wishes,
        filters::too_much,
        score::{CAPACITY, HISTORY, Rank, load_of, points, rank},
    },
    requirements::Requirements,
    template::Reuse,
    time::{Elapsed, Millis},
    worker::{Capacity, Origin, Phase, WorkerRecord, WorkerState, fits},
};
use shelves::{Best, Shelf, Shelves, Spot};
use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

#[derive(Debug, Default)]
pub(super) struct Fleet {
    workers: BTreeMap<WorkerId, Worker>,
    /// All of them, by what they are, with those on top that can take a job now.
    shelves: Shelves,
    settings: SchedulerSettings,
    /// How many jobs were given out.
    turns: u64,
}

#[derive(Debug)]
pub(super) struct Worker {
    pub record: WorkerRecord,
    pub connection: Option<Connection>,
    /// The latest connection heard of. Word of an older one is out of date, whenever it comes.
    pub latest: Option<Connection>,
    /// When it greeted on its connection.
    pub connected_at: Elapsed,
    /// When its work may be given to others, the grace not counted.
    pub lease_until: Elapsed,
    /// The lease that a leader before us gave when it left. It holds until the worker has heard of ours.
    pub parked_until: Elapsed,
    /// Its lease ran out and it has not come back since.
    pub lost: bool,
    pub held: BTreeSet<ExecutionId>,
    /// What those it holds have reserved; more than it has, when it came back smaller.
    used: Capacity,
    /// When it was last given a job, counted in jobs.
    turn: u64,
    spot: Spot,
}

/// A worker as people see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerView {
    pub record: WorkerRecord,
    pub state: WorkerState,
    pub running: u32,
    pub free: Capacity,
    /// Its stream is open.
    pub connected: bool,
}

impl Fleet {
    pub fn add(&mut self, record: WorkerRecord, lease_until: Elapsed) {
        let worker = Worker {
            connection: None,
            latest: None,
            connected_at: Elapsed::default(),
            lease_until,
            parked_until: Elapsed::default(),
            lost: false,
            held: BTreeSet::new(),
            used: Capacity::default(),
            turn: 0,
            spot: Spot::default(),
            record,
        };
        let id = worker.record.id;
        self.workers.insert(id, worker);
        self.shelve(id);
    }

    pub fn get(&self, id: WorkerId) -> Option<&Worker> {
        self.workers.get(&id)
    }

    /// Changes a worker and keeps its spot right.
    pub fn update<T>(&mut self, id: WorkerId, change: impl FnOnce(&mut Worker) -> T) -> Option<T> {
        let worker = self.workers.get_mut(&id)?;
        let before = worker.room();
        let out = change(worker);
        let after = worker.room();
        if before != after {
            let rank = after.map(|_| worker.rank(self.settings.strategy));
            self.shelves.move_within(id, &mut worker.spot, rank);
            if !after.is_none_or(|after| before.is_some_and(|before| after.within(&before))) {
                self.shelves.has_more_room(&worker.spot);
            }
        }
        Some(out)
    }

    /// Takes over what a worker now says of itself, with what it holds still reserved.
    pub fn redescribe(&mut self, record: WorkerRecord) {
        let id = record.id;
        let Some(worker) = self.workers.get_mut(&id) else { return };
        self.shelves.take(id, &mut worker.spot);
        worker.record = record;
        self.shelve(id);
    }

    pub fn remove(&mut self, id: WorkerId) -> Option<Worker> {
        let mut worker = self.workers.remove(&id)?;
        self.shelves.take(id, &mut worker.spot);
        Some(worker)
    }

    fn shelve(&mut self, id: WorkerId) {
        let Some(worker) = self.workers.get_mut(&id) else { return };
        let rank = worker.room().map(|_| worker.rank(self.settings.strategy));
        worker.spot = self.shelves.put(id, Traits::of(&worker.record), rank);
    }

    fn shelve_all(&mut self) {
        self.shelves.clear();
        self.workers.keys().copied().collect::<Vec<_>>().into_iter().for_each(|id| self.shelve(id));
    }

    pub fn set_scheduler(&mut self, settings: SchedulerSettings) {
        let other_order = settings.strategy != self.settings.strategy;
        self.settings = settings;
        if other_order {
            self.shelve_all();
        }
    }

    pub fn any_free(&self) -> bool {
        self.shelves.any_open()
    }

    /// Gives a job to a worker.
    pub fn give(&mut self, id: WorkerId, execution: ExecutionId, needs: &Requirements) {
        self.turns += 1;
        let turn = self.turns;
        self.update(id, |worker| {
            worker.turn = turn;
            worker.hold(execution, needs);
        });
    }

    /// The worker that is best for such a job by the strategy in force, of those that can take it now. Of the workers of
    /// one shelf that are alike in all but how busy they are it looks at the first few.
    pub fn pick(&mut self, needs: &Needs) -> Option<WorkerId> {
        self.learn(needs);
        let (settings, workers) = (self.settings, &self.workers);
        let by_size_alone = settings.threshold == 0;
        self.shelves
            .best(needs, by_size_alone, |shelf, wishes, best| pick_from(shelf, wishes, needs, settings, workers, best))
    }

    /// Shelves tell workers apart by what jobs ask for, and no further.
    fn learn(&mut self, needs: &Needs) {
        if self.shelves.learn(needs) {
            self.shelve_all();
        }
    }

    /// Whether a worker that is there, or was and may come back, could run such a job if it had nothing else to do.
    pub fn could_run(&mut self, needs: &Needs) -> bool {
        self.learn(needs);
        let workers = &self.workers;
        self.shelves.members(needs).any(|id| workers.get(&id).is_some_and(|worker| worker.is_large_enough(needs)))
    }

    /// The same, for one who only looks.
    pub fn can_run(&self, needs: &Needs) -> bool {
        let is_for_it = |worker: &Worker| Traits::of(&worker.record).unmet(needs).is_none();
        self.iter().any(|worker| worker.is_large_enough(needs) && is_for_it(worker))
    }

    /// Notes how a job ended on a worker.
    pub fn remember(&mut self, id: WorkerId, task_type: Option<&Arc<str>>, success: bool) {
        if let Some(worker) = self.workers.get_mut(&id) {
            worker.record.remember(task_type, success);
        }
    }

    /// What becomes of such a job by what is there: who would take it, and what of each worker.
    pub fn consider(&self, needs: &Needs) -> (Option<WorkerId>, Vec<Considered>) {
        let (strategy, threshold) = (self.settings.strategy, self.settings.threshold);
        let mut all: Vec<(&Worker, Result<Score, Dropped>)> = self
            .iter()
            .filter(|worker| !worker.has_left())
            .map(|worker| (worker, worker.fate(needs, threshold)))
            .collect();
        // The best first, by the same order as picked by; of those that were dropped, the one that came furthest.
        all.sort_by_key(|(worker, fate)| {
            let order = match fate {
                Ok(score) => (None, Reverse(points(strategy, score)), worker.rank(strategy)),
                Err(dropped) => (Some(Reverse(dropped.filter)), Reverse(0), Rank::default()),
            };
            (order, worker.record.id)
        });
        let best = all.first().filter(|(_, fate)| fate.is_ok()).map(|(worker, _)| worker.record.id);
        let considered = all.into_iter().map(|(worker, fate)| Considered {
            worker: worker.record.id,
            name: worker.record.info.name.clone(),
            fate,
        });
        (best, considered.collect())
    }

    /// Why such a job, ready to run, is not placed, in words.
    pub fn why_wait(&self, needs: &Needs) -> String {
        let mut passing: Vec<&Worker> = self.iter().filter(|worker| worker.connection.is_some()).collect();
        if passing.is_empty() {
            return Filter::State.nobody_passes(needs);
        }
        let unmet: Vec<Option<Filter>> = passing.iter().map(|worker| Traits::of(&worker.record).unmet(needs)).collect();
        if unmet.iter().all(Option::is_some)
            && let Some(furthest) = unmet.iter().flatten().max()
        {
            return furthest.nobody_passes(needs);
        }
        let mut unmet = unmet.into_iter();
        passing.retain(|_| unmet.next().flatten().is_none());
        passing.retain(|worker| worker.could_fit(needs.requirements));
        if passing.is_empty() {
            return Filter::Capacity.nobody_passes(needs);
        }
        passing.retain(|worker| worker.is_open());
        if passing.is_empty() {
            return "every worker that fits is leaving".into();
        }
        passing.retain(|worker| worker.free().fits(needs.requirements));
        if passing.is_empty() {
            return Filter::Slots.nobody_passes(needs);
        }
        passing.retain(|worker| worker.fate(needs, self.settings.threshold).is_ok());
        if passing.is_empty() {
            return Filter::Threshold.nobody_passes(needs);
        }
        "a worker has room and its turn is coming".into()
    }

    /// Workers whose lease ended more than `grace` ago.
    pub fn expired(&self, now: Elapsed, grace: Millis) -> Vec<WorkerId> {
        let late = |worker: &&Worker| worker.has_lease() && now >= worker.expiry() + grace;
        self.workers.values().filter(late).map(|worker| worker.record.id).collect()
    }

    pub fn next_expiry(&self, grace: Millis) -> Option<Elapsed> {
        self.workers.values().filter(|worker| worker.has_lease()).map(|worker| worker.expiry() + grace).min()
    }

    /// Time passed in which no sign of life could have been heard.
    pub fn extend_leases(&mut self, gap: Millis) {
        for worker in self.workers.values_mut() {
            worker.lease_until = worker.lease_until + gap;
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = &Worker> {
        self.workers.values()
    }

    #[cfg(test)]
    pub fn kinds_of_workers(&self) -> usize {
        self.shelves.len()
    }

    pub fn views(&self) -> Vec<WorkerView> {
        self.iter().filter(|worker| !worker.has_left()).map(Worker::view).collect()
    }
}

/// How many that fit are looked at on one shelf, beginning with the first.
const LOOK_AT: usize = 16;

/// The best worker of a shelf, if it is better than the best so far.
fn pick_from(
    shelf: &Shelf,
    wishes: Wishes,
    needs: &Needs,
    settings: SchedulerSettings,
    workers: &BTreeMap<WorkerId, Worker>,
    mut best: Option<Best>,
) -> Option<Best> {
    let threshold = u32::from(settings.threshold) * 100;
    let smart = settings.strategy == Strategy::Smart;
    let mut looked_at = 0;
    for (rank, id) in shelf.open() {
        // Those that follow are no less loaded, so this is the most that any of them can have.
        let most = if smart { wishes.total() + CAPACITY + load_of(*rank) + HISTORY } else { u32::MAX };
        if best.is_some_and(|best| best.points.0 > most) {
            break;
        }
        let Some(worker) = workers.get(id).filter(|worker| worker.free().fits(needs.requirements)) else { continue };
        let score = worker.score(needs, wishes);
        if score.total() < threshold {
            continue;
        }
        let candidate = Best { points: Reverse(points(settings.strategy, &score)), rank: *rank, worker: *id };
        best = Some(best.map_or(candidate, |best| best.min(candidate)));
        looked_at += 1;
        // Of equals the one with the better rank is chosen, and it came first.
        if !smart || looked_at == LOOK_AT || best.is_some_and(|best| best.points.0 >= most) {
            break;
        }
    }
    best
}

impl Worker {
    /// Whether it takes jobs, as far as it has room for them.
    pub fn is_open(&self) -> bool {
        self.connection.is_some() && self.record.phase == Phase::Active && !self.is_leaving() && !self.is_used_up()
    }

    /// It wants no more work on this connection.
    pub fn is_leaving(&self) -> bool {
        self.record.leaving.is_some()
    }

    /// Nobody is there, and nothing is bound to it.
    pub fn is_deserted(&self) -> bool {
        self.connection.is_none() && self.held.is_empty()
    }

    /// It said that it leaves, and did. Of one that a provider made, the provider has the last word.
    pub fn has_left(&self) -> bool {
        let left = self.record.phase == Phase::Active && self.is_leaving() && self.record.origin.is_none();
        left && self.is_deserted()
    }

    /// It was made for one job and has had it.
    fn is_used_up(&self) -> bool {
        let used_up = |origin: &Origin| origin.used && origin.template.reuse == Reuse::Never;
        self.record.origin.as_deref().is_some_and(used_up)
    }

    /// Whether anything depends on its being heard of.
    fn has_lease(&self) -> bool {
        !self.lost && self.record.session.is_some() && !self.has_left()
    }

    /// What is free, of one that a job can be sent to now.
    pub fn room(&self) -> Option<Capacity> {
        let free = self.free();
        (self.is_open() && free.slots > 0).then_some(free)
    }

    fn rank(&self, strategy: Strategy) -> Rank {
        rank(strategy, &self.record.info.capacity, &self.free(), self.held.len() as u64, self.turn)
    }

    fn score(&self, needs: &Needs, wishes: Wishes) -> Score {
        let tally = self.record.tally(needs.task_type);
        Score::new(wishes, needs.requirements, &self.record.info.capacity, &self.free(), tally)
    }

    /// Its score for such a job, or what keeps it from taking it now.
    pub fn fate(&self, needs: &Needs, threshold: u8) -> Result<Score, Dropped> {
        let dropped = |filter, why| Err(Dropped { filter, why });
        if !self.is_open() {
            return dropped(Filter::State, self.why_not_open().into());
        }
        let traits = Traits::of(&self.record);
        if let Some(filter) = traits.unmet(needs) {
            let given_up = needs.task_type.filter(|_| filter == Filter::TaskType).and_then(|it| self.why_given_up(it));
            return dropped(filter, given_up.unwrap_or_else(|| traits.why_not(filter, needs)));
        }
        if let Some(dropped) = too_much(needs.requirements, &self.record.info.capacity, &self.free()) {
            return Err(dropped);
        }
        let score = self.score(needs, Wishes::of(needs, &traits));
        if score.total() < u32::from(threshold) * 100 {
            let why = format!("its score of {} is below {threshold}", f64::from(score.total()) / 100.0);
            return dropped(Filter::Threshold, why);
        }
        Ok(score)
    }

    /// It had a handler for such tasks, which failed too often.
    fn why_given_up(&self, task_type: &str) -> Option<String> {
        let mut given_up = self.record.info.handlers.iter().filter(|handler| !handler.up);
        let handler = given_up.find(|handler| fits(&handler.name, task_type))?;
        let (name, restarts) = (&handler.name, handler.sla.restarts());
        let times = if restarts == 1 { "restart" } else { "restarts" };
        Some(format!("its handler {name} was given up after {restarts} {times}; 'hodei worker restart' tries it again"))
    }

    fn why_not_open(&self) -> &'static str {
        match self.state() {
            WorkerState::Ready | WorkerState::Busy if self.is_used_up() => "it was made for one job",
            WorkerState::Ready | WorkerState::Busy => "it is not connected",
            WorkerState::Creating => "it is being made",
            WorkerState::Connecting => "it is not connected",
            WorkerState::Unhealthy => "it was not heard of until its lease ran out",
            WorkerState::Terminating | WorkerState::Terminated => "it is gone",
            WorkerState::Draining => "it is leaving",
        }
    }

    fn expiry(&self) -> Elapsed {
        self.lease_until.max(self.parked_until)
    }

    fn free(&self) -> Capacity {
        self.record.info.capacity.without(&self.used)
    }

    /// Whether it is to stay, and has room for such a job when it has nothing else to do. One that left by itself may come
    /// back.
    fn is_large_enough(&self, needs: &Needs) -> bool {
        let stays = matches!(self.record.phase, Phase::Creating | Phase::Connecting | Phase::Active);
        stays && self.could_fit(needs.requirements)
    }

    /// Whether it has room for this when it has nothing else to do.
    fn could_fit(&self, needs: &Requirements) -> bool {
        self.record.info.capacity.fits(needs)
    }

    pub fn hold(&mut self, execution: ExecutionId, needs: &Requirements) {
        if self.held.insert(execution) {
            self.used.add(needs);
        }
    }

    pub fn release(&mut self, execution: ExecutionId, needs: &Requirements) {
        if self.held.remove(&execution) {
            self.used.remove(needs);
        }
    }

    pub fn state(&self) -> WorkerState {
        match self.standing() {
            WorkerState::Ready | WorkerState::Busy if self.latest.is_none() => WorkerState::Connecting,
            standing => standing,
        }
    }

    /// The same, if it is taken for granted that those whom an earlier leader knew are still there.
    pub fn standing(&self) -> WorkerState {
        if self.has_left() {
            return WorkerState::Terminated;
        }
        match (self.record.phase, self.connection) {
            (Phase::Terminated, _) => WorkerState::Terminated,
            // One that never came does not leave.
            (Phase::Terminating, _) if self.record.session.is_some() => WorkerState::Terminating,
            (Phase::Terminating, _) => WorkerState::Connecting,
            (Phase::Creating, _) => WorkerState::Creating,
            (Phase::Connecting, _) => WorkerState::Connecting,
            _ if self.lost => WorkerState::Unhealthy,
            (Phase::Draining, _) => WorkerState::Draining,
            // A stream that breaks is opened again: until its lease is over it counts as there.
            (Phase::Active, None) if self.record.incarnation.is_none() => WorkerState::Connecting,
            (Phase::Active, _) if self.is_leaving() => WorkerState::Draining,
            (Phase::Active, _) if self.free().slots == 0 => WorkerState::Busy,
            (Phase::Active, _) => WorkerState::Ready,
        }
    }

    pub fn view(&self) -> WorkerView {
        let running = u32::try_from(self.held.len()).unwrap_or(u32::MAX);
        let connected = self.connection.is_some();
        WorkerView { record: self.record.clone(), state: self.state(), running, free: self.free(), connected }
    }
}
