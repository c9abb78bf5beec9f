//! What jobs find besides their specs: their data, what resumed them, the results of those they depend on, their tick.

use hodei_api::{convert, v1};
use hodei_core::{
    brain::{JobWrite, RunMore},
    id::{IdMap, IdSet, JobId},
    protocol::{Context, DependencyResult},
    state::StateKind,
};
use hodei_store::{Store, StoreError};
use prost::Message;
use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
};

/// The results that one job is given; what is beyond it can be asked for.
const RESULT_BYTES: usize = 2 << 20;

/// What is remembered of jobs that others depend on, and about what one takes besides its bytes.
const KEPT_BYTES: usize = 32 << 20;
const ENTRY_BYTES: usize = 128;

/// What one job left for those that depend on it.
#[derive(Clone, Debug)]
struct Left {
    name: Arc<str>,
    result: Option<Arc<[u8]>>,
}

impl Left {
    fn bytes(&self) -> usize {
        ENTRY_BYTES + self.name.len() + self.result.as_ref().map_or(0, |result| result.len())
    }
}

/// Jobs that others depend on and that succeeded lately: most of their dependents ask for them within seconds.
#[derive(Debug, Default)]
pub struct Ended {
    by_job: IdMap<JobId, Left>,
    /// In the order of their ends.
    order: VecDeque<JobId>,
    bytes: usize,
}

impl Ended {
    /// Takes note of a write. The one that says that a job has succeeded is its last, and has what it left.
    pub fn note(&mut self, write: &JobWrite) {
        let JobWrite { job, result, .. } = write;
        let awaited = job.extra.as_ref().is_some_and(|extra| extra.has_dependents);
        if !awaited || job.state.kind() != StateKind::Succeeded || self.by_job.contains_key(&job.id) {
            return;
        }
        let left = Left { name: Arc::clone(&job.name), result: result.clone() };
        self.bytes += left.bytes();
        self.by_job.insert(job.id, left);
        self.order.push_back(job.id);
        while self.bytes > KEPT_BYTES
            && let Some(oldest) = self.order.pop_front()
        {
            self.forget(oldest);
        }
    }

    fn forget(&mut self, job: JobId) {
        if let Some(left) = self.by_job.remove(&job) {
            self.bytes -= left.bytes();
        }
    }
}

/// A job that is about to be sent, with its payload.
pub struct Leaving<'a> {
    pub job: JobId,
    pub payload: &'a [u8],
    pub more: &'a RunMore,
}

/// The contexts of these jobs, in as many reads as there are kinds of things to read.
pub async fn gather(
    store: &dyn Store,
    ended: &Mutex<Ended>,
    leaving: &[Leaving<'_>],
) -> Result<IdMap<JobId, Context>, StoreError> {
    let mut contexts: IdMap<JobId, Context> = IdMap::default();
    for run in leaving {
        let tick = run.more.tick.as_ref().map(|(schedule, tick)| (schedule.to_string(), *tick));
        contexts.insert(run.job, Context { tick, ..Context::default() });
    }
    let with_data: Vec<JobId> = leaving.iter().filter(|run| run.more.has_data).map(|run| run.job).collect();
    if !with_data.is_empty() {
        for found in store.data(with_data).await? {
            if let Some(context) = contexts.get_mut(&found.job) {
                (context.data, context.input) = (found.data, found.input);
            }
        }
    }
    let dependent = leaving.iter().filter(|run| run.more.depends);
    let links: Vec<(JobId, Vec<JobId>)> = dependent.map(|run| (run.job, dependencies(run.payload))).collect();
    let named: IdSet<JobId> = links.iter().flat_map(|(_, ids)| ids.iter().copied()).collect();
    if !named.is_empty() {
        let left = left(store, ended, named).await?;
        for (job, ids) in links {
            if let Some(context) = contexts.get_mut(&job) {
                context.dependencies = left_by(&ids, &left);
            }
        }
    }
    Ok(contexts)
}

/// What these jobs left: as far as it is remembered, and the rest in two reads.
async fn left(store: &dyn Store, ended: &Mutex<Ended>, named: IdSet<JobId>) -> Result<IdMap<JobId, Left>, StoreError> {
    let mut found = IdMap::default();
    let mut missing = Vec::new();
    {
        let ended = ended.lock().unwrap_or_else(PoisonError::into_inner);
        for id in named {
            match ended.by_job.get(&id) {
                Some(left) => _ = found.insert(id, left.clone()),
                None => missing.push(id),
            }
        }
    }
    if !missing.is_empty() {
        for job in store.jobs(missing.clone()).await? {
            found.insert(job.id, Left { name: job.name, result: None });
        }
        for (id, result) in store.results(missing).await? {
            found.entry(id).and_modify(|left| left.result = Some(result.into()));
        }
    }
    Ok(found)
}

/// What these jobs depend on, as far as they are stored.
pub async fn dependencies_of(store: &dyn Store, jobs: IdSet<JobId>) -> Result<Vec<(JobId, Vec<JobId>)>, StoreError> {
    if jobs.is_empty() {
        return Ok(Vec::new());
    }
    let payloads = store.payloads(jobs.into_iter().collect()).await?;
    Ok(payloads.into_iter().map(|(job, payload)| (job, dependencies(&payload))).collect())
}

fn dependencies(payload: &[u8]) -> Vec<JobId> {
    let spec = v1::JobSpec::decode(payload).unwrap_or_default();
    spec.depends_on.iter().filter_map(|id| convert::job_id(id).ok()).collect()
}

fn left_by(ids: &[JobId], left: &IdMap<JobId, Left>) -> Vec<DependencyResult> {
    let mut room = RESULT_BYTES;
    let of = |id: &JobId| {
        let left = left.get(id);
        let name = left.map_or_else(String::new, |left| left.name.to_string());
        let result = left.and_then(|left| left.result.as_ref()).filter(|result| result.len() <= room);
        room -= result.map_or(0, |result| result.len());
        DependencyResult { job: *id, name, result: result.map(|result| result.to_vec()) }
    };
    ids.iter().map(of).collect()
}
