//! Registration, inventories, drain, and what fences an execution.

use super::*;
use crate::{
    journal::{Change, Supervision},
    worker::{HandlerInfo, Offer, Sla, WorkerState},
};

fn token_for(rig: &Rig, n: u8) -> WorkerToken {
    let expires_at = rig.server.now.wall + Millis::seconds(300);
    WorkerToken { hash: Hash([n; 32]), worker: worker_id(u128::from(n)), expires_at, used_by: None }
}

#[test]
fn a_token_registers_one_worker_once() {
    let mut rig = Rig::new();
    let token = token_for(&rig, 1);
    let hash = token.hash;
    rig.ask(|caller| Input::CreateToken { caller, token }).expect("made");
    let request = registration(hash, slots(1));
    let mut register = |request: &Registration| rig.ask(|caller| Input::Register { caller, request: request.clone() });
    let refused = |why| Err(Refusal::Token(why));

    let made_up = Registration { token: Hash([9; 32]), ..request.clone() };
    assert_eq!(register(&made_up), refused(TokenRefused::Unknown));
    let stranger = Registration { worker: Some(worker_id(5)), ..request.clone() };
    assert_eq!(register(&stranger), refused(TokenRefused::OtherWorker));
    assert!(register(&request).is_ok());
    assert!(register(&request).is_ok(), "the answer to the first call may have been lost");
    let thief = Registration { key: Hash([7; 32]), ..request.clone() };
    assert_eq!(register(&thief), refused(TokenRefused::Used));
}

#[test]
fn a_token_is_used_up_and_expires_also_over_a_restart() {
    let mut rig = Rig::new();
    for n in [1, 2] {
        let token = token_for(&rig, n);
        rig.ask(|caller| Input::CreateToken { caller, token }).expect("made");
    }
    let request = registration(Hash([1; 32]), slots(1));
    rig.ask(|caller| Input::Register { caller, request }).expect("registered");
    rig.server.restart();
    rig.settle();
    let thief = Registration { key: Hash([7; 32]), ..registration(Hash([1; 32]), slots(1)) };
    assert_eq!(rig.ask(|caller| Input::Register { caller, request: thief }), Err(Refusal::Token(TokenRefused::Used)));
    rig.pass(Millis::seconds(300));
    let late = registration(Hash([2; 32]), slots(1));
    let refused = rig.ask(|caller| Input::Register { caller, request: late.clone() });
    assert_eq!(refused, Err(Refusal::Token(TokenRefused::Expired)));
    rig.pass(TOKEN_MEMORY);
    assert_eq!(rig.server.store.tokens.len(), 0, "and at last it is forgotten");
    let refused = rig.ask(|caller| Input::Register { caller, request: late });
    assert_eq!(refused, Err(Refusal::Token(TokenRefused::Unknown)));
}

#[test]
fn a_draining_worker_finishes_and_takes_no_more() {
    let mut rig = Rig::new();
    let worker = rig.worker(1, slots(2));
    let job = rig.enqueue(spec());
    rig.news();
    rig.ask(|caller| Input::Drain { caller, worker, order: Drain::default() }).expect("drained");
    assert!(rig.news().contains(&Effect::Drain { worker, connection: Connection(1), within: None }));
    let waiting = rig.enqueue(spec());
    rig.finish(job, Outcome::Succeeded);
    assert_eq!(rig.state(waiting), StateKind::Pending);
    assert_eq!(rig.view(worker).state, WorkerState::Draining);
    // It hears of it again, whenever it comes back.
    rig.server.restart();
    rig.connect(worker, incarnation(1), &[]);
    assert!(rig.news().contains(&Effect::Drain { worker, connection: Connection(2), within: None }));
    assert_eq!(rig.state(waiting), StateKind::Pending);
}

#[test]
fn a_paused_worker_takes_work_again_on_its_next_connection_unless_it_is_leaving() {
    let mut rig = Rig::new();
    let worker = rig.worker(1, slots(2));
    rig.ask(|caller| Input::Pause { caller: Some(caller), worker }).expect("paused");
    let job = rig.enqueue(spec());
    assert_eq!(rig.state(job), StateKind::Pending);
    let hello = Hello { incarnation: incarnation(1), info: None, held: vec![], ended: vec![], leaving: true };
    rig.greet(worker, hello);
    assert_eq!(rig.state(job), StateKind::Pending);
    rig.connect(worker, incarnation(1), &[]);
    assert_eq!(rig.state(job), StateKind::Scheduled);
}

/// The states of workers that a turn tells of, after this.
fn told(rig: &mut Rig, input: Input) -> Vec<WorkerState> {
    rig.server.input(input);
    let (batch, _) = rig.server.turn(false);
    let state = |change: &Change| if let Change::Worker { state, .. } = change { Some(*state) } else { None };
    let told = batch.changes.iter().filter_map(state).collect();
    rig.settle();
    told
}

#[test]
fn a_worker_that_leaves_by_itself_is_gone_at_once_and_may_come_back_with_its_session() {
    for restart in [false, true] {
        let mut rig = Rig::new();
        let worker = rig.worker(1, slots(1));
        rig.server.input(Input::Pause { caller: None, worker });
        let gone = told(&mut rig, Input::Disconnect { worker, connection: Connection(1) });
        assert_eq!(gone, [WorkerState::Draining, WorkerState::Terminating, WorkerState::Terminated]);
        assert_eq!(rig.server.brain.workers(), []);
        if restart {
            rig.server.restart();
            rig.settle();
            assert_eq!(rig.server.brain.workers(), []);
        }
        for _ in 0..70 {
            rig.pass(Millis::seconds(1));
        }
        assert_eq!(rig.server.brain.workers(), [], "and nobody misses it");
        rig.connect(worker, incarnation(2), &[]);
        assert_eq!(rig.view(worker).state, WorkerState::Ready);
        let job = rig.enqueue(spec());
        assert_eq!(rig.state(job), StateKind::Scheduled, "restart: {restart}");
    }
}

#[test]
fn a_worker_that_left_long_ago_is_forgotten() {
    let mut rig = Rig::new();
    let worker = rig.worker(1, slots(1));
    rig.tell(Input::Pause { caller: None, worker });
    rig.disconnect(worker);
    rig.pass(Millis::seconds(29 * 24 * 3600));
    assert_eq!(rig.server.store.workers.len(), 1);
    rig.pass(Millis::seconds(24 * 3600));
    assert_eq!(rig.server.store.workers.len(), 0);
    let connection = rig.connect(worker, incarnation(1), &[]);
    assert!(rig.news().contains(&Effect::Close { worker, connection }));
}

#[test]
fn a_leaving_worker_is_gone_when_what_it_holds_has_ended() {
    for restart in [false, true] {
        let mut rig = Rig::new();
        let worker = rig.worker(1, slots(1));
        let job = rig.enqueue(spec());
        rig.start(job);
        rig.tell(Input::Pause { caller: None, worker });
        rig.disconnect(worker);
        if restart {
            rig.server.restart();
            rig.settle();
        }
        assert_eq!(rig.view(worker).state, WorkerState::Draining, "its lease is good");
        for _ in 0..70 {
            rig.pass(Millis::seconds(1));
        }
        assert_eq!(rig.job(job).losses, 1);
        assert_eq!(rig.server.brain.workers(), [], "restart: {restart}");
    }
}

#[test]
fn a_worker_that_an_earlier_leader_knew_is_not_ready_before_it_connects() {
    let mut rig = Rig::new();
    let worker = rig.worker(1, slots(1));
    rig.server.restart();
    rig.settle();
    assert_eq!(rig.view(worker).state, WorkerState::Connecting);
    let hello = Hello { incarnation: incarnation(1), info: None, held: vec![], ended: vec![], leaving: false };
    let back = told(&mut rig, Input::Connect { worker, connection: Connection(9), hello });
    assert_eq!((back, rig.view(worker).state), (vec![], WorkerState::Ready), "as was told before");
}

#[test]
fn a_drain_ends_a_worker_that_is_not_there() {
    let mut rig = Rig::new();
    let (idle, busy) = (rig.worker(1, slots(1)), rig.worker(2, slots(1)));
    let job = rig.enqueue(spec());
    rig.start(job);
    let (idle, busy) =
        if rig.job(job).state.run().is_some_and(|run| run.worker == idle) { (busy, idle) } else { (idle, busy) };
    rig.disconnect(idle);
    rig.disconnect(busy);
    let drain = |worker| Input::Drain { caller: Caller(0), worker, order: Drain::default() };
    let states = [WorkerState::Draining, WorkerState::Terminating, WorkerState::Terminated];
    assert_eq!(told(&mut rig, drain(idle)), states);
    assert_eq!(told(&mut rig, drain(busy)), [WorkerState::Draining], "what it runs may go on until its lease is over");
    for _ in 0..70 {
        rig.pass(Millis::seconds(1));
    }
    assert_eq!(rig.server.brain.workers(), []);
    assert_eq!(rig.server.store.workers.len(), 0);
    let connection = rig.connect(idle, incarnation(1), &[]);
    assert!(rig.news().contains(&Effect::Close { worker: idle, connection }), "a stranger is shown the door");
}

#[test]
fn a_later_drain_changes_only_what_it_names() {
    let mut rig = Rig::new();
    let worker = rig.worker(1, slots(1));
    let job = rig.enqueue(spec());
    rig.start(job);
    let at = |seconds: i64| Some(Time(1_000_000_000_000 + seconds));
    let drained = |rig: &mut Rig, reason: &str, deadline| {
        let order = Drain { reason: reason.into(), deadline };
        rig.ask(|caller| Input::Drain { caller, worker, order }).expect("drained");
        rig.view(worker).record.drain.map(|order| (order.reason, order.deadline))
    };
    assert_eq!(drained(&mut rig, "a new disk", at(5)), Some(("a new disk".into(), at(5))));
    assert_eq!(drained(&mut rig, "", None), Some(("a new disk".into(), at(5))));
    assert_eq!(drained(&mut rig, "", at(9)), Some(("a new disk".into(), at(9))));
    assert_eq!(drained(&mut rig, "a new floor", None), Some(("a new floor".into(), at(9))));
}

#[test]
fn an_unregistered_worker_gives_its_jobs_back_uncounted() {
    let mut rig = Rig::new();
    let worker = rig.worker(1, slots(1));
    let job = rig.enqueue(spec());
    rig.start(job);
    rig.ask(|caller| Input::Unregister { caller, worker }).expect("gone");
    assert_eq!(rig.state(job), StateKind::Pending);
    assert_eq!((rig.job(job).attempt, rig.job(job).losses), (0, 0));
    assert_eq!(rig.server.store.workers.len(), 0);
    assert!(rig.server.brain.workers().is_empty());
    let again = rig.ask(|caller| Input::Unregister { caller, worker });
    assert_eq!(again, Err(Refusal::NoSuchWorker(worker)));
    let connection = rig.connect(worker, incarnation(1), &[]);
    assert!(rig.news().contains(&Effect::Close { worker, connection }), "a stranger is shown the door");
}

#[test]
fn a_worker_that_goes_and_comes_back_in_one_turn_is_there() {
    let mut rig = Rig::new();
    let worker = rig.worker(1, slots(1));
    let token = token_for(&rig, 9);
    let request = registration(token.hash, slots(2));
    let token = WorkerToken { worker, ..token };
    rig.ask(|caller| Input::CreateToken { caller, token }).expect("made");
    rig.server.input(Input::Unregister { caller: Caller(0), worker });
    rig.ask(|caller| Input::Register { caller, request }).expect("registered");
    rig.server.restart();
    rig.settle();
    assert_eq!(rig.view(worker).record.info.capacity, slots(2));
}

#[test]
fn a_stale_execution_changes_nothing() {
    let mut rig = Rig::new();
    let (worker, other) = (rig.worker(1, slots(1)), worker_id(2));
    let job = rig.enqueue(spec());
    let old = rig.start(job);
    rig.fail(job);
    rig.pass(Millis::seconds(1));
    let before = rig.job(job);
    let execution = rig.execution(job);
    for (from, execution) in [(worker, old), (other, execution), (worker, ExecutionId::NIL)] {
        let stale = Err(Refusal::Illegal(IllegalEvent::Stale(execution)));
        let progress = Progress::default();
        assert_eq!(rig.report(from, Report::Started { execution, at: Time(1) }), stale);
        assert_eq!(rig.report(from, Report::Progress { execution, progress, data: None }), stale);
        let finished = ended(execution, Outcome::Succeeded, Time(1));
        assert_eq!(rig.report(from, Report::Finished(finished, Vec::new())), stale);
    }
    assert_eq!(rig.job(job), before);
    // On the stream a stale result is acknowledged, so that its worker can forget it.
    rig.news();
    let finished = ended(old, Outcome::Succeeded, Time(1));
    rig.tell(Input::Report { caller: None, worker, report: Report::Finished(finished, Vec::new()) });
    assert_eq!(rig.news(), [Effect::Acked { worker, connection: Connection(1), execution: old }]);
    assert_eq!(rig.job(job), before);
}

#[test]
fn the_current_execution_goes_on_when_its_worker_names_it() {
    let mut rig = Rig::new();
    let worker = rig.worker(1, slots(2));
    let (running, unstarted) = (rig.enqueue(spec()), rig.enqueue(spec()));
    let execution = rig.start(running);
    rig.disconnect(worker);
    rig.news();
    rig.connect(worker, incarnation(1), &[execution, ExecutionId::NIL]);
    let verdicts = vec![Bound { execution: ExecutionId::NIL, job: None }, Bound { execution, job: Some(running) }];
    let news = rig.news();
    assert_eq!(news[0], Effect::Welcome { worker, connection: Connection(2), verdicts, heartbeat: None });
    assert_eq!(rig.state(running), StateKind::Running);
    let sent = |effect: &Effect| matches!(effect, Effect::Run { job, .. } if *job == unstarted);
    assert_eq!(news.iter().filter(|effect| sent(effect)).count(), 1, "its order to run was lost and is sent again");
    assert_eq!(rig.job(unstarted).executions.len(), 1, "as the same execution");
}

#[test]
fn what_a_worker_comes_back_without_is_lost() {
    let mut rig = Rig::new();
    let worker = rig.worker(1, slots(2));
    let job = rig.enqueue(spec());
    let old = rig.start(job);
    rig.connect(worker, incarnation(1), &[]);
    assert_eq!(rig.job(job).losses, 1);
    assert_ne!(rig.execution(job), old, "it runs again");
    // Another life of the agent never heard of what was not started either.
    rig.connect(worker, incarnation(2), &[]);
    assert_eq!(rig.job(job).losses, 2);
}

#[test]
fn a_result_that_a_new_life_found_in_the_spool_is_awaited() {
    let mut rig = Rig::new();
    let worker = rig.worker(1, slots(2));
    let job = rig.enqueue(spec());
    let execution = rig.start(job);
    let hello = Hello { incarnation: incarnation(2), info: None, held: vec![], ended: vec![execution], leaving: false };
    rig.tell(Input::Connect { worker, connection: Connection(9), hello });
    assert_eq!(rig.state(job), StateKind::Running);
    rig.finish(job, Outcome::Succeeded);
    assert_eq!(rig.state(job), StateKind::Succeeded);
}

#[test]
fn a_job_that_lost_three_workers_is_given_up() {
    let mut rig = Rig::new();
    let worker = rig.worker(1, slots(1));
    let job = rig.enqueue(spec_with(|spec| spec.retry.max_attempts = 100));
    for life in 2..4 {
        rig.start(job);
        rig.connect(worker, incarnation(life), &[]);
        assert_eq!(rig.state(job), StateKind::Scheduled);
    }
    rig.connect(worker, incarnation(4), &[]);
    assert_eq!(rig.state(job), StateKind::Failed);
    assert_eq!((rig.job(job).losses, rig.job(job).attempt), (3, 3));
    rig.retry(job).expect("by hand");
    assert_eq!(rig.job(job).losses, 0);
}

#[test]
fn a_loss_counts_as_a_run() {
    let mut rig = Rig::new();
    let worker = rig.worker(1, slots(1));
    let job = rig.enqueue(spec_with(|spec| spec.retry.max_attempts = 1));
    rig.start(job);
    rig.connect(worker, incarnation(2), &[]);
    assert_eq!(rig.state(job), StateKind::Failed);
}

#[test]
fn a_cancel_reaches_a_worker_that_was_away() {
    let mut rig = Rig::new();
    let worker = rig.worker(1, slots(3));
    let jobs = rig.enqueue_all(vec![spec(); 3]);
    let (running, unstarted, gone) = (jobs[0], jobs[1], jobs[2]);
    let execution = rig.start(running);
    rig.start(gone);
    rig.disconnect(worker);
    rig.news();
    for job in &jobs {
        rig.cancel(*job).expect("asked");
    }
    assert_eq!(rig.stops(), [], "nobody is there to hear it");
    rig.connect(worker, incarnation(1), &[execution]);
    assert_eq!(rig.stops(), [(execution, StopReason::Cancelled)]);
    assert_eq!(rig.state(running), StateKind::Running);
    assert_eq!(rig.state(unstarted), StateKind::Cancelled, "its worker never heard of it");
    assert_eq!(rig.state(gone), StateKind::Cancelled, "its worker does not have it any more");
    rig.finish(running, Outcome::Cancelled);
    assert_eq!(rig.state(running), StateKind::Cancelled);
}

#[test]
fn a_run_timeout_reaches_a_worker_that_was_away() {
    for restart in [false, true] {
        let mut rig = Rig::new();
        let worker = rig.worker(1, slots(1));
        let job = rig.enqueue(spec_with(|spec| spec.timeouts.run = Some(Millis::seconds(5))));
        let execution = rig.start(job);
        rig.disconnect(worker);
        rig.pass(Millis::seconds(6));
        if restart {
            rig.server.restart();
            rig.settle();
        }
        rig.news();
        rig.connect(worker, incarnation(1), &[execution]);
        assert_eq!(rig.stops(), [(execution, StopReason::RunTimeout)], "restart: {restart}");
    }
}

#[test]
fn word_of_an_older_connection_is_out_of_date() {
    let mut rig = Rig::new();
    let worker = rig.worker(1, slots(1));
    let job = rig.enqueue(spec());
    let execution = rig.start(job);
    let empty = |connection| Input::Connect {
        worker,
        connection: Connection(connection),
        hello: Hello { incarnation: incarnation(1), info: None, held: vec![], ended: vec![], leaving: false },
    };
    let hello = Hello { incarnation: incarnation(1), info: None, held: vec![execution], ended: vec![], leaving: false };
    rig.tell(Input::Connect { worker, connection: Connection(5), hello });
    rig.news();
    rig.tell(empty(4));
    assert_eq!(rig.news(), [Effect::Close { worker, connection: Connection(4) }]);
    assert_eq!(rig.execution(job), execution, "its inventory was old");
    // A connection whose end was heard of before its beginning is no connection.
    rig.tell(Input::Disconnect { worker, connection: Connection(6) });
    rig.tell(empty(6));
    assert_eq!(rig.execution(job), execution);
    rig.tell(Input::Disconnect { worker, connection: Connection(5) });
    assert!(!rig.view(worker).connected);
}

#[test]
fn a_new_connection_closes_the_one_before() {
    let mut rig = Rig::new();
    let worker = rig.worker(1, slots(1));
    rig.news();
    let connection = rig.connect(worker, incarnation(1), &[]);
    let news = rig.news();
    assert_eq!(news[0], Effect::Close { worker, connection: Connection(1) });
    assert_eq!(news[1], Effect::Welcome { worker, connection, verdicts: vec![], heartbeat: None });
    rig.tell(Input::Disconnect { worker, connection: Connection(1) });
    assert_eq!(rig.view(worker).state, WorkerState::Ready, "the end of the old one ends nothing");
}

/// A worker of one slot that offers these types with one handler.
fn with_handler(types: &[&str]) -> WorkerInfo {
    let handler = HandlerInfo { name: "report.*".into(), sla: Sla::High, up: !types.is_empty() };
    let task_types = types.iter().map(|task_type| Arc::from(*task_type)).collect();
    let offer = Offer { task_types, tasks_only: false };
    WorkerInfo { capacity: slots(1), offer, handlers: vec![handler], ..WorkerInfo::default() }
}

#[test]
fn what_a_worker_no_longer_offers_waits_until_it_does_again() {
    let mut rig = Rig::new();
    let worker = rig.worker(1, slots(1));
    let describe = |rig: &mut Rig, connection, types: &[&str]| {
        rig.tell(Input::Describe { worker, connection, info: Box::new(with_handler(types)) });
    };
    describe(&mut rig, Connection(1), &["report.daily"]);
    let report = || {
        let work = Work::Task { task_type: "report.daily".into(), payload: b"null".to_vec() };
        spec_with(|spec| spec.work = work)
    };
    let first = rig.enqueue(report());
    rig.start(first);
    // It is withdrawn, and then given back: it does not come again, and this run does not count.
    describe(&mut rig, Connection(1), &[]);
    rig.finish(first, Outcome::Released);
    assert_eq!((rig.state(first), rig.job(first).attempt), (StateKind::Pending, 0));
    let why = rig.server.brain.waiting_reason(&rig.job(first));
    assert_eq!(why, "no connected worker handles tasks of type report.daily");
    let Err(dropped) = rig.server.brain.decide(&report()).workers.remove(0).fate else { panic!("it is not offered") };
    assert_eq!(
        dropped.why,
        "its handler report.* was given up after 2 restarts; 'hodei worker restart' tries it again"
    );
    rig.server.restart();
    rig.connect(worker, incarnation(1), &[]);
    assert_eq!(rig.state(first), StateKind::Pending, "what it offers is stored");
    describe(&mut rig, Connection(1), &["report.daily"]);
    assert_eq!(rig.state(first), StateKind::Pending, "an old connection says nothing about the new one");
    describe(&mut rig, Connection(2), &["report.daily"]);
    assert_eq!(rig.state(first), StateKind::Scheduled);
}

#[test]
fn a_wish_for_a_restart_reaches_a_worker_that_has_the_handler_and_is_there() {
    let mut rig = Rig::new();
    let worker = rig.worker(1, slots(1));
    rig.tell(Input::Describe { worker, connection: Connection(1), info: Box::new(with_handler(&[])) });
    rig.news();
    let restart = |rig: &mut Rig, worker, handler: &str| {
        rig.ask(|caller| Input::RestartHandler { caller, worker, handler: handler.into() })
    };
    assert_eq!(restart(&mut rig, worker, "report.*"), Ok(Answer::Done));
    let sent = Effect::RestartHandler { worker, connection: Connection(1), handler: "report.*".into() };
    assert!(rig.news().contains(&sent));
    assert_eq!(restart(&mut rig, worker, "other"), Err(Refusal::NoSuchHandler(worker, "other".into())));
    assert_eq!(restart(&mut rig, worker_id(9), "report.*"), Err(Refusal::NoSuchWorker(worker_id(9))));
    rig.disconnect(worker);
    assert_eq!(restart(&mut rig, worker, "report.*"), Err(Refusal::NotConnected(worker)));
}

#[test]
fn what_a_worker_tells_of_supervision_is_in_the_journal() {
    let mut rig = Rig::new();
    let worker = rig.worker(1, slots(1));
    let detail = "restart 1 of 3".to_owned();
    let news = Supervision { what: "report.*".into(), event: "worker_replaced".into(), detail, at: Time(7) };
    for (from, told) in [(worker, 1), (worker_id(9), 0)] {
        rig.server.input(Input::Supervised { worker: from, news: news.clone() });
        let (batch, _) = rig.server.turn(false);
        assert_eq!(batch.changes, vec![Change::Supervision { worker, news: news.clone() }; told]);
        rig.settle();
    }
}
