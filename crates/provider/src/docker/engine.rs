//! The calls to an engine. None of them waits for ever: an engine that does not answer is as good as none.

use super::{
    archive::{self, Part},
    errors::{Asked, classify},
};
use crate::ProviderError;
use bollard::{
    API_DEFAULT_VERSION, Docker, body_try_stream,
    errors::Error,
    models::{ContainerCreateBody, ContainerInspectResponse, ContainerSummary, ContainerSummaryStateEnum, SystemInfo},
    query_parameters::{
        CreateContainerOptions, ListContainersOptions, LogsOptions, RemoveContainerOptions, StartContainerOptions,
        UploadToContainerOptions,
    },
};
use futures::TryStreamExt;
use std::{collections::HashMap, future::Future, path::PathBuf, time::Duration};

/// The last lines of a container's log are enough for any question that is asked of it.
const LINES: &str = "1000";
/// A large program may be on its way over a slow network.
const UPLOAD: Duration = Duration::from_secs(300);
/// When to look again for a container that somebody else removes.
const REMOVAL: Duration = Duration::from_millis(20);

#[derive(Debug)]
pub(super) struct Engine {
    address: Address,
    timeout: Duration,
}

/// A container as a listing shows it.
#[derive(Debug)]
pub(super) struct Listed {
    pub id: String,
    pub labels: HashMap<String, String>,
    pub runs: bool,
}

#[derive(Clone, Debug)]
enum Address {
    Socket(PathBuf),
    Http(String),
}

impl Engine {
    pub(super) fn new(host: &str, timeout: Duration) -> Result<Self, String> {
        let address = if let Some(path) = host.strip_prefix("unix:") {
            Address::Socket(format!("/{}", path.trim_start_matches('/')).into())
        } else if host.starts_with('/') {
            Address::Socket(host.into())
        } else if let Some(address) = host.strip_prefix("http://").or_else(|| host.strip_prefix("tcp://")) {
            Address::Http(address.trim_end_matches('/').to_owned())
        } else {
            return Err(format!("the engine is at unix:///path or http://address, not at '{host}'"));
        };
        Ok(Self { address, timeout })
    }

    /// Whether it sees the files of this machine.
    pub(super) fn is_here(&self) -> bool {
        matches!(self.address, Address::Socket(_))
    }

    /// Made for each call: it holds no connection, and refuses to be made while the socket is not there.
    pub(super) fn docker(&self) -> Result<Docker, ProviderError> {
        // Each call has a limit of its own around it; this one only must not be shorter.
        let seconds = self.timeout.max(UPLOAD).as_secs() + 1;
        let docker = match &self.address {
            Address::Socket(path) => Docker::connect_with_unix(&path.to_string_lossy(), seconds, API_DEFAULT_VERSION),
            Address::Http(address) => Docker::connect_with_http(address, seconds, API_DEFAULT_VERSION),
        };
        docker.map_err(|error| classify(Asked::Container, &error))
    }

    pub(super) async fn ask<T>(
        &self,
        asked: Asked,
        call: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, ProviderError> {
        within(self.timeout, asked, call).await
    }

    pub(super) async fn info(&self) -> Result<SystemInfo, ProviderError> {
        self.ask(Asked::Container, self.docker()?.info()).await
    }

    /// False when the name is taken.
    pub(super) async fn create(&self, name: &str, body: ContainerCreateBody) -> Result<bool, ProviderError> {
        let docker = self.docker()?;
        let options = CreateContainerOptions { name: Some(name.to_owned()), ..CreateContainerOptions::default() };
        let call = async { unless(409, docker.create_container(Some(options), body).await) };
        Ok(self.ask(Asked::Container, call).await?.is_some())
    }

    /// Puts files into a container that has not been started.
    pub(super) async fn fill(&self, name: &str, parts: Vec<Part>) -> Result<(), ProviderError> {
        let docker = self.docker()?;
        let options = UploadToContainerOptions { path: "/".to_owned(), ..UploadToContainerOptions::default() };
        let body = body_try_stream(archive::stream(parts));
        within(UPLOAD, Asked::Container, docker.upload_to_container(name, Some(options), body)).await
    }

    pub(super) async fn start(&self, name: &str) -> Result<(), ProviderError> {
        let docker = self.docker()?;
        self.ask(Asked::Container, docker.start_container(name, None::<StartContainerOptions>)).await
    }

    /// Ends it and removes it, with the volumes that its image made. One that is being removed is waited for.
    pub(super) async fn remove(&self, name: &str) -> Result<(), ProviderError> {
        let docker = self.docker()?;
        let options = RemoveContainerOptions { v: true, force: true, ..RemoveContainerOptions::default() };
        let call = async {
            loop {
                match docker.remove_container(name, Some(options.clone())).await {
                    Err(Error::DockerResponseServerError { status_code: 404, .. }) => return Ok(()),
                    Err(Error::DockerResponseServerError { status_code: 409, .. }) => {
                        tokio::time::sleep(REMOVAL).await;
                    }
                    done => return done,
                }
            }
        };
        self.ask(Asked::Container, call).await
    }

    pub(super) async fn inspect(&self, name: &str) -> Result<Option<ContainerInspectResponse>, ProviderError> {
        let docker = self.docker()?;
        self.ask(Asked::Container, async { unless(404, docker.inspect_container(name, None).await) }).await
    }

    /// All containers with this label, in whatever state.
    pub(super) async fn list(&self, label: &str) -> Result<Vec<Listed>, ProviderError> {
        let docker = self.docker()?;
        let filters = HashMap::from([("label".to_owned(), vec![label.to_owned()])]);
        let options = ListContainersOptions { all: true, filters: Some(filters), ..ListContainersOptions::default() };
        let found = self.ask(Asked::Container, docker.list_containers(Some(options))).await?;
        let listed = |found: ContainerSummary| {
            let runs = matches!(found.state, Some(ContainerSummaryStateEnum::RUNNING));
            Some(Listed { id: found.id?, labels: found.labels.unwrap_or_default(), runs })
        };
        Ok(found.into_iter().filter_map(listed).collect())
    }

    /// The end of what the container printed; none if there is no container.
    pub(super) async fn log(&self, name: &str) -> Result<Option<Vec<u8>>, ProviderError> {
        let docker = self.docker()?;
        let options = LogsOptions { stdout: true, stderr: true, tail: LINES.to_owned(), ..LogsOptions::default() };
        let printed = docker.logs(name, Some(options));
        let call = async {
            let all = printed.try_fold(Vec::new(), |mut all, output| async move {
                all.extend_from_slice(output.as_ref());
                Ok(all)
            });
            unless(404, all.await)
        };
        self.ask(Asked::Container, call).await
    }
}

async fn within<T>(
    limit: Duration,
    asked: Asked,
    call: impl Future<Output = Result<T, Error>>,
) -> Result<T, ProviderError> {
    let answer = tokio::time::timeout(limit, call).await;
    answer.unwrap_or(Err(Error::RequestTimeoutError)).map_err(|error| classify(asked, &error))
}

/// None instead of an error with this status.
fn unless<T>(status: u16, answer: Result<T, Error>) -> Result<Option<T>, Error> {
    match answer {
        Err(Error::DockerResponseServerError { status_code, .. }) if status_code == status => Ok(None),
        answer => answer.map(Some),
    }
}
