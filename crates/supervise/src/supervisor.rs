//! Output: is the work being produced, and what follows when one fails.

use crate::{Class, Crash, Fingerprint, Sla};
use std::{collections::BTreeMap, fmt, time::Duration};

/// One that has worked well for so long gets its restarts back.
pub const GOOD_WORK: Duration = Duration::from_secs(60);

/// Judges one kind of worker by what it produces, and decides on restarts, one for one: nothing that happens to one touches
/// another.
///
/// A key is a *place* that is to be filled: the one that fails and the one that replaces it stand in the same place. `W` names
/// a piece of work.
#[derive(Clone, Debug)]
pub struct Supervisor<K, W> {
    sla: Sla,
    posts: BTreeMap<K, Post<W>>,
    events: Vec<Event<K>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Post<W> {
    stand: Stand,
    /// Restarts that were used since the budget was last full.
    restarts: u32,
    /// Whoever comes next takes another one's place.
    replaces: bool,
    /// How it failed the last time.
    last: Option<Fingerprint>,
    /// What was accepted and has not ended.
    work: BTreeMap<W, Taken>,
    output: Output,
}

/// How a place is filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stand {
    /// Somebody is being brought up for it.
    Filling,
    /// Since when it takes work.
    Up(Duration),
    /// To be filled again, not before then.
    Waiting(Duration),
    GivenUp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Taken {
    at: Duration,
    shown: bool,
}

/// What a place has produced so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Output {
    pub count: u64,
    /// From acceptance to result: of the last one, and of all together.
    pub last_latency: Duration,
    pub total_latency: Duration,
}

impl Output {
    pub fn mean_latency(&self) -> Option<Duration> {
        (self.count > 0).then(|| self.total_latency / u32::try_from(self.count).unwrap_or(u32::MAX))
    }
}

/// What follows a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    RestartAt(Duration),
    /// Nothing is tried until a person asks.
    GaveUp,
}

/// What follows the wish of a person.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// Nobody was there: the place is to be filled now.
    Fill,
    /// Somebody is there, and is to be replaced in order.
    Replace,
    /// Somebody is on the way.
    Coming,
    /// There is no such place.
    Unknown,
}

/// Work that was accepted and has not shown itself in time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stalled<K, W> {
    pub key: K,
    pub work: W,
    pub waited: Duration,
}

/// Something that people and logs should know of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event<K> {
    pub key: K,
    pub at: Duration,
    pub kind: EventKind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// It ended though nobody had told it to.
    Crashed { crash: Crash, class: Class },
    /// It lived and gave no sign.
    Hanging { crash: Crash, class: Class },
    /// It took work and did not begin it.
    NotProducing { crash: Crash, class: Class },
    /// Another one stands in its place.
    Replaced { restart: u32, of: u32 },
    /// Its restarts are used up.
    FailedPermanent { crash: Crash, class: Class, restarts: u32 },
    /// A person wants it to be tried again.
    Asked,
}

impl EventKind {
    pub fn name(&self) -> &'static str {
        match self {
            EventKind::Crashed { .. } => "worker_crashed",
            EventKind::Hanging { .. } => "worker_hanging",
            EventKind::NotProducing { .. } => "worker_not_producing",
            EventKind::Replaced { .. } => "worker_replaced",
            EventKind::FailedPermanent { .. } => "worker_failed_permanent",
            EventKind::Asked => "worker_restart_asked",
        }
    }
}

/// The details, for people.
impl fmt::Display for EventKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EventKind::Crashed { crash, class }
            | EventKind::Hanging { crash, class }
            | EventKind::NotProducing { crash, class } => write!(f, "{}: {crash}", class.name()),
            EventKind::Replaced { restart: 0, .. } => f.write_str("because a person asked for it"),
            EventKind::Replaced { restart, of } => write!(f, "restart {restart} of {of}"),
            EventKind::FailedPermanent { crash, class, restarts } => {
                write!(f, "{} after {restarts} restarts: {crash}", class.name())
            }
            EventKind::Asked => f.write_str("all restarts are allowed again"),
        }
    }
}

impl<W> Post<W> {
    fn new() -> Self {
        Self {
            stand: Stand::Filling,
            restarts: 0,
            replaces: false,
            last: None,
            work: BTreeMap::new(),
            output: Output::default(),
        }
    }
}

impl<K: Ord + Clone, W: Ord + Clone> Supervisor<K, W> {
    pub fn new(sla: Sla) -> Self {
        Self { sla, posts: BTreeMap::new(), events: Vec::new() }
    }

    pub fn sla(&self) -> Sla {
        self.sla
    }

    /// A place to be filled; somebody is being brought up for it. One that is known stays as it is.
    pub fn supervise(&mut self, key: K) {
        self.posts.entry(key).or_insert_with(Post::new);
    }

    /// A place that somebody else has looked after so far: so many of its restarts are used, and whoever comes next keeps the
    /// distance of the last one. One that is known stays as it is.
    pub fn take_over(&mut self, key: K, restarts: u32, now: Duration) {
        let stand = match restarts {
            0 => Stand::Filling,
            restarts => Stand::Waiting(now.saturating_add(self.sla.backoff(restarts))),
        };
        self.posts.entry(key).or_insert_with(|| Post { stand, restarts, ..Post::new() });
    }

    /// The restarts that places have used since their budget was last full.
    pub fn used(&self) -> impl Iterator<Item = (&K, u32)> {
        self.posts.iter().map(|(key, post)| (key, post.restarts)).filter(|(_, restarts)| *restarts > 0)
    }

    /// Those who have worked well for long enough get their restarts back; says whether there were any.
    pub fn give_back(&mut self, now: Duration) -> bool {
        let sla = self.sla;
        let good = self.posts.values_mut().filter(|post| post.restarts > 0 && post.worked_well(now, sla));
        good.map(|post| post.restarts = 0).count() > 0
    }

    /// When the next of them will have.
    pub fn next_give_back(&self) -> Option<Duration> {
        let used = self.posts.values().filter(|post| post.restarts > 0 && post.oldest().is_none());
        let up = used.filter_map(|post| match post.stand {
            Stand::Up(since) => Some(since.saturating_add(GOOD_WORK)),
            _ => None,
        });
        up.min()
    }

    /// The place is no longer needed.
    pub fn dismiss(&mut self, key: &K) {
        self.posts.remove(key);
    }

    /// Somebody stands there and takes work.
    pub fn up(&mut self, key: &K, now: Duration) {
        let of = self.sla.restarts();
        let Some(post) = self.posts.get_mut(key) else { return };
        post.stand = Stand::Up(now);
        let (replaces, restart) = (std::mem::take(&mut post.replaces), post.restarts);
        if replaces {
            self.tell(key, now, EventKind::Replaced { restart, of });
        }
    }

    pub fn accepted(&mut self, key: &K, work: W, now: Duration) {
        if let Some(post) = self.posts.get_mut(key) {
            post.work.insert(work, Taken { at: now, shown: false });
        }
    }

    /// The work was begun, or has got on.
    pub fn shown(&mut self, key: &K, work: &W) {
        if let Some(taken) = self.posts.get_mut(key).and_then(|post| post.work.get_mut(work)) {
            taken.shown = true;
        }
    }

    /// The work has a result, good or bad.
    pub fn produced(&mut self, key: &K, work: &W, now: Duration) {
        let Some(post) = self.posts.get_mut(key) else { return };
        let Some(taken) = post.work.remove(work) else { return };
        let latency = now.saturating_sub(taken.at);
        post.output.count += 1;
        post.output.last_latency = latency;
        post.output.total_latency = post.output.total_latency.saturating_add(latency);
    }

    /// The work was taken back: nothing is owed for it.
    pub fn withdrawn(&mut self, key: &K, work: &W) {
        if let Some(post) = self.posts.get_mut(key) {
            post.work.remove(work);
        }
    }

    /// What was accepted and has not shown itself in time, the oldest of each place. Those places are to be filled anew; they
    /// are told of until their failure is.
    pub fn not_producing(&self, now: Duration) -> Vec<Stalled<K, W>> {
        let stalled = self.posts.iter().filter_map(|(key, post)| {
            let (work, since) = post.oldest()?;
            let waited = now.saturating_sub(since);
            let late = waited >= self.sla.output_deadline();
            late.then(|| Stalled { key: key.clone(), work: work.clone(), waited })
        });
        stalled.collect()
    }

    /// When the work of this place is late unless it shows itself before.
    pub fn late_at(&self, key: &K) -> Option<Duration> {
        let (_, since) = self.posts.get(key)?.oldest()?;
        Some(since.saturating_add(self.sla.output_deadline()))
    }

    /// When to look again: for work that may be late, or for a restart.
    pub fn next_deadline(&self) -> Option<Duration> {
        let late = self.posts.keys().filter_map(|key| self.late_at(key));
        let restarts = self.posts.values().filter_map(|post| match post.stand {
            Stand::Waiting(until) => Some(until),
            _ => None,
        });
        late.chain(restarts).min()
    }

    /// The one who stood there has failed, and with it the work that it held.
    pub fn crashed(&mut self, key: &K, crash: Crash, now: Duration) -> Verdict {
        let sla = self.sla;
        let Some(post) = self.posts.get_mut(key) else { return Verdict::GaveUp };
        if post.worked_well(now, sla) {
            post.restarts = 0;
        }
        let class = crash.class(post.last.as_ref());
        post.last = Some(crash.fingerprint());
        post.work.clear();
        post.replaces = true;
        let verdict = match post.restarts < sla.restarts() {
            true => {
                post.restarts += 1;
                Verdict::RestartAt(now.saturating_add(sla.backoff(post.restarts)))
            }
            false => Verdict::GaveUp,
        };
        post.stand = match verdict {
            Verdict::RestartAt(at) => Stand::Waiting(at),
            Verdict::GaveUp => Stand::GivenUp,
        };
        let restarts = post.restarts;
        self.tell(key, now, failure(crash.clone(), class));
        if verdict == Verdict::GaveUp {
            self.tell(key, now, EventKind::FailedPermanent { crash, class, restarts });
        }
        verdict
    }

    /// The one who stood there was ended in order, and the next is being brought up. What it held is not owed any more.
    pub fn stopped(&mut self, key: &K) {
        if let Some(post) = self.posts.get_mut(key) {
            post.work.clear();
            post.stand = Stand::Filling;
        }
    }

    /// Places that are to be filled now. Whoever asks brings somebody up for each.
    pub fn due(&mut self, now: Duration) -> Vec<K> {
        let mut due = Vec::new();
        for (key, post) in &mut self.posts {
            if matches!(post.stand, Stand::Waiting(until) if now >= until) {
                post.stand = Stand::Filling;
                due.push(key.clone());
            }
        }
        due
    }

    /// A person wants it to be tried again: all restarts are allowed anew.
    pub fn ask(&mut self, key: &K, now: Duration) -> Ask {
        let Some(post) = self.posts.get_mut(key) else { return Ask::Unknown };
        post.restarts = 0;
        post.replaces = true;
        let ask = match post.stand {
            Stand::Waiting(_) | Stand::GivenUp => {
                post.stand = Stand::Waiting(now);
                Ask::Fill
            }
            Stand::Up(_) => Ask::Replace,
            Stand::Filling => Ask::Coming,
        };
        self.tell(key, now, EventKind::Asked);
        ask
    }

    /// Nothing is tried there until a person asks.
    pub fn has_given_up(&self, key: &K) -> bool {
        self.posts.get(key).is_some_and(|post| post.stand == Stand::GivenUp)
    }

    /// All places were given up: nobody produces anything.
    pub fn all_given_up(&self) -> bool {
        !self.posts.is_empty() && self.posts.values().all(|post| post.stand == Stand::GivenUp)
    }

    pub fn output(&self, key: &K) -> Option<&Output> {
        self.posts.get(key).map(|post| &post.output)
    }

    pub fn take_events(&mut self) -> Vec<Event<K>> {
        std::mem::take(&mut self.events)
    }

    fn tell(&mut self, key: &K, at: Duration, kind: EventKind) {
        self.events.push(Event { key: key.clone(), at, kind });
    }
}

impl<W: Ord> Post<W> {
    /// What has not shown itself for the longest time.
    fn oldest(&self) -> Option<(&W, Duration)> {
        let hidden = self.work.iter().filter(|(_, taken)| !taken.shown);
        hidden.map(|(work, taken)| (work, taken.at)).min_by_key(|(_, at)| *at)
    }

    /// Time in which work lay there untouched for too long was not good.
    fn worked_well(&self, now: Duration, sla: Sla) -> bool {
        let Stand::Up(since) = self.stand else { return false };
        let stalled = self.oldest().map(|(_, at)| at).filter(|at| now.saturating_sub(*at) >= sla.output_deadline());
        stalled.unwrap_or(now).saturating_sub(since) >= GOOD_WORK
    }
}

fn failure(crash: Crash, class: Class) -> EventKind {
    use crate::Cause::*;
    match crash.cause {
        Hung => EventKind::Hanging { crash, class },
        NotProducing => EventKind::NotProducing { crash, class },
        Exited | OutOfMemory | NotStarted | Misbehaved => EventKind::Crashed { crash, class },
    }
}
