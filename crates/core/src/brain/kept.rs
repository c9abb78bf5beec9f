//! A store's share of the bargain, in memory, for tests and the simulation: all that batches hold besides the rows of jobs,
//! placements, workers and tokens.

use super::{Batch, Edge, Facts, Loaded, Missing, ScheduledJob, Settling};
use crate::{
    dead_letter::DeadLetter,
    id::{DeliveryId, JobId, ScheduleId},
    job::Job,
    placement::SchedulerSettings,
    provider::ProviderRecord,
    queue::QueueRecord,
    schedule::{Overlap, ScheduleRecord},
    state::StateKind,
    template::WorkerTemplate,
    webhook::Delivery,
};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};
use uuid::Uuid;

#[derive(Clone, Debug, Default)]
pub struct Kept {
    pub edges: BTreeSet<Edge>,
    /// What each job had to wait for when it was made, whether or not that is still there.
    pub dependencies: BTreeMap<JobId, Vec<JobId>>,
    pub settling: BTreeMap<JobId, Option<JobId>>,
    pub keys: BTreeMap<Arc<str>, JobId>,
    pub queues: BTreeMap<Arc<str>, QueueRecord>,
    pub counts: BTreeMap<(Arc<str>, StateKind), i64>,
    pub schedules: BTreeMap<ScheduleId, (ScheduleRecord, ScheduledJob)>,
    pub dead_letters: BTreeMap<JobId, DeadLetter>,
    pub deliveries: BTreeMap<DeliveryId, Delivery>,
    pub scheduler: SchedulerSettings,
    pub providers: BTreeMap<Arc<str>, ProviderRecord>,
    pub templates: BTreeMap<Arc<str>, WorkerTemplate>,
}

impl Kept {
    /// Takes in a batch; an error is a broken promise of the brain.
    pub fn commit(&mut self, batch: &Batch) -> Result<(), String> {
        for edge in &batch.edges {
            if !self.edges.insert(*edge) {
                return Err(format!("{edge:?} is new twice"));
            }
            self.dependencies.entry(edge.dependent).or_default().push(edge.dependency);
        }
        batch.dropped_edges.iter().for_each(|edge| _ = self.edges.remove(edge));
        self.settling.extend(batch.settling.iter().map(|mark| (mark.job, mark.told)));
        batch.told.iter().for_each(|job| _ = self.settling.remove(job));
        for (key, job) in &batch.keys {
            if let Some(first) = self.keys.insert(Arc::clone(key), *job) {
                return Err(format!("{first} and {job} have the key {key}"));
            }
        }
        self.scheduler = batch.scheduler.unwrap_or(self.scheduler);
        self.providers.extend(batch.providers.iter().map(|record| (Arc::clone(&record.name), record.clone())));
        batch.dropped_providers.iter().for_each(|name| _ = self.providers.remove(name));
        self.templates.extend(batch.templates.iter().map(|template| (Arc::clone(&template.name), template.clone())));
        batch.dropped_templates.iter().for_each(|name| _ = self.templates.remove(name));
        self.queues.extend(batch.queues.iter().map(|queue| (Arc::clone(&queue.name), queue.clone())));
        for (queue, state, by) in &batch.counts {
            let count = self.counts.entry((Arc::clone(queue), *state)).or_default();
            *count += by;
            if *count < 0 {
                return Err(format!("{queue} has {count} {} jobs", state.name()));
            }
        }
        for write in &batch.schedules {
            let old = self.schedules.get(&write.record.id).map(|(_, job)| job.clone());
            let new = write.spec.clone().zip(write.payload.clone());
            let new = new.map(|(spec, payload)| ScheduledJob { spec, payload });
            let job = new.or(old).ok_or("the first write of a schedule has no job")?;
            self.schedules.insert(write.record.id, (write.record.clone(), job));
        }
        batch.dropped_schedules.iter().for_each(|id| _ = self.schedules.remove(id));
        for (job, fingerprint) in &batch.dropped_dead_letters {
            if self.dead_letters.remove(job).map(|letter| letter.fingerprint) != Some(*fingerprint) {
                return Err(format!("{job} was not in the dead-letter queue, or not in that group"));
            }
        }
        for letter in &batch.dead_letters {
            if self.dead_letters.insert(letter.job, letter.clone()).is_some() {
                return Err(format!("{} is in the dead-letter queue already", letter.job));
            }
        }
        self.deliveries.extend(batch.deliveries.iter().map(|delivery| (delivery.id, delivery.clone())));
        for job in &batch.forgotten {
            self.edges.retain(|edge| edge.dependency != *job);
            self.dependencies.remove(job);
            self.keys.retain(|_, owner| owner != job);
            self.dead_letters.remove(job);
        }
        Ok(())
    }

    /// What a new leader reads of it. `job` finds the row of a job.
    pub fn load(&self, loaded: &mut Loaded, job: impl Fn(JobId) -> Option<Job>) {
        loaded.queues = self.queues.values().cloned().collect();
        loaded.scheduler = self.scheduler;
        loaded.providers = self.providers.values().cloned().collect();
        loaded.templates = self.templates.values().cloned().collect();
        let counted = self.counts.iter().filter(|(_, count)| **count > 0);
        let count =
            |((queue, state), count): (&(Arc<str>, StateKind), &i64)| (Arc::clone(queue), *state, *count as u64);
        loaded.counts = counted.map(count).collect();
        loaded.schedules = self.schedules.values().cloned().collect();
        let replacing = self.schedules.values().filter(|(record, _)| record.overlap == Overlap::Replace);
        let live = replacing.flat_map(|(record, _)| &record.live);
        loaded.replaceable = live.filter_map(|id| job(*id)).collect();
        let mark = |(id, told): (&JobId, &Option<JobId>)| Some((Settling { job: *id, told: *told }, job(*id)?));
        loaded.settling = self.settling.iter().filter_map(mark).collect();
    }

    /// Whether the counts are those of these jobs, which are all there are, as they are.
    pub fn check_counts<'a>(&self, jobs: impl Iterator<Item = &'a Job>) -> Result<(), String> {
        let mut counted: BTreeMap<(Arc<str>, StateKind), i64> = BTreeMap::new();
        for job in jobs {
            *counted.entry((Arc::clone(&job.queue), job.state.kind())).or_default() += 1;
        }
        let kept = self.counts.iter().filter(|(_, count)| **count != 0);
        match kept.clone().eq(counted.iter()) {
            true => Ok(()),
            false => Err(format!("the counts are {:?}, and there are {counted:?}", kept.collect::<Vec<_>>())),
        }
    }

    /// What is read for an input. `job` finds the row of a job.
    pub fn facts(&self, missing: &Missing, job: impl Fn(JobId) -> Option<Job>) -> Facts {
        let of = |id: &JobId| Some((*id, self.dependencies.get(id)?.clone()));
        let dependencies: Vec<(JobId, Vec<JobId>)> = missing.dependents.iter().filter_map(of).collect();
        let named = missing.jobs.iter().chain(dependencies.iter().flat_map(|(_, ids)| ids));
        Facts {
            jobs: named.filter_map(|id| job(*id)).collect(),
            keys: self.taken(&missing.keys),
            awaited: self.awaited(&missing.awaited, &job),
            dependencies,
        }
    }

    /// Those that depend on these jobs, in the order of their ids, so many of each. `job` finds the row of a job.
    pub fn dependents(&self, of: &[Settling], each: usize, job: impl Fn(JobId) -> Option<Job>) -> Vec<(JobId, Job)> {
        let found = |mark: &Settling| {
            let rows = self.dependents_of(*mark).filter_map(|edge| Some((edge.dependency, job(edge.dependent)?)));
            rows.take(each).collect::<Vec<_>>()
        };
        of.iter().flat_map(found).collect()
    }

    /// Those of these jobs that unfinished ones depend on.
    fn awaited(&self, jobs: &[JobId], job: impl Fn(JobId) -> Option<Job>) -> Vec<JobId> {
        let unfinished = |edge: Edge| job(edge.dependent).is_some_and(|job| !job.state.kind().is_finished());
        let awaited = |id: &&JobId| self.dependents_of(Settling { job: **id, told: None }).any(unfinished);
        jobs.iter().filter(awaited).copied().collect()
    }

    fn dependents_of(&self, mark: Settling) -> impl Iterator<Item = Edge> {
        let first = Edge { dependency: mark.job, dependent: mark.told.unwrap_or(JobId(Uuid::nil())) };
        let of_it = self.edges.range(first..).take_while(move |edge| edge.dependency == mark.job);
        of_it.filter(move |edge| Some(edge.dependent) > mark.told).copied()
    }

    fn taken(&self, keys: &[Arc<str>]) -> HashMap<Arc<str>, JobId> {
        keys.iter().filter_map(|key| Some((Arc::clone(key), *self.keys.get(key)?))).collect()
    }
}
