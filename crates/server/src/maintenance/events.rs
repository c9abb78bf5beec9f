//! Drops entries of the journal when event streams need not go back to them any more.

use super::ROUND;
use crate::engine::Engine;
use hodei_core::journal::JournalId;
use hodei_store::Aside;
use std::{collections::VecDeque, time::Instant};
use tokio::time::sleep;

/// The journal does not say when its entries were made, so the service remembers where it ended at each round. What is
/// older than the first round is kept for the whole time, counted from there.
pub async fn run(engine: Engine) {
    let kept = engine.shared().options.events_kept.duration();
    let mut rounds: VecDeque<(Instant, JournalId)> = VecDeque::new();
    let mut dropped = JournalId(0);
    loop {
        let end = match engine.shared().store.journal_ends().await {
            Ok(ends) => ends.map(|(_, last)| last),
            Err(error) => {
                tracing::warn!(%error, "cannot look at the journal; trying again later");
                None
            }
        };
        rounds.extend(end.map(|end| (Instant::now(), end)));
        let mut from = None;
        while let Some((_, id)) = rounds.pop_front_if(|(at, _)| at.elapsed() >= kept) {
            from = Some(id);
        }
        if let Some(from) = from.filter(|from| *from > dropped) {
            engine.note(Aside { journal_from: Some(from), ..Aside::default() });
            dropped = from;
        }
        sleep(ROUND.min(kept)).await;
    }
}
