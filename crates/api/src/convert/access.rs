//! API tokens and the audit log.

use crate::v1;
use hodei_core::{
    access::{ApiToken, AuditEntry, Role},
    spec::Invalid,
    time::{Millis, Time},
};

pub fn role_from_wire(role: i32) -> Result<Role, Invalid> {
    match v1::Role::try_from(role) {
        Ok(v1::Role::Admin) => Ok(Role::Admin),
        Ok(v1::Role::Operator) => Ok(Role::Operator),
        Ok(v1::Role::Submitter) => Ok(Role::Submitter),
        Ok(v1::Role::Viewer) => Ok(Role::Viewer),
        Ok(v1::Role::Unspecified) | Err(_) => Err(Invalid::new("role", "must be admin, operator, submitter or viewer")),
    }
}

pub fn role_to_wire(role: Role) -> v1::Role {
    match role {
        Role::Admin => v1::Role::Admin,
        Role::Operator => v1::Role::Operator,
        Role::Submitter => v1::Role::Submitter,
        Role::Viewer => v1::Role::Viewer,
    }
}

/// A length of time that need not be given.
pub fn optional_length(field: &str, ms: i64) -> Result<Option<Millis>, Invalid> {
    match u64::try_from(ms) {
        Ok(0) => Ok(None),
        Ok(ms) => Ok(Some(Millis(ms))),
        Err(_) => Err(Invalid::new(field, "must not be negative")),
    }
}

/// All of it but the hash.
pub fn api_token_to_wire(token: &ApiToken) -> v1::ApiToken {
    let ms = |at: Option<Time>| at.map_or(0, |at| at.0);
    v1::ApiToken {
        id: token.id.to_string(),
        name: token.name.clone(),
        role: role_to_wire(token.role).into(),
        created_at_ms: token.created_at.0,
        expires_at_ms: ms(token.expires_at),
        revoked_at_ms: ms(token.revoked_at),
    }
}

pub fn audit_to_wire(entry: &AuditEntry) -> v1::AuditEntry {
    v1::AuditEntry {
        at_ms: entry.at.0,
        actor: entry.actor.clone(),
        peer: entry.peer.clone(),
        action: entry.action.clone(),
        subject: entry.subject.clone(),
        outcome: entry.outcome.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_come_back() {
        for role in Role::ALL {
            assert_eq!(role_from_wire(role_to_wire(role).into()), Ok(role));
        }
        assert!(role_from_wire(0).is_err() && role_from_wire(99).is_err());
    }
}
