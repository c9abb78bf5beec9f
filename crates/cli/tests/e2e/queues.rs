//! Steering queues: pause, limits, rate, ageing; finding and cancelling jobs by more than their ids.

use crate::{
    client::shell,
    cluster::Cluster,
    process::{until, until_true},
};
use hodei_api::v1::{self, JobState};
use serde_json::json;

fn in_queue(queue: &str, script: &str) -> v1::JobSpec {
    v1::JobSpec { queue: queue.into(), ..shell(script) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_paused_queue_starts_nothing_and_hides_nothing() {
    let mut cluster = Cluster::start().await;
    cluster.hodei(&["queue", "pause", "mail"]).await.ok();
    let held = cluster.queue(in_queue("mail", "true")).await;
    let free = cluster.queue(in_queue("other", "true")).await;
    let worker = cluster.worker("one", &["--slots", "1"]).await;
    assert_eq!(cluster.ended(&free).await.state(), JobState::Succeeded);
    assert_eq!(cluster.job(&held).await.state(), JobState::Pending);
    assert!(
        cluster.job(&held).await.waiting_reason.contains("paused"),
        "{:?}",
        cluster.job(&held).await.waiting_reason
    );
    cluster.crash_server().await;
    cluster.connected(&worker.id).await;
    let other = cluster.queue(in_queue("other", "true")).await;
    assert_eq!(cluster.ended(&other).await.state(), JobState::Succeeded);
    assert_eq!(cluster.job(&held).await.state(), JobState::Pending, "it is paused over a restart, too");
    let shown = cluster.hodei(&["queue", "get", "mail", "--json"]).await.ok().json();
    assert_eq!((&shown["paused"], &shown["counts"]), (&json!(true), &json!({ "pending": 1 })));
    cluster.hodei(&["queue", "resume", "mail"]).await.ok();
    assert_eq!(cluster.ended(&held).await.state(), JobState::Succeeded);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits_of_keys_and_queues_are_never_exceeded() {
    let cluster = Cluster::up(&["--slots", "8"]).await;
    let log = cluster.home.path("log");
    let script = |kind: &str| format!("echo + {kind} >> {0}; sleep 0.1; echo - {kind} >> {0}", log.display());
    cluster.hodei(&["queue", "set", "narrow", "--concurrency", "2"]).await.ok();
    let mut ids = Vec::new();
    for _ in 0..8 {
        let concurrency = Some(v1::Concurrency { key: "customer".into(), limit: 1 });
        ids.push(cluster.queue(v1::JobSpec { concurrency, ..shell(script("key")) }).await);
        ids.push(cluster.queue(in_queue("narrow", &script("queue"))).await);
    }
    for id in &ids {
        assert_eq!(cluster.ended(id).await.state(), JobState::Succeeded);
    }
    for (kind, limit) in [("key", 1), ("queue", 2)] {
        let (mut running, mut most) = (0i32, 0);
        for line in cluster.home.read("log").lines().filter(|line| line.ends_with(kind)) {
            running += if line.starts_with('+') { 1 } else { -1 };
            most = most.max(running);
        }
        assert_eq!(most, limit, "{kind}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_queue_takes_no_more_until_jobs_of_it_have_ended() {
    let mut cluster = Cluster::start().await;
    cluster.hodei(&["queue", "set", "small", "--max-jobs", "2"]).await.ok();
    let submit = ["job", "submit", "--queue", "small", "--key", "one", "--", "true"];
    cluster.hodei(&submit).await.ok();
    cluster.queue(v1::JobSpec { run_at_ms: 4_102_444_800_000, ..in_queue("small", "true") }).await;
    let refused = cluster.hodei(&["job", "submit", "--queue", "small", "--", "true"]).await;
    assert!(refused.code != 0 && refused.stderr.contains("'small' is full: 2 of at most 2"), "{refused:?}");
    cluster.hodei(&submit).await.ok();
    // All or none, and other queues have room.
    let batch =
        r#"{"jobs": {"a": {"shell": {"program": "true"}}, "b": {"queue": "small", "shell": {"program": "true"}}}}"#;
    let batch = cluster.home.write("batch.yaml", batch);
    let refused = cluster.hodei(&["job", "submit", "-f", &batch.display().to_string()]).await;
    assert!(refused.code != 0 && refused.stderr.contains("hodei queue set small --max-jobs"), "{refused:?}");
    let counts = cluster.hodei(&["queue", "list", "--json"]).await.ok().json();
    assert_eq!(counts.as_array().map(Vec::len), Some(1), "{counts}");
    cluster.crash_server().await;
    let refused = cluster.hodei(&["job", "submit", "--queue", "small", "--", "true"]).await;
    assert!(refused.code != 0 && refused.stderr.contains("is full"), "over a restart, too: {refused:?}");
    let _worker = cluster.worker("one", &["--slots", "1"]).await;
    until("there is room", || async {
        let submitted = cluster.hodei(&["job", "submit", "--queue", "small", "--", "true"]).await;
        (submitted.code == 0).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rate_spreads_starts_over_time() {
    let cluster = Cluster::up(&["--slots", "8"]).await;
    cluster.hodei(&["queue", "set", "slow", "--rate", "3/1s"]).await.ok();
    let mut ids = Vec::new();
    for _ in 0..7 {
        ids.push(cluster.queue(in_queue("slow", "true")).await);
    }
    let mut starts = Vec::new();
    for id in &ids {
        starts.push(cluster.ended(id).await.executions[0].assigned_at_ms);
    }
    starts.sort_unstable();
    for (first, fourth) in starts.iter().zip(&starts[3..]) {
        assert!(fourth - first >= 1000, "{starts:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn old_jobs_rise_where_their_queue_lets_them_age() {
    let cluster = Cluster::start().await;
    cluster.hodei(&["queue", "set", "ageing", "--ageing", "1s"]).await.ok();
    let order = cluster.home.path("order");
    let note = |name: &str| format!("echo {name} >> {}", order.display());
    let low = v1::JobSpec { priority: v1::Priority::Low.into(), ..in_queue("ageing", &note("old")) };
    cluster.queue(low).await;
    tokio::time::sleep(std::time::Duration::from_millis(2200)).await;
    cluster.queue(v1::JobSpec { priority: v1::Priority::Normal.into(), ..in_queue("ageing", &note("new")) }).await;
    let _worker = cluster.worker("one", &["--slots", "1"]).await;
    until_true("both have run", || cluster.home.read("order").lines().count() == 2).await;
    assert_eq!(cluster.home.read("order").split_whitespace().collect::<Vec<_>>(), ["old", "new"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_are_found_and_cancelled_by_what_they_are() {
    let cluster = Cluster::start().await;
    for n in 0..3 {
        cluster.queue(v1::JobSpec { tags: vec!["nightly".into()], ..in_queue("a", "true") }).await;
        cluster.queue(v1::JobSpec { tags: vec![format!("n{n}")], ..in_queue("b", "true") }).await;
    }
    let found = async |flags: &[&str]| {
        let args = [&["job", "list", "--json"], flags].concat();
        cluster.hodei(&args).await.ok().json().as_array().expect("a list").len()
    };
    assert_eq!(found(&["--tag", "nightly"]).await, 3);
    assert_eq!(found(&["--queue", "b", "--tag", "n1"]).await, 1);
    assert_eq!(found(&["--queue", "b", "--state", "succeeded"]).await, 0);
    let none = cluster.hodei(&["job", "cancel"]).await;
    assert!(none.code != 0 && none.stderr.contains("ID"), "{none:?}");
    let ran = cluster.hodei(&["job", "cancel", "--tag", "nightly", "--json"]).await.ok();
    assert_eq!(ran.json(), json!({ "cancelled": 3 }));
    assert_eq!(found(&["--state", "cancelled"]).await, 3);
    assert_eq!(found(&["--state", "pending"]).await, 3);
    let counts = cluster.hodei(&["queue", "list", "--json"]).await.ok().json();
    assert_eq!(counts[0]["counts"], json!({ "cancelled": 3 }));
    assert_eq!(counts[1]["counts"], json!({ "pending": 3 }));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn finished_jobs_are_dropped_after_the_set_time() {
    let home = crate::process::Home::new();
    let config = home.write("config.toml", "[server]\nretention = \"1s\"\n");
    let cluster = Cluster::up(&["--config", &config.display().to_string()]).await;
    let done = cluster.queue(shell("echo hello")).await;
    let live = cluster.queue(shell("sleep 1000")).await;
    let retry = Some(v1::RetryPolicy { max_attempts: Some(1), ..Default::default() });
    let failed = cluster.queue(v1::JobSpec { retry, ..shell("false") }).await;
    let on_dependency_failure = v1::OnDependencyFailure::Wait.into();
    let depends_on = vec![failed.clone()];
    let waits = cluster.queue(v1::JobSpec { depends_on, on_dependency_failure, ..shell("true") }).await;
    assert_eq!(cluster.ended(&failed).await.state(), JobState::Failed);
    until("it is gone", || async { cluster.find(&done).await.is_none().then_some(()) }).await;
    assert_eq!(cluster.job(&live).await.state(), JobState::Running);
    let counts = cluster.hodei(&["queue", "get", "default", "--json"]).await.ok().json()["counts"].clone();
    assert_eq!(counts, json!({ "failed": 1, "running": 1, "waiting": 1 }), "somebody waits for a better end");
    cluster.hodei(&["job", "cancel", &waits]).await.ok();
    until("nobody waits for it", || async { cluster.find(&failed).await.is_none().then_some(()) }).await;
}
