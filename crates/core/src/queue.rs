//! Queues as they are steered: paused, limited, ageing.

use crate::{
    spec::Invalid,
    time::{Millis, Time},
};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// What is kept of a queue besides its jobs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueRecord {
    pub name: Arc<str>,
    pub paused: bool,
    pub settings: QueueSettings,
    /// What counts against its rate limit.
    pub starts: Starts,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueSettings {
    pub rate: Option<Rate>,
    /// Jobs with workers at one time.
    pub concurrency: Option<u32>,
    /// A job that has waited this long counts as one priority higher, after twice as long as two.
    pub ageing: Option<Millis>,
    /// Jobs that have not ended; while there are as many, no more are taken from callers.
    #[serde(default)]
    pub max_jobs: Option<u32>,
}

/// At most `limit` starts in any span of this length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rate {
    pub limit: u32,
    pub period: Millis,
}

const MAX_RATE: u32 = 1_000_000;
const MAX_CONCURRENCY: u32 = 1_000_000;
const MAX_PERIOD: Millis = Millis::seconds(31 * 24 * 3600);
const MIN_AGEING: Millis = Millis::seconds(1);

impl QueueSettings {
    pub fn validate(&self) -> Result<(), Invalid> {
        if let Some(rate) = self.rate {
            if rate.limit == 0 || rate.limit > MAX_RATE {
                return Err(Invalid::new("settings.rate_limit", format!("must be between 1 and {MAX_RATE}")));
            }
            if rate.period == Millis::ZERO || rate.period > MAX_PERIOD {
                return Err(Invalid::new("settings.rate_period_ms", "must be between one millisecond and 31 days"));
            }
        }
        if self.concurrency.is_some_and(|limit| limit > MAX_CONCURRENCY) {
            return Err(Invalid::new("settings.concurrency", format!("must be at most {MAX_CONCURRENCY}")));
        }
        if self.ageing.is_some_and(|wait| wait < MIN_AGEING) {
            return Err(Invalid::new("settings.ageing_ms", "must be at least a second"));
        }
        Ok(())
    }
}

/// The starts of the last period, in a few spans of time, so that a record of them stays small however many there are. A
/// span counts until the last of its starts is a period old, so the limit is never exceeded in any period.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Starts {
    /// When each span ends, and the starts in it, the oldest first.
    spans: Vec<(Time, u32)>,
}

/// Spans that a period is counted in.
const SPANS: u64 = 16;

impl Starts {
    /// Whether one more start at `now` keeps to the limit; if not, from when on it may.
    pub fn allow(&self, rate: Rate, now: Time) -> Result<(), Time> {
        let counted = self.spans.iter().filter(|(end, _)| *end + rate.period > now);
        let sum: u64 = counted.clone().map(|(_, starts)| u64::from(*starts)).sum();
        if sum < u64::from(rate.limit) {
            return Ok(());
        }
        let mut left = sum;
        for (end, starts) in counted {
            left -= u64::from(*starts);
            if left < u64::from(rate.limit) {
                return Err(*end + rate.period);
            }
        }
        Err(now + rate.period)
    }

    pub fn note(&mut self, rate: Rate, now: Time) {
        self.spans.retain(|(end, _)| *end + rate.period > now);
        match self.spans.last_mut() {
            Some((end, starts)) if *end >= now => *starts += 1,
            _ => self.spans.push((now + Millis(rate.period.0 / SPANS), 1)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Whatever the times at which it is asked, no period holds more starts than allowed, and it starts again.
        #[test]
        fn no_period_has_more_starts_than_its_limit(limit in 1u32..20, period in 1u64..500, steps in prop::collection::vec(0u64..100, 1..300)) {
            let rate = Rate { limit, period: Millis(period) };
            let (mut starts, mut now, mut made) = (Starts::default(), Time(1000), Vec::new());
            for step in steps {
                now = now + Millis(step);
                match starts.allow(rate, now) {
                    Ok(()) => {
                        starts.note(rate, now);
                        made.push(now);
                    }
                    Err(until) => {
                        prop_assert!(until > now);
                        prop_assert!(starts.allow(rate, until).is_ok());
                    }
                }
            }
            for first in &made {
                let within = made.iter().filter(|at| *at >= first && **at < *first + Millis(period)).count();
                prop_assert!(within <= limit as usize);
            }
            prop_assert!(starts.spans.len() <= SPANS as usize * 2 + 1);
        }
    }
}
