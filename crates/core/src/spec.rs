//! What a user asks for, and what makes such a request valid.

use crate::{
    id::JobId,
    requirements::Requirements,
    retry::RetryPolicy,
    schedule::KEY_PREFIX,
    state::FailureKind,
    time::{Millis, Time},
};
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
};
use thiserror::Error;

/// A job as its submitter wrote it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobSpec {
    pub name: String,
    pub queue: String,
    pub work: Work,
    pub priority: Priority,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub environment: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub secrets: BTreeMap<String, Secret>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub working_directory: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty", with = "crate::bytes")]
    pub stdin: Vec<u8>,
    #[serde(default, skip_serializing_if = "Requirements::is_empty")]
    pub requirements: Requirements,
    #[serde(default, skip_serializing_if = "is_default")]
    pub retry: RetryPolicy,
    #[serde(default, skip_serializing_if = "is_default")]
    pub timeouts: Timeouts,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_at: Option<Time>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// JSON that its handler may rewrite.
    #[serde(default, skip_serializing_if = "Vec::is_empty", with = "crate::bytes")]
    pub data: Vec<u8>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub depends_on: Vec<JobId>,
    #[serde(default, skip_serializing_if = "is_default")]
    pub on_dependency_failure: OnDependencyFailure,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<Concurrency>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub webhook: Option<Webhook>,
}

/// What becomes of a job when one that it depends on has failed for good or was cancelled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum OnDependencyFailure {
    #[default]
    Cancel,
    /// It waits on: the other may be replayed.
    Wait,
    /// It counts as done.
    Run,
}

/// At most `limit` jobs with this key are with workers at one time, whatever their queues.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Concurrency {
    pub key: Arc<str>,
    pub limit: u32,
}

/// Whom to tell when a job has ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Webhook {
    pub url: String,
    /// What deliveries are signed with, if not with the server's own.
    pub secret: Option<Secret>,
}

/// What a job runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Work {
    Shell {
        program: String,
        args: Vec<String>,
    },
    Script {
        interpreter: String,
        content: String,
    },
    /// Run by a handler that a worker declares for this type. The payload is JSON.
    Task {
        task_type: String,
        #[serde(with = "crate::bytes")]
        payload: Vec<u8>,
    },
}

/// A value that no listing, log or error may show.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Secret(pub String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(***)")
    }
}

/// Strict: nothing of a lower priority starts while something of a higher one that fits waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Priority {
    Critical,
    High,
    #[default]
    Normal,
    Low,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timeouts {
    /// From ready to start.
    pub queue: Option<Millis>,
    /// From start to end.
    pub run: Option<Millis>,
    /// From the polite signal to the one that cannot be ignored.
    pub kill_grace: Millis,
    /// From one sign of the job itself to the next.
    #[serde(default)]
    pub heartbeat: Option<Millis>,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self { queue: None, run: None, kill_grace: Millis::seconds(10), heartbeat: None }
    }
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl Priority {
    pub const ALL: [Priority; 4] = [Priority::Critical, Priority::High, Priority::Normal, Priority::Low];

    pub fn name(self) -> &'static str {
        match self {
            Priority::Critical => "critical",
            Priority::High => "high",
            Priority::Normal => "normal",
            Priority::Low => "low",
        }
    }

    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|priority| priority.name() == name)
    }
}

/// Bounds on what one job may carry.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Program, arguments, script, environment, secrets and standard input together.
    pub payload_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { payload_bytes: 1 << 20 }
    }
}

/// A field of a request that cannot be accepted, and what would be.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{field}: {problem}")]
pub struct Invalid {
    pub field: String,
    pub problem: String,
}

impl Invalid {
    pub fn new(field: impl Into<String>, problem: impl Into<String>) -> Self {
        Self { field: readable(field.into()), problem: readable(problem.into()) }
    }

    /// The same complaint, seen from one level further out.
    pub fn within(self, outer: &str) -> Self {
        Self { field: format!("{outer}.{}", self.field), ..self }
    }
}

/// Complaints quote what they complain about. They travel in headers, which have no room for a whole payload.
fn readable(mut text: String) -> String {
    const LONGEST: usize = 512;
    if text.len() > LONGEST {
        text.truncate(text.floor_char_boundary(LONGEST));
        text.push('…');
    }
    text
}

const NAME_BYTES: usize = 256;
const DESCRIPTION_BYTES: usize = 4096;
const MAX_TAGS: usize = 32;
/// They stay in memory for as long as their job is not finished.
const TAG_BYTES: usize = 64;
const MAX_DEPENDENCIES: usize = 10_000;
const URL_BYTES: usize = 2048;
/// Standard Webhooks has secrets of up to 64 bytes, in base64.
const HOOK_SECRET_BYTES: usize = 100;
const MAX_ATTEMPTS: u32 = 10_000;
/// A process has no more; the list stays in memory for as long as its job is not finished.
const MAX_FATAL_CODES: usize = 256;
const LONGEST: Millis = Millis::seconds(366 * 24 * 3600);
/// Shorter values would mask half of what a job prints.
const SECRET_BYTES: usize = 6;

impl JobSpec {
    /// A job with nothing special about it.
    pub fn new(name: impl Into<String>, work: Work) -> Self {
        Self {
            name: name.into(),
            queue: "default".to_owned(),
            work,
            priority: Priority::default(),
            environment: BTreeMap::new(),
            secrets: BTreeMap::new(),
            working_directory: None,
            stdin: Vec::new(),
            requirements: Requirements::default(),
            retry: RetryPolicy::default(),
            timeouts: Timeouts::default(),
            run_at: None,
            description: String::new(),
            data: Vec::new(),
            tags: Vec::new(),
            depends_on: Vec::new(),
            on_dependency_failure: OnDependencyFailure::default(),
            idempotency_key: None,
            concurrency: None,
            webhook: None,
        }
    }

    /// Whether the two need the same kind of place.
    pub(crate) fn is_of_class_of(&self, other: &Self) -> bool {
        self.queue == other.queue
            && self.work.task_type() == other.work.task_type()
            && self.requirements == other.requirements
            && self.concurrency == other.concurrency
    }

    pub fn validate(&self, limits: &Limits) -> Result<(), Invalid> {
        label("name", &self.name)?;
        label("queue", &self.queue)?;
        self.work.validate()?;
        self.only_for_processes()?;
        for name in self.environment.keys() {
            variable("environment", name)?;
        }
        for (name, value) in &self.environment {
            no_nul(&format!("environment.{name}"), value)?;
        }
        for (name, secret) in &self.secrets {
            variable("secrets", name)?;
            let field = format!("secrets.{name}");
            no_nul(&field, &secret.0)?;
            if secret.0.len() < SECRET_BYTES {
                return Err(Invalid::new(
                    field,
                    format!("a secret needs at least {SECRET_BYTES} bytes to be masked safely"),
                ));
            }
            if self.environment.contains_key(name) {
                return Err(Invalid::new(field, "is in the environment too; name it once"));
            }
        }
        if let Some(directory) = &self.working_directory
            && (!directory.starts_with('/') || directory.contains('\0'))
        {
            return Err(Invalid::new("working_directory", "must be an absolute path"));
        }
        self.retry.validate()?;
        self.timeouts.validate()?;
        self.validate_extras()?;
        let size = self.payload_bytes();
        if size > limits.payload_bytes {
            let problem = format!("is {size} bytes; at most {} are allowed for a job's payload", limits.payload_bytes);
            return Err(Invalid::new(self.largest_field(), problem));
        }
        Ok(())
    }

    fn validate_extras(&self) -> Result<(), Invalid> {
        if self.description.len() > DESCRIPTION_BYTES {
            return Err(Invalid::new("description", format!("must be at most {DESCRIPTION_BYTES} bytes")));
        }
        if self.tags.len() > MAX_TAGS {
            return Err(Invalid::new("tags", format!("there are {}; at most {MAX_TAGS} are allowed", self.tags.len())));
        }
        for (i, tag) in self.tags.iter().enumerate() {
            let field = format!("tags[{i}]");
            label(&field, tag)?;
            if tag.len() > TAG_BYTES {
                return Err(Invalid::new(field, format!("must be at most {TAG_BYTES} bytes long")));
            }
        }
        if self.depends_on.len() > MAX_DEPENDENCIES {
            let problem = format!("there are {}; at most {MAX_DEPENDENCIES} are allowed", self.depends_on.len());
            return Err(Invalid::new("depends_on", problem));
        }
        let mut seen = BTreeSet::new();
        if let Some(twice) = self.depends_on.iter().find(|id| !seen.insert(**id)) {
            return Err(Invalid::new("depends_on", format!("names {twice} twice")));
        }
        if let Some(key) = &self.idempotency_key {
            label("idempotency_key", key)?;
            if key.starts_with(KEY_PREFIX) {
                let problem = format!("keys that begin with {KEY_PREFIX} are those of schedules; choose another");
                return Err(Invalid::new("idempotency_key", problem));
            }
        }
        if let Some(Concurrency { key, limit }) = &self.concurrency {
            label("concurrency.key", key)?;
            if *limit == 0 {
                return Err(Invalid::new("concurrency.limit", "must be at least 1"));
            }
        }
        self.webhook.as_ref().map_or(Ok(()), Webhook::validate)
    }

    /// A task is not a process: what only a process can use would be ignored.
    fn only_for_processes(&self) -> Result<(), Invalid> {
        if self.work.task_type().is_none() {
            return Ok(());
        }
        let unused = [("stdin", !self.stdin.is_empty()), ("working_directory", self.working_directory.is_some())];
        match unused.into_iter().find(|(_, set)| *set) {
            Some((field, _)) => Err(Invalid::new(field, "is for shell and script work; a task has its payload")),
            None => Ok(()),
        }
    }

    /// What counts against [`Limits::payload_bytes`]. Arguments and variables count as they do for the system, with the
    /// signs that end them, so that no number of empty ones is free.
    pub fn payload_bytes(&self) -> usize {
        let directory = self.working_directory.as_ref().map_or(0, String::len);
        let links = self.depends_on.len() * size_of::<JobId>() + self.tags.iter().map(String::len).sum::<usize>();
        self.work.bytes() + self.stdin.len() + self.variables_bytes() + directory + self.data.len() + links
    }

    fn variables_bytes(&self) -> usize {
        let plain = self.environment.iter().map(|(name, value)| name.len() + value.len());
        let secret = self.secrets.iter().map(|(name, value)| name.len() + value.0.len());
        plain.chain(secret).map(|length| length + 2).sum()
    }

    fn largest_field(&self) -> &'static str {
        [
            ("work", self.work.bytes()),
            ("stdin", self.stdin.len()),
            ("environment", self.variables_bytes()),
            ("data", self.data.len()),
            ("working_directory", self.working_directory.as_ref().map_or(0, String::len)),
        ]
        .into_iter()
        .max_by_key(|(_, size)| *size)
        .map_or("work", |(field, _)| field)
    }
}

impl Webhook {
    /// Whether the address may be called is found out when it is.
    fn validate(&self) -> Result<(), Invalid> {
        let scheme = ["http://", "https://"].into_iter().find(|scheme| self.url.starts_with(scheme));
        let rest = scheme.map_or("", |scheme| &self.url[scheme.len()..]);
        let odd = |c: char| c.is_control() || c.is_whitespace();
        if rest.is_empty() || rest.starts_with('/') || self.url.contains(odd) || self.url.len() > URL_BYTES {
            return Err(Invalid::new("webhook.url", "must be an address such as https://example.com/hook"));
        }
        match &self.secret {
            Some(secret) if !secret.0.starts_with("whsec_") || secret.0.len() > HOOK_SECRET_BYTES => {
                Err(Invalid::new("webhook.secret", "must be whsec_ followed by the secret in base64"))
            }
            _ => Ok(()),
        }
    }
}

impl OnDependencyFailure {
    pub const ALL: [OnDependencyFailure; 3] =
        [OnDependencyFailure::Cancel, OnDependencyFailure::Wait, OnDependencyFailure::Run];

    pub fn name(self) -> &'static str {
        match self {
            OnDependencyFailure::Cancel => "cancel",
            OnDependencyFailure::Wait => "wait",
            OnDependencyFailure::Run => "run",
        }
    }

    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|policy| policy.name() == name)
    }
}

impl Work {
    fn validate(&self) -> Result<(), Invalid> {
        match self {
            Work::Shell { program, args } => {
                not_empty("work.shell.program", program)?;
                no_nul("work.shell.program", program)?;
                args.iter().enumerate().try_for_each(|(i, arg)| no_nul(&format!("work.shell.args[{i}]"), arg))
            }
            Work::Script { interpreter, content } => {
                not_empty("work.script.interpreter", interpreter)?;
                no_nul("work.script.interpreter", interpreter)?;
                not_empty("work.script.content", content)
            }
            Work::Task { task_type, .. } => check_task_type("work.task.type", task_type),
        }
    }

    /// The type of a task; none for what any worker that starts processes can run.
    pub fn task_type(&self) -> Option<&str> {
        match self {
            Work::Task { task_type, .. } => Some(task_type),
            Work::Shell { .. } | Work::Script { .. } => None,
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Work::Shell { program, args } => program.len() + args.iter().map(|arg| arg.len() + 1).sum::<usize>(),
            Work::Script { interpreter, content } => interpreter.len() + content.len(),
            Work::Task { task_type, payload } => task_type.len() + payload.len(),
        }
    }
}

impl RetryPolicy {
    fn validate(&self) -> Result<(), Invalid> {
        if self.max_attempts == 0 || self.max_attempts > MAX_ATTEMPTS {
            return Err(Invalid::new("retry.max_attempts", format!("must be between 1 and {MAX_ATTEMPTS}")));
        }
        not_too_long("retry.delay", self.delay)?;
        not_too_long("retry.max_delay", self.max_delay)?;
        let (codes, kinds) = (self.fatal_exit_codes.len(), self.fatal_kinds.len());
        if codes > MAX_FATAL_CODES {
            return Err(Invalid::new("retry.fatal_exit_codes", format!("must be at most {MAX_FATAL_CODES}")));
        }
        if kinds > FailureKind::ALL.len() {
            let problem = format!("there are {} kinds; name each once", FailureKind::ALL.len());
            return Err(Invalid::new("retry.fatal_kinds", problem));
        }
        if self.jitter_percent > 100 {
            return Err(Invalid::new("retry.jitter_percent", "must be between 0 and 100"));
        }
        Ok(())
    }
}

impl Timeouts {
    fn validate(&self) -> Result<(), Invalid> {
        for (field, value) in
            [("timeouts.queue", self.queue), ("timeouts.run", self.run), ("timeouts.heartbeat", self.heartbeat)]
        {
            if value == Some(Millis::ZERO) {
                return Err(Invalid::new(field, "must be longer than zero; leave it out for no limit"));
            }
            not_too_long(field, value.unwrap_or_default())?;
        }
        not_too_long("timeouts.kill_grace", self.kill_grace)
    }
}

fn not_too_long(field: &str, length: Millis) -> Result<(), Invalid> {
    if length > LONGEST {
        return Err(Invalid::new(field, "must be at most 366 days"));
    }
    Ok(())
}

fn not_empty(field: &str, text: &str) -> Result<(), Invalid> {
    if text.is_empty() {
        return Err(Invalid::new(field, "must not be empty"));
    }
    Ok(())
}

fn no_nul(field: &str, text: &str) -> Result<(), Invalid> {
    if text.contains('\0') {
        return Err(Invalid::new(field, "must not contain a NUL byte"));
    }
    Ok(())
}

/// Names that people type and read: one line, not empty, not endless.
pub fn label(field: &str, text: &str) -> Result<(), Invalid> {
    not_empty(field, text)?;
    if text.len() > NAME_BYTES {
        return Err(Invalid::new(field, format!("must be at most {NAME_BYTES} bytes long")));
    }
    if text.chars().any(char::is_control) {
        return Err(Invalid::new(field, "must not contain control characters"));
    }
    Ok(())
}

/// Types are declared by workers and asked for by jobs: one word, so that nobody writes one that looks like another.
pub fn check_task_type(field: &str, task_type: &str) -> Result<(), Invalid> {
    label(field, task_type)?;
    if task_type.chars().any(char::is_whitespace) {
        return Err(Invalid::new(field, "must not contain spaces; write it like email.send"));
    }
    Ok(())
}

/// The name of an environment variable that a job may set.
fn variable(map: &str, name: &str) -> Result<(), Invalid> {
    let field = format!("{map}.{name}");
    if name.is_empty() || name.contains(['=', '\0']) {
        return Err(Invalid::new(field, "a variable's name must not be empty or contain '=' or NUL"));
    }
    if name.starts_with("HODEI_") {
        return Err(Invalid::new(field, "names that begin with HODEI_ are set by the worker; choose another"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn echo() -> JobSpec {
        JobSpec::new("echo", Work::Shell { program: "echo".into(), args: vec!["hi".into()] })
    }

    fn task(task_type: &str) -> Work {
        Work::Task { task_type: task_type.into(), payload: b"{}".to_vec() }
    }

    fn rejected(change: impl FnOnce(&mut JobSpec)) -> String {
        let mut spec = echo();
        change(&mut spec);
        spec.validate(&Limits { payload_bytes: 1000 }).expect_err("must be refused").field
    }

    #[test]
    fn a_plain_job_is_valid() {
        echo().validate(&Limits::default()).expect("valid");
    }

    #[test]
    fn each_bad_field_is_named() {
        assert_eq!(rejected(|s| s.name.clear()), "name");
        assert_eq!(rejected(|s| s.name = "two\nlines".into()), "name");
        assert_eq!(rejected(|s| s.queue = "q".repeat(300)), "queue");
        assert_eq!(rejected(|s| s.work = Work::Shell { program: String::new(), args: vec![] }), "work.shell.program");
        assert_eq!(
            rejected(|s| s.work = Work::Shell { program: "a".into(), args: vec!["b".into(), "\0".into()] }),
            "work.shell.args[1]"
        );
        assert_eq!(
            rejected(|s| s.work = Work::Script { interpreter: "sh".into(), content: String::new() }),
            "work.script.content"
        );
        assert_eq!(rejected(|s| s.work = task("two words")), "work.task.type");
        assert_eq!(rejected(|s| (s.work, s.stdin) = (task("email.send"), vec![1])), "stdin");
        assert_eq!(rejected(|s| _ = s.environment.insert("A=B".into(), "x".into())), "environment.A=B");
        assert_eq!(
            rejected(|s| _ = s.environment.insert("HODEI_JOB_ID".into(), "x".into())),
            "environment.HODEI_JOB_ID"
        );
        assert_eq!(rejected(|s| _ = s.secrets.insert("S".into(), Secret("short".into()))), "secrets.S");
        assert_eq!(rejected(|s| s.working_directory = Some("relative".into())), "working_directory");
        assert_eq!(rejected(|s| s.retry.max_attempts = 0), "retry.max_attempts");
        assert_eq!(rejected(|s| s.retry.jitter_percent = 101), "retry.jitter_percent");
        assert_eq!(rejected(|s| s.timeouts.run = Some(Millis::ZERO)), "timeouts.run");
        assert_eq!(rejected(|s| s.timeouts.kill_grace = Millis(u64::MAX)), "timeouts.kill_grace");
        assert_eq!(rejected(|s| s.timeouts.heartbeat = Some(Millis::ZERO)), "timeouts.heartbeat");
        assert_eq!(rejected(|s| s.stdin = vec![0; 2000]), "stdin");
        assert_eq!(rejected(|s| s.data = vec![0; 2000]), "data");
        assert_eq!(rejected(|s| s.tags = vec!["a".into(), String::new()]), "tags[1]");
        assert_eq!(rejected(|s| s.depends_on = vec![JobId::NIL; 2]), "depends_on");
        assert_eq!(rejected(|s| s.idempotency_key = Some("\n".into())), "idempotency_key");
        assert_eq!(rejected(|s| s.idempotency_key = Some("schedule/1/2".into())), "idempotency_key");
        assert_eq!(rejected(|s| s.concurrency = Some(Concurrency { key: "k".into(), limit: 0 })), "concurrency.limit");
        let hook = |url: &str, secret: Option<&str>| {
            Some(Webhook { url: url.into(), secret: secret.map(|text| Secret(text.into())) })
        };
        for url in ["", "ftp://x/", "http://", "https:///path", "http://a b/"] {
            assert_eq!(rejected(|s| s.webhook = hook(url, None)), "webhook.url", "{url}");
        }
        assert_eq!(rejected(|s| s.webhook = hook("https://a/", Some("secret"))), "webhook.secret");
        assert_eq!(rejected(|s| s.retry.fatal_exit_codes = vec![1; 257]), "retry.fatal_exit_codes");
        assert_eq!(
            rejected(|s| s.retry.fatal_kinds = vec![FailureKind::Error; FailureKind::ALL.len() + 1]),
            "retry.fatal_kinds"
        );
        let args = vec![String::new(); 2000];
        assert_eq!(rejected(|s| s.work = Work::Shell { program: "a".into(), args }), "work");
        assert_eq!(rejected(|s| s.working_directory = Some("/".repeat(2000))), "working_directory");
    }

    #[test]
    fn a_complaint_is_short_however_long_its_cause() {
        let name = "ä".repeat(100_000);
        let field = rejected(|s| _ = s.environment.insert(format!("HODEI_{name}"), "x".into()));
        assert!(field.len() < 600 && field.ends_with('…'), "{} bytes", field.len());
    }

    #[test]
    fn a_secret_never_shows() {
        assert!(!format!("{:?}", Secret("hunter2hunter2".into())).contains("hunter2"));
    }
}
