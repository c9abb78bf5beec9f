//! Health: who lives, who hangs, who is warm.

use crate::{Healthy, IllegalMove, Lifecycle, Pool, PoolLimits, Sla, Step};
use std::{collections::BTreeMap, time::Duration};
use thiserror::Error;

/// Looks after the health of one kind of worker, and gives out those that are warm.
#[derive(Clone, Debug)]
pub struct Swarm<K> {
    sla: Sla,
    members: BTreeMap<K, Health>,
    pool: Pool<K>,
}

/// What is known of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Health {
    pub lifecycle: Lifecycle,
    /// When it was spawned.
    pub born: Duration,
    /// Its last heartbeat, or when it became ready.
    pub last_beat: Duration,
    /// Crashes in its place since one last stopped in order.
    pub consecutive_crashes: u32,
}

/// The answer to a wish for a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request<K> {
    /// This one was warm, and is healthy.
    Warm(K),
    /// None is: one must be made.
    Make,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Refused {
    #[error("nobody watches it")]
    Unknown,
    #[error("it is {}", .0.name())]
    NotRunning(Lifecycle),
    #[error("it hangs")]
    Hangs,
    #[error(transparent)]
    Illegal(#[from] IllegalMove),
}

impl Health {
    pub fn uptime(&self, now: Duration) -> Duration {
        match self.lifecycle.is_over() {
            true => Duration::ZERO,
            false => now.saturating_sub(self.born),
        }
    }

    fn hangs_at(&self, sla: Sla) -> Option<Duration> {
        (self.lifecycle == Lifecycle::Running).then(|| self.last_beat.saturating_add(sla.hang()))
    }
}

impl<K: Ord + Clone> Swarm<K> {
    pub fn new(sla: Sla, limits: PoolLimits) -> Self {
        Self { sla, members: BTreeMap::new(), pool: Pool::new(limits) }
    }

    pub fn sla(&self) -> Sla {
        self.sla
    }

    pub fn pool(&self) -> &Pool<K> {
        &self.pool
    }

    pub fn health(&self, key: &K) -> Option<&Health> {
        self.members.get(key)
    }

    /// One is being brought up. What was in its place before must be over: after a crash this is another one, and one that
    /// was stopped begins again as created.
    pub fn watch(&mut self, key: K, now: Duration) -> Result<(), Refused> {
        let (created, crashes) = match self.members.get(&key) {
            Some(before) if before.lifecycle == Lifecycle::Crashed => (Lifecycle::Created, before.consecutive_crashes),
            Some(before) => (before.lifecycle.next(Step::Renew)?, before.consecutive_crashes),
            None => (Lifecycle::Created, 0),
        };
        let lifecycle = created.next(Step::Start)?;
        self.members.insert(key, Health { lifecycle, born: now, last_beat: now, consecutive_crashes: crashes });
        Ok(())
    }

    /// It is there. From now on its heartbeats count.
    pub fn ready(&mut self, key: &K, now: Duration) -> Result<(), Refused> {
        self.step(key, Step::Ready)?.last_beat = now;
        Ok(())
    }

    pub fn beat(&mut self, key: &K, now: Duration) {
        if let Some(health) = self.members.get_mut(key) {
            health.last_beat = health.last_beat.max(now);
        }
    }

    /// Nobody could be heard until now: silence so far counts against none.
    pub fn forgive(&mut self, now: Duration) {
        self.members.values_mut().for_each(|health| health.last_beat = health.last_beat.max(now));
    }

    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// It is told to end; nobody gets it any more.
    pub fn stop(&mut self, key: &K) -> Result<(), Refused> {
        self.step(key, Step::Stop)?;
        self.pool.remove(key);
        Ok(())
    }

    /// It is gone: stopped if it was told to, else crashed.
    pub fn exited(&mut self, key: &K) -> Result<Lifecycle, Refused> {
        let health = self.step(key, Step::Exit)?;
        health.consecutive_crashes = match health.lifecycle {
            Lifecycle::Crashed => health.consecutive_crashes.saturating_add(1),
            _ => 0,
        };
        let lifecycle = health.lifecycle;
        self.pool.remove(key);
        Ok(lifecycle)
    }

    /// Its place is given up; nothing of it is kept.
    pub fn forget(&mut self, key: &K) {
        self.pool.remove(key);
        self.members.remove(key);
    }

    fn step(&mut self, key: &K, step: Step) -> Result<&mut Health, Refused> {
        let health = self.members.get_mut(key).ok_or(Refused::Unknown)?;
        health.lifecycle = health.lifecycle.next(step)?;
        Ok(health)
    }

    /// Those that hang. They leave the pool and are told of until their end is.
    pub fn hung(&mut self, now: Duration) -> Vec<K> {
        let hung = |health: &Health| health.hangs_at(self.sla).is_some_and(|at| now >= at);
        let hung: Vec<_> = self.members.iter().filter(|(_, health)| hung(health)).map(|(key, _)| key.clone()).collect();
        for key in &hung {
            self.pool.remove(key);
        }
        hung
    }

    /// When this one hangs unless it is heard of before.
    pub fn hangs_at(&self, key: &K) -> Option<Duration> {
        self.members.get(key)?.hangs_at(self.sla)
    }

    /// When to look again: for the first that may hang, or that has been idle for too long.
    pub fn next_deadline(&self) -> Option<Duration> {
        let hangs = self.members.values().filter_map(|health| health.hangs_at(self.sla));
        hangs.chain(self.pool.next_expiry()).min()
    }

    /// A warm one, if there is one that is healthy now.
    pub fn request(&mut self, now: Duration) -> Request<K> {
        while let Some(key) = self.pool.take() {
            if let Ok(Healthy(key)) = self.healthy(key, now) {
                return Request::Warm(key);
            }
        }
        Request::Make
    }

    /// Takes this one out of the pool, because somebody has chosen it.
    pub fn claim(&mut self, key: &K) -> bool {
        self.pool.remove(key)
    }

    /// From now on the pool keeps to these; what is in it stays until its time.
    pub fn set_limits(&mut self, limits: PoolLimits) {
        self.pool.set_limits(limits);
    }

    /// Takes one back that is alive and well, to be given out again. What is returned was pushed out, and must be ended.
    pub fn release(&mut self, key: K, now: Duration) -> Result<Option<K>, Refused> {
        self.hung(now);
        let healthy = self.healthy(key, now)?;
        Ok(self.pool.put(healthy, now))
    }

    /// Takes those out of the pool that nobody has needed for too long; they must be ended.
    pub fn expired(&mut self, now: Duration) -> Vec<K> {
        self.hung(now);
        self.pool.expire(now)
    }

    /// The one place where health is attested.
    fn healthy(&self, key: K, now: Duration) -> Result<Healthy<K>, Refused> {
        let health = self.members.get(&key).ok_or(Refused::Unknown)?;
        match health.hangs_at(self.sla) {
            None => Err(Refused::NotRunning(health.lifecycle)),
            Some(at) if now >= at => Err(Refused::Hangs),
            Some(_) => Ok(Healthy(key)),
        }
    }
}
