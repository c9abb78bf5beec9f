//! The guardian: a small process beside the agent that starts the jobs and outlives the agent just long enough to end
//! them.
//!
//! It kills every job when the agent's socket closes (the agent died) and when the lease runs out (the agent is frozen
//! or cut off). Each slot has a thread and a socket of its own, so a job costs one message each way and no hand-over
//! inside the guardian. The main thread keeps the lease, stops jobs and reaps orphans.

mod cgroup;
mod command;
pub(crate) mod message;
mod posix;
mod proc;
mod slot;
mod socket;

pub use command::GuardianCommand;
pub(crate) use command::GuardianProcess;
pub use message::{Isolation, Limit, Mechanism};
pub(crate) use socket::Socket;

use crate::executor::{SCRATCH, boottime};
use cgroup::Groups;
use message::{Control, INLINE, Init, Ready};
use proc::Marks;
use rustix::{
    event::{EventfdFlags, PollFd, PollFlags},
    fd::{AsFd, OwnedFd},
    net::Shutdown,
    process::WaitOptions,
    time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec},
};
use slot::Slot;
use std::{
    fs::File,
    io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

/// No lease has been set yet.
const NO_DEADLINE: u64 = u64::MAX;
const REAP_EVERY_MS: u64 = 20;
const REAP_FOR_MS: u64 = 500;
const FORMER_GUARDIAN: Duration = Duration::from_secs(5);
const LOOK_AGAIN: Duration = Duration::from_millis(2);
const NOTHING: &str = "/dev/null";
/// Every lease is over.
const LONG_AGO: u64 = 0;
/// Wait only for children of the calling thread. The main thread's are orphans that were handed to it; a job's main
/// process belongs to its slot's thread.
const OWN_CHILDREN: WaitOptions = WaitOptions::from_bits_retain(0x2000_0000);

/// The guardian's process, from start to end. Its control socket is its standard input.
pub fn main() -> io::Result<()> {
    posix::close_inherited();
    let control = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?;
    rustix::stdio::dup2_stdin(File::open(NOTHING)?)?;
    run(control)
}

/// Guards until the agent's end of `control` closes and all jobs are gone.
pub fn run(control: OwnedFd) -> io::Result<()> {
    posix::shrug_off_polite_signals();
    // Fails only for the leader of a process group, which is then apart from the agent's terminal already.
    _ = rustix::process::setsid();
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    let Some((Control::Init(init), _)) = message::receive(&control, &mut [0; INLINE])? else { return Ok(()) };
    let _alone = wait_for_former_guardian(&init.scratch)?;
    let groups = Groups::detect(init.worker, init.pids_limit, init.mechanism);
    clear_former_life(&groups, &init);
    message::send(&control, &Ready(groups.isolation()), &[])?;
    let mut guardian = Guardian::new(control, groups, init.scratch)?;
    let served = guardian.serve();
    guardian.end();
    served
}

/// Both would use the same groups, and the one that ends removes them under the other. One that is stopped is not waited
/// for longer than this: what it left is ended all the same. The lock goes with the process that holds it.
fn wait_for_former_guardian(scratch: &Path) -> io::Result<File> {
    let lock = File::options().create(true).truncate(false).write(true).open(scratch.with_extension("lock"))?;
    let until = Instant::now() + FORMER_GUARDIAN;
    while lock.try_lock().is_err() && Instant::now() < until {
        std::thread::sleep(LOOK_AGAIN);
    }
    Ok(lock)
}

fn clear_former_life(groups: &Groups, init: &Init) {
    let variable = format!("{SCRATCH}={}/", init.scratch.display());
    let marks = Marks { group: None, variable, folder: init.scratch.clone() };
    let tracked = groups.isolation().mechanism != Mechanism::None;
    slot::kill_all(|| if tracked { groups.members() } else { proc::family_at_second_look(&marks) });
    groups.remove_slots();
}

/// What the threads share.
#[derive(Debug)]
struct Shared {
    deadline: AtomicU64,
    wake: OwnedFd,
    /// The input of jobs that have none.
    nothing: File,
}

impl Shared {
    fn lease_is_over(&self) -> bool {
        let deadline = self.deadline.load(Ordering::SeqCst);
        deadline != NO_DEADLINE && deadline <= boottime().0
    }

    /// Replaces a lease that is over. Once the agent is gone nothing does.
    fn prolong(&self, deadline_ms: u64) {
        let over = |deadline: u64| deadline != LONG_AGO && deadline <= boottime().0;
        let later = |deadline| (over(deadline) && deadline < deadline_ms).then_some(deadline_ms);
        if self.deadline.fetch_update(Ordering::SeqCst, Ordering::SeqCst, later).is_ok() {
            self.wake();
        }
    }

    /// Gets the main thread to look around.
    fn wake(&self) {
        _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }
}

struct Guardian {
    control: OwnedFd,
    timer: OwnedFd,
    groups: Groups,
    scratch: PathBuf,
    shared: Arc<Shared>,
    slots: Vec<Attached>,
    /// When to look for orphans again, and until when to go on with that.
    reap_at: Option<u64>,
    reap_until: u64,
}

struct Attached {
    index: u32,
    slot: Arc<Slot>,
    socket: Arc<OwnedFd>,
    thread: JoinHandle<()>,
}

impl Guardian {
    fn new(control: OwnedFd, groups: Groups, scratch: PathBuf) -> io::Result<Self> {
        let wake = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = rustix::time::timerfd_create(TimerfdClockId::Boottime, flags)?;
        let nothing = File::open(NOTHING)?;
        let shared = Arc::new(Shared { deadline: AtomicU64::new(NO_DEADLINE), wake, nothing });
        Ok(Self { control, timer, groups, scratch, shared, slots: Vec::new(), reap_at: None, reap_until: 0 })
    }

    /// Returns when the agent is gone.
    fn serve(&mut self) -> io::Result<()> {
        let mut packet = vec![0; INLINE];
        loop {
            self.set_timer()?;
            let (said, woken) = self.wait()?;
            if said {
                match message::receive(&self.control, &mut packet) {
                    Ok(Some((message, fds))) => self.obey(message, fds)?,
                    // An agent that cannot be understood is as good as gone.
                    Ok(None) | Err(_) => return Ok(()),
                }
            }
            self.keep_deadlines();
            self.reap(woken);
        }
    }

    /// Waits for anything to do; tells whether the agent has said something, and whether a slot has left orphans.
    fn wait(&self) -> io::Result<(bool, bool)> {
        let mut fds = [self.control.as_fd(), self.timer.as_fd(), self.shared.wake.as_fd()]
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        match rustix::event::poll(&mut fds, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let [said, _, woken] = fds.map(|fd| !fd.revents().is_empty());
        for fd in [&self.timer, &self.shared.wake] {
            _ = rustix::io::read(fd, &mut [0u8; 8]);
        }
        Ok((said, woken))
    }

    fn obey(&mut self, message: Control, fds: Vec<OwnedFd>) -> io::Result<()> {
        match message {
            Control::Init(_) => {}
            Control::Attach { slot } => {
                if let Some(socket) = fds.into_iter().next() {
                    self.attach(slot, socket)?;
                }
            }
            Control::Lease { deadline_ms } => self.shared.deadline.store(deadline_ms, Ordering::SeqCst),
            Control::Stop { slot, execution, grace_ms } => {
                self.slots.iter().filter(|attached| attached.index == slot).for_each(|attached| {
                    attached.slot.stop(execution, grace_ms);
                });
            }
        }
        Ok(())
    }

    fn attach(&mut self, index: u32, socket: OwnedFd) -> io::Result<()> {
        let slot = Arc::new(Slot::new(self.groups.slot(index)?, self.scratch.join(format!("slot-{index}"))));
        let socket = Arc::new(socket);
        let thread = slot::start(slot.clone(), socket.clone(), self.shared.clone())?;
        self.slots.push(Attached { index, slot, socket, thread });
        Ok(())
    }

    fn keep_deadlines(&self) {
        let over = self.shared.lease_is_over();
        for attached in &self.slots {
            if over { attached.slot.stop_now() } else { attached.slot.kill_if_due() }
        }
    }

    /// Arms the timer for the next deadline. It counts time asleep, too, as the lease does.
    fn set_timer(&self) -> io::Result<()> {
        let lease = self.shared.deadline.load(Ordering::SeqCst);
        let lease = (lease != NO_DEADLINE && !self.shared.lease_is_over()).then_some(lease);
        let next = self.slots.iter().filter_map(|attached| attached.slot.due()).chain(lease).chain(self.reap_at).min();
        // A timer set to zero is switched off.
        let next = next.map_or(0, |next| next.max(1));
        let at = Timespec { tv_sec: (next / 1000) as i64, tv_nsec: (next % 1000) as i64 * 1_000_000 };
        let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: at };
        rustix::time::timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &once)?;
        Ok(())
    }

    /// Reaps orphans. After a slot has left some, it looks again for a while: a process leaves its group a little before
    /// it can be reaped.
    fn reap(&mut self, woken: bool) {
        let now = boottime().0;
        if woken {
            self.reap_until = now + REAP_FOR_MS;
        }
        let remain = reap_orphans();
        self.reap_at = (remain && now < self.reap_until).then_some(now + REAP_EVERY_MS);
    }

    /// Ends all jobs, then all threads.
    fn end(self) {
        self.shared.deadline.store(LONG_AGO, Ordering::SeqCst);
        self.keep_deadlines();
        for attached in self.slots {
            _ = rustix::net::shutdown(&attached.socket, Shutdown::Both);
            _ = attached.thread.join();
        }
        reap_orphans();
        self.groups.remove();
    }
}

/// True when there are some that have not ended yet.
fn reap_orphans() -> bool {
    loop {
        match rustix::process::wait(OWN_CHILDREN | WaitOptions::NOHANG) {
            Ok(Some(_)) => {}
            Ok(None) => return true,
            Err(_) => return false,
        }
    }
}
