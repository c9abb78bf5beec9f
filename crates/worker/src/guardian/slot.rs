//! A slot: one thread that starts a job, waits for it, clears away what it left, and reports; then the next.

use super::{
    Shared,
    cgroup::SlotGroup,
    message::{self, Ended, INLINE, Report, Start, StartError, Stopped, Usage},
    posix,
    proc::{self, Marks},
};
use crate::executor::{boottime, wall};
use hodei_core::{id::ExecutionId, time::Time};
use rustix::{
    event::{PollFd, PollFlags, Timespec},
    fd::{AsFd, OwnedFd},
    io::Errno,
    process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions},
};
use std::{
    collections::BTreeMap,
    ffi::CString,
    fs::File,
    io,
    os::unix::process::ExitStatusExt,
    path::PathBuf,
    process::ExitStatus,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// How long to wait for a sign of death before looking again.
const LOOK_AGAIN: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
/// A job that ends within this time has no message for its start: two messages would cost it more than it is worth.
const SOON: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
/// How often and how long to wait for the main thread to reap.
const REAPING_LOOKS: usize = 50;
const REAPING_PAUSE: Duration = Duration::from_millis(1);
/// More descriptors than this are not watched at a time.
const WATCHED: usize = 64;
/// The exit code by which a shell tells that SIGKILL ended what it ran.
const SHELL_KILLED: i32 = 128 + 9;

#[derive(Debug)]
pub(super) struct Slot {
    group: SlotGroup,
    /// Where its jobs work unless they ask for another place.
    folder: PathBuf,
    current: Mutex<Option<Current>>,
}

/// What a slot runs now.
#[derive(Debug)]
struct Current {
    execution: ExecutionId,
    main: Pid,
    /// The main process has ended, and its number may soon be another's.
    exited: bool,
    stop: Option<Stop>,
}

#[derive(Clone, Copy, Debug)]
struct Stop {
    why: Stopped,
    /// When politeness ends, on the boot-time clock.
    kill_at: u64,
    killed: bool,
}

impl Slot {
    pub(super) fn new(group: SlotGroup, folder: PathBuf) -> Self {
        Self { group, folder, current: Mutex::new(None) }
    }

    fn current(&self) -> MutexGuard<'_, Option<Current>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks the execution to end, if it is still the one that runs here. A second, shorter grace replaces the first.
    pub(super) fn stop(&self, execution: ExecutionId, grace_ms: u64) {
        let mut current = self.current();
        let Some(current) = current.as_mut().filter(|current| current.execution == execution) else { return };
        let kill_at = boottime().0.saturating_add(grace_ms);
        match &mut current.stop {
            Some(stop) => stop.kill_at = stop.kill_at.min(kill_at),
            None => {
                current.stop = Some(Stop { why: Stopped::Asked, kill_at, killed: false });
                if grace_ms > 0 {
                    self.signal(current, Signal::TERM);
                }
            }
        }
    }

    /// Ends what runs here because nothing may run any longer.
    pub(super) fn stop_now(&self) {
        if let Some(current) = self.current().as_mut() {
            let stop = current.stop.get_or_insert(Stop { why: Stopped::Lease, kill_at: 0, killed: false });
            stop.kill_at = 0;
        }
        self.kill_if_due();
    }

    /// When `kill_if_due` has something to do.
    pub(super) fn due(&self) -> Option<u64> {
        self.current().as_ref()?.stop.filter(|stop| !stop.killed).map(|stop| stop.kill_at)
    }

    /// Ends the main process if its grace is over. The slot's thread takes it from there.
    pub(super) fn kill_if_due(&self) {
        let mut current = self.current();
        let Some(current) = current.as_mut() else { return };
        let Some(stop) = current.stop.filter(|stop| !stop.killed && stop.kill_at <= boottime().0) else { return };
        current.stop = Some(Stop { killed: true, ..stop });
        self.group.forbid_forks();
        if !current.exited {
            _ = rustix::process::kill_process_group(current.main, Signal::KILL);
            _ = rustix::process::kill_process(current.main, Signal::KILL);
        }
        self.signal(current, Signal::KILL);
    }

    /// Each process gets it once: a handler that runs twice would surprise a job.
    fn signal(&self, current: &Current, signal: Signal) {
        signal_members(|| self.members(current.execution, current.main), signal);
    }

    fn members(&self, execution: ExecutionId, main: Pid) -> Vec<Pid> {
        if self.group.tracks() {
            return self.group.members();
        }
        let variable = format!("HODEI_EXECUTION_ID={execution}");
        proc::family(&Marks { group: Some(main), variable, folder: self.folder.clone() })
    }

    /// Whether what outlives the main process must go at once.
    fn may_kill(&self) -> bool {
        let current = self.current();
        let stop = current.as_ref().and_then(|current| current.stop);
        stop.is_none_or(|stop| stop.kill_at <= boottime().0)
    }

    /// Returns when nothing of the execution is left. After a stop the rest of the grace is for what outlives the main
    /// process, too; otherwise it is killed at once.
    fn clear(&self, execution: ExecutionId, main: Pid, shared: &Shared) {
        if self.group.is_quiet() == Some(true) {
            return;
        }
        loop {
            let members = self.members(execution, main);
            if members.is_empty() {
                break;
            }
            let watched = watch(&members);
            if self.may_kill() {
                self.group.forbid_forks();
                if !self.group.kill_at_once() {
                    signal_members(|| self.members(execution, main), Signal::KILL);
                }
            }
            wait_for_any(&watched);
        }
        self.await_reaping(shared);
    }

    /// Orphans that ended by themselves are the main thread's to reap. Until then they count against the next job's limit.
    fn await_reaping(&self, shared: &Shared) {
        shared.wake();
        for _ in 0..REAPING_LOOKS {
            if self.group.is_quiet() != Some(false) {
                break;
            }
            std::thread::sleep(REAPING_PAUSE);
            shared.wake();
        }
    }
}

/// Serves one slot until the agent closes its socket.
pub(super) fn serve(slot: &Slot, socket: &OwnedFd, shared: &Shared) {
    let entered = slot.group.enter();
    let mut packet = vec![0; INLINE];
    while let Ok(Some((start, fds))) = message::receive(socket, &mut packet) {
        let begun = match &entered {
            Ok(()) => Running::begin(slot, shared, &start, fds),
            Err(error) => Err(StartError::Limits { message: error.to_string() }),
        };
        let sent = match begun {
            Ok(mut running) => {
                running.tell_start(socket);
                message::send(socket, &Report::Ended(running.end(slot, shared)), &[])
            }
            Err(error) => message::send(socket, &Report::NotStarted(error), &[]),
        };
        if sent.is_err() {
            break;
        }
    }
}

/// A job that was started.
struct Running {
    execution: ExecutionId,
    main: Pid,
    handle: Option<OwnedFd>,
    started: Time,
    /// How often the kernel had killed for want of memory before; `None` without a limit.
    memory_kills: Option<u64>,
}

impl Running {
    fn begin(slot: &Slot, shared: &Shared, start: &Start, fds: Vec<OwnedFd>) -> Result<Self, StartError> {
        if let Some(deadline_ms) = start.deadline_ms {
            shared.prolong(deadline_ms);
        }
        if shared.lease_is_over() {
            return Err(StartError::Lease);
        }
        let joins = slot.group.prepare(start.limits);
        let joins = joins.map_err(|error| StartError::Limits { message: error.to_string() })?;
        let memory_kills = (start.limits.memory_bytes > 0).then(|| slot.group.memory_kills());
        let spawned = spawn(start, fds, &shared.nothing, &joins);
        let (main, handle) = spawned.map_err(|error| StartError::Spawn { errno: error.raw_os_error().unwrap_or(0) })?;
        let (execution, started) = (start.execution, wall());
        *slot.current() = Some(Current { execution, main, exited: false, stop: None });
        // The lease may have ended between the look at it and this moment; the main thread has then looked in vain.
        if shared.lease_is_over() {
            slot.stop_now();
        }
        Ok(Self { execution, main, handle, started, memory_kills })
    }

    /// Tells the agent of the start, unless the job ends so soon that its end tells enough.
    fn tell_start(&mut self, socket: &OwnedFd) {
        if !self.handle.take().is_some_and(ends_soon) {
            _ = message::send(socket, &Report::Started { at: self.started }, &[]);
        }
    }

    /// Waits for the main process, then for the end of all that it started.
    fn end(&self, slot: &Slot, shared: &Shared) -> Ended {
        // The number of the main process stays its own until it is reaped: only after `exited` is set.
        while let Err(Errno::INTR) =
            rustix::process::waitid(WaitId::Pid(self.main), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT)
        {}
        if let Some(current) = slot.current().as_mut() {
            current.exited = true;
        }
        // Nobody else reaps it; if someone did, it must not count as a success.
        let lost = |_| (ExitStatus::from_raw(Signal::KILL.as_raw()), Usage::default());
        let (status, usage) = posix::reap(self.main).unwrap_or_else(lost);
        slot.clear(self.execution, self.main, shared);
        let stopped = slot.current().take().and_then(|current| current.stop).map(|stop| stop.why);
        let (exit_code, signal) = (status.code(), status.signal());
        let killed = signal == Some(Signal::KILL.as_raw()) || exit_code == Some(SHELL_KILLED);
        let out_of_memory = killed && self.memory_kills.is_some_and(|before| slot.group.memory_kills() > before);
        Ended { exit_code, signal, out_of_memory, stopped, usage, started: self.started, finished: wall() }
    }
}

/// Whether a process ends in a moment.
fn ends_soon(main: OwnedFd) -> bool {
    matches!(rustix::event::poll(&mut [PollFd::new(&main, PollFlags::IN)], Some(&SOON)), Ok(1))
}

/// Starts the job; the descriptors are its standard output, its standard error and, if it has one, its standard input.
/// They close here with it: every descriptor that is open in this process is one that the next job has to close.
fn spawn(start: &Start, fds: Vec<OwnedFd>, nothing: &File, joins: &[File]) -> io::Result<(Pid, Option<OwnedFd>)> {
    let [stdout, stderr, stdin @ ..] = &fds[..] else { return Err(io::ErrorKind::InvalidInput.into()) };
    let stdin = stdin.first().filter(|_| start.stdin).map_or(nothing.as_fd(), AsFd::as_fd);
    // Of several values of a name the last one counts.
    let environment: BTreeMap<_, _> = start.environment.iter().map(|(name, value)| (name, value)).collect();
    let environment = environment.into_iter().map(|(name, value)| CString::new(format!("{name}={value}")));
    posix::spawn(&posix::Program {
        path: CString::new(&*start.program)?,
        args: start.args.iter().map(|arg| CString::new(&**arg)).collect::<Result<_, _>>()?,
        environment: environment.collect::<Result<_, _>>()?,
        directory: CString::new(&*start.directory)?,
        standard: [stdin, stdout.as_fd(), stderr.as_fd()],
        joins,
    })
}

/// Signals what `list` names. A number may pass to a stranger at any time: a handle is taken first, and used only if
/// the number is still listed afterwards.
pub(super) fn signal_members(list: impl Fn() -> Vec<Pid>, signal: Signal) {
    let handles: Vec<_> = list().into_iter().filter_map(|pid| Some((pid, handle(pid)?))).collect();
    if handles.is_empty() {
        return;
    }
    let still = list();
    for (pid, handle) in handles {
        if still.contains(&pid) {
            _ = rustix::process::pidfd_send_signal(handle, signal);
        }
    }
}

/// Kills what `list` names until it names nothing.
pub(super) fn kill_all(list: impl Fn() -> Vec<Pid>) {
    loop {
        let members = list();
        if members.is_empty() {
            return;
        }
        let watched = watch(&members);
        signal_members(&list, Signal::KILL);
        wait_for_any(&watched);
    }
}

fn handle(pid: Pid) -> Option<OwnedFd> {
    rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok()
}

fn watch(pids: &[Pid]) -> Vec<OwnedFd> {
    pids.iter().take(WATCHED).filter_map(|pid| handle(*pid)).collect()
}

/// Returns when one of them has ended, or after a moment. Reaps those that have ended and were handed to us.
fn wait_for_any(watched: &[OwnedFd]) {
    let mut fds: Vec<_> = watched.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
    _ = rustix::event::poll(&mut fds, Some(&LOOK_AGAIN));
    for fd in watched {
        _ = rustix::process::waitid(WaitId::PidFd(fd.as_fd()), WaitIdOptions::EXITED | WaitIdOptions::NOHANG);
    }
}

/// Starts the thread of a slot. Its stack is small: it holds no more than a few paths and messages.
pub(super) fn start(
    slot: Arc<Slot>,
    socket: Arc<OwnedFd>,
    shared: Arc<Shared>,
) -> io::Result<std::thread::JoinHandle<()>> {
    const STACK: usize = 128 << 10;
    std::thread::Builder::new().name("slot".to_owned()).stack_size(STACK).spawn(move || {
        serve(&slot, &socket, &shared);
    })
}
