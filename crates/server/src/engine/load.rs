//! What a new leader reads before the loop begins.

use crate::{clock, options::Options};
use hodei_api::convert;
use hodei_core::{
    brain::{BatchId, Brain, Loaded, Placement, ScheduledJob, Settling},
    id::JobId,
    job::Job,
    schedule::{Overlap, ScheduleRecord},
};
use hodei_store::{Store, StoreError};
use std::{collections::HashMap, sync::Arc};

pub(super) async fn load(store: &dyn Store, options: &Options) -> Result<Brain, StoreError> {
    let leadership = store.lead().await?;
    let (placed, placed_in) = placed(store).await?;
    let schedules = schedules(store).await?;
    let loaded = Loaded {
        epoch: leadership.epoch,
        last: leadership.last,
        parked_until: leadership.parked_until,
        active: store.active().await?,
        placed,
        placed_in,
        workers: store.workers().await?,
        tokens: store.tokens().await?,
        lanes: store.lanes().await?,
        queues: store.queues().await?,
        counts: store.counts().await?,
        replaceable: replaceable(store, &schedules).await?,
        schedules,
        settling: settling(store).await?,
        scheduler: store.scheduler().await?.unwrap_or_default(),
        providers: store.providers().await?,
        templates: store.templates().await?,
    };
    let now = clock::now();
    let seed = now.elapsed.0 ^ now.wall.0.unsigned_abs();
    tracing::info!(
        epoch = loaded.epoch,
        active = loaded.active.len(),
        workers = loaded.workers.len(),
        lines = loaded.lanes.len(),
        "loaded"
    );
    Ok(Brain::load(options.brain(seed), loaded, now))
}

/// The schedules, with the jobs that they make.
async fn schedules(store: &dyn Store) -> Result<Vec<(ScheduleRecord, ScheduledJob)>, StoreError> {
    let mut schedules = Vec::new();
    for (record, payload) in store.schedules().await? {
        let broken = |why: String| StoreError::Broken(format!("the job of schedule {}: {why}", record.name));
        let spec = convert::spec_of_payload(&payload).map_err(|bad| broken(bad.to_string()))?;
        schedules.push((record, ScheduledJob { spec: Arc::new(spec), payload: payload.into() }));
    }
    Ok(schedules)
}

/// The unfinished jobs that ticks of these schedules replace.
async fn replaceable(store: &dyn Store, schedules: &[(ScheduleRecord, ScheduledJob)]) -> Result<Vec<Job>, StoreError> {
    let replacing = schedules.iter().filter(|(record, _)| record.overlap == Overlap::Replace);
    let live: Vec<JobId> = replacing.flat_map(|(record, _)| record.live.iter().copied()).collect();
    if live.is_empty() { Ok(Vec::new()) } else { store.jobs(live).await }
}

/// The ends that the last leader did not tell to all, with the jobs that ended.
async fn settling(store: &dyn Store) -> Result<Vec<(Settling, Job)>, StoreError> {
    let marks = store.settling().await?;
    let jobs = store.jobs(marks.iter().map(|mark| mark.job).collect()).await?;
    let with_mark = |job: Job| marks.iter().find(|mark| mark.job == job.id).map(|mark| (*mark, job));
    Ok(jobs.into_iter().filter_map(with_mark).collect())
}

/// The placements that the last leader left, with the rows of their jobs.
async fn placed(store: &dyn Store) -> Result<(Vec<(Placement, Job)>, Vec<BatchId>), StoreError> {
    let batches = store.placements().await?;
    let ids = batches.iter().map(|batch| batch.id).collect();
    let placements: HashMap<JobId, Placement> =
        batches.into_iter().flat_map(|batch| batch.placements).map(|placement| (placement.job, placement)).collect();
    let jobs = store.jobs(placements.keys().copied().collect()).await?;
    let with_placement = |job: Job| placements.get(&job.id).map(|placement| (*placement, job));
    Ok((jobs.into_iter().filter_map(with_placement).collect(), ids))
}
