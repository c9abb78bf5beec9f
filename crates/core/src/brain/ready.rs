//! The queue: which job is next.
//!
//! Pending jobs with the same queue and requirements form a class, and what fits one of a class fits all. A class has a
//! line per priority, and only the head of each line is in memory; the rest stays in the store and is read when the head
//! runs short. All classes are ranked by their first job.

use crate::{
    defect::{Defect, planted},
    id::JobId,
    job::{ClassId, Job},
    spec::Priority,
};
use std::collections::{BTreeMap, BTreeSet, HashMap};

#[derive(Debug)]
pub(super) struct Ready {
    window: usize,
    classes: HashMap<ClassId, Class>,
    heads: BTreeSet<Head>,
}

/// The best of a class. `job` is missing when it is still in the store: then nobody knows yet what comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Head {
    pub priority: Priority,
    pub seq: u64,
    pub class: ClassId,
    pub job: Option<JobId>,
}

#[derive(Debug, Default)]
struct Class {
    lines: [Line; 4],
    head: Option<Head>,
}

/// All jobs of the line with a place up to `end` are in `window`; `more` says that the store may have some beyond it.
#[derive(Debug, Default)]
struct Line {
    window: BTreeMap<u64, JobId>,
    more: bool,
    end: u64,
    reading: bool,
    /// The first place of a job that went straight to the store since the last read was asked for: from there on, that
    /// read may have missed something.
    missed: Option<u64>,
}

/// A read that a line needs.
pub(super) struct Wanted {
    pub class: ClassId,
    pub priority: Priority,
    pub after: Option<u64>,
}

impl Ready {
    pub fn new(window: usize) -> Self {
        Self { window, classes: HashMap::new(), heads: BTreeSet::new() }
    }

    pub fn classes(&self) -> usize {
        self.classes.len()
    }

    pub fn knows(&self, class: ClassId) -> bool {
        self.classes.contains_key(&class)
    }

    /// Puts a pending job in line.
    pub fn insert(&mut self, job: &Job) {
        let window = self.window;
        self.line(job).insert(window, job.seq, job.id);
        self.rank(job.class());
    }

    /// Takes a job out of line, wherever it stands.
    pub fn remove(&mut self, job: &Job) {
        let id = job.class();
        if let Some(class) = self.classes.get_mut(&id) {
            class.lines[job.priority as usize].window.remove(&job.seq);
            self.rank(id);
        }
    }

    /// Whether a pending job is held in memory because of its place in line.
    pub fn holds(&self, job: &Job) -> bool {
        self.classes
            .get(&job.class())
            .is_some_and(|class| class.lines[job.priority as usize].window.get(&job.seq) == Some(&job.id))
    }

    /// The best head that ranks after `passed`.
    pub fn head_after(&self, passed: Option<Head>) -> Option<Head> {
        use std::ops::Bound::*;
        let from = passed.map_or(Unbounded, Excluded);
        self.heads.range((from, Unbounded)).next().copied()
    }

    /// Says that the store has jobs of this line that have not been read. Used at start.
    pub fn expect(&mut self, class: ClassId, priority: Priority) -> Wanted {
        let line = &mut self.classes.entry(class).or_default().lines[priority as usize];
        (line.more, line.reading) = (true, true);
        self.rank(class);
        Wanted { class, priority, after: None }
    }

    /// The lines that run short, each marked as being read.
    pub fn wanted(&mut self, touched: &[ClassId]) -> Vec<Wanted> {
        let mut wanted = Vec::new();
        for id in touched {
            let Some(class) = self.classes.get_mut(id) else { continue };
            for priority in Priority::ALL {
                let line = &mut class.lines[priority as usize];
                if line.more && !line.reading && line.window.len() <= self.window / 4 {
                    (line.reading, line.missed) = (true, None);
                    wanted.push(Wanted { class: *id, priority, after: Some(line.end) });
                }
            }
        }
        wanted
    }

    /// The part of a page between whose jobs no other can be missing.
    pub fn whole<'a>(&self, class: ClassId, priority: Priority, found: &'a [Job]) -> &'a [Job] {
        let missed = self.classes.get(&class).and_then(|class| class.lines[priority as usize].missed);
        let end = missed.map_or(found.len(), |missed| found.partition_point(|job| job.seq < missed));
        &found[..end]
    }

    /// Takes in the whole part of a page, which was the `last` if it was short; `keep` are those that still wait.
    pub fn loaded(&mut self, class: ClassId, priority: Priority, last: bool, whole: &[Job], keep: &[Job]) {
        if let Some(entry) = self.classes.get_mut(&class) {
            entry.lines[priority as usize].loaded(last, whole, keep);
        }
        self.rank(class);
    }

    fn line(&mut self, job: &Job) -> &mut Line {
        &mut self.classes.entry(job.class()).or_default().lines[job.priority as usize]
    }

    /// Puts the class where its first job belongs; a class without jobs is forgotten.
    fn rank(&mut self, id: ClassId) {
        let Some(class) = self.classes.get_mut(&id) else { return };
        let head = class.first(id);
        if head != class.head {
            if let Some(old) = &class.head {
                self.heads.remove(old);
            }
            if let Some(new) = head {
                self.heads.insert(new);
            }
            class.head = head;
        }
        if head.is_none() {
            self.classes.remove(&id);
        }
    }
}

impl Class {
    fn first(&self, class: ClassId) -> Option<Head> {
        let mut order = Priority::ALL;
        if planted(Defect::PriorityIgnored) {
            order.reverse();
        }
        order.into_iter().find_map(|priority| {
            let line = &self.lines[priority as usize];
            match line.window.first_key_value() {
                Some((seq, job)) => Some(Head { priority, seq: *seq, class, job: Some(*job) }),
                None if line.more => Some(Head { priority, seq: line.end, class, job: None }),
                None => None,
            }
        })
    }
}

impl Line {
    fn insert(&mut self, window: usize, seq: u64, job: JobId) {
        if !self.more && self.window.len() >= window {
            self.more = true;
            self.end = self.window.last_key_value().map_or(0, |(seq, _)| *seq);
        }
        if self.more && seq > self.end {
            self.missed = Some(self.missed.map_or(seq, |missed| missed.min(seq)));
        } else {
            self.window.insert(seq, job);
        }
    }

    fn loaded(&mut self, last: bool, whole: &[Job], keep: &[Job]) {
        self.reading = false;
        self.window.extend(keep.iter().map(|job| (job.seq, job.id)));
        self.end = whole.last().map_or(self.end, |job| self.end.max(job.seq));
        self.more = (!last || self.missed.is_some()) && !planted(Defect::LineForgotten);
    }
}

#[cfg(feature = "inspect")]
impl Ready {
    /// Whether a pending job is in line, or beyond what has been read of it.
    pub fn will_reach(&self, job: &Job) -> bool {
        let line = self.classes.get(&job.class()).map(|class| &class.lines[job.priority as usize]);
        self.holds(job) || line.is_some_and(|line| line.more && job.seq > line.end)
    }

    pub fn longest_window(&self) -> usize {
        let lines = self.classes.values().flat_map(|class| &class.lines);
        lines.map(|line| line.window.len()).max().unwrap_or(0)
    }
}
