//! Nothing that was acknowledged is lost and nothing runs twice, however the server ends.

use crate::{
    client::{Client, lines, may_pass, shell, text},
    cluster::Cluster,
    process::{Home, run, until, until_true},
};
use hodei_api::v1::{self, JobState};
use std::{
    collections::{HashMap, HashSet},
    time::{Duration, Instant},
};

const BATCHES: usize = 10;
const BATCH: usize = 100;
const LONG_JOBS: usize = 6;
pub const LONG_LINES: usize = 80;
/// Every job leaves its id and that of its execution here when it starts.
const STARTS: &str = "starts";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_server_loses_nothing_and_restarts_nothing() {
    jobs_survive_crashes(Cluster::start().await).await;
}

/// A thousand jobs, and a server that is killed again and again while they are queued and run.
pub async fn jobs_survive_crashes(mut cluster: Cluster) {
    let _workers = (cluster.worker("a", &["--slots", "8"]).await, cluster.worker("b", &["--slots", "8"]).await);
    let mut acknowledged = Vec::new();
    for _ in 0..LONG_JOBS {
        acknowledged.push(cluster.queue(long_job(&cluster.home)).await);
    }
    let mut follow = cluster.home.command();
    follow.args(["logs", "-f", &acknowledged[0]]).env("HODEI_SERVER", cluster.socket());
    let follower = tokio::spawn(run(follow));
    let submitting = tokio::spawn(submit(cluster.client.clone(), short_job(&cluster.home)));

    for crash in 1..=4 {
        let enough = crash * 150;
        until_true("more jobs have started", || cluster.home.read(STARTS).lines().count() >= enough).await;
        cluster.crash_server().await;
    }
    acknowledged.extend(submitting.await.expect("all jobs were taken"));

    let jobs = all_ended(&cluster.client, acknowledged.len()).await;
    check(&cluster, &jobs, &acknowledged).await;
    let followed = follower.await.expect("a follower").ok();
    assert_eq!(followed.text().lines().collect::<Vec<_>>(), long_lines(), "a follower sees each line once");
}

fn short_job(home: &Home) -> v1::JobSpec {
    let note = note_start(home);
    let spec = shell(format!("{note}; echo line 1; echo oops >&2; echo line 2; sleep 0.05; echo line 3"));
    v1::JobSpec { name: "short".into(), ..spec }
}

/// Runs across all crashes, printing.
fn long_job(home: &Home) -> v1::JobSpec {
    let note = note_start(home);
    let spec = shell(format!("{note}; for n in $(seq {LONG_LINES}); do echo line $n; sleep 0.1; done"));
    v1::JobSpec { name: "long".into(), ..spec }
}

fn long_lines() -> Vec<String> {
    (1..=LONG_LINES).map(|n| format!("line {n}")).collect()
}

pub fn note_start(home: &Home) -> String {
    format!("echo $HODEI_JOB_ID $HODEI_EXECUTION_ID >> {}", home.path(STARTS).display())
}

/// Hands in jobs until enough were acknowledged. A call that fails may still have stored its jobs: nobody can know.
async fn submit(client: Client, spec: v1::JobSpec) -> Vec<String> {
    let mut acknowledged = Vec::new();
    while acknowledged.len() < BATCHES * BATCH {
        match client.jobs().queue_jobs(v1::QueueJobsRequest { jobs: vec![spec.clone(); BATCH] }).await {
            Ok(answer) => acknowledged.extend(answer.into_inner().job_ids),
            Err(status) => assert!(may_pass(&status), "{status:?}"),
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    acknowledged
}

pub async fn all_ended(client: &Client, at_least: usize) -> Vec<v1::Job> {
    until("all jobs have ended", || async {
        let jobs = client.list().await;
        (jobs.len() >= at_least && jobs.iter().all(|job| job.finished_at_ms > 0)).then_some(jobs)
    })
    .await
}

/// Each job ran once, and the server has its one result and every line of it.
pub async fn check(cluster: &Cluster, jobs: &[v1::Job], acknowledged: &[String]) {
    let stored: HashSet<&str> = jobs.iter().map(|job| job.id.as_str()).collect();
    let lost: Vec<_> = acknowledged.iter().filter(|id| !stored.contains(id.as_str())).collect();
    assert!(lost.is_empty(), "acknowledged and lost: {lost:?}");

    let starts = cluster.home.read(STARTS);
    let mut started: HashMap<&str, Vec<&str>> = HashMap::new();
    for line in starts.lines() {
        let (job, execution) = line.split_once(' ').expect("two ids");
        started.entry(job).or_default().push(execution);
    }
    for job in jobs {
        let [execution] = &job.executions[..] else { panic!("one execution: {job:?}") };
        assert_eq!((job.state(), execution.outcome.as_str()), (JobState::Succeeded, "succeeded"), "{job:?}");
        assert_eq!(started.get(job.id.as_str()), Some(&vec![execution.id.as_str()]), "started once: {job:?}");
        let entries = cluster.log(&job.id).await;
        let numbers: Vec<u64> = entries.iter().map(|entry| entry.number).collect();
        assert_eq!(numbers, (0..execution.log_entries as u64).collect::<Vec<_>>(), "no gap, no repeat: {job:?}");
        assert!(entries.iter().all(|entry| entry.execution_id == execution.id));
        if job.spec.as_ref().is_some_and(|spec| spec.name == "long") {
            assert_eq!(lines(&entries), long_lines());
        } else {
            assert_eq!(text(&entries, false), b"line 1\nline 2\nline 3\n");
            assert_eq!(text(&entries, true), b"oops\n");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_orderly_stop_leaves_jobs_running_and_they_end_under_the_same_execution() {
    // The lease is shorter than the pause: only because it was parked do the jobs live through it.
    let mut cluster = Cluster::with(&["--lease", "1s", "--lease-grace", "500ms"]).await;
    let _worker = cluster.worker("a", &["--slots", "2"]).await;
    let (note, go) = (note_start(&cluster.home), cluster.home.path("go"));
    let script = format!("{note}; echo before; until [ -e {} ]; do sleep 0.05; done; echo after", go.display());
    let id = cluster.queue(shell(script)).await;
    let before = cluster.reached(&id, JobState::Running).await;

    cluster.stop_server().await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    std::fs::write(go, "").expect("a file");
    cluster.start_server().await;

    let after = cluster.ended(&id).await;
    assert_eq!(after.state(), JobState::Succeeded, "{after:?}");
    assert_eq!(after.executions.len(), 1, "{after:?}");
    assert_eq!(after.executions[0].id, before.executions[0].id);
    assert_eq!(lines(&cluster.log(&id).await), ["before", "after"]);
    assert_eq!(cluster.home.read(STARTS).lines().count(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_waits_for_its_time_survives_a_crash() {
    let mut cluster = Cluster::start().await;
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970").as_millis();
    let delayed = v1::JobSpec { run_at_ms: now as i64 + 1500, ..shell("echo now") };
    let delayed = cluster.queue(delayed).await;
    let retry =
        v1::RetryPolicy { max_attempts: Some(2), delay_ms: Some(1500), jitter_percent: Some(0), ..Default::default() };
    let failing = cluster.queue(v1::JobSpec { retry: Some(retry), ..shell("exit $HODEI_ATTEMPT") }).await;
    let _worker = cluster.worker("a", &["--slots", "2"]).await;
    cluster.reached(&failing, JobState::Delayed).await;
    cluster.crash_server().await;

    let job = cluster.ended(&delayed).await;
    assert_eq!(job.state(), JobState::Succeeded);
    assert!(job.started_at_ms >= now as i64 + 1500, "{job:?}");
    let job = cluster.ended(&failing).await;
    let codes: Vec<_> = job.executions.iter().map(|execution| execution.exit_code).collect();
    assert_eq!((job.state(), codes), (JobState::Failed, vec![Some(1), Some(2)]));
    assert!(job.executions[1].assigned_at_ms - job.executions[0].finished_at_ms >= 1400, "{job:?}");
}

/// It used to come back to the very worker that gave it back, for as long as that took to leave.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_interrupted_up_gives_its_job_back_once_and_leaves() {
    let mut cluster = Cluster::up(&["--slots", "2"]).await;
    let id = cluster.queue(shell("sleep 60")).await;
    cluster.reached(&id, JobState::Running).await;
    let began = Instant::now();
    cluster.stop_server().await;
    assert!(began.elapsed() < Duration::from_secs(5), "it left after {:?}", began.elapsed());
    cluster.start_server().await;
    let job = cluster.reached(&id, JobState::Running).await;
    let outcomes: Vec<_> = job.executions.iter().map(|run| (run.attempt, run.outcome.as_str())).collect();
    assert_eq!(outcomes, [(1, "released"), (1, "")], "given back once, and not counted");
}
