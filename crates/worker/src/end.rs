//! How a job says in JSON that it wants to end otherwise than by success, and what it wants enqueued with its end.

use crate::executor::wall;
use hodei_api::json;
use hodei_core::{
    state::{Failure, FailureKind, Outcome},
    time::Millis,
};
use prost::Message;
use serde::Deserialize;
use serde_json::Value;

/// The jobs that one job may want enqueued.
const MAX_CHILDREN: usize = 10_000;
/// What they may take together.
pub(crate) const CHILDREN_BYTES: usize = 16 << 20;

/// An end that is not a success.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// Run me again after this time.
    Snooze(Millis),
    /// Run me again when somebody resumes me.
    Block(String),
    /// Do not run me again.
    Fail(String),
}

impl End {
    pub(crate) fn outcome(self) -> Outcome {
        match self {
            End::Snooze(delay) => Outcome::Snoozed { delay },
            End::Block(reason) => Outcome::Blocked { reason },
            End::Fail(message) => Outcome::Failed(fatal(message)),
        }
    }
}

/// A failure that no retry helps.
pub(crate) fn fatal(message: impl Into<String>) -> Failure {
    Failure { fatal: true, ..Failure::new(FailureKind::Error, message) }
}

/// One of `{"snooze": "30s"}`, `{"block": "why"}` and `{"fail": "why"}`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    snooze: Option<Value>,
    block: Option<String>,
    fail: Option<String>,
}

/// Reads the object in which a job says how it ends.
pub(crate) fn read(text: &[u8]) -> Result<End, String> {
    let mut from = serde_json::Deserializer::from_slice(text);
    let written: Written = json::read(&mut from).map_err(|bad| bad.to_string())?;
    one_of(written.snooze, written.block, written.fail)?
        .ok_or_else(|| "it says nothing; write one of snooze, block and fail".to_owned())
}

/// What was asked for, if anything was.
pub(crate) fn one_of(
    snooze: Option<Value>,
    block: Option<String>,
    fail: Option<String>,
) -> Result<Option<End>, String> {
    match (snooze, block, fail) {
        (None, None, None) => Ok(None),
        (Some(delay), None, None) => length(&delay).map(|delay| Some(End::Snooze(delay))),
        (None, Some(reason), None) => Ok(Some(End::Block(reason))),
        (None, None, Some(message)) => Ok(Some(End::Fail(message))),
        _ => Err("a job ends in one way: give one of snooze, block and fail".to_owned()),
    }
}

/// Words such as "30s", or a number of seconds.
fn length(value: &Value) -> Result<Millis, String> {
    let problem = || format!("snooze: {value} is not a length; write it like \"30s\", or as a number of seconds");
    let seconds = |seconds: f64| Some(Millis((seconds * 1000.0).round() as u64)).filter(|_| seconds >= 0.0);
    let words = |text: &str| {
        let length = humantime::parse_duration(text).ok()?;
        Some(Millis(u64::try_from(length.as_millis()).unwrap_or(u64::MAX)))
    };
    match value {
        Value::String(text) => words(text),
        other => other.as_f64().and_then(seconds),
    }
    .ok_or_else(problem)
}

/// A child as it goes to the server.
pub(crate) fn child(job: Value) -> Result<Vec<u8>, String> {
    json::job_from_value(job, wall()).map(|spec| spec.encode_to_vec()).map_err(|bad| bad.to_string())
}

/// All children of a job, each with its place where it is wrong.
pub(crate) fn children(jobs: impl IntoIterator<Item = Result<Value, String>>) -> Result<Vec<Vec<u8>>, String> {
    let read = |(i, job): (usize, Result<Value, String>)| {
        job.and_then(child).map_err(|problem| format!("children[{i}]: {problem}"))
    };
    let children = jobs.into_iter().enumerate().map(read).collect::<Result<Vec<_>, _>>()?;
    check_children(&children)?;
    Ok(children)
}

pub(crate) fn check_children(children: &[Vec<u8>]) -> Result<(), String> {
    if children.len() > MAX_CHILDREN {
        return Err(format!("children: there are {}; at most {MAX_CHILDREN} are allowed", children.len()));
    }
    let bytes: usize = children.iter().map(Vec::len).sum();
    if bytes > CHILDREN_BYTES {
        return Err(format!("children: they take {bytes} bytes; at most {CHILDREN_BYTES} are allowed"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_read() {
        assert_eq!(read(br#"{"snooze": "1m 30s"}"#), Ok(End::Snooze(Millis(90_000))));
        assert_eq!(read(br#"{"snooze": 0.5}"#), Ok(End::Snooze(Millis(500))));
        assert_eq!(read(br#"{"block": "a signature"}"#), Ok(End::Block("a signature".into())));
        assert_eq!(read(br#"{"fail": "gone"}"#), Ok(End::Fail("gone".into())));
        for (bad, part) in [
            (r#"{"snooze": "soon"}"#, "snooze"),
            (r#"{"snooze": -1}"#, "snooze"),
            (r#"{"snose": "1s"}"#, "snose"),
            (r#"{"snooze": 1, "block": "x"}"#, "one of"),
            ("{}", "nothing"),
            ("snooze", "expected"),
        ] {
            let problem = read(bad.as_bytes()).expect_err(bad);
            assert!(problem.contains(part), "{bad}: {problem}");
        }
    }

    #[test]
    fn a_child_that_is_wrong_is_named() {
        let good = serde_json::json!({ "task": { "type": "a" } });
        let problem = children([Ok(good), Ok(serde_json::json!({ "nmae": 1 }))]).expect_err("must be refused");
        assert!(problem.starts_with("children[1]: nmae: "), "{problem}");
    }
}
