//! Those who make workers. A provider knows how to make, find and remove the agents that it was asked for, and nothing of
//! jobs, health or supervision. Every implementation passes one conformance suite.

mod agent;
#[cfg(test)]
mod conformance;
mod docker;
mod process;
mod settings;
mod tail;

pub use docker::{DockerProvider, DockerSettings, PullPolicy};
pub use process::{ProcessProvider, ProcessSettings};

use futures::future::BoxFuture;
use hodei_core::{
    id::WorkerId,
    provider::{
        ErrorClass, Instance, InstanceState, ProviderCapabilities, ProviderFailure, ProviderHealth, ProviderKind,
        ProviderRecord,
    },
    template::Mount,
};
use std::{collections::BTreeMap, fmt, path::PathBuf, sync::Arc};
use thiserror::Error;

/// What the providers of one server have in common.
#[derive(Clone, Debug)]
pub struct Home {
    /// Tells what this cluster made from what others made; letters, digits, dots, dashes and underlines.
    pub cluster: String,
    /// What is kept of workers that are processes of this machine: a folder each.
    pub folder: PathBuf,
}

/// The provider that an operator added. Nothing is asked of it yet; says what is wrong with its settings.
pub fn open(record: &ProviderRecord, home: &Home) -> Result<Arc<dyn Provider>, String> {
    Ok(match record.kind {
        ProviderKind::Process => {
            Arc::new(ProcessProvider::new(home.folder.clone(), ProcessSettings::parse(&record.settings)?))
        }
        ProviderKind::Docker => Arc::new(DockerProvider::new(&home.cluster, DockerSettings::parse(&record.settings)?)?),
    })
}

pub type Answer<'a, T> = BoxFuture<'a, Result<T, ProviderError>>;

/// All calls can be repeated: to make a worker that is there, or to remove one that is not, changes nothing.
pub trait Provider: Send + Sync + 'static {
    /// What it can make.
    fn capabilities(&self) -> ProviderCapabilities;

    /// Whether it could make such a worker at all; why not, in words, when it could not.
    fn can_fulfil(&self, order: &Order) -> Result<(), String>;

    /// Makes a worker and starts its agent. Returns when the agent has been started, not when it has registered.
    /// `progress` hears what takes long, such as the pull of an image.
    fn create_worker(&self, order: Arc<Order>, progress: Progress) -> Answer<'_, ()>;

    /// Ends a worker at once and removes all that was made for it.
    fn destroy_worker(&self, worker: WorkerId) -> Answer<'_, ()>;

    /// None when it does not exist.
    fn status(&self, worker: WorkerId) -> Answer<'_, Option<InstanceState>>;

    /// Everything that was made for this cluster and still exists, whoever asked for it.
    fn list(&self) -> Answer<'_, Vec<Instance>>;

    /// The end of what the agent printed, at most `bytes` of it.
    fn logs(&self, worker: WorkerId, bytes: usize) -> Answer<'_, String>;

    fn health_check(&self) -> BoxFuture<'_, ProviderHealth>;
}

/// Hears how the making of a worker goes on, in words for people.
pub type Progress = Arc<dyn Fn(&str) + Send + Sync>;

/// One worker that is wanted.
#[derive(Clone)]
pub struct Order {
    pub worker: WorkerId,
    pub template: Arc<str>,
    pub image: Option<Arc<str>>,
    /// Limits; zero for none.
    pub cpu_millis: u64,
    pub memory_bytes: u64,
    pub gpus: u32,
    /// What `hodei worker run` is to be told, besides where its data is.
    pub arguments: Vec<String>,
    /// On top of what the image has.
    pub environment: BTreeMap<String, String>,
    /// `HODEI_TOKEN`; kept apart because no listing may show it.
    pub token: String,
    pub server: ServerAddress,
    pub mounts: Vec<Mount>,
    pub network: Option<String>,
}

/// Without the token and without what may be secrets of the template.
impl fmt::Debug for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut order = f.debug_struct("Order");
        order.field("worker", &self.worker).field("template", &self.template).field("image", &self.image);
        order.field("server", &self.server).finish_non_exhaustive()
    }
}

/// How the agent reaches the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerAddress {
    /// Over the network, with the authority to trust if it is not one that everybody trusts.
    Url { url: String, authority: Option<PathBuf> },
    /// By a socket that serves workers and nobody else, in a folder of its own that can be mounted.
    Socket(PathBuf),
}

#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{message}")]
pub struct ProviderError {
    pub class: ErrorClass,
    pub message: String,
}

impl ProviderError {
    fn other(message: impl Into<String>) -> Self {
        Self { class: ErrorClass::Other, message: message.into() }
    }
}

impl From<ProviderError> for ProviderFailure {
    fn from(error: ProviderError) -> Self {
        Self { class: error.class, message: error.message }
    }
}
