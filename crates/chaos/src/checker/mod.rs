//! Asks for jobs while faults happen, writes down what was acknowledged, and compares everything when it is calm again.
//! A process of its own that no fault is done to.

mod client;
mod following;
mod judge;
mod report;
mod submitting;

use crate::{
    clock,
    journal::{self, Entry, FAULTS, Fault, JOBS, Journal},
    load::{Kind, Order},
    say, work,
};
use anyhow::{Context, Result};
use client::Client;
use following::Follower;
use hodei_api::v1::{self, JobState};
use judge::{Case, Judge, Log, Violation};
use report::Report;
use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fs,
    path::PathBuf,
    process::ExitCode,
    sync::Arc,
    time::{Duration, Instant},
};
use submitting::Submitter;
use tokio::sync::watch;

/// How long everything that was acknowledged may take to end once all is healed.
const SETTLE: Duration = Duration::from_secs(180);
/// How long a process may outlive its job: until its worker is told, or its lease ends.
const AFTERLIFE: Duration = Duration::from_secs(6);
const SUBMITTERS: u64 = 2;
/// The states of jobs that have not ended.
const LIVE: [JobState; 4] = [JobState::Delayed, JobState::Pending, JobState::Scheduled, JobState::Running];

#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    #[arg(long)]
    server: String,
    #[arg(long, env = "HODEI_API_TOKEN", hide_env_values = true)]
    api_token: String,
    #[arg(long)]
    folder: PathBuf,
    #[arg(long)]
    seed: u64,
    /// Slots of each worker.
    #[arg(long)]
    slots: usize,
    /// The data folder of the worker whose disk is filled.
    #[arg(long)]
    disk_worker: PathBuf,
}

pub async fn run(args: Args) -> Result<ExitCode> {
    let client = Client::new(&args.server, &args.api_token)?;
    let journal = Journal::create(&args.folder.join(JOBS))?;
    let (calm, is_calm) = watch::channel(false);
    let submitter = Arc::new(Submitter::new(client.clone(), journal, &args)?);
    let counting = tokio::spawn(Arc::clone(&submitter).count());
    let submitting: Vec<_> =
        (0..SUBMITTERS).map(|n| tokio::spawn(Arc::clone(&submitter).run(args.seed, n, is_calm.clone()))).collect();
    let wish = tokio::task::spawn_blocking(|| std::io::stdin().lines().next().transpose());
    wish.await??.context("the conductor is gone")?;
    calm.send_replace(true);
    for task in submitting {
        task.await??;
    }
    counting.abort();
    let followers = submitter.take_followers();
    Inquest { client, args }.hold(followers).await
}

/// The comparison at the end.
struct Inquest {
    client: Client,
    args: Args,
}

/// What the journal says.
#[derive(Default)]
struct Known {
    /// By tag: the call, the order, and the id if it was acknowledged.
    orders: BTreeMap<String, (u64, Order, Option<String>)>,
    calls: BTreeMap<u64, Vec<String>>,
    cancelled: HashSet<String>,
}

impl Inquest {
    async fn hold(&self, followers: Vec<Follower>) -> Result<ExitCode> {
        let mut report = Report::default();
        let calm = Instant::now();
        let stuck = self.settle().await?;
        let settled = Instant::now();
        say(&format!("settled in {:.1} s; comparing", calm.elapsed().as_secs_f64()));
        let known = self.known()?;
        let faults: Vec<Fault> = journal::read(&self.args.folder.join(FAULTS))?;
        let stored = self.client.list(&[]).await?;
        report.count_jobs(&stored, &known);
        for job in &stuck {
            let seen = format!("it is {:?} {} s later", job.state(), SETTLE.as_secs());
            report.violations.push(Violation::of(job, "ends once all is healed", &seen));
        }
        report.violations.extend(against_journal(&known, &stored));
        self.judge_jobs(&known, &faults, &stored, &mut report).await?;
        for follower in followers {
            self.compare_followed(follower, &stored, &mut report).await?;
        }
        self.judge_runs(&stored, settled, &mut report).await?;
        self.judge_processes(&faults, &mut report)?;
        report.print(&faults);
        Ok(if report.violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    /// Waits until nothing is left to do; returns what does not end.
    async fn settle(&self) -> Result<Vec<v1::Job>> {
        let (began, mut told) = (Instant::now(), Instant::now());
        loop {
            let left = self.client.list(&LIVE).await?;
            if left.is_empty() || began.elapsed() > SETTLE {
                return Ok(left);
            }
            // Those whose acknowledgement was lost have nobody else to cancel them.
            let endless = format!("{:?}-", Kind::Cancelled).to_lowercase();
            for job in left.iter().filter(|job| name(job).starts_with(&endless) && job.cancel_reason.is_none()) {
                _ = self.client.cancel(&job.id).await;
            }
            if told.elapsed() > Duration::from_secs(5) {
                told = Instant::now();
                say(&format!("          {} jobs have not ended yet", left.len()));
            }
            tokio::time::sleep(Duration::from_millis(250)).await;
        }
    }

    fn known(&self) -> Result<Known> {
        let mut known = Known::default();
        for entry in journal::read::<Entry>(&self.args.folder.join(JOBS))? {
            match entry {
                Entry::Asked { call, orders } => {
                    known.calls.insert(call, orders.iter().map(|order| order.tag.clone()).collect());
                    known.orders.extend(orders.into_iter().map(|order| (order.tag.clone(), (call, order, None))));
                }
                Entry::Acknowledged { call, ids } => {
                    for (tag, id) in known.calls.get(&call).into_iter().flatten().zip(ids) {
                        if let Some((_, _, known)) = known.orders.get_mut(tag) {
                            *known = Some(id);
                        }
                    }
                }
                Entry::Unanswered { .. } => {}
                Entry::Cancelled { job } => _ = known.cancelled.insert(job),
            }
        }
        Ok(known)
    }

    async fn judge_jobs(&self, known: &Known, faults: &[Fault], stored: &[v1::Job], report: &mut Report) -> Result<()> {
        let judge = Judge {
            disk_worker: self.client.worker_named(&self.disk_worker_name()).await?,
            full_disks: faults.iter().filter(|fault| fault.kind.contains("disk")).cloned().collect(),
            program: std::env::current_exe()?,
            runs: self.runs_folder(),
        };
        for listed in stored {
            let Some((_, order, _)) = known.orders.get(name(listed)) else { continue };
            let Some(job) = self.client.job(&listed.id).await? else {
                let seen = "it is listed, and GetJob does not know it";
                report.violations.push(Violation::of(listed, "can be read", seen));
                continue;
            };
            let log = self.client.log(&job.id).await?;
            let runs = work::read_runs(&self.runs_folder().join(&job.id))?;
            report.runs += runs.len();
            report.log_lines += log.len();
            let cancelled = known.cancelled.contains(&job.id);
            report.violations.extend(judge.judge(&Case { order, job: &job, log: &log, runs: &runs, cancelled }));
        }
        Ok(())
    }

    fn runs_folder(&self) -> PathBuf {
        self.args.folder.join("runs")
    }

    fn disk_worker_name(&self) -> String {
        self.args.disk_worker.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
    }

    async fn compare_followed(&self, follower: Follower, stored: &[v1::Job], report: &mut Report) -> Result<()> {
        report.followed += 1;
        // One that is not stored any more is found elsewhere.
        let Some(job) = stored.iter().find(|job| job.id == follower.job) else { return Ok(()) };
        let wrong = match follower.ended().await {
            Ok(followed) => difference(&followed, &self.client.log(&job.id).await?),
            Err(problem) => Some(problem),
        };
        report.violations.extend(wrong.map(|seen| Violation::of(job, "a followed log is the stored one", &seen)));
        Ok(())
    }

    /// What is true of all runs together: none of an unknown job, no worker over its slots, nothing lives on.
    async fn judge_runs(&self, stored: &[v1::Job], settled: Instant, report: &mut Report) -> Result<()> {
        let jobs: HashMap<&str, &v1::Job> = stored.iter().map(|job| (job.id.as_str(), job)).collect();
        tokio::time::sleep(AFTERLIFE.saturating_sub(settled.elapsed())).await;
        let now = clock::boottime();
        tokio::time::sleep(Duration::from_millis(500)).await;
        let mut all = Vec::new();
        for entry in fs::read_dir(self.runs_folder())? {
            let path = entry?.path();
            let id = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            let runs = work::read_runs(&path)?;
            let tag = jobs.get(id.as_str()).map_or("", |job| name(job)).to_owned();
            if tag.is_empty() {
                let seen = format!("{} runs of it", runs.len());
                report.violations.push(Violation::about(&id, &tag, "only stored jobs are run", &seen));
            }
            for run in runs.iter().filter(|run| run.last > now) {
                let seen = format!("process {} of execution {} lives on", run.pid, run.execution);
                report.violations.push(Violation::about(&id, &tag, "no process outlives its job", &seen));
            }
            all.extend(runs);
        }
        report.violations.extend(judge::over_slots(&all, self.args.slots));
        Ok(())
    }

    fn judge_processes(&self, faults: &[Fault], report: &mut Report) -> Result<()> {
        for fault in faults.iter().filter(|fault| fault.left_in_use) {
            let violation = Violation::about("", "", "nothing that is up leaves by itself", &fault.what);
            report.violations.push(Violation { from_ms: fault.from_ms, to_ms: fault.to_ms, ..violation });
        }
        for entry in fs::read_dir(&self.args.folder)? {
            let path = entry?.path();
            if path.extension().is_none_or(|end| end != "log") {
                continue;
            }
            let text = String::from_utf8_lossy(&fs::read(&path)?).into_owned();
            for line in text.lines().filter(|line| line.contains("panicked at")) {
                let seen = format!("{}: {line}", path.display());
                report.violations.push(Violation::about("", "", "nothing panics", &seen));
            }
        }
        Ok(())
    }
}

/// Where what a reader got is not what is stored.
fn difference(followed: &Log, stored: &Log) -> Option<String> {
    if followed == stored {
        return None;
    }
    let same = followed.iter().zip(stored).take_while(|(a, b)| a == b).count();
    let (got, kept) = (followed.get(same), stored.get(same));
    let (read, there) = (followed.len(), stored.len());
    Some(format!("{read} followed and {there} stored entries, different from entry {same} on: {got:?} and {kept:?}"))
}

fn name(job: &v1::Job) -> &str {
    job.spec.as_ref().map_or("", |spec| &spec.name)
}

/// Every acknowledged job is there under its id, once; no other is, but those whose answer was lost; and what was asked
/// for together is there together.
fn against_journal(known: &Known, stored: &[v1::Job]) -> Vec<Violation> {
    let mut violations = Vec::new();
    let mut by_tag: HashMap<&str, Vec<&v1::Job>> = HashMap::new();
    for job in stored {
        by_tag.entry(name(job)).or_default().push(job);
        match known.orders.get(name(job)) {
            None => violations.push(Violation::of(job, "nobody asked for it", "it is stored")),
            Some((_, _, Some(id))) if *id != job.id => {
                violations.push(Violation::of(job, &format!("acknowledged as {id}"), "stored under another id"));
            }
            Some(_) => {}
        }
    }
    for (tag, (call, order, id)) in &known.orders {
        let found = by_tag.get(tag.as_str()).map_or(0, Vec::len);
        let (least, id) = (usize::from(id.is_some()), id.as_deref().unwrap_or_default());
        if found < least || found > 1 {
            let expected = if least == 1 { "acknowledged, so it is stored" } else { "asked for once" };
            violations.push(Violation::about(id, tag, expected, &format!("stored {found} times")));
        }
        let together = known.calls.get(call).into_iter().flatten();
        if let Some(other) = together.into_iter().find(|other| by_tag.contains_key(other.as_str()) != (found > 0)) {
            let (here, there) = if found > 0 { (&order.tag, other) } else { (other, &order.tag) };
            let seen = format!("{here} is stored and {there} is not");
            violations.push(Violation::about(id, tag, "all jobs of one call are stored or none", &seen));
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    fn job(id: &str, tag: &str) -> v1::Job {
        let spec = Some(v1::JobSpec { name: tag.into(), ..Default::default() });
        v1::Job { id: id.into(), spec, ..Default::default() }
    }

    /// Two calls were made: one for `plain-1`, acknowledged as `a`, and one for `plain-2` and `plain-3`, unanswered.
    fn found(stored: &[v1::Job]) -> Vec<String> {
        let mut known = Known::default();
        for (number, call, id) in [(1, 1, Some("a".to_owned())), (2, 2, None), (3, 2, None)] {
            let order = Order::of_kind(Kind::Plain, &mut Random::apart(1, 0), number, 0);
            known.calls.entry(call).or_default().push(order.tag.clone());
            known.orders.insert(order.tag.clone(), (call, order, id));
        }
        against_journal(&known, stored).into_iter().map(|violation| violation.expected).collect()
    }

    #[test]
    fn what_was_acknowledged_is_there_and_what_was_not_may_be() {
        let (one, two, three) = (job("a", "plain-1"), job("b", "plain-2"), job("c", "plain-3"));
        assert_eq!(found(std::slice::from_ref(&one)), Vec::<String>::new());
        assert_eq!(found(&[one.clone(), two.clone(), three.clone()]), Vec::<String>::new());
        assert_eq!(found(&[two.clone(), three.clone()]), ["acknowledged, so it is stored"]);
        assert_eq!(found(&[job("x", "plain-1")]), ["acknowledged as a"]);
    }

    #[test]
    fn repeats_halves_and_strangers_are_found() {
        let (one, two, three) = (job("a", "plain-1"), job("b", "plain-2"), job("c", "plain-3"));
        assert_eq!(found(&[one.clone(), two.clone(), three.clone(), three]), ["asked for once"]);
        assert_eq!(found(&[one.clone(), two]), ["all jobs of one call are stored or none"; 2]);
        assert_eq!(found(&[one, job("s", "stranger")]), ["nobody asked for it"]);
    }
}
