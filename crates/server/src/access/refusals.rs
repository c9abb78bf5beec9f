//! What was refused, on its way to the audit log: one line for each sender and second, so that nobody can fill the disk by
//! knocking.

use hodei_core::access::AuditEntry;
use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};
use tokio::sync::Notify;

/// Senders that get a line of their own at a time; the rest share one.
const SENDERS: usize = 100;

#[derive(Debug, Default)]
pub struct Refusals {
    /// By actor and peer: the first, and how many more.
    waiting: Mutex<HashMap<(String, String), (AuditEntry, u64)>>,
    came: Notify,
}

impl Refusals {
    pub fn add(&self, line: AuditEntry) {
        let mut waiting = self.lock();
        let mut sender = (line.actor.clone(), line.peer.clone());
        if waiting.len() >= SENDERS && !waiting.contains_key(&sender) {
            sender = ("others".to_owned(), "many".to_owned());
        }
        let line = AuditEntry { actor: sender.0.clone(), peer: sender.1.clone(), ..line };
        waiting.entry(sender).and_modify(|(_, more)| *more += 1).or_insert((line, 0));
        drop(waiting);
        self.came.notify_one();
    }

    /// Resolves when there is something to write.
    pub async fn came(&self) {
        self.came.notified().await;
    }

    pub fn take(&self) -> Vec<AuditEntry> {
        let taken = std::mem::take(&mut *self.lock());
        let mut lines: Vec<AuditEntry> = taken.into_values().map(told).collect();
        lines.sort_by_key(|line| line.at);
        lines
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<(String, String), (AuditEntry, u64)>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn told((line, more): (AuditEntry, u64)) -> AuditEntry {
    let outcome = match more {
        0 => format!("refused: {}", line.outcome),
        more => format!("refused: {} (and {more} more within a second)", line.outcome),
    };
    AuditEntry { outcome, ..line }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hodei_core::time::Time;

    #[test]
    fn many_senders_share_a_line() {
        let refusals = Refusals::default();
        let line = |peer: u32| AuditEntry {
            at: Time(0),
            actor: "anonymous".into(),
            peer: peer.to_string(),
            action: "jobs.get".into(),
            subject: String::new(),
            outcome: "unknown token".into(),
        };
        (0..10_000).for_each(|peer| refusals.add(line(peer)));
        let lines = refusals.take();
        assert_eq!(lines.len(), SENDERS + 1);
        let others = lines.iter().find(|line| line.actor == "others").expect("a line for the rest");
        assert_eq!(others.outcome, "refused: unknown token (and 9899 more within a second)");
        assert_eq!(refusals.take(), Vec::new());
    }
}
