//! Bad input is refused by name, and leaves nothing behind.

use crate::{client::shell, cluster::Cluster, process::run};
use hodei_api::v1;
use tonic::{Code, Status, codegen::http::uri::PathAndQuery};
use tonic_prost::ProstCodec;

/// The same message as `v1::QueueJobRequest` for whoever reads it, but its name may be any bytes.
#[derive(Clone, prost::Message)]
struct RawRequest {
    #[prost(message, optional, tag = "1")]
    job: Option<RawSpec>,
}

#[derive(Clone, prost::Message)]
struct RawSpec {
    #[prost(bytes = "vec", tag = "1")]
    name: Vec<u8>,
    #[prost(message, optional, tag = "3")]
    work: Option<v1::Work>,
}

fn names(outcome: Result<impl std::fmt::Debug, Status>, field: &str) {
    let status = outcome.expect_err(field);
    assert_eq!(status.code(), Code::InvalidArgument, "{field}: {status:?}");
    assert!(status.message().contains(field), "'{field}' is not named in: {}", status.message());
}

fn good() -> v1::JobSpec {
    shell("true")
}

fn timeouts(run_ms: i64) -> Option<v1::Timeouts> {
    Some(v1::Timeouts { run_ms: Some(run_ms), ..Default::default() })
}

fn retry(change: impl FnOnce(&mut v1::RetryPolicy)) -> Option<v1::RetryPolicy> {
    let mut policy = v1::RetryPolicy::default();
    change(&mut policy);
    Some(policy)
}

fn script(content: &str) -> Option<v1::Work> {
    let script = v1::ScriptWork { interpreter: String::new(), content: content.into() };
    Some(v1::Work { kind: Some(v1::work::Kind::Script(script)) })
}

fn command(program: &str) -> Option<v1::Work> {
    let shell = v1::ShellWork { program: program.into(), args: Vec::new() };
    Some(v1::Work { kind: Some(v1::work::Kind::Shell(shell)) })
}

/// Specs that must be refused, with the field to blame.
fn bad_specs() -> Vec<(&'static str, v1::JobSpec)> {
    let map = |name: &str, value: &str| [(name.to_owned(), value.to_owned())].into();
    let requirements =
        |cpu_millis, memory_bytes| Some(Box::new(v1::Requirements { cpu_millis, memory_bytes, ..Default::default() }));
    vec![
        ("priority", v1::JobSpec { priority: 99, ..good() }),
        ("retry.backoff", v1::JobSpec { retry: retry(|retry| retry.backoff = 99), ..good() }),
        ("retry.max_attempts", v1::JobSpec { retry: retry(|retry| retry.max_attempts = Some(0)), ..good() }),
        ("retry.max_attempts", v1::JobSpec { retry: retry(|retry| retry.max_attempts = Some(-1)), ..good() }),
        ("retry.delay_ms", v1::JobSpec { retry: retry(|retry| retry.delay_ms = Some(-1)), ..good() }),
        ("retry.jitter_percent", v1::JobSpec { retry: retry(|retry| retry.jitter_percent = Some(101)), ..good() }),
        (
            "retry.fatal_kinds",
            v1::JobSpec { retry: retry(|retry| retry.fatal_kinds = vec!["bad luck".into()]), ..good() },
        ),
        ("timeouts.run", v1::JobSpec { timeouts: timeouts(-1), ..good() }),
        ("timeouts.run", v1::JobSpec { timeouts: timeouts(0), ..good() }),
        ("timeouts.run", v1::JobSpec { timeouts: timeouts(i64::MAX), ..good() }),
        ("requirements.cpu_millis", v1::JobSpec { requirements: requirements(-1, 0), ..good() }),
        ("requirements.memory_bytes", v1::JobSpec { requirements: requirements(0, -1), ..good() }),
        ("run_at_ms", v1::JobSpec { run_at_ms: -1, ..good() }),
        ("work.shell.program", v1::JobSpec { work: command(""), ..good() }),
        ("work.shell.program", v1::JobSpec { work: command("a\0b"), ..good() }),
        ("work.shell.program", v1::JobSpec { work: command("\0"), ..good() }),
        ("work.script.content", v1::JobSpec { work: script(""), ..good() }),
        ("work", v1::JobSpec { work: None, ..good() }),
        ("work", v1::JobSpec { work: Some(v1::Work { kind: None }), ..good() }),
        ("stdin", v1::JobSpec { stdin: vec![0; 2 << 20], ..good() }),
        ("work", v1::JobSpec { work: script(&"#".repeat(2 << 20)), ..good() }),
        ("name", v1::JobSpec { name: "bell\u{7}".into(), ..good() }),
        ("name", v1::JobSpec { name: "two\nlines".into(), ..good() }),
        ("name", v1::JobSpec { name: "n".repeat(257), ..good() }),
        ("queue", v1::JobSpec { queue: "escape\u{1b}[31m".into(), ..good() }),
        ("environment.A=B", v1::JobSpec { environment: map("A=B", "x"), ..good() }),
        ("environment.HODEI_JOB_ID", v1::JobSpec { environment: map("HODEI_JOB_ID", "x"), ..good() }),
        ("secrets.TOKEN", v1::JobSpec { secrets: map("TOKEN", "short"), ..good() }),
        ("working_directory", v1::JobSpec { working_directory: "relative".into(), ..good() }),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_input_is_refused_by_the_name_of_its_field_and_nothing_is_stored() {
    let cluster = Cluster::start().await;
    let mut jobs = cluster.jobs();
    for (field, spec) in bad_specs() {
        names(jobs.queue_job(v1::QueueJobRequest { job: Some(spec.clone()) }).await, &format!("job.{field}"));
        // All or none: good ones beside it are not stored either.
        let batch = v1::QueueJobsRequest { jobs: vec![good(), spec, good()] };
        names(jobs.queue_jobs(batch).await, &format!("jobs[1].{field}"));
    }
    names(jobs.queue_job(v1::QueueJobRequest { job: None }).await, "job.work");
    names(jobs.queue_jobs(v1::QueueJobsRequest { jobs: vec![good(); 10_001] }).await, "jobs");
    names(jobs.queue_jobs(v1::QueueJobsRequest { jobs: Vec::new() }).await, "jobs");
    names(queue_raw(&cluster, b"caf\xe9").await, "name");

    let list = v1::ListJobsRequest { states: vec![99], ..Default::default() };
    names(jobs.list_jobs(list).await, "states");
    let list = v1::ListJobsRequest { page_token: "yesterday".into(), ..Default::default() };
    names(jobs.list_jobs(list).await, "page_token");
    for page_size in [-1, 1001] {
        names(jobs.list_jobs(v1::ListJobsRequest { page_size, ..Default::default() }).await, "page_size");
    }
    let job_id = || "no uuid".to_owned();
    names(jobs.get_job(v1::GetJobRequest { job_id: job_id() }).await, "job_id");
    names(jobs.cancel_job(v1::CancelJobRequest { job_id: job_id(), ..Default::default() }).await, "job_id");
    names(jobs.retry_job(v1::RetryJobRequest { job_id: job_id() }).await, "job_id");
    names(jobs.watch_job(v1::WatchJobRequest { job_id: job_id() }).await.map(drop), "job_id");
    let mut logs = cluster.logs();
    names(logs.get_logs(v1::GetLogsRequest { job_id: job_id(), ..Default::default() }).await, "job_id");
    names(logs.subscribe_logs(v1::SubscribeLogsRequest { job_id: job_id(), tail: None }).await.map(drop), "job_id");
    let mut admin = cluster.admin();
    names(
        admin.drain_worker(v1::DrainWorkerRequest { worker_id: "nobody".into(), ..Default::default() }).await,
        "worker_id",
    );
    let token = v1::CreateWorkerTokenRequest { worker_id: String::new(), ttl_ms: -1 };
    names(admin.create_worker_token(token).await, "ttl_ms");

    assert_eq!(cluster.list().await, Vec::new(), "nothing was stored");
    let unknown = uuid::Uuid::now_v7().to_string();
    let status = jobs.get_job(v1::GetJobRequest { job_id: unknown }).await.expect_err("there is no such job");
    assert_eq!(status.code(), Code::NotFound);
    // After all that, it still works; and as much as is allowed is taken.
    let ids = jobs.queue_jobs(v1::QueueJobsRequest { jobs: vec![good(); 10_000] }).await.expect("10,000 jobs");
    assert_eq!(ids.into_inner().job_ids.len(), 10_000);
    queue_raw(&cluster, "café".as_bytes()).await.expect("UTF-8");
    assert_eq!(cluster.list().await.len(), 10_001);
}

async fn queue_raw(cluster: &Cluster, name: &[u8]) -> Result<v1::QueueJobResponse, Status> {
    let mut client = tonic::client::Grpc::new(cluster.channel.clone());
    client.ready().await.expect("a connection");
    let request = RawRequest { job: Some(RawSpec { name: name.to_vec(), work: good().work }) };
    let path = PathAndQuery::from_static("/hodei.v1.JobExecutionService/QueueJob");
    let codec = ProstCodec::<RawRequest, v1::QueueJobResponse>::default();
    Ok(client.unary(tonic::Request::new(request), path, codec).await?.into_inner())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_machines_are_not_served_without_tls_by_mistake() {
    let home = crate::process::Home::new();
    for flags in [["--grpc", "0.0.0.0:0"], ["--http", "0.0.0.0:0"], ["--grpc", "[::]:0"]] {
        let mut command = home.command();
        command.arg("server").args(flags);
        let refused = run(command).await;
        assert_eq!(refused.code, 125, "{refused:?}");
        assert!(refused.stderr.contains("--tls-self-signed"), "it says what to do: {refused:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_command_line_says_what_is_wrong() {
    let cluster = Cluster::start().await;
    for (args, part) in [
        (&["run"][..], "COMMAND"),
        (&["run", "--timeout", "soon", "--", "true"], "500ms"),
        (&["run", "--timeout=-1", "--", "true"], "negative"),
        (&["run", "--timeout", "0", "--", "true"], "timeouts.run"),
        (&["run", "--max-attempts", "0", "--", "true"], "max-attempts"),
        (&["run", "--priority", "urgent", "--", "true"], "critical"),
        (&["run", "--secret", "A=b", "--", "true"], "secrets.A"),
        (&["run", "--env", "NOT_SET_ANYWHERE", "--", "true"], "not set"),
        (&["run", "--script", "missing.sh"], "missing.sh"),
        (&["run", "--interpreter", "bash", "--", "true"], "--interpreter"),
        (&["job", "get", "nonsense"], "job_id"),
        (&["job", "list", "--state", "asleep"], "pending"),
        (&["logs", "00000000-0000-7000-8000-000000000000"], "no job"),
        (&["--server", "ftp://x", "job", "list"], "http://"),
        (&["--server", "http://127.0.0.1:1", "job", "list"], "no server answers"),
    ] {
        let ran = cluster.hodei(args).await;
        assert_eq!(ran.code, 125, "not a code that a job could have: {args:?}: {ran:?}");
        assert!(ran.stderr.contains(part), "{args:?}: {ran:?}");
    }
    assert_eq!(cluster.list().await, Vec::new());
}
