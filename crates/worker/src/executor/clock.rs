//! The worker's clocks.

use hodei_core::time::{Elapsed, Time};
use rustix::time::{ClockId, clock_gettime};

/// Milliseconds since boot. The guardian reads the same clock, so a deadline means the same to both.
pub fn boottime() -> Elapsed {
    let now = clock_gettime(ClockId::Boottime);
    Elapsed(now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000)
}

pub fn wall() -> Time {
    let now = clock_gettime(ClockId::Realtime);
    Time(now.tv_sec * 1000 + now.tv_nsec / 1_000_000)
}
