//! Builds the simulation, fast and with its assertions, and hands over.

use std::{path::Path, process::Command};

use anyhow::Result;

use crate::test::{cargo, complete};

#[derive(clap::Args)]
pub struct Args {
    /// How many seeds to run
    #[arg(long, default_value_t = 10_000)]
    seeds: u64,
    /// The first of them
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Plant a defect, to see that it is found; `help` names them
    #[arg(long)]
    defect: Option<String>,
    /// Tell everything that happens in the first seed
    #[arg(long)]
    steps: bool,
}

pub fn run(root: &Path, args: &Args) -> Result<()> {
    cargo(root, &["build", "--profile", "sim", "-p", "hodei-sim"], &[])?;
    let mut sim = Command::new(root.join("target/sim/hodei-sim"));
    sim.args(["--seeds", &args.seeds.to_string(), "--from", &args.from.to_string()]);
    if let Some(defect) = &args.defect {
        sim.args(["--defect", defect]);
    }
    if args.steps {
        sim.arg("--steps");
    }
    complete(&mut sim)
}
