//! Jobs that wait for others.
//!
//! A waiting job knows how many of those it depends on have not succeeded; who waits for whom is in the store, as edges.
//! When a job ends, those that wait for it are told: at once, in the commit of its end, when they are in memory, and
//! otherwise page by page behind a durable mark, so that a crash in between neither loses nor repeats a word of it. A
//! page has those that wait for any of many ends.

use super::{Brain, Edge, Effect, Entry, NewJob, Placement, Refusal, Settling, pages::Source};
use crate::{
    defect::{Defect, planted},
    id::{IdMap, IdSet, JobId},
    job::Job,
    spec::{JobSpec, OnDependencyFailure},
    state::{Event, State, StateKind},
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Waiting jobs that are kept in memory, so that no page need be read for them, and their edges.
const JOBS_IN_MEMORY: usize = 100_000;
const EDGES_IN_MEMORY: usize = 400_000;

#[derive(Debug, Default)]
pub(super) struct Dependencies {
    /// Of jobs all whose dependents are in memory, these dependents.
    known: IdMap<JobId, Vec<JobId>>,
    /// How many they are together.
    edges: usize,
    /// How often each job is one of them.
    held: IdMap<JobId, u32>,
    /// Jobs whose dependents are being read and told.
    settling: IdMap<JobId, Telling>,
    /// Those of them that the next page is to be read for, in the order of their ends.
    unread: VecDeque<JobId>,
    /// Ends that are to be told in this turn.
    ended: VecDeque<JobId>,
    /// Jobs that this turn released, until it is known whether it also gives them to workers.
    released: IdSet<JobId>,
    /// Jobs that are over and that unfinished ones depend on, as far as this turn has asked for it or made it so.
    pub awaited: IdSet<JobId>,
    /// Of jobs that somebody may retry in this turn, all that they depend on.
    pub of: IdMap<JobId, Vec<JobId>>,
    new: Vec<Edge>,
    dropped: Vec<Edge>,
    marks: BTreeMap<JobId, Option<JobId>>,
    told: BTreeSet<JobId>,
}

/// How far an end has been told.
#[derive(Clone, Copy, Debug)]
struct Telling {
    /// Everybody up to here has heard of it, in the order of their ids.
    told: Option<JobId>,
    page: Page,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Page {
    Wanted,
    UnderWay,
    /// The one under way was asked for a former end of the same job.
    Outdated,
}

/// What a batch must hold of them.
pub(super) struct Written {
    pub edges: Vec<Edge>,
    pub dropped_edges: Vec<Edge>,
    pub settling: Vec<Settling>,
    pub told: Vec<JobId>,
}

impl Dependencies {
    pub fn take(&mut self) -> Written {
        self.awaited.clear();
        self.of.clear();
        // In the order of the store, which then adds them at one place after the other.
        self.new.sort_unstable();
        Written {
            edges: std::mem::take(&mut self.new),
            dropped_edges: std::mem::take(&mut self.dropped),
            settling: std::mem::take(&mut self.marks).into_iter().map(|(job, told)| Settling { job, told }).collect(),
            told: std::mem::take(&mut self.told).into_iter().collect(),
        }
    }

    /// Whether a job must stay in memory because of those it depends on, or that depend on it.
    pub fn needs(&self, job: JobId) -> bool {
        self.held.contains_key(&job) || self.settling.contains_key(&job)
    }

    /// Whether this turn released a job and nothing says so yet; the caller sees to that.
    pub fn take_released(&mut self, job: JobId) -> bool {
        self.released.remove(&job)
    }

    /// Whether somebody has not heard of the end of this job, or depends on it and has not ended.
    pub fn wait_for(&self, job: JobId) -> bool {
        self.ended.contains(&job) || self.awaited.contains(&job)
    }

    /// The end of this job has been told so far. A batch holds the last word alone.
    fn settle(&mut self, job: JobId, told: Option<JobId>) {
        self.told.remove(&job);
        self.marks.insert(job, told);
        self.go_on(job, told);
    }

    /// Those after `told` are to be read.
    fn go_on(&mut self, job: JobId, told: Option<JobId>) {
        let page = match self.settling.get(&job).map(|telling| telling.page) {
            None => {
                self.unread.push_back(job);
                Page::Wanted
            }
            Some(Page::Wanted) => Page::Wanted,
            Some(Page::UnderWay | Page::Outdated) => Page::Outdated,
        };
        self.settling.insert(job, Telling { told, page });
    }

    /// The page that was under way for this job is here, and was not asked for a former end.
    fn arrived(&mut self, mark: Settling) -> bool {
        let Some(telling) = self.settling.remove(&mark.job) else { return false };
        if telling.page != Page::UnderWay {
            self.go_on(mark.job, telling.told);
        }
        telling.page == Page::UnderWay
    }

    /// It has been told to all.
    fn settled(&mut self, job: JobId) {
        self.settling.remove(&job);
        self.marks.remove(&job);
        self.told.insert(job);
    }

    /// What the next page is to be read for, at most so many.
    fn next_page(&mut self, most: usize) -> Vec<Settling> {
        let ids = self.unread.drain(..self.unread.len().min(most));
        let asked = ids.filter_map(|job| {
            let telling = self.settling.get_mut(&job)?;
            telling.page = Page::UnderWay;
            Some(Settling { job, told: telling.told })
        });
        asked.collect()
    }

    fn has_room(&self, edge: Edge) -> bool {
        let jobs = self.held.len() < JOBS_IN_MEMORY || self.held.contains_key(&edge.dependent);
        jobs && self.edges < EDGES_IN_MEMORY
    }

    fn remember(&mut self, edge: Edge) {
        self.known.entry(edge.dependency).or_default().push(edge.dependent);
        self.edges += 1;
        *self.held.entry(edge.dependent).or_default() += 1;
    }

    /// From now on only the store knows who waits for this job. Returns those that may leave memory.
    fn forget(&mut self, job: JobId) -> Vec<JobId> {
        let dependents = self.known.remove(&job).unwrap_or_default();
        self.edges -= dependents.len();
        for dependent in &dependents {
            if let Some(held) = self.held.get_mut(dependent) {
                *held -= 1;
                if *held == 0 {
                    self.held.remove(dependent);
                }
            }
        }
        dependents
    }
}

impl Brain {
    /// Whether all that these jobs depend on exists.
    pub(super) fn check_dependencies(&self, jobs: &[NewJob]) -> Result<(), Refusal> {
        if jobs.iter().all(|job| job.spec.depends_on.is_empty()) {
            return Ok(());
        }
        let new: IdSet<JobId> = jobs.iter().map(|job| job.id).collect();
        let mut named = jobs.iter().flat_map(|job| &job.spec.depends_on);
        if let Some(unknown) = named.find(|id| !new.contains(id) && !self.knows(**id)) {
            return Err(Refusal::NoSuchDependency(*unknown));
        }
        // Callers refuse cycles in better words.
        in_order(jobs).map(|_| ()).map_err(Refusal::NoSuchDependency)
    }

    /// The first state of a job whose dependencies are all in memory, and its edges.
    pub(super) fn link(&mut self, id: JobId, spec: &JobSpec, plain: State) -> (State, u32) {
        if spec.depends_on.is_empty() {
            return (plain, 0);
        }
        let (mut waiting_on, mut failed) = (0, None);
        for dependency in &spec.depends_on {
            let Some(state) = self.jobs.get(dependency).map(|entry| entry.job.state.kind()) else { continue };
            let is_over = state.is_finished() && state != StateKind::Succeeded;
            if state == StateKind::Succeeded || (is_over && spec.on_dependency_failure == OnDependencyFailure::Run) {
                continue;
            }
            waiting_on += 1;
            if is_over && spec.on_dependency_failure == OnDependencyFailure::Cancel {
                failed = Some((*dependency, state));
            }
            self.add_edge(Edge { dependency: *dependency, dependent: id }, is_over);
        }
        let state = match (waiting_on, failed) {
            (0, _) => plain,
            (_, None) => State::Waiting { since: self.now },
            (_, Some((dependency, state))) => {
                let waiting = State::Waiting { since: self.now };
                waiting.next(&Event::Cancel(because(dependency, state)), self.now).unwrap_or(waiting)
            }
        };
        (state, waiting_on)
    }

    /// With a dependency that is over, nobody knows whether there will ever be something to tell: it is left to the store.
    fn add_edge(&mut self, edge: Edge, is_over: bool) {
        let dependency = edge.dependency;
        let Some(entry) = self.jobs.get_mut(&dependency) else { return };
        let first = !entry.job.extra.as_ref().is_some_and(|extra| extra.has_dependents);
        if first {
            entry.job_mut().extra_mut().has_dependents = true;
            self.mark(dependency);
            // It changes where it stands: a page under way that shows its former row must not pass it over.
            self.index(dependency);
        }
        if is_over {
            self.dependencies.awaited.insert(dependency);
        }
        let complete = first || self.dependencies.known.contains_key(&dependency);
        if complete && !is_over && self.dependencies.has_room(edge) {
            self.dependencies.remember(edge);
        } else {
            self.leaving.extend(self.dependencies.forget(dependency));
        }
        self.dependencies.new.push(edge);
    }

    /// A job that has ended goes back to waiting for what has not succeeded. That must be there, and must stay.
    pub(super) fn await_again(&mut self, id: JobId) -> Result<(), Refusal> {
        // What a job of this turn depends on is kept by the turn itself.
        let Some(all) = self.dependencies.of.get(&id) else { return Ok(()) };
        let Some(extra) = &self.entry(id)?.job.extra else { return Ok(()) };
        let left: Vec<(JobId, StateKind)> = all.iter().filter_map(|id| Some((*id, self.state_kind(*id)?))).collect();
        let open = left.iter().filter(|(_, state)| *state != StateKind::Succeeded).count();
        // One that runs after failures, too, waits only for what has not ended, which nobody forgets.
        let may_lack = extra.on_dependency_failure != OnDependencyFailure::Run && left.len() < all.len();
        if may_lack && open < extra.waiting_on as usize && !planted(Defect::ForgottenAwaited) {
            return Err(Refusal::DependencyForgotten);
        }
        let over = left.into_iter().filter(|(_, state)| state.is_finished()).map(|(id, _)| id);
        self.dependencies.awaited.extend(over);
        Ok(())
    }

    /// A job with dependents has ended: they will be told in this turn.
    pub(super) fn note_end(&mut self, job: JobId) {
        self.dependencies.ended.push_back(job);
    }

    /// Tells dependents of all ends of this turn, and of the ends that follow from that.
    pub(super) fn tell_dependents(&mut self) {
        while let Some(id) = self.dependencies.ended.pop_front() {
            if self.dependencies.known.contains_key(&id) {
                let dependents = self.dependencies.forget(id);
                dependents.iter().for_each(|dependent| self.tell(id, *dependent));
                self.leaving.extend(dependents);
            } else {
                self.dependencies.settle(id, None);
            }
        }
    }

    /// An earlier leader ended before it had told everybody of this end.
    pub(super) fn go_on_telling(&mut self, mark: Settling, job: Job) {
        self.jobs.entry(mark.job).or_insert_with(|| Entry::stored(job));
        self.dependencies.go_on(mark.job, mark.told);
    }

    fn state_kind(&self, id: JobId) -> Option<StateKind> {
        self.jobs.get(&id).map(|entry| entry.job.state.kind())
    }

    /// Asks for the next page of those that are to be told, unless one is under way. Many ends share it: each is given its
    /// part.
    pub(super) fn read_dependents(&mut self) {
        if self.dependencies.unread.is_empty() || self.reads.is_open(Source::Dependents) {
            return;
        }
        let of = self.dependencies.next_page(self.config.window.div_ceil(2));
        let each = (self.config.window / of.len().max(1)).max(1);
        self.reads.asked(Source::Dependents, self.batch);
        self.effects.push(Effect::ReadDependents { of, each });
    }

    /// A page of those that wait for jobs whose ends are being told. What was read for a former end is left aside, and
    /// read again.
    pub(super) fn take_dependents(&mut self, of: &[Settling], each: usize, found: Vec<(JobId, Job)>) {
        let mut pages: IdMap<JobId, Vec<Job>> = IdMap::default();
        for (dependency, job) in found {
            pages.entry(dependency).or_default().push(job);
        }
        for mark in of {
            let found = pages.remove(&mark.job).unwrap_or_default();
            let believed = self.believed(Source::Dependents, &found);
            if self.dependencies.arrived(*mark) {
                self.tell_page(*mark, each, found, believed);
            }
        }
        self.reads.answered(Source::Dependents);
    }

    fn tell_page(&mut self, mark: Settling, each: usize, found: Vec<Job>, believed: usize) {
        let Settling { job: id, told } = mark;
        // It was sent for again meanwhile: whoever has not heard of its former end waits for the next.
        let over = self.state_kind(id).is_some_and(StateKind::is_finished);
        let all = !over || (believed == found.len() && found.len() < each);
        let mut last = told;
        for job in found.into_iter().take(believed) {
            last = Some(job.id);
            self.leaving.push(job.id);
            let dependent = self.jobs.entry(job.id).or_insert_with(|| Entry::stored(job)).job.id;
            self.tell(id, dependent);
        }
        if all {
            self.dependencies.settled(id);
            self.leaving.push(id);
        } else {
            self.dependencies.settle(id, last);
        }
    }

    /// `dependent` hears that `id`, which it depends on, has ended.
    fn tell(&mut self, id: JobId, dependent: JobId) {
        let Some(state) = self.state_kind(id).filter(|state| state.is_finished()) else { return };
        let Some(entry) = self.jobs.get_mut(&dependent) else { return };
        let job = entry.job_mut();
        let Some(extra) = job.extra.as_mut() else { return };
        let done = match (state, extra.on_dependency_failure) {
            (StateKind::Succeeded, _) | (_, OnDependencyFailure::Run) => true,
            (_, OnDependencyFailure::Wait) => return,
            (_, OnDependencyFailure::Cancel) => false,
        };
        let waiting = matches!(job.state, State::Waiting { .. });
        if !done {
            if waiting {
                let cancelled = self.step(dependent, &Event::Cancel(because(id, state)));
                debug_assert!(cancelled.is_ok(), "{cancelled:?}");
            }
            return;
        }
        extra.waiting_on = extra.waiting_on.saturating_sub(1);
        if planted(Defect::ReleasedEarly) {
            extra.waiting_on = 0;
        }
        let (left, not_before) = (extra.waiting_on, extra.not_before);
        if state != StateKind::Succeeded {
            // It may be replayed and succeed: that must not count a second time.
            self.dependencies.dropped.push(Edge { dependency: id, dependent });
        }
        if left == 0 && waiting {
            let released = self.step(dependent, &Event::Satisfied(not_before));
            debug_assert!(released.is_ok(), "{released:?}");
        } else {
            self.mark(dependent);
        }
    }

    /// A job that is given to a worker in the turn that releases it needs no other word of that.
    pub(super) fn note_release(&mut self, id: JobId) {
        if let Some(entry) = self.jobs.get_mut(&id)
            && entry.batch != self.batch
        {
            entry.batch = self.batch;
            self.dependencies.released.insert(id);
        }
        self.reads.note_change(id, self.batch);
    }

    /// A released job that stands in line in memory needs no row yet; what is read from the store is found by its row.
    pub(super) fn write_releases(&mut self) {
        for id in std::mem::take(&mut self.dependencies.released) {
            let Some(entry) = self.jobs.get_mut(&id) else { continue };
            let Entry { job, class, placed, .. } = entry;
            match job.state {
                State::Pending { since: at } if job.due_at().is_none() && self.ready.holds(*class, job) => {
                    *placed = Some(self.batch);
                    self.placements.add(Placement { job: id, run: None, at, released_to: Some(job.seq) });
                }
                _ => self.dirty_jobs.push(id),
            }
        }
    }
}

/// The places of jobs that come together in an order in which each follows those it depends on, and else the order they
/// came in. On a cycle there is none: then one that is on it, or waits for it.
pub(super) fn in_order(jobs: &[NewJob]) -> Result<Vec<usize>, JobId> {
    if jobs.iter().all(|job| job.spec.depends_on.is_empty()) {
        return Ok((0..jobs.len()).collect());
    }
    let places: IdMap<JobId, usize> = jobs.iter().enumerate().map(|(place, job)| (job.id, place)).collect();
    let before = |place: usize| jobs[place].spec.depends_on.iter().filter_map(|id| places.get(id)).copied();
    if (0..jobs.len()).all(|place| before(place).all(|dependency| dependency < place)) {
        return Ok((0..jobs.len()).collect());
    }
    let mut open: Vec<usize> = (0..jobs.len()).map(|place| before(place).count()).collect();
    let mut after: Vec<Vec<usize>> = vec![Vec::new(); jobs.len()];
    (0..jobs.len()).for_each(|place| before(place).for_each(|dependency| after[dependency].push(place)));
    let mut order: Vec<usize> = (0..jobs.len()).filter(|place| open[*place] == 0).collect();
    let mut next = 0;
    while let Some(done) = order.get(next).copied() {
        next += 1;
        for dependent in std::mem::take(&mut after[done]) {
            open[dependent] -= 1;
            if open[dependent] == 0 {
                order.push(dependent);
            }
        }
    }
    match open.iter().position(|open| *open > 0) {
        Some(stuck) => Err(jobs[stuck].id),
        None => Ok(order),
    }
}

fn because(dependency: JobId, state: StateKind) -> String {
    format!(
        "{dependency}, which it depends on, has {}",
        match state {
            StateKind::Failed => "failed",
            StateKind::TimedOut => "timed out",
            _ => "been cancelled",
        }
    )
}

/// What a waiting job waits for, in words.
pub(super) fn waits_for(job: &Job) -> String {
    match job.extra.as_ref().map_or(0, |extra| extra.waiting_on) {
        1 => "waits for 1 job that it depends on".into(),
        n => format!("waits for {n} jobs that it depends on"),
    }
}
