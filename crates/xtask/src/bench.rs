//! Builds what is measured and what measures it, starts PostgreSQL, and hands over.

use std::{path::Path, process::Command};

use anyhow::Result;

use crate::{
    services,
    test::{cargo, complete},
};

#[derive(clap::Args)]
pub struct Args {
    /// Also measure a backlog of this many pending jobs
    #[arg(long, value_name = "JOBS")]
    backlog: Option<usize>,
    /// Only this store: sqlite or postgres
    #[arg(long)]
    store: Option<String>,
    /// Only this measurement: process, callers, latency, memory or backlog
    #[arg(long)]
    only: Option<String>,
}

pub fn run(root: &Path, args: &Args) -> Result<()> {
    cargo(root, &["build", "--release", "-p", "hodei", "-p", "hodei-bench"], &[])?;
    let services = services::start(root)?;
    let mut bench = Command::new(root.join("target/release/hodei-bench"));
    bench.arg("--hodei").arg(root.join("target/release/hodei"));
    bench.envs(services.env().iter().map(|(name, value)| (*name, value)));
    if let Some(jobs) = args.backlog {
        bench.args(["--backlog", &jobs.to_string()]);
    }
    if let Some(store) = &args.store {
        bench.args(["--store", store]);
    }
    if let Some(only) = &args.only {
        bench.args(["--only", only]);
    }
    complete(&mut bench)
}
