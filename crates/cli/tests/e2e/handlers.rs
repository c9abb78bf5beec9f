//! Typed tasks, run by the handlers of a worker of the real program: commands, subprocesses and HTTP endpoints.

use crate::{
    client::{lines, shell},
    cluster::Cluster,
    process::until,
};
use hodei_api::v1::{self, JobState};
use hodei_sdk::{Done, Job, Task, TaskError, Worker, json};
use serde_json::Value;
use std::{
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

fn task(task_type: &str, payload: &Value) -> v1::JobSpec {
    let task = v1::TaskWork { r#type: task_type.into(), payload: payload.to_string().into() };
    v1::JobSpec { work: Some(v1::Work { kind: Some(v1::work::Kind::Task(task)) }), ..Default::default() }
}

/// At most so many runs, without a pause between them.
fn runs(spec: v1::JobSpec, max_attempts: i32) -> v1::JobSpec {
    let retry = v1::RetryPolicy { max_attempts: Some(max_attempts), delay_ms: Some(0), ..Default::default() };
    v1::JobSpec { retry: Some(retry), ..spec }
}

fn parsed(json: &[u8]) -> Value {
    serde_json::from_slice(json).unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(json)))
}

fn outcomes(job: &v1::Job) -> Vec<&str> {
    job.executions.iter().map(|execution| execution.outcome.as_str()).collect()
}

impl Cluster {
    /// A worker with this as the program of its subprocess, which handles all that the program declares.
    async fn python(&self, program: &str, flags: &[&str]) -> crate::cluster::Worker {
        self.home.write("handlers.py", format!("{PROLOGUE}\n{program}\nrun()\n"));
        let flags = [&["--handler", "*=subprocess:exec python3 handlers.py", "--slots", "4"], flags].concat();
        self.worker("python", &flags).await
    }

    async fn resume(&self, id: &str, payload: &Value) {
        let request = v1::ResumeJobRequest { job_id: id.to_owned(), payload: payload.to_string().into() };
        self.jobs().resume_job(request).await.expect("it is resumed");
    }

    async fn child_of(&self, id: &str) -> v1::Job {
        until("there is a child", || async { self.list().await.into_iter().find(|job| job.parent_id == id) }).await
    }

    async fn printed(&self, id: &str, line: &str) {
        until(&format!("job {id} printed {line}"), || async {
            lines(&self.log(id).await).iter().any(|printed| printed == line).then_some(())
        })
        .await;
    }
}

const PROLOGUE: &str = "import os, signal, sys, time
from hodei_handler import handler, run, Fatal";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_runs_a_task_as_a_process() {
    let cluster = Cluster::start().await;
    cluster.home.write(
        "send.sh",
        r#"payload=$(cat)
echo "sending $payload as $HODEI_TASK_TYPE"
echo "50 half way" > "$HODEI_PROGRESS"
case "$payload" in
  '"wrong"') echo "no such person" >&2; echo '{"fail": "not a person"}' > "$HODEI_END"; exit 1 ;;
  '"broken"') echo "line one" >&2; echo "line two" >&2; exit 3 ;;
esac
echo "{\"sent\": $payload, \"attempt\": $HODEI_ATTEMPT}" > "$HODEI_RESULT"
"#,
    );
    let worker = cluster.worker("commands", &["--handler", "email.send=sh ./send.sh"]).await;
    let shown = cluster.workers().await;
    let info = shown.iter().find(|known| known.id == worker.id).and_then(|known| known.info.clone()).expect("known");
    assert_eq!(info.task_types, ["email.send"]);

    let job = cluster.ended(&cluster.queue(task("email.send", &json!({ "to": "Ada" }))).await).await;
    assert_eq!(job.state(), JobState::Succeeded, "{job:?}");
    assert_eq!(parsed(&job.result), json!({ "sent": { "to": "Ada" }, "attempt": 1 }));
    assert_eq!(job.executions[0].progress_message, "half way");
    assert_eq!(lines(&cluster.log(&job.id).await), [r#"sending {"to":"Ada"} as email.send"#]);

    let job = cluster.ended(&cluster.queue(runs(task("email.send", &json!("wrong")), 5)).await).await;
    assert_eq!((job.state(), outcomes(&job)), (JobState::Failed, vec!["failed"]), "{job:?}");
    assert_eq!(job.executions[0].error, "not a person");
    let job = cluster.ended(&cluster.queue(runs(task("email.send", &json!("broken")), 2)).await).await;
    assert_eq!((job.state(), outcomes(&job)), (JobState::Failed, vec!["failed"; 2]), "{job:?}");
    let last = &job.executions[1];
    assert_eq!((last.exit_code, last.detail.as_str()), (Some(3), "line one\nline two"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_snoozes_blocks_keeps_data_and_enqueues_children() {
    let cluster = Cluster::up(&["--slots", "2"]).await;
    let script = r#"
if [ ! -e "$HODEI_JOB_DATA" ]; then
  echo '{"step": 1}' > "$HODEI_JOB_DATA"; echo '{"snooze": "50ms"}' > "$HODEI_END"
elif [ ! -e "$HODEI_INPUT" ]; then
  cat "$HODEI_JOB_DATA"; echo '{"step": 2}' > "$HODEI_JOB_DATA"; echo '{"block": "a signature"}' > "$HODEI_END"
else
  cat "$HODEI_JOB_DATA"; cp "$HODEI_INPUT" "$HODEI_RESULT"
  echo '{"name": "child", "shell": {"program": "true"}, "tags": ["small"]}' > "$HODEI_CHILDREN"
fi"#;
    let id = cluster.queue(runs(shell(script), 1)).await;
    let job = cluster.reached(&id, JobState::Blocked).await;
    assert_eq!(outcomes(&job), ["snoozed", "blocked"], "{job:?}");
    assert_eq!(parsed(&job.data), json!({ "step": 2 }));
    cluster.resume(&id, &json!({ "signed": true })).await;
    let job = cluster.ended(&id).await;
    assert_eq!((job.state(), job.attempt), (JobState::Succeeded, 1), "{job:?}");
    assert_eq!(parsed(&job.result), json!({ "signed": true }));
    assert_eq!(lines(&cluster.log(&id).await), [r#"{"step": 1}"#, r#"{"step": 2}"#]);
    let child = cluster.ended(&cluster.child_of(&id).await.id).await;
    assert_eq!(child.spec.as_ref().map(|spec| spec.name.as_str()), Some("child"));

    for (end, part) in [
        (r#"echo '{"snose": 1}' > "$HODEI_END""#, "snose"),
        (r#"echo '{"nmae": 1}' > "$HODEI_CHILDREN""#, "children[0]: nmae"),
        (r#"echo '{nonsense' > "$HODEI_JOB_DATA""#, "the data is not JSON"),
    ] {
        let job = cluster.ended(&cluster.queue(runs(shell(end), 1)).await).await;
        assert_eq!(job.state(), JobState::Failed, "{job:?}");
        assert!(job.executions[0].error.contains(part), "{job:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_that_gives_no_sign_of_itself_is_ended() {
    let cluster = Cluster::up(&["--slots", "2"]).await;
    let limit = |spec| {
        let timeouts = v1::Timeouts { heartbeat_ms: Some(400), kill_grace_ms: Some(100), ..Default::default() };
        runs(v1::JobSpec { timeouts: Some(timeouts), ..spec }, 1)
    };
    let silent = cluster.queue(limit(shell("sleep 60"))).await;
    let chatty = cluster.queue(limit(shell("for i in 1 2 3 4 5 6 7 8; do echo $i; sleep 0.1; done"))).await;
    let silent = cluster.ended(&silent).await;
    assert_eq!(silent.state(), JobState::TimedOut, "{silent:?}");
    assert_eq!(silent.executions[0].failure_kind, "heartbeat_timeout");
    let chatty = cluster.ended(&chatty).await;
    assert_eq!(chatty.state(), JobState::Succeeded, "{chatty:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_subprocess_runs_many_tasks_and_its_prints_do_no_harm() {
    let cluster = Cluster::start().await;
    let program = r#"
@handler("add")
def add(job):
    print("adding", job.payload)
    sys.stderr.write("to stderr\n")
    os.write(1, b"past the module\n")
    os.system("echo from a child")
    job.progress(50, "half way")
    return {"sum": sum(job.payload), "pid": os.getpid(), "key": job.environment["KEY"]}

@handler("bad.result")
def bad_result(job):
    return {1, 2}
"#;
    let _worker = cluster.python(program, &[]).await;
    let mut pids = std::collections::BTreeSet::new();
    for n in 0..5 {
        let spec = task("add", &json!([n, 1]));
        let spec = v1::JobSpec { secrets: [("KEY".to_owned(), "s3cr3t-s3cr3t".to_owned())].into(), ..spec };
        let job = cluster.ended(&cluster.queue(spec).await).await;
        assert_eq!(job.state(), JobState::Succeeded, "{job:?}");
        let result = parsed(&job.result);
        assert_eq!((&result["sum"], &result["key"]), (&json!(n + 1), &json!("s3cr3t-s3cr3t")));
        pids.insert(result["pid"].to_string());
        assert_eq!(job.executions[0].progress_message, "half way");
        let mut log = lines(&cluster.log(&job.id).await);
        log.sort();
        assert_eq!(log, [format!("adding [{n}, 1]").as_str(), "from a child", "past the module", "to stderr"]);
    }
    assert_eq!(pids.len(), 1, "one process ran them all");
    let job = cluster.ended(&cluster.queue(runs(task("bad.result", &json!(null)), 1)).await).await;
    assert_eq!(job.executions[0].error, "TypeError: a set cannot be said in JSON", "{job:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_subprocess_snoozes_blocks_keeps_data_and_enqueues_children() {
    let cluster = Cluster::start().await;
    let program = r#"
@handler("steps")
def steps(job):
    if job.data is None:
        job.set_data({"step": 1})
        raise ValueError("not yet")
    if job.data["step"] == 1:
        job.set_data({"step": 2})
        job.snooze(0.05)
    if job.input is None:
        job.block("a signature")
    job.enqueue({"name": "child", "task": {"type": "steps.child", "payload": job.input}})
    return job.data

@handler("steps.child")
def child(job):
    return job.payload

@handler("fatal")
def fatal(job):
    raise Fatal("no such customer")
"#;
    let _worker = cluster.python(program, &[]).await;
    let id = cluster.queue(runs(task("steps", &json!(null)), 2)).await;
    let job = cluster.reached(&id, JobState::Blocked).await;
    assert_eq!(outcomes(&job), ["failed", "snoozed", "blocked"], "{job:?}");
    assert_eq!(job.executions[0].error, "ValueError: not yet");
    assert!(job.executions[0].detail.contains("in steps\n"), "{job:?}");
    cluster.resume(&id, &json!("signed")).await;
    let job = cluster.ended(&id).await;
    assert_eq!((job.state(), parsed(&job.result)), (JobState::Succeeded, json!({ "step": 2 })), "{job:?}");
    let child = cluster.ended(&cluster.child_of(&id).await.id).await;
    assert_eq!((child.state(), parsed(&child.result)), (JobState::Succeeded, json!("signed")), "{child:?}");

    let job = cluster.ended(&cluster.queue(runs(task("fatal", &json!(null)), 5)).await).await;
    assert_eq!((job.state(), outcomes(&job)), (JobState::Failed, vec!["failed"]), "{job:?}");
    assert_eq!(job.executions[0].error, "Fatal: no such customer");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_of_a_subprocess_is_cancelled_and_one_that_does_not_listen_takes_its_process_along() {
    let cluster = Cluster::start().await;
    let program = r#"
@handler("polite")
def polite(job):
    print("waiting")
    try:
        job.wait(60)
    finally:
        print("leaving")

@handler("deaf")
def deaf(job):
    time.sleep(60)

@handler("pid")
def pid(job):
    return os.getpid()
"#;
    let _worker = cluster.python(program, &[]).await;
    let pid = || async {
        let job = cluster.ended(&cluster.queue(task("pid", &json!(null))).await).await;
        parsed(&job.result)
    };
    let before = pid().await;
    let id = cluster.queue(task("polite", &json!(null))).await;
    cluster.printed(&id, "waiting").await;
    cluster.cancel(&id).await.expect("a cancel");
    assert_eq!(cluster.ended(&id).await.state(), JobState::Cancelled);
    assert_eq!(lines(&cluster.log(&id).await), ["waiting", "leaving"]);
    assert_eq!(pid().await, before, "the same process goes on");

    let short = v1::Timeouts { run_ms: Some(200), kill_grace_ms: Some(100), ..Default::default() };
    let spec = v1::JobSpec { timeouts: Some(short), ..runs(task("deaf", &json!(null)), 1) };
    let job = cluster.ended(&cluster.queue(spec).await).await;
    assert_eq!(job.state(), JobState::TimedOut, "{job:?}");
    assert_ne!(pid().await, before, "a job that cannot be stopped ends with its process");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_subprocess_that_dies_or_speaks_nonsense_fails_only_what_it_held() {
    let cluster = Cluster::start().await;
    let program = r#"
import hodei_handler

@handler("victim")
def victim(job):
    if job.attempt > 1:
        return "survived"
    print("holding", flush=True)
    time.sleep(60)

@handler("killer")
def killer(job):
    if job.attempt > 1:
        return "survived"
    sys.__stderr__.write("last words\n")
    sys.__stderr__.flush()
    os.kill(os.getpid(), signal.SIGKILL)

@handler("garbage")
def garbage(job):
    if job.attempt > 1:
        return "survived"
    os.write(job._program._writer, b"\xff\xff\xff\xff what is this")
    time.sleep(60)
"#;
    cluster.home.write("handlers.py", format!("{PROLOGUE}\n{program}\nrun()\n"));
    cluster
        .home
        .write("other.py", "from hodei_handler import *\n@handler('other')\ndef other(job):\n    job.wait(3)\nrun()\n");
    let flags = ["--slots", "4", "--handler", "*=subprocess/critical:exec python3 handlers.py"];
    let flags = [&flags[..], &["--handler", "other=subprocess:exec python3 other.py"]].concat();
    let _worker = cluster.worker("python", &flags).await;
    let other = cluster.queue(runs(task("other", &json!(null)), 1)).await;
    for (bad, part) in
        [("killer", "subprocess died: killed by signal 9"), ("garbage", "subprocess killed: it sent a frame of")]
    {
        let victim = cluster.queue(runs(task("victim", &json!(null)), 2)).await;
        cluster.printed(&victim, "holding").await;
        let bad = cluster.ended(&cluster.queue(runs(task(bad, &json!(null)), 2)).await).await;
        let victim = cluster.ended(&victim).await;
        for job in [&bad, &victim] {
            assert_eq!((job.state(), outcomes(job)), (JobState::Succeeded, vec!["failed", "succeeded"]), "{job:?}");
            assert!(job.executions[0].error.starts_with(part), "{job:?}");
        }
        if part.contains("died") {
            assert_eq!(bad.executions[0].detail, "last words");
        }
    }
    assert_eq!(cluster.ended(&other).await.state(), JobState::Succeeded, "the other process was not touched");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_subprocess_that_hangs_is_killed_and_none_outlives_its_worker() {
    let cluster = Cluster::start().await;
    let program = r#"
@handler("hang")
def hang(job):
    if job.attempt > 1:
        return "survived"
    os.kill(os.getpid(), signal.SIGSTOP)
    # Whoever lets it go on before it is killed gets no answer, either.
    time.sleep(60)

@handler("pid")
def pid(job):
    return os.getpid()
"#;
    cluster.home.write("handlers.py", format!("{PROLOGUE}\n{program}\nrun()\n"));
    let config = "[[handler]]\ntype = '*'\nsubprocess = ['python3', 'handlers.py']\nsla = 'critical'\n";
    let config = cluster.home.write("worker.toml", config);
    let mut worker = cluster.worker("python", &["--config", config.to_str().expect("UTF-8")]).await;
    let job = cluster.ended(&cluster.queue(runs(task("hang", &json!(null)), 2)).await).await;
    assert_eq!(job.state(), JobState::Succeeded, "{job:?}");
    assert_eq!(job.executions[0].error, "subprocess killed: no heartbeat for 3s");

    let job = cluster.ended(&cluster.queue(task("pid", &json!(null))).await).await;
    let folder = format!("/proc/{}", parsed(&job.result));
    assert!(std::path::Path::new(&folder).exists());
    worker.daemon.kill();
    until("the subprocess is gone", || async { (!std::path::Path::new(&folder).exists()).then_some(()) }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mistakes_in_handlers_are_told_before_work_is_taken() {
    let cluster = Cluster::start().await;
    let unknown = cluster.home.write("unknown.toml", "[[handler]]\ntype = 'a'\ncomand = 'x'\n");
    let unknown = unknown.to_str().expect("UTF-8").to_owned();
    for (flags, part) in [
        (vec!["--handler", "a"], "write TYPE=COMMAND"),
        (vec!["--handler", "a.*=./x.sh"], "only a subprocess"),
        (vec!["--handler", "a=./x.sh", "--handler", "a=./y.sh"], "two handlers for a"),
        (vec!["--handler", "a=subprocess:./nothing-of-this-name"], "nothing-of-this-name"),
        (vec!["--config", &unknown], "handler[0].comand"),
    ] {
        let token = cluster.token("", 0).await.token;
        let (socket, data) = (cluster.socket(), cluster.home.path(&token));
        let data = data.to_str().expect("UTF-8").to_owned();
        let common = ["worker", "run", "--server", &socket, "--data", &data, "--token", &token];
        let ran = cluster.hodei(&[&common[..], &flags].concat()).await;
        let said = &ran.stderr;
        assert!(ran.code != 0 && said.contains(part), "{flags:?}: {said}");
    }
}

/// An HTTP server that answers each request with the next of its answers, and keeps what it was asked.
struct Endpoint {
    asked: Arc<Mutex<Vec<(String, Value)>>>,
    url: String,
}

impl Endpoint {
    async fn start(answers: &[&str]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        Self::on(listener, answers)
    }

    fn on(listener: TcpListener, answers: &[&str]) -> Self {
        let url = format!("http://{}/", listener.local_addr().expect("an address"));
        let asked = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&asked);
        let mut answers: Vec<String> = answers.iter().rev().map(|answer| (*answer).to_owned()).collect();
        tokio::spawn(async move {
            while let Some(answer) = answers.pop() {
                let (mut stream, _) = listener.accept().await.expect("a connection");
                let request = read_request(&mut stream).await;
                seen.lock().expect("no panic").push(request);
                stream.write_all(answer.as_bytes()).await.expect("an answer");
            }
        });
        Self { asked, url }
    }
}

async fn read_request(stream: &mut TcpStream) -> (String, Value) {
    let mut bytes = Vec::new();
    loop {
        stream.read_buf(&mut bytes).await.expect("a request");
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let length = head.lines().find_map(|line| line.to_lowercase().strip_prefix("content-length: ")?.parse().ok());
        if body.len() >= length.unwrap_or(0) {
            return (head.to_owned(), parsed(body.as_bytes()));
        }
    }
}

fn answer(status: &str, headers: &str, body: &str) -> String {
    let length = body.len();
    format!("HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {length}\r\n{headers}\r\n{body}")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_http_endpoint_runs_tasks() {
    let cluster = Cluster::start().await;
    let endpoint = Endpoint::start(&[
        &answer("200 OK", "", r#"{"width": 100}"#),
        &answer("400 Bad Request", "", "no such image"),
        &answer("503 Service Unavailable", "Retry-After: 1\r\n", ""),
        &answer("500 Internal Server Error", "", "oops"),
        &answer("200 OK", "Hodei-Envelope: 1\r\n", r#"{"block": "a signature", "data": {"step": 2}}"#),
        &answer("200 OK", "Hodei-Envelope: 1\r\n", r#"{"result": 7, "children": [{"shell": {"program": "true"}}]}"#),
    ])
    .await;
    let config =
        format!("[[handler]]\ntype = 'image.resize'\nhttp = '{}'\nheaders = {{ X-Team = 'images' }}\n", endpoint.url);
    let config = cluster.home.write("worker.toml", config);
    let _worker = cluster.worker("http", &["--config", config.to_str().expect("UTF-8")]).await;
    let resize = || task("image.resize", &json!({ "name": "a.png" }));

    let job = cluster.ended(&cluster.queue(resize()).await).await;
    assert_eq!((job.state(), parsed(&job.result)), (JobState::Succeeded, json!({ "width": 100 })), "{job:?}");
    let (head, body) = endpoint.asked.lock().expect("no panic")[0].clone();
    assert!(head.starts_with("POST / ") && head.to_lowercase().contains("x-team: images"), "{head}");
    let told = json!({
        "job_id": job.id, "execution_id": job.executions[0].id, "attempt": 1, "task_type": "image.resize",
        "payload": { "name": "a.png" }, "data": null, "input": null, "dependencies": [], "tick": null
    });
    assert_eq!(body, told);

    let job = cluster.ended(&cluster.queue(runs(resize(), 5)).await).await;
    assert_eq!((job.state(), outcomes(&job)), (JobState::Failed, vec!["failed"]), "{job:?}");
    let failed = &job.executions[0];
    assert!(failed.error.ends_with("answered 400 Bad Request") && failed.detail == "no such image", "{failed:?}");

    let id = cluster.queue(runs(resize(), 2)).await;
    let job = cluster.reached(&id, JobState::Blocked).await;
    assert_eq!((outcomes(&job), job.attempt), (vec!["snoozed", "failed", "blocked"], 1), "{job:?}");
    assert!(job.executions[1].assigned_at_ms - job.executions[0].finished_at_ms >= 1000, "{job:?}");
    cluster.resume(&id, &json!("signed")).await;
    let job = cluster.ended(&id).await;
    assert_eq!((job.state(), parsed(&job.result)), (JobState::Succeeded, json!(7)), "{job:?}");
    let (_, body) = endpoint.asked.lock().expect("no panic")[5].clone();
    assert_eq!((&body["data"], &body["input"]), (&json!({ "step": 2 }), &json!("signed")));
    cluster.ended(&cluster.child_of(&id).await.id).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_endpoint_that_is_not_up_yet_is_tried_again_within_the_attempt() {
    let cluster = Cluster::start().await;
    // A port that is ours and refuses connections until it is listened on.
    let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
    socket.bind("127.0.0.1:0".parse().expect("an address")).expect("a port");
    let url = format!("late=http://{}/", socket.local_addr().expect("an address"));
    let _worker = cluster.worker("http", &["--handler", &url]).await;
    let id = cluster.queue(runs(task("late", &json!(null)), 1)).await;
    until("it was tried in vain", || async { (!cluster.log(&id).await.is_empty()).then_some(()) }).await;
    let endpoint = Endpoint::on(socket.listen(8).expect("a listener"), &[&answer("200 OK", "", "42")]);
    let job = cluster.ended(&id).await;
    assert_eq!((job.state(), parsed(&job.result)), (JobState::Succeeded, json!(42)), "{job:?}");
    assert_eq!(endpoint.asked.lock().expect("no panic").len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_function_snoozes_blocks_keeps_data_and_enqueues_children() {
    let cluster = Cluster::start().await;
    let token = cluster.token("", 0).await.token;
    let steps = |task: Task| async move {
        match task.data::<Option<u32>>()? {
            None => {
                task.set_data(&1)?;
                Ok(Done::snooze(Duration::from_millis(50)))
            }
            Some(1) if task.input_bytes() == b"null" => Ok(Done::block("a number")),
            Some(data) => {
                task.enqueue(Job::task("fatal", &json!(null)).name("child"));
                Ok(Done::value(data + task.input::<u32>()?))
            }
        }
    };
    let fatal = |_: Task| async move { Err::<Value, _>(TaskError::fatal("no such customer")) };
    let worker = Worker::new(&cluster.grpc).token(token).folder(cluster.home.path("functions"));
    let worker = tokio::spawn(worker.handle("steps", steps).handle("fatal", fatal).run_until(std::future::pending()));
    let id = cluster.queue(runs(task("steps", &json!(null)), 1)).await;
    let job = cluster.reached(&id, JobState::Blocked).await;
    assert_eq!(outcomes(&job), ["snoozed", "blocked"], "{job:?}");
    cluster.resume(&id, &json!(41)).await;
    let job = cluster.ended(&id).await;
    assert_eq!((job.state(), parsed(&job.result)), (JobState::Succeeded, json!(42)), "{job:?}");
    let child = cluster.ended(&cluster.child_of(&id).await.id).await;
    assert_eq!((child.state(), outcomes(&child)), (JobState::Failed, vec!["failed"]), "{child:?}");
    worker.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_subprocess_may_be_several() {
    let cluster = Cluster::start().await;
    let program = r#"
import glob
@handler("meet")
def meet(job):
    open(f"met-{os.getpid()}", "w").close()
    while len(glob.glob("met-*")) < 2:
        time.sleep(0.01)
    return os.getpid()
"#;
    cluster.home.write("handlers.py", format!("{PROLOGUE}\n{program}\nrun()\n"));
    let config = "[[handler]]\ntype = '*'\nsubprocess = 'exec python3 handlers.py'\nprocesses = 2\nconcurrency = 1\n";
    let config = cluster.home.write("worker.toml", config);
    let _worker = cluster.worker("several", &["--slots", "4", "--config", config.to_str().expect("UTF-8")]).await;
    let ids = [cluster.queue(task("meet", &json!(null))).await, cluster.queue(task("meet", &json!(null))).await];
    let mut pids = std::collections::BTreeSet::new();
    for id in ids {
        let job = cluster.ended(&id).await;
        assert_eq!(job.state(), JobState::Succeeded, "{job:?}");
        pids.insert(parsed(&job.result).to_string());
    }
    assert_eq!(pids.len(), 2, "each takes one at a time, and both ran at once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_worker_of_up_has_handlers_too() {
    let cluster = Cluster::up(&["--slots", "2", "--handler", "greet=cat > \"$HODEI_RESULT\""]).await;
    let job = cluster.ended(&cluster.queue(task("greet", &json!({ "name": "Ada" }))).await).await;
    assert_eq!((job.state(), parsed(&job.result)), (JobState::Succeeded, json!({ "name": "Ada" })), "{job:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_that_gives_no_sign_of_itself_is_ended() {
    let cluster = Cluster::start().await;
    let silent = |_: Task| async { std::future::pending::<Result<Value, TaskError>>().await };
    let steady = |task: Task| async move {
        for _ in 0..10 {
            tokio::time::sleep(Duration::from_millis(100)).await;
            task.heartbeat();
        }
        Ok(json!(null))
    };
    let worker = cluster.sdk_worker("signs").await.handle("silent", silent).handle("steady", steady);
    let worker = crate::tasks::Running::start(worker);
    let limited = |task_type: &str| {
        let timeouts = v1::Timeouts { heartbeat_ms: Some(600), kill_grace_ms: Some(100), ..Default::default() };
        runs(v1::JobSpec { timeouts: Some(timeouts), ..task(task_type, &json!(null)) }, 1)
    };
    let (silent, steady) = (cluster.queue(limited("silent")).await, cluster.queue(limited("steady")).await);
    let silent = cluster.ended(&silent).await;
    assert_eq!(silent.state(), JobState::TimedOut, "{silent:?}");
    assert_eq!(silent.executions[0].failure_kind, "heartbeat_timeout");
    let steady = cluster.ended(&steady).await;
    assert_eq!(steady.state(), JobState::Succeeded, "{steady:?}");
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_endpoint_is_told_who_asks_and_is_not_waited_for_longer_than_set() {
    let cluster = Cluster::start().await;
    let endpoint = Endpoint::start(&[&answer("200 OK", "", "1")]).await;
    // It takes connections and never answers.
    let mute = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let mute_url = format!("http://{}/", mute.local_addr().expect("an address"));
    let config = format!(
        "[[handler]]\ntype = 'known'\nhttp = '{}'\nauthorization = 'HOME'\n\
         [[handler]]\ntype = 'slow'\nhttp = '{mute_url}'\ntimeout = '300ms'\n",
        endpoint.url
    );
    let config = cluster.home.write("worker.toml", config);
    let _worker = cluster.worker("http", &["--config", config.to_str().expect("UTF-8")]).await;
    let job = cluster.ended(&cluster.queue(task("known", &json!(null))).await).await;
    assert_eq!(job.state(), JobState::Succeeded, "{job:?}");
    let (head, _) = endpoint.asked.lock().expect("no panic")[0].clone();
    let named = |line: &&str| line.to_lowercase().starts_with("authorization: ");
    let value = head.lines().find(named).and_then(|line| line.split_once(": ")).map(|(_, value)| value);
    assert_eq!(value, cluster.home.path("").to_str().map(|home| home.trim_end_matches('/')), "{head}");

    let job = cluster.ended(&cluster.queue(runs(task("slow", &json!(null)), 1)).await).await;
    assert_eq!((job.state(), outcomes(&job)), (JobState::Failed, vec!["failed"]), "{job:?}");
    assert_eq!(job.executions[0].error, format!("{mute_url} did not answer within 300ms"));
}
