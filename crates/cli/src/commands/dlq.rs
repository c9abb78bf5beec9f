//! `hodei dlq …`: jobs that failed for good.

use crate::{
    args::{DeadLetterFilterArgs, DlqCommand, WhichArgs},
    client::{Client, explain},
    commands::job,
    exit,
    output::{self, CUT},
};
use anyhow::{Result, bail};
use hodei_api::v1;
use hodei_core::time::Millis;
use serde_json::{Value, json};

pub async fn run(client: &mut Client, command: DlqCommand, json: bool) -> Result<u8> {
    match command {
        DlqCommand::List { filter, limit } => list(client, filter, limit, json).await,
        DlqCommand::Get { id } => get(client, id, json).await,
        DlqCommand::Stats { limit } => stats(client, limit, json).await,
        DlqCommand::Replay(which) => {
            let WhichArgs { ids, filter, all } = which;
            let named = ids.len();
            let request = v1::ReplayDeadLettersRequest { job_ids: ids, filter: Some(wire(filter)), all };
            let answer = client.dead_letters().replay_dead_letters(request).await.map_err(|status| explain(&status))?;
            say("replayed", answer.into_inner().replayed, named, json)
        }
        DlqCommand::Discard(which) => {
            let WhichArgs { ids, filter, all } = which;
            let named = ids.len();
            let request = v1::DiscardDeadLettersRequest { job_ids: ids, filter: Some(wire(filter)), all };
            let answer =
                client.dead_letters().discard_dead_letters(request).await.map_err(|status| explain(&status))?;
            say("discarded", answer.into_inner().discarded, named, json)
        }
    }
}

/// A filter may match nothing, but who names jobs means them.
fn say(what: &str, count: i64, named: usize, json: bool) -> Result<u8> {
    match json {
        true => output::print_json(&json!({ what: count })),
        false => output::println(&format!("{what} {count}")),
    }
    if named > 0 && count == 0 {
        bail!("none of the jobs named is a dead letter; 'hodei dlq list' shows those there are");
    }
    Ok(exit::OK)
}

fn wire(args: DeadLetterFilterArgs) -> v1::DeadLetterFilter {
    let ago =
        |length: Option<Millis>| length.map_or(0, |length| output::now_ms().saturating_sub_unsigned(length.0).max(1));
    v1::DeadLetterFilter {
        queue: args.queue.unwrap_or_default(),
        task_type: args.task_type.unwrap_or_default(),
        failure_kind: args.kind.unwrap_or_default(),
        fingerprint: args.fingerprint.unwrap_or_default(),
        from_ms: ago(args.since),
        to_ms: ago(args.until),
    }
}

async fn list(client: &mut Client, filter: DeadLetterFilterArgs, limit: u32, json: bool) -> Result<u8> {
    let filter = wire(filter);
    let mut letters = Vec::new();
    let mut page_token = String::new();
    while letters.len() < limit as usize {
        let page_size = i32::try_from((limit as usize - letters.len()).min(1000)).unwrap_or(1000);
        let request = v1::ListDeadLettersRequest { filter: Some(filter.clone()), page_size, page_token };
        let page = client.dead_letters().list_dead_letters(request).await.map_err(|status| explain(&status))?;
        let page = page.into_inner();
        letters.extend(page.dead_letters);
        page_token = page.next_page_token;
        if page_token.is_empty() {
            break;
        }
    }
    match json {
        true => output::print_json(&Value::Array(letters.iter().map(letter_json).collect())),
        false => output::table(&COLUMNS, &letters.iter().map(row).collect::<Vec<_>>()),
    }
    Ok(exit::OK)
}

const COLUMNS: [output::Column; 8] =
    [("ID", 0), ("NAME", 2), ("QUEUE", 4), ("RUNS", 5), ("FAILED", 3), ("KIND", 1), ("GROUP", 6), ("ERROR", CUT)];
/// Of an error in a table.
const ERROR_WIDTH: usize = 60;

fn row(letter: &v1::DeadLetter) -> Vec<String> {
    vec![
        letter.job_id.clone(),
        letter.name.clone(),
        letter.queue.clone(),
        letter.attempts.to_string(),
        output::ago(letter.failed_at_ms),
        letter.failure_kind.clone(),
        letter.fingerprint.clone(),
        letter.error.chars().take(ERROR_WIDTH).collect(),
    ]
}

fn letter_json(letter: &v1::DeadLetter) -> Value {
    json!({
        "job_id": letter.job_id,
        "name": letter.name,
        "queue": letter.queue,
        "task_type": (!letter.task_type.is_empty()).then_some(&letter.task_type),
        "failed_at": output::timestamp(letter.failed_at_ms),
        "attempts": letter.attempts,
        "failure_kind": letter.failure_kind,
        "error": letter.error,
        "detail": (!letter.detail.is_empty()).then_some(&letter.detail),
        "worker_id": (!letter.worker_id.is_empty()).then_some(&letter.worker_id),
        "fingerprint": letter.fingerprint,
        "job": letter.job.as_ref().map(output::job_json),
    })
}

async fn get(client: &mut Client, id: String, json: bool) -> Result<u8> {
    let request = v1::GetDeadLetterRequest { job_id: id };
    let answer = client.dead_letters().get_dead_letter(request).await.map_err(|status| explain(&status))?;
    let letter = answer.into_inner().dead_letter.unwrap_or_default();
    if json {
        output::print_json(&letter_json(&letter));
        return Ok(exit::OK);
    }
    output::lines(&[
        ("failed", output::timestamp(letter.failed_at_ms)),
        ("kind", letter.failure_kind.clone()),
        ("error", letter.error.clone()),
        ("group", letter.fingerprint.clone()),
    ]);
    if let Some(job) = &letter.job {
        job::describe(job);
    }
    if !letter.detail.is_empty() {
        output::println(&format!("\n{}", letter.detail.trim_end()));
    }
    Ok(exit::OK)
}

async fn stats(client: &mut Client, limit: u32, json: bool) -> Result<u8> {
    let request = v1::GetDeadLetterStatsRequest { limit: i32::try_from(limit).unwrap_or(i32::MAX) };
    let answer = client.dead_letters().get_dead_letter_stats(request).await.map_err(|status| explain(&status))?;
    let v1::GetDeadLetterStatsResponse { total, groups } = answer.into_inner();
    if json {
        let group = |group: &v1::ErrorGroup| {
            json!({
                "fingerprint": group.fingerprint,
                "failure_kind": group.failure_kind,
                "example": group.example,
                "count": group.count,
                "first_at": output::timestamp(group.first_ms),
                "last_at": output::timestamp(group.last_ms),
            })
        };
        output::print_json(&json!({ "total": total, "groups": groups.iter().map(group).collect::<Vec<_>>() }));
        return Ok(exit::OK);
    }
    let row = |group: &v1::ErrorGroup| {
        vec![
            group.count.to_string(),
            group.failure_kind.clone(),
            output::ago(group.last_ms),
            group.fingerprint.clone(),
            group.example.chars().take(ERROR_WIDTH).collect(),
        ]
    };
    let columns = [("COUNT", 0), ("KIND", 1), ("LAST", 2), ("GROUP", 0), ("EXAMPLE", CUT)];
    output::table(&columns, &groups.iter().map(row).collect::<Vec<_>>());
    output::note(&format!("{total} dead letters in all"));
    Ok(exit::OK)
}
