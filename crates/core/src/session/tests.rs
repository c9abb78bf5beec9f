//! The worker's half, step by step and against a server that forgets nothing over a link that loses everything.

mod link;

use super::*;
use crate::{
    id::JobId,
    protocol::{Context, Verdict},
    spec::{JobSpec, Work},
    state::{Failure, FailureKind},
    worker::Capacity,
};
use std::sync::Arc;
use uuid::Uuid;

const HEARTBEAT: Millis = Millis::seconds(10);
const LEASE: Millis = Millis::seconds(60);
const EXIT: Action = Action::Exit { for_good: false };

fn id(n: u128) -> ExecutionId {
    ExecutionId(Uuid::from_u128(n))
}

fn incarnation() -> Incarnation {
    Incarnation(Uuid::from_u128(7))
}

fn with_slots(slots: u32) -> WorkerInfo {
    WorkerInfo { capacity: Capacity { slots, ..Capacity::default() }, ..WorkerInfo::default() }
}

fn assignment(n: u128) -> Assignment {
    let spec = JobSpec::new("job", Work::Shell { program: "true".into(), args: Vec::new() });
    Assignment {
        job: JobId(Uuid::from_u128(n)),
        execution: id(n),
        attempt: 1,
        spec: Arc::new(spec),
        context: Context::default(),
    }
}

fn welcome(held: Vec<Verdict>) -> ToWorker {
    ToWorker::Welcome(Welcome { lease: LEASE, heartbeat: HEARTBEAT, held })
}

fn keep(n: u128, log_entries: u64) -> Verdict {
    Verdict { execution: id(n), keep: true, log_entries }
}

fn finished(n: u128, outcome: Outcome) -> Finished {
    let (started_at, finished_at) = (Some(Time(1)), Time(2));
    Finished { started_at, ..Finished::new(id(n), outcome, finished_at) }
}

fn logs(record: u64, n: u128, end: u64) -> Record {
    Record { id: RecordId(record), execution: id(n), kind: RecordKind::Logs { end }, bytes: 100 }
}

fn end(record: u64, n: u128) -> Record {
    Record { id: RecordId(record), execution: id(n), kind: RecordKind::Finished, bytes: 100 }
}

/// A session that was greeted and welcomed, with its first actions out of the way.
fn up(slots: u32) -> Session {
    let mut session = Session::new(incarnation(), with_slots(slots), Vec::new());
    session.connected(Elapsed(0));
    session.received(welcome(Vec::new()), Elapsed(0));
    session.take_actions();
    session
}

fn give(session: &mut Session, executions: &[u128]) {
    let assignments = executions.iter().map(|n| assignment(*n)).collect();
    session.received(ToWorker::Run(assignments), Elapsed(0));
}

/// A session that runs these, with nothing left to do.
fn running(slots: u32, executions: &[u128]) -> Session {
    let mut session = up(slots);
    give(&mut session, executions);
    session.take_actions();
    session
}

fn reconnect(session: &mut Session, held: Vec<Verdict>) -> Vec<Action> {
    session.disconnected();
    session.connected(Elapsed(0));
    session.received(welcome(held), Elapsed(0));
    session.take_actions()
}

fn sent(actions: &[Action]) -> Vec<u64> {
    let record = |action: &Action| if let Action::SendRecord(id) = action { Some(id.0) } else { None };
    actions.iter().filter_map(record).collect()
}

fn forgotten(actions: &[Action]) -> Vec<u64> {
    let record = |action: &Action| if let Action::Forget(id) = action { Some(id.0) } else { None };
    actions.iter().filter_map(record).collect()
}

fn ran(actions: &[Action]) -> Vec<ExecutionId> {
    let run = |action: &Action| if let Action::Run(given) = action { Some(given.execution) } else { None };
    actions.iter().filter_map(run).collect()
}

fn acked(session: &mut Session, results: &[u128], logs: &[(u128, u64)]) -> Vec<Action> {
    let results = results.iter().map(|n| id(*n)).collect();
    let logs = logs.iter().map(|(n, entries)| LogAck { execution: id(*n), entries: *entries }).collect();
    session.received(ToWorker::Acked { results, logs }, Elapsed(0));
    session.take_actions()
}

#[test]
fn hello_names_all_that_it_holds() {
    let mut session = running(1, &[1, 2, 3]);
    session.ended(finished(1, Outcome::Succeeded)).expect("wanted");
    session.spooled(end(0, 1));
    session.disconnected();
    session.take_actions();
    session.connected(Elapsed(5));
    let hello = Hello {
        incarnation: incarnation(),
        info: Some(Box::new(with_slots(1))),
        held: vec![id(2), id(3)],
        ended: vec![id(1)],
        leaving: false,
    };
    assert_eq!(session.take_actions(), [Action::Send(FromWorker::Hello(hello))], "running, waiting and ended");
}

#[test]
fn nothing_is_sent_before_the_welcome() {
    let mut session = running(1, &[1]);
    session.disconnected();
    session.connected(Elapsed(0));
    session.take_actions();
    session.started(id(1), Time(4));
    session.progress(id(1), Progress::default(), None);
    session.spooled(logs(0, 1, 3));
    session.tick(Elapsed(0) + HEARTBEAT);
    assert_eq!(session.take_actions(), []);
    session.received(welcome(vec![keep(1, 0)]), Elapsed(0));
    let actions = session.take_actions();
    let started = Action::Send(FromWorker::Started { execution: id(1), at: Time(4) });
    let progress = Action::Send(FromWorker::Progress { execution: id(1), progress: Progress::default(), data: None });
    assert_eq!(actions[1..], [started, progress, Action::SendRecord(RecordId(0))]);
}

#[test]
fn what_was_not_acknowledged_is_sent_again_on_each_connection() {
    let mut session = running(1, &[1]);
    session.spooled(logs(0, 1, 5));
    session.spooled(logs(1, 1, 9));
    session.ended(finished(1, Outcome::Succeeded)).expect("wanted");
    session.spooled(end(2, 1));
    assert_eq!(sent(&session.take_actions()), [0, 1, 2]);
    let actions = reconnect(&mut session, vec![keep(1, 5)]);
    assert_eq!(forgotten(&actions), [0], "the server says that it has these");
    assert_eq!(sent(&actions), [1, 2]);
    // Also when the agent did not say that the old stream was gone.
    session.connected(Elapsed(0));
    session.received(welcome(vec![keep(1, 5)]), Elapsed(0));
    assert_eq!(sent(&session.take_actions()), [1, 2]);
    assert_eq!(forgotten(&acked(&mut session, &[1], &[])), [1, 2]);
    assert!(!session.owes());
    assert_eq!(sent(&reconnect(&mut session, vec![])), []);
}

#[test]
fn a_result_is_sent_after_its_log_even_when_the_window_is_full() {
    let mut session = running(2, &[1, 2]);
    session.spooled(Record { bytes: SEND_WINDOW, ..logs(0, 1, 5) });
    session.spooled(logs(1, 1, 6));
    session.ended(finished(1, Outcome::Succeeded)).expect("wanted");
    session.spooled(end(2, 1));
    session.spooled(logs(3, 2, 1));
    assert_eq!(sent(&session.take_actions()), [0], "the window is full");
    let actions = acked(&mut session, &[], &[(1, 5)]);
    assert_eq!((forgotten(&actions), sent(&actions)), (vec![0], vec![1, 2, 3]));
}

#[test]
fn a_record_larger_than_the_window_is_sent_alone() {
    let mut session = running(1, &[1]);
    session.spooled(logs(0, 1, 1));
    session.spooled(Record { bytes: 3 * SEND_WINDOW, ..logs(1, 1, 2) });
    session.spooled(logs(2, 1, 3));
    assert_eq!(sent(&session.take_actions()), [0]);
    assert_eq!(sent(&acked(&mut session, &[], &[(1, 1)])), [1]);
    assert_eq!(sent(&acked(&mut session, &[], &[(1, 2)])), [2]);
}

#[test]
fn only_whole_records_are_forgotten() {
    let mut session = running(1, &[1]);
    session.spooled(logs(0, 1, 5));
    session.spooled(logs(1, 1, 9));
    assert_eq!(forgotten(&acked(&mut session, &[], &[(1, 8)])), [0]);
    assert_eq!(forgotten(&acked(&mut session, &[], &[(2, 100)])), [], "another execution");
    assert_eq!(forgotten(&acked(&mut session, &[], &[(1, 9)])), [1]);
}

#[test]
fn what_the_server_does_not_want_is_dropped_and_stopped() {
    let mut session = running(1, &[1, 2]);
    session.spooled(logs(0, 1, 5));
    session.take_actions();
    let drop = |n| Verdict { execution: id(n), keep: false, log_entries: 0 };
    let actions = reconnect(&mut session, vec![drop(1), drop(2)]);
    assert_eq!(forgotten(&actions), [0]);
    assert!(actions.contains(&Action::Stop { execution: id(1), why: StopReason::Stale }));
    assert_eq!(ran(&actions), [], "the second never starts");
    session.spooled(logs(1, 1, 6));
    assert_eq!(session.take_actions(), [Action::Forget(RecordId(1))]);
    assert_eq!(session.ended(finished(1, Outcome::Cancelled)), None, "nobody wants its end");
    assert!(!session.owes());
}

#[test]
fn a_stale_stop_drops_too() {
    let mut session = running(1, &[1]);
    session.received(ToWorker::Stop { execution: id(1), why: StopReason::Stale }, Elapsed(0));
    assert_eq!(session.take_actions(), [Action::Stop { execution: id(1), why: StopReason::Stale }]);
    assert_eq!(session.ended(finished(1, Outcome::Cancelled)), None);
}

#[test]
fn an_order_to_run_is_followed_once() {
    let mut session = up(2);
    give(&mut session, &[1, 1]);
    give(&mut session, &[1]);
    assert_eq!(ran(&session.take_actions()), [id(1)]);
    session.ended(finished(1, Outcome::Succeeded)).expect("wanted");
    give(&mut session, &[1]);
    assert_eq!(ran(&session.take_actions()), [], "its result is not acknowledged yet");
    session.ended(finished(9, Outcome::Succeeded)).ok_or(()).expect_err("it never ran here");
}

#[test]
fn what_finds_no_slot_waits_for_one() {
    let mut session = up(2);
    give(&mut session, &[1, 2, 3, 4]);
    assert_eq!(ran(&session.take_actions()), [id(1), id(2)]);
    session.ended(finished(2, Outcome::Succeeded)).expect("wanted");
    assert_eq!(ran(&session.take_actions()), [id(3)]);
    session.received(ToWorker::Stop { execution: id(4), why: StopReason::Cancelled }, Elapsed(0));
    let actions = session.take_actions();
    let [Action::Conclude(concluded)] = &actions[..] else { panic!("{actions:?}") };
    assert_eq!((concluded.execution, &concluded.outcome), (id(4), &Outcome::Cancelled));
    session.spooled(end(0, 4));
    assert_eq!(sent(&session.take_actions()), [0]);
}

#[test]
fn a_stop_reaches_what_runs_and_nothing_else() {
    let mut session = running(1, &[1]);
    for n in [1, 2] {
        session.received(ToWorker::Stop { execution: id(n), why: StopReason::RunTimeout }, Elapsed(0));
    }
    assert_eq!(session.take_actions(), [Action::Stop { execution: id(1), why: StopReason::RunTimeout }]);
}

#[test]
fn a_worker_that_leaves_finishes_gives_back_and_exits_when_all_is_delivered() {
    let mut session = running(1, &[1, 2]);
    session.received(ToWorker::Drain { within: None }, Elapsed(0));
    let actions = session.take_actions();
    let [Action::Send(FromWorker::Leaving), Action::Conclude(given_back)] = &actions[..] else { panic!("{actions:?}") };
    assert_eq!((given_back.execution, &given_back.outcome), (id(2), &Outcome::Released));
    session.spooled(end(0, 2));
    session.ended(finished(1, Outcome::Succeeded)).expect("wanted");
    session.spooled(end(1, 1));
    assert_eq!(sent(&session.take_actions()), [0, 1]);
    assert!(!acked(&mut session, &[2], &[]).contains(&Action::Exit { for_good: true }));
    assert!(acked(&mut session, &[1], &[]).contains(&Action::Exit { for_good: true }));
}

#[test]
fn a_worker_that_leaves_does_not_exit_before_its_last_result_is_in_the_spool() {
    let mut session = running(1, &[1]);
    session.leave(false);
    session.ended(finished(1, Outcome::Succeeded)).expect("wanted");
    assert_eq!(session.take_actions(), [Action::Send(FromWorker::Leaving)]);
    session.spooled(end(0, 1));
    assert_eq!(sent(&session.take_actions()), [0]);
    assert!(acked(&mut session, &[1], &[]).contains(&Action::Exit { for_good: false }));
}

/// Otherwise the server would go on giving, and the worker giving back, without end.
#[test]
fn a_wish_to_leave_between_greeting_and_welcome_is_said_after_the_welcome() {
    let mut session = Session::new(incarnation(), with_slots(1), Vec::new());
    session.connected(Elapsed(0));
    session.release();
    assert!(!session.take_actions().contains(&EXIT), "it would be gone without a word");
    session.received(welcome(Vec::new()), Elapsed(0));
    let actions = session.take_actions();
    let place = |action| actions.iter().position(|one| *one == action).expect("it is done");
    assert!(place(Action::Send(FromWorker::Leaving)) < place(EXIT), "{actions:?}");
}

#[test]
fn a_greeting_that_is_never_answered_keeps_nobody_from_leaving() {
    let mut session = Session::new(incarnation(), with_slots(1), Vec::new());
    session.connected(Elapsed(0));
    session.leave(false);
    session.take_actions();
    session.disconnected();
    assert_eq!(session.take_actions(), [EXIT]);
}

#[test]
fn leaving_for_good_is_not_taken_back() {
    let mut session = running(1, &[1]);
    session.leave(true);
    session.leave(false);
    session.received(ToWorker::Stop { execution: id(1), why: StopReason::Stale }, Elapsed(0));
    session.ended(finished(1, Outcome::Cancelled));
    assert!(session.take_actions().contains(&Action::Exit { for_good: true }));
}

#[test]
fn a_release_stops_what_runs_and_gives_it_back_uncounted() {
    let mut session = running(3, &[1, 2, 3]);
    session.release();
    let actions = session.take_actions();
    let stops = [1, 2, 3].map(|n| Action::Stop { execution: id(n), why: StopReason::Cancelled });
    assert_eq!(actions[0], Action::Send(FromWorker::Leaving), "first, or it would get them again");
    assert_eq!(actions[1..], stops);
    let outcome =
        |session: &mut Session, n, outcome| session.ended(finished(n, outcome)).map(|finished| finished.outcome);
    assert_eq!(outcome(&mut session, 1, Outcome::Cancelled), Some(Outcome::Released));
    assert_eq!(outcome(&mut session, 2, Outcome::Failed(Failure::signal(15))), Some(Outcome::Released));
    assert_eq!(outcome(&mut session, 3, Outcome::Succeeded), Some(Outcome::Succeeded), "it was faster than the stop");
}

#[test]
fn the_lease_ends_a_little_early_and_counts_from_the_question() {
    let mut session = Session::new(incarnation(), with_slots(1), Vec::new());
    session.connected(Elapsed(100));
    session.take_actions();
    session.received(welcome(vec![]), Elapsed(5000));
    assert_eq!(session.take_actions(), [Action::SetLease(Elapsed(100 + 59_000))], "from its hello, less a second");
    let lease = |session: &mut Session, sent, lease| {
        session.received(ToWorker::Lease { sent, lease: Millis(lease) }, Elapsed(9000));
        session.take_actions()
    };
    assert_eq!(lease(&mut session, 8000, 60_000), [Action::SetLease(Elapsed(8000 + 59_000))]);
    assert_eq!(lease(&mut session, 70_000, 5000), [Action::SetLease(Elapsed(70_000 + 4500))], "a tenth of a short one");
}

#[test]
fn a_parked_lease_counts_from_what_was_answered_and_is_not_shortened_by_a_late_answer() {
    let mut session = up(1);
    session.received(ToWorker::Lease { sent: 700, lease: LEASE }, Elapsed(800));
    session.take_actions();
    // It may have been said at any time since then, and heard late.
    session.received(ToWorker::Park { lease: Millis::seconds(600) }, Elapsed(5000));
    let parked = Elapsed(700 + 599_000);
    assert_eq!(session.take_actions(), [Action::SetLease(parked)]);
    session.received(ToWorker::Lease { sent: 900, lease: LEASE }, Elapsed(5001));
    assert_eq!(session.take_actions(), [Action::SetLease(parked)]);
    // The server that comes back begins a new one.
    session.connected(Elapsed(50_000));
    session.received(welcome(vec![]), Elapsed(50_001));
    assert!(session.take_actions().contains(&Action::SetLease(Elapsed(50_000 + 59_000))));
}

#[test]
fn nothing_starts_under_a_lease_that_has_run_out() {
    let mut session = Session::new(incarnation(), with_slots(1), Vec::new());
    session.connected(Elapsed(0));
    session.received(welcome(vec![]), Elapsed(70_000));
    session.received(ToWorker::Run(vec![assignment(1)]), Elapsed(70_000));
    let actions = session.take_actions();
    assert_eq!(ran(&actions), [], "the welcome was a minute under way");
    assert!(actions.contains(&Action::Reconnect));
    session.received(ToWorker::Lease { sent: 69_000, lease: LEASE }, Elapsed(70_001));
    assert_eq!(ran(&session.take_actions()), [], "the server may have given it to others before it heard of us");
    session.connected(Elapsed(71_000));
    session.received(welcome(vec![keep(1, 0)]), Elapsed(71_001));
    assert_eq!(ran(&session.take_actions()), [id(1)], "it has not");
}

#[test]
fn a_lease_that_runs_out_ends_the_stream() {
    let mut session = running(1, &[1, 2]);
    session.received(ToWorker::Acked { results: vec![], logs: vec![] }, Elapsed(58_999));
    assert_eq!(session.take_actions(), []);
    session.received(ToWorker::Acked { results: vec![], logs: vec![] }, Elapsed(59_000));
    assert_eq!(session.take_actions(), [Action::Reconnect]);
    session.ended(finished(1, Outcome::Failed(Failure::signal(9)))).expect("wanted");
    assert_eq!(ran(&session.take_actions()), [], "the second waits for the verdict of the next greeting");
}

#[test]
fn heartbeats_go_out_in_time_and_silence_ends_the_stream() {
    let mut session = up(1);
    assert_eq!(session.next_wake(), Elapsed(10_000));
    session.tick(Elapsed(9_999));
    assert_eq!(session.take_actions(), []);
    for at in [10_000, 20_000] {
        session.tick(Elapsed(at));
        assert_eq!(session.take_actions(), [Action::Send(FromWorker::Heartbeat { sent: at })]);
    }
    session.tick(Elapsed(30_000));
    assert_eq!(session.take_actions(), [Action::Reconnect]);
    session.disconnected();
    session.tick(Elapsed(40_000));
    assert_eq!(session.take_actions(), [], "nobody is there to hear it");
    session.connected(Elapsed(41_000));
    session.take_actions();
    session.tick(Elapsed(71_000));
    assert_eq!(session.take_actions(), [Action::Reconnect], "a server that does not answer the greeting either");
}

#[test]
fn an_answer_breaks_the_silence() {
    let mut session = up(1);
    for at in (10_000..200_000).step_by(10_000) {
        session.tick(Elapsed(at));
        assert_eq!(session.take_actions(), [Action::Send(FromWorker::Heartbeat { sent: at })]);
        session.received(ToWorker::Lease { sent: at, lease: LEASE }, Elapsed(at + 5));
        session.take_actions();
    }
}

#[test]
fn a_new_life_delivers_the_results_of_the_last_and_drops_the_rest() {
    let recovered = vec![logs(3, 1, 5), logs(4, 2, 7), end(5, 1)];
    let mut session = Session::new(incarnation(), with_slots(1), recovered);
    assert_eq!(session.take_actions(), [Action::Forget(RecordId(4))], "its run died with the agent");
    session.connected(Elapsed(0));
    let hello = Hello {
        incarnation: incarnation(),
        info: Some(Box::new(with_slots(1))),
        held: vec![],
        ended: vec![id(1)],
        leaving: false,
    };
    assert_eq!(session.take_actions(), [Action::Send(FromWorker::Hello(hello))]);
    session.received(welcome(vec![keep(1, 0)]), Elapsed(0));
    assert_eq!(sent(&session.take_actions()), [3, 5]);
    assert_eq!(forgotten(&acked(&mut session, &[1], &[])), [3, 5]);
}

#[test]
fn what_it_is_now_is_said_before_what_it_gives_back_for_it() {
    let other = |name: &str| WorkerInfo { name: name.into(), ..with_slots(1) };
    let told = |actions: &[Action]| -> Vec<String> {
        let name = |action: &Action| match action {
            Action::Send(FromWorker::Info(info)) => Some(info.name.clone()),
            Action::Send(FromWorker::Hello(hello)) => hello.info.as_ref().map(|info| info.name.clone()),
            _ => None,
        };
        actions.iter().filter_map(name).collect()
    };
    let mut session = running(1, &[1]);
    session.redescribe(other("less"));
    session.ended(finished(1, Outcome::Released)).expect("wanted");
    session.spooled(end(0, 1));
    let actions = session.take_actions();
    assert_eq!((told(&actions), sent(&actions)), (vec!["less".to_owned()], vec![0]));
    assert!(matches!(actions[0], Action::Send(FromWorker::Info(_))), "{actions:?}");

    // While there is no stream it waits for the next greeting, and between greeting and welcome for the welcome.
    session.disconnected();
    session.redescribe(other("nothing"));
    assert_eq!(session.take_actions(), []);
    session.connected(Elapsed(0));
    session.redescribe(other("more"));
    assert_eq!(told(&session.take_actions()), ["nothing"]);
    session.received(welcome(vec![keep(1, 0)]), Elapsed(0));
    let actions = session.take_actions();
    assert_eq!(told(&actions), ["more"]);
    let at = |found: fn(&Action) -> bool| actions.iter().position(found);
    let (said, sent) = (at(|action| matches!(action, Action::Send(_))), at(|a| matches!(a, Action::SendRecord(_))));
    assert!(said.is_some() && said < sent, "{actions:?}");
    assert_eq!(told(&reconnect(&mut session, vec![keep(1, 0)])), ["more"], "the greeting alone says it");
}

#[test]
fn word_of_what_it_watches_over_waits_for_the_stream_and_is_bounded() {
    let news =
        |n: i64| Supervision { what: "a".into(), event: "worker_replaced".into(), detail: String::new(), at: Time(n) };
    let told = |actions: Vec<Action>| -> Vec<i64> {
        let at = |action| match action {
            Action::Send(FromWorker::Supervision(news)) => Some(news.at.0),
            _ => None,
        };
        actions.into_iter().filter_map(at).collect()
    };
    let mut session = up(1);
    session.supervised(news(1));
    assert_eq!(told(session.take_actions()), [1]);
    session.disconnected();
    (2..302).for_each(|n| session.supervised(news(n)));
    assert_eq!(told(reconnect(&mut session, Vec::new())), (46..302).collect::<Vec<_>>());
    assert_eq!(told(reconnect(&mut session, Vec::new())), []);
    session.received(ToWorker::RestartHandler { handler: "a".into() }, Elapsed(0));
    assert_eq!(session.take_actions(), [Action::RestartHandler("a".into())]);
}

fn stopped(actions: &[Action]) -> Vec<ExecutionId> {
    let stop = |action: &Action| if let Action::Stop { execution, .. } = action { Some(*execution) } else { None };
    actions.iter().filter_map(stop).collect()
}

#[test]
fn what_still_runs_at_the_deadline_of_a_drain_is_given_back() {
    let mut session = running(2, &[1, 2]);
    session.received(ToWorker::Drain { within: Some(Millis::seconds(5)) }, Elapsed(1000));
    assert_eq!(stopped(&session.take_actions()), [], "they may finish");
    assert_eq!(session.next_wake(), Elapsed(6000), "sooner than the next heartbeat");
    session.ended(finished(1, Outcome::Succeeded)).expect("wanted");
    session.tick(Elapsed(5999));
    assert_eq!(stopped(&session.take_actions()), []);
    session.tick(Elapsed(6000));
    assert_eq!(stopped(&session.take_actions()), [id(2)]);
    session.tick(Elapsed(6001));
    assert_eq!(stopped(&session.take_actions()), [], "once is enough");
    let failure = Failure::new(FailureKind::Signal, "killed");
    let given_back = session.ended(finished(2, Outcome::Failed(failure))).expect("wanted");
    assert_eq!(given_back.outcome, Outcome::Released, "it does not count as a run");
    session.spooled(end(0, 1));
    session.spooled(end(1, 2));
    let actions = acked(&mut session, &[1, 2], &[]);
    assert!(actions.contains(&Action::Exit { for_good: true }), "{actions:?}");
}

#[test]
fn a_later_drain_takes_the_place_of_an_earlier_one() {
    let mut session = running(1, &[1]);
    session.received(ToWorker::Drain { within: Some(Millis::seconds(5)) }, Elapsed(0));
    session.received(ToWorker::Drain { within: None }, Elapsed(1000));
    session.tick(Elapsed(9000));
    assert_eq!(stopped(&session.take_actions()), [], "no limit any more");
    session.received(ToWorker::Drain { within: Some(Millis::ZERO) }, Elapsed(9000));
    assert_eq!(stopped(&session.take_actions()), [id(1)], "at once");
}
