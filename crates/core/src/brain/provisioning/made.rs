//! The life of a worker that a provider makes: asked for, made, registered, at work, on its way out, gone.

use super::{Provisioning, choose::info_of, since_origin};
use crate::{
    brain::{Brain, Effect},
    defect::{Defect, planted},
    id::{ExecutionId, JobId, WorkerId},
    journal::ProviderChange,
    provider::{ErrorClass, Exit, Instance, InstanceState, ProviderCapabilities, ProviderFailure, ProviderHealth},
    state::{Event, Failure, FailureKind, Outcome},
    template::{Reuse, WorkerTemplate},
    time::{Elapsed, Millis},
    worker::{Drain, Origin, Phase, WorkerRecord},
};
use hodei_supervise::{Cause, Crash};
use std::{collections::BTreeMap, sync::Arc};

/// A provider that has not made a worker by then will not: images are large, but not that large.
const CREATION: Millis = Millis::seconds(600);
/// After the deadline of a drain, for the agent to give back what it runs.
const DRAIN_GRACE: Millis = Millis::seconds(10);

/// What is known of such a worker besides its record.
#[derive(Debug)]
pub(super) struct Made {
    pub provider: Arc<str>,
    pub template: Arc<WorkerTemplate>,
    /// When it came into its phase, as far as this life of the server saw.
    since: Elapsed,
    born: Elapsed,
    /// Its provider has been asked for the next step and has not answered.
    asked: bool,
    phase: Phase,
    /// Why it goes, and whether what it printed is wanted.
    why: String,
    output: bool,
    /// It goes because it failed, not in order.
    failed: bool,
}

impl Made {
    /// Nobody knows yet whether it will come.
    pub fn is_coming(&self) -> bool {
        matches!(self.phase, Phase::Creating | Phase::Connecting)
    }

    pub fn can_take_work(&self) -> bool {
        matches!(self.phase, Phase::Creating | Phase::Connecting | Phase::Active)
    }
}

impl Provisioning {
    /// Has the next look ask a provider again for all that it has not done yet.
    pub fn ask_anew(&mut self, provider: &str) {
        let of_it = self.made.values_mut().filter(|made| &*made.provider == provider);
        of_it.for_each(|made| made.asked = false);
    }

    pub fn made_by(&self, provider: &str) -> Vec<WorkerId> {
        self.made.iter().filter(|(_, made)| &*made.provider == provider).map(|(id, _)| *id).collect()
    }
}

impl Brain {
    /// Takes up the workers that an earlier leader had made.
    pub(in crate::brain) fn take_back_made(&mut self, records: &[WorkerRecord]) {
        for record in records {
            let Some(origin) = &record.origin else { continue };
            let made = Made {
                provider: Arc::clone(&origin.provider),
                template: Arc::clone(&origin.template),
                since: self.elapsed,
                born: self.elapsed,
                asked: false,
                phase: record.phase,
                why: String::new(),
                output: false,
                failed: false,
            };
            let stands_ready = made.can_take_work() && origin.job.is_none() && !origin.used;
            self.provisioning.made.insert(record.id, made);
            let template = self.provisioning.templates.get(&origin.template.name).cloned();
            let crew = self.provisioning.crew(template.as_ref().unwrap_or(&origin.template), self.elapsed);
            if stands_ready && template.is_some() {
                crew.sit_again(record.id);
            }
            if record.phase == Phase::Active {
                let now = self.elapsed;
                let crew = self.provisioning.crew_of(record.id);
                crew.into_iter().for_each(|crew| crew.up(record.id, now));
            }
        }
    }

    /// Wants a worker of this template from this provider. Its row is written before anybody hears of it.
    pub(super) fn ask_for(
        &mut self,
        template: &Arc<WorkerTemplate>,
        provider: &Arc<str>,
        job: Option<JobId>,
    ) -> WorkerId {
        let id = WorkerId(self.make_id());
        let origin = Origin {
            provider: Arc::clone(provider),
            template: Arc::clone(template),
            job,
            asked_at: self.now,
            used: false,
        };
        let record = WorkerRecord {
            id,
            info: info_of(template),
            session: None,
            incarnation: None,
            phase: Phase::Creating,
            registered_at: self.now,
            origin: Some(Box::new(origin)),
            drain: None,
            leaving: None,
            history: BTreeMap::new(),
        };
        self.fleet.add(record, self.elapsed + self.config.lease);
        self.dirty_workers.insert(id);
        let made = Made {
            provider: Arc::clone(provider),
            template: Arc::clone(template),
            since: self.elapsed,
            born: self.elapsed,
            asked: false,
            phase: Phase::Creating,
            why: String::new(),
            output: false,
            failed: false,
        };
        self.provisioning.made.insert(id, made);
        self.provisioning.last = Some(Arc::clone(provider));
        self.watch_worker(id, "");
        self.ask_provider(id);
        id
    }

    fn set_phase(&mut self, id: WorkerId, phase: Phase) {
        let now = self.elapsed;
        if let Some(made) = self.provisioning.made.get_mut(&id) {
            (made.phase, made.since, made.asked) = (phase, now, false);
        }
        self.fleet.update(id, |worker| worker.record.phase = phase);
        self.dirty_workers.insert(id);
        self.provisioning.stir();
    }

    /// Asks for what its phase wants, once in each life of the server.
    fn ask_provider(&mut self, id: WorkerId) {
        let Some(made) = self.provisioning.made.get_mut(&id).filter(|made| !made.asked) else { return };
        let origin = self.fleet.get(id).and_then(|worker| worker.record.origin.clone());
        let effect = match (made.phase, origin) {
            (Phase::Creating, Some(origin)) => Effect::Create { worker: id, origin },
            (Phase::Terminating, _) => {
                Effect::Destroy { worker: id, provider: Arc::clone(&made.provider), output: made.output }
            }
            _ => return,
        };
        made.asked = true;
        self.effects.push(effect);
    }

    /// Looks at each: what is due, what is late, what has nothing to do.
    pub(super) fn look_after_made(&mut self) {
        self.look_for_hangs();
        for id in self.provisioning.made.keys().copied().collect::<Vec<_>>() {
            let phase = self.provisioning.made.get(&id).map(|made| made.phase);
            match phase {
                Some(Phase::Creating | Phase::Connecting) => self.look_at_coming(id),
                Some(Phase::Active) => self.look_at_active(id),
                Some(Phase::Draining) => self.look_at_draining(id),
                Some(Phase::Terminating) => self.ask_provider(id),
                Some(Phase::Terminated) | None => {}
            }
        }
    }

    fn look_at_coming(&mut self, id: WorkerId) {
        self.ask_provider(id);
        let Some(made) = self.provisioning.made.get(&id) else { return };
        let (limit, what) = match made.phase {
            Phase::Creating => (CREATION, "was not made"),
            _ => (self.config.registration, "did not register"),
        };
        if self.elapsed >= made.since + limit {
            self.never_came(id, format!("{what} within {} s", limit.0 / 1000));
        }
    }

    /// It is removed, and what it printed is asked for first: that says why it did not come.
    fn never_came(&mut self, id: WorkerId, why: String) {
        let Some(made) = self.provisioning.made.get_mut(&id) else { return };
        let (provider, template) = (Arc::clone(&made.provider), Arc::clone(&made.template.name));
        let failure = ProviderFailure { class: ErrorClass::NeverCame, message: format!("a worker {why}") };
        (made.why, made.output, made.failed) = (why, true, true);
        self.provisioning.note_failure(&provider, &template, &failure, self.elapsed);
        self.set_phase(id, Phase::Terminating);
        self.ask_provider(id);
    }

    fn look_for_hangs(&mut self) {
        let now = self.elapsed;
        let mut failed = Vec::new();
        for crew in self.provisioning.crews.values_mut() {
            failed.extend(crew.swarm.hung(since_origin(now)).into_iter().map(|id| (id, Cause::Hung, String::new())));
            failed.extend(crew.not_producing(now).into_iter().map(|(id, why)| (id, Cause::NotProducing, why)));
            for worker in crew.swarm.expired(since_origin(now)) {
                failed.push((worker, Cause::Exited, String::new()));
            }
        }
        for (id, cause, why) in failed {
            match cause {
                Cause::Hung => self.worker_failed(id, cause, "missed three heartbeats", Exit::default()),
                Cause::NotProducing => self.worker_failed(id, cause, &why, Exit::default()),
                _ => self.terminate(id, "had nothing to do"),
            }
        }
    }

    fn look_at_active(&mut self, id: WorkerId) {
        let (Some(worker), Some(made)) = (self.fleet.get(id), self.provisioning.made.get(&id)) else { return };
        let Some(origin) = &worker.record.origin else { return };
        let is_free = worker.held.is_empty();
        let old = made.template.max_lifetime.is_some_and(|life| self.now >= origin.asked_at + life);
        let left = worker.is_leaving() && worker.connection.is_none();
        if worker.lost {
            self.worker_failed(id, Cause::Exited, "was not heard of until its lease ran out", Exit::default());
        } else if is_free && origin.used && made.template.reuse == Reuse::Never {
            self.terminate(id, "did its one job");
        } else if is_free && left {
            self.terminate(id, "left by itself");
        } else if old {
            let reason = "has lived its time".to_owned();
            self.send_home(id, &Drain { reason, deadline: None });
        } else if is_free && worker.connection.is_some() && !worker.is_leaving() {
            self.rest(id);
        }
    }

    /// It stands in the pool; those who must make room for it go.
    fn rest(&mut self, id: WorkerId) {
        let now = self.elapsed;
        let pushed = self.provisioning.crew_of(id).and_then(|crew| crew.rests(id, now));
        if let Some(pushed) = pushed {
            self.terminate(pushed, "others stand ready");
        }
    }

    fn look_at_draining(&mut self, id: WorkerId) {
        let Some(worker) = self.fleet.get(id) else { return };
        let deadline = worker.record.drain.as_ref().and_then(|order| order.deadline);
        let late = deadline.is_some_and(|at| self.now >= at + DRAIN_GRACE);
        if worker.lost {
            self.worker_failed(id, Cause::Exited, "was not heard of until its lease ran out", Exit::default());
        } else if late || worker.held.is_empty() {
            self.terminate(id, "was drained");
        }
    }

    /// Has one finish what it runs and go.
    pub(in crate::brain) fn send_home(&mut self, id: WorkerId, order: &Drain) {
        match self.provisioning.made.get(&id).map(|made| made.phase) {
            Some(Phase::Creating | Phase::Connecting) => self.terminate(id, &order.reason),
            Some(Phase::Active) if self.drain(id, order.clone()).is_ok() => {}
            _ => {}
        }
    }

    /// Ends one in order: it runs nothing, or nobody waits for what it runs any more.
    pub(super) fn terminate(&mut self, id: WorkerId, why: &str) {
        let Some(made) = self.provisioning.made.get_mut(&id).filter(|made| made.phase != Phase::Terminating) else {
            return;
        };
        why.clone_into(&mut made.why);
        self.provisioning.crew_of(id).into_iter().for_each(|crew| crew.stops(id));
        self.set_phase(id, Phase::Terminating);
        self.watch_worker(id, why);
        self.ask_provider(id);
    }

    /// It ended by itself, hangs, or does not do what it took.
    pub(super) fn worker_failed(&mut self, id: WorkerId, cause: Cause, why: &str, exit: Exit) {
        let now = self.elapsed;
        let Some(made) = self.provisioning.made.get_mut(&id).filter(|made| made.phase != Phase::Terminating) else {
            return;
        };
        let came = !made.is_coming();
        (made.why, made.failed) = (why.to_owned(), true);
        let lived = since_origin(now).saturating_sub(since_origin(made.born));
        let crash = Crash::new(cause, why, lived).with_exit(exit.code, exit.signal).with_stderr(&exit.output);
        self.crew_member_failed(id, crash);
        if !came {
            return self.never_came(id, why.to_owned());
        }
        self.fleet.update(id, |worker| worker.lost = true);
        self.watch_worker(id, why);
        self.set_phase(id, Phase::Terminating);
        self.ask_provider(id);
    }

    pub(super) fn next_step(&self, id: WorkerId, made: &Made) -> Option<Elapsed> {
        let worker = self.fleet.get(id)?;
        let from_wall = |at| self.elapsed + (at - self.now);
        match made.phase {
            Phase::Creating => Some(made.since + CREATION),
            Phase::Connecting => Some(made.since + self.config.registration),
            Phase::Active => {
                let origin = worker.record.origin.as_ref()?;
                made.template.max_lifetime.map(|life| from_wall(origin.asked_at + life))
            }
            Phase::Draining => {
                let order = worker.record.drain.as_ref()?;
                order.deadline.map(|at| from_wall(at + DRAIN_GRACE))
            }
            Phase::Terminating | Phase::Terminated => None,
        }
    }

    // ---- what happens to them as to all workers -----------------------------------------------------------------

    pub(in crate::brain) fn note_registered(&mut self, id: WorkerId) {
        let Some(made) = self.provisioning.made.get_mut(&id) else { return };
        let (provider, template) = (Arc::clone(&made.provider), Arc::clone(&made.template));
        (made.phase, made.since) = (Phase::Active, self.elapsed);
        self.provisioning.note_success(&provider, &template.name);
        // It may be faster than its provider's word that it was made.
        _ = self.provisioning.crew(&template, self.elapsed).swarm.watch(id, since_origin(self.elapsed));
        self.provisioning.stir();
    }

    pub(in crate::brain) fn note_connected(&mut self, id: WorkerId) {
        let now = self.elapsed;
        if let Some(crew) = self.provisioning.crew_of(id) {
            crew.up(id, now);
            self.provisioning.stir();
        }
    }

    /// Its provider knows whether it still runs.
    pub(in crate::brain) fn note_disconnected(&mut self, id: WorkerId) {
        let gone = self.fleet.get(id).is_some_and(|worker| worker.connection.is_none());
        let Some(made) = self.provisioning.made.get(&id).filter(|made| gone && made.phase != Phase::Terminating) else {
            return;
        };
        self.effects.push(Effect::Inspect { worker: id, provider: Arc::clone(&made.provider) });
        self.provisioning.stir();
    }

    pub(in crate::brain) fn note_beat(&mut self, id: WorkerId, at: Elapsed) {
        self.provisioning.crew_of(id).into_iter().for_each(|crew| crew.swarm.beat(&id, since_origin(at)));
    }

    pub(in crate::brain) fn note_draining(&mut self, id: WorkerId) {
        if self.provisioning.made.contains_key(&id) {
            self.set_phase(id, Phase::Draining);
            self.provisioning.crew_of(id).into_iter().for_each(|crew| crew.stops(id));
        }
    }

    /// Whether its provider has to remove it.
    pub(in crate::brain) fn unregistered(&mut self, id: WorkerId) -> bool {
        self.terminate(id, "left by itself");
        self.provisioning.made.contains_key(&id)
    }

    /// How often it must show that it lives, by its SLA.
    pub(in crate::brain) fn heartbeat_of(&self, id: WorkerId) -> Option<Millis> {
        let made = self.provisioning.made.get(&id)?;
        Some(Millis(u64::try_from(made.template.sla.heartbeat().as_millis()).unwrap_or(u64::MAX)))
    }

    /// It was given a job.
    pub(in crate::brain) fn note_taken(&mut self, id: WorkerId, execution: ExecutionId) {
        self.watch_worker(id, "");
        if !self.provisioning.made.contains_key(&id) {
            return;
        }
        let first = self.fleet.update(id, |worker| {
            let origin = worker.record.origin.as_mut();
            origin.is_some_and(|origin| !std::mem::replace(&mut origin.used, true))
        });
        if first == Some(true) && !planted(Defect::UseForgotten) {
            self.dirty_workers.insert(id);
        }
        let now = self.elapsed;
        self.provisioning.crew_of(id).into_iter().for_each(|crew| crew.took(id, execution, now));
        self.provisioning.stir();
    }

    pub(in crate::brain) fn note_begun(&mut self, job: JobId, execution: ExecutionId) {
        if self.provisioning.made.is_empty() {
            return;
        }
        let Some(run) = self.run_of(job) else { return };
        self.note_output(run.worker, execution);
    }

    /// An execution of it has ended.
    pub(in crate::brain) fn note_freed(&mut self, id: WorkerId, execution: ExecutionId) {
        self.watch_worker(id, "");
        self.note_output(id, execution);
    }

    fn note_output(&mut self, id: WorkerId, execution: ExecutionId) {
        let now = self.elapsed;
        if let Some(crew) = self.provisioning.crew_of(id) {
            crew.began(id, execution, now);
            self.provisioning.stir();
        }
    }

    // ---- what providers say -------------------------------------------------------------------------------------

    pub(in crate::brain) fn provider_seen(
        &mut self,
        name: &str,
        health: ProviderHealth,
        capabilities: ProviderCapabilities,
    ) {
        let Some(provider) = self.provisioning.providers.get_mut(name) else { return };
        if std::mem::replace(&mut provider.capabilities, capabilities) != provider.capabilities {
            self.provisioning.stirred = true;
        }
        self.set_health(name, health);
    }

    fn set_health(&mut self, name: &str, health: ProviderHealth) {
        let Some(provider) = self.provisioning.providers.get_mut(name).filter(|it| it.health != health) else { return };
        let is_down = |health: &ProviderHealth| matches!(health, ProviderHealth::Unhealthy(_));
        // One that could not be reached and answers again need not wait for its time.
        if is_down(&provider.health) && !is_down(&health) {
            provider.hold = None;
        }
        provider.health = health.clone();
        let name = Arc::clone(&provider.record.name);
        self.provisioning.stir();
        self.note_provider(&name, ProviderChange::Health(health));
    }

    /// Its provider was asked at `asked` what it has.
    pub(in crate::brain) fn provider_has(&mut self, name: &Arc<str>, instances: &[Instance], asked: Elapsed) {
        for instance in instances {
            let ours = self.provisioning.made.get(&instance.worker).is_some_and(|made| made.provider == *name);
            match (&instance.state, ours) {
                (InstanceState::Exited(exit), true) => self.exited(instance.worker, exit.clone()),
                (InstanceState::Alive, true) => {}
                // Nobody here knows it: it was left behind.
                (_, false) if planted(Defect::LeftoverIgnored) => {}
                (_, false) => {
                    let (worker, provider) = (instance.worker, Arc::clone(name));
                    self.effects.push(Effect::Destroy { worker, provider, output: false });
                }
            }
        }
        for id in self.provisioning.made_by(name) {
            let Some(made) = self.provisioning.made.get(&id) else { continue };
            let listed = instances.iter().any(|instance| instance.worker == id);
            // What was made after the question need not be in the answer, and one that speaks to us is there.
            let speaks = self.fleet.get(id).is_some_and(|worker| worker.connection.is_some());
            let was_there = !matches!(made.phase, Phase::Creating | Phase::Terminating) && made.since < asked;
            if !listed && was_there && !speaks {
                self.worker_failed(id, Cause::Exited, "is gone from its provider", Exit::default());
            }
        }
    }

    pub(in crate::brain) fn inspected(&mut self, id: WorkerId, state: Option<InstanceState>) {
        let speaks = self.fleet.get(id).is_some_and(|worker| worker.connection.is_some());
        match state {
            Some(InstanceState::Alive) => {}
            Some(InstanceState::Exited(exit)) => self.exited(id, exit),
            None if speaks => {}
            None => self.worker_failed(id, Cause::Exited, "is gone from its provider", Exit::default()),
        }
    }

    fn exited(&mut self, id: WorkerId, exit: Exit) {
        let draining = self.provisioning.made.get(&id).is_some_and(|made| made.phase == Phase::Draining);
        let left = self.fleet.get(id).is_some_and(|worker| worker.held.is_empty() && (worker.is_leaving() || draining));
        let cause = if exit.out_of_memory { Cause::OutOfMemory } else { Cause::Exited };
        let why = match (exit.out_of_memory, exit.code, exit.signal) {
            (true, ..) => "was killed at its memory limit".to_owned(),
            (_, Some(code), _) => format!("exited with code {code}"),
            (_, _, Some(signal)) => format!("was killed by signal {signal}"),
            _ => "ended".to_owned(),
        };
        match left {
            true => self.terminate(id, "left by itself"),
            false => self.worker_failed(id, cause, &why, exit),
        }
    }

    pub(in crate::brain) fn created(&mut self, id: WorkerId, outcome: Result<(), ProviderFailure>) {
        let Some(made) = self.provisioning.made.get(&id).filter(|made| made.phase == Phase::Creating) else { return };
        match outcome {
            Ok(()) => {
                let template = Arc::clone(&made.template);
                let now = self.elapsed;
                self.set_phase(id, Phase::Connecting);
                _ = self.provisioning.crew(&template, now).swarm.watch(id, since_origin(now));
                self.watch_worker(id, "");
            }
            Err(failure) => {
                let (provider, template) = (Arc::clone(&made.provider), Arc::clone(&made.template));
                self.could_not_make(id, &provider, &template, failure);
            }
        }
    }

    /// Something of it may exist all the same, so it is removed like any other.
    fn could_not_make(
        &mut self,
        id: WorkerId,
        provider: &Arc<str>,
        template: &Arc<WorkerTemplate>,
        failure: ProviderFailure,
    ) {
        let job = self.fleet.get(id).and_then(|worker| worker.record.origin.as_ref()?.job);
        if failure.class == ErrorClass::Unreachable {
            self.set_health(provider, ProviderHealth::Unhealthy(failure.message.clone()));
        }
        // No retry would help the job. Where nobody asked for one, the template waits.
        match job.filter(|_| failure.class == ErrorClass::Image) {
            Some(job) => {
                self.reject(job, Failure { fatal: true, ..Failure::new(FailureKind::Image, &*failure.message) })
            }
            None => self.provisioning.note_failure(provider, &template.name, &failure, self.elapsed),
        }
        let crash = Crash::new(Cause::NotStarted, failure.message.as_str(), std::time::Duration::ZERO);
        self.crew_member_failed(id, crash);
        if let Some(made) = self.provisioning.made.get_mut(&id) {
            failure.message.clone_into(&mut made.why);
        }
        self.note_provider(provider, ProviderChange::Failed(failure));
        self.set_phase(id, Phase::Terminating);
        self.ask_provider(id);
    }

    /// The provider has removed it, or could not and tries on.
    pub(in crate::brain) fn destroyed(&mut self, id: WorkerId, outcome: Result<(), ProviderFailure>, output: &str) {
        let Some(made) = self.provisioning.made.get(&id).filter(|made| made.phase == Phase::Terminating) else {
            return;
        };
        let provider = Arc::clone(&made.provider);
        if let Err(failure) = outcome {
            self.note_provider(&provider, ProviderChange::Failed(failure));
            return;
        }
        let (template, failed) = (Arc::clone(&made.template), made.failed);
        let why = match output.trim() {
            "" => made.why.clone(),
            output => format!("{}; it printed: {output}", made.why),
        };
        let came = self.fleet.get(id).is_some_and(|worker| worker.record.session.is_some());
        if failed && !came {
            let failure = ProviderFailure { class: ErrorClass::NeverCame, message: format!("a worker {why}") };
            self.provisioning.explain_hold(&provider, &template.name, &failure.message);
            self.note_provider(&provider, ProviderChange::Failed(failure));
        }
        self.bury(id, failed, &why);
    }

    /// Nothing of it is left: what it held can go to others.
    fn bury(&mut self, id: WorkerId, failed: bool, why: &str) {
        let held: Vec<ExecutionId> =
            self.fleet.get(id).map(|worker| worker.held.iter().copied().collect()).unwrap_or_default();
        for execution in held {
            let Some(job) = self.executions.get(&execution).copied() else { continue };
            match failed {
                true => self.lose(execution, &format!("its worker {why}")),
                false => self.conclude(job, &Event::Release(execution), Outcome::Released),
            }
        }
        self.provisioning.crew_of(id).into_iter().for_each(|crew| crew.gone(id));
        self.provisioning.made.remove(&id);
        self.provisioning.stir();
        self.remove_worker(id, why);
    }
}
