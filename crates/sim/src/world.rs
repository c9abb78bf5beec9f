//! A whole cluster: a server with its disk, workers with their guardians, the network between them, and the people who
//! call. Everything that happens is an event with a time, and one step handles one event.
//!
//! The brain and the session are the real ones. What is around them in production, the loop of the server, the agent,
//! the spool and the guardian, is played here by `server.rs` and `agent.rs`, with the same rules.

mod agent;
mod calls;
mod checks;
mod links;
mod providers;
mod schedules;
mod server;

use crate::{
    defect::Defect,
    dice::Dice,
    plan::{Fault, Plan, Shape, What},
    store::Store,
    trace::{About, Trace},
};
use agent::{Agent, Notice};
use calls::{Ask, Call, Reply};
use checks::Ledger;
use hodei_core::{
    brain::{Effect, Input},
    id::{ExecutionId, JobId, WorkerId},
    protocol::{FromWorker, ToWorker},
    time::{Elapsed, Time},
};
use links::Link;
use providers::Makers;
use server::Server;
use std::{
    cmp::Ordering,
    collections::{BTreeMap, BinaryHeap},
};
use uuid::Uuid;

pub use checks::{Broken, Rule};

/// Where the wall clocks stand at the beginning.
const FIRST_DAY: i64 = 1_000_000_000;
/// With no faults left, something must be finished at least once in this time.
const PATIENCE: u64 = 120_000;

#[derive(Debug)]
enum Event {
    Planned(usize),
    /// After the calm has begun: is everything done?
    Look,

    ServerBoots,
    ServerThaws,
    Turn(u64),
    Wake(u64, u64),
    /// The disk does what it was asked to; then the server hears of it.
    Disk(u64),
    Landed(u64, bool),
    DiskAgain(u64),
    Read(u64, Effect),
    Page(u64, Input),

    OpenArrives(usize, u64, u64),
    Opened(usize, u64, u64, u64),
    OpenFails(usize, u64, u64),
    OpenRefused(usize, u64, u64),
    Reopen(usize, u64, u64),
    Up(u64, FromWorker),
    UpEnds(u64),
    Down(u64, ToWorker),
    DownEnds(u64),
    Quiet(u64),
    Heal(usize, bool),

    CallArrives(usize, u32),
    Answer(usize, u32, Reply),
    CallAgain(usize, u32),

    AgentBoots(usize, u64),
    AgentThaws(usize, u64),
    Tick(usize, u64, u64),
    Begins(usize, ExecutionId),
    Prints(usize, ExecutionId, u64),
    Ends(usize, ExecutionId),
    LeaseEnds(usize, u64),
    PipeCloses(usize, u64),
    Notice(usize, u64, Notice),

    MakerMakes(u64, usize, WorkerId),
    MakerRemoves(u64, usize, WorkerId),
    MakerInspects(u64, usize, WorkerId),
    MakerLooks(u64, usize),
    MakerSays(u64, Input),
    TwinRefused(usize),
    DiesYoung(usize),
}

struct Queued {
    at: u64,
    ticket: u64,
    event: Event,
}

impl PartialEq for Queued {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Queued {}

impl PartialOrd for Queued {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Queued {
    /// The earliest is the greatest, because a heap gives out the greatest.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.ticket).cmp(&(self.at, self.ticket))
    }
}

pub struct World {
    dice: Dice,
    shape: Shape,
    defect: Option<Defect>,
    plan: Plan,
    now: u64,
    queue: BinaryHeap<Queued>,
    tickets: u64,
    /// That of the event that happens now.
    ticket: u64,
    pub steps: u64,
    /// Ends with children that reached the server.
    parents: u64,
    server: Server,
    store: Store,
    agents: Vec<Agent>,
    links: BTreeMap<u64, Link>,
    calls: Vec<Call>,
    makers: Makers,
    ledger: Ledger,
    pub trace: Trace,
    done: bool,
    /// How many jobs had ended at the last look, and when that was new.
    progress: (u64, u64),
}

/// Writes a line of the trace, if there is one.
macro_rules! note {
    ($world:expr, $who:expr, $about:expr, $($words:tt)*) => {
        if $world.trace.is_on() {
            let (at, who, about) = ($world.now, $who, About::from($about));
            $world.trace.push(at, who, about, format!($($words)*));
        }
    };
}
use note;

impl World {
    pub fn new(plan: &Plan, defect: Option<Defect>, traced: bool) -> Self {
        hodei_core::defect::plant(defect.and_then(Defect::in_core));
        let dice = Dice::new(plan.seed);
        let mut world = Self {
            dice,
            defect,
            shape: plan.shape.clone(),
            now: 0,
            queue: BinaryHeap::new(),
            tickets: 0,
            ticket: 0,
            steps: 0,
            parents: 0,
            server: Server::new(dice),
            store: Store::default(),
            agents: (0..plan.shape.agents).map(|index| Agent::new(index, plan, dice)).collect(),
            links: BTreeMap::new(),
            calls: Vec::new(),
            makers: Makers::default(),
            ledger: Ledger::default(),
            trace: Trace::new(traced),
            done: false,
            progress: (0, 0),
            plan: plan.clone(),
        };
        world.after(0, Event::ServerBoots);
        for index in 0..world.agents.len() {
            world.register(index);
        }
        world.add_makers();
        for (index, item) in plan.items.iter().enumerate() {
            world.at(item.at, Event::Planned(index));
        }
        world.at(world.shape.calm, Event::Look);
        world
    }

    /// One step; false when everything is over and done.
    pub fn step(&mut self) -> bool {
        let Some(Queued { at, ticket, event }) = self.queue.pop() else { return false };
        (self.now, self.ticket) = (at, ticket);
        self.steps += 1;
        self.handle(event);
        !self.done
    }

    pub fn time(&self) -> u64 {
        self.now
    }

    pub fn jobs_finished(&self) -> u64 {
        self.ledger.finished()
    }

    fn is(&self, defect: Defect) -> bool {
        self.defect == Some(defect)
    }

    fn at(&mut self, at: u64, event: Event) {
        self.tickets += 1;
        self.queue.push(Queued { at: at.max(self.now), ticket: self.tickets, event });
    }

    fn after(&mut self, delay: u64, event: Event) {
        self.at(self.now + delay, event);
    }

    /// Puts off what was to happen earlier. It keeps its place: what was said after it and is due at the same moment still
    /// comes after it.
    fn put_off(&mut self, at: u64, ticket: u64, event: Event) {
        self.queue.push(Queued { at, ticket, event });
    }

    fn is_calm(&self) -> bool {
        self.now >= self.shape.calm
    }

    /// What happens to somebody who is stopped waits until he goes on.
    fn handle(&mut self, event: Event) {
        use Event::*;
        match &event {
            Turn(_) | Wake(..) | Landed(..) | DiskAgain(_) | Page(..) | MakerSays(..) | OpenArrives(..) | Up(..)
            | UpEnds(_) | Quiet(_) | CallArrives(..)
                if self.server.is_frozen() =>
            {
                self.server.keep(self.ticket, event);
                return;
            }
            Opened(agent, ..)
            | OpenFails(agent, ..)
            | OpenRefused(agent, ..)
            | Reopen(agent, ..)
            | Tick(agent, ..)
            | Notice(agent, ..)
                if self.agents[*agent].is_frozen() =>
            {
                self.agents[*agent].keep(self.ticket, event);
                return;
            }
            Down(link, _) | DownEnds(link) => {
                if let Some(agent) = self.links.get(link).map(|link| link.agent)
                    && self.agents[agent].is_frozen()
                {
                    self.agents[agent].keep(self.ticket, event);
                    return;
                }
            }
            _ => {}
        }
        match event {
            Planned(index) => self.planned(index),
            Look => self.look(),
            ServerBoots => self.boot_server(),
            ServerThaws => self.thaw_server(),
            Turn(life) => self.turn_due(life),
            Wake(life, generation) => self.wake(life, generation),
            Disk(life) => self.disk(life),
            Landed(life, well) => self.landed(life, well),
            DiskAgain(life) => self.disk_again(life),
            Read(life, effect) => self.read(life, effect),
            Page(life, input) => self.page(life, input),
            OpenArrives(agent, life, attempt) => self.open_arrives(agent, life, attempt),
            Opened(agent, life, attempt, link) => self.opened(agent, life, attempt, link),
            OpenFails(agent, life, attempt) => self.open_fails(agent, life, attempt),
            OpenRefused(agent, life, attempt) => self.open_refused(agent, life, attempt),
            Reopen(agent, life, attempt) => self.reopen(agent, life, attempt),
            Up(link, message) => self.up(link, message),
            UpEnds(link) => self.up_ends(link),
            Down(link, message) => self.down(link, message),
            DownEnds(link) => self.down_ends(link),
            Quiet(link) => self.quiet(link),
            Heal(agent, reset) => self.heal(agent, reset),
            CallArrives(call, attempt) => self.call_arrives(call, attempt),
            Answer(call, attempt, reply) => self.answered(call, attempt, reply),
            CallAgain(call, attempt) => self.call_again(call, attempt),
            AgentBoots(agent, life) => self.boot_agent(agent, life),
            AgentThaws(agent, life) => self.thaw_agent(agent, life),
            Tick(agent, life, generation) => self.tick(agent, life, generation),
            Begins(agent, execution) => self.begins(agent, execution),
            Prints(agent, execution, lines) => self.prints(agent, execution, lines),
            Ends(agent, execution) => self.ends(agent, execution),
            LeaseEnds(agent, generation) => self.lease_ends(agent, generation),
            PipeCloses(agent, life) => self.pipe_closes(agent, life),
            Notice(agent, life, notice) => self.notice(agent, life, notice),
            MakerMakes(life, maker, worker) => self.maker_makes(life, maker, worker),
            MakerRemoves(life, maker, worker) => self.maker_removes(life, maker, worker),
            MakerInspects(life, maker, worker) => self.maker_inspects(life, maker, worker),
            MakerLooks(life, maker) => self.maker_looks(life, maker),
            MakerSays(life, input) => self.maker_says(life, input),
            TwinRefused(agent) => self.twin_refused(agent),
            DiesYoung(agent) => self.crash_agent(agent, 0),
        }
    }

    // ---- what was planned ---------------------------------------------------------------------------------------

    fn planned(&mut self, index: usize) {
        let item = self.plan.items[index].clone();
        match item.what {
            What::Enqueue { kind, count, links } => self.call(Call::new(item.key, Ask::Enqueue { kind, count, links })),
            What::Resume { pick } => {
                if let Some(job) = self.ledger.blocked(pick) {
                    self.call(Call::new(item.key, Ask::Resume(job)));
                }
            }
            What::Scheduler(settings) => self.call(Call::new(item.key, Ask::Scheduler(settings))),
            What::Queue { queue, order } => self.call(Call::new(item.key, Ask::Queue(queue, order))),
            What::Cancel { pick } => self.call_on_job(item.key, pick, true),
            What::Retry { pick } => self.call_on_job(item.key, pick, false),
            What::Forget { pick } => {
                if let Some(job) = self.ledger.disposable(pick) {
                    self.call(Call::new(item.key, Ask::Forget(job)));
                }
            }
            What::Schedule(scheduled) => self.call(Call::schedule(item.key, scheduled)),
            What::Fault(fault) => self.strike(item.key, &fault),
        }
    }

    fn strike(&mut self, key: u64, fault: &Fault) {
        if fault.agent().is_some_and(|agent| agent >= self.agents.len()) {
            return;
        }
        note!(self, "fault", fault.agent(), "{fault:?}");
        match *fault {
            Fault::ServerCrash { down } => self.crash_server(down),
            Fault::ServerFreeze { length } => self.freeze_server(length),
            Fault::Park { down } => self.park_server(down),
            Fault::ClockJump { by } => self.server.jump(by),
            Fault::SlowDisk { length, extra } => self.server.slow_disk(self.now + length, extra),
            Fault::FailingDisk { length, torn } => self.server.fail_disk(self.now + length, torn),
            Fault::AgentCrash { agent, down } => self.crash_agent(agent, down),
            Fault::AgentFreeze { agent, length } => self.freeze_agent(agent, length),
            Fault::AgentEnd { agent, give_back, down } => self.end_agent(agent, give_back, down),
            Fault::Drain { agent } => self.call(Call::drain(key, self.agents[agent].id)),
            Fault::Cut { agent, lose, server_learns, agent_learns } => {
                self.cut(agent, lose, server_learns, agent_learns);
            }
            Fault::Partition { agent, length, way, reset } => self.partition(agent, length, way, reset),
            Fault::SlowLink { agent, length, extra, way } => {
                self.agents[agent].slow = (self.now + length, extra, way);
            }
            Fault::Stale { agent } => self.repeat_old_news(agent),
            Fault::Maker { maker, trouble, length } => self.trouble(maker, trouble, length),
        }
    }

    fn look(&mut self) {
        self.end_schedules();
        self.dismiss_makers();
        if self.ledger.finished() != self.progress.0 {
            self.progress = (self.ledger.finished(), self.now);
        }
        if self.everything_is_done() {
            self.check_end();
            self.done = true;
        } else if self.now > self.shape.calm.max(self.progress.1) + PATIENCE {
            self.check_progress();
        } else {
            self.bring_to_an_end();
            self.after(250, Event::Look);
        }
    }
}

/// A job that a run wanted enqueued. The server names it anew whenever it hears of it.
fn child_id(reports: u64, n: u64) -> JobId {
    JobId(Uuid::from_u128((2 << 64) | (u128::from(reports) << 16) | u128::from(n)))
}

fn is_child(job: JobId) -> bool {
    job.0.as_u128() >> 64 == 2
}

fn worker_id(index: usize) -> WorkerId {
    WorkerId(Uuid::from_u128(0xa0 + index as u128))
}

/// The n-th job of an attempt at a planned call.
fn job_id(key: u64, attempt: u32, n: u64) -> JobId {
    JobId(Uuid::from_u128((1 << 64) | (u128::from(key) << 32) | (u128::from(attempt) << 16) | u128::from(n)))
}

/// Short names for the trace.
pub fn job_name(job: JobId) -> String {
    let number = job.0.as_u128();
    format!("job {}.{}.{}", (number >> 32) & 0xffff_ffff, (number >> 16) & 0xffff, number & 0xffff)
}

pub fn run_name(execution: ExecutionId) -> String {
    let low = execution.0.as_u64_pair().1;
    format!("run {}.{}", (low >> 32) & 0x3fff_ffff, low & 0xffff_ffff)
}

fn wall(now: u64, skew: i64) -> Time {
    Time(FIRST_DAY + now as i64 + skew)
}

fn elapsed(now: u64, offset: u64) -> Elapsed {
    Elapsed(now + offset)
}
