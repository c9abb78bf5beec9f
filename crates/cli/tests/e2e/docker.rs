//! Workers on demand in containers of a real Docker engine, from images that know nothing of Hodei.

use crate::{
    client::{lines, shell},
    cluster::{Cluster, Heard},
    process::{until, until_true},
};
use hodei_api::v1::{self, JobState};
use std::{
    io::{Read, Write},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};
use tokio::net::{UnixListener, UnixStream as Stream};

/// The engine and the agent that `cargo xtask test` provides.
struct Engine {
    socket: PathBuf,
    agent: String,
    image: String,
}

impl Engine {
    /// None where there is none: everything else is tested without.
    fn find() -> Option<Self> {
        let host = std::env::var("HODEI_TEST_DOCKER").ok()?;
        let agent = std::env::var("HODEI_TEST_AGENT").ok()?;
        let image = std::env::var("HODEI_TEST_IMAGE").unwrap_or_else(|_| "hodei-test/busybox:1".into());
        Some(Self { socket: host.strip_prefix("unix://")?.into(), agent, image })
    }

    /// The containers that carry this name in their labels, whatever state they are in.
    fn containers(&self, named: &str) -> usize {
        let mut stream = UnixStream::connect(&self.socket).expect("the engine");
        let request = "GET /containers/json?all=1 HTTP/1.0\r\nHost: docker\r\n\r\n";
        stream.write_all(request.as_bytes()).expect("a request");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        let body = answer.split_once("\r\n\r\n").expect("a body").1;
        let listed: Vec<serde_json::Value> = serde_json::from_str(body).expect("JSON");
        listed.iter().filter(|container| container["Labels"].to_string().contains(named)).count()
    }

    async fn add_to(&self, cluster: &Cluster, name: &str, cap: &str, host: &Path) {
        let host = format!("host=unix://{}", host.display());
        let agent = format!("agent={}", self.agent);
        let args = ["provider", "add", name, "--kind", "docker", "--cap", cap, "--set", &host, "--set", &agent];
        cluster.hodei(&[&args[..], &["--set", "pull=never"]].concat()).await.ok();
    }
}

async fn nobody_left(cluster: &Cluster) {
    until("no worker is left", || async { cluster.workers().await.is_empty().then_some(()) }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_jobs_under_a_cap_of_five_leave_nothing_even_when_the_server_is_killed() {
    let Some(engine) = Engine::find() else { return };
    let mut cluster = Cluster::start().await;
    let name = format!("cap-{}", std::process::id());
    engine.add_to(&cluster, &name, "5", &engine.socket).await;
    cluster.hodei(&["pool", "set", "once", "--image", &engine.image, "--reuse", "never"]).await.ok();
    let most = AtomicUsize::new(0);
    let look = || _ = most.fetch_max(engine.containers(&name), Ordering::Relaxed);
    let mut jobs = Vec::new();
    for n in 0..20 {
        jobs.push(cluster.queue(shell(format!("echo {n} $COLOUR"))).await);
    }
    until("some have run", || async {
        look();
        let done = cluster.list().await.iter().filter(|job| job.state() == JobState::Succeeded).count();
        (done >= 4).then_some(())
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
        assert_eq!(lines(&cluster.log(job).await), [format!("{n} blue")], "the image's own environment is there");
    }
    let most = most.load(Ordering::Relaxed);
    assert!((1..=5).contains(&most), "at one time there were {most}");
    nobody_left(&cluster).await;
    until_true("no container is left", || engine.containers(&name) == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_image_that_is_not_there_fails_its_job_at_once_and_a_good_one_runs() {
    let Some(engine) = Engine::find() else { return };
    let cluster = Cluster::start().await;
    let name = format!("image-{}", std::process::id());
    engine.add_to(&cluster, &name, "2", &engine.socket).await;
    let ran = cluster.hodei(&["run", "--image", &engine.image, "--", "sh", "-c", "echo $COLOUR"]).await.ok();
    assert_eq!(ran.text(), "blue\n", "{ran:?}");
    let bad = cluster.hodei(&["run", "--image", "hodei-test/nothing:1", "--", "true"]).await;
    assert!(bad.code != 0 && bad.stderr.contains("hodei-test/nothing"), "{bad:?}");
    cluster.hodei(&["provider", "remove", &name]).await.ok();
    nobody_left(&cluster).await;
    until_true("no container is left", || engine.containers(&name) == 0).await;
}

/// Stands before the engine's socket, and can be cut.
struct Cut {
    socket: PathBuf,
    open: Arc<AtomicBool>,
}

impl Cut {
    fn before(engine: &Engine, at: PathBuf) -> Self {
        let (open, target) = (Arc::new(AtomicBool::new(true)), engine.socket.clone());
        let (listener, passes) = (UnixListener::bind(&at).expect("a socket"), Arc::clone(&open));
        tokio::spawn(async move {
            while let Ok((mut ours, _)) = listener.accept().await {
                let (target, passes) = (target.clone(), Arc::clone(&passes));
                tokio::spawn(async move {
                    if !passes.load(Ordering::Relaxed) {
                        return;
                    }
                    if let Ok(mut theirs) = Stream::connect(target).await {
                        _ = tokio::io::copy_bidirectional(&mut ours, &mut theirs).await;
                    }
                });
            }
        });
        Self { socket: at, open }
    }

    fn set(&self, open: bool) {
        self.open.store(open, Ordering::Relaxed);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_that_goes_away_is_unhealthy_and_its_jobs_wait_or_go_elsewhere() {
    let Some(engine) = Engine::find() else { return };
    let cluster = Cluster::start().await;
    let name = format!("cut-{}", std::process::id());
    let cut = Cut::before(&engine, cluster.home.path("engine.sock"));
    engine.add_to(&cluster, &name, "2", &cut.socket).await;
    cluster.hodei(&["pool", "set", "once", "--image", &engine.image, "--reuse", "never"]).await.ok();
    cut.set(false);
    let checked = cluster.hodei(&["provider", "health", &name, "--json"]).await.ok().json();
    assert_eq!(checked["health"].as_str(), Some("unhealthy"), "{checked}");
    let job = cluster.queue(shell("true")).await;
    until("it is said why it waits", || async {
        let reason = cluster.job(&job).await.waiting_reason;
        reason.contains("unhealthy").then_some(())
    })
    .await;
    // Another provider takes what any can do.
    cluster.hodei(&["provider", "add", "local", "--kind", "process"]).await.ok();
    cluster.hodei(&["pool", "set", "plain", "--reuse", "never"]).await.ok();
    assert_eq!(cluster.ended(&job).await.state(), JobState::Succeeded);
    // What only this one can do waits until it is back.
    let requirements = Some(v1::Requirements { image: engine.image.clone(), ..Default::default() });
    let only = cluster.queue(v1::JobSpec { requirements, ..shell("true") }).await;
    cut.set(true);
    assert_eq!(cluster.ended(&only).await.state(), JobState::Succeeded, "it recovers by itself");
    nobody_left(&cluster).await;
    until_true("no container is left", || engine.containers(&name) == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_container_that_never_registers_is_removed_and_its_logs_are_told() {
    let Some(engine) = Engine::find() else { return };
    // There is nothing at that address, and no network to look for it.
    let config = "[fleet]\nregistration_timeout = '2s'\nadvertise = 'http://192.0.2.1:9'";
    let cluster = Cluster::with_config(config).await;
    let name = format!("lost-{}", std::process::id());
    engine.add_to(&cluster, &name, "1", &engine.socket).await;
    let heard = Heard::of(&cluster, "provider").await;
    cluster.hodei(&["pool", "set", "once", "--image", &engine.image, "--network", "none"]).await.ok();
    let job = cluster.queue(shell("true")).await;
    let failed = heard.of_something("provider.failed").await;
    assert!(failed.contains("192.0.2.1:9"), "what it printed says why: {failed}");
    cluster.cancel(&job).await.expect("cancelled");
    nobody_left(&cluster).await;
    until_true("no container is left", || engine.containers(&name) == 0).await;
}
