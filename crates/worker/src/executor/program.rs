//! What is run, with which arguments and which environment.

use super::folder::Folder;
use crate::guardian::message::{Limits, Start};
use hodei_core::{
    protocol::Assignment,
    spec::{JobSpec, Work},
    state::{Failure, FailureKind},
    time::Elapsed,
};
use rustix::{fs::Access, io::Errno};
use std::{collections::BTreeMap, path::Path};

pub(super) const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
const SHELL: &str = "/bin/sh";
/// The variable by which the guardian knows what an earlier one has left running.
pub(crate) const SCRATCH: &str = "HODEI_SCRATCH";

/// Whom the worker runs as, for the jobs' environment.
#[derive(Clone, Debug)]
pub(super) struct Account {
    pub home: String,
    pub user: String,
    /// What the worker has in its environment for its jobs.
    pub environment: BTreeMap<String, String>,
}

impl Account {
    pub(super) fn of_this_process(environment: BTreeMap<String, String>) -> Self {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let root = rustix::process::getuid().is_root();
        Self {
            environment,
            home: variable("HOME").unwrap_or_else(|| if root { "/root" } else { "/" }.to_owned()),
            user: variable("USER").or_else(|| variable("LOGNAME")).unwrap_or_else(|| {
                if root { "root".to_owned() } else { rustix::process::getuid().as_raw().to_string() }
            }),
        }
    }
}

/// Everything that the guardian needs, or why the job cannot be started.
pub(super) fn prepare(
    assignment: &Assignment,
    folder: &Folder,
    account: &Account,
    lease: Option<Elapsed>,
) -> Result<Start, Failure> {
    let spec = &assignment.spec;
    let directory = directory(spec, folder)?;
    folder
        .give(assignment)
        .map_err(|error| not_started(format!("what the job is given cannot be written: {error}")))?;
    let args = arguments(spec, folder)?;
    let environment = environment(assignment, folder, account);
    let path = spec.environment.get("PATH").or_else(|| account.environment.get("PATH")).map_or(PATH, String::as_str);
    let name = args.first().map_or(SHELL, String::as_str);
    let program = find(name, path, &directory)?;
    let limits = Limits { cpu_millis: spec.requirements.cpu_millis, memory_bytes: spec.requirements.memory_bytes };
    let (execution, deadline_ms) = (assignment.execution, lease.map(|lease| lease.0));
    Ok(Start { execution, program, args, environment, directory, limits, stdin: !spec.stdin.is_empty(), deadline_ms })
}

fn directory(spec: &JobSpec, folder: &Folder) -> Result<String, Failure> {
    let Some(directory) = &spec.working_directory else { return Ok(text(&folder.work)) };
    match std::fs::metadata(directory) {
        Ok(found) if found.is_dir() => Ok(directory.clone()),
        Ok(_) => Err(not_started(format!("the working directory {directory} is not a directory"))),
        Err(error) => Err(not_started(format!("the working directory {directory} cannot be used: {error}"))),
    }
}

fn arguments(spec: &JobSpec, folder: &Folder) -> Result<Vec<String>, Failure> {
    match &spec.work {
        Work::Shell { program, args } => Ok(std::iter::once(program).chain(args).cloned().collect()),
        Work::Script { interpreter, content } => {
            folder
                .write_script(content)
                .map_err(|error| not_started(format!("the script cannot be written: {error}")))?;
            let mut args: Vec<String> = interpreter.split_whitespace().map(str::to_owned).collect();
            if args.is_empty() {
                args.push(SHELL.to_owned());
            }
            args.push(text(&folder.script));
            Ok(args)
        }
        Work::Task { task_type, .. } => Err(not_started(format!("a task ({task_type}) is not a process"))),
    }
}

/// Later ones win, so a job can replace what is there by default and nothing can replace what Hodei says.
fn environment(assignment: &Assignment, folder: &Folder, account: &Account) -> Vec<(String, String)> {
    let spec = &assignment.spec;
    let own = |name: &str, value: String| (name.to_owned(), value);
    let mut all = vec![
        own("PATH", PATH.to_owned()),
        own("HOME", account.home.clone()),
        own("USER", account.user.clone()),
        own("LANG", "C.UTF-8".to_owned()),
        own("SHELL", SHELL.to_owned()),
    ];
    all.extend(account.environment.clone());
    all.push(own("TMPDIR", text(&folder.work)));
    all.extend(spec.environment.iter().map(|(name, value)| (name.clone(), value.clone())));
    all.extend(spec.secrets.iter().map(|(name, secret)| (name.clone(), secret.0.clone())));
    all.extend([
        own("HODEI_JOB_ID", assignment.job.to_string()),
        own("HODEI_EXECUTION_ID", assignment.execution.to_string()),
        own("HODEI_ATTEMPT", assignment.attempt.to_string()),
        own(SCRATCH, text(folder.dir())),
        own("HODEI_PROGRESS", text(&folder.progress)),
        own("HODEI_RESULT", text(&folder.result)),
        own("HODEI_JOB_DATA", text(&folder.data)),
        own("HODEI_INPUT", text(&folder.input)),
        own("HODEI_DEPENDENCIES", text(&folder.dependencies)),
        own("HODEI_CHILDREN", text(&folder.children)),
        own("HODEI_END", text(&folder.end)),
    ]);
    if let Some((schedule, tick)) = &assignment.context.tick {
        all.extend([own("HODEI_SCHEDULE", schedule.clone()), own("HODEI_TICK", tick.rfc3339())]);
    }
    all
}

/// The absolute path of a program, found as a shell would find it.
pub(super) fn find(name: &str, path: &str, directory: &str) -> Result<String, Failure> {
    if name.starts_with('/') {
        return Ok(name.to_owned());
    }
    if name.contains('/') {
        return Ok(text(&Path::new(directory).join(name)));
    }
    let mut denied = None;
    for dir in path.split(':') {
        let candidate = Path::new(directory).join(dir).join(name);
        match rustix::fs::access(&candidate, Access::EXEC_OK) {
            Ok(()) if candidate.is_file() => return Ok(text(&candidate)),
            Err(Errno::ACCESS) if candidate.is_file() => denied = denied.or(Some(candidate)),
            _ => {}
        }
    }
    match denied {
        Some(candidate) => Err(not_started(format!("{} is not executable (permission denied)", candidate.display()))),
        None => Err(Failure::new(FailureKind::NotFound, format!("program '{name}' was not found in {path}"))),
    }
}

/// What the system's refusal to run a program means.
pub(super) fn refused(errno: i32, program: &str) -> Failure {
    let error = std::io::Error::from_raw_os_error(errno);
    match Errno::from_raw_os_error(errno) {
        Errno::NOENT if Path::new(program).exists() => {
            not_started(format!("{program} names an interpreter that does not exist"))
        }
        Errno::NOENT | Errno::NOTDIR => {
            Failure::new(FailureKind::NotFound, format!("program '{program}' does not exist"))
        }
        Errno::ACCESS => not_started(format!("{program} is not executable (permission denied)")),
        Errno::NOEXEC => {
            not_started(format!("{program} is not a program (a script needs a first line like #!/bin/sh)"))
        }
        _ => not_started(format!("{program} cannot be started: {error}")),
    }
}

/// What this process has in its environment that is not its own business.
pub(crate) fn inherited() -> BTreeMap<String, String> {
    let text =
        std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    text.filter(|(name, _)| !name.starts_with("HODEI_")).collect()
}

pub(super) fn not_started(message: String) -> Failure {
    Failure::new(FailureKind::NotStarted, message)
}

/// Paths of ours are text: the scratch folder is checked once at the start.
fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}
