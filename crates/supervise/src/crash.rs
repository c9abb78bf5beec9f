//! How one failed, and whether that is likely to happen again.

use serde::{Deserialize, Serialize};
use std::{fmt, time::Duration};

/// One that fails sooner than this after it was spawned has failed at once.
pub const IMMEDIATE: Duration = Duration::from_secs(5);
/// So much of the end of what it printed as errors is kept.
pub const STDERR_TAIL: usize = 4096;

/// The record of a failure. It is made by whoever saw the end; what was found out by watching is told by the cause.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Crash {
    pub cause: Cause,
    pub exit_code: Option<i32>,
    pub signal: Option<i32>,
    /// In a sentence, for people.
    pub reason: String,
    stderr: String,
    /// Since it was spawned.
    pub lived: Duration,
}

/// What came first: it ended by itself, or it was ended because of something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// It ended, by itself or by somebody else's hand.
    Exited,
    OutOfMemory,
    /// It could not be brought up.
    NotStarted,
    /// It missed its heartbeats.
    Hung,
    /// It took work and did not begin it.
    NotProducing,
    /// It broke the rules of its protocol, or did not obey.
    Misbehaved,
}

/// Whether to expect the same again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    Transient,
    /// It failed at once, or in the same way as the last time.
    Persistent,
}

/// What two failures of the same origin have in common.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Fingerprint(String);

impl Crash {
    pub fn new(cause: Cause, reason: impl Into<String>, lived: Duration) -> Self {
        Self { cause, exit_code: None, signal: None, reason: reason.into(), stderr: String::new(), lived }
    }

    /// How it ended, whatever led to that.
    pub fn with_exit(self, exit_code: Option<i32>, signal: Option<i32>) -> Self {
        Self { exit_code, signal, ..self }
    }

    /// Keeps the end of what it printed.
    pub fn with_stderr(mut self, stderr: &str) -> Self {
        let mut start = stderr.len().saturating_sub(STDERR_TAIL);
        while !stderr.is_char_boundary(start) {
            start += 1;
        }
        self.stderr = stderr[start..].to_owned();
        self
    }

    pub fn stderr(&self) -> &str {
        &self.stderr
    }

    pub fn is_immediate(&self) -> bool {
        self.lived < IMMEDIATE
    }

    /// Cause, code, signal and the last line that it printed. Numbers in that line (addresses, ids, times) do not count.
    pub fn fingerprint(&self) -> Fingerprint {
        let last = self.stderr.lines().rev().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
        Fingerprint(format!("{:?} {:?} {:?} {}", self.cause, self.exit_code, self.signal, without_numbers(last)))
    }

    pub fn class(&self, before: Option<&Fingerprint>) -> Class {
        match self.is_immediate() || before == Some(&self.fingerprint()) {
            true => Class::Persistent,
            false => Class::Transient,
        }
    }
}

/// Each word with a digit in it is one sign.
fn without_numbers(line: &str) -> String {
    let words = line.split(|c: char| !c.is_alphanumeric());
    let words = words.filter(|word| !word.is_empty());
    words.map(|word| if word.contains(|c: char| c.is_ascii_digit()) { "#" } else { word }).collect::<Vec<_>>().join(" ")
}

impl Class {
    pub fn name(self) -> &'static str {
        match self {
            Class::Transient => "transient",
            Class::Persistent => "persistent",
        }
    }
}

impl fmt::Display for Crash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({:.1} s after its start)", self.reason, self.lived.as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exited(code: i32, stderr: &str, lived: u64) -> Crash {
        let crash = Crash::new(Cause::Exited, format!("exited with code {code}"), Duration::from_secs(lived));
        crash.with_exit(Some(code), None).with_stderr(stderr)
    }

    #[test]
    fn what_fails_at_once_is_persistent() {
        assert_eq!(exited(1, "", 4).class(None), Class::Persistent);
        assert_eq!(exited(1, "", 5).class(None), Class::Transient);
    }

    #[test]
    fn the_same_failure_twice_running_is_persistent() {
        let first = exited(1, "Traceback\nMemoryError at 0x7f12 in frame 1000\n", 600);
        let again = exited(1, "Traceback\nMemoryError at 0x9a07 in frame 77\n\n", 400);
        assert_eq!(again.class(Some(&first.fingerprint())), Class::Persistent);
        for other in [exited(2, first.stderr(), 600), exited(1, "KeyError: name", 600)] {
            assert_eq!(other.class(Some(&first.fingerprint())), Class::Transient);
        }
    }

    #[test]
    fn the_tail_is_bounded_and_whole_characters() {
        let crash = exited(1, &"ü".repeat(STDERR_TAIL), 1);
        assert!(crash.stderr().len() <= STDERR_TAIL && crash.stderr().chars().all(|c| c == 'ü'));
        let odd = exited(1, &format!("{}x", "ü".repeat(STDERR_TAIL)), 1);
        assert!(odd.stderr().len() < STDERR_TAIL && odd.stderr().ends_with("üx"));
    }
}
