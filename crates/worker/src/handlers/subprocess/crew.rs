//! The processes of one handler: who has room for a task, who is healthy, who produces, and what becomes of a place whose
//! process failed.
//!
//! All of it is behind one lock that is held for a moment. Each place has a keeper, which speaks with the process there, tells
//! the crew what happens and takes its orders.

use super::{Request, Said};
use crate::{
    executor::{ExecutorEvent, ServiceCommand, wall},
    handlers::TaskError,
};
use hodei_core::{journal::Supervision, state::Failure, worker::fits};
use hodei_supervise::{Ask, Cause, Crash, Event, PoolLimits, Request as Wish, Sla, Supervisor, Swarm, Verdict};
use std::{
    collections::{BTreeSet, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::{
    sync::{mpsc, watch},
    time::Instant,
};
use tracing::{info, warn};

/// Where a process can stand.
pub(super) type Place = u32;

/// What the processes of one handler share.
#[derive(Debug)]
pub(super) struct Crew {
    /// The type, or pattern of types, that the handler is there for.
    pub name: String,
    pub command: ServiceCommand,
    /// The command is a line that a shell runs.
    pub by_shell: bool,
    pub sla: Sla,
    /// The most tasks that one process has at one time.
    pub concurrency: u32,
    pub closing: watch::Receiver<bool>,
    outbox: mpsc::UnboundedSender<ExecutorEvent>,
    /// When its time began.
    origin: Instant,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    swarm: Swarm<Place>,
    supervisor: Supervisor<Place, String>,
    seats: Vec<Seat>,
    /// Tasks that no process has room for.
    waiting: VecDeque<Request>,
    /// What all of its processes handle, once the first has said it.
    types: Option<BTreeSet<String>>,
    /// Whether the worker offers these types: not while nobody could run them. Unknown as long as the types are.
    offered: Option<bool>,
}

/// A place as others see it.
#[derive(Debug)]
struct Seat {
    orders: mpsc::UnboundedSender<Order>,
    tasks: usize,
    /// The most tasks that it takes now; none while nobody stands there, or who does is to go.
    room: usize,
    is_vacant: bool,
}

/// For the keeper of a place.
#[derive(Debug)]
pub(super) enum Order {
    /// Bring somebody up, if nobody is there.
    Start,
    Take(Request),
    Cancel(String),
    /// The job did not stop, so its process must.
    Kill(String),
    /// Nobody needs it any more.
    Retire,
    /// Finish what runs, end, and make room for a new one.
    Renew,
}

/// Why a process must not go on.
pub(super) enum Complaint {
    Hangs(String),
    NotProducing(String),
}

impl Crew {
    pub(super) fn new(
        name: &str,
        (command, by_shell): (ServiceCommand, bool),
        sla: Sla,
        concurrency: u32,
        limits: PoolLimits,
        closing: watch::Receiver<bool>,
        outbox: mpsc::UnboundedSender<ExecutorEvent>,
    ) -> (Arc<Self>, Vec<mpsc::UnboundedReceiver<Order>>) {
        let (seats, orders) = (0..limits.capacity)
            .map(|_| {
                let (orders, ordered) = mpsc::unbounded_channel();
                (Seat { orders, tasks: 0, room: 0, is_vacant: true }, ordered)
            })
            .unzip();
        let state = State {
            swarm: Swarm::new(sla, limits),
            supervisor: Supervisor::new(sla),
            seats,
            waiting: VecDeque::new(),
            types: None,
            offered: Some(true),
        };
        let name = name.to_owned();
        let (origin, state) = (Instant::now(), Mutex::new(state));
        (Arc::new(Self { name, command, by_shell, sla, concurrency, closing, outbox, origin, state }), orders)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Duration {
        self.origin.elapsed()
    }

    /// The moment on the clock that timers use.
    pub(super) fn instant(&self, at: Duration) -> Instant {
        self.origin + at
    }

    // ---- tasks --------------------------------------------------------------------------------------------------

    /// Finds a process for a task, or lets it wait for one.
    pub(super) fn give(&self, request: Request) {
        let mut state = self.state();
        match state.place_for(self.now()) {
            Some(place) => state.hand(place, request, self.now()),
            None if state.is_given_up() => give_back(request),
            None => state.waiting.push_back(request),
        }
    }

    /// A task that was on its way to a process that is gone. If it has to wait, it does so before all others.
    pub(super) fn take_back(&self, request: Request) {
        let mut state = self.state();
        match state.place_for(self.now()) {
            Some(place) => state.hand(place, request, self.now()),
            None if state.is_given_up() => give_back(request),
            None => state.waiting.push_front(request),
        }
    }

    /// The process has begun with it, or got on.
    pub(super) fn shown(&self, place: Place, id: &String) {
        self.state().supervisor.shown(&place, id);
    }

    /// A task has ended there.
    pub(super) fn produced(&self, place: Place, id: &String) {
        let (now, mut state) = (self.now(), self.state());
        state.supervisor.produced(&place, id, now);
        state.freed(place, now);
    }

    /// Nobody wanted the task any more when its turn came.
    pub(super) fn withdrawn(&self, place: Place, id: &String) {
        let (now, mut state) = (self.now(), self.state());
        state.supervisor.withdrawn(&place, id);
        state.freed(place, now);
    }

    // ---- lives --------------------------------------------------------------------------------------------------

    pub(super) fn starts(&self, place: Place) {
        let (now, mut state) = (self.now(), self.state());
        state.supervisor.supervise(place);
        // A restart whose time has come is under way from now on.
        state.supervisor.due(now);
        state.seat(place).is_vacant = false;
        if let Err(refused) = state.swarm.watch(place, now) {
            warn!(handler = self.name, place, %refused, "a subprocess is started where one is already");
        }
    }

    /// The process has said which types it handles, and how many tasks it takes.
    pub(super) fn greeted(&self, place: Place, types: &BTreeSet<String>, room: usize) -> Result<(), String> {
        let (now, mut state) = (self.now(), self.state());
        match &state.types {
            Some(known) if known != types => return Err("it handles other types than the one before it".to_owned()),
            Some(_) => {}
            None => state.types = Some(types.clone()),
        }
        state.swarm.ready(&place, now).map_err(|refused| refused.to_string())?;
        state.supervisor.up(&place, now);
        state.seat(place).room = room;
        self.offer(&mut state, true);
        self.tell(&mut state);
        state.fill(place, now);
        Ok(())
    }

    pub(super) fn beat(&self, place: Place) {
        self.state().swarm.beat(&place, self.now());
    }

    /// Where orders for this place go.
    pub(super) fn orders(&self, place: Place) -> mpsc::UnboundedSender<Order> {
        self.state().seat(place).orders.clone()
    }

    /// When to ask whether something is wrong with it.
    pub(super) fn deadline(&self, place: Place) -> Option<Instant> {
        let state = self.state();
        let (hangs, late) = (state.swarm.hangs_at(&place), state.supervisor.late_at(&place));
        hangs.into_iter().chain(late).min().map(|at| self.instant(at))
    }

    pub(super) fn complaint(&self, place: Place) -> Option<Complaint> {
        let (now, mut state) = (self.now(), self.state());
        if state.swarm.hung(now).contains(&place) {
            return Some(Complaint::Hangs(format!("no heartbeat for {:?}", self.sla.hang())));
        }
        let stalled = state.supervisor.not_producing(now).into_iter().find(|stalled| stalled.key == place)?;
        let limit = self.sla.output_deadline();
        Some(Complaint::NotProducing(format!("execution {} was not begun within {limit:?}", stalled.work)))
    }

    /// The process is told to end. Nobody gives it anything more.
    pub(super) fn stopping(&self, place: Place) {
        let mut state = self.state();
        state.seat(place).room = 0;
        // One that has not said hello yet cannot be told.
        _ = state.swarm.stop(&place);
    }

    /// The process has ended in order.
    pub(super) fn stopped(&self, place: Place, again: bool) {
        let mut state = self.state();
        state.leave(place);
        state.supervisor.stopped(&place);
        if !again {
            state.supervisor.dismiss(&place);
            state.swarm.forget(&place);
            state.seat(place).is_vacant = true;
            // It was not needed, but something may have come meanwhile.
            if !state.waiting.is_empty() {
                state.start_one();
            }
        }
    }

    /// The process has failed. Returns when there is to be another one, if there is.
    pub(super) fn crashed(&self, place: Place, cause: Cause, failure: &Failure, lived: Duration) -> Option<Instant> {
        let crash = Crash::new(cause, &failure.message, lived);
        let crash = crash.with_exit(failure.exit_code, failure.signal).with_stderr(&failure.detail);
        let (now, mut state) = (self.now(), self.state());
        state.leave(place);
        let verdict = state.supervisor.crashed(&place, crash, now);
        self.tell(&mut state);
        match verdict {
            Verdict::RestartAt(at) => Some(self.instant(at)),
            Verdict::GaveUp => {
                if state.is_given_up() {
                    // First this: what is given back must not come again.
                    self.offer(&mut state, false);
                    state.waiting.drain(..).for_each(give_back);
                } else if !state.waiting.is_empty() {
                    state.start_one();
                }
                None
            }
        }
    }

    /// Ends those that nobody has needed for a while.
    pub(super) fn retire_idle(&self) {
        let (now, mut state) = (self.now(), self.state());
        for place in state.swarm.expired(now) {
            info!(handler = self.name, place, "a subprocess that nobody needs is ended");
            state.seat(place).room = 0;
            state.order(place, Order::Retire);
        }
    }

    /// What its processes handle. Until one of them has said it, nothing of it is offered.
    pub(super) fn types(&self) -> Option<BTreeSet<String>> {
        let mut state = self.state();
        if state.types.is_none() && !state.is_given_up() {
            state.offered = None;
        }
        state.types.clone()
    }

    pub(super) fn handles(&self, task_type: &str) -> bool {
        let state = self.state();
        fits(&self.name, task_type) && state.types.as_ref().is_some_and(|types| types.contains(task_type))
    }

    pub(super) fn is_given_up(&self) -> bool {
        self.state().is_given_up()
    }

    /// A person wants it to be tried again.
    pub(super) fn ask(&self) {
        let (now, mut state) = (self.now(), self.state());
        for place in 0..state.places() {
            match state.supervisor.ask(&place, now) {
                Ask::Fill => state.order(place, Order::Start),
                Ask::Replace => {
                    state.seat(place).room = 0;
                    state.order(place, Order::Renew);
                }
                Ask::Coming | Ask::Unknown => {}
            }
        }
        self.tell(&mut state);
    }

    // ---- word to the server -------------------------------------------------------------------------------------

    fn offer(&self, state: &mut State, offered: bool) {
        if state.offered.replace(offered) != Some(offered) {
            let types = state.types.iter().flatten().filter(|task_type| fits(&self.name, task_type));
            let (name, types) = (self.name.clone(), types.cloned().collect());
            _ = self.outbox.send(ExecutorEvent::Handler { name, types, up: offered });
        }
    }

    fn tell(&self, state: &mut State) {
        for Event { key, kind, .. } in state.supervisor.take_events() {
            let detail = match state.places() {
                1 => kind.to_string(),
                _ => format!("process {}: {kind}", key + 1),
            };
            let output = state.supervisor.output(&key).copied().unwrap_or_default();
            let (outputs, latency) = (output.count, output.mean_latency());
            warn!(handler = self.name, event = kind.name(), detail, outputs, ?latency, "supervision");
            let news = Supervision { what: self.name.as_str().into(), event: kind.name().into(), detail, at: wall() };
            _ = self.outbox.send(ExecutorEvent::Supervision(news));
        }
    }
}

impl State {
    fn places(&self) -> Place {
        Place::try_from(self.seats.len()).unwrap_or(Place::MAX)
    }

    fn seat(&mut self, place: Place) -> &mut Seat {
        &mut self.seats[place as usize]
    }

    fn order(&mut self, place: Place, order: Order) {
        // Without its keeper the whole crew is leaving.
        _ = self.seat(place).orders.send(order);
    }

    /// Nothing is tried anywhere until a person asks.
    fn is_given_up(&self) -> bool {
        (0..self.places()).all(|place| self.supervisor.has_given_up(&place))
    }

    /// A warm one, or else the least busy one that has room. When none was warm, another one is brought up for what comes next.
    fn place_for(&mut self, now: Duration) -> Option<Place> {
        match self.swarm.request(now) {
            Wish::Warm(place) => return Some(place),
            Wish::Make => self.start_one(),
        }
        let open = (0..).zip(&self.seats).filter(|(_, seat)| seat.tasks < seat.room);
        open.min_by_key(|(_, seat)| seat.tasks).map(|(place, _)| place)
    }

    fn start_one(&mut self) {
        if let Some((place, seat)) = (0..).zip(&mut self.seats).find(|(_, seat)| seat.is_vacant) {
            seat.is_vacant = false;
            self.order(place, Order::Start);
        }
    }

    fn hand(&mut self, place: Place, request: Request, now: Duration) {
        self.seat(place).tasks += 1;
        self.supervisor.accepted(&place, request.id.clone(), now);
        self.order(place, Order::Take(request));
    }

    fn freed(&mut self, place: Place, now: Duration) {
        let seat = self.seat(place);
        seat.tasks = seat.tasks.saturating_sub(1);
        self.fill(place, now);
    }

    /// Gives it what waits, as far as it has room. One that has nothing to do then is warm.
    fn fill(&mut self, place: Place, now: Duration) {
        while self.seat(place).tasks < self.seat(place).room
            && let Some(request) = self.waiting.pop_front()
        {
            self.hand(place, request, now);
        }
        let seat = self.seat(place);
        if seat.tasks == 0 && seat.room > 0 {
            // Its heartbeats may have stopped; then it is not warm, and its keeper will say so.
            _ = self.swarm.release(place, now);
        }
    }

    fn leave(&mut self, place: Place) {
        let seat = self.seat(place);
        (seat.tasks, seat.room) = (0, 0);
        _ = self.swarm.exited(&place);
    }
}

fn give_back(request: Request) {
    // Whoever waits for it has room for this one word.
    _ = request.said.try_send(Said::Ended(Err(TaskError::given_back())));
}
