//! Workers that a provider made and that are told to end from outside: they finish what they run, take nothing new, and are
//! removed by their provider.

use crate::{
    client::shell,
    cluster::{Cluster, Heard},
    engine::Engine,
    process::{until, until_true},
};
use hodei_api::v1::{JobState, WorkerState};
use rustix::process::{Pid, Signal, kill_process};
use std::path::Path;

/// SIGTERM to a worker of the pool `small` while it runs a job that ends when the file `go` is in `folder`.
async fn leaves_in_order(cluster: &Cluster, folder: &str, terminate: impl FnOnce(&str)) {
    let heard = Heard::of(cluster, "worker").await;
    let patient = cluster.queue(shell(format!("until [ -e {folder}/go ]; do sleep 0.05; done"))).await;
    let worker = cluster.reached(&patient, JobState::Running).await.executions[0].worker_id.clone();
    terminate(&worker);
    until("it is draining", || async {
        let workers = cluster.workers().await;
        workers.iter().any(|it| it.id == worker && it.state() == WorkerState::Draining).then_some(())
    })
    .await;
    let later = cluster.ended(&cluster.queue(shell("true")).await).await;
    assert_eq!(later.state(), JobState::Succeeded, "{later:?}");
    assert_ne!(later.executions[0].worker_id, worker, "it takes nothing new");
    assert_eq!(cluster.job(&patient).await.state(), JobState::Running, "and goes on with what it has");
    cluster.home.write("shared/go", "");
    let done = cluster.ended(&patient).await;
    assert_eq!((done.state(), done.executions.len()), (JobState::Succeeded, 1), "{done:?}");
    let told = heard.of_one(&worker, "worker.terminated").await;
    let states = ["creating", "connecting", "ready", "busy", "draining", "terminating", "terminated"];
    assert_eq!(told, states.map(|state| format!("worker.{state}")));
    heard.of_something("worker.terminated left by itself").await;
}

fn shared(cluster: &Cluster) -> String {
    let folder = cluster.home.path("shared");
    std::fs::create_dir(&folder).expect("a folder");
    folder.display().to_string()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_is_told_to_end_finishes_its_job_and_is_removed() {
    let cluster = Cluster::start().await;
    let folder = shared(&cluster);
    cluster.hodei(&["provider", "add", "local", "--kind", "process"]).await.ok();
    cluster.hodei(&["pool", "set", "small"]).await.ok();
    let kept = cluster.home.path("data").join("fleet/local");
    leaves_in_order(&cluster, &folder, |worker| {
        let agent = std::fs::read(kept.join(worker).join("agent.json")).expect("what is known of the agent");
        let agent: serde_json::Value = serde_json::from_slice(&agent).expect("JSON");
        let process = agent["pid"].as_i64().and_then(|pid| Pid::from_raw(pid.try_into().ok()?)).expect("a process");
        kill_process(process, Signal::TERM).expect("it is there");
    })
    .await;
    cluster.hodei(&["provider", "remove", "local"]).await.ok();
    until_true("nothing of a worker is left", || is_empty(&kept)).await;
}

fn is_empty(folder: &Path) -> bool {
    std::fs::read_dir(folder).into_iter().flatten().count() == 0
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_container_that_is_told_to_end_finishes_its_job_and_is_removed() {
    let Some(engine) = Engine::find().await else { return };
    let cluster = Cluster::start().await;
    let mount = format!("{}:/shared", shared(&cluster));
    let name = format!("leave-{}", std::process::id());
    engine.add_to(&cluster, &name, "2", &engine.socket).await;
    cluster.hodei(&["pool", "set", "small", "--image", &engine.image, "--mount", &mount]).await.ok();
    leaves_in_order(&cluster, "/shared", |worker| {
        let container = engine.names(&name).into_iter().find(|name| name.contains(worker)).expect("a container");
        engine.ask("POST", &format!("/containers/{container}/kill?signal=SIGTERM"));
    })
    .await;
    cluster.hodei(&["provider", "remove", &name]).await.ok();
    engine.nothing_left(&cluster, &name).await;
}
