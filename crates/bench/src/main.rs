//! Measures Hodei through its real programs (a decision of placement in the brain alone), beside the limits of the machine
//! and beside its peers, in one run. Started by `cargo xtask bench`.
//!
//! Machines differ and are noisy: what counts are the ratios, and that both sides of each were measured minutes apart.
//! So the systems take turns at each workload, and the limits are measured before and after. Every measurement is a
//! [`record::Figure`], whoever made it; the document is made of the record and of nothing else.

mod cluster;
mod cold;
mod document;
mod growth;
mod limits;
mod lines;
mod listing;
mod peers;
mod placement;
mod plot;
mod processes;
mod record;
mod report;
mod scheduler;
mod tasks;
mod workloads;

use anyhow::{Context, Result, bail};
use clap::Parser;
use cluster::{Database, StoreKind};
use peers::{PEERS, Peer, Places};
use record::{Figure, Gap, Record, System, Workload};
use std::{
    path::{Path, PathBuf},
    process::Command,
    time::Instant,
};
use workloads::Hodei;

#[derive(Parser)]
#[command(about = "Measures Hodei beside the limits of this machine and beside its peers")]
struct Args {
    /// The program to measure.
    #[arg(long)]
    hodei: PathBuf,
    /// The folder of the workspace.
    #[arg(long)]
    root: PathBuf,
    /// Also install and measure the peers, and write docs/benchmarks.md.
    #[arg(long)]
    peers: bool,
    /// Also the large cases: what grows with the number of jobs.
    #[arg(long)]
    growth: bool,
    /// Measure everything this often; the median counts and the spread is shown.
    #[arg(long, value_name = "N", default_value_t = 1)]
    runs: usize,
    /// Also a backlog of this many pending jobs: memory, and the time to start with it.
    #[arg(long, value_name = "JOBS")]
    backlog: Option<usize>,
    /// Only this store of Hodei: sqlite or postgres.
    #[arg(long)]
    store: Option<StoreKind>,
    /// Only this measurement.
    #[arg(long, value_enum)]
    only: Option<Workload>,
    /// Only peers whose name contains this.
    #[arg(long, value_name = "NAME")]
    peer: Option<String>,
    /// Write the document from the figures of an earlier run, and measure nothing.
    #[arg(long, value_name = "FILE")]
    document: Option<PathBuf>,
}

fn main() -> Result<()> {
    // Before anything else: the time of the stamp is what is measured.
    let mut words = std::env::args().skip(1);
    let role = words.next();
    match role.as_deref() {
        Some("--stamp") => return limits::stamp(words.next().as_deref()),
        Some("--print") => return lines::print(words.next().as_deref()),
        _ => {}
    }
    if role.as_deref() == Some("--work") {
        // Handlers that do nothing need no second thread.
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        return runtime.block_on(tasks::work());
    }
    let args = Args::parse();
    if let Some(earlier) = &args.document {
        return document::write(&Record::read(earlier)?, &args.root);
    }
    // One thread, as a client has that does nothing else.
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(measure(args))
}

/// Whoever takes a turn.
enum Turn<'a> {
    Hodei(Hodei<'a>),
    Peer(&'a Peer, System),
}

impl Turn<'_> {
    fn name(&self) -> String {
        match self {
            Turn::Hodei(hodei) => hodei.system().name,
            Turn::Peer(peer, _) => peer.name.into(),
        }
    }

    async fn measure(&self, places: &Places, workload: Workload) -> Result<Option<Figure>> {
        match self {
            Turn::Hodei(hodei) if !hodei.has(workload) => Ok(None),
            Turn::Hodei(hodei) => hodei.measure(workload).await.map(Some),
            Turn::Peer(peer, _) if !peer.has(workload) => Ok(None),
            Turn::Peer(peer, system) => peer.measure(places, system, workload).await.map(Some),
        }
    }
}

async fn measure(args: Args) -> Result<()> {
    let began = Instant::now();
    let places = Places::new(&args.root);
    let mut record =
        Record { date: today(), commit: commit(&args.root), machine: limits::machine(), ..Record::default() };
    let postgres = Database::version().await.unwrap_or_else(|_| "not there".into());
    record
        .machine
        .push(("PostgreSQL".into(), format!("{postgres}, fsync and synchronous_commit on, defaults otherwise")));
    let mut turns = hodeis(&args);
    if args.peers {
        turns.extend(prepare(&args, &places, &mut record));
    }
    report::heading("this machine");
    limits::measure(&mut record)?;
    for limit in &record.limits {
        println!("  {:<50} {}", limit.name, report::with_unit(limit));
    }
    for run in 0..args.runs {
        for workload in workloads(&args) {
            let again = if args.runs > 1 { format!(" (run {} of {})", run + 1, args.runs) } else { String::new() };
            report::heading(&format!("{}{again}", workload.title()));
            let spawns = workload == Workload::Process;
            if spawns {
                limits::measure_spawns_beside(&mut record)?;
            }
            for turn in &turns {
                take(turn, &places, workload, &mut record).await;
            }
            if spawns {
                limits::measure_spawns_beside(&mut record)?;
            }
        }
    }
    limits::measure(&mut record)?;
    record.write(&args.root.join("target/bench/latest.json"))?;
    report::heading(&format!(
        "took {:.0} s; the figures are in target/bench/latest.json",
        began.elapsed().as_secs_f64()
    ));
    let whole = args.only.is_none() && args.peer.is_none() && args.store.is_none();
    if args.peers && whole {
        document::write(&record, &args.root)?;
        println!("docs/benchmarks.md is written");
    }
    // What gates a change leaves nothing out.
    if !record.gaps.is_empty() && std::env::var_os("CI").is_some_and(|ci| ci == "true") {
        bail!("{} measurements could not be made", record.gaps.len());
    }
    Ok(())
}

/// One measurement; what fails is a gap of the record, and the others go on.
async fn take(turn: &Turn<'_>, places: &Places, workload: Workload, record: &mut Record) {
    let name = turn.name();
    report::progress(&name);
    match turn.measure(places, workload).await {
        Ok(Some(figure)) => {
            report::figure(&figure);
            record.add(figure);
        }
        Ok(None) => {}
        Err(error) => {
            let why = format!("{error:#}");
            report::gap(&name, &why);
            record.gaps.push(Gap { system: name, workload: Some(workload), why });
        }
    }
}

fn hodeis(args: &Args) -> Vec<Turn<'_>> {
    let ways = [false, true].into_iter().flat_map(|apart| [StoreKind::Sqlite, StoreKind::Postgres].map(|k| (k, apart)));
    let ways = ways.filter(|(kind, _)| args.store.is_none_or(|only| only == *kind));
    let backlog = args.backlog.unwrap_or_default();
    ways.map(|(kind, apart)| Turn::Hodei(Hodei { program: &args.hodei, kind, backlog, apart })).collect()
}

/// Installs the peers; one that cannot be had is a gap.
fn prepare(args: &Args, places: &Places, record: &mut Record) -> Vec<Turn<'static>> {
    report::heading("peers");
    let wanted = |name: &str| args.peer.as_ref().is_none_or(|only| name.to_lowercase().contains(&only.to_lowercase()));
    let mut turns = Vec::new();
    for peer in PEERS.iter().filter(|peer| wanted(peer.name)) {
        report::progress(peer.name);
        match peer.prepare(places) {
            Ok(system) => {
                println!("  {:<26} {:<11} {}", system.name, system.version, peer.settings());
                turns.push(Turn::Peer(peer, system));
            }
            Err(error) => {
                let why = format!("{error:#}");
                report::gap(peer.name, &why);
                record.gaps.push(Gap { system: peer.name.into(), workload: None, why });
            }
        }
    }
    turns
}

fn workloads(args: &Args) -> Vec<Workload> {
    let mut workloads = Workload::COMPARED.to_vec();
    workloads.extend([
        Workload::Lines,
        Workload::Handlers,
        Workload::Rest,
        Workload::Graph,
        Workload::Schedules,
        Workload::Placement,
        Workload::Cold,
    ]);
    if args.backlog.is_some() {
        workloads.push(Workload::Backlog);
    }
    if args.growth {
        workloads.extend([Workload::Growth, Workload::Workers, Workload::Listing]);
    }
    workloads.retain(|workload| args.only.is_none_or(|only| only == *workload));
    workloads
}

fn today() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%d").to_string()
}

/// Which state of the sources was measured.
fn commit(root: &Path) -> String {
    let git = Command::new("git").args(["describe", "--always", "--dirty"]).current_dir(root).output();
    let said = git.context("no git").map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    said.unwrap_or_default()
}
