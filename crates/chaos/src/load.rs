//! The jobs that are asked for while faults happen.

use crate::random::Random;
use hodei_api::v1;
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, path::Path};

pub const QUEUE: &str = "chaos";
/// Long enough that it never ends by itself while anybody looks.
const ENDLESS_MS: u64 = 3_600_000;
/// Enough for a few unlucky runs; three lost workers end a job anyway.
const PATIENT_ATTEMPTS: i32 = 12;
const DOOMED_ATTEMPTS: i32 = 2;

/// What a job is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// Prints, leaves a result, succeeds.
    Plain,
    /// At work for longer than any fault takes: still alive when its worker's lease has run out.
    Long,
    /// Prints a lot.
    Large,
    /// Not before a certain time.
    Delayed,
    /// Fails in its first attempts.
    Flaky,
    /// Fails in all of them.
    Doomed,
    /// Runs until it is cancelled.
    Cancelled,
}

/// A job as it was asked for.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Order {
    /// Its name at the server, used once: so it is known again even if the answer was lost.
    pub tag: String,
    pub kind: Kind,
    pub lines: u32,
    pub takes_ms: u64,
    pub fail_up_to: u32,
    pub max_attempts: i32,
    pub priority: i32,
    pub run_at_ms: i64,
}

impl Order {
    pub fn random(random: &mut Random, number: u64, now_ms: i64) -> Self {
        let kind = match random.within(0..100) {
            0..33 => Kind::Plain,
            33..40 => Kind::Long,
            40..46 => Kind::Large,
            46..58 => Kind::Delayed,
            58..76 => Kind::Flaky,
            76..86 => Kind::Doomed,
            _ => Kind::Cancelled,
        };
        Self::of_kind(kind, random, number, now_ms)
    }

    pub fn of_kind(kind: Kind, random: &mut Random, number: u64, now_ms: i64) -> Self {
        let plain = Self {
            tag: format!("{kind:?}-{number}").to_lowercase(),
            kind,
            lines: random.within(1..40) as u32,
            takes_ms: random.within(10..900),
            fail_up_to: 0,
            max_attempts: PATIENT_ATTEMPTS,
            priority: random.within(1..5) as i32,
            run_at_ms: 0,
        };
        match kind {
            Kind::Plain if random.chance(20) => Self { lines: 60, takes_ms: random.within(2000..5000), ..plain },
            Kind::Plain => plain,
            Kind::Long => Self { lines: 100, takes_ms: random.within(7000..12_000), ..plain },
            Kind::Large => Self { lines: 5000, takes_ms: random.within(500..2500), ..plain },
            Kind::Delayed => Self { run_at_ms: now_ms + random.within(500..6000) as i64, ..plain },
            Kind::Flaky => Self { fail_up_to: random.within(1..4) as u32, takes_ms: random.within(10..300), ..plain },
            Kind::Doomed => Self { fail_up_to: u32::MAX, max_attempts: DOOMED_ATTEMPTS, takes_ms: 50, ..plain },
            // A line a minute: nobody sees how many there are.
            Kind::Cancelled => Self { lines: 60, takes_ms: ENDLESS_MS, ..plain },
        }
    }

    pub fn spec(&self, program: &Path, runs: &Path) -> v1::JobSpec {
        let text = |path: &Path| path.to_string_lossy().into_owned();
        let mut args = vec!["job".to_owned(), "--runs".into(), text(runs), "--tag".into(), self.tag.clone()];
        args.extend(["--lines".into(), self.lines.to_string(), "--takes".into(), self.takes_ms.to_string()]);
        args.extend(["--fail-up-to".into(), self.fail_up_to.to_string()]);
        let shell = v1::ShellWork { program: text(program), args };
        v1::JobSpec {
            name: self.tag.clone(),
            queue: QUEUE.into(),
            work: Some(v1::Work { kind: Some(v1::work::Kind::Shell(shell)) }),
            priority: self.priority,
            environment: BTreeMap::from([("CHAOS_TAG".to_owned(), self.tag.clone())]),
            retry: Some(v1::RetryPolicy {
                max_attempts: Some(self.max_attempts),
                delay_ms: Some(100),
                max_delay_ms: Some(1000),
                jitter_percent: Some(10),
                ..Default::default()
            }),
            timeouts: Some(v1::Timeouts { kill_grace_ms: Some(1000), ..Default::default() }),
            run_at_ms: self.run_at_ms,
            ..Default::default()
        }
    }
}
