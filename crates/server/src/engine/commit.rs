//! One commit, until it is made.

use super::Shared;
use hodei_store::{Commit, StoreError};
use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

/// Between two tries at a commit, growing from the first to the last.
const FIRST_RETRY: Duration = Duration::from_millis(50);
const LAST_RETRY: Duration = Duration::from_secs(1);

/// Commits, however often it takes: the brain is ahead already, and a repeated commit is harmless. Only a store that
/// will never take it again ends this.
pub async fn until_done(shared: Arc<Shared>, commit: Arc<Commit>) -> Result<(), StoreError> {
    let mut wait = FIRST_RETRY;
    loop {
        match shared.store.commit(Arc::clone(&commit)).await {
            Err(StoreError::Unavailable(why)) => {
                shared.failing.store(true, Ordering::Relaxed);
                tracing::warn!(why, batch = commit.batch.number, "cannot commit; trying again");
                tokio::time::sleep(wait).await;
                wait = (wait * 2).min(LAST_RETRY);
            }
            settled => {
                shared.failing.store(false, Ordering::Relaxed);
                return settled;
            }
        }
    }
}
