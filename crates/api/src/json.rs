//! A job as people and programs write it in JSON or YAML: the fields of the wire by their names, work beside them, and
//! lengths of time as words (`"run": "5m"`) or as milliseconds (`"run_ms": 300000`).
//!
//! REST, files of jobs and the children of a handler all use this one form.

pub mod fleet;
mod requirements;

pub use requirements::{Capability, LabelExpression, Requirements, Taint, Toleration};

use crate::v1;
use hodei_core::{
    spec::{Invalid, OnDependencyFailure},
    time::Time,
};
use serde::{
    Deserialize, Deserializer, Serialize,
    de::{MapAccess, Visitor, value::MapAccessDeserializer},
};
use serde_json::Value;
use std::{collections::BTreeMap, fmt, marker::PhantomData};

/// What to run is one of `task`, `shell` and `script`; all else may be left out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = JobSpec))]
#[serde(default, deny_unknown_fields)]
pub struct Job {
    #[serde(skip_serializing_if = "String::is_empty")]
    #[cfg_attr(feature = "schema", schema(max_length = 256, pattern = "^[^\\x00-\\x1f\\x7f-\\x9f]*$"))]
    pub name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    #[cfg_attr(feature = "schema", schema(max_length = 4096))]
    pub description: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    #[cfg_attr(feature = "schema", schema(max_length = 256, pattern = "^[^\\x00-\\x1f\\x7f-\\x9f]*$"))]
    pub queue: String,
    #[serde(deserialize_with = "object", skip_serializing_if = "Option::is_none")]
    pub task: Option<Task>,
    #[serde(deserialize_with = "object", skip_serializing_if = "Option::is_none")]
    pub shell: Option<Shell>,
    #[serde(deserialize_with = "object", skip_serializing_if = "Option::is_none")]
    pub script: Option<Script>,
    /// critical, high, normal or low.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(pattern = "^(critical|high|normal|low)$"))]
    pub priority: Option<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[cfg_attr(feature = "schema", schema(example = json!({"LANG": "C"})))]
    pub environment: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub secrets: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    #[cfg_attr(feature = "schema", schema(pattern = "^(/[^\\x00]*)?$"))]
    pub working_directory: String,
    /// Text; what is not UTF-8 can be sent over gRPC alone.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub stdin: String,
    #[serde(deserialize_with = "object", skip_serializing_if = "Option::is_none")]
    pub requirements: Option<Requirements>,
    #[serde(deserialize_with = "object", skip_serializing_if = "Option::is_none")]
    pub retry: Option<Retry>,
    #[serde(deserialize_with = "object", skip_serializing_if = "Option::is_none")]
    pub timeouts: Option<Timeouts>,
    /// Not before so long from now.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(pattern = "^([0-9]+ *(ms|s|m|h|d) *)+$", example = "5m"))]
    pub delay: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(minimum = 0))]
    pub delay_ms: Option<i64>,
    /// Not before this moment: RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(format = DateTime))]
    pub run_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(minimum = 0))]
    pub run_at_ms: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<serde_json::Value>))]
    pub data: Option<Value>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schema(max_items = 32))]
    pub tags: Vec<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub local_name: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schema(max_items = 10000))]
    pub depends_on: Vec<String>,
    /// cancel, wait or run.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(pattern = "^(cancel|wait|run)$"))]
    pub on_dependency_failure: Option<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    #[cfg_attr(feature = "schema", schema(max_length = 256, pattern = "^[^\\x00-\\x1f\\x7f-\\x9f]*$"))]
    pub idempotency_key: String,
    #[serde(deserialize_with = "object", skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<Concurrency>,
    #[serde(deserialize_with = "object", skip_serializing_if = "Option::is_none")]
    pub webhook: Option<Webhook>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Task {
    #[serde(rename = "type")]
    #[cfg_attr(
        feature = "schema",
        schema(min_length = 1, max_length = 256, pattern = "^[^\\s\\x00-\\x1f\\x7f-\\x9f]+$", example = "email.send")
    )]
    pub task_type: String,
    #[serde(default, skip_serializing_if = "Value::is_null")]
    #[cfg_attr(feature = "schema", schema(value_type = serde_json::Value))]
    pub payload: Value,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Shell {
    #[cfg_attr(feature = "schema", schema(min_length = 1, pattern = "^[^\\x00]*$"))]
    pub program: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Script {
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub interpreter: String,
    #[cfg_attr(feature = "schema", schema(min_length = 1))]
    pub content: String,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Retry {
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(minimum = 1, maximum = 10000))]
    pub max_attempts: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(pattern = "^([0-9]+ *(ms|s|m|h|d) *)+$", example = "2s"))]
    pub delay: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(minimum = 0))]
    pub delay_ms: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(pattern = "^([0-9]+ *(ms|s|m|h|d) *)+$", example = "1h"))]
    pub max_delay: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(minimum = 0))]
    pub max_delay_ms: Option<i64>,
    /// fixed, exponential or quadratic.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(pattern = "^(fixed|exponential|quadratic)$"))]
    pub backoff: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(minimum = 0, maximum = 100))]
    pub jitter_percent: Option<i32>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schema(max_items = 256))]
    pub fatal_exit_codes: Vec<i32>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub fatal_kinds: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Timeouts {
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(pattern = "^([0-9]+ *(ms|s|m|h|d) *)+$", example = "30s"))]
    pub queue: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(minimum = 0))]
    pub queue_ms: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(pattern = "^([0-9]+ *(ms|s|m|h|d) *)+$", example = "30s"))]
    pub run: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(minimum = 0))]
    pub run_ms: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(pattern = "^([0-9]+ *(ms|s|m|h|d) *)+$", example = "30s"))]
    pub heartbeat: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(minimum = 0))]
    pub heartbeat_ms: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(pattern = "^([0-9]+ *(ms|s|m|h|d) *)+$", example = "30s"))]
    pub kill_grace: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(minimum = 0))]
    pub kill_grace_ms: Option<i64>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Concurrency {
    #[cfg_attr(feature = "schema", schema(min_length = 1, max_length = 256, pattern = "^[^\\x00-\\x1f\\x7f-\\x9f]*$"))]
    pub key: String,
    #[cfg_attr(feature = "schema", schema(minimum = 1))]
    pub limit: i32,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Webhook {
    #[cfg_attr(feature = "schema", schema(max_length = 2048, example = "https://example.com/hook"))]
    pub url: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[cfg_attr(feature = "schema", schema(pattern = "^(whsec_.*)?$"))]
    pub secret: String,
}

/// A job from the text of one JSON object. A delay counts from `now`.
pub fn job_from_slice(json: &[u8], now: Time) -> Result<v1::JobSpec, Invalid> {
    let mut text = serde_json::Deserializer::from_slice(json);
    let job = read::<Object<Job>, _>(&mut text)?.0;
    text.end().map_err(|error| Invalid::new("job", error.to_string()))?;
    job.into_wire(now)
}

/// The same from JSON that was parsed already.
pub fn job_from_value(json: Value, now: Time) -> Result<v1::JobSpec, Invalid> {
    read::<Object<Job>, _>(json)?.0.into_wire(now)
}

/// What several jobs share, or one of them says by itself: what to run may be left out.
pub fn fields_from_value(json: Value, now: Time) -> Result<v1::JobSpec, Invalid> {
    read::<Object<Job>, _>(json)?.0.into_fields(now)
}

/// Refuses a job that does not say what to run.
pub fn must_run_something(job: v1::JobSpec) -> Result<v1::JobSpec, Invalid> {
    match job.work {
        Some(_) => Ok(job),
        None => Err(Invalid::new("work", "say what to run: one of task, shell and script")),
    }
}

/// Reads anything that refuses unknown fields, so that whatever is wrong is told with the field that it is in.
pub fn read<'de, T, D>(from: D) -> Result<T, Invalid>
where
    T: Deserialize<'de>,
    D: Deserializer<'de>,
{
    serde_path_to_error::deserialize(from).map_err(|error| {
        let (path, problem) = (error.path().to_string(), error.inner().to_string());
        let path = if path == "." { String::new() } else { path };
        match unknown_field(&problem) {
            Some(name) => {
                // The path may or may not go on to the field itself.
                let parent = path.strip_suffix(name).map_or(path.as_str(), |parent| parent.trim_end_matches('.'));
                let field = if parent.is_empty() { name.to_owned() } else { format!("{parent}.{name}") };
                Invalid::new(field, format!("there is no such field ({problem})"))
            }
            None => Invalid::new(if path.is_empty() { "job" } else { &path }, problem),
        }
    })
}

/// Serde takes a list for a struct, by position, which nobody means to write.
pub struct Object<T>(pub T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_map(OnlyMaps(PhantomData)).map(Object)
    }
}

struct OnlyMaps<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for OnlyMaps<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map))
    }
}

fn object<'de, T: Deserialize<'de>, D: Deserializer<'de>>(from: D) -> Result<Option<T>, D::Error> {
    Ok(Option::<Object<T>>::deserialize(from)?.map(|object| object.0))
}

fn unknown_field(problem: &str) -> Option<&str> {
    problem.strip_prefix("unknown field `")?.split('`').next()
}

impl Job {
    /// As it goes over the wire. A delay counts from `now`.
    pub fn into_wire(self, now: Time) -> Result<v1::JobSpec, Invalid> {
        must_run_something(self.into_fields(now)?)
    }

    fn into_fields(self, now: Time) -> Result<v1::JobSpec, Invalid> {
        let run_at_ms = self.run_at(now)?;
        let kind = work(self.task, self.shell, self.script)?;
        Ok(v1::JobSpec {
            name: self.name,
            queue: self.queue,
            work: kind.map(|kind| v1::Work { kind: Some(kind) }),
            priority: self.priority.map_or(Ok(0), |name| priority(&name))?,
            environment: self.environment,
            secrets: self.secrets,
            working_directory: self.working_directory,
            stdin: self.stdin.into_bytes(),
            requirements: self.requirements.map(|it| Box::new(it.into_wire())),
            retry: self.retry.map(Retry::into_wire).transpose()?,
            timeouts: self.timeouts.map(Timeouts::into_wire).transpose()?,
            run_at_ms,
            description: self.description,
            data: self.data.map_or_else(Vec::new, |data| data.to_string().into_bytes()),
            tags: self.tags,
            local_name: self.local_name,
            depends_on: self.depends_on,
            on_dependency_failure: self.on_dependency_failure.map_or(Ok(0), |name| on_failure(&name))?,
            idempotency_key: self.idempotency_key,
            concurrency: self.concurrency.map(|wanted| v1::Concurrency { key: wanted.key, limit: wanted.limit }),
            webhook: self.webhook.map(|hook| v1::Webhook { url: hook.url, secret: hook.secret }),
        })
    }

    fn run_at(&self, now: Time) -> Result<i64, Invalid> {
        let delay = length("delay", self.delay.as_deref(), self.delay_ms)?;
        let at = self.run_at.as_deref().map(moment).transpose()?;
        match (delay, at, self.run_at_ms) {
            (None, None, None) => Ok(0),
            (Some(delay), None, None) if delay < 0 => Err(Invalid::new("delay_ms", "must not be negative")),
            (Some(delay), None, None) => Ok(if delay == 0 { 0 } else { now.0.saturating_add(delay) }),
            (None, Some(at), None) | (None, None, Some(at)) => Ok(at),
            _ => Err(Invalid::new("run_at", "give one of delay, delay_ms, run_at and run_at_ms")),
        }
    }

    /// What is shown of a job. Its secrets are as they came, so what is shown to people must come masked.
    pub fn from_wire(spec: v1::JobSpec) -> Self {
        let priority = v1::Priority::try_from(spec.priority).ok().and_then(priority_name);
        let policy = spec.on_dependency_failure();
        let mut job = Job {
            name: spec.name,
            description: spec.description,
            queue: spec.queue,
            priority: priority.map(str::to_owned),
            environment: spec.environment,
            secrets: spec.secrets,
            working_directory: spec.working_directory,
            stdin: String::from_utf8_lossy(&spec.stdin).into_owned(),
            requirements: spec.requirements.map(|it| Requirements::from_wire(*it)),
            retry: spec.retry.map(Retry::from_wire),
            timeouts: spec.timeouts.map(Timeouts::from_wire),
            run_at_ms: (spec.run_at_ms != 0).then_some(spec.run_at_ms),
            data: (!spec.data.is_empty()).then(|| shown(&spec.data)),
            tags: spec.tags,
            local_name: spec.local_name,
            depends_on: spec.depends_on,
            on_dependency_failure: on_failure_name(policy).map(str::to_owned),
            idempotency_key: spec.idempotency_key,
            concurrency: spec.concurrency.map(|wire| Concurrency { key: wire.key, limit: wire.limit }),
            webhook: spec.webhook.map(|hook| Webhook { url: hook.url, secret: hook.secret }),
            ..Job::default()
        };
        match spec.work.and_then(|work| work.kind) {
            Some(v1::work::Kind::Task(task)) => {
                let payload = if task.payload.is_empty() { Value::Null } else { shown(&task.payload) };
                job.task = Some(Task { task_type: task.r#type, payload });
            }
            Some(v1::work::Kind::Shell(shell)) => {
                job.shell = Some(Shell { program: shell.program, args: shell.args });
            }
            Some(v1::work::Kind::Script(script)) => {
                job.script = Some(Script { interpreter: script.interpreter, content: script.content });
            }
            None => {}
        }
        job
    }
}

/// JSON that was checked when it came in; if it should not be, it is shown as text.
fn shown(json: &[u8]) -> Value {
    serde_json::from_slice(json).unwrap_or_else(|_| Value::from(String::from_utf8_lossy(json)))
}

fn work(task: Option<Task>, shell: Option<Shell>, script: Option<Script>) -> Result<Option<v1::work::Kind>, Invalid> {
    use v1::work::Kind;
    match (task, shell, script) {
        (Some(Task { task_type, payload }), None, None) => {
            let payload = if payload.is_null() { Vec::new() } else { payload.to_string().into_bytes() };
            Ok(Some(Kind::Task(v1::TaskWork { r#type: task_type, payload })))
        }
        (None, Some(Shell { program, args }), None) => Ok(Some(Kind::Shell(v1::ShellWork { program, args }))),
        (None, None, Some(Script { interpreter, content })) => {
            Ok(Some(Kind::Script(v1::ScriptWork { interpreter, content })))
        }
        (None, None, None) => Ok(None),
        _ => Err(Invalid::new("work", "a job runs one thing: give one of task, shell and script")),
    }
}

/// A length in milliseconds, given as words or as a number.
pub fn length(field: &str, words: Option<&str>, ms: Option<i64>) -> Result<Option<i64>, Invalid> {
    match (words, ms) {
        (Some(_), Some(_)) => Err(Invalid::new(field, format!("give {field} or {field}_ms, not both"))),
        (Some(words), None) => {
            let problem = |error| format!("'{words}' is not a length ({error}); write it like 500ms, 10s or 5m");
            let length = humantime::parse_duration(words).map_err(|error| Invalid::new(field, problem(error)))?;
            Ok(Some(i64::try_from(length.as_millis()).unwrap_or(i64::MAX)))
        }
        (None, ms) => Ok(ms),
    }
}

fn moment(text: &str) -> Result<i64, Invalid> {
    let problem = |_| Invalid::new("run_at", format!("'{text}' is not a moment; write it like 2030-01-31T12:00:00Z"));
    Ok(text.parse::<jiff::Timestamp>().map_err(problem)?.as_millisecond())
}

const PRIORITIES: [v1::Priority; 4] =
    [v1::Priority::Critical, v1::Priority::High, v1::Priority::Normal, v1::Priority::Low];

fn priority_name(priority: v1::Priority) -> Option<&'static str> {
    match priority {
        v1::Priority::Critical => Some("critical"),
        v1::Priority::High => Some("high"),
        v1::Priority::Normal => Some("normal"),
        v1::Priority::Low => Some("low"),
        v1::Priority::Unspecified => None,
    }
}

fn priority(name: &str) -> Result<i32, Invalid> {
    let found = PRIORITIES.into_iter().find(|priority| priority_name(*priority) == Some(name));
    let problem = || format!("'{name}' is not a priority; use critical, high, normal or low");
    found.map(i32::from).ok_or_else(|| Invalid::new("priority", problem()))
}

fn on_failure_name(policy: v1::OnDependencyFailure) -> Option<&'static str> {
    match policy {
        v1::OnDependencyFailure::Cancel => Some(OnDependencyFailure::Cancel.name()),
        v1::OnDependencyFailure::Wait => Some(OnDependencyFailure::Wait.name()),
        v1::OnDependencyFailure::Run => Some(OnDependencyFailure::Run.name()),
        v1::OnDependencyFailure::Unspecified => None,
    }
}

fn on_failure(name: &str) -> Result<i32, Invalid> {
    let wire = match OnDependencyFailure::parse(name) {
        Some(OnDependencyFailure::Cancel) => v1::OnDependencyFailure::Cancel,
        Some(OnDependencyFailure::Wait) => v1::OnDependencyFailure::Wait,
        Some(OnDependencyFailure::Run) => v1::OnDependencyFailure::Run,
        None => {
            let problem = format!("'{name}' is not a policy; use cancel, wait or run");
            return Err(Invalid::new("on_dependency_failure", problem));
        }
    };
    Ok(wire.into())
}

const BACKOFFS: [(v1::Backoff, &str); 3] =
    [(v1::Backoff::Fixed, "fixed"), (v1::Backoff::Exponential, "exponential"), (v1::Backoff::Quadratic, "quadratic")];

fn backoff(name: &str) -> Result<i32, Invalid> {
    let found = BACKOFFS.into_iter().find(|(_, known)| *known == name);
    let problem = || format!("'{name}' is not a backoff; use fixed, exponential or quadratic");
    found.map(|(backoff, _)| backoff.into()).ok_or_else(|| Invalid::new("retry.backoff", problem()))
}

impl Retry {
    fn into_wire(self) -> Result<v1::RetryPolicy, Invalid> {
        Ok(v1::RetryPolicy {
            max_attempts: self.max_attempts,
            delay_ms: length("retry.delay", self.delay.as_deref(), self.delay_ms)?,
            max_delay_ms: length("retry.max_delay", self.max_delay.as_deref(), self.max_delay_ms)?,
            backoff: self.backoff.map_or(Ok(0), |name| backoff(&name))?,
            jitter_percent: self.jitter_percent,
            fatal_exit_codes: self.fatal_exit_codes,
            fatal_kinds: self.fatal_kinds,
        })
    }

    fn from_wire(wire: v1::RetryPolicy) -> Self {
        let backoff = BACKOFFS.into_iter().find(|(backoff, _)| *backoff == wire.backoff());
        Self {
            max_attempts: wire.max_attempts,
            delay_ms: wire.delay_ms,
            max_delay_ms: wire.max_delay_ms,
            backoff: backoff.map(|(_, name)| name.to_owned()),
            jitter_percent: wire.jitter_percent,
            fatal_exit_codes: wire.fatal_exit_codes,
            fatal_kinds: wire.fatal_kinds,
            ..Self::default()
        }
    }
}

impl Timeouts {
    fn into_wire(self) -> Result<v1::Timeouts, Invalid> {
        Ok(v1::Timeouts {
            queue_ms: length("timeouts.queue", self.queue.as_deref(), self.queue_ms)?,
            run_ms: length("timeouts.run", self.run.as_deref(), self.run_ms)?,
            heartbeat_ms: length("timeouts.heartbeat", self.heartbeat.as_deref(), self.heartbeat_ms)?,
            kill_grace_ms: length("timeouts.kill_grace", self.kill_grace.as_deref(), self.kill_grace_ms)?,
        })
    }

    fn from_wire(wire: v1::Timeouts) -> Self {
        Self {
            queue_ms: wire.queue_ms,
            run_ms: wire.run_ms,
            heartbeat_ms: wire.heartbeat_ms,
            kill_grace_ms: wire.kill_grace_ms,
            ..Self::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const NOW: Time = Time(1_000_000);

    fn refused(json: Value) -> (String, String) {
        let by_value = job_from_value(json.clone(), NOW).expect_err("must be refused");
        let by_text = job_from_slice(json.to_string().as_bytes(), NOW).expect_err("must be refused");
        assert_eq!(by_value.field, by_text.field, "{json}");
        (by_value.field, by_value.problem)
    }

    fn everything() -> Value {
        json!({
            "name": "resize", "description": "all of them", "queue": "images",
            "task": { "type": "image.resize", "payload": { "width": 100, "names": ["a", "b"] } },
            "priority": "high",
            "environment": { "A": "1" }, "secrets": { "KEY": "long enough" },
            "requirements": { "cpu_millis": 500, "memory_bytes": 1024 },
            "retry": {
                "max_attempts": 5, "delay_ms": 2000, "max_delay_ms": 60000, "backoff": "quadratic",
                "jitter_percent": 0, "fatal_exit_codes": [2], "fatal_kinds": ["not_found"]
            },
            "timeouts": { "queue_ms": 1, "run_ms": 2, "heartbeat_ms": 3, "kill_grace_ms": 4 },
            "run_at_ms": 1_900_000_000_000_i64,
            "data": { "step": 1 }, "tags": ["x", "y"], "local_name": "first",
            "depends_on": ["other"], "on_dependency_failure": "wait", "idempotency_key": "once",
            "concurrency": { "key": "disk", "limit": 2 },
            "webhook": { "url": "https://example.com/", "secret": "whsec_x" }
        })
    }

    #[test]
    fn all_fields_go_there_and_back() {
        let spec = job_from_value(everything(), NOW).expect("valid");
        let back = serde_json::to_value(Job::from_wire(spec.clone())).expect("JSON");
        assert_eq!(back, everything());
        assert_eq!(job_from_value(back, NOW).expect("valid"), spec);
        for work in [
            json!({ "shell": { "program": "ls", "args": ["-l"] }, "stdin": "in", "working_directory": "/tmp" }),
            json!({ "script": { "interpreter": "/bin/sh", "content": "true" } }),
            json!({ "task": { "type": "nothing" } }),
        ] {
            let spec = job_from_value(work.clone(), NOW).expect("valid");
            assert_eq!(serde_json::to_value(Job::from_wire(spec)).expect("JSON"), work);
        }
    }

    #[test]
    fn lengths_and_moments_may_be_words() {
        let spec = job_from_value(
            json!({
                "shell": { "program": "ls" }, "delay": "1m 30s", "retry": { "delay": "2s", "max_delay": "1h" },
                "timeouts": { "queue": "1s", "run": "2s", "heartbeat": "3s", "kill_grace": "4ms" }
            }),
            NOW,
        )
        .expect("valid");
        assert_eq!(spec.run_at_ms, NOW.0 + 90_000);
        let retry = spec.retry.expect("set");
        assert_eq!((retry.delay_ms, retry.max_delay_ms), (Some(2000), Some(3_600_000)));
        let timeouts = spec.timeouts.expect("set");
        assert_eq!((timeouts.queue_ms, timeouts.run_ms), (Some(1000), Some(2000)));
        assert_eq!((timeouts.heartbeat_ms, timeouts.kill_grace_ms), (Some(3000), Some(4)));
        let at = |text: &str| json!({ "shell": { "program": "ls" }, "run_at": text });
        let spec = job_from_value(at("1970-01-01T01:00:02+01:00"), NOW).expect("valid");
        assert_eq!(spec.run_at_ms, 2000);
        assert_eq!(refused(at("tomorrow")).0, "run_at");
    }

    #[test]
    fn what_is_wrong_is_named() {
        let with = |field: &str, value: Value| {
            let mut job = json!({ "shell": { "program": "ls" } });
            job[field] = value;
            refused(job).0
        };
        assert_eq!(with("nmae", json!("x")), "nmae");
        assert_eq!(with("retry", json!({ "delai": 1 })), "retry.delai");
        assert_eq!(with("retry", json!({ "delay": "soon" })), "retry.delay");
        assert_eq!(with("retry", json!({ "delay": "1s", "delay_ms": 1 })), "retry.delay");
        assert_eq!(with("retry", json!({ "max_attempts": "three" })), "retry.max_attempts");
        assert_eq!(with("retry", json!({ "backoff": "none" })), "retry.backoff");
        assert_eq!(with("timeouts", json!({ "run": 5 })), "timeouts.run");
        assert_eq!(with("priority", json!("urgent")), "priority");
        assert_eq!(with("on_dependency_failure", json!("explode")), "on_dependency_failure");
        assert_eq!(with("tags", json!(["a", 1])), "tags[1]");
        assert_eq!(with("environment", json!({ "A": 1 })), "environment.A");
        assert_eq!(with("concurrency", json!({ "key": "k" })), "concurrency");
        assert_eq!(with("shell", json!({ "program": "ls", "arg": [] })), "shell.arg");
        assert_eq!(with("delay", json!("forever")), "delay");
        assert_eq!(with("delay_ms", json!(-5)), "delay_ms");
        assert_eq!(with("task", json!({ "type": "t" })), "work");
        assert_eq!(refused(json!({})).0, "work");
        assert_eq!(refused(json!([])).0, "job");
        assert_eq!(refused(json!({ "task": ["email.send"] })).0, "task");
        let both = json!({ "shell": { "program": "ls" }, "delay": "1s", "run_at_ms": 5 });
        assert_eq!(refused(both).0, "run_at");
        let (_, problem) = refused(json!({ "nmae": 1 }));
        assert!(problem.starts_with("there is no such field") && problem.contains("`name`"), "{problem}");
        assert!(job_from_slice(b"{\"name\": ", NOW).expect_err("cut").problem.contains("EOF"));
        assert_eq!(job_from_slice(b"{\"task\": {\"type\": \"t\"}} x", NOW).expect_err("more").field, "job");
    }
}
