//! What must happen at a certain time: delayed jobs that become due, queue deadlines, run deadlines.
//!
//! Only what is due soonest is in memory; the rest stays in the store and is read as time comes near.

use crate::{id::JobId, job::Job, time::Time};
use std::collections::BTreeSet;

type At = (Time, JobId);

/// All timers up to `end` are in `window`; `more` says that the store may have some beyond it.
#[derive(Debug)]
pub(super) struct Timers {
    size: usize,
    window: BTreeSet<At>,
    /// Those of running jobs, which are in memory anyway.
    pinned: BTreeSet<At>,
    more: bool,
    end: Option<At>,
    reading: bool,
    /// A timer went straight to the store since the last read was asked for, so that read may have missed it.
    missed: bool,
}

impl Timers {
    /// Nothing is known yet of what the store has.
    pub fn new(size: usize) -> Self {
        Self { size, window: BTreeSet::new(), pinned: BTreeSet::new(), more: true, end: None, reading: false, missed: false }
    }

    /// Returns the jobs that had to make room.
    pub fn insert(&mut self, at: Time, job: JobId) -> Vec<JobId> {
        if self.more && Some((at, job)) > self.end {
            self.missed = true;
            return Vec::new();
        }
        self.window.insert((at, job));
        if self.window.len() <= 2 * self.size {
            return Vec::new();
        }
        let cut = self.window.iter().nth(self.size).copied();
        let late = cut.map(|cut| self.window.split_off(&cut)).unwrap_or_default();
        self.end = self.window.last().copied();
        (self.more, self.missed) = (true, true);
        late.into_iter().map(|(_, job)| job).collect()
    }

    /// Holds a timer whatever the window says.
    pub fn pin(&mut self, at: Time, job: JobId) {
        self.pinned.insert((at, job));
    }

    pub fn remove(&mut self, at: Time, job: JobId) {
        self.window.remove(&(at, job));
        self.pinned.remove(&(at, job));
    }

    pub fn holds(&self, at: Time, job: JobId) -> bool {
        self.window.contains(&(at, job))
    }

    pub fn next(&self) -> Option<Time> {
        self.window.first().into_iter().chain(self.pinned.first()).min().map(|(at, _)| *at)
    }

    pub fn pop_due(&mut self, now: Time) -> Option<JobId> {
        [&mut self.window, &mut self.pinned].into_iter().find_map(|timers| {
            let due = timers.first().is_some_and(|(at, _)| *at <= now);
            due.then(|| timers.pop_first()).flatten().map(|(_, job)| job)
        })
    }

    /// Where to read on, when the window runs short; it is then marked as being read.
    pub fn wanted(&mut self) -> Option<Option<At>> {
        if !self.more || self.reading || self.window.len() > self.size / 2 {
            return None;
        }
        (self.reading, self.missed) = (true, false);
        Some(self.end)
    }

    /// Takes in what a read of `limit` found; `keep` are those of it that still hold.
    pub fn loaded(&mut self, limit: usize, found: &[Job], keep: &[Job]) {
        let at = |job: &Job| job.due_at().map(|at| (at, job.id));
        self.reading = false;
        self.window.extend(keep.iter().filter_map(at));
        self.end = self.end.max(found.last().and_then(at));
        self.more = found.len() >= limit || self.missed;
    }
}
