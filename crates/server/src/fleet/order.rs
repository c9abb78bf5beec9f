//! What a provider is told of a worker that it makes.

use hodei_core::{
    id::WorkerId,
    provider::ProviderKind,
    requirements::{Capability, Taint},
    template::WorkerTemplate,
    worker::Origin,
};
use hodei_provider::{Order, ServerAddress};
use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
};

/// How workers reach this server.
#[derive(Clone, Debug)]
pub struct Reach(ServerAddress);

impl Reach {
    /// By the address that an operator gave; else by the one that the server listens on, if that is one that others can use;
    /// else by the socket for workers.
    pub fn of(
        advertise: Option<&str>,
        listens: Option<SocketAddr>,
        tls: bool,
        authority: Option<PathBuf>,
        socket: &Path,
    ) -> Self {
        let scheme = if tls { "https" } else { "http" };
        let usable = |at: &SocketAddr| !at.ip().is_loopback() && !at.ip().is_unspecified();
        let url = advertise.map(str::to_owned).or_else(|| Some(format!("{scheme}://{}", listens.filter(usable)?)));
        Self(match url {
            Some(url) => ServerAddress::Url { url, authority },
            None => ServerAddress::Socket(socket.to_owned()),
        })
    }
}

pub fn of(worker: WorkerId, origin: &Origin, kind: ProviderKind, token: String, reach: &Reach) -> Order {
    let template = &origin.template;
    Order {
        worker,
        template: template.name.clone(),
        image: template.image.clone(),
        cpu_millis: template.capacity.cpu_millis,
        memory_bytes: template.capacity.memory_bytes,
        gpus: template.capacity.gpus,
        arguments: arguments(worker, template, kind),
        environment: template.environment.clone(),
        token,
        server: reach.0.clone(),
        mounts: template.mounts.clone(),
        network: template.network.clone(),
    }
}

/// What the agent is to say of itself, as `hodei worker run` takes it.
fn arguments(worker: WorkerId, template: &WorkerTemplate, kind: ProviderKind) -> Vec<String> {
    let capacity = &template.capacity;
    let mut said = Said::default();
    let id = worker.to_string();
    said.say("name", format!("{}-{}", template.name, &id[id.len().saturating_sub(8)..]));
    said.say("slots", capacity.slots);
    said.say_if("cpu", capacity.cpu_millis > 0, capacity.cpu_millis as f64 / 1000.0);
    said.say_if("memory", capacity.memory_bytes > 0, capacity.memory_bytes);
    said.say_if("disk", capacity.disk_bytes > 0, capacity.disk_bytes);
    said.say_if("gpus", capacity.gpus > 0, capacity.gpus);
    template.labels.iter().for_each(|(key, value)| said.say("label", format!("{key}={value}")));
    template.taints.iter().for_each(|taint| said.say("taint", taint_text(taint)));
    template.capabilities.iter().for_each(|capability| said.say("capability", capability_text(capability)));
    template.zone.iter().for_each(|zone| said.say("zone", zone));
    said.say_if("isolation", kind == ProviderKind::Docker, "container");
    template.image.iter().for_each(|image| said.say("image", image));
    template.handlers.iter().for_each(|(task_type, command)| said.say("handler", format!("{task_type}={command}")));
    said.0
}

/// Flags with their values in one word each, so that no value is taken for a flag.
#[derive(Default)]
struct Said(Vec<String>);

impl Said {
    fn say(&mut self, flag: &str, value: impl std::fmt::Display) {
        self.0.push(format!("--{flag}={value}"));
    }

    fn say_if(&mut self, flag: &str, is_so: bool, value: impl std::fmt::Display) {
        if is_so {
            self.say(flag, value);
        }
    }
}

fn taint_text(taint: &Taint) -> String {
    format!("{}={}:{}", taint.key, taint.value, taint.effect.name())
}

fn capability_text(capability: &Capability) -> String {
    let parameters = capability.parameters.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>();
    match parameters.is_empty() {
        true => capability.name.to_string(),
        false => format!("{}:{}", capability.name, parameters.join(",")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_use_the_network_only_where_they_can() {
        let reach = |advertise: Option<&str>, listens: &str, tls: bool| {
            Reach::of(advertise, listens.parse().ok(), tls, None, Path::new("/s")).0
        };
        let url = |url: &str| ServerAddress::Url { url: url.into(), authority: None };
        let socket = ServerAddress::Socket("/s".into());
        assert_eq!(reach(None, "127.0.0.1:7070", false), socket);
        assert_eq!(reach(None, "0.0.0.0:7070", true), socket, "nobody knows by which address it is reached");
        assert_eq!(reach(None, "", false), socket);
        assert_eq!(reach(None, "192.0.2.1:7070", true), url("https://192.0.2.1:7070"));
        assert_eq!(reach(Some("https://hodei.example"), "127.0.0.1:7070", true), url("https://hodei.example"));
    }
}
