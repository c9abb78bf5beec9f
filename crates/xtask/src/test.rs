//! `cargo xtask test`: everything that has to hold before a change goes in, cheapest first.

use std::{
    env,
    ffi::OsStr,
    os::unix::process::ExitStatusExt,
    path::Path,
    process::{Command, ExitStatus},
    time::Instant,
};

use anyhow::{Context, Result};

use crate::{agent, chaos, python, rest, services, tidy};

/// How variables begin that cargo sets for one package.
const OF_THIS_PACKAGE: [&str; 2] = ["CARGO_PKG_", "CARGO_MANIFEST_"];

#[derive(clap::Args)]
pub struct Args {
    /// Skip rustfmt, clippy and tidy
    #[arg(long)]
    no_lint: bool,
    /// Run only the tests whose name contains one of these; after `--`, options for the test programs too
    filter: Vec<String>,
}

#[derive(clap::Args)]
pub struct WithArgs {
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<String>,
}

/// A program that was run as a step and did not succeed.
#[derive(Debug, thiserror::Error)]
#[error("`{command}` failed with exit code {code}")]
pub struct CommandFailed {
    command: String,
    pub code: u8,
}

pub fn run(root: &Path, args: &Args) -> Result<()> {
    if !args.no_lint {
        step("rustfmt", || cargo(root, &["fmt", "--all", "--check"], &[]))?;
        step("clippy", || cargo(root, &["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"], &[]))?;
        step("tidy", || tidy::run(root))?;
    }
    let (services, env) = parts(root)?;
    let python = step("packages", || python::env(root))?;
    step("tests", || {
        let mut arguments = vec!["test", "--workspace", "--"];
        arguments.extend(args.filter.iter().map(String::as_str));
        cargo(root, &arguments, &[&env[..], &python].concat())
    })?;
    if args.filter.is_empty() {
        step("rest", || rest::in_tests(root, &python))?;
        step("chaos", || chaos::in_tests(root, services.has_postgres()))?;
    }
    Ok(())
}

/// Runs a command where it finds all that tests find, except for what comes from PyPI.
pub fn with(root: &Path, args: &WithArgs) -> Result<()> {
    let (_services, env) = parts(root)?;
    let (program, rest) = args.command.split_first().context("no command")?;
    complete(Command::new(program).args(rest).envs(env))
}

/// What tests talk to, and the variables that tell them of it.
fn parts(root: &Path) -> Result<(services::Services, Vec<(&'static str, String)>)> {
    let services = step("services", || services::start(root))?;
    let agent = step("agent", || agent::build(root, false))?;
    let mut env = services.env().to_vec();
    env.push(("HODEI_TEST_AGENT", agent.display().to_string()));
    Ok((services, env))
}

/// Runs one step under a heading and says how long it took.
fn step<T>(name: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    eprintln!("==> {name}");
    let started = Instant::now();
    let outcome = work();
    let verdict = if outcome.is_ok() { "passed" } else { "FAILED" };
    eprintln!("==> {name} {verdict} in {:.1} s\n", started.elapsed().as_secs_f64());
    outcome
}

pub fn cargo(root: &Path, arguments: &[&str], env: &[(&str, String)]) -> Result<()> {
    // Cargo names itself to what it runs, so the same toolchain is used throughout.
    let program = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    complete(
        Command::new(program).args(arguments).envs(env.iter().map(|(name, value)| (name, value))).current_dir(root),
    )
}

/// Runs a program to its end; anything but success is an error that keeps its exit code.
pub fn complete(command: &mut Command) -> Result<()> {
    // What cargo told this program of its own package is wrong for any other: build scripts that look at it would run again.
    for (name, _) in env::vars_os().filter(|(name, _)| OF_THIS_PACKAGE.iter().any(|of_it| starts_with(name, of_it))) {
        command.env_remove(name);
    }
    let status = command.status().with_context(|| format!("cannot run {}", command.get_program().display()))?;
    if status.success() {
        return Ok(());
    }
    let words = [command.get_program()].into_iter().chain(command.get_args());
    let words: Vec<_> = words.map(|word| word.to_string_lossy()).collect();
    Err(CommandFailed { command: words.join(" "), code: exit_code(status) }.into())
}

fn starts_with(name: &OsStr, beginning: &str) -> bool {
    name.as_encoded_bytes().starts_with(beginning.as_bytes())
}

/// The shell's convention: a program ended by signal N has the exit code 128 + N.
fn exit_code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_follow_the_shell() {
        assert_eq!(exit_code(ExitStatus::from_raw(101 << 8)), 101);
        assert_eq!(exit_code(ExitStatus::from_raw(9)), 137);
    }

    #[test]
    fn a_failed_command_keeps_its_code_through_context() {
        let failed = CommandFailed { command: "cargo test".into(), code: 101 };
        let error = anyhow::Error::from(failed).context("while testing");
        assert_eq!(error.downcast_ref::<CommandFailed>().map(|failed| failed.code), Some(101));
    }
}
