//! The configuration: the embedded defaults, with a file of the user's on top.

use crate::values::{self, Cores};
use anyhow::{Context, Result, bail};
use hodei_core::{spec::Secret, time::Millis};
use serde::Deserialize;
use std::{
    env, fs,
    net::SocketAddr,
    path::{Path, PathBuf},
};
use toml::{Table, Value};

/// Printed by `hodei config`, and where every default comes from.
pub const DEFAULTS: &str = include_str!("default-config.toml");

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    pub data: String,
    pub connect: String,
    pub server: Server,
    pub webhooks: Webhooks,
    pub worker: Worker,
    pub background: Background,
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
    pub pids_limit: u32,
    #[serde(deserialize_with = "values::size_field")]
    pub spool: u64,
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
        Ok(settings.try_into()?)
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
}
