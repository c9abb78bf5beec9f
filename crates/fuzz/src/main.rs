//! `cargo xtask fuzz`: long runs, and single inputs again.

#![allow(clippy::print_stderr, reason = "a command line tool reports on stderr")]

use anyhow::{Context, Result, bail};
use clap::Parser;
use hodei_fuzz::{
    engine::{self, Plan, Target},
    live, targets,
};
use std::{
    path::PathBuf,
    process::ExitCode,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

#[derive(Parser)]
#[command(bin_name = "cargo xtask fuzz")]
struct Args {
    /// Only this target; `live` is the server process
    #[arg(long)]
    target: Option<String>,
    /// How long in all
    #[arg(long, default_value_t = 10.0)]
    minutes: f64,
    /// The seed of the first round; chosen by the clock when left out
    #[arg(long, value_name = "SEED")]
    from: Option<u64>,
    /// Only so many inputs of each target, in one round
    #[arg(long)]
    inputs: Option<u64>,
    /// Only this input, in hex
    #[arg(long, value_name = "HEX")]
    input: Option<String>,
    /// The program that `live` runs
    #[arg(long)]
    hodei: PathBuf,
}

/// A target gets this long in each round, and a new seed in the next.
const TURN: Duration = Duration::from_secs(20);

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<()> {
    let wanted = |name: &str| args.target.as_deref().is_none_or(|target| target == name);
    let mut targets: Vec<_> = targets::all().into_iter().filter(|target| wanted(target.name())).collect();
    let with_live = wanted(live::NAME);
    if targets.is_empty() && !with_live {
        let names: Vec<_> = targets::all().iter().map(|target| target.name()).collect();
        bail!("there is no such target; use {} or {}", names.join(", "), live::NAME);
    }
    if let Some(hex) = &args.input {
        return once(&mut targets, &unhex(hex).context("the input is not hex")?);
    }
    let count = (targets.len() + usize::from(with_live)) as f64;
    let mut left = Duration::from_secs_f64(60.0 * args.minutes.max(0.0));
    let turn = TURN.min(left.div_f64(count));
    let clock = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |now| now.as_secs());
    let mut seed = args.from.unwrap_or_else(clock);
    loop {
        for target in &mut targets {
            let plan = Plan { seed, inputs: args.inputs.unwrap_or(u64::MAX), time: turn };
            match engine::run(target.as_mut(), plan) {
                Ok(summary) => eprintln!("{summary}, seed {seed}"),
                Err(failure) => bail!("{failure}"),
            }
        }
        if with_live {
            let plan = Plan { seed, inputs: args.inputs.unwrap_or(u64::MAX), time: turn };
            eprintln!("{}, seed {seed}", live::run(&args.hodei, plan)?);
        }
        left = left.saturating_sub(turn.mul_f64(count));
        if left < turn || args.inputs.is_some() {
            return Ok(());
        }
        seed += 1;
    }
}

fn once(targets: &mut [Box<dyn Target>], input: &[u8]) -> Result<()> {
    for target in targets {
        let (_, peak) = engine::attempt(target.as_mut(), input).map_err(anyhow::Error::msg)?;
        eprintln!("{}: no harm, {peak} bytes at most", target.name());
    }
    Ok(())
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u8>> = text.chars().map(|c| c.to_digit(16).and_then(|d| u8::try_from(d).ok())).collect();
    digits
        .filter(|digits| digits.len() % 2 == 0)
        .map(|digits| digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect())
}
