//! Jobs in the queue: order, capacity, retries, and the commands that inspect and steer them.

use crate::{
    client::{Client, shell},
    cluster::Cluster,
    process::{until, until_true},
};
use hodei_api::v1::{self, JobState};
use serde_json::{Value, json};
use std::time::Instant;
use tonic::{Code, client::Grpc, codegen::http::uri::PathAndQuery};
use tonic_prost::ProstCodec;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn higher_priorities_go_first_and_equals_in_order() {
    let cluster = Cluster::start().await;
    let order = cluster.home.path("order");
    for (name, priority) in [
        ("n1", "normal"),
        ("l1", "low"),
        ("c1", "critical"),
        ("h1", "high"),
        ("n2", "normal"),
        ("c2", "critical"),
        ("l2", "low"),
        ("h2", "high"),
    ] {
        let script = format!("echo {name} >> {}", order.display());
        cluster.hodei(&["job", "submit", "--priority", priority, "--", "sh", "-c", &script]).await.ok();
    }
    let _worker = cluster.worker("single", &["--slots", "1"]).await;
    until_true("all have run", || cluster.home.read("order").lines().count() == 8).await;
    assert_eq!(cluster.home.read("order").split_whitespace().collect::<String>(), "c1c2h1h2n1n2l1l2");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reservations_never_exceed_a_worker_and_a_job_too_large_says_why_it_waits() {
    let cluster = Cluster::start().await;
    let _worker = cluster.worker("small", &["--slots", "4", "--cpu", "1", "--memory", "100MiB"]).await;
    let times = cluster.home.path("times");
    // The two that ask for cpu, and the two that ask for memory, never fit beside each other.
    for (flag, amount) in [("--cpu", "0.6"), ("--cpu", "0.6"), ("--memory", "60MiB"), ("--memory", "60MiB")] {
        let kind = flag.trim_start_matches('-');
        let script = format!("echo {kind} begin >> {0}; sleep 0.3; echo {kind} end >> {0}", times.display());
        cluster.hodei(&["job", "submit", flag, amount, "--", "sh", "-c", &script]).await.ok();
    }
    let huge = cluster.hodei(&["job", "submit", "--cpu", "64", "--", "true"]).await.ok();
    let huge = huge.text().trim();
    until_true("all four have run", || cluster.home.read("times").lines().count() == 8).await;
    let log = cluster.home.read("times");
    for kind in ["cpu", "memory"] {
        let steps: Vec<_> = log.lines().filter_map(|line| line.strip_prefix(kind)).collect();
        assert_eq!(steps, [" begin", " end", " begin", " end"], "{log}");
    }
    let order: Vec<_> = log.lines().take(2).collect();
    assert_eq!(order, ["cpu begin", "memory begin"], "what fits runs side by side: {log}");

    assert_eq!(cluster.job(huge).await.state(), JobState::Pending);
    let shown = cluster.hodei(&["job", "get", huge]).await.ok();
    assert!(shown.text().contains("no connected worker is large enough"), "{shown:?}");
    let _large = cluster.worker("large", &["--slots", "1", "--cpu", "64"]).await;
    assert_eq!(cluster.ended(huge).await.state(), JobState::Succeeded);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiting_job_says_why() {
    let cluster = Cluster::start().await;
    let id = cluster.queue(shell("true")).await;
    assert_eq!(cluster.job(&id).await.waiting_reason, "no worker is connected");
    let later = cluster.hodei(&["job", "submit", "--delay", "1h", "--", "true"]).await.ok();
    let shown = cluster.hodei(&["job", "get", later.text().trim()]).await.ok();
    assert!(shown.text().contains("waits for its time"), "{shown:?}");
    let _worker = cluster.worker("busy", &["--slots", "1"]).await;
    assert_eq!(cluster.ended(&id).await.state(), JobState::Succeeded);
    let blocker = cluster.queue(shell("sleep 1000")).await;
    cluster.reached(&blocker, JobState::Running).await;
    let id = cluster.queue(shell("true")).await;
    assert_eq!(cluster.job(&id).await.waiting_reason, "every worker that fits is busy");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failures_are_retried_as_often_and_as_late_as_asked() {
    let cluster = Cluster::up(&["--slots", "4"]).await;
    let submit = async |flags: &[&str]| {
        let args = [&["job", "submit"], flags, &["--", "sh", "-c", "exit 7"]].concat();
        cluster.hodei(&args).await.ok().text().trim().to_owned()
    };
    let fixed = submit(&["--max-attempts", "3", "--retry-delay", "300ms", "--backoff", "fixed"]).await;
    let exponential = submit(&["--max-attempts", "3", "--retry-delay", "300ms", "--backoff", "exponential"]).await;
    let quadratic = submit(&["--max-attempts", "2", "--retry-delay", "200ms", "--backoff", "quadratic"]).await;
    let once = submit(&["--max-attempts", "1"]).await;
    // Up to a tenth of the delay is jitter; what comes on top is the machine's.
    for (id, delays) in [(fixed, vec![270, 270]), (exponential, vec![270, 540]), (quadratic, vec![720]), (once, vec![])]
    {
        let job = cluster.ended(&id).await;
        assert_eq!((job.state(), job.executions.len()), (JobState::Failed, delays.len() + 1), "{job:?}");
        assert!(job.executions.iter().all(|execution| execution.exit_code == Some(7)));
        for (pair, least) in job.executions.windows(2).zip(&delays) {
            let waited = pair[1].assigned_at_ms - pair[0].finished_at_ms;
            assert!((*least..least + 1500).contains(&waited), "waited {waited} ms, not {least}: {job:?}");
        }
    }
    let timed_out = cluster.hodei(&[
        "run",
        "--timeout",
        "100ms",
        "--max-attempts",
        "2",
        "--retry-delay",
        "50ms",
        "--",
        "sleep",
        "9",
    ]);
    assert_eq!(timed_out.await.code, 124);
    let job = cluster.list().await[0].clone();
    let kinds: Vec<_> = job.executions.iter().map(|execution| execution.failure_kind.as_str()).collect();
    assert_eq!((job.state(), kinds), (JobState::TimedOut, vec!["run_timeout", "run_timeout"]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_waits_too_long_times_out() {
    let cluster = Cluster::start().await;
    let ran = cluster.hodei(&["run", "--queue-timeout", "200ms", "--", "true"]).await;
    assert_eq!(ran.code, 124, "{ran:?}");
    assert!(ran.stderr.contains("waited in the queue"), "{ran:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_are_submitted_listed_shown_cancelled_retried_and_waited_for() {
    let cluster = Cluster::up(&["--slots", "2"]).await;
    let submit = async |flags: &[&str], script: &str| {
        let args = [&["job", "submit"], flags, &["--", "sh", "-c", script]].concat();
        cluster.hodei(&args).await.ok().text().trim().to_owned()
    };
    let good = submit(&["--name", "good", "--queue", "blue"], "echo fine").await;
    let bad = submit(&["--name", "bad", "--max-attempts", "1"], "[ -e retried ] || exit 5").await;
    let later = submit(&["--name", "later", "--delay", "1h", "--queue", "blue"], "true").await;

    assert_eq!(cluster.hodei(&["job", "wait", &good]).await.ok().text(), "succeeded\n");
    let waited = cluster.hodei(&["job", "wait", "--json", &bad]).await;
    assert_eq!((waited.code, &waited.json()["state"]), (5, &json!("failed")));
    let gave_up = cluster.hodei(&["job", "wait", "--timeout", "100ms", &later]).await;
    assert_eq!(gave_up.code, 125, "{gave_up:?}");

    let list = async |flags: &[&str]| -> Vec<Value> {
        let jobs = cluster.hodei(&[&["job", "list", "--json"], flags].concat()).await.ok().json();
        jobs.as_array().expect("a list").iter().map(|job| job["name"].clone()).collect()
    };
    assert_eq!(list(&[]).await, ["later", "bad", "good"]);
    assert_eq!(list(&["--queue", "blue"]).await, ["later", "good"]);
    assert_eq!(list(&["--state", "failed"]).await, ["bad"]);
    assert_eq!(list(&["--state", "failed", "--state", "delayed"]).await, ["later", "bad"]);
    assert_eq!(list(&["--state", "running"]).await, Vec::<Value>::new());
    assert_eq!(list(&["--limit", "1"]).await, ["later"]);
    let table = cluster.hodei(&["job", "list"]).await.ok();
    assert!(table.text().lines().any(|line| line.starts_with(&good) && line.contains("succeeded")), "{table:?}");

    assert_eq!(cluster.hodei(&["job", "cancel", &later]).await.ok().text(), "cancelled\n");
    assert_eq!(cluster.hodei(&["job", "cancel", &later]).await.code, 125, "it is cancelled already");
    assert_eq!(cluster.cancel(&good).await.expect_err("it has ended").code(), Code::FailedPrecondition);
    let shown = cluster.hodei(&["job", "get", &later, "--json"]).await.ok().json();
    assert_eq!((&shown["state"], &shown["executions"]), (&json!("cancelled"), &json!([])));

    let refused = cluster.hodei(&["job", "retry", &good]).await;
    assert_eq!(refused.code, 125, "a success is not retried: {refused:?}");
    assert_eq!(cluster.hodei(&["job", "retry", &bad]).await.ok().text(), "pending\n");
    let again = cluster.ended(&bad).await;
    assert_eq!((again.state(), again.attempt, again.executions.len()), (JobState::Failed, 1, 2), "{again:?}");
    assert_eq!(cluster.hodei(&["job", "wait", &good]).await.code, 0, "an end can be waited for after it");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_cancelled_before_it_runs_never_starts() {
    let cluster = Cluster::start().await;
    let pending = cluster.queue(shell("true")).await;
    let spec = v1::JobSpec { run_at_ms: i64::MAX / 2, ..shell("true") };
    let delayed = cluster.queue(spec).await;
    for id in [pending, delayed] {
        assert_eq!(cluster.cancel(&id).await.expect("a live job"), JobState::Cancelled);
        let job = cluster.job(&id).await;
        assert_eq!((job.executions.len(), job.cancel_reason.as_deref()), (0, Some("a test wants it")));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watching_shows_every_state_up_to_the_end() {
    let cluster = Cluster::start().await;
    let go = cluster.home.path("go");
    let id = cluster.queue(shell(format!("until [ -e {} ]; do sleep 0.02; done", go.display()))).await;
    let request = v1::WatchJobRequest { job_id: id.clone() };
    let mut changes = cluster.jobs().watch_job(request.clone()).await.expect("a watch").into_inner();
    let mut states = Vec::new();
    let _worker = cluster.worker("a", &["--slots", "1"]).await;
    while let Some(change) = changes.message().await.expect("a healthy watch") {
        let state = change.job.expect("a job").state();
        if state == JobState::Running && !go.exists() {
            std::fs::write(&go, "").expect("a file");
        }
        states.push(state);
    }
    states.dedup();
    assert_eq!(states, [JobState::Pending, JobState::Scheduled, JobState::Running, JobState::Succeeded]);
    let mut late = cluster.jobs().watch_job(request).await.expect("a watch").into_inner();
    let only = late.message().await.expect("a healthy watch").and_then(|change| change.job).expect("a job");
    assert_eq!(only.state(), JobState::Succeeded);
    assert!(late.message().await.expect("a healthy watch").is_none(), "a watch ends with the job");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_hold_every_job_once() {
    let cluster = Cluster::start().await;
    let jobs = vec![shell("true"); 25];
    let ids = cluster.jobs().queue_jobs(v1::QueueJobsRequest { jobs }).await.expect("jobs").into_inner().job_ids;
    let mut seen = Vec::new();
    let mut page_token = String::new();
    loop {
        let request = v1::ListJobsRequest { page_size: 10, page_token, ..Default::default() };
        let page = cluster.jobs().list_jobs(request).await.expect("a page").into_inner();
        seen.extend(page.jobs.into_iter().map(|job| job.id));
        page_token = page.next_page_token;
        if page_token.is_empty() {
            break;
        }
    }
    seen.reverse();
    assert_eq!(seen, ids, "newest first, each once");
}

/// What reflection and health are asked with, so that no client library of theirs is needed.
#[derive(Clone, prost::Message)]
struct Named {
    #[prost(string, tag = "1")]
    service: String,
    #[prost(string, tag = "7")]
    list_services: String,
}

/// `grpc.health.v1.HealthCheckResponse`.
#[derive(Clone, prost::Message)]
struct Health {
    #[prost(int32, tag = "1")]
    status: i32,
}

/// `grpc.reflection.v1.ServerReflectionResponse`, as far as listing goes.
#[derive(Clone, prost::Message)]
struct Reflection {
    #[prost(message, optional, tag = "6")]
    list: Option<Services>,
}

#[derive(Clone, prost::Message)]
struct Services {
    #[prost(message, repeated, tag = "1")]
    service: Vec<Service>,
}

#[derive(Clone, prost::Message)]
struct Service {
    #[prost(string, tag = "1")]
    name: String,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn health_reflection_and_probes_answer() {
    let cluster = Cluster::start().await;
    let client = Client::of_address(&cluster.grpc, &cluster.api_token);
    let mut grpc = Grpc::new(client.channel.clone());
    grpc.ready().await.expect("a connection");
    let name = "hodei.v1.JobExecutionService";
    let check = Named { service: name.into(), list_services: String::new() };
    let path = PathAndQuery::from_static("/grpc.health.v1.Health/Check");
    let health = grpc.unary(tonic::Request::new(check), path, ProstCodec::<Named, Health>::default()).await;
    assert_eq!(health.expect("an answer").into_inner().status, 1, "SERVING");

    grpc.ready().await.expect("a connection");
    let list = Named { service: String::new(), list_services: "*".into() };
    let path = PathAndQuery::from_static("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo");
    let asked = tonic::Request::new(futures::stream::iter([list]));
    let mut answers =
        grpc.streaming(asked, path, ProstCodec::<Named, Reflection>::default()).await.expect("a stream").into_inner();
    let answer = answers.message().await.expect("an answer").and_then(|answer| answer.list).expect("a list");
    let names: Vec<_> = answer.service.iter().map(|service| service.name.as_str()).collect();
    for service in [name, "hodei.v1.LogStreamService", "hodei.v1.WorkerAgentService", "grpc.health.v1.Health"] {
        assert!(names.contains(&service), "{service} is not in {names:?}");
    }
    for path in ["/live", "/ready", "/health", "/health/live", "/health/ready"] {
        assert_eq!(cluster.probe(path).await, "200 OK", "{path}");
    }
    assert_eq!(cluster.probe("/nothing").await, "404 Not Found");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_configuration_and_completions_are_printed() {
    let cluster = Cluster::start().await;
    let token = cluster.hodei(&["token", "create", "worker"]).await.ok();
    assert_eq!(token.text().trim().len(), 36, "a UUID alone, for scripts: {token:?}");
    let worker = uuid::Uuid::now_v7().to_string();
    let token =
        cluster.hodei(&["token", "create", "worker", "--worker-id", &worker, "--ttl", "1m", "--json"]).await.ok();
    assert_eq!(token.json()["worker_id"], json!(worker));
    let config = cluster.hodei(&["config"]).await.ok();
    let config: toml::Table = config.text().parse().expect("TOML");
    assert_eq!(config["server"]["lease"].as_str(), Some("60s"));
    let completions = cluster.hodei(&["completions", "bash"]).await.ok();
    assert!(completions.text().contains("complete -F _hodei"), "{completions:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_tiny_jobs_do_not_wait_for_one_another() {
    let cluster = Cluster::up(&["--slots", "2"]).await;
    let began = Instant::now();
    let jobs = vec![shell("exit 0"); 1000];
    cluster.jobs().queue_jobs(v1::QueueJobsRequest { jobs }).await.expect("jobs");
    let done = || async {
        let states = vec![JobState::Succeeded.into()];
        let request = v1::ListJobsRequest { states, page_size: 1000, ..Default::default() };
        let page = cluster.jobs().list_jobs(request).await.expect("a page").into_inner();
        (page.jobs.len() == 1000).then_some(())
    };
    until("all have run", done).await;
    let took = began.elapsed();
    assert!(took.as_secs() < 30, "something waits for a timer between jobs: {took:?}");
}
