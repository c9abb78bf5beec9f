//! Placements whose rows have not been written: they are kept in one record a batch until the jobs change again.
//!
//! A job that waited for others is put in line, is given to a worker, starts and often ends within milliseconds. Its row is
//! written with the last of what one commit brings, so a short job costs one write and not three. The record is as durable as
//! a row: whoever loads applies it to the rows that are behind it.

use super::{
    Brain,
    batch::{BatchId, Placement},
};
use crate::{
    id::JobId,
    job::Job,
    time::{Elapsed, Millis},
};
use std::collections::BTreeMap;

/// A row is at most this far behind. Listings read rows.
const LAG: Millis = Millis(100);
/// While many rows are written, and for a moment longer, those that can wait may be further behind.
const BUSY_LAG: Millis = Millis::seconds(5);
const BUSY_FOR: Millis = Millis::seconds(1);

#[derive(Debug, Default)]
pub(super) struct Placements {
    /// Those of the batch that is being made.
    new: Vec<Placement>,
    /// Those of earlier batches that are not all in rows, by the batch's number.
    open: BTreeMap<u64, Open>,
    settled: Vec<BatchId>,
    /// Rows that were written since then.
    rows: (Elapsed, usize),
    /// Until then the store has enough to do.
    busy_until: Elapsed,
}

#[derive(Debug)]
struct Open {
    since: Elapsed,
    jobs: Vec<JobId>,
    left: usize,
}

impl Placements {
    pub fn next_wake(&self) -> Option<Elapsed> {
        self.open.first_key_value().map(|(_, open)| self.late_at(open))
    }

    /// When those of this batch are to be in rows.
    fn late_at(&self, open: &Open) -> Elapsed {
        (open.since + LAG).max(self.busy_until).min(open.since + BUSY_LAG)
    }

    /// So many rows are written now. `many` within the shortest lag are enough for the store to do.
    pub fn note_rows(&mut self, rows: usize, many: usize, now: Elapsed) {
        if now >= self.rows.0 + LAG {
            self.rows = (now, 0);
        }
        self.rows.1 += rows;
        if self.rows.1 >= many {
            self.busy_until = now + BUSY_FOR;
        }
    }

    pub fn add(&mut self, placement: Placement) {
        self.new.push(placement);
    }

    /// Hands out what the batch with this number must hold.
    pub fn take(&mut self, batch: u64, now: Elapsed) -> (Vec<Placement>, Vec<BatchId>) {
        let new = std::mem::take(&mut self.new);
        if !new.is_empty() {
            let jobs: Vec<JobId> = new.iter().map(|placement| placement.job).collect();
            self.open.insert(batch, Open { since: now, left: jobs.len(), jobs });
        }
        (new, std::mem::take(&mut self.settled))
    }

    /// Something later says it all of a job that was placed in this batch: its row, or another placement. If that is the batch
    /// that is being made, it is its row.
    pub fn written(&mut self, id: BatchId, job: JobId) {
        let Some(open) = self.open.get_mut(&id.number) else {
            self.new.retain(|placement| placement.job != job);
            return;
        };
        open.left -= 1;
        if open.left == 0 {
            self.open.remove(&id.number);
            self.settled.push(id);
        }
    }

    /// What earlier leaders left is in rows with the next batch.
    pub fn inherited(&mut self, batches: Vec<BatchId>) {
        self.settled.extend(batches);
    }

    fn late(&self, now: Elapsed) -> Option<(u64, Vec<JobId>)> {
        let (number, open) = self.open.first_key_value()?;
        (now >= self.late_at(open)).then(|| (*number, open.jobs.clone()))
    }
}

impl Brain {
    /// Writes the rows of jobs that were placed a while ago and have not changed since.
    pub(super) fn write_late_placements(&mut self) {
        while let Some((number, jobs)) = self.placements.late(self.elapsed) {
            for id in jobs {
                if self.jobs.get(&id).is_some_and(|entry| entry.placed == Some(number)) {
                    self.mark(id);
                }
            }
        }
    }

    /// Writes the rows of all jobs that were placed and have not changed since.
    pub(super) fn catch_up(&mut self) {
        let open = self.placements.open.values().flat_map(|open| open.jobs.iter().copied());
        for id in open.collect::<Vec<_>>() {
            if self.placed(id).is_some() {
                self.mark(id);
            }
        }
    }

    /// A job that an earlier leader placed: its row says so unless it is behind. True if it then stands in line.
    pub(super) fn take_back_placed(&mut self, placement: Placement, mut job: Job) -> bool {
        let is_behind = placement.apply(&mut job);
        let in_line = is_behind && placement.run.is_none();
        if is_behind {
            self.take_back(job);
            self.mark(placement.job);
        }
        in_line
    }

    /// The job as it is, when its row is behind.
    pub fn placed(&self, id: JobId) -> Option<&Job> {
        self.jobs.get(&id).filter(|entry| entry.placed.is_some()).map(|entry| &*entry.job)
    }
}
