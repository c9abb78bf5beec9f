//! Builds what is harmed and what harms it, and hands over.

use std::{
    path::Path,
    process::Command,
    time::{SystemTime, UNIX_EPOCH},
};

use anyhow::Result;

use crate::{
    services,
    test::{cargo, complete},
};

/// How long the test command does harm to each store.
const IN_TESTS: f64 = 1.5;

#[derive(clap::Args)]
pub struct Args {
    /// For how long faults happen
    #[arg(long, value_name = "M", default_value_t = 5.0)]
    minutes: f64,
    /// Store in PostgreSQL, which is harmed, too; in SQLite otherwise
    #[arg(long)]
    postgres: bool,
    /// Repeat the faults of an earlier run, which printed its seed
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
}

pub fn run(root: &Path, args: &Args) -> Result<()> {
    cargo(root, &["build", "--release", "-p", "hodei", "-p", "hodei-chaos"], &[])?;
    harm(&root.join("target/release"), args)
}

/// A short run on each store with the programs that were just tested.
pub fn in_tests(root: &Path, postgres: bool) -> Result<()> {
    // The tests have built nearly all of it.
    cargo(root, &["build", "-p", "hodei", "-p", "hodei-chaos"], &[])?;
    let stores = if postgres { &[false, true][..] } else { &[false] };
    for postgres in stores {
        harm(&root.join("target/debug"), &Args { minutes: IN_TESTS, postgres: *postgres, seed: None })?;
    }
    Ok(())
}

fn harm(programs: &Path, args: &Args) -> Result<()> {
    let seed = args.seed.unwrap_or_else(any_seed);
    let mut chaos = Command::new(programs.join("hodei-chaos"));
    chaos.arg("run").arg("--hodei").arg(programs.join("hodei"));
    chaos.args(["--minutes", &args.minutes.to_string(), "--seed", &seed.to_string()]);
    if args.postgres {
        chaos.arg("--postgres").arg(services::postgres_programs()?);
    }
    complete(&mut chaos)
}

/// Short enough to be typed.
fn any_seed() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::from(now.subsec_nanos()) % 1_000_000
}
