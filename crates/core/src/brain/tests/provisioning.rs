//! Workers on demand, step by step, with a provider played by the test.

use super::*;
use crate::{
    provider::{
        ErrorClass, Exit, Instance, InstanceState, ProviderCapabilities, ProviderFailure, ProviderHealth, ProviderKind,
        ProviderRecord,
    },
    requirements::{Constraints, Isolation},
    template::{Reuse, WorkerTemplate},
    worker::WorkerState,
};
use hodei_supervise::Sla;
use std::collections::BTreeMap;

const REGISTRATION: Millis = Millis::seconds(60);

fn provider(name: &str, cap: u32) -> ProviderRecord {
    ProviderRecord {
        name: name.into(),
        kind: ProviderKind::Process,
        enabled: true,
        cap,
        cost: 0,
        settings: BTreeMap::new(),
        added_at: Time(0),
        leaving: false,
    }
}

fn process() -> ProviderCapabilities {
    ProviderCapabilities { startup: Millis(100), ..ProviderCapabilities::default() }
}

fn docker() -> ProviderCapabilities {
    let isolation = Isolation::Container;
    ProviderCapabilities { isolation, images: true, startup: Millis(1000), ..ProviderCapabilities::default() }
}

fn template(name: &str) -> WorkerTemplate {
    WorkerTemplate { name: name.into(), ..WorkerTemplate::default() }
}

fn in_image(image: &str) -> JobSpec {
    let constraints = Constraints { image: Some(image.into()), ..Constraints::default() };
    spec_with(|spec| spec.requirements.constraints = Some(Arc::new(constraints)))
}

fn failure(class: ErrorClass, message: &str) -> ProviderFailure {
    ProviderFailure { class, message: message.into() }
}

impl Rig {
    fn with_provider(cap: u32) -> Self {
        let mut rig = Self::new();
        rig.add_provider("local", cap, process());
        rig
    }

    fn add_provider(&mut self, name: &str, cap: u32, capabilities: ProviderCapabilities) {
        let order = ProviderOrder::Add(Box::new(provider(name, cap)));
        self.ask(|caller| Input::SetProvider { caller, provider: name.into(), order }).expect("added");
        self.healthy(name, capabilities);
    }

    fn healthy(&mut self, name: &str, capabilities: ProviderCapabilities) {
        self.tell(Input::ProviderSeen { provider: name.into(), health: ProviderHealth::Healthy, capabilities });
    }

    fn put_template(&mut self, template: WorkerTemplate) {
        let (name, order) = (Arc::clone(&template.name), TemplateOrder::Put(Box::new(template)));
        self.ask(|caller| Input::SetTemplate { caller, template: name, order }).expect("put");
    }

    /// The workers that providers have been asked for since the last look.
    fn creates(&mut self) -> Vec<(WorkerId, Arc<str>)> {
        let create = |effect| match effect {
            Effect::Create { worker, origin } => Some((worker, Arc::clone(&origin.provider))),
            _ => None,
        };
        self.news().into_iter().filter_map(create).collect()
    }

    fn destroys(&mut self) -> Vec<(WorkerId, bool)> {
        let destroy = |effect| match effect {
            Effect::Destroy { worker, output, .. } => Some((worker, output)),
            _ => None,
        };
        self.news().into_iter().filter_map(destroy).collect()
    }

    /// The provider has made it, and it registers and connects.
    fn comes_up(&mut self, id: WorkerId) {
        self.tell(Input::Created { worker: id, outcome: Ok(()) });
        self.registers(id).expect("registered");
        self.connect(id, incarnation(id.0.as_u128()), &[]);
    }

    fn registers(&mut self, id: WorkerId) -> Result<Answer, Refusal> {
        let hash = Hash(std::array::from_fn(|i| id.0.as_bytes()[i % 16]));
        let expires_at = self.server.now.wall + Millis::seconds(300);
        let token = WorkerToken { hash, worker: id, expires_at, used_by: None };
        self.ask(|caller| Input::CreateToken { caller, token }).expect("a token");
        let capacity = self.view(id).record.info.capacity;
        let mut request = registration(hash, capacity);
        request.info = Box::new(self.view(id).record.info);
        self.ask(|caller| Input::Register { caller, request })
    }

    fn destroyed(&mut self, id: WorkerId) {
        self.tell(Input::Destroyed { worker: id, outcome: Ok(()), output: String::new() });
    }

    fn beats(&mut self, workers: &[WorkerId], length: Millis) {
        for _ in 0..length.0 / 1000 {
            self.pass(Millis::seconds(1));
            workers.iter().for_each(|worker| self.heartbeat(*worker));
        }
    }

    fn dies(&mut self, id: WorkerId) {
        self.disconnect(id);
        let exit = Exit { code: Some(1), ..Exit::default() };
        self.tell(Input::Inspected { worker: id, state: Some(InstanceState::Exited(exit)) });
        self.destroyed(id);
    }

    /// The one that was asked for comes up and dies; the seconds until the next is asked for, at most twenty.
    fn dies_and_is_replaced(&mut self, meanwhile: impl Fn(&mut Self)) -> u64 {
        let asked = self.creates();
        assert_eq!(asked.len(), 1);
        self.comes_up(asked[0].0);
        self.dies(asked[0].0);
        meanwhile(self);
        let asks = |rig: &Self| rig.seen.iter().any(|effect| matches!(effect, Effect::Create { .. }));
        let seconds = (0..20).take_while(|_| {
            let waits = !asks(self);
            if waits {
                self.pass(Millis::seconds(1));
            }
            waits
        });
        seconds.count() as u64
    }

    fn worker_count(&self) -> usize {
        self.server.brain.workers().len()
    }

    /// What has been told of a worker's states, from the journal.
    fn reason(&self, job: JobId) -> String {
        self.server.brain.waiting_reason(&self.job(job))
    }
}

#[test]
fn a_job_that_fits_no_worker_gets_one() {
    let mut rig = Rig::with_provider(3);
    let job = rig.enqueue(spec());
    let asked = rig.creates();
    assert_eq!(asked.len(), 1, "one job, one worker");
    let worker = asked[0].0;
    assert_eq!(rig.view(worker).state, WorkerState::Creating);
    assert_eq!(rig.server.store.workers[&worker].phase, Phase::Creating, "the intent is written first");
    assert!(rig.reason(job).contains("a worker is being made by local"), "{}", rig.reason(job));
    rig.comes_up(worker);
    assert_eq!(rig.state(job), StateKind::Scheduled);
    rig.succeed(job);
    assert_eq!(rig.creates(), [], "nothing more is wanted");
    // It goes when it has had nothing to do for long enough, and not before.
    rig.beats(&[worker], Millis::seconds(55));
    assert_eq!(rig.destroys(), []);
    rig.beats(&[worker], Millis::seconds(10));
    assert_eq!(rig.destroys(), [(worker, false)]);
    assert_eq!(rig.view(worker).state, WorkerState::Terminating);
    rig.destroyed(worker);
    assert_eq!(rig.worker_count(), 0);
}

#[test]
fn no_more_are_made_than_the_cap_allows_and_none_for_those_already_coming() {
    let mut rig = Rig::with_provider(3);
    let jobs = rig.enqueue_all(vec![spec(); 10]);
    let asked = rig.creates();
    assert_eq!(asked.len(), 3);
    rig.pass(Millis::seconds(5));
    assert_eq!(rig.creates(), [], "those that come are waited for");
    assert!(rig.reason(jobs[9]).contains("a worker is being made"), "{}", rig.reason(jobs[9]));
    for (worker, _) in &asked {
        rig.comes_up(*worker);
    }
    assert!(rig.reason(jobs[9]).contains("local is at its cap of 3 workers"), "{}", rig.reason(jobs[9]));
    for job in jobs {
        assert_eq!(rig.state(job), StateKind::Scheduled, "reused one after the other");
        rig.succeed(job);
    }
    assert_eq!(rig.creates(), []);
}

#[test]
fn reuse_never_is_one_job_a_worker_also_over_a_restart() {
    let mut rig = Rig::with_provider(1);
    rig.put_template(WorkerTemplate { reuse: Reuse::Never, ..template("once") });
    let jobs = rig.enqueue_all(vec![spec(), spec()]);
    let first = rig.creates()[0].0;
    rig.comes_up(first);
    assert_eq!(rig.states(&jobs), [StateKind::Scheduled, StateKind::Pending]);
    let execution = rig.start(jobs[0]);
    rig.restart();
    rig.connect(first, incarnation(first.0.as_u128()), &[execution]);
    rig.healthy("local", process());
    rig.succeed(jobs[0]);
    assert_eq!(rig.state(jobs[1]), StateKind::Pending, "never a second job");
    assert_eq!(rig.destroys(), [(first, false)]);
    rig.destroyed(first);
    let second = rig.creates()[0].0;
    assert_ne!(first, second);
    rig.comes_up(second);
    assert_eq!(rig.state(jobs[1]), StateKind::Scheduled);
}

#[test]
fn one_that_never_registers_is_removed_and_its_output_is_in_the_reason() {
    let mut rig = Rig::with_provider(2);
    rig.add_provider("spare", 2, ProviderCapabilities { startup: Millis(900), ..process() });
    let job = rig.enqueue(spec());
    let (worker, by) = rig.creates()[0].clone();
    assert_eq!(&*by, "local", "the fastest");
    rig.tell(Input::Created { worker, outcome: Ok(()) });
    assert_eq!(rig.view(worker).state, WorkerState::Connecting);
    rig.pass(REGISTRATION);
    let news = rig.news();
    let destroy = Effect::Destroy { worker, provider: "local".into(), output: true };
    assert!(news.contains(&destroy), "what it printed is wanted: {news:?}");
    rig.seen = news;
    let asked = rig.creates();
    assert_eq!(&*asked[0].1, "spare", "the next provider is tried");
    assert_eq!(rig.registers(worker), Err(Refusal::NoSuchWorker(worker)), "too late");
    rig.tell(Input::Destroyed { worker, outcome: Ok(()), output: "cannot reach the server".into() });
    let local = rig.server.brain.providers().into_iter().find(|view| &*view.record.name == "local").expect("local");
    assert_eq!(local.workers, 0);
    rig.tell(Input::Created {
        worker: asked[0].0,
        outcome: Err(failure(ErrorClass::Capacity, "all machines are taken")),
    });
    let reason = rig.reason(job);
    assert!(reason.contains("did not register within 60 s; it printed: cannot reach the server"), "{reason}");
    assert!(reason.contains("spare failed: all machines are taken"), "{reason}");
    // After a while it is tried again, by one worker first.
    rig.destroyed(asked[0].0);
    rig.pass(Millis::seconds(6));
    assert_eq!(rig.creates().len(), 1);
}

#[test]
fn an_image_that_does_not_exist_fails_the_job_at_once() {
    let mut rig = Rig::new();
    rig.add_provider("engine", 2, docker());
    let (good, bad) = (rig.enqueue(in_image("good")), rig.enqueue(in_image("bad")));
    let asked = rig.creates();
    assert_eq!(asked.len(), 2);
    rig.tell(Input::Created { worker: asked[1].0, outcome: Err(failure(ErrorClass::Image, "there is no image bad")) });
    assert_eq!(rig.state(bad), StateKind::Failed);
    let failure = rig.job(bad).last_failure().cloned().expect("why");
    assert_eq!((failure.kind, failure.message.as_str()), (FailureKind::Image, "there is no image bad"));
    assert_eq!(rig.job(bad).attempt, 0, "it never ran");
    rig.comes_up(asked[0].0);
    assert_eq!(rig.state(good), StateKind::Scheduled);
    rig.retry(bad).expect("a person may try again");
    assert_eq!(rig.job(bad).last_failure(), None);
}

#[test]
fn a_provider_that_cannot_be_reached_is_left_alone_until_it_answers() {
    let mut rig = Rig::with_provider(2);
    let job = rig.enqueue(spec());
    let worker = rig.creates()[0].0;
    rig.tell(Input::Created { worker, outcome: Err(failure(ErrorClass::Unreachable, "no answer")) });
    rig.destroyed(worker);
    rig.pass(Millis::seconds(120));
    assert_eq!(rig.creates(), [], "it is unhealthy");
    assert!(rig.reason(job).contains("local is unhealthy: no answer") || rig.reason(job).contains("failed: no answer"));
    rig.healthy("local", process());
    assert_eq!(rig.creates().len(), 1, "it recovers by itself");
}

#[test]
fn what_a_restart_left_undone_is_asked_for_again() {
    let mut rig = Rig::with_provider(3);
    rig.enqueue(spec());
    let coming = rig.creates()[0].0;
    rig.restart();
    rig.healthy("local", process());
    assert_eq!(rig.creates(), [(coming, "local".into())], "the same one, and no other");
    rig.comes_up(coming);
    // What nobody knows was left behind.
    let stray = worker_id(77);
    let instances = vec![
        Instance { worker: coming, state: InstanceState::Alive },
        Instance { worker: stray, state: InstanceState::Alive },
    ];
    let asked = rig.server.now.elapsed;
    rig.tell(Input::ProviderHas { provider: "local".into(), instances, asked });
    assert_eq!(rig.destroys(), [(stray, false)]);
}

#[test]
fn a_worker_that_dies_is_buried_before_its_job_goes_elsewhere() {
    let mut rig = Rig::with_provider(1);
    let job = rig.enqueue(spec());
    let worker = rig.creates()[0].0;
    rig.comes_up(worker);
    rig.start(job);
    rig.disconnect(worker);
    assert!(rig.news().contains(&Effect::Inspect { worker, provider: "local".into() }));
    let exit = Exit { signal: Some(9), ..Exit::default() };
    rig.tell(Input::Inspected { worker, state: Some(InstanceState::Exited(exit)) });
    assert_eq!(rig.destroys(), [(worker, false)]);
    assert_eq!(rig.state(job), StateKind::Running, "something of it may still run");
    rig.destroyed(worker);
    assert_eq!(rig.state(job), StateKind::Pending);
    assert_eq!(rig.job(job).losses, 1);
    assert_eq!(rig.creates().len(), 1, "and a new worker is made for it");
}

#[test]
fn a_warm_pool_stands_ready_and_is_filled_again() {
    let mut rig = Rig::with_provider(4);
    rig.put_template(WorkerTemplate { warm: 2, ..template("warm") });
    let asked = rig.creates();
    assert_eq!(asked.len(), 2);
    asked.iter().for_each(|(worker, _)| rig.comes_up(*worker));
    let all: Vec<WorkerId> = asked.iter().map(|(worker, _)| *worker).collect();
    rig.beats(&all, Millis::seconds(180));
    assert_eq!((rig.destroys(), rig.creates()), (vec![], vec![]), "they stay however long nobody needs them");
    let job = rig.enqueue(spec());
    assert_eq!(rig.state(job), StateKind::Scheduled, "at once");
    rig.start(job);
    let third = rig.creates();
    assert_eq!(third.len(), 1, "its place is filled");
    rig.comes_up(third[0].0);
    rig.succeed(job);
    let all: Vec<WorkerId> = all.into_iter().chain([third[0].0]).collect();
    rig.beats(&all, Millis::seconds(70));
    assert_eq!(rig.destroys().len(), 1, "one too many, and idle for too long");
}

#[test]
fn a_pool_whose_workers_keep_failing_is_given_up_until_a_person_asks() {
    let mut rig = Rig::with_provider(4);
    rig.put_template(WorkerTemplate { warm: 1, sla: Sla::Critical, ..template("detector") });
    let waits: Vec<u64> = (0..4).map(|_| rig.dies_and_is_replaced(|_| ())).collect();
    assert_eq!(waits[..3], [1, 2, 4]);
    assert_eq!(rig.creates(), [], "three restarts and no more");
    let view = &rig.server.brain.templates()[0];
    assert!(view.held_because.contains("keep failing"), "{}", view.held_because);
    let order = TemplateOrder::Restart;
    rig.ask(|caller| Input::SetTemplate { caller, template: "detector".into(), order }).expect("asked");
    rig.pass(Millis::seconds(1));
    assert_eq!(rig.creates().len(), 1);
}

#[test]
fn restarts_that_were_used_stay_used_over_a_restart_of_the_server() {
    let mut rig = Rig::with_provider(4);
    rig.put_template(WorkerTemplate { warm: 1, sla: Sla::Critical, ..template("detector") });
    let restart = |rig: &mut Rig| {
        rig.restart();
        rig.healthy("local", process());
    };
    let waits: Vec<u64> = (0..4).map(|_| rig.dies_and_is_replaced(restart)).collect();
    assert_eq!(waits[..3], [1, 2, 4], "the next server keeps the distance, too");
    assert_eq!(rig.creates(), [], "three restarts and no more");
}

#[test]
fn a_minute_of_good_work_gives_the_restarts_of_a_pool_back_over_a_restart_of_the_server() {
    let mut rig = Rig::with_provider(4);
    rig.put_template(WorkerTemplate { warm: 1, sla: Sla::Normal, ..template("detector") });
    assert_eq!(rig.dies_and_is_replaced(|_| ()), 1);
    let second = rig.creates()[0].0;
    rig.comes_up(second);
    rig.beats(&[second], Millis::seconds(61));
    rig.restart();
    rig.healthy("local", process());
    rig.connect(second, incarnation(second.0.as_u128()), &[]);
    rig.dies(second);
    rig.pass(Millis::seconds(1));
    assert_eq!(rig.creates().len(), 1, "its one restart was given back");
}

#[test]
fn one_that_stands_about_gives_way_to_one_that_is_needed() {
    let mut rig = Rig::new();
    rig.add_provider("engine", 1, docker());
    let first = rig.enqueue(in_image("a"));
    let a = rig.creates()[0].0;
    rig.put_template(WorkerTemplate { image: Some("b".into()), ..template("b") });
    rig.comes_up(a);
    let second = rig.enqueue(in_image("b"));
    assert_eq!((rig.creates(), rig.destroys()), (vec![], vec![]), "it works");
    rig.succeed(first);
    assert_eq!(rig.destroys(), [(a, false)], "did its one job");
    rig.destroyed(a);
    let b = rig.creates()[0].0;
    rig.comes_up(b);
    rig.succeed(second);
    rig.beats(&[b], Millis::seconds(5));
    assert_eq!(rig.destroys(), [], "it may be needed again");
    let third = rig.enqueue(in_image("c"));
    assert_eq!(rig.destroys(), [(b, false)], "and makes room for another");
    rig.destroyed(b);
    let c = rig.creates()[0].0;
    rig.comes_up(c);
    assert_eq!(rig.state(third), StateKind::Scheduled);
}

#[test]
fn one_that_hangs_is_replaced_after_three_heartbeats() {
    let mut rig = Rig::with_provider(4);
    rig.put_template(WorkerTemplate { warm: 1, sla: Sla::Critical, ..template("detector") });
    let worker = rig.creates()[0].0;
    rig.comes_up(worker);
    assert!(rig.server.brain.next_wake().1.is_some());
    rig.beats(&[worker], Millis::seconds(10));
    assert_eq!(rig.destroys(), []);
    rig.pass(Millis::seconds(3));
    assert_eq!(rig.destroys(), [(worker, false)]);
    rig.destroyed(worker);
    rig.pass(Millis::seconds(1));
    assert_eq!(rig.creates().len(), 1);
}

#[test]
fn a_provider_that_is_removed_sees_its_workers_off() {
    let mut rig = Rig::with_provider(2);
    let job = rig.enqueue(spec());
    let worker = rig.creates()[0].0;
    rig.comes_up(worker);
    rig.start(job);
    let order = ProviderOrder::Remove;
    rig.ask(|caller| Input::SetProvider { caller, provider: "local".into(), order }).expect("removed");
    assert_eq!(rig.view(worker).state, WorkerState::Draining);
    assert_eq!(rig.server.brain.providers().len(), 1, "it has a worker still");
    rig.succeed(job);
    assert_eq!(rig.destroys(), [(worker, false)]);
    rig.destroyed(worker);
    assert_eq!(rig.server.brain.providers(), []);
    assert!(rig.server.store.kept.providers.is_empty());
}

#[test]
fn a_job_in_an_image_that_nobody_makes_workers_for_says_what_would_help() {
    let mut rig = Rig::with_provider(1);
    let job = rig.enqueue(in_image("some"));
    let reason = rig.server.brain.waiting_reason(&rig.job(job));
    assert!(reason.contains("the image some") && reason.contains("hodei provider add"), "{reason}");
    rig.add_provider("engine", 1, docker());
    let reason = rig.server.brain.waiting_reason(&rig.job(job));
    assert!(reason.contains("being made"), "{reason}");
}

#[test]
fn a_provider_that_is_changed_keeps_its_workers_and_is_asked_again_for_what_it_owes() {
    let mut rig = Rig::with_provider(1);
    let put = |rig: &mut Rig, record: ProviderRecord| {
        let (name, order) = (Arc::clone(&record.name), ProviderOrder::Put(Box::new(record)));
        rig.ask(|caller| Input::SetProvider { caller, provider: name, order })
    };
    let first = rig.enqueue(spec());
    let second = rig.enqueue(spec());
    let worker = rig.creates()[0].0;
    rig.comes_up(worker);
    put(&mut rig, provider("local", 2)).expect("changed");
    let owed = rig.creates();
    assert_eq!(owed.len(), 1, "there is room for one more now");
    let settings = [("agent".to_owned(), "other".to_owned())].into();
    put(&mut rig, ProviderRecord { settings, ..provider("local", 2) }).expect("changed");
    assert_eq!(rig.creates(), owed, "whoever was making it may be gone");
    rig.healthy("local", process());
    assert_eq!((rig.destroys(), rig.worker_count()), (vec![], 2));
    rig.comes_up(owed[0].0);
    rig.succeed(first);
    rig.succeed(second);
    let moved = ProviderRecord { kind: ProviderKind::Docker, ..provider("local", 2) };
    assert!(matches!(put(&mut rig, moved), Err(Refusal::ProviderHasWorkers(_, 2))));
}

#[test]
fn one_that_is_faster_than_the_word_of_its_provider_is_looked_after_all_the_same() {
    let mut rig = Rig::new();
    rig.add_provider("engine", 1, docker());
    let job = rig.enqueue(in_image("a"));
    let worker = rig.creates()[0].0;
    rig.registers(worker).expect("registered");
    rig.connect(worker, incarnation(1), &[]);
    rig.tell(Input::Created { worker, outcome: Ok(()) });
    rig.succeed(job);
    assert_eq!(rig.destroys(), [(worker, false)], "did its one job");
}

#[test]
fn who_waits_for_a_pool_whose_provider_is_not_there_hears_its_name() {
    let mut rig = Rig::with_provider(1);
    rig.put_template(WorkerTemplate { providers: vec!["nope".into()], ..template("small") });
    let job = rig.enqueue(spec());
    assert!(rig.reason(job).contains("there is no provider nope, which small names"), "{}", rig.reason(job));
}
