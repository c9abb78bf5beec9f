//! `hodei job submit -f FILE`: many jobs from one file.
//!
//! A YAML file is a graph: its jobs have names, depend on each other by them, and are stored all or none. JSON lines are
//! jobs by themselves, as many as there are, stored in steps.

use crate::{
    client::{Client, explain},
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

/// Jobs that are stored in one step.
const STEP: usize = 1000;
/// A step is sent earlier when it has so many bytes.
const STEP_BYTES: usize = 4 << 20;

pub async fn submit(client: &mut Client, path: &Path, json: bool) -> Result<u8> {
    let is_graph = path.extension().is_some_and(|extension| extension == "yaml" || extension == "yml");
    if is_graph { graph(client, path, json).await } else { lines(client, path, json).await }
}

/// The jobs of a graph, by their names. `defaults` are fields that jobs have unless they say otherwise.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Graph {
    #[serde(default)]
    defaults: Map<String, Value>,
    jobs: IndexMap<String, Value>,
}

async fn graph(client: &mut Client, path: &Path, json: bool) -> Result<u8> {
    let at = || format!("cannot submit the graph {}", path.display());
    let text = std::fs::read_to_string(path).with_context(at)?;
    let jobs = graph_jobs(&text).with_context(at)?;
    let names: Vec<String> = jobs.iter().map(|job| job.local_name.clone()).collect();
    let answer = client.jobs().queue_jobs(v1::QueueJobsRequest { jobs }).await;
    let v1::QueueJobsResponse { job_ids, existed } = answer.map_err(|status| explain(&status))?.into_inner();
    if json {
        let ids: Map<String, Value> = names.into_iter().zip(job_ids).map(|(name, id)| (name, id.into())).collect();
        output::print_json(&json!({ "jobs": ids, "existed": existed.len() }));
        return Ok(exit::OK);
    }
    let rows: Vec<Vec<String>> = names.into_iter().zip(job_ids).map(|(name, id)| vec![name, id]).collect();
    output::table(&[("JOB", 0), ("ID", 0)], &rows);
    Ok(exit::OK)
}

fn graph_jobs(yaml: &str) -> Result<Vec<v1::JobSpec>> {
    let graph: Graph = serde_saphyr::from_str(yaml)?;
    if graph.jobs.is_empty() {
        bail!("jobs: there are none; write them as 'jobs:' with a name and a job for each");
    }
    let now = Time(output::now_ms());
    let job = |(name, job): (String, Value)| {
        let Value::Object(own) = job else { bail!("jobs.{name}: must be a job, with fields such as shell or task") };
        let mut fields = graph.defaults.clone();
        fields.extend(own);
        fields.entry("name").or_insert_with(|| name.as_str().into());
        let mut job =
            json::job_from_value(Value::Object(fields), now).map_err(|bad| bad.within(&format!("jobs.{name}")))?;
        job.local_name = name;
        Ok(job)
    };
    graph.jobs.into_iter().map(job).collect()
}

async fn lines(client: &mut Client, path: &Path, json: bool) -> Result<u8> {
    let (reader, length): (Box<dyn BufRead + Send>, Option<u64>) = match path.as_os_str() == "-" {
        true => (Box::new(BufReader::new(io::stdin())), None),
        false => {
            let file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
            let length = file.metadata().ok().map(|metadata| metadata.len());
            (Box::new(BufReader::new(file)), length)
        }
    };
    let progress = progress(length);
    let mut bulk = Bulk { client, progress, stored: 0, existed: 0 };
    let outcome = bulk.run(reader).await;
    let Bulk { progress, stored, existed, .. } = bulk;
    progress.finish_and_clear();
    // What is stored is stored, also when a later line is wrong.
    match json {
        true => output::print_json(&json!({ "stored": stored, "existed": existed })),
        false => output::println(&format!("stored {stored}, {existed} were there already")),
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
    progress: ProgressBar,
    stored: usize,
    existed: usize,
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
            jobs.push(job);
            if jobs.len() >= STEP || bytes >= STEP_BYTES {
                self.store(std::mem::take(&mut jobs), std::mem::take(&mut bytes), first).await?;
            }
        }
        self.store(jobs, bytes, first).await
    }

    async fn store(&mut self, jobs: Vec<v1::JobSpec>, bytes: usize, first: usize) -> Result<()> {
        let count = jobs.len();
        if count == 0 {
            return Ok(());
        }
        let answer = self.client.jobs().queue_jobs(v1::QueueJobsRequest { jobs }).await;
        let answer = answer.map_err(|status| explain(&status)).with_context(|| {
            format!(
                "the {count} jobs from line {first} on were not stored; {} before them were",
                self.stored + self.existed
            )
        })?;
        let existed = answer.into_inner().existed.len();
        self.existed += existed;
        self.stored += count - existed;
        self.progress.inc(bytes as u64);
        self.progress.set_message(format!("{} jobs", self.stored + self.existed));
        Ok(())
    }
}

fn at_line(number: usize, bad: &Invalid) -> anyhow::Error {
    anyhow::anyhow!("line {number}: {bad}; lines before it are stored, this and those after it are not")
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
        let jobs = graph_jobs(yaml).expect("a graph");
        let found: Vec<(&str, &str, &str)> =
            jobs.iter().map(|job| (&*job.local_name, &*job.name, &*job.queue)).collect();
        assert_eq!(found, [("extract", "extract", "etl"), ("load", "load", "own")]);
        assert_eq!(jobs[1].depends_on, ["extract"]);
        assert_eq!(jobs[0].retry.as_ref().and_then(|retry| retry.max_attempts), Some(2));
    }

    #[test]
    fn mistakes_in_a_graph_are_named() {
        let complaint = |yaml: &str| format!("{:#}", graph_jobs(yaml).expect_err("must be refused"));
        assert!(complaint("jobs: {}").contains("jobs: there are none"));
        assert!(complaint("jobs: {a: 5}").contains("jobs.a: must be a job"));
        assert!(complaint("jobs: {a: {shel: {program: x}}}").contains("jobs.a.shel"));
        assert!(complaint("job: {}").contains("job"));
        assert!(!complaint("jobs: [").is_empty());
    }
}
