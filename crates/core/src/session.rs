//! The worker's half of the protocol: what it holds, what it owes the server, and how long it may go on alone.
//!
//! Like the brain it does no IO. The agent around it feeds it what happens and carries out its [`Action`]s. Results and
//! log chunks are records: the agent writes each to its spool before the session hears of it, and the session decides
//! when it is sent, when it is sent again and when it may be forgotten.

use crate::{
    defect::{Defect, planted},
    id::{ExecutionId, IdMap, Incarnation},
    job::Progress,
    journal::Supervision,
    protocol::{Assignment, Finished, FromWorker, Hello, LogAck, StopReason, ToWorker, Welcome},
    state::Outcome,
    time::{Elapsed, Millis, Time},
    worker::WorkerInfo,
};
use std::collections::{VecDeque, hash_map::Entry};

#[cfg(test)]
mod tests;

/// The place of a record in the spool. Records are sent in this order, so a result never overtakes its log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecordId(pub u64);

/// What the session must know of a record; its contents stay in the spool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    pub id: RecordId,
    pub execution: ExecutionId,
    pub kind: RecordKind,
    pub bytes: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordKind {
    /// Log entries up to, not including, this number.
    Logs {
        end: u64,
    },
    Finished,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    Send(FromWorker),
    /// Read this record from the spool and send it.
    SendRecord(RecordId),
    /// The spool need not keep this record any longer.
    Forget(RecordId),
    Run(Assignment),
    Stop {
        execution: ExecutionId,
        why: StopReason,
    },
    /// An execution ended without ever having been started: spool this as its result, with the time of day.
    Conclude(Finished),
    /// Whatever runs must be gone by then.
    SetLease(Elapsed),
    /// A person wants the processes of this handler started anew.
    RestartHandler(String),
    /// Nothing was heard for too long: drop the stream and open a new one.
    Reconnect,
    /// Everything is finished and delivered. `for_good`: the operator wants this worker gone.
    Exit {
        for_good: bool,
    },
}

/// Bytes of records that may be under way at one time.
const SEND_WINDOW: usize = 2 << 20;
/// Word of what it watches over that may wait for the stream; older word is forgotten first.
const NEWS: usize = 256;
/// Until the server says otherwise.
const FIRST_HEARTBEAT: Millis = Millis::seconds(10);

#[derive(Debug)]
pub struct Session {
    incarnation: Incarnation,
    info: WorkerInfo,
    /// The server has been told something else.
    changed: bool,
    news: VecDeque<Supervision>,
    slots: usize,
    link: Link,
    heartbeat: Millis,
    next_heartbeat: Elapsed,
    last_heard: Elapsed,
    /// When the last sign of life left that the server has answered.
    renewed: Elapsed,
    /// The time when something was last heard or done, and when whatever runs must be gone.
    now: Elapsed,
    lease: Elapsed,
    /// The lease ran out on this connection: what was given under it may be with others by now, whatever lease follows.
    lapsed: bool,
    /// What runs, and what has ended and whose result is not acknowledged.
    held: IdMap<ExecutionId, Held>,
    /// How many of these run.
    running: usize,
    /// Given to us while what the server no longer counts is still being stopped.
    waiting: VecDeque<Assignment>,
    /// Records that were not sent on this connection, in their order. All below `next_to_send` are under way.
    unsent: VecDeque<Owed>,
    next_to_send: RecordId,
    in_flight: usize,
    leaving: Option<Leaving>,
    /// What still runs then is given back.
    release_at: Option<Elapsed>,
    actions: VecDeque<Action>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Link {
    Down,
    /// Hello was sent at this time, and nothing else may be before its answer.
    Greeting(Elapsed),
    Up,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Leaving {
    for_good: bool,
}

/// An execution, and what the server has not acknowledged of it.
#[derive(Debug, Default)]
struct Held {
    /// None when it has ended.
    run: Option<Run>,
    /// Chunks of its log, each with the number of the entry that comes after it.
    logs: VecDeque<(Owed, u64)>,
    result: Option<Owed>,
}

#[derive(Clone, Copy, Debug)]
struct Owed {
    id: RecordId,
    bytes: usize,
}

#[derive(Debug, Default)]
struct Run {
    started_at: Option<Time>,
    /// Apart from the rest, because few executions report.
    report: Option<Box<Report>>,
    /// Stopped by us in order: the server shall not count this run.
    releasing: bool,
    /// The server has given the job to others: nothing of this run interests it any more.
    dropped: bool,
}

#[derive(Debug, Default)]
struct Report {
    progress: Progress,
    /// What the job's data is by its last word on it.
    data: Option<Vec<u8>>,
}

impl Held {
    fn ended() -> Self {
        Self::default()
    }

    fn running() -> Self {
        Self { run: Some(Run::default()), ..Self::default() }
    }

    fn is_dropped(&self) -> bool {
        self.run.as_ref().is_some_and(|run| run.dropped)
    }

    /// Takes all that is owed, in order.
    fn settle(&mut self) -> impl Iterator<Item = Owed> + use<> {
        std::mem::take(&mut self.logs).into_iter().map(|(owed, _)| owed).chain(self.result.take())
    }

    fn owed(&self) -> impl Iterator<Item = Owed> {
        self.logs.iter().map(|(owed, _)| *owed).chain(self.result)
    }
}

impl Session {
    /// `recovered` are the records that an earlier life left in the spool.
    pub fn new(incarnation: Incarnation, info: WorkerInfo, recovered: Vec<Record>) -> Self {
        let finished = recovered.iter().filter(|record| record.kind == RecordKind::Finished);
        let held = finished.map(|record| (record.execution, Held::ended())).collect();
        let mut session = Self {
            incarnation,
            slots: info.capacity.slots as usize,
            info,
            changed: false,
            news: VecDeque::new(),
            link: Link::Down,
            heartbeat: FIRST_HEARTBEAT,
            next_heartbeat: Elapsed(0),
            last_heard: Elapsed(0),
            renewed: Elapsed(0),
            now: Elapsed(0),
            lease: Elapsed(0),
            lapsed: false,
            held,
            running: 0,
            waiting: VecDeque::new(),
            unsent: VecDeque::new(),
            next_to_send: RecordId(0),
            in_flight: 0,
            leaving: None,
            release_at: None,
            actions: VecDeque::new(),
        };
        recovered.into_iter().for_each(|record| session.spooled(record));
        session
    }

    /// What is to be done, in order.
    pub fn take_actions(&mut self) -> Vec<Action> {
        self.actions.drain(..).collect()
    }

    /// The first of it.
    pub fn next_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    pub fn next_wake(&self) -> Elapsed {
        self.release_at.map_or(self.next_heartbeat, |at| at.min(self.next_heartbeat))
    }

    pub fn is_up(&self) -> bool {
        self.link == Link::Up
    }

    // ---- the stream ---------------------------------------------------------------------------------------------

    pub fn connected(&mut self, now: Elapsed) {
        self.cut();
        (self.link, self.last_heard, self.now) = (Link::Greeting(now), now, now);
        self.next_heartbeat = now + self.heartbeat;
        let waiting = self.waiting.iter().map(|waiting| waiting.execution);
        let held = self.executions(|held| held.run.is_some()).into_iter().chain(waiting).collect();
        let ended = self.executions(|held| held.run.is_none());
        self.changed = false;
        self.send(FromWorker::Hello(Hello {
            incarnation: self.incarnation,
            info: Some(Box::new(self.info.clone())),
            held,
            ended,
            leaving: self.leaving.is_some(),
        }));
    }

    pub fn disconnected(&mut self) {
        self.cut();
        self.exit_if_done();
    }

    fn cut(&mut self) {
        self.link = Link::Down;
        if !planted(Defect::NotSentAgain) {
            (self.in_flight, self.next_to_send) = (0, RecordId(0));
            self.unsent = self.held.values().flat_map(Held::owed).collect();
            self.unsent.make_contiguous().sort_unstable_by_key(|owed| owed.id);
        }
    }

    /// Those of which this is true, in an order that depends on nothing else.
    fn executions(&self, such: impl Fn(&Held) -> bool) -> Vec<ExecutionId> {
        let mut found: Vec<_> = self.held.iter().filter(|(_, held)| such(held)).map(|(id, _)| *id).collect();
        found.sort_unstable();
        found
    }

    pub fn received(&mut self, message: ToWorker, now: Elapsed) {
        self.last_heard = now;
        self.watch_lease(now);
        match message {
            ToWorker::Welcome(welcome) => self.welcomed(welcome),
            ToWorker::Run(assignments) => assignments.into_iter().for_each(|assignment| self.assigned(assignment)),
            ToWorker::Stop { execution, why: StopReason::Stale } => self.drop_execution(execution),
            ToWorker::Stop { execution, why } => self.stop(execution, why),
            ToWorker::Lease { sent, lease } => {
                self.renewed = self.renewed.max(Elapsed(sent));
                self.extend_lease(Elapsed(sent), lease);
            }
            // It may have been on its way for long: it was said after the last sign of life that was answered.
            ToWorker::Park { lease } => self.extend_lease(self.renewed, lease),
            ToWorker::Acked { results, logs } => self.acked(&results, &logs),
            ToWorker::Drain { within } => {
                self.release_at = within.map(|within| now + within);
                self.leave(true);
            }
            ToWorker::RestartHandler { handler } => self.actions.push_back(Action::RestartHandler(handler)),
        }
        self.release_if_due();
        self.settle();
    }

    fn welcomed(&mut self, welcome: Welcome) {
        let Link::Greeting(asked) = self.link else { return };
        self.link = Link::Up;
        self.heartbeat = welcome.heartbeat;
        self.next_heartbeat = asked + self.heartbeat;
        self.lapsed = false;
        self.renewed = asked;
        self.set_lease(self.lease_end(asked, welcome.lease));
        self.watch_lease(self.now);
        // The greeting may have left before the wish to leave came.
        if self.leaving.is_some() {
            self.send(FromWorker::Leaving);
        }
        self.tell();
        for verdict in welcome.held {
            if verdict.keep {
                self.forget_logs(LogAck { execution: verdict.execution, entries: verdict.log_entries });
            } else {
                self.drop_execution(verdict.execution);
            }
        }
        for execution in self.executions(|held| held.run.is_some()) {
            let Some(run) = self.held.get(&execution).and_then(|held| held.run.as_ref()) else { continue };
            let started = run.started_at.map(|at| FromWorker::Started { execution, at });
            let report = run.report.as_ref().map(|report| FromWorker::Progress {
                execution,
                progress: report.progress.clone(),
                data: report.data.clone(),
            });
            self.actions.extend(started.into_iter().chain(report).map(Action::Send));
        }
    }

    /// The server wants nothing more to do with it.
    fn drop_execution(&mut self, execution: ExecutionId) {
        self.waiting.retain(|waiting| waiting.execution != execution);
        self.forget_all(execution);
        if let Some(run) = self.run(execution) {
            run.dropped = true;
            self.actions.push_back(Action::Stop { execution, why: StopReason::Stale });
        }
    }

    /// The answer to a heartbeat may come after a longer lease was given: it does not shorten it.
    fn extend_lease(&mut self, from: Elapsed, lease: Millis) {
        self.set_lease(self.lease.max(self.lease_end(from, lease)));
    }

    /// A lease that ran out can be renewed too late for what was given under it. Only a new greeting tells what still is
    /// this worker's.
    fn watch_lease(&mut self, now: Elapsed) {
        self.now = now;
        if self.is_up() && !self.lapsed && now >= self.lease {
            self.lapsed = true;
            self.actions.push_back(Action::Reconnect);
        }
    }

    /// The worker stops a little before the server thinks it must, so that both may be slow.
    fn lease_end(&self, from: Elapsed, lease: Millis) -> Elapsed {
        let from = if planted(Defect::LeaseFromReceipt) { self.now } else { from };
        let margin = (lease.0 / 10).min(1000);
        from + Millis(lease.0 - margin)
    }

    fn set_lease(&mut self, until: Elapsed) {
        self.lease = until;
        self.actions.push_back(Action::SetLease(until));
    }

    fn send(&mut self, message: FromWorker) {
        self.actions.push_back(Action::Send(message));
    }

    fn send_if_up(&mut self, message: FromWorker) {
        if self.is_up() {
            self.send(message);
        }
    }

    pub fn tick(&mut self, now: Elapsed) {
        self.watch_lease(now);
        self.release_if_due();
        if now < self.next_heartbeat {
            return;
        }
        self.next_heartbeat = now + self.heartbeat;
        if self.link == Link::Down {
            return;
        }
        if now - self.last_heard >= Millis(self.heartbeat.0.saturating_mul(3)) {
            self.actions.push_back(Action::Reconnect);
        } else {
            self.send_if_up(FromWorker::Heartbeat { sent: now.0 });
        }
    }

    // ---- what it is, and what it watches over -----------------------------------------------------------------------

    pub fn info(&self) -> &WorkerInfo {
        &self.info
    }

    /// It is something else from now on. Its size stays.
    pub fn redescribe(&mut self, info: WorkerInfo) {
        self.changed = true;
        self.info = info;
        self.tell();
    }

    /// What the server should hear of what it watches over.
    pub fn supervised(&mut self, news: Supervision) {
        if self.news.len() == NEWS {
            self.news.pop_front();
        }
        self.news.push_back(news);
        self.tell();
    }

    /// Before anything else is said: what is given back because of it must not come again.
    fn tell(&mut self) {
        if !self.is_up() {
            return;
        }
        if std::mem::take(&mut self.changed) {
            self.send(FromWorker::Info(Box::new(self.info.clone())));
        }
        for news in std::mem::take(&mut self.news) {
            self.send(FromWorker::Supervision(news));
        }
    }

    // ---- work ---------------------------------------------------------------------------------------------------

    fn assigned(&mut self, assignment: Assignment) {
        let id = assignment.execution;
        let known = self.held.contains_key(&id) || self.waiting.iter().any(|waiting| waiting.execution == id);
        if !known {
            self.waiting.push_back(assignment);
        }
    }

    fn stop(&mut self, execution: ExecutionId, why: StopReason) {
        if self.run(execution).is_some() {
            self.actions.push_back(Action::Stop { execution, why });
        } else if let Some(at) = self.waiting.iter().position(|waiting| waiting.execution == execution) {
            self.waiting.remove(at);
            self.conclude(execution, Outcome::Cancelled);
        }
    }

    fn conclude(&mut self, execution: ExecutionId, outcome: Outcome) {
        self.held.insert(execution, Held::ended());
        self.actions.push_back(Action::Conclude(Finished::new(execution, outcome, Time(0))));
    }

    fn run(&mut self, execution: ExecutionId) -> Option<&mut Run> {
        self.held.get_mut(&execution)?.run.as_mut()
    }

    pub fn started(&mut self, execution: ExecutionId, at: Time) {
        if let Some(run) = self.run(execution) {
            run.started_at = Some(at);
            self.send_if_up(FromWorker::Started { execution, at });
        }
    }

    pub fn progress(&mut self, execution: ExecutionId, progress: Progress, data: Option<Vec<u8>>) {
        if let Some(run) = self.run(execution) {
            let report = run.report.get_or_insert_default();
            report.progress = progress.clone();
            report.data = data.clone().or(report.data.take());
            self.send_if_up(FromWorker::Progress { execution, progress, data });
        }
    }

    /// An execution ended. The agent spools what this returns, if anything: it may differ from what the process said,
    /// and nobody wants the end of an execution that the server has dropped.
    pub fn ended(&mut self, mut finished: Finished) -> Option<Finished> {
        let held = self.held.get_mut(&finished.execution)?;
        let run = held.run.take()?;
        self.running -= 1;
        let well = matches!(finished.outcome, Outcome::Succeeded | Outcome::Snoozed { .. } | Outcome::Blocked { .. });
        if run.releasing && !well {
            finished.outcome = Outcome::Released;
        }
        if run.dropped {
            self.held.remove(&finished.execution);
        }
        self.settle();
        (!run.dropped).then_some(finished)
    }

    /// A record is in the spool.
    pub fn spooled(&mut self, record: Record) {
        let owed = Owed { id: record.id, bytes: record.bytes };
        match (self.held.get_mut(&record.execution).filter(|held| !held.is_dropped()), record.kind) {
            (Some(held), RecordKind::Logs { end }) => held.logs.push_back((owed, end)),
            (Some(held @ Held { result: None, .. }), RecordKind::Finished) => held.result = Some(owed),
            _ => {
                self.actions.push_back(Action::Forget(record.id));
                return;
            }
        }
        self.unsent.push_back(owed);
        self.settle();
    }

    fn acked(&mut self, results: &[ExecutionId], logs: &[LogAck]) {
        logs.iter().for_each(|ack| self.forget_logs(*ack));
        results.iter().for_each(|execution| self.forget_all(*execution));
    }

    fn forget_logs(&mut self, ack: LogAck) {
        while let Some(held) = self.held.get_mut(&ack.execution)
            && let Some((owed, _)) = held.logs.pop_front_if(|(_, end)| *end <= ack.entries)
        {
            self.forget(owed);
        }
    }

    /// Nothing of an execution is owed any more.
    fn forget_all(&mut self, execution: ExecutionId) {
        let Entry::Occupied(mut held) = self.held.entry(execution) else { return };
        let owed = held.get_mut().settle();
        if held.get().run.is_none() {
            held.remove();
        }
        owed.for_each(|owed| self.forget(owed));
    }

    fn forget(&mut self, owed: Owed) {
        if owed.id < self.next_to_send {
            self.in_flight -= owed.bytes;
        } else if let Ok(at) = self.unsent.binary_search_by_key(&owed.id, |unsent| unsent.id) {
            self.unsent.remove(at);
        }
        self.actions.push_back(Action::Forget(owed.id));
    }

    // ---- leaving ------------------------------------------------------------------------------------------------

    /// Takes no more work, finishes what runs, then exits.
    pub fn leave(&mut self, for_good: bool) {
        let for_good = for_good || self.leaving.is_some_and(|leaving| leaving.for_good);
        if self.leaving.is_none() {
            self.send_if_up(FromWorker::Leaving);
        }
        self.leaving = Some(Leaving { for_good });
        self.settle();
    }

    /// The same, but stops what runs and gives it back.
    pub fn release(&mut self) {
        self.leave(false);
        for execution in self.executions(|held| held.run.is_some()) {
            if let Some(run) = self.run(execution) {
                run.releasing = true;
            }
            self.actions.push_back(Action::Stop { execution, why: StopReason::Cancelled });
        }
    }

    /// The time to finish is over.
    fn release_if_due(&mut self) {
        if self.release_at.is_some_and(|at| at <= self.now) {
            self.release_at = None;
            self.release();
        }
    }

    pub fn runs_nothing(&self) -> bool {
        self.running == 0 && self.waiting.is_empty()
    }

    /// Whether something runs, or the server has not acknowledged all that has ended.
    pub fn owes(&self) -> bool {
        !self.held.is_empty() || !self.waiting.is_empty()
    }

    // ---- what follows from all of it ------------------------------------------------------------------------------

    fn settle(&mut self) {
        self.start_waiting();
        self.send_records();
        self.exit_if_done();
    }

    /// A server that has been greeted hears first that this worker leaves: otherwise it would wait for it to come back.
    fn exit_if_done(&mut self) {
        if let Some(Leaving { for_good }) = self.leaving
            && !matches!(self.link, Link::Greeting(_))
            && !self.owes()
        {
            self.actions.push_back(Action::Exit { for_good });
        }
    }

    fn start_waiting(&mut self) {
        if self.leaving.is_some() {
            while let Some(waiting) = self.waiting.pop_front() {
                self.conclude(waiting.execution, Outcome::Released);
            }
        }
        while !self.lapsed
            && self.now < self.lease
            && self.running < self.slots
            && let Some(assignment) = self.waiting.pop_front()
        {
            self.held.insert(assignment.execution, Held::running());
            self.running += 1;
            self.actions.push_back(Action::Run(assignment));
        }
    }

    fn send_records(&mut self) {
        if !self.is_up() {
            return;
        }
        let room = |in_flight: usize, owed: &Owed| in_flight == 0 || in_flight + owed.bytes <= SEND_WINDOW;
        while let Some(Owed { id, bytes }) = self.unsent.pop_front_if(|owed| room(self.in_flight, owed)) {
            self.next_to_send = RecordId(id.0 + 1);
            self.in_flight += bytes;
            self.actions.push_back(Action::SendRecord(id));
        }
    }
}
