//! Workers that come, go, fall silent and come back.

use super::*;
use crate::{
    journal::{Change, Supervision},
    worker::{Drain, WorkerInfo, WorkerState},
};

/// A worker that left by itself can come back with its session for this long.
const DEPARTED_MEMORY: Millis = Millis::seconds(30 * 24 * 3600);

impl Brain {
    pub(super) fn register(&mut self, request: Registration) -> Result<Answer, Refusal> {
        let token = self.tokens.get_mut(&request.token).ok_or(TokenRefused::Unknown)?;
        token.redeem(request.worker, request.key, self.now)?;
        let id = token.worker;
        self.dirty_tokens.insert(request.token);
        if self.fleet.get(id).is_some_and(|worker| worker.record.phase == Phase::Terminating) {
            return Err(Refusal::NoSuchWorker(id));
        }
        let record = WorkerRecord {
            id,
            info: *request.info,
            session: Some(request.session),
            incarnation: None,
            phase: Phase::Active,
            registered_at: self.now,
            origin: self.fleet.get(id).and_then(|worker| worker.record.origin.clone()),
            drain: None,
            leaving: None,
            history: self.fleet.get(id).map(|worker| worker.record.history.clone()).unwrap_or_default(),
        };
        match self.fleet.get(id).map(|worker| worker.connection) {
            Some(connection) => {
                self.close(id, connection);
                self.fleet.redescribe(record.clone());
                self.recheck = true;
            }
            None => self.fleet.add(record.clone(), self.elapsed + self.config.lease),
        }
        self.dirty_workers.insert(id);
        self.note_registered(id);
        self.watch_worker(id, "");
        Ok(Answer::Registered(Box::new(record)))
    }

    fn close(&mut self, worker: WorkerId, connection: Option<Connection>) {
        if let Some(connection) = connection {
            self.effects.push(Effect::Close { worker, connection });
            self.fleet.update(worker, |worker| worker.connection = None);
        }
    }

    pub(super) fn connect(&mut self, id: WorkerId, connection: Connection, hello: Hello) {
        let in_order = |worker: &&fleet::Worker| worker.latest < Some(connection);
        let Some(worker) = self.fleet.get(id).filter(in_order) else {
            self.effects.push(Effect::Close { worker: id, connection });
            return;
        };
        let (older, reborn) = (worker.connection, worker.record.incarnation != Some(hello.incarnation));
        let held: Vec<ExecutionId> = worker.held.iter().copied().collect();
        self.close(id, older);
        let renewed = hello.info.filter(|info| self.fleet.get(id).is_some_and(|worker| worker.record.info != **info));
        if let (Some(info), Some(worker)) = (renewed, self.fleet.get(id)) {
            self.fleet.redescribe(WorkerRecord { info: *info, ..worker.record.clone() });
            self.dirty_workers.insert(id);
            self.recheck = true;
        }
        let (now, lease_until) = (self.elapsed, self.elapsed + self.config.lease);
        self.fleet.update(id, |worker| {
            (worker.connection, worker.latest) = (Some(connection), Some(connection));
            worker.lease_until = worker.lease_until.max(lease_until);
            worker.connected_at = now;
            worker.lost = false;
            worker.record.incarnation = Some(hello.incarnation);
        });
        self.set_leaving(id, hello.leaving);
        if reborn {
            self.dirty_workers.insert(id);
            self.reborn(id);
        }
        self.note_connected(id);
        self.watch_worker(id, "");
        let named: BTreeSet<ExecutionId> = hello.held.iter().chain(&hello.ended).copied().collect();
        let bound = |execution: &ExecutionId| Bound { execution: *execution, job: self.bound(id, *execution) };
        let verdicts = named.iter().map(bound).collect();
        let heartbeat = self.heartbeat_of(id);
        self.effects.push(Effect::Welcome { worker: id, connection, verdicts, heartbeat });
        for execution in held {
            self.reconcile(execution, named.contains(&execution), reborn);
        }
        if self.fleet.get(id).is_some_and(|worker| worker.record.phase == Phase::Draining) {
            self.tell_to_drain(id, connection);
        }
    }

    /// Brings together what the server knows of an execution and what its worker says of it.
    fn reconcile(&mut self, execution: ExecutionId, named: bool, reborn: bool) {
        let Some(id) = self.executions.get(&execution).copied() else { return };
        let Some((run, state)) = self.run_of(id).zip(self.jobs.get(&id).map(|entry| &entry.job.state)) else { return };
        let (cancel, unstarted) = (state.cancel().is_some(), matches!(state, State::Scheduled { .. }));
        let overdue = self.jobs.get(&id).and_then(|entry| entry.job.due_at()).is_some_and(|at| at <= self.now);
        match (named, unstarted && !reborn) {
            (true, _) if cancel => self.stop(run, StopReason::Cancelled),
            (true, _) if overdue => self.stop(run, StopReason::RunTimeout),
            (true, _) => {}
            (false, true) if cancel => self.conclude(id, &Event::ConfirmCancel(execution), Outcome::Cancelled),
            (false, true) => self.send_run(id),
            (false, false) => self.lose(execution, "its worker came back without it"),
        }
    }

    pub(super) fn disconnect(&mut self, worker: WorkerId, connection: Connection) {
        self.fleet.update(worker, |worker| {
            worker.latest = worker.latest.max(Some(connection));
            if worker.connection == Some(connection) || planted(Defect::OldStreamBelieved) {
                worker.connection = None;
            }
            if planted(Defect::LeaseIgnored) {
                worker.lease_until = Elapsed::default();
            }
        });
        self.watch_worker(worker, "");
        self.note_disconnected(worker);
    }

    /// It finishes what it has and wants nothing more.
    pub(super) fn pause(&mut self, id: WorkerId) -> Result<Answer, Refusal> {
        self.set_leaving(id, true);
        self.fleet.get(id).ok_or(Refusal::NoSuchWorker(id))?;
        self.tell_standing_of(id, "");
        Ok(Answer::Done)
    }

    fn set_leaving(&mut self, id: WorkerId, leaving: bool) {
        let now = self.now;
        let changed = self.fleet.update(id, |worker| {
            let before = worker.record.leaving;
            worker.record.leaving = leaving.then(|| before.unwrap_or(now));
            worker.record.leaving != before
        });
        if changed == Some(true) {
            self.dirty_workers.insert(id);
        }
    }

    /// Of those whose state may have changed, some have left by themselves, and some were told to and are gone: of a worker
    /// that nothing is bound to and nobody answers for, no more is to be awaited.
    pub(super) fn see_off(&mut self) {
        for id in self.watched_workers() {
            let Some(worker) = self.fleet.get(id).filter(|worker| worker.record.origin.is_none()) else { continue };
            if worker.has_left() {
                self.watch_worker(id, "left by itself");
            } else if worker.record.phase == Phase::Draining && worker.is_deserted() {
                self.remove_worker(id, "was drained");
            }
        }
    }

    /// Those that left long ago will not come back.
    pub(super) fn forget_departed(&mut self) {
        let long_ago = |worker: &&fleet::Worker| {
            worker.record.leaving.is_some_and(|since| self.now >= since + DEPARTED_MEMORY) && worker.has_left()
        };
        for id in self.fleet.iter().filter(long_ago).map(|worker| worker.record.id).collect::<Vec<_>>() {
            self.remove_worker(id, "");
        }
    }

    fn tell_to_drain(&mut self, worker: WorkerId, connection: Connection) {
        let order = self.fleet.get(worker).and_then(|worker| worker.record.drain.as_ref());
        let within = order.and_then(|order| order.deadline).map(|deadline| deadline - self.now);
        self.effects.push(Effect::Drain { worker, connection, within });
    }

    pub(super) fn renew(&mut self, worker: WorkerId, at: Elapsed) {
        let lease_until = at + self.config.lease;
        self.fleet.update(worker, |worker| {
            worker.lease_until = worker.lease_until.max(lease_until);
            // A greeting is a sign of life, too, but its answer may never arrive.
            if worker.connection.is_some() && at > worker.connected_at {
                worker.parked_until = Elapsed::default();
            }
        });
        self.note_beat(worker, at);
    }

    pub(super) fn drain(&mut self, id: WorkerId, order: Drain) -> Result<Answer, Refusal> {
        if self.fleet.get(id).is_some_and(|worker| !matches!(worker.record.phase, Phase::Active | Phase::Draining)) {
            self.send_home(id, &order);
            return Ok(Answer::Done);
        }
        let order = order.after(self.fleet.get(id).and_then(|worker| worker.record.drain.as_ref()));
        let reason = order.reason.clone();
        let connection = self.fleet.update(id, |worker| {
            worker.record.phase = Phase::Draining;
            worker.record.drain = Some(order);
            worker.connection
        });
        let connection = connection.ok_or(Refusal::NoSuchWorker(id))?;
        self.dirty_workers.insert(id);
        self.tell_standing_of(id, &reason);
        self.note_draining(id);
        self.recheck = true;
        if let Some(connection) = connection {
            self.tell_to_drain(id, connection);
        }
        Ok(Answer::Done)
    }

    pub(super) fn unregister(&mut self, id: WorkerId) -> Result<Answer, Refusal> {
        let worker = self.fleet.get(id).ok_or(Refusal::NoSuchWorker(id))?;
        let (held, connection) = (worker.held.iter().copied().collect::<Vec<_>>(), worker.connection);
        for execution in held {
            if let Some(job) = self.executions.get(&execution).copied() {
                self.conclude(job, &Event::Release(execution), Outcome::Released);
            }
        }
        self.close(id, connection);
        if !self.unregistered(id) {
            self.remove_worker(id, "");
        }
        Ok(Answer::Done)
    }

    pub(super) fn remove_worker(&mut self, id: WorkerId, why: &str) {
        if let Some(worker) = self.fleet.remove(id) {
            self.recheck = true;
            self.dirty_workers.remove(&id);
            if let Some(connection) = worker.connection {
                self.effects.push(Effect::Close { worker: id, connection });
            }
            self.gone_workers.push(WorkerRecord { phase: Phase::Terminated, ..worker.record });
            self.watch_worker(id, why);
        }
    }

    /// An older connection says nothing about what the worker is now.
    pub(super) fn describe(&mut self, id: WorkerId, connection: Connection, info: WorkerInfo) {
        let Some(worker) = self.fleet.get(id).filter(|worker| worker.connection == Some(connection)) else { return };
        self.fleet.redescribe(WorkerRecord { info, ..worker.record.clone() });
        self.dirty_workers.insert(id);
    }

    pub(super) fn supervised(&mut self, worker: WorkerId, news: Supervision) {
        if self.fleet.get(worker).is_some() {
            self.moves.changes.push(Change::Supervision { worker, news });
        }
    }

    pub(super) fn restart_handler(&mut self, id: WorkerId, handler: String) -> Result<Answer, Refusal> {
        let worker = self.fleet.get(id).ok_or(Refusal::NoSuchWorker(id))?;
        if !worker.record.info.handlers.iter().any(|known| known.name == handler) {
            return Err(Refusal::NoSuchHandler(id, handler));
        }
        let connection = worker.connection.ok_or(Refusal::NotConnected(id))?;
        self.effects.push(Effect::RestartHandler { worker: id, connection, handler });
        Ok(Answer::Done)
    }

    pub(super) fn expire_leases(&mut self) {
        for id in self.fleet.expired(self.elapsed, self.config.lease_grace) {
            let Some(worker) = self.fleet.get(id) else { continue };
            let (held, connection) = (worker.held.iter().copied().collect::<Vec<_>>(), worker.connection);
            self.close(id, connection);
            self.fleet.update(id, |worker| worker.lost = true);
            self.tell_state(id, WorkerState::Unhealthy, "was not heard of until its lease ran out");
            self.watch_worker(id, "");
            self.provisioning.stir();
            for execution in held {
                self.lose(execution, "its worker was not heard of until its lease ran out");
            }
        }
    }

    pub(super) fn park(&mut self, lease: Millis) {
        self.parking = Some(lease);
        let connected = self.fleet.iter().filter_map(|worker| Some((worker.record.id, worker.connection?)));
        for (worker, connection) in connected.collect::<Vec<_>>() {
            let until = self.elapsed + lease;
            self.fleet.update(worker, |worker| worker.lease_until = worker.lease_until.max(until));
            self.effects.push(Effect::Park { worker, connection, lease });
        }
    }

    pub(super) fn forget_old_tokens(&mut self) {
        let now = self.now;
        let old = self.tokens.extract_if(|_, token| now >= token.expires_at + TOKEN_MEMORY);
        self.dirty_tokens.extend(old.map(|(hash, _)| hash));
    }
}
