//! What `hodei-store` keeps, with the reads that the loop asks for, in memory.

use hodei_core::{
    brain::{Batch, BatchId, Kept, Loaded, Placement, Settling},
    id::{ExecutionId, JobId, WorkerId},
    job::{ClassId, Job},
    protocol::LogChunk,
    spec::Priority,
    state::State,
    time::Time,
    token::{Hash, WorkerToken},
    worker::{Phase, WorkerRecord},
};
use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

#[derive(Debug, Default)]
pub struct Store {
    pub jobs: BTreeMap<JobId, Job>,
    pub payloads: BTreeMap<JobId, Arc<[u8]>>,
    placements: BTreeMap<BatchId, Vec<Placement>>,
    /// Those of them that the rows are behind of.
    placed: BTreeMap<JobId, Placement>,
    /// The numbers of the log entries of each execution, in the order in which they were stored.
    pub logs: BTreeMap<ExecutionId, Vec<u64>>,
    /// How many executions each job had when it was last retried by hand.
    pub eras: BTreeMap<JobId, usize>,
    pub epoch: u64,
    /// The last batch of this epoch that is in.
    last_batch: u64,
    last: Time,
    parked_until: Option<Time>,
    workers: BTreeMap<WorkerId, WorkerRecord>,
    tokens: BTreeMap<Hash, WorkerToken>,
    ready: BTreeMap<(ClassId, Priority, u64), JobId>,
    lines: Lines,
    due: BTreeSet<(Time, JobId)>,
    pub kept: Kept,
}

/// What pages of lines are read from: it is as far behind as their readers allow.
#[derive(Debug, Default)]
struct Lines {
    rows: BTreeMap<JobId, Job>,
    places: BTreeMap<(ClassId, Priority, u64), JobId>,
    /// By batch: the rows that it writes, and the jobs that it forgets.
    waiting: VecDeque<(u64, Vec<Arc<Job>>, Vec<JobId>)>,
}

impl Lines {
    fn follow(&mut self, batch: &Batch) {
        let rows = batch.jobs.iter().map(|write| Arc::clone(&write.job)).collect();
        self.waiting.push_back((batch.number, rows, batch.forgotten.clone()));
    }

    fn catch_up(&mut self, until: u64) {
        while let Some((_, rows, forgotten)) = self.waiting.pop_front_if(|(number, ..)| *number <= until) {
            for id in rows.iter().map(|job| job.id).chain(forgotten) {
                let old = self.rows.remove(&id);
                old.into_iter().for_each(|old| _ = self.places.remove(&place(&old)));
            }
            for job in rows.into_iter().filter(|job| matches!(job.state, State::Pending { .. })) {
                self.places.insert(place(&job), job.id);
                self.rows.insert(job.id, Arc::unwrap_or_clone(job));
            }
        }
    }

    fn page(&self, class: ClassId, priority: Priority, after: Option<u64>, limit: usize) -> Vec<Job> {
        let from = (class, priority, after.map_or(0, |after| after + 1));
        let page = self.places.range(from..=(class, priority, u64::MAX)).take(limit);
        page.map(|(_, id)| self.rows[id].clone()).collect()
    }
}

/// One transaction.
#[derive(Clone, Debug)]
pub struct Commit {
    pub epoch: u64,
    pub batch: Batch,
    pub logs: Vec<LogChunk>,
    pub eras: Vec<(JobId, usize)>,
}

impl Store {
    /// All of it or nothing; a repeat changes nothing. An error is a broken promise of the brain.
    pub fn commit(&mut self, commit: &Commit, recognise_repeats: bool) -> Result<(), String> {
        let batch = &commit.batch;
        if commit.epoch != self.epoch {
            return Err(format!("epoch {} commits in epoch {}", commit.epoch, self.epoch));
        }
        if batch.number == self.last_batch {
            if !recognise_repeats {
                self.append(&commit.logs);
            }
            return Ok(());
        }
        if batch.number < self.last_batch || batch.now < self.last {
            return Err(format!("batch {} of {:?} came after {}", batch.number, batch.now, self.last_batch));
        }
        (self.last_batch, self.last) = (batch.number, batch.now);
        self.parked_until = batch.parked_until.or(self.parked_until);
        self.append(&commit.logs);
        self.eras.extend(commit.eras.iter().copied());
        for write in &batch.jobs {
            match &write.payload {
                Some(payload) => _ = self.payloads.insert(write.job.id, Arc::clone(payload)),
                None if self.jobs.contains_key(&write.job.id) => {}
                None => return Err(format!("the first write of {} has no payload", write.job.id)),
            }
            self.put(&write.job)?;
            self.placed.remove(&write.job.id);
        }
        if !batch.placements.is_empty() {
            let id = BatchId { epoch: commit.epoch, number: batch.number };
            self.placements.insert(id, batch.placements.clone());
            self.placed.extend(batch.placements.iter().map(|placement| (placement.job, *placement)));
        }
        for id in &batch.settled {
            let settled = self.placements.remove(id).ok_or(format!("{id:?} is settled and was not kept"))?;
            if let Some(open) = settled.iter().find(|placement| self.placed.get(&placement.job) == Some(*placement)) {
                return Err(format!("{} is settled and not in its row", open.job));
            }
        }
        self.lines.follow(batch);
        self.kept.commit(batch)?;
        for id in &batch.forgotten {
            self.forget(*id)?;
        }
        for worker in &batch.workers {
            match worker.phase {
                Phase::Terminated => _ = self.workers.remove(&worker.id),
                _ => _ = self.workers.insert(worker.id, worker.clone()),
            }
        }
        self.tokens.extend(batch.tokens.iter().map(|token| (token.hash, token.clone())));
        for hash in &batch.dropped_tokens {
            self.tokens.remove(hash);
        }
        Ok(())
    }

    fn forget(&mut self, id: JobId) -> Result<(), String> {
        let Some(job) = self.jobs.remove(&id) else { return Err(format!("{id} is forgotten and was not kept")) };
        self.payloads.remove(&id);
        match job.state.kind().is_finished() && !self.placed.contains_key(&id) {
            true => Ok(()),
            false => Err(format!("{id} is forgotten and has not ended: {:?}", job.state)),
        }
    }

    /// Whether this very commit is in already.
    pub fn has(&self, commit: &Commit) -> bool {
        commit.batch.number == self.last_batch
    }

    fn append(&mut self, logs: &[LogChunk]) {
        for chunk in logs {
            self.logs.entry(chunk.execution).or_default().extend(chunk.first..chunk.end());
        }
    }

    fn put(&mut self, job: &Job) -> Result<(), String> {
        if let Some(old) = self.jobs.insert(job.id, job.clone()) {
            self.ready.remove(&place(&old));
            if let Some(timer) = timer(&old) {
                self.due.remove(&timer);
            }
        }
        if let State::Pending { .. } = job.state
            && let Some(other) = self.ready.insert(place(job), job.id)
        {
            return Err(format!("{other} and {} have one place in line", job.id));
        }
        self.due.extend(timer(job));
        Ok(())
    }

    pub fn worker(&self, id: WorkerId) -> Option<&WorkerRecord> {
        self.workers.get(&id)
    }

    /// A job as a new leader would see it.
    pub fn latest(&self, id: JobId) -> Option<Cow<'_, Job>> {
        let row = self.jobs.get(&id)?;
        let Some(placement) = self.placed.get(&id) else { return Some(Cow::Borrowed(row)) };
        let mut job = row.clone();
        placement.apply(&mut job);
        Some(Cow::Owned(job))
    }

    /// A new leader takes over.
    pub fn lead(&mut self) -> Loaded {
        self.lines.catch_up(u64::MAX);
        self.epoch += 1;
        self.last_batch = 0;
        let lanes: BTreeSet<_> = self.ready.keys().map(|(class, priority, _)| (*class, *priority)).collect();
        // As many as a store would find: also those that rows are not behind of.
        let placed: BTreeMap<JobId, Placement> =
            self.placements.values().flatten().map(|placement| (placement.job, *placement)).collect();
        let mut loaded = Loaded {
            placed: placed.into_values().filter_map(|to| Some((to, self.jobs.get(&to.job)?.clone()))).collect(),
            placed_in: self.placements.keys().copied().collect(),
            epoch: self.epoch,
            last: self.last,
            parked_until: self.parked_until,
            active: self.jobs.values().filter(|job| job.state.kind().is_active()).cloned().collect(),
            workers: self.workers.values().cloned().collect(),
            tokens: self.tokens.values().cloned().collect(),
            lanes: lanes.into_iter().collect(),
            ..Loaded::default()
        };
        self.kept.load(&mut loaded, |id| self.jobs.get(&id).cloned());
        loaded
    }

    pub fn dependents(&self, of: &[Settling], each: usize) -> Vec<(JobId, Job)> {
        self.kept.dependents(of, each, |id| self.jobs.get(&id).cloned())
    }

    /// As it was after the batch `at`, or later.
    pub fn ready(&mut self, class: ClassId, priority: Priority, after: Option<u64>, limit: usize, at: u64) -> Vec<Job> {
        self.lines.catch_up(at);
        self.lines.page(class, priority, after, limit)
    }

    pub fn due(&self, after: Option<(Time, JobId)>, limit: usize) -> Vec<Job> {
        use std::ops::Bound::{Excluded, Unbounded};
        let from = after.map_or(Unbounded, Excluded);
        self.due.range((from, Unbounded)).take(limit).map(|(_, id)| self.jobs[id].clone()).collect()
    }

    pub fn log_entries(&self, execution: ExecutionId) -> u64 {
        self.logs.get(&execution).map_or(0, |lines| lines.len() as u64)
    }
}

fn place(job: &Job) -> (ClassId, Priority, u64) {
    (job.class(), job.priority, job.seq)
}

/// Run deadlines are not among these: running jobs are in memory anyway.
fn timer(job: &Job) -> Option<(Time, JobId)> {
    job.due_at().filter(|_| !job.state.kind().is_active()).map(|at| (at, job.id))
}
