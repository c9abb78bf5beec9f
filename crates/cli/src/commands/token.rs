//! `hodei token …`

use crate::{
    args::{RoleArg, TokenCommand, TokenKind},
    client::{Client, explain},
    exit, output,
};
use anyhow::{Result, ensure};
use hodei_api::v1;
use hodei_core::{id::WorkerId, time::Millis};
use serde_json::{Value, json};

pub async fn run(client: &mut Client, command: TokenCommand, json: bool) -> Result<u8> {
    match command {
        TokenCommand::Create(TokenKind::Worker { worker_id, ttl }) => create_worker(client, worker_id, ttl, json).await,
        TokenCommand::Create(TokenKind::Api { role, name, ttl }) => create_api(client, role, name, ttl, json).await,
        TokenCommand::List => list(client, json).await,
        TokenCommand::Revoke { id } => revoke(client, id, json).await,
    }
}

async fn create_worker(client: &mut Client, id: Option<WorkerId>, ttl: Option<Millis>, json: bool) -> Result<u8> {
    let worker_id = id.map(|id| id.to_string()).unwrap_or_default();
    let request = v1::CreateWorkerTokenRequest { worker_id, ttl_ms: ttl_ms(ttl)? };
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

async fn create_api(client: &mut Client, role: RoleArg, name: String, ttl: Option<Millis>, json: bool) -> Result<u8> {
    let role = match role {
        RoleArg::Admin => v1::Role::Admin,
        RoleArg::Operator => v1::Role::Operator,
        RoleArg::Submitter => v1::Role::Submitter,
        RoleArg::Viewer => v1::Role::Viewer,
    };
    let request = v1::CreateApiTokenRequest { name, role: role.into(), ttl_ms: ttl_ms(ttl)? };
    let made = client.access().create_api_token(request).await.map_err(|status| explain(&status))?.into_inner();
    let info = made.info.unwrap_or_default();
    if json {
        let mut body = token_json(&info);
        body["token"] = json!(made.token);
        output::print_json(&body);
        return Ok(exit::OK);
    }
    output::println(&made.token);
    let until = match info.expires_at_ms {
        0 => "until it is revoked".to_owned(),
        at => format!("until {}", output::timestamp(at)),
    };
    output::note(&format!("'{}' ({}), {until}; it is not shown again", info.name, role_name(&info)));
    output::note(&format!("use it with: HODEI_API_TOKEN=TOKEN; end it with: hodei token revoke {}", info.id));
    Ok(exit::OK)
}

/// On the wire nothing means the usual: that is not what somebody wants who writes zero.
fn ttl_ms(ttl: Option<Millis>) -> Result<i64> {
    ensure!(ttl != Some(Millis(0)), "--ttl: a token must live for a while; leave it out for the usual time");
    Ok(ttl.map_or(0, |length| i64::try_from(length.0).unwrap_or(i64::MAX)))
}

const COLUMNS: [output::Column; 6] =
    [("ID", 0), ("NAME", 0), ("ROLE", 0), ("CREATED", 2), ("EXPIRES", 1), ("REVOKED", 1)];

async fn list(client: &mut Client, json: bool) -> Result<u8> {
    let answer = client.access().list_api_tokens(v1::ListApiTokensRequest {}).await;
    let tokens = answer.map_err(|status| explain(&status))?.into_inner().tokens;
    if json {
        output::print_json(&Value::Array(tokens.iter().map(token_json).collect()));
        return Ok(exit::OK);
    }
    let row = |token: &v1::ApiToken| {
        vec![
            token.id.clone(),
            token.name.clone(),
            role_name(token),
            output::ago(token.created_at_ms),
            output::timestamp(token.expires_at_ms),
            output::timestamp(token.revoked_at_ms),
        ]
    };
    output::table(&COLUMNS, &tokens.iter().map(row).collect::<Vec<_>>());
    Ok(exit::OK)
}

async fn revoke(client: &mut Client, id: String, json: bool) -> Result<u8> {
    let request = v1::RevokeApiTokenRequest { id: id.clone() };
    client.access().revoke_api_token(request).await.map_err(|status| explain(&status))?;
    match json {
        true => output::print_json(&json!({ "id": id, "revoked": true })),
        false => output::println("revoked"),
    }
    Ok(exit::OK)
}

fn role_name(token: &v1::ApiToken) -> String {
    token.role().as_str_name().trim_start_matches("ROLE_").to_ascii_lowercase()
}

fn token_json(token: &v1::ApiToken) -> Value {
    let at = |ms: i64| (ms != 0).then(|| output::timestamp(ms));
    json!({
        "id": token.id,
        "name": token.name,
        "role": role_name(token),
        "created_at": at(token.created_at_ms),
        "expires_at": at(token.expires_at_ms),
        "revoked_at": at(token.revoked_at_ms),
    })
}
