//! The API tokens in memory, by their hashes: a look-up by hash tells nothing about how near a guess came.

use super::Denied;
use crate::{clock, secrets};
use hodei_core::{
    access::{ApiToken, Role},
    id::TokenId,
    time::Time,
    token::Hash,
};
use std::{
    collections::HashMap,
    sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
};
use uuid::Uuid;

#[derive(Debug)]
pub struct Tokens {
    by_hash: RwLock<HashMap<Hash, Known>>,
    /// Held by whoever makes a token, so that no two get the same name.
    pub making: tokio::sync::Mutex<()>,
}

/// What is needed of a token to let its holder in, and the rest for listings.
#[derive(Clone, Debug)]
pub struct Known {
    pub name: Arc<str>,
    pub role: Role,
    whole: Arc<ApiToken>,
}

impl From<ApiToken> for Known {
    fn from(token: ApiToken) -> Self {
        Self { name: token.name.as_str().into(), role: token.role, whole: Arc::new(token) }
    }
}

impl Tokens {
    pub fn new(tokens: Vec<ApiToken>) -> Self {
        let by_hash = tokens.into_iter().map(|token| (token.hash, token.into())).collect();
        Self { by_hash: RwLock::new(by_hash), making: tokio::sync::Mutex::default() }
    }

    pub fn check(&self, secret: &str, now: Time) -> Result<Known, Denied> {
        let known = self.read().get(&secrets::hash(secret)).cloned().ok_or(Denied::Unknown)?;
        let ApiToken { name, expires_at, revoked_at, .. } = &*known.whole;
        if revoked_at.is_some() {
            return Err(Denied::Revoked(name.clone()));
        }
        match expires_at {
            Some(at) if now >= *at => Err(Denied::Expired(name.clone())),
            _ => Ok(known),
        }
    }

    pub fn put(&self, token: ApiToken) {
        self.write().insert(token.hash, token.into());
    }

    /// The oldest first.
    pub fn list(&self) -> Vec<ApiToken> {
        let mut tokens: Vec<ApiToken> = self.read().values().map(|known| ApiToken::clone(&known.whole)).collect();
        tokens.sort_by_key(|token| (token.created_at, token.id));
        tokens
    }

    pub fn find(&self, id: TokenId) -> Option<ApiToken> {
        self.read().values().find(|known| known.whole.id == id).map(|known| ApiToken::clone(&known.whole))
    }

    /// A token that is kept nowhere but here, so that it ends with this process. Returns the secret.
    pub fn grant(&self, name: &str, role: Role) -> String {
        let secret = secrets::new_api_token();
        let (id, created_at) = (TokenId(Uuid::now_v7()), clock::now().wall);
        let hash = secrets::hash(&secret);
        self.put(ApiToken { id, hash, name: name.to_owned(), role, created_at, expires_at: None, revoked_at: None });
        secret
    }

    fn read(&self) -> RwLockReadGuard<'_, HashMap<Hash, Known>> {
        self.by_hash.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, HashMap<Hash, Known>> {
        self.by_hash.write().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_of_tokens_are_told_apart() {
        let tokens = Tokens::new(Vec::new());
        let secret = tokens.grant("a", Role::Viewer);
        assert_eq!(tokens.check(&secret, Time(0)).map(|known| known.role).ok(), Some(Role::Viewer));
        assert_eq!(tokens.check("other", Time(0)).err(), Some(Denied::Unknown));
        let token = tokens.list().remove(0);
        tokens.put(ApiToken { expires_at: Some(Time(100)), ..token.clone() });
        assert!(tokens.check(&secret, Time(99)).is_ok());
        assert_eq!(tokens.check(&secret, Time(100)).err(), Some(Denied::Expired("a".into())));
        tokens.put(ApiToken { revoked_at: Some(Time(1)), ..token });
        assert_eq!(tokens.check(&secret, Time(2)).err(), Some(Denied::Revoked("a".into())));
    }
}
