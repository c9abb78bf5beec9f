//! Workers die, freeze, come back, are drained; and nobody can pass for one.

use crate::{
    client::{lines, shell},
    cluster::{Cluster, Heard, SHORT_LEASE},
    fake::{self, FakeWorker, KEY, id_text, line_of, signed},
    process::{is_alive, numbers, until, until_true},
};
use hodei_api::v1::{self, JobState, worker_event};
use prost::Message;
use rustix::process::Signal;
use std::{
    path::Path,
    time::{Duration, SystemTime, UNIX_EPOCH},
};
use tonic::{Code, Request, Status};
use uuid::Uuid;

/// What `SHORT_LEASE` asks for, in milliseconds, and the time that the issue of another start may take.
const LEASE_AND_GRACE: i64 = 3000;
const SLACK: i64 = 2000;

fn now_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_millis() as i64
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_of_a_killed_agent_are_gone_at_once_and_run_again_elsewhere() {
    let cluster = Cluster::with(&SHORT_LEASE).await;
    let mut first = cluster.worker("first", &["--slots", "2"]).await;
    let pids = cluster.home.path("pids");
    let script = format!(
        "[ $HODEI_ATTEMPT = 2 ] && exit 0; setsid sleep 1000 & echo $! >> {0}; echo $$ >> {0}; wait",
        pids.display()
    );
    let ids = [cluster.queue(shell(script.clone())).await, cluster.queue(shell(script)).await];
    until_true("both jobs have forked", || numbers(&pids).len() == 4).await;
    let second = cluster.worker("second", &["--slots", "2"]).await;

    let killed = now_ms();
    first.daemon.kill();
    until_true("the guardian has ended them", || numbers(&pids).iter().all(|pid| !is_alive(*pid))).await;
    let took = now_ms() - killed;
    assert!(took < 1000, "the guardian waits for no lease; it took {took} ms");

    for id in ids {
        let job = cluster.ended(&id).await;
        let [lost, again] = &job.executions[..] else { panic!("two runs: {job:?}") };
        assert_eq!((job.state(), job.attempt), (JobState::Succeeded, 2), "{job:?}");
        assert_eq!((lost.worker_id.as_str(), lost.failure_kind.as_str()), (first.id.as_str(), "worker_lost"));
        assert_eq!((again.worker_id.as_str(), again.attempt), (second.id.as_str(), 2));
        let wait = again.started_at_ms - killed;
        assert!(wait <= LEASE_AND_GRACE + SLACK, "it ran again after {wait} ms");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_agents_jobs_are_gone_before_another_starts_them_and_its_late_result_is_stale() {
    let cluster = Cluster::with(&SHORT_LEASE).await;
    let first = cluster.worker("first", &["--slots", "2"]).await;
    let folder = cluster.home.path("");
    let folder = folder.display();
    // Writes the time for as long as it lives. The second run looks whether the first still does.
    let long = format!(
        "if [ $HODEI_ATTEMPT = 2 ]; then date +%s%N > {folder}/second-start; kill -0 $(cat {folder}/pid) 2>&1 && echo overlap; \
         exit 0; fi; echo $$ > {folder}/pid; while :; do date +%s%N >> {folder}/beats; sleep 0.02; done"
    );
    // Ends well while its agent is frozen: the agent has a result to tell when it wakes up.
    let short = format!(
        "echo attempt $HODEI_ATTEMPT; [ $HODEI_ATTEMPT = 2 ] && exit 0; \
         touch {folder}/waiting; until [ -e {folder}/go ]; do sleep 0.02; done; echo late; touch {folder}/done"
    );
    let (long, short) = (cluster.queue(shell(long)).await, cluster.queue(shell(short)).await);
    until_true("both run", || !cluster.home.read("beats").is_empty() && cluster.home.path("waiting").exists()).await;
    cluster.reached(&short, JobState::Running).await;
    let second = cluster.worker("second", &["--slots", "2"]).await;

    first.daemon.signal(Signal::STOP);
    until_true("the agent stands still", || first.daemon.stands_still()).await;
    cluster.home.write("go", "");
    until_true("the short job has ended", || cluster.home.path("done").exists()).await;
    let (long_job, short_job) = (cluster.ended(&long).await, cluster.ended(&short).await);
    let beats = cluster.home.read("beats");
    let last: u64 = beats.lines().last().and_then(|beat| beat.parse().ok()).expect("a time");
    let again: u64 = cluster.home.read("second-start").trim().parse().expect("a time");
    assert!(last < again, "the first run beat at {last}, the second began at {again}");
    assert!(lines(&cluster.log(&long).await).iter().all(|line| line != "overlap"));

    first.daemon.signal(Signal::CONT);
    cluster.connected(&first.id).await;
    // The agent works again, and has told all it had to tell before it takes new work.
    drain(&cluster, &second.id).await;
    let after = cluster.queue(shell("echo after")).await;
    assert_eq!(cluster.ended(&after).await.executions[0].worker_id, first.id);

    for (before, id) in [(long_job, &long), (short_job, &short)] {
        let job = cluster.job(id).await;
        assert_eq!(job.executions, before.executions, "the late result changed something");
        let [lost, accepted] = &job.executions[..] else { panic!("two runs: {job:?}") };
        assert_eq!((lost.worker_id.as_str(), lost.failure_kind.as_str()), (first.id.as_str(), "worker_lost"));
        assert_eq!((accepted.worker_id.as_str(), accepted.outcome.as_str()), (second.id.as_str(), "succeeded"));
    }
    let log = lines(&cluster.log(&short).await);
    assert!(log.iter().all(|line| line != "late"), "a stale execution's lines are not kept: {log:?}");
}

async fn drain(cluster: &Cluster, worker: &str) {
    cluster.hodei(&["worker", "drain", worker]).await.ok();
    until("the worker is gone", || async {
        cluster.workers().await.iter().all(|known| known.id != worker).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_comes_back_after_a_crash_is_the_same_worker_and_delivers_what_it_spooled() {
    let mut cluster = Cluster::start().await;
    let mut worker = cluster.worker("first", &["--slots", "2"]).await;
    let folder = cluster.home.path("");
    let folder = folder.display();
    let script = format!("until [ -e {folder}/go ]; do sleep 0.02; done; echo spooled; touch {folder}/done");
    let ended = cluster.queue(shell(&script)).await;
    let lost = cluster.queue(shell("echo started; [ $HODEI_ATTEMPT = 2 ] || sleep 1000")).await;
    cluster.reached(&ended, JobState::Running).await;
    until("its line is stored", || async { (cluster.log(&lost).await.len() == 1).then_some(()) }).await;

    // The result can only be spooled: nobody is there to take it.
    cluster.server.kill();
    cluster.home.write("go", "");
    until_true("the job has ended", || cluster.home.path("done").exists()).await;
    let spool = cluster.home.path("first/worker/spool");
    until_true("its result is spooled", || spooled_results(&spool) == 1).await;
    worker.daemon.kill();
    cluster.start_server().await;
    let _again = cluster.restart_worker("first", &["--slots", "2"]).await;

    let job = cluster.ended(&ended).await;
    assert_eq!((job.state(), job.executions.len()), (JobState::Succeeded, 1), "{job:?}");
    assert_eq!(lines(&cluster.log(&ended).await), ["spooled"]);
    let job = cluster.ended(&lost).await;
    let kinds: Vec<_> = job.executions.iter().map(|execution| execution.failure_kind.as_str()).collect();
    assert_eq!((job.state(), kinds), (JobState::Succeeded, vec!["worker_lost", ""]), "{job:?}");
    assert!(job.executions.iter().all(|execution| execution.worker_id == worker.id), "the same worker: {job:?}");
}

/// The results in a worker's spool. Each record has its length and its number in front.
fn spooled_results(folder: &Path) -> usize {
    let files = std::fs::read_dir(folder).expect("a spool").flatten();
    let bytes: Vec<u8> = files.flat_map(|file| std::fs::read(file.path()).unwrap_or_default()).collect();
    let mut rest = &bytes[..];
    let mut results = 0;
    while let Some((length, after)) = rest.split_first_chunk::<4>()
        && let Some((record, after)) =
            after.get(8..).and_then(|after| after.split_at_checked(u32::from_le_bytes(*length) as usize))
    {
        let event = v1::WorkerEvent::decode(record).expect("a record");
        results += usize::from(matches!(event.kind, Some(worker_event::Kind::Finished(_))));
        rest = after;
    }
    results
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_whose_workers_keep_dying_is_given_up() {
    let cluster = Cluster::with(&["--lease", "600ms", "--lease-grace", "200ms"]).await;
    let spec = v1::JobSpec {
        retry: Some(v1::RetryPolicy { max_attempts: Some(100), ..Default::default() }),
        ..shell("sleep 1000")
    };
    let id = cluster.queue(spec).await;
    for life in 1..=3 {
        let mut worker = cluster.worker(&format!("life-{life}"), &["--slots", "1"]).await;
        until("it runs again", || async { Some(cluster.job(&id).await).filter(|job| job.attempt == life) }).await;
        cluster.reached(&id, JobState::Running).await;
        worker.daemon.kill();
        until("the loss is noticed", || async {
            cluster.job(&id).await.executions[life as usize - 1].outcome.eq("failed").then_some(())
        })
        .await;
    }
    let job = cluster.ended(&id).await;
    assert_eq!((job.state(), job.executions.len()), (JobState::Failed, 3), "{job:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drained_worker_finishes_its_job_and_leaves() {
    let cluster = Cluster::start().await;
    let mut worker = cluster.worker("leaving", &["--slots", "2"]).await;
    let go = cluster.home.path("go");
    let id = cluster.queue(shell(format!("until [ -e {} ]; do sleep 0.02; done", go.display()))).await;
    cluster.reached(&id, JobState::Running).await;

    let said = cluster.hodei(&["worker", "drain", &worker.id]).await.ok();
    assert!(said.text().starts_with("draining"), "{said:?}");
    let late = cluster.queue(shell("true")).await;
    let state = |workers: serde_json::Value| workers[0]["state"].as_str().map(str::to_owned);
    let listed = cluster.hodei(&["worker", "list", "--json"]).await.ok().json();
    assert_eq!(state(listed).as_deref(), Some("draining"));
    assert_eq!(cluster.job(&late).await.state(), JobState::Pending, "it takes nothing new");

    std::fs::write(go, "").expect("a file");
    assert_eq!(cluster.ended(&id).await.state(), JobState::Succeeded);
    assert!(worker.daemon.ended().await.success(), "it leaves by itself");
    assert_eq!(cluster.hodei(&["worker", "list", "--json"]).await.ok().text().trim(), "[]");
    assert_eq!(cluster.job(&late).await.state(), JobState::Pending);
    assert_eq!(cluster.hodei(&["worker", "drain", &worker.id]).await.code, 125, "there is no such worker any more");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_is_told_to_end_finishes_first_and_gives_back_when_told_again() {
    let cluster = Cluster::start().await;
    let mut worker = cluster.worker("leaving", &["--slots", "1"]).await;
    let spec = v1::JobSpec {
        timeouts: Some(v1::Timeouts { kill_grace_ms: Some(200), ..Default::default() }),
        ..shell("sleep 1000")
    };
    let id = cluster.queue(spec).await;
    cluster.reached(&id, JobState::Running).await;
    worker.daemon.signal(Signal::TERM);
    until("the server knows", || async {
        (cluster.workers().await[0].state() == v1::WorkerState::Draining).then_some(())
    })
    .await;
    assert_eq!(cluster.job(&id).await.state(), JobState::Running);
    worker.daemon.signal(Signal::TERM);
    assert!(worker.daemon.ended().await.success());

    let job = cluster.reached(&id, JobState::Pending).await;
    assert_eq!((job.attempt, job.executions[0].outcome.as_str()), (0, "released"), "it counts as no run: {job:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_worker_that_is_told_to_end_is_gone_and_comes_back_until_a_person_is_rid_of_it() {
    let mut cluster = Cluster::start().await;
    let heard = Heard::of(&cluster, "worker").await;
    let mut worker = cluster.worker("leaving", &["--slots", "1"]).await;
    worker.daemon.signal(Signal::TERM);
    assert!(worker.daemon.ended().await.success());
    let told = heard.of_one(&worker.id, "worker.terminated").await;
    let states = ["connecting", "ready", "draining", "terminating", "terminated"];
    assert_eq!(told, states.map(|state| format!("worker.{state}")));
    assert_eq!(cluster.hodei(&["worker", "list", "--json"]).await.ok().text().trim(), "[]");

    // As when its machine starts again, and the server has been away meanwhile.
    cluster.crash_server().await;
    let mut again = cluster.restart_worker("leaving", &["--slots", "1"]).await;
    cluster.connected(&worker.id).await;
    let job = cluster.ended(&cluster.queue(shell("true")).await).await;
    assert_eq!(job.executions[0].worker_id, worker.id, "{job:?}");
    again.kill();
    drain(&cluster, &worker.id).await;
    let mut stranger = cluster.restart_worker("leaving", &["--slots", "1"]).await;
    assert!(!stranger.ended().await.success(), "it has to register anew");
    assert!(stranger.log().contains("refused this worker"), "{}", stranger.log());
}

fn refused(outcome: Result<impl std::fmt::Debug, Status>) {
    let status = outcome.expect_err("must be refused");
    assert_eq!(status.code(), Code::Unauthenticated, "{status:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_works_once_in_time_for_its_worker_and_for_nobody_else() {
    let mut cluster = Cluster::start().await;
    let token = cluster.token("", 0).await;
    let first = fake::register(&cluster, &token.token, "", KEY).await.expect("a session");
    assert_eq!(first.worker_id, token.worker_id);
    refused(fake::register(&cluster, &token.token, "", b"the key of another worker").await);
    // The answer may have been lost: whoever proves the same key may ask again.
    let again = fake::register(&cluster, &token.token, &token.worker_id, KEY).await.expect("a session");
    assert_eq!(again.worker_id, first.worker_id);

    let expired = cluster.token("", 1).await;
    tokio::time::sleep(Duration::from_millis(20)).await;
    refused(fake::register(&cluster, &expired.token, "", KEY).await);
    refused(fake::register(&cluster, &Uuid::new_v4().to_string(), "", KEY).await);
    refused(fake::register(&cluster, "", "", KEY).await);
    let bound = cluster.token(&Uuid::now_v7().to_string(), 0).await;
    refused(fake::register(&cluster, &bound.token, &Uuid::now_v7().to_string(), KEY).await);

    // A restart makes none of them good again.
    cluster.crash_server().await;
    refused(fake::register(&cluster, &token.token, "", b"the key of another worker").await);
    refused(fake::register(&cluster, &expired.token, "", KEY).await);
    let bound = fake::register(&cluster, &bound.token, &bound.worker_id, KEY).await;
    bound.expect("the token is still good for its own worker");
    let refusals = until("refusals leave an audit line", || async {
        let lines = cluster.audit("anonymous", "workers.register").await;
        (!lines.is_empty()).then_some(lines)
    });
    assert!(refusals.await.iter().all(|line| line.outcome.starts_with("refused: ")));

    let run = cluster.hodei(&["worker", "run", "--token", &token.token]).await;
    assert_eq!(run.code, 125);
    assert!(run.stderr.contains("used already"), "{run:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_is_not_the_workers_own_opens_nothing() {
    let cluster = Cluster::start().await;
    let worker = FakeWorker::join(&cluster).await;
    let drain = || v1::UpdateWorkerStatusRequest { state: v1::WorkerState::Draining.into() };
    refused(cluster.agents().update_worker_status(drain()).await);
    refused(cluster.agents().update_worker_status(signed("made.up", drain())).await);
    refused(cluster.agents().update_worker_status(signed(&format!("{}.x", worker.id), drain())).await);
    let silent = futures::stream::pending::<v1::WorkerMessage>();
    refused(cluster.agents().worker_stream(signed("made.up", silent)).await);
    refused(cluster.agents().unregister_worker(v1::UnregisterWorkerRequest::default()).await);
    assert_eq!(cluster.workers().await.len(), 1);
    let leave = worker.signed(v1::UnregisterWorkerRequest::default());
    cluster.agents().unregister_worker(leave).await.expect("its own session");
    assert_eq!(cluster.workers().await.len(), 0);
    refused(cluster.agents().update_worker_status(worker.signed(drain())).await);
}

/// The outcomes of the four calls by which a worker reports on an execution.
async fn reports(cluster: &Cluster, execution: &str, session: Option<&str>) -> [Result<(), Status>; 4] {
    fn with<T>(session: Option<&str>, message: T) -> Request<T> {
        match session {
            Some(session) => signed(session, message),
            None => Request::new(message),
        }
    }
    let mut jobs = cluster.jobs();
    let execution_id = execution.to_owned();
    let start = v1::StartJobRequest { execution_id: execution_id.clone() };
    let progress =
        v1::UpdateProgressRequest { execution_id: execution_id.clone(), percent: 99.0, message: "stale".into() };
    let fail = v1::FailJobRequest { execution_id: execution_id.clone(), error: "stale".into(), exit_code: Some(9) };
    let complete = v1::CompleteJobRequest { execution_id, result: b"\"stale\"".to_vec() };
    [
        jobs.start_job(with(session, start)).await.map(drop),
        jobs.update_progress(with(session, progress)).await.map(drop),
        jobs.fail_job(with(session, fail)).await.map(drop),
        jobs.complete_job(with(session, complete)).await.map(drop),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_can_report_by_single_calls() {
    let cluster = Cluster::start().await;
    let mut worker = FakeWorker::join(&cluster).await;
    let id = cluster.queue(shell("the fake worker runs nothing")).await;
    let execution_id = id_text(&worker.assignment().await.execution_id);
    let mut jobs = cluster.jobs();
    jobs.start_job(worker.signed(v1::StartJobRequest { execution_id: execution_id.clone() })).await.expect("started");
    assert_eq!(cluster.job(&id).await.state(), JobState::Running);
    let progress =
        v1::UpdateProgressRequest { execution_id: execution_id.clone(), percent: 42.5, message: "half".into() };
    jobs.update_progress(worker.signed(progress)).await.expect("progress");
    let execution = cluster.job(&id).await.executions[0].clone();
    assert_eq!((execution.progress_percent, execution.progress_message.as_str()), (42.5, "half"));
    let complete = v1::CompleteJobRequest { execution_id, result: br#"{"answer":42}"#.to_vec() };
    jobs.complete_job(worker.signed(complete)).await.expect("completed");
    let job = cluster.job(&id).await;
    assert_eq!((job.state(), job.result.as_slice()), (JobState::Succeeded, &br#"{"answer":42}"#[..]));

    let spec = v1::JobSpec {
        retry: Some(v1::RetryPolicy { max_attempts: Some(1), ..Default::default() }),
        ..shell("the next")
    };
    let id = cluster.queue(spec).await;
    let execution_id = id_text(&worker.assignment().await.execution_id);
    let fail = v1::FailJobRequest { execution_id, error: "it broke".into(), exit_code: Some(7) };
    jobs.fail_job(worker.signed(fail)).await.expect("failed");
    let job = cluster.job(&id).await;
    let execution = &job.executions[0];
    assert_eq!((job.state(), execution.error.as_str(), execution.exit_code), (JobState::Failed, "it broke", Some(7)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stale_or_foreign_execution_changes_nothing() {
    let cluster = Cluster::with(&["--lease", "600ms", "--lease-grace", "200ms"]).await;
    let mut slow = FakeWorker::join(&cluster).await;
    let id = cluster.queue(shell("the fake worker runs nothing")).await;
    let assigned = slow.assignment().await;
    let stale = id_text(&assigned.execution_id);
    let start = v1::StartJobRequest { execution_id: stale.clone() };
    cluster.jobs().start_job(slow.signed(start)).await.expect("started");

    slow.send(line_of(&assigned, 0, b"one"));

    // Without a session, or with that of another worker, nobody may speak for it.
    let mut other = FakeWorker::join(&cluster).await;
    let before = cluster.job(&id).await;
    for outcome in reports(&cluster, &stale, None).await {
        refused(outcome);
    }
    for outcome in reports(&cluster, &stale, Some(&other.session)).await {
        assert_eq!(outcome.expect_err("not its own").code(), Code::FailedPrecondition);
    }
    tell_all(&other, &assigned);
    other.sync().await;
    assert_eq!(cluster.job(&id).await.executions, before.executions);
    // Nor do others disturb what the worker itself has to say.
    slow.send(line_of(&assigned, 1, b"two"));
    until("both lines are stored", || async { (cluster.log(&id).await.len() == 2).then_some(()) }).await;

    // The slow worker is silent past its lease, the other gets the job, and the slow one's reports come late.
    let taken = wait_for_work(&mut other).await;
    let current = cluster.job(&id).await;
    assert_eq!((current.attempt, current.executions[0].failure_kind.as_str()), (2, "worker_lost"), "{current:?}");
    for outcome in reports(&cluster, &stale, Some(&slow.session)).await {
        assert_eq!(outcome.expect_err("stale").code(), Code::FailedPrecondition);
    }
    tell_all(&other, &assigned);
    other.sync().await;
    assert_eq!(cluster.job(&id).await.executions, current.executions, "a stale execution changed the job");

    let complete = v1::CompleteJobRequest { execution_id: id_text(&taken.execution_id), result: b"1".to_vec() };
    cluster.jobs().complete_job(other.signed(complete)).await.expect("the current execution");
    let job = cluster.job(&id).await;
    assert_eq!((job.state(), job.result.as_slice(), job.executions.len()), (JobState::Succeeded, &b"1"[..], 2));
    assert_eq!(lines(&cluster.log(&id).await), ["one", "two"], "nor did it leave a line");
}

/// Renews its lease until it is given something.
async fn wait_for_work(worker: &mut FakeWorker) -> v1::Assignment {
    loop {
        worker.send(worker_event::Kind::Heartbeat(v1::Heartbeat { sent: 1 }));
        match tokio::time::timeout(Duration::from_millis(100), worker.assignment()).await {
            Ok(assignment) => return assignment,
            Err(_) => continue,
        }
    }
}

/// Says all that can be said of an execution on the stream.
fn tell_all(worker: &FakeWorker, of: &v1::Assignment) {
    let execution_id = of.execution_id.clone();
    let progress = v1::ProgressReport {
        execution_id: execution_id.to_vec(),
        basis_points: 1,
        message: "stale".into(),
        data: None,
    };
    worker.send(worker_event::Kind::Started(v1::Started { execution_id: execution_id.clone(), at_ms: 1 }));
    worker.send(worker_event::Kind::Progress(progress));
    worker.send(line_of(of, 0, b"stale"));
    worker.send(line_of(of, 2, b"stale"));
    worker.send(worker_event::Kind::Finished(v1::Finished { execution_id, ..Default::default() }));
}
