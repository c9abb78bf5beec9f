//! What jobs print arrives whole, in order and once, however much it is and whoever reads it when.

use crate::{
    client::{Client, lines, shell, text},
    cluster::Cluster,
    fake::{FakeWorker, line_of},
    process::{PATIENCE, run, until},
};
use hodei_api::v1::{self, JobState, worker_event};
use std::{fs::File, time::Duration};

/// In the dev profile a server that passes 100 MB through holds some 95 MB at its peak: code, SQLite's caches, the ring
/// and a few batches of 4 MB with their copies. One that kept the output, even compressed, needs twice that.
const SERVER_MEMORY: u64 = 160 << 20;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_megabytes_arrive_whole_and_in_order_in_bounded_memory() {
    let cluster = Cluster::start().await;
    let _worker = cluster.worker("a", &["--slots", "1"]).await;
    let (sent, got) = (cluster.home.path("sent"), cluster.home.path("got"));
    let script = format!("head -c 75000000 /dev/urandom | base64 -w 1000 | tee {}", sent.display());
    let mut command = cluster.command(&["run", "--", "sh", "-c", &script]);
    command.stdout(File::create(&got).expect("a file"));
    let mut child = tokio::process::Command::from(command).kill_on_drop(true).spawn().expect("hodei starts");
    let status = tokio::time::timeout(PATIENCE, child.wait()).await.expect("in time").expect("an end");
    assert_eq!(status.code(), Some(0));

    let size = std::fs::metadata(&sent).expect("what was sent").len();
    assert!(size > 100_000_000, "{size}");
    let mut compare = std::process::Command::new("cmp");
    compare.args([&sent, &got]);
    run(compare).await.ok();
    let peak = cluster.server.peak_memory();
    assert!(peak < SERVER_MEMORY, "the server needed {} MB", peak >> 20);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_bytes_and_endless_lines_arrive_exactly() {
    let cluster = Cluster::up(&["--slots", "1"]).await;
    let sent = cluster.home.path("sent");
    let script = format!(
        "{{ head -c 10485760 /dev/zero | tr '\\0' x; echo; printf '\\377\\376\\000\\r\\033[31m\\303\\n\\n\\n'; \
         head -c 1000000 /dev/urandom; echo; printf 'no newline at the end'; }} | tee {}",
        sent.display()
    );
    let ran = cluster.hodei(&["run", "--", "sh", "-c", &script]).await.ok();
    let sent = std::fs::read(sent).expect("what was sent");
    assert!(ran.stdout == sent, "{} bytes were sent and {} came", sent.len(), ran.stdout.len());

    let id = cluster.list().await[0].id.clone();
    let entries = cluster.log(&id).await;
    assert!(text(&entries, false) == sent, "the stored log is the same");
    assert!(cluster.hodei(&["logs", &id]).await.ok().stdout == sent, "and what 'hodei logs' shows");
}

const FAST_LINES: usize = 30_000;

fn numbered() -> Vec<String> {
    (1..=FAST_LINES).map(|n| n.to_string()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_that_join_at_any_moment_get_every_line_once_in_order_and_end_with_the_job() {
    let cluster = Cluster::up(&["--slots", "1"]).await;
    // In bursts, so that readers catch up with the live end and fall behind again.
    let script =
        format!("for n in $(seq 30); do seq $(((n - 1) * {0} + 1)) $((n * {0})); sleep 0.03; done", FAST_LINES / 30);
    let id = cluster.queue(shell(script)).await;

    // It reads nothing before the job has ended, and nobody waits for it.
    let request = v1::SubscribeLogsRequest { job_id: id.clone(), tail: None };
    let mut slow = cluster.logs().subscribe_logs(request).await.expect("a stream").into_inner();
    let mut readers = Vec::new();
    for n in 0..8 {
        let (client, id) = (cluster.client.clone(), id.clone());
        readers.push(tokio::spawn(async move {
            // Primes, so that they join at moments that have nothing to do with the bursts.
            tokio::time::sleep(Duration::from_millis(n * 131 % 1009)).await;
            let pause = Duration::from_millis(if n == 3 { 5 } else { 0 });
            read_all(&client, &id, pause).await
        }));
    }
    let follower = tokio::spawn(run(cluster.command(&["logs", "-f", &id])));

    assert_eq!(cluster.ended(&id).await.state(), JobState::Succeeded);
    for reader in readers {
        assert!(lines(&reader.await.expect("a reader")) == numbered());
    }
    let followed = follower.await.expect("a follower").ok();
    assert!(followed.text().lines().eq(numbered()));
    let mut entries = Vec::new();
    while let Some(batch) = slow.message().await.expect("a healthy stream") {
        entries.extend(batch.entries);
    }
    assert!(lines(&entries) == numbered(), "the slow reader lost nothing");
    assert!(entries.iter().enumerate().all(|(n, entry)| entry.number == n as u64));
}

async fn read_all(client: &Client, id: &str, pause: Duration) -> Vec<v1::LogEntry> {
    let request = v1::SubscribeLogsRequest { job_id: id.to_owned(), tail: None };
    let mut stream = client.logs().subscribe_logs(request).await.expect("a stream").into_inner();
    let mut entries = Vec::new();
    while let Some(batch) = stream.message().await.expect("a healthy stream") {
        entries.extend(batch.entries);
        tokio::time::sleep(pause).await;
    }
    entries
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_lines_can_be_asked_for() {
    let cluster = Cluster::up(&["--slots", "1"]).await;
    let go = cluster.home.path("go");
    let script = format!("seq 1 5000; until [ -e {} ]; do sleep 0.02; done; seq 5001 5003", go.display());
    let id = cluster.queue(shell(script)).await;
    until("the first lines are stored", || async { (cluster.log(&id).await.len() == 5000).then_some(()) }).await;
    assert_eq!(cluster.hodei(&["logs", "--tail", "3", &id]).await.ok().text(), "4998\n4999\n5000\n");
    assert_eq!(cluster.hodei(&["logs", "--tail", "0", &id]).await.ok().text(), "");
    let follower = tokio::spawn(run(cluster.command(&["logs", "-f", "--tail", "2", &id])));
    let quiet = tokio::spawn(run(cluster.command(&["logs", "-f", "--tail", "0", &id])));
    tokio::time::sleep(Duration::from_millis(300)).await;
    std::fs::write(go, "").expect("a file");
    assert_eq!(follower.await.expect("a follower").ok().text(), "4999\n5000\n5001\n5002\n5003\n");
    assert_eq!(quiet.await.expect("a follower").ok().text(), "5001\n5002\n5003\n");
    assert_eq!(cluster.hodei(&["logs", &id]).await.ok().text().lines().count(), 5003);
    let one = cluster.hodei(&["logs", "--json", "--tail", "1", &id]).await.ok().json();
    assert_eq!((&one["text"], &one["number"]), (&"5003".into(), &5002.into()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_of_a_later_attempt_sees_the_earlier_ones_too() {
    let mut cluster = Cluster::start().await;
    let _worker = cluster.worker("a", &["--slots", "1"]).await;
    let folder = cluster.home.path("");
    let script = format!(
        "echo attempt $HODEI_EXECUTION_ID; until [ -e {0}/go-$(cat {0}/round) ]; do sleep 0.02; done; exit 1",
        folder.display()
    );
    let retry = v1::RetryPolicy { max_attempts: Some(1), ..Default::default() };
    cluster.home.write("round", "1");
    cluster.home.write("go-1", "");
    let id = cluster.queue(v1::JobSpec { retry: Some(retry), ..shell(script) }).await;
    cluster.ended(&id).await;

    // Once on the server that saw the first attempt, once on one that did not.
    for (round, restart) in [(2, false), (3, true)] {
        if restart {
            cluster.crash_server().await;
        }
        cluster.home.write("round", round.to_string());
        cluster.jobs().retry_job(v1::RetryJobRequest { job_id: id.clone() }).await.expect("a retry");
        until("it has printed", || async { (cluster.log(&id).await.len() == round).then_some(()) }).await;
        let reader = tokio::spawn({
            let (client, id) = (cluster.client.clone(), id.clone());
            async move { read_all(&client, &id, Duration::ZERO).await }
        });
        tokio::time::sleep(Duration::from_millis(100)).await;
        cluster.home.write(&format!("go-{round}"), "");
        let read = reader.await.expect("a reader");
        let job = cluster.job(&id).await;
        let expected: Vec<_> = job.executions.iter().map(|execution| format!("attempt {}", execution.id)).collect();
        assert_eq!((lines(&read), read.len()), (expected, round));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_chunk_that_comes_again_is_kept_once_and_one_out_of_order_is_not_kept() {
    let cluster = Cluster::start().await;
    let mut worker = FakeWorker::join(&cluster).await;
    let id = cluster.queue(shell("the fake worker runs nothing")).await;
    let of = worker.assignment().await;
    let reader = tokio::spawn({
        let (client, id) = (cluster.client.clone(), id.clone());
        async move { read_all(&client, &id, Duration::ZERO).await }
    });
    for (first, text) in [(0, b"zero"), (1, b"one."), (0, b"zero"), (2, b"two.")] {
        worker.send(line_of(&of, first, text));
    }
    until("three lines are stored", || async { (cluster.log(&id).await.len() == 3).then_some(()) }).await;
    let end = v1::Finished { execution_id: of.execution_id.clone(), log_entries: 3, ..Default::default() };
    worker.send(worker_event::Kind::Finished(end));
    assert_eq!(cluster.ended(&id).await.state(), JobState::Succeeded);
    assert_eq!(lines(&cluster.log(&id).await), ["zero", "one.", "two."]);
    assert_eq!(lines(&reader.await.expect("a reader")), ["zero", "one.", "two."]);

    let id = cluster.queue(shell("the next")).await;
    let of = worker.assignment().await;
    worker.send(line_of(&of, 7, b"seven"));
    worker.closed().await;
    assert_eq!(lines(&cluster.log(&id).await), Vec::<String>::new(), "a gap is never stored");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_goes_on_through_a_crash_of_the_server() {
    let mut cluster = Cluster::start().await;
    let _worker = cluster.worker("a", &["--slots", "1"]).await;
    let mut command =
        cluster.command(&["run", "--", "sh", "-c", "for n in $(seq 40); do echo $n; sleep 0.05; done; exit 9"]);
    command.env("HODEI_SERVER", cluster.socket());
    let running = tokio::spawn(run(command));
    until("it prints", || async {
        let jobs = cluster.list().await;
        let id = &jobs.first()?.id;
        (cluster.log(id).await.len() > 5).then_some(())
    })
    .await;
    cluster.crash_server().await;
    let ran = running.await.expect("a run");
    assert_eq!(ran.code, 9, "{ran:?}");
    assert!(ran.text().lines().eq((1..=40).map(|n| n.to_string())), "{ran:?}");
}
