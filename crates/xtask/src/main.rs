//! The chores of this workspace, as `cargo xtask <chore>`.

#![allow(clippy::print_stderr, reason = "a command line tool reports its steps and failures on stderr")]

mod agent;
mod bench;
mod chaos;
mod fuzz;
mod python;
mod rest;
mod services;
mod sim;
mod test;
mod tidy;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(bin_name = "cargo xtask", about = "The chores of this workspace")]
struct Cli {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Check format, lints and tidiness, start what the tests need, run them all
    Test(test::Args),
    /// Start what the tests need and run a command with it, such as `cargo test -p hodei-provider`
    With(test::WithArgs),
    /// Check what the compiler does not: dead files, unused dependencies, layering, leftovers
    Tidy,
    /// Build the program so that it runs in every image, in target/static
    Static(agent::Args),
    /// Measure Hodei on both stores, beside the limits of this machine and, if asked, its peers
    Bench(bench::Args),
    /// Hold a running server to the document of its REST API
    Rest,
    /// Simulate whole clusters, one for each seed, with everything that can go wrong
    Sim(sim::Args),
    /// Feed every door with what nobody should send, and watch for panics, memory and time
    Fuzz(fuzz::Args),
    /// Kill, freeze, cut off and starve a running Hodei at random, and check that nothing acknowledged is lost
    Chaos(chaos::Args),
}

fn main() -> ExitCode {
    let root = workspace_root();
    let done = match Cli::parse().chore {
        Chore::Test(args) => test::run(&root, &args),
        Chore::With(args) => test::with(&root, &args),
        Chore::Tidy => tidy::run(&root),
        Chore::Static(args) => agent::run(&root, &args),
        Chore::Bench(args) => bench::run(&root, &args),
        Chore::Rest => python::env(&root).and_then(|python| rest::in_tests(&root, &python)),
        Chore::Sim(args) => sim::run(&root, &args),
        Chore::Fuzz(args) => fuzz::run(&root, &args),
        Chore::Chaos(args) => chaos::run(&root, &args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            // A failed step hands on its own exit code, so a caller sees what the tool itself would have said.
            error.downcast_ref::<test::CommandFailed>().map_or(ExitCode::FAILURE, |failed| failed.code.into())
        }
    }
}

/// Two levels above this crate, wherever the command was called from.
fn workspace_root() -> PathBuf {
    let crate_dir = Path::new(env!("CARGO_MANIFEST_DIR"));
    crate_dir.ancestors().nth(2).unwrap_or(crate_dir).to_path_buf()
}
