//! The calls that neither std nor rustix offers. All `unsafe` code of this crate is here.
#![allow(unsafe_code)]

use super::message::Usage;
use rustix::process::Pid;
use std::{
    io,
    mem::MaybeUninit,
    os::{
        fd::{AsRawFd, RawFd},
        unix::process::{CommandExt, ExitStatusExt},
    },
    process::{Command, ExitStatus},
};

/// Reaps a child and tells what it used. rustix and std can wait, but only wait4 gives the usage of one child.
pub(super) fn reap(pid: Pid) -> io::Result<(ExitStatus, Usage)> {
    let mut status = 0;
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    loop {
        // SAFETY: both pointers are valid for writes for the length of the call.
        let reaped = unsafe { libc::wait4(pid.as_raw_nonzero().get(), &mut status, 0, usage.as_mut_ptr()) };
        if reaped > 0 {
            break;
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
    // SAFETY: it was zeroed, which is a valid rusage, and then filled by the kernel.
    let usage = unsafe { usage.assume_init() };
    let millis = |time: libc::timeval| time.tv_sec as u64 * 1000 + time.tv_usec as u64 / 1000;
    let usage = Usage {
        user_ms: millis(usage.ru_utime),
        system_ms: millis(usage.ru_stime),
        max_rss_kib: usage.ru_maxrss as u64,
    };
    Ok((ExitStatus::from_raw(status), usage))
}

/// Makes the polite signals do nothing. They are caught and not ignored or blocked, because a job would inherit that;
/// what is caught is back to its default in every new program.
pub(super) fn shrug_off_polite_signals() {
    extern "C" fn nothing(_: libc::c_int) {}
    let handler: extern "C" fn(libc::c_int) = nothing;
    // SAFETY: a zeroed sigaction is valid; the handler does nothing, so it is safe at any moment and in any thread.
    unsafe {
        let mut action = MaybeUninit::<libc::sigaction>::zeroed().assume_init();
        action.sa_sigaction = handler as libc::sighandler_t;
        action.sa_flags = libc::SA_RESTART;
        for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGQUIT] {
            libc::sigaction(signal, &action, std::ptr::null_mut());
        }
        // Ignored by whoever started the agent, it would keep the ends of the jobs from us.
        libc::signal(libc::SIGCHLD, libc::SIG_DFL);
    }
}

/// Closes what the guardian inherited besides the three standard descriptors.
pub(super) fn close_inherited() {
    // SAFETY: called first in the guardian's process, before anything in it has opened a descriptor.
    unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, 0) };
}

/// Has the child move itself into the groups whose member lists these are, before it becomes the program: so no
/// instruction of the job runs outside them. The files must stay open until the child is started.
pub(super) fn join_before_exec(command: &mut Command, members: &[impl AsRawFd]) {
    let files: Vec<RawFd> = members.iter().map(AsRawFd::as_raw_fd).collect();
    let join = move || {
        for file in &files {
            // SAFETY: the buffer is valid for its length. write is async-signal-safe, as a forked child needs.
            if unsafe { libc::write(*file, c"0".as_ptr().cast(), 1) } != 1 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(())
    };
    // SAFETY: the closure allocates nothing, takes no lock and calls write only.
    unsafe { command.pre_exec(join) };
}
