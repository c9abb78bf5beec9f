//! Jobs that wait for others.

use super::*;
use crate::spec::OnDependencyFailure;
use std::time::Instant;

fn after(dependencies: &[JobId]) -> JobSpec {
    spec_with(|spec| {
        spec.depends_on = dependencies.to_vec();
        spec.retry.max_attempts = 1;
    })
}

fn with_policy(dependencies: &[JobId], policy: OnDependencyFailure) -> JobSpec {
    JobSpec { on_dependency_failure: policy, ..after(dependencies) }
}

/// Fails at its first attempt for good.
fn fragile() -> JobSpec {
    after(&[])
}

const POLICIES: [OnDependencyFailure; 3] =
    [OnDependencyFailure::Cancel, OnDependencyFailure::Wait, OnDependencyFailure::Run];

#[test]
fn a_job_runs_when_all_it_depends_on_has_succeeded() {
    let mut rig = Rig::new();
    rig.worker(1, slots(5));
    let (first, second) = (rig.enqueue(spec()), rig.enqueue(spec()));
    let last = rig.enqueue(after(&[first, second]));
    assert_eq!(rig.state(last), StateKind::Waiting);
    assert!(rig.server.brain.waiting_reason(&rig.job(last)).contains("2 jobs"));
    rig.succeed(second);
    assert_eq!(rig.state(last), StateKind::Waiting);
    rig.succeed(first);
    assert_eq!(rig.runs(), [first, second, last], "in the commit of the last success");
    let more = |effect: &Effect| matches!(effect, Effect::Run { more: Some(more), .. } if more.depends);
    rig.finish(last, Outcome::Released);
    assert!(rig.news().iter().any(more), "it may read what the others left");
}

#[test]
fn jobs_that_come_together_may_name_each_other_in_any_order() {
    let mut rig = Rig::new();
    rig.worker(1, slots(5));
    let jobs: Vec<NewJob> = (0..3).map(|_| rig.new_job(spec())).collect();
    let ids: Vec<JobId> = jobs.iter().map(|job| job.id).collect();
    let mut jobs = jobs;
    jobs[0].spec.depends_on = vec![ids[1], ids[2]];
    jobs[1].spec.depends_on = vec![ids[2]];
    assert_eq!(rig.ask(|caller| Input::Enqueue { caller, jobs }), Ok(Answer::Done));
    for place in [2, 1, 0] {
        assert_eq!(rig.runs(), [ids[place]]);
        rig.succeed(ids[place]);
    }
}

#[test]
fn cycles_and_unknown_jobs_are_refused_and_nothing_is_stored() {
    let mut rig = Rig::new();
    let (mut one, mut two) = (rig.new_job(spec()), rig.new_job(spec()));
    (one.spec.depends_on, two.spec.depends_on) = (vec![two.id], vec![one.id]);
    let refused = rig.ask(|caller| Input::Enqueue { caller, jobs: vec![one, two] });
    assert!(matches!(refused, Err(Refusal::NoSuchDependency(_))), "{refused:?}");
    let mut selfish = rig.new_job(spec());
    selfish.spec.depends_on = vec![selfish.id];
    let id = selfish.id;
    assert_eq!(rig.ask(|caller| Input::Enqueue { caller, jobs: vec![selfish] }), Err(Refusal::NoSuchDependency(id)));
    let (fine, bad) = (rig.new_job(spec()), rig.new_job(after(&[job_id(999)])));
    let refused = rig.ask(|caller| Input::Enqueue { caller, jobs: vec![fine, bad] });
    assert_eq!(refused, Err(Refusal::NoSuchDependency(job_id(999))));
    assert!(rig.server.store.jobs.is_empty());
}

#[test]
fn what_becomes_of_a_job_whose_dependency_failed_is_its_own_choice() {
    for window in [Config::default(), small_windows()] {
        let mut rig = Rig::with(window);
        rig.worker(1, slots(5));
        let fails = rig.enqueue(fragile());
        let [cancel, wait, run] = POLICIES.map(|policy| rig.enqueue(with_policy(&[fails], policy)));
        rig.fail(fails);
        assert_eq!(rig.states(&[cancel, wait]), [StateKind::Cancelled, StateKind::Waiting]);
        let State::Cancelled { cancel: why, .. } = rig.job(cancel).state else { panic!("cancelled") };
        assert!(why.reason.contains(&fails.to_string()) && why.reason.contains("failed"), "{}", why.reason);
        assert_eq!(rig.runs(), [fails, run]);
        rig.succeed(run);
        rig.retry(fails).expect("retried");
        rig.succeed(fails);
        assert_eq!(rig.runs(), [fails, wait], "and the one that ran is not run again");
        assert_eq!(rig.state(cancel), StateKind::Cancelled);
        rig.retry(cancel).expect("all that it depends on has succeeded meanwhile");
        assert_eq!(rig.runs(), [cancel]);
    }
}

#[test]
fn the_same_holds_for_what_failed_before_the_job_was_submitted() {
    let mut rig = Rig::new();
    rig.worker(1, slots(5));
    let (fails, done) = (rig.enqueue(fragile()), rig.enqueue(spec()));
    rig.fail(fails);
    rig.succeed(done);
    rig.news();
    let [cancel, wait, run] = POLICIES.map(|policy| rig.enqueue(with_policy(&[fails, done], policy)));
    assert_eq!(rig.states(&[cancel, wait, run]), [StateKind::Cancelled, StateKind::Waiting, StateKind::Scheduled]);
    assert!(!rig.server.brain.knows(cancel) && !rig.server.brain.knows(wait), "nobody will tell them anything soon");
    let plain = rig.enqueue(after(&[done]));
    assert_eq!(rig.state(plain), StateKind::Scheduled);
    rig.retry(fails).expect("retried");
    rig.succeed(fails);
    assert_eq!(rig.state(wait), StateKind::Scheduled);
}

#[test]
fn a_cancelled_dependent_that_is_retried_waits_for_the_rest() {
    let mut rig = Rig::new();
    rig.worker(1, slots(5));
    let (fails, slow) = (rig.enqueue(fragile()), rig.enqueue(spec()));
    let job = rig.enqueue(after(&[fails, slow]));
    rig.fail(fails);
    assert_eq!(rig.state(job), StateKind::Cancelled);
    rig.retry(job).expect("retried");
    assert_eq!(rig.state(job), StateKind::Waiting);
    rig.succeed(slow);
    rig.retry(fails).expect("retried");
    assert_eq!(rig.state(job), StateKind::Waiting);
    rig.succeed(fails);
    assert_eq!(rig.state(job), StateKind::Scheduled);
}

#[test]
fn a_job_with_a_time_of_its_own_waits_for_both() {
    let mut rig = Rig::new();
    rig.worker(1, slots(5));
    let first = rig.enqueue(spec());
    let at = rig.server.now.wall + Millis::seconds(10);
    let job = rig.enqueue(JobSpec { run_at: Some(at), ..after(&[first]) });
    rig.pass(Millis::seconds(4));
    rig.succeed(first);
    assert_eq!(rig.state(job), StateKind::Delayed);
    rig.pass(Millis::seconds(6));
    assert_eq!(rig.state(job), StateKind::Scheduled);
}

#[test]
fn a_chain_of_ten_thousand_runs_in_order_and_is_cancelled_whole() {
    let mut rig = Rig::with(Config { window: 64, ..Config::default() });
    rig.worker(1, slots(1));
    let began = Instant::now();
    let mut jobs: Vec<NewJob> = (0..10_000).map(|_| rig.new_job(fragile())).collect();
    let ids: Vec<JobId> = jobs.iter().map(|job| job.id).collect();
    (1..jobs.len()).for_each(|n| jobs[n].spec.depends_on = vec![ids[n - 1]]);
    assert_eq!(rig.ask(|caller| Input::Enqueue { caller, jobs }), Ok(Answer::Done));
    for id in &ids[..5000] {
        rig.succeed(*id);
    }
    assert_eq!(rig.runs(), ids[..=5000]);
    rig.fail(ids[5000]);
    assert!(rig.states(&ids[5001..]).iter().all(|state| *state == StateKind::Cancelled));
    assert!(rig.server.brain.jobs.is_empty(), "{} jobs are in memory", rig.server.brain.jobs.len());
    assert!(began.elapsed().as_secs() < 60, "not linear: {:?}", began.elapsed());
}

#[test]
fn a_fan_in_of_ten_thousand_is_released_once() {
    let mut rig = Rig::new();
    let ids = rig.enqueue_all(vec![spec(); 10_000]);
    let last = rig.enqueue(after(&ids));
    let worker = rig.worker(1, slots(500));
    let began = Instant::now();
    let mut done = 0;
    while done < ids.len() {
        for job in rig.runs() {
            let finished = ended(rig.execution(job), Outcome::Succeeded, rig.server.now.wall);
            rig.server.input(Input::Report { caller: None, worker, report: Report::Finished(finished, Vec::new()) });
            done += 1;
        }
        rig.settle();
    }
    assert_eq!(rig.runs(), [last]);
    assert!(began.elapsed().as_secs() < 60, "not linear: {:?}", began.elapsed());
}

/// Ends are told page by page, behind a mark, when dependents are not in memory. Wherever the server dies in between,
/// everybody hears of the end, and nobody twice.
#[test]
fn a_crash_while_an_end_is_told_neither_loses_nor_repeats_it() {
    for crash_after in 0..12 {
        let mut rig = Rig::with(small_windows());
        rig.worker(1, slots(2));
        let (first, second) = (rig.enqueue(spec()), rig.enqueue(spec()));
        let both = rig.enqueue_all(vec![after(&[first, second]); 11]);
        let run = rig.enqueue_all(vec![with_policy(&[first], OnDependencyFailure::Run); 3]);
        let runs = [rig.execution(first), rig.execution(second)];
        rig.restart();
        rig.connect(worker_id(1), incarnation(1), &runs);
        let finished = ended(runs[0], Outcome::Succeeded, rig.server.now.wall);
        let report = Report::Finished(finished, Vec::new());
        rig.server.input(Input::Report { caller: None, worker: worker_id(1), report });
        for _ in 0..crash_after {
            rig.server.turn(false);
            rig.server.commit();
            rig.server.read(0);
            rig.server.deliver_page(0);
        }
        rig.restart();
        let ended_before = rig.server.store.jobs[&first].state.kind().is_finished();
        assert_eq!(ended_before, crash_after > 0);
        let held: &[ExecutionId] = if ended_before { &runs[1..] } else { &runs };
        rig.connect(worker_id(1), incarnation(1), held);
        if !ended_before {
            rig.succeed(first);
        }
        assert!(rig.states(&both).iter().all(|state| *state == StateKind::Waiting), "after {crash_after}");
        assert!(both.iter().all(|id| rig.job(*id).extra.is_some_and(|extra| extra.waiting_on == 1)));
        assert!(rig.states(&run).iter().all(|state| *state != StateKind::Waiting), "after {crash_after}");
        rig.succeed(second);
        assert!(rig.states(&both).iter().all(|state| *state != StateKind::Waiting), "after {crash_after}");
        assert!(rig.server.store.kept.settling.is_empty());
    }
}

/// A page that was read for a former end of a job says nothing of those that changed before its next end.
#[test]
fn a_page_for_a_former_end_is_not_taken_for_one_of_the_next() {
    let mut rig = Rig::with(small_windows());
    let job = rig.enqueue(spec());
    let waiting = rig.enqueue_all(vec![with_policy(&[job], OnDependencyFailure::Wait); 3]);
    rig.restart();
    let order = |reason: &str| Input::Cancel { caller: Caller(0), job, reason: reason.into() };
    rig.server.input(order("first"));
    rig.server.turn(false);
    rig.server.commit();
    let dependents = |read: &Effect| matches!(read, Effect::ReadDependents { .. });
    let at = rig.server.reads.iter().position(dependents).expect("a read");
    rig.server.read(at);
    // While that page is on its way everything it shows changes, and the job ends a second time.
    rig.server.input(Input::Retry { caller: Caller(0), job });
    for id in &waiting {
        rig.server.input(Input::Cancel { caller: Caller(0), job: *id, reason: "gone".into() });
    }
    rig.server.turn(false);
    rig.server.commit();
    rig.server.input(order("second"));
    rig.server.turn(false);
    rig.server.commit();
    rig.settle();
    assert!(rig.states(&waiting).iter().all(|state| *state == StateKind::Cancelled));
    assert!(rig.server.store.kept.settling.is_empty());
}

#[test]
fn what_waits_for_somebody_from_outside_is_no_work() {
    let mut rig = Rig::new();
    rig.worker(1, slots(5));
    let fails = rig.enqueue(fragile());
    rig.enqueue(with_policy(&[fails], OnDependencyFailure::Wait));
    assert!(rig.server.brain.has_work());
    rig.fail(fails);
    assert!(!rig.server.brain.has_work());
    let blocks = rig.enqueue(spec());
    assert!(rig.server.brain.has_work());
    rig.finish(blocks, Outcome::Blocked { reason: "sign it".into() });
    assert!(!rig.server.brain.has_work());
    rig.set_queue("default", QueueOrder::Pause);
    rig.enqueue(spec());
    assert!(!rig.server.brain.has_work());
    rig.set_queue("default", QueueOrder::Resume);
    assert!(rig.server.brain.has_work());
}

/// A job that goes to a worker in the turn that released it costs no row for it, and a new leader finds it there.
#[test]
fn a_release_that_is_a_placement_writes_no_row_and_is_not_lost() {
    let mut rig = Rig::new();
    rig.worker(1, slots(2));
    let first = rig.enqueue(spec());
    let second = rig.enqueue(after(&[first]));
    let run = rig.execution(first);
    let finished = ended(run, Outcome::Succeeded, rig.server.now.wall);
    let report = Report::Finished(finished, Vec::new());
    rig.server.input(Input::Report { caller: None, worker: worker_id(1), report });
    rig.server.turn(false);
    rig.server.commit();
    assert_eq!(rig.server.store.jobs[&second].state.kind(), StateKind::Waiting, "its row is behind");
    let placed = rig.server.store.current()[&second].clone();
    assert_eq!(
        (placed.state.kind(), placed.extra.as_ref().map(|extra| extra.waiting_on)),
        (StateKind::Scheduled, Some(0))
    );
    rig.restart();
    assert_eq!(rig.job(second), placed);
    assert_eq!(rig.server.store.jobs[&second], placed, "and it is in its row now");
}

/// A job that is released and finds no room stands in line without a row for it. A new leader finds it there, behind what
/// came before it, and what is then said of it replaces the word of its release.
#[test]
fn a_release_into_the_line_writes_no_row_and_is_not_lost() {
    let mut rig = Rig::new();
    rig.worker(1, slots(1));
    let first = rig.enqueue(spec());
    let before = rig.enqueue(spec());
    let released = rig.enqueue(after(&[first]));
    rig.succeed(first);
    assert_eq!(rig.job(released).state.kind(), StateKind::Pending);
    assert_eq!(rig.server.store.jobs[&released].state.kind(), StateKind::Waiting, "its row is behind");
    let in_line = rig.job(released);
    assert_eq!(rig.server.store.current()[&released], in_line);
    rig.restart();
    assert_eq!(rig.server.store.jobs[&released], in_line, "it is in its row now");
    let run = rig.execution(before);
    rig.connect(worker_id(1), incarnation(1), &[run]);
    rig.succeed(before);
    assert_eq!(rig.job(released).state.kind(), StateKind::Scheduled);

    let last = rig.enqueue(after(&[released]));
    let waits = rig.enqueue(spec());
    rig.succeed(released);
    assert_eq!(rig.job(waits).state.kind(), StateKind::Scheduled);
    rig.succeed(waits);
    assert_eq!(
        rig.server.store.jobs[&last].state.kind(),
        StateKind::Waiting,
        "released, then given away, in two batches"
    );
    let placed = rig.job(last);
    assert_eq!(placed.state.kind(), StateKind::Scheduled);
    rig.restart();
    assert_eq!(rig.server.store.jobs[&last], placed);
}

/// Rows follow by themselves, soon when little is written, and at once for somebody who is about to go by them.
#[test]
fn rows_of_released_jobs_follow() {
    let mut rig = Rig::new();
    rig.worker(1, slots(1));
    let stored = |rig: &Rig, job: JobId| rig.server.store.jobs[&job].state.kind();
    let release = |rig: &mut Rig| {
        let first = rig.enqueue(spec());
        let held = rig.enqueue(spec());
        let released = rig.enqueue(after(&[first]));
        rig.succeed(first);
        assert_eq!(stored(rig, released), StateKind::Waiting);
        (held, released)
    };
    let (held, released) = release(&mut rig);
    rig.pass(Millis(101));
    assert_eq!(stored(&rig, released), StateKind::Pending);
    rig.succeed(held);
    rig.succeed(released);
    let (_, released) = release(&mut rig);
    rig.ask(|caller| Input::CatchUp { caller }).expect("done");
    assert_eq!(stored(&rig, released), StateKind::Pending);

    // A thousand rows at a time, and the store has enough to do.
    let mut rig = Rig::new();
    rig.worker(1, slots(1));
    let (_, released) = release(&mut rig);
    for _ in 0..49 {
        rig.enqueue_all(vec![spec(); 1000]);
        rig.pass(Millis(100));
        assert_eq!(stored(&rig, released), StateKind::Waiting);
    }
    rig.pass(Millis(100));
    assert_eq!(stored(&rig, released), StateKind::Pending, "but not forever");
}

/// What waits for a job that has failed waits for somebody to send it again: as long as one does, it is kept.
#[test]
fn a_job_that_others_wait_for_is_not_forgotten() {
    let mut rig = Rig::with(small_windows());
    rig.worker(1, slots(2));
    let first = rig.enqueue(fragile());
    rig.fail(first);
    // Both come to the server before either is stored.
    let waits = rig.new_job(with_policy(&[first], OnDependencyFailure::Wait));
    let second = waits.id;
    rig.server.input(Input::Enqueue { caller: Caller(0), jobs: vec![waits] });
    assert_eq!(rig.many(&[first], ManyJobs::Forget), 0, "in the same turn");
    assert_eq!(rig.many(&[first], ManyJobs::Forget), 0, "when it is stored");
    rig.restart();
    rig.connect(worker_id(1), incarnation(1), &[]);
    assert_eq!(rig.many(&[first], ManyJobs::Forget), 0, "when only the store knows of it");
    rig.retry(first).expect("retried");
    rig.succeed(first);
    assert_eq!(rig.many(&[first], ManyJobs::Forget), 0, "its result is wanted");
    rig.succeed(second);
    assert_eq!(rig.many(&[first], ManyJobs::Forget), 1);
    let late = rig.new_job(with_policy(&[first], OnDependencyFailure::Wait));
    let answer = rig.ask(|caller| Input::Enqueue { caller, jobs: vec![late] });
    assert_eq!(answer, Err(Refusal::NoSuchDependency(first)));
}

/// The edge to a forgotten job stays with the one that it waited for, and leads nowhere.
#[test]
fn those_that_were_forgotten_are_passed_over_when_an_end_is_told() {
    let mut rig = Rig::with(small_windows());
    rig.worker(1, slots(1));
    let first = rig.enqueue(fragile());
    rig.fail(first);
    let policy = |_| with_policy(&[first], OnDependencyFailure::Wait);
    let waiting = rig.enqueue_all((0..60).map(policy).collect());
    let (gone, left) = (&waiting[..50], &waiting[50..]);
    assert_eq!(rig.many(gone, ManyJobs::Cancel { reason: "not needed".into() }), 50);
    assert_eq!(rig.many(gone, ManyJobs::Forget), 50);
    rig.restart();
    rig.connect(worker_id(1), incarnation(1), &[]);
    rig.retry(first).expect("retried");
    rig.news();
    rig.succeed(first);
    for job in left {
        assert_eq!(rig.runs(), [*job]);
        rig.succeed(*job);
    }
    assert_eq!(rig.server.store.kept.settling.len(), 0, "everybody was told");
    assert_eq!(rig.many(&[first], ManyJobs::Forget), 1);
    assert_eq!(rig.server.store.kept.edges.len(), 0);
}

/// What did not succeed and is no longer kept never will: nobody waits for it.
#[test]
fn a_job_is_not_sent_to_wait_for_what_is_forgotten() {
    for policy in [OnDependencyFailure::Cancel, OnDependencyFailure::Wait] {
        let mut rig = Rig::with(small_windows());
        rig.worker(1, slots(5));
        let (fails, done) = (rig.enqueue(fragile()), rig.enqueue(spec()));
        let job = rig.enqueue(with_policy(&[fails, done], policy));
        rig.fail(fails);
        rig.succeed(done);
        rig.cancel(job).ok();
        assert_eq!(rig.state(job), StateKind::Cancelled);
        assert_eq!(rig.many(&[fails], ManyJobs::Forget), 1);
        assert_eq!(rig.retry(job), Err(Refusal::DependencyForgotten), "{policy:?}");
        assert_eq!(rig.state(job), StateKind::Cancelled);
        assert_eq!(rig.many(&[job], ManyJobs::Forget), 1);
    }
}

#[test]
fn what_succeeded_and_is_forgotten_keeps_nobody_waiting() {
    let mut rig = Rig::with(small_windows());
    rig.worker(1, slots(5));
    let (fails, done) = (rig.enqueue(fragile()), rig.enqueue(spec()));
    let job = rig.enqueue(after(&[fails, done]));
    rig.fail(fails);
    rig.succeed(done);
    assert_eq!(rig.many(&[done], ManyJobs::Forget), 1);
    rig.retry(job).expect("the other one may still succeed");
    assert_eq!(rig.state(job), StateKind::Waiting);
    rig.retry(fails).expect("retried");
    rig.succeed(fails);
    assert_eq!(rig.state(job), StateKind::Scheduled);
}

/// Of a retry and a deletion that come together, the first has its way.
#[test]
fn what_a_retry_waits_for_is_not_forgotten_in_the_same_turn() {
    for retry_first in [true, false] {
        let mut rig = Rig::with(small_windows());
        rig.worker(1, slots(5));
        let fails = rig.enqueue(fragile());
        let job = rig.enqueue(after(&[fails]));
        rig.fail(fails);
        let retry = Input::Retry { caller: Caller(0), job };
        let forget = Input::Many { caller: Caller(0), jobs: vec![fails], what: ManyJobs::Forget };
        let (first, second) = if retry_first { (retry, forget) } else { (forget, retry) };
        rig.server.input(first);
        rig.server.input(second);
        rig.settle();
        assert_eq!(rig.server.store.jobs.contains_key(&fails), retry_first);
        let state = if retry_first { StateKind::Waiting } else { StateKind::Cancelled };
        assert_eq!(rig.state(job), state);
    }
}
