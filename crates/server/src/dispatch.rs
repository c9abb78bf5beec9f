//! Sends what the brain decided to the workers, in order, with the payloads that the brain does not keep.

use crate::context::{self, Ended, Leaving};
use hodei_api::{convert, v1};
use hodei_core::{
    brain::{Connection, RunMore},
    id::{ExecutionId, IdMap, JobId},
    protocol::{Context, ToWorker},
};
use hodei_store::Store;
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::sync::mpsc;
use tonic::Status;

pub type Outgoing = mpsc::UnboundedSender<Result<v1::ServerMessage, Status>>;

/// The open streams. What is sent to one that is gone is lost; the worker says what it holds when it comes back.
#[derive(Debug, Default)]
pub struct Links {
    open: Mutex<HashMap<Connection, Outgoing>>,
}

impl Links {
    pub fn open(&self, connection: Connection, outgoing: Outgoing) {
        self.lock().insert(connection, outgoing);
    }

    pub fn close(&self, connection: Connection) {
        self.lock().remove(&connection);
    }

    pub fn close_all(&self) {
        self.lock().clear();
    }

    fn send(&self, connection: Connection, events: Vec<v1::ServerEvent>) {
        if let Some(outgoing) = self.lock().get(&connection) {
            _ = outgoing.send(Ok(v1::ServerMessage { events }));
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Connection, Outgoing>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One thing to tell a worker.
#[derive(Debug)]
pub enum Parcel {
    Run { job: JobId, execution: ExecutionId, attempt: u32, more: Option<Box<RunMore>> },
    Message(ToWorker),
    Close,
}

pub type Parcels = Vec<(Connection, Parcel)>;

/// Payloads of jobs that came in lately and have not been sent yet.
const CACHE_BYTES: usize = 32 << 20;
/// About what the cache takes for each, besides its bytes.
const ENTRY_BYTES: usize = 64;
const READ_AGAIN: Duration = Duration::from_millis(200);

#[derive(Debug, Default)]
pub struct Payloads {
    /// In the order of their ids: they come and go in about that order, so that what is looked for is close to what was
    /// looked for last.
    by_job: BTreeMap<JobId, Arc<[u8]>>,
    bytes: usize,
}

impl Payloads {
    pub fn put(&mut self, job: JobId, payload: Arc<[u8]>) {
        let size = ENTRY_BYTES + payload.len();
        if self.bytes + size <= CACHE_BYTES {
            self.bytes += size;
            self.by_job.insert(job, payload);
        }
    }

    pub fn is_empty(&self) -> bool {
        self.by_job.is_empty()
    }

    pub fn take(&mut self, job: JobId) -> Option<Arc<[u8]>> {
        let payload = self.by_job.remove(&job)?;
        self.bytes -= ENTRY_BYTES + payload.len();
        Some(payload)
    }
}

/// Runs until `parcels` closes.
pub async fn run(
    store: Arc<dyn Store>,
    links: Arc<Links>,
    payloads: Arc<Mutex<Payloads>>,
    ended: Arc<Mutex<Ended>>,
    mut parcels: mpsc::UnboundedReceiver<Parcels>,
) {
    while let Some(batch) = parcels.recv().await {
        let gathered = gather(&*store, &payloads, &batch).await;
        let mut contexts = contexts(&*store, &ended, &gathered, &batch).await;
        let mut events: BTreeMap<Connection, Vec<v1::ServerEvent>> = BTreeMap::new();
        let mut closing = BTreeSet::new();
        for ((connection, parcel), payload) in batch.into_iter().zip(gathered) {
            match (parcel, payload) {
                (Parcel::Run { job, execution, attempt, more }, Some(payload)) => {
                    let context = more.and_then(|_| contexts.remove(&job)).unwrap_or_default();
                    let run = convert::run(job, execution, attempt, payload, context);
                    events.entry(connection).or_default().push(run);
                }
                (Parcel::Run { .. }, None) => {}
                (Parcel::Message(message), _) => {
                    events.entry(connection).or_default().extend(convert::to_worker(message));
                }
                (Parcel::Close, _) => _ = closing.insert(connection),
            }
        }
        for (connection, events) in events {
            links.send(connection, events);
        }
        for connection in closing {
            links.close(connection);
        }
    }
}

/// The contexts of the runs of a batch that have any.
async fn contexts(
    store: &dyn Store,
    ended: &Mutex<Ended>,
    payloads: &[Option<Arc<[u8]>>],
    batch: &[(Connection, Parcel)],
) -> IdMap<JobId, Context> {
    let leaving = batch.iter().zip(payloads).filter_map(|((_, parcel), payload)| match parcel {
        Parcel::Run { job, more: Some(more), .. } => Some(Leaving { job: *job, payload: payload.as_ref()?, more }),
        _ => None,
    });
    let leaving: Vec<Leaving> = leaving.collect();
    loop {
        match context::gather(store, ended, &leaving).await {
            Ok(contexts) => return contexts,
            Err(error) => tracing::warn!(%error, "cannot read what jobs depend on; trying again"),
        }
        tokio::time::sleep(READ_AGAIN).await;
    }
}

/// The payloads of all runs of a batch, each at the place of its parcel: from the cache, and the rest in one read. An
/// assignment is durable already, so the read is repeated until it succeeds.
async fn gather(
    store: &dyn Store,
    payloads: &Mutex<Payloads>,
    batch: &[(Connection, Parcel)],
) -> Vec<Option<Arc<[u8]>>> {
    let mut missing: IdMap<JobId, usize> = IdMap::default();
    let mut gathered: Vec<Option<Arc<[u8]>>> = {
        let mut payloads = payloads.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = batch.iter().enumerate().map(|(place, (_, parcel))| {
            let Parcel::Run { job, .. } = parcel else { return None };
            let payload = payloads.take(*job);
            if payload.is_none() {
                missing.insert(*job, place);
            }
            payload
        });
        kept.collect()
    };
    while !missing.is_empty() {
        match store.payloads(missing.keys().copied().collect()).await {
            Ok(found) => {
                for (job, payload) in found {
                    missing.get(&job).into_iter().for_each(|place| gathered[*place] = Some(payload.as_slice().into()));
                }
                break;
            }
            Err(error) => {
                tracing::warn!(%error, "cannot read payloads; trying again");
                tokio::time::sleep(READ_AGAIN).await;
            }
        }
    }
    gathered
}
