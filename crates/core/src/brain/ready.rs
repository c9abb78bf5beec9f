//! The queue: which job is next.
//!
//! Pending jobs with the same queue, task type, requirements and concurrency key form a class, and what fits one of a
//! class fits all. A class has a line per priority, and only the head of each line is in memory; the rest stays in the
//! store and is read when the head runs short. All classes are ranked by their first job. Jobs that are in memory anyway
//! when they get their place are kept there, wherever it is, so that they need no row before they run.
//!
//! A class stands behind up to two gates: its queue and its concurrency key. Behind a closed gate it is held apart from
//! the others. A gate that opens lets only the best of those behind it go, and whenever that one is placed, passed over or
//! held by its other gate, the next: so an open gate never holds a class that ranks before all of its classes that are
//! not held, and nothing is ever walked through.

use super::SEQ_PER_MS;
use crate::{
    defect::{Defect, planted},
    id::JobId,
    job::{ClassId, Job},
    spec::{Concurrency, Priority},
    time::{Millis, Time},
};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

/// How many windows' worth of jobs a line keeps in memory at most.
const KEPT: usize = 8;

/// Where in line a job must stand to be kept in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keep {
    AtTheHead,
    AnyPlace,
}

#[derive(Debug)]
pub(super) struct Ready {
    window: usize,
    now: Time,
    classes: HashMap<ClassId, Class>,
    /// The classes that nothing is known to hold.
    heads: BTreeSet<Head>,
    held: HashMap<Gate, BTreeSet<Head>>,
    /// Queues whose jobs rise while they wait.
    ageing: HashMap<Arc<str>, Millis>,
    /// When classes of these queues may rank differently.
    rises: BTreeSet<(Time, ClassId)>,
}

/// What can hold a class.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Gate {
    Queue(Arc<str>),
    /// One key can be used with several limits.
    Key(Concurrency),
}

/// The best of a class, with the priority that it counts as. `job` is missing when it is still in the store: then nobody
/// knows yet what comes next.
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
    /// Known since the first job of it was seen.
    owner: Option<Owner>,
    held: Option<Gate>,
    /// When one of its first jobs rises.
    rise: Option<Time>,
}

/// Whose jobs these are.
#[derive(Clone, Debug)]
struct Owner {
    queue: Arc<str>,
    key: Option<Concurrency>,
}

/// All jobs of the line with a place up to `end` are in `window`; `more` says that the store may have some beyond it.
#[derive(Debug, Default)]
struct Line {
    window: BTreeMap<u64, JobId>,
    /// Jobs beyond `end` that are in memory. They join the window when it reaches them; the store may lack them.
    beyond: BTreeMap<u64, JobId>,
    more: bool,
    end: u64,
    reading: bool,
    /// The first place of a job that went straight to the store since the last read was asked for: from there on, that
    /// read may have missed something.
    missed: Option<u64>,
    /// What stands beyond `end` changed in this turn.
    changed: bool,
    /// The batch of the last such change: a page that shows it shows all that there is beyond `end`.
    follows: u64,
}

/// A read that a line needs.
pub(super) struct Wanted {
    pub class: ClassId,
    pub priority: Priority,
    pub after: Option<u64>,
    pub follows: u64,
}

impl Ready {
    pub fn new(window: usize) -> Self {
        Self {
            window,
            now: Time::default(),
            classes: HashMap::new(),
            heads: BTreeSet::new(),
            held: HashMap::new(),
            ageing: HashMap::new(),
            rises: BTreeSet::new(),
        }
    }

    /// Lets those rise that have waited long enough by now.
    pub fn clock(&mut self, now: Time) {
        self.now = now;
        while let Some((at, class)) = self.rises.first().copied().filter(|(at, _)| *at <= now) {
            self.rises.remove(&(at, class));
            if let Some(class) = self.classes.get_mut(&class) {
                class.rise = None;
            }
            self.rank(class);
        }
    }

    /// When the order may change by itself.
    pub fn next_rise(&self) -> Option<Time> {
        self.rises.first().map(|(at, _)| *at)
    }

    /// Jobs of this queue rise by one priority for every `wait`.
    pub fn set_ageing(&mut self, queue: &Arc<str>, wait: Option<Millis>) {
        let old = match wait {
            Some(wait) => self.ageing.insert(Arc::clone(queue), wait),
            None => self.ageing.remove(queue),
        };
        if old != wait {
            // Those that are not known yet may be of this queue.
            let of_it = |class: &Class| class.owner.as_ref().is_none_or(|owner| owner.queue == *queue);
            let classes = self.classes.iter().filter(|(_, class)| of_it(class)).map(|(id, _)| *id);
            classes.collect::<Vec<_>>().into_iter().for_each(|class| self.rank(class));
        }
    }

    pub fn classes(&self) -> usize {
        self.classes.len()
    }

    pub fn knows(&self, class: ClassId) -> bool {
        self.classes.contains_key(&class)
    }

    /// Puts a pending job in line. If it can be kept in memory, and there is room, it is.
    pub fn insert(&mut self, id: ClassId, job: &Job, keep: Keep) {
        let window = self.window;
        let class = self.classes.entry(id).or_default();
        class.learn(job);
        let line = &mut class.lines[job.priority as usize];
        match keep {
            Keep::AnyPlace if line.len() < KEPT * window => line.keep(job.seq, job.id),
            _ => line.insert(window, job.seq, job.id),
        }
        self.rank(id);
    }

    /// Takes a job out of line, wherever it stands.
    pub fn remove(&mut self, id: ClassId, job: &Job) {
        if let Some(class) = self.classes.get_mut(&id) {
            let line = &mut class.lines[job.priority as usize];
            line.remove(job.seq);
            self.rank(id);
        }
    }

    /// Whether a pending job is held in memory because of its place in line.
    pub fn holds(&self, id: ClassId, job: &Job) -> bool {
        self.classes.get(&id).is_some_and(|class| class.lines[job.priority as usize].get(job.seq) == Some(&job.id))
    }

    /// The best of a class.
    pub fn head_of(&self, class: ClassId) -> Option<Head> {
        self.classes.get(&class)?.head
    }

    pub fn all(&self) -> impl Iterator<Item = ClassId> {
        self.classes.keys().copied()
    }

    /// The best head that ranks after `passed`.
    pub fn head_after(&self, passed: Option<Head>) -> Option<Head> {
        use std::ops::Bound::*;
        let from = passed.map_or(Unbounded, Excluded);
        self.heads.range((from, Unbounded)).next().copied()
    }

    /// How many jobs of a class wait in memory.
    pub fn waiting(&self, class: ClassId) -> u32 {
        let lines = self.classes.get(&class).map(|class| class.lines.iter().map(Line::len).sum::<usize>());
        u32::try_from(lines.unwrap_or(0)).unwrap_or(u32::MAX)
    }

    /// Says that the store has jobs of this line that have not been read. Used at start; `batch` is the first.
    pub fn expect(&mut self, class: ClassId, priority: Priority, batch: u64) -> Wanted {
        let line = &mut self.classes.entry(class).or_default().lines[priority as usize];
        (line.more, line.reading) = (true, true);
        self.rank(class);
        Wanted { class, priority, after: None, follows: batch }
    }

    /// The lines that run short, each marked as being read; `touched` are those that changed in the turn that makes this
    /// batch. A window's worth is left then: workers that take thousands at a time are not to wait for the store.
    pub fn wanted(&mut self, touched: &[ClassId], batch: u64) -> Vec<Wanted> {
        let mut wanted = Vec::new();
        for id in touched {
            let Some(class) = self.classes.get_mut(id) else { continue };
            for priority in Priority::ALL {
                let line = &mut class.lines[priority as usize];
                if std::mem::take(&mut line.changed) && !planted(Defect::OldPageBelieved) {
                    line.follows = batch;
                }
                if line.more && !line.reading && line.window.len() <= self.window {
                    (line.reading, line.missed) = (true, None);
                    wanted.push(Wanted { class: *id, priority, after: Some(line.end), follows: line.follows });
                }
            }
        }
        wanted
    }

    /// The part of a page between whose jobs no other can be missing.
    pub fn whole<'a>(&self, class: ClassId, priority: Priority, found: &'a [Arc<Job>]) -> &'a [Arc<Job>] {
        let missed = self.classes.get(&class).and_then(|class| class.lines[priority as usize].missed);
        let end = missed.map_or(found.len(), |missed| found.partition_point(|job| job.seq < missed));
        &found[..end]
    }

    /// Takes in the whole part of a page, which was the `last` if it was short; `keep` are those that still wait.
    pub fn loaded(&mut self, class: ClassId, priority: Priority, last: bool, whole: &[Arc<Job>], keep: &[&Arc<Job>]) {
        if let Some(entry) = self.classes.get_mut(&class) {
            whole.first().into_iter().for_each(|job| entry.learn(job));
            entry.lines[priority as usize].loaded(last, whole, keep);
        }
        self.rank(class);
    }

    /// Whose jobs a class holds, as far as that is known.
    pub fn owner(&self, class: ClassId) -> Option<(&Arc<str>, Option<&Concurrency>)> {
        let owner = self.classes.get(&class)?.owner.as_ref()?;
        Some((&owner.queue, owner.key.as_ref()))
    }

    pub fn holds_any(&self) -> bool {
        !self.held.is_empty()
    }

    /// Holds a class behind a gate that is closed.
    pub fn hold(&mut self, id: ClassId, gate: Gate) {
        let Some(class) = self.classes.get_mut(&id).filter(|class| class.held.is_none()) else { return };
        let Some(head) = class.head.filter(|head| self.heads.remove(head)) else { return };
        class.held = Some(gate.clone());
        self.held.entry(gate).or_default().insert(head);
    }

    /// Lets the best class go that a gate holds, because the gate is open, or may be.
    pub fn release(&mut self, gate: &Gate) {
        let Some(held) = self.held.get_mut(gate) else { return };
        let best = held.pop_first();
        if held.is_empty() {
            self.held.remove(gate);
        }
        let Some(head) = best else { return };
        self.heads.insert(head);
        if let Some(class) = self.classes.get_mut(&head.class) {
            class.held = None;
        }
    }

    /// A class is passed over: whoever waits behind its gates may fit where it does not.
    pub fn pass(&mut self, class: ClassId) {
        if self.held.is_empty() {
            return;
        }
        let owner = self.classes.get(&class).and_then(|class| class.owner.as_ref());
        owner.map(Owner::gates).into_iter().flatten().for_each(|gate| self.release(&gate));
    }

    /// Puts the class where its first job belongs, free of what held it; a class without jobs is forgotten. Its gates, if
    /// they are open, go by the new order.
    fn rank(&mut self, id: ClassId) {
        let Some(class) = self.classes.get_mut(&id) else { return };
        let ageing = match &class.owner {
            _ if self.ageing.is_empty() => Ageing::None,
            None => Ageing::Unknown,
            Some(owner) => self.ageing.get(&owner.queue).map_or(Ageing::None, |wait| Ageing::Every(*wait)),
        };
        let rise = class.next_rise(ageing, self.now);
        if rise != class.rise {
            class.rise.into_iter().for_each(|at| _ = self.rises.remove(&(at, id)));
            self.rises.extend(rise.map(|at| (at, id)));
            class.rise = rise;
        }
        let head = class.first(id, ageing, self.now);
        if head == class.head && head.is_some() {
            return;
        }
        let (old, gate) = (std::mem::replace(&mut class.head, head), class.held.take());
        let was_free = gate.is_none();
        self.take_out(old, gate);
        self.heads.extend(head);
        if was_free {
            self.pass(id);
        }
        if head.is_none() {
            self.classes.remove(&id);
        }
    }

    fn take_out(&mut self, head: Option<Head>, gate: Option<Gate>) {
        let Some(head) = head else { return };
        let Some(gate) = gate else {
            self.heads.remove(&head);
            return;
        };
        if let Some(held) = self.held.get_mut(&gate) {
            held.remove(&head);
            if held.is_empty() {
                self.held.remove(&gate);
            }
        }
    }
}

/// How the jobs of a class rise while they wait.
#[derive(Clone, Copy, Debug)]
enum Ageing {
    None,
    Every(Millis),
    /// Nobody knows the queue of the class yet, and some queues are ageing.
    Unknown,
}

impl Ageing {
    /// What a job counts as that has stood in line since its place was given.
    fn priority(self, priority: Priority, seq: u64, now: Time) -> Priority {
        let risen = match self {
            Ageing::None => 0,
            Ageing::Every(wait) => (now - placed_at(seq)).0 / wait.0.max(1),
            Ageing::Unknown => u64::MAX,
        };
        Priority::ALL[(priority as usize).saturating_sub(usize::try_from(risen).unwrap_or(usize::MAX))]
    }

    /// When it counts as more than it does now.
    fn next(self, priority: Priority, seq: u64, now: Time) -> Option<Time> {
        let Ageing::Every(wait) = self else { return None };
        let risen = (now - placed_at(seq)).0 / wait.0.max(1);
        (risen < priority as u64).then(|| placed_at(seq) + Millis((risen + 1).saturating_mul(wait.0)))
    }
}

fn placed_at(seq: u64) -> Time {
    Time(i64::try_from(seq / SEQ_PER_MS).unwrap_or(i64::MAX))
}

impl Owner {
    fn gates(&self) -> impl Iterator<Item = Gate> + use<> {
        let queue = Gate::Queue(Arc::clone(&self.queue));
        std::iter::once(queue).chain(self.key.clone().map(Gate::Key))
    }
}

impl Class {
    fn learn(&mut self, job: &Job) {
        if self.owner.is_none() {
            self.owner = Some(Owner { queue: Arc::clone(&job.queue), key: job.concurrency().cloned() });
        }
    }

    /// The first of each line: its priority and its place. In a line whose head is in the store that place is an
    /// earlier one than the head has.
    fn firsts(&self) -> impl DoubleEndedIterator<Item = (Priority, u64, Option<JobId>)> + '_ {
        Priority::ALL.into_iter().filter_map(|priority| {
            let line = &self.lines[priority as usize];
            match line.window.first_key_value() {
                Some((seq, job)) => Some((priority, *seq, Some(*job))),
                None if line.more => Some((priority, line.end, None)),
                None => None,
            }
        })
    }

    fn first(&self, class: ClassId, ageing: Ageing, now: Time) -> Option<Head> {
        let head = |(priority, seq, job)| Head { priority: ageing.priority(priority, seq, now), seq, class, job };
        let mut heads = self.firsts().map(head);
        if planted(Defect::PriorityIgnored) { heads.next_back() } else { heads.min() }
    }

    fn next_rise(&self, ageing: Ageing, now: Time) -> Option<Time> {
        self.firsts().filter_map(|(priority, seq, _)| ageing.next(priority, seq, now)).min()
    }
}

impl Line {
    fn len(&self) -> usize {
        self.window.len() + self.beyond.len()
    }

    fn get(&self, seq: u64) -> Option<&JobId> {
        self.window.get(&seq).or_else(|| self.beyond.get(&seq))
    }

    /// Puts a job in line that stays in memory wherever its place is.
    fn keep(&mut self, seq: u64, job: JobId) {
        match self.more && seq > self.end {
            true => self.beyond.insert(seq, job),
            false => self.window.insert(seq, job),
        };
    }

    fn insert(&mut self, window: usize, seq: u64, job: JobId) {
        if !self.more && self.window.len() >= window {
            // What stood beyond this end before it was one may have changed, too.
            (self.more, self.changed) = (true, true);
            self.end = self.window.last_key_value().map_or(0, |(seq, _)| *seq);
        }
        if self.more && seq > self.end {
            self.missed = Some(self.missed.map_or(seq, |missed| missed.min(seq)));
            self.changed = true;
        } else {
            self.window.insert(seq, job);
        }
    }

    fn remove(&mut self, seq: u64) {
        self.window.remove(&seq);
        self.beyond.remove(&seq);
        self.changed |= self.more && seq > self.end;
    }

    fn loaded(&mut self, last: bool, whole: &[Arc<Job>], keep: &[&Arc<Job>]) {
        self.reading = false;
        // In one pass: a page is in the order of its places.
        self.window.append(&mut keep.iter().map(|job| (job.seq, job.id)).collect());
        self.end = whole.last().map_or(self.end, |job| self.end.max(job.seq));
        self.more = (!last || self.missed.is_some()) && !planted(Defect::LineForgotten);
        let reached = match self.more {
            true => {
                let beyond = self.beyond.split_off(&(self.end + 1));
                std::mem::replace(&mut self.beyond, beyond)
            }
            false => std::mem::take(&mut self.beyond),
        };
        self.window.extend(reached);
    }
}

#[cfg(feature = "inspect")]
impl Ready {
    /// Whether a pending job is in line, or beyond what has been read of it.
    pub fn will_reach(&self, job: &Job) -> bool {
        let id = job.class();
        let line = self.classes.get(&id).map(|class| &class.lines[job.priority as usize]);
        self.holds(id, job) || line.is_some_and(|line| line.more && job.seq > line.end)
    }

    pub fn longest_window(&self) -> usize {
        let lines = self.classes.values().flat_map(|class| &class.lines);
        lines.map(Line::len).max().unwrap_or(0)
    }
}
