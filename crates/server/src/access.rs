//! Who may do what: API tokens, what each call needs, and what is done about those who guess.
//!
//! A door that is on a network asks for a token ([`Access::admit`]); the socket in the data folder and the pipe inside the
//! process do not, because whoever can open those owns the data anyway ([`Access::admit_owner`]). Either way a request carries
//! a [`Visit`] in its extensions, and an [`Actor`] unless it is a worker's, which proves its session itself.
//!
//! The door for HTTP is [`http_layer`]; a new route needs one row in `actions::ROUTES`, and its handler takes the caller with
//! [`crate::calls::Calls::by`] from the request's extensions. A route without a row is refused.

mod actions;
mod failures;
mod http;
mod lines;
mod refusals;
mod tokens;

pub use actions::{Action, Needs, of_method};
pub use http::layer as http_layer;
pub use lines::answered;
pub use tokens::Tokens;

use crate::clock;
use failures::Failures;
use hodei_core::{
    access::{ApiToken, AuditEntry, Role},
    id::WorkerId,
    time::{Millis, Now},
};
use refusals::Refusals;
use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};
use thiserror::Error;

/// The name of whoever came through the socket of the data folder.
pub const OWNER: &str = "socket";
/// The name of whoever did not prove to be anybody.
pub const ANONYMOUS: &str = "anonymous";

/// What the server knows of credentials.
#[derive(Debug)]
pub struct Access {
    pub tokens: Tokens,
    pub refusals: Refusals,
    failures: Failures,
}

/// Where a request came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Peer {
    Local,
    Ip(IpAddr),
}

impl From<SocketAddr> for Peer {
    fn from(address: SocketAddr) -> Self {
        Peer::Ip(address.ip().to_canonical())
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Peer::Local => f.write_str("local"),
            Peer::Ip(ip) => ip.fmt(f),
        }
    }
}

/// Whoever is at the other end of a connection over a network.
#[derive(Clone, Copy, Debug)]
pub struct Caller {
    pub peer: Peer,
    /// It has a certificate from an authority that the server was told of.
    pub certified: bool,
}

/// One request: where it came from, and what it wants done.
#[derive(Clone, Copy, Debug)]
pub struct Visit {
    pub peer: Peer,
    pub action: &'static str,
}

/// Whoever sent a request.
#[derive(Clone, Debug)]
pub struct Actor {
    pub name: Arc<str>,
    pub visit: Visit,
}

impl Actor {
    fn owner(action: &'static str) -> Self {
        Self { name: OWNER.into(), visit: Visit { peer: Peer::Local, action } }
    }

    pub fn worker(worker: WorkerId, visit: Visit) -> Self {
        Self { name: format!("worker {worker}").into(), visit }
    }

    /// What the audit log says of the request, but for its outcome.
    pub fn line(&self, subject: impl fmt::Display) -> AuditEntry {
        line(&self.name, self.visit, subject.to_string(), String::new())
    }
}

fn line(actor: &str, visit: Visit, subject: String, outcome: String) -> AuditEntry {
    AuditEntry {
        at: clock::now().wall,
        actor: actor.to_owned(),
        peer: visit.peer.to_string(),
        action: visit.action.to_owned(),
        subject,
        outcome,
    }
}

/// Why a request is sent away at the door.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Denied {
    #[error(
        "this needs an API token: make one on the server's machine with 'hodei token create api', and send it as 'authorization: Bearer <token>' (HODEI_API_TOKEN for the command line)"
    )]
    Missing,
    #[error("the API token is not known here; make one on the server's machine with 'hodei token create api'")]
    Unknown,
    #[error("the API token '{0}' has expired; make a new one with 'hodei token create api'")]
    Expired(String),
    #[error("the API token '{0}' was revoked; make a new one with 'hodei token create api'")]
    Revoked(String),
    #[error("this needs the role {needed}, and the API token '{name}' has the role {has}", needed = needed.name(), has = has.name())]
    Role { needed: Role, has: Role, name: String },
    #[error("too many wrong credentials came from {peer}; try again in {} s", wait.0.div_ceil(1000))]
    TooMany { peer: Peer, wait: Millis },
    #[error("there is nothing of this name")]
    NoSuchAction,
    #[error(
        "this server takes workers over the network only with a certificate; start the worker with --tls-cert and --tls-key, from an authority in the server's tls_client_ca"
    )]
    NoCertificate,
}

impl Access {
    pub fn new(tokens: Vec<ApiToken>) -> Self {
        Self { tokens: Tokens::new(tokens), failures: Failures::default(), refusals: Refusals::default() }
    }

    /// Lets a request in that came over a network, or says why not.
    pub fn admit(&self, action: Action, peer: Peer, credential: Option<&str>) -> Result<Option<Actor>, Denied> {
        let visit = Visit { peer, action: action.name };
        let Needs::Role(needed) = action.needs else { return Ok(None) };
        let Some(credential) = credential else {
            // No guess, so it does not count as one.
            self.refusals.add(line(ANONYMOUS, visit, String::new(), "no token".into()));
            return Err(Denied::Missing);
        };
        // A right token always passes, however many wrong ones came from the same address: many share one, and to look a
        // token up costs no more than to refuse it.
        let token = match self.tokens.check(credential, clock::now().wall) {
            Ok(token) => token,
            Err(denied) => return Err(self.wrong_credential(visit, denied)),
        };
        if !token.role.may(needed) {
            let outcome = format!("needs the role {}", needed.name());
            self.refusals.add(line(&token.name, visit, String::new(), outcome));
            return Err(Denied::Role { needed, has: token.role, name: token.name.to_string() });
        }
        Ok(Some(Actor { name: Arc::clone(&token.name), visit }))
    }

    /// Lets what workers do come in over a network with a certificate alone; their own credentials come after.
    pub fn admit_certified(&self, action: Action, caller: Caller) -> Result<(), Denied> {
        if action.needs != Needs::Worker || caller.certified {
            return Ok(());
        }
        // No guess, as with no token.
        let visit = Visit { peer: caller.peer, action: action.name };
        self.refusals.add(line(ANONYMOUS, visit, String::new(), Denied::NoCertificate.brief().into()));
        Err(Denied::NoCertificate)
    }

    /// Lets the owner of the data folder in.
    pub fn admit_owner(&self, action: Action) -> Option<Actor> {
        matches!(action.needs, Needs::Role(_)).then(|| Actor::owner(action.name))
    }

    /// A credential was wrong: counts it against its sender, and returns what to answer.
    pub fn wrong_credential(&self, visit: Visit, denied: Denied) -> Denied {
        self.wrong(visit, denied.brief()).map_or(denied, |wait| Denied::TooMany { peer: visit.peer, wait })
    }

    /// Counts a wrong credential of any kind; if there were too many, how long to wait.
    pub fn wrong(&self, visit: Visit, why: &str) -> Option<Millis> {
        self.refusals.add(line(ANONYMOUS, visit, String::new(), why.to_owned()));
        let Peer::Ip(ip) = visit.peer else { return None };
        let Now { elapsed, .. } = clock::now();
        self.failures.count(ip, elapsed)
    }
}

impl Denied {
    /// What the audit log says.
    fn brief(&self) -> &'static str {
        match self {
            Denied::Missing => "no token",
            Denied::Unknown => "unknown token",
            Denied::Expired(_) => "expired token",
            Denied::Revoked(_) => "revoked token",
            Denied::Role { .. } => "role too low",
            Denied::TooMany { .. } => "too many wrong credentials",
            Denied::NoSuchAction => "no such action",
            Denied::NoCertificate => "no certificate",
        }
    }
}

/// The credential of an `authorization` header.
pub fn bearer(header: Option<&::http::HeaderValue>) -> Option<&str> {
    let (scheme, credential) = header?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then_some(credential.trim())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::secrets;
    use hodei_core::{id::TokenId, time::Time};

    const PEER: Peer = Peer::Ip(IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1)));
    const LOOK: Action = Action { name: "jobs.get", needs: Needs::Role(Role::Viewer) };
    const STEER: Action = Action { name: "queues.pause", needs: Needs::Role(Role::Operator) };

    fn token(secret: &str, role: Role) -> ApiToken {
        ApiToken {
            id: TokenId(uuid::Uuid::now_v7()),
            hash: secrets::hash(secret),
            name: "ada".into(),
            role,
            created_at: Time(0),
            expires_at: None,
            revoked_at: None,
        }
    }

    #[test]
    fn roles_hold() {
        for role in Role::ALL {
            let access = Access::new(vec![token("right", role)]);
            assert!(access.admit(LOOK, PEER, Some("right")).is_ok());
            assert_eq!(access.admit(STEER, PEER, Some("right")).is_ok(), role.may(Role::Operator), "{role:?}");
        }
    }

    #[test]
    fn guesses_are_limited_and_the_right_token_passes() {
        let access = Access::new(vec![token("right", Role::Viewer)]);
        let denied: Vec<Denied> = (0..50).filter_map(|_| access.admit(LOOK, PEER, Some("wrong")).err()).collect();
        assert_eq!(denied.first(), Some(&Denied::Unknown));
        assert!(matches!(denied.last(), Some(Denied::TooMany { .. })), "{denied:?}");
        assert!(access.admit(LOOK, PEER, Some("right")).is_ok(), "others share the address");
        assert_eq!(access.admit(LOOK, PEER, None).err(), Some(Denied::Missing), "no guess");
        let lines = access.refusals.take();
        assert_eq!(lines.len(), 1, "one line tells it all: {lines:?}");
        assert!(lines[0].outcome.contains("and 50 more"), "{lines:?}");
    }

    #[test]
    fn workers_show_a_certificate_and_others_need_none() {
        const REGISTER: Action = Action { name: "workers.register", needs: Needs::Worker };
        let access = Access::new(Vec::new());
        let caller = |certified| Caller { peer: PEER, certified };
        assert_eq!(access.admit_certified(REGISTER, caller(true)), Ok(()));
        assert_eq!(access.admit_certified(LOOK, caller(false)), Ok(()));
        assert!(access.refusals.take().is_empty());
        for _ in 0..50 {
            assert_eq!(access.admit_certified(REGISTER, caller(false)), Err(Denied::NoCertificate), "no guess");
        }
        let lines = access.refusals.take();
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert!(lines[0].action == "workers.register" && lines[0].outcome.contains("no certificate"), "{lines:?}");
    }

    #[test]
    fn credentials_are_read_as_people_send_them() {
        let read = |text: &'static str| {
            let header = ::http::HeaderValue::from_static(text);
            bearer(Some(&header)).map(str::to_owned)
        };
        assert_eq!(read("Bearer x").as_deref(), Some("x"));
        assert_eq!(read("bearer  x").as_deref(), Some("x"));
        assert_eq!(read("Basic x"), None);
        assert_eq!(bearer(None), None);
    }
}
