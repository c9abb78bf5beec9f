//! `hodei token …`

use crate::{
    args::TokenKind,
    client::{Client, explain},
    exit, output,
};
use anyhow::Result;
use hodei_api::v1;
use serde_json::json;

pub async fn create(client: &mut Client, kind: TokenKind, json: bool) -> Result<u8> {
    let TokenKind::Worker { worker_id, ttl } = kind;
    let request = v1::CreateWorkerTokenRequest {
        worker_id: worker_id.map(|id| id.to_string()).unwrap_or_default(),
        ttl_ms: ttl.map_or(0, |ttl| i64::try_from(ttl.0).unwrap_or(i64::MAX)),
    };
    let token = client.admin().create_worker_token(request).await.map_err(|status| explain(&status))?.into_inner();
    let expires = output::timestamp(token.expires_at_ms);
    if json {
        output::print_json(&json!({ "token": token.token, "worker_id": token.worker_id, "expires_at": expires }));
        return Ok(exit::OK);
    }
    // The token alone goes to standard output, so that TOKEN=$(hodei token create worker) works.
    output::println(&token.token);
    output::note(&format!("for worker {}, once, until {expires}; it is not shown again", token.worker_id));
    output::note("use it with: hodei worker run --server URL --token TOKEN");
    Ok(exit::OK)
}
