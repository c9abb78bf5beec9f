//! Jobs by the clock, made by hand on the command line and by programs over gRPC.

use crate::{
    client::{may_pass, shell, text},
    cluster::Cluster,
    process::until,
};
use hodei_api::channel::Authorized;
use hodei_api::v1::{
    self, JobState, schedule_service_client::ScheduleServiceClient as Schedules, schedule_spec::Timing,
};
use serde_json::json;
use std::{collections::BTreeSet, fs};
use tonic::Code;

const TELL: &str = "echo $HODEI_SCHEDULE $HODEI_TICK";

fn schedules(cluster: &Cluster) -> Schedules<Authorized> {
    Schedules::new(cluster.channel.clone())
}

fn spec(name: &str, timing: Timing) -> v1::ScheduleSpec {
    v1::ScheduleSpec { name: name.into(), timing: Some(timing), job: Some(shell(TELL)), ..Default::default() }
}

fn cron(expression: &str) -> Timing {
    Timing::Cron(expression.into())
}

async fn create(cluster: &Cluster, spec: v1::ScheduleSpec) -> v1::Schedule {
    let request = v1::CreateScheduleRequest { spec: Some(spec) };
    schedules(cluster).create_schedule(request).await.expect("made").into_inner().schedule.expect("a schedule")
}

/// Asks until the server answers.
async fn get(cluster: &Cluster, name: &str) -> v1::Schedule {
    let request = || v1::GetScheduleRequest { schedule: name.into() };
    let answer = until("the server answers", || async {
        match schedules(cluster).get_schedule(request()).await {
            Ok(answer) => answer.into_inner().schedule,
            Err(status) => {
                assert!(may_pass(&status), "{status:?}");
                None
            }
        }
    });
    answer.await
}

/// The jobs of a schedule, by their ticks.
async fn jobs_of(cluster: &Cluster, schedule: &v1::Schedule) -> Vec<v1::Job> {
    let mut jobs = cluster.list().await;
    jobs.retain(|job| job.schedule_id == schedule.id);
    jobs.sort_by_key(|job| job.tick_ms);
    jobs
}

fn utc(ms: i64) -> jiff::Timestamp {
    jiff::Timestamp::from_millisecond(ms).expect("in range")
}

fn name_of(job: &v1::Job) -> &str {
    job.spec.as_ref().map_or("", |spec| &spec.name)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_schedule_fires_and_its_jobs_carry_their_ticks() {
    let cluster = Cluster::up(&["--slots", "4"]).await;
    let made =
        cluster.hodei(&["schedule", "create", "beat", "--every", "1s", "--json", "--", "sh", "-c", TELL]).await.ok();
    assert_eq!((&made.json()["every_ms"], &made.json()["enabled"]), (&json!(1000), &json!(true)));
    let by_program = v1::ScheduleSpec { time_zone: "Asia/Kathmandu".into(), ..spec("nepal", cron("* * * * * *")) };
    create(&cluster, by_program).await;
    for name in ["beat", "nepal"] {
        let schedule =
            until("it fired three times", || async { Some(get(&cluster, name).await).filter(|s| s.runs >= 3) });
        let schedule = schedule.await;
        for job in jobs_of(&cluster, &schedule).await {
            let job = cluster.ended(&job.id).await;
            assert_eq!(job.state(), JobState::Succeeded, "{job:?}");
            let zone = if name == "beat" { "UTC" } else { "Asia/Kathmandu" };
            let local = utc(job.tick_ms).in_tz(zone).expect("a zone").strftime("%F_%T").to_string();
            assert_eq!(name_of(&job), format!("{name}_{local}"));
            let printed = text(&cluster.log(&job.id).await, false);
            assert_eq!(String::from_utf8_lossy(&printed), format!("{name} {}\n", utc(job.tick_ms)));
        }
    }
    // A job that it is made to make by hand; then nothing more.
    for name in ["beat", "nepal"] {
        let disabled = cluster.hodei(&["schedule", "disable", name, "--json"]).await.ok().json();
        assert_eq!((&disabled["enabled"], &disabled["next_tick"]), (&json!(false), &json!(null)));
    }
    let before = get(&cluster, "beat").await;
    let id = cluster.hodei(&["schedule", "trigger", "beat"]).await.ok().text().trim().to_owned();
    let job = cluster.ended(&id).await;
    assert_eq!((job.state(), &job.schedule_id), (JobState::Succeeded, &before.id));
    let after = get(&cluster, &before.id).await;
    assert_eq!((after.runs, &after.last_job_id), (before.runs + 1, &id));
    assert_eq!(jobs_of(&cluster, &after).await.len() as i64, after.runs);

    let list = cluster.hodei(&["schedule", "list"]).await.ok();
    assert!(list.text().starts_with("NAME") && list.text().contains("every 1s"), "{list:?}");
    let deleted = cluster.hodei(&["schedule", "delete", "nepal", "--json"]).await.ok();
    assert_eq!(deleted.json(), serde_json::json!({ "schedule": "nepal", "deleted": true }));
    let left = cluster.hodei(&["schedule", "list", "--json"]).await.ok().json();
    assert_eq!(left.as_array().map(Vec::len), Some(1));
    assert!(cluster.find(&id).await.is_some(), "jobs stay");
}

/// The server is killed again and again in the middle of ticks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_tick_has_two_jobs_and_none_has_none_when_the_server_is_killed() {
    ticks_survive_crashes(Cluster::start().await).await;
}

pub async fn ticks_survive_crashes(mut cluster: Cluster) {
    let _worker = cluster.worker("a", &["--slots", "8"]).await;
    let names: Vec<String> = (0..20).map(|n| format!("s{n}")).collect();
    for name in &names {
        create(&cluster, spec(name, Timing::EveryMs(1000))).await;
    }
    for crash in 1..=5 {
        let fired = || async { Some(get(&cluster, "s0").await).filter(|schedule| schedule.runs >= 2 * crash) };
        until("it has fired again", fired).await;
        cluster.crash_server().await;
    }
    for name in &names {
        let request = v1::DisableScheduleRequest { schedule: name.clone() };
        schedules(&cluster).disable_schedule(request).await.expect("disabled");
    }
    for name in &names {
        let schedule = get(&cluster, name).await;
        let ticks: Vec<i64> = jobs_of(&cluster, &schedule).await.iter().map(|job| job.tick_ms).collect();
        let all: Vec<i64> = (1..=ticks.len() as i64).map(|n| schedule.created_at_ms + 1000 * n).collect();
        assert_eq!(ticks, all, "each once");
        assert_eq!((schedule.runs, schedule.last_tick_ms), (ticks.len() as i64, ticks[ticks.len() - 1]));
    }
    let ended = until("all have run", || async {
        let jobs = cluster.list().await;
        jobs.iter().all(|job| job.finished_at_ms > 0).then_some(jobs)
    });
    assert!(ended.await.iter().all(|job| job.state() == JobState::Succeeded));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn overlapping_ticks_are_skipped_or_replace_the_job_before() {
    let mut cluster = Cluster::up(&["--slots", "4"]).await;
    let go = cluster.home.path("go");
    let wait = format!("until [ -e {} ]; do sleep 0.05; done", go.display());
    for (name, overlap) in [("patient", "skip"), ("hasty", "replace")] {
        let args = ["schedule", "create", name, "--every", "1s", "--overlap", overlap, "--kill-grace", "1s"];
        cluster.hodei(&[&args[..], &["--", "sh", "-c", &wait]].concat()).await.ok();
    }
    let skipping = || async { Some(get(&cluster, "patient").await).filter(|schedule| schedule.skipped >= 2) };
    let skipped = until("ticks are skipped", skipping).await;
    assert_eq!((skipped.runs, jobs_of(&cluster, &skipped).await.len()), (1, 1));
    cluster.crash_server().await;
    let more = || async { Some(get(&cluster, "patient").await).filter(|now| now.skipped > skipped.skipped) };
    assert_eq!(until("the new server skips, too", more).await.runs, 1);

    let replaced = || async { Some(get(&cluster, "hasty").await).filter(|schedule| schedule.runs >= 3) };
    let hasty = until("jobs were replaced", replaced).await;
    let first = jobs_of(&cluster, &hasty).await.remove(0);
    let first = cluster.ended(&first.id).await;
    assert_eq!(first.state(), JobState::Cancelled);
    assert!(first.cancel_reason.is_some_and(|reason| reason.contains("hasty")));

    fs::write(&go, "").expect("written");
    let freed = || async { Some(get(&cluster, "patient").await).filter(|schedule| schedule.runs >= 2) };
    until("it goes on", freed).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn previews_tell_the_times_of_the_zone() {
    let cluster = Cluster::start().await;
    let args = ["schedule", "preview", "--cron", "0 3 * * *", "--tz", "Europe/Madrid", "--count", "3"];
    let shown = cluster.hodei(&args).await.ok();
    let lines: Vec<&str> = shown.text().lines().collect();
    assert!(
        lines.len() == 3 && lines.iter().all(|line| line.contains(" 03:00:00+0") && line.ends_with(" Europe/Madrid"))
    );
    // The nights when clocks are set.
    let preview = |expression: &str, after: &str| {
        let spec = v1::ScheduleSpec { time_zone: "Europe/Madrid".into(), ..spec("", cron(expression)) };
        let after_ms = after.parse::<jiff::Timestamp>().expect("a time").as_millisecond();
        v1::PreviewScheduleRequest { spec: Some(spec), count: 2, after_ms, ..Default::default() }
    };
    for (after, ticks) in [
        ("2027-03-27T12:00:00Z", ["2027-03-28T01:00:00Z", "2027-03-29T00:30:00Z"]),
        ("2027-10-30T12:00:00Z", ["2027-10-31T00:30:00Z", "2027-11-01T01:30:00Z"]),
    ] {
        let answer =
            schedules(&cluster).preview_schedule(preview("30 2 * * *", after)).await.expect("ticks").into_inner();
        assert_eq!(answer.ticks_ms.iter().map(|tick| utc(*tick).to_string()).collect::<Vec<_>>(), ticks);
    }
    assert_eq!(cluster.hodei(&["schedule", "list", "--json"]).await.ok().json(), json!([]), "nothing is stored");
    let made = ["schedule", "create", "weekly", "--cron", "@weekly", "--description", "for the week", "--", "true"];
    cluster.hodei(&made).await.ok();
    let next = cluster.hodei(&["schedule", "preview", "weekly", "--count", "1", "--json"]).await.ok().json();
    let known = cluster.hodei(&["schedule", "get", "weekly", "--json"]).await.ok().json();
    assert_eq!(known["next_tick"], next[0]);

    let update = ["schedule", "update", "weekly", "--cron", "@daily", "--tz", "Asia/Tokyo", "--rename", "daily"];
    cluster.hodei(&update).await.ok();
    let changed = cluster.hodei(&["schedule", "get", "daily", "--json"]).await.ok().json();
    assert_eq!((&changed["cron"], &changed["time_zone"]), (&json!("@daily"), &json!("Asia/Tokyo")));
    assert_eq!((&changed["id"], &changed["description"]), (&known["id"], &json!("for the week")));
    assert_eq!(changed["job"]["work"], json!({ "shell": { "program": "true", "args": [] } }), "what it runs stays");
    let refused = cluster.hodei(&["schedule", "update", "daily", "--queue", "other"]).await;
    assert!(refused.code != 0 && refused.stderr.contains("need the job itself"), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_past_range_is_filled_once() {
    let mut cluster = Cluster::start().await;
    let hourly = create(&cluster, v1::ScheduleSpec { disabled: true, ..spec("hourly", cron("@hourly")) }).await;
    let at = |text: &str| text.parse::<jiff::Timestamp>().expect("a time").as_millisecond();
    let (from_ms, to_ms) = (at("2026-01-01T00:00:00Z"), at("2026-03-02T00:00:00Z"));
    let request = v1::BackfillScheduleRequest { schedule: "hourly".into(), from_ms, to_ms };
    let mut steps = schedules(&cluster).backfill_schedule(request).await.expect("begun").into_inner();
    let mut told = Vec::new();
    while let Some(step) = steps.message().await.expect("progress") {
        told.push((step.made, step.total));
    }
    assert_eq!(told, [(0, 1440), (1000, 1440), (1440, 1440)]);
    let jobs = jobs_of(&cluster, &hourly).await;
    let ticks: BTreeSet<i64> = jobs.iter().map(|job| job.tick_ms).collect();
    assert_eq!((jobs.len(), ticks.len(), ticks.first()), (1440, 1440, Some(&from_ms)));
    assert_eq!(name_of(&jobs[1]), "hourly_2026-01-01_01:00");

    cluster.crash_server().await;
    let again = ["schedule", "backfill", "hourly", "--from", "2026-02-28T00:00", "--to", "2026-03-03", "--json"];
    let again = cluster.hodei(&again).await.ok().json();
    assert_eq!(again, json!({ "made": 24, "existed": 48, "total": 72 }));
    assert_eq!(get(&cluster, "hourly").await.runs, 0, "a backfill is no run of the schedule");
    // What is still to come is not of the past.
    let future = ["schedule", "backfill", "hourly", "--from", "2100-01-01", "--to", "2100-01-02", "--json"];
    assert_eq!(cluster.hodei(&future).await.ok().json(), json!({ "made": 0, "existed": 0, "total": 0 }));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_schedule_is_refused_with_the_field_and_nothing_is_stored() {
    let cluster = Cluster::start().await;
    let good = || spec("good", cron("@daily"));
    let with = |change: fn(&mut v1::ScheduleSpec)| {
        let mut spec = good();
        change(&mut spec);
        spec
    };
    let job = |change: fn(&mut v1::JobSpec)| {
        let mut job = shell("true");
        change(&mut job);
        v1::ScheduleSpec { job: Some(job), ..good() }
    };
    let wrong = [
        (with(|s| s.name.clear()), "spec.name: "),
        (with(|s| s.timing = None), "spec.cron: "),
        (with(|s| s.timing = Some(cron("61 * * * *"))), "spec.cron: "),
        (with(|s| s.timing = Some(cron("0 0 31 2 *"))), "spec.cron: '0 0 31 2 *' never comes"),
        (with(|s| s.timing = Some(Timing::EveryMs(999))), "spec.every_ms: "),
        (with(|s| s.time_zone = "Mars/Olympus".into()), "spec.time_zone: 'Mars/Olympus' is not a time zone"),
        (with(|s| s.misfire = v1::Misfire::CatchUp.into()), "spec.catch_up: "),
        (with(|s| s.overlap = 9), "spec.overlap: "),
        (with(|s| s.job = None), "spec.job.work: "),
        (job(|j| j.run_at_ms = 1), "spec.job.run_at_ms: "),
        (job(|j| j.depends_on = vec!["x".into()]), "spec.job.depends_on: "),
        (job(|j| j.idempotency_key = "x".into()), "spec.job.idempotency_key: "),
        (job(|j| j.name = "x".into()), "spec.job.name: "),
        (job(|j| j.stdin = vec![b'x'; 65 << 10]), "spec.job: is "),
    ];
    for (spec, field) in wrong {
        let request = v1::CreateScheduleRequest { spec: Some(spec) };
        let status = schedules(&cluster).create_schedule(request).await.expect_err("refused");
        assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
        assert!(status.message().starts_with(field), "{field}: {status:?}");
    }
    assert_eq!(cluster.hodei(&["schedule", "list", "--json"]).await.ok().json(), json!([]));

    let first = create(&cluster, good()).await;
    let again = schedules(&cluster).create_schedule(v1::CreateScheduleRequest { spec: Some(good()) }).await;
    assert_eq!(again.expect_err("taken").code(), Code::AlreadyExists);
    let unknown = schedules(&cluster).trigger_schedule(v1::TriggerScheduleRequest { schedule: "none".into() }).await;
    assert_eq!(unknown.expect_err("unknown").code(), Code::NotFound);
    let refused = cluster.hodei(&["schedule", "create", "bad", "--cron", "soon", "--", "true"]).await;
    assert!(refused.code != 0 && refused.stderr.contains("--cron: ") && refused.stderr.contains("five fields"));
    // Secrets are never shown.
    let secret = ["schedule", "create", "quiet", "--cron", "@daily", "--secret", "KEY=hunter2hunter2", "--", "true"];
    let shown = cluster.hodei(&[&secret[..5], &["--json"], &secret[5..]].concat()).await.ok();
    assert!(!shown.text().contains("hunter2") && shown.json()["job"]["secrets"] == json!(["KEY"]), "{shown:?}");
    assert_eq!(get(&cluster, "good").await.id, first.id);
    assert!(cluster.list().await.is_empty());
}
