//! What many jobs share: flags beside a file, the `defaults` of a graph, the folder where the command runs.

use hodei_api::v1::{self, work::Kind};
use std::collections::BTreeMap;

/// Completes a job with what is said for all of them. What it says itself holds, and what does not suit its work is left
/// out: a task has no folder and no standard input.
pub fn complete(job: &mut v1::JobSpec, defaults: &v1::JobSpec) {
    or(&mut job.work, &defaults.work);
    if !matches!(&job.work, Some(v1::Work { kind: Some(Kind::Task(_)) })) {
        or(&mut job.working_directory, &defaults.working_directory);
        or(&mut job.stdin, &defaults.stdin);
    }
    or(&mut job.name, &defaults.name);
    or(&mut job.queue, &defaults.queue);
    or(&mut job.priority, &defaults.priority);
    or(&mut job.run_at_ms, &defaults.run_at_ms);
    or(&mut job.description, &defaults.description);
    or(&mut job.data, &defaults.data);
    or(&mut job.tags, &defaults.tags);
    or(&mut job.depends_on, &defaults.depends_on);
    or(&mut job.on_dependency_failure, &defaults.on_dependency_failure);
    or(&mut job.concurrency, &defaults.concurrency);
    or(&mut job.webhook, &defaults.webhook);
    join(&mut job.environment, &defaults.environment);
    join(&mut job.secrets, &defaults.secrets);
    both(&mut job.requirements, defaults.requirements.as_ref(), |own, defaults| requirements(own, defaults));
    both(&mut job.retry, defaults.retry.as_ref(), retry);
    both(&mut job.timeouts, defaults.timeouts.as_ref(), timeouts);
}

fn requirements(own: &mut v1::Requirements, defaults: &v1::Requirements) {
    if own.zone.is_empty() {
        own.zone.clone_from(&defaults.zone);
        own.zone_required = defaults.zone_required;
    }
    or(&mut own.cpu_millis, &defaults.cpu_millis);
    or(&mut own.memory_bytes, &defaults.memory_bytes);
    or(&mut own.disk_bytes, &defaults.disk_bytes);
    or(&mut own.gpus, &defaults.gpus);
    or(&mut own.isolation, &defaults.isolation);
    or(&mut own.capabilities, &defaults.capabilities);
    or(&mut own.image, &defaults.image);
    or(&mut own.selector, &defaults.selector);
    or(&mut own.tolerations, &defaults.tolerations);
    or(&mut own.provider, &defaults.provider);
}

fn retry(own: &mut v1::RetryPolicy, defaults: &v1::RetryPolicy) {
    or(&mut own.max_attempts, &defaults.max_attempts);
    or(&mut own.delay_ms, &defaults.delay_ms);
    or(&mut own.max_delay_ms, &defaults.max_delay_ms);
    or(&mut own.backoff, &defaults.backoff);
    or(&mut own.jitter_percent, &defaults.jitter_percent);
    or(&mut own.fatal_exit_codes, &defaults.fatal_exit_codes);
    or(&mut own.fatal_kinds, &defaults.fatal_kinds);
}

fn timeouts(own: &mut v1::Timeouts, defaults: &v1::Timeouts) {
    or(&mut own.queue_ms, &defaults.queue_ms);
    or(&mut own.run_ms, &defaults.run_ms);
    or(&mut own.kill_grace_ms, &defaults.kill_grace_ms);
    or(&mut own.heartbeat_ms, &defaults.heartbeat_ms);
}

fn or<T: Default + PartialEq + Clone>(own: &mut T, default: &T) {
    if *own == T::default() {
        own.clone_from(default);
    }
}

fn join(own: &mut BTreeMap<String, String>, defaults: &BTreeMap<String, String>) {
    for (name, value) in defaults {
        own.entry(name.clone()).or_insert_with(|| value.clone());
    }
}

fn both<T: Default>(own: &mut Option<T>, defaults: Option<&T>, complete: impl Fn(&mut T, &T)) {
    if let Some(defaults) = defaults {
        complete(own.get_or_insert_default(), defaults);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hodei_api::json::fields_from_value;
    use hodei_core::time::Time;
    use serde_json::json;

    fn fields(value: serde_json::Value) -> v1::JobSpec {
        fields_from_value(value, Time(0)).expect("fields")
    }

    #[test]
    fn what_a_job_says_holds_and_the_rest_is_shared() {
        let defaults = fields(json!({
            "queue": "etl", "priority": "high", "working_directory": "/srv", "environment": {"A": "1", "B": "1"},
            "retry": {"max_attempts": 5, "delay": "1s"}, "timeouts": {"run": "1m"},
            "requirements": {"gpus": 1, "zone": "north", "zone_required": true},
        }));
        let mut job = fields(json!({
            "shell": {"program": "x"}, "priority": "low", "environment": {"B": "2"}, "retry": {"delay_ms": 7},
            "requirements": {"zone": "south"},
        }));
        complete(&mut job, &defaults);
        let wanted = fields(json!({
            "shell": {"program": "x"}, "queue": "etl", "priority": "low", "working_directory": "/srv",
            "environment": {"A": "1", "B": "2"}, "retry": {"max_attempts": 5, "delay_ms": 7},
            "timeouts": {"run": "1m"}, "requirements": {"gpus": 1, "zone": "south"},
        }));
        assert_eq!(job, wanted);
    }

    #[test]
    fn what_does_not_suit_a_task_is_left_out() {
        let defaults = fields(json!({"shell": {"program": "x"}, "working_directory": "/srv", "stdin": "in"}));
        let mut task = fields(json!({"task": {"type": "t"}}));
        complete(&mut task, &defaults);
        assert_eq!(task, fields(json!({"task": {"type": "t"}})));
        let mut shell = v1::JobSpec::default();
        complete(&mut shell, &defaults);
        assert_eq!(shell, defaults);
    }
}
