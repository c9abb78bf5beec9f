//! What a container of a worker is like.

use crate::{Order, ServerAddress, agent};
use bollard::models::{
    ContainerCreateBody, DeviceRequest, HealthConfig, HostConfig, HostConfigLogConfig, Mount, MountType,
};
use hodei_core::id::WorkerId;
use std::{
    collections::HashMap,
    path::Path,
    time::{SystemTime, UNIX_EPOCH},
};
use url::Url;

pub(super) const CLUSTER: &str = "hodei.cluster";
pub(super) const WORKER: &str = "hodei.worker";
const TEMPLATE: &str = "hodei.template";
const CREATED: &str = "hodei.created";

/// Where Hodei keeps its own things in a container: the agent, its data, whom it trusts.
pub(super) const AGENT_FOLDER: &str = "/.hodei";
/// Where the folder of the server's socket is.
const SOCKET_FOLDER: &str = "/run/hodei";
/// By this name containers of Docker Desktop reach their host; elsewhere an entry in their hosts file makes it work.
const HOST_NAME: &str = "host.docker.internal";
/// What an agent prints is kept up to this size. It is not what jobs print.
const LOG_SIZE: &str = "4m";

pub(super) struct Wanted<'a> {
    pub cluster: &'a str,
    pub order: &'a Order,
    pub image: &'a str,
    pub network: &'a str,
    /// The agent's program on this machine; none if it is copied into the container instead.
    pub agent: Option<&'a Path>,
    pub pids: u32,
}

pub(super) fn name(cluster: &str, worker: WorkerId) -> String {
    format!("hodei-{cluster}-{worker}")
}

/// Whether the user of an image, a name or a number with or without a group, is root.
pub(super) fn is_root(user: &str) -> bool {
    matches!(user.split(':').next(), Some("" | "root" | "0") | None)
}

pub(super) fn body(wanted: &Wanted<'_>) -> ContainerCreateBody {
    let order = wanted.order;
    let data = format!("{AGENT_FOLDER}/data");
    let mut command = agent::arguments(order);
    command.extend(["--data".to_owned(), data]);
    ContainerCreateBody {
        image: Some(wanted.image.to_owned()),
        entrypoint: Some(vec![format!("{AGENT_FOLDER}/agent")]),
        cmd: Some(command),
        env: Some(environment(wanted)),
        labels: Some(labels(wanted)),
        // What the image checks is not there.
        healthcheck: Some(HealthConfig { test: Some(vec!["NONE".to_owned()]), ..HealthConfig::default() }),
        host_config: Some(host(wanted)),
        ..ContainerCreateBody::default()
    }
}

/// On top of the image's own, which the engine adds.
fn environment(wanted: &Wanted<'_>) -> Vec<String> {
    let (server, authority) = match &wanted.order.server {
        ServerAddress::Url { url, authority } => {
            (url.clone(), authority.as_ref().map(|_| format!("{AGENT_FOLDER}/ca.pem")))
        }
        ServerAddress::Socket(path) => {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            (format!("unix:{SOCKET_FOLDER}/{name}"), None)
        }
    };
    let all = agent::environment(wanted.order, server, authority);
    all.into_iter().map(|(name, value)| format!("{name}={value}")).collect()
}

fn labels(wanted: &Wanted<'_>) -> HashMap<String, String> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let labels = [
        (CLUSTER, wanted.cluster.to_owned()),
        (WORKER, wanted.order.worker.to_string()),
        (TEMPLATE, wanted.order.template.to_string()),
        (CREATED, now.as_millis().to_string()),
    ];
    labels.map(|(name, value)| (name.to_owned(), value)).into()
}

fn host(wanted: &Wanted<'_>) -> HostConfig {
    let order = wanted.order;
    let limit = |value: u64| i64::try_from(value).ok().filter(|value| *value > 0);
    let memory = limit(order.memory_bytes);
    let gpus = (order.gpus > 0).then(|| DeviceRequest {
        count: Some(i64::from(order.gpus)),
        capabilities: Some(vec![vec!["gpu".to_owned()]]),
        ..DeviceRequest::default()
    });
    let log = HashMap::from([("max-size".to_owned(), LOG_SIZE.to_owned())]);
    HostConfig {
        mounts: Some(mounts(wanted)),
        network_mode: Some(wanted.network.to_owned()),
        extra_hosts: names_host(order).then(|| vec![format!("{HOST_NAME}:host-gateway")]),
        nano_cpus: limit(order.cpu_millis.saturating_mul(1_000_000)),
        memory,
        // Swap would let it grow past its limit.
        memory_swap: memory,
        pids_limit: Some(i64::from(wanted.pids)),
        device_requests: gpus.map(|gpus| vec![gpus]),
        // Whatever the engine does with logs by default, these must be readable afterwards.
        log_config: Some(HostConfigLogConfig { typ: Some("json-file".to_owned()), config: Some(log) }),
        auto_remove: Some(false),
        ..HostConfig::default()
    }
}

/// All of them can be read and not written. The socket can be connected to all the same.
fn mounts(wanted: &Wanted<'_>) -> Vec<Mount> {
    let order = wanted.order;
    let mut all = Vec::new();
    if let Some(agent) = wanted.agent {
        all.push((agent.display().to_string(), format!("{AGENT_FOLDER}/agent")));
        if let ServerAddress::Url { authority: Some(file), .. } = &order.server {
            all.push((file.display().to_string(), format!("{AGENT_FOLDER}/ca.pem")));
        }
    }
    if let ServerAddress::Socket(path) = &order.server {
        let folder = path.parent().unwrap_or(Path::new("/"));
        all.push((folder.display().to_string(), SOCKET_FOLDER.to_owned()));
    }
    all.extend(order.mounts.iter().map(|mount| (mount.source.clone(), mount.target.clone())));
    let mount = |(source, target)| Mount {
        source: Some(source),
        target: Some(target),
        typ: Some(MountType::BIND),
        read_only: Some(true),
        ..Mount::default()
    };
    all.into_iter().map(mount).collect()
}

/// Whether the server is to be reached by the name of the container's host.
fn names_host(order: &Order) -> bool {
    let ServerAddress::Url { url, .. } = &order.server else { return false };
    Url::parse(url).is_ok_and(|url| url.host_str() == Some(HOST_NAME))
}
