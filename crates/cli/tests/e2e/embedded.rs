//! Without a server of its own choosing, `hodei` shares one in the data folder that comes and goes by itself.

use crate::process::{Home, Ran, descendants, is_alive, run, until_true};
use rustix::process::Signal;
use std::{collections::HashSet, time::Duration};

async fn hodei(home: &Home, args: &[&str]) -> Ran {
    let mut command = home.command();
    command.args(args).env("HODEI_CONFIG", home.path("config.toml"));
    run(command).await
}

fn home(idle_exit: &str) -> Home {
    let home = Home::new();
    home.write("config.toml", format!("[background]\nidle_exit = '{idle_exit}'\n"));
    home
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_that_come_together_share_one_server() {
    let home = home("30s");
    let folders = ["run", "--", "sh", "-c", "echo $PWD; sleep 0.5"];
    let (one, two, three) = tokio::join!(hodei(&home, &folders), hodei(&home, &folders), hodei(&home, &folders));
    for ran in [one, two, three] {
        assert_eq!(
            ran.ok().text().trim(),
            home.path("").to_str().expect("UTF-8").trim_end_matches('/'),
            "our directory"
        );
    }
    home.server().await;
    let jobs = hodei(&home, &["job", "list", "--json"]).await.ok().json();
    let jobs = jobs.as_array().expect("jobs");
    let workers: HashSet<_> = jobs.iter().map(|job| job["executions"][0]["worker_id"].to_string()).collect();
    assert_eq!((jobs.len(), workers.len()), (3, 1));
    let refused = hodei(&home, &["server"]).await;
    assert!(refused.code == 125 && refused.stderr.contains("already"), "the folder is taken: {refused:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_background_server_leaves_when_idle_and_leaves_nothing_behind() {
    let home = home("1s");
    hodei(&home, &["run", "--", "true"]).await.ok();
    let server = home.server().await;
    let mut family = descendants(server);
    assert!(!family.is_empty(), "its guardian");
    family.push(server.as_raw_nonzero().get());
    until_true("all of it is gone", || family.iter().all(|pid| !is_alive(*pid))).await;
    assert!(!home.path("data").join("hodei.sock").exists());

    // The next command starts another, which knows what was before.
    let jobs = hodei(&home, &["job", "list", "--json"]).await.ok().json();
    assert_eq!(jobs[0]["state"], "succeeded");
    let again = hodei(&home, &["run", "--", "echo", "again"]).await.ok();
    assert_eq!(again.text(), "again\n");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_detached_job_is_not_stranded_when_the_server_would_leave() {
    let home = home("200ms");
    hodei(&home, &["run", "-d", "--", "sh", "-c", "sleep 1.5; touch done"]).await.ok();
    until_true("the job has ended", || home.path("done").exists()).await;
    let jobs = hodei(&home, &["job", "list", "--json"]).await.ok().json();
    assert_eq!(jobs[0]["executions"].as_array().map(Vec::len), Some(1), "no server left it: {jobs}");
    let failing = ["run", "-d", "--max-attempts", "2", "--retry-delay", "1s", "--"];
    hodei(&home, &[&failing[..], &["sh", "-c", "echo >> tries; exit 1"]].concat()).await.ok();
    until_true("it was tried twice", || home.read("tries").lines().count() == 2).await;
    until_true("the server has left", || home.servers().is_empty()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_that_comes_while_the_server_leaves_starts_another() {
    let home = home("50ms");
    for n in 0..15 {
        let ran = hodei(&home, &["run", "--", "echo", "here"]).await.ok();
        assert_eq!(ran.text(), "here\n");
        // Moments around the one at which it leaves.
        tokio::time::sleep(Duration::from_millis(20 + 10 * n)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_background_server_is_replaced_and_its_job_runs_again() {
    let home = home("30s");
    let script = "echo >> starts; [ $(wc -l < starts) = 2 ] || sleep 1000";
    let id = hodei(&home, &["job", "submit", "--", "sh", "-c", script]).await.ok();
    until_true("it runs", || home.read("starts").lines().count() == 1).await;
    let server = home.server().await;
    rustix::process::kill_process(server, rustix::process::Signal::KILL).expect("a server");
    until_true("the server is gone", || !is_alive(server.as_raw_nonzero().get())).await;
    let waited = hodei(&home, &["job", "wait", id.text().trim()]).await;
    assert_eq!((waited.code, waited.text()), (0, "succeeded\n"), "{waited:?}");
    let job = hodei(&home, &["job", "get", "--json", id.text().trim()]).await.ok().json();
    assert_eq!((&job["attempt"], &job["executions"][0]["failure_kind"]), (&2.into(), &"worker_lost".into()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_folder_whose_jobs_are_elsewhere_gets_no_background_server() {
    let home = home("1s");
    let database = home.path("other.db").display().to_string();
    let flags = ["up", "--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0", "--database-url", &database];
    let mut up = home.daemon("up", &flags);
    up.said("hodei is up").await;
    hodei(&home, &["run", "--", "true"]).await.ok();
    let taken = hodei(&home, &["server"]).await;
    assert!(
        taken.stderr.contains(&format!("(process {})", up.pid().as_raw_nonzero())),
        "it names the process: {taken:?}"
    );
    up.signal(Signal::TERM);
    up.ended().await;
    let refused = hodei(&home, &["job", "list"]).await;
    assert!(refused.code == 125 && refused.stderr.contains("--database-url"), "{refused:?}");
    assert!(home.servers().is_empty(), "nothing was started in its place");
}
