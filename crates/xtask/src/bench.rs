//! Builds what is measured and what measures it, starts PostgreSQL, and hands over.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::Result;

use crate::{
    agent, services,
    test::{cargo, complete},
};

#[derive(clap::Args)]
pub struct Args {
    /// Also install and measure the peers, and write docs/benchmarks.md
    #[arg(long)]
    peers: bool,
    /// Also the large cases: what grows with the number of jobs
    #[arg(long)]
    growth: bool,
    /// Measure everything this often; the median counts and the spread is shown
    #[arg(long, value_name = "N")]
    runs: Option<usize>,
    /// Also measure a backlog of this many pending jobs
    #[arg(long, value_name = "JOBS")]
    backlog: Option<usize>,
    /// Only this store of Hodei: sqlite or postgres
    #[arg(long)]
    store: Option<String>,
    /// Only this measurement, such as callers, bulk, drain, latency, process, cold or memory
    #[arg(long, value_name = "WORKLOAD")]
    only: Option<String>,
    /// Only peers whose name contains this
    #[arg(long, value_name = "NAME")]
    peer: Option<String>,
    /// Write the document from the figures of an earlier run, and measure nothing
    #[arg(long, value_name = "FILE")]
    document: Option<PathBuf>,
}

pub fn run(root: &Path, args: &Args) -> Result<()> {
    let measures = args.document.is_none();
    let agent = measures.then(|| agent::build(root, true)).transpose()?;
    cargo(root, &["build", "--profile", "dist", "-p", "hodei", "-p", "hodei-bench"], &[])?;
    let mut bench = Command::new(root.join("target/dist/hodei-bench"));
    bench.arg("--hodei").arg(root.join("target/dist/hodei")).arg("--root").arg(root);
    for (name, wanted) in [("--peers", args.peers), ("--growth", args.growth)] {
        if wanted {
            bench.arg(name);
        }
    }
    let numbers = [("--runs", args.runs), ("--backlog", args.backlog)];
    let numbers = numbers.into_iter().filter_map(|(name, number)| Some((name, number?.to_string())));
    let texts = [("--store", &args.store), ("--only", &args.only), ("--peer", &args.peer)];
    let texts = texts.into_iter().filter_map(|(name, text)| Some((name, text.clone()?)));
    for (name, value) in numbers.chain(texts) {
        bench.args([name, &value]);
    }
    if let Some(file) = &args.document {
        return complete(bench.arg("--document").arg(file));
    }
    let services = services::start(root)?;
    bench.envs(services.env().iter().map(|(name, value)| (*name, value)));
    bench.envs(agent.map(|path| ("HODEI_TEST_AGENT", path)));
    complete(&mut bench)
}
