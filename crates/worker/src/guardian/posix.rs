//! The calls that neither std nor rustix offers. All `unsafe` code of this crate is here.
#![allow(unsafe_code)]

use super::message::Usage;
use rustix::process::Pid;
use std::{
    ffi::{CString, c_char, c_int, c_void},
    fs::File,
    io,
    mem::MaybeUninit,
    os::{
        fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
        unix::process::ExitStatusExt,
    },
    process::ExitStatus,
    ptr,
    sync::atomic::{AtomicI32, Ordering},
};

/// What asks a process to end.
const POLITE_SIGNALS: [c_int; 4] = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGQUIT];

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
        for signal in POLITE_SIGNALS {
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

/// What a new process becomes.
pub(super) struct Program<'a> {
    pub path: CString,
    pub args: Vec<CString>,
    /// Each `NAME=value`.
    pub environment: Vec<CString>,
    pub directory: CString,
    /// Standard input, output and error.
    pub standard: [BorrowedFd<'a>; 3],
    /// The member lists that it adds itself to before it becomes the program: so no instruction of the program runs outside
    /// of these groups.
    pub joins: &'a [File],
}

/// What the two sides of a clone have in common.
struct Birth<'a> {
    program: &'a Program<'a>,
    args: Vec<*const c_char>,
    environment: Vec<*const c_char>,
    /// What kept the child from becoming the program.
    errno: AtomicI32,
}

/// The stack of a child that has not become its program yet.
#[repr(align(16))]
struct Stack([MaybeUninit<u8>; 16 << 10]);

/// Starts a program as the leader of a process group of its own, with every signal as it is by default. Returns its number,
/// and a handle on it where the kernel gives one.
///
/// The child borrows the memory of this process until it is the program, as it does in posix_spawn. That would cost a small
/// job a twelfth more: it maps a stack for each child, and sets every signal there is.
pub(super) fn spawn(program: &Program) -> io::Result<(Pid, Option<OwnedFd>)> {
    let pointers = |texts: &[CString]| texts.iter().map(|text| text.as_ptr()).chain([ptr::null()]).collect();
    let (args, environment) = (pointers(&program.args), pointers(&program.environment));
    let birth = Birth { program, args, environment, errno: AtomicI32::new(0) };
    let mut stack = Stack([MaybeUninit::uninit(); _]);
    let mut handle: RawFd = -1;
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_PIDFD | libc::SIGCHLD;
    // SAFETY: this thread waits until the child has left this memory, so that all it uses outlives it; the stack grows down
    // from its end, which is aligned. No signal is handled there, because all are blocked until the child is by itself.
    let pid = unsafe {
        let (mut all, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
        let birth = (&raw const birth).cast_mut().cast();
        let pid = libc::clone(become_program, stack.0.as_mut_ptr_range().end.cast(), flags, birth, &raw mut handle);
        let error = io::Error::last_os_error();
        libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), ptr::null_mut());
        Pid::from_raw(pid).filter(|_| pid > 0).ok_or(error)?
    };
    // SAFETY: the kernel made it for us, or left it as it was.
    let handle = (handle >= 0).then(|| unsafe { OwnedFd::from_raw_fd(handle) });
    match birth.errno.load(Ordering::Relaxed) {
        0 => Ok((pid, handle)),
        errno => {
            reap(pid)?;
            Err(io::Error::from_raw_os_error(errno))
        }
    }
}

/// The child, which does nothing but system calls.
extern "C" fn become_program(birth: *mut c_void) -> c_int {
    // SAFETY: `spawn` gives us one that outlives this function; the parent does not touch it meanwhile.
    let birth = unsafe { &*birth.cast::<Birth>() };
    let program = birth.program;
    // SAFETY: all pointers are to what `birth` holds, texts end with a zero and lists with a null.
    unsafe {
        let mut default = MaybeUninit::<libc::sigaction>::zeroed().assume_init();
        default.sa_sigaction = libc::SIG_DFL;
        // What is handled is back to its default in every new program. Until then nobody is to be asked politely in vain;
        // and Rust ignores SIGPIPE, which would stay.
        for signal in POLITE_SIGNALS.into_iter().chain([libc::SIGPIPE]) {
            libc::sigaction(signal, &default, ptr::null_mut());
        }
        let standard = program.standard.iter().zip(0..);
        let done = libc::setpgid(0, 0) == 0
            && program.joins.iter().all(|list| libc::write(list.as_raw_fd(), c"0".as_ptr().cast(), 1) == 1)
            && standard.into_iter().all(|(from, to)| libc::dup2(from.as_raw_fd(), to) == to)
            && libc::chdir(program.directory.as_ptr()) == 0;
        if done {
            let mut none = MaybeUninit::uninit();
            libc::sigemptyset(none.as_mut_ptr());
            libc::pthread_sigmask(libc::SIG_SETMASK, none.as_ptr(), ptr::null_mut());
            libc::execve(program.path.as_ptr(), birth.args.as_ptr(), birth.environment.as_ptr());
        }
    }
    let errno = io::Error::last_os_error().raw_os_error().filter(|errno| *errno != 0);
    birth.errno.store(errno.unwrap_or(libc::EIO), Ordering::Relaxed);
    127
}
