//! A worker of one's own.

use futures::future::FutureExt;
use hodei_api::channel::{self, Certificates, Identity};
use hodei_worker::{
    AgentError, AgentOptions, Capacity, Connect, Done, Handlers, Invalid, LinkError, Task, TaskResult, Wish, WorkerInfo,
};
use std::{future::Future, path::PathBuf, sync::Arc};
use thiserror::Error;
use tokio::sync::watch;
use tonic::transport::Uri;

/// Log data that may wait for the server.
const SPOOL_BYTES: usize = 64 << 20;
const FOLDER: &str = "hodei-worker";

/// A worker before it runs.
#[derive(Debug)]
pub struct Worker {
    server: String,
    token: Option<String>,
    certificates: Certificates,
    name: Option<String>,
    slots: u32,
    folder: PathBuf,
    handlers: Handlers,
    /// The first handler that could not be taken.
    refused: Option<Invalid>,
}

#[derive(Debug, Error)]
pub enum WorkerError {
    #[error("'{0}' is not a server's address; write it like http://127.0.0.1:7070")]
    Address(String),
    #[error("the authority, or the certificate and the key of this worker, cannot be used")]
    Certificates(#[source] tonic::transport::Error),
    #[error("a worker needs handlers; add some with Worker::handle")]
    NoHandlers,
    #[error(transparent)]
    Handler(#[from] Invalid),
    #[error(transparent)]
    Agent(#[from] AgentError),
}

impl Worker {
    /// A worker of the server at this address, such as `http://127.0.0.1:7070`. What it must remember from one start to
    /// the next it keeps in the folder `hodei-worker` of the current directory, unless told otherwise.
    pub fn new(server: impl Into<String>) -> Self {
        Self {
            server: server.into(),
            token: None,
            certificates: Certificates::default(),
            name: None,
            slots: std::thread::available_parallelism().map_or(1, |cores| u32::try_from(cores.get()).unwrap_or(1)),
            folder: FOLDER.into(),
            handlers: Handlers::default(),
            refused: None,
        }
    }

    /// The one-time token that it registers with. A worker that registered before needs none.
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.token = Some(token.into());
        self
    }

    /// The authority, in PEM, that the certificate of an `https` server must be from; those that this machine trusts by default.
    pub fn ca(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.certificates.ca = Some(pem.into().into());
        self
    }

    /// Its own certificate and the key of it, in PEM, for an `https` server that takes workers only with one.
    pub fn identity(mut self, cert: impl Into<Vec<u8>>, key: impl Into<Vec<u8>>) -> Self {
        self.certificates.identity = Some(Identity { cert: cert.into().into(), key: key.into().into() });
        self
    }

    /// How people see it; the host's name by default.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Tasks at once; one for each core by default.
    pub fn slots(mut self, slots: u32) -> Self {
        self.slots = slots;
        self
    }

    /// The folder of its own: its identity, and results that the server has not acknowledged yet.
    pub fn folder(mut self, folder: impl Into<PathBuf>) -> Self {
        self.folder = folder.into();
        self
    }

    /// Runs tasks of this type with this function.
    pub fn handle<F, R, D>(mut self, task_type: &str, handler: F) -> Self
    where
        F: Fn(Task) -> R + Send + Sync + 'static,
        R: Future<Output = TaskResult<D>> + Send + 'static,
        D: Into<Done>,
    {
        let added = self.handlers.add(task_type, handler);
        self.refused = self.refused.or(added.err());
        self
    }

    /// Works until it is told to end. The first SIGINT or SIGTERM lets tasks finish, the second gives them back.
    pub async fn run(self) -> Result<(), WorkerError> {
        self.work(hodei_worker::wishes_of_signals()).await
    }

    /// Works until `stop` ends, then lets tasks finish.
    pub async fn run_until(self, stop: impl Future<Output = ()> + Send + 'static) -> Result<(), WorkerError> {
        let (wish, wishes) = watch::channel(Wish::Work);
        tokio::spawn(async move {
            stop.await;
            wish.send_replace(Wish::Finish);
            wish.closed().await;
        });
        self.work(wishes).await
    }

    async fn work(self, wishes: watch::Receiver<Wish>) -> Result<(), WorkerError> {
        if let Some(refused) = self.refused {
            return Err(refused.into());
        }
        if self.handlers.is_empty() {
            return Err(WorkerError::NoHandlers);
        }
        let hostname = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let options = AgentOptions {
            connect: connect(&self.server, &self.certificates)?,
            token: self.token,
            worker: None,
            info: WorkerInfo {
                name: self.name.unwrap_or_else(|| hostname.clone()),
                version: env!("CARGO_PKG_VERSION").to_owned(),
                hostname,
                capacity: Capacity { slots: self.slots, ..Capacity::default() },
                ..WorkerInfo::default()
            },
            folder: self.folder,
            spool_bytes: SPOOL_BYTES,
            processes: None,
            handlers: self.handlers,
        };
        Ok(hodei_worker::run(options, wishes).await?)
    }
}

fn connect(server: &str, certificates: &Certificates) -> Result<Connect, WorkerError> {
    _ = server.parse::<Uri>().map_err(|_| WorkerError::Address(server.to_owned()))?;
    let endpoint = channel::endpoint(server.to_owned(), certificates).map_err(WorkerError::Certificates)?;
    let unreachable = |error: tonic::transport::Error| LinkError::Unreachable(error.to_string());
    Ok(Arc::new(move || {
        let endpoint = endpoint.clone();
        async move { channel::connect(endpoint).await.map_err(unreachable) }.boxed()
    }))
}
