//! What handlers can do besides succeeding and failing, and what is kept of jobs that ended.

use super::*;
use crate::{journal::Change, spec::Webhook, worker::WorkerState};

fn once() -> JobSpec {
    spec_with(|spec| spec.retry.max_attempts = 1)
}

fn blocked() -> Outcome {
    Outcome::Blocked { reason: "waits for a signature".into() }
}

#[test]
fn snoozing_and_blocking_use_no_attempt_and_free_the_slot() {
    let mut rig = Rig::new();
    let worker = rig.worker(1, slots(1));
    let job = rig.enqueue(once());
    for round in 0..3 {
        rig.finish(job, Outcome::Snoozed { delay: Millis::seconds(5) });
        assert_eq!((rig.state(job), rig.job(job).attempt), (StateKind::Delayed, 0), "round {round}");
        assert_eq!(rig.view(worker).free.slots, 1);
        rig.pass(Millis::seconds(4));
        assert_eq!(rig.state(job), StateKind::Delayed);
        rig.pass(Millis::seconds(1));
        assert_eq!((rig.state(job), rig.job(job).attempt), (StateKind::Scheduled, 1));
        rig.finish(job, blocked());
        assert_eq!((rig.state(job), rig.job(job).attempt), (StateKind::Blocked, 0));
        assert_eq!(rig.view(worker).free.slots, 1);
        rig.restart();
        rig.connect(worker, incarnation(1), &[]);
        rig.pass(Millis::seconds(30));
        assert_eq!(rig.state(job), StateKind::Blocked, "only a resume ends it");
        rig.news();
        let input: Arc<[u8]> = Arc::from(*b"signed");
        let resumed = rig.ask(|caller| Input::Resume { caller, job, payload: Arc::clone(&input) });
        assert_eq!(resumed, Ok(Answer::State(StateKind::Pending)));
        assert_eq!(rig.server.store.input(job), Some(input));
        let told = |effect: &Effect| matches!(effect, Effect::Run { more: Some(more), .. } if more.has_data);
        assert!(rig.news().iter().any(told), "its worker asks for what resumed it");
    }
    rig.fail(job);
    assert_eq!(rig.state(job), StateKind::Failed, "this one counts");
    assert!(rig.ask(|caller| Input::Resume { caller, job, payload: Arc::from([]) }).is_err());
}

#[test]
fn a_cancel_ends_what_snoozes_or_is_blocked() {
    let mut rig = Rig::new();
    rig.worker(1, slots(3));
    let jobs = rig.enqueue_all(vec![spec(); 2]);
    rig.finish(jobs[0], Outcome::Snoozed { delay: Millis::seconds(5) });
    rig.finish(jobs[1], blocked());
    jobs.iter().for_each(|job| assert_eq!(rig.cancel(*job), Ok(Answer::State(StateKind::Cancelled))));
    let asked = rig.enqueue(spec());
    rig.start(asked);
    rig.cancel(asked).expect("asked for");
    rig.finish(asked, blocked());
    assert_eq!(rig.state(asked), StateKind::Cancelled, "a cancel that was asked for wins");
}

#[test]
fn data_is_kept_over_attempts() {
    let mut rig = Rig::new();
    rig.worker(1, slots(1));
    let job = rig.enqueue(spec());
    let execution = rig.start(job);
    let data: Arc<[u8]> = Arc::from(*b"{\"step\":1}");
    let progress = Report::Progress { execution, progress: Progress::default(), data: Some(Arc::clone(&data)) };
    rig.report(worker_id(1), progress).expect("told");
    assert_eq!(rig.server.store.data(job), Some(Arc::clone(&data)));
    rig.fail(job);
    rig.news();
    rig.pass(Millis::seconds(30));
    let told = |effect: &Effect| matches!(effect, Effect::Run { more: Some(more), .. } if more.has_data);
    assert!(rig.news().iter().any(told));
    assert_eq!(rig.server.store.data(job), Some(data));
    rig.finish_with(job, Outcome::Succeeded, |finished| finished.data = Some(b"{}".to_vec()), Vec::new());
    assert_eq!(rig.server.store.data(job).as_deref(), Some(&b"{}"[..]));
}

#[test]
fn children_are_committed_with_the_end_of_their_parent() {
    let mut rig = Rig::new();
    rig.worker(1, slots(1));
    let parent = rig.enqueue(spec());
    let (first, mut second) = (rig.new_job(spec()), rig.new_job(spec()));
    second.spec.depends_on = vec![first.id, parent];
    let ids = [first.id, second.id];
    rig.finish_with(parent, Outcome::Succeeded, |_| (), vec![second, first]);
    assert_eq!(rig.states(&ids), [StateKind::Scheduled, StateKind::Waiting]);
    assert!(ids.iter().all(|id| rig.job(*id).extra.is_some_and(|extra| extra.parent == Some(parent))));
    let child = rig.new_job(spec());
    let id = child.id;
    rig.finish_with(ids[0], Outcome::Failed(Failure::exit(1)), |_| (), vec![child]);
    assert!(!rig.server.store.jobs.contains_key(&id), "what failed has no children");
    rig.pass(Millis::seconds(60));
    assert_eq!(rig.state(ids[0]), StateKind::Scheduled);
    let child = rig.new_job(spec_with(|spec| spec.depends_on = vec![job_id(999)]));
    let id = child.id;
    rig.finish_with(ids[0], Outcome::Succeeded, |_| (), vec![child]);
    assert_eq!(rig.state(ids[0]), StateKind::Failed, "refused children fail the job, and no retry would help");
    assert!(rig.job(ids[0]).last_failure().is_some_and(|failure| failure.message.contains("refused")));
    assert!(!rig.server.store.jobs.contains_key(&id));
}

#[test]
fn one_job_has_an_idempotency_key() {
    let mut rig = Rig::new();
    let keyed = |key: &str| spec_with(|spec| spec.idempotency_key = Some(key.into()));
    let first = rig.enqueue(keyed("a"));
    let jobs = vec![rig.new_job(keyed("a")), rig.new_job(keyed("b")), rig.new_job(keyed("b")), rig.new_job(spec())];
    let ids: Vec<JobId> = jobs.iter().map(|job| job.id).collect();
    let answer = rig.ask(|caller| Input::Enqueue { caller, jobs });
    assert_eq!(answer, Ok(Answer::Existed(vec![(0, first), (2, ids[1])])));
    rig.restart();
    let job = rig.new_job(keyed("b"));
    let answer = rig.ask(|caller| Input::Enqueue { caller, jobs: vec![job] });
    assert_eq!(answer, Ok(Answer::Existed(vec![(0, ids[1])])));
    assert_eq!(rig.server.store.jobs.len(), 3);
    let (again, mut next) = (rig.new_job(keyed("b")), rig.new_job(spec()));
    next.spec.depends_on = vec![again.id];
    let id = again.id;
    let answer = rig.ask(|caller| Input::Enqueue { caller, jobs: vec![again, next] });
    assert_eq!(answer, Err(Refusal::DependsOnExisting(id)));
    rig.cancel(first).expect("cancelled");
    assert_eq!(rig.many(&[first], ManyJobs::Forget), 1);
    let reused = rig.enqueue(keyed("a"));
    assert_eq!(rig.state(reused), StateKind::Pending, "a forgotten job has left its key");
}

#[test]
fn dead_letters_come_and_go() {
    let mut rig = Rig::new();
    rig.worker(1, slots(9));
    let jobs = rig.enqueue_all(vec![once(); 4]);
    let late = rig.enqueue(spec_with(|spec| {
        spec.timeouts.queue = Some(Millis::seconds(1));
        spec.requirements.cpu_millis = 1_000_000;
    }));
    jobs.iter().for_each(|job| rig.fail(*job));
    rig.pass(Millis::seconds(1));
    let letters = |rig: &Rig| rig.server.store.kept.dead_letters.keys().copied().collect::<Vec<_>>();
    assert_eq!(letters(&rig), [&jobs[..], &[late]].concat());
    assert_eq!(rig.many(&jobs[..2], ManyJobs::Discard), 2);
    assert_eq!(rig.many(&jobs[..3], ManyJobs::Discard), 1, "two of them were discarded already");
    assert_eq!(letters(&rig), [jobs[3], late]);
    assert_eq!(rig.many(&[jobs[1], jobs[3], late], ManyJobs::Replay), 3);
    assert_eq!(letters(&rig), []);
    assert_eq!((rig.state(jobs[3]), rig.job(jobs[3]).attempt), (StateKind::Scheduled, 1));
    assert_eq!(rig.many(&[jobs[3], job_id(999)], ManyJobs::Replay), 0);
    rig.fail(jobs[1]);
    assert_eq!(letters(&rig), [jobs[1]], "it is in there anew");
    assert_eq!(rig.many(&jobs, ManyJobs::Forget), 3, "one of them is with a worker");
    assert_eq!(letters(&rig), []);
    assert_eq!(rig.server.store.jobs.len(), 2);
}

#[test]
fn a_job_that_dies_and_is_revived_in_one_batch_was_never_a_dead_letter() {
    let mut rig = Rig::new();
    let worker = rig.worker(1, slots(1));
    let job = rig.enqueue(once());
    for _ in 0..2 {
        let finished = ended(rig.execution(job), Outcome::Failed(Failure::exit(1)), rig.server.now.wall);
        rig.server.input(Input::Report { caller: None, worker, report: Report::Finished(finished, Vec::new()) });
        rig.server.input(Input::Retry { caller: Caller(0), job });
        rig.settle();
        assert!(rig.server.store.kept.dead_letters.is_empty());
    }
    rig.fail(job);
    assert_eq!(rig.server.store.kept.dead_letters.len(), 1);
}

#[test]
fn every_end_is_owed_to_the_webhook() {
    let mut rig = Rig::new();
    rig.worker(1, slots(9));
    let hook = Webhook { url: "http://example.com/".into(), secret: None };
    let told = JobSpec { webhook: Some(hook), ..once() };
    let late = JobSpec {
        timeouts: crate::spec::Timeouts { queue: Some(Millis::seconds(1)), ..told.timeouts },
        ..told.clone()
    };
    let late = JobSpec { requirements: Requirements::of(1_000_000, 0), ..late };
    let jobs = rig.enqueue_all(vec![told.clone(), told.clone(), told, late]);
    rig.succeed(jobs[0]);
    rig.fail(jobs[1]);
    rig.finish(jobs[2], blocked());
    rig.cancel(jobs[2]).expect("cancelled");
    rig.pass(Millis::seconds(1));
    let of = |rig: &Rig, job: JobId| {
        let deliveries = rig.server.store.kept.deliveries.values().filter(|delivery| delivery.job == job);
        deliveries.map(|delivery| delivery.event).collect::<Vec<_>>()
    };
    let events: Vec<_> = jobs.iter().flat_map(|job| of(&rig, *job)).collect();
    assert_eq!(events, [StateKind::Succeeded, StateKind::Failed, StateKind::Cancelled, StateKind::TimedOut]);
    rig.retry(jobs[1]).expect("retried");
    rig.succeed(jobs[1]);
    assert_eq!(of(&rig, jobs[1]), [StateKind::Failed, StateKind::Succeeded]);
}

#[test]
fn many_jobs_are_cancelled_and_forgotten_at_once() {
    let mut rig = Rig::with(small_windows());
    let jobs = rig.enqueue_all(vec![spec(); 40]);
    assert_eq!(rig.many(&jobs[..30], ManyJobs::Cancel { reason: "all".into() }), 30);
    assert_eq!(rig.many(&jobs[20..], ManyJobs::Cancel { reason: "all".into() }), 10);
    assert_eq!(rig.many(&[&jobs[..], &[job_id(999)]].concat(), ManyJobs::Forget), 40);
    assert!(rig.server.store.jobs.is_empty());
    assert_eq!(rig.server.brain.queues(None, 10), []);
}

#[test]
fn the_journal_tells_that_workers_come_and_go() {
    let mut rig = Rig::new();
    let id = rig.register(1, slots(1));
    let states = |rig: &mut Rig, input: Input| {
        rig.server.input(input);
        let (batch, _) = rig.server.turn(false);
        let changes = batch.changes.iter().filter_map(|change| match change {
            Change::Worker { id: worker, state, .. } if *worker == id => Some(*state),
            _ => None,
        });
        let states: Vec<WorkerState> = changes.collect();
        rig.settle();
        states
    };
    let hello = |leaving| Hello { incarnation: incarnation(1), info: None, held: vec![], ended: vec![], leaving };
    let connect = |n, leaving| Input::Connect { worker: id, connection: Connection(n), hello: hello(leaving) };
    assert_eq!(states(&mut rig, connect(1, false)), [WorkerState::Ready]);
    let job = rig.enqueue(spec());
    rig.succeed(job);
    let beat = Input::Heartbeat { worker: id, at: rig.server.now.elapsed };
    assert_eq!(states(&mut rig, beat), [], "nothing has changed");
    (0..64).for_each(|_| rig.pass(Millis::seconds(1)));
    rig.server.advance(Millis::seconds(1));
    let beat = Input::Heartbeat { worker: worker_id(9), at: rig.server.now.elapsed };
    assert_eq!(states(&mut rig, beat), [WorkerState::Unhealthy]);
    assert_eq!(states(&mut rig, connect(2, false)), [WorkerState::Ready]);
    assert_eq!(states(&mut rig, connect(3, true)), [WorkerState::Draining]);
    assert_eq!(
        states(&mut rig, Input::Drain { caller: Caller(0), worker: id, order: Drain::default() }),
        [],
        "it drains already"
    );
    let unregister = Input::Unregister { caller: Caller(0), worker: id };
    assert_eq!(states(&mut rig, unregister), [WorkerState::Terminating, WorkerState::Terminated]);
}
