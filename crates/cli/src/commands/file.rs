//! `hodei job submit -f FILE`: many jobs from one file.
//!
//! A YAML file is a graph: its jobs have names, depend on each other by them, and are stored all or none. JSON lines are
//! jobs by themselves, as many as there are, stored in steps. What flags say is for all jobs that do not say otherwise.

use crate::{
    client::{Client, did_nothing, explain},
    commands::defaults::complete,
    exit, output,
};
use anyhow::{Context, Result, bail};
use hodei_api::{json, v1};
use hodei_core::{spec::Invalid, time::Time};
use indexmap::IndexMap;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::{
    fs::File,
    io::{self, BufRead, BufReader, IsTerminal},
    path::Path,
    time::Duration,
};
use tonic::Status;

/// Jobs that are stored in one step.
const STEP: usize = 1000;
/// A step is sent earlier when it has so many bytes.
const STEP_BYTES: usize = 4 << 20;

pub async fn submit(client: &mut Client, path: &Path, shared: &v1::JobSpec, json: bool) -> Result<u8> {
    let is_graph = path.extension().is_some_and(|extension| extension == "yaml" || extension == "yml");
    if is_graph { graph(client, path, shared, json).await } else { lines(client, path, shared, json).await }
}

/// The jobs of a graph, by their names. `defaults` are fields that jobs have unless they say otherwise.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Graph {
    #[serde(default)]
    defaults: Map<String, Value>,
    jobs: IndexMap<String, Value>,
}

async fn graph(client: &mut Client, path: &Path, shared: &v1::JobSpec, json: bool) -> Result<u8> {
    let at = || format!("cannot submit the graph {}", path.display());
    let text = std::fs::read_to_string(path).with_context(at)?;
    let jobs = graph_jobs(&text, shared).with_context(at)?;
    let names: Vec<String> = jobs.iter().map(|job| job.local_name.clone()).collect();
    let answer = client.jobs().queue_jobs(v1::QueueJobsRequest { jobs }).await;
    let v1::QueueJobsResponse { job_ids, existed } =
        answer.map_err(|status| not_stored(&status, "the jobs of the graph were", None))?.into_inner();
    if json {
        let ids: Map<String, Value> = names.into_iter().zip(job_ids).map(|(name, id)| (name, id.into())).collect();
        output::print_json(&json!({ "jobs": ids, "existed": existed.len() }));
        return Ok(exit::OK);
    }
    let rows: Vec<Vec<String>> = names.into_iter().zip(job_ids).map(|(name, id)| vec![name, id]).collect();
    output::table(&[("JOB", 0), ("ID", 0)], &rows);
    Ok(exit::OK)
}

fn graph_jobs(yaml: &str, shared: &v1::JobSpec) -> Result<Vec<v1::JobSpec>> {
    let graph: Graph = serde_saphyr::from_str(yaml)?;
    if graph.jobs.is_empty() {
        bail!("jobs: there are none; write them as 'jobs:' with a name and a job for each");
    }
    let now = Time(output::now_ms());
    let defaults = json::fields_from_value(Value::Object(graph.defaults), now).map_err(|bad| bad.within("defaults"))?;
    if !defaults.idempotency_key.is_empty() || !defaults.local_name.is_empty() {
        bail!("defaults: idempotency_key and local_name are of one job alone");
    }
    let job = |(name, own): (String, Value)| {
        if !own.is_object() {
            bail!("jobs.{name}: must be a job, with fields such as shell or task");
        }
        let within = |bad: Invalid| bad.within(&format!("jobs.{name}"));
        let mut job = json::fields_from_value(own, now).map_err(within)?;
        complete(&mut job, &defaults);
        complete(&mut job, shared);
        let mut job = json::must_run_something(job).map_err(within)?;
        if job.name.is_empty() {
            job.name.clone_from(&name);
        }
        job.local_name = name;
        Ok(job)
    };
    graph.jobs.into_iter().map(job).collect()
}

async fn lines(client: &mut Client, path: &Path, shared: &v1::JobSpec, json: bool) -> Result<u8> {
    let (reader, length): (Box<dyn BufRead + Send>, Option<u64>) = match path.as_os_str() == "-" {
        true => (Box::new(BufReader::new(io::stdin())), None),
        false => {
            let file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
            let length = file.metadata().ok().map(|metadata| metadata.len());
            (Box::new(BufReader::new(file)), length)
        }
    };
    let progress = progress(length);
    let mut bulk = Bulk { client, shared, progress, stored: 0, existed: 0, ids: json.then(Vec::new) };
    let outcome = bulk.run(reader).await;
    let Bulk { progress, stored, existed, ids, .. } = bulk;
    progress.finish_and_clear();
    // What is stored is stored, also when a later line is wrong.
    match ids {
        Some(ids) => output::print_json(&json!({ "stored": stored, "existed": existed, "job_ids": ids })),
        None => output::note(&format!("stored {stored}, {existed} were there already")),
    }
    outcome.map(|()| exit::OK)
}

/// A bar for people; programs that read along see nothing of it.
pub fn progress(length: Option<u64>) -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let (bar, template) = match length {
        Some(length) => (ProgressBar::new(length), "{bar:40} {percent:>3}%  {msg}  {elapsed}, {eta} left"),
        None => (ProgressBar::new_spinner(), "{spinner} {msg}  {elapsed}"),
    };
    bar.set_style(ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.enable_steady_tick(Duration::from_millis(100));
    bar
}

struct Bulk<'a> {
    client: &'a mut Client,
    shared: &'a v1::JobSpec,
    progress: ProgressBar,
    stored: usize,
    existed: usize,
    /// All ids in the order of their lines, where they are asked for at once; otherwise they are printed as they come.
    ids: Option<Vec<String>>,
}

impl Bulk<'_> {
    async fn run(&mut self, mut reader: Box<dyn BufRead + Send>) -> Result<()> {
        let (mut jobs, mut bytes, mut first) = (Vec::new(), 0, 1);
        let mut line = Vec::new();
        for number in 1.. {
            line.clear();
            let read = reader.read_until(b'\n', &mut line).context("cannot read on")?;
            if read == 0 {
                break;
            }
            bytes += read;
            if line.iter().all(u8::is_ascii_whitespace) {
                continue;
            }
            let job = json::job_from_slice(&line, Time(output::now_ms()));
            let job = match job {
                Ok(job) => job,
                Err(bad) => {
                    self.store(std::mem::take(&mut jobs), bytes, first).await?;
                    return Err(at_line(number, &bad));
                }
            };
            if jobs.is_empty() {
                first = number;
            }
            jobs.push(self.completed(job));
            if jobs.len() >= STEP || bytes >= STEP_BYTES {
                self.store(std::mem::take(&mut jobs), std::mem::take(&mut bytes), first).await?;
            }
        }
        self.store(jobs, bytes, first).await
    }

    fn completed(&self, mut job: v1::JobSpec) -> v1::JobSpec {
        complete(&mut job, self.shared);
        job
    }

    async fn store(&mut self, jobs: Vec<v1::JobSpec>, bytes: usize, first: usize) -> Result<()> {
        let count = jobs.len();
        if count == 0 {
            return Ok(());
        }
        let answer = self.client.jobs().queue_jobs(v1::QueueJobsRequest { jobs }).await;
        let answer = answer.map_err(|status| {
            let what = match count {
                1 => format!("the job of line {first} was"),
                _ => format!("the {count} jobs from line {first} on were"),
            };
            not_stored(&status, &what, Some(self.stored + self.existed))
        })?;
        let v1::QueueJobsResponse { job_ids, existed } = answer.into_inner();
        match &mut self.ids {
            Some(ids) => ids.extend(job_ids),
            None => {
                self.progress.suspend(|| output::print(&job_ids.iter().map(|id| format!("{id}\n")).collect::<String>()))
            }
        }
        let existed = existed.len();
        self.existed += existed;
        self.stored += count - existed;
        self.progress.inc(bytes as u64);
        self.progress.set_message(format!("{} jobs", self.stored + self.existed));
        Ok(())
    }
}

fn at_line(number: usize, bad: &Invalid) -> anyhow::Error {
    let advice = if bad.problem.starts_with("EOF while parsing") { " (write each job on one line)" } else { "" };
    anyhow::anyhow!("line {number}: {bad}{advice}; lines before it are stored, this and those after it are not")
}

/// What is known of jobs whose call failed, and of those before them.
fn not_stored(status: &Status, what: &str, before: Option<usize>) -> anyhow::Error {
    let fate = match did_nothing(status) {
        true => format!("{what} not stored"),
        false => format!(
            "it is not known whether {what} stored; those with an idempotency_key can safely be submitted again, and are not stored twice"
        ),
    };
    let before = before.map_or_else(String::new, |count| format!("; jobs stored before: {count}"));
    explain(status).context(format!("{fate}{before}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_graph_has_names_and_defaults() {
        let yaml = "
defaults: {queue: etl, retry: {max_attempts: 2}}
jobs:
  extract: {shell: {program: sh, args: [-c, 'echo 1']}}
  load: {task: {type: db.load, payload: {table: t}}, depends_on: [extract], queue: own}
";
        let jobs = graph_jobs(yaml, &v1::JobSpec::default()).expect("a graph");
        let found: Vec<(&str, &str, &str)> =
            jobs.iter().map(|job| (&*job.local_name, &*job.name, &*job.queue)).collect();
        assert_eq!(found, [("extract", "extract", "etl"), ("load", "load", "own")]);
        assert_eq!(jobs[1].depends_on, ["extract"]);
        assert_eq!(jobs[0].retry.as_ref().and_then(|retry| retry.max_attempts), Some(2));
    }

    #[test]
    fn mistakes_in_a_graph_are_named() {
        let complaint =
            |yaml: &str| format!("{:#}", graph_jobs(yaml, &v1::JobSpec::default()).expect_err("must be refused"));
        assert!(complaint("jobs: {}").contains("jobs: there are none"));
        assert!(complaint("jobs: {a: 5}").contains("jobs.a: must be a job"));
        assert!(complaint("jobs: {a: {shel: {program: x}}}").contains("jobs.a.shel"));
        assert!(complaint("jobs: {a: {queue: x}}").contains("jobs.a.work: say what to run"));
        assert!(complaint("{defaults: {queu: x}, jobs: {a: {shell: {program: x}}}}").contains("defaults.queu"));
        assert!(complaint("job: {}").contains("job"));
        assert!(!complaint("jobs: [").is_empty());
    }
}
