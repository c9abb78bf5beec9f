//! A short run of every target, as part of the tests. `cargo xtask fuzz` goes on where this stops.

#![allow(clippy::print_stderr, reason = "how much was tried belongs in the output of the run")]

use hodei_fuzz::{
    engine::{self, Plan},
    targets,
};
use std::time::Duration;

/// Always the same: a failure here is one of the change at hand.
const SEED: u64 = 1;
const TIME: Duration = Duration::from_secs(2);

/// Targets share the processors with other tests; one after the other they also share the time fairly.
#[test]
fn nothing_from_outside_does_harm() {
    let mut inputs = 0;
    for mut target in targets::all() {
        match engine::run(target.as_mut(), Plan { seed: SEED, inputs: u64::MAX, time: TIME }) {
            Ok(summary) => {
                eprintln!("{summary}");
                inputs += summary.inputs;
                assert!(summary.accepted * 50 > summary.inputs, "too few good inputs to reach anything: {summary}");
            }
            Err(failure) => panic!("{failure}"),
        }
    }
    eprintln!("{inputs} inputs in all");
}
