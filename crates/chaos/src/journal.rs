//! What is written down while it happens: the faults by the conductor, the jobs by the checker.

use crate::{clock, load::Order};
use anyhow::{Context, Result};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::{
    fs::{File, OpenOptions},
    io::{BufRead, BufReader, Write},
    path::Path,
    sync::{Arc, Mutex, PoisonError},
};

pub const FAULTS: &str = "faults.jsonl";
pub const JOBS: &str = "jobs.jsonl";

/// One harm that was done, from when to when, in milliseconds since the Unix epoch.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Fault {
    pub kind: String,
    pub what: String,
    pub from_ms: i64,
    pub to_ms: i64,
    /// Done by the conductor; not something that ended by itself.
    pub done: bool,
    /// It ended by itself although it was in use.
    pub left_in_use: bool,
}

/// Appends lines to a file; each is on disk when the call returns.
#[derive(Clone, Debug)]
pub struct Journal {
    file: Arc<Mutex<File>>,
}

impl Journal {
    pub fn create(path: &Path) -> Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(path);
        let file = file.with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Self { file: Arc::new(Mutex::new(file)) })
    }

    pub fn write(&self, line: &impl Serialize) -> Result<()> {
        let mut text = serde_json::to_string(line)?;
        text.push('\n');
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        file.write_all(text.as_bytes())?;
        Ok(file.sync_data()?)
    }
}

pub fn read<T: DeserializeOwned>(path: &Path) -> Result<Vec<T>> {
    let file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
    BufReader::new(file).lines().map(|line| Ok(serde_json::from_str(&line?)?)).collect()
}

/// The faults of this run.
#[derive(Clone, Debug)]
pub struct FaultLog(Journal);

impl FaultLog {
    pub fn create(folder: &Path) -> Result<Self> {
        Ok(Self(Journal::create(&folder.join(FAULTS))?))
    }

    pub fn done(&self, kind: &str, what: &str, from_ms: i64) {
        let (kind, what) = (kind.to_owned(), what.to_owned());
        _ = self.0.write(&Fault { kind, what, from_ms, to_ms: clock::wall_ms(), done: true, left_in_use: false });
    }

    pub fn ended_by_itself(&self, name: &str, how: &str, left_in_use: bool, at_ms: i64) {
        let what = format!("{name} ended by itself ({how})");
        let kind = if left_in_use { "ended by itself" } else { "could not start" };
        _ = self.0.write(&Fault {
            kind: kind.to_owned(),
            what,
            from_ms: at_ms,
            to_ms: at_ms,
            done: false,
            left_in_use,
        });
    }
}

/// What the checker knows of the jobs that it asked for.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Entry {
    /// Written before the call. All orders of one call are stored or none.
    Asked { call: u64, orders: Vec<Order> },
    /// The server acknowledged the call with these ids.
    Acknowledged { call: u64, ids: Vec<String> },
    /// No answer, or one that does not say what became of it.
    Unanswered { call: u64, why: String },
    /// A cancel was acknowledged.
    Cancelled { job: String },
}
