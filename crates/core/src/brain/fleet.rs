//! The workers as the brain sees them: who is there, what is free, whose lease runs out.

use super::input::Connection;
use crate::{
    id::{ExecutionId, WorkerId},
    requirements::Requirements,
    template::Reuse,
    time::{Elapsed, Millis},
    worker::{Capacity, Offer, Origin, Phase, WorkerRecord, WorkerState},
};
use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

#[derive(Debug, Default)]
pub(super) struct Fleet {
    workers: BTreeMap<WorkerId, Worker>,
    /// Workers that can take a job now, by what they run, those with the most free slots first. Most fleets have a few
    /// kinds of workers and many of each, so a job looks at few that are not for it.
    free: BTreeMap<Offer, BTreeSet<Free>>,
}

type Free = (Reverse<u32>, WorkerId);

#[derive(Debug)]
pub(super) struct Worker {
    pub record: WorkerRecord,
    pub connection: Option<Connection>,
    /// The latest connection heard of. Word of an older one is out of date, whenever it comes.
    pub latest: Option<Connection>,
    /// When it greeted on its connection.
    pub connected_at: Elapsed,
    /// When its work may be given to others, the grace not counted.
    pub lease_until: Elapsed,
    /// The lease that a leader before us gave when it left. It holds until the worker has heard of ours.
    pub parked_until: Elapsed,
    /// It wants no more work on this connection.
    pub paused: bool,
    /// Its lease ran out and it has not come back since.
    pub lost: bool,
    pub held: BTreeSet<ExecutionId>,
    /// What those it holds have reserved; more than it has, when it came back smaller.
    used: Capacity,
}

/// A worker as people see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerView {
    pub record: WorkerRecord,
    pub state: WorkerState,
    pub running: u32,
    pub free: Capacity,
    /// Its stream is open.
    pub connected: bool,
}

impl Fleet {
    pub fn add(&mut self, record: WorkerRecord, lease_until: Elapsed) {
        let worker = Worker {
            connection: None,
            latest: None,
            connected_at: Elapsed::default(),
            lease_until,
            parked_until: Elapsed::default(),
            paused: false,
            lost: false,
            held: BTreeSet::new(),
            used: Capacity::default(),
            record,
        };
        self.workers.insert(worker.record.id, worker);
    }

    pub fn get(&self, id: WorkerId) -> Option<&Worker> {
        self.workers.get(&id)
    }

    /// Changes a worker and keeps the list of free ones right.
    pub fn update<T>(&mut self, id: WorkerId, change: impl FnOnce(&mut Worker) -> T) -> Option<T> {
        let worker = self.workers.get_mut(&id)?;
        let before = worker.open_slots();
        let out = change(worker);
        let after = worker.open_slots();
        if before != after {
            move_free(&mut self.free, worker, before, after);
        }
        Some(out)
    }

    /// Takes over what a worker now says of itself, with what it holds still reserved.
    pub fn redescribe(&mut self, record: WorkerRecord) {
        let Some(worker) = self.workers.get_mut(&record.id) else { return };
        move_free(&mut self.free, worker, worker.open_slots(), 0);
        worker.record = record;
        move_free(&mut self.free, worker, 0, worker.open_slots());
    }

    pub fn remove(&mut self, id: WorkerId) -> Option<Worker> {
        let worker = self.workers.remove(&id)?;
        move_free(&mut self.free, &worker, worker.open_slots(), 0);
        Some(worker)
    }

    pub fn any_free(&self) -> bool {
        !self.free.is_empty()
    }

    /// The freest worker that runs such work and has room for this.
    pub fn pick(&self, task_type: Option<&str>, needs: &Requirements) -> Option<WorkerId> {
        let fits = |(_, id): &&Free| self.workers.get(id).is_some_and(|worker| worker.fits(needs));
        let offers = self.free.iter().filter(|(offer, _)| offer.includes(task_type));
        offers.filter_map(|(_, free)| free.iter().find(fits)).min().map(|(_, id)| *id)
    }

    /// Why a ready job of this type and with these needs is not placed, in words.
    pub fn why_wait(&self, task_type: Option<&str>, needs: &Requirements) -> String {
        let connected = || self.iter().filter(|worker| worker.connection.is_some());
        let offering = || connected().filter(|worker| worker.runs(task_type));
        let fitting = || offering().filter(|worker| worker.could_fit(needs));
        let open = || fitting().filter(|worker| worker.is_open());
        if connected().next().is_none() {
            "no worker is connected".into()
        } else if offering().next().is_none() {
            match task_type {
                Some(task_type) => format!("no connected worker handles tasks of type {task_type}"),
                None => "no connected worker runs processes".into(),
            }
        } else if fitting().next().is_none() {
            "no connected worker is large enough for its requirements".into()
        } else if open().next().is_none() {
            "every worker that fits is leaving".into()
        } else if open().any(|worker| worker.fits(needs)) {
            "a worker has room and its turn is coming".into()
        } else {
            "every worker that fits is busy".into()
        }
    }

    /// Workers whose lease ended more than `grace` ago.
    pub fn expired(&self, now: Elapsed, grace: Millis) -> Vec<WorkerId> {
        let late = |worker: &&Worker| worker.has_lease() && now >= worker.expiry() + grace;
        self.workers.values().filter(late).map(|worker| worker.record.id).collect()
    }

    pub fn next_expiry(&self, grace: Millis) -> Option<Elapsed> {
        self.workers.values().filter(|worker| worker.has_lease()).map(|worker| worker.expiry() + grace).min()
    }

    /// Time passed in which no sign of life could have been heard.
    pub fn extend_leases(&mut self, gap: Millis) {
        for worker in self.workers.values_mut() {
            worker.lease_until = worker.lease_until + gap;
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = &Worker> {
        self.workers.values()
    }

    pub fn views(&self) -> Vec<WorkerView> {
        self.workers.values().map(Worker::view).collect()
    }
}

fn move_free(free: &mut BTreeMap<Offer, BTreeSet<Free>>, worker: &Worker, before: u32, after: u32) {
    let (id, offer) = (worker.record.id, &worker.record.info.offer);
    let Some(alike) = free.get_mut(offer) else {
        if after > 0 {
            free.insert(offer.clone(), BTreeSet::from([(Reverse(after), id)]));
        }
        return;
    };
    alike.remove(&(Reverse(before), id));
    if after > 0 {
        alike.insert((Reverse(after), id));
    } else if alike.is_empty() {
        free.remove(offer);
    }
}

impl Worker {
    /// Whether it takes jobs, as far as it has room for them.
    pub fn is_open(&self) -> bool {
        self.connection.is_some() && self.record.phase == Phase::Active && !self.paused && !self.is_used_up()
    }

    /// It was made for one job and has had it.
    fn is_used_up(&self) -> bool {
        let used_up = |origin: &Origin| origin.used && origin.template.reuse == Reuse::Never;
        self.record.origin.as_deref().is_some_and(used_up)
    }

    /// Whether anything depends on its being heard of.
    fn has_lease(&self) -> bool {
        !self.lost && self.record.session.is_some()
    }

    /// Slots that a job can be sent to now.
    fn open_slots(&self) -> u32 {
        if self.is_open() { self.free().slots } else { 0 }
    }

    fn expiry(&self) -> Elapsed {
        self.lease_until.max(self.parked_until)
    }

    fn free(&self) -> Capacity {
        let (whole, used) = (&self.record.info.capacity, &self.used);
        Capacity {
            slots: whole.slots.saturating_sub(used.slots),
            cpu_millis: whole.cpu_millis.saturating_sub(used.cpu_millis),
            memory_bytes: whole.memory_bytes.saturating_sub(used.memory_bytes),
            disk_bytes: whole.disk_bytes.saturating_sub(used.disk_bytes),
            gpus: whole.gpus.saturating_sub(used.gpus),
        }
    }

    fn fits(&self, needs: &Requirements) -> bool {
        let free = self.free();
        free.slots > 0 && free.cpu_millis >= needs.cpu_millis && free.memory_bytes >= needs.memory_bytes
    }

    fn runs(&self, task_type: Option<&str>) -> bool {
        self.record.info.offer.includes(task_type)
    }

    /// Whether it has room for this when it has nothing else to do.
    fn could_fit(&self, needs: &Requirements) -> bool {
        let whole = &self.record.info.capacity;
        whole.slots > 0 && whole.cpu_millis >= needs.cpu_millis && whole.memory_bytes >= needs.memory_bytes
    }

    pub fn hold(&mut self, execution: ExecutionId, needs: &Requirements) {
        if self.held.insert(execution) {
            self.used.slots += 1;
            self.used.cpu_millis += needs.cpu_millis;
            self.used.memory_bytes += needs.memory_bytes;
        }
    }

    pub fn release(&mut self, execution: ExecutionId, needs: &Requirements) {
        if self.held.remove(&execution) {
            self.used.slots -= 1;
            self.used.cpu_millis -= needs.cpu_millis;
            self.used.memory_bytes -= needs.memory_bytes;
        }
    }

    pub fn state(&self) -> WorkerState {
        match (self.record.phase, self.connection) {
            (Phase::Terminated, _) => WorkerState::Terminated,
            // One that never came does not leave.
            (Phase::Terminating, _) if self.record.session.is_some() => WorkerState::Terminating,
            (Phase::Terminating, _) => WorkerState::Connecting,
            (Phase::Creating, _) => WorkerState::Creating,
            (Phase::Connecting, _) => WorkerState::Connecting,
            _ if self.lost => WorkerState::Unhealthy,
            (Phase::Draining, _) => WorkerState::Draining,
            // A stream that breaks is opened again: until its lease is over it counts as there.
            (Phase::Active, None) if self.record.incarnation.is_none() => WorkerState::Connecting,
            (Phase::Active, _) if self.paused => WorkerState::Draining,
            (Phase::Active, _) if self.free().slots == 0 => WorkerState::Busy,
            (Phase::Active, _) => WorkerState::Ready,
        }
    }

    pub fn view(&self) -> WorkerView {
        let running = u32::try_from(self.held.len()).unwrap_or(u32::MAX);
        let connected = self.connection.is_some();
        WorkerView { record: self.record.clone(), state: self.state(), running, free: self.free(), connected }
    }
}
