//! Jobs that failed for good, and which of them failed alike.

use crate::{
    id::JobId,
    job::{Fnv, Job},
    state::{Failure, FailureKind, State},
    time::Time,
};
use serde::{Deserialize, Serialize};

/// What the dead-letter queue keeps of a job besides the job itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeadLetter {
    pub job: JobId,
    pub queue: String,
    pub task_type: Option<String>,
    pub failed_at: Time,
    pub kind: FailureKind,
    pub error: String,
    pub fingerprint: Fingerprint,
}

/// Names a group of like errors, the same on every server and after every restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Fingerprint(pub i64);

impl DeadLetter {
    /// None unless the job has failed for good.
    pub fn of(job: &Job) -> Option<Self> {
        let failed_at = match job.state {
            State::Failed { at } | State::TimedOut { at } => at,
            _ => return None,
        };
        let never_ran = never_ran();
        let failure = job.last_failure().unwrap_or(&never_ran);
        Some(Self {
            job: job.id,
            queue: job.queue.to_string(),
            task_type: job.task_type.as_deref().map(str::to_owned),
            failed_at,
            kind: failure.kind,
            error: failure.message.clone(),
            fingerprint: Fingerprint::of(job.task_type.as_deref(), failure),
        })
    }
}

impl Fingerprint {
    /// Errors are alike when they are of one kind and task type and say the same, whatever numbers and quoted names are
    /// in it.
    pub fn of(task_type: Option<&str>, failure: &Failure) -> Self {
        let mut hash = Fnv::default();
        for part in [failure.kind.name(), task_type.unwrap_or_default()] {
            hash.write(part.as_bytes());
            hash.write(&[0]);
        }
        hash.write(shape(&failure.message).as_bytes());
        Self(hash.number())
    }

    /// Of a job that waited in the queue too long.
    pub fn never_ran(task_type: Option<&str>) -> Self {
        Self::of(task_type, &never_ran())
    }
}

fn never_ran() -> Failure {
    Failure::new(FailureKind::QueueTimeout, "waited in the queue longer than allowed")
}

/// The message without what differs from one case of an error to the next.
fn shape(message: &str) -> String {
    let mut shape = String::with_capacity(message.len());
    for word in message.split_whitespace() {
        let varies = word.chars().any(|c| c.is_ascii_digit()) || word.starts_with(['\'', '"', '/']);
        shape.push_str(if varies { "#" } else { word });
        shape.push(' ');
    }
    shape
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn like_errors_have_one_fingerprint() {
        let print = |message: &str| Fingerprint::of(Some("t"), &Failure::new(FailureKind::Error, message));
        assert_eq!(print("user 17 not found"), print("user 9 not found"));
        assert_eq!(print("cannot open '/a/b'"), print("cannot open '/c'"));
        assert_ne!(print("user 17 not found"), print("user 17 not allowed"));
        assert_ne!(print("x"), Fingerprint::of(None, &Failure::new(FailureKind::Error, "x")));
        assert_ne!(print("x"), Fingerprint::of(Some("t"), &Failure::new(FailureKind::Signal, "x")));
    }
}
