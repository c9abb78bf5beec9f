//! `hodei audit`

use crate::{
    args::AuditArgs,
    client::{Client, explain},
    exit, output,
};
use anyhow::Result;
use hodei_api::v1;
use serde_json::{Value, json};

const LARGEST_PAGE: usize = 1000;
const COLUMNS: [output::Column; 6] =
    [("AT", 0), ("ACTOR", output::CUT), ("PEER", 3), ("ACTION", 0), ("OUTCOME", 1), ("SUBJECT", 0)];

pub async fn run(client: &mut Client, args: AuditArgs, json: bool) -> Result<u8> {
    let entries = read(client, &args).await?;
    if json {
        output::print_json(&Value::Array(entries.iter().map(entry_json).collect()));
        return Ok(exit::OK);
    }
    let row = |entry: &v1::AuditEntry| {
        vec![
            output::ago(entry.at_ms),
            entry.actor.clone(),
            entry.peer.clone(),
            entry.action.clone(),
            entry.outcome.clone(),
            entry.subject.clone(),
        ]
    };
    output::table(&COLUMNS, &entries.iter().map(row).collect::<Vec<_>>());
    Ok(exit::OK)
}

async fn read(client: &mut Client, args: &AuditArgs) -> Result<Vec<v1::AuditEntry>> {
    let limit = args.limit as usize;
    let (mut entries, mut page_token) = (Vec::new(), String::new());
    loop {
        let request = v1::ListAuditRequest {
            page_size: i32::try_from((limit - entries.len()).min(LARGEST_PAGE)).unwrap_or(0),
            page_token,
            actor: args.actor.clone().unwrap_or_default(),
            action: args.action.clone().unwrap_or_default(),
        };
        let page = client.access().list_audit(request).await.map_err(|status| explain(&status))?.into_inner();
        entries.extend(page.entries);
        page_token = page.next_page_token;
        if page_token.is_empty() || entries.len() >= limit {
            return Ok(entries);
        }
    }
}

fn entry_json(entry: &v1::AuditEntry) -> Value {
    json!({
        "at": output::timestamp(entry.at_ms),
        "actor": entry.actor,
        "peer": entry.peer,
        "action": entry.action,
        "subject": entry.subject,
        "outcome": entry.outcome,
    })
}
