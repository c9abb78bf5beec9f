//! Reading on in the store: which pages are under way, and what to believe of one that arrives.

use super::{Brain, Effect, Entry, ready::Wanted};
use crate::{
    id::{IdMap, JobId},
    job::{ClassId, Job},
    spec::Priority,
};
use std::{collections::HashMap, sync::Arc};

/// What a page is read from. At most one page of each is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Source {
    Line(ClassId, Priority),
    Timers,
    Dependents,
}

/// A read follows the commit of the batch it was asked in, so it shows all changes up to that batch: a page of a line shows
/// at least all that were made in the part that is read. Of a job that changed later and left memory again, nobody knows
/// whether the page shows the old row or the new one.
#[derive(Debug, Default)]
pub(super) struct Reads {
    /// The batch that each read under way follows.
    open: HashMap<Source, u64>,
    /// The batch of the last change of each job that changed while some read was under way.
    changed: IdMap<JobId, u64>,
    sweep_at: usize,
}

const SWEEP: usize = 1024;

impl Reads {
    pub fn none_open(&self) -> bool {
        self.open.is_empty()
    }

    pub fn is_open(&self, source: Source) -> bool {
        self.open.contains_key(&source)
    }

    pub(super) fn asked(&mut self, source: Source, batch: u64) {
        self.open.insert(source, batch);
    }

    pub fn note_change(&mut self, job: JobId, batch: u64) {
        if !self.open.is_empty() {
            self.changed.insert(job, batch);
        }
    }

    fn may_be_old(&self, source: Source, job: JobId) -> bool {
        match (self.open.get(&source), self.changed.get(&job)) {
            (Some(follows), Some(changed)) => changed > follows,
            _ => false,
        }
    }

    /// Changes that every read still under way is sure to show need not be remembered.
    pub(super) fn answered(&mut self, source: Source) {
        self.open.remove(&source);
        let Some(oldest) = self.open.values().min().copied() else {
            self.changed.clear();
            return;
        };
        if self.changed.len() >= self.sweep_at {
            self.changed.retain(|_, changed| *changed > oldest);
            self.sweep_at = SWEEP.max(2 * self.changed.len());
        }
    }
}

impl Brain {
    pub(super) fn ask_for_more(&mut self) {
        self.touched.sort_unstable();
        self.touched.dedup();
        let touched = std::mem::take(&mut self.touched);
        for wanted in self.ready.wanted(&touched, self.batch) {
            self.read_ready(wanted);
        }
        if let Some(after) = self.timers.wanted() {
            self.reads.asked(Source::Timers, self.batch);
            self.effects.push(Effect::ReadDue { after, limit: self.config.window });
        }
        self.read_dependents();
    }

    pub(super) fn read_ready(&mut self, wanted: Wanted) {
        let Wanted { class, priority, after, follows } = wanted;
        self.reads.asked(Source::Line(class, priority), self.batch);
        self.effects.push(Effect::ReadReady { class, priority, after, limit: self.config.window, follows });
    }

    pub(super) fn take_ready(&mut self, class: ClassId, priority: Priority, limit: usize, found: Vec<Job>) {
        let found = shared(found);
        let whole = self.ready.whole(class, priority, &found);
        let keep = self.take_page(Source::Line(class, priority), whole);
        self.ready.loaded(class, priority, found.len() < limit, whole, &keep);
        self.touched.push(class);
    }

    pub(super) fn take_due(&mut self, limit: usize, found: Vec<Job>) {
        let found = shared(found);
        let whole = self.timers.whole(&found);
        let keep = self.take_page(Source::Timers, whole);
        self.timers.loaded(found.len() < limit, whole, &keep);
    }

    /// How many of the first jobs of a page it tells the truth of.
    pub(super) fn believed(&self, source: Source, found: &[Job]) -> usize {
        let old = |job: &Job| !self.jobs.contains_key(&job.id) && self.reads.may_be_old(source, job.id);
        found.iter().position(old).unwrap_or(found.len())
    }

    /// Brings a page into memory, and returns the jobs of it of which the page still tells the truth.
    fn take_page<'a>(&mut self, source: Source, found: &'a [Arc<Job>]) -> Vec<&'a Arc<Job>> {
        let mut keep = Vec::with_capacity(found.len());
        for job in found {
            let current = match self.jobs.get(&job.id) {
                Some(entry) => entry.job.state == job.state && entry.job.seq == job.seq,
                None => !self.reads.may_be_old(source, job.id),
            };
            if current {
                let class = || if let Source::Line(class, _) = source { class } else { job.class() };
                self.jobs.entry(job.id).or_insert_with(|| Entry::of_class(class(), Arc::clone(job)));
                keep.push(job);
            }
        }
        self.reads.answered(source);
        keep
    }
}

fn shared(jobs: Vec<Job>) -> Vec<Arc<Job>> {
    jobs.into_iter().map(Arc::new).collect()
}
