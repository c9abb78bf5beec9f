//! All of it at once, under kill -9: a graph with failures and retries, schedules that fire, webhooks that tell of every end.

use crate::{
    cluster::Cluster,
    postgres::database,
    process::{Home, PATIENCE, until},
    webhooks::{LOCAL, Receiver},
};
use hodei_api::v1::{self, JobState, OnDependencyFailure};
use hodei_sdk::{Task, TaskError, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};
use tokio::sync::OnceCell;

const JOBS: usize = 1000;
const CRASHES: usize = 6;

/// What becomes of each job depends on its number alone.
fn job(number: usize, hook: &str) -> v1::JobSpec {
    // Numbers that look drawn and are the same in every run.
    let drawn = |salt: usize| (number * 2_654_435_761 + salt * 40_503) % 9973;
    let depends_on = (0..drawn(1) % 4).filter(|_| number > 0).map(|n| drawn(10 + n) % number.max(1));
    let depends_on: BTreeSet<String> = depends_on.map(|before| before.to_string()).collect();
    let policy = if drawn(2) % 3 == 0 { OnDependencyFailure::Run } else { OnDependencyFailure::Cancel };
    // Most succeed at once, some at the second or third attempt, and a few never.
    let failures = [0, 0, 0, 0, 0, 0, 0, 1, 2, 3][drawn(3) % 10] * usize::from(drawn(4) % 2 == 0);
    let payload = json!({ "failures": failures }).to_string().into_bytes();
    let task = v1::TaskWork { r#type: "work".into(), payload };
    v1::JobSpec {
        name: number.to_string(),
        local_name: number.to_string(),
        work: Some(v1::Work { kind: Some(v1::work::Kind::Task(task)) }),
        depends_on: depends_on.into_iter().collect(),
        on_dependency_failure: policy.into(),
        retry: Some(v1::RetryPolicy { max_attempts: Some(3), delay_ms: Some(20), ..Default::default() }),
        webhook: Some(v1::Webhook { url: hook.into(), secret: String::new() }),
        ..Default::default()
    }
}

type Ends = BTreeMap<String, JobState>;

/// Runs the graph, with so many deaths of the server on the way, and returns how each job ended.
async fn run(crashes: usize, flags: &[&str]) -> Ends {
    let home = Home::new();
    let config = home.write("config.toml", LOCAL).display().to_string();
    let mut cluster = Cluster::with(&[&["--config", &config], flags].concat()).await;
    let receiver = Receiver::start().await;
    let worker = cluster.sdk_worker("steady").await.slots(8).handle("work", |task: Task| async move {
        let payload: BTreeMap<String, u32> = task.payload()?;
        tokio::time::sleep(Duration::from_millis(5)).await;
        match task.attempt() <= payload["failures"] {
            true => Err(TaskError::retry("not yet")),
            false => Ok(json!(task.attempt())),
        }
    });
    let worker = crate::tasks::Running::start(worker);
    cluster
        .hodei(&["schedule", "create", "clock", "--every", "1s", "--task", "work", "--payload", "{\"failures\": 0}"])
        .await
        .ok();
    let jobs: Vec<v1::JobSpec> = (0..JOBS).map(|number| job(number, &receiver.url())).collect();
    let ids = cluster.queue_all(jobs).await.expect("a graph");
    for n in 0..crashes {
        let (ended, began) = ((n + 1) * JOBS / (crashes + 2), Instant::now());
        until("the graph goes on", || async {
            let done = finished(&cluster).await;
            (done >= ended || began.elapsed() > Duration::from_secs(20)).then_some(())
        })
        .await;
        cluster.crash_server().await;
    }
    let began = Instant::now();
    while finished(&cluster).await < JOBS {
        if began.elapsed() > PATIENCE {
            let open = cluster.list().await.into_iter().filter(|job| job.finished_at_ms == 0);
            let open: Vec<String> = open.map(|job| format!("{} {:?}", job.id, job.state())).collect();
            let last = cluster.hodei(&["queue", "get", "default", "--json"]).await;
            panic!("these never ended: {open:?}, {last:?}");
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    until("the schedule fired", || async {
        let clock = cluster.hodei(&["schedule", "get", "clock", "--json"]).await.ok().json();
        clock["runs"].as_u64().filter(|runs| *runs >= 3)
    })
    .await;
    cluster.hodei(&["schedule", "disable", "clock"]).await.ok();

    let told = until("all ends are told", || async {
        let told: BTreeMap<String, BTreeSet<String>> =
            receiver.messages().into_iter().fold(BTreeMap::new(), |mut told, message| {
                told.entry(message.job()).or_default().insert(message.id().to_owned());
                told
            });
        ids.iter().all(|id| told.contains_key(id)).then_some(told)
    })
    .await;
    assert!(told.values().all(|messages| messages.len() == 1), "an end is one message, however often it is sent");
    no_tick_twice_or_lost(&cluster).await;
    let mut ends = BTreeMap::new();
    for job in cluster.list().await.into_iter().filter(|job| job.schedule_id.is_empty()) {
        ends.insert(job.spec.clone().expect("a spec").name, job.state());
    }
    worker.stop().await;
    ends
}

async fn finished(cluster: &Cluster) -> usize {
    let queue = cluster.hodei(&["queue", "get", "default", "--json"]).await;
    if queue.code != 0 {
        return 0;
    }
    let counts = queue.json()["counts"].clone();
    let ended = ["succeeded", "failed", "timed_out", "cancelled"];
    let all: u64 = ended.iter().filter_map(|state| counts[state].as_u64()).sum();
    let ticks = cluster.hodei(&["schedule", "get", "clock", "--json"]).await;
    let ticks = if ticks.code == 0 { ticks.json()["runs"].as_u64().unwrap_or(0) } else { u64::MAX };
    // Those that the schedule made may be among them.
    usize::try_from(all.saturating_sub(ticks)).unwrap_or(0)
}

async fn no_tick_twice_or_lost(cluster: &Cluster) {
    let mut ticks: Vec<i64> =
        cluster.list().await.iter().filter(|job| !job.schedule_id.is_empty()).map(|job| job.tick_ms).collect();
    ticks.sort_unstable();
    assert!(ticks.len() > 1, "the schedule fired");
    for pair in ticks.windows(2) {
        assert_eq!(pair[1] - pair[0], 1000, "{ticks:?}");
    }
}

/// How all ends when nothing happens to the server.
async fn calm() -> &'static Ends {
    static CALM: OnceCell<Ends> = OnceCell::const_new();
    let ends = CALM.get_or_init(|| run(0, &[])).await;
    assert_eq!(ends.len(), JOBS);
    let kinds: BTreeSet<JobState> = ends.values().copied().collect();
    assert_eq!(kinds, BTreeSet::from([JobState::Succeeded, JobState::Failed, JobState::Cancelled]));
    ends
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn crashes_of_the_server_change_no_end_lose_no_tick_and_no_message() {
    assert_eq!(run(CRASHES, &[]).await, *calm().await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nor_do_they_on_postgres() {
    let Some(url) = database().await else { return };
    assert_eq!(run(CRASHES, &["--database-url", &url]).await, *calm().await);
}
