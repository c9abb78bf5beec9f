//! When a failed attempt is tried again.

use crate::{
    state::{Failure, FailureKind},
    time::Millis,
};
use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Backoff {
    /// Always the same delay.
    Fixed,
    /// `delay * 2^(n-1)` after the n-th run.
    #[default]
    Exponential,
    /// `delay * (n+1)^2` after the n-th run.
    Quadratic,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RetryPolicy {
    /// How many runs a job gets in all.
    pub max_attempts: u32,
    pub delay: Millis,
    pub max_delay: Millis,
    pub backoff: Backoff,
    /// Up to this share of the delay, in percent, is added or taken away at random.
    pub jitter_percent: u8,
    /// Exit codes after which another run would be pointless.
    #[serde(default)]
    pub fatal_exit_codes: Vec<i32>,
    /// Kinds of failure after which another run would be pointless.
    #[serde(default)]
    pub fatal_kinds: Vec<FailureKind>,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            max_attempts: 3,
            delay: Millis::seconds(1),
            max_delay: Millis::seconds(3600),
            backoff: Backoff::Exponential,
            jitter_percent: 10,
            fatal_exit_codes: Vec::new(),
            fatal_kinds: Vec::new(),
        }
    }
}

impl RetryPolicy {
    /// Whether a job that has had `runs` runs, the last ending in `failure`, gets another.
    pub fn allows(&self, runs: u32, failure: &Failure) -> bool {
        let fatal = failure.fatal
            || self.fatal_kinds.contains(&failure.kind)
            || failure.exit_code.is_some_and(|code| self.fatal_exit_codes.contains(&code));
        runs < self.max_attempts && !fatal
    }

    /// How long to wait after the `runs`-th run. `seed` decides the jitter and nothing else.
    pub fn delay_after(&self, runs: u32, seed: u64) -> Millis {
        let runs = runs.max(1);
        let factor = match self.backoff {
            Backoff::Fixed => 1,
            Backoff::Exponential => 1u64.checked_shl(runs - 1).unwrap_or(u64::MAX),
            Backoff::Quadratic => (u64::from(runs) + 1).saturating_pow(2),
        };
        let base = self.delay.0.saturating_mul(factor).min(self.max_delay.0);
        let reach = base / 100 * u64::from(self.jitter_percent.min(100));
        let offset = mix(seed).checked_rem(reach.saturating_mul(2).saturating_add(1)).unwrap_or(0);
        Millis((base - reach.min(base)).saturating_add(offset).min(self.max_delay.0))
    }
}

/// SplitMix64's finaliser: spreads close seeds far apart.
fn mix(seed: u64) -> u64 {
    let mut x = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn policy(backoff: Backoff) -> RetryPolicy {
        RetryPolicy { backoff, jitter_percent: 0, max_delay: Millis::seconds(100), ..RetryPolicy::default() }
    }

    #[test]
    fn delays_follow_their_formula() {
        let after = |backoff| (1..=4).map(|n| policy(backoff).delay_after(n, 7).0).collect::<Vec<_>>();
        assert_eq!(after(Backoff::Fixed), [1000, 1000, 1000, 1000]);
        assert_eq!(after(Backoff::Exponential), [1000, 2000, 4000, 8000]);
        assert_eq!(after(Backoff::Quadratic), [4000, 9000, 16000, 25000]);
    }

    proptest! {
        #[test]
        fn jitter_stays_in_reach(n in 0u32..200, seed: u64, delay in 0u64..=u64::MAX, percent in 0u8..=100) {
            let policy = RetryPolicy { delay: Millis(delay), jitter_percent: percent, ..policy(Backoff::Exponential) };
            let plain = RetryPolicy { jitter_percent: 0, ..policy.clone() }.delay_after(n, seed).0;
            let reach = plain / 100 * u64::from(percent);
            let got = policy.delay_after(n, seed).0;
            prop_assert!(got <= policy.max_delay.0);
            prop_assert!(got.abs_diff(plain) <= reach);
        }
    }

    #[test]
    fn fatal_failures_are_not_retried() {
        let mut policy = policy(Backoff::Fixed);
        policy.fatal_exit_codes = vec![2];
        policy.fatal_kinds = vec![FailureKind::NotFound];
        assert!(policy.allows(1, &Failure::exit(1)));
        assert!(!policy.allows(3, &Failure::exit(1)));
        assert!(!policy.allows(1, &Failure::exit(2)));
        assert!(!policy.allows(1, &Failure::new(FailureKind::NotFound, "no such program")));
    }
}
