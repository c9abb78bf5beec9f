//! Jobs that depend on each other.

use crate::{
    client::{Client, shell},
    cluster::Cluster,
    process::{until, until_true},
};
use hodei_api::v1::{self, JobState, OnDependencyFailure};
use serde_json::json;
use tonic::Code;

/// A job with a name that others know it by.
fn named(name: &str, after: &[&str], script: &str) -> v1::JobSpec {
    v1::JobSpec {
        name: name.into(),
        local_name: name.into(),
        depends_on: after.iter().map(|name| (*name).into()).collect(),
        ..once(shell(script))
    }
}

fn once(spec: v1::JobSpec) -> v1::JobSpec {
    v1::JobSpec { retry: Some(v1::RetryPolicy { max_attempts: Some(1), ..Default::default() }), ..spec }
}

fn policy(spec: v1::JobSpec, policy: OnDependencyFailure) -> v1::JobSpec {
    v1::JobSpec { on_dependency_failure: policy.into(), ..spec }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_graph_from_a_file_runs_in_order_and_passes_results_on() {
    let cluster = Cluster::up(&["--slots", "4"]).await;
    let order = cluster.home.path("order");
    let note = |name: &str| format!("echo {name} >> {}", order.display());
    let yaml = format!(
        "defaults: {{queue: etl}}
jobs:
  load:
    depends_on: [left, right]
    shell: {{program: sh, args: [-c, '{}; cat $HODEI_DEPENDENCIES']}}
  extract: {{shell: {{program: sh, args: [-c, '{}; echo 7 > $HODEI_RESULT']}}}}
  left: {{depends_on: [extract], shell: {{program: sh, args: [-c, '{}; echo 1 > $HODEI_RESULT']}}}}
  right: {{depends_on: [extract], shell: {{program: sh, args: [-c, '{}']}}}}
",
        note("load"),
        note("extract"),
        note("side"),
        note("side"),
    );
    let file = cluster.home.write("graph.yaml", yaml);
    let ran = cluster.hodei(&["job", "submit", "-f", &file.display().to_string(), "--json"]).await.ok();
    let ids = ran.json()["jobs"].clone();
    let id = |name: &str| ids[name].as_str().expect("an id").to_owned();
    assert_eq!(cluster.ended(&id("load")).await.state(), JobState::Succeeded);
    assert_eq!(cluster.home.read("order").split_whitespace().collect::<Vec<_>>(), ["extract", "side", "side", "load"]);
    let printed = cluster.hodei(&["logs", &id("load")]).await.ok();
    let left: serde_json::Value = serde_json::from_str(printed.text()).expect("JSON");
    let wanted = json!([
        { "id": id("left"), "name": "left", "result": 1 },
        { "id": id("right"), "name": "right", "result": null },
    ]);
    assert_eq!(left, wanted);
    assert_eq!(cluster.job(&id("load")).await.spec.expect("a spec").queue, "etl");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_follows_a_failed_dependency_is_as_asked() {
    let cluster = Cluster::up(&["--slots", "4"]).await;
    let mended = cluster.home.path("mended");
    let jobs = vec![
        named("bad", &[], &format!("test -e {}", mended.display())),
        named("cancels", &["bad"], "true"),
        named("follows", &["cancels"], "true"),
        policy(named("waits", &["bad"], "true"), OnDependencyFailure::Wait),
        policy(named("runs", &["bad"], "true"), OnDependencyFailure::Run),
    ];
    let ids = cluster.queue_all(jobs).await.expect("a graph");
    let [bad, cancels, follows, waits, runs] = &ids[..] else { panic!("five jobs") };
    assert_eq!(cluster.ended(bad).await.state(), JobState::Failed);
    assert_eq!(cluster.ended(runs).await.state(), JobState::Succeeded);
    let cancelled = cluster.ended(cancels).await;
    assert_eq!(cancelled.state(), JobState::Cancelled);
    assert_eq!(cancelled.cancel_reason, Some(format!("{bad}, which it depends on, has failed")));
    assert_eq!(cluster.ended(follows).await.state(), JobState::Cancelled);
    let waiting = cluster.job(waits).await;
    assert_eq!((waiting.state(), waiting.dependencies_left), (JobState::Waiting, 1));
    assert_eq!(waiting.waiting_reason, "waits for 1 job that it depends on");

    // A replay frees the one that waits, and a cancelled one that is tried again waits for what it needs.
    cluster.home.write("mended", "");
    assert_eq!(cluster.hodei(&["job", "retry", follows]).await.ok().text().trim(), "waiting");
    assert_eq!(cluster.hodei(&["dlq", "replay", bad]).await.ok().text().trim(), "replayed 1");
    assert_eq!(cluster.ended(waits).await.state(), JobState::Succeeded);
    assert_eq!(cluster.job(follows).await.state(), JobState::Waiting);
    cluster.hodei(&["job", "retry", cancels]).await.ok();
    assert_eq!(cluster.ended(follows).await.state(), JobState::Succeeded);
    assert_eq!(cluster.job(runs).await.attempt, 1, "what ran already does not run again");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_is_sent_to_wait_for_what_is_no_longer_kept() {
    let cluster = Cluster::up_with("[server]\nretention = \"1s\"\n").await;
    let jobs = vec![
        named("bad", &[], "false"),
        named("cancelled", &["bad"], "true"),
        // It keeps the one before it, which would go the way of the first otherwise.
        policy(named("waits", &["cancelled"], "true"), OnDependencyFailure::Wait),
    ];
    let ids = cluster.queue_all(jobs).await.expect("a graph");
    let [bad, cancelled, waits] = &ids[..] else { panic!("three jobs") };
    assert_eq!(cluster.ended(cancelled).await.state(), JobState::Cancelled);
    until("it is gone", || async { cluster.find(bad).await.is_none().then_some(()) }).await;
    let refused = cluster.hodei(&["job", "retry", cancelled]).await;
    assert_ne!(refused.code, 0, "{refused:?}");
    assert!(refused.stderr.contains("it waits for a job that did not succeed and is no longer kept"), "{refused:?}");
    assert_eq!(cluster.job(cancelled).await.state(), JobState::Cancelled);
    assert_eq!(cluster.job(waits).await.state(), JobState::Waiting);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_graph_that_makes_no_sense_is_refused_whole() {
    let cluster = Cluster::start().await;
    let refused = async |jobs: Vec<v1::JobSpec>| {
        let status = cluster.queue_all(jobs).await.expect_err("must be refused");
        assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
        status.message().to_owned()
    };
    let cycle = vec![named("a", &["c"], "true"), named("b", &["a"], "true"), named("c", &["b"], "true")];
    assert!(refused(cycle).await.contains("depends on itself through others"));
    let own = refused(vec![named("x", &[], "true"), named("a", &["a"], "true")]).await;
    assert_eq!(own, "jobs[1].depends_on: 'a' depends on itself");
    let odd = refused(vec![named("a", &["nobody"], "true")]).await;
    assert!(odd.starts_with("jobs[0].depends_on: 'nobody' is neither a job id"), "{odd}");
    let twice = refused(vec![named("a", &[], "true"), named("a", &[], "true")]).await;
    assert!(twice.starts_with("jobs[1].local_name: 'a' is the name of another job"), "{twice}");
    let unknown = "01890000-0000-7000-8000-000000000000";
    assert_eq!(refused(vec![named("a", &[unknown], "true")]).await, format!("depends_on: there is no job {unknown}"));
    assert_eq!(cluster.list().await, Vec::new(), "nothing was stored");
}

/// As many as one call may bring.
const MANY: usize = 10_000;

/// A task for the worker that has nothing to do with it.
fn idle(name: String, after: Vec<String>) -> v1::JobSpec {
    let task = v1::TaskWork { r#type: "nothing".into(), payload: Vec::new() };
    v1::JobSpec {
        local_name: name.clone(),
        depends_on: after,
        name,
        work: Some(v1::Work { kind: Some(v1::work::Kind::Task(task)) }),
        ..Default::default()
    }
}

/// Waits until so many jobs are in each state, and no others are there.
async fn all_end(cluster: &Cluster, wanted: &serde_json::Value) {
    until("the others are done", || async {
        let counts = cluster.hodei(&["queue", "get", "default", "--json"]).await.ok().json()["counts"].clone();
        (counts == *wanted).then_some(())
    })
    .await;
}

/// The first part of it runs, link by link, and the rest falls with the link that fails.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_chain_of_ten_thousand_ends() {
    const RUNS: usize = 2500;
    let cluster = Cluster::start().await;
    let link = |n: usize| {
        let job = idle(format!("c{n}"), (n > 0).then(|| format!("c{}", n - 1)).into_iter().collect());
        if n == RUNS { once(v1::JobSpec { work: once(shell("false")).work, ..job }) } else { job }
    };
    let chain = cluster.queue_all((0..MANY).map(link).collect()).await.expect("a chain");
    let _breaks = cluster.worker("breaks", &["--slots", "1"]).await;
    let worker = cluster.sdk_noop("chain").await;
    assert_eq!(cluster.ended(&chain[MANY - 1]).await.state(), JobState::Cancelled);
    let ended = json!({ "succeeded": RUNS, "failed": 1, "cancelled": MANY - RUNS - 1 });
    all_end(&cluster, &ended).await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fan_of_ten_thousand_ends_wherever_it_is_wide() {
    let cluster = Cluster::start().await;
    let wide = (1..MANY).map(|n| idle(format!("w{n}"), vec!["first".into()]));
    let fan = std::iter::once(idle("first".into(), Vec::new())).chain(wide);
    let all = cluster.queue_all(fan.collect()).await.expect("one, and those that wait for it");
    let last = cluster.queue_all(vec![idle("last".into(), all)]).await.expect("one that waits for all")[0].clone();
    let worker = cluster.sdk_noop("fan").await;
    assert_eq!(cluster.ended(&last).await.state(), JobState::Succeeded);
    all_end(&cluster, &json!({ "succeeded": MANY + 1 })).await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_graph_survives_its_server() {
    let mut cluster = Cluster::start().await;
    let _worker = cluster.worker("steady", &["--slots", "4"]).await;
    let ran = cluster.home.path("ran");
    let script = |name: &str| format!("echo {name} >> {}; sleep 0.05", ran.display());
    let jobs = (0..40).map(|n: usize| {
        let after: Vec<String> =
            [1, 3].iter().filter(|back| n >= **back).map(|back| format!("j{}", n - back)).collect();
        let after: Vec<&str> = after.iter().map(String::as_str).collect();
        named(&format!("j{n}"), &after, &script(&format!("j{n}")))
    });
    let ids = cluster.queue_all(jobs.collect()).await.expect("a graph");
    for lines in [3, 12, 25] {
        until_true("some have run", || cluster.home.read("ran").lines().count() >= lines).await;
        cluster.crash_server().await;
    }
    let client: &Client = &cluster;
    assert_eq!(client.ended(&ids[39]).await.state(), JobState::Succeeded);
    let order: Vec<String> = cluster.home.read("ran").lines().map(str::to_owned).collect();
    let mut first: Vec<&String> = Vec::new();
    order.iter().for_each(|name| {
        if !first.contains(&name) {
            first.push(name)
        }
    });
    let wanted: Vec<String> = (0..40).map(|n| format!("j{n}")).collect();
    assert_eq!(first, wanted.iter().collect::<Vec<_>>(), "none began before what it depends on had ended");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_is_one_job_however_often_it_is_submitted() {
    let mut cluster = Cluster::start().await;
    let submit = async |cluster: &Cluster, key: &str| {
        let ran = cluster.hodei(&["job", "submit", "--key", key, "--", "true"]).await.ok();
        ran.text().trim().to_owned()
    };
    let first = submit(&cluster, "invoice-7").await;
    assert_eq!(submit(&cluster, "invoice-7").await, first);
    assert_ne!(submit(&cluster, "invoice-8").await, first);
    cluster.crash_server().await;
    assert_eq!(submit(&cluster, "invoice-7").await, first);
    let both = vec![
        v1::JobSpec { idempotency_key: "invoice-7".into(), ..shell("true") },
        v1::JobSpec { idempotency_key: "invoice-9".into(), ..shell("true") },
        v1::JobSpec { idempotency_key: "invoice-9".into(), ..shell("true") },
    ];
    let answer = cluster.jobs().queue_jobs(v1::QueueJobsRequest { jobs: both }).await.expect("taken").into_inner();
    assert_eq!(answer.existed, [0, 2]);
    assert_eq!(answer.job_ids[0], first);
    assert_eq!(answer.job_ids[1], answer.job_ids[2]);
    assert_eq!(cluster.list().await.len(), 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_jobs_come_from_lines_of_json_and_a_wrong_line_is_named() {
    let cluster = Cluster::start().await;
    let lines: String =
        (0..2500).map(|n| format!("{{\"name\": \"n{n}\", \"shell\": {{\"program\": \"true\"}}}}\n")).collect();
    let file = cluster.home.write("jobs.jsonl", &lines);
    let ran = cluster.hodei(&["job", "submit", "-f", &file.display().to_string(), "--json"]).await.ok();
    let told = ran.json();
    assert_eq!((&told["stored"], &told["existed"]), (&json!(2500), &json!(0)));
    let ids = told["job_ids"].as_array().expect("ids");
    assert_eq!(
        (ids.len(), cluster.job(ids[1234].as_str().expect("an id")).await.spec.expect("a spec").name),
        (2500, "n1234".into())
    );
    assert_eq!(cluster.list().await.len(), 2500);
    let odd = format!("{}{{\"shel\": 1}}\n", lines.lines().take(3).map(|line| format!("{line}\n")).collect::<String>());
    let file = cluster.home.write("odd.jsonl", odd);
    let ran = cluster.hodei(&["job", "submit", "-f", &file.display().to_string()]).await;
    assert_eq!(ran.code, 125, "{ran:?}");
    assert!(ran.stderr.contains("line 4: shel: there is no such field"), "{ran:?}");
    assert_eq!(ran.text().lines().count(), 3, "an id a line: {ran:?}");
    assert_eq!(cluster.list().await.len(), 2503, "the three before it are stored");
}
