//! Workers as containers of a Docker engine, or of one that speaks its language. Any image will do: the agent is brought
//! along, and takes the place of what the image would run.
//!
//! All that is known of a worker is on its container, in labels. Nothing is kept here, so nothing can be out of step.

mod archive;
mod container;
mod engine;
mod errors;
mod image;

use crate::{Answer, Order, Progress, Provider, ProviderError, ServerAddress, agent::Agent, settings::Settings, tail};
use bollard::models::{ContainerInspectResponse, ContainerState, ContainerStateStatusEnum as Status, SystemInfo};
use container::{AGENT_FOLDER, CLUSTER, WORKER};
use engine::Engine;
use futures::future::{BoxFuture, FutureExt};
use hodei_core::{
    id::WorkerId,
    provider::{ErrorClass, Exit, Instance, InstanceState, ProviderCapabilities, ProviderHealth},
    requirements::Isolation,
    time::Millis,
};
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use url::{Host, Url};

const HOST: &str = "unix:///var/run/docker.sock";
const NETWORK: &str = "bridge";
const TIMEOUT: Duration = Duration::from_secs(30);
/// Nobody waits longer than this to hear whether an engine is well.
const HEALTH: Duration = Duration::from_secs(5);
/// Processes and threads of a worker and all its jobs.
const PIDS: u32 = 16 << 10;
const STARTUP: Millis = Millis(1000);
/// How much of what an agent printed tells why it ended.
const OUTPUT: usize = 4 << 10;

#[derive(Clone, Debug)]
pub struct DockerSettings {
    /// The engine: `unix:///path/to/docker.sock` or `http://address`. One that is reached over the network is taken to be on
    /// another machine, with other files.
    pub host: String,
    /// The network of workers whose template names none: `bridge`, `host`, `none` or one that the engine has.
    pub network: String,
    /// The image of workers whose template names none.
    pub image: Option<String>,
    /// The program of the agents, which should need no libraries; this program if left out.
    pub agent: Option<PathBuf>,
    pub pull: PullPolicy,
    /// How long the engine may take to answer.
    pub timeout: Duration,
    /// The most processes and threads in one container.
    pub pids: u32,
    /// How many GPUs the engine can give.
    pub gpus: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PullPolicy {
    /// What is not there.
    #[default]
    Missing,
    Never,
    /// The newest of its name, for each worker.
    Always,
}

impl PullPolicy {
    pub const ALL: [PullPolicy; 3] = [PullPolicy::Missing, PullPolicy::Never, PullPolicy::Always];

    pub fn name(self) -> &'static str {
        match self {
            PullPolicy::Missing => "missing",
            PullPolicy::Never => "never",
            PullPolicy::Always => "always",
        }
    }
}

impl Default for DockerSettings {
    fn default() -> Self {
        Self {
            host: HOST.to_owned(),
            network: NETWORK.to_owned(),
            image: None,
            agent: None,
            pull: PullPolicy::default(),
            timeout: TIMEOUT,
            pids: PIDS,
            gpus: 0,
        }
    }
}

impl DockerSettings {
    pub fn parse(settings: &BTreeMap<String, String>) -> Result<Self, String> {
        let mut settings = Settings::of(settings);
        let default = Self::default();
        let pull = settings.take("pull").map_or(Ok(default.pull), |pull| {
            PullPolicy::ALL
                .into_iter()
                .find(|policy| policy.name() == pull)
                .ok_or_else(|| format!("the setting pull is one of missing, never and always, not '{pull}'"))
        })?;
        let timeout = settings.take("timeout").map_or(Ok(default.timeout), |timeout| {
            humantime::parse_duration(&timeout).map_err(|_| format!("the setting timeout is like 30s, not '{timeout}'"))
        })?;
        let parsed = Self {
            host: settings.take("host").unwrap_or(default.host),
            network: settings.take("network").unwrap_or(default.network),
            image: settings.take("image"),
            agent: settings.take("agent").map(PathBuf::from),
            pull,
            timeout,
            pids: settings.number("pids", default.pids)?,
            gpus: settings.number("gpus", default.gpus)?,
        };
        settings.done()?;
        Ok(parsed)
    }
}

pub struct DockerProvider {
    cluster: String,
    settings: DockerSettings,
    engine: Engine,
    agent: Agent,
    /// What the engine said of its machine when it was last asked.
    machine: Mutex<Machine>,
}

#[derive(Clone, Debug, Default)]
struct Machine {
    cpu_millis: u64,
    memory_bytes: u64,
    architecture: Option<String>,
}

impl DockerProvider {
    pub fn new(cluster: &str, settings: DockerSettings) -> Result<Self, String> {
        if cluster.is_empty() || !cluster.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c)) {
            return Err(format!("'{cluster}' cannot be in the name of a container"));
        }
        if let Some(image) = &settings.image {
            image::check_name(image).map_err(|error| error.message)?;
        }
        let engine = Engine::new(&settings.host, settings.timeout)?;
        let agent = Agent::new(settings.agent.clone());
        Ok(Self { cluster: cluster.to_owned(), settings, engine, agent, machine: Mutex::default() })
    }

    fn image<'a>(&'a self, order: &'a Order) -> Option<&'a str> {
        order.image.as_deref().or(self.settings.image.as_deref())
    }

    fn network<'a>(&'a self, order: &'a Order) -> &'a str {
        order.network.as_deref().unwrap_or(&self.settings.network)
    }

    async fn create(&self, order: &Order, progress: &Progress) -> Result<(), ProviderError> {
        self.can_fulfil(order).map_err(ProviderError::other)?;
        let image = self.image(order).unwrap_or_default();
        let name = container::name(&self.cluster, order.worker);
        let has = self.engine.provide(image, self.settings.pull, progress).await?;
        // A worker that runs as somebody else than root cannot make folders everywhere.
        let delivery = self.delivery(order, has.user.is_some_and(|user| !container::is_root(&user)))?;
        let body = container::body(&container::Wanted {
            cluster: &self.cluster,
            order,
            image,
            network: self.network(order),
            agent: delivery.mounted.as_deref(),
            pids: self.settings.pids,
        });
        if !self.engine.create(&name, body).await? && !self.is_unfinished(&name, order.worker).await? {
            return Ok(());
        }
        let started = self.fill_and_start(&name, delivery.copied).await;
        if started.as_ref().is_err_and(|error| error.class != ErrorClass::Unreachable) {
            // What could not be started would only be in the way.
            _ = self.engine.remove(&name).await;
        }
        started
    }

    /// Somebody has the name of the worker. If it is this very worker, and it was never started, that is still to be done.
    async fn is_unfinished(&self, name: &str, worker: WorkerId) -> Result<bool, ProviderError> {
        let Some(found) = self.engine.inspect(name).await? else { return Ok(false) };
        let labels = found.config.and_then(|config| config.labels).unwrap_or_default();
        let label = |key: &str| labels.get(key).map(String::as_str);
        if label(CLUSTER) != Some(&self.cluster) || label(WORKER) != Some(&worker.to_string()) {
            return Err(ProviderError::other(format!("there is a container {name} that is not of this cluster")));
        }
        Ok(found.state.and_then(|state| state.status) == Some(Status::CREATED))
    }

    async fn fill_and_start(&self, name: &str, parts: Vec<archive::Part>) -> Result<(), ProviderError> {
        if !parts.is_empty() {
            self.engine.fill(name, parts).await?;
        }
        self.engine.start(name).await
    }

    /// How the agent gets into the container: by a mount where the engine sees the files of this machine.
    fn delivery(&self, order: &Order, needs_folder: bool) -> Result<Delivery, ProviderError> {
        let folder = archive::Part::folder(&format!("{AGENT_FOLDER}/data"));
        if let Some(path) = self.agent.for_others().filter(|_| self.engine.is_here()) {
            return Ok(Delivery { mounted: Some(path), copied: needs_folder.then_some(folder).into_iter().collect() });
        }
        let file = |name: &str, source: &Path, mode| {
            let part = archive::Part::file(&format!("{AGENT_FOLDER}/{name}"), source, mode);
            part.map_err(|error| ProviderError::other(format!("cannot read {}: {error}", source.display())))
        };
        let mut copied = vec![file("agent", self.agent.path(), 0o755)?, folder];
        if let ServerAddress::Url { authority: Some(authority), .. } = &order.server {
            copied.push(file("ca.pem", authority, 0o644)?);
        }
        Ok(Delivery { mounted: None, copied })
    }

    async fn state(&self, name: &str) -> Result<Option<InstanceState>, ProviderError> {
        let Some(ContainerInspectResponse { state: Some(state), .. }) = self.engine.inspect(name).await? else {
            return Ok(None);
        };
        if !has_ended(&state) {
            return Ok(Some(InstanceState::Alive));
        }
        let output = self.engine.log(name).await?.unwrap_or_default();
        Ok(Some(InstanceState::Exited(Exit { output: tail::of(&output, OUTPUT), ..exit(&state) })))
    }

    async fn instances(&self) -> Result<Vec<Instance>, ProviderError> {
        let mut found = Vec::new();
        for container in self.engine.list(&format!("{CLUSTER}={}", self.cluster)).await? {
            let worker = container.labels.get(WORKER).and_then(|worker| worker.parse().ok());
            let Some(worker) = worker else { continue };
            let state = match container.runs {
                true => Some(InstanceState::Alive),
                false => self.state(&container.id).await?,
            };
            found.extend(state.map(|state| Instance { worker, state }));
        }
        Ok(found)
    }

    fn learn(&self, info: &SystemInfo) {
        let number = |value: Option<i64>| value.and_then(|value| u64::try_from(value).ok()).unwrap_or(0);
        let machine = Machine {
            cpu_millis: number(info.ncpu) * 1000,
            memory_bytes: number(info.mem_total),
            architecture: info.architecture.clone(),
        };
        *self.machine.lock().unwrap_or_else(PoisonError::into_inner) = machine;
    }

    fn machine(&self) -> Machine {
        self.machine.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    async fn health(&self) -> ProviderHealth {
        let info = match tokio::time::timeout(HEALTH, self.engine.info()).await {
            Ok(Ok(info)) => info,
            Ok(Err(error)) => return ProviderHealth::Unhealthy(error.message),
            Err(_) => return ProviderHealth::Unhealthy(format!("{} does not answer", self.settings.host)),
        };
        self.learn(&info);
        if info.os_type.as_deref().is_some_and(|system| system != "linux") {
            return ProviderHealth::Unhealthy("the engine does not run containers of Linux".to_owned());
        }
        let own = std::env::consts::ARCH;
        if let Some(other) = info.architecture.as_deref().filter(|other| !same_architecture(other, own)) {
            return ProviderHealth::Unhealthy(format!("the engine's machine is {other}, and the agent is for {own}"));
        }
        match self.agent.is_static() {
            Err(error) => {
                let agent = self.agent.path().display();
                return ProviderHealth::Unhealthy(format!("the agent {agent} cannot be used: {error}"));
            }
            Ok(false) => {
                return ProviderHealth::Degraded(
                    "the agent is not linked statically, so it runs only in images that have its libraries".to_owned(),
                );
            }
            Ok(true) => {}
        }
        if info.memory_limit == Some(false) {
            return ProviderHealth::Degraded("the engine cannot limit memory".to_owned());
        }
        ProviderHealth::Healthy
    }
}

/// What a container gets of the agent.
struct Delivery {
    mounted: Option<PathBuf>,
    copied: Vec<archive::Part>,
}

impl Provider for DockerProvider {
    fn capabilities(&self) -> ProviderCapabilities {
        let machine = self.machine();
        ProviderCapabilities {
            isolation: Isolation::Container,
            images: true,
            gpus: self.settings.gpus,
            cpu_millis: machine.cpu_millis,
            memory_bytes: machine.memory_bytes,
            architectures: vec![machine.architecture.unwrap_or_else(|| std::env::consts::ARCH.to_owned())],
            startup: STARTUP,
        }
    }

    fn can_fulfil(&self, order: &Order) -> Result<(), String> {
        let machine = self.machine();
        if self.image(order).is_none() {
            return Err("the worker has no image, and this provider has none for such".to_owned());
        }
        if order.gpus > self.settings.gpus {
            return Err(format!("it has {} GPUs to give", self.settings.gpus));
        }
        if machine.cpu_millis > 0 && order.cpu_millis > machine.cpu_millis {
            return Err("the engine's machine has fewer cores".to_owned());
        }
        if machine.memory_bytes > 0 && order.memory_bytes > machine.memory_bytes {
            return Err("the engine's machine has less memory".to_owned());
        }
        match &order.server {
            ServerAddress::Socket(_) if !self.engine.is_here() => {
                Err("the engine is on another machine, where there is no socket of the server".to_owned())
            }
            ServerAddress::Url { url, .. }
                if is_loopback(url) && (self.network(order) != "host" || !self.engine.is_here()) =>
            {
                Err(format!("a container cannot reach the server at {url}"))
            }
            _ => Ok(()),
        }
    }

    fn create_worker(&self, order: Arc<Order>, progress: Progress) -> Answer<'_, ()> {
        async move { self.create(&order, &progress).await }.boxed()
    }

    fn destroy_worker(&self, worker: WorkerId) -> Answer<'_, ()> {
        async move { self.engine.remove(&container::name(&self.cluster, worker)).await }.boxed()
    }

    fn status(&self, worker: WorkerId) -> Answer<'_, Option<InstanceState>> {
        async move { self.state(&container::name(&self.cluster, worker)).await }.boxed()
    }

    fn list(&self) -> Answer<'_, Vec<Instance>> {
        self.instances().boxed()
    }

    fn logs(&self, worker: WorkerId, bytes: usize) -> Answer<'_, String> {
        async move {
            let log = self.engine.log(&container::name(&self.cluster, worker)).await?;
            Ok(tail::of(&log.unwrap_or_default(), bytes))
        }
        .boxed()
    }

    fn health_check(&self) -> BoxFuture<'_, ProviderHealth> {
        self.health().boxed()
    }
}

fn has_ended(state: &ContainerState) -> bool {
    matches!(state.status, Some(Status::EXITED | Status::DEAD | Status::REMOVING))
}

/// The engine tells of a signal as a shell does: by a code above 128.
fn exit(state: &ContainerState) -> Exit {
    let code = state.exit_code.and_then(|code| i32::try_from(code).ok());
    let signal = code.map(|code| code - 128).filter(|signal| (1..=64).contains(signal));
    Exit {
        code: code.filter(|_| signal.is_none()),
        signal,
        out_of_memory: state.oom_killed == Some(true),
        output: String::new(),
    }
}

fn is_loopback(url: &str) -> bool {
    let Ok(url) = Url::parse(url) else { return false };
    match url.host() {
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        Some(Host::Domain(name)) => name == "localhost",
        None => false,
    }
}

/// Engines and compilers have other names for the same.
fn same_architecture(one: &str, other: &str) -> bool {
    let common = |name: &str| match name {
        "amd64" => "x86_64".to_owned(),
        "arm64" => "aarch64".to_owned(),
        name => name.to_owned(),
    };
    common(one) == common(other)
}

#[cfg(test)]
mod tests;
