//! Those that are warm and wait for work.

use std::{collections::BTreeMap, time::Duration};

/// How many a pool holds, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolLimits {
    /// Never more than this.
    pub capacity: usize,
    /// So many stay however long nobody needs them.
    pub warm: usize,
    /// Those beyond end after so long without use.
    pub ttl: Duration,
}

/// One that was found healthy just now. Only a [`Swarm`](crate::Swarm) can say so, and only this can be put into a pool: one
/// that crashed has no way back.
#[derive(Debug)]
pub struct Healthy<K>(pub(crate) K);

/// Idle ones. The one that was used last is given first, so that those that are not needed are never used and can go.
#[derive(Clone, Debug)]
pub struct Pool<K> {
    limits: PoolLimits,
    /// Since when each is idle.
    idle: BTreeMap<K, Duration>,
}

impl<K: Ord + Clone> Pool<K> {
    pub(crate) fn new(limits: PoolLimits) -> Self {
        Self { limits, idle: BTreeMap::new() }
    }

    pub(crate) fn set_limits(&mut self, limits: PoolLimits) {
        self.limits = limits;
    }

    /// Puts one in. When that is one too many, the one that was used least recently is pushed out: it must be ended.
    pub(crate) fn put(&mut self, Healthy(key): Healthy<K>, now: Duration) -> Option<K> {
        self.idle.insert(key, now);
        if self.idle.len() <= self.limits.capacity {
            return None;
        }
        let coldest = self.idle.iter().min_by_key(|(_, since)| **since).map(|(key, _)| key.clone())?;
        self.idle.remove(&coldest);
        Some(coldest)
    }

    pub(crate) fn take(&mut self) -> Option<K> {
        let warmest = self.idle.iter().max_by_key(|(_, since)| **since).map(|(key, _)| key.clone())?;
        self.idle.remove(&warmest);
        Some(warmest)
    }

    pub(crate) fn remove(&mut self, key: &K) -> bool {
        self.idle.remove(key).is_some()
    }

    /// Takes out those that nobody has needed for too long.
    pub(crate) fn expire(&mut self, now: Duration) -> Vec<K> {
        let mut gone = Vec::new();
        while let Some((key, since)) = self.coldest_beyond_warm()
            && now >= since.saturating_add(self.limits.ttl)
        {
            self.idle.remove(&key);
            gone.push(key);
        }
        gone
    }

    pub(crate) fn next_expiry(&self) -> Option<Duration> {
        Some(self.coldest_beyond_warm()?.1.saturating_add(self.limits.ttl))
    }

    fn coldest_beyond_warm(&self) -> Option<(K, Duration)> {
        if self.idle.len() <= self.limits.warm {
            return None;
        }
        self.idle.iter().min_by_key(|(_, since)| **since).map(|(key, since)| (key.clone(), *since))
    }

    pub fn limits(&self) -> PoolLimits {
        self.limits
    }

    pub fn len(&self) -> usize {
        self.idle.len()
    }

    pub fn is_empty(&self) -> bool {
        self.idle.is_empty()
    }

    pub fn contains(&self, key: &K) -> bool {
        self.idle.contains_key(key)
    }

    /// How many are missing of those that should be warm at all times.
    pub fn missing(&self) -> usize {
        self.limits.warm.min(self.limits.capacity).saturating_sub(self.idle.len())
    }

    /// Each with the time since which it is idle.
    pub fn since(&self) -> impl Iterator<Item = (&K, Duration)> {
        self.idle.iter().map(|(key, since)| (key, *since))
    }

    pub fn keys(&self) -> impl Iterator<Item = &K> {
        self.idle.keys()
    }
}
