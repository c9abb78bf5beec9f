//! Drops finished jobs, with their logs and results, when they have been kept for the set time.

use super::ROUND;
use crate::{
    calls::{Calls, Problem},
    clock,
};
use hodei_core::{
    brain::ManyJobs,
    state::StateKind,
    time::{Millis, Time},
};
use std::time::Duration;
use tokio::time::sleep;

/// Jobs that go in one commit: few enough that nobody waits for it.
const STEP: usize = 500;
/// Between two steps, so that deletes never crowd out the work.
const BREATH: Duration = Duration::from_millis(20);

pub async fn run(calls: Calls) {
    loop {
        let kept = calls.engine.shared().options.retention;
        for state in StateKind::ALL.into_iter().filter(|state| state.is_finished()) {
            if let Some(kept) = kept
                && let Err(problem) = sweep(&calls, state, kept).await
            {
                tracing::warn!(%problem, "cannot drop old jobs; trying again later");
            }
        }
        sleep(ROUND.min(kept.map_or(ROUND, Millis::duration)).max(Duration::from_millis(100))).await;
    }
}

async fn sweep(calls: &Calls, state: StateKind, kept: Millis) -> Result<(), Problem> {
    let before = Time(clock::now().wall.0.saturating_sub_unsigned(kept.0));
    let (mut after, mut dropped) = (None, 0);
    loop {
        let (jobs, next) = calls.engine.shared().store.expired(state, before, after, STEP).await?;
        dropped += calls.many(jobs, ManyJobs::Forget).await?;
        after = next;
        if after.is_none() {
            break;
        }
        sleep(BREATH).await;
    }
    if dropped > 0 {
        tracing::info!(dropped, state = state.name(), "dropped old jobs");
    }
    Ok(())
}
