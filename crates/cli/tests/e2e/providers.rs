//! Workers that a provider made, at work: what their jobs find, and that nothing of them outlives the worker.

use crate::{
    client::{lines, shell},
    cluster::Cluster,
    engine::Engine,
    process::{HODEI, is_alive, numbers, until, until_true},
};
use hodei_api::v1::JobState;
use hodei_core::id::WorkerId;
use hodei_provider::{
    DockerProvider, DockerSettings, Order, ProcessProvider, ProcessSettings, Provider, ServerAddress,
};
use rustix::process::{Pid, Signal, kill_process};
use std::{collections::BTreeMap, path::Path, sync::Arc};

async fn order(cluster: &Cluster) -> Order {
    let token = cluster.token("", 0).await;
    Order {
        worker: token.worker_id.parse().expect("an id"),
        template: "test".into(),
        image: None,
        cpu_millis: 0,
        memory_bytes: 0,
        gpus: 0,
        arguments: vec!["--slots".into(), "2".into()],
        environment: BTreeMap::from([("MODE".to_owned(), "fast".to_owned())]),
        token: token.token,
        server: ServerAddress::Socket(cluster.home.path("data").join("hodei.sock")),
        mounts: Vec::new(),
        network: None,
    }
}

/// Makes a worker and waits until it can be given jobs.
async fn made(cluster: &Cluster, provider: &dyn Provider) -> WorkerId {
    let order = order(cluster).await;
    let worker = order.worker;
    provider.create_worker(Arc::new(order), Arc::new(|_| {})).await.expect("made");
    cluster.connected(&worker.to_string()).await;
    worker
}

/// A job that writes down its processes and those that it left behind, and stays.
async fn clinging(cluster: &Cluster, pids: &Path) {
    let script = format!("setsid sleep 1000 & echo $! >> {0}; echo $$ >> {0}; wait", pids.display());
    cluster.queue(shell(script)).await;
    until_true("the job has forked", || numbers(pids).len() == 2).await;
}

/// The parents of a process, up to the one that was started with this data folder.
fn up_to(mut pid: i32, data: &Path) -> Vec<i32> {
    let mark = format!("HODEI_DATA={}", data.display());
    let mut found = Vec::new();
    loop {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("a process");
        let parent = stat.rsplit_once(") ").expect("a stat").1.split(' ').nth(1).expect("a parent");
        pid = parent.parse().expect("a number");
        found.push(pid);
        let environment = std::fs::read(format!("/proc/{pid}/environ")).expect("an environment");
        if environment.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes()) {
            return found;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_of_a_process_worker_outlives_it_however_it_ends() {
    let cluster = Cluster::start().await;
    let folder = cluster.home.path("workers");
    let settings = ProcessSettings { agent: Some(HODEI.into()) };
    let provider = ProcessProvider::new(folder.clone(), settings);
    for murder in [false, true] {
        let worker = made(&cluster, &provider).await;
        let said = cluster.queue(shell("echo $MODE $HODEI_SERVER$HODEI_TOKEN$HODEI_DATA")).await;
        assert_eq!(cluster.ended(&said).await.state(), JobState::Succeeded);
        assert_eq!(lines(&cluster.log(&said).await), ["fast"]);
        let pids = cluster.home.path(if murder { "killed" } else { "removed" });
        clinging(&cluster, &pids).await;
        let family = up_to(numbers(&pids)[1], &folder.join(worker.to_string()).join("data"));
        if murder {
            // The guardian and the agent at once: nobody is left to end the job.
            for pid in &family {
                kill_process(Pid::from_raw(*pid).expect("a number"), Signal::KILL).expect("killed");
            }
            until_true("the agent is gone", || !family.iter().any(|pid| is_alive(*pid))).await;
            assert!(numbers(&pids).iter().all(|pid| is_alive(*pid)));
        }
        provider.destroy_worker(worker).await.expect("removed");
        assert!(!family.iter().chain(&numbers(&pids)).any(|pid| is_alive(*pid)));
        assert_eq!(provider.list().await.expect("a list"), []);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_image_that_knows_nothing_of_hodei_runs_jobs() {
    let Some(engine) = Engine::find().await else { return };
    let cluster = Cluster::start().await;
    let settings = DockerSettings {
        host: engine.socket.display().to_string(),
        agent: Some(engine.agent.clone().into()),
        network: "none".to_owned(),
        image: Some(engine.image.clone()),
        ..DockerSettings::default()
    };
    let provider = DockerProvider::new(&uuid::Uuid::new_v4().to_string(), settings).expect("a provider");
    let worker = made(&cluster, &provider).await;
    // What the image says, what the template says, and a program where the image has its own.
    let said = cluster
        .queue(shell("echo $COLOUR $MODE $PATH; ls / | grep -c .; echo text > $TMPDIR/file; ls -A $TMPDIR"))
        .await;
    assert_eq!(cluster.ended(&said).await.state(), JobState::Succeeded);
    let printed = lines(&cluster.log(&said).await);
    assert_eq!((printed[0].as_str(), printed[2].as_str()), ("blue fast /bin", "file"));
    // Orphans are ended and reaped, so that no dead process fills up the container.
    let orphans = (0..5).map(|_| cluster.queue(shell("for i in 1 2 3; do (setsid sleep 100 &); (true &); done")));
    for job in futures::future::join_all(orphans).await {
        assert_eq!(cluster.ended(&job).await.state(), JobState::Succeeded);
    }
    let left = "grep -c ') Z ' /proc/[0-9]*/stat | grep -c ':1$'; ps | grep -c '[s]leep'; true";
    until("nothing is left of the orphans", || async {
        let count = cluster.queue(shell(left)).await;
        cluster.ended(&count).await;
        (lines(&cluster.log(&count).await) == ["0", "0"]).then_some(())
    })
    .await;
    provider.destroy_worker(worker).await.expect("removed");
    assert_eq!(provider.list().await.expect("a list"), []);
}
