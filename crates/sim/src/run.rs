//! Runs one seed or many, and catches what breaks.

use crate::{
    defect::Defect,
    plan::{Fault, Plan},
    world::{Broken, Rule, World},
};
use std::{
    cell::Cell,
    ops::AddAssign,
    panic::{self, AssertUnwindSafe},
    sync::{
        Mutex, Once, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

/// What came of runs that went well.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    pub seeds: u64,
    pub steps: u64,
    pub jobs: u64,
    pub faults: [u64; Fault::NAMES.len()],
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.seeds += other.seeds;
        self.steps += other.steps;
        self.jobs += other.jobs;
        for (sum, more) in self.faults.iter_mut().zip(other.faults) {
            *sum += more;
        }
    }
}

/// A rule broke.
#[derive(Clone, Debug)]
pub struct Failure {
    pub seed: u64,
    pub step: u64,
    pub time: u64,
    pub broken: Broken,
    /// The last lines of the history that concern it, if it was traced.
    pub trace: Vec<String>,
}

impl Failure {
    pub fn rule(&self) -> Rule {
        self.broken.rule
    }

    pub fn headline(&self) -> String {
        let time = self.time as f64 / 1000.0;
        format!("seed {}, step {}, simulated time {time:.3} s: {}", self.seed, self.step, self.broken)
    }
}

const TRACE_LINES: usize = 40;

/// Acts out a plan to its end.
pub fn run(plan: &Plan, defect: Option<Defect>, traced: bool) -> Result<Tally, Box<Failure>> {
    let mut world = World::new(plan, defect, traced);
    let outcome = quietly(|| while world.step() {});
    hodei_core::defect::plant(None);
    match outcome {
        Ok(()) => Ok(Tally { seeds: 1, steps: world.steps, jobs: world.jobs_finished(), faults: plan.fault_counts() }),
        Err(broken) => {
            let trace = world.trace.concerning(broken.about, TRACE_LINES);
            Err(Box::new(Failure { seed: plan.seed, step: world.steps, time: world.time(), broken, trace }))
        }
    }
}

/// Everything that happened in a run, line by line.
pub fn trace_of(plan: &Plan) -> Vec<String> {
    let mut world = World::new(plan, None, true);
    let outcome = quietly(|| while world.step() {});
    let mut lines = world.trace.all();
    lines.extend(outcome.err().map(|broken| broken.to_string()));
    lines
}

/// Runs seeds from `from` on, on as many threads as asked, until `enough` says so or one fails. Of several failures the
/// one with the smallest seed is returned.
pub fn run_many(
    from: u64,
    threads: usize,
    defect: Option<Defect>,
    enough: impl Fn(&Tally, u64) -> bool + Sync,
) -> (Tally, Option<Box<Failure>>) {
    let next = AtomicU64::new(from);
    let state: Mutex<(Tally, Option<Box<Failure>>)> = Mutex::default();
    let lock = || state.lock().unwrap_or_else(PoisonError::into_inner);
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            let stop = |state: &(Tally, Option<Box<Failure>>)| {
                enough(&state.0, seed - from) || state.1.as_ref().is_some_and(|failure| failure.seed < seed)
            };
            if stop(&lock()) {
                return;
            }
            match run(&Plan::of(seed), defect, false) {
                Ok(tally) => lock().0 += tally,
                Err(failure) => {
                    let mut state = lock();
                    if state.1.as_ref().is_none_or(|other| failure.seed < other.seed) {
                        state.1 = Some(failure);
                    }
                }
            }
        }
    };
    std::thread::scope(|scope| (0..threads.max(1)).for_each(|_| _ = scope.spawn(work)));
    std::mem::take(&mut *lock())
}

thread_local! {
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Runs `work` and returns what it broke instead of printing it.
fn quietly(work: impl FnOnce()) -> Result<(), Broken> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let loud = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !QUIET.get() {
                loud(info);
            }
        }));
    });
    QUIET.set(true);
    let outcome = panic::catch_unwind(AssertUnwindSafe(work));
    QUIET.set(false);
    outcome.map_err(|payload| match payload.downcast::<Broken>() {
        Ok(broken) => *broken,
        Err(payload) => {
            let words = payload.downcast_ref::<String>().cloned();
            let words = words.or_else(|| payload.downcast_ref::<&str>().map(|words| (*words).to_owned()));
            let message = words.unwrap_or_else(|| "it panicked".to_owned());
            Broken { rule: Rule::Assertion, about: crate::trace::About::default(), message }
        }
    })
}
