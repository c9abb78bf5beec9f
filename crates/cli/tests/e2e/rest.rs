//! REST as programs use it: jobs, queues, dead letters, logs and events over HTTP, with real workers.

use crate::{
    cluster::Cluster,
    http::{Answer, Event, Http},
    process::{Home, numbers, until, until_true},
    webhooks::{LOCAL, Receiver},
};
use serde_json::{Value, json};
use std::collections::HashSet;

impl Cluster {
    pub fn rest(&self) -> Http {
        Http::new(&self.http, &self.api_token)
    }
}

fn shell(script: &str) -> Value {
    json!({ "shell": { "program": "/bin/sh", "args": ["-c", script] } })
}

fn with(mut job: Value, fields: Value) -> Value {
    let fields = fields.as_object().expect("an object").clone();
    job.as_object_mut().expect("an object").extend(fields);
    job
}

fn ids(page: &Value) -> Vec<String> {
    page["items"].as_array().expect("items").iter().map(|job| job["id"].as_str().expect("an id").to_owned()).collect()
}

const NO_JOB: &str = "01890a5d-ac96-774b-bcce-b302099a8057";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_is_taken_run_and_told_of() {
    let cluster = Cluster::start().await;
    let rest = cluster.rest();
    let job = with(
        shell("echo out; echo err >&2; echo '{\"sum\": 42}' > $HODEI_RESULT"),
        json!({
            "name": "adder", "queue": "sums", "tags": ["x"], "data": { "step": 1 },
            "secrets": { "KEY": "s3cr3t-s3cr3t" }
        }),
    );
    let answer = rest.post("/jobs", &job).await;
    let location = answer.header("location").to_owned();
    let accepted = answer.with(202);
    let id = accepted["id"].as_str().expect("an id").to_owned();
    assert_eq!(location, format!("/api/v1/jobs/{id}"));
    assert_eq!((accepted["state"].as_str(), accepted["spec"]["queue"].as_str()), (Some("pending"), Some("sums")));
    assert_eq!(accepted["spec"]["secrets"]["KEY"], "***");
    assert_eq!(accepted["data"], json!({ "step": 1 }));

    let worker = cluster.worker("a", &[]).await;
    let done = rest.reached(&id, "succeeded").await;
    assert_eq!(done["result"], json!({ "sum": 42 }));
    assert_eq!(done["executions"][0]["worker_id"], worker.id);
    for moment in ["created_at", "started_at", "finished_at"] {
        assert!(done[moment].as_str().expect("a moment").ends_with('Z'), "{done}");
    }
    assert!(!done.to_string().contains("null") && !done.to_string().contains("s3cr3t"), "{done}");

    let logs = rest.get(&format!("/jobs/{id}/logs")).await.with(200);
    let mut lines: Vec<_> = logs["items"].as_array().expect("entries").iter().collect();
    lines.sort_by_key(|line| line["stderr"].as_bool());
    assert_eq!((lines[0]["text"].as_str(), lines[1]["text"].as_str()), (Some("out"), Some("err")));
    let text = rest.send("GET", &format!("/jobs/{id}/logs?tail=1"), &[("accept", "text/plain")], "").await;
    assert_eq!(text.header("content-type"), "text/plain; charset=utf-8");
    assert_eq!(text.body.iter().filter(|byte| **byte == b'\n').count(), 1);

    let queue = rest.get("/queues/sums").await.with(200);
    assert_eq!(queue["counts"], json!({ "succeeded": 1 }));
    let workers = rest.get("/workers").await.with(200);
    assert_eq!(workers["items"][0]["id"], worker.id);
    assert_eq!(rest.get(&format!("/workers/{}", worker.id)).await.with(200)["name"], "a");
    assert_eq!(rest.get("/health").await.with(200)["status"], "ready");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_fails_is_retried_until_it_succeeds() {
    let cluster = Cluster::start().await;
    let (rest, runs) = (cluster.rest(), cluster.home.path("runs"));
    let _worker = cluster.worker("a", &[]).await;
    let script = format!("echo 1 >> {0}; test $(wc -l < {0}) -ge 3", runs.display());
    let retry = json!({ "retry": { "max_attempts": 5, "delay": "1ms", "jitter_percent": 0, "backoff": "quadratic" } });
    let id = rest.submit(&with(shell(&script), retry)).await;
    let job = rest.reached(&id, "succeeded").await;
    assert_eq!(job["attempt"], 3);
    let outcomes: Vec<_> = job["executions"].as_array().expect("runs").iter().map(|run| &run["outcome"]).collect();
    assert_eq!(outcomes, ["failed", "failed", "succeeded"]);
    assert_eq!(job["executions"][0]["failure_kind"], "exit_code");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_fails_for_good_is_a_dead_letter_that_can_be_replayed() {
    let cluster = Cluster::start().await;
    let (rest, mended) = (cluster.rest(), cluster.home.path("mended"));
    let _worker = cluster.worker("a", &[]).await;
    let script = format!("test -e {} || {{ echo broken >&2; exit 3; }}", mended.display());
    let job = with(shell(&script), json!({ "queue": "fragile", "retry": { "max_attempts": 2, "delay_ms": 1 } }));
    let id = rest.submit(&job).await;
    rest.reached(&id, "failed").await;

    let page = rest.get("/dead-letter?queue=fragile").await.with(200);
    assert_eq!((&page["items"][0]["job_id"], &page["items"][0]["attempts"]), (&json!(id), &json!(2)));
    let letter = rest.get(&format!("/dead-letter/{id}")).await.with(200);
    assert_eq!(letter["job"]["state"], "failed");
    assert_eq!((&letter["failure_kind"], &letter["job"]["attempt"]), (&json!("exit_code"), &json!(2)));
    let stats = rest.get("/dead-letter/stats").await.with(200);
    assert_eq!((&stats["total"], &stats["groups"][0]["count"]), (&json!(1), &json!(1)));

    cluster.home.write("mended", "");
    let replayed = rest.post("/dead-letter/replay", &json!({ "filter": { "queue": "fragile" } })).await.with(200);
    assert_eq!(replayed["replayed"], 1);
    until("the job has succeeded", || async { (rest.job(&id).await["state"] == "succeeded").then_some(()) }).await;
    assert_eq!(rest.get("/dead-letter").await.with(200)["items"], json!([]));
    rest.get(&format!("/dead-letter/{id}")).await.problem(404);
    rest.send("DELETE", &format!("/dead-letter/{id}"), &[], "").await.problem(404);

    let other = rest.submit(&with(shell("exit 1"), json!({ "retry": { "max_attempts": 1 } }))).await;
    rest.reached(&other, "failed").await;
    let discarded = rest.send("DELETE", &format!("/dead-letter/{other}"), &[], "").await.with(200);
    assert_eq!(discarded["discarded"], 1);
    assert_eq!(rest.job(&other).await["state"], "failed", "the job stays");
    let retried = rest.post(&format!("/jobs/{other}/retry"), &json!({})).await;
    assert_eq!(retried.with(200)["id"], other);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_are_cancelled_one_by_one_and_by_filter() {
    let cluster = Cluster::start().await;
    let rest = cluster.rest();
    let waiting = rest.submit(&shell("true")).await;
    let cancelled = rest.post(&format!("/jobs/{waiting}/cancel"), &json!({ "reason": "not wanted" })).await.with(200);
    assert_eq!((&cancelled["state"], &cancelled["cancel_reason"]), (&json!("cancelled"), &json!("not wanted")));
    let (problem, _) = rest.post(&format!("/jobs/{waiting}/cancel"), &json!({})).await.problem(409);
    assert_eq!(problem["type"], "urn:hodei:problem:conflict");

    for _ in 0..3 {
        rest.submit(&with(shell("true"), json!({ "queue": "many", "tags": ["old"] }))).await;
    }
    let kept = rest.submit(&with(shell("true"), json!({ "queue": "many" }))).await;
    let answer = rest.post("/jobs/cancel", &json!({ "filter": { "queue": "many", "tag": "old" } })).await.with(200);
    assert_eq!(answer["cancelled"], 3);
    assert_eq!(rest.job(&kept).await["state"], "pending");
    let (_, field) = rest.post("/jobs/cancel", &json!({ "filter": {} })).await.problem(422);
    assert_eq!(field, "filter");

    let _worker = cluster.worker("a", &[]).await;
    let running = rest.submit(&shell("exec sleep 600")).await;
    rest.reached(&running, "running").await;
    rest.send("POST", &format!("/jobs/{running}/cancel"), &[], "").await.with(200);
    rest.reached(&running, "cancelled").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn priorities_decide_the_order() {
    let cluster = Cluster::start().await;
    let (rest, order) = (cluster.rest(), cluster.home.path("order"));
    let mut last = String::new();
    for (number, priority) in [(4, "low"), (3, "normal"), (1, "critical"), (2, "high")] {
        let job = shell(&format!("echo {number} >> {}", order.display()));
        last = rest.submit(&with(job, json!({ "priority": priority }))).await;
    }
    let _worker = cluster.worker("a", &["--slots", "1"]).await;
    until_true("all have run", || numbers(&order).len() == 4).await;
    assert_eq!(numbers(&order), [1, 2, 3, 4]);
    rest.reached(&last, "succeeded").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_workers_run_three_jobs_each() {
    let cluster = Cluster::start().await;
    let rest = cluster.rest();
    let go = cluster.home.path("go");
    let script = format!("while ! test -e {}; do sleep 0.02; done", go.display());
    let jobs: Vec<Value> = (0..12).map(|_| shell(&script)).collect();
    let batch = rest.post("/jobs/batch", &json!(jobs)).await.with(202);
    assert_eq!(batch["jobs"].as_array().map(Vec::len), Some(12));
    let workers = (
        cluster.worker("a", &["--slots", "3"]).await,
        cluster.worker("b", &["--slots", "3"]).await,
        cluster.worker("c", &["--slots", "3"]).await,
    );
    let running = until("nine jobs run", || async {
        let running = rest.get("/jobs?state=running").await.with(200);
        (ids(&running).len() == 9).then_some(running)
    })
    .await;
    let mut each = std::collections::HashMap::<String, u32>::new();
    for job in running["items"].as_array().expect("jobs") {
        *each.entry(job["executions"][0]["worker_id"].to_string()).or_default() += 1;
    }
    assert_eq!((each.len(), each.values().all(|jobs| *jobs == 3)), (3, true), "{each:?}");
    let pending = rest.get("/jobs?state=pending").await.with(200);
    assert_eq!(ids(&pending).len(), 3, "no worker takes more than it has room for");
    cluster.home.write("go", "");
    until("all have succeeded", || async {
        (ids(&rest.get("/jobs?state=succeeded").await.with(200)).len() == 12).then_some(())
    })
    .await;
    drop(workers);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_waits_for_those_it_depends_on() {
    let cluster = Cluster::start().await;
    let (rest, order) = (cluster.rest(), cluster.home.path("order"));
    let step = |number: u32| shell(&format!("echo {number} >> {}", order.display()));
    let batch = json!({ "jobs": [
        with(step(3), json!({ "local_name": "last", "depends_on": ["first", "second"] })),
        with(step(1), json!({ "local_name": "first" })),
        with(step(2), json!({ "local_name": "second", "depends_on": ["first"] })),
    ] });
    let made = rest.post("/jobs/batch", &batch).await.with(202);
    assert_eq!(made["jobs"][0]["local_name"], "last");
    let last = made["jobs"][0]["id"].as_str().expect("an id").to_owned();
    let waiting = rest.job(&last).await;
    assert_eq!((&waiting["state"], &waiting["dependencies_left"]), (&json!("waiting"), &json!(2)));
    let _worker = cluster.worker("a", &[]).await;
    rest.reached(&last, "succeeded").await;
    assert_eq!(numbers(&order), [1, 2, 3]);

    let cycle = json!([
        with(step(1), json!({ "local_name": "a", "depends_on": ["b"] })),
        with(step(1), json!({ "local_name": "b", "depends_on": ["a"] })),
    ]);
    let (_, field) = rest.post("/jobs/batch", &cycle).await.problem(422);
    assert!(field.ends_with("depends_on"), "{field}");
    let (_, field) = rest.post("/jobs", &with(step(9), json!({ "depends_on": [NO_JOB] }))).await.problem(422);
    assert_eq!(field, "depends_on");
    assert_eq!(ids(&rest.get("/jobs").await.with(200)).len(), 3, "nothing of what was refused is stored");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_key_gives_the_same_job() {
    let cluster = Cluster::start().await;
    let rest = cluster.rest();
    let headers = [("content-type", "application/json"), ("idempotency-key", "once")];
    let first = rest.send("POST", "/jobs", &headers, shell("true").to_string()).await.with(202);
    let again = rest.send("POST", "/jobs", &headers, shell("true").to_string()).await.with(200);
    assert_eq!(first["id"], again["id"]);
    let keyed = with(shell("true"), json!({ "idempotency_key": "other" }));
    let (_, field) = rest.send("POST", "/jobs", &headers, keyed.to_string()).await.problem(422);
    assert_eq!(field, "Idempotency-Key");
    let batch = json!([with(shell("true"), json!({ "idempotency_key": "once" })), shell("true")]);
    let batch = rest.post("/jobs/batch", &batch).await.with(202);
    assert_eq!((&batch["jobs"][0]["id"], &batch["jobs"][0]["existed"]), (&first["id"], &json!(true)));
    assert_eq!(batch["jobs"][1]["existed"], false);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_jobs_come_as_lines_and_leave_in_pages() {
    let cluster = Cluster::start().await;
    let rest = cluster.rest();
    let mut lines = String::new();
    for i in 0..2500 {
        match i {
            7 => lines.push_str("{\"task\": \n"),
            1200 => lines.push_str(&format!("{}\n\n", json!({ "task": { "type": "t" }, "priority": "urgent" }))),
            2000 => lines.push_str(&format!("{}\n", json!({ "task": { "type": "t" }, "depends_on": [NO_JOB] }))),
            _ => lines.push_str(&format!(
                "{}\n",
                json!({ "name": format!("job {i}"), "task": { "type": "t", "payload": i } })
            )),
        }
    }
    let answer = rest.send("POST", "/jobs/bulk", &[("content-type", "application/x-ndjson")], lines).await.with(202);
    assert_eq!((&answer["accepted"], &answer["existed"], &answer["refused"]), (&json!(2497), &json!(0), &json!(3)));
    let told: Vec<_> =
        answer["errors"].as_array().expect("errors").iter().map(|error| (&error["line"], &error["field"])).collect();
    let (eighth, job, priority) = (json!(8), json!("task"), json!("priority"));
    assert_eq!(told[..2], [(&eighth, &job), (&json!(1201), &priority)]);
    assert_eq!(told[2], (&json!(2002), &json!("depends_on")));

    let (mut seen, mut token, mut names) = (HashSet::new(), String::new(), Vec::new());
    loop {
        let page = rest.get(&format!("/jobs?limit=700&queue=default{token}")).await.with(200);
        for job in page["items"].as_array().expect("items") {
            assert!(seen.insert(job["id"].to_string()), "no job is on two pages");
            names.push(job["spec"]["name"].as_str().expect("a name").to_owned());
        }
        match page["next_page_token"].as_str() {
            Some(next) => token = format!("&page_token={next}"),
            None => break,
        }
    }
    assert_eq!(seen.len(), 2497);
    assert_eq!(
        (names.first().map(String::as_str), names.last().map(String::as_str)),
        (Some("job 2499"), Some("job 0"))
    );
    let found = rest.get("/jobs?name=job%2017&state=pending&state=running").await.with(200);
    assert_eq!(ids(&found).len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queues_are_paused_resumed_and_limited() {
    let cluster = Cluster::start().await;
    let rest = cluster.rest();
    let _worker = cluster.worker("a", &[]).await;
    assert_eq!(rest.post("/queues/slow/pause", &json!({})).await.with(200)["paused"], true);
    let id = rest.submit(&with(shell("true"), json!({ "queue": "slow" }))).await;
    assert_eq!(rest.job(&id).await["state"], "pending");
    assert_eq!(rest.get("/queues/slow").await.with(200)["counts"], json!({ "pending": 1 }));
    rest.post("/queues/slow/resume", &json!({})).await.with(200);
    rest.reached(&id, "succeeded").await;
    let settings = json!({ "concurrency": 2, "rate_limit": 10, "rate_period_ms": 1000 }).to_string();
    let put = rest.send("PUT", "/queues/slow/settings", &[("content-type", "application/json")], settings).await;
    assert_eq!(put.with(200)["settings"]["concurrency"], 2);
    let names: Vec<Value> = rest.get("/queues").await.with(200)["items"].as_array().expect("queues").clone();
    assert!(names.iter().any(|queue| queue["name"] == "slow" && queue["settings"]["rate_limit"] == 10));
    let odd = json!({ "concurrency": -1 }).to_string();
    let (_, field) =
        rest.send("PUT", "/queues/slow/settings", &[("content-type", "application/json")], odd).await.problem(422);
    assert_eq!(field, "settings.concurrency");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_is_wrong_is_told_as_a_problem() {
    let cluster = Cluster::start().await;
    let rest = cluster.rest();
    let json_type = [("content-type", "application/json")];
    let field = |answer: crate::http::Answer, status: u16| answer.problem(status).1;

    rest.send("POST", "/jobs", &json_type, "{\"task\": ").await.problem(400);
    rest.send("POST", "/jobs", &json_type, "{\"task\":{\"type\":\"t\"}} x").await.problem(400);
    rest.send("GET", "/jobs?queue=%ff", &[], "").await.problem(400);
    assert_eq!(field(rest.post("/jobs", &json!({ "nmae": "x" })).await, 422), "nmae");
    assert_eq!(field(rest.post("/jobs", &json!({})).await, 422), "work");
    assert_eq!(field(rest.post("/jobs", &json!([])).await, 422), "body");
    let typed = |payload: Value| json!({ "task": { "type": "t", "payload": payload } });
    assert_eq!(
        field(rest.post("/jobs", &with(typed(json!(1)), json!({ "retry": { "delay": "soon" } }))).await, 422),
        "retry.delay"
    );
    let large = rest.post("/jobs", &typed(json!("x".repeat(2 << 20)))).await;
    assert_eq!(field(large, 422), "work", "a payload over the limit");
    assert_eq!(field(rest.post("/jobs/batch", &json!([typed(json!(1)), { "nmae": 1 }])).await, 422), "jobs[1].nmae");
    assert_eq!(field(rest.post("/jobs/batch", &json!({ "jobs": [] })).await, 422), "jobs");
    assert_eq!(field(rest.get("/jobs?sate=failed").await, 422), "sate");
    assert_eq!(field(rest.get("/jobs?state=done").await, 422), "state");
    assert_eq!(field(rest.get("/jobs?limit=0").await, 422), "limit");
    assert_eq!(field(rest.get("/jobs?limit=5&limit=6").await, 422), "limit");
    assert_eq!(field(rest.get("/jobs?page_token=x").await, 422), "page_token");
    assert_eq!(field(rest.get("/jobs?from=yesterday").await, 422), "from");
    assert_eq!(field(rest.get("/jobs/17").await, 422), "id");
    assert_eq!(field(rest.get("/workers/17").await, 422), "id");
    assert_eq!(field(rest.get("/events?kinds=job&kinds=cat").await, 422), "kinds");
    assert_eq!(field(rest.get("/events?after=x").await, 422), "after");
    assert_eq!(field(rest.post("/dead-letter/replay", &json!({})).await, 422), "filter");
    for path in ["/jobs", "/jobs/{}/logs", "/jobs/{}/events", "/jobs/{}/logs/stream", "/dead-letter", "/workers"] {
        let path = if path.contains("{}") { path.replace("{}", NO_JOB) } else { format!("{path}/{NO_JOB}") };
        rest.get(&path).await.problem(404);
    }
    rest.get("/nothing").await.problem(404);
    rest.get("/api/v2").await.problem(404);
    let wrong = rest.send("PATCH", "/jobs", &[], "").await;
    assert!(wrong.header("allow").contains("POST"), "{wrong:?}");
    wrong.problem(405);
    rest.send("GET", "/jobs", &[("accept", "text/html")], "").await.problem(406);
    rest.send("GET", "/events", &[("accept", "application/json")], "").await.problem(406);
    rest.send("POST", "/jobs", &[("content-type", "text/plain")], "{}").await.problem(415);
    rest.send("POST", "/jobs/bulk", &json_type, "{}").await.problem(415);
    rest.send("POST", "/jobs", &json_type, vec![b' '; (64 << 20) + 1]).await.problem(413);
    rest.send("POST", "/jobs/bulk", &[("content-type", "application/x-ndjson")], vec![b'\n'; (64 << 20) + 1])
        .await
        .problem(413);
    let named = rest.send("GET", "/nothing", &[("x-request-id", "mine-17")], "").await;
    assert_eq!(named.problem(404).0["request_id"], "mine-17");
    assert_eq!(ids(&rest.get("/jobs").await.with(200)), Vec::<String>::new(), "nothing of it is stored");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_go_on_where_they_were_left_also_after_a_restart() {
    let mut cluster = Cluster::start().await;
    let rest = cluster.rest();
    let mut all = rest.follow("/events?kinds=job", &[]).await;
    let mut seen: Vec<Event> = Vec::new();
    for _ in 0..3 {
        rest.submit(&shell("true")).await;
    }
    seen.push(all.next().await.expect("an event"));
    drop(all);
    // Cut off after one; the others are told to whoever comes back with its id.
    let mut all = rest.follow("/events?kinds=job", &[("last-event-id", &seen[0].id)]).await;
    for _ in 0..2 {
        seen.push(all.next().await.expect("an event"));
    }
    cluster.crash_server().await;
    assert!(all.next().await.is_none(), "the server is gone");
    let rest = cluster.rest();
    let fourth = rest.submit(&shell("true")).await;
    let last = seen.last().expect("one").id.clone();
    let mut all = rest.follow(&format!("/events?kinds=job&after={last}"), &[]).await;
    seen.push(all.next().await.expect("an event"));
    assert_eq!(seen[3].data["subject"], fourth);
    assert!(seen.iter().all(|event| event.name == "job.pending" && event.data["type"] == "job.pending"), "{seen:?}");
    let subjects: HashSet<_> = seen.iter().map(|event| event.data["subject"].to_string()).collect();
    assert_eq!(subjects.len(), 4, "none twice, none lost");
    let unique: HashSet<_> = seen.iter().map(|event| &event.id).collect();
    assert_eq!(unique.len(), 4);
    rest.send("GET", "/events?after=0-0", &[], "").await.problem(410);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_job_is_followed_to_its_end() {
    let cluster = Cluster::start().await;
    let rest = cluster.rest();
    let id = rest.submit(&shell("true")).await;
    let mut events = rest.follow(&format!("/jobs/{id}/events"), &[]).await;
    let first = events.next().await.expect("the job");
    assert_eq!((first.name.as_str(), &first.data["state"]), ("job", &json!("pending")));
    let _worker = cluster.worker("a", &[]).await;
    let names: Vec<String> = events.rest().await.into_iter().map(|event| event.name).collect();
    assert_eq!(names.last().map(String::as_str), Some("end"));
    assert_eq!(names[names.len() - 2], "job.succeeded");
    // Who comes back gets the rest and the end, and who comes late the job and the end.
    let resumed = rest.follow(&format!("/jobs/{id}/events"), &[("last-event-id", &first.id)]).await.rest().await;
    assert_eq!(resumed.into_iter().map(|event| event.name).collect::<Vec<_>>(), names);
    let late = rest.follow(&format!("/jobs/{id}/events"), &[]).await.rest().await;
    assert_eq!((late[0].data["state"].as_str(), late[1].name.as_str()), (Some("succeeded"), "end"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_is_followed_without_gap_or_repeat() {
    let mut cluster = Cluster::start().await;
    let rest = cluster.rest();
    let _worker = cluster.worker("a", &[]).await;
    let go = cluster.home.path("go");
    let script =
        format!("for i in 1 2 3 4 5; do echo $i; done; while ! test -e {}; do sleep 0.02; done; echo 6", go.display());
    let id = rest.submit(&shell(&script)).await;
    let path = format!("/jobs/{id}/logs/stream");
    let mut log = rest.follow(&path, &[]).await;
    let mut seen = Vec::new();
    for _ in 0..3 {
        seen.push(log.next().await.expect("a line"));
    }
    drop(log);
    let mut log = rest.follow(&path, &[("last-event-id", &seen[2].id)]).await;
    seen.push(log.next().await.expect("a line"));
    cluster.crash_server().await;
    let rest = cluster.rest();
    let log = rest.follow(&path, &[("last-event-id", &seen[3].id)]).await;
    cluster.home.write("go", "");
    let rest_of_it = log.rest().await;
    let (end, lines) = rest_of_it.split_last().expect("an end");
    seen.extend_from_slice(lines);
    let lines: Vec<_> = seen.iter().map(|event| event.data["text"].as_str().expect("text")).collect();
    assert_eq!(lines, ["1", "2", "3", "4", "5", "6"]);
    assert_eq!((end.name.as_str(), &end.data["state"]), ("end", &json!("succeeded")));
    let tail = rest.follow(&format!("{path}?tail=2"), &[]).await.rest().await;
    assert_eq!(tail.iter().map(|event| event.name.as_str()).collect::<Vec<_>>(), ["log", "log", "end"]);
    rest.send("GET", &path, &[("last-event-id", "x")], "").await.problem(422);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_is_let_in_and_sent_home() {
    let cluster = Cluster::start().await;
    let rest = cluster.rest();
    let token = rest.post("/workers/tokens", &json!({ "ttl_ms": 60_000 })).await.with(201);
    let (word, id) = (token["token"].as_str().expect("a token"), token["worker_id"].as_str().expect("an id"));
    let (data, socket) = (cluster.home.path("a"), cluster.socket());
    let data = data.to_str().expect("UTF-8");
    let args = ["worker", "run", "--server", &socket, "--data", data, "--name", "a", "--token", word];
    let mut worker = cluster.home.daemon("a", &args);
    cluster.connected(id).await;
    assert_eq!(rest.post(&format!("/workers/{id}/drain"), &json!({})).await.with(202)["id"], id);
    assert!(worker.ended().await.success());
    let (_, field) = rest.post("/workers/tokens", &json!({ "ttl_ms": -1 })).await.problem(422);
    assert_eq!(field, "ttl_ms");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_schedule_fires_and_its_jobs_carry_their_ticks() {
    let cluster = Cluster::start().await;
    let rest = cluster.rest();
    let _worker = cluster.worker("a", &[]).await;
    let spec = json!({ "name": "often", "every": "1s", "overlap": "skip", "job": shell("true") });
    let answer = rest.post("/schedules", &spec).await;
    let location = answer.header("location").to_owned();
    let made = answer.with(201);
    assert_eq!(location, format!("/api/v1/schedules/{}", made["id"].as_str().expect("an id")));
    let id = made["id"].as_str().expect("an id").to_owned();
    let job = until("the schedule has fired", || async {
        let page = rest.get(&format!("/jobs?schedule_id={id}&state=succeeded")).await.with(200);
        page["items"].as_array().and_then(|jobs| jobs.first().cloned())
    })
    .await;
    assert_eq!(job["schedule_id"], id);
    assert!(job["tick"].as_str().is_some_and(|tick| tick.ends_with('Z')), "{job}");
    assert_eq!(rest.post("/schedules/often/disable", &json!({})).await.with(200)["disabled"], true);
    let triggered = rest.post("/schedules/often/trigger", &json!({})).await.with(202);
    rest.reached(triggered["job_id"].as_str().expect("an id"), "succeeded").await;
    assert_eq!(rest.post("/schedules/often/enable", &json!({})).await.with(200)["disabled"], false);

    let nightly = json!({ "name": "nightly", "cron": "0 3 * * *", "time_zone": "Europe/Madrid", "job": shell("true") });
    let ticks = rest.post("/schedules/preview?count=2&after=2026-01-01T00:00:00Z", &nightly).await.with(200);
    assert_eq!(ticks, json!({ "ticks": ["2026-01-01T02:00:00Z", "2026-01-02T02:00:00Z"] }));
    let held = with(nightly.clone(), json!({ "disabled": true }));
    rest.post("/schedules", &held).await.with(201);
    rest.post("/schedules", &held).await.problem(409);
    let range = json!({ "from": "2026-01-01T00:00:00Z", "to": "2026-01-04T00:00:00Z" });
    let filled = rest.post("/schedules/nightly/backfill", &range).await;
    assert_eq!((filled.status, filled.header("content-type")), (202, "application/x-ndjson"));
    let last = filled.body.split(|byte| *byte == b'\n').rfind(|line| !line.is_empty()).expect("a line");
    let last: Value = serde_json::from_slice(last).expect("JSON");
    assert_eq!(last, json!({ "made": 3, "existed": 0, "total": 3 }));
    let page = rest.get("/schedules?limit=1").await.with(200);
    assert_eq!((&page["items"][0]["name"], &page["next_page_token"]), (&json!("nightly"), &json!("nightly")));
    let gone = rest.send("DELETE", "/schedules/nightly", &[], "").await;
    assert_eq!((gone.status, gone.body.len()), (204, 0));
    rest.get("/schedules/nightly").await.problem(404);

    let wrong = |fields: Value| with(json!({ "name": "odd", "cron": "0 3 * * *", "job": shell("true") }), fields);
    for (fields, field) in [
        (json!({ "cron": "0 3 * *" }), "cron"),
        (json!({ "time_zone": "Mars/Olympus" }), "time_zone"),
        (json!({ "every": "5m" }), "cron"),
        (json!({ "overlap": "often" }), "overlap"),
        (json!({ "job": { "task": { "type": "" } } }), "job.task.type"),
        (json!({ "crno": "x" }), "crno"),
    ] {
        assert_eq!(rest.post("/schedules", &wrong(fields)).await.problem(422).1, field);
    }
    assert_eq!(rest.get("/schedules").await.with(200)["items"].as_array().map(Vec::len), Some(1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_document_and_its_page_are_served() {
    let cluster = Cluster::start().await;
    let rest = cluster.rest();
    let document = rest.get("/openapi.json").await.with(200);
    assert!(document["openapi"].as_str().expect("a version").starts_with("3.1"), "{}", document["openapi"]);
    for (path, item) in document["paths"].as_object().expect("paths") {
        for (method, operation) in item.as_object().expect("operations") {
            let answers = operation["responses"].as_object().expect("answers");
            for status in ["422", "500", "503"] {
                assert!(answers.contains_key(status), "{method} {path} may answer {status}");
            }
        }
    }
    let page = rest.get("/docs").await;
    assert!(page.header("content-type").starts_with("text/html"));
    let page = String::from_utf8(page.body.to_vec()).expect("UTF-8");
    let outside = ["http://", "https://", "//cdn", "@import"];
    assert!(outside.iter().all(|word| !page.contains(word)), "nothing comes from outside");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_end_is_told_to_a_webhook_and_can_be_told_again() {
    let home = Home::new();
    let config = home.write("config.toml", LOCAL);
    let cluster = Cluster::up(&["--config", &config.display().to_string()]).await;
    let (rest, receiver) = (cluster.rest(), Receiver::start().await);
    let id = rest.submit(&with(shell("echo 7 > $HODEI_RESULT"), json!({ "webhook": { "url": receiver.url() } }))).await;
    let told = receiver.received(1).await;
    let body = told[0].body();
    assert_eq!((&body["type"], &body["data"]["job"]), (&json!("job.succeeded"), &json!(id)));
    assert_eq!(body["data"]["result"], json!(7));
    let delivered = until("the delivery is recorded", || async {
        let page = rest.get(&format!("/webhooks/deliveries?job_id={id}")).await.with(200);
        (page["items"][0]["state"] == "delivered").then(|| page["items"][0].clone())
    })
    .await;
    let delivery = delivered["id"].as_str().expect("an id");
    assert_eq!(delivery, told[0].id());
    let again = rest.post(&format!("/webhooks/deliveries/{delivery}/redeliver"), &json!({})).await;
    assert!(again.status < 300, "{again:?}");
    let told = receiver.received(2).await;
    assert_eq!(told[1].id(), delivery, "the same message has the same id");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_caller_needs_a_token_with_the_role_for_it() {
    let cluster = Cluster::start().await;
    let token = async |role: &str| {
        let made = cluster.hodei(&["token", "create", "api", "--role", role, "--name", role]).await.ok();
        made.text().trim().to_owned()
    };
    let caller = |token: &str| Http::new(&cluster.http, token);
    let (viewer, submitter, operator) = (token("viewer").await, token("submitter").await, token("operator").await);
    let job = shell("true");
    let problem = |answer: Answer, status: u16| answer.problem(status).0["detail"].as_str().expect("words").to_owned();

    // Nobody, and somebody with a wrong token, see nothing but health and the document.
    for stranger in ["", "hodei_wrong"] {
        for path in ["/jobs", "/events", "/queues", "/jobs/x/logs/stream", "/nowhere"] {
            let answer = caller(stranger).get(path).await;
            assert!(answer.status == 401 || (path == "/nowhere" && answer.status == 404), "{path}: {answer:?}");
        }
    }
    for path in ["/health", "/live", "/ready", "/openapi.json", "/docs"] {
        assert_eq!(caller("").get(path).await.status, 200, "{path}");
    }
    // Each role may do what is its own and what those below it may.
    caller(&viewer).get("/jobs").await.with(200);
    assert!(problem(caller(&viewer).post("/jobs", &job).await, 403).contains("submitter"));
    let id = caller(&submitter).submit(&job).await;
    assert!(problem(caller(&submitter).post("/queues/default/pause", &json!({})).await, 403).contains("operator"));
    caller(&operator).post("/queues/default/pause", &json!({})).await.with(200);
    let by = cluster.hodei(&["audit", "--json", "--actor", "submitter"]).await.ok();
    assert!(by.text().contains(&id) && by.text().contains("jobs.submit"), "{by:?}");

    // Guessing is slowed down; a right token still passes.
    let guesses = async || {
        for _ in 0..40 {
            let answer = caller("hodei_guess").get("/jobs").await;
            if answer.status == 429 {
                return answer;
            }
        }
        panic!("nobody minds that tokens are guessed")
    };
    let slowed = guesses().await;
    assert!(slowed.header("retry-after").parse::<u32>().is_ok_and(|wait| wait > 0), "{slowed:?}");
    slowed.problem(429);
    caller(&viewer).get("/jobs").await.with(200);

    // A token that is revoked is worth nothing, on open doors too.
    let listed = cluster.hodei(&["token", "list", "--json"]).await.ok().json();
    let of_viewer =
        listed.as_array().expect("a list").iter().find(|token| token["name"] == "viewer").expect("it is there");
    cluster.hodei(&["token", "revoke", of_viewer["id"].as_str().expect("an id")]).await.ok();
    assert_ne!(caller(&viewer).get("/jobs").await.status, 200);
}
