//! What happened, one line each, for people to read.

use crate::world::{job_name, run_name};
use hodei_core::{
    id::{ExecutionId, JobId},
    protocol::{FromWorker, ToWorker},
};

/// Whom a line, or a broken rule, concerns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct About {
    pub job: Option<JobId>,
    pub agent: Option<usize>,
}

impl From<JobId> for About {
    fn from(job: JobId) -> Self {
        Self { job: Some(job), agent: None }
    }
}

impl From<Option<usize>> for About {
    fn from(agent: Option<usize>) -> Self {
        Self { job: None, agent }
    }
}

impl From<usize> for About {
    fn from(agent: usize) -> Self {
        Self { job: None, agent: Some(agent) }
    }
}

impl From<(Option<JobId>, usize)> for About {
    fn from((job, agent): (Option<JobId>, usize)) -> Self {
        Self { job, agent: Some(agent) }
    }
}

impl From<()> for About {
    fn from((): ()) -> Self {
        Self::default()
    }
}

#[derive(Debug)]
struct Line {
    at: u64,
    who: &'static str,
    about: About,
    words: String,
}

#[derive(Debug)]
pub struct Trace {
    on: bool,
    lines: Vec<Line>,
}

impl Trace {
    pub fn new(on: bool) -> Self {
        Self { on, lines: Vec::new() }
    }

    pub fn is_on(&self) -> bool {
        self.on
    }

    pub fn push(&mut self, at: u64, who: &'static str, about: About, words: String) {
        self.lines.push(Line { at, who, about, words });
    }

    /// Everything, in order.
    pub fn all(&self) -> Vec<String> {
        self.lines.iter().map(Line::show).collect()
    }

    /// The last lines that concern the same job, the same worker, or everybody.
    pub fn concerning(&self, about: About, limit: usize) -> Vec<String> {
        let concerns = |line: &&Line| match (about.job, about.agent) {
            (None, None) => true,
            (Some(job), agent) => match line.about.job {
                Some(other) => other == job,
                None => line.about.agent.is_none_or(|other| agent.is_none_or(|agent| agent == other)),
            },
            (None, Some(agent)) => line.about.agent.is_none_or(|other| other == agent),
        };
        let mut last: Vec<String> = self.lines.iter().rev().filter(concerns).take(limit).map(Line::show).collect();
        last.reverse();
        last
    }
}

impl Line {
    fn show(&self) -> String {
        let agent = self.about.agent.map(|agent| format!(" {agent}")).unwrap_or_default();
        let who = format!("{}{agent}", self.who);
        let job = self.about.job.map(|job| format!("{}: ", job_name(job))).unwrap_or_default();
        format!("{:>9.3} s  {who:<9} {job}{}", self.at as f64 / 1000.0, self.words)
    }
}

fn runs(executions: &[ExecutionId]) -> String {
    let names: Vec<String> = executions.iter().map(|execution| run_name(*execution)).collect();
    names.join(", ")
}

pub fn show_up(message: &FromWorker) -> String {
    match message {
        FromWorker::Hello(hello) => {
            format!("hello, holds [{}], owes [{}]", runs(&hello.held), runs(&hello.ended))
        }
        FromWorker::Heartbeat { sent } => format!("heartbeat {sent}"),
        FromWorker::Started { execution, .. } => format!("{} started", run_name(*execution)),
        FromWorker::Progress { execution, .. } => format!("{} made progress", run_name(*execution)),
        FromWorker::Logs(chunk) => {
            format!("{} printed lines {}..{}", run_name(chunk.execution), chunk.first, chunk.end())
        }
        FromWorker::Finished(finished) => {
            let name = run_name(finished.execution);
            format!("{name} ended after {} lines: {:?}", finished.log_entries, finished.outcome)
        }
        FromWorker::Leaving => "leaving".into(),
        FromWorker::Info(info) => format!("is now {info:?}"),
        FromWorker::Supervision(news) => format!("{} of {}", news.event, news.what),
    }
}

pub fn show_down(message: &ToWorker) -> String {
    match message {
        ToWorker::Welcome(welcome) => {
            let verdict = |verdict: &hodei_core::protocol::Verdict| {
                let word = if verdict.keep { "keep" } else { "drop" };
                format!("{word} {} ({} lines stored)", run_name(verdict.execution), verdict.log_entries)
            };
            let held: Vec<String> = welcome.held.iter().map(verdict).collect();
            format!("welcome: {}", held.join(", "))
        }
        ToWorker::Run(assignments) => {
            let names: Vec<ExecutionId> = assignments.iter().map(|assignment| assignment.execution).collect();
            format!("do {}", runs(&names))
        }
        ToWorker::Stop { execution, why } => format!("stop {} ({why:?})", run_name(*execution)),
        ToWorker::Lease { sent, lease } => format!("lease of {} ms from {sent}", lease.0),
        ToWorker::Park { lease } => format!("parked for {} ms", lease.0),
        ToWorker::Acked { results, logs } => {
            let logs: Vec<String> =
                logs.iter().map(|ack| format!("{} up to line {}", run_name(ack.execution), ack.entries)).collect();
            format!("stored: results [{}], logs [{}]", runs(results), logs.join(", "))
        }
        ToWorker::Drain { .. } => "drain".into(),
        ToWorker::RestartHandler { handler } => format!("restart {handler}"),
    }
}
