//! Jobs from files, and what flags beside a file mean.

use crate::{
    cluster::Cluster,
    process::{Home, Ran, run},
};
use hodei_api::v1::{JobState, Priority};
use serde_json::json;
use std::process::Stdio;
use tokio::{io::AsyncReadExt, net::TcpListener};

/// As people do who have a server of their own on the data folder.
async fn local(cluster: &Cluster, args: &[&str]) -> Ran {
    let mut command = cluster.home.command();
    command.args(args);
    run(command).await
}

fn script(home: &Home, name: &str, text: &str) {
    use std::os::unix::fs::PermissionsExt;
    let path = home.write(name, format!("#!/bin/sh\n{text}\n"));
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).expect("a program");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_of_files_begin_where_the_command_is_run() {
    let cluster = Cluster::up(&["--slots", "2"]).await;
    script(&cluster.home, "extract.sh", "echo got > rows");
    script(&cluster.home, "clean.sh", "cat rows");
    let graph = "
defaults: {queue: etl}
jobs:
  extract: {shell: {program: ./extract.sh}}
  clean:   {shell: {program: ./clean.sh}, depends_on: [extract]}
  report:  {task: {type: report.daily}, depends_on: [clean], on_dependency_failure: cancel}
";
    cluster.home.write("graph.yaml", graph);
    let ids = local(&cluster, &["job", "submit", "-f", "graph.yaml", "--json"]).await.ok().json()["jobs"].clone();
    let clean = ids["clean"].as_str().expect("an id");
    assert_eq!(cluster.ended(clean).await.state(), JobState::Succeeded);
    assert_eq!(local(&cluster, &["logs", clean]).await.ok().text(), "got\n");
    let report = cluster.job(ids["report"].as_str().expect("an id")).await.spec.expect("a spec");
    assert_eq!((report.queue.as_str(), report.working_directory.as_str()), ("etl", ""));

    let lines =
        "{\"shell\": {\"program\": \"pwd\"}}\n{\"script\": {\"content\": \"pwd\"}, \"working_directory\": \"/\"}\n";
    cluster.home.write("jobs.jsonl", lines);
    let ran = local(&cluster, &["job", "submit", "-f", "jobs.jsonl"]).await.ok();
    let here = cluster.home.path("").display().to_string();
    for (id, folder) in ran.text().lines().zip([here.trim_end_matches('/'), "/"]) {
        cluster.ended(id).await;
        assert_eq!(local(&cluster, &["logs", id]).await.ok().text().trim(), folder);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flags_beside_a_file_are_for_jobs_that_do_not_say_otherwise() {
    let cluster = Cluster::start().await;
    let lines = json!({"task": {"type": "t"}, "queue": "own", "retry": {"delay": "7s"}});
    cluster.home.write("jobs.jsonl", format!("{lines}\n{}\n", json!({"shell": {"program": "true"}})));
    let flags = ["--queue", "mail", "--priority", "high", "--max-attempts", "7", "--workdir", "/srv", "--tag", "a"];
    let ran = cluster.hodei(&[&["job", "submit", "-f", "jobs.jsonl"][..], &flags].concat()).await.ok();
    let mut specs = Vec::new();
    for id in ran.text().lines() {
        specs.push(cluster.job(id).await.spec.expect("a spec"));
    }
    let [task, shell] = &specs[..] else { panic!("two jobs: {ran:?}") };
    assert_eq!((task.queue.as_str(), shell.queue.as_str()), ("own", "mail"));
    assert_eq!((task.working_directory.as_str(), shell.working_directory.as_str()), ("", "/srv"));
    let retry = task.retry.clone().expect("a policy");
    assert_eq!((retry.max_attempts, retry.delay_ms), (Some(7), Some(7000)));
    assert!(specs.iter().all(|spec| spec.priority() == Priority::High && spec.tags == ["a"]), "{specs:?}");

    let id = ran.text().lines().nth(1).expect("an id");
    let shown = cluster.hodei(&["job", "get", id, "--json"]).await.ok().json();
    assert_eq!((&shown["working_directory"], &shown["retry"]["max_attempts"]), (&json!("/srv"), &json!(7)));
    let shown = cluster.hodei(&["job", "get", id]).await.ok();
    assert!(shown.text().lines().any(|line| line == "folder      /srv"), "{shown:?}");

    cluster.home.write("graph.yaml", "jobs: {a: {shell: {program: 'true'}}}");
    let ids = cluster.hodei(&["job", "submit", "-f", "graph.yaml", "--queue", "mail", "--json"]).await.ok().json();
    let graph = cluster.job(ids["jobs"]["a"].as_str().expect("an id")).await.spec.expect("a spec");
    assert_eq!(graph.queue, "mail");
    for flag in [["--name", "x"], ["--key", "x"], ["--payload", "{}"], ["--stdin", "-"], ["--job-data", "{}"]] {
        let refused = cluster.hodei(&["job", "submit", "-f", "graph.yaml", flag[0], flag[1]]).await;
        assert!(refused.code == 125 && refused.stderr.contains("cannot be used with"), "{flag:?}: {refused:?}");
    }
    let refused = cluster.hodei(&["run", "--payload", "{}", "--", "true"]).await;
    assert!(refused.code == 125 && refused.stderr.contains("cannot be used with"), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_whose_answer_is_lost_are_not_said_to_be_lost() {
    let home = Home::new();
    home.write("jobs.jsonl", "{\"shell\": {\"program\": \"true\"}}\n");
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("an address");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    // Whatever comes is read, and never answered.
    let rude = tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.expect("a connection");
            _ = stream.read(&mut [0; 4096]).await;
        }
    });
    let mut command = home.command();
    command.args(["job", "submit", "-f", "jobs.jsonl", "--server", &url]).stdin(Stdio::null());
    let ran = run(command).await;
    rude.abort();
    assert_eq!(ran.code, 125, "{ran:?}");
    assert!(ran.stderr.contains("it is not known whether the job of line 1 was stored"), "{ran:?}");
    assert!(ran.stderr.contains("idempotency_key"), "{ran:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_refused_is_said_not_to_be_stored_and_a_job_has_one_line() {
    let cluster = Cluster::start().await;
    cluster.home.write("jobs.jsonl", "{\"shell\": {\"program\": \"\"}}\n");
    let ran = cluster.hodei(&["job", "submit", "-f", "jobs.jsonl"]).await;
    assert!(ran.stderr.contains("the job of line 1 was not stored; jobs stored before: 0"), "{ran:?}");
    cluster.home.write("pretty.json", "{\n  \"shell\": {\"program\": \"true\"}\n}\n");
    let ran = cluster.hodei(&["job", "submit", "-f", "pretty.json"]).await;
    assert!(ran.code == 125 && ran.stderr.contains("write each job on one line"), "{ran:?}");
}
