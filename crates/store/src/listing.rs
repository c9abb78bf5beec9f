//! How listings go: along which index, how far, and how several walks become one page. The same in both stores.

use crate::{DeadLetterFilter, Filter, Page};
use hodei_core::{
    id::JobId,
    job::Job,
    state::StateKind,
    time::{Millis, Time},
};
use std::{cmp::Reverse, collections::BTreeSet};
use uuid::Uuid;

/// Rows that one request looks at.
pub const LOOKS: usize = 10_000;

/// An id is made by the clock of the server that took the request, and the time of a job's making by that of the leader: so
/// much they may differ.
const CLOCKS_DIFFER: Millis = Millis::seconds(300);

/// An index that a listing goes along.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Walk<'a> {
    All,
    State(StateKind),
    Queue(&'a str),
}

/// Ids from `from` on and below `below`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    pub from: Uuid,
    pub below: Uuid,
}

impl Filter {
    /// None unless some states are wanted and others are not.
    fn some_states(&self) -> Option<BTreeSet<StateKind>> {
        let states: BTreeSet<_> = self.states.iter().copied().collect();
        let all = states.is_empty() || states.len() == StateKind::ALL.len();
        (!all).then_some(states)
    }

    /// The queue of which it must be known how many jobs are in which state, to choose between walks.
    pub(crate) fn counted_queue(&self) -> Option<&str> {
        self.queue.as_deref().filter(|_| self.some_states().is_some())
    }

    /// The walks that together pass all jobs that are wanted. Where there is a choice, it is the one along the queue if that
    /// is short or has many of them, as `counts` says.
    pub(crate) fn walks(&self, counts: &[(StateKind, u64)]) -> Vec<Walk<'_>> {
        const MANY: u64 = 10;
        let Some(states) = self.some_states() else {
            return vec![self.queue.as_deref().map_or(Walk::All, Walk::Queue)];
        };
        let all: u64 = counts.iter().map(|(_, count)| count).sum();
        let wanted: u64 = counts.iter().filter(|(state, _)| states.contains(state)).map(|(_, count)| count).sum();
        match self.queue.as_deref().filter(|_| all <= LOOKS as u64 || wanted.saturating_mul(MANY) >= all) {
            Some(queue) => vec![Walk::Queue(queue)],
            None => states.into_iter().map(Walk::State).collect(),
        }
    }

    /// Where jobs that were made in time can be.
    pub(crate) fn span(&self, before: Option<JobId>) -> Span {
        let below = before.map_or(Uuid::max(), |id| id.0);
        Span {
            from: self.from.map_or(Uuid::nil(), |from| first_id(Time(from.0.saturating_sub(CLOCKS_DIFFER.0 as i64)))),
            below: self.to.map_or(below, |to| below.min(first_id(to + CLOCKS_DIFFER))),
        }
    }

    /// Whether every job on this walk and in this span is wanted.
    pub(crate) fn wants_all_of(&self, way: Walk<'_>) -> bool {
        let Self { states: _, queue, task_type, tag, name, parent, schedule, from, to } = self;
        let by_way = match way {
            Walk::All | Walk::State(_) => queue.is_none(),
            Walk::Queue(_) => self.some_states().is_none(),
        };
        let texts = [task_type, tag, name].into_iter().all(Option::is_none);
        by_way && texts && parent.is_none() && schedule.is_none() && from.is_none() && to.is_none()
    }

    /// The columns of a row decide about some of it; this about all.
    pub(crate) fn matches(&self, job: &Job) -> bool {
        let extra = job.extra.as_deref();
        (self.states.is_empty() || self.states.contains(&job.state.kind()))
            && wanted(&self.queue, |queue| **queue == *job.queue)
            && wanted(&self.task_type, |task_type| job.task_type.as_deref() == Some(task_type))
            && wanted(&self.tag, |tag| extra.is_some_and(|extra| extra.tags.iter().any(|own| **own == **tag)))
            && wanted(&self.name, |name| **name == *job.name)
            && wanted(&self.parent, |parent| extra.is_some_and(|extra| extra.parent == Some(*parent)))
            && wanted(&self.schedule, |schedule| extra.is_some_and(|extra| extra.schedule == Some(*schedule)))
            && wanted(&self.from, |from| job.created_at >= *from)
            && wanted(&self.to, |to| job.created_at < *to)
    }
}

fn wanted<T>(value: &Option<T>, is: impl FnOnce(&T) -> bool) -> bool {
    value.as_ref().is_none_or(is)
}

impl DeadLetterFilter {
    /// Letters are looked at from below this place.
    pub(crate) fn below(&self, before: Option<(Time, JobId)>) -> (Time, JobId) {
        let before = before.unwrap_or((Time(i64::MAX), JobId(Uuid::max())));
        self.to.map_or(before, |to| before.min((to, JobId::NIL)))
    }
}

/// The ids of all jobs that were made before this time are below this one.
pub fn made_before(time: Time) -> Uuid {
    first_id(time + CLOCKS_DIFFER)
}

/// Whether a job that has ended is old enough to be forgotten.
pub fn is_over(job: &Job, before: Time) -> bool {
    job.created_at < before && job.state.finished_at().is_some_and(|at| at < before)
}

/// The smallest UUIDv7 of this millisecond.
fn first_id(time: Time) -> Uuid {
    const AFTER_ALL: i64 = 1 << 48;
    match time.0 {
        AFTER_ALL.. => Uuid::max(),
        millis => Uuid::from_u128((millis.max(0) as u128) << 80),
    }
}

/// Goes along an index until it has found enough, or looked at enough.
pub struct Walker<K, T> {
    limit: usize,
    looks: usize,
    found: Vec<T>,
    stopped: Option<K>,
}

/// What a walk found, in its order.
pub struct Walked<K, T> {
    pub found: Vec<T>,
    /// It looked no further than this, and there may be more.
    pub stopped: Option<K>,
}

impl<K, T> Walker<K, T> {
    pub fn new(limit: usize, looks: usize) -> Self {
        Self { limit, looks: looks.max(1), found: Vec::new(), stopped: None }
    }

    /// Takes the next row, which is at `key` and may be one that is wanted. Says whether to go on.
    pub fn look(&mut self, key: K, found: Option<T>) -> bool {
        self.found.extend(found);
        self.looks -= 1;
        if self.looks == 0 || self.found.len() >= self.limit {
            self.stopped = Some(key);
        }
        self.stopped.is_none()
    }

    /// How many rows it makes sense to read at once.
    pub fn appetite(&self, all_are_wanted: bool) -> usize {
        const ENOUGH: usize = 1_000;
        let missing = self.limit - self.found.len();
        self.looks.min(if all_are_wanted { missing } else { ENOUGH })
    }

    pub fn end(self) -> Walked<K, T> {
        Walked { found: self.found, stopped: self.stopped }
    }
}

/// Makes one page of walks that each went from the newest job on. What is older than the place where some walk stopped may
/// have others between that were not looked at.
pub fn newest_first(walked: Vec<Walked<JobId, Job>>, limit: usize) -> Page {
    let floor = walked.iter().filter_map(|walk| walk.stopped).max();
    let mut jobs: Vec<Job> = walked.into_iter().flat_map(|walk| walk.found).collect();
    jobs.retain(|job| floor.is_none_or(|floor| job.id >= floor));
    jobs.sort_unstable_by_key(|job| Reverse(job.id));
    jobs.dedup_by_key(|job| job.id);
    let has_more = jobs.len() > limit;
    jobs.truncate(limit);
    let next = if has_more { jobs.last().map(|job| job.id) } else { floor };
    Page { jobs, next }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listing_takes_the_shorter_way() {
        let filter = |states: &[StateKind], queue: Option<&str>| Filter {
            states: states.to_vec(),
            queue: queue.map(Into::into),
            ..Filter::default()
        };
        let failed = [StateKind::Failed];
        assert_eq!(filter(&[], None).walks(&[]), [Walk::All]);
        assert_eq!(filter(&StateKind::ALL, None).walks(&[]), [Walk::All]);
        assert_eq!(filter(&[], Some("q")).walks(&[]), [Walk::Queue("q")]);
        assert_eq!(filter(&failed, None).walks(&[]), [Walk::State(StateKind::Failed)]);
        let both = filter(&failed, Some("q"));
        let ways = |failed, succeeded| both.walks(&[(StateKind::Failed, failed), (StateKind::Succeeded, succeeded)]);
        assert_eq!(ways(1, 5_000), [Walk::Queue("q")], "a short queue");
        assert_eq!(ways(200_000, 1_000_000), [Walk::Queue("q")], "many of them");
        assert_eq!(ways(1, 1_000_000), [Walk::State(StateKind::Failed)]);
        assert_eq!(both.counted_queue(), Some("q"));
        assert_eq!(filter(&[], Some("q")).counted_queue(), None);
    }

    #[test]
    fn times_are_spans_of_ids() {
        let span = |from, to| Filter { from, to, ..Filter::default() }.span(None);
        let all = Span { from: Uuid::nil(), below: Uuid::max() };
        assert_eq!(span(None, None), all);
        assert_eq!(span(Some(Time(i64::MIN)), Some(Time(i64::MAX))), all);
        let id = |millis| hodei_core::id::made(millis, 1, 1);
        let day = span(Some(Time(1_800_000_000_000)), Some(Time(1_800_086_400_000)));
        let holds = |millis| day.from <= id(millis) && id(millis) < day.below;
        assert!(holds(1_800_000_000_000) && holds(1_800_086_399_999));
        assert!(!holds(1_799_999_000_000) && !holds(1_800_087_000_000));
        let before = Filter::default().span(Some(JobId(id(7)))).below;
        assert_eq!(before, id(7));
    }
}
