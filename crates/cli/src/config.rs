//! The configuration: the embedded defaults, with a file of the user's on top.

use crate::values::{self, Cores};
use anyhow::{Context, Result, bail};
use hodei_core::{
    requirements::{Capability, Isolation, Taint},
    spec::Secret,
    time::Millis,
    worker::Sla,
};
use serde::Deserialize;
use std::{
    collections::BTreeMap,
    env, fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
};
use toml::{Table, Value};

/// Printed by `hodei config`, and where every default comes from.
pub const DEFAULTS: &str = include_str!("default-config.toml");

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    pub data: String,
    pub connect: String,
    pub handler: Vec<Handler>,
    pub server: Server,
    pub webhooks: Webhooks,
    pub worker: Worker,
    pub background: Background,
    pub fleet: Fleet,
    /// Put at the start of the server, if they are not there or are other.
    pub provider: Vec<hodei_api::json::fleet::Provider>,
    pub template: Vec<hodei_api::json::fleet::Template>,
}

/// What runs tasks of one type, or of all types that a pattern fits.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Handler {
    #[serde(rename = "type")]
    pub task_type: String,
    pub command: Option<Words>,
    pub subprocess: Option<Words>,
    pub http: Option<String>,
    pub directory: Option<PathBuf>,
    pub environment: Option<BTreeMap<String, String>>,
    pub sla: Option<Sla>,
    pub processes: Option<u32>,
    pub warm: Option<u32>,
    #[serde(default, deserialize_with = "values::given_length_field")]
    pub idle: Option<Millis>,
    pub concurrency: Option<u32>,
    #[serde(default, deserialize_with = "values::given_length_field")]
    pub timeout: Option<Millis>,
    pub retries: Option<u32>,
    pub authorization: Option<String>,
    pub headers: Option<BTreeMap<String, String>>,
}

/// A program: a line for the shell, or the program and its arguments.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum Words {
    Line(String),
    Args(Vec<String>),
}

/// The one thing that a handler is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Machinery<'h> {
    Command(&'h Words),
    Subprocess(&'h Words),
    Http(&'h str),
}

impl Handler {
    /// `TYPE=COMMAND`, `TYPE=subprocess:COMMAND`, `TYPE=subprocess/SLA:COMMAND` or `TYPE=http://…`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let usage = "write TYPE=COMMAND, TYPE=subprocess:COMMAND or TYPE=http://ADDRESS";
        let (task_type, what) = text.split_once('=').ok_or(usage)?;
        if task_type.is_empty() || what.trim().is_empty() {
            return Err(usage.to_owned());
        }
        let handler = Self { task_type: task_type.to_owned(), ..Self::default() };
        let line = |line: &str| Some(Words::Line(line.trim().to_owned()));
        let with_sla = what.strip_prefix("subprocess/").and_then(|rest| rest.split_once(':'));
        if let Some((sla, program)) = with_sla {
            let sla = Some(Sla::parse(sla).map_err(|unknown| unknown.to_string())?);
            return Ok(Self { subprocess: line(program), sla, ..handler });
        }
        Ok(match what.strip_prefix("subprocess:") {
            Some(program) => Self { subprocess: line(program), ..handler },
            None if what.starts_with("http://") || what.starts_with("https://") => {
                Self { http: Some(what.to_owned()), ..handler }
            }
            None => Self { command: line(what), ..handler },
        })
    }

    /// What it is. A setting that means nothing for it is a mistake.
    pub fn machinery(&self) -> Result<Machinery<'_>> {
        let name = &self.task_type;
        let kind = match (&self.command, &self.subprocess, &self.http) {
            (Some(words), None, None) => Machinery::Command(words),
            (None, Some(words), None) => Machinery::Subprocess(words),
            (None, None, Some(url)) => Machinery::Http(url),
            _ => bail!("handler {name}: give one of command, subprocess and http"),
        };
        let (for_processes, for_subprocess, for_http) = match kind {
            Machinery::Command(_) => (true, false, false),
            Machinery::Subprocess(_) => (true, true, false),
            Machinery::Http(_) => (false, false, true),
        };
        let settings = [
            ("directory", self.directory.is_some(), for_processes),
            ("environment", self.environment.is_some(), for_processes),
            ("sla", self.sla.is_some(), for_subprocess),
            ("processes", self.processes.is_some(), for_subprocess),
            ("warm", self.warm.is_some(), for_subprocess),
            ("idle", self.idle.is_some(), for_subprocess),
            ("concurrency", self.concurrency.is_some(), for_subprocess),
            ("timeout", self.timeout.is_some(), for_http),
            ("retries", self.retries.is_some(), for_http),
            ("authorization", self.authorization.is_some(), for_http),
            ("headers", self.headers.is_some(), for_http),
        ];
        match settings.into_iter().find(|(_, given, fits)| *given && !*fits) {
            Some((setting, ..)) => bail!("handler {name}: '{setting}' means nothing for it"),
            None => Ok(kind),
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Server {
    pub database_url: String,
    pub grpc: SocketAddr,
    pub http: SocketAddr,
    pub tls_cert: String,
    pub tls_key: String,
    pub tls_self_signed: bool,
    pub tls_names: Vec<String>,
    pub tls_client_ca: String,
    pub insecure: bool,
    #[serde(deserialize_with = "values::length_field")]
    pub lease: Millis,
    #[serde(deserialize_with = "values::length_field")]
    pub lease_grace: Millis,
    #[serde(deserialize_with = "values::length_field")]
    pub parked_lease: Millis,
    #[serde(deserialize_with = "values::length_field")]
    pub token_ttl: Millis,
    #[serde(deserialize_with = "values::size_field")]
    pub max_payload: u64,
    pub window: usize,
    #[serde(deserialize_with = "values::optional_length_field")]
    pub retention: Option<Millis>,
    #[serde(deserialize_with = "values::length_field")]
    pub events_kept: Millis,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Webhooks {
    pub secret: Secret,
    #[serde(deserialize_with = "values::lengths_field")]
    pub retry: Vec<Millis>,
    #[serde(deserialize_with = "values::length_field")]
    pub timeout: Millis,
    pub allow: Vec<String>,
    pub allow_private: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Worker {
    pub name: String,
    pub slots: u32,
    #[serde(deserialize_with = "values::optional_cores_field")]
    pub cpu: Option<Cores>,
    #[serde(deserialize_with = "values::optional_size_field")]
    pub memory: Option<u64>,
    #[serde(deserialize_with = "values::optional_size_field")]
    pub disk: Option<u64>,
    pub gpus: u32,
    #[serde(deserialize_with = "values::labels_field")]
    pub labels: Vec<(Arc<str>, Arc<str>)>,
    #[serde(deserialize_with = "values::taints_field")]
    pub taints: Vec<Taint>,
    #[serde(deserialize_with = "values::capabilities_field")]
    pub capabilities: Vec<Capability>,
    pub zone: String,
    #[serde(deserialize_with = "values::isolation_field")]
    pub isolation: Isolation,
    pub image: String,
    pub pids_limit: u32,
    #[serde(deserialize_with = "values::size_field")]
    pub spool: u64,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fleet {
    #[serde(deserialize_with = "values::length_field")]
    pub registration_timeout: Millis,
    pub advertise: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Background {
    #[serde(deserialize_with = "values::length_field")]
    pub idle_exit: Millis,
}

impl Config {
    /// The defaults, overlaid with the file at `path`, or with the user's own if there is one.
    pub fn load(path: Option<&Path>) -> Result<Self> {
        let given = match path {
            Some(path) => Some(path.to_owned()),
            None => user_file().filter(|path| path.exists()),
        };
        let Some(path) = given else { return Self::from_text("") };
        let at = || format!("cannot use the configuration {}", path.display());
        Self::from_text(&fs::read_to_string(&path).with_context(at)?).with_context(at)
    }

    /// The defaults, overlaid with this text.
    pub fn from_text(text: &str) -> Result<Self> {
        let mut settings: Table = DEFAULTS.parse().context("the embedded configuration")?;
        overlay(&mut settings, text.parse()?, "")?;
        let config: Self = hodei_api::json::read(Value::Table(settings))?;
        config.handler.iter().try_for_each(|handler| handler.machinery().map(|_| ()))?;
        Ok(config)
    }

    /// The data folder: from the flag or variable, the file, or the usual place.
    pub fn data_folder(&self, flag: Option<&Path>) -> Result<PathBuf> {
        let folder = match flag {
            Some(folder) => folder.to_owned(),
            None if !self.data.is_empty() => PathBuf::from(&self.data),
            None => usual_folder("XDG_DATA_HOME", ".local/share")
                .context("no HOME is set: choose the data folder with --data or HODEI_DATA")?,
        };
        std::path::absolute(&folder).with_context(|| format!("the data folder {}", folder.display()))
    }
}

fn user_file() -> Option<PathBuf> {
    Some(usual_folder("XDG_CONFIG_HOME", ".config")?.join("config.toml"))
}

fn usual_folder(variable: &str, under_home: &str) -> Option<PathBuf> {
    let base = env::var_os(variable).filter(|value| !value.is_empty()).map(PathBuf::from);
    Some(base.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(under_home)))?.join("hodei"))
}

/// Puts `over` on `under`. A name that the defaults do not have is a mistake, and is said to be one.
fn overlay(under: &mut Table, over: Table, path: &str) -> Result<()> {
    for (name, value) in over {
        let full = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        match (under.get_mut(&name), value) {
            (Some(Value::Table(under)), Value::Table(over)) => overlay(under, over, &full)?,
            (Some(known), value) if known.same_type(&value) => *known = value,
            (Some(known), _) => bail!("{full}: must be a {}", known.type_str()),
            (None, _) => bail!("{full}: there is no such setting; 'hodei config' prints them all"),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_complete() {
        let config: Config = DEFAULTS.parse::<Table>().expect("TOML").try_into().expect("all settings");
        assert_eq!(config.server.lease, Millis::seconds(60));
        assert_eq!(config.server.max_payload, 1 << 20);
        assert_eq!(config.worker.cpu, None);
    }

    #[test]
    fn mistakes_are_named() {
        let complaint = |text: &str| {
            let mut settings = DEFAULTS.parse().expect("TOML");
            overlay(&mut settings, text.parse().expect("TOML"), "").expect_err("must be refused").to_string()
        };
        assert!(complaint("[server]\nleese = '1s'").starts_with("server.leese: there is no such setting"));
        assert!(complaint("[worker]\nslots = 'two'").starts_with("worker.slots: must be a integer"));
    }

    #[test]
    fn what_a_worker_is_is_read_and_its_mistakes_named() {
        let read = |text: &str| Config::from_text(&format!("[worker]\n{text}")).map(|config| config.worker);
        let worker = read("labels = ['disk=ssd']\ntaints = ['gpu:PreferNoSchedule']\nisolation = 'vm'\ndisk = '1GiB'");
        let worker = worker.expect("a worker");
        assert_eq!((worker.labels.len(), worker.isolation, worker.disk), (1, Isolation::Vm, Some(1 << 30)));
        for (text, part) in [
            ("labels = ['disk']", "worker.labels"),
            ("taints = ['x:Never']", "worker.taints"),
            ("isolation = 'wall'", "worker.isolation"),
            ("capabilities = ['cuda:12']", "worker.capabilities"),
        ] {
            let problem = format!("{:#}", read(text).expect_err("must be refused"));
            assert!(problem.contains(part), "{text}: {problem}");
        }
    }

    #[test]
    fn handlers_are_read_and_their_mistakes_named() {
        let read = |text: &str| Config::from_text(&format!("[[handler]]\ntype = 'a'\n{text}")).map(|c| c.handler);
        let handlers = read("http = 'http://h/'\ntimeout = '5s'\n[[handler]]\ntype = 'b.*'\nsubprocess = ['x', 'y']");
        let handlers = handlers.expect("two handlers");
        assert_eq!((handlers[0].timeout, handlers[0].sla), (Some(Millis::seconds(5)), None));
        let args = Words::Args(vec!["x".into(), "y".into()]);
        assert_eq!(handlers[1].machinery().expect("a kind"), Machinery::Subprocess(&args));
        for (text, part) in [
            ("comand = 'x'", "handler[0].comand"),
            ("command = 5", "handler[0].command"),
            ("timeout = 'soon'", "handler[0].timeout"),
            ("", "handler a: give one of"),
            ("command = 'x'\nhttp = 'http://h/'", "handler a: give one of"),
            ("command = 'x'\nprocesses = 2", "handler a: 'processes' means nothing"),
            ("http = 'http://h/'\nsla = 'high'", "handler a: 'sla' means nothing"),
            ("subprocess = 'x'\nsla = 'urgent'", "handler[0].sla"),
        ] {
            let problem = format!("{:#}", read(text).expect_err("must be refused"));
            assert!(problem.contains(part), "{text}: {problem}");
        }
    }

    #[test]
    fn handlers_are_told_apart_by_what_they_begin_with() {
        let kind = |text: &str| Handler::parse(text).map(|handler| (handler.command, handler.subprocess, handler.http));
        let line = |text: &str| Some(Words::Line(text.to_owned()));
        assert_eq!(kind("a=./x.sh --k=v"), Ok((line("./x.sh --k=v"), None, None)));
        assert_eq!(kind("a.*=subprocess: python3 x.py"), Ok((None, line("python3 x.py"), None)));
        assert_eq!(kind("a=subprocess/critical:./x"), Ok((None, line("./x"), None)));
        assert_eq!(Handler::parse("a=subprocess/critical:./x").map(|handler| handler.sla), Ok(Some(Sla::Critical)));
        assert!(kind("a=subprocess/urgent:./x").is_err_and(|problem| problem.contains("urgent")));
        assert_eq!(kind("a=http://h/?q=1"), Ok((None, None, Some("http://h/?q=1".to_owned()))));
        assert!(kind("a").is_err() && kind("=x").is_err() && kind("a= ").is_err());
    }
}
