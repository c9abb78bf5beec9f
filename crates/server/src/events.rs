//! What happened, for those who want to follow: from the journal in the store, and then as it comes.
//!
//! An event is named by its commit's place in the journal and its place in that commit, so a follower that was cut off
//! goes on exactly where it was, on whichever server.

use crate::{calls::Problem, engine::Engine};
use hodei_core::{
    id::{IdMap, IdSet, JobId},
    journal::{Change, JournalId, ProviderChange, QueueChange, ScheduleChange, TemplateChange},
    spec::Invalid,
    time::Time,
};
use std::{
    fmt,
    str::FromStr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};
use tokio::sync::broadcast::{self, error::RecvError};

/// Commits that a follower may fall behind before it reads from the store again.
const AHEAD: usize = 1024;
/// Commits that are read from the store at a time.
const PAGE: usize = 64;

#[derive(Debug)]
pub struct Events {
    live: broadcast::Sender<Arc<Commit>>,
    /// The last commit that changed something.
    last: AtomicU64,
}

#[derive(Debug)]
struct Commit {
    id: JournalId,
    changes: Vec<Change>,
}

impl Default for Events {
    fn default() -> Self {
        Self { live: broadcast::Sender::new(AHEAD), last: AtomicU64::new(0) }
    }
}

impl Events {
    pub fn publish(&self, id: JournalId, changes: &[Change]) {
        if changes.is_empty() {
            return;
        }
        self.last.store(id.0, Ordering::Release);
        if self.live.receiver_count() > 0 {
            _ = self.live.send(Arc::new(Commit { id, changes: changes.to_vec() }));
        }
    }

    /// The last commit of this server's life that changed something.
    pub fn last(&self) -> JournalId {
        JournalId(self.last.load(Ordering::Acquire))
    }
}

/// Names an event, and its place in the order of all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct EventId {
    pub commit: JournalId,
    pub place: u32,
}

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}-{}", self.commit.0, self.place)
    }
}

impl FromStr for EventId {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        let bad = || Invalid::new("after", format!("'{text}' is not an event's id"));
        let (commit, place) = text.split_once('-').ok_or_else(bad)?;
        let commit = u64::from_str_radix(commit, 16).map_err(|_| bad())?;
        Ok(Self { commit: JournalId(commit), place: place.parse().map_err(|_| bad())? })
    }
}

/// One thing that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    pub id: EventId,
    pub at: Time,
    /// Such as `job.succeeded`.
    pub name: String,
    /// Of the job, worker or schedule; the name of the queue, provider or template.
    pub subject: String,
    /// Of a job; empty when the job is not kept any more.
    pub queue: Arc<str>,
    pub attempt: u32,
    /// Of supervision: the handler, and what happened there.
    pub what: Arc<str>,
    pub detail: String,
}

impl Event {
    /// Its place is not known yet.
    fn new(at: Time, name: String, subject: String) -> Self {
        let id = EventId { commit: JournalId(0), place: 0 };
        Self { id, at, name, subject, queue: "".into(), attempt: 0, what: "".into(), detail: String::new() }
    }
}

/// What a follower wants to hear of; all that is set must match.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    pub job: Option<JobId>,
    pub queue: Option<String>,
    /// Any of [`KINDS`]; empty for all.
    pub kinds: Vec<String>,
}

const KINDS: [&str; 7] = ["job", "worker", "schedule", "queue", "supervision", "provider", "template"];

impl Wanted {
    pub fn check(&self) -> Result<(), Invalid> {
        match self.kinds.iter().find(|kind| !KINDS.contains(&kind.as_str())) {
            Some(odd) => Err(Invalid::new("kinds", format!("'{odd}' is not one of {}", KINDS.join(", ")))),
            None => Ok(()),
        }
    }

    fn takes(&self, event: &Event) -> bool {
        let kind = event.name.split('.').next().unwrap_or_default();
        let of_job = |job: JobId| kind == "job" && event.subject == job.to_string();
        let of_queue = |queue: &String| match kind {
            "queue" => event.subject == *queue,
            _ => *event.queue == **queue,
        };
        (self.kinds.is_empty() || self.kinds.iter().any(|wanted| wanted == kind))
            && self.job.is_none_or(of_job)
            && self.queue.as_ref().is_none_or(of_queue)
    }
}

/// One who follows.
pub struct Follower {
    engine: Engine,
    wanted: Wanted,
    live: broadcast::Receiver<Arc<Commit>>,
    /// The last event that was given out or passed over.
    after: EventId,
    /// All up to the live ones has been read from the store.
    caught_up: bool,
}

impl Follower {
    /// From after `after` on, or from now.
    pub async fn start(engine: Engine, wanted: Wanted, after: Option<EventId>) -> Result<Self, Problem> {
        wanted.check()?;
        // The live ones first: what is committed between the two is then seen twice rather than not at all.
        let live = engine.shared().events.live.subscribe();
        let ends = engine.shared().store.journal_ends().await?;
        let after = match (after, ends) {
            (Some(after), Some((first, _))) if after.commit < first => {
                let why = format!("events up to {after} are not kept any more; begin anew without an id");
                return Err(Problem::Gone(why));
            }
            (Some(after), _) => after,
            (None, ends) => {
                let stored = ends.map_or(JournalId(0), |(_, last)| last);
                EventId { commit: stored.max(engine.shared().events.last()), place: u32::MAX }
            }
        };
        Ok(Self { engine, wanted, live, after, caught_up: false })
    }

    /// The next of those that are stored already; none when all are told.
    pub async fn stored(&mut self) -> Result<Vec<Event>, Problem> {
        while !self.caught_up {
            let commits = self.read_on().await?;
            let events = self.unfold(commits).await?;
            if !events.is_empty() {
                return Ok(events);
            }
        }
        Ok(Vec::new())
    }

    /// The last event that was told or passed over: what follows is told next.
    pub fn position(&self) -> EventId {
        self.after
    }

    /// The next events, at least one. Waits for them.
    pub async fn next(&mut self) -> Result<Vec<Event>, Problem> {
        loop {
            let commits = if self.caught_up { self.take_live().await? } else { self.read_on().await? };
            let events = self.unfold(commits).await?;
            if !events.is_empty() {
                return Ok(events);
            }
        }
    }

    async fn read_on(&mut self) -> Result<Vec<Arc<Commit>>, Problem> {
        // The commit of the last event may have more of them.
        let from = JournalId(self.after.commit.0.saturating_sub(1));
        let page = self.engine.shared().store.journal(from, PAGE).await?;
        let behind = page.len() == PAGE;
        self.caught_up = !behind;
        Ok(page.into_iter().map(|(id, changes)| Arc::new(Commit { id, changes })).collect())
    }

    async fn take_live(&mut self) -> Result<Vec<Arc<Commit>>, Problem> {
        match self.live.recv().await {
            Ok(commit) => Ok(vec![commit]),
            Err(RecvError::Lagged(_)) => {
                self.caught_up = false;
                Ok(Vec::new())
            }
            Err(RecvError::Closed) => Err(Problem::Unavailable("the server is shutting down; follow again".into())),
        }
    }

    async fn unfold(&mut self, commits: Vec<Arc<Commit>>) -> Result<Vec<Event>, Problem> {
        let commits: Vec<_> = commits.into_iter().filter(|commit| commit.id >= self.after.commit).collect();
        let queues = self.queues_of(&commits).await?;
        let mut events = Vec::new();
        for commit in &commits {
            for event in events_of(commit, &queues) {
                if event.id > self.after {
                    self.after = event.id;
                    events.extend(self.wanted.takes(&event).then_some(event));
                }
            }
        }
        Ok(events)
    }

    /// The queue of a job is not in the journal, because most events are never read.
    async fn queues_of(&self, commits: &[Arc<Commit>]) -> Result<IdMap<JobId, Arc<str>>, Problem> {
        let jobs: IdSet<JobId> = commits
            .iter()
            .flat_map(|commit| &commit.changes)
            .filter_map(|change| match change {
                Change::Job { id, .. } => Some(*id),
                _ => None,
            })
            .filter(|id| self.wanted.job.is_none_or(|wanted| wanted == *id))
            .collect();
        if jobs.is_empty() {
            return Ok(IdMap::default());
        }
        let found = self.engine.shared().store.jobs(jobs.into_iter().collect()).await?;
        Ok(found.into_iter().map(|job| (job.id, job.queue)).collect())
    }
}

fn events_of(commit: &Commit, queues: &IdMap<JobId, Arc<str>>) -> Vec<Event> {
    let mut events = Vec::new();
    for change in &commit.changes {
        match change {
            Change::Job { id, steps } => events.extend(steps.iter().map(|step| Event {
                queue: queues.get(id).cloned().unwrap_or_default(),
                attempt: step.attempt,
                ..Event::new(step.at, format!("job.{}", step.state.name()), id.to_string())
            })),
            Change::Worker { id, state, at, why } => {
                let event = Event::new(*at, format!("worker.{}", state.name()), id.to_string());
                events.push(Event { detail: why.clone(), ..event });
            }
            Change::Schedule { id, what, at } => {
                events.push(Event::new(*at, format!("schedule.{}", schedule_word(*what)), id.to_string()));
            }
            Change::Queue { name, what, at } => {
                let word = match what {
                    QueueChange::Paused => "paused",
                    QueueChange::Resumed => "resumed",
                    QueueChange::Configured => "configured",
                };
                events.push(Event::new(*at, format!("queue.{word}"), name.to_string()));
            }
            Change::Provider { name, what, at } => {
                let event = Event::new(*at, format!("provider.{}", provider_word(what)), name.to_string());
                events.push(Event { detail: provider_detail(what), ..event });
            }
            Change::Template { name, what, at } => {
                let event = Event::new(*at, format!("template.{}", template_word(what)), name.to_string());
                events.push(Event { detail: template_detail(what).to_owned(), ..event });
            }
            Change::Supervision { worker, news } => events.push(Event {
                what: Arc::clone(&news.what),
                detail: news.detail.clone(),
                ..Event::new(news.at, format!("supervision.{}", news.event), worker.to_string())
            }),
        }
    }
    for (place, event) in (0..).zip(&mut events) {
        event.id = EventId { commit: commit.id, place };
    }
    events
}

fn provider_word(what: &ProviderChange) -> &'static str {
    match what {
        ProviderChange::Added => "added",
        ProviderChange::Changed => "changed",
        ProviderChange::Removed => "removed",
        ProviderChange::Enabled => "enabled",
        ProviderChange::Disabled => "disabled",
        ProviderChange::Health(health) => health.name(),
        ProviderChange::Failed(_) => "failed",
    }
}

fn provider_detail(what: &ProviderChange) -> String {
    match what {
        ProviderChange::Health(health) => health.reason().to_owned(),
        ProviderChange::Failed(failure) => format!("{}: {}", failure.class.name(), failure.message),
        ProviderChange::Added
        | ProviderChange::Changed
        | ProviderChange::Removed
        | ProviderChange::Enabled
        | ProviderChange::Disabled => String::new(),
    }
}

fn template_detail(what: &TemplateChange) -> &str {
    match what {
        TemplateChange::Crashed(why)
        | TemplateChange::Hanging(why)
        | TemplateChange::NotProducing(why)
        | TemplateChange::FailedPermanent(why) => why,
        TemplateChange::Put | TemplateChange::Removed | TemplateChange::Replaced | TemplateChange::Restarted => "",
    }
}

fn template_word(what: &TemplateChange) -> &'static str {
    match what {
        TemplateChange::Put => "put",
        TemplateChange::Removed => "removed",
        TemplateChange::Replaced => "worker_replaced",
        TemplateChange::Crashed(_) => "worker_crashed",
        TemplateChange::Hanging(_) => "worker_hanging",
        TemplateChange::NotProducing(_) => "worker_not_producing",
        TemplateChange::FailedPermanent(_) => "worker_failed_permanent",
        TemplateChange::Restarted => "restarted",
    }
}

fn schedule_word(what: ScheduleChange) -> &'static str {
    match what {
        ScheduleChange::Created => "created",
        ScheduleChange::Updated => "updated",
        ScheduleChange::Deleted => "deleted",
        ScheduleChange::Enabled => "enabled",
        ScheduleChange::Disabled => "disabled",
        ScheduleChange::Fired => "fired",
        ScheduleChange::Skipped => "skipped",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_events_can_be_read_back_and_keep_their_order() {
        let id = |commit, place| EventId { commit: JournalId(commit), place };
        for one in [id(0, 0), id(1 << 41, 7), id(u64::MAX, u32::MAX)] {
            assert_eq!(one.to_string().parse::<EventId>(), Ok(one));
        }
        assert!(id(1, 9) < id(2, 0) && id(2, 0) < id(2, 1));
        for odd in ["", "-", "1", "x-1", "1-x", "1-2-3", "1--2"] {
            assert_eq!(odd.parse::<EventId>().map_err(|bad| bad.field), Err("after".to_owned()), "{odd}");
        }
    }
}
