//! `hodei run`: streams, exit codes, signals, and what can be asked of a job.

use crate::{
    client::shell,
    cluster::Cluster,
    crash::all_ended,
    process::{is_alive, numbers, run, until, until_true},
};
use hodei_api::v1::{self, JobState};
use rustix::process::{Pid, Signal, kill_process};
use std::{
    io::Write,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn output_and_exit_code_are_those_of_the_job() {
    let cluster = Cluster::up(&["--slots", "2"]).await;
    let ran = cluster.hodei(&["run", "--", "sh", "-c", "echo out; echo err >&2; printf unfinished"]).await.ok();
    assert_eq!((ran.text(), ran.stderr.as_str()), ("out\nunfinished", "err\n"));
    for (code, args) in [
        (0, &["run", "--", "true"][..]),
        (1, &["run", "--", "false"]),
        (42, &["run", "--", "sh", "-c", "exit 42"]),
        (255, &["run", "--", "sh", "-c", "exit 255"]),
        (127, &["run", "--", "no-such-program"]),
        (127, &["run", "--", "/no/such/program"]),
        (126, &["run", "--", "/etc/passwd"]),
        (126, &["run", "--workdir", "/no/such/folder", "--", "true"]),
        (124, &["run", "--timeout", "200ms", "--", "sleep", "1000"]),
        (124, &["run", "--timeout", "200ms", "--kill-grace", "100ms", "--", "sh", "-c", "trap '' TERM; sleep 1000"]),
        (137, &["run", "--", "sh", "-c", "kill -9 $$"]),
        (143, &["run", "--", "sh", "-c", "kill $$"]),
    ] {
        let ran = cluster.hodei(args).await;
        assert_eq!(ran.code, code, "{args:?}: {ran:?}");
    }
    let missing = cluster.hodei(&["run", "--", "no-such-program"]).await;
    assert!(missing.stderr.contains("no-such-program"), "{missing:?}");
    let late = cluster.hodei(&["run", "--timeout", "200ms", "--", "sleep", "1000"]).await;
    assert!(late.stderr.contains("200ms"), "{late:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_over_its_memory_is_told_from_one_that_was_killed() {
    let cluster = Cluster::up(&["--slots", "1"]).await;
    let isolation = cluster.server.said_isolation().await;
    if !isolation.contains("memory") {
        assert!(std::env::var_os("CI").is_none(), "what gates a change needs a host with memory limits: {isolation}");
        return;
    }
    let eat = "head -c 200000000 /dev/zero | tail";
    let id =
        cluster.hodei(&["run", "-d", "--max-attempts", "1", "--memory", "32MiB", "--", "sh", "-c", eat]).await.ok();
    let job = cluster.ended(id.text().trim()).await;
    assert_eq!(job.executions[0].failure_kind, "out_of_memory", "{job:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scripts_come_from_files_and_standard_input() {
    let cluster = Cluster::up(&["--slots", "1"]).await;
    let file = cluster.home.write("hello.sh", "echo from $0 | grep -c script; echo $((6 * 7))\n");
    let file = file.to_str().expect("UTF-8");
    let ran = cluster.hodei(&["run", "--script", file]).await.ok();
    assert_eq!(ran.text().lines().last(), Some("42"));
    let ran = with_stdin(cluster.command(&["run", "--script", "-", "--interpreter", "sed -n -f"]), "= \n").await;
    assert_eq!(ran.code, 0, "sed finds no input to number: {ran:?}");
    let ran =
        with_stdin(cluster.command(&["run", "--script", "-"]), "#!/bin/bash -e\n[[ a == a ]]\nfalse\necho no\n").await;
    assert_eq!((ran.code, ran.text()), (1, ""), "the first line names bash with -e: {ran:?}");
    let ran = with_stdin(cluster.command(&["run", "--stdin", "-", "--", "tr", "a-z", "A-Z"]), "shout\n").await;
    assert_eq!(ran.ok().text(), "SHOUT\n");
    let named = cluster.hodei(&["job", "list", "--json", "--limit", "10"]).await.ok().json();
    let names: Vec<_> =
        named.as_array().expect("jobs").iter().map(|job| job["name"].as_str().expect("a name")).collect();
    assert_eq!(names, ["tr", "script", "script", "hello.sh"]);
}

async fn with_stdin(mut command: Command, input: &str) -> crate::process::Ran {
    let (reader, mut writer) = std::io::pipe().expect("a pipe");
    command.stdin(reader);
    writer.write_all(input.as_bytes()).expect("room in the pipe");
    drop(writer);
    run(command).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_environment_is_clean_and_secrets_are_never_shown() {
    let cluster = Cluster::up(&["--slots", "1"]).await;
    let mut command =
        cluster.command(&["run", "--env", "PLAIN=1", "--env", "HERE", "--secret", "TOKEN=hunter2hunter2"]);
    command.args([
        "--",
        "sh",
        "-c",
        "echo $PLAIN $HERE; printf %.7s $TOKEN; sleep 0.2; echo ${TOKEN#???????}; echo $TOKEN >&2; env",
    ]);
    let ran = run_with(command, "HERE", "and there").await.ok();
    assert!(ran.text().starts_with("1 and there\n***\n"), "masked across two writes: {ran:?}");
    assert_eq!(ran.stderr, "***\n");
    assert!(ran.text().contains("TOKEN=***\n") && !ran.text().contains("hunter2"), "{ran:?}");
    let names: Vec<_> = ran.text().lines().filter_map(|line| line.split_once('=')).map(|(name, _)| name).collect();
    assert!(
        !names.contains(&"HODEI_SERVER") && !names.contains(&"HODEI_DATA"),
        "the job has our environment: {names:?}"
    );
    for name in ["HODEI_JOB_ID", "HODEI_EXECUTION_ID", "HODEI_ATTEMPT", "HODEI_PROGRESS", "HODEI_RESULT"] {
        assert!(names.contains(&name), "{name} is missing in {names:?}");
    }

    let id = cluster.list().await[0].id.clone();
    let spec = cluster.job(&id).await.spec.expect("a spec");
    assert_eq!(spec.secrets.get("TOKEN").map(String::as_str), Some("***"));
    for args in [&["job", "get", &id, "--json"][..], &["job", "get", &id], &["job", "list", "--json"], &["logs", &id]] {
        let shown = cluster.hodei(args).await.ok();
        assert!(!shown.text().contains("hunter2") && !shown.stderr.contains("hunter2"), "{args:?}: {shown:?}");
    }
    let secrets = cluster.hodei(&["job", "get", &id, "--json"]).await.ok().json()["secrets"].clone();
    assert_eq!(secrets, serde_json::json!(["TOKEN"]));
}

async fn run_with(mut command: Command, name: &str, value: &str) -> crate::process::Ran {
    command.env(name, value);
    run(command).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn progress_and_results_come_back() {
    let cluster = Cluster::up(&["--slots", "1"]).await;
    let script = r#"echo "37 nearly" >> $HODEI_PROGRESS; echo '{"answer": [4, 2]}' > $HODEI_RESULT"#;
    // Many, because a job this short races with the word of its own start.
    let jobs = vec![shell(script); 50];
    cluster.jobs().queue_jobs(v1::QueueJobsRequest { jobs }).await.expect("jobs");
    for job in all_ended(&cluster, 50).await {
        let execution = &job.executions[0];
        assert_eq!((execution.progress_percent, execution.progress_message.as_str()), (37.0, "nearly"), "{job:?}");
        assert_eq!(cluster.job(&job.id).await.result.trim_ascii(), br#"{"answer": [4, 2]}"#);
    }
    let ran = cluster.hodei(&["run", "--json", "--", "sh", "-c", script]).await.ok();
    assert_eq!(ran.json()["job"]["result"], serde_json::json!({ "answer": [4, 2] }));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn json_has_each_line_and_then_the_job() {
    let cluster = Cluster::up(&["--slots", "1"]).await;
    let ran =
        cluster.hodei(&["run", "--json", "--name", "a name", "--", "sh", "-c", "echo one; echo two; exit 3"]).await;
    assert_eq!(ran.code, 3);
    let lines: Vec<serde_json::Value> =
        ran.text().lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let [one, two, end] = &lines[..] else { panic!("three lines: {ran:?}") };
    assert_eq!((&one["text"], &one["number"], &one["stream"]), (&"one".into(), &0.into(), &"stdout".into()));
    assert_eq!((&two["text"], &two["number"]), (&"two".into(), &1.into()));
    assert_eq!((&end["job"]["state"], &end["job"]["exit_code"]), (&"failed".into(), &3.into()));
    assert_eq!((&end["job"]["name"], &end["job"]["max_attempts"]), (&"a name".into(), &1.into()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_detached_job_goes_on_alone() {
    let cluster = Cluster::up(&["--slots", "1"]).await;
    let ran = cluster.hodei(&["run", "--detach", "--", "sh", "-c", "sleep 0.2; echo done"]).await.ok();
    let id = ran.text().trim();
    let waited = cluster.hodei(&["job", "wait", id]).await.ok();
    assert_eq!(waited.text(), "succeeded\n");
    assert_eq!(cluster.hodei(&["logs", id]).await.ok().text(), "done\n");
    let ran = cluster.hodei(&["run", "-d", "--json", "--", "true"]).await.ok();
    let job = cluster.job(ran.json()["job_id"].as_str().expect("an id")).await;
    assert_eq!(job.spec.and_then(|spec| spec.retry?.max_attempts), Some(1), "as without --detach");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn interrupting_run_cancels_the_job_and_its_process_is_gone() {
    let cluster = Cluster::up(&["--slots", "1"]).await;
    for (signal, name) in [(Signal::INT, "interrupted"), (Signal::TERM, "terminated")] {
        let pids = cluster.home.path(name);
        let script = format!("echo $$ > {}; exec sleep 1000", pids.display());
        let mut child = start(cluster.command(&["run", "--", "sh", "-c", &script]));
        until_true("the job runs", || numbers(&pids).len() == 1).await;
        kill_process(Pid::from_child(&child), signal).expect("a process");
        assert_eq!(code(&mut child).await, 130);
        assert!(!is_alive(numbers(&pids)[0]), "cancelled means gone");
        let job = cluster.list().await[0].clone();
        assert_eq!((job.state(), job.cancel_reason.as_deref()), (JobState::Cancelled, Some("interrupted")));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_interrupt_leaves_the_job_to_itself() {
    let cluster = Cluster::up(&["--slots", "1"]).await;
    let (pids, go) = (cluster.home.path("pid"), cluster.home.path("go"));
    let script = format!(
        "trap 'touch {0}.asked' TERM; echo $$ > {0}; until [ -e {1} ]; do sleep 0.02; done",
        pids.display(),
        go.display()
    );
    let mut child = start(cluster.command(&["run", "--kill-grace", "1h", "--", "sh", "-c", &script]));
    until_true("the job runs", || numbers(&pids).len() == 1).await;
    let interrupt = || kill_process(Pid::from_child(&child), Signal::INT).expect("a process");
    interrupt();
    until_true("the job was asked to stop", || cluster.home.path("pid.asked").exists()).await;
    interrupt();
    assert_eq!(code(&mut child).await, 130);
    assert!(is_alive(numbers(&pids)[0]));
    std::fs::write(go, "").expect("a file");
    let id = cluster.list().await[0].id.clone();
    assert_eq!(cluster.ended(&id).await.state(), JobState::Cancelled);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_follows_a_job_hears_of_a_server_that_went_and_came_back() {
    let mut cluster = Cluster::start().await;
    let _worker = cluster.worker("steady", &["--slots", "1"]).await;
    let go = cluster.home.path("go");
    let script = format!("until [ -e {} ]; do sleep 0.02; done; echo over", go.display());
    let mut followed = cluster.home.daemon("followed", &["run", "--", "sh", "-c", &script]);
    until("the job runs", || async {
        cluster.list().await.iter().find(|job| job.state() == JobState::Running).cloned()
    })
    .await;
    cluster.server.kill();
    followed.said("hodei: lost the connection to the server; trying again").await;
    cluster.start_server().await;
    followed.said("hodei: the server is back").await;
    std::fs::write(&go, "").expect("a file");
    assert_eq!(followed.ended().await.code(), Some(0), "{}", followed.log());
    followed.said("over").await;
    assert_eq!(followed.log().matches("lost the connection").count(), 1, "{}", followed.log());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_interrupt_that_reaches_nobody_ends_the_client_and_says_so() {
    let mut cluster = Cluster::start().await;
    let mut followed = cluster.home.daemon("followed", &["run", "--", "sleep", "1000"]);
    until("the job is stored", || async { cluster.list().await.pop() }).await;
    cluster.server.kill();
    followed.said("hodei: lost the connection to the server; trying again").await;
    followed.signal(Signal::INT);
    assert_eq!(followed.ended().await.code(), Some(125), "{}", followed.log());
    assert!(followed.log().contains("which may go on"), "{}", followed.log());
}

fn start(mut command: Command) -> Child {
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("hodei starts")
}

async fn code(child: &mut Child) -> i32 {
    let began = Instant::now();
    loop {
        if let Some(status) = child.try_wait().expect("a child") {
            return status.code().unwrap_or(-1);
        }
        assert!(began.elapsed() < Duration::from_secs(30), "it does not end");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tree_that_forks_daemonises_and_ignores_sigterm_is_gone_after_cancel_and_grace() {
    let cluster = Cluster::up(&["--slots", "1"]).await;
    let pids = cluster.home.path("pids");
    let script = format!(
        "trap '' TERM HUP INT; note() {{ echo $1 >> {}; }}
         (setsid sh -c 'trap \"\" TERM HUP; sleep 1000 & echo $! >> {0}; echo $$ >> {0}; wait' </dev/null >/dev/null 2>&1 &)
         nohup sleep 1000 >/dev/null 2>&1 & note $!
         (sleep 1000 & note $!; sleep 1000) & note $!
         note $$; while :; do sleep 1; done",
        pids.display()
    );
    let grace = 500;
    let timeouts = Some(v1::Timeouts { kill_grace_ms: Some(grace), ..Default::default() });
    let id = cluster.queue(v1::JobSpec { timeouts, ..shell(script) }).await;
    until_true("the whole tree stands", || numbers(&pids).len() == 6).await;
    cluster.reached(&id, JobState::Running).await;

    let asked = Instant::now();
    assert_eq!(cluster.cancel(&id).await.expect("a running job"), JobState::Running, "asked, not yet confirmed");
    let job = cluster.ended(&id).await;
    let took = asked.elapsed().as_millis() as i64;
    let left: Vec<_> = numbers(&pids).into_iter().filter(|pid| is_alive(*pid)).collect();
    assert!(left.is_empty(), "{left:?} outlive a job that is {:?}", job.state());
    assert_eq!(job.state(), JobState::Cancelled);
    assert!((grace..grace + 3000).contains(&took), "the grace is {grace} ms; it took {took} ms");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_finished_job_left_running_is_gone_too() {
    let cluster = Cluster::up(&["--slots", "1"]).await;
    let pids = cluster.home.path("pids");
    let script = format!("setsid sleep 1000 >/dev/null 2>&1 & echo $! > {}", pids.display());
    assert_eq!(cluster.hodei(&["run", "--", "sh", "-c", &script]).await.code, 0);
    assert!(!is_alive(numbers(&pids)[0]), "nothing outlives its job");
}
