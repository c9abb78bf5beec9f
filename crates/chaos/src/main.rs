//! Chaos on real processes: a server, its workers and PostgreSQL are killed, frozen, cut off and given full disks while
//! jobs run, and a checker in a process of its own compares what was acknowledged with what came of it. Started by
//! `cargo xtask chaos`.

mod checker;
mod clock;
mod conductor;
mod daemon;
mod disk;
mod journal;
mod load;
mod plan;
mod postgres;
mod proxy;
mod random;
mod work;

use anyhow::{Context, Result, ensure};
use clap::{Parser, Subcommand};
use rustix::process::WaitOptions;
use std::{
    env,
    io::Write,
    os::unix::process::CommandExt,
    path::PathBuf,
    process::{Command, ExitCode, Stdio},
};

#[derive(Parser)]
#[command(about = "Harms a running Hodei at random and checks that it keeps its word")]
struct Cli {
    #[command(subcommand)]
    role: Role,
}

#[derive(Subcommand)]
enum Role {
    /// Run it all.
    Run(Conduct),
    /// The first process of the namespace that everything runs in.
    #[command(hide = true)]
    Reap(Conduct),
    /// Starts, harms and heals.
    #[command(hide = true)]
    Conduct(Conduct),
    /// Asks for jobs, and compares.
    #[command(hide = true)]
    Check(checker::Args),
    /// What the jobs run.
    #[command(hide = true)]
    Job(work::Args),
}

#[derive(Clone, Debug, clap::Args)]
struct Conduct {
    /// The program to harm.
    #[arg(long)]
    hodei: PathBuf,
    /// For how long.
    #[arg(long)]
    minutes: f64,
    /// Repeats the choice of faults.
    #[arg(long)]
    seed: u64,
    /// Store in a PostgreSQL of its own, started with the programs in this folder.
    #[arg(long, value_name = "DIR")]
    postgres: Option<PathBuf>,
}

fn main() -> Result<ExitCode> {
    match Cli::parse().role {
        Role::Run(_) if can_be_alone()? => alone(),
        Role::Run(conduct) | Role::Conduct(conduct) => runtime()?.block_on(conductor::run(&conduct)),
        Role::Reap(_) => reap(),
        Role::Check(args) => runtime()?.block_on(checker::run(args)),
        Role::Job(args) => work::run(&args),
    }
}

fn runtime() -> Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?)
}

fn same_again(role: &str, mut command: Command) -> Result<Command> {
    command.arg(env::current_exe()?).arg(role).args(env::args_os().skip(2));
    Ok(command)
}

/// Namespaces of its own: however a run in them ends, no process and no mount is left.
fn unshare() -> Command {
    let mut unshare = Command::new("unshare");
    unshare.args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--"]);
    unshare
}

/// What gates a change must do all harm, and that needs root; elsewhere it is better to do the rest than nothing.
fn can_be_alone() -> Result<bool> {
    let can = unshare().arg("true").stderr(Stdio::null()).status().is_ok_and(|status| status.success());
    if !can {
        ensure!(env::var_os("CI").is_none_or(|ci| ci != "true"), "namespaces and mounts are needed when CI=true");
        say(
            "WARNING: no namespaces of its own for this run: it needs root, and if it is killed it leaves things behind",
        );
    }
    Ok(can)
}

fn alone() -> Result<ExitCode> {
    Err(same_again("reap", unshare())?.exec()).context("cannot run unshare")
}

/// The first process of a namespace inherits those whose parents were killed, and has to notice their end.
fn reap() -> Result<ExitCode> {
    let conductor = Command::new(env::current_exe()?).arg("conduct").args(env::args_os().skip(2)).spawn()?;
    let conductor = rustix::process::Pid::from_child(&conductor);
    loop {
        match rustix::process::wait(WaitOptions::empty())? {
            Some((pid, status)) if pid == conductor => {
                let code = status.exit_status().and_then(|code| u8::try_from(code).ok());
                return Ok(code.map_or(ExitCode::FAILURE, ExitCode::from));
            }
            _ => {}
        }
    }
}

/// A line for people. Whoever reads may have gone away.
fn say(text: &str) {
    _ = writeln!(std::io::stdout().lock(), "{text}");
}
