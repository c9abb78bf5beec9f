//! Typed tasks, run by handlers that are compiled into a worker.

use crate::{
    client::{lines, shell},
    cluster::{Cluster, SHORT_LEASE},
    process::until,
};
use hodei_api::v1::{self, JobState};
use hodei_sdk::{Task, TaskResult, Value, Worker, WorkerError, json};
use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};
use tokio::{sync::oneshot, task::JoinHandle};
use tonic::Code;

/// A worker of the SDK that works until it is told to stop.
pub struct Running {
    stop: Option<oneshot::Sender<()>>,
    ended: JoinHandle<Result<(), WorkerError>>,
}

impl Running {
    pub fn start(worker: Worker) -> Self {
        let (stop, stopped) = oneshot::channel::<()>();
        let until = async move { _ = stopped.await };
        Self { stop: Some(stop), ended: tokio::spawn(worker.run_until(until)) }
    }

    pub async fn stop(mut self) {
        self.stop.take();
        self.ended.await.expect("no panic").expect("a good end");
    }
}

impl Cluster {
    /// A worker that has nothing to do with tasks of the type `nothing`.
    pub async fn sdk_noop(&self, name: &str) -> Running {
        Running::start(self.sdk_worker(name).await.slots(64).handle("nothing", nothing))
    }

    pub async fn sdk_worker(&self, name: &str) -> Worker {
        let token = self.token("", 0).await.token;
        self.again(name).token(token)
    }

    /// The same worker, without a token.
    fn again(&self, name: &str) -> Worker {
        Worker::new(&self.grpc).name(name).folder(self.home.path(name)).slots(4)
    }
}

fn task(task_type: &str, payload: &Value) -> v1::JobSpec {
    let task = v1::TaskWork { r#type: task_type.into(), payload: payload.to_string().into() };
    v1::JobSpec { work: Some(v1::Work { kind: Some(v1::work::Kind::Task(task)) }), ..Default::default() }
}

/// At most so many runs, without a pause between them.
fn runs(spec: v1::JobSpec, max_attempts: i32) -> v1::JobSpec {
    let retry = v1::RetryPolicy { max_attempts: Some(max_attempts), delay_ms: Some(0), ..Default::default() };
    v1::JobSpec { retry: Some(retry), ..spec }
}

async fn nothing(_: Task) -> TaskResult {
    Ok(Value::Null)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_runs_in_its_handler_with_payload_log_progress_and_result() {
    let cluster = Cluster::start().await;
    let worker = cluster.sdk_worker("adder").await.handle("math.add", |task: Task| async move {
        let numbers: Vec<i64> = task.payload()?;
        task.log("adding\ntwo lines").await;
        task.log_error(&format!("the key is {}", task.variable("KEY").unwrap_or("none"))).await;
        task.progress(50.0, "half way");
        Ok(json!({ "sum": numbers.iter().sum::<i64>(), "attempt": task.attempt() }))
    });
    let worker = Running::start(worker);
    let spec = v1::JobSpec {
        secrets: [("KEY".to_owned(), "s3cr3t-s3cr3t".to_owned())].into(),
        ..task("math.add", &json!([1, 2, 39]))
    };
    let job = cluster.ended(&cluster.queue(spec).await).await;
    assert_eq!(job.state(), JobState::Succeeded, "{job:?}");
    let result: Value = serde_json::from_slice(&job.result).expect("JSON");
    assert_eq!(result, json!({ "sum": 42, "attempt": 1 }));
    assert_eq!(job.executions[0].progress_message, "half way");
    let log = cluster.log(&job.id).await;
    assert_eq!(lines(&log), ["adding", "two lines", "the key is ***"]);
    assert_eq!(log.iter().map(|entry| entry.stderr).collect::<Vec<_>>(), [false, false, true]);

    let shown = cluster.hodei(&["run", "--task", "math.add", "--payload", "[4, 5]"]).await.ok();
    assert!(shown.text().contains("two lines"), "{shown:?}");
    let submitted = cluster.hodei(&["job", "submit", "--task", "math.add", "--payload", "[]"]).await.ok();
    let shown = cluster.hodei(&["--json", "job", "get", submitted.text().trim()]).await.ok();
    let shown: Value = serde_json::from_str(shown.text()).expect("JSON");
    assert_eq!(shown["work"], json!({ "task": { "type": "math.add", "payload": [] } }));
    assert_eq!(shown["name"], "math.add");
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_goes_only_to_workers_that_offer_it() {
    let cluster = Cluster::start().await;
    let only_tasks = Running::start(cluster.sdk_worker("tasks").await.handle("a", nothing));
    let first = cluster.ended(&cluster.queue(task("a", &json!(1))).await).await;
    let process = cluster.queue(shell("true")).await;
    let other = cluster.queue(task("b", &json!(1))).await;
    assert_eq!(cluster.job(&process).await.waiting_reason, "no connected worker runs processes");
    assert_eq!(cluster.job(&other).await.waiting_reason, "no connected worker handles tasks of type b");

    let processes = cluster.worker("processes", &["--slots", "1"]).await;
    let process = cluster.ended(&process).await;
    assert_eq!(process.executions[0].worker_id, processes.id);
    assert_eq!(cluster.job(&other).await.waiting_reason, "no connected worker handles tasks of type b");

    // The same worker learns another type: it says so when it connects, without a new registration.
    only_tasks.stop().await;
    let learned = Running::start(cluster.again("tasks").handle("a", nothing).handle("b", nothing));
    let other = cluster.ended(&other).await;
    assert_eq!(other.state(), JobState::Succeeded);
    assert_eq!(other.executions[0].worker_id, first.executions[0].worker_id);
    learned.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn errors_and_panics_are_failures_that_are_retried() {
    let cluster = Cluster::start().await;
    let calls = Arc::new(AtomicU32::new(0));
    let counter = Arc::clone(&calls);
    let flaky = move |task: Task| {
        counter.fetch_add(1, Ordering::Relaxed);
        async move {
            match task.attempt() {
                1 => Err("not yet".into()),
                2 => panic!("what now"),
                _ => Ok(json!("done")),
            }
        }
    };
    let worker = Running::start(cluster.sdk_worker("flaky").await.handle("flaky", flaky));
    let job = cluster.ended(&cluster.queue(runs(task("flaky", &json!(null)), 3)).await).await;
    assert_eq!(job.state(), JobState::Succeeded, "{job:?}");
    let errors: Vec<_> = job.executions.iter().map(|execution| execution.error.as_str()).collect();
    assert_eq!(errors, ["not yet", "the handler panicked: what now", ""]);
    assert_eq!(calls.load(Ordering::Relaxed), 3);
    let job = cluster.ended(&cluster.queue(runs(task("flaky", &json!(null)), 1)).await).await;
    assert_eq!(job.state(), JobState::Failed);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_is_cancelled_times_out_and_is_dropped_when_it_does_not_listen() {
    let cluster = Cluster::start().await;
    let polite = |task: Task| async move {
        task.stopping().await;
        task.log("leaving").await;
        TaskResult::<Value>::Err("stopped".into())
    };
    let deaf = |_: Task| async move {
        tokio::time::sleep(Duration::from_secs(3600)).await;
        Ok(Value::Null)
    };
    let worker = cluster.sdk_worker("patient").await.handle("polite", polite).handle("deaf", deaf);
    let worker = Running::start(worker);

    let id = cluster.queue(task("polite", &json!(null))).await;
    cluster.reached(&id, JobState::Running).await;
    cluster.cancel(&id).await.expect("a cancel");
    assert_eq!(cluster.ended(&id).await.state(), JobState::Cancelled);
    assert_eq!(lines(&cluster.log(&id).await), ["leaving"]);

    let short = v1::Timeouts { run_ms: Some(50), kill_grace_ms: Some(50), ..Default::default() };
    let spec = v1::JobSpec { timeouts: Some(short), ..runs(task("deaf", &json!(null)), 1) };
    let job = cluster.ended(&cluster.queue(spec).await).await;
    assert_eq!(job.state(), JobState::TimedOut, "{job:?}");
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_does_not_outlive_its_lease() {
    let mut cluster = Cluster::with(&SHORT_LEASE).await;
    let deaf = |task: Task| async move {
        task.stopping().await;
        std::future::pending::<TaskResult>().await
    };
    let worker = Running::start(cluster.sdk_worker("alone").await.handle("deaf", deaf));
    let id = cluster.queue(runs(task("deaf", &json!(null)), 1)).await;
    cluster.reached(&id, JobState::Running).await;
    cluster.server.kill();
    // The server is away for longer than the lease; the worker gives the task up and says so when it hears of it again.
    tokio::time::sleep(Duration::from_millis(2500)).await;
    cluster.start_server().await;
    let job = cluster.ended(&id).await;
    assert_eq!(job.executions[0].error, "stopped: the lease ran out", "{job:?}");
    drop(worker);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_wrong_with_a_task_is_named() {
    let cluster = Cluster::start().await;
    let refused =
        |spec| async { cluster.jobs().queue_job(v1::QueueJobRequest { job: Some(spec) }).await.expect_err("refused") };
    let mut bad = task("a", &json!(1));
    if let Some(v1::Work { kind: Some(v1::work::Kind::Task(task)) }) = &mut bad.work {
        task.payload = b"{nonsense".to_vec();
    }
    for (spec, field) in [
        (bad, "job.work.task.payload"),
        (task("two words", &json!(1)), "job.work.task.type"),
        (task("", &json!(1)), "job.work.task.type"),
        (v1::JobSpec { stdin: vec![1], ..task("a", &json!(1)) }, "job.stdin"),
        (v1::JobSpec { working_directory: "/".into(), ..task("a", &json!(1)) }, "job.working_directory"),
    ] {
        let status = refused(spec).await;
        assert_eq!(status.code(), Code::InvalidArgument);
        assert!(status.message().starts_with(field), "{status:?}");
    }
    let worker = Worker::new(&cluster.grpc).handle("two words", nothing);
    assert!(matches!(worker.run().await, Err(WorkerError::Handler(_))));
    assert!(matches!(Worker::new(&cluster.grpc).run().await, Err(WorkerError::NoHandlers)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn results_of_a_worker_that_lost_its_server_are_delivered_once_it_is_back() {
    let mut cluster = Cluster::start().await;
    let calls = Arc::new(AtomicU32::new(0));
    let counter = Arc::clone(&calls);
    let slow = move |task: Task| {
        counter.fetch_add(1, Ordering::Relaxed);
        async move {
            task.log("working").await;
            tokio::time::sleep(Duration::from_millis(300)).await;
            Ok(json!(task.payload::<u32>()? * 2))
        }
    };
    let worker = Running::start(cluster.sdk_worker("steady").await.handle("double", slow));
    let mut ids = Vec::new();
    for n in 0..4 {
        ids.push(cluster.queue(task("double", &json!(n))).await);
    }
    until("all four run", || async { (calls.load(Ordering::Relaxed) == 4).then_some(()) }).await;
    cluster.crash_server().await;
    for (n, id) in ids.iter().enumerate() {
        let job = cluster.ended(id).await;
        assert_eq!(job.state(), JobState::Succeeded);
        assert_eq!(job.result, (n * 2).to_string().as_bytes());
        assert_eq!(lines(&cluster.log(id).await), ["working"]);
    }
    assert_eq!(calls.load(Ordering::Relaxed), 4, "nothing ran twice");
    worker.stop().await;
}
