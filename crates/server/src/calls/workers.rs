//! Workers: looking at them, letting them in, sending them home.

use super::{Calls, Problem, one_line};
use crate::{clock, secrets};
use hodei_core::{
    brain::{Input, WorkerView},
    id::WorkerId,
    spec::Invalid,
    time::{Millis, Time},
    token::WorkerToken,
    worker::Drain,
};
use uuid::Uuid;

const LONGEST_TTL: Millis = Millis::seconds(24 * 3600);

/// A token for one worker. It is kept only as a hash.
pub struct NewWorkerToken {
    pub token: String,
    pub worker: WorkerId,
    pub expires_at: Time,
}

impl Calls {
    pub async fn workers(&self) -> Result<Vec<WorkerView>, Problem> {
        Ok(self.engine.workers().await?)
    }

    pub async fn worker(&self, id: WorkerId) -> Result<WorkerView, Problem> {
        let found = self.workers().await?.into_iter().find(|view| view.record.id == id);
        found.ok_or_else(|| Problem::NotFound(format!("there is no worker {id}")))
    }

    /// What still runs after `within_ms` is given back; no limit when it is zero. A later order changes only what it names.
    pub async fn drain(&self, worker: WorkerId, reason: String, within_ms: i64) -> Result<(), Problem> {
        one_line("reason", &reason)?;
        let within = u64::try_from(within_ms).map_err(|_| Invalid::new("deadline_ms", "must not be negative"))?;
        let deadline = (within > 0).then(|| clock::now().wall + Millis(within));
        let because = if reason.is_empty() { String::new() } else { format!(" because: {reason}") };
        let by = deadline.map(|deadline| format!(" by {}", deadline.rfc3339())).unwrap_or_default();
        let subject = format!("{worker}{by}{because}");
        let order = Drain { reason, deadline };
        self.act(subject, 0, |caller| Input::Drain { caller, worker, order }).await?;
        Ok(())
    }

    /// Has the processes of a handler started anew.
    pub async fn restart_handler(&self, worker: WorkerId, handler: String) -> Result<(), Problem> {
        self.act(worker, 0, |caller| Input::RestartHandler { caller, worker, handler }).await?;
        Ok(())
    }

    /// For a new worker unless one is named, and for the default time when `ttl_ms` is zero.
    pub async fn create_worker_token(&self, worker: Option<WorkerId>, ttl_ms: i64) -> Result<NewWorkerToken, Problem> {
        let worker = worker.unwrap_or_else(|| WorkerId(Uuid::now_v7()));
        let ttl = self.token_ttl(ttl_ms)?;
        let token = secrets::new_token();
        let expires_at = clock::now().wall + ttl;
        let stored = WorkerToken { hash: secrets::hash(&token), worker, expires_at, used_by: None };
        self.act(worker, 0, |caller| Input::CreateToken { caller, token: stored }).await?;
        Ok(NewWorkerToken { token, worker, expires_at })
    }

    fn token_ttl(&self, ms: i64) -> Result<Millis, Invalid> {
        match u64::try_from(ms) {
            Ok(0) => Ok(self.engine.shared().options.token_ttl),
            Ok(ms) if Millis(ms) <= LONGEST_TTL => Ok(Millis(ms)),
            _ => Err(Invalid::new("ttl_ms", "must be between 1 ms and 24 hours; zero for the default")),
        }
    }
}
