//! Workers on demand in containers of a real Docker engine, from images that know nothing of Hodei.

use crate::{
    client::{lines, shell},
    cluster::{Cluster, Heard},
    engine::{Blow, Cut, Engine, Stopped, provider_is},
    process::{until, until_true},
    registry::Registry,
};
use hodei_api::v1::{self, JobState, ProviderHealth};
use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_jobs_under_a_cap_of_five_leave_nothing_even_when_the_server_is_killed() {
    let Some(engine) = Engine::find().await else { return };
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
    engine.nothing_left(&cluster, &name).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_image_that_is_not_there_fails_its_job_at_once_and_a_good_one_runs() {
    let Some(engine) = Engine::find().await else { return };
    let cluster = Cluster::start().await;
    let name = format!("image-{}", std::process::id());
    engine.add_to(&cluster, &name, "2", &engine.socket).await;
    let ran = cluster.hodei(&["run", "--image", &engine.image, "--", "sh", "-c", "echo $COLOUR"]).await.ok();
    assert_eq!(ran.text(), "blue\n", "{ran:?}");
    let bad = cluster.hodei(&["run", "--image", "hodei-test/nothing:1", "--", "true"]).await;
    assert!(bad.code != 0 && bad.stderr.contains("hodei-test/nothing"), "{bad:?}");
    cluster.hodei(&["provider", "remove", &name]).await.ok();
    engine.nothing_left(&cluster, &name).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_that_goes_away_is_unhealthy_and_its_jobs_wait_or_go_elsewhere() {
    let Some(engine) = Engine::find().await else { return };
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
    let requirements = Some(Box::new(v1::Requirements { image: engine.image.clone(), ..Default::default() }));
    let only = cluster.queue(v1::JobSpec { requirements, ..shell("true") }).await;
    cut.set(true);
    assert_eq!(cluster.ended(&only).await.state(), JobState::Succeeded, "it recovers by itself");
    engine.nothing_left(&cluster, &name).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_container_that_never_registers_is_removed_and_its_logs_are_told() {
    let Some(engine) = Engine::find().await else { return };
    // There is nothing at that address, and no network to look for it.
    let config = "[fleet]\nregistration_timeout = '2s'\nadvertise = 'http://192.0.2.1:9'";
    let cluster = Cluster::with_config(config).await;
    let name = format!("lost-{}", std::process::id());
    engine.add_to(&cluster, &name, "1", &engine.socket).await;
    let heard = Heard::of(&cluster, "provider").await;
    cluster.hodei(&["pool", "set", "once", "--image", &engine.image, "--network", "none"]).await.ok();
    let job = cluster.queue(shell("true")).await;
    let failed = heard.of_something("provider.failed").await;
    assert!(failed.contains("did not register within 2 s"), "{failed}");
    assert!(failed.contains("192.0.2.1:9"), "what it printed says why: {failed}");
    until_true("the container is gone", || engine.containers(&name) == 0).await;
    let (explained, shown) = told_of(&cluster, &job).await;
    for told in [explained, shown] {
        assert!(told.contains("a worker did not register within 2 s; it printed: "), "{told}");
        assert!(told.contains("192.0.2.1:9"), "{told}");
    }
    cluster.cancel(&job).await.expect("cancelled");
    engine.nothing_left(&cluster, &name).await;
}

/// What `hodei job explain` and `hodei job get` say of a job.
async fn told_of(cluster: &Cluster, job: &str) -> (String, String) {
    let explained = cluster.hodei(&["job", "explain", job]).await.ok();
    let shown = cluster.hodei(&["job", "get", job]).await.ok();
    (explained.text().to_owned(), shown.text().to_owned())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_create_whose_answer_is_lost_leaves_nothing_and_the_job_goes_to_the_next_provider() {
    let Some(engine) = Engine::find().await else { return };
    let cluster = Cluster::start().await;
    let (first, next) = (format!("a-{}", std::process::id()), format!("b-{}", std::process::id()));
    let cut = Cut::before(&engine, cluster.home.path("engine.sock"));
    engine.add_to(&cluster, &first, "2", &cut.socket).await;
    engine.add_to(&cluster, &next, "2", &engine.socket).await;
    let heard = Heard::of(&cluster, "provider").await;
    cluster.hodei(&["pool", "set", "once", "--image", &engine.image, "--reuse", "never"]).await.ok();
    cut.at_next("/containers/create", Blow::AnswerLost);
    let job = cluster.queue(shell("true")).await;
    assert_eq!(cluster.ended(&job).await.state(), JobState::Succeeded, "the other one made a worker");
    cut.has_struck().await;
    assert_eq!(cluster.provider(&first).await.health(), ProviderHealth::Unhealthy);
    heard.of_something("provider.unhealthy").await;
    assert_eq!(engine.containers(&first), 1, "it was made, and nobody knows");
    cut.set(true);
    provider_is(&cluster, &first, ProviderHealth::Healthy).await;
    engine.nothing_left(&cluster, &first).await;
    engine.nothing_left(&cluster, &next).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_waits_for_an_engine_that_stops_in_the_middle_of_a_create_and_says_so() {
    let Some(engine) = Engine::alone().await else { return };
    let Some(process) = engine.process() else { return };
    let cluster = Cluster::start().await;
    let name = format!("stop-{}", std::process::id());
    let cut = Cut::before(&engine, cluster.home.path("engine.sock"));
    engine.add_with(&cluster, &name, "2", &cut.socket, &["pull=never", "timeout=2s"]).await;
    let stopped = Stopped(process);
    cut.at_next("/containers/create", Blow::Stopped(process));
    let requirements = Some(Box::new(v1::Requirements { image: engine.image.clone(), ..Default::default() }));
    let job = cluster.queue(v1::JobSpec { requirements, ..shell("echo $COLOUR") }).await;
    cut.has_struck().await;
    provider_is(&cluster, &name, ProviderHealth::Unhealthy).await;
    let why = format!("and none is made: {name} is unhealthy: the engine does not answer");
    let (explained, shown) = told_of(&cluster, &job).await;
    assert!(explained.starts_with("The job is pending: ") && explained.contains(&format!("{why}.\n")), "{explained}");
    assert!(shown.contains(&why), "{shown}");
    drop(stopped);
    assert_eq!(cluster.ended(&job).await.state(), JobState::Succeeded, "it recovers by itself");
    assert_eq!(lines(&cluster.log(&job).await), ["blue"]);
    engine.nothing_left(&cluster, &name).await;
}

/// In an image with nothing of use in it there is one program, that of the agent.
const PROGRAM: [&str; 2] = ["/.hodei/agent", "--version"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_waits_for_an_image_sees_how_far_its_pull_has_come() {
    let Some(engine) = Engine::find().await else { return };
    let cluster = Cluster::start().await;
    let name = format!("pull-{}", std::process::id());
    engine.add_with(&cluster, &name, "1", &engine.socket, &[]).await;
    let registry = Registry::open(4 << 20, Duration::from_millis(400)).await;
    let image = registry.image();
    let ran = cluster.hodei(&[&["run", "--image", &image, "--"], &PROGRAM[..]].concat()).await.ok();
    assert!(ran.text().starts_with("hodei "), "{ran:?}");
    let waits = format!("hodei: the job waits: a worker is being made by {name}: pulling {image}: 0 of 1 layers, ");
    let seen: Vec<&str> = ran.stderr.lines().filter(|line| line.starts_with(&waits)).collect();
    assert!(seen.len() > 1 && seen.iter().all(|line| line.ends_with(" of 4.2 MB")), "{ran:?}");
    engine.nothing_left(&cluster, &name).await;
    engine.ask("DELETE", &format!("/images/{image}"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pull_that_is_cut_short_is_not_the_images_fault_and_is_made_up_for() {
    let Some(engine) = Engine::find().await else { return };
    let cluster = Cluster::start().await;
    let name = format!("short-{}", std::process::id());
    let cut = Cut::before(&engine, cluster.home.path("engine.sock"));
    engine.add_with(&cluster, &name, "1", &cut.socket, &[]).await;
    let registry = Registry::open(1 << 20, Duration::from_millis(200)).await;
    let image = registry.image();
    cut.at_next("/images/create", Blow::CutShort);
    let requirements = Some(Box::new(v1::Requirements { image: image.clone(), ..Default::default() }));
    let shell = v1::ShellWork { program: PROGRAM[0].into(), args: vec![PROGRAM[1].into()] };
    let work = Some(v1::Work { kind: Some(v1::work::Kind::Shell(shell)) });
    let job = cluster.queue(v1::JobSpec { work, requirements, ..Default::default() }).await;
    cut.has_struck().await;
    until("it is said why it waits", || async {
        let (explained, _) = told_of(&cluster, &job).await;
        explained.contains(&format!("and none is made: {name} is unhealthy: ")).then_some(())
    })
    .await;
    cut.set(true);
    assert_eq!(cluster.ended(&job).await.state(), JobState::Succeeded, "it recovers by itself");
    engine.nothing_left(&cluster, &name).await;
    engine.ask("DELETE", &format!("/images/{image}"));
}
