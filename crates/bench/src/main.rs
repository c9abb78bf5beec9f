//! Measures Hodei through its real programs, beside the limits of the machine, in one run. Started by `cargo xtask bench`.
//!
//! Machines differ and are noisy: what counts are the ratios, and that both sides of each were measured minutes apart.

mod cluster;
mod limits;
mod report;
mod tasks;
mod workloads;

use anyhow::Result;
use clap::Parser;
use cluster::{Cluster, StoreKind};
use std::path::PathBuf;

#[derive(Parser)]
#[command(about = "Measures Hodei beside the limits of this machine")]
struct Args {
    /// The program to measure.
    #[arg(long)]
    hodei: PathBuf,
    /// Also a backlog of this many pending jobs: memory, and the time to start with it.
    #[arg(long, value_name = "JOBS")]
    backlog: Option<usize>,
    /// Only this store: sqlite or postgres.
    #[arg(long)]
    store: Option<StoreKind>,
    /// Only this measurement.
    #[arg(long, value_enum)]
    only: Option<Workload>,
    /// Print the time at which this process began, as a job that tells when it was started.
    #[arg(long, hide = true)]
    stamp: bool,
    /// Be the worker process of a measurement.
    #[arg(long, hide = true)]
    work: bool,
    #[arg(long, default_value_t = 100_000)]
    count: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Workload {
    Process,
    Callers,
    Latency,
    Memory,
    Backlog,
    Drain,
    TaskLatency,
}

fn main() -> Result<()> {
    // Before anything else: the time of the stamp is what is measured.
    if std::env::args().nth(1).as_deref() == Some("--stamp") {
        limits::print_stamp();
        return Ok(());
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    if std::env::args().nth(1).as_deref() == Some("--work") {
        return runtime.block_on(tasks::work());
    }
    runtime.block_on(measure(Args::parse()))
}

async fn measure(args: Args) -> Result<()> {
    let limits = limits::measure()?;
    limits.tell(&args.hodei)?;
    let stores = [StoreKind::Sqlite, StoreKind::Postgres];
    for kind in stores.into_iter().filter(|kind| args.store.is_none_or(|only| only == *kind)) {
        report::heading(&format!("{} (synced at every commit)", kind.name()));
        let wanted = |workload| args.only.is_none_or(|only| only == workload);
        if wanted(Workload::Process) {
            workloads::process_jobs(&args.hodei, kind, &limits).await?;
        }
        if wanted(Workload::Callers) {
            workloads::single_callers(&args.hodei, kind).await?;
        }
        if wanted(Workload::Latency) {
            workloads::idle_latency(&args.hodei, kind, &limits).await?;
        }
        if wanted(Workload::Drain) {
            tasks::drain(&args.hodei, kind, args.count).await?;
        }
        if wanted(Workload::TaskLatency) {
            tasks::latency(&args.hodei, kind).await?;
        }
        if wanted(Workload::Memory) {
            workloads::memory(&args.hodei, kind).await?;
        }
        if let Some(jobs) = args.backlog.filter(|_| wanted(Workload::Backlog)) {
            workloads::backlog(&args.hodei, kind, jobs).await?;
        }
    }
    Ok(())
}
