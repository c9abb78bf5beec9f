//! The six rules that supervision keeps, each by name.

use hodei_supervise::{
    Ask, Cause, Class, Crash, EventKind, GOOD_WORK, HANG_BEATS, Lifecycle, PoolLimits, Refused, Request, Sla, Step,
    Supervisor, Swarm, Verdict,
};
use std::time::Duration;

const ZERO: Duration = Duration::ZERO;

fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn limits(capacity: usize, warm: usize, ttl: u64) -> PoolLimits {
    PoolLimits { capacity, warm, ttl: s(ttl) }
}

fn swarm(sla: Sla, members: &[u32]) -> Swarm<u32> {
    let mut swarm = Swarm::new(sla, limits(2, 1, 60));
    for key in members {
        swarm.watch(*key, ZERO).expect("new");
        swarm.ready(key, ZERO).expect("starting");
    }
    swarm
}

fn supervisor(sla: Sla, places: &[u32]) -> Supervisor<u32, &'static str> {
    let mut supervisor = Supervisor::new(sla);
    for key in places {
        supervisor.supervise(*key);
        supervisor.up(key, ZERO);
    }
    supervisor
}

fn killed(lived: Duration) -> Crash {
    Crash::new(Cause::Exited, "killed by signal 9", lived).with_exit(None, Some(9))
}

fn names(supervisor: &mut Supervisor<u32, &'static str>) -> Vec<&'static str> {
    supervisor.take_events().iter().map(|event| event.kind.name()).collect()
}

/// A worker that beats and produces nothing is the Supervisor's to find, and one that produces and does not beat is the
/// Swarm's. There is no call by which either could hear of the other's matter.
#[test]
fn invariant_1_health_and_output_are_judged_apart() {
    let (mut swarm, mut supervisor) = (swarm(Sla::Critical, &[1, 2]), supervisor(Sla::Critical, &[1, 2]));
    for key in [1, 2] {
        supervisor.accepted(&key, "job", ZERO);
    }
    // 1 beats and never shows its work; 2 produces and never beats.
    supervisor.produced(&2, &"job", s(1));
    for second in 1..=10 {
        swarm.beat(&1, s(second));
    }
    assert_eq!(swarm.hung(s(10)), [2]);
    let stalled = supervisor.not_producing(s(10));
    assert_eq!(stalled.iter().map(|stalled| stalled.key).collect::<Vec<_>>(), [1]);
    let output = supervisor.output(&2).expect("known");
    assert_eq!((output.count, output.last_latency, output.mean_latency()), (1, s(1), Some(s(1))));
}

/// Anything that has an order and can be copied is supervised in the same way: processes by place, workers by name.
#[test]
fn invariant_2_what_is_supervised_is_not_known() {
    fn live_and_die<K: Ord + Clone + std::fmt::Debug>(key: K) {
        let mut swarm = Swarm::new(Sla::High, limits(1, 0, 60));
        let mut supervisor: Supervisor<K, u8> = Supervisor::new(Sla::High);
        swarm.watch(key.clone(), ZERO).expect("new");
        supervisor.supervise(key.clone());
        swarm.ready(&key, ZERO).expect("starting");
        supervisor.up(&key, ZERO);
        assert_eq!(swarm.exited(&key), Ok(Lifecycle::Crashed));
        assert_eq!(supervisor.crashed(&key, killed(s(9)), s(9)), Verdict::RestartAt(s(10)));
        assert_eq!(supervisor.due(s(10)), [key]);
    }
    live_and_die(("report.*", 3_usize));
    live_and_die("worker-7".to_owned());
    live_and_die([1_u8; 16]);
}

#[test]
fn invariant_3_the_sla_decides_and_never_changes() {
    let table = [
        (Sla::Critical, 1, &[1, 2, 4][..], 10),
        (Sla::High, 2, &[1, 2], 30),
        (Sla::Normal, 5, &[1], 120),
        (Sla::BestEffort, 10, &[], 600),
    ];
    for (sla, heartbeat, waits, deadline) in table {
        let (mut swarm, mut supervisor) = (swarm(sla, &[1]), supervisor(sla, &[1]));
        // Both take it when they are made and give it only to read.
        assert_eq!((swarm.sla(), supervisor.sla()), (sla, sla));
        let hang = s(heartbeat) * HANG_BEATS;
        assert_eq!((swarm.next_deadline(), swarm.hangs_at(&1)), (Some(hang), Some(hang)));
        assert!(swarm.hung(hang - Duration::from_millis(1)).is_empty());
        assert_eq!(swarm.hung(hang), [1]);

        supervisor.accepted(&1, "job", ZERO);
        assert_eq!((supervisor.next_deadline(), supervisor.late_at(&1)), (Some(s(deadline)), Some(s(deadline))));
        assert!(supervisor.not_producing(s(deadline) - Duration::from_millis(1)).is_empty());
        assert_eq!(supervisor.not_producing(s(deadline)).len(), 1);

        for wait in waits {
            assert_eq!(supervisor.crashed(&1, killed(s(1)), s(100)), Verdict::RestartAt(s(100 + wait)), "{sla}");
            assert_eq!(supervisor.due(s(100 + wait) - Duration::from_millis(1)), []);
            assert_eq!(supervisor.due(s(100 + wait)), [1]);
            supervisor.up(&1, s(100));
        }
        supervisor.take_events();
        assert_eq!(supervisor.crashed(&1, killed(s(1)), s(100)), Verdict::GaveUp);
        assert_eq!(names(&mut supervisor), ["worker_crashed", "worker_failed_permanent"]);
        assert_eq!((supervisor.next_deadline(), supervisor.due(s(1_000_000))), (None, vec![]));
    }
}

#[test]
fn invariant_4_one_for_one() {
    let (mut swarm, mut supervisor) = (swarm(Sla::High, &[1, 2, 3]), supervisor(Sla::High, &[1, 2, 3]));
    for key in [1, 2, 3] {
        supervisor.accepted(&key, "job", s(1));
    }
    let neighbours = |swarm: &Swarm<u32>| [1, 3].map(|key| *swarm.health(&key).expect("watched"));
    let before = neighbours(&swarm);
    for round in 0..3 {
        swarm.exited(&2).expect("it ran");
        _ = supervisor.crashed(&2, killed(s(1)), s(10 * round));
        supervisor.due(s(10 * round + 5));
        swarm.watch(2, s(10 * round)).expect("over");
        swarm.ready(&2, s(10 * round)).expect("starting");
    }
    assert!(supervisor.has_given_up(&2) && !supervisor.all_given_up());
    assert_eq!(neighbours(&swarm), before);
    for key in [1, 3] {
        assert!(!supervisor.has_given_up(&key));
        // Its budget is whole, and its work is still owed.
        supervisor.produced(&key, &"job", s(2));
        assert_eq!(supervisor.output(&key).map(|output| output.count), Some(1));
        assert_eq!(supervisor.crashed(&key, killed(s(1)), s(50)), Verdict::RestartAt(s(51)));
    }
}

#[test]
fn invariant_5_the_pool_holds_warm_and_healthy_ones_only() {
    let mut swarm = swarm(Sla::Normal, &[1, 2, 3]);
    assert_eq!(swarm.request(s(1)), Request::Make);
    assert_eq!(swarm.release(1, s(1)), Ok(None));
    assert_eq!(swarm.release(2, s(2)), Ok(None));
    // Full: the one that was used least recently goes.
    assert_eq!(swarm.release(3, s(3)), Ok(Some(1)));
    assert_eq!(swarm.request(s(4)), Request::Warm(3));
    // One that crashed cannot come back, neither can one that ends, hangs or was never there.
    swarm.exited(&3).expect("it ran");
    assert_eq!(swarm.release(3, s(5)), Err(Refused::NotRunning(Lifecycle::Crashed)));
    swarm.stop(&1).expect("it ran");
    assert_eq!(swarm.release(1, s(5)), Err(Refused::NotRunning(Lifecycle::Stopping)));
    assert_eq!(swarm.release(9, s(5)), Err(Refused::Unknown));
    // 2 is in the pool, and silent: nobody gets it.
    assert!(swarm.pool().contains(&2));
    assert_eq!(swarm.request(s(15)), Request::Make);
    assert_eq!(swarm.release(2, s(15)), Err(Refused::Hangs));
    // A crash in the pool takes it out.
    swarm.beat(&2, s(15));
    assert_eq!(swarm.release(2, s(15)), Ok(None));
    swarm.exited(&2).expect("it ran");
    assert!(swarm.pool().is_empty());
}

#[test]
fn invariant_6_no_life_leaves_its_way() {
    use Lifecycle::*;
    let legal = [
        (Created, Step::Start, Starting),
        (Starting, Step::Ready, Running),
        (Running, Step::Stop, Stopping),
        (Stopping, Step::Exit, Stopped),
        (Starting, Step::Exit, Crashed),
        (Running, Step::Exit, Crashed),
        (Stopped, Step::Renew, Created),
    ];
    for from in Lifecycle::ALL {
        for step in Step::ALL {
            let expected = legal.iter().find(|(a, b, _)| (*a, *b) == (from, step)).map(|(_, _, to)| *to);
            assert_eq!(from.next(step).ok(), expected, "{from:?} {step:?}");
        }
    }
    // One that was stopped runs only after it was created and started again.
    let mut swarm = swarm(Sla::Normal, &[1]);
    swarm.stop(&1).expect("it ran");
    assert_eq!(swarm.exited(&1), Ok(Stopped));
    assert!(swarm.ready(&1, s(1)).is_err());
    swarm.watch(1, s(1)).expect("over");
    assert_eq!(swarm.health(&1).map(|health| health.lifecycle), Some(Starting));
    assert!(swarm.watch(1, s(1)).is_err());
}

#[test]
fn idle_ones_beyond_the_warm_end_after_a_while() {
    let mut swarm = swarm(Sla::BestEffort, &[1, 2]);
    swarm.release(1, s(1)).expect("healthy");
    swarm.release(2, s(2)).expect("healthy");
    for key in [1, 2] {
        swarm.beat(&key, s(60));
    }
    assert_eq!(swarm.next_deadline(), Some(s(61)));
    assert_eq!(swarm.expired(s(60)), []);
    assert_eq!(swarm.expired(s(61)), [1]);
    assert_eq!((swarm.expired(s(89)), swarm.pool().len(), swarm.pool().missing()), (vec![], 1, 0));
}

#[test]
fn a_minute_of_good_work_gives_the_restarts_back() {
    let mut supervisor = supervisor(Sla::Normal, &[1]);
    assert_eq!(supervisor.crashed(&1, killed(s(9)), s(9)), Verdict::RestartAt(s(10)));
    supervisor.due(s(10));
    supervisor.up(&1, s(11));
    let later = s(11) + GOOD_WORK;
    assert_eq!(supervisor.crashed(&1, killed(GOOD_WORK), later), Verdict::RestartAt(later + s(1)));
    supervisor.due(later + s(1));
    supervisor.up(&1, later + s(1));
    // Not good: most of that minute work lay there untouched.
    supervisor.accepted(&1, "job", later + s(2));
    let late = later + s(2) + Sla::Normal.output_deadline();
    let stalled = Crash::new(Cause::NotProducing, "it did not begin its work", s(121));
    assert_eq!(supervisor.crashed(&1, stalled, late), Verdict::GaveUp);
    let last = supervisor.take_events();
    assert!(matches!(&last[last.len() - 2].kind, EventKind::NotProducing { class: Class::Transient, .. }));
}

#[test]
fn whoever_takes_over_a_place_knows_what_is_left_of_its_restarts() {
    let mut supervisor = Supervisor::<u32, &str>::new(Sla::High);
    supervisor.take_over(1, 1, s(100));
    supervisor.take_over(2, 0, s(100));
    assert_eq!(supervisor.used().collect::<Vec<_>>(), [(&1, 1)]);
    assert_eq!((supervisor.due(s(100)), supervisor.due(s(101))), (vec![], vec![1]), "it keeps its distance");
    supervisor.up(&1, s(101));
    assert_eq!(supervisor.crashed(&1, killed(s(1)), s(102)), Verdict::RestartAt(s(104)));
    supervisor.due(s(104));
    supervisor.up(&1, s(104));
    let later = s(104) + GOOD_WORK;
    assert_eq!((supervisor.next_give_back(), supervisor.give_back(later - s(1))), (Some(later), false));
    assert!(supervisor.give_back(later));
    assert_eq!((supervisor.used().count(), supervisor.next_give_back()), (0, None));
}

#[test]
fn what_was_given_up_waits_for_a_person() {
    let mut supervisor = supervisor(Sla::BestEffort, &[1]);
    assert_eq!(supervisor.crashed(&1, killed(s(9)), s(9)), Verdict::GaveUp);
    assert_eq!(supervisor.due(s(1_000)), []);
    assert_eq!(supervisor.ask(&1, s(2_000)), Ask::Fill);
    assert_eq!(supervisor.due(s(2_000)), [1]);
    assert_eq!(supervisor.ask(&1, s(2_000)), Ask::Coming);
    supervisor.up(&1, s(2_001));
    let asked = "worker_restart_asked";
    let all = ["worker_crashed", "worker_failed_permanent", asked, asked, "worker_replaced"];
    assert_eq!(names(&mut supervisor), all);
    assert_eq!((supervisor.ask(&1, s(3_000)), supervisor.ask(&9, s(3_000))), (Ask::Replace, Ask::Unknown));
}

#[test]
fn work_that_has_shown_itself_may_take_its_time() {
    let mut supervisor = supervisor(Sla::Critical, &[1]);
    for work in ["quiet", "begun", "ended", "taken back"] {
        supervisor.accepted(&1, work, s(1));
    }
    supervisor.shown(&1, &"begun");
    supervisor.produced(&1, &"ended", s(2));
    supervisor.withdrawn(&1, &"taken back");
    let stalled = supervisor.not_producing(s(1_000));
    assert_eq!(stalled.iter().map(|stalled| (stalled.work, stalled.waited)).collect::<Vec<_>>(), [("quiet", s(999))]);
    supervisor.shown(&1, &"quiet");
    assert_eq!((supervisor.not_producing(s(1_000)), supervisor.next_deadline()), (vec![], None));
    // Whoever follows one that was ended in order does not owe what that one held, and replaces nobody who failed.
    supervisor.accepted(&1, "held", s(1_000));
    supervisor.stopped(&1);
    assert_eq!((supervisor.ask(&1, s(1_001)), supervisor.next_deadline()), (Ask::Coming, None));
}
