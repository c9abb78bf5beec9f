//! Which worker a job goes to, with real workers: what they are, what jobs ask for, and the words for it.

use crate::{
    client::{Client, shell},
    cluster::Cluster,
    http::Http,
};
use hodei_api::{
    channel::Authorized,
    v1::{self, JobState, scheduler_service_client::SchedulerServiceClient as Scheduler},
};
use serde_json::{Value, json};
use tonic::Code;

impl Client {
    fn scheduler(&self) -> Scheduler<Authorized> {
        Scheduler::new(self.channel.clone())
    }
}

impl Cluster {
    async fn submit(&self, flags: &[&str]) -> String {
        let args = [&["job", "submit"], flags, &["--", "sleep", "1000"]].concat();
        self.hodei(&args).await.ok().text().trim().to_owned()
    }

    /// The worker that a job runs on.
    async fn ran_on(&self, job: &str) -> String {
        self.reached(job, JobState::Running).await.executions[0].worker_id.clone()
    }

    async fn explained(&self, job: &str) -> Value {
        self.hodei(&["job", "explain", job, "--json"]).await.ok().json()
    }
}

/// What an explanation says of a worker.
fn fate<'v>(decision: &'v Value, worker: &str) -> &'v Value {
    let workers = decision["workers"].as_array().expect("workers");
    workers.iter().find(|considered| considered["name"] == worker).expect("every worker is explained")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_go_where_taints_labels_and_zones_let_them_and_say_why() {
    let cluster = Cluster::start().await;
    let north = cluster.worker("north", &["--slots", "4", "--zone", "north", "--label", "disk=ssd"]).await;
    let flags =
        ["--slots", "4", "--zone", "south", "--taint", "gpu=yes", "--capability", "cuda:version=12", "--gpus", "2"];
    let south = cluster.worker("south", &flags).await;

    let plain = cluster.submit(&["--zone", "south"]).await;
    assert_eq!(cluster.ran_on(&plain).await, north.id, "a wish does not make it tolerate a taint");
    let gpu = cluster.submit(&["--tolerate", "gpu", "--capability", "cuda:version=12", "--gpus", "1"]).await;
    assert_eq!(cluster.ran_on(&gpu).await, south.id);
    let wish = cluster.submit(&["--tolerate", "gpu=yes", "--zone", "south"]).await;
    assert_eq!(cluster.ran_on(&wish).await, south.id);
    let ssd = cluster.submit(&["--select", "disk in (ssd, nvme)", "--tolerate", "*"]).await;
    assert_eq!(cluster.ran_on(&ssd).await, north.id);

    let must = cluster.submit(&["--zone", "south", "--require-zone"]).await;
    let waits = "every connected worker that could run it has a taint that it does not tolerate";
    assert_eq!(cluster.job(&must).await.waiting_reason, waits);
    let decision = cluster.explained(&must).await;
    assert_eq!((&decision["decision"], &decision["reason"]), (&json!("enqueue"), &json!(waits)));
    assert_eq!(fate(&decision, "north")["filter"], "zone");
    assert_eq!(fate(&decision, "north")["why"], "its zone is north and the job must be in south");
    assert_eq!(fate(&decision, "south")["why"], "the job does not tolerate its taint gpu=yes");
    let text = cluster.hodei(&["job", "explain", &must]).await.ok();
    assert!(text.text().starts_with(&format!("The job is pending: {waits}.\n")), "{text:?}");
    assert!(text.text().contains("zone: its zone is north"), "{text:?}");

    let none = cluster.submit(&["--select", "!disk", "--image", "busybox"]).await;
    let waits = cluster.job(&none).await.waiting_reason;
    assert!(
        waits.starts_with(
            "no connected worker runs in the image busybox, and none is made: no provider makes workers in the image busybox"
        ),
        "{waits}"
    );
    let running = cluster.explained(&wish).await;
    assert_eq!((&running["decision"], &running["worker_id"]), (&json!("assign"), &json!(south.id)));
    let score = &fate(&running, "south")["score"];
    assert_eq!((&score["zone"], &score["affinity"], &score["history"]), (&json!(15.0), &json!(20.0), &json!(10.0)));

    let listed = cluster.hodei(&["worker", "list"]).await.ok();
    for words in ["disk=ssd", "gpu=yes", "south"] {
        assert!(listed.text().contains(words), "{listed:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_configuration_says_what_a_worker_is() {
    let config = "[worker]\nslots = 1\nlabels = ['tier=gold']\ntaints = ['old:PreferNoSchedule']\nzone = 'z'\ngpus = 3";
    let cluster = Cluster::up_with(config).await;
    let worker = &cluster.hodei(&["worker", "list", "--json"]).await.ok().json()[0];
    assert_eq!(worker["labels"], json!({ "tier": "gold" }));
    assert_eq!((&worker["zone"], &worker["taints"]), (&json!("z"), &json!(["old:PreferNoSchedule"])));
    assert_eq!(worker["capacity"]["gpus"], 3);
    assert!(worker["capacity"]["disk_bytes"].as_u64().is_some_and(|bytes| bytes > 0), "{worker}");
    let ran =
        cluster.hodei(&["run", "--select", "tier=gold", "--gpus", "3", "--disk", "1MiB", "--", "echo", "hi"]).await;
    assert_eq!(ran.ok().text(), "hi\n");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dry_run_tells_and_queues_nothing() {
    let cluster = Cluster::start().await;
    let rest = Http::new(&cluster.http, &cluster.api_token);
    let ask = v1::ScheduleJobRequest { job: Some(shell("true")) };
    let alone = cluster.scheduler().schedule_job(ask.clone()).await.expect("a decision").into_inner();
    assert_eq!((alone.decision(), alone.reason.as_str()), (v1::Decision::Enqueue, "no worker is connected"));

    let worker = cluster.worker("one", &["--slots", "2", "--cpu", "2"]).await;
    let there = cluster.scheduler().schedule_job(ask).await.expect("a decision").into_inner();
    assert_eq!((there.decision(), there.worker_id.as_str()), (v1::Decision::Assign, worker.id.as_str()));
    assert_eq!(there.workers[0].score.map(|score| score.total), Some(100.0));
    let job = json!({
        "shell": { "program": "true" },
        "requirements": { "cpu_millis": 1000, "memory_bytes": 0, "selector": [{ "key": "disk", "operator": "Exists" }] }
    });
    let told = rest.post("/scheduler/decisions", &job).await.with(200);
    assert_eq!((&told["decision"], &told["workers"][0]["filter"]), (&json!("enqueue"), &json!("selector")));
    let wrong =
        json!({ "shell": { "program": "true" }, "requirements": { "selector": [{ "key": "a", "operator": "Is" }] } });
    let (_, field) = rest.post("/scheduler/decisions", &wrong).await.problem(422);
    assert_eq!(field, "requirements.selector[0].operator");
    assert!(cluster.list().await.is_empty(), "nothing was queued");

    // What is asked for is kept with the job, and shown as it was given.
    let id = rest.submit(&job).await;
    assert_eq!(rest.job(&id).await["spec"]["requirements"], job["requirements"]);
    assert_eq!(rest.get(&format!("/jobs/{id}/decision")).await.with(200)["state"], "pending");
    let free = rest.get("/scheduler/workers").await.with(200);
    assert_eq!(free["items"][0]["id"], json!(worker.id));
    let wanted = v1::GetAvailableWorkersRequest {
        job: Some(v1::JobSpec { requirements: Some(Box::new(large())), ..shell("true") }),
    };
    let able = cluster.scheduler().get_available_workers(wanted).await.expect("workers").into_inner().workers;
    assert!(able.is_empty(), "{able:?}");
}

fn large() -> v1::Requirements {
    v1::Requirements { cpu_millis: 3000, ..v1::Requirements::default() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_closed_fleet_rejects_what_nothing_can_run() {
    let mut cluster = Cluster::start().await;
    let _worker = cluster.worker("small", &["--slots", "1", "--cpu", "1"]).await;
    let waits = cluster.submit(&["--cpu", "2"]).await;
    assert_eq!(cluster.job(&waits).await.state(), JobState::Pending, "an open fleet may grow");
    cluster.hodei(&["scheduler", "set", "--fleet", "closed"]).await.ok();
    let because = "the fleet is closed and no connected worker is large enough for its requirements";
    let rejected = cluster.ended(&waits).await;
    assert_eq!((rejected.state(), rejected.rejected_because.as_str()), (JobState::Failed, because));
    assert!(rejected.executions.is_empty());
    let ran = cluster.hodei(&["run", "--cpu", "2", "--", "true"]).await;
    assert_eq!(ran.code, 125, "{ran:?}");
    assert!(ran.stderr.contains("the job was rejected: the fleet is closed"), "{ran:?}");
    let letters = cluster.hodei(&["dlq", "list", "--kind", "rejected", "--json"]).await.ok().json();
    assert_eq!(letters.as_array().map(Vec::len), Some(2), "{letters}");
    assert_eq!(cluster.explained(&waits).await["decision"], "reject");

    // It is closed after a restart, too, before its worker is back.
    let fits = cluster.submit(&["--cpu", "1"]).await;
    cluster.reached(&fits, JobState::Running).await;
    cluster.crash_server().await;
    let next = cluster.submit(&["--cpu", "1"]).await;
    assert_eq!(cluster.job(&next).await.state(), JobState::Pending, "the worker is known and will be back");
    let shown = cluster.hodei(&["scheduler", "show", "--json"]).await.ok().json();
    assert_eq!((&shown["fleet"], &shown["strategy"]), (&json!("closed"), &json!("smart")));

    cluster.hodei(&["scheduler", "set", "--fleet", "open"]).await.ok();
    cluster.hodei(&["dlq", "replay", &waits]).await.ok();
    assert_eq!(cluster.job(&waits).await.state(), JobState::Pending);
    let _large = cluster.worker("large", &["--slots", "2", "--cpu", "3"]).await;
    let job = cluster.reached(&waits, JobState::Running).await;
    assert_eq!(job.rejected_because, "");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_strategy_has_its_own_order() {
    let cluster = Cluster::start().await;
    let rest = Http::new(&cluster.http, &cluster.api_token);
    let large = cluster.worker("large", &["--slots", "20", "--cpu", "8", "--zone", "a"]).await;
    let _small = cluster.worker("small", &["--slots", "4", "--cpu", "2", "--zone", "b"]).await;
    let place = async |count: usize, flags: &[&str]| {
        let mut on_large = 0;
        for _ in 0..count {
            let id = cluster.submit(flags).await;
            on_large += usize::from(cluster.ran_on(&id).await == large.id);
        }
        on_large
    };
    cluster.hodei(&["scheduler", "set", "--strategy", "affinity"]).await.ok();
    assert_eq!(place(2, &["--zone", "b"]).await, 0);
    cluster.hodei(&["scheduler", "set", "--strategy", "least_connections"]).await.ok();
    assert_eq!(place(2, &[]).await, 2, "the small one has two");
    cluster.hodei(&["scheduler", "set", "--strategy", "round_robin"]).await.ok();
    assert_eq!(place(2, &[]).await, 1);
    cluster.hodei(&["scheduler", "set", "--strategy", "resource_priority"]).await.ok();
    assert_eq!(place(2, &[]).await, 2);
    cluster.hodei(&["scheduler", "set", "--strategy", "smart", "--threshold", "5"]).await.ok();
    assert_eq!(place(2, &[]).await, 2, "the small one is almost full");

    let wrong = cluster.hodei(&["scheduler", "set", "--strategy", "clever"]).await;
    assert!(wrong.code != 0 && wrong.stderr.contains("smart"), "{wrong:?}");
    let put = rest.send("PUT", "/scheduler", &[("content-type", "application/json")], r#"{"threshold":101}"#).await;
    assert_eq!(put.problem(422).1, "threshold");
    let put =
        rest.send("PUT", "/scheduler", &[("content-type", "application/json")], r#"{"strategy":"affinity"}"#).await;
    let settings =
        json!({ "strategy": "affinity", "threshold": 0, "fleet": "open", "provider_strategy": "fastest_startup" });
    assert_eq!(put.with(200), settings);
    assert_eq!(rest.get("/scheduler").await.with(200), settings);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_places_a_job_by_hand() {
    let cluster = Cluster::start().await;
    cluster.hodei(&["scheduler", "set", "--threshold", "100"]).await.ok();
    let worker = cluster.worker("one", &["--slots", "2", "--taint", "gpu"]).await;
    let first = cluster.submit(&["--tolerate", "gpu"]).await;
    cluster.ran_on(&first).await;
    let (passed_over, repelled) = (cluster.submit(&["--tolerate", "gpu"]).await, cluster.submit(&[]).await);
    let why = cluster.job(&passed_over).await.waiting_reason;
    assert_eq!(why, "every worker that fits has a score below the threshold");
    let request = |job: &str| v1::AssignJobRequest { job_id: job.to_owned(), worker_id: worker.id.clone() };
    let refused = cluster.jobs().assign_job(request(&repelled)).await.expect_err("refused");
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().contains("taint gpu"), "{refused:?}");
    cluster.hodei(&["job", "assign", &passed_over, &worker.id]).await.ok();
    assert_eq!(cluster.ran_on(&passed_over).await, worker.id);
    let rest = Http::new(&cluster.http, &cluster.api_token);
    let again = rest.post(&format!("/jobs/{first}/assign"), &json!({ "worker_id": worker.id })).await;
    assert_eq!(again.status, 409);
}
