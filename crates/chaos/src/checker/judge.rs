//! What must be true of a job, whatever happened while it ran.

use crate::{
    journal::Fault,
    load::{Kind, Order},
    work::{self, MEANT_TO_FAIL, NO_RESULT, Run},
};
use hodei_api::v1::{self, JobState};
use std::{
    collections::{BTreeMap, HashMap, HashSet},
    path::PathBuf,
};

pub type Log = Vec<v1::LogEntry>;

/// A job that lost this many workers is given up.
const LOSS_LIMIT: usize = 3;
/// Between a fault and what the server says of its time.
const SLACK_MS: i64 = 2000;

#[derive(Clone, Debug)]
pub struct Violation {
    pub job: String,
    pub tag: String,
    pub expected: String,
    pub seen: String,
    /// When it may have happened; zero when nobody knows.
    pub from_ms: i64,
    pub to_ms: i64,
}

impl Violation {
    pub fn about(job: &str, tag: &str, expected: &str, seen: &str) -> Self {
        let (job, tag, expected, seen) = (job.to_owned(), tag.to_owned(), expected.to_owned(), seen.to_owned());
        Self { job, tag, expected, seen, from_ms: 0, to_ms: 0 }
    }

    pub fn of(job: &v1::Job, expected: &str, seen: &str) -> Self {
        let to_ms = if job.finished_at_ms > 0 { job.finished_at_ms } else { i64::MAX };
        Self { from_ms: job.created_at_ms, to_ms, ..Self::about(&job.id, super::name(job), expected, seen) }
    }
}

/// All that is known of a job.
pub struct Case<'a> {
    pub order: &'a Order,
    pub job: &'a v1::Job,
    pub log: &'a [v1::LogEntry],
    pub runs: &'a [Run],
    /// A cancel was acknowledged.
    pub cancelled: bool,
}

pub struct Judge {
    /// The worker whose disk is filled: there a job may fail for want of room.
    pub disk_worker: String,
    pub full_disks: Vec<Fault>,
    pub program: PathBuf,
    pub runs: PathBuf,
}

/// Pairs of what is expected and what is seen.
type Findings = Vec<(String, String)>;

impl Judge {
    pub fn judge(&self, case: &Case) -> Vec<Violation> {
        let mut findings = Findings::new();
        self.spec(case, &mut findings);
        self.executions(case, &mut findings);
        end(case, &mut findings);
        runs(case, &mut findings);
        logs(case, &mut findings);
        findings.into_iter().map(|(expected, seen)| Violation::of(case.job, &expected, &seen)).collect()
    }

    fn spec(&self, case: &Case, findings: &mut Findings) {
        let asked = case.order.spec(&self.program, &self.runs);
        let Some(stored) = &case.job.spec else {
            return findings.push(("it has its spec".into(), "it has none".into()));
        };
        let attempts = |spec: &v1::JobSpec| spec.retry.as_ref().and_then(|retry| retry.max_attempts);
        let same = stored.name == asked.name
            && stored.queue == asked.queue
            && stored.work == asked.work
            && stored.priority == asked.priority
            && stored.environment == asked.environment
            && stored.run_at_ms == asked.run_at_ms
            && attempts(stored) == attempts(&asked);
        if !same {
            findings.push((format!("it is stored as asked for: {asked:?}"), format!("{stored:?}")));
        }
    }

    /// Every attempt failed for a reason that there is.
    fn executions(&self, case: &Case, findings: &mut Findings) {
        let Case { order, job, .. } = case;
        let counted = job.executions.iter().filter(|execution| execution.outcome != "released").count();
        if usize::try_from(job.attempt) != Ok(counted) || job.attempt > order.max_attempts {
            findings.push((
                format!("its attempts are its executions but the released ones, at most {}", order.max_attempts),
                format!("{} attempts, {counted} executions", job.attempt),
            ));
        }
        for execution in &job.executions {
            let failing = execution.attempt.unsigned_abs() <= order.fail_up_to;
            let code = execution.exit_code;
            let reasonable = match (execution.outcome.as_str(), execution.failure_kind.as_str()) {
                ("succeeded", _) => !failing && order.kind != Kind::Cancelled,
                ("released", _) | ("failed", "worker_lost") => true,
                ("failed", "exit_code") if code == Some(MEANT_TO_FAIL) => failing,
                ("failed", "exit_code") if code == Some(NO_RESULT) => self.had_no_room(execution),
                ("failed", "not_started" | "error") => self.had_no_room(execution),
                ("cancelled", _) => order.kind == Kind::Cancelled,
                _ => false,
            };
            if !reasonable {
                let expected = "each execution ends as the job does, or because of a fault".to_owned();
                findings.push((expected, format!("{execution:?}")));
            }
        }
        let succeeded = job.executions.iter().filter(|execution| execution.outcome == "succeeded").count();
        if succeeded > 1 {
            findings.push(("at most one result is accepted".into(), format!("{succeeded} executions succeeded")));
        }
    }

    fn had_no_room(&self, execution: &v1::Execution) -> bool {
        let (from, to) = (execution.assigned_at_ms - SLACK_MS, execution.finished_at_ms + SLACK_MS);
        execution.worker_id == self.disk_worker
            && self.full_disks.iter().any(|fault| fault.from_ms <= to && from <= fault.to_ms)
    }
}

fn end(case: &Case, findings: &mut Findings) {
    let Case { order, job, cancelled, .. } = case;
    let Some(last) = job.executions.last() else {
        if !(job.state() == JobState::Cancelled && order.kind == Kind::Cancelled) {
            findings.push(("it ran".into(), format!("it is {:?} without an execution", job.state())));
        }
        return;
    };
    let lost = job.executions.iter().filter(|execution| execution.failure_kind == "worker_lost").count();
    let used_up = job.attempt >= order.max_attempts || (last.failure_kind == "worker_lost" && lost >= LOSS_LIMIT);
    let right = match job.state() {
        JobState::Succeeded => last.outcome == "succeeded" && order.kind != Kind::Doomed && !cancelled,
        JobState::Failed => last.outcome == "failed" && used_up && !cancelled,
        JobState::Cancelled => order.kind == Kind::Cancelled,
        _ => false,
    };
    if !right {
        let expected = match cancelled {
            true => "a cancel was acknowledged, so it is cancelled".to_owned(),
            false => format!("a {:?} job ends as such a job does", order.kind),
        };
        let seen = format!("{:?} after {} attempts and {lost} lost workers: {last:?}", job.state(), job.attempt);
        findings.push((expected, seen));
    }
    result(case, last, findings);
}

fn result(case: &Case, last: &v1::Execution, findings: &mut Findings) {
    let Case { order, job, .. } = case;
    let expected = work::expected_result(&order.tag, &last.id, last.attempt.unsigned_abs());
    let left: Option<serde_json::Value> = serde_json::from_slice(&job.result).ok();
    let seen = format!("'{}'", String::from_utf8_lossy(&job.result));
    if job.state() != JobState::Succeeded {
        if !job.result.is_empty() {
            findings.push(("no result, as no execution succeeded".into(), seen));
        }
    } else if left.as_ref() != Some(&expected) {
        findings.push((format!("the result of the accepted execution: {expected}"), seen));
    }
}

/// The processes that really ran.
fn runs(case: &Case, findings: &mut Findings) {
    let Case { order, job, runs, .. } = case;
    let executions: HashMap<&str, &v1::Execution> = job.executions.iter().map(|e| (e.id.as_str(), e)).collect();
    let mut begun = HashSet::new();
    for run in *runs {
        if !executions.contains_key(run.execution.as_str()) {
            findings.push(("each run has an execution that the server knows".into(), format!("{run:?}")));
        }
        if !begun.insert(&run.execution) {
            findings.push(("an execution is run once".into(), format!("again: {run:?}")));
        }
        if run.began_wall_ms < order.run_at_ms {
            findings.push((format!("it does not run before {}", order.run_at_ms), format!("{run:?}")));
        }
    }
    // By their beginning: each must have begun after all before it were gone.
    let mut latest: Option<&Run> = None;
    for run in *runs {
        if let Some(before) = latest.filter(|before| before.last >= run.first) {
            let by = (before.last - run.first) as f64 / 1e6;
            findings.push(("never two live runs".into(), format!("{by:.1} ms together: {before:?} and {run:?}")));
        }
        latest = latest.filter(|before| before.last > run.last).or(Some(run));
    }
    for execution in &job.executions {
        let run = runs.iter().find(|run| run.execution == execution.id);
        let code = match (execution.outcome.as_str(), execution.failure_kind.as_str()) {
            ("succeeded", _) => Some(0),
            ("failed", "exit_code") => execution.exit_code,
            _ => continue,
        };
        if run.and_then(|run| run.exit_code) != code {
            let seen = format!("{execution:?}, and its run: {run:?}");
            findings.push(("the server knows how the run really ended".into(), seen));
        }
    }
}

/// What is stored of each execution is what it printed, from the first line on; of one that ended, all of it.
fn logs(case: &Case, findings: &mut Findings) {
    let Case { order, job, log, .. } = case;
    let mut by_execution: BTreeMap<&str, Vec<&v1::LogEntry>> = BTreeMap::new();
    for entry in *log {
        by_execution.entry(entry.execution_id.as_str()).or_default().push(entry);
    }
    for id in by_execution.keys() {
        if !job.executions.iter().any(|execution| execution.id == **id) {
            findings.push(("each line is of an execution of the job".into(), format!("lines of {id}")));
        }
    }
    for execution in &job.executions {
        let entries = by_execution.remove(execution.id.as_str()).unwrap_or_default();
        let which = format!("execution {} ({})", execution.id, execution.outcome);
        if let Some((place, entry)) = (0..).zip(&entries).find(|(place, entry)| entry.number != *place) {
            let seen = format!("{which}: entry {} in place {place}", entry.number);
            findings.push(("lines are numbered without gap or repeat".into(), seen));
        }
        let by_itself = execution.outcome == "succeeded" || execution.failure_kind == "exit_code";
        if by_itself && usize::try_from(execution.log_entries) != Ok(entries.len()) {
            let seen = format!("{which}: {} entries of {}", entries.len(), execution.log_entries);
            findings.push(("every line is kept".into(), seen));
        }
        for stderr in [false, true] {
            let printed = work::expected_output(&order.tag, order.lines, &execution.id, stderr);
            let stored = text(&entries, stderr);
            let right = if by_itself { printed.as_bytes() == stored } else { printed.as_bytes().starts_with(&stored) };
            if !right {
                let stream = if stderr { "standard error" } else { "standard output" };
                let same = printed.bytes().zip(&stored).take_while(|(a, b)| a == *b).count();
                let from = |bytes: &[u8]| {
                    String::from_utf8_lossy(bytes.get(same..(same + 120).min(bytes.len())).unwrap_or_default())
                        .into_owned()
                };
                findings.push((
                    format!(
                        "what it printed on {stream}: {} bytes, '{}' at {same}",
                        printed.len(),
                        from(printed.as_bytes())
                    ),
                    format!("{which}: {} bytes, '{}'", stored.len(), from(&stored)),
                ));
            }
        }
    }
}

fn text(entries: &[&v1::LogEntry], stderr: bool) -> Vec<u8> {
    let mut bytes = Vec::new();
    for entry in entries.iter().filter(|entry| entry.stderr == stderr) {
        bytes.extend_from_slice(&entry.text);
        if !entry.unfinished {
            bytes.push(b'\n');
        }
    }
    bytes
}

/// Workers that had more runs alive at one time than they have slots.
pub fn over_slots(runs: &[Run], slots: usize) -> Vec<Violation> {
    let mut by_worker: BTreeMap<&str, Vec<&Run>> = BTreeMap::new();
    for run in runs {
        by_worker.entry(run.worker.as_str()).or_default().push(run);
    }
    let mut violations = Vec::new();
    for (worker, mut runs) in by_worker {
        runs.sort_by_key(|run| run.first);
        let mut live: Vec<&Run> = Vec::new();
        for run in runs {
            live.retain(|before| before.last >= run.first);
            live.push(run);
            if live.len() > slots {
                let seen = format!("{worker} had {} at one time: {live:?}", live.len());
                violations.push(Violation::about("", "", &format!("no worker runs more than {slots}"), &seen));
            }
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    fn run(execution: &str, first: u64, last: u64) -> Run {
        let (worker, exit_code) = ("/w".to_owned(), Some(0));
        let execution = execution.to_owned();
        Run { execution, pid: 1, attempt: 1, first, last, began_wall_ms: 1, worker, exit_code }
    }

    fn judge() -> Judge {
        let (program, runs) = ("/program".into(), "/runs".into());
        Judge { disk_worker: "full".into(), full_disks: Vec::new(), program, runs }
    }

    fn entries(order: &Order, execution: &str) -> Log {
        let mut log = Log::new();
        for stderr in [false, true] {
            for line in work::expected_output(&order.tag, order.lines, execution, stderr).lines() {
                let (execution_id, number) = (execution.to_owned(), log.len() as u64);
                let text = line.as_bytes().to_vec().into();
                log.push(v1::LogEntry { execution_id, number, stderr, text, ..Default::default() });
            }
        }
        log
    }

    /// A job that did as it should, and what is wrong with it after a change.
    fn found(change: impl FnOnce(&mut v1::Job, &mut Log, &mut Vec<Run>)) -> Vec<String> {
        let order = Order { lines: 4, ..Order::of_kind(Kind::Plain, &mut Random::apart(1, 0), 1, 0) };
        let judge = judge();
        let execution = v1::Execution {
            id: "e1".into(),
            attempt: 1,
            outcome: "succeeded".into(),
            log_entries: 6,
            ..Default::default()
        };
        let mut job = v1::Job {
            id: "j".into(),
            spec: Some(order.spec(&judge.program, &judge.runs)),
            state: JobState::Succeeded.into(),
            attempt: 1,
            executions: vec![execution],
            result: work::expected_result(&order.tag, "e1", 1).to_string().into(),
            ..Default::default()
        };
        let mut log = entries(&order, "e1");
        let mut runs = vec![run("e1", 100, 200)];
        change(&mut job, &mut log, &mut runs);
        let case = Case { order: &order, job: &job, log: &log, runs: &runs, cancelled: false };
        judge.judge(&case).into_iter().map(|violation| violation.expected).collect()
    }

    #[track_caller]
    fn finds(found: &[String], expected: &str) {
        assert!(found.iter().any(|finding| finding.starts_with(expected)), "{found:?}");
    }

    #[test]
    fn a_job_that_did_well_is_left_alone() {
        assert_eq!(found(|_, _, _| {}), Vec::<String>::new());
    }

    #[test]
    fn missing_repeated_and_swapped_lines_are_found() {
        finds(&found(|_, log, _| _ = log.pop()), "every line is kept");
        finds(&found(|_, log, _| _ = log.remove(1)), "lines are numbered");
        finds(&found(|_, log, _| log.insert(1, log[1].clone())), "lines are numbered");
        finds(&found(|_, log, _| log[0].text = b"else".to_vec().into()), "what it printed on standard output");
    }

    #[test]
    fn overlapping_repeated_and_unknown_runs_are_found() {
        finds(&found(|_, _, runs| runs.push(run("e2", 150, 300))), "never two live runs");
        finds(&found(|_, _, runs| runs.push(run("e1", 250, 300))), "an execution is run once");
        finds(&found(|_, _, runs| runs.push(run("e2", 250, 300))), "each run has an execution");
        finds(&found(|_, _, runs| runs.clear()), "the server knows how the run really ended");
    }

    #[test]
    fn a_wrong_state_result_or_spec_is_found() {
        finds(&found(|job, _, _| job.state = JobState::Failed.into()), "a Plain job ends");
        finds(&found(|job, _, _| job.result = b"{}".to_vec()), "the result of the accepted execution");
        finds(&found(|job, _, _| job.spec = None), "it has its spec");
        finds(&found(|job, _, _| job.attempt = 2), "its attempts are its executions");
        let unreasonable = |job: &mut v1::Job| {
            job.executions[0] =
                v1::Execution { outcome: "failed".into(), failure_kind: "signal".into(), ..job.executions[0].clone() };
        };
        finds(&found(|job, _, _| unreasonable(job)), "each execution ends as the job does");
    }

    #[test]
    fn a_worker_over_its_slots_is_found() {
        let runs = [run("a", 1, 10), run("b", 2, 10), run("c", 9, 12), run("d", 11, 12)];
        assert_eq!(over_slots(&runs, 3).len(), 0);
        assert_eq!(over_slots(&runs, 2).len(), 1);
    }
}
