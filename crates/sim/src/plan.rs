//! What a seed stands for: the shape of a cluster, what its users want, and what goes wrong, all as data that can be cut
//! down.

use crate::dice::{Dice, For};
use fastrand::Rng;
use hodei_core::{
    brain::QueueOrder,
    placement::{FleetPolicy, SchedulerSettings, Strategy},
    queue::{QueueSettings, Rate},
    requirements::{
        Capability, Constraints, Expression, Isolation, Operator, Requirements, Taint, TaintEffect, Toleration,
    },
    schedule::{Misfire, Overlap},
    spec::{Concurrency, JobSpec, OnDependencyFailure, Priority, Work},
    supervise::Sla,
    template::Reuse,
    time::{Millis, Time},
    worker::{Capacity, WorkerInfo},
};
use std::sync::Arc;

/// The type of all tasks there are.
pub const TASK: &str = "task";
/// All queues there are.
pub const QUEUES: [&str; 3] = ["default", "other", "limited"];

/// A whole history before it happens.
#[derive(Clone, Debug)]
pub struct Plan {
    pub seed: u64,
    pub shape: Shape,
    /// In order of time.
    pub items: Vec<Planned>,
    /// Those who make workers on demand.
    pub makers: Vec<Maker>,
}

/// A provider, and the pool of workers that people want of it.
#[derive(Clone, Debug)]
pub struct Maker {
    pub name: &'static str,
    pub images: bool,
    pub cap: u32,
    pub sla: Sla,
    pub reuse: Reuse,
    pub warm: u32,
    pub lifetime: Option<u64>,
}

/// What can be wrong with a provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// It cannot be reached.
    Down,
    /// It answers much later.
    Hangs,
    /// It says that it made what it did not make, and the other way round.
    Lies,
    /// It makes two at once.
    Doubles,
    /// One of those that it made dies.
    Loses,
    /// One of those that it made stands still.
    Freezes,
    /// All that it makes dies young, and goes on doing so for long.
    Frail,
}

impl Trouble {
    const ALL: [Trouble; 7] = [
        Trouble::Down,
        Trouble::Hangs,
        Trouble::Lies,
        Trouble::Doubles,
        Trouble::Loses,
        Trouble::Freezes,
        Trouble::Frail,
    ];
}

/// Times are milliseconds since the beginning of the simulation.
#[derive(Clone, Debug)]
pub struct Shape {
    pub agents: usize,
    /// What each agent could have, also those that a smaller cluster leaves out.
    pub capacities: Vec<Capacity>,
    pub window: usize,
    pub lease: Millis,
    pub grace: Millis,
    pub parked_lease: Millis,
    /// Batches that may be on their way to the disk at one time.
    pub pipeline: usize,
    /// Bounds of what a message and a write to the disk take.
    pub link: (u64, u64),
    pub disk: (u64, u64),
    /// Of a hundred calls, so many lose their question or their answer.
    pub lost_calls: u64,
    /// Of a hundred processes, so many take seconds.
    pub long_jobs: u64,
    /// From here on nothing goes wrong any more.
    pub calm: u64,
}

#[derive(Clone, Debug)]
pub struct Planned {
    pub at: u64,
    /// Stays the same when others are left out.
    pub key: u64,
    pub what: What,
}

#[derive(Clone, Debug)]
pub enum What {
    Enqueue {
        kind: u16,
        count: u16,
        links: Links,
    },
    Cancel {
        pick: usize,
    },
    Retry {
        pick: usize,
    },
    /// Deletes a job that has ended.
    Forget {
        pick: usize,
    },
    /// Gives a blocked job what it waits for.
    Resume {
        pick: usize,
    },
    Scheduler(SchedulerSettings),
    Queue {
        queue: &'static str,
        order: QueueOrder,
    },
    Schedule(Scheduled),
    Fault(Fault),
}

/// A schedule that somebody makes.
#[derive(Clone, Copy, Debug)]
pub struct Scheduled {
    pub every: Millis,
    pub overlap: Overlap,
    pub misfire: Misfire,
}

/// What ties the jobs of one call to each other, and to others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Links {
    None,
    /// Each has an idempotency key: however often the call is repeated, it is one job.
    Keyed,
    /// They depend on each other, the first also on a job that was there before.
    Graph {
        form: Form,
        policy: OnDependencyFailure,
        pick: Option<usize>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Each depends on the one before it.
    Chain,
    /// The same, named from its end.
    Backwards,
    /// The last depends on all others.
    FanIn,
    /// All others depend on the first.
    FanOut,
}

impl Form {
    /// Places of the jobs that the one at `place` of `count` depends on.
    pub fn before(self, place: u64, count: u64) -> std::ops::Range<u64> {
        match self {
            Form::Chain => place.saturating_sub(1)..place,
            Form::Backwards => (place + 1).min(count)..(place + 2).min(count),
            Form::FanIn if place + 1 == count => 0..place,
            Form::FanOut if place > 0 => 0..1,
            Form::FanIn | Form::FanOut => 0..0,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Both,
    Up,
    Down,
}

#[derive(Clone, Debug)]
pub enum Fault {
    ServerCrash {
        down: u64,
    },
    ServerFreeze {
        length: u64,
    },
    /// The server leaves in order and comes back.
    Park {
        down: u64,
    },
    /// The wall clock of the server is set.
    ClockJump {
        by: i64,
    },
    SlowDisk {
        length: u64,
        extra: u64,
    },
    /// Commits fail; a torn one is durable nevertheless.
    FailingDisk {
        length: u64,
        torn: bool,
    },
    AgentCrash {
        agent: usize,
        down: u64,
    },
    AgentFreeze {
        agent: usize,
        length: u64,
    },
    /// An agent is asked to end: it finishes what runs, or gives it back.
    AgentEnd {
        agent: usize,
        give_back: bool,
        down: u64,
    },
    Drain {
        agent: usize,
    },
    /// A stream breaks; each side hears of it in its own time.
    Cut {
        agent: usize,
        lose: bool,
        server_learns: u64,
        agent_learns: u64,
    },
    /// Nothing passes. Then what waited passes late, or is lost with its stream.
    Partition {
        agent: usize,
        length: u64,
        way: Way,
        reset: bool,
    },
    SlowLink {
        agent: usize,
        length: u64,
        extra: u64,
        way: Way,
    },
    /// A worker says again what was settled long ago.
    Stale {
        agent: usize,
    },
    Maker {
        maker: usize,
        trouble: Trouble,
        length: u64,
    },
}

impl Fault {
    pub const NAMES: [&str; 15] = [
        "server crash",
        "server freeze",
        "orderly restart",
        "clock jump",
        "slow disk",
        "failing disk",
        "agent crash",
        "agent freeze",
        "agent end",
        "drain",
        "cut",
        "partition",
        "slow link",
        "stale report",
        "provider in trouble",
    ];

    pub fn kind(&self) -> usize {
        match self {
            Fault::ServerCrash { .. } => 0,
            Fault::ServerFreeze { .. } => 1,
            Fault::Park { .. } => 2,
            Fault::ClockJump { .. } => 3,
            Fault::SlowDisk { .. } => 4,
            Fault::FailingDisk { .. } => 5,
            Fault::AgentCrash { .. } => 6,
            Fault::AgentFreeze { .. } => 7,
            Fault::AgentEnd { .. } => 8,
            Fault::Drain { .. } => 9,
            Fault::Cut { .. } => 10,
            Fault::Partition { .. } => 11,
            Fault::SlowLink { .. } => 12,
            Fault::Stale { .. } => 13,
            Fault::Maker { .. } => 14,
        }
    }

    pub fn agent(&self) -> Option<usize> {
        match self {
            Fault::AgentCrash { agent, .. }
            | Fault::AgentFreeze { agent, .. }
            | Fault::AgentEnd { agent, .. }
            | Fault::Drain { agent }
            | Fault::Cut { agent, .. }
            | Fault::Partition { agent, .. }
            | Fault::SlowLink { agent, .. }
            | Fault::Stale { agent } => Some(*agent),
            _ => None,
        }
    }
}

impl Plan {
    pub fn of(seed: u64) -> Self {
        let mut rng = Dice::new(seed).roll(For::Plan, 0, 0);
        let shape = Shape::draw(&mut rng);
        let end = shape.calm - LONGEST_FAULT;
        let mut all = Vec::new();
        let mut plan = |at: u64, what: What| all.push((at, what));
        let enqueues = rng.usize(10..50);
        let kinds = rng.u16(1..=KINDS);
        for _ in 0..enqueues {
            let count = if rng.u8(..) < 12 { rng.u16(20..60) } else { rng.u16(1..6) };
            let links = links(&mut rng);
            plan(rng.u64(100..end), What::Enqueue { kind: rng.u16(0..kinds), count, links });
        }
        for _ in 0..rng.usize(0..10) {
            plan(rng.u64(100..end), What::Resume { pick: rng.usize(..) });
        }
        for _ in 0..if rng.bool() { 0 } else { rng.usize(1..12) } {
            let (at, queue) = (rng.u64(100..end), QUEUES[rng.usize(..QUEUES.len())]);
            let order = order(&mut rng);
            if let QueueOrder::Pause = order {
                plan(at + rng.u64(10..8000), What::Queue { queue, order: QueueOrder::Resume });
            }
            plan(at, What::Queue { queue, order });
        }
        for _ in 0..if rng.bool() { 0 } else { rng.usize(1..4) } {
            plan(rng.u64(100..end), What::Scheduler(scheduler(&mut rng)));
        }
        for _ in 0..rng.usize(0..15) {
            plan(rng.u64(100..end), What::Cancel { pick: rng.usize(..) });
        }
        for _ in 0..rng.usize(0..15) {
            plan(rng.u64(100..end), What::Retry { pick: rng.usize(..) });
        }
        // Each seed has its own choice of what can go wrong, so that no fault hides behind another in all of them.
        let kinds: Vec<usize> = (0..ON_AGENTS).filter(|_| rng.bool()).collect();
        let faults = if kinds.is_empty() { 0 } else { rng.usize(0..20) };
        for _ in 0..faults {
            let (at, agent) = (rng.u64(100..end), rng.usize(..shape.agents));
            let mut strike = |at: u64, rng: &mut Rng| {
                let kind = kinds[rng.usize(..kinds.len())];
                if kind == PARTITION && rng.bool() {
                    // A link is often slow before it breaks.
                    let extra = rng.u64(20..shape.lease.0 / 2);
                    let begins = at - rng.u64(0..at.min(extra));
                    plan(begins, What::Fault(Fault::SlowLink { agent, length: extra, extra, way: Way::Down }));
                }
                plan(at, What::Fault(fault(kind, agent, &shape, rng)));
            };
            strike(at, &mut rng);
            // Trouble seldom comes alone.
            while rng.u8(..) < 150 {
                strike(at + rng.u64(0..2000), &mut rng);
            }
        }
        for _ in 0..rng.usize(0..4) {
            plan(rng.u64(100..end), What::Schedule(Scheduled::draw(&mut rng)));
        }
        let mut makers = Vec::new();
        for name in MAKERS {
            if rng.u8(..3) == 0 {
                makers.push(Maker::draw(name, &mut rng));
            }
        }
        for maker in 0..makers.len() {
            for _ in 0..rng.usize(0..6) {
                let trouble = Trouble::ALL[rng.usize(..Trouble::ALL.len())];
                let (at, length) = (rng.u64(100..end), rng.u64(200..9000));
                plan(at, What::Fault(Fault::Maker { maker, trouble, length }));
                if trouble == Trouble::Frail {
                    // What the server knows of it is only of interest when another takes over in the middle.
                    plan(at + rng.u64(500..6000), What::Fault(Fault::ServerCrash { down: rng.u64(1..1000) }));
                }
            }
        }
        for _ in 0..rng.usize(0..12) {
            plan(rng.u64(100..end), What::Forget { pick: rng.usize(..) });
        }
        let mut items: Vec<Planned> =
            all.into_iter().zip(0..).map(|((at, what), key)| Planned { at, key, what }).collect();
        items.sort_by_key(|item| item.at);
        Self { seed, shape, items, makers }
    }

    pub fn fault_counts(&self) -> [u64; Fault::NAMES.len()] {
        let mut counts = [0; Fault::NAMES.len()];
        for item in &self.items {
            if let What::Fault(fault) = &item.what {
                counts[fault.kind()] += 1;
            }
        }
        counts
    }
}

impl Maker {
    fn draw(name: &'static str, rng: &mut Rng) -> Self {
        Self {
            name,
            images: name == "engine",
            cap: rng.u32(1..4),
            sla: Sla::ALL[rng.usize(..Sla::ALL.len())],
            reuse: if rng.bool() { Reuse::Never } else { Reuse::Idle },
            warm: rng.u32(0..2),
            lifetime: (rng.u8(..3) == 0).then(|| rng.u64(3000..15_000)),
        }
    }
}

impl Scheduled {
    fn draw(rng: &mut Rng) -> Self {
        let misfires = [Misfire::Skip, Misfire::FireOnce, Misfire::CatchUp(3)];
        Self {
            every: Millis(rng.u64(1000..6000)),
            overlap: Overlap::ALL[rng.usize(..Overlap::ALL.len())],
            misfire: misfires[rng.usize(..misfires.len())],
        }
    }
}

fn links(rng: &mut Rng) -> Links {
    let forms = [Form::Chain, Form::Backwards, Form::FanIn, Form::FanOut];
    let policies = [OnDependencyFailure::Cancel, OnDependencyFailure::Wait, OnDependencyFailure::Run];
    match rng.u8(..10) {
        0..5 => Links::None,
        5 | 6 => Links::Keyed,
        _ => {
            let (form, policy) = (forms[rng.usize(..4)], policies[rng.usize(..3)]);
            Links::Graph { form, policy, pick: rng.bool().then(|| rng.usize(..)) }
        }
    }
}

fn order(rng: &mut Rng) -> QueueOrder {
    match rng.u8(..8) {
        0..3 => QueueOrder::Pause,
        3 => QueueOrder::Resume,
        _ => {
            let rate = Rate { limit: rng.u32(1..6), period: Millis(rng.u64(300..4000)) };
            QueueOrder::Configure(QueueSettings {
                rate: rng.bool().then_some(rate),
                concurrency: rng.bool().then(|| rng.u32(1..4)),
                ageing: rng.bool().then(|| Millis(rng.u64(500..5000))),
                max_jobs: None,
            })
        }
    }
}

const MAKERS: [&str; 2] = ["local", "engine"];
/// Faults that are drawn for workers and the server; those of providers are drawn apart.
const ON_AGENTS: usize = 14;
const PARTITION: usize = 11;
/// No fault lasts longer, with those that come with it.
const LONGEST_FAULT: u64 = 17_000;

impl Shape {
    fn draw(rng: &mut Rng) -> Self {
        let lease = rng.u64(2000..6000);
        let link = rng.u64(1..40);
        let disk = rng.u64(0..15);
        let slots = |slots| Capacity { slots, cpu_millis: 4000, memory_bytes: 4000, disk_bytes: 1000, gpus: slots / 2 };
        let sizes = [
            slots(1),
            slots(2),
            slots(4),
            Capacity { slots: 3, cpu_millis: 1000, memory_bytes: 100, ..Capacity::default() },
        ];
        let capacities = (0..4).map(|_| sizes[rng.usize(..sizes.len())]).collect();
        Self {
            agents: rng.usize(1..=4).max(rng.usize(1..=3)),
            capacities,
            window: rng.usize(2..16),
            lease: Millis(lease),
            grace: Millis(rng.u64(100..1200)),
            parked_lease: Millis(rng.u64(4000..12_000)),
            pipeline: if rng.bool() { 1 } else { rng.usize(2..4) },
            link: (link / 2, link),
            disk: (disk / 2, disk),
            lost_calls: if rng.bool() { 0 } else { rng.u64(1..20) },
            long_jobs: if rng.u8(..4) == 0 { 5 } else { rng.u64(20..90) },
            calm: rng.u64(22_000..60_000),
        }
    }
}

fn fault(kind: usize, agent: usize, shape: &Shape, rng: &mut Rng) -> Fault {
    let way = [Way::Both, Way::Up, Way::Down][rng.usize(..3)];
    // Some shorter and some longer than the lease.
    let length = match rng.u8(..3) {
        0 => rng.u64(1..shape.lease.0 / 4),
        1 => rng.u64(1..shape.lease.0),
        _ => rng.u64(shape.lease.0..2 * shape.lease.0 + 2000),
    };
    match kind {
        0 => Fault::ServerCrash { down: rng.u64(1..3000) },
        1 => Fault::ServerFreeze { length },
        2 => Fault::Park { down: length },
        3 => Fault::ClockJump { by: rng.i64(-10_000..20_000) },
        4 => Fault::SlowDisk { length, extra: rng.u64(20..4000) },
        5 => Fault::FailingDisk { length: length.min(6000), torn: rng.bool() },
        6 => Fault::AgentCrash { agent, down: length },
        7 => Fault::AgentFreeze { agent, length },
        8 => Fault::AgentEnd { agent, give_back: rng.bool(), down: length },
        9 => Fault::Drain { agent },
        10 => {
            let (server_learns, agent_learns) = (rng.u64(0..2000), rng.u64(0..2000));
            Fault::Cut { agent, lose: rng.bool(), server_learns, agent_learns }
        }
        PARTITION => Fault::Partition { agent, length, way, reset: rng.bool() },
        12 => Fault::SlowLink { agent, length, extra: rng.u64(20..3000), way },
        _ => Fault::Stale { agent },
    }
}

/// What is stored of a job and sent to its worker: enough to make the same spec again.
pub fn payload_of(kind: u16, now: Time) -> Arc<[u8]> {
    [&kind.to_le_bytes()[..], &now.0.to_le_bytes()].concat().into()
}

pub fn spec_of(payload: &[u8]) -> Arc<JobSpec> {
    let parts = payload.split_first_chunk::<2>().and_then(|(kind, rest)| Some((kind, rest.first_chunk::<8>()?)));
    let (kind, now) = parts.map_or((0, 0), |(kind, now)| (u16::from_le_bytes(*kind), i64::from_le_bytes(*now)));
    Arc::new(spec(kind, Time(now)))
}

/// Kinds of jobs; those from here on care what their worker is like.
const CHOOSY: u16 = 80;
const KINDS: u16 = 120;

/// What some jobs ask of the nature of their worker.
fn choosy(kind: u16, spec: &mut JobSpec) {
    let mut asked = Constraints::default();
    let select =
        |key: &str, operator, value: &str| Expression { key: key.into(), operator, values: vec![value.into()] };
    let any = Toleration { key: None, value: None };
    match (kind - CHOOSY) / 4 {
        0 => asked.selector = vec![select("disk", Operator::In, "ssd")],
        1 => asked.tolerations = vec![Toleration { key: Some("gpu".into()), value: None }],
        2 => (asked.zone, asked.zone_required) = (Some("north".into()), true),
        3 => (asked.zone, asked.provider) = (Some("south".into()), Some("nobody".into())),
        4 => asked.capabilities = vec![Capability { name: "cuda".into(), ..Capability::default() }],
        5 => (spec.requirements.gpus, spec.requirements.disk_bytes) = (1, 300),
        6 => (asked.isolation, asked.tolerations) = (Isolation::Container, vec![any]),
        7 => (asked.image, asked.tolerations) = (Some("busybox".into()), vec![any]),
        8 => asked.selector = vec![select("disk", Operator::NotIn, "ssd")],
        _ => (spec.requirements.disk_bytes, asked.tolerations) = (500, vec![any]),
    }
    spec.requirements.constraints = (asked != Constraints::default()).then(|| Arc::new(asked));
    spec.timeouts.queue = Some(Millis(4000));
}

/// What an agent is like. One that runs processes is open to all, or some jobs could wait for ever.
pub fn traits(index: usize, dice: u8) -> WorkerInfo {
    let bit = |n: u8| dice >> n & 1 == 1;
    let taint = |key: &str, effect| Taint { key: key.into(), value: "".into(), effect };
    let taints = match (bit(0), bit(1)) {
        (true, true) if index > 0 => vec![taint("gpu", TaintEffect::NoSchedule)],
        (true, false) => vec![taint("old", TaintEffect::PreferNoSchedule)],
        _ => Vec::new(),
    };
    let cuda = Capability { name: "cuda".into(), parameters: [("version".into(), "12".into())].into() };
    WorkerInfo {
        labels: if bit(2) { [("disk".into(), "ssd".into())].into() } else { Default::default() },
        taints,
        capabilities: if bit(3) { vec![cuda] } else { Vec::new() },
        zone: Some(if bit(4) { "north" } else { "south" }.into()),
        isolation: if bit(5) { Isolation::Container } else { Isolation::Process },
        image: bit(5).then(|| "busybox".into()),
        ..WorkerInfo::default()
    }
}

fn scheduler(rng: &mut Rng) -> SchedulerSettings {
    let fleet = if rng.u8(..4) == 0 { FleetPolicy::Closed } else { FleetPolicy::Open };
    let strategy = Strategy::ALL[rng.usize(..Strategy::ALL.len())];
    SchedulerSettings { strategy, fleet, ..SchedulerSettings::default() }
}

/// A job of this kind. One that fits nowhere, or that nobody handles, does not wait for ever.
pub fn spec(kind: u16, now: Time) -> JobSpec {
    let mut spec = JobSpec::new("job", Work::Shell { program: "true".into(), args: Vec::new() });
    let n = u64::from(kind);
    spec.priority = Priority::ALL[usize::from(kind) % 4];
    (spec.retry.delay, spec.retry.jitter_percent) = (Millis(300), 10);
    match kind / 4 % 10 {
        _ if kind >= CHOOSY => choosy(kind, &mut spec),
        0 => {}
        2 => spec.queue = "other".into(),
        // Not all workers have a handler for it, and some have nothing else.
        1 => {
            spec.work = Work::Task { task_type: TASK.into(), payload: b"null".to_vec() };
            spec.timeouts.queue = Some(Millis(4000));
        }
        3 => spec.run_at = Some(now + Millis(n * 50)),
        4 => spec.timeouts.queue = Some(Millis(500 + n * 40)),
        5 => spec.timeouts.run = Some(Millis(700)),
        6 => spec.requirements = Requirements::of(600, 60),
        7 => spec.queue = "limited".into(),
        // A key has one limit, whatever the queue.
        8 => {
            let limit = 1 + u32::from(kind % 2);
            spec.concurrency = Some(Concurrency { key: format!("key{limit}").into(), limit });
            spec.queue = QUEUES[usize::from(kind / 8 % 2)].into();
        }
        _ => {
            spec.requirements.cpu_millis = 1_000_000;
            spec.timeouts.queue = Some(Millis(3000));
        }
    }
    match kind % 5 {
        0 => (spec.retry.max_attempts, spec.retry.delay) = (6, Millis::ZERO),
        1 => spec.retry.max_attempts = 1,
        _ => {}
    }
    spec
}
