//! `hodei queue …`

use crate::{
    args::{QueueCommand, QueueSettingsArgs},
    client::{Client, explain},
    exit, output,
};
use anyhow::Result;
use hodei_api::v1;
use serde_json::{Value, json};

pub async fn run(client: &mut Client, command: QueueCommand, json: bool) -> Result<u8> {
    match command {
        QueueCommand::List => return list(client, json).await,
        QueueCommand::Get { name } => show(&get(client, name).await?, json),
        QueueCommand::Pause { name } => {
            let answer = client.queues().pause_queue(v1::PauseQueueRequest { name }).await;
            show(&answer.map_err(|status| explain(&status))?.into_inner().queue.unwrap_or_default(), json);
        }
        QueueCommand::Resume { name } => {
            let answer = client.queues().resume_queue(v1::ResumeQueueRequest { name }).await;
            show(&answer.map_err(|status| explain(&status))?.into_inner().queue.unwrap_or_default(), json);
        }
        QueueCommand::Set { name, settings } => {
            let now = get(client, name.clone()).await?.settings.unwrap_or_default();
            let request = v1::ConfigureQueueRequest { name, settings: Some(changed(now, &settings)) };
            let answer = client.queues().configure_queue(request).await;
            show(&answer.map_err(|status| explain(&status))?.into_inner().queue.unwrap_or_default(), json);
        }
    }
    Ok(exit::OK)
}

async fn get(client: &mut Client, name: String) -> Result<v1::Queue> {
    let answer = client.queues().get_queue(v1::GetQueueRequest { name }).await.map_err(|status| explain(&status))?;
    Ok(answer.into_inner().queue.unwrap_or_default())
}

/// Only what is named changes.
fn changed(mut settings: v1::QueueSettings, args: &QueueSettingsArgs) -> v1::QueueSettings {
    let ms = |length: hodei_core::time::Millis| i64::try_from(length.0).unwrap_or(i64::MAX);
    if let Some(rate) = args.rate {
        (settings.rate_limit, settings.rate_period_ms) = rate.0.map_or((0, 0), |rate| (rate.limit, ms(rate.period)));
    }
    if let Some(concurrency) = args.concurrency {
        settings.concurrency = concurrency.0.unwrap_or(0);
    }
    if let Some(ageing) = args.ageing {
        settings.ageing_ms = ageing.0.map_or(0, ms);
    }
    if let Some(max_jobs) = args.max_jobs {
        settings.max_jobs = max_jobs.0.unwrap_or(0);
    }
    settings
}

async fn list(client: &mut Client, json: bool) -> Result<u8> {
    let mut queues = Vec::new();
    let mut page_token = String::new();
    loop {
        let request = v1::ListQueuesRequest { page_size: 1000, page_token };
        let page = client.queues().list_queues(request).await.map_err(|status| explain(&status))?.into_inner();
        queues.extend(page.queues);
        page_token = page.next_page_token;
        if page_token.is_empty() {
            break;
        }
    }
    match json {
        true => output::print_json(&Value::Array(queues.iter().map(queue_json).collect())),
        false => output::table(&COLUMNS, &queues.iter().map(row).collect::<Vec<_>>()),
    }
    Ok(exit::OK)
}

const COLUMNS: [output::Column; 9] = [
    ("QUEUE", 0),
    ("PENDING", 0),
    ("RUNNING", 1),
    ("WAITING", 4),
    ("DELAYED", 3),
    ("BLOCKED", 6),
    ("FAILED", 2),
    ("SUCCEEDED", 5),
    ("HELD", output::CUT),
];

fn row(queue: &v1::Queue) -> Vec<String> {
    let sum = |states: &[&str]| states.iter().filter_map(|state| queue.counts.get(*state)).sum::<i64>().to_string();
    vec![
        queue.name.clone(),
        sum(&["pending"]),
        sum(&["scheduled", "running"]),
        sum(&["waiting"]),
        sum(&["delayed"]),
        sum(&["blocked"]),
        sum(&["failed", "timed_out"]),
        sum(&["succeeded"]),
        queue.held_because.clone(),
    ]
}

fn show(queue: &v1::Queue, json: bool) {
    if json {
        output::print_json(&queue_json(queue));
        return;
    }
    let settings = queue.settings.unwrap_or_default();
    let rate = (settings.rate_limit > 0)
        .then(|| format!("{} starts in {}", settings.rate_limit, output::span(settings.rate_period_ms)));
    let limit = (settings.concurrency > 0).then(|| format!("{} jobs at one time", settings.concurrency));
    let ageing =
        (settings.ageing_ms > 0).then(|| format!("one priority higher every {}", output::span(settings.ageing_ms)));
    let most = (settings.max_jobs > 0).then(|| format!("{} jobs that have not ended", settings.max_jobs));
    let mut lines = vec![
        ("queue", queue.name.clone()),
        ("state", if queue.paused { "paused".to_owned() } else { "open".to_owned() }),
        ("held", queue.held_because.clone()),
        ("rate", rate.unwrap_or_default()),
        ("limit", limit.unwrap_or_default()),
        ("ageing", ageing.unwrap_or_default()),
        ("holds at most", most.unwrap_or_default()),
    ];
    let mut counts: Vec<_> = queue.counts.iter().collect();
    counts.sort();
    let counts: Vec<String> = counts.into_iter().map(|(state, count)| format!("{count} {state}")).collect();
    lines.push(("jobs", if counts.is_empty() { "none".to_owned() } else { counts.join(", ") }));
    output::lines(&lines);
}

fn queue_json(queue: &v1::Queue) -> Value {
    let settings = queue.settings.unwrap_or_default();
    json!({
        "name": queue.name,
        "paused": queue.paused,
        "held_because": (!queue.held_because.is_empty()).then_some(&queue.held_because),
        "rate_limit": (settings.rate_limit > 0).then_some(settings.rate_limit),
        "rate_period_ms": (settings.rate_limit > 0).then_some(settings.rate_period_ms),
        "concurrency": (settings.concurrency > 0).then_some(settings.concurrency),
        "ageing_ms": (settings.ageing_ms > 0).then_some(settings.ageing_ms),
        "max_jobs": (settings.max_jobs > 0).then_some(settings.max_jobs),
        "counts": queue.counts,
    })
}
