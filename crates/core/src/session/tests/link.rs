//! A session and a small server over a link that breaks at any time.

use super::*;
use proptest::{prelude::*, test_runner::RngSeed};
use std::collections::BTreeMap;

#[derive(Clone, Debug)]
enum Step {
    Give,
    Print {
        run: u8,
        entries: u8,
        bytes: u32,
    },
    Finish(u8),
    /// The next message gets through.
    Up,
    Down,
    /// The server makes durable what it has, and says so.
    Store,
    Cut,
    Connect,
    Rebirth,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => Just(Step::Give),
        8 => (any::<u8>(), 1u8..5, 1u32..1_500_000).prop_map(|(run, entries, bytes)| Step::Print { run, entries, bytes }),
        4 => any::<u8>().prop_map(Step::Finish),
        16 => Just(Step::Up),
        16 => Just(Step::Down),
        6 => Just(Step::Store),
        2 => Just(Step::Cut),
        6 => Just(Step::Connect),
        1 => Just(Step::Rebirth),
    ]
}

#[derive(Clone, Copy, Debug)]
enum Content {
    Logs { first: u64, end: u64 },
    Finished { log_entries: u64 },
}

enum Message {
    Hello(Hello),
    Record(ExecutionId, Content),
}

/// What the server has of an execution.
#[derive(Default)]
struct Known {
    /// Entries received, and those of them that are durable.
    entries: u64,
    stored: u64,
    ended: bool,
    settled: bool,
    /// The run died with its agent: the server wants nothing more of it.
    lost: bool,
}

struct Pair {
    session: Session,
    lives: u128,
    connected: bool,
    spool: BTreeMap<RecordId, (Record, Content)>,
    next_record: u64,
    /// What each run has printed.
    running: BTreeMap<ExecutionId, u64>,
    up: VecDeque<Message>,
    down: VecDeque<ToWorker>,
    server: BTreeMap<ExecutionId, Known>,
    given: u128,
    /// The records that were sent on this connection and are not forgotten.
    under_way: BTreeMap<RecordId, usize>,
}

impl Pair {
    fn new() -> Self {
        Self {
            session: Session::new(incarnation(), with_slots(2), Vec::new()),
            lives: 0,
            connected: false,
            spool: BTreeMap::new(),
            next_record: 0,
            running: BTreeMap::new(),
            up: VecDeque::new(),
            down: VecDeque::new(),
            server: BTreeMap::new(),
            given: 0,
            under_way: BTreeMap::new(),
        }
    }

    fn take(&mut self, step: &Step) {
        match *step {
            Step::Give if self.connected && self.server.values().filter(|known| !known.ended).count() < 4 => {
                self.given += 1;
                self.server.insert(id(self.given), Known::default());
                self.down.push_back(ToWorker::Run(vec![assignment(self.given)]));
            }
            Step::Give => {}
            Step::Print { run, entries, bytes } => self.print(run, entries.into(), bytes as usize),
            Step::Finish(run) => self.finish(run),
            Step::Up => self.up(),
            Step::Down => self.down(),
            Step::Store => self.store(),
            Step::Cut => self.cut(),
            Step::Connect => self.connect(),
            Step::Rebirth => self.rebirth(),
        }
        self.pump();
    }

    fn pick(&self, run: u8) -> Option<ExecutionId> {
        self.running.keys().nth(usize::from(run) % self.running.len().max(1)).copied()
    }

    fn spool(&mut self, execution: ExecutionId, content: Content, bytes: usize) {
        let id = RecordId(self.next_record);
        self.next_record += 1;
        let kind = match content {
            Content::Logs { end, .. } => RecordKind::Logs { end },
            Content::Finished { .. } => RecordKind::Finished,
        };
        let record = Record { id, execution, kind, bytes };
        self.spool.insert(id, (record, content));
        self.session.spooled(record);
    }

    fn print(&mut self, run: u8, entries: u64, bytes: usize) {
        let Some(execution) = self.pick(run) else { return };
        let printed = self.running.entry(execution).or_default();
        let first = *printed;
        *printed += entries;
        self.spool(execution, Content::Logs { first, end: first + entries }, bytes);
    }

    fn finish(&mut self, run: u8) {
        let Some(execution) = self.pick(run) else { return };
        let log_entries = self.running.remove(&execution).unwrap_or(0);
        let end = Finished { log_entries, ..finished(0, Outcome::Succeeded) };
        if self.session.ended(Finished { execution, ..end }).is_some() {
            self.spool(execution, Content::Finished { log_entries }, 100);
        }
    }

    fn pump(&mut self) {
        for action in self.session.take_actions() {
            match action {
                Action::Send(FromWorker::Hello(hello)) => self.up.push_back(Message::Hello(hello)),
                Action::SendRecord(id) => {
                    let (record, content) = self.spool[&id];
                    let others: usize = self.under_way.values().sum();
                    assert!(others == 0 || others + record.bytes <= SEND_WINDOW, "the window is passed");
                    let before = self.under_way.insert(id, record.bytes);
                    assert_eq!(before, None, "a record is sent once on a connection");
                    self.up.push_back(Message::Record(record.execution, content));
                }
                Action::Forget(id) => self.forget(id),
                Action::Run(assignment) => {
                    self.running.insert(assignment.execution, 0);
                    assert!(self.running.len() <= 2, "more runs than slots");
                }
                Action::Stop { execution, why: StopReason::Stale } => _ = self.running.remove(&execution),
                _ => {}
            }
        }
    }

    /// Nothing is forgotten that the server does not have, unless it does not want it.
    fn forget(&mut self, id: RecordId) {
        self.under_way.remove(&id);
        let (record, content) = self.spool.remove(&id).expect("it is forgotten once");
        let known = &self.server[&record.execution];
        let safe = match content {
            Content::Logs { end, .. } => known.stored >= end,
            Content::Finished { .. } => known.settled,
        };
        assert!(safe || known.lost, "{record:?} was forgotten too early");
    }

    fn up(&mut self) {
        match self.up.pop_front() {
            None => {}
            Some(Message::Hello(hello)) => self.greet(&hello),
            Some(Message::Record(execution, content)) => self.receive(execution, content),
        }
    }

    fn greet(&mut self, hello: &Hello) {
        let named: Vec<ExecutionId> = hello.held.iter().chain(&hello.ended).copied().collect();
        for known in self.server.values_mut() {
            // What arrived and was not stored is not remembered: it comes again.
            known.entries = known.stored;
            known.ended = known.settled;
        }
        let verdict = |execution: &ExecutionId| {
            let known = &self.server[execution];
            let keep = !known.settled && !known.lost;
            Verdict { execution: *execution, keep, log_entries: known.stored }
        };
        self.down.push_back(welcome(named.iter().map(verdict).collect()));
        let unheard = self.server.iter().filter(|(id, known)| !known.settled && !known.lost && !named.contains(id));
        let again: Vec<Assignment> = unheard.map(|(id, _)| assignment(id.0.as_u128())).collect();
        self.down.push_back(ToWorker::Run(again));
    }

    fn receive(&mut self, execution: ExecutionId, content: Content) {
        let known = self.server.get_mut(&execution).expect("only what was given comes back");
        if known.lost {
            return;
        }
        match content {
            Content::Logs { first, end } => {
                assert!(first <= known.entries, "a gap in the log: {first} after {}", known.entries);
                known.entries = known.entries.max(end);
            }
            Content::Finished { log_entries } => {
                assert_eq!(known.entries, log_entries, "the result came before the end of the log");
                known.ended = true;
            }
        }
    }

    fn store(&mut self) {
        if self.up.iter().any(|message| matches!(message, Message::Hello(_))) {
            return;
        }
        let (mut results, mut logs) = (Vec::new(), Vec::new());
        for (execution, known) in &mut self.server {
            known.stored = known.entries;
            logs.push(LogAck { execution: *execution, entries: known.stored });
            if known.ended {
                known.settled = true;
                results.push(*execution);
            }
        }
        if self.connected {
            self.down.push_back(ToWorker::Acked { results, logs });
        }
    }

    fn down(&mut self) {
        if let Some(message) = self.down.pop_front() {
            self.session.received(message, Elapsed(0));
        }
    }

    fn cut(&mut self) {
        self.connected = false;
        self.up.clear();
        self.down.clear();
        self.under_way.clear();
        self.session.disconnected();
    }

    fn connect(&mut self) {
        if !self.connected {
            self.connected = true;
            self.session.connected(Elapsed(0));
        }
    }

    /// The agent dies with its runs; its spool stays, but for what belongs to no result.
    fn rebirth(&mut self) {
        self.cut();
        self.lives += 1;
        self.running.clear();
        let recovered: Vec<Record> = self.spool.values().map(|(record, _)| *record).collect();
        let ended = |execution: &ExecutionId| {
            recovered.iter().any(|record| record.execution == *execution && record.kind == RecordKind::Finished)
        };
        for (execution, known) in &mut self.server {
            known.lost |= !known.settled && !ended(execution);
        }
        self.session = Session::new(Incarnation(Uuid::from_u128(7 + self.lives)), with_slots(2), recovered.clone());
    }

    fn calm_down(&mut self) {
        for _ in 0..2000 {
            for step in [Step::Connect, Step::Up, Step::Down, Step::Up, Step::Down, Step::Finish(0), Step::Store] {
                self.take(&step);
            }
        }
        assert!(self.server.values().all(|known| known.settled || known.lost), "a result was never delivered");
        assert!(self.session.runs_nothing() && self.spool.is_empty(), "everything is forgotten in the end");
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 60, failure_persistence: None, rng_seed: RngSeed::Fixed(3), ..ProptestConfig::default()
    })]

    #[test]
    fn every_result_arrives_with_its_whole_log_whatever_the_link_does(steps in prop::collection::vec(step(), 50..400)) {
        let mut pair = Pair::new();
        for step in &steps {
            pair.take(step);
        }
        pair.calm_down();
    }
}
