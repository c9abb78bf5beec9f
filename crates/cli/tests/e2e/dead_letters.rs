//! Jobs that failed for good: listed, grouped by error, inspected, replayed, discarded.

use crate::{client::shell, cluster::Cluster};
use hodei_api::v1::{self, JobState};
use serde_json::json;
use tonic::Code;

fn once(spec: v1::JobSpec) -> v1::JobSpec {
    v1::JobSpec { retry: Some(v1::RetryPolicy { max_attempts: Some(1), ..Default::default() }), ..spec }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_letters_are_listed_grouped_replayed_and_discarded() {
    let mut cluster = Cluster::up(&["--slots", "4"]).await;
    let mended = cluster.home.path("mended");
    let script = format!("echo why it failed >&2; test -e {} || exit 3", mended.display());
    let mut dead = Vec::new();
    for n in 0..5 {
        let queue = if n < 3 { "a" } else { "b" };
        dead.push(cluster.queue(v1::JobSpec { queue: queue.into(), ..once(shell(&script)) }).await);
    }
    let slow = v1::Timeouts { run_ms: Some(100), ..Default::default() };
    let late = cluster.queue(v1::JobSpec { timeouts: Some(slow), ..once(shell("sleep 100")) }).await;
    for id in &dead {
        assert_eq!(cluster.ended(id).await.state(), JobState::Failed);
    }
    assert_eq!(cluster.ended(&late).await.state(), JobState::TimedOut);
    cluster.queue(shell("true")).await;

    let list = async |cluster: &Cluster, flags: &[&str]| {
        let args = [&["dlq", "list", "--json"], flags].concat();
        cluster.hodei(&args).await.ok().json().as_array().expect("a list").clone()
    };
    assert_eq!(list(&cluster, &[]).await.len(), 6);
    assert_eq!(list(&cluster, &["--queue", "b"]).await.len(), 2);
    assert_eq!(list(&cluster, &["--kind", "run_timeout"]).await[0]["job_id"], json!(late));
    let stats = cluster.hodei(&["dlq", "stats", "--json"]).await.ok().json();
    assert_eq!((&stats["total"], &stats["groups"][0]["count"]), (&json!(6), &json!(5)));
    let group = stats["groups"][0]["fingerprint"].as_str().expect("a group").to_owned();
    assert_eq!(list(&cluster, &["--group", &group]).await.len(), 5);

    let one = cluster.hodei(&["dlq", "get", &dead[0], "--json"]).await.ok().json();
    assert_eq!(one["error"], json!("exited with code 3"));
    assert_eq!(one["attempts"], json!(1));
    assert!(one["detail"].as_str().is_some_and(|detail| detail.contains("why it failed")), "{one}");
    assert_eq!(one["job"]["state"], json!("failed"));

    let nothing = cluster.hodei(&["dlq", "replay"]).await;
    assert!(nothing.code != 0 && nothing.stderr.contains("ask for all"), "{nothing:?}");
    cluster.hodei(&["dlq", "discard", &dead[0]]).await.ok();
    for (command, id) in [("discard", dead[0].as_str()), ("replay", "01890000-0000-7000-8000-000000000000")] {
        let gone = cluster.hodei(&["dlq", command, id]).await;
        assert!(gone.code == 125 && gone.stderr.contains("none of the jobs named is a dead letter"), "{gone:?}");
    }
    assert_eq!(list(&cluster, &[]).await.len(), 5);
    assert_eq!(cluster.job(&dead[0]).await.state(), JobState::Failed, "the job itself stays");
    let status = cluster.dead_letters().get_dead_letter(v1::GetDeadLetterRequest { job_id: dead[0].clone() }).await;
    assert_eq!(status.expect_err("it is not there").code(), Code::NotFound);

    // What is known of them survives a crash, and those that succeed at last are gone from the list.
    cluster.home.write("mended", "");
    cluster.crash_server().await;
    assert_eq!(list(&cluster, &[]).await.len(), 5);
    let replayed = cluster.hodei(&["dlq", "replay", "--group", &group, "--json"]).await.ok();
    assert_eq!(replayed.json(), json!({ "replayed": 4 }));
    for id in &dead[1..] {
        assert_eq!(cluster.ended(id).await.state(), JobState::Succeeded);
    }
    let left = list(&cluster, &[]).await;
    assert_eq!(left.len(), 1, "{left:?}");
    let stats = cluster.hodei(&["dlq", "stats", "--json"]).await.ok().json();
    assert_eq!(stats["groups"].as_array().map(Vec::len), Some(1), "{stats}");
}
