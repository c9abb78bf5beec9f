//! What the checker says in the end.

use super::{Known, judge::Violation};
use crate::{journal::Fault, say};
use hodei_api::v1;
use std::collections::BTreeMap;

/// Accounts of violations that are printed; the rest is counted.
const MOST: usize = 40;
/// Faults that are named with each.
const MOST_FAULTS: usize = 12;
/// A fault may show some time after it is over: a lease and its grace later.
const AFTERMATH_MS: i64 = 5000;

#[derive(Debug, Default)]
pub struct Report {
    pub violations: Vec<Violation>,
    pub runs: usize,
    pub log_lines: usize,
    pub followed: usize,
    asked: usize,
    acknowledged: usize,
    unanswered_stored: usize,
    states: BTreeMap<String, usize>,
}

impl Report {
    pub fn count_jobs(&mut self, stored: &[v1::Job], known: &Known) {
        self.asked = known.orders.len();
        self.acknowledged = known.orders.values().filter(|(_, _, id)| id.is_some()).count();
        let unanswered = |job: &&v1::Job| matches!(known.orders.get(super::name(job)), Some((_, _, None)));
        self.unanswered_stored = stored.iter().filter(unanswered).count();
        for job in stored {
            *self.states.entry(format!("{:?}", job.state()).to_lowercase()).or_default() += 1;
        }
    }

    pub fn print(&self, faults: &[Fault]) {
        say("");
        let row = |name: &str, value: usize| say(&format!("{name:<44}{value:>10}"));
        row("jobs asked for", self.asked);
        row("  acknowledged", self.acknowledged);
        row("  stored, with the answer lost", self.unanswered_stored);
        self.states.iter().for_each(|(state, count)| row(&format!("  {state}"), *count));
        row("runs", self.runs);
        row("log lines compared", self.log_lines);
        row("logs followed", self.followed);
        let mut kinds: BTreeMap<&str, usize> = BTreeMap::new();
        faults.iter().for_each(|fault| *kinds.entry(fault.kind.as_str()).or_default() += 1);
        row("faults", faults.iter().filter(|fault| fault.done).count());
        kinds.iter().for_each(|(kind, count)| row(&format!("  {kind}"), *count));
        row("violations", self.violations.len());
        for violation in self.violations.iter().take(MOST) {
            account(violation, faults);
        }
        if self.violations.len() > MOST {
            say(&format!("and {} more", self.violations.len() - MOST));
        }
    }
}

fn account(violation: &Violation, faults: &[Fault]) {
    say("");
    match violation.job.as_str() {
        "" => say("VIOLATION"),
        job => say(&format!("VIOLATION of job {job} ({})", violation.tag)),
    }
    say(&format!("  expected: {}", violation.expected));
    say(&format!("  seen:     {}", violation.seen));
    let (from, to) = (violation.from_ms, violation.to_ms);
    if from == 0 {
        return;
    }
    let mut around: Vec<&Fault> = faults.iter().filter(|f| f.from_ms <= to && from <= f.to_ms + AFTERMATH_MS).collect();
    around.sort_by_key(|fault| fault.from_ms);
    for fault in around.iter().take(MOST_FAULTS) {
        let after = (fault.from_ms - from) as f64 / 1000.0;
        say(&format!("  {after:+7.1} s: {}", fault.what));
    }
    if around.len() > MOST_FAULTS {
        say(&format!("  and {} more faults while it was there", around.len() - MOST_FAULTS));
    }
}
