//! Two clocks. Wall time orders what people see and what is stored; elapsed time measures leases, because it
//! never jumps.

use serde::{Deserialize, Serialize};
use std::ops::{Add, Sub};

/// Milliseconds since the Unix epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Time(pub i64);

/// A length of time in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Millis(pub u64);

/// Milliseconds on a clock that only runs forward (it counts time asleep too). Meaningful inside one machine only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Elapsed(pub u64);

/// Both clocks, read at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct Now {
    pub wall: Time,
    pub elapsed: Elapsed,
}

impl Millis {
    pub const ZERO: Self = Self(0);

    pub const fn seconds(seconds: u64) -> Self {
        Self(seconds * 1000)
    }

    pub fn duration(self) -> std::time::Duration {
        std::time::Duration::from_millis(self.0)
    }
}

impl Time {
    /// In UTC, such as 2025-12-28T03:00:00Z.
    pub fn rfc3339(self) -> String {
        jiff::Timestamp::from_millisecond(self.0).map_or_else(|_| self.0.to_string(), |at| at.to_string())
    }
}

impl Add<Millis> for Time {
    type Output = Time;

    fn add(self, length: Millis) -> Time {
        Time(self.0.saturating_add(i64::try_from(length.0).unwrap_or(i64::MAX)))
    }
}

impl Sub for Time {
    type Output = Millis;

    /// Zero when `earlier` is in fact later.
    fn sub(self, earlier: Time) -> Millis {
        Millis(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }
}

impl Add<Millis> for Elapsed {
    type Output = Elapsed;

    fn add(self, length: Millis) -> Elapsed {
        Elapsed(self.0.saturating_add(length.0))
    }
}

impl Sub for Elapsed {
    type Output = Millis;

    fn sub(self, earlier: Elapsed) -> Millis {
        Millis(self.0.saturating_sub(earlier.0))
    }
}
