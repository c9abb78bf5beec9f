//! Workers on demand: processes that a server makes when jobs fit no worker, and removes when nobody needs them.

use crate::{
    client::{Client, lines, shell},
    cluster::{Cluster, Heard},
    process::{is_alive, until, until_true},
};
use hodei_api::v1::{self, JobState, WorkerState};
use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::PathBuf,
    sync::atomic::{AtomicUsize, Ordering},
};
use tonic::Code;

/// Where the workers of the provider `local` are kept.
fn kept(cluster: &Cluster) -> PathBuf {
    cluster.home.path("data").join("fleet/local")
}

/// The workers that exist, as folders.
fn made(folder: &PathBuf) -> usize {
    fs::read_dir(folder).into_iter().flatten().count()
}

async fn nobody_left(cluster: &Cluster) {
    until("no worker is left", || async { cluster.workers().await.is_empty().then_some(()) }).await;
    let folder = kept(cluster);
    until_true("nothing of a worker is left", || made(&folder) == 0).await;
}

async fn with_provider(cap: &str) -> Cluster {
    let cluster = Cluster::start().await;
    cluster.hodei(&["provider", "add", "local", "--kind", "process", "--cap", cap]).await.ok();
    cluster
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_fits_no_worker_gets_one_made_for_it_alone() {
    let cluster = with_provider("3").await;
    let heard = Heard::of(&cluster, "worker").await;
    cluster.hodei(&["pool", "set", "once", "--reuse", "never"]).await.ok();
    let ran = cluster.hodei(&["run", "--", "sh", "-c", "echo hello; env"]).await.ok();
    assert!(ran.text().starts_with("hello\n"), "{ran:?}");
    assert!(!ran.text().contains("HODEI_TOKEN"), "no job sees how its worker got in: {ran:?}");
    assert!(!ran.text().contains("HODEI_SERVER"), "{ran:?}");
    nobody_left(&cluster).await;
    for state in ["creating", "connecting", "ready", "terminating", "terminated"] {
        heard.of_something(&format!("worker.{state}")).await;
    }
    heard.of_something("did its one job").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_cap_holds_and_nothing_is_left_even_when_the_server_is_killed() {
    let mut cluster = with_provider("3").await;
    cluster.hodei(&["pool", "set", "once", "--reuse", "never"]).await.ok();
    let (folder, most) = (kept(&cluster), AtomicUsize::new(0));
    let mut jobs = Vec::new();
    for n in 0..8 {
        jobs.push(cluster.queue(shell(format!("sleep 0.2; echo {n}"))).await);
    }
    let look = || {
        most.fetch_max(made(&folder), Ordering::Relaxed);
    };
    until("some have run", || async {
        look();
        let done = cluster.list().await.iter().filter(|job| job.state() == JobState::Succeeded).count();
        (done >= 2).then_some(())
    })
    .await;
    cluster.crash_server().await;
    for (n, job) in jobs.iter().enumerate() {
        let end = until("it has ended", || async {
            look();
            Some(cluster.job(job).await).filter(|job| job.finished_at_ms > 0)
        })
        .await;
        assert_eq!(end.state(), JobState::Succeeded, "{end:?}");
        assert_eq!(lines(&cluster.log(job).await).last().map(String::as_str), Some(n.to_string().as_str()));
    }
    let most = most.load(Ordering::Relaxed);
    assert!((1..=3).contains(&most), "at one time there were {most}");
    nobody_left(&cluster).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_never_registers_is_removed_and_what_it_printed_is_told() {
    let cluster = Cluster::with_config("[fleet]\nregistration_timeout = '1s'").await;
    let agent = cluster.home.write("agent.sh", "#!/bin/sh\necho there is no way in\nexec sleep 1000\n");
    fs::set_permissions(&agent, fs::Permissions::from_mode(0o755)).expect("a program");
    let setting = format!("agent={}", agent.display());
    cluster.hodei(&["provider", "add", "local", "--kind", "process", "--set", &setting]).await.ok();
    cluster.hodei(&["pool", "set", "once"]).await.ok();
    let heard = Heard::of(&cluster, "provider").await;
    let job = cluster.queue(shell("true")).await;
    let failed = heard.of_something("provider.failed").await;
    assert!(failed.contains("did not register within 1 s") && failed.contains("there is no way in"), "{failed}");
    assert_eq!(cluster.job(&job).await.state(), JobState::Pending, "it waits for a better one");
    cluster.cancel(&job).await.expect("cancelled");
    nobody_left(&cluster).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_door_of_workers_serves_workers_alone_and_each_only_itself() {
    let cluster = Cluster::start().await;
    let path = cluster.home.path("data").join("door/hodei.sock");
    assert_eq!(fs::metadata(&path).expect("a socket").permissions().mode() & 0o777, 0o666);
    let door = Client::of_socket(&path);
    let refused = door.admin().list_workers(v1::ListWorkersRequest {}).await.expect_err("not for workers");
    assert_eq!(refused.code(), Code::Unimplemented, "{refused:?}");
    let refused = door.jobs().queue_job(v1::QueueJobRequest { job: Some(shell("true")) }).await;
    assert_eq!(refused.expect_err("not for workers").code(), Code::Unimplemented);
    let (mine, other) = (cluster.token("", 0).await, cluster.token("", 0).await);
    let register = |token: &str, worker: &str| v1::RegisterRequest {
        token: token.to_owned(),
        worker_id: worker.to_owned(),
        key: vec![7; 32],
        info: Some(v1::WorkerInfo {
            capacity: Some(v1::Capacity { slots: 1, ..Default::default() }),
            ..Default::default()
        }),
    };
    let refused = door.agents().register(register(&mine.token, &other.worker_id)).await.expect_err("another's token");
    assert_eq!(refused.code(), Code::Unauthenticated, "{refused:?}");
    let registered =
        door.agents().register(register(&mine.token, &mine.worker_id)).await.expect("its own").into_inner();
    assert_eq!(registered.worker_id, mine.worker_id);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_warm_pool_stands_ready_and_is_filled_up_again() {
    let cluster = with_provider("5").await;
    cluster.hodei(&["pool", "set", "warm", "--warm", "2", "--reuse", "never"]).await.ok();
    let filled = || async {
        let workers = cluster.workers().await;
        let ready: Vec<String> = workers
            .iter()
            .filter(|worker| worker.state() == WorkerState::Ready)
            .map(|worker| worker.id.clone())
            .collect();
        (ready.len() == 2).then_some(ready)
    };
    let first = until("two stand ready", filled).await;
    let job = cluster.queue(shell("true")).await;
    let end = cluster.ended(&job).await;
    assert_eq!(end.state(), JobState::Succeeded, "{end:?}");
    assert!(first.contains(&end.executions[0].worker_id), "it went to one that stood ready");
    let then = until("two stand ready again", filled).await;
    assert!(!then.contains(&end.executions[0].worker_id), "the used one is gone");
    cluster.hodei(&["pool", "set", "warm", "--warm", "0"]).await.ok();
    cluster.hodei(&["pool", "remove", "warm"]).await.ok();
    nobody_left(&cluster).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_outlive_their_server_and_are_taken_back() {
    let mut cluster = with_provider("2").await;
    cluster.hodei(&["pool", "set", "small", "--idle-timeout", "5m"]).await.ok();
    let first = cluster.ended(&cluster.queue(shell("true")).await).await;
    let worker = first.executions[0].worker_id.clone();
    cluster.stop_server().await;
    cluster.start_server().await;
    cluster.connected(&worker).await;
    let second = cluster.ended(&cluster.queue(shell("true")).await).await;
    assert_eq!(second.executions[0].worker_id, worker, "the one that was there");
    let shown = cluster.hodei(&["worker", "list", "--json"]).await.ok().json();
    assert_eq!((shown[0]["provider"].as_str(), shown[0]["template"].as_str()), (Some("local"), Some("small")));
    // One that nobody knows of was left behind.
    let stray = kept(&cluster).join(uuid::Uuid::now_v7().to_string());
    fs::create_dir_all(stray.join("data")).expect("a folder");
    fs::write(stray.join("agent.json"), "{\"pid\":0}").expect("a file");
    cluster.crash_server().await;
    until_true("what nobody knows is removed", || !stray.exists()).await;
    cluster.hodei(&["provider", "remove", "local"]).await.ok();
    nobody_left(&cluster).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_with_a_deadline_gives_back_what_still_runs() {
    let cluster = Cluster::start().await;
    let first = cluster.worker("first", &["--slots", "1"]).await;
    let pid = cluster.home.path("pid");
    let job = cluster.queue(shell(format!("echo $$ >> {}; sleep 30", pid.display()))).await;
    cluster.reached(&job, JobState::Running).await;
    until_true("it has begun", || cluster.home.read("pid").ends_with('\n')).await;
    let runs: i32 = cluster.home.read("pid").trim().parse().expect("a process");
    let drained = ["worker", "drain", &first.id, "--deadline", "300ms", "--reason", "the machine goes away"];
    cluster.hodei(&drained).await.ok();
    let shown = cluster.hodei(&["worker", "list"]).await.ok();
    assert!(shown.text().contains("the machine goes away") || shown.text().lines().count() == 1, "{shown:?}");
    let given_back = cluster.reached(&job, JobState::Pending).await;
    assert!(!is_alive(runs), "it was ended");
    assert_eq!(given_back.attempt, 0, "a run that was given back does not count: {given_back:?}");
    until("it has left", || async { cluster.workers().await.is_empty().then_some(()) }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn providers_and_pools_can_be_in_the_configuration_and_mistakes_are_named() {
    let config = "
[[provider]]
name = 'local'
kind = 'process'
cap = 2
[[template]]
name = 'small'
capacity = { slots = 2 }
idle_timeout = '5m'
";
    let mut cluster = Cluster::with_config(config).await;
    cluster.hodei(&["run", "--", "true"]).await.ok();
    cluster.crash_server().await;
    let shown = cluster.hodei(&["pool", "show", "small", "--json"]).await.ok().json();
    assert_eq!((shown["capacity"]["slots"].as_i64(), shown["idle_timeout_ms"].as_i64()), (Some(2), Some(300_000)));
    until("the provider was asked", || async {
        (cluster.provider("local").await.health() == v1::ProviderHealth::Healthy).then_some(())
    })
    .await;
    let checked = cluster.hodei(&["provider", "health", "local", "--json"]).await.ok().json();
    assert_eq!((checked["health"].as_str(), checked["cap"].as_i64()), (Some("healthy"), Some(2)));
    for (args, said) in [
        (&["provider", "add", "local", "--kind", "process"][..], "change it with 'hodei provider set local'"),
        (&["provider", "add", "x", "--kind", "process", "--set", "hots=1"], "hots"),
        (&["provider", "health", "nobody"], "no provider 'nobody'"),
        (&["pool", "set", "a/b"], "name"),
        (&["pool", "set", "x", "--mount", "a:/b"], "mounts[0].source"),
    ] {
        let ran = cluster.hodei(args).await;
        assert!(ran.code != 0 && ran.stderr.contains(said), "{args:?}: {ran:?}");
    }
    cluster.hodei(&["provider", "disable", "local"]).await.ok();
    let listed = cluster.hodei(&["provider", "list"]).await.ok();
    assert!(listed.text().contains("disabled"), "{listed:?}");
    cluster.hodei(&["provider", "remove", "local"]).await.ok();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_provider_that_is_changed_in_the_configuration_is_changed_and_keeps_its_workers() {
    let config = |cap: u32, more: &str| format!("[[provider]]\nname = 'local'\nkind = 'process'\ncap = {cap}\n{more}");
    let mut cluster = Cluster::with_config(&config(1, "")).await;
    cluster.hodei(&["pool", "set", "small", "--idle-timeout", "5m"]).await.ok();
    let first = cluster.ended(&cluster.queue(shell("true")).await).await;
    let worker = first.executions[0].worker_id.clone();
    let heard = Heard::of(&cluster, "provider").await;
    cluster.hodei(&["provider", "set", "local", "--kind", "process", "--cap", "3"]).await.ok();
    heard.of_something("provider.changed").await;
    assert_eq!(cluster.provider("local").await.spec.expect("a spec").cap, 3);
    // What the configuration names is as the configuration says.
    cluster.home.write("config.toml", config(2, "cost = 7\nsettings = { agent = '/bin/true' }"));
    cluster.crash_server().await;
    let shown = cluster.provider("local").await;
    let spec = shown.spec.expect("a spec");
    assert_eq!((spec.cap, spec.cost, spec.settings["agent"].as_str()), (2, 7, "/bin/true"));
    cluster.connected(&worker).await;
    let second = cluster.ended(&cluster.queue(shell("true")).await).await;
    assert_eq!(second.executions[0].worker_id, worker, "the worker is still there");
    // It cannot be moved while it has workers, which nobody would find any more.
    let moved = cluster.hodei(&["provider", "set", "local", "--kind", "docker"]).await;
    assert!(moved.code != 0 && moved.stderr.contains("has 1 workers where it is now"), "{moved:?}");
    cluster.home.write("config.toml", "[[provider]]\nname = 'local'\nkind = 'docker'\n");
    cluster.crash_server().await;
    assert!(cluster.server.log().contains("not as in the configuration"), "{}", cluster.server.log());
    assert_eq!(cluster.provider("local").await.spec.expect("a spec").kind, "process");
    cluster.hodei(&["provider", "remove", "local"]).await.ok();
    nobody_left(&cluster).await;
}
