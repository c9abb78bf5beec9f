//! `hodei schedule …`

use crate::{
    args::{JobArgs, ScheduleArgs, ScheduleCommand, SchedulePolicyArgs, TimingArgs},
    client::{Client, explain},
    commands::{file::progress, job::work_line, spec},
    exit, output,
};
use anyhow::{Context, Result, bail};
use hodei_api::v1::{self, schedule_spec::Timing};
use hodei_core::{
    cron,
    time::{Millis, Time},
};
use serde_json::{Value, json};

pub async fn run(client: &mut Client, command: ScheduleCommand, json: bool) -> Result<u8> {
    match command {
        ScheduleCommand::Create(args) => show(&create(client, *args).await?, json),
        ScheduleCommand::Update { rename, args } => show(&update(client, rename, *args).await?, json),
        ScheduleCommand::Get { schedule } => show(&get(client, schedule).await?, json),
        ScheduleCommand::List => return list(client, json).await,
        ScheduleCommand::Delete { schedule } => {
            let request = v1::DeleteScheduleRequest { schedule: schedule.clone() };
            client.schedules().delete_schedule(request).await.map_err(|status| explain(&status))?;
            match json {
                true => output::print_json(&json!({ "schedule": schedule, "deleted": true })),
                false => output::println("deleted; its jobs stay"),
            }
        }
        ScheduleCommand::Enable { schedule } => {
            let answer = client.schedules().enable_schedule(v1::EnableScheduleRequest { schedule }).await;
            show(&answer.map_err(|status| explain(&status))?.into_inner().schedule.unwrap_or_default(), json);
        }
        ScheduleCommand::Disable { schedule } => {
            let answer = client.schedules().disable_schedule(v1::DisableScheduleRequest { schedule }).await;
            show(&answer.map_err(|status| explain(&status))?.into_inner().schedule.unwrap_or_default(), json);
        }
        ScheduleCommand::Trigger { schedule } => {
            let answer = client.schedules().trigger_schedule(v1::TriggerScheduleRequest { schedule }).await;
            super::run::print_id(&answer.map_err(|status| explain(&status))?.into_inner().job_id, json);
        }
        ScheduleCommand::Preview { schedule, timing, count } => {
            return preview(client, schedule, timing, count, json).await;
        }
        ScheduleCommand::Backfill { schedule, from, to } => {
            return backfill(client, schedule, &from, to.as_deref(), json).await;
        }
    }
    Ok(exit::OK)
}

async fn create(client: &mut Client, args: ScheduleArgs) -> Result<v1::Schedule> {
    let ScheduleArgs { schedule, timing, policy, disabled, mut job } = args;
    let mut spec = v1::ScheduleSpec { name: schedule, disabled, ..v1::ScheduleSpec::default() };
    spec.description = job.description.take().unwrap_or_default();
    set_timing(&mut spec, timing);
    set_policy(&mut spec, &policy);
    spec.job = Some(job_spec(job, client.is_local())?);
    let answer = client.schedules().create_schedule(v1::CreateScheduleRequest { spec: Some(spec) }).await;
    Ok(answer.map_err(|status| explain(&status))?.into_inner().schedule.unwrap_or_default())
}

/// Only what is named changes.
async fn update(client: &mut Client, rename: Option<String>, args: ScheduleArgs) -> Result<v1::Schedule> {
    let ScheduleArgs { schedule, timing, policy, disabled, mut job } = args;
    let mut spec = get(client, schedule.clone()).await?.spec.unwrap_or_default();
    spec.name = rename.unwrap_or(spec.name);
    spec.disabled |= disabled;
    spec.description = job.description.take().unwrap_or(spec.description);
    set_timing(&mut spec, timing);
    set_policy(&mut spec, &policy);
    spec.job = match job.runs_something() {
        true => Some(job_spec(job, client.is_local())?),
        false if job.is_blank() => None,
        false => bail!("options of the job need the job itself: give its command after '--', a --script or a --task"),
    };
    let answer = client.schedules().update_schedule(v1::UpdateScheduleRequest { schedule, spec: Some(spec) }).await;
    Ok(answer.map_err(|status| explain(&status))?.into_inner().schedule.unwrap_or_default())
}

/// A script's file gives no name to jobs that have one of their own.
fn job_spec(args: JobArgs, local: bool) -> Result<v1::JobSpec> {
    let name = args.name.clone().unwrap_or_default();
    Ok(v1::JobSpec { name, ..spec::build(args, local, None)? })
}

fn set_timing(spec: &mut v1::ScheduleSpec, args: TimingArgs) {
    if let Some(cron) = args.cron {
        spec.timing = Some(Timing::Cron(cron));
    }
    if let Some(Millis(length)) = args.every {
        spec.timing = Some(Timing::EveryMs(i64::try_from(length).unwrap_or(i64::MAX)));
        spec.time_zone.clear();
    }
    if let Some(zone) = args.tz {
        spec.time_zone = zone;
    }
}

fn set_policy(spec: &mut v1::ScheduleSpec, args: &SchedulePolicyArgs) {
    if let Some(overlap) = args.overlap {
        spec.set_overlap(overlap.into());
    }
    if let Some((misfire, catch_up)) = args.misfire {
        spec.set_misfire(misfire);
        spec.catch_up = catch_up;
    }
}

async fn get(client: &mut Client, schedule: String) -> Result<v1::Schedule> {
    let answer = client.schedules().get_schedule(v1::GetScheduleRequest { schedule }).await;
    Ok(answer.map_err(|status| explain(&status))?.into_inner().schedule.unwrap_or_default())
}

async fn list(client: &mut Client, json: bool) -> Result<u8> {
    let mut schedules = Vec::new();
    let mut page_token = String::new();
    loop {
        let request = v1::ListSchedulesRequest { page_size: 1000, page_token };
        let page = client.schedules().list_schedules(request).await.map_err(|status| explain(&status))?.into_inner();
        schedules.extend(page.schedules);
        page_token = page.next_page_token;
        if page_token.is_empty() {
            break;
        }
    }
    match json {
        true => output::print_json(&Value::Array(schedules.iter().map(schedule_json).collect())),
        false => output::table(&COLUMNS, &schedules.iter().map(row).collect::<Vec<_>>()),
    }
    Ok(exit::OK)
}

const COLUMNS: [output::Column; 8] =
    [("NAME", 0), ("WHEN", 0), ("STATE", 2), ("NEXT", 1), ("LAST", 3), ("RUNS", 4), ("SKIPPED", 5), ("ID", 6)];

fn row(schedule: &v1::Schedule) -> Vec<String> {
    let spec = schedule.spec.clone().unwrap_or_default();
    vec![
        spec.name.clone(),
        when(&spec),
        state(&spec).to_owned(),
        in_zone(schedule.next_tick_ms, &spec),
        in_zone(schedule.last_tick_ms, &spec),
        schedule.runs.to_string(),
        schedule.skipped.to_string(),
        schedule.id.clone(),
    ]
}

fn state(spec: &v1::ScheduleSpec) -> &'static str {
    if spec.disabled { "disabled" } else { "enabled" }
}

fn when(spec: &v1::ScheduleSpec) -> String {
    match &spec.timing {
        Some(Timing::Cron(expression)) => expression.clone(),
        Some(Timing::EveryMs(length)) => {
            let length = std::time::Duration::from_millis(u64::try_from(*length).unwrap_or(0));
            format!("every {}", humantime::format_duration(length))
        }
        None => String::new(),
    }
}

/// As the clocks of the schedule's zone show it; nothing for a time that is not set.
fn in_zone(ms: i64, spec: &v1::ScheduleSpec) -> String {
    match ms {
        0 => String::new(),
        ms => cron::in_zone(Time(ms), &spec.time_zone).map_or_else(String::new, |at| {
            let name = if spec.time_zone.is_empty() { "UTC" } else { &spec.time_zone };
            format!("{} {name}", at.strftime("%F %T%:z"))
        }),
    }
}

fn overlap_name(spec: &v1::ScheduleSpec) -> String {
    spec.overlap().as_str_name().trim_start_matches("OVERLAP_").to_ascii_lowercase()
}

fn misfire_name(spec: &v1::ScheduleSpec) -> String {
    spec.misfire().as_str_name().trim_start_matches("MISFIRE_").to_ascii_lowercase()
}

fn show(schedule: &v1::Schedule, json: bool) {
    if json {
        output::print_json(&schedule_json(schedule));
        return;
    }
    let spec = schedule.spec.clone().unwrap_or_default();
    let misfire = match spec.catch_up {
        0 => misfire_name(&spec),
        most => format!("{} {most}", misfire_name(&spec)),
    };
    output::lines(&[
        ("id", schedule.id.clone()),
        ("name", spec.name.clone()),
        ("description", spec.description.clone()),
        ("when", when(&spec)),
        ("time zone", spec.time_zone.clone()),
        ("state", state(&spec).to_owned()),
        ("overlap", overlap_name(&spec)),
        ("misfire", misfire),
        ("work", spec.job.as_ref().map(work_line).unwrap_or_default()),
        ("created", in_zone(schedule.created_at_ms, &spec)),
        ("last run", in_zone(schedule.last_tick_ms, &spec)),
        ("last job", schedule.last_job_id.clone()),
        ("next run", in_zone(schedule.next_tick_ms, &spec)),
        ("runs", schedule.runs.to_string()),
        ("skipped", schedule.skipped.to_string()),
    ]);
}

fn schedule_json(schedule: &v1::Schedule) -> Value {
    let spec = schedule.spec.clone().unwrap_or_default();
    let (cron, every) = match &spec.timing {
        Some(Timing::Cron(expression)) => (Some(expression), None),
        Some(Timing::EveryMs(length)) => (None, Some(length)),
        None => (None, None),
    };
    let job = spec.job.clone().unwrap_or_default();
    json!({
        "id": schedule.id,
        "name": spec.name,
        "description": (!spec.description.is_empty()).then_some(&spec.description),
        "cron": cron,
        "every_ms": every,
        "time_zone": (!spec.time_zone.is_empty()).then_some(&spec.time_zone),
        "enabled": !spec.disabled,
        "overlap": overlap_name(&spec),
        "misfire": misfire_name(&spec),
        "catch_up": (spec.catch_up > 0).then_some(spec.catch_up),
        "created_at": output::time(schedule.created_at_ms),
        "last_tick": output::time(schedule.last_tick_ms),
        "next_tick": output::time(schedule.next_tick_ms),
        "runs": schedule.runs,
        "skipped": schedule.skipped,
        "last_job_id": (!schedule.last_job_id.is_empty()).then_some(&schedule.last_job_id),
        "job": {
            "queue": job.queue,
            "priority": output::priority_name(job.priority()),
            "work": output::work_json(&job),
            "environment": job.environment,
            "secrets": output::secret_names(&job),
        },
    })
}

async fn preview(
    client: &mut Client,
    schedule: Option<String>,
    timing: TimingArgs,
    count: i32,
    json: bool,
) -> Result<u8> {
    let (schedule, spec, shown) = match schedule {
        Some(schedule) => {
            let spec = get(client, schedule.clone()).await?.spec.unwrap_or_default();
            (schedule, None, spec)
        }
        None => {
            let mut spec = v1::ScheduleSpec::default();
            set_timing(&mut spec, timing);
            (String::new(), Some(spec.clone()), spec)
        }
    };
    let request = v1::PreviewScheduleRequest { schedule, spec, count, after_ms: 0 };
    let answer = client.schedules().preview_schedule(request).await.map_err(|status| explain(&status))?;
    let ticks = answer.into_inner().ticks_ms;
    match json {
        true => output::print_json(&ticks.iter().map(|tick| output::time(*tick)).collect()),
        false => ticks.iter().for_each(|tick| output::println(&in_zone(*tick, &shown))),
    }
    Ok(exit::OK)
}

/// A time in full, or as the clocks of the schedule's zone show it.
fn moment(text: &str, spec: &v1::ScheduleSpec) -> Result<i64> {
    if let Ok(at) = text.parse::<jiff::Timestamp>() {
        return Ok(at.as_millisecond());
    }
    let civil: jiff::civil::DateTime = text.parse().ok().with_context(|| {
        format!("'{text}' is not a time; write it like 2026-01-31, 2026-01-31T03:00 or 2026-01-31T03:00:00Z")
    })?;
    let zone = cron::in_zone(Time(0), &spec.time_zone).context("the schedule's time zone is not known here")?;
    Ok(civil.to_zoned(zone.time_zone().clone())?.timestamp().as_millisecond())
}

async fn backfill(client: &mut Client, schedule: String, from: &str, to: Option<&str>, json: bool) -> Result<u8> {
    let spec = get(client, schedule.clone()).await?.spec.unwrap_or_default();
    let to_ms = to.map_or(Ok(output::now_ms()), |to| moment(to, &spec))?;
    let from_ms = moment(from, &spec)?;
    if to_ms <= from_ms {
        bail!("--to must be after --from, and is now where it is not given");
    }
    let request = v1::BackfillScheduleRequest { schedule, from_ms, to_ms };
    let answer = client.schedules().backfill_schedule(request).await.map_err(|status| explain(&status))?;
    let mut steps = answer.into_inner();
    let mut last = v1::BackfillScheduleResponse::default();
    let mut bar = None;
    while let Some(step) = steps.message().await.map_err(|status| explain(&status))? {
        let count = |number: i64| u64::try_from(number).unwrap_or(0);
        let bar = bar.get_or_insert_with(|| progress(Some(count(step.total))));
        bar.set_position(count(step.made + step.existed));
        bar.set_message(format!("{} jobs", step.made));
        last = step;
    }
    bar.iter().for_each(indicatif::ProgressBar::finish_and_clear);
    let v1::BackfillScheduleResponse { made, existed, total } = last;
    match json {
        true => output::print_json(&json!({ "made": made, "existed": existed, "total": total })),
        false => output::println(&format!("{made} jobs made, {existed} of {total} ticks had theirs")),
    }
    Ok(exit::OK)
}
