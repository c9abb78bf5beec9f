//! Who looks after the workers of one template: a swarm for their health, a supervisor for the places of its warm pool.
//!
//! A warm pool is a standing promise, so its places are supervised: a worker that fails there is replaced by the rule of the
//! SLA. A worker that has begun a job has left its place, which is filled again; what becomes of the job is the business of
//! the job's own retry policy.

use super::{Provisioning, elapsed, since_origin};
use crate::{
    brain::Brain,
    defect::{Defect, planted},
    id::{ExecutionId, WorkerId},
    journal::TemplateChange,
    template::WorkerTemplate,
    time::Elapsed,
};
use hodei_supervise::{Crash, EventKind, PoolLimits, Supervisor, Swarm, Verdict};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// More idle workers than this are not kept, however short a time they have been idle.
const MOST_IDLE: usize = 1000;

#[derive(Debug)]
pub(super) struct Crew {
    pub swarm: Swarm<WorkerId>,
    supervisor: Supervisor<u32, ExecutionId>,
    seats: BTreeMap<u32, Seat>,
    /// Also by an earlier leader.
    given_up: BTreeSet<u32>,
}

/// A place in the warm pool.
#[derive(Debug, Default)]
struct Seat {
    worker: Option<WorkerId>,
    /// It is not filled before its supervisor says so.
    waits: bool,
}

impl Provisioning {
    #[cfg(feature = "inspect")]
    pub fn pooled(&self) -> impl Iterator<Item = WorkerId> + '_ {
        self.crews.values().flat_map(|crew| crew.swarm.pool().keys().copied())
    }

    pub(super) fn crew(&mut self, template: &WorkerTemplate, now: Elapsed) -> &mut Crew {
        self.crews.entry(Arc::clone(&template.name)).or_insert_with(|| Crew::new(template, now))
    }

    pub(super) fn crew_of(&mut self, worker: WorkerId) -> Option<&mut Crew> {
        let template = &self.made.get(&worker)?.template.name;
        self.crews.get_mut(template)
    }
}

impl Crew {
    fn new(template: &WorkerTemplate, now: Elapsed) -> Self {
        let mut crew = Self {
            swarm: Swarm::new(template.sla, limits(template)),
            supervisor: Supervisor::new(template.sla),
            seats: BTreeMap::new(),
            given_up: BTreeSet::new(),
        };
        crew.configure(template, now);
        crew
    }

    /// The SLA is fixed for as long as there are workers; how many stand ready is not.
    pub fn configure(&mut self, template: &WorkerTemplate, now: Elapsed) {
        self.swarm.set_limits(limits(template));
        self.given_up.clone_from(&template.given_up);
        for seat in 0..template.warm {
            let used = template.restarts.get(&seat).copied().filter(|_| !planted(Defect::RestartsForgotten));
            self.seats.entry(seat).or_insert(Seat { worker: None, waits: used.is_some() });
            self.supervisor.take_over(seat, used.unwrap_or(0), since_origin(now));
        }
        for seat in self.seats.split_off(&template.warm).into_keys() {
            self.supervisor.dismiss(&seat);
        }
    }

    /// Why none of its workers is made, once its places have failed for good.
    pub fn why_not(&self) -> Option<String> {
        let gave_up = !self.seats.is_empty() && self.seats.keys().all(|seat| self.given_up.contains(seat));
        gave_up.then(|| "its workers keep failing; ask for another try with 'hodei pool restart'".to_owned())
    }

    /// A person wants it tried again.
    pub fn ask(&mut self, now: Elapsed) {
        self.given_up.clear();
        for seat in self.seats.keys() {
            self.supervisor.ask(seat, since_origin(now));
        }
    }

    pub fn forgive(&mut self, now: Elapsed) {
        self.swarm.forgive(since_origin(now));
    }

    fn seat_of(&self, worker: WorkerId) -> Option<u32> {
        self.seats.iter().find(|(_, seat)| seat.worker == Some(worker)).map(|(seat, _)| *seat)
    }

    pub fn sit(&mut self, seat: u32, worker: WorkerId) {
        self.seats.entry(seat).or_default().worker = Some(worker);
    }

    /// After a restart those who were made for the pool take its places again.
    pub fn sit_again(&mut self, worker: WorkerId) {
        let open = self.seats.iter_mut().filter(|(seat, it)| it.worker.is_none() && !self.given_up.contains(seat));
        // One that waits to be filled again is more likely to be empty.
        let open = open.min_by_key(|(_, place)| place.waits);
        open.into_iter().for_each(|(_, place)| place.worker = Some(worker));
    }

    /// The places that nobody has and that may be filled now.
    fn open_seats(&mut self, now: Elapsed) -> Vec<u32> {
        for seat in self.supervisor.due(since_origin(now)) {
            self.seats.get_mut(&seat).into_iter().for_each(|seat| seat.waits = false);
        }
        let budget_kept = !planted(Defect::RestartBudgetIgnored);
        let is_open = |(seat, place): &(&u32, &Seat)| {
            let held = place.waits || self.given_up.contains(seat);
            place.worker.is_none() && !(held && budget_kept)
        };
        self.seats.iter().filter(is_open).map(|(seat, _)| *seat).collect()
    }

    /// Those with nothing to do that have no place in the warm pool, and since when.
    fn spare(&self) -> Vec<(WorkerId, std::time::Duration)> {
        let seated = |id: &WorkerId| self.seats.values().any(|seat| seat.worker == Some(*id));
        self.swarm.pool().since().filter(|(id, _)| !seated(id)).map(|(id, since)| (*id, since)).collect()
    }

    /// It has connected.
    pub fn up(&mut self, worker: WorkerId, now: Elapsed) {
        let at = since_origin(now);
        if self.swarm.health(&worker).is_none() {
            _ = self.swarm.watch(worker, at);
        }
        if self.swarm.ready(&worker, at).is_ok()
            && let Some(seat) = self.seat_of(worker)
        {
            self.supervisor.up(&seat, at);
        }
        self.swarm.beat(&worker, at);
    }

    /// It was given a job.
    pub fn took(&mut self, worker: WorkerId, execution: ExecutionId, now: Elapsed) {
        self.swarm.claim(&worker);
        if let Some(seat) = self.seat_of(worker) {
            self.supervisor.accepted(&seat, execution, since_origin(now));
        }
    }

    /// It has begun or ended a job, and is no longer one that stands ready.
    pub fn began(&mut self, worker: WorkerId, execution: ExecutionId, now: Elapsed) {
        if let Some(seat) = self.seat_of(worker) {
            self.supervisor.produced(&seat, &execution, since_origin(now));
            self.sit_out(seat);
        }
    }

    fn sit_out(&mut self, seat: u32) {
        self.seats.get_mut(&seat).into_iter().for_each(|place| place.worker = None);
    }

    /// It has nothing to do. What is returned had to make room for it.
    pub fn rests(&mut self, worker: WorkerId, now: Elapsed) -> Option<WorkerId> {
        if self.swarm.pool().contains(&worker) {
            return None;
        }
        self.swarm.release(worker, since_origin(now)).ok().flatten()
    }

    /// It is told to end.
    pub fn stops(&mut self, worker: WorkerId) {
        _ = self.swarm.stop(&worker);
        if let Some(seat) = self.seat_of(worker) {
            self.sit_out(seat);
        }
    }

    /// It failed, or was found to. Its place waits or is given up, if it had one.
    pub fn fails(&mut self, worker: WorkerId, crash: Crash, now: Elapsed) {
        if self.swarm.exited(&worker).is_err() {
            self.swarm.forget(&worker);
        }
        let Some(seat) = self.seat_of(worker) else { return };
        let verdict = self.supervisor.crashed(&seat, crash, since_origin(now));
        if let Some(place) = self.seats.get_mut(&seat) {
            (place.worker, place.waits) = (None, matches!(verdict, Verdict::RestartAt(_)));
        }
        if verdict == Verdict::GaveUp {
            self.given_up.insert(seat);
        }
    }

    /// The restarts that its places have used.
    fn restarts(&self) -> BTreeMap<u32, u32> {
        self.supervisor.used().map(|(seat, restarts)| (*seat, restarts)).collect()
    }

    pub fn gone(&mut self, worker: WorkerId) {
        self.swarm.forget(&worker);
        if let Some(seat) = self.seat_of(worker) {
            self.sit_out(seat);
        }
    }

    /// Those in the pool's places that took a job and have not begun it in time.
    pub fn not_producing(&self, now: Elapsed) -> Vec<(WorkerId, String)> {
        let stalled = self.supervisor.not_producing(since_origin(now)).into_iter().filter_map(|stalled| {
            let worker = self.seats.get(&stalled.key)?.worker?;
            Some((worker, format!("took a job {} s ago and has not begun it", stalled.waited.as_secs())))
        });
        stalled.collect()
    }

    fn next_deadline(&self) -> Option<Elapsed> {
        let deadlines = self.swarm.next_deadline().into_iter().chain(self.supervisor.next_deadline());
        deadlines.chain(self.supervisor.next_give_back()).min().map(elapsed)
    }

    fn is_over(&self) -> bool {
        self.seats.is_empty() && self.swarm.is_empty()
    }
}

fn limits(template: &WorkerTemplate) -> PoolLimits {
    PoolLimits {
        capacity: MOST_IDLE,
        warm: usize::try_from(template.warm).unwrap_or(usize::MAX),
        ttl: template.idle_timeout.duration(),
    }
}

impl Brain {
    /// The template is gone: nobody stands ready for it any more, and those who work finish.
    pub(super) fn dismiss_crew(&mut self, name: &Arc<str>) {
        let Some(crew) = self.provisioning.crews.get_mut(name) else { return };
        for seat in std::mem::take(&mut crew.seats).into_keys() {
            crew.supervisor.dismiss(&seat);
        }
        let idle: Vec<WorkerId> = crew.swarm.pool().keys().copied().collect();
        for worker in idle {
            self.terminate(worker, "its template was removed");
        }
    }

    pub(super) fn crew_member_failed(&mut self, id: WorkerId, crash: Crash) {
        let now = self.elapsed;
        if let Some(crew) = self.provisioning.crew_of(id) {
            crew.fails(id, crash, now);
        }
        let name = self.provisioning.made.get(&id).map(|made| Arc::clone(&made.template.name));
        name.into_iter().for_each(|name| self.keep_budgets(&name));
    }

    /// A minute of good work gives the restarts of a place back.
    pub(super) fn give_back_restarts(&mut self) {
        let now = since_origin(self.elapsed);
        let crews = self.provisioning.crews.iter_mut();
        let good = crews.filter_map(|(name, crew)| crew.supervisor.give_back(now).then(|| Arc::clone(name)));
        for name in good.collect::<Vec<_>>() {
            self.keep_budgets(&name);
        }
    }

    /// Restarts that were used and places that were given up stay so over a restart of the server.
    pub(super) fn keep_budgets(&mut self, name: &Arc<str>) {
        let Provisioning { crews, templates, dirty_templates, .. } = &mut self.provisioning;
        let Some((crew, template)) = crews.get(name).zip(templates.get_mut(name)) else { return };
        let restarts = crew.restarts();
        if (&template.given_up, &template.restarts) != (&crew.given_up, &restarts) {
            *template = Arc::new(WorkerTemplate { given_up: crew.given_up.clone(), restarts, ..(**template).clone() });
            dirty_templates.insert(Arc::clone(name));
        }
    }

    /// Warm pools: every open place gets an idle worker, or one is made for it.
    pub(super) fn fill_seats(&mut self) {
        let now = self.elapsed;
        for template in self.provisioning.templates.values().cloned().collect::<Vec<_>>() {
            let crew = self.provisioning.crew(&template, now);
            let open = crew.open_seats(now);
            let seated: Vec<WorkerId> = crew.seats.values().filter_map(|seat| seat.worker).collect();
            let idle: Vec<WorkerId> = crew.swarm.pool().keys().copied().filter(|id| !seated.contains(id)).collect();
            let mut idle = idle.into_iter();
            for seat in open {
                if let Some(worker) = idle.next() {
                    let crew = self.provisioning.crew(&template, now);
                    crew.sit(seat, worker);
                    crew.supervisor.up(&seat, since_origin(now));
                    continue;
                }
                let Ok(provider) = self.provisioning.pick(&template, None, now) else {
                    let crowded = self.provisioning.crowded(&template, now);
                    self.make_room(&crowded);
                    break;
                };
                let worker = self.ask_for(&template, &provider, None);
                self.provisioning.crew(&template, now).sit(seat, worker);
            }
        }
    }

    /// One that stands about beyond what is promised gives way to one that is needed.
    pub(super) fn make_room(&mut self, crowded: &[Arc<str>]) {
        let provisioning = &self.provisioning;
        let spare = provisioning.crews.values().flat_map(Crew::spare);
        let of_it = |id: &WorkerId| provisioning.made.get(id).is_some_and(|made| crowded.contains(&made.provider));
        let goes = spare.into_iter().filter(|(id, _)| of_it(id)).min_by_key(|(_, since)| *since);
        if let Some((worker, _)) = goes {
            self.terminate(worker, "gives way to one that is needed");
        }
    }

    /// What supervision has to say goes into the journal.
    pub(super) fn tell_supervision(&mut self) {
        let mut told = Vec::new();
        for (name, crew) in &mut self.provisioning.crews {
            let events = crew.supervisor.take_events().into_iter().map(|event| event.kind);
            told.extend(events.filter_map(|kind| Some((Arc::clone(name), change(kind)?))));
        }
        for (name, what) in told {
            self.note_template(&name, what);
        }
        let templates = &self.provisioning.templates;
        self.provisioning.crews.retain(|name, crew| templates.contains_key(name) || !crew.is_over());
    }

    /// When to look again although nothing changes.
    pub(super) fn next_look(&self) -> Option<Elapsed> {
        let crews = self.provisioning.crews.values().filter_map(Crew::next_deadline);
        let made = self.provisioning.made.iter().filter_map(|(id, made)| self.next_step(*id, made));
        crews.chain(made).chain(self.provisioning.next_hold_end(self.elapsed)).min()
    }
}

/// A wish for another try is in the journal already.
fn change(kind: EventKind) -> Option<TemplateChange> {
    let said = kind.to_string();
    match kind {
        EventKind::Replaced { .. } => Some(TemplateChange::Replaced),
        EventKind::FailedPermanent { .. } => Some(TemplateChange::FailedPermanent(said)),
        EventKind::Crashed { .. } => Some(TemplateChange::Crashed(said)),
        EventKind::Hanging { .. } => Some(TemplateChange::Hanging(said)),
        EventKind::NotProducing { .. } => Some(TemplateChange::NotProducing(said)),
        EventKind::Asked => None,
    }
}
