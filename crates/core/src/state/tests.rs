//! Every pair of a state and an event, written down once.

use super::*;
use uuid::Uuid;

const NOW: Time = Time(1000);
const LATER: Time = Time(5000);
const BEFORE: Time = Time(10);

fn execution(n: u128) -> ExecutionId {
    ExecutionId(Uuid::from_u128(n))
}

fn bound(n: u128) -> Run {
    Run { execution: execution(n), worker: WorkerId(Uuid::from_u128(77)) }
}

fn asked() -> Cancel {
    Cancel { reason: "first".into(), at: BEFORE }
}

/// The rows of the table.
fn states() -> Vec<(&'static str, State)> {
    use DelayReason::{Retry, Scheduled as Planned, Snoozed};
    use State::*;
    let run = bound(1);
    vec![
        ("delayed-scheduled", Delayed { until: LATER, reason: Planned }),
        ("delayed-retry", Delayed { until: LATER, reason: Retry }),
        ("delayed-snoozed", Delayed { until: LATER, reason: Snoozed }),
        ("pending", Pending { since: BEFORE }),
        ("scheduled", Scheduled { run, since: BEFORE, cancel: None }),
        ("scheduled+cancel", Scheduled { run, since: BEFORE, cancel: Some(asked()) }),
        ("running", Running { run, since: BEFORE, cancel: None }),
        ("running+cancel", Running { run, since: BEFORE, cancel: Some(asked()) }),
        ("succeeded", Succeeded { at: BEFORE }),
        ("failed", Failed { at: BEFORE }),
        ("timed_out", TimedOut { at: BEFORE }),
        ("cancelled", Cancelled { at: BEFORE, cancel: asked() }),
        ("waiting", Waiting { since: BEFORE }),
        ("blocked", Blocked { since: BEFORE, reason: "why".into() }),
    ]
}

/// The columns of the table. `!` marks an event that names an execution the job is not bound to.
fn events() -> Vec<(&'static str, Event)> {
    use AfterFailure::*;
    use Event::*;
    let (right, stale) = (execution(1), execution(2));
    vec![
        ("due", Due),
        ("assign", Assign(bound(3))),
        ("start", Start(right)),
        ("progress", Progress(right)),
        ("succeed", Succeed(right)),
        ("fail/at", Fail(right, RetryAt(LATER))),
        ("fail/now", Fail(right, RetryNow)),
        ("fail/up", Fail(right, GiveUp)),
        ("fail/time", Fail(right, GiveUpTimedOut)),
        ("release", Release(right)),
        ("confirm", ConfirmCancel(right)),
        ("cancel", Cancel("second".into())),
        ("qtimeout", QueueTimeout),
        ("reject", Reject),
        ("retry", Retry),
        ("rwhen", RetryWhenSatisfied),
        ("satis", Satisfied(None)),
        ("satis/at", Satisfied(Some(LATER))),
        ("snooze", Snooze(right, LATER)),
        ("block", Block(right, "why".into())),
        ("resume", Resume),
        ("start!", Start(stale)),
        ("progress!", Progress(stale)),
        ("succeed!", Succeed(stale)),
        ("fail/at!", Fail(stale, RetryAt(LATER))),
        ("fail/now!", Fail(stale, RetryNow)),
        ("fail/up!", Fail(stale, GiveUp)),
        ("fail/time!", Fail(stale, GiveUpTimedOut)),
        ("release!", Release(stale)),
        ("confirm!", ConfirmCancel(stale)),
        ("snooze!", Snooze(stale, LATER)),
        ("block!", Block(stale, "why".into())),
    ]
}

/// What each pair leads to. A dot: this state cannot take this event. `x`: the execution is stale. A state that is
/// bound to nothing finds every execution stale.
const TABLE: &str = "
                  due  assign start prog succ  f/at f/now f/up f/time rel  conf canc qtime rejct retry rwhen satis s/at snoo block resume
delayed-scheduled pend .      x     x    x     x    x     x    x      x    x    CANC .     .     .     .     .     .    x    x     .
delayed-retry     pend .      x     x    x     x    x     x    x      x    x    CANC .     .     pend  .     .     .    x    x     .
delayed-snoozed   pend .      x     x    x     x    x     x    x      x    x    CANC .     .     pend  .     .     .    x    x     .
pending           .    sched  x     x    x     x    x     x    x      x    x    CANC TIME  FAIL  .     .     .     .    x    x     .
scheduled         .    .      run   .    .     wait pend  FAIL TIME   pend .    s+c  .     .     .     .     .     .    .    .     .
scheduled+cancel  .    .      r+c   .    .     canc canc  canc canc   canc canc s+c1 .     .     .     .     .     .    .    .     .
running           .    .      .     same SUCC  wait pend  FAIL TIME   pend .    r+c2 .     .     .     .     .     .    SNOO BLOC  .
running+cancel    .    .      .     same SUCC  canc canc  canc canc   canc canc same .     .     .     .     .     .    canc canc  .
succeeded         .    .      x     x    x     x    x     x    x      x    x    .    .     .     .     .     .     .    x    x     .
failed            .    .      x     x    x     x    x     x    x      x    x    .    .     .     pend  WAIT  .     .    x    x     .
timed_out         .    .      x     x    x     x    x     x    x      x    x    .    .     .     pend  WAIT  .     .    x    x     .
cancelled         .    .      x     x    x     x    x     x    x      x    x    .    .     .     pend  WAIT  .     .    x    x     .
waiting           .    .      x     x    x     x    x     x    x      x    x    CANC .     .     .     .     pend  SCHE x    x     .
blocked           .    .      x     x    x     x    x     x    x      x    x    CANC .     .     .     .     .     .    x    x     pend
";

/// The meaning of a cell. Small `canc` keeps the cancel that was asked for; capital `CANC` is a new one.
fn meaning(cell: &str, from: &State, event: &Event) -> Result<State, IllegalEvent> {
    use State::*;
    let (run, second) = (bound(1), super::Cancel { reason: "second".into(), at: NOW });
    Ok(match cell {
        "." => return Err(IllegalEvent::NotInThisState { state: from.kind(), event: event.name() }),
        "x" => return Err(IllegalEvent::Stale(event.execution().expect("names an execution"))),
        "same" => from.clone(),
        "pend" => Pending { since: NOW },
        "wait" => Delayed { until: LATER, reason: DelayReason::Retry },
        "sched" => Scheduled { run: bound(3), since: NOW, cancel: None },
        "s+c" => Scheduled { run, since: BEFORE, cancel: Some(second) },
        "s+c1" => Scheduled { run, since: BEFORE, cancel: Some(asked()) },
        "run" => Running { run, since: NOW, cancel: None },
        "r+c" => Running { run, since: NOW, cancel: Some(asked()) },
        "r+c2" => Running { run, since: BEFORE, cancel: Some(second) },
        "canc" => Cancelled { at: NOW, cancel: asked() },
        "CANC" => Cancelled { at: NOW, cancel: second },
        "SUCC" => Succeeded { at: NOW },
        "SNOO" => Delayed { until: LATER, reason: DelayReason::Snoozed },
        "SCHE" => Delayed { until: LATER, reason: DelayReason::Scheduled },
        "BLOC" => Blocked { since: NOW, reason: "why".into() },
        "WAIT" => Waiting { since: NOW },
        "FAIL" => Failed { at: NOW },
        "TIME" => TimedOut { at: NOW },
        other => panic!("the table has no cell '{other}'"),
    })
}

#[test]
fn every_event_in_every_state_does_what_the_table_says() {
    let rows: Vec<&str> = TABLE.trim_start_matches('\n').lines().skip(1).collect();
    let (states, events) = (states(), events());
    assert_eq!(rows.len(), states.len(), "a row for each state");
    for (row, (name, state)) in rows.iter().zip(states) {
        let mut cells = row.split_whitespace();
        assert_eq!(cells.next(), Some(name));
        for (title, event) in &events {
            // Whatever the state, a stale execution changes nothing and is answered as stale.
            let cell = if title.ends_with('!') { "x" } else { cells.next().expect("a cell for each event") };
            assert_eq!(state.next(event, NOW), meaning(cell, &state, event), "{name} × {title}");
        }
        assert_eq!(cells.next(), None, "no cell without an event");
    }
}

/// The matches have no wildcard: who adds a state or an event is led here, to give it a row or a column.
#[test]
fn the_table_has_every_state_and_event() {
    let mut kinds: Vec<StateKind> = states().iter().map(|(_, state)| state.kind()).collect();
    kinds.dedup();
    assert_eq!(kinds, StateKind::ALL);
    let mut columns = [0; 17];
    for (_, event) in events() {
        let column = match event {
            Event::Due => 0,
            Event::Assign(_) => 1,
            Event::Start(_) => 2,
            Event::Progress(_) => 3,
            Event::Succeed(_) => 4,
            Event::Fail(_, AfterFailure::RetryAt(_) | AfterFailure::RetryNow) => 5,
            Event::Fail(_, AfterFailure::GiveUp | AfterFailure::GiveUpTimedOut) => 5,
            Event::Release(_) => 6,
            Event::ConfirmCancel(_) => 7,
            Event::Cancel(_) => 8,
            Event::QueueTimeout => 9,
            Event::Retry => 10,
            Event::RetryWhenSatisfied => 11,
            Event::Satisfied(_) => 12,
            Event::Snooze(..) => 13,
            Event::Block(..) => 14,
            Event::Resume => 15,
            Event::Reject => 16,
        };
        columns[column] += 1;
    }
    assert_eq!(columns, [1, 1, 2, 2, 2, 8, 2, 2, 1, 1, 1, 1, 2, 2, 2, 1, 1]);
}

#[test]
fn a_terminal_state_is_left_only_by_a_retry() {
    for (name, state) in states().into_iter().filter(|(_, state)| state.kind().is_finished()) {
        for (title, event) in events() {
            let again = matches!(event, Event::Retry | Event::RetryWhenSatisfied);
            let allowed = again && state.kind() != StateKind::Succeeded;
            assert_eq!(state.next(&event, NOW).is_ok(), allowed, "{name} × {title}");
        }
    }
}

#[test]
fn names_of_states_and_failures_can_be_read_back() {
    StateKind::ALL.iter().for_each(|kind| assert_eq!(StateKind::parse(kind.name()), Some(*kind)));
    FailureKind::ALL.iter().for_each(|kind| assert_eq!(FailureKind::parse(kind.name()), Some(*kind)));
    assert_eq!(StateKind::parse("asleep"), None);
}
