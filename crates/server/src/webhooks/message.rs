//! What is told.

use hodei_core::{dead_letter::DeadLetter, job::Job, state::StateKind, time::Time, webhook::Delivery};
use serde_json::{Value, json};

/// A result that is larger is left out: whoever wants it can ask for it.
const MOST_RESULT: usize = 64 << 10;

/// Such as "job.succeeded".
fn event(state: StateKind) -> String {
    format!("job.{}", state.name())
}

/// The body of a message. The job may have gone on since, or may not be kept any more: what is told is how it ended then.
pub fn body(delivery: &Delivery, job: Option<&Job>, result: Option<&[u8]>) -> Vec<u8> {
    let at = time(delivery.created_at);
    let mut data = json!({ "job": delivery.job.to_string(), "state": delivery.event.name(), "finished_at": at });
    if let Some(job) = job {
        data["name"] = json!(job.name);
        data["queue"] = json!(job.queue);
        data["task_type"] = json!(job.task_type);
        data["attempt"] = json!(job.attempt);
        data["created_at"] = time(job.created_at);
        data["error"] = error(job);
        let extra = job.extra.as_deref();
        data["tags"] = json!(extra.map(|extra| &*extra.tags).unwrap_or_default());
        data["parent"] = json!(extra.and_then(|extra| extra.parent).map(|id| id.to_string()));
        data["schedule"] = json!(extra.and_then(|extra| extra.schedule).map(|id| id.to_string()));
        data["tick"] = extra.and_then(|extra| extra.tick).map_or(Value::Null, time);
        data["cancel_reason"] = json!(job.state.cancel().map(|cancel| &cancel.reason));
    }
    let result = result.filter(|result| delivery.event == StateKind::Succeeded && result.len() <= MOST_RESULT);
    data["result"] = result.and_then(|result| serde_json::from_slice(result).ok()).unwrap_or_default();
    json!({ "type": event(delivery.event), "timestamp": at, "data": data }).to_string().into_bytes()
}

fn error(job: &Job) -> Value {
    let letter = DeadLetter::of(job);
    letter.map_or(Value::Null, |letter| json!({ "kind": letter.kind.name(), "message": letter.error }))
}

fn time(at: Time) -> Value {
    jiff::Timestamp::from_millisecond(at.0).map_or(Value::Null, |at| json!(at.to_string()))
}
