//! Builds the fuzzer and the program that it attacks, and hands over.

use std::{path::Path, process::Command};

use anyhow::Result;

use crate::test::{cargo, complete};

#[derive(clap::Args)]
pub struct Args {
    /// Only this target, such as from-worker, requests, logs, configuration or live; a wrong name prints them all
    #[arg(long)]
    target: Option<String>,
    /// How long in all
    #[arg(long, value_name = "MINUTES")]
    minutes: Option<f64>,
    /// The seed of the first round, to repeat a run; chosen by the clock when left out
    #[arg(long, value_name = "SEED")]
    from: Option<u64>,
    /// Only so many inputs of each target
    #[arg(long, value_name = "COUNT")]
    inputs: Option<u64>,
    /// Only this input, in hex, as a failure prints it
    #[arg(long, value_name = "HEX")]
    input: Option<String>,
}

pub fn run(root: &Path, args: &Args) -> Result<()> {
    cargo(root, &["build", "--profile", "fuzz", "-p", "hodei", "-p", "hodei-fuzz"], &[])?;
    let built = root.join("target/fuzz");
    let mut fuzz = Command::new(built.join("hodei-fuzz"));
    fuzz.arg("--hodei").arg(built.join("hodei"));
    let options = [
        ("--target", args.target.clone()),
        ("--minutes", args.minutes.map(|minutes| minutes.to_string())),
        ("--from", args.from.map(|seed| seed.to_string())),
        ("--inputs", args.inputs.map(|count| count.to_string())),
        ("--input", args.input.clone()),
    ];
    for (name, value) in options {
        if let Some(value) = value {
            fuzz.args([name, &value]);
        }
    }
    complete(&mut fuzz)
}
