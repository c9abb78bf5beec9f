//! How much a worker matters, and all that follows from it.

use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr, time::Duration};
use thiserror::Error;

/// One that misses so many heartbeats hangs.
pub const HANG_BEATS: u32 = 3;
/// Before the first restart; each further one waits twice as long.
const FIRST_BACKOFF: Duration = Duration::from_secs(1);

/// The class of a kind of worker. It is decided when the kind is, and never changes while one of it lives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sla {
    Critical,
    High,
    #[default]
    Normal,
    BestEffort,
}

#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("'{0}' is no SLA: it is one of critical, high, normal and best-effort")]
pub struct UnknownSla(pub String);

impl Sla {
    pub const ALL: [Sla; 4] = [Sla::Critical, Sla::High, Sla::Normal, Sla::BestEffort];

    pub fn name(self) -> &'static str {
        match self {
            Sla::Critical => "critical",
            Sla::High => "high",
            Sla::Normal => "normal",
            Sla::BestEffort => "best-effort",
        }
    }

    pub fn parse(name: &str) -> Result<Self, UnknownSla> {
        Self::ALL.into_iter().find(|sla| sla.name() == name).ok_or_else(|| UnknownSla(name.to_owned()))
    }

    /// The time between two heartbeats.
    pub fn heartbeat(self) -> Duration {
        Duration::from_secs(match self {
            Sla::Critical => 1,
            Sla::High => 2,
            Sla::Normal => 5,
            Sla::BestEffort => 10,
        })
    }

    /// After so long without a heartbeat it hangs.
    pub fn hang(self) -> Duration {
        self.heartbeat() * HANG_BEATS
    }

    /// How often one that failed is replaced before it is given up.
    pub fn restarts(self) -> u32 {
        match self {
            Sla::Critical => 3,
            Sla::High => 2,
            Sla::Normal => 1,
            Sla::BestEffort => 0,
        }
    }

    /// The wait before the n-th restart, counted from one: 1, 2, 4 s.
    pub fn backoff(self, restart: u32) -> Duration {
        FIRST_BACKOFF.saturating_mul(1_u32.checked_shl(restart.saturating_sub(1)).unwrap_or(u32::MAX))
    }

    /// Work that was accepted must show itself within this time: by its start, by progress or by its result.
    ///
    /// From then on the limits of the work itself hold. So this is the time in which a busy worker gets round to what it
    /// took, not the time that the work may need.
    pub fn output_deadline(self) -> Duration {
        Duration::from_secs(match self {
            Sla::Critical => 10,
            Sla::High => 30,
            Sla::Normal => 120,
            Sla::BestEffort => 600,
        })
    }

    /// Whether so many inputs of those that were offered may be dropped: critical none, high fewer than a tenth, normal fewer
    /// than half, best-effort any.
    pub fn allows_drops(self, dropped: u64, offered: u64) -> bool {
        let below = |share: u64| dropped.saturating_mul(share) < offered;
        dropped == 0
            || match self {
                Sla::Critical => false,
                Sla::High => below(10),
                Sla::Normal => below(2),
                Sla::BestEffort => true,
            }
    }
}

impl fmt::Display for Sla {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Sla {
    type Err = UnknownSla;

    fn from_str(name: &str) -> Result<Self, UnknownSla> {
        Self::parse(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_class_has_its_name() {
        for sla in Sla::ALL {
            assert_eq!(Sla::parse(sla.name()), Ok(sla));
        }
        assert_eq!(Sla::parse("urgent"), Err(UnknownSla("urgent".to_owned())));
        assert_eq!(Sla::default(), Sla::Normal);
    }

    #[test]
    fn drops_are_allowed_by_class() {
        for sla in Sla::ALL {
            assert!(sla.allows_drops(0, 0) && sla.allows_drops(0, 100));
        }
        assert!(!Sla::Critical.allows_drops(1, 1_000_000));
        assert!(Sla::High.allows_drops(9, 100) && !Sla::High.allows_drops(10, 100));
        assert!(Sla::Normal.allows_drops(49, 100) && !Sla::Normal.allows_drops(50, 100));
        assert!(Sla::BestEffort.allows_drops(100, 100));
    }

    #[test]
    fn backoff_doubles_and_never_overflows() {
        let waits = [1, 2, 3].map(|restart| Sla::Critical.backoff(restart).as_secs());
        assert_eq!(waits, [1, 2, 4]);
        assert!(Sla::Critical.backoff(u32::MAX) > Duration::from_secs(4));
    }
}
