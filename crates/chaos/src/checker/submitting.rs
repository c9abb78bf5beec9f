//! Asks for jobs, and cancels those that are meant to be cancelled.

use super::{Args, LIVE, client::Client, following::Follower};
use crate::{
    clock,
    journal::{Entry, Journal},
    load::{Kind, Order},
    random::Random,
};
use anyhow::Result;
use std::{
    env,
    path::PathBuf,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::sync::watch;

/// With more jobs waiting than this, no more are asked for: on a slow machine the end would be long in coming.
const MOST_WAITING: usize = 60;

pub struct Submitter {
    client: Client,
    journal: Journal,
    /// What jobs run.
    program: PathBuf,
    runs: PathBuf,
    calls: AtomicU64,
    orders: AtomicU64,
    /// Jobs that have not ended, when somebody last could look.
    waiting: AtomicUsize,
    followers: Mutex<Vec<Follower>>,
}

impl Submitter {
    pub fn new(client: Client, journal: Journal, args: &Args) -> Result<Self> {
        Ok(Self {
            client,
            journal,
            program: env::current_exe()?,
            runs: args.folder.join("runs"),
            calls: AtomicU64::new(0),
            orders: AtomicU64::new(0),
            waiting: AtomicUsize::new(0),
            followers: Mutex::default(),
        })
    }

    pub fn take_followers(&self) -> Vec<Follower> {
        std::mem::take(&mut *self.followers.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Asks again and again until it is calm.
    pub async fn run(self: Arc<Self>, seed: u64, number: u64, mut calm: watch::Receiver<bool>) -> Result<()> {
        let mut random = Random::apart(seed, 100 + number);
        loop {
            let pause = Duration::from_millis(random.within(250..1000));
            if tokio::time::timeout(pause, calm.wait_for(|calm| *calm)).await.is_ok() {
                return Ok(());
            }
            if self.waiting.load(Ordering::Relaxed) > MOST_WAITING {
                continue;
            }
            let many = if random.chance(6) { random.within(8..20) } else { 1 };
            let orders = (0..many).map(|_| self.order(&mut random)).collect();
            self.ask(orders, &mut random).await?;
        }
    }

    /// Keeps an eye on how many jobs have not ended.
    pub async fn count(self: Arc<Self>) {
        loop {
            if let Ok(live) = self.client.list(&LIVE).await {
                self.waiting.store(live.len(), Ordering::Relaxed);
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }

    fn order(&self, random: &mut Random) -> Order {
        Order::random(random, self.orders.fetch_add(1, Ordering::Relaxed), clock::wall_ms())
    }

    async fn ask(self: &Arc<Self>, orders: Vec<Order>, random: &mut Random) -> Result<()> {
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        let specs = orders.iter().map(|order| order.spec(&self.program, &self.runs)).collect();
        self.journal.write(&Entry::Asked { call, orders: orders.clone() })?;
        let ids = match self.client.queue(specs).await {
            Ok(ids) => ids,
            Err(status) => {
                let why = format!("{:?}: {}", status.code(), status.message());
                return self.journal.write(&Entry::Unanswered { call, why });
            }
        };
        self.journal.write(&Entry::Acknowledged { call, ids: ids.clone() })?;
        for (order, id) in orders.into_iter().zip(ids) {
            // Readers of one job must not disturb each other.
            for _ in 0..if random.chance(20) { random.within(1..3) } else { 0 } {
                let follower = Follower::start(self.client.clone(), id.clone());
                self.followers.lock().unwrap_or_else(PoisonError::into_inner).push(follower);
            }
            if order.kind == Kind::Cancelled {
                let wait = Duration::from_millis(random.within(200..7000));
                tokio::spawn(Arc::clone(self).cancel(id, wait));
            }
        }
        Ok(())
    }

    /// Asks until the server has answered.
    async fn cancel(self: Arc<Self>, job: String, wait: Duration) {
        tokio::time::sleep(wait).await;
        loop {
            match self.client.cancel(&job).await {
                Ok(taken) => {
                    if taken {
                        _ = self.journal.write(&Entry::Cancelled { job });
                    }
                    return;
                }
                Err(_) => tokio::time::sleep(Duration::from_millis(300)).await,
            }
        }
    }
}
