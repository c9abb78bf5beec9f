//! All that is done at one provider: it is asked how it is and what it has, makes workers and removes them.

use super::{Errand, Reach, order};
use crate::{
    calls::{Calls, Problem},
    clock,
    engine::Engine,
};
use hodei_core::{
    brain::Input,
    id::{IdSet, WorkerId},
    provider::{ErrorClass, ProviderFailure, ProviderHealth, ProviderKind, ProviderRecord},
    worker::Origin,
};
use hodei_provider::{Provider, ProviderError};
use std::{
    collections::HashMap,
    future::Future,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::{
    sync::{Notify, Semaphore},
    task::{AbortHandle, JoinSet},
    time::timeout,
};

/// Between two questions how it is, and what it has.
const LOOK: Duration = Duration::from_secs(10);
const LIST: Duration = Duration::from_secs(15);
/// How long it may take to answer.
const LOOK_PATIENCE: Duration = Duration::from_secs(5);
const LIST_PATIENCE: Duration = Duration::from_secs(30);
const DESTROY_PATIENCE: Duration = Duration::from_secs(60);
/// Images are large. The brain gives up earlier.
const CREATE_PATIENCE: Duration = Duration::from_secs(1800);
/// A worker that is to go while it is still being made: how long its making may go on.
const LAST_TOUCHES: Duration = Duration::from_secs(5);
/// Between two tries to remove a worker, growing from the first to the last.
const FIRST_RETRY: Duration = Duration::from_millis(200);
const LAST_RETRY: Duration = Duration::from_secs(15);
/// Workers that are made, and removed, at one time.
const MAKING: usize = 8;
const REMOVING: usize = 16;
/// What is shown of what a worker printed.
const OUTPUT: usize = 4 << 10;
/// From the order to the registration, with the pull of an image in between.
const TOKEN_TTL_MS: i64 = 3_600_000;

/// Ends all that is under way when it is dropped.
pub struct Desk {
    clerk: Arc<Clerk>,
    tasks: JoinSet<()>,
}

struct Clerk {
    name: Arc<str>,
    kind: ProviderKind,
    engine: Engine,
    provider: Arc<dyn Provider>,
    reach: Reach,
    making: Semaphore,
    removing: Semaphore,
    /// Something went wrong: look at once.
    look: Notify,
    list: Notify,
    creating: Mutex<HashMap<WorkerId, AbortHandle>>,
    /// Somebody's making has come to an end.
    created: Notify,
    destroying: Mutex<IdSet<WorkerId>>,
}

impl Desk {
    pub fn open(engine: Engine, record: &ProviderRecord, provider: Arc<dyn Provider>, reach: Reach) -> Self {
        let clerk = Arc::new(Clerk {
            name: Arc::clone(&record.name),
            kind: record.kind,
            engine,
            provider,
            reach,
            making: Semaphore::new(MAKING),
            removing: Semaphore::new(REMOVING),
            look: Notify::new(),
            list: Notify::new(),
            creating: Mutex::default(),
            created: Notify::new(),
            destroying: Mutex::default(),
        });
        let mut tasks = JoinSet::new();
        tasks.spawn(Arc::clone(&clerk).keep_looking());
        tasks.spawn(Arc::clone(&clerk).keep_listing());
        Self { clerk, tasks }
    }

    pub fn take(&mut self, errand: Errand) {
        while self.tasks.try_join_next().is_some() {}
        let clerk = Arc::clone(&self.clerk);
        match errand {
            Errand::Create { worker, origin } => {
                let tasks = &mut self.tasks;
                lock(&self.clerk.creating).entry(worker).or_insert_with(|| tasks.spawn(clerk.create(worker, origin)));
            }
            Errand::Destroy { worker, output, .. } => {
                if lock(&self.clerk.destroying).insert(worker) {
                    self.tasks.spawn(clerk.destroy(worker, output));
                }
            }
            Errand::Inspect { worker, .. } => _ = self.tasks.spawn(clerk.inspect(worker)),
            Errand::Check { done, .. } => {
                self.tasks.spawn(async move {
                    clerk.look().await;
                    _ = done.send(());
                });
            }
            Errand::Provider(_) | Errand::Dropped(_) => {}
        }
    }
}

impl Clerk {
    async fn keep_looking(self: Arc<Self>) {
        loop {
            self.look().await;
            _ = timeout(LOOK, self.look.notified()).await;
        }
    }

    async fn look(&self) {
        let health = timeout(LOOK_PATIENCE, self.provider.health_check()).await.unwrap_or_else(|_| {
            ProviderHealth::Unhealthy(format!("it gave no answer within {} s", LOOK_PATIENCE.as_secs()))
        });
        let capabilities = self.provider.capabilities();
        self.engine.tell(Input::ProviderSeen { provider: Arc::clone(&self.name), health, capabilities });
    }

    async fn keep_listing(self: Arc<Self>) {
        loop {
            let asked = clock::now().elapsed;
            match patiently(LIST_PATIENCE, self.provider.list()).await {
                Ok(instances) => {
                    self.engine.tell(Input::ProviderHas { provider: Arc::clone(&self.name), instances, asked });
                }
                Err(error) => {
                    tracing::warn!(provider = %self.name, %error, "cannot find out what a provider has");
                    self.look.notify_one();
                }
            }
            _ = timeout(LIST, self.list.notified()).await;
        }
    }

    /// Something went wrong: how is it, and what does it have?
    fn look_closer(&self) {
        self.look.notify_one();
        self.list.notify_one();
    }

    async fn create(self: Arc<Self>, worker: WorkerId, origin: Box<Origin>) {
        let _ended = Ended { clerk: &self, worker };
        let outcome = match self.making.acquire().await {
            Ok(_permit) => self.make(worker, &origin).await,
            Err(_) => return,
        };
        if let Err(failure) = &outcome {
            tracing::warn!(provider = %self.name, %worker, class = failure.class.name(), why = failure.message, "no worker");
            self.look_closer();
        }
        self.engine.tell(Input::Created { worker, outcome });
    }

    async fn make(&self, worker: WorkerId, origin: &Origin) -> Result<(), ProviderFailure> {
        let failure = |message: String| ProviderFailure { class: ErrorClass::Other, message };
        let token = self.token(worker).await.map_err(|problem| failure(problem.to_string()))?;
        let order = Arc::new(order::of(worker, origin, self.kind, token, &self.reach));
        self.provider.can_fulfil(&order).map_err(failure)?;
        let (engine, name) = (self.engine.clone(), Arc::clone(&self.name));
        let progress = Arc::new(move |words: &str| {
            tracing::debug!(provider = %name, %worker, "{words}");
            engine.shared().fleet.set_progress(worker, Some(words));
        });
        Ok(patiently(CREATE_PATIENCE, self.provider.create_worker(order, progress)).await?)
    }

    /// The one token that this worker can register with, and that can register no other.
    async fn token(&self, worker: WorkerId) -> Result<String, Problem> {
        let calls = Calls::new(self.engine.clone());
        loop {
            match calls.create_worker_token(Some(worker), TOKEN_TTL_MS).await {
                Ok(made) => return Ok(made.token),
                Err(Problem::Unavailable(why)) => {
                    tracing::debug!(why, "no token for a worker yet");
                    tokio::time::sleep(LAST_RETRY.min(Duration::from_secs(1))).await;
                }
                Err(problem) => return Err(problem),
            }
        }
    }

    /// Tries until nothing of the worker is left.
    async fn destroy(self: Arc<Self>, worker: WorkerId, output: bool) {
        self.stop_making(worker).await;
        let printed = if output { self.printed(worker).await } else { String::new() };
        let mut wait = FIRST_RETRY;
        while let Err(error) = self.remove(worker).await {
            tracing::warn!(provider = %self.name, %worker, %error, "cannot remove a worker; trying again");
            if wait == FIRST_RETRY {
                let outcome = Err(error.into());
                self.engine.tell(Input::Destroyed { worker, outcome, output: String::new() });
                self.look_closer();
            }
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(LAST_RETRY);
        }
        lock(&self.destroying).remove(&worker);
        self.engine.tell(Input::Destroyed { worker, outcome: Ok(()), output: printed });
    }

    /// A provider that cannot say now is asked what it has later on.
    async fn inspect(self: Arc<Self>, worker: WorkerId) {
        match patiently(LOOK_PATIENCE, self.provider.status(worker)).await {
            Ok(state) => self.engine.tell(Input::Inspected { worker, state }),
            Err(error) => {
                tracing::debug!(provider = %self.name, %worker, %error, "cannot look at a worker");
                self.look_closer();
            }
        }
    }

    async fn stop_making(&self, worker: WorkerId) {
        let is_made = async {
            loop {
                let ended = self.created.notified();
                if !lock(&self.creating).contains_key(&worker) {
                    return;
                }
                ended.await;
            }
        };
        if timeout(LAST_TOUCHES, is_made).await.is_err()
            && let Some(making) = lock(&self.creating).remove(&worker)
        {
            making.abort();
        }
    }

    async fn printed(&self, worker: WorkerId) -> String {
        patiently(LOOK_PATIENCE, self.provider.logs(worker, OUTPUT)).await.unwrap_or_else(|error| {
            tracing::debug!(provider = %self.name, %worker, %error, "cannot read what a worker printed");
            String::new()
        })
    }

    async fn remove(&self, worker: WorkerId) -> Result<(), ProviderError> {
        let Ok(_permit) = self.removing.acquire().await else { return Ok(()) };
        patiently(DESTROY_PATIENCE, self.provider.destroy_worker(worker)).await
    }
}

/// Notes that the making of a worker has come to an end, however it did.
struct Ended<'c> {
    clerk: &'c Clerk,
    worker: WorkerId,
}

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.clerk.engine.shared().fleet.set_progress(self.worker, None);
        lock(&self.clerk.creating).remove(&self.worker);
        self.clerk.created.notify_waiters();
    }
}

async fn patiently<T>(
    patience: Duration,
    answer: impl Future<Output = Result<T, ProviderError>>,
) -> Result<T, ProviderError> {
    timeout(patience, answer).await.unwrap_or_else(|_| {
        let message = format!("it gave no answer within {} s", patience.as_secs());
        Err(ProviderError { class: ErrorClass::Unreachable, message })
    })
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
