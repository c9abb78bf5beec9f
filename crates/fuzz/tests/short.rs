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

/// What did harm once, as it was reported.
const FOUND: [(&str, &str); 2] = [
    // A heartbeat of 10^18 ms, which was multiplied by three.
    ("to-worker", "0a0e0a0c08511083c48ef4c9f9f2a978"),
    // A record with the largest number, after which there was no next.
    ("spool", "1a000000ffffffffffffffff32180a1000000000000000000000000000000003181e200d3002"),
];

#[test]
fn what_was_found_stays_fixed() {
    for (name, hex) in FOUND {
        let digit = |at| u8::from_str_radix(&hex[at..at + 2], 16).expect("hex");
        let input: Vec<u8> = (0..hex.len()).step_by(2).map(digit).collect();
        let mut target = targets::all().into_iter().find(|target| target.name() == name).expect("a target");
        engine::attempt(target.as_mut(), &input).unwrap_or_else(|why| panic!("{name}: {why}"));
    }
    // Two bytes that were hundreds in memory.
    for mut target in targets::all() {
        let flood = [&[1][..], &[0x0a, 0].repeat(500_000)].concat();
        engine::attempt(target.as_mut(), &flood).unwrap_or_else(|why| panic!("{}: {why}", target.name()));
        engine::attempt(target.as_mut(), &flood[1..]).unwrap_or_else(|why| panic!("{}: {why}", target.name()));
    }
}
