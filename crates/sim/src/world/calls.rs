//! The people who call: they ask, wait, lose patience and ask again.

use super::{Event, World, job_id, note, schedules::put};
use crate::{
    dice::For,
    plan::{Links, Scheduled, payload_of, spec},
    trace::About,
};
use hodei_core::{
    brain::{
        Answer, Input, ManyJobs, NewJob, ProviderOrder, QueueOrder, Refusal, Registration, ScheduleOrder, TemplateOrder,
    },
    id::{JobId, ScheduleId, WorkerId},
    placement::SchedulerSettings,
    spec::JobSpec,
    state::StateKind,
    time::Millis,
    token::{Hash, WorkerToken},
    worker::Drain,
};
use std::sync::Arc;

const PATIENCE: u64 = 4000;
/// After so many tries a person gives up; what must happen is tried for ever.
const TRIES: u32 = 5;

#[derive(Clone, Debug)]
pub(super) enum Ask {
    Enqueue { kind: u16, count: u16, links: Links },
    Resume(JobId),
    Scheduler(SchedulerSettings),
    Queue(&'static str, QueueOrder),
    Provider(&'static str, ProviderOrder),
    Template(Arc<str>, TemplateOrder),
    Cancel(JobId),
    Retry(JobId),
    Forget(JobId),
    Schedule(Scheduled),
    Disable(ScheduleId),
    Drain(WorkerId),
    CreateToken(usize),
    Register(usize),
    Unregister(usize),
}

#[derive(Clone, Debug)]
pub(super) struct Call {
    key: u64,
    ask: Ask,
    attempt: u32,
    done: bool,
}

#[derive(Clone, Debug)]
pub(super) enum Reply {
    Brain(Result<Answer, Refusal>),
    /// Refused for now: nothing was done.
    Unavailable,
    /// The connection broke before an answer came.
    Unknown,
}

impl Call {
    pub fn drain(key: u64, worker: WorkerId) -> Self {
        Self::new(key, Ask::Drain(worker))
    }

    pub fn new(key: u64, ask: Ask) -> Self {
        Self { key, ask, attempt: 0, done: false }
    }

    pub fn schedule(key: u64, scheduled: Scheduled) -> Self {
        Self::new(key, Ask::Schedule(scheduled))
    }

    /// Whether this is going to disable a schedule.
    pub fn disables(&self, schedule: ScheduleId) -> bool {
        !self.done && matches!(self.ask, Ask::Disable(id) if id == schedule)
    }

    fn must_happen(&self) -> bool {
        matches!(
            self.ask,
            Ask::Disable(_)
                | Ask::Provider(..)
                | Ask::Template(..)
                | Ask::CreateToken(_)
                | Ask::Register(_)
                | Ask::Unregister(_)
        )
    }
}

fn idempotency_key(key: u64, n: u64) -> String {
    format!("{key}.{n}")
}

impl World {
    pub(super) fn call(&mut self, call: Call) {
        self.calls.push(call);
        self.try_call(self.calls.len() - 1);
    }

    /// Calls for one of the jobs that were acknowledged so far.
    pub(super) fn call_on_job(&mut self, key: u64, pick: usize, cancel: bool) {
        if let Some(job) = self.ledger.acknowledged(pick) {
            let ask = if cancel { Ask::Cancel(job) } else { Ask::Retry(job) };
            self.call(Call::new(key, ask));
        }
    }

    /// A worker joins, or joins anew.
    pub(super) fn register(&mut self, agent: usize) {
        self.call(Call::new(agent as u64, Ask::CreateToken(agent)));
    }

    pub(super) fn open_calls(&self) -> bool {
        self.calls.iter().any(|call| !call.done)
    }

    fn call_loses(&self, call: usize, leg: u64) -> bool {
        let Call { key, attempt, .. } = self.calls[call];
        let mut rng = self.dice.roll(For::Call, key, (u64::from(attempt) << 8) | leg);
        !self.is_calm() && rng.u64(0..100) < self.shape.lost_calls
    }

    fn call_delay(&self, call: usize, leg: u64) -> u64 {
        let Call { key, attempt, .. } = self.calls[call];
        let (low, high) = self.shape.link;
        self.dice.roll(For::Call, key, (u64::from(attempt) << 8) | (16 + leg)).u64(low..=high)
    }

    fn try_call(&mut self, index: usize) {
        self.calls[index].attempt += 1;
        let attempt = self.calls[index].attempt;
        if !self.call_loses(index, 0) {
            self.after(self.call_delay(index, 0), Event::CallArrives(index, attempt));
        }
        self.after(PATIENCE, Event::CallAgain(index, attempt));
    }

    pub(super) fn call_arrives(&mut self, index: usize, attempt: u32) {
        if !self.server.takes_calls() {
            self.reply(index, attempt, Reply::Unavailable);
            return;
        }
        let Some(brain) = &self.server.brain else { return };
        let time = brain.time();
        let caller = self.server.new_caller(index, attempt);
        let key = self.calls[index].key;
        let input = match self.calls[index].ask.clone() {
            Ask::Enqueue { kind, count, links } => {
                let payload = payload_of(kind, time);
                let new = |n| NewJob {
                    id: job_id(key, attempt, n),
                    spec: self.linked(spec(kind, time), (key, attempt), (n, u64::from(count)), links),
                    payload: Arc::clone(&payload),
                };
                let jobs: Vec<NewJob> = (0..u64::from(count)).map(new).collect();
                for job in &jobs {
                    note!(self, "client", About::from(job.id), "is queued, kind {kind}");
                    self.ledger.linked(job);
                }
                Input::Enqueue { caller, jobs }
            }
            Ask::Resume(job) => {
                note!(self, "client", About::from(job), "resume");
                Input::Resume { caller, job, payload: Arc::from(*b"go on") }
            }
            Ask::Scheduler(settings) => {
                note!(self, "client", (), "{settings:?}");
                Input::SetScheduler { caller, settings }
            }
            Ask::Queue(queue, order) => {
                note!(self, "client", (), "queue {queue}: {order:?}");
                Input::SetQueue { caller, queue: queue.into(), order }
            }
            Ask::Provider(name, order) => {
                note!(self, "client", (), "provider {name}: {order:?}");
                Input::SetProvider { caller, provider: name.into(), order }
            }
            Ask::Template(template, order) => {
                note!(self, "client", (), "template {template}: {order:?}");
                Input::SetTemplate { caller, template, order }
            }
            Ask::Cancel(job) => {
                note!(self, "client", About::from(job), "cancel");
                Input::Cancel { caller, job, reason: "no longer wanted".into() }
            }
            Ask::Retry(job) => {
                note!(self, "client", About::from(job), "retry");
                Input::Retry { caller, job }
            }
            Ask::Forget(job) => {
                note!(self, "client", About::from(job), "forget");
                Input::Many { caller, jobs: vec![job], what: ManyJobs::Forget }
            }
            Ask::Schedule(scheduled) => put(caller, key, attempt, scheduled, time),
            Ask::Disable(schedule) => Input::SetSchedule { caller, schedule, order: ScheduleOrder::Disable },
            Ask::Drain(worker) => Input::Drain { caller, worker, order: Drain::default() },
            Ask::CreateToken(agent) => {
                let token = WorkerToken {
                    hash: self.token(agent),
                    worker: self.agents[agent].id,
                    expires_at: time + Millis::seconds(100_000),
                    used_by: None,
                };
                Input::CreateToken { caller, token }
            }
            Ask::Register(agent) => {
                let info = self.agents[agent].info();
                let (key, session) = (Hash([1; 32]), Hash([2; 32]));
                let request =
                    Registration { token: self.token(agent), worker: None, key, session, info: Box::new(info) };
                Input::Register { caller, request }
            }
            Ask::Unregister(agent) => Input::Unregister { caller, worker: self.agents[agent].id },
        };
        self.tell(input);
    }

    /// Ties a job to the others of its call, and to one that was there before.
    fn linked(&self, mut spec: JobSpec, call: (u64, u32), (n, count): (u64, u64), links: Links) -> JobSpec {
        let (key, attempt) = call;
        match links {
            Links::None => {}
            Links::Keyed => spec.idempotency_key = Some(idempotency_key(key, n)),
            Links::Graph { form, policy, pick } => {
                spec.on_dependency_failure = policy;
                spec.depends_on = form.before(n, count).map(|other| job_id(key, attempt, other)).collect();
                let before = pick.filter(|_| n == 0).and_then(|pick| self.ledger.acknowledged(pick));
                spec.depends_on.extend(before);
            }
        }
        spec
    }

    /// With nothing going wrong any more, people let go what would wait for ever.
    pub(super) fn bring_to_an_end(&mut self) {
        if self.open_calls() {
            return;
        }
        let key = u64::from(u32::MAX) + self.now;
        for ask in self.ledger.loose_ends() {
            self.call(Call::new(key, ask));
        }
    }

    /// Each registration of a worker has a token of its own.
    fn token(&self, agent: usize) -> Hash {
        let mut bytes = [agent as u8; 32];
        bytes[..8].copy_from_slice(&self.agents[agent].registrations.to_le_bytes());
        bytes[8..16].copy_from_slice(&(agent as u64).to_le_bytes());
        Hash(bytes)
    }

    pub(super) fn reply(&mut self, index: usize, attempt: u32, reply: Reply) {
        if !self.call_loses(index, 1) {
            self.after(self.call_delay(index, 1), Event::Answer(index, attempt, reply));
        }
    }

    pub(super) fn answered(&mut self, index: usize, attempt: u32, reply: Reply) {
        let Reply::Brain(answer) = reply else {
            self.after(200, Event::CallAgain(index, attempt));
            return;
        };
        // An answer that comes after the caller has asked again is an answer nevertheless.
        self.take_answer(index, attempt, &answer);
        if std::mem::replace(&mut self.calls[index].done, true) {
            return;
        }
        match self.calls[index].ask {
            Ask::CreateToken(agent) => self.call(Call::new(agent as u64, Ask::Register(agent))),
            Ask::Register(agent) => {
                let life = self.agents[agent].life;
                self.after(1, Event::AgentBoots(agent, life));
            }
            // One that was made does not come back.
            Ask::Unregister(agent) if self.agents[agent].is_made() => self.agents[agent].gone(),
            Ask::Unregister(agent) => {
                self.agents[agent].registrations += 1;
                self.register(agent);
            }
            _ => {}
        }
    }

    fn take_answer(&mut self, index: usize, attempt: u32, answer: &Result<Answer, Refusal>) {
        let Call { key, ref ask, .. } = self.calls[index];
        match (ask.clone(), answer) {
            (Ask::Enqueue { count, links, .. }, Ok(answer)) => {
                let existed = if let Answer::Existed(existed) = answer { &existed[..] } else { &[] };
                for n in 0..u64::from(count) {
                    let first = existed.iter().find(|(place, _)| *place as u64 == n).map(|(_, first)| *first);
                    let job = first.unwrap_or(job_id(key, attempt, n));
                    self.check_acknowledged(job);
                    if links == Links::Keyed {
                        self.check_one_job(&idempotency_key(key, n), job);
                    }
                }
            }
            (Ask::Enqueue { .. }, Err(refusal)) => self.check_refusal(refusal),
            (Ask::Resume(job), Ok(_)) => self.check_retried(job, true),
            (Ask::Cancel(job), Ok(Answer::State(kind))) => self.check_cancelled(job, *kind),
            (Ask::Retry(job), Ok(Answer::State(kind))) => self.check_retried(job, *kind == StateKind::Pending),
            // Whoever deletes a job wonders what became of those that needed it.
            (Ask::Forget(job), Ok(Answer::Count(1))) => {
                for dependent in self.ledger.dependents_of(job) {
                    self.call(Call::new(key, Ask::Retry(dependent)));
                }
            }
            (Ask::Register(agent), Err(_)) if self.agents[agent].is_made() => self.not_wanted(agent),
            (Ask::Register(agent), Err(refusal)) => self.check_registration(agent, refusal),
            _ => {}
        }
    }

    pub(super) fn call_again(&mut self, index: usize, attempt: u32) {
        let call = &mut self.calls[index];
        if call.done || call.attempt != attempt {
            return;
        }
        if call.attempt >= TRIES && !call.must_happen() {
            call.done = true;
        } else {
            self.try_call(index);
        }
    }
}
