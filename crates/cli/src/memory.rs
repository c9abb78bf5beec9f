//! Lets go of the parts of the program that only its start needed.
//!
//! The kernel maps code in as it is run, with what lies around it, and takes nothing back as long as memory is plenty. What
//! reads arguments and configuration, opens databases and brings them up to date runs once; a process that then rests for
//! weeks need not hold it. What is used again is mapped again, from memory that all processes of the program share.
#![allow(unsafe_code, reason = "neither std nor rustix tells where the program's segments are")]

use std::{
    ffi::{c_int, c_void},
    ptr, slice,
    time::Duration,
};

/// Long enough for a server or a worker to be up.
const START: Duration = Duration::from_secs(1);

/// Does it when the start is over.
pub fn rest_after_start() {
    tokio::spawn(async {
        tokio::time::sleep(START).await;
        let_go_of_code();
    });
}

pub fn let_go_of_code() {
    // SAFETY: the callback has the type that is asked for, and uses nothing of its last argument.
    unsafe { libc::dl_iterate_phdr(Some(let_go), ptr::null_mut()) };
}

/// The first object is the program itself; with it the walk ends.
unsafe extern "C" fn let_go(object: *mut libc::dl_phdr_info, _: usize, _: *mut c_void) -> c_int {
    const PAGE: usize = 4096;
    // SAFETY: the loader hands in a valid object, whose headers stay where they are.
    let (base, headers) = unsafe {
        let object = &*object;
        (object.dlpi_addr as usize, slice::from_raw_parts(object.dlpi_phdr, object.dlpi_phnum.into()))
    };
    for header in headers.iter().filter(|header| header.p_type == libc::PT_LOAD && header.p_flags & libc::PF_W == 0) {
        let begin = (base + header.p_vaddr as usize).next_multiple_of(PAGE);
        let end = (base + (header.p_vaddr + header.p_filesz) as usize) & !(PAGE - 1);
        if begin < end {
            // SAFETY: nothing was ever written to these pages, and what is mapped again is the same file.
            unsafe { libc::madvise(begin as *mut c_void, end - begin, libc::MADV_DONTNEED) };
        }
    }
    1
}
