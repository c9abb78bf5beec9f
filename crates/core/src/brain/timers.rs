//! What must happen at a certain time: delayed jobs that become due, queue deadlines, run deadlines.
//!
//! Only what is due soonest is in memory; the rest stays in the store and is read as time comes near.

use crate::{id::JobId, job::Job, time::Time};
use std::{collections::BTreeSet, sync::Arc};

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
    /// The first timer that went straight to the store since the last read was asked for: from there on, that read may
    /// have missed something.
    missed: Option<At>,
}

impl Timers {
    /// Nothing is known yet of what the store has.
    pub fn new(size: usize) -> Self {
        Self {
            size,
            window: BTreeSet::new(),
            pinned: BTreeSet::new(),
            more: true,
            end: None,
            reading: false,
            missed: None,
        }
    }

    /// Returns the jobs that had to make room.
    pub fn insert(&mut self, at: Time, job: JobId) -> Vec<JobId> {
        if self.more && Some((at, job)) > self.end {
            self.miss((at, job));
            return Vec::new();
        }
        self.window.insert((at, job));
        if self.window.len() <= 2 * self.size {
            return Vec::new();
        }
        let cut = self.window.iter().nth(self.size).copied();
        let late = cut.map(|cut| self.window.split_off(&cut)).unwrap_or_default();
        self.end = self.window.last().copied();
        self.more = true;
        late.first().copied().into_iter().for_each(|first| self.miss(first));
        late.into_iter().map(|(_, job)| job).collect()
    }

    fn miss(&mut self, timer: At) {
        self.missed = Some(self.missed.map_or(timer, |missed| missed.min(timer)));
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
        (self.reading, self.missed) = (true, None);
        Some(self.end)
    }

    /// The part of a page between whose timers no other can be missing.
    pub fn whole<'a>(&self, found: &'a [Arc<Job>]) -> &'a [Arc<Job>] {
        let end = self.missed.map_or(found.len(), |missed| found.partition_point(|job| timer_of(job) < Some(missed)));
        &found[..end]
    }

    /// Takes in the whole part of a page, which was the `last` if it was short; `keep` are those that still hold.
    pub fn loaded(&mut self, last: bool, whole: &[Arc<Job>], keep: &[&Arc<Job>]) {
        self.reading = false;
        self.window.extend(keep.iter().filter_map(|job| timer_of(job)));
        self.end = self.end.max(whole.last().and_then(|job| timer_of(job)));
        self.more = !last || self.missed.is_some();
    }
}

fn timer_of(job: &Job) -> Option<At> {
    job.due_at().map(|at| (at, job.id))
}

#[cfg(feature = "inspect")]
impl Timers {
    /// Whether a timer is in memory, or beyond what has been read.
    pub fn will_reach(&self, at: Time, job: JobId) -> bool {
        self.holds(at, job) || (self.more && Some((at, job)) > self.end)
    }

    pub fn window_len(&self) -> usize {
        self.window.len()
    }
}
