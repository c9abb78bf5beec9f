//! `hodei-sim`: many seeds, on all cores.

#![allow(clippy::print_stderr, reason = "a command line tool reports on stderr")]

use clap::Parser;
use hodei_sim::{Defect, Fault, Plan, Tally, report, run_many, trace_of};
use std::{
    io::{IsTerminal, Write},
    num::NonZero,
    process::ExitCode,
    thread::available_parallelism,
    time::Instant,
};

/// Simulates clusters, one for each seed
#[derive(Parser)]
struct Args {
    /// How many seeds to run
    #[arg(long, default_value_t = 1000)]
    seeds: u64,
    /// The first of them
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Plant a defect, to see that it is found
    #[arg(long)]
    defect: Option<Defect>,
    /// Tell everything that happens in the first seed
    #[arg(long)]
    steps: bool,
}

fn main() -> ExitCode {
    let args = Args::parse();
    if args.steps {
        trace_of(&Plan::of(args.from)).iter().for_each(|line| println!("{line}"));
    }
    let threads = available_parallelism().map_or(1, NonZero::get);
    let (began, watched) = (Instant::now(), std::io::stderr().is_terminal());
    let (tally, failure) = run_many(args.from, threads, args.defect, |tally, started| {
        if watched && started.is_multiple_of(16) {
            eprint!("\r{started} of {} seeds, {} steps ", args.seeds, tally.steps);
            _ = std::io::stderr().flush();
        }
        started >= args.seeds
    });
    if watched {
        eprintln!();
    }
    if let Some(failure) = &failure {
        eprintln!("{}", failure.headline());
        eprintln!("looking for a smaller history that breaks the same rule ...\n");
        eprintln!("{}", report(failure, args.defect));
    }
    summarise(&tally, began);
    if failure.is_none() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn summarise(tally: &Tally, began: Instant) {
    let seconds = began.elapsed().as_secs_f64();
    let rate = tally.steps as f64 / seconds.max(0.001);
    println!("{} seeds, {} steps in {seconds:.1} s ({rate:.0} a second)", tally.seeds, tally.steps);
    println!("{} jobs finished", tally.jobs);
    let faults: Vec<String> =
        Fault::NAMES.iter().zip(tally.faults).map(|(name, count)| format!("{count} {name}")).collect();
    println!("faults: {}", faults.join(", "));
}
