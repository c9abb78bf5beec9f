//! What jobs find besides their specs: their data, what resumed them, the results of those they depend on, their tick.

use hodei_api::convert;
use hodei_core::{
    brain::RunMore,
    id::{IdMap, IdSet, JobId},
    protocol::{Context, DependencyResult},
};
use hodei_store::{Store, StoreError};
use std::{collections::BTreeMap, sync::Arc};

/// The results that one job is given; what is beyond it can be asked for.
const RESULT_BYTES: usize = 2 << 20;

/// A job that is about to be sent, with its payload.
pub struct Leaving<'a> {
    pub job: JobId,
    pub payload: &'a [u8],
    pub more: &'a RunMore,
}

/// The contexts of these jobs, in as many reads as there are kinds of things to read.
pub async fn gather(store: &dyn Store, leaving: &[Leaving<'_>]) -> Result<IdMap<JobId, Context>, StoreError> {
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
        let ids: Vec<JobId> = named.into_iter().collect();
        let names: IdMap<JobId, Arc<str>> =
            store.jobs(ids.clone()).await?.into_iter().map(|job| (job.id, job.name)).collect();
        let results: BTreeMap<JobId, Vec<u8>> = store.results(ids).await?.into_iter().collect();
        for (job, ids) in links {
            if let Some(context) = contexts.get_mut(&job) {
                context.dependencies = left_by(&ids, &names, &results);
            }
        }
    }
    Ok(contexts)
}

fn dependencies(payload: &[u8]) -> Vec<JobId> {
    convert::spec_of_payload(payload).map(|spec| spec.depends_on).unwrap_or_default()
}

fn left_by(ids: &[JobId], names: &IdMap<JobId, Arc<str>>, results: &BTreeMap<JobId, Vec<u8>>) -> Vec<DependencyResult> {
    let mut room = RESULT_BYTES;
    let left = |id: &JobId| {
        let name = names.get(id).map_or_else(String::new, |name| name.to_string());
        let result = results.get(id).filter(|result| result.len() <= room).cloned();
        room -= result.as_ref().map_or(0, Vec::len);
        DependencyResult { job: *id, name, result }
    };
    ids.iter().map(left).collect()
}
