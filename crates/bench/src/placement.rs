//! What it costs to decide where a job runs, in the brain itself: no disk, no network, no worker that does anything.

use crate::record::Figure;
use anyhow::{Result, ensure};
use hodei_core::{
    brain::{Brain, Caller, Config, Connection, Effect, Input, Loaded, NewJob, Registration},
    id::{Incarnation, JobId, WorkerId},
    protocol::Hello,
    requirements::{Constraints, Expression, Operator, Requirements},
    spec::{JobSpec, Work},
    time::{Elapsed, Millis, Now, Time},
    token::{Hash, WorkerToken},
    worker::{Capacity, WorkerInfo},
};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use uuid::Uuid;

/// Slots of the whole fleet, whatever the number of its workers.
const SLOTS: usize = 10_000;
const PENDING: usize = 100_000;
const ZONES: usize = 8;

struct Bench {
    brain: Brain,
    made: u64,
}

pub fn measure(mut figure: Figure) -> Result<Figure> {
    for workers in [10, 100, 1000] {
        let plain = per_decision(workers, SLOTS, &|_| plain())?;
        figure = figure.with(&format!("a decision with {workers} workers"), "µs", plain);
    }
    for workers in [10, 100, 1000] {
        let choosy = per_decision(workers, SLOTS, &choosy)?;
        figure = figure.with(&format!("the same, by cores and labels, with {workers}"), "µs", choosy);
    }
    // A placement round with more that wait than fit, and what would be the same if waiting were free.
    let (few, _) = round(1000, SLOTS, &|_| plain())?;
    let (many, _) = round(1000, PENDING, &|_| plain())?;
    let (kinds, _) = round(1000, PENDING, &choosy)?;
    let millis = |took: Duration| took.as_secs_f64() * 1000.0;
    Ok(figure
        .with("a round of 10,000 with 100,000 pending", "ms", millis(many))
        .with("the same with 10,000 pending", "ms", millis(few))
        .with("the same with 100,000 of 64 kinds", "ms", millis(kinds)))
}

fn per_decision(workers: usize, jobs: usize, spec: &dyn Fn(usize) -> JobSpec) -> Result<f64> {
    let (took, placed) = round(workers, jobs, spec)?;
    Ok(took.as_secs_f64() * 1e6 / placed as f64)
}

/// How long one turn takes that fills the slots, and how many it fills: of choosy jobs a few find none.
fn round(workers: usize, jobs: usize, spec: &dyn Fn(usize) -> JobSpec) -> Result<(Duration, usize)> {
    let mut bench = Bench::new();
    for n in 0..workers {
        bench.worker(n, workers);
    }
    // No worker is open while they come in, so that the turn below has all to decide.
    bench.enqueue(jobs, spec);
    for n in 0..workers {
        let incarnation = Incarnation(Uuid::from_u128(1));
        let hello = Hello { incarnation, info: None, held: Vec::new(), ended: Vec::new(), leaving: false };
        bench.brain.apply(Input::Connect { worker: worker_id(n), connection: Connection(n as u64 + 1), hello });
    }
    let began = Instant::now();
    let (batch, effects) = bench.brain.turn(false);
    let took = began.elapsed();
    bench.brain.committed(&batch);
    let placed = effects.iter().filter(|effect| matches!(effect, Effect::Run { .. })).count();
    ensure!(placed > SLOTS / 2, "{placed} of {SLOTS} slots were filled");
    Ok((took, placed))
}

fn plain() -> JobSpec {
    JobSpec::new("job", Work::Task { task_type: "noop".into(), payload: Vec::new() })
}

/// One of 64 kinds: any of eight sizes, in any of eight sets of zones.
fn choosy(n: usize) -> JobSpec {
    let values = (0..ZONES).filter(|zone| zone % 8 <= n % 8).map(|zone| zone.to_string().into()).collect();
    let selector = vec![Expression { key: "zone".into(), operator: Operator::In, values }];
    let constraints = Constraints { selector, zone: Some("1".into()), ..Constraints::default() };
    let cpu_millis = 10 + (n / 8 % 8) as u64;
    JobSpec {
        requirements: Requirements { cpu_millis, constraints: Some(Arc::new(constraints)), ..Requirements::default() },
        ..plain()
    }
}

fn worker_id(n: usize) -> WorkerId {
    WorkerId(Uuid::from_u128(1 + n as u128))
}

impl Bench {
    fn new() -> Self {
        let now = Now { wall: Time(1_000_000), elapsed: Elapsed::default() };
        let config = Config { window: 2 * PENDING, ..Config::default() };
        Self { brain: Brain::load(config, Loaded::default(), now), made: 0 }
    }

    fn commit(&mut self) {
        let (batch, _) = self.brain.turn(false);
        self.brain.committed(&batch);
    }

    fn worker(&mut self, n: usize, of: usize) {
        let mut hash = [0; 32];
        hash[..8].copy_from_slice(&(n as u64).to_le_bytes());
        let (token, worker) = (Hash(hash), worker_id(n));
        let expires_at = Time(1_000_000) + Millis::seconds(300);
        let kept = WorkerToken { hash: token, worker, expires_at, used_by: None };
        self.brain.apply(Input::CreateToken { caller: Caller(0), token: kept });
        let slots = (SLOTS / of) as u32;
        let mut info = WorkerInfo {
            capacity: Capacity { slots, cpu_millis: u64::from(slots) * 1000, ..Capacity::default() },
            labels: [("zone".into(), (n % ZONES).to_string().into()), ("host".into(), n.to_string().into())].into(),
            zone: Some((n % ZONES).to_string().into()),
            ..WorkerInfo::default()
        };
        info.offer.task_types = [Arc::from("noop")].into();
        let request =
            Registration { token, worker: None, key: Hash([1; 32]), session: Hash([2; 32]), info: Box::new(info) };
        self.brain.apply(Input::Register { caller: Caller(0), request });
        self.commit();
    }

    fn enqueue(&mut self, jobs: usize, spec: &dyn Fn(usize) -> JobSpec) {
        for n in 0..jobs {
            self.made += 1;
            let id = JobId(Uuid::from_u128(u128::from(self.made)));
            let job = NewJob { id, spec: spec(n), payload: Arc::from([]) };
            self.brain.apply(Input::Enqueue { caller: Caller(0), jobs: vec![job] });
        }
        self.commit();
    }
}
