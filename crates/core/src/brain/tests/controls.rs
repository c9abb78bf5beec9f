//! Queues that are paused or limited, limits per key, and ageing.

use super::*;
use crate::{
    queue::{QueueSettings, Rate},
    spec::Concurrency,
};

fn in_queue(queue: &str) -> JobSpec {
    spec_with(|spec| spec.queue = queue.into())
}

fn keyed(key: &str, limit: u32) -> JobSpec {
    spec_with(|spec| spec.concurrency = Some(Concurrency { key: key.into(), limit }))
}

fn at(priority: Priority) -> JobSpec {
    spec_with(|spec| spec.priority = priority)
}

fn limit(concurrency: u32) -> QueueOrder {
    QueueOrder::Configure(QueueSettings { concurrency: Some(concurrency), ..QueueSettings::default() })
}

fn rate(limit: u32, period: Millis) -> QueueOrder {
    QueueOrder::Configure(QueueSettings { rate: Some(Rate { limit, period }), ..QueueSettings::default() })
}

fn ageing(wait: Millis) -> QueueOrder {
    QueueOrder::Configure(QueueSettings { ageing: Some(wait), ..QueueSettings::default() })
}

fn reason(rig: &Rig, job: JobId) -> String {
    rig.server.brain.waiting_reason(&rig.job(job))
}

fn held_because(rig: &Rig, queue: &str) -> String {
    rig.server.brain.queue(queue).expect("a queue").held_because
}

#[test]
fn a_paused_queue_starts_nothing_and_hides_nothing() {
    let mut rig = Rig::with(small_windows());
    let worker = rig.worker(1, slots(3));
    rig.set_queue("a", QueueOrder::Pause);
    let held = rig.enqueue_all(vec![JobSpec { priority: Priority::Critical, ..in_queue("a") }; 20]);
    let other = rig.enqueue(in_queue("b"));
    assert_eq!(rig.runs(), [other]);
    assert!(reason(&rig, held[0]).contains("queue is paused"), "{}", reason(&rig, held[0]));
    assert_eq!(held_because(&rig, "a"), "is paused");
    let execution = rig.execution(other);
    rig.restart();
    rig.connect(worker, incarnation(1), &[execution]);
    assert_eq!(rig.runs(), [], "also after a restart");
    assert!(rig.server.brain.ready.head_after(None).is_none(), "what is held costs nothing");
    rig.set_queue("a", QueueOrder::Resume);
    assert_eq!(rig.runs(), held[..2]);
    assert_eq!(held_because(&rig, "a"), "");
    rig.set_queue("a", QueueOrder::Pause);
    rig.succeed(held[0]);
    assert_eq!(rig.runs(), [], "what runs ends, and nothing follows");
}

#[test]
fn a_queue_has_no_more_jobs_with_workers_than_it_may() {
    let mut rig = Rig::new();
    let worker = rig.worker(1, slots(9));
    rig.set_queue("a", limit(2));
    let jobs = rig.enqueue_all(vec![in_queue("a"); 5]);
    let other = rig.enqueue(in_queue("b"));
    assert_eq!(rig.runs(), [jobs[0], jobs[1], other]);
    assert!(reason(&rig, jobs[2]).contains("may have 2 jobs"), "{}", reason(&rig, jobs[2]));
    rig.finish(jobs[1], Outcome::Snoozed { delay: Millis::seconds(60) });
    assert_eq!(rig.runs(), [jobs[2]]);
    let held = [jobs[0], jobs[2], other].map(|job| rig.execution(job));
    rig.restart();
    rig.connect(worker, incarnation(1), &held);
    assert_eq!(rig.runs(), [], "those with workers still count");
    rig.set_queue("a", limit(1));
    rig.succeed(jobs[0]);
    assert_eq!(rig.runs(), [], "the limit was lowered");
    rig.succeed(jobs[2]);
    assert_eq!(rig.runs(), [jobs[3]]);
    rig.set_queue("a", QueueOrder::Configure(QueueSettings::default()));
    assert_eq!(rig.runs(), [jobs[4]]);
}

#[test]
fn a_key_has_no_more_jobs_with_workers_than_it_may_whatever_their_queues() {
    let mut rig = Rig::new();
    let worker = rig.worker(1, slots(9));
    let one = |queue: &str| JobSpec { queue: queue.into(), ..keyed("k", 1) };
    let (first, second, third) = (rig.enqueue(one("a")), rig.enqueue(one("b")), rig.enqueue(one("a")));
    let free = rig.enqueue(JobSpec { queue: "a".into(), ..keyed("other", 1) });
    assert_eq!(rig.runs(), [first, free]);
    assert!(reason(&rig, second).contains("concurrency key 'k'"), "{}", reason(&rig, second));
    let held = [first, free].map(|job| rig.execution(job));
    rig.restart();
    rig.connect(worker, incarnation(1), &held);
    assert_eq!(rig.runs(), []);
    rig.succeed(first);
    assert_eq!(rig.runs(), [second], "the first in line of both queues");
    rig.fail(second);
    assert_eq!(rig.runs(), [third]);
    // Whoever allows more may start beside it.
    let (two, also) = (rig.enqueue(keyed("k", 2)), rig.enqueue(keyed("k", 2)));
    assert_eq!(rig.runs(), [two]);
    rig.succeed(third);
    assert_eq!(rig.runs(), [also]);
}

/// Many classes behind one gate: each end lets one go, in order.
#[test]
fn what_many_classes_wait_for_goes_to_the_first_of_them() {
    let mut rig = Rig::new();
    rig.worker(1, slots(50));
    rig.set_queue("a", limit(1));
    let spec =
        |n: u64| JobSpec { queue: "a".into(), priority: Priority::ALL[n as usize % 4], ..keyed(&format!("k{n}"), 1) };
    let jobs = rig.enqueue_all((0..400).map(spec).collect());
    let mut order = rig.runs();
    while let Some(last) = order.last().copied().filter(|_| order.len() < jobs.len()) {
        rig.succeed(last);
        let next = rig.runs();
        assert_eq!(next.len(), 1);
        order.extend(next);
    }
    let mut best: Vec<JobId> = jobs.clone();
    best.sort_by_key(|job| (rig.job(*job).priority, *job));
    assert_eq!(order, best);
}

/// The first behind a gate fits nowhere, or its other gate is closed: the next one goes.
#[test]
fn what_fits_nowhere_does_not_hide_others_behind_its_gate() {
    let mut rig = Rig::new();
    rig.worker(1, slots(9));
    rig.set_queue("a", limit(1));
    let first = rig.enqueue(in_queue("a"));
    let huge = JobSpec { requirements: Requirements::of(1_000_000, 0), ..in_queue("a") };
    rig.enqueue(huge.clone());
    rig.enqueue(JobSpec { priority: Priority::High, ..huge });
    let busy = rig.enqueue(keyed("k", 1));
    let keyed_one = rig.enqueue(JobSpec { queue: "a".into(), ..keyed("k", 1) });
    let plain = rig.enqueue(JobSpec { priority: Priority::Low, ..in_queue("a") });
    assert_eq!(rig.runs(), [first, busy]);
    rig.succeed(first);
    assert_eq!(rig.runs(), [plain]);
    rig.succeed(busy);
    assert_eq!(rig.runs(), [], "its queue is at its limit");
    rig.succeed(plain);
    assert_eq!(rig.runs(), [keyed_one]);
}

#[test]
fn a_queue_starts_no_more_in_a_period_than_it_may() {
    let mut rig = Rig::new();
    let worker = rig.worker(1, slots(50));
    rig.set_queue("a", rate(3, Millis::seconds(10)));
    let jobs = rig.enqueue_all(vec![in_queue("a"); 8]);
    assert_eq!(rig.runs(), jobs[..3]);
    assert!(reason(&rig, jobs[3]).contains("may start 3 jobs in 10000 ms"), "{}", reason(&rig, jobs[3]));
    let (due, _) = rig.server.brain.next_wake();
    assert!(due.is_some_and(|due| due >= rig.server.now.wall + Millis::seconds(10)), "{due:?}");
    jobs[..3].iter().for_each(|job| rig.succeed(*job));
    rig.pass(Millis::seconds(5));
    rig.restart();
    rig.connect(worker, incarnation(1), &[]);
    assert_eq!(rig.runs(), [], "a restart forgets no start");
    rig.pass(Millis::seconds(4));
    rig.heartbeat(worker);
    assert_eq!(rig.runs(), []);
    rig.pass(Millis::seconds(2));
    assert_eq!(rig.runs(), jobs[3..6]);
    rig.set_queue("a", QueueOrder::Configure(QueueSettings::default()));
    assert_eq!(rig.runs(), jobs[6..]);
}

/// The first behind the queue is held by its key when the queue is at its rate: the others are woken all the same.
#[test]
fn a_key_that_is_full_keeps_nobody_from_being_woken() {
    let mut rig = Rig::new();
    rig.worker(1, slots(50));
    let busy = rig.enqueue(keyed("k", 1));
    let settings = QueueSettings { concurrency: Some(1), ..QueueSettings::default() };
    let rate = Some(Rate { limit: 1, period: Millis::seconds(10) });
    rig.set_queue("a", QueueOrder::Configure(QueueSettings { rate, ..settings }));
    let first = rig.enqueue(in_queue("a"));
    let keyed_one = rig.enqueue(JobSpec { queue: "a".into(), priority: Priority::High, ..keyed("k", 1) });
    let second = rig.enqueue(in_queue("a"));
    assert_eq!(rig.runs(), [busy, first]);
    rig.succeed(first);
    rig.pass(Millis::seconds(11));
    assert_eq!(rig.runs(), [second]);
    rig.succeed(second);
    rig.succeed(busy);
    rig.pass(Millis::seconds(11));
    assert_eq!(rig.runs(), [keyed_one]);
}

#[test]
fn what_waits_long_enough_counts_as_more_urgent() {
    let mut rig = Rig::with(small_windows());
    rig.set_queue("default", ageing(Millis::seconds(10)));
    let low = rig.enqueue(at(Priority::Low));
    rig.pass(Millis::seconds(11));
    let normal = rig.enqueue(at(Priority::Normal));
    let young = rig.enqueue(at(Priority::Low));
    rig.pass(Millis::seconds(10));
    let high = rig.enqueue(at(Priority::High));
    // The low one has risen twice, the normal one once and the young one once.
    rig.restart();
    rig.worker(1, slots(1));
    let mut order = rig.runs();
    while let Some(last) = order.last().copied().filter(|_| order.len() < 4) {
        rig.succeed(last);
        order.extend(rig.runs());
    }
    assert_eq!(order, [low, normal, high, young]);
}

#[test]
fn nobody_rises_above_critical_and_other_queues_do_not_rise() {
    let mut rig = Rig::new();
    rig.set_queue("a", ageing(Millis::seconds(1)));
    let old = rig.enqueue(JobSpec { queue: "b".into(), ..at(Priority::Normal) });
    let risen = rig.enqueue(JobSpec { queue: "a".into(), ..at(Priority::Low) });
    let (due, _) = rig.server.brain.next_wake();
    assert!(due.is_some_and(|due| due <= rig.server.now.wall + Millis::seconds(1)), "{due:?}");
    rig.pass(Millis::seconds(100));
    let critical = rig.enqueue(JobSpec { queue: "b".into(), ..at(Priority::Critical) });
    let fresh = rig.enqueue(JobSpec { queue: "a".into(), ..at(Priority::Critical) });
    rig.worker(1, slots(4));
    assert_eq!(rig.runs(), [risen, critical, fresh, old]);
}

#[test]
fn a_queue_without_jobs_and_settings_is_forgotten() {
    let mut rig = Rig::new();
    rig.set_queue("a", QueueOrder::Pause);
    rig.restart();
    assert!(rig.server.brain.queue("a").is_some_and(|view| view.record.paused));
    rig.set_queue("a", QueueOrder::Resume);
    assert!(rig.server.brain.queue("a").is_none());
    rig.restart();
    assert!(rig.server.brain.queue("a").is_none());
}
