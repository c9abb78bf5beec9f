//! Millions of steps of whatever can happen, and the promise that a seed tells the same story twice.

use hodei_sim::{Plan, report, run_many, trace_of};
use std::thread::available_parallelism;

const STEPS: u64 = 4_000_000;

#[test]
fn millions_of_steps_break_no_rule() {
    let threads = available_parallelism().map_or(1, |threads| threads.get());
    let (tally, failure) = run_many(0, threads, None, |tally, _| tally.steps >= STEPS);
    if let Some(failure) = failure {
        panic!("{}", report(&failure, None));
    }
    println!("{} seeds, {} steps, {} jobs", tally.seeds, tally.steps, tally.jobs);
}

#[test]
fn a_seed_is_the_same_history_each_time() {
    for seed in 0..20 {
        let (first, second) = (trace_of(&Plan::of(seed)), trace_of(&Plan::of(seed)));
        let differs = first.iter().zip(&second).position(|(first, second)| first != second);
        assert_eq!(differs.map(|at| (&first[at], &second[at])), None, "seed {seed}");
        assert_eq!(first.len(), second.len(), "seed {seed}");
    }
}
