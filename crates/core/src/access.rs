//! Who may do what, and who did what.

use crate::{id::TokenId, time::Time, token::Hash};
use serde::{Deserialize, Serialize};

/// Each may do what those after it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Role {
    /// Tokens, the audit log, settings.
    Admin,
    /// Queues, schedules, workers, dead letters, other people's jobs.
    Operator,
    /// Submits jobs, resumes and cancels them.
    Submitter,
    /// Looks.
    Viewer,
}

impl Role {
    pub const ALL: [Role; 4] = [Role::Admin, Role::Operator, Role::Submitter, Role::Viewer];

    pub fn name(self) -> &'static str {
        match self {
            Role::Admin => "admin",
            Role::Operator => "operator",
            Role::Submitter => "submitter",
            Role::Viewer => "viewer",
        }
    }

    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.name() == name)
    }

    pub fn may(self, needed: Role) -> bool {
        self <= needed
    }
}

/// A credential of a person or a program. Only its hash is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApiToken {
    pub id: TokenId,
    pub hash: Hash,
    pub name: String,
    pub role: Role,
    pub created_at: Time,
    pub expires_at: Option<Time>,
    pub revoked_at: Option<Time>,
}

/// A line of the audit log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditEntry {
    pub at: Time,
    pub actor: String,
    pub peer: String,
    pub action: String,
    pub subject: String,
    pub outcome: String,
}
