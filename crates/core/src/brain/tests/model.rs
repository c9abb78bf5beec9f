//! A store in memory and the loop around a brain, each of whose steps can be taken by itself.

use super::*;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// What `hodei-store` keeps, with the reads that the brain asks for.
#[derive(Debug, Default)]
pub(super) struct Store {
    pub jobs: HashMap<JobId, Job>,
    pub workers: BTreeMap<WorkerId, WorkerRecord>,
    pub tokens: HashMap<Hash, WorkerToken>,
    pub epoch: u64,
    last: Time,
    parked_until: Option<Time>,
    ready: BTreeMap<(ClassId, Priority, u64), JobId>,
    due: BTreeSet<(Time, JobId)>,
    placements: BTreeMap<BatchId, Vec<Placement>>,
    pub kept: Kept,
    /// What took the place of a job's data, and what resumed it.
    data: HashMap<JobId, Arc<[u8]>>,
    inputs: HashMap<JobId, Arc<[u8]>>,
}

impl Store {
    pub fn commit(&mut self, batch: &Batch) {
        assert!(batch.now >= self.last, "time never runs backwards");
        self.last = batch.now;
        self.parked_until = batch.parked_until.or(self.parked_until);
        for write in &batch.jobs {
            let known = self.jobs.contains_key(&write.job.id);
            assert_eq!(write.payload.is_some(), !known, "the payload comes with the first write and with no other");
            self.put(&write.job);
            self.data.extend(write.data.clone().map(|data| (write.job.id, data)));
            self.inputs.extend(write.input.clone().map(|input| (write.job.id, input)));
        }
        if !batch.placements.is_empty() {
            let id = BatchId { epoch: self.epoch, number: batch.number };
            self.placements.insert(id, batch.placements.clone());
        }
        for id in &batch.settled {
            assert!(self.placements.remove(id).is_some(), "what is settled was kept");
        }
        self.kept.commit(batch).expect("the brain keeps its promises");
        for id in &batch.forgotten {
            let job = self.jobs.remove(id);
            assert!(job.is_none_or(|job| job.state.kind().is_finished()), "only what is finished is forgotten");
        }
        for worker in &batch.workers {
            self.workers.insert(worker.id, worker.clone());
        }
        self.workers.retain(|_, worker| worker.phase != Phase::Terminated);
        self.tokens.extend(batch.tokens.iter().map(|token| (token.hash, token.clone())));
        for hash in &batch.dropped_tokens {
            self.tokens.remove(hash);
        }
    }

    pub fn data(&self, job: JobId) -> Option<Arc<[u8]>> {
        self.data.get(&job).cloned()
    }

    pub fn input(&self, job: JobId) -> Option<Arc<[u8]>> {
        self.inputs.get(&job).cloned()
    }

    fn put(&mut self, job: &Job) {
        if let Some(old) = self.jobs.insert(job.id, job.clone()) {
            self.ready.remove(&place(&old));
            self.due.retain_not(due(&old));
        }
        if let State::Pending { .. } = job.state {
            let other = self.ready.insert(place(job), job.id);
            assert_eq!(other, None, "two jobs have one place in line");
        }
        self.due.extend(due(job));
    }

    pub fn load(&mut self) -> Loaded {
        self.epoch += 1;
        let lanes: BTreeSet<_> = self.ready.keys().map(|(class, priority, _)| (*class, *priority)).collect();
        let mut active: Vec<Job> = self.jobs.values().filter(|job| job.state.kind().is_active()).cloned().collect();
        active.sort_by_key(|job| job.id);
        let placed = self.latest_placements().into_values();
        let mut loaded = Loaded {
            placed: placed.map(|placement| (placement, self.jobs[&placement.job].clone())).collect(),
            placed_in: self.placements.keys().copied().collect(),
            epoch: self.epoch,
            last: self.last,
            parked_until: self.parked_until,
            active,
            workers: self.workers.values().cloned().collect(),
            tokens: self.tokens.values().cloned().collect(),
            lanes: lanes.into_iter().collect(),
            ..Loaded::default()
        };
        self.kept.load(&mut loaded, |id| self.jobs.get(&id).cloned());
        loaded
    }

    fn latest_placements(&self) -> BTreeMap<JobId, Placement> {
        self.placements.values().flatten().map(|placement| (placement.job, *placement)).collect()
    }

    /// All jobs as they are, also those whose rows are behind.
    pub fn current(&self) -> HashMap<JobId, Job> {
        let mut jobs = self.jobs.clone();
        for (id, placement) in self.latest_placements() {
            jobs.get_mut(&id).map(|job| placement.apply(job));
        }
        jobs
    }

    fn dependents(&self, of: &[Settling], each: usize) -> Vec<(JobId, Job)> {
        self.kept.dependents(of, each, |id| self.jobs.get(&id).cloned())
    }

    fn ready(&self, class: ClassId, priority: Priority, after: Option<u64>, limit: usize) -> Vec<Job> {
        let from = (class, priority, after.map_or(0, |after| after + 1));
        let to = (class, priority, u64::MAX);
        self.ready.range(from..=to).take(limit).map(|(_, id)| self.jobs[id].clone()).collect()
    }

    fn due(&self, after: Option<(Time, JobId)>, limit: usize) -> Vec<Job> {
        use std::ops::Bound::*;
        let from = after.map_or(Unbounded, Excluded);
        self.due.range((from, Unbounded)).take(limit).map(|(_, id)| self.jobs[id].clone()).collect()
    }
}

fn place(job: &Job) -> (ClassId, Priority, u64) {
    (job.class(), job.priority, job.seq)
}

/// Run deadlines are not among these: running jobs are in memory anyway.
fn due(job: &Job) -> Option<(Time, JobId)> {
    job.due_at().filter(|_| !job.state.kind().is_active()).map(|at| (at, job.id))
}

trait RetainNot<T> {
    fn retain_not(&mut self, item: Option<T>);
}

impl<T: Ord> RetainNot<T> for BTreeSet<T> {
    fn retain_not(&mut self, item: Option<T>) {
        item.map(|item| self.remove(&item));
    }
}

/// The loop of a server, in single steps.
pub(super) struct Server {
    pub brain: Brain,
    pub store: Store,
    pub now: Now,
    pub config: Config,
    /// Decided, not durable yet.
    pub uncommitted: VecDeque<(Batch, Vec<Effect>)>,
    /// Reads that were released and have not reached the store, and pages that have not reached the brain.
    pub reads: Vec<Effect>,
    pub pages: Vec<Input>,
    /// Everything else that was released.
    pub released: Vec<Effect>,
    pub committed: u64,
}

impl Server {
    pub fn new(config: Config) -> Self {
        let mut store = Store::default();
        let now = Now { wall: Time(1_000_000), elapsed: Elapsed(5_000) };
        let brain = Brain::load(config.clone(), store.load(), now);
        Self {
            brain,
            store,
            now,
            config,
            uncommitted: VecDeque::new(),
            reads: Vec::new(),
            pages: Vec::new(),
            released: Vec::new(),
            committed: 0,
        }
    }

    pub fn advance(&mut self, length: Millis) {
        self.now = Now { wall: self.now.wall + length, elapsed: self.now.elapsed + length };
        self.brain.clock(self.now);
    }

    /// Applies an input, with the row that it names if that is not in memory.
    pub fn input(&mut self, input: Input) {
        let missing = self.brain.missing(&input);
        let facts = self.store.kept.facts(&missing, |id| self.store.jobs.get(&id).cloned());
        self.brain.learn(facts);
        self.brain.apply(input);
    }

    pub fn turn(&mut self, frozen: bool) -> &(Batch, Vec<Effect>) {
        self.brain.clock(self.now);
        let decided = self.brain.turn(frozen);
        self.uncommitted.push_back(decided);
        &self.uncommitted[self.uncommitted.len() - 1]
    }

    pub fn commit(&mut self) {
        let Some((batch, effects)) = self.uncommitted.pop_front() else { return };
        self.store.commit(&batch);
        self.committed = batch.number;
        self.brain.committed(&batch);
        let is_read = |effect: &Effect| {
            matches!(effect, Effect::ReadReady { .. } | Effect::ReadDue { .. } | Effect::ReadDependents { .. })
        };
        let (reads, others): (Vec<_>, Vec<_>) = effects.into_iter().partition(is_read);
        self.reads.extend(reads);
        self.released.extend(others);
    }

    /// One of the reads reaches the store.
    pub fn read(&mut self, pick: usize) {
        if self.reads.is_empty() {
            return;
        }
        let at = pick % self.reads.len();
        let page = match self.reads.remove(at) {
            Effect::ReadReady { class, priority, after, limit, .. } => {
                Input::Ready { class, priority, limit, jobs: self.store.ready(class, priority, after, limit) }
            }
            Effect::ReadDue { after, limit } => Input::Due { limit, jobs: self.store.due(after, limit) },
            Effect::ReadDependents { of, each } => {
                let jobs = self.store.dependents(&of, each);
                Input::Dependents { of, each, jobs }
            }
            other => unreachable!("{other:?} is no read"),
        };
        self.pages.push(page);
    }

    /// One of the pages reaches the brain.
    pub fn deliver_page(&mut self, pick: usize) {
        if !self.pages.is_empty() {
            let at = pick % self.pages.len();
            let page = self.pages.remove(at);
            self.brain.apply(page);
        }
    }

    /// Dies with all that was not durable or not released, and comes back.
    pub fn restart(&mut self) {
        self.uncommitted.clear();
        self.reads.clear();
        self.pages.clear();
        self.released.clear();
        self.committed = 0;
        self.brain = Brain::load(self.config.clone(), self.store.load(), self.now);
    }

    /// What is counted step by step is what a count of all rows finds. With many rows only now and then.
    fn check_counts(&self) {
        if self.store.jobs.len() > 500 && !self.committed.is_multiple_of(256) {
            return;
        }
        let jobs = self.store.current();
        self.store.kept.check_counts(jobs.values()).expect("the counts of the store");
        for view in self.brain.queues(None, usize::MAX) {
            for (state, count) in view.counts {
                let counted = self.store.kept.counts.get(&(Arc::clone(&view.record.name), state));
                assert_eq!(counted.copied().unwrap_or(0), count as i64, "{} {}", view.record.name, state.name());
            }
        }
    }

    /// Turns until nothing is left to decide, write or read.
    pub fn settle(&mut self, frozen: bool) {
        loop {
            self.turn(frozen);
            while !self.uncommitted.is_empty() {
                self.commit();
            }
            while !self.reads.is_empty() {
                self.read(0);
            }
            if self.pages.is_empty() {
                self.check_counts();
                return;
            }
            while !self.pages.is_empty() {
                self.deliver_page(0);
            }
        }
    }
}
