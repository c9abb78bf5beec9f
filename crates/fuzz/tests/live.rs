//! A short attack on a real server process.

#![allow(clippy::print_stderr, reason = "how much was tried belongs in the output of the run")]

use hodei_fuzz::{engine::Plan, live};
use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

#[test]
fn a_server_under_fire_lives_and_answers() {
    let plan = Plan { seed: 1, inputs: u64::MAX, time: Duration::from_secs(4) };
    eprintln!("{}", live::run(&hodei(), plan).unwrap_or_else(|error| panic!("{error:#}")));
}

/// The program beside this test, where a run of all tests has built it. Cargo tells its path only to tests of its own
/// crate; when this crate is tested alone for the first time, the program is built here.
fn hodei() -> PathBuf {
    let test = env::current_exe().expect("the path of this test");
    let program = test.ancestors().nth(2).expect("the folder of the profile").join("hodei");
    if program.exists() {
        return program;
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let built = Command::new(env!("CARGO")).args(["build", "-q", "-p", "hodei"]).current_dir(root).status();
    assert!(built.is_ok_and(|status| status.success()), "hodei does not build");
    program
}
