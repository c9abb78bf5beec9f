//! One-time tokens that let a worker register. Only their hashes are kept.

use crate::{id::WorkerId, time::Time};
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// SHA-256 of a secret, computed at the edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Hash(pub [u8; 32]);

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerToken {
    pub hash: Hash,
    /// The one worker it can register.
    pub worker: WorkerId,
    pub expires_at: Time,
    /// The key that the registering worker proved, once it was used. The same worker may repeat its call with the
    /// same key, because the answer to the first may have been lost.
    pub used_by: Option<Hash>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum TokenRefused {
    #[error("the token is not known")]
    Unknown,
    #[error("the token has expired; make a new one with 'hodei token create worker'")]
    Expired,
    #[error("the token was used already; make a new one with 'hodei token create worker'")]
    Used,
    #[error("the token belongs to another worker id")]
    OtherWorker,
}

impl WorkerToken {
    /// Uses the token up for the worker that proves `key`.
    pub fn redeem(&mut self, worker: Option<WorkerId>, key: Hash, now: Time) -> Result<(), TokenRefused> {
        if worker.is_some_and(|id| id != self.worker) {
            return Err(TokenRefused::OtherWorker);
        }
        match self.used_by {
            Some(by) if by != key => Err(TokenRefused::Used),
            _ if now >= self.expires_at => Err(TokenRefused::Expired),
            _ => {
                self.used_by = Some(key);
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    const KEY: Hash = Hash([1; 32]);
    const OTHER: Hash = Hash([2; 32]);

    fn token() -> WorkerToken {
        WorkerToken { hash: Hash([9; 32]), worker: WorkerId(Uuid::from_u128(1)), expires_at: Time(100), used_by: None }
    }

    #[test]
    fn works_once_for_one_key() {
        let mut token = token();
        assert_eq!(token.redeem(None, KEY, Time(1)), Ok(()));
        assert_eq!(token.redeem(Some(WorkerId(Uuid::from_u128(1))), KEY, Time(2)), Ok(()), "the answer was lost");
        assert_eq!(token.redeem(None, OTHER, Time(3)), Err(TokenRefused::Used));
    }

    #[test]
    fn refuses_late_and_strange_workers() {
        assert_eq!(token().redeem(None, KEY, Time(100)), Err(TokenRefused::Expired));
        assert_eq!(token().redeem(Some(WorkerId(Uuid::from_u128(2))), KEY, Time(1)), Err(TokenRefused::OtherWorker));
    }
}
