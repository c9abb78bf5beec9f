//! Follows a job's log to its end, through lost connections and restarts of the server.

use crate::{
    client::{Client, explain, may_pass},
    output,
};
use anyhow::Result;
use hodei_api::v1;
use std::time::{Duration, Instant};
use tonic::Status;

/// How long a server may be away before following it is given up.
const PATIENCE: Duration = Duration::from_secs(120);
const PAUSE: Duration = Duration::from_millis(200);

/// What was seen last, so that nothing is printed twice after a reconnect.
#[derive(Debug, Default)]
struct Seen {
    execution: String,
    next: u64,
}

impl Seen {
    /// Whether this entry is new; ids of executions sort by the time of their making.
    fn is_new(&mut self, entry: &v1::LogEntry) -> bool {
        let at = (&entry.execution_id, entry.number);
        if at < (&self.execution, self.next) {
            return false;
        }
        self.execution.clone_from(&entry.execution_id);
        self.next = entry.number + 1;
        true
    }
}

/// Shows every entry of a job once until it has ended.
pub async fn logs(client: &mut Client, id: &str, tail: Option<u64>, show: impl Fn(&[v1::LogEntry])) -> Result<()> {
    let mut seen = Seen::default();
    let mut first = true;
    let mut trouble = Trouble::default();
    loop {
        let request = v1::SubscribeLogsRequest { job_id: id.to_owned(), tail: tail.filter(|_| first) };
        let outcome = read(client, request, |mut entries| {
            trouble.pass();
            entries.retain(|entry| seen.is_new(entry));
            first &= entries.is_empty();
            show(&entries);
        });
        match outcome.await {
            Ok(()) => return Ok(()),
            Err(status) => trouble.meet(client, &status).await?,
        }
    }
}

/// The first batch is an empty one: it says that the server answers, which a quiet job does not.
async fn read(
    client: &Client,
    request: v1::SubscribeLogsRequest,
    mut each: impl FnMut(Vec<v1::LogEntry>),
) -> Result<(), Status> {
    let mut stream = client.logs().subscribe_logs(request).await?.into_inner();
    each(Vec::new());
    while let Some(batch) = stream.message().await? {
        each(batch.entries);
    }
    Ok(())
}

/// Waits until a job has ended, and returns it.
pub async fn end(client: &mut Client, id: &str) -> Result<v1::Job> {
    let mut trouble = Trouble::default();
    loop {
        match watch(client, id, || trouble.pass()).await {
            Ok(Some(job)) => return Ok(job),
            Ok(None) => trouble.meet(client, &Status::unavailable("the watch ended early")).await?,
            Err(status) => trouble.meet(client, &status).await?,
        }
    }
}

async fn watch(client: &Client, id: &str, mut alive: impl FnMut()) -> Result<Option<v1::Job>, Status> {
    let mut changes = client.jobs().watch_job(v1::WatchJobRequest { job_id: id.to_owned() }).await?.into_inner();
    while let Some(change) = changes.message().await? {
        alive();
        if let Some(job) = change.job.filter(|job| job.finished_at_ms > 0) {
            return Ok(Some(job));
        }
    }
    Ok(None)
}

/// A connection that failed, and since when.
#[derive(Debug, Default)]
struct Trouble {
    since: Option<Instant>,
    /// Whether people know.
    said: bool,
}

impl Trouble {
    /// Waits a little and connects anew, or gives up: at once when it cannot pass, else after a while.
    async fn meet(&mut self, client: &mut Client, status: &Status) -> Result<()> {
        let since = *self.since.get_or_insert_with(Instant::now);
        if !may_pass(status) || since.elapsed() > PATIENCE {
            return Err(explain(status));
        }
        if !std::mem::replace(&mut self.said, true) {
            output::note("hodei: lost the connection to the server; trying again");
        }
        tokio::time::sleep(PAUSE).await;
        // Whether it helped is seen by what comes.
        _ = client.reconnect().await;
        Ok(())
    }

    /// Something came: the trouble is over.
    fn pass(&mut self) {
        self.since = None;
        if std::mem::take(&mut self.said) {
            output::note("hodei: the server is back");
        }
    }
}
