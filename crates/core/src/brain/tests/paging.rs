//! Only the heads of lines and the next timers are in memory.

use super::*;

/// One worker works off `jobs`; returns the order in which they ran.
fn drain(rig: &mut Rig, worker: WorkerId) -> Vec<JobId> {
    let mut order = Vec::new();
    loop {
        let effects = rig.news();
        let runs = effects.into_iter().filter_map(|effect| match effect {
            Effect::Run { job, execution, .. } => Some((job, execution)),
            _ => None,
        });
        let runs: Vec<_> = runs.collect();
        if runs.is_empty() {
            return order;
        }
        for (job, execution) in runs {
            order.push(job);
            let finished = ended(execution, Outcome::Succeeded, rig.server.now.wall);
            rig.server.input(Input::Report { caller: None, worker, report: Report::Finished(finished, Vec::new()) });
        }
        rig.settle();
    }
}

#[test]
fn a_hundred_thousand_jobs_drain_in_order_through_a_small_window() {
    let mut rig = Rig::with(Config { window: 64, ..Config::default() });
    let mut jobs = Vec::new();
    for _ in 0..100 {
        jobs.extend(rig.enqueue_all(vec![spec(); 1000]));
        assert!(rig.server.brain.jobs.len() <= 2 * 64, "{} jobs in memory", rig.server.brain.jobs.len());
    }
    rig.news();
    let worker = rig.worker(1, slots(200));
    let order = drain(&mut rig, worker);
    assert_eq!(order.len(), jobs.len());
    assert_eq!(order, jobs);
    assert!(rig.server.brain.jobs.is_empty());
}

#[test]
fn a_restart_reads_the_backlog_in_order() {
    let mut rig = Rig::with(small_windows());
    let low = rig.enqueue_all(vec![spec_with(|spec| spec.priority = Priority::Low); 30]);
    let high = rig.enqueue_all(vec![spec_with(|spec| spec.priority = Priority::High); 30]);
    rig.server.restart();
    rig.news();
    let worker = rig.worker(1, slots(3));
    assert_eq!(drain(&mut rig, worker), [high, low].concat());
}

/// Nothing is placed before it is known what comes first.
#[test]
fn a_restart_places_nothing_before_the_first_page() {
    let mut rig = Rig::with(small_windows());
    let worker = rig.worker(1, slots(1));
    rig.ask(|caller| Input::Pause { caller: Some(caller), worker }).expect("paused");
    let urgent = rig.enqueue(spec_with(|spec| spec.priority = Priority::Critical));
    rig.server.restart();
    let hello = Hello { incarnation: incarnation(1), info: None, held: vec![], ended: vec![], leaving: false };
    rig.server.input(Input::Connect { worker, connection: Connection(7), hello });
    let new = rig.new_job(spec_with(|spec| spec.priority = Priority::Low));
    rig.server.input(Input::Enqueue { caller: Caller(0), jobs: vec![new] });
    rig.server.turn(false);
    rig.settle();
    assert_eq!(rig.runs(), [urgent]);
}

/// A page can be read before a job is stored and arrive after it, or be read after it and arrive when the job is out of
/// memory. In neither case may the job be passed over.
#[test]
fn a_job_that_comes_while_a_page_is_read_is_not_passed_over() {
    for read_late in [false, true] {
        let mut rig = Rig::with(small_windows());
        rig.enqueue_all(vec![spec(); 2]);
        rig.server.restart();
        rig.server.turn(false);
        rig.server.commit();
        let ready = |read: &Effect| matches!(read, Effect::ReadReady { .. });
        let at = rig.server.reads.iter().position(ready).expect("a read");
        if !read_late {
            rig.server.read(at);
        }
        let jobs = (0..10).map(|_| rig.new_job(spec())).collect();
        rig.server.input(Input::Enqueue { caller: Caller(0), jobs });
        rig.server.turn(false);
        rig.server.commit();
        rig.settle();
        let worker = rig.worker(1, slots(1));
        assert_eq!(drain(&mut rig, worker).len(), 12, "read late: {read_late}");
    }
}

#[test]
fn a_timer_that_is_set_while_a_page_is_read_is_not_passed_over() {
    let mut rig = Rig::with(small_windows());
    let start = rig.server.now.wall;
    let at = |seconds: u64| spec_with(|spec| spec.run_at = Some(start + Millis::seconds(seconds)));
    rig.enqueue_all((1..=20).map(|n| at(10 * n)).collect());
    rig.server.restart();
    rig.server.turn(false);
    rig.server.commit();
    rig.server.read(0);
    let early = rig.new_job(at(15));
    let id = early.id;
    rig.server.input(Input::Enqueue { caller: Caller(0), jobs: vec![early] });
    rig.settle();
    rig.pass(Millis::seconds(16));
    assert_eq!(rig.state(id), StateKind::Pending);
}

/// A job can change without leaving its place, while a page that shows its former row is under way.
#[test]
fn a_job_that_others_come_to_depend_on_is_not_passed_over() {
    for (read_late, delayed) in [(false, false), (true, false), (false, true), (true, true)] {
        let mut rig = Rig::with(small_windows());
        let at = rig.server.now.wall + Millis::seconds(10);
        let jobs = rig.enqueue_all(vec![spec_with(|spec| spec.run_at = delayed.then_some(at)); 6]);
        rig.server.restart();
        rig.server.turn(false);
        rig.server.commit();
        if !read_late {
            (0..rig.server.reads.len()).for_each(|_| rig.server.read(0));
        }
        let last = rig.new_job(spec_with(|spec| spec.depends_on = vec![jobs[2]]));
        let id = last.id;
        rig.server.input(Input::Enqueue { caller: Caller(0), jobs: vec![last] });
        rig.server.turn(false);
        rig.server.commit();
        rig.settle();
        let worker = rig.worker(1, slots(1));
        rig.pass(Millis::seconds(10));
        assert_eq!(drain(&mut rig, worker), [&jobs[..], &[id]].concat(), "read late: {read_late}, delayed: {delayed}");
    }
}

/// Two jobs with one place in line would hide each other.
#[test]
fn places_in_line_rise_over_a_restart_that_takes_no_time() {
    let mut rig = Rig::with(small_windows());
    let mut jobs = Vec::new();
    for _ in 0..3 {
        jobs.extend(rig.enqueue_all(vec![spec(); 10_000]));
        rig.server.restart();
        rig.settle();
    }
    let places: Vec<u64> = jobs.iter().map(|job| rig.job(*job).seq).collect();
    assert!(places.is_sorted_by(|a, b| a < b));
}

#[test]
fn what_a_failed_command_named_does_not_stay_in_memory() {
    let mut rig = Rig::with(small_windows());
    let jobs = rig.enqueue_all(vec![spec(); 40]);
    for job in &jobs {
        assert!(rig.retry(*job).is_err(), "a waiting job is not retried");
    }
    assert!(rig.server.brain.jobs.len() <= 8, "{} jobs in memory", rig.server.brain.jobs.len());
}
