//! When a silent worker's jobs may be given to others.

use super::*;
use crate::worker::WorkerState;

const LEASE: Millis = Millis::seconds(60);
const GRACE: Millis = Millis::seconds(5);

/// A worker that runs one job and falls silent.
fn silent() -> (Rig, WorkerId, JobId) {
    let mut rig = Rig::new();
    let worker = rig.worker(1, slots(1));
    let job = rig.enqueue(spec());
    rig.start(job);
    (rig, worker, job)
}

fn lost(rig: &Rig, job: JobId) -> bool {
    rig.job(job).losses == 1
}

#[test]
fn a_lease_runs_out_after_its_grace() {
    let (mut rig, worker, job) = silent();
    rig.pass(LEASE);
    rig.pass(Millis(GRACE.0 - 1));
    assert!(!lost(&rig, job));
    rig.news();
    rig.pass(Millis(1));
    assert!(lost(&rig, job));
    assert_eq!(rig.state(job), StateKind::Pending);
    assert_eq!(rig.view(worker).state, WorkerState::Unhealthy);
    assert!(rig.news().contains(&Effect::Close { worker, connection: Connection(1) }));
    rig.connect(worker, incarnation(1), &[]);
    assert_eq!(rig.view(worker).state, WorkerState::Busy, "it came back and has work again");
}

#[test]
fn a_heartbeat_counts_from_its_arrival() {
    let (mut rig, worker, job) = silent();
    rig.pass(Millis::seconds(30));
    let at = rig.server.now.elapsed;
    rig.pass(Millis::seconds(20));
    rig.tell(Input::Heartbeat { worker, at });
    rig.pass(Millis(30_000 + 15_000 - 1));
    assert!(!lost(&rig, job));
    rig.pass(Millis(1));
    assert!(lost(&rig, job));
}

#[test]
fn a_worker_that_is_heard_of_keeps_its_lease() {
    let (mut rig, worker, job) = silent();
    for _ in 0..20 {
        rig.pass(Millis::seconds(10));
        rig.heartbeat(worker);
    }
    assert!(!lost(&rig, job));
}

/// The real loop sleeps until the brain wants to be woken. That must be often enough, or each sleep looks like a stall.
#[test]
fn a_server_that_sleeps_as_long_as_it_may_finds_the_lost_worker() {
    let (mut rig, _, job) = silent();
    let end = rig.server.now.elapsed + LEASE + GRACE;
    while rig.server.now.elapsed < end {
        let (_, wake) = rig.server.brain.next_wake();
        let sleep = wake.expect("a lease to watch") - rig.server.now.elapsed;
        rig.server.advance(sleep);
        rig.settle();
    }
    assert!(lost(&rig, job));
}

#[test]
fn a_stall_of_the_server_costs_nobody_a_lease() {
    let (mut rig, _, job) = silent();
    rig.pass(Millis::seconds(50));
    rig.server.advance(Millis::seconds(1000));
    rig.settle();
    assert!(!lost(&rig, job));
    rig.pass(Millis(15_000 - 1));
    assert!(!lost(&rig, job));
    rig.pass(Millis(1));
    assert!(lost(&rig, job));
}

#[test]
fn nobody_is_lost_while_the_turn_is_frozen() {
    let (mut rig, worker, job) = silent();
    for _ in 0..100 {
        rig.server.advance(Millis::seconds(1));
        rig.server.settle(true);
    }
    assert!(!lost(&rig, job));
    rig.heartbeat(worker);
    assert!(!lost(&rig, job));
}

#[test]
fn timers_fire_in_a_frozen_turn() {
    let mut rig = Rig::new();
    let job = rig.enqueue(spec_with(|spec| spec.timeouts.queue = Some(Millis::seconds(1))));
    rig.server.advance(Millis::seconds(1));
    rig.server.settle(true);
    assert_eq!(rig.state(job), StateKind::TimedOut);
}

#[test]
fn every_lease_begins_anew_after_a_restart() {
    let (mut rig, _, job) = silent();
    rig.pass(Millis::seconds(50));
    rig.server.restart();
    rig.pass(Millis(65_000 - 1));
    assert!(!lost(&rig, job));
    rig.pass(Millis(1));
    assert!(lost(&rig, job));
}

#[test]
fn a_parked_lease_outlives_the_server_and_the_way_back() {
    let (mut rig, worker, job) = silent();
    let execution = rig.execution(job);
    rig.news();
    let lease = Millis::seconds(600);
    rig.tell(Input::Park { lease });
    assert_eq!(rig.news(), [Effect::Park { worker, connection: Connection(1), lease }]);
    rig.pass(Millis::seconds(100));
    assert!(!lost(&rig, job), "a server that takes its time to leave keeps its word too");
    rig.server.restart();
    rig.connect(worker, incarnation(1), &[execution]);
    rig.pass(Millis::seconds(400));
    assert!(!lost(&rig, job), "the answer to its greeting may be lost, and then it goes on under the old lease");
    rig.pass(Millis(105_000 - 1));
    assert!(!lost(&rig, job));
    rig.pass(Millis(1));
    assert!(lost(&rig, job));
}

#[test]
fn a_greeting_does_not_prove_that_its_answer_arrived() {
    let (mut rig, worker, job) = silent();
    let execution = rig.execution(job);
    rig.tell(Input::Park { lease: Millis::seconds(600) });
    rig.server.restart();
    // The server hears a sign of life in the greeting itself.
    rig.connect(worker, incarnation(1), &[execution]);
    rig.heartbeat(worker);
    rig.pass(Millis::seconds(500));
    assert!(!lost(&rig, job));
}

#[test]
fn a_clock_that_is_set_while_the_server_is_away_ends_no_parked_lease() {
    let (mut rig, _, job) = silent();
    rig.tell(Input::Park { lease: Millis::seconds(600) });
    rig.server.now.wall = rig.server.now.wall + Millis::seconds(3600);
    rig.server.restart();
    rig.pass(Millis::seconds(300));
    rig.server.now.wall = rig.server.now.wall + Millis::seconds(3600);
    rig.enqueue(spec());
    rig.server.restart();
    rig.pass(Millis::seconds(290));
    assert!(!lost(&rig, job));
    rig.pass(Millis::seconds(20));
    assert!(lost(&rig, job));
}

#[test]
fn a_worker_that_has_heard_of_the_new_lease_is_under_it() {
    let (mut rig, worker, job) = silent();
    let execution = rig.execution(job);
    rig.tell(Input::Park { lease: Millis::seconds(600) });
    rig.server.restart();
    rig.connect(worker, incarnation(1), &[execution]);
    rig.pass(Millis(1));
    rig.heartbeat(worker);
    rig.pass(Millis(65_000 - 1));
    assert!(!lost(&rig, job));
    rig.pass(Millis(1));
    assert!(lost(&rig, job));
}

#[test]
fn a_cancelled_job_whose_worker_is_lost_is_cancelled() {
    let (mut rig, _, job) = silent();
    rig.cancel(job).expect("asked");
    rig.pass(LEASE);
    rig.pass(GRACE);
    assert_eq!(rig.state(job), StateKind::Cancelled);
}
