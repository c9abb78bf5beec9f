//! The only place where the server reads a clock.

use hodei_core::time::{Elapsed, Now, Time};
use rustix::time::{ClockId, clock_gettime};
use std::time::{SystemTime, UNIX_EPOCH};

pub fn now() -> Now {
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let boot = clock_gettime(ClockId::Boottime);
    let elapsed = u64::try_from(boot.tv_sec).unwrap_or(0) * 1000 + u64::try_from(boot.tv_nsec).unwrap_or(0) / 1_000_000;
    Now { wall: Time(i64::try_from(wall.as_millis()).unwrap_or(i64::MAX)), elapsed: Elapsed(elapsed) }
}
