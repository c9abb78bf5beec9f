//! What a run measured: one figure for each system and workload, whoever measured it, and what could not be measured.

use crate::processes::mebibytes;
use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::{fs, path::Path, time::Duration};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Workload {
    /// 16 callers, each enqueuing one job at a time.
    Callers,
    /// The best bulk call.
    Bulk,
    /// No-op jobs that were enqueued up front.
    Drain,
    /// One no-op job at a time: from the enqueue call to the handler's start.
    Latency,
    /// Jobs of /bin/true.
    Process,
    /// One process job at a time: from the enqueue call to the process's main.
    Start,
    /// Resident memory at rest.
    Memory,
    /// Lines of logs that pass through.
    Lines,
    /// No-op tasks through handlers outside the worker's process.
    Handlers,
    /// The calls of REST beside those of gRPC.
    Rest,
    /// Jobs that wait for each other, beside jobs that do not.
    Graph,
    /// Many schedules that have nothing to do.
    Schedules,
    /// What it costs to decide where a job runs.
    Placement,
    /// From a job to its first line where its worker has to be made first.
    Cold,
    /// Memory and start-up with many pending jobs.
    Backlog,
    /// What grows with the number of jobs.
    Growth,
    /// What grows with the number of workers.
    Workers,
    /// Lists, filters and counts with many finished jobs.
    Listing,
}

impl Workload {
    pub const COMPARED: [Workload; 7] = [
        Workload::Callers,
        Workload::Bulk,
        Workload::Drain,
        Workload::Latency,
        Workload::Process,
        Workload::Start,
        Workload::Memory,
    ];

    pub fn title(self) -> &'static str {
        match self {
            Workload::Callers => "Enqueue, 16 single callers",
            Workload::Bulk => "Bulk enqueue",
            Workload::Drain => "Drain of no-op jobs",
            Workload::Latency => "Idle latency to the handler",
            Workload::Process => "Process jobs of /bin/true",
            Workload::Start => "Idle latency to a process's main",
            Workload::Memory => "Memory at rest",
            Workload::Lines => "Log lines",
            Workload::Handlers => "Drain of no-op tasks through handlers",
            Workload::Rest => "Enqueue over REST",
            Workload::Graph => "A graph of 100,000 jobs",
            Workload::Schedules => "50,000 schedules",
            Workload::Placement => "Deciding where a job runs",
            Workload::Cold => "Cold start to the first line",
            Workload::Backlog => "Backlog of pending jobs",
            Workload::Growth => "Growth",
            Workload::Workers => "1,000 workers",
            Workload::Listing => "Looking at 1,000,000 finished jobs",
        }
    }

    /// Whether a smaller first value is the better one.
    pub fn less_is_better(self) -> bool {
        matches!(
            self,
            Workload::Latency
                | Workload::Start
                | Workload::Memory
                | Workload::Graph
                | Workload::Schedules
                | Workload::Placement
                | Workload::Cold
                | Workload::Listing
        )
    }

    /// The word for it on the command line.
    pub fn name(self) -> String {
        clap::ValueEnum::to_possible_value(&self).map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

/// What a system promises when it has accepted a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Durability {
    /// On the disk before the call returns: a power cut loses nothing that was accepted.
    Synced,
    /// Written, and synced later or never: a power cut, and for some a crash, loses what was accepted last.
    NotSynced,
    /// Nothing is kept.
    Memory,
}

impl Durability {
    pub fn text(self) -> &'static str {
        match self {
            Durability::Synced => "synced",
            Durability::NotSynced => "not synced",
            Durability::Memory => "none",
        }
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Value {
    pub name: String,
    pub unit: String,
    /// One for each run.
    pub runs: Vec<f64>,
}

impl Value {
    pub fn median(&self) -> f64 {
        let mut runs = self.runs.clone();
        runs.sort_by(f64::total_cmp);
        runs.get(runs.len() / 2).copied().unwrap_or_default()
    }

    /// The lowest and the highest run.
    pub fn spread(&self) -> Option<(f64, f64)> {
        let low = self.runs.iter().copied().reduce(f64::min)?;
        let high = self.runs.iter().copied().reduce(f64::max)?;
        (self.runs.len() > 1).then_some((low, high))
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Figure {
    pub system: String,
    pub version: String,
    pub workload: Workload,
    /// The first is the one that is compared and drawn.
    pub values: Vec<Value>,
    pub durability: Durability,
    pub settings: String,
}

impl Figure {
    pub fn of(who: &System, workload: Workload, settings: impl Into<String>) -> Self {
        Self {
            system: who.name.clone(),
            version: who.version.clone(),
            workload,
            values: Vec::new(),
            durability: who.durability,
            settings: settings.into(),
        }
    }

    /// Runs find each other by the names of their values, so each has one of its own.
    #[must_use]
    pub fn with(mut self, name: &str, unit: &str, value: f64) -> Self {
        assert!(self.value(name).is_none(), "two values of {} are called '{name}'", self.workload.title());
        self.values.push(Value { name: name.into(), unit: unit.into(), runs: vec![value] });
        self
    }

    /// What the system's own processes take, and its database's where it has one; the sum is what is compared.
    #[must_use]
    pub fn with_memory(self, own: u64, database: Option<u64>) -> Self {
        let total = own + database.unwrap_or(0);
        let figure = self.with("total", "MiB", mebibytes(total)).with("own", "MiB", mebibytes(own));
        match database {
            Some(bytes) => figure.with("database", "MiB", mebibytes(bytes)),
            None => figure,
        }
    }

    /// p50, p95 and p99 of some times.
    #[must_use]
    pub fn with_percentiles(mut self, prefix: &str, mut times: Vec<Duration>) -> Self {
        times.sort();
        let at = |share: f64| times.get(((times.len() as f64 - 1.0) * share).round() as usize).copied();
        for (name, share) in [("p50", 0.50), ("p95", 0.95), ("p99", 0.99)] {
            let millis = at(share).unwrap_or_default().as_secs_f64() * 1000.0;
            self = self.with(&format!("{prefix}{name}"), "ms", millis);
        }
        self
    }

    pub fn value(&self, name: &str) -> Option<&Value> {
        self.values.iter().find(|value| value.name == name)
    }

    pub fn first(&self) -> f64 {
        self.values.first().map(Value::median).unwrap_or_default()
    }
}

/// Who is measured: the store belongs to the name, and so does a way to run it that changes what it promises.
#[derive(Clone, Debug)]
pub struct System {
    pub name: String,
    pub version: String,
    pub durability: Durability,
}

/// Something that was to be measured and was not; never silent.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Gap {
    pub system: String,
    /// None: nothing of this system.
    pub workload: Option<Workload>,
    pub why: String,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Record {
    pub date: String,
    pub commit: String,
    /// What the machine is, as lines of name and text.
    pub machine: Vec<(String, String)>,
    /// What the machine itself can do, before and after.
    pub limits: Vec<Value>,
    pub figures: Vec<Figure>,
    pub gaps: Vec<Gap>,
}

impl Record {
    /// Adds a figure, or another run to the one that is there.
    pub fn add(&mut self, figure: Figure) {
        let known = self.figures.iter_mut().find(|f| f.system == figure.system && f.workload == figure.workload);
        let Some(known) = known else {
            self.figures.push(figure);
            return;
        };
        for value in figure.values {
            match known.values.iter_mut().find(|v| v.name == value.name) {
                Some(known) => known.runs.extend(value.runs),
                None => known.values.push(value),
            }
        }
    }

    pub fn limit(&mut self, name: &str, unit: &str, value: f64) {
        match self.limits.iter_mut().find(|limit| limit.name == name) {
            Some(limit) => limit.runs.push(value),
            None => self.limits.push(Value { name: name.into(), unit: unit.into(), runs: vec![value] }),
        }
    }

    pub fn figure(&self, system: &str, workload: Workload) -> Option<&Figure> {
        self.figures.iter().find(|f| f.system == system && f.workload == workload)
    }

    /// The systems in the order in which they were first measured.
    pub fn systems(&self) -> Vec<&str> {
        let mut systems: Vec<&str> = Vec::new();
        for figure in &self.figures {
            if !systems.contains(&figure.system.as_str()) {
                systems.push(&figure.system);
            }
        }
        systems
    }

    pub fn write(&self, path: &Path) -> Result<()> {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        fs::write(path, serde_json::to_string_pretty(self)?).with_context(|| format!("cannot write {}", path.display()))
    }

    pub fn read(path: &Path) -> Result<Self> {
        let text = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        Ok(serde_json::from_slice(&text)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(value: f64) -> Figure {
        let system = System { name: "Hodei".into(), version: "1".into(), durability: Durability::Synced };
        Figure::of(&system, Workload::Drain, "").with("rate", "jobs/s", value)
    }

    #[test]
    fn runs_of_one_figure_come_together() {
        let mut record = Record::default();
        for value in [3.0, 1.0, 2.0] {
            record.add(figure(value));
        }
        let value = &record.figures[0].values[0];
        assert_eq!((record.figures.len(), value.median(), value.spread()), (1, 2.0, Some((1.0, 3.0))));
    }

    #[test]
    fn one_run_has_no_spread() {
        assert_eq!(figure(1.0).values[0].spread(), None);
    }
}
