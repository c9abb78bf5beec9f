//! API tokens and the audit log.

use super::{Calls, Problem};
use crate::{
    access::{ANONYMOUS, OWNER},
    clock, secrets,
};
use hodei_core::{
    access::{ApiToken, AuditEntry, Role},
    id::TokenId,
    spec::{self, Invalid},
    time::Millis,
};
use hodei_store::{Aside, AuditFilter};
use uuid::Uuid;

const MAX_TOKENS: usize = 10_000;
const LONGEST_TTL: Millis = Millis::seconds(10 * 366 * 24 * 3600);
/// Names that the audit log gives to others.
const TAKEN: [&str; 4] = [OWNER, ANONYMOUS, "others", "up"];

impl Calls {
    /// Makes a token and returns it with what is kept of it. Nobody can look at the token again.
    pub async fn create_api_token(
        &self,
        name: String,
        role: Role,
        ttl: Option<Millis>,
    ) -> Result<(String, ApiToken), Problem> {
        if ttl.is_some_and(|ttl| ttl > LONGEST_TTL) {
            return Err(Invalid::new("ttl_ms", "must be at most ten years; zero for a token that never expires").into());
        }
        let tokens = &self.engine.shared().access.tokens;
        let _making = tokens.making.lock().await;
        let (id, now) = (TokenId(Uuid::now_v7()), clock::now().wall);
        let name = self.free_name(name, role, id)?;
        let secret = secrets::new_api_token();
        let expires_at = ttl.map(|ttl| now + ttl);
        let hash = secrets::hash(&secret);
        let token = ApiToken { id, hash, name, role, created_at: now, expires_at, revoked_at: None };
        self.keep(&token).await?;
        tokens.put(token.clone());
        Ok((secret, token))
    }

    /// The name of a new token: one that no other token which is still good has, because it is what the audit log calls its
    /// holder.
    fn free_name(&self, name: String, role: Role, id: TokenId) -> Result<String, Problem> {
        let now = clock::now().wall;
        let mut live = self.api_tokens();
        live.retain(|token| token.revoked_at.is_none() && token.expires_at.is_none_or(|at| at > now));
        if live.len() >= MAX_TOKENS {
            return Err(Problem::Exhausted(format!("there are {MAX_TOKENS} API tokens already; revoke some")));
        }
        if name.is_empty() {
            let id = id.to_string();
            return Ok(format!("{}-{}", role.name(), &id[id.len() - 12..]));
        }
        spec::label("name", &name)?;
        if TAKEN.contains(&name.as_str()) || name.starts_with("worker ") {
            return Err(Invalid::new("name", format!("'{name}' is what the audit log calls somebody else")).into());
        }
        match live.iter().any(|token| token.name == name) {
            true => Err(Problem::Exists(format!(
                "there is an API token '{name}' already; revoke it or choose another name"
            ))),
            false => Ok(name),
        }
    }

    /// All that are known, the oldest first; their hashes are for nobody else.
    pub fn api_tokens(&self) -> Vec<ApiToken> {
        self.engine.shared().access.tokens.list()
    }

    /// Ends a token at once. One that was revoked before stays so.
    pub async fn revoke_api_token(&self, id: TokenId) -> Result<(), Problem> {
        let tokens = &self.engine.shared().access.tokens;
        let token = tokens.find(id).ok_or_else(|| Problem::NotFound(format!("there is no API token {id}")))?;
        if token.revoked_at.is_some() {
            return Ok(());
        }
        let revoked = ApiToken { revoked_at: Some(clock::now().wall), ..token };
        // It must not work any more, whether or not that can be written down now.
        tokens.put(revoked.clone());
        self.keep(&revoked).await
    }

    /// Newest first, each with its number.
    pub async fn audit_log(
        &self,
        filter: AuditFilter,
        before: Option<u64>,
        limit: usize,
    ) -> Result<Vec<(u64, AuditEntry)>, Problem> {
        Ok(self.engine.shared().store.audit(filter, before, limit).await?)
    }

    /// Writes a token, with the line about it in the same commit.
    async fn keep(&self, token: &ApiToken) -> Result<(), Problem> {
        let line = self.line(format_args!("{} {} ({})", token.id, token.name, token.role.name()));
        let audit = line.map(|line| AuditEntry { outcome: "ok".into(), ..line }).into_iter().collect();
        Ok(self.engine.keep(Aside { api_tokens: vec![token.clone()], audit, ..Aside::default() }).await?)
    }
}
