//! `hodei events`: what happens, as it happens.

use crate::{
    args::EventsArgs,
    client::{Client, explain},
    exit, output,
};
use anyhow::Result;
use hodei_api::v1;
use serde_json::json;

pub async fn run(client: &mut Client, args: EventsArgs, json: bool) -> Result<u8> {
    let request = v1::StreamEventsRequest {
        after: args.after.unwrap_or_default(),
        job_id: args.job.unwrap_or_default(),
        queue: args.queue.unwrap_or_default(),
        kinds: args.kind,
    };
    let mut stream = client.events().stream_events(request).await.map_err(|status| explain(&status))?.into_inner();
    let mut left = args.count;
    while let Some(message) = stream.message().await.map_err(|status| explain(&status))? {
        for event in message.events {
            match json {
                true => output::print_json(&event_json(&event)),
                false => output::println(&line(&event)),
            }
            if let Some(count) = &mut left {
                *count -= 1;
                if *count == 0 {
                    return Ok(exit::OK);
                }
            }
        }
    }
    Ok(exit::OK)
}

fn line(event: &v1::Event) -> String {
    let queue = if event.queue.is_empty() { String::new() } else { format!("  queue {}", event.queue) };
    let run = if event.attempt == 0 { String::new() } else { format!("  run {}", event.attempt) };
    let what = if event.what.is_empty() { String::new() } else { format!("  handler {}", event.what) };
    let detail = if event.detail.is_empty() { String::new() } else { format!("  {}", event.detail) };
    let (at, name) = (output::timestamp(event.at_ms), &event.r#type);
    format!("{at}  {name:<18} {}{queue}{run}{what}{detail}", event.subject)
}

fn event_json(event: &v1::Event) -> serde_json::Value {
    json!({
        "id": event.id,
        "at": output::timestamp(event.at_ms),
        "type": event.r#type,
        "subject": event.subject,
        "queue": (!event.queue.is_empty()).then_some(&event.queue),
        "attempt": (event.attempt > 0).then_some(event.attempt),
        "what": (!event.what.is_empty()).then_some(&event.what),
        "detail": (!event.detail.is_empty()).then_some(&event.detail),
    })
}
