//! The program that jobs run, and the account that it leaves of every run.
//!
//! A run appends to a file of its job when it begins, every 50 ms while it lives, and when it ends. So two runs of one
//! job that were alive at the same time are seen, however each of them ended.

use crate::clock;
use anyhow::{Context, Result};
use std::{
    collections::BTreeMap,
    env,
    fs::{self, File, OpenOptions},
    io::{self, Write},
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

const BEAT: Duration = Duration::from_millis(50);
/// How long a run waits for room on a full disk before it gives up on leaving its result.
const RESULT_PATIENCE: Duration = Duration::from_secs(30);
/// The exit code of a job that is meant to fail.
pub const MEANT_TO_FAIL: i32 = 3;
/// The exit code of a run that could not leave its result.
pub const NO_RESULT: i32 = 7;
/// The exit code of a run whose output nobody takes any more.
const NO_READER: u8 = 9;

#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Where runs are accounted for.
    #[arg(long)]
    runs: PathBuf,
    /// Names the job in everything that it leaves.
    #[arg(long)]
    tag: String,
    /// Lines on standard output; half as many go to standard error.
    #[arg(long)]
    lines: u32,
    /// How long to take for them, in milliseconds.
    #[arg(long)]
    takes: u64,
    /// Fail in attempts up to this one.
    #[arg(long, default_value_t = 0)]
    fail_up_to: u32,
}

/// What it prints as its n-th line.
fn line(tag: &str, stream: &str, n: u32, execution: &str) -> String {
    format!("{tag} {stream} {n} {execution}\n")
}

fn is_on_stderr(n: u32) -> bool {
    n.is_multiple_of(2)
}

/// All that a whole run prints on one of its streams.
pub fn expected_output(tag: &str, lines: u32, execution: &str, stderr: bool) -> String {
    let stream = if stderr { "err" } else { "out" };
    (1..=lines).filter(|n| !stderr || is_on_stderr(*n)).map(|n| line(tag, stream, n, execution)).collect()
}

/// What a run leaves as its result.
pub fn expected_result(tag: &str, execution: &str, attempt: u32) -> serde_json::Value {
    serde_json::json!({"tag": tag, "execution": execution, "attempt": attempt})
}

pub fn run(args: &Args) -> Result<ExitCode> {
    let variable = |name: &str| env::var(name).with_context(|| format!("{name} is not set"));
    let (job, execution) = (variable("HODEI_JOB_ID")?, variable("HODEI_EXECUTION_ID")?);
    let attempt: u32 = variable("HODEI_ATTEMPT")?.parse()?;
    let result = variable("HODEI_RESULT")?;
    let account = Account::open(&args.runs.join(job), execution.clone())?;
    account.note("begin", &format!("{attempt} {} {result}", clock::wall_ms()))?;
    let beating = Arc::clone(&account);
    thread::spawn(move || {
        loop {
            thread::sleep(BEAT);
            _ = beating.note("beat", "");
        }
    });
    let code = if print(args, &execution).is_err() {
        NO_READER
    } else if leave(Path::new(&result), &expected_result(&args.tag, &execution, attempt)).is_err() {
        NO_RESULT as u8
    } else if attempt <= args.fail_up_to {
        MEANT_TO_FAIL as u8
    } else {
        0
    };
    account.note("end", &code.to_string())?;
    Ok(code.into())
}

fn print(args: &Args, execution: &str) -> io::Result<()> {
    let began = Instant::now();
    for n in 1..=args.lines {
        io::stdout().write_all(line(&args.tag, "out", n, execution).as_bytes())?;
        if is_on_stderr(n) {
            io::stderr().write_all(line(&args.tag, "err", n, execution).as_bytes())?;
        }
        let due = Duration::from_millis(args.takes * u64::from(n) / u64::from(args.lines));
        let ahead = due.saturating_sub(began.elapsed());
        // Many lines come in bursts: a sleep for each would make the run longer than asked.
        if ahead > Duration::from_millis(5) {
            thread::sleep(ahead);
        }
    }
    io::stdout().flush()
}

/// The worker's disk may be full for a while.
fn leave(path: &Path, result: &serde_json::Value) -> io::Result<()> {
    let began = Instant::now();
    loop {
        match fs::write(path, result.to_string()) {
            Err(_) if began.elapsed() < RESULT_PATIENCE => thread::sleep(BEAT),
            settled => return settled,
        }
    }
}

/// The file of a job's runs, seen from one of them.
struct Account {
    file: File,
    execution: String,
}

impl Account {
    fn open(path: &Path, execution: String) -> Result<Arc<Self>> {
        let file = OpenOptions::new().create(true).append(true).open(path);
        let file = file.with_context(|| format!("cannot account for this run in {}", path.display()))?;
        Ok(Arc::new(Self { file, execution }))
    }

    /// One write, so that lines of several processes never mix. The time is taken before it: at that time, this lived.
    fn note(&self, what: &str, more: &str) -> io::Result<()> {
        let (now, pid) = (clock::boottime(), std::process::id());
        (&self.file).write_all(format!("{what} {} {pid} {now} {more}\n", self.execution).as_bytes())
    }
}

/// One process that ran a job, as it accounted for itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    pub execution: String,
    pub pid: u32,
    pub attempt: u32,
    /// The first and the last time at which it is known to have lived, on the boot-time clock.
    pub first: u64,
    pub last: u64,
    pub began_wall_ms: i64,
    /// The folder of the worker that it ran on.
    pub worker: String,
    pub exit_code: Option<i32>,
}

/// The runs in the file of a job, by their beginning.
pub fn read_runs(path: &Path) -> Result<Vec<Run>> {
    let text = match fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        text => text.with_context(|| format!("cannot read {}", path.display()))?,
    };
    parse_runs(&text).with_context(|| format!("cannot understand {}", path.display()))
}

fn parse_runs(text: &str) -> Result<Vec<Run>> {
    let mut runs: BTreeMap<(&str, u32), Run> = BTreeMap::new();
    for line in text.lines() {
        let mut words = line.split(' ');
        let mut word = || words.next().with_context(|| format!("'{line}' is too short"));
        let (what, execution, pid, at) = (word()?, word()?, word()?.parse()?, word()?.parse()?);
        if what == "begin" {
            let run = Run {
                execution: execution.to_owned(),
                pid,
                first: at,
                last: at,
                attempt: word()?.parse()?,
                began_wall_ms: word()?.parse()?,
                worker: worker_of(word()?).to_owned(),
                exit_code: None,
            };
            runs.insert((execution, pid), run);
            continue;
        }
        let run = runs.get_mut(&(execution, pid)).with_context(|| format!("'{line}' comes before its beginning"))?;
        run.last = run.last.max(at);
        if what == "end" {
            run.exit_code = Some(word()?.parse()?);
        }
    }
    let mut runs: Vec<Run> = runs.into_values().collect();
    runs.sort_by_key(|run| run.first);
    Ok(runs)
}

/// A result's path is `<data folder>/worker/scratch/slot-N/result`.
fn worker_of(result: &str) -> &str {
    result.split_once("/worker/scratch/").map_or(result, |(data, _)| data)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_put_together_from_what_they_noted() {
        let text = "begin e1 10 100 1 5 /w1/worker/scratch/slot-0/result\nbeat e1 10 150 \n\
                    begin e2 11 300 2 6 /w2/worker/scratch/slot-1/result\nbeat e1 10 200 \nend e2 11 400 0\n";
        let runs = parse_runs(text).unwrap();
        let seen: Vec<_> = runs.iter().map(|run| (run.first, run.last, run.worker.as_str(), run.exit_code)).collect();
        assert_eq!(seen, [(100, 200, "/w1", None), (300, 400, "/w2", Some(0))]);
    }

    #[test]
    fn output_is_the_same_as_printed() {
        assert_eq!(expected_output("t", 3, "e", false), "t out 1 e\nt out 2 e\nt out 3 e\n");
        assert_eq!(expected_output("t", 3, "e", true), "t err 2 e\n");
    }
}
