//! Who gets which job: scenarios as data, and that no placement breaks what a job must have.

use super::*;
use crate::{
    placement::{Choice, Decision, FleetPolicy, Strategy},
    requirements::{Capability, Constraints, Expression, Isolation, Operator, Taint, TaintEffect, Toleration},
    template::WorkerTemplate,
    worker::{Offer, Origin, Tally},
};
use proptest::prelude::*;

const SCENARIOS: &str = include_str!("scenarios.txt");

impl Rig {
    fn worker_like(&mut self, n: u128, info: WorkerInfo) -> WorkerId {
        let id = self.register(n, info.capacity);
        let hello = Hello {
            incarnation: incarnation(1),
            info: Some(Box::new(info)),
            held: Vec::new(),
            ended: Vec::new(),
            leaving: false,
        };
        self.greet(id, hello);
        id
    }

    fn schedule_by(&mut self, settings: SchedulerSettings) {
        let set = self.ask(|caller| Input::SetScheduler { caller, settings });
        assert_eq!(set, Ok(Answer::Scheduler(settings)));
    }

    fn decide(&self, spec: &JobSpec) -> Decision {
        self.server.brain.decide(spec)
    }

    fn assign(&mut self, job: JobId, worker: WorkerId) -> Result<Answer, Refusal> {
        self.ask(|caller| Input::Assign { caller, job, worker })
    }
}

// ---- scenarios ----------------------------------------------------------------------------------------------------

#[test]
fn every_scenario_is_decided_as_written() {
    let scenarios = SCENARIOS.split("\n== ").skip(1);
    assert!(scenarios.clone().count() > 20);
    scenarios.for_each(play);
}

fn play(scenario: &str) {
    let mut lines = scenario.lines();
    let title = lines.next().unwrap_or_default();
    let (mut rig, mut names, mut last) = (Rig::new(), Vec::<(String, WorkerId)>::new(), None::<Decision>);
    let mut settings = SchedulerSettings::default();
    for line in lines.filter(|line| !line.trim().is_empty()) {
        if let Some(fate) = line.strip_prefix("  ") {
            let (name, expected) = fate.split_once(' ').expect("a name and a fate");
            let decision = last.as_ref().expect("fates follow a job");
            let considered = decision.workers.iter().find(|one| one.name == name).expect("every worker is looked at");
            assert_eq!(shown(&considered.fate), expected, "{title}: {line}");
            continue;
        }
        let (kind, rest) = line.split_once(' ').unwrap_or((line, ""));
        match kind {
            "set" => {
                rest.split_whitespace().for_each(|part| set(&mut settings, part));
                rig.schedule_by(settings);
            }
            "worker" => {
                let (name, traits) = rest.split_once(' ').unwrap_or((rest, ""));
                names.push((name.to_owned(), make_worker(&mut rig, names.len() as u128 + 1, name, traits)));
            }
            "job" => {
                let (asked, expected) = rest.split_once("-> ").expect("a job has an end");
                let spec = job_of(asked);
                let decision = rig.decide(&spec);
                let name_of = |id| names.iter().find(|(_, known)| *known == id).map(|(name, _)| name.as_str());
                let said = match &decision.choice {
                    Choice::Assign(worker) => name_of(*worker).expect("a known worker").to_owned(),
                    other => format!("{} {}", other.name(), decision.reason),
                };
                assert_eq!(said, expected.trim(), "{title}: {line}\n{decision:?}");
                // What is decided is what is done.
                let job = rig.enqueue(spec);
                let done = rig.job(job);
                match &decision.choice {
                    Choice::Assign(worker) => {
                        assert_eq!(done.state.run().map(|run| run.worker), Some(*worker), "{title}: {line}")
                    }
                    Choice::Reject => assert_eq!(done.state.kind(), StateKind::Failed, "{title}: {line}"),
                    _ => {
                        assert_eq!(rig.server.brain.waiting_reason(&done), decision.reason, "{title}: {line}");
                        rig.cancel(job).expect("cancelled");
                    }
                }
                last = Some(decision);
            }
            "#" => {}
            other => panic!("{title}: what is {other}?"),
        }
    }
}

fn shown(fate: &Result<crate::placement::Score, crate::placement::Dropped>) -> String {
    match fate {
        Ok(score) => {
            let factors = [score.capacity, score.load, score.affinity, score.zone, score.history];
            factors.map(|points| (f64::from(points) / 100.0).to_string()).join(" ")
        }
        Err(dropped) => {
            assert!(!dropped.why.is_empty(), "{dropped:?}");
            dropped.filter.name().to_owned()
        }
    }
}

fn set(settings: &mut SchedulerSettings, part: &str) {
    match part.split_once(':').expect("name:value") {
        ("strategy", name) => settings.strategy = Strategy::parse(name).expect("a strategy"),
        ("fleet", name) => settings.fleet = FleetPolicy::parse(name).expect("a policy"),
        ("threshold", points) => settings.threshold = points.parse().expect("a number"),
        other => panic!("{other:?}"),
    }
}

fn make_worker(rig: &mut Rig, n: u128, name: &str, traits: &str) -> WorkerId {
    let mut info = WorkerInfo { name: name.into(), capacity: slots(2), ..WorkerInfo::default() };
    let (mut provider, mut history) = (None, None);
    for part in traits.split_whitespace() {
        let (what, value) = part.split_once(':').unwrap_or((part, ""));
        let number = || value.parse::<u64>().expect("a number");
        match what {
            "slots" => info.capacity.slots = number() as u32,
            "cpu" => info.capacity.cpu_millis = number(),
            "mem" => info.capacity.memory_bytes = number(),
            "disk" => info.capacity.disk_bytes = number(),
            "gpus" => info.capacity.gpus = number() as u32,
            "tasks" => info.offer.task_types = value.split(',').map(Arc::from).collect(),
            "tasksonly" => info.offer.tasks_only = true,
            "label" => _ = value.split_once('=').map(|(key, value)| info.labels.insert(key.into(), value.into())),
            "taint" => info.taints.push(taint(value)),
            "cap" => info.capabilities.push(capability(value)),
            "zone" => info.zone = Some(value.into()),
            "isolation" => info.isolation = Isolation::parse(value).expect("an isolation"),
            "image" => info.image = Some(value.into()),
            "provider" => provider = Some(Arc::from(value)),
            "history" => history = value.split_once('='),
            other => panic!("{other}"),
        }
    }
    let id = rig.worker_like(n, info);
    let mut record = rig.view(id).record;
    if let Some((task_type, tally)) = history {
        let (succeeded, failed) = tally.split_once('/').expect("good/bad");
        let tally = Tally { succeeded: succeeded.parse().expect("n"), failed: failed.parse().expect("n") };
        record.history.insert(task_type.into(), tally);
    }
    record.origin = provider.map(|provider| {
        let template = Arc::new(WorkerTemplate::default());
        Box::new(Origin { provider, template, job: None, asked_at: Time::default(), used: false })
    });
    rig.server.brain.fleet.redescribe(record);
    id
}

fn taint(text: &str) -> Taint {
    let mut parts = text.splitn(3, ':');
    let (key, value) = parts
        .next()
        .and_then(|part| part.split_once('='))
        .unwrap_or_else(|| (text.split(':').next().unwrap_or_default(), ""));
    let effect = text.rsplit_once("::").and_then(|(_, effect)| TaintEffect::parse(effect)).unwrap_or_default();
    Taint { key: key.into(), value: value.into(), effect }
}

fn capability(text: &str) -> Capability {
    let (name, parameters) = text.split_once(':').unwrap_or((text, ""));
    let parameters = parameters.split(',').filter_map(|pair| pair.split_once('='));
    Capability { name: name.into(), parameters: parameters.map(|(key, value)| (key.into(), value.into())).collect() }
}

fn expression(text: &str) -> Expression {
    let of = |key: &str, operator, values: Vec<Arc<str>>| Expression { key: key.into(), operator, values };
    let values = |list: &str| list.trim_matches(['(', ')']).split(',').map(Arc::from).collect();
    match text.split('_').collect::<Vec<_>>()[..] {
        [key, "in", list] => of(key, Operator::In, values(list)),
        [key, "notin", list] => of(key, Operator::NotIn, values(list)),
        _ => match (text.split_once('='), text.strip_prefix('!')) {
            (Some((key, value)), _) => of(key, Operator::In, vec![value.into()]),
            (None, Some(key)) => of(key, Operator::DoesNotExist, Vec::new()),
            (None, None) => of(text, Operator::Exists, Vec::new()),
        },
    }
}

fn job_of(asked: &str) -> JobSpec {
    let (mut spec, mut constraints) = (spec(), Constraints::default());
    let needs = &mut spec.requirements;
    for part in asked.split_whitespace() {
        let (what, value) = part.split_once(':').expect("what:value");
        let number = || value.parse::<u64>().expect("a number");
        match what {
            "cpu" => needs.cpu_millis = number(),
            "mem" => needs.memory_bytes = number(),
            "disk" => needs.disk_bytes = number(),
            "gpus" => needs.gpus = number() as u32,
            "task" => spec.work = Work::Task { task_type: value.into(), payload: Vec::new() },
            "select" => constraints.selector.push(expression(value)),
            "tolerate" => {
                let (key, value) = value.split_once('=').map_or((value, None), |(key, value)| (key, Some(value)));
                let key = (key != "*").then(|| key.into());
                constraints.tolerations.push(Toleration { key, value: value.map(Into::into) });
            }
            "cap" => constraints.capabilities.push(capability(value)),
            "image" => constraints.image = Some(value.into()),
            "isolation" => constraints.isolation = Isolation::parse(value).expect("an isolation"),
            "zone" => {
                constraints.zone = Some(value.trim_end_matches('!').into());
                constraints.zone_required = value.ends_with('!');
            }
            "provider" => constraints.provider = Some(value.into()),
            other => panic!("{other}"),
        }
    }
    if constraints != Constraints::default() {
        spec.requirements.constraints = Some(Arc::new(constraints));
    }
    spec
}

// ---- hard constraints ---------------------------------------------------------------------------------------------

const WORDS: [&str; 3] = ["x", "y", "z"];

fn word() -> impl Strategy_<Value = Arc<str>> {
    (0..WORDS.len()).prop_map(|i| Arc::from(WORDS[i]))
}

use proptest::strategy::Strategy as Strategy_;

fn some_worker() -> impl Strategy_<Value = WorkerInfo> {
    let capacity = (1..4u32, 0..4u64, 0..4u64, 0..3u64, 0..3u32).prop_map(|(slots, cpu, memory, disk, gpus)| {
        Capacity { slots, cpu_millis: cpu, memory_bytes: memory, disk_bytes: disk, gpus }
    });
    let labels = proptest::collection::btree_map(word(), word(), 0..3);
    let taints = proptest::collection::vec((word(), word(), any::<bool>()), 0..2);
    let rest = (proptest::option::of(word()), proptest::option::of(word()), 0..3usize, any::<bool>(), any::<bool>());
    (capacity, labels, taints, rest).prop_map(|(capacity, labels, taints, (zone, image, isolation, tasks, capable))| {
        let effect = |soft| if soft { TaintEffect::PreferNoSchedule } else { TaintEffect::NoSchedule };
        let taint = |(key, value, soft)| Taint { key, value, effect: effect(soft) };
        let task_types = if tasks { [Arc::from("t")].into() } else { Default::default() };
        WorkerInfo {
            capacity,
            labels,
            taints: taints.into_iter().map(taint).collect(),
            zone,
            image,
            isolation: Isolation::ALL[isolation],
            offer: Offer { task_types, tasks_only: tasks && capable },
            capabilities: if capable { vec![capability("c:p=1")] } else { Vec::new() },
            ..WorkerInfo::default()
        }
    })
}

fn some_job() -> impl Strategy_<Value = JobSpec> {
    let needs = (0..3u64, 0..3u64, 0..2u64, 0..2u32);
    let select = proptest::collection::vec((word(), 0..4usize, word()), 0..2);
    let tolerate = proptest::collection::vec((proptest::option::of(word()), proptest::option::of(word())), 0..2);
    let rest = (
        proptest::option::weighted(0.3, word()),
        any::<bool>(),
        proptest::option::weighted(0.2, word()),
        prop_oneof![4 => Just(0usize), 1 => 0..3usize],
        proptest::bool::weighted(0.2),
        proptest::bool::weighted(0.3),
    );
    (needs, select, tolerate, rest).prop_map(|(needs, select, tolerate, rest)| {
        let (cpu_millis, memory_bytes, disk_bytes, gpus) = needs;
        let (zone, required, image, isolation, capable, task) = rest;
        let expression = |(key, operator, value): (Arc<str>, usize, Arc<str>)| {
            let operator = Operator::ALL[operator];
            let values = if operator <= Operator::NotIn { vec![value] } else { Vec::new() };
            Expression { key, operator, values }
        };
        let constraints = Constraints {
            isolation: Isolation::ALL[isolation],
            capabilities: if capable { vec![capability("c:p=1")] } else { Vec::new() },
            image,
            selector: select.into_iter().map(expression).collect(),
            tolerations: tolerate.into_iter().map(|(key, value)| Toleration { key, value }).collect(),
            zone_required: required && zone.is_some(),
            zone,
            provider: None,
        };
        let constraints = (constraints != Constraints::default()).then(|| Arc::new(constraints));
        spec_with(|spec| {
            spec.requirements = Requirements { cpu_millis, memory_bytes, disk_bytes, gpus, constraints };
            if task {
                spec.work = Work::Task { task_type: "t".into(), payload: Vec::new() };
            }
        })
    })
}

/// Written down a second time, as plainly as can be.
fn may_run(info: &WorkerInfo, spec: &JobSpec) -> bool {
    let none = Constraints::default();
    let asked = spec.requirements.constraints.as_deref().unwrap_or(&none);
    let label = |key: &Arc<str>| info.labels.get(key);
    let selected = asked.selector.iter().all(|e| match (e.operator, label(&e.key)) {
        (Operator::In, value) => value.is_some_and(|value| e.values.contains(value)),
        (Operator::NotIn, value) => !value.is_some_and(|value| e.values.contains(value)),
        (Operator::Exists, value) => value.is_some(),
        (Operator::DoesNotExist, value) => value.is_none(),
    });
    let tolerated = info.taints.iter().filter(|taint| taint.effect == TaintEffect::NoSchedule).all(|taint| {
        asked.tolerations.iter().any(|t| {
            t.key.as_ref().unwrap_or(&taint.key) == &taint.key
                && t.value.as_ref().unwrap_or(&taint.value) == &taint.value
        })
    });
    let offered = match spec.work.task_type() {
        Some(task_type) => info.offer.task_types.contains(task_type),
        None => !info.offer.tasks_only,
    };
    let capable = asked.capabilities.iter().all(|wanted| info.capabilities.contains(wanted));
    let zone = !asked.zone_required || asked.zone == info.zone;
    let image = asked.image.is_none() || asked.image == info.image;
    selected && tolerated && offered && capable && zone && image && info.isolation >= asked.isolation
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Whatever the strategy: a job goes only where it may run and has room, where the decision said that it would, and it
    /// waits only if there is no such place.
    #[test]
    fn no_placement_breaks_a_hard_constraint(
        workers in proptest::collection::vec(some_worker(), 0..6),
        jobs in proptest::collection::vec((some_job(), any::<bool>()), 0..24),
        strategy in 0..5usize,
    ) {
        let mut rig = Rig::new();
        rig.schedule_by(SchedulerSettings { strategy: Strategy::ALL[strategy], ..SchedulerSettings::default() });
        let ids: Vec<WorkerId> =
            workers.iter().enumerate().map(|(n, info)| rig.worker_like(n as u128 + 1, info.clone())).collect();
        let mut running = std::collections::VecDeque::new();
        for (spec, one_ends) in jobs {
            if one_ends && let Some(oldest) = running.pop_front() {
                rig.succeed(oldest);
            }
            let decision = rig.decide(&spec);
            let free: Vec<Capacity> = ids.iter().map(|id| rig.view(*id).free).collect();
            let can = |n: usize| may_run(&workers[n], &spec) && free[n].fits(&spec.requirements);
            let job = rig.enqueue(spec.clone());
            match rig.job(job).state.run() {
                Some(run) => {
                    let n = ids.iter().position(|id| *id == run.worker).expect("known");
                    prop_assert!(can(n), "{:?} went to {:?}", spec, workers[n]);
                    prop_assert_eq!(decision.choice, Choice::Assign(run.worker));
                    running.push_back(job);
                }
                None => {
                    prop_assert!(!(0..ids.len()).any(can), "{:?} waits: {}", spec, decision.reason);
                    prop_assert_eq!(decision.choice, Choice::Enqueue);
                    rig.cancel(job).expect("cancelled");
                }
            }
        }
    }
}

// ---- by hand, closed fleets, histories ----------------------------------------------------------------------------

#[test]
fn an_operator_places_a_job_where_it_may_run_and_nowhere_else() {
    let mut rig = Rig::new();
    let (full, tainted) = (rig.worker(1, slots(1)), worker_id(2));
    let busy = rig.enqueue(spec());
    let info = WorkerInfo { capacity: slots(1), taints: vec![taint("gpu")], ..WorkerInfo::default() };
    rig.worker_like(2, info);
    let waiting = rig.enqueue(spec());
    assert!(matches!(rig.assign(waiting, full), Err(Refusal::NotPlaced(why)) if why.contains("slots")));
    assert!(matches!(rig.assign(waiting, tainted), Err(Refusal::NotPlaced(why)) if why.contains("taint")));
    assert_eq!(rig.assign(waiting, worker_id(9)), Err(Refusal::NoSuchWorker(worker_id(9))));
    assert!(matches!(rig.assign(busy, tainted), Err(Refusal::Illegal(_))));

    // Ahead of its turn, and past a job of a better rank.
    rig.set_queue("held", QueueOrder::Pause);
    let held = rig.enqueue(spec_with(|spec| spec.queue = "held".into()));
    rig.succeed(busy);
    assert_eq!(rig.state(waiting), StateKind::Scheduled);
    assert!(matches!(rig.assign(held, full), Err(Refusal::NotPlaced(why)) if why.contains("paused")));
    rig.succeed(waiting);
    rig.set_queue("held", QueueOrder::Resume);
    assert_eq!(rig.job(held).state.run().map(|run| run.worker), Some(full));
}

#[test]
fn below_the_threshold_an_operator_still_may() {
    let mut rig = Rig::new();
    rig.schedule_by(SchedulerSettings { threshold: 100, ..SchedulerSettings::default() });
    let worker = rig.worker(1, slots(2));
    let jobs = rig.enqueue_all(vec![spec(), spec()]);
    assert_eq!(rig.states(&jobs), [StateKind::Scheduled, StateKind::Pending]);
    rig.assign(jobs[1], worker).expect("placed");
    assert_eq!(rig.states(&jobs), [StateKind::Scheduled; 2]);
}

/// Both come to the server before either is stored.
#[test]
fn a_job_that_is_cancelled_in_the_turn_of_its_placement_stays_so() {
    let mut rig = Rig::new();
    rig.schedule_by(SchedulerSettings { threshold: 100, ..SchedulerSettings::default() });
    let worker = rig.worker(1, slots(2));
    let jobs = rig.enqueue_all(vec![spec(), spec()]);
    rig.server.input(Input::Assign { caller: Caller(0), job: jobs[1], worker });
    rig.server.input(Input::Cancel { caller: Caller(0), job: jobs[1], reason: "why not".into() });
    rig.settle();
    rig.restart();
    assert!(rig.job(jobs[1]).state.cancel().is_some());
}

#[test]
fn what_a_closed_fleet_rejects_is_a_dead_letter_that_can_be_replayed() {
    let mut rig = Rig::new();
    let closed = SchedulerSettings { fleet: FleetPolicy::Closed, ..SchedulerSettings::default() };
    let big = rig.enqueue(job_of("cpu:9000"));
    assert_eq!(rig.state(big), StateKind::Pending, "an open fleet may grow");
    rig.schedule_by(closed);
    let failed = rig.job(big);
    assert_eq!((failed.state.kind(), failed.attempt, failed.executions.len()), (StateKind::Failed, 0, 0));
    let failure = failed.last_failure().expect("why");
    assert_eq!(failure.kind, FailureKind::Rejected);
    assert_eq!(failure.message, "the fleet is closed and no worker is connected");
    assert_eq!(rig.server.store.kept.dead_letters.len(), 1);
    assert_eq!(rig.server.brain.decision_on(&failed).choice, Choice::Reject);

    rig.worker(1, Capacity { cpu_millis: 10_000, ..slots(1) });
    rig.retry(big).expect("again");
    assert_eq!((rig.state(big), rig.job(big).rejected()), (StateKind::Scheduled, None));
    assert!(rig.server.store.kept.dead_letters.is_empty());

    // One that waits for the worker that leaves has nothing to wait for any more.
    let next = rig.enqueue(job_of("cpu:9000"));
    assert_eq!(rig.state(next), StateKind::Pending);
    rig.disconnect(worker_id(1));
    assert_eq!(rig.state(next), StateKind::Pending, "it may come back");
    rig.connect(worker_id(1), incarnation(1), &[rig.execution(big)]);
    rig.ask(|caller| Input::Drain { caller, worker: worker_id(1), order: Drain::default() }).expect("drains");
    assert_eq!(rig.states(&[big, next]), [StateKind::Scheduled, StateKind::Failed]);
}

#[test]
fn rejected_jobs_beyond_memory_are_rejected_too() {
    let mut rig = Rig::with(small_windows());
    let jobs = rig.enqueue_all((0..30).map(|_| job_of("gpus:1")).collect());
    rig.schedule_by(SchedulerSettings { fleet: FleetPolicy::Closed, ..SchedulerSettings::default() });
    rig.pass(Millis::seconds(20));
    assert!(rig.states(&jobs).iter().all(|state| *state == StateKind::Failed), "{:?}", rig.states(&jobs));
}

#[test]
fn how_workers_fare_is_remembered_over_a_restart_and_written_seldom() {
    let mut rig = Rig::new();
    let worker = rig.worker(1, slots(1));
    rig.pass(Millis::seconds(30));
    let mut end = |outcome: Outcome| {
        let job = rig.enqueue(spec_with(|spec| spec.retry.max_attempts = 1));
        rig.start(job);
        rig.finish(job, outcome);
    };
    end(Outcome::Succeeded);
    let at_first = |rig: &Rig| rig.server.store.workers[&worker].history.get("").copied().unwrap_or_default();
    (0..3).for_each(|_| end(Outcome::Failed(Failure::exit(1))));
    assert_eq!(at_first(&rig), Tally { succeeded: 1, failed: 0 }, "the first at once, more when it is worth a write");
    rig.heartbeat(worker);
    rig.pass(Millis::seconds(11));
    assert_eq!(at_first(&rig), Tally { succeeded: 1, failed: 3 });
    rig.restart();
    assert_eq!(rig.view(worker).record.history[""], Tally { succeeded: 1, failed: 3 });

    // What the server did says nothing of the worker.
    rig.connect(worker, incarnation(1), &[]);
    let job = rig.enqueue(spec());
    rig.start(job);
    rig.cancel(job).expect("cancelled");
    rig.finish(job, Outcome::Cancelled);
    rig.pass(Millis::seconds(11));
    assert_eq!(rig.view(worker).record.history[""], Tally { succeeded: 1, failed: 3 });
}

#[test]
fn old_sins_fade_and_types_are_bounded() {
    let mut tally = Tally::default();
    (0..10_000).for_each(|_| tally.count(false));
    (0..2000).for_each(|_| tally.count(true));
    assert!(tally.succeeded > 2 * tally.failed && tally.succeeded + tally.failed <= 1000, "{tally:?}");
    let mut rig = Rig::new();
    let worker = rig.worker(1, slots(1));
    for n in 0..200 {
        rig.server.brain.fleet.remember(worker, Some(&Arc::from(n.to_string())), true);
    }
    assert_eq!(rig.view(worker).record.history.len(), 64);
}

#[test]
fn labels_that_nobody_asks_for_do_not_tell_workers_apart() {
    let mut rig = Rig::new();
    for n in 1..=9 {
        let labels = [(Arc::from("host"), Arc::from(n.to_string()))].into();
        rig.worker_like(n, WorkerInfo { capacity: slots(1), labels, ..WorkerInfo::default() });
    }
    rig.enqueue(spec());
    assert_eq!(rig.server.brain.fleet.kinds_of_workers(), 1);
    let third = rig.enqueue(job_of("select:host=3"));
    assert_eq!(rig.job(third).state.run().map(|run| run.worker), Some(worker_id(3)));
    assert_eq!(rig.server.brain.fleet.kinds_of_workers(), 9);
    let rest = rig.enqueue_all(vec![spec(); 8]);
    assert_eq!(rig.states(&rest)[6..], [StateKind::Scheduled, StateKind::Pending]);
}
