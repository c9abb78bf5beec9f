//! Counts what each thread has allocated, so that the memory one input takes can be measured while other tests run.

#![allow(unsafe_code, reason = "an allocator cannot be written without; it only counts and hands on to the system's")]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    io::Write,
    slice,
};

thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
    static INPUT: Cell<(&'static str, *const u8, usize)> = const { Cell::new(("", std::ptr::null(), 0)) };
}

/// No input may ask for so much in one piece. Such a request fails, which ends the process; before that, the input is
/// printed, because nothing can be caught afterwards.
const HUGE: usize = 4 << 30;

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: every call is handed on to the system's allocator with the arguments it came with.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if !granted(layout.size()) {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller keeps the promises of `GlobalAlloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if !granted(layout.size()) {
            return std::ptr::null_mut();
        }
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        count(-signed(layout.size()));
        // SAFETY: as above.
        unsafe { System.dealloc(block, layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // The old block and the new one may be there at the same time.
        if !granted(size) {
            return std::ptr::null_mut();
        }
        // SAFETY: as above.
        let moved = unsafe { System.realloc(block, layout, size) };
        count(-signed(layout.size()));
        moved
    }
}

fn signed(size: usize) -> isize {
    isize::try_from(size).unwrap_or(isize::MAX)
}

fn granted(size: usize) -> bool {
    let (target, at, length) = INPUT.try_with(Cell::get).unwrap_or(("", std::ptr::null(), 0));
    if size >= HUGE && !target.is_empty() {
        // SAFETY: `watch` keeps the input alive until it takes this away again.
        let input = unsafe { slice::from_raw_parts(at, length) };
        let mut out = std::io::stderr();
        _ = write!(out, "\n{target} asked for {size} bytes at once for this input, in hex: ");
        input.iter().for_each(|byte| _ = write!(out, "{byte:02x}"));
        _ = writeln!(out);
        return false;
    }
    count(signed(size));
    true
}

fn count(change: isize) {
    _ = HELD.try_with(|held| {
        let now = held.get().saturating_add(change);
        held.set(now);
        _ = PEAK.try_with(|peak| peak.set(peak.get().max(now)));
    });
}

/// The most that this thread held at any time while `work` ran, beyond what it held before.
pub fn watch<T>(target: &'static str, input: &[u8], work: impl FnOnce() -> T) -> (T, usize) {
    let before = HELD.get();
    PEAK.set(before);
    INPUT.set((target, input.as_ptr(), input.len()));
    let done = work();
    INPUT.set(("", std::ptr::null(), 0));
    (done, usize::try_from(PEAK.get() - before).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_is_seen_also_when_it_is_over() {
        let work = || drop(std::hint::black_box(vec![1u8; 1 << 20]));
        let ((), peak) = watch("test", &[], work);
        assert!((1 << 20..2 << 20).contains(&peak), "{peak}");
    }

    #[test]
    fn a_capacity_that_is_never_used_counts() {
        let ((), peak) = watch("test", &[], || drop(std::hint::black_box(Vec::<u64>::with_capacity(1 << 24))));
        assert!(peak >= 8 << 24, "{peak}");
    }
}
