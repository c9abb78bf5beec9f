//! Which job is next, what follows a failure, and what users may do.

use super::*;

fn at(priority: Priority) -> JobSpec {
    spec_with(|spec| spec.priority = priority)
}

fn needing(cpu_millis: u64, memory_bytes: u64) -> JobSpec {
    spec_with(|spec| spec.requirements = Requirements::of(cpu_millis, memory_bytes))
}

#[test]
fn higher_priorities_go_first_and_inside_one_the_oldest() {
    let mut rig = Rig::new();
    use Priority::*;
    let jobs: Vec<JobId> = [Low, Normal, High, Normal, Critical, Low].map(|p| rig.enqueue(at(p))).to_vec();
    rig.worker(1, slots(6));
    assert_eq!(rig.runs(), [4, 2, 1, 3, 0, 5].map(|i| jobs[i]));
}

#[test]
fn a_job_that_comes_back_keeps_its_place() {
    let mut rig = Rig::new();
    let worker = rig.worker(1, slots(1));
    let (first, second) = (rig.enqueue(spec()), rig.enqueue(spec()));
    rig.finish(first, Outcome::Released);
    assert_eq!(rig.runs(), [first, first], "given back in order, and it is still the first");
    rig.start(first);
    rig.connect(worker, incarnation(2), &[]);
    assert_eq!(rig.runs(), [first], "lost with its worker, and it is still the first");
    rig.finish(first, Outcome::Succeeded);
    assert_eq!(rig.runs(), [second]);
}

#[test]
fn a_worker_is_never_given_more_than_it_has() {
    let mut rig = Rig::new();
    let worker = rig.worker(1, Capacity { slots: 3, cpu_millis: 1000, memory_bytes: 100, ..Capacity::default() });
    let half = rig.enqueue(needing(500, 50));
    let most = rig.enqueue(needing(600, 10));
    let rest = rig.enqueue(needing(500, 50));
    let any = rig.enqueue(spec());
    let more = rig.enqueue(spec());
    assert_eq!(rig.runs(), [half, rest, any], "what does not fit hides nothing");
    assert_eq!(rig.view(worker).free, Capacity { slots: 0, cpu_millis: 0, memory_bytes: 0, ..Capacity::default() });
    rig.finish(half, Outcome::Succeeded);
    assert_eq!(rig.runs(), [more], "half a worker is not enough for the second");
    rig.finish(rest, Outcome::Succeeded);
    assert_eq!(rig.runs(), [most]);
}

#[test]
fn a_worker_that_comes_back_smaller_is_not_overfilled() {
    let mut rig = Rig::new();
    let worker = rig.worker(1, slots(3));
    let jobs = rig.enqueue_all(vec![spec(); 4]);
    let held: Vec<ExecutionId> = jobs[..3].iter().map(|job| rig.start(*job)).collect();
    rig.register(1, slots(2));
    rig.connect(worker, incarnation(1), &held);
    rig.news();
    rig.finish(jobs[0], Outcome::Succeeded);
    assert_eq!(rig.runs(), [], "two of two slots are taken");
    rig.finish(jobs[1], Outcome::Succeeded);
    assert_eq!(rig.runs(), [jobs[3]]);
}

#[test]
fn a_class_that_fits_nowhere_hides_no_other() {
    let mut rig = Rig::with(small_windows());
    let huge = spec_with(|spec| {
        spec.priority = Priority::Critical;
        spec.requirements.cpu_millis = 1_000_000;
    });
    let stuck = rig.enqueue_all(vec![huge; 20]);
    let fine = rig.enqueue(at(Priority::Low));
    rig.worker(1, slots(2));
    assert_eq!(rig.runs(), [fine]);
    let reason = rig.server.brain.waiting_reason(&rig.job(stuck[0]));
    assert!(reason.contains("large enough"), "{reason}");
    rig.worker(2, Capacity { slots: 1, cpu_millis: 1_000_000, memory_bytes: 0, ..Capacity::default() });
    assert_eq!(rig.runs(), [stuck[0]]);
}

#[test]
fn the_freest_worker_is_chosen() {
    let mut rig = Rig::new();
    rig.worker(1, slots(1));
    let large = rig.worker(2, slots(8));
    let job = rig.enqueue(spec());
    assert_eq!(rig.job(job).state.run().map(|run| run.worker), Some(large));
}

#[test]
fn what_waits_too_long_in_the_queue_times_out() {
    let mut rig = Rig::with(small_windows());
    let hurried = spec_with(|spec| spec.timeouts.queue = Some(Millis::seconds(10)));
    let patient = rig.enqueue_all(vec![spec(); 50]);
    let jobs = rig.enqueue_all(vec![hurried; 50]);
    rig.pass(Millis::seconds(9));
    assert!(jobs.iter().all(|job| rig.state(*job) == StateKind::Pending));
    rig.pass(Millis::seconds(1));
    assert!(jobs.iter().all(|job| rig.state(*job) == StateKind::TimedOut), "also those beyond the window");
    assert!(patient.iter().all(|job| rig.state(*job) == StateKind::Pending));
    rig.worker(1, slots(50));
    assert_eq!(rig.runs(), patient);
}

#[test]
fn delayed_jobs_become_ready_at_their_time_in_its_order() {
    let mut rig = Rig::with(small_windows());
    rig.worker(1, slots(50));
    let start = rig.server.now.wall;
    let later = |seconds: u64| spec_with(|spec| spec.run_at = Some(start + Millis::seconds(seconds)));
    let jobs = rig.enqueue_all((1..=30).rev().map(later).collect());
    rig.news();
    assert!(jobs.iter().all(|job| rig.state(*job) == StateKind::Delayed));
    rig.pass(Millis::seconds(15));
    let due: Vec<JobId> = jobs.iter().rev().take(15).copied().collect();
    assert_eq!(rig.runs(), due);
    rig.pass(Millis::seconds(15));
    assert_eq!(rig.runs().len(), 15);
}

#[test]
fn a_time_that_has_passed_delays_nothing() {
    let mut rig = Rig::new();
    let past = rig.server.now.wall;
    let job = rig.enqueue(spec_with(|spec| spec.run_at = Some(past)));
    assert_eq!(rig.state(job), StateKind::Pending);
}

#[test]
fn failures_are_retried_after_their_backoff_until_none_is_left() {
    let mut rig = Rig::new();
    rig.worker(1, slots(1));
    let job = rig.enqueue(spec());
    for (attempt, seconds) in [(1, 1), (2, 2)] {
        rig.start(job);
        rig.fail(job);
        let until = rig.server.now.wall + Millis::seconds(seconds);
        assert_eq!(rig.job(job).state, State::Delayed { until, reason: DelayReason::Retry });
        assert_eq!(rig.job(job).attempt, attempt);
        rig.pass(Millis(seconds * 1000 - 1));
        assert_eq!(rig.state(job), StateKind::Delayed);
        rig.pass(Millis(1));
        assert_eq!(rig.state(job), StateKind::Scheduled);
    }
    rig.fail(job);
    assert_eq!(rig.state(job), StateKind::Failed);
    assert_eq!(rig.job(job).executions.len(), 3);
    assert_eq!(rig.job(job).last_failure().and_then(|failure| failure.exit_code), Some(1));
}

#[test]
fn a_fatal_exit_code_is_not_retried() {
    let mut rig = Rig::new();
    rig.worker(1, slots(1));
    let job = rig.enqueue(spec_with(|spec| spec.retry.fatal_exit_codes = vec![1]));
    rig.fail(job);
    assert_eq!(rig.state(job), StateKind::Failed);
}

#[test]
fn a_timeout_is_retried_like_a_failure_and_ends_as_one_of_its_own() {
    let mut rig = Rig::new();
    rig.worker(1, slots(1));
    let job = rig.enqueue(spec_with(|spec| {
        spec.retry.max_attempts = 2;
        spec.timeouts.run = Some(Millis::seconds(5));
    }));
    let late = || Outcome::Failed(Failure::new(FailureKind::RunTimeout, "too long"));
    let execution = rig.start(job);
    rig.news();
    rig.pass(Millis(4999));
    assert_eq!(rig.stops(), []);
    rig.pass(Millis(1));
    assert_eq!(rig.stops(), [(execution, StopReason::RunTimeout)]);
    assert_eq!(rig.state(job), StateKind::Running, "until its worker says that it is gone");
    rig.finish(job, late());
    assert_eq!(rig.state(job), StateKind::Delayed);
    rig.pass(Millis::seconds(2));
    rig.start(job);
    rig.finish(job, late());
    assert_eq!(rig.state(job), StateKind::TimedOut);
}

#[test]
fn a_success_without_a_start_is_a_success() {
    let mut rig = Rig::new();
    let worker = rig.worker(1, slots(1));
    let job = rig.enqueue(spec());
    let finished = Finished { started_at: None, ..ended(rig.execution(job), Outcome::Succeeded, Time(7)) };
    rig.tell(Input::Report { caller: None, worker, report: Report::Finished(finished, Vec::new()) });
    assert_eq!(rig.state(job), StateKind::Succeeded);
}

#[test]
fn the_result_is_written_with_the_end() {
    let mut rig = Rig::new();
    let worker = rig.worker(1, slots(1));
    let job = rig.enqueue(spec());
    let finished = Finished { result: Some(b"42".to_vec()), ..ended(rig.execution(job), Outcome::Succeeded, Time(7)) };
    rig.server.input(Input::Report { caller: None, worker, report: Report::Finished(finished, Vec::new()) });
    let (batch, _) = rig.server.turn(false);
    assert_eq!(batch.jobs.len(), 1);
    assert_eq!(batch.jobs[0].result.as_deref(), Some(&b"42"[..]));
}

#[test]
fn what_a_failed_run_left_is_not_the_result() {
    let mut rig = Rig::new();
    let worker = rig.worker(1, slots(1));
    let job = rig.enqueue(spec());
    let failed = Outcome::Failed(Failure::exit(1));
    let finished = Finished { result: Some(b"42".to_vec()), ..ended(rig.execution(job), failed, Time(7)) };
    rig.server.input(Input::Report { caller: None, worker, report: Report::Finished(finished, Vec::new()) });
    let (batch, _) = rig.server.turn(false);
    assert_eq!(batch.jobs.len(), 1);
    assert_eq!(batch.jobs[0].result, None);
}

#[test]
fn a_job_is_cancelled_in_every_live_state() {
    let mut rig = Rig::new();
    let later = rig.server.now.wall + Millis::seconds(100);
    let delayed = rig.enqueue(spec_with(|spec| spec.run_at = Some(later)));
    let pending = rig.enqueue(spec());
    assert_eq!(rig.cancel(delayed), Ok(Answer::State(StateKind::Cancelled)));
    assert_eq!(rig.cancel(pending), Ok(Answer::State(StateKind::Cancelled)));

    rig.worker(1, slots(2));
    let (scheduled, running) = (rig.enqueue(spec()), rig.enqueue(spec()));
    let executions = [rig.execution(scheduled), rig.start(running)];
    rig.news();
    assert_eq!(rig.cancel(scheduled), Ok(Answer::State(StateKind::Scheduled)), "asked for, not confirmed");
    assert_eq!(rig.cancel(running), Ok(Answer::State(StateKind::Running)));
    assert_eq!(rig.stops(), executions.map(|execution| (execution, StopReason::Cancelled)));
    rig.finish(scheduled, Outcome::Cancelled);
    rig.finish(running, Outcome::Cancelled);
    for job in [delayed, pending, scheduled, running] {
        assert_eq!(rig.state(job), StateKind::Cancelled);
        assert_eq!(rig.job(job).state.cancel().map(|cancel| cancel.reason.as_str()), Some("why not"));
        let refused = IllegalEvent::NotInThisState { state: StateKind::Cancelled, event: "cancel" };
        assert_eq!(rig.cancel(job), Err(Refusal::Illegal(refused)));
    }
    assert_eq!(rig.cancel(job_id(999)), Err(Refusal::NoSuchJob(job_id(999))));
}

#[test]
fn a_result_that_came_before_the_cancel_was_confirmed_wins() {
    let mut rig = Rig::new();
    rig.worker(1, slots(1));
    let job = rig.enqueue(spec());
    rig.start(job);
    rig.cancel(job).expect("asked");
    rig.finish(job, Outcome::Succeeded);
    assert_eq!(rig.state(job), StateKind::Succeeded);
}

#[test]
fn a_worker_that_stops_what_nobody_cancelled_has_failed_it() {
    let mut rig = Rig::new();
    rig.worker(1, slots(1));
    let job = rig.enqueue(spec());
    rig.start(job);
    rig.finish(job, Outcome::Cancelled);
    assert_eq!(rig.state(job), StateKind::Delayed);
}

#[test]
fn a_cancelled_job_leaves_the_queue_also_beyond_the_window() {
    let mut rig = Rig::with(small_windows());
    let jobs = rig.enqueue_all(vec![spec(); 40]);
    assert!(!rig.server.brain.knows(jobs[30]));
    assert_eq!(rig.cancel(jobs[30]), Ok(Answer::State(StateKind::Cancelled)));
    rig.worker(1, slots(40));
    let expected: Vec<JobId> = jobs.iter().copied().filter(|job| *job != jobs[30]).collect();
    assert_eq!(rig.runs(), expected);
}

#[test]
fn a_retry_by_hand_begins_anew_at_the_end_of_the_line() {
    let mut rig = Rig::new();
    rig.worker(1, slots(1));
    let job = rig.enqueue(spec_with(|spec| spec.retry.max_attempts = 1));
    rig.fail(job);
    assert_eq!(rig.state(job), StateKind::Failed);
    let (blocker, other) = (rig.enqueue(spec()), rig.enqueue(spec()));
    assert_eq!(rig.retry(job), Ok(Answer::State(StateKind::Pending)));
    assert_eq!((rig.job(job).attempt, rig.job(job).losses), (0, 0));
    rig.news();
    rig.finish(blocker, Outcome::Succeeded);
    rig.finish(other, Outcome::Succeeded);
    assert_eq!(rig.runs(), [other, job]);
    assert_eq!(rig.job(job).attempt, 1);
    rig.finish(job, Outcome::Succeeded);
    assert!(rig.retry(job).is_err(), "what succeeded is not run again");
}

#[test]
fn a_retry_by_hand_ends_the_wait_for_the_next_attempt() {
    let mut rig = Rig::new();
    rig.worker(1, slots(1));
    let job = rig.enqueue(spec());
    rig.fail(job);
    assert_eq!(rig.retry(job), Ok(Answer::State(StateKind::Pending)));
    assert_eq!(rig.state(job), StateKind::Scheduled);
    assert_eq!(rig.job(job).attempt, 2, "the run that failed still counts");
}

#[test]
fn too_many_classes_are_refused_and_known_ones_are_not() {
    let mut rig = Rig::with(Config { class_limit: 2, ..Config::default() });
    let queue = |name: &str| spec_with(|spec| spec.queue = name.into());
    rig.enqueue_all(vec![queue("a"), queue("b"), queue("a")]);
    let jobs = vec![rig.new_job(queue("c"))];
    assert_eq!(rig.ask(|caller| Input::Enqueue { caller, jobs }), Err(Refusal::TooManyClasses(2)));
    assert_eq!(rig.server.store.jobs.len(), 3, "nothing of it is stored");
    // Delayed jobs bring their classes later than they were counted, so the limit may be passed.
    let soon = rig.server.now.wall + Millis::seconds(1);
    rig.worker(1, slots(3));
    rig.server.advance(Millis(1));
    rig.enqueue(spec_with(|spec| (spec.queue, spec.run_at) = ("c".into(), Some(soon))));
    rig.enqueue_all(vec![queue("a"), queue("b")]);
    rig.pass(Millis::seconds(1));
    rig.enqueue(queue("a"));
}

#[test]
fn there_is_work_until_the_last_job_has_ended() {
    let mut rig = Rig::new();
    assert!(!rig.server.brain.has_work());
    let job = rig.enqueue(spec());
    rig.server.restart();
    assert!(rig.server.brain.has_work(), "nothing is in memory yet, but it is being read");
    rig.settle();
    rig.worker(1, slots(1));
    rig.finish(job, Outcome::Succeeded);
    assert!(!rig.server.brain.has_work());
}
