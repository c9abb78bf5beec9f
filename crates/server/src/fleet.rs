//! Workers on demand, carried out. The brain decides which workers are made and which go; whoever is here asks providers to do
//! it, and tells the brain what became of it and how the providers fare.
//!
//! Nothing in here is kept: after a restart the brain asks again for all that it has heard no outcome of, and what a provider has
//! that the brain knows nothing of is found by the next listing. A provider has a [`desk::Desk`] of its own, so one that hangs
//! holds up nobody else.

mod desk;
mod order;
mod roster;

pub use order::Reach;

use crate::engine::Engine;
use hodei_core::{brain::Batch, id::WorkerId, provider::ProviderRecord, time::Millis, worker::Origin};
use hodei_provider::Home;
use std::{
    collections::HashMap,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
};
use tokio::sync::{mpsc, oneshot};

/// What can be set.
#[derive(Clone, Debug)]
pub struct Settings {
    /// What is kept of workers that are processes of this machine; without it no provider is asked for anything.
    pub folder: Option<PathBuf>,
    /// How long a worker may take from its making to its registration.
    pub registration: Millis,
    /// The address that workers reach this server at, where it is not the one that it listens on.
    pub advertise: Option<String>,
}

impl Default for Settings {
    fn default() -> Self {
        Self { folder: None, registration: Millis::seconds(60), advertise: None }
    }
}

/// Something to be done at a provider.
#[derive(Debug)]
pub enum Errand {
    Create {
        worker: WorkerId,
        origin: Box<Origin>,
    },
    Destroy {
        worker: WorkerId,
        provider: Arc<str>,
        output: bool,
    },
    /// Is it still there?
    Inspect {
        worker: WorkerId,
        provider: Arc<str>,
    },
    /// Somebody wants to know how it is, now.
    Check {
        provider: Arc<str>,
        done: oneshot::Sender<()>,
    },
    /// There is one, as this says.
    Provider(Box<ProviderRecord>),
    /// There is none of this name any more.
    Dropped(Arc<str>),
}

/// How the engine and the doors reach those who run errands.
#[derive(Debug)]
pub struct Fleet {
    errands: mpsc::UnboundedSender<Errand>,
    /// Until they are started.
    waiting: Mutex<Option<mpsc::UnboundedReceiver<Errand>>>,
    /// What takes long with workers that are being made, in words.
    progress: Mutex<HashMap<WorkerId, String>>,
}

impl Default for Fleet {
    fn default() -> Self {
        let (errands, waiting) = mpsc::unbounded_channel();
        Self { errands, waiting: Mutex::new(Some(waiting)), progress: Mutex::default() }
    }
}

impl Fleet {
    pub fn send(&self, errand: Errand) {
        _ = self.errands.send(errand);
    }

    /// Providers that are new, other than they were, or gone.
    pub fn note(&self, batch: &Batch) {
        batch.providers.iter().for_each(|record| self.send(Errand::Provider(Box::new(record.clone()))));
        batch.dropped_providers.iter().for_each(|name| self.send(Errand::Dropped(Arc::clone(name))));
    }

    /// Returns when the provider was asked and its answer is on its way to the brain.
    pub async fn check(&self, provider: &str) {
        let (done, checked) = oneshot::channel();
        self.send(Errand::Check { provider: provider.into(), done });
        _ = checked.await;
    }

    /// What takes long about workers that are being made.
    pub fn all_progress(&self) -> HashMap<WorkerId, String> {
        self.in_progress().clone()
    }

    fn set_progress(&self, worker: WorkerId, words: Option<&str>) {
        match words {
            Some(words) => _ = self.in_progress().insert(worker, words.to_owned()),
            None => _ = self.in_progress().remove(&worker),
        }
    }

    fn in_progress(&self) -> std::sync::MutexGuard<'_, HashMap<WorkerId, String>> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take_waiting(&self) -> Option<mpsc::UnboundedReceiver<Errand>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Runs errands until the server closes. `reach` says how workers reach it.
pub async fn run(engine: Engine, cluster: String, reach: Reach) {
    let shared = engine.shared();
    let (Some(folder), Some(errands)) = (shared.options.fleet.folder.clone(), shared.fleet.take_waiting()) else {
        return std::future::pending().await;
    };
    roster::run(engine.clone(), Home { cluster, folder }, reach, errands).await;
}

/// What is wrong with the settings of a provider, in words.
pub fn check_settings(record: &ProviderRecord) -> Result<(), String> {
    let nowhere = Home { cluster: "none".into(), folder: PathBuf::new() };
    hodei_provider::open(record, &nowhere).map(drop)
}
