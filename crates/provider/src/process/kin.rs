//! All processes of a worker: its agent, the guardian beside it, and their jobs.

use super::life::{Life, Stat};
use hodei_core::id::WorkerId;
use rustix::{
    event::{PollFd, PollFlags, Timespec},
    fd::OwnedFd,
    process::Signal,
};
use std::{
    fs, io,
    path::Path,
    time::{Duration, Instant},
};

/// The variable that an agent has in its environment, and nothing that it starts.
pub(super) const MARK: &str = "HODEI_DATA";
/// The variable that names the folder of a job, inside the data folder of its agent.
const JOB_MARK: &str = "HODEI_SCRATCH";
/// How long a guardian whose agent was killed may take to end the jobs.
const GUARDIAN: Duration = Duration::from_secs(10);
/// How long what was killed may take to be gone.
const KILLED: Duration = Duration::from_secs(10);

/// The agent that was started on this data folder, wherever it is.
pub(super) fn agent_in(data: &Path) -> Option<i32> {
    let mark = format!("{MARK}={}", data.display());
    pids().find(|pid| has_variable(*pid, |variable| variable == mark.as_bytes()))
}

/// Ends them all. The guardian ends the jobs of an agent that is gone; what a guardian does not, is done here.
pub(super) fn end(agent: Option<&Life>, worker: WorkerId, data: &Path) -> io::Result<()> {
    if let Some((agent, handle)) = agent.and_then(|agent| Some((agent, agent.handle()?))) {
        let guardians: Vec<OwnedFd> = children(agent.pid()).iter().filter_map(Life::handle).collect();
        kill(&handle);
        await_end(&[handle], KILLED)?;
        if await_end(&guardians, GUARDIAN).is_err() {
            guardians.iter().for_each(kill);
            await_end(&guardians, KILLED)?;
        }
    }
    end_jobs(worker, data)
}

/// Kills what is left of jobs until nothing is.
fn end_jobs(worker: WorkerId, data: &Path) -> io::Result<()> {
    let patience = Instant::now() + KILLED;
    loop {
        let left: Vec<OwnedFd> = jobs(worker, data).iter().filter_map(Life::handle).collect();
        if left.is_empty() {
            return Ok(());
        }
        left.iter().for_each(kill);
        await_end(&left, patience.saturating_duration_since(Instant::now()))?;
    }
}

/// Processes that are in a control group of the worker, or that have a folder of it in their environment.
fn jobs(worker: WorkerId, data: &Path) -> Vec<Life> {
    let group = format!("/hodei-{worker}/");
    let mark = format!("{JOB_MARK}={}/", data.display());
    let is_job = |pid: &i32| {
        fs::read_to_string(format!("/proc/{pid}/cgroup")).is_ok_and(|groups| groups.contains(&group))
            || has_variable(*pid, |variable| variable.starts_with(mark.as_bytes()))
    };
    pids().filter(is_job).filter_map(Life::of).collect()
}

fn children(pid: i32) -> Vec<Life> {
    pids().filter(|child| Stat::of(*child).is_some_and(|stat| stat.parent == pid)).filter_map(Life::of).collect()
}

fn pids() -> impl Iterator<Item = i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

fn has_variable(pid: i32, is_it: impl Fn(&[u8]) -> bool) -> bool {
    // Those of others are none of ours, and cannot be read.
    let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    environment.split(|byte| *byte == 0).any(is_it)
}

fn kill(handle: &OwnedFd) {
    // It fails only when the process is gone already.
    _ = rustix::process::pidfd_send_signal(handle, Signal::KILL);
}

/// Waits until they all have ended.
fn await_end(handles: &[OwnedFd], patience: Duration) -> io::Result<()> {
    let until = Instant::now() + patience;
    for handle in handles {
        let left = until.saturating_duration_since(Instant::now());
        let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
        let ended = loop {
            match rustix::event::poll(&mut [PollFd::new(handle, PollFlags::IN)], Some(&left)) {
                Err(rustix::io::Errno::INTR) => {}
                polled => break polled? > 0,
            }
        };
        if !ended {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "a process of the worker does not end"));
        }
    }
    Ok(())
}

/// All processes of agents and jobs that have a folder in here.
#[cfg(test)]
pub(super) fn all_in(folder: &Path) -> Vec<i32> {
    let marks = [MARK, JOB_MARK].map(|name| format!("{name}={}/", folder.display()));
    let is_ours = |pid: &i32| {
        Stat::of(*pid).is_some()
            && has_variable(*pid, |variable| marks.iter().any(|mark| variable.starts_with(mark.as_bytes())))
    };
    pids().filter(is_ours).collect()
}
