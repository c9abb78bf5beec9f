//! Tokens and session credentials. Only their hashes leave this module's callers.

use hodei_core::{id::WorkerId, token::Hash};
use sha2::{Digest, Sha256};
use uuid::Uuid;

pub fn hash(secret: impl AsRef<[u8]>) -> Hash {
    Hash(Sha256::digest(secret).into())
}

/// A one-time token: a random UUID.
pub fn new_token() -> String {
    Uuid::new_v4().to_string()
}

/// An API token: 244 random bits, and a name in front by which scanners for leaked secrets can find it.
pub fn new_api_token() -> String {
    format!("hodei_{}{}", Uuid::new_v4().simple(), Uuid::new_v4().simple())
}

/// A session credential names its worker, so that one look-up checks it: `<worker id>.<244 random bits>`.
pub fn new_session(worker: WorkerId) -> String {
    format!("{worker}.{}{}", Uuid::new_v4().simple(), Uuid::new_v4().simple())
}

/// The worker that a credential claims to be.
pub fn claimed_worker(session: &str) -> Option<WorkerId> {
    session.split_once('.')?.0.parse().ok()
}
