//! The brain under test, step by step, with a model store and a server around it. Random histories are in `sim`.

mod controls;
mod dependencies;
mod leases;
mod model;
mod paging;
mod placement;
mod provisioning;
mod queue;
mod schedules;
mod tasks;
mod workers;

use super::*;
use crate::{
    id::Incarnation,
    requirements::Requirements,
    spec::{JobSpec, Work},
    state::StateKind,
    worker::{Capacity, Drain, WorkerInfo},
};
use model::Server;
use uuid::Uuid;

fn worker_id(n: u128) -> WorkerId {
    WorkerId(Uuid::from_u128(0xa0 + n))
}

fn job_id(n: u64) -> JobId {
    JobId(Uuid::from_u128(0x1000 + u128::from(n)))
}

fn incarnation(n: u128) -> Incarnation {
    Incarnation(Uuid::from_u128(n))
}

fn spec() -> JobSpec {
    let mut spec = JobSpec::new("job", Work::Shell { program: "true".into(), args: Vec::new() });
    spec.retry.jitter_percent = 0;
    spec
}

fn spec_with(change: impl FnOnce(&mut JobSpec)) -> JobSpec {
    let mut spec = spec();
    change(&mut spec);
    spec
}

fn slots(slots: u32) -> Capacity {
    Capacity { slots, cpu_millis: 4000, memory_bytes: 4000, ..Capacity::default() }
}

fn small_windows() -> Config {
    Config { window: 4, ..Config::default() }
}

/// For tests that say what happens, one thing after the other: every step is a whole turn, committed and released.
struct Rig {
    server: Server,
    made: u64,
    caller: u64,
    connection: u64,
    /// What was released, oldest first.
    seen: Vec<Effect>,
}

impl Rig {
    fn new() -> Self {
        Self::with(Config::default())
    }

    fn with(config: Config) -> Self {
        let mut rig = Self { server: Server::new(config), made: 0, caller: 0, connection: 0, seen: Vec::new() };
        rig.settle();
        rig
    }

    fn caller(&mut self) -> Caller {
        self.caller += 1;
        Caller(self.caller)
    }

    fn settle(&mut self) {
        self.server.settle(false);
        self.seen.append(&mut self.server.released);
    }

    fn tell(&mut self, input: Input) {
        self.server.input(input);
        self.settle();
    }

    /// What the brain answers to a call.
    fn ask(&mut self, input: impl FnOnce(Caller) -> Input) -> Result<Answer, Refusal> {
        let caller = self.caller();
        self.tell(input(caller));
        let mut answers = self.seen.iter().filter_map(|effect| match effect {
            Effect::Answer { caller: to, answer } if *to == caller => Some(answer.clone()),
            _ => None,
        });
        answers.next_back().expect("every call is answered")
    }

    /// Lets time pass a second at a time, as a server that is awake sees it.
    fn pass(&mut self, length: Millis) {
        let mut left = length.0;
        while left > 0 {
            let step = left.min(1000);
            self.server.advance(Millis(step));
            self.settle();
            left -= step;
        }
    }

    // ---- clients ----

    fn enqueue(&mut self, spec: JobSpec) -> JobId {
        self.enqueue_all(vec![spec])[0]
    }

    fn enqueue_all(&mut self, specs: Vec<JobSpec>) -> Vec<JobId> {
        let jobs: Vec<NewJob> = specs.into_iter().map(|spec| self.new_job(spec)).collect();
        let ids: Vec<JobId> = jobs.iter().map(|job| job.id).collect();
        match self.ask(|caller| Input::Enqueue { caller, jobs }) {
            Ok(Answer::New(job)) => assert_eq!([job.id], ids[..]),
            answer => assert_eq!((answer, ids.len() == 1), (Ok(Answer::Done), false)),
        }
        ids
    }

    fn new_job(&mut self, spec: JobSpec) -> NewJob {
        self.made += 1;
        NewJob { id: job_id(self.made), spec, payload: Arc::from([]) }
    }

    fn cancel(&mut self, job: JobId) -> Result<Answer, Refusal> {
        self.ask(|caller| Input::Cancel { caller, job, reason: "why not".into() })
    }

    fn retry(&mut self, job: JobId) -> Result<Answer, Refusal> {
        self.ask(|caller| Input::Retry { caller, job })
    }

    fn job(&self, id: JobId) -> Job {
        let row = || &self.server.store.jobs[&id];
        self.server.brain.placed(id).unwrap_or_else(row).clone()
    }

    fn state(&self, id: JobId) -> StateKind {
        self.job(id).state.kind()
    }

    fn execution(&self, id: JobId) -> ExecutionId {
        self.job(id).state.run().expect("an active job").execution
    }

    // ---- workers ----

    fn register(&mut self, n: u128, capacity: Capacity) -> WorkerId {
        let id = worker_id(n);
        let hash = Hash([n as u8; 32]);
        let expires_at = self.server.now.wall + Millis::seconds(300);
        let token = WorkerToken { hash, worker: id, expires_at, used_by: None };
        self.ask(|caller| Input::CreateToken { caller, token }).expect("a token");
        let request = registration(hash, capacity);
        self.ask(|caller| Input::Register { caller, request }).expect("registered");
        id
    }

    /// A connected worker with an empty inventory.
    fn worker(&mut self, n: u128, capacity: Capacity) -> WorkerId {
        let id = self.register(n, capacity);
        self.connect(id, incarnation(1), &[]);
        id
    }

    fn connect(&mut self, worker: WorkerId, incarnation: Incarnation, held: &[ExecutionId]) -> Connection {
        self.greet(worker, Hello { incarnation, info: None, held: held.to_vec(), ended: Vec::new(), leaving: false })
    }

    fn greet(&mut self, worker: WorkerId, hello: Hello) -> Connection {
        self.connection += 1;
        let connection = Connection(self.connection);
        self.tell(Input::Connect { worker, connection, hello });
        connection
    }

    fn disconnect(&mut self, worker: WorkerId) {
        let connection = Connection(self.connection);
        self.tell(Input::Disconnect { worker, connection });
    }

    fn heartbeat(&mut self, worker: WorkerId) {
        let at = self.server.now.elapsed;
        self.tell(Input::Heartbeat { worker, at });
    }

    fn report(&mut self, worker: WorkerId, report: Report) -> Result<Answer, Refusal> {
        self.ask(|caller| Input::Report { caller: Some(caller), worker, report })
    }

    /// The worker of a scheduled job starts it.
    fn start(&mut self, job: JobId) -> ExecutionId {
        let Run { execution, worker } = *self.job(job).state.run().expect("an active job");
        let at = self.server.now.wall;
        self.report(worker, Report::Started { execution, at }).expect("started");
        execution
    }

    /// The worker of an active job ends it.
    fn finish(&mut self, job: JobId, outcome: Outcome) {
        let Run { execution, worker } = *self.job(job).state.run().expect("an active job");
        let finished = ended(execution, outcome, self.server.now.wall);
        self.report(worker, Report::Finished(finished, Vec::new())).expect("ended");
    }

    /// The worker of an active job ends it, and wants these jobs enqueued.
    fn finish_with(&mut self, job: JobId, outcome: Outcome, change: impl FnOnce(&mut Finished), children: Vec<NewJob>) {
        let Run { execution, worker } = *self.job(job).state.run().expect("an active job");
        let mut finished = ended(execution, outcome, self.server.now.wall);
        change(&mut finished);
        self.report(worker, Report::Finished(finished, children)).expect("ended");
    }

    fn succeed(&mut self, job: JobId) {
        self.finish(job, Outcome::Succeeded);
    }

    fn many(&mut self, jobs: &[JobId], what: ManyJobs) -> u64 {
        match self.ask(|caller| Input::Many { caller, jobs: jobs.to_vec(), what }) {
            Ok(Answer::Count(count)) => count,
            other => panic!("{other:?}"),
        }
    }

    fn set_queue(&mut self, queue: &str, order: QueueOrder) {
        let set = self.ask(|caller| Input::SetQueue { caller, queue: queue.into(), order });
        assert!(matches!(set, Ok(Answer::Queue(_))), "{set:?}");
    }

    /// Dies with what is not durable and comes back; workers connect again with what they hold.
    fn restart(&mut self) {
        self.server.restart();
        self.settle();
    }

    fn states(&self, jobs: &[JobId]) -> Vec<StateKind> {
        jobs.iter().map(|job| self.state(*job)).collect()
    }

    fn fail(&mut self, job: JobId) {
        self.finish(job, Outcome::Failed(Failure::exit(1)));
    }

    fn view(&self, worker: WorkerId) -> WorkerView {
        self.server.brain.workers().into_iter().find(|view| view.record.id == worker).expect("a known worker")
    }

    // ---- what was sent ----

    /// What was released since the last call of this.
    fn news(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.seen)
    }

    /// The jobs that were sent to workers since the last look, in order.
    fn runs(&mut self) -> Vec<JobId> {
        let run = |effect| if let Effect::Run { job, .. } = effect { Some(job) } else { None };
        self.news().into_iter().filter_map(run).collect()
    }

    fn stops(&mut self) -> Vec<(ExecutionId, StopReason)> {
        let stop =
            |effect| if let Effect::Stop { execution, why, .. } = effect { Some((execution, why)) } else { None };
        self.news().into_iter().filter_map(stop).collect()
    }
}

fn registration(token: Hash, capacity: Capacity) -> Registration {
    let info = WorkerInfo { capacity, ..WorkerInfo::default() };
    Registration { token, worker: None, key: Hash([1; 32]), session: Hash([2; 32]), info: Box::new(info) }
}

fn ended(execution: ExecutionId, outcome: Outcome, at: Time) -> Finished {
    let never_ran = matches!(outcome, Outcome::Released | Outcome::Cancelled);
    let started_at = (!never_ran).then_some(at);
    Finished { started_at, ..Finished::new(execution, outcome, at) }
}
