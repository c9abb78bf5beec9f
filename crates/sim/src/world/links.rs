//! Streams between agents and the server. Each keeps its order in both directions as long as it lasts; nothing orders
//! two streams, of one worker or of two.

use super::{Event, World, note};
use crate::{
    dice::For,
    plan::Way,
    trace::{About, show_down, show_up},
};
use hodei_core::{
    brain::{Connection, Input, Report},
    protocol::{FromWorker, ToWorker},
};

/// How long a call that opens a stream waits for an answer, and how long the agent then waits before the next.
const OPEN_PATIENCE: u64 = 3000;
const FIRST_WAIT: u64 = 50;
const LONGEST_WAIT: u64 = 1000;
/// Heartbeats that a stream may miss before the server gives it up.
const MISSED_HEARTBEATS: u64 = 3;

/// A stream, as both ends see it.
#[derive(Debug)]
pub(super) struct Link {
    pub agent: usize,
    pub server_life: u64,
    pub number: Connection,
    /// The server can still say something on it.
    pub to_agent: bool,
    /// The server still listens.
    pub from_agent: bool,
    /// Broken: nothing passes down any more. What the agent said, or says before it notices, is lost with `lose`, or
    /// arrives late, when the server may have heard of the next stream already.
    cut: bool,
    lose: bool,
    lingers_until: u64,
    last_heard: u64,
    sent_up: u64,
    sent_down: u64,
    up_until: u64,
    down_until: u64,
}

/// Numbers of streams start anew with each life of the server; these do not.
pub(super) fn link_key(server_life: u64, number: Connection) -> u64 {
    (server_life << 32) | number.0
}

impl World {
    // ---- opening ------------------------------------------------------------------------------------------------

    pub(super) fn open(&mut self, at: usize) {
        let agent = &mut self.agents[at];
        agent.attempt += 1;
        let (life, attempt) = (agent.life, agent.attempt);
        let delay = self.link_delay(For::Open, at, attempt << 1, life);
        if self.agents[at].cut_up_until <= self.now {
            self.after(delay, Event::OpenArrives(at, life, attempt));
        }
        self.after(OPEN_PATIENCE, Event::OpenFails(at, life, attempt));
    }

    pub(super) fn open_arrives(&mut self, at: usize, life: u64, attempt: u64) {
        if !self.server.takes_streams() {
            self.after(1, Event::OpenFails(at, life, attempt));
            return;
        }
        // What a provider made is removed by it.
        if self.store.worker(self.agents[at].id).is_none() && !self.agents[at].is_made() {
            self.after(1, Event::OpenRefused(at, life, attempt));
            return;
        }
        let number = self.server.new_connection();
        let key = link_key(self.server.life, number);
        let link = Link {
            agent: at,
            server_life: self.server.life,
            number,
            to_agent: true,
            from_agent: true,
            cut: false,
            lose: false,
            lingers_until: 0,
            last_heard: self.now,
            sent_up: 0,
            sent_down: 0,
            up_until: 0,
            down_until: 0,
        };
        self.links.insert(key, link);
        self.after(self.quiet_limit(), Event::Quiet(key));
        let delay = self.link_delay(For::Open, at, (attempt << 1) | 1, life);
        let heal = self.agents[at].cut_down_until;
        self.at((self.now + delay).max(heal), Event::Opened(at, life, attempt, key));
    }

    pub(super) fn opened(&mut self, at: usize, life: u64, attempt: u64, key: u64) {
        let agent = &self.agents[at];
        let wanted = agent.is_awake() && agent.life == life && agent.attempt == attempt && agent.link.is_none();
        if !wanted || self.links.get(&key).is_none_or(|link| link.cut) {
            self.hang_up(key);
            if wanted {
                self.open_fails(at, life, attempt);
            }
            return;
        }
        note!(self, "agent", at, "stream {key:x} is open");
        let now = self.agents[at].clock(self.now);
        let agent = &mut self.agents[at];
        (agent.link, agent.failures) = (Some(key), 0);
        agent.session.connected(now);
        self.pump(at);
    }

    pub(super) fn open_fails(&mut self, at: usize, life: u64, attempt: u64) {
        let agent = &mut self.agents[at];
        if agent.life == life && agent.attempt == attempt && agent.link.is_none() && agent.is_awake() {
            agent.failures += 1;
            let wait = (FIRST_WAIT << agent.failures.min(6)).min(LONGEST_WAIT);
            self.after(wait, Event::Reopen(at, life, attempt));
        }
    }

    /// The server knows its session no more. It ends, and somebody has it join anew.
    pub(super) fn open_refused(&mut self, at: usize, life: u64, attempt: u64) {
        let agent = &self.agents[at];
        if agent.life == life && agent.attempt == attempt && agent.link.is_none() && agent.is_awake() {
            note!(self, "agent", at, "is refused, and ends");
            self.joins_anew(at);
        }
    }

    pub(super) fn reopen(&mut self, at: usize, life: u64, attempt: u64) {
        let agent = &self.agents[at];
        if agent.life == life && agent.attempt == attempt && agent.link.is_none() && agent.is_awake() {
            self.open(at);
        }
    }

    // ---- carrying -----------------------------------------------------------------------------------------------

    fn link_delay(&self, what: For, at: usize, a: u64, b: u64) -> u64 {
        let (low, high) = self.shape.link;
        let mut rng = self.dice.roll(what, a, (b << 8) | at as u64);
        let (slow_until, extra, way) = self.agents[at].slow;
        let spared = matches!((what, way), (For::Up, Way::Down) | (For::Down, Way::Up));
        let extra = if slow_until > self.now && !spared { rng.u64(0..=extra) } else { 0 };
        rng.u64(low..=high) + extra
    }

    /// What is said while nothing passes arrives after what was said before.
    fn behind(&self, heal: u64) -> u64 {
        if heal > self.now { heal + 1 } else { 0 }
    }

    pub(super) fn send_up(&mut self, key: u64, message: FromWorker) {
        let Some(link) = self.links.get(&key) else { return };
        if link.lose {
            return;
        }
        let (at, n) = (link.agent, link.sent_up);
        let delay = self.link_delay(For::Up, at, key, n);
        let heal = self.behind(self.agents[at].cut_up_until);
        let Some(link) = self.links.get_mut(&key) else { return };
        link.sent_up += 1;
        link.up_until = link.up_until.max(self.now + delay).max(heal).max(link.lingers_until);
        let arrives = link.up_until;
        self.at(arrives, Event::Up(key, message));
    }

    pub(super) fn send_down(&mut self, key: u64, message: ToWorker) {
        let Some(link) = self.links.get(&key) else { return };
        if link.cut || !link.to_agent {
            return;
        }
        let arrives = self.next_down(key);
        self.at(arrives, Event::Down(key, message));
    }

    /// When the next thing that the server says on this stream arrives.
    fn next_down(&mut self, key: u64) -> u64 {
        let Some(link) = self.links.get(&key) else { return self.now };
        let (at, n) = (link.agent, link.sent_down);
        let delay = self.link_delay(For::Down, at, key, n);
        let heal = self.behind(self.agents[at].cut_down_until);
        let Some(link) = self.links.get_mut(&key) else { return self.now };
        link.sent_down += 1;
        link.down_until = link.down_until.max(self.now + delay).max(heal);
        link.down_until
    }

    pub(super) fn up(&mut self, key: u64, message: FromWorker) {
        let Some(link) = self.links.get(&key) else { return };
        let heal = self.agents[link.agent].cut_up_until.max(link.lingers_until);
        if link.lose || !link.from_agent || link.server_life != self.server.life || !self.server.is_up() {
            return;
        }
        if heal > self.now {
            self.put_off(heal, self.ticket, Event::Up(key, message));
            return;
        }
        self.hear(key, message);
    }

    fn hear(&mut self, key: u64, message: FromWorker) {
        let Some(link) = self.links.get_mut(&key) else { return };
        link.last_heard = self.now;
        let (at, number, can_answer) = (link.agent, link.number, link.to_agent && !link.cut);
        let worker = self.agents[at].id;
        let job = match &message {
            FromWorker::Logs(chunk) => Some(chunk.job),
            FromWorker::Started { execution, .. } => self.ledger.job_of(*execution),
            FromWorker::Finished(finished) => self.ledger.job_of(finished.execution),
            _ => None,
        };
        note!(self, "server", About::from((job, at)), "hears on {key:x}: {}", show_up(&message));
        let report = |report| Input::Report { caller: None, worker, report };
        match message {
            FromWorker::Hello(hello) => {
                self.heartbeat(worker);
                self.tell(Input::Connect { worker, connection: number, hello });
            }
            // On a stream that the server has closed there is no answer.
            FromWorker::Heartbeat { sent } if can_answer => {
                self.heartbeat(worker);
                self.send_down(key, ToWorker::Lease { sent, lease: self.shape.lease });
            }
            FromWorker::Heartbeat { .. } => {}
            FromWorker::Started { execution, at } => self.tell(report(Report::Started { execution, at })),
            FromWorker::Progress { execution, progress, data } => {
                self.tell(report(Report::Progress { execution, progress, data: data.map(Into::into) }));
            }
            FromWorker::Logs(chunk) => self.take_logs(worker, key, chunk),
            FromWorker::Finished(finished) => {
                let children = self.children_of(&finished);
                self.tell(report(Report::Finished(finished, children)));
            }
            FromWorker::Leaving if can_answer => self.tell(Input::Pause { caller: None, worker }),
            FromWorker::Leaving => {}
            FromWorker::Info(info) => self.tell(Input::Describe { worker, connection: number, info }),
            FromWorker::Supervision(news) => self.tell(Input::Supervised { worker, news }),
        }
    }

    pub(super) fn down(&mut self, key: u64, message: ToWorker) {
        let Some(link) = self.links.get(&key) else { return };
        let at = link.agent;
        let heal = self.agents[at].cut_down_until;
        if link.cut || self.agents[at].link != Some(key) || !self.agents[at].is_awake() {
            return;
        }
        if heal > self.now {
            self.put_off(heal, self.ticket, Event::Down(key, message));
            return;
        }
        let job = match &message {
            ToWorker::Run(assignments) => assignments.first().map(|assignment| assignment.job),
            ToWorker::Stop { execution, .. } => self.ledger.job_of(*execution),
            ToWorker::Acked { results, .. } => results.first().and_then(|execution| self.ledger.job_of(*execution)),
            _ => None,
        };
        note!(self, "agent", About::from((job, at)), "hears on {key:x}: {}", show_down(&message));
        let now = self.agents[at].clock(self.now);
        self.agents[at].session.received(message, now);
        self.pump(at);
    }

    // ---- ending -------------------------------------------------------------------------------------------------

    /// The server says nothing more on this stream; the agent hears of it after all that was said before.
    pub(super) fn close_down(&mut self, key: u64) {
        let arrives = self.next_down(key);
        if let Some(link) = self.links.get_mut(&key)
            && std::mem::replace(&mut link.to_agent, false)
            && !link.cut
        {
            self.at(arrives, Event::DownEnds(key));
        }
    }

    /// The agent is done with this stream; the server hears of it after all that was said before.
    pub(super) fn hang_up(&mut self, key: u64) {
        let Some(link) = self.links.get(&key) else { return };
        if link.cut {
            return;
        }
        let (at, n) = (link.agent, link.sent_up);
        let arrives = link.up_until.max(self.now + self.link_delay(For::Up, at, key, n));
        let arrives = arrives.max(self.behind(self.agents[at].cut_up_until));
        self.at(arrives, Event::UpEnds(key));
    }

    pub(super) fn up_ends(&mut self, key: u64) {
        let Some(link) = self.links.get_mut(&key) else { return };
        let heal = self.agents[link.agent].cut_up_until;
        if heal > self.now && !link.cut {
            self.put_off(heal, self.ticket, Event::UpEnds(key));
            return;
        }
        if std::mem::replace(&mut link.from_agent, false) && link.server_life == self.server.life {
            let (at, number) = (link.agent, link.number);
            note!(self, "server", at, "the stream {key:x} has ended");
            self.close_down(key);
            let worker = self.agents[at].id;
            self.tell(Input::Disconnect { worker, connection: number });
        }
        self.forget_link(key);
    }

    pub(super) fn down_ends(&mut self, key: u64) {
        let Some(link) = self.links.get(&key) else { return };
        let at = link.agent;
        let heal = self.agents[at].cut_down_until;
        if heal > self.now && !link.cut {
            self.put_off(heal, self.ticket, Event::DownEnds(key));
            return;
        }
        if self.agents[at].link == Some(key) && self.agents[at].is_awake() {
            note!(self, "agent", at, "the stream {key:x} has ended");
            self.drop_stream(at);
            self.pump(at);
        }
        self.forget_link(key);
    }

    /// A stream on which nothing was heard for too long is given up.
    pub(super) fn quiet(&mut self, key: u64) {
        let limit = self.quiet_limit();
        let Some(link) = self.links.get(&key) else { return };
        if !link.from_agent || link.server_life != self.server.life {
            return;
        }
        if link.last_heard + limit > self.now {
            let at = link.last_heard + limit;
            self.at(at, Event::Quiet(key));
        } else {
            note!(self, "server", link.agent, "nothing was heard on {key:x} for too long");
            self.up_ends_now(key);
        }
    }

    fn up_ends_now(&mut self, key: u64) {
        let Some(link) = self.links.get_mut(&key) else { return };
        link.from_agent = false;
        let (at, number) = (link.agent, link.number);
        self.close_down(key);
        let worker = self.agents[at].id;
        self.tell(Input::Disconnect { worker, connection: number });
    }

    fn quiet_limit(&self) -> u64 {
        self.heartbeat_length().0 * (MISSED_HEARTBEATS + 1)
    }

    /// A link that neither side has any more needs no memory.
    fn forget_link(&mut self, key: u64) {
        if let Some(link) = self.links.get(&key)
            && !link.from_agent
            && self.agents[link.agent].link != Some(key)
            && link.up_until.max(link.down_until) < self.now
        {
            self.links.remove(&key);
        }
    }

    /// Streams of a server that is gone: the agents find out.
    pub(super) fn break_all_links(&mut self) {
        let keys: Vec<u64> = self.links.keys().copied().collect();
        for key in keys {
            let Some(link) = self.links.get_mut(&key) else { continue };
            link.from_agent = false;
            if std::mem::replace(&mut link.to_agent, false) && !link.cut {
                let arrives = self.next_down(key);
                self.at(arrives, Event::DownEnds(key));
            }
        }
    }

    // ---- faults -------------------------------------------------------------------------------------------------

    pub(super) fn cut(&mut self, at: usize, lose: bool, server_learns: u64, agent_learns: u64) {
        let Some(key) = self.agents[at].link else { return };
        self.break_link(key, lose, server_learns, agent_learns);
    }

    pub(super) fn break_link(&mut self, key: u64, lose: bool, server_learns: u64, agent_learns: u64) {
        let Some(link) = self.links.get_mut(&key) else { return };
        (link.cut, link.lose) = (true, link.lose || lose);
        if !lose {
            link.lingers_until = self.now + server_learns;
        }
        self.after(server_learns + 1, Event::UpEnds(key));
        self.after(agent_learns, Event::DownEnds(key));
    }

    pub(super) fn partition(&mut self, at: usize, length: u64, way: Way, reset: bool) {
        let agent = &mut self.agents[at];
        let heal = self.now + length;
        if way != Way::Down {
            agent.cut_up_until = agent.cut_up_until.max(heal);
        }
        if way != Way::Up {
            agent.cut_down_until = agent.cut_down_until.max(heal);
        }
        self.at(heal, Event::Heal(at, reset));
    }

    pub(super) fn heal(&mut self, at: usize, reset: bool) {
        let of_agent = |link: &Link| link.agent == at && !link.cut;
        let keys: Vec<u64> = self.links.iter().filter(|(_, link)| of_agent(link)).map(|(key, _)| *key).collect();
        for key in keys {
            if reset {
                self.break_link(key, true, 0, 0);
            }
        }
    }
}
