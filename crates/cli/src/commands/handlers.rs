//! From the configuration to the handlers of a worker.

use crate::config::{Handler, Machinery, Words};
use anyhow::{Context, Result, bail};
use hodei_core::time::Millis;
use hodei_worker::{
    Command, Endpoint, Handlers, Program, Subprocess, Url,
    header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue},
};
use std::path::PathBuf;

const IDLE: Millis = Millis::seconds(5 * 60);
const RETRIES: u32 = 5;

pub fn handlers<'h>(configured: impl Iterator<Item = &'h Handler>) -> Result<Handlers> {
    let mut handlers = Handlers::default();
    for handler in configured {
        add(&mut handlers, handler).with_context(|| format!("the handler for {}", handler.task_type))?;
    }
    Ok(handlers)
}

fn add(handlers: &mut Handlers, handler: &Handler) -> Result<()> {
    let task_type = &handler.task_type;
    match handler.machinery()? {
        Machinery::Command(words) => {
            let environment = handler.environment.clone().unwrap_or_default();
            let command = Command { program: program(words)?, directory: directory(handler)?, environment };
            handlers.add_command(task_type, command)?;
        }
        Machinery::Subprocess(words) => {
            let processes = handler.processes.unwrap_or(1);
            let warm = handler.warm.unwrap_or(processes);
            if warm > processes {
                bail!("warm: there are at most {processes} processes");
            }
            let subprocess = Subprocess {
                program: program(words)?,
                directory: directory(handler)?,
                environment: handler.environment.clone().unwrap_or_default(),
                processes,
                warm,
                idle: handler.idle.unwrap_or(IDLE),
                concurrency: handler.concurrency.unwrap_or(0),
                sla: handler.sla.unwrap_or_default(),
            };
            handlers.add_subprocess(task_type, subprocess)?;
        }
        Machinery::Http(url) => handlers.add_http(task_type, endpoint(handler, url)?)?,
    }
    Ok(())
}

fn program(words: &Words) -> Result<Program> {
    match words {
        Words::Line(line) if !line.trim().is_empty() => Ok(Program::Line(line.clone())),
        Words::Args(args) if args.first().is_some_and(|program| !program.is_empty()) => Ok(Program::Args(args.clone())),
        _ => bail!("there is no program to run"),
    }
}

fn directory(handler: &Handler) -> Result<PathBuf> {
    let given = handler.directory.clone().unwrap_or_else(|| PathBuf::from("."));
    let directory = given.canonicalize().with_context(|| format!("the directory {}", given.display()))?;
    if directory.to_str().is_none() {
        bail!("the directory {} has a name that is not UTF-8", directory.display());
    }
    Ok(directory)
}

fn endpoint(handler: &Handler, url: &str) -> Result<Endpoint> {
    let url: Url = url.parse().with_context(|| format!("http: '{url}' is not an address"))?;
    if !matches!(url.scheme(), "http" | "https") || url.host().is_none() {
        bail!("http: '{url}' is not an address that begins with http:// or https://");
    }
    let mut headers = HeaderMap::new();
    for (name, value) in handler.headers.iter().flatten() {
        let bad = || format!("headers.{name}");
        headers.insert(name.parse::<HeaderName>().with_context(bad)?, value.parse::<HeaderValue>().with_context(bad)?);
    }
    if let Some(variable) = &handler.authorization {
        let value = std::env::var(variable).with_context(|| format!("authorization: the variable {variable}"))?;
        let mut value: HeaderValue =
            value.parse().with_context(|| format!("authorization: the variable {variable}"))?;
        value.set_sensitive(true);
        headers.insert(AUTHORIZATION, value);
    }
    Ok(Endpoint { url, headers, timeout: handler.timeout, retries: handler.retries.unwrap_or(RETRIES) })
}
