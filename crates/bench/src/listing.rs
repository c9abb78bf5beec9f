//! What it takes to look at jobs when many have ended.

use crate::{
    cluster::{Cluster, StoreKind},
    record::Figure,
    tasks::{SLOTS, task},
    workloads::until_done,
};
use anyhow::{Context, Result};
use hodei_api::{
    channel::Authorized,
    v1::{
        self, JobState, dead_letter_service_client::DeadLetterServiceClient as DeadLetters,
        job_execution_service_client::JobExecutionServiceClient as Jobs,
        queue_service_client::QueueServiceClient as Queues,
    },
};
use std::{
    path::Path,
    time::{Duration, Instant},
};

const FEW: usize = 10_000;
const MANY: usize = 1_000_000;
const BULK: usize = 10_000;
/// How often each look is taken.
const LOOKS: usize = 200;
const QUEUES: usize = 20;
/// One in so many fails.
const FAILING: usize = 101;
/// One in so many has the tag and the name that are looked for, and another the type.
const TAGGED: usize = 4_999;

/// What people and dashboards ask for: with everything that jobs can be filtered by, the counts, and dead letters.
#[derive(Clone, Copy, Debug)]
enum Look {
    Newest,
    OldPage,
    State,
    Queue,
    QueueAndState,
    Time,
    Tag,
    Name,
    Type,
    /// One that has made no jobs: everything is looked at in vain, as far as one page may look.
    Schedule,
    Counts,
    DeadLetters,
    Errors,
}

impl Look {
    const ALL: [Look; 13] = [
        Look::Newest,
        Look::OldPage,
        Look::State,
        Look::Queue,
        Look::QueueAndState,
        Look::Time,
        Look::Tag,
        Look::Name,
        Look::Type,
        Look::Schedule,
        Look::Counts,
        Look::DeadLetters,
        Look::Errors,
    ];

    fn name(self) -> &'static str {
        match self {
            Look::Newest => "newest jobs",
            Look::OldPage => "a page in the middle",
            Look::State => "of a state",
            Look::Queue => "of a queue",
            Look::QueueAndState => "of a queue and a state",
            Look::Time => "of a time",
            Look::Tag => "with a rare tag",
            Look::Name => "with a rare name",
            Look::Type => "of a rare type",
            Look::Schedule => "of a schedule without any",
            Look::Counts => "counts of all queues",
            Look::DeadLetters => "dead letters of a queue",
            Look::Errors => "groups of errors",
        }
    }
}

/// Each look at the first page that it asks for, on a server with many finished jobs and on one with few.
pub async fn listing(program: &Path, kind: StoreKind, figure: Figure) -> Result<Figure> {
    let few = looks(program, kind, FEW).await?;
    let many = looks(program, kind, MANY).await?;
    let slowest = many.iter().map(|times| at(times, 0.99)).fold(0.0, f64::max);
    let mut figure = figure.with("slowest p99", "ms", slowest);
    for ((look, few), many) in Look::ALL.into_iter().zip(few).zip(many) {
        for (among, times) in [("", many), (" among 10,000", few)] {
            for (name, share) in [("p50", 0.50), ("p99", 0.99)] {
                figure = figure.with(&format!("{}{among}, {name}", look.name()), "ms", at(&times, share));
            }
        }
    }
    Ok(figure)
}

/// The time, in milliseconds, that this share of them does not exceed.
fn at(times: &[Duration], share: f64) -> f64 {
    let mut times = times.to_vec();
    times.sort();
    let place = ((times.len() as f64 - 1.0) * share).round() as usize;
    times.get(place).map_or(0.0, |time| time.as_secs_f64() * 1000.0)
}

/// How long each look took, each time.
async fn looks(program: &Path, kind: StoreKind, finished: usize) -> Result<Vec<Vec<Duration>>> {
    let mut cluster = Cluster::new(program, kind).await?;
    cluster.start("server", &[]).await?;
    let _stamps = cluster.start_task_workers(1, SLOTS, &[("HODEI_COUNT", "0")]).await?;
    let middle = prepare(&cluster, finished).await?;
    cluster.stop_worker();
    let viewer = Viewer::of(&cluster, middle).await?;
    let mut times = Vec::new();
    for look in Look::ALL {
        let mut taken = Vec::new();
        for _ in 0..LOOKS {
            let began = Instant::now();
            viewer.take(look).await?;
            taken.push(began.elapsed());
        }
        times.push(taken);
    }
    cluster.end().await?;
    Ok(times)
}

/// Has so many jobs run, and returns the id of one in the middle.
async fn prepare(cluster: &Cluster, count: usize) -> Result<String> {
    let mut jobs = cluster.jobs().await?;
    let (mut middle, mut last) = (None, None);
    for first in (0..count).step_by(BULK) {
        let batch = (first..count.min(first + BULK)).map(job).collect();
        let stored = jobs.queue_jobs(v1::QueueJobsRequest { jobs: batch }).await?.into_inner();
        last = stored.job_ids.last().cloned();
        if let Some(place) = (count / 2).checked_sub(first) {
            middle = stored.job_ids.into_iter().nth(place).or(middle);
        }
    }
    until_done(cluster, &last.context("no jobs")?).await?;
    middle.context("no jobs")
}

fn job(number: usize) -> v1::JobSpec {
    let rare = number.is_multiple_of(TAGGED);
    v1::JobSpec {
        name: if rare { "rare" } else { "common" }.into(),
        queue: format!("q{}", number % QUEUES),
        tags: vec![if rare { "rare" } else { "common" }.into()],
        retry: Some(v1::RetryPolicy { max_attempts: Some(1), ..Default::default() }),
        ..task(match number {
            number if number.is_multiple_of(FAILING) => "fail",
            number if number % TAGGED == 1 => "stamp",
            _ => "noop",
        })
    }
}

/// Somebody with a connection.
struct Viewer {
    jobs: Jobs<Authorized>,
    queues: Queues<Authorized>,
    letters: DeadLetters<Authorized>,
    middle: String,
    middle_ms: i64,
}

impl Viewer {
    async fn of(cluster: &Cluster, middle: String) -> Result<Self> {
        let mut jobs = cluster.jobs().await?;
        let request = v1::GetJobRequest { job_id: middle.clone() };
        let found = jobs.get_job(request).await?.into_inner().job.context("the job in the middle is gone")?;
        let (queues, letters) = (cluster.queues().await?, cluster.dead_letters().await?);
        Ok(Self { jobs, queues, letters, middle, middle_ms: found.created_at_ms })
    }

    async fn take(&self, look: Look) -> Result<()> {
        let filter = v1::JobFilter::default();
        let failed = vec![JobState::Failed.into()];
        let queue = "q7".to_owned();
        match look {
            Look::Newest => self.list(filter, "").await?,
            Look::OldPage => self.list(filter, &self.middle).await?,
            Look::State => self.list(v1::JobFilter { states: failed, ..filter }, "").await?,
            Look::Queue => self.list(v1::JobFilter { queue, ..filter }, "").await?,
            Look::QueueAndState => self.list(v1::JobFilter { queue, states: failed, ..filter }, "").await?,
            Look::Time => self.list(v1::JobFilter { to_ms: self.middle_ms, ..filter }, "").await?,
            Look::Tag => self.list(v1::JobFilter { tag: "rare".into(), ..filter }, "").await?,
            Look::Name => self.list(v1::JobFilter { name: "rare".into(), ..filter }, "").await?,
            Look::Type => self.list(v1::JobFilter { task_type: "stamp".into(), ..filter }, "").await?,
            Look::Schedule => self.list(v1::JobFilter { schedule_id: self.middle.clone(), ..filter }, "").await?,
            Look::Counts => _ = self.queues.clone().list_queues(v1::ListQueuesRequest::default()).await?,
            Look::DeadLetters => {
                let filter = Some(v1::DeadLetterFilter { queue, ..Default::default() });
                let request = v1::ListDeadLettersRequest { filter, ..Default::default() };
                self.letters.clone().list_dead_letters(request).await?;
            }
            Look::Errors => {
                let request = v1::GetDeadLetterStatsRequest::default();
                self.letters.clone().get_dead_letter_stats(request).await?;
            }
        }
        Ok(())
    }

    async fn list(&self, filter: v1::JobFilter, page_token: &str) -> Result<()> {
        let request =
            v1::ListJobsRequest { filter: Some(filter), page_token: page_token.to_owned(), ..Default::default() };
        self.jobs.clone().list_jobs(request).await?;
        Ok(())
    }
}
