//! Supervision of the processes of handlers, with real processes: how they are provided, replaced, given up, tried again at a
//! person's wish, reused and found to hang. Jobs are the work, and the command line is what people use.

use crate::{
    cluster::{Cluster, SHORT_LEASE, Worker},
    process::{PATIENCE, is_alive, numbers, until},
};
use hodei_api::v1::{self, JobState};
use hodei_sdk::json;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::time::timeout;
use tonic::Streaming;

/// Each process leaves its number where the test finds it.
const PROLOGUE: &str = "import os, sys, time
from hodei_handler import handler, run

def here(name):
    with open(name + '.pids', 'a') as file:
        file.write(f'{os.getpid()}\\n')

def wait_for(job, file):
    while not os.path.exists(file):
        job.wait(0.02)
";

fn task(task_type: &str) -> v1::JobSpec {
    let task = v1::TaskWork { r#type: task_type.into(), payload: b"null".to_vec() };
    v1::JobSpec { work: Some(v1::Work { kind: Some(v1::work::Kind::Task(task)) }), ..Default::default() }
}

/// At most so many runs, without a pause between them.
fn runs(spec: v1::JobSpec, max_attempts: i32) -> v1::JobSpec {
    let retry = v1::RetryPolicy { max_attempts: Some(max_attempts), delay_ms: Some(0), ..Default::default() };
    v1::JobSpec { retry: Some(retry), ..spec }
}

fn outcomes(job: &v1::Job) -> Vec<&str> {
    job.executions.iter().map(|execution| execution.outcome.as_str()).collect()
}

fn result(job: &v1::Job) -> Value {
    assert_eq!(job.state(), JobState::Succeeded, "{job:?}");
    serde_json::from_slice(&job.result).expect("JSON")
}

fn signal(pid: i32, signal: Signal) {
    kill_process(Pid::from_raw(pid).expect("a process"), signal).expect("it is there");
}

/// A program with one handler, `NAME`, which returns the number of its process.
fn program(name: &str, before: &str) -> String {
    format!(
        "{PROLOGUE}\n{before}\nhere('{name}')\n@handler('{name}')\ndef run_it(job):\n    return os.getpid()\nrun()\n"
    )
}

impl Cluster {
    /// A worker with these handlers: a name, which is the type of tasks, more settings, and a program.
    async fn supervised(&self, handlers: &[(&str, &str, String)]) -> Worker {
        let mut config = String::new();
        for (name, settings, program) in handlers {
            self.home.write(&format!("{name}.py"), program);
            config += &format!("[[handler]]\ntype = '{name}'\nsubprocess = ['python3', '{name}.py']\n{settings}\n");
        }
        let config = self.home.write("worker.toml", config);
        self.worker("supervised", &["--slots", "8", "--config", config.to_str().expect("UTF-8")]).await
    }

    /// The processes of a handler so far.
    fn pids(&self, name: &str) -> Vec<i32> {
        numbers(&self.home.path(&format!("{name}.pids")))
    }

    /// The n-th process of a handler, once it is there.
    async fn pid(&self, name: &str, n: usize) -> i32 {
        until(&format!("process {n} of {name} is there"), || async { self.pids(name).get(n).copied() }).await
    }

    async fn run_task(&self, name: &str) -> v1::Job {
        self.ended(&self.queue(task(name)).await).await
    }

    async fn restart(&self, worker: &Worker, handler: &str) {
        let said = self.hodei(&["worker", "restart", &worker.id, "--handler", handler]).await.ok();
        assert!(said.text().starts_with("restarting"), "{}", said.text());
    }

    async fn news(&self) -> News {
        let request = v1::StreamEventsRequest { kinds: vec!["supervision".into()], ..Default::default() };
        let stream = self.events().stream_events(request).await.expect("a stream").into_inner();
        News { stream, waiting: Vec::new(), told: Vec::new() }
    }
}

/// What is told of supervision.
struct News {
    stream: Streaming<v1::StreamEventsResponse>,
    waiting: Vec<v1::Event>,
    told: Vec<(String, String)>,
}

impl News {
    /// The next event, which must be this one of this handler.
    async fn expect(&mut self, handler: &str, event: &str) -> v1::Event {
        while self.waiting.is_empty() {
            let message = timeout(PATIENCE, self.stream.message()).await;
            let message = message.unwrap_or_else(|_| panic!("no {event} after {:?}", self.told));
            self.waiting = message.expect("a message").expect("the stream goes on").events;
        }
        let next = self.waiting.remove(0);
        self.told.push((next.what.clone(), next.r#type.clone()));
        let wanted = (handler, format!("supervision.{event}"));
        assert_eq!((next.what.as_str(), &next.r#type), (wanted.0, &wanted.1), "{} after {:?}", next.detail, self.told);
        next
    }
}

/// By the clock of the worker, which is also ours: how long an event is on its way to us says nothing.
fn since(moment: SystemTime, event: &v1::Event) -> i64 {
    let moment = moment.duration_since(UNIX_EPOCH).expect("after 1970").as_millis();
    event.at_ms - i64::try_from(moment).expect("before the year 292 million")
}

/// Replacements come so long after the failure, and then as fast as Python starts on a busy machine.
#[track_caller]
fn check_wait(failed: &v1::Event, replaced: &v1::Event, seconds: i64) {
    let waited = replaced.at_ms - failed.at_ms;
    let most = seconds * 1000 + 6000;
    assert!((seconds * 1000..most).contains(&waited), "replaced after {waited} ms, not {seconds} s");
}

/// Killed from outside, a critical process is noticed at once, and replaced after 1, 2 and 4 seconds; then it is given up, its type is
/// not offered, and nothing is tried until a person asks. Neither the other process of a pair nor another handler hears of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_critical_process_is_replaced_three_times_and_then_given_up_until_a_person_asks() {
    let cluster = Cluster::start().await;
    let neighbour = PROLOGUE.to_owned()
        + "here('neighbour')\n@handler('neighbour')\ndef neighbour(job):\n    wait_for(job, 'over')\n    return os.getpid()\nrun()\n";
    let worker = cluster
        .supervised(&[
            ("frail", "sla = 'critical'", program("frail", "")),
            ("neighbour", "sla = 'critical'\nprocesses = 2\nconcurrency = 1", neighbour),
        ])
        .await;
    let mut news = cluster.news().await;
    let beside = [cluster.queue(runs(task("neighbour"), 1)).await, cluster.queue(runs(task("neighbour"), 1)).await];
    for id in &beside {
        cluster.reached(id, JobState::Running).await;
    }

    for (n, wait) in [1, 2, 4].into_iter().enumerate() {
        let pid = cluster.pid("frail", n).await;
        assert_eq!(result(&cluster.run_task("frail").await), json!(pid));
        let killed = SystemTime::now();
        signal(pid, Signal::KILL);
        let crashed = news.expect("frail", "worker_crashed").await;
        assert!(since(killed, &crashed) < 1000, "noticed after {} ms", since(killed, &crashed));
        assert!(crashed.detail.contains("killed by signal 9"), "{crashed:?}");
        assert_eq!(crashed.subject, worker.id);
        let replaced = news.expect("frail", "worker_replaced").await;
        assert_eq!(replaced.detail, format!("restart {} of 3", n + 1));
        check_wait(&crashed, &replaced, wait);
    }
    signal(cluster.pid("frail", 3).await, Signal::KILL);
    news.expect("frail", "worker_crashed").await;
    let gave_up = news.expect("frail", "worker_failed_permanent").await;
    assert!(gave_up.detail.contains("after 3 restarts"), "{gave_up:?}");

    // Its tasks do not fail in a loop: they wait, and it is said why.
    let waits = cluster.queue(runs(task("frail"), 1)).await;
    let reason = "no connected worker handles tasks of type frail";
    until("it is said why it waits", || async { (cluster.job(&waits).await.waiting_reason == reason).then_some(()) })
        .await;
    let listed = cluster.hodei(&["worker", "list"]).await.ok();
    assert!(listed.text().contains("frail (critical, given up), neighbour (critical)"), "{}", listed.text());
    let unknown = cluster.hodei(&["worker", "restart", &worker.id, "--handler", "nobody"]).await;
    assert!(unknown.code != 0 && unknown.stderr.contains("no handler 'nobody'"), "{}", unknown.stderr);

    cluster.restart(&worker, "frail").await;
    // Not a word between the two: nothing was tried meanwhile.
    news.expect("frail", "worker_restart_asked").await;
    news.expect("frail", "worker_replaced").await;
    let job = cluster.ended(&waits).await;
    assert_eq!((result(&job), job.executions.len()), (json!(cluster.pid("frail", 4).await), 1));
    assert_eq!(cluster.pids("frail").len(), 5);

    cluster.home.write("over", "");
    for id in &beside {
        let job = cluster.ended(id).await;
        assert_eq!((job.state(), outcomes(&job)), (JobState::Succeeded, vec!["succeeded"]), "{job:?}");
    }
    assert_eq!(cluster.pids("neighbour").len(), 2, "the neighbours were not touched");
}

/// One of a pair is killed in the middle of a job: that job fails and is retried, that of the other goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_costs_only_what_the_process_held() {
    let cluster = Cluster::start().await;
    let pair = PROLOGUE.to_owned()
        + "here('pair')\n@handler('pair')\ndef pair(job):\n    print(os.getpid(), flush=True)\n    wait_for(job, 'over')\n    return os.getpid()\nrun()\n";
    let _worker = cluster.supervised(&[("pair", "sla = 'high'\nprocesses = 2\nconcurrency = 1", pair)]).await;
    let mut news = cluster.news().await;
    let jobs = [cluster.queue(runs(task("pair"), 2)).await, cluster.queue(runs(task("pair"), 2)).await];
    let mut held = Vec::new();
    for id in &jobs {
        let line = until("it says where it runs", || async {
            let log = crate::client::lines(&cluster.log(id).await);
            log.first().and_then(|line| line.parse::<i32>().ok())
        });
        held.push(line.await);
    }
    assert_ne!(held[0], held[1], "each has a process to itself");
    signal(held[0], Signal::KILL);
    let crashed = news.expect("pair", "worker_crashed").await;
    assert!(crashed.detail.starts_with("process "), "{crashed:?}");
    let replaced = news.expect("pair", "worker_replaced").await;
    check_wait(&crashed, &replaced, 1);
    cluster.home.write("over", "");
    let (killed, other) = (cluster.ended(&jobs[0]).await, cluster.ended(&jobs[1]).await);
    assert_eq!(outcomes(&killed), ["failed", "succeeded"], "{killed:?}");
    assert_eq!(killed.executions[0].error, "subprocess died: killed by signal 9");
    assert_eq!((result(&other), outcomes(&other)), (json!(held[1]), vec!["succeeded"]), "{other:?}");
}

/// What fails at once after its start is a persistent failure: it uses up its restarts. A job that came meanwhile was never
/// begun: it goes back to the queue without having used up an attempt, and runs when a person has put things right.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_persistent_failure_ends_in_worker_failed_permanent() {
    let cluster = Cluster::start().await;
    let broken = "if os.path.exists('broken'):\n    here('failed')\n    sys.exit('no model in file 12')\n";
    let worker = cluster.supervised(&[("model", "sla = 'high'", program("model", broken))]).await;
    let mut news = cluster.news().await;
    cluster.home.write("broken", "");
    signal(cluster.pid("model", 0).await, Signal::KILL);
    let first = news.expect("model", "worker_crashed").await;
    let id = cluster.queue(runs(task("model"), 1)).await;
    let second = news.expect("model", "worker_crashed").await;
    assert!(second.detail.starts_with("persistent: subprocess died: exited with code 1"), "{second:?}");
    let third = news.expect("model", "worker_crashed").await;
    check_wait(&first, &second, 1);
    check_wait(&second, &third, 2);
    let gave_up = news.expect("model", "worker_failed_permanent").await;
    assert!(gave_up.detail.starts_with("persistent after 2 restarts"), "{gave_up:?}");
    let job = cluster.reached(&id, JobState::Pending).await;
    assert_eq!((job.attempt, outcomes(&job)), (0, vec!["released"]), "{job:?}");

    // Asked too early, it is tried as often as before, and given up again.
    cluster.restart(&worker, "model").await;
    news.expect("model", "worker_restart_asked").await;
    for event in ["worker_crashed", "worker_crashed", "worker_crashed", "worker_failed_permanent"] {
        news.expect("model", event).await;
    }
    assert_eq!(cluster.pids("failed").len(), 2 + 3);
    std::fs::remove_file(cluster.home.path("broken")).expect("it was broken");
    cluster.restart(&worker, "model").await;
    news.expect("model", "worker_restart_asked").await;
    news.expect("model", "worker_replaced").await;
    let job = cluster.ended(&id).await;
    assert_eq!((result(&job), job.attempt), (json!(cluster.pid("model", 1).await), 1));
    assert_eq!(outcomes(&job).last(), Some(&"succeeded"), "{job:?}");
}

/// What fails at its start is supervised like what fails later: the worker starts, and the other handlers work.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_that_fails_at_its_start_keeps_no_other_from_working() {
    let cluster = Cluster::start().await;
    let mut news = cluster.news().await;
    let chatty = "import os, time\nos.write(1, b'hello, world')\ntime.sleep(1000)\n".to_owned();
    let broken = program("model", "if not os.path.exists('mended'):\n    sys.exit('no model')\n");
    let worker = cluster
        .supervised(&[
            ("chatty", "sla = 'best-effort'", chatty),
            ("model", "sla = 'normal'", broken),
            ("well", "", program("well", "")),
        ])
        .await;
    let talks = news.expect("chatty", "worker_crashed").await;
    assert!(talks.detail.contains("\"hello, world\"") && talks.detail.contains("standard output"), "{talks:?}");
    news.expect("chatty", "worker_failed_permanent").await;
    news.expect("model", "worker_crashed").await;
    result(&cluster.run_task("well").await);
    news.expect("model", "worker_crashed").await;
    news.expect("model", "worker_failed_permanent").await;

    let id = cluster.queue(task("model")).await;
    let given_up = "its handler model was given up after 1 restart; 'hodei worker restart' tries it again";
    until("it says why", || async {
        cluster.hodei(&["job", "explain", &id]).await.ok().text().contains(given_up).then_some(())
    })
    .await;
    cluster.home.write("mended", "");
    cluster.restart(&worker, "model").await;
    news.expect("model", "worker_restart_asked").await;
    news.expect("model", "worker_replaced").await;
    result(&cluster.ended(&id).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_signal_that_ends_a_process_is_known_through_its_shell() {
    let cluster = Cluster::start().await;
    cluster.home.write("shelled.py", program("shelled", ""));
    let handler = "shelled=subprocess:python3 shelled.py; exit $?";
    let _worker = cluster.worker("shelled", &["--handler", handler]).await;
    let mut news = cluster.news().await;
    signal(cluster.pid("shelled", 0).await, Signal::KILL);
    let crashed = news.expect("shelled", "worker_crashed").await;
    assert!(crashed.detail.contains("killed by signal 9"), "{crashed:?}");
}

/// A process that is stopped sends no heartbeats: three missed ones of its SLA are enough. Best-effort is never replaced.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_process_hangs_after_three_heartbeats_and_best_effort_is_never_replaced() {
    let cluster = Cluster::start().await;
    let worker = cluster
        .supervised(&[
            ("watched", "sla = 'critical'", program("watched", "")),
            ("extra", "sla = 'best-effort'", program("extra", "")),
        ])
        .await;
    let mut news = cluster.news().await;
    let pid = cluster.pid("watched", 0).await;
    assert_eq!(result(&cluster.run_task("watched").await), json!(pid));
    let stopped = SystemTime::now();
    signal(pid, Signal::STOP);
    let hanging = news.expect("watched", "worker_hanging").await;
    // Its last heartbeat was up to one before the stop.
    let noticed = since(stopped, &hanging);
    assert!((1990..4500).contains(&noticed), "noticed after {noticed} ms");
    assert!(hanging.detail.contains("no heartbeat for 3s"), "{hanging:?}");
    let replaced = news.expect("watched", "worker_replaced").await;
    check_wait(&hanging, &replaced, 1);
    assert!(!is_alive(pid), "it was killed");
    assert_eq!(result(&cluster.run_task("watched").await), json!(cluster.pid("watched", 1).await));

    signal(cluster.pid("extra", 0).await, Signal::KILL);
    news.expect("extra", "worker_crashed").await;
    let gave_up = news.expect("extra", "worker_failed_permanent").await;
    assert!(gave_up.detail.contains("after 0 restarts"), "{gave_up:?}");
    cluster.restart(&worker, "extra").await;
    news.expect("extra", "worker_restart_asked").await;
    news.expect("extra", "worker_replaced").await;
    assert_eq!(result(&cluster.run_task("extra").await), json!(cluster.pid("extra", 1).await));
    assert_eq!((cluster.pids("watched").len(), cluster.pids("extra").len()), (2, 2));
}

/// A process that beats but does not begin what it took does not produce: it is replaced, and the job runs on the next one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_does_not_produce_is_replaced() {
    let cluster = Cluster::start().await;
    let stuck = "import hodei_handler
if not os.path.exists('stuck'):
    open('stuck', 'w').close()
    hodei_handler._Program._work = lambda self: time.sleep(600)
";
    let _worker = cluster.supervised(&[("idler", "sla = 'critical'", program("idler", stuck))]).await;
    let mut news = cluster.news().await;
    let id = cluster.queue(runs(task("idler"), 2)).await;
    let late = news.expect("idler", "worker_not_producing").await;
    assert!(late.detail.contains("was not begun within 10s"), "{late:?}");
    news.expect("idler", "worker_replaced").await;
    let job = cluster.ended(&id).await;
    assert_eq!(outcomes(&job), ["failed", "succeeded"], "{job:?}");
    assert_eq!(result(&job), json!(cluster.pid("idler", 1).await));
}

/// Processes are made when none is warm, reused while they are, and ended when nobody has needed them for a while.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn warm_processes_are_reused_and_those_beyond_end_when_idle() {
    let cluster = Cluster::start().await;
    let crowd = PROLOGUE.to_owned()
        + "here('crowd')\n@handler('crowd')\ndef crowd(job):\n    here('began')\n    wait_for(job, 'over')\n    return os.getpid()\nrun()\n";
    let settings = "sla = 'critical'\nprocesses = 3\nwarm = 1\nidle = '2s'\nconcurrency = 1";
    let _worker = cluster.supervised(&[("crowd", settings, crowd)]).await;
    let warm = cluster.pid("crowd", 0).await;
    assert_eq!(cluster.pids("crowd"), [warm], "only what is kept warm is started");

    // Three at one time need three processes; the fourth waits for one of them.
    let jobs = cluster.queue_all(vec![task("crowd"); 4]).await.expect("jobs");
    cluster.pid("began", 2).await;
    cluster.home.write("over", "");
    let mut used = Vec::new();
    for id in &jobs {
        used.push(result(&cluster.ended(id).await).as_i64().expect("a number") as i32);
    }
    let mut pids = cluster.pids("crowd");
    assert_eq!(pids.len(), 3, "no more than allowed");
    used.sort_unstable();
    used.dedup();
    pids.sort_unstable();
    assert_eq!(used, pids, "all of them worked");

    // The next one finds a warm one.
    let again = result(&cluster.run_task("crowd").await).as_i64().expect("a number") as i32;
    assert!(pids.contains(&again) && cluster.pids("crowd").len() == 3);
    let alive = || pids.iter().copied().filter(|pid| is_alive(*pid)).collect::<Vec<_>>();
    let left = until("the others have ended", || async { Some(alive()).filter(|alive| alive.len() == 1) }).await;
    assert_eq!(left, [again], "the one that was used last is kept");
    assert_eq!(result(&cluster.run_task("crowd").await), json!(again));
    assert_eq!(cluster.pids("crowd").len(), 3, "nobody had to be made");
}

/// A person may also have a handler replaced that does well: it finishes what it holds first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_that_does_well_is_renewed_in_order() {
    let cluster = Cluster::start().await;
    let steady = PROLOGUE.to_owned()
        + "here('steady')\n@handler('steady')\ndef steady(job):\n    wait_for(job, 'over')\n    return os.getpid()\nrun()\n";
    let worker = cluster.supervised(&[("steady", "", steady)]).await;
    let mut news = cluster.news().await;
    let before = cluster.pid("steady", 0).await;
    let held = cluster.queue(runs(task("steady"), 1)).await;
    cluster.reached(&held, JobState::Running).await;
    let path = format!("/workers/{}/restart", worker.id);
    cluster.rest().post(&path, &json!({ "handler": "stedy" })).await.problem(404);
    let answer = cluster.rest().post(&path, &json!({ "handler": "steady" })).await.with(202);
    assert_eq!(answer["handlers"], json!([{ "name": "steady", "sla": "normal", "given_up": false }]));
    news.expect("steady", "worker_restart_asked").await;
    let next = cluster.queue(runs(task("steady"), 1)).await;
    cluster.home.write("over", "");
    assert_eq!(result(&cluster.ended(&held).await), json!(before));
    news.expect("steady", "worker_replaced").await;
    assert_eq!(result(&cluster.ended(&next).await), json!(cluster.pid("steady", 1).await));
    let audit = cluster.audit("", "workers.restart").await;
    assert_eq!(audit.iter().filter(|line| line.outcome == "ok").count(), 1, "{audit:?}");
}

/// Processes end with the worker's lease and with its guardian, which is no failure of theirs: however often that happens, they are
/// there again afterwards.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_end_of_a_lease_is_no_crash() {
    let mut cluster = Cluster::with(&SHORT_LEASE).await;
    let _worker = cluster.supervised(&[("leased", "sla = 'best-effort'", program("leased", ""))]).await;
    for n in 0..2 {
        // Whoever has done a job has a lease.
        let pid = cluster.pid("leased", n).await;
        assert_eq!(result(&cluster.run_task("leased").await), json!(pid));
        cluster.server.kill();
        until("the lease has ended it", || async { (!is_alive(pid)).then_some(()) }).await;
        cluster.start_server().await;
    }
    assert_eq!(result(&cluster.run_task("leased").await), json!(cluster.pid("leased", 2).await));
    let mut news = cluster.news().await;
    signal(cluster.pid("leased", 2).await, Signal::KILL);
    let crashed = news.expect("leased", "worker_crashed").await;
    assert!(crashed.detail.contains("killed by signal 9"), "{crashed:?}");
    assert_eq!(cluster.pids("leased").len(), 3);
}
