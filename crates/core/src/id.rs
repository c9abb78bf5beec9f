//! Identifiers. Each is a UUID in a type of its own, so that one cannot stand where another is meant.

use serde::{Deserialize, Serialize};
use std::{
    collections::{HashMap, HashSet},
    fmt,
    hash::{BuildHasherDefault, Hasher},
    str::FromStr,
};
use uuid::Uuid;

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident),+ $(,)?) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub Uuid);

        impl $name {
            pub const NIL: Self = Self(Uuid::nil());

            pub fn from_slice(bytes: &[u8]) -> Option<Self> {
                Uuid::from_slice(bytes).ok().map(Self)
            }

            pub fn as_bytes(&self) -> &[u8; 16] {
                self.0.as_bytes()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({})", stringify!($name), self.0)
            }
        }

        impl FromStr for $name {
            type Err = uuid::Error;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                Uuid::parse_str(text).map(Self)
            }
        }
    )+};
}

ids! {
    /// One unit of work. UUIDv7, so that ids sort by the time of their making.
    JobId,
    /// One attempt at a job on one worker. It fences: whatever carries an old one changes nothing.
    ExecutionId,
    /// One worker agent, for as long as its registration lives.
    WorkerId,
    /// One schedule.
    ScheduleId,
    /// One message that is owed to somebody outside.
    DeliveryId,
    /// One credential of a person or a program.
    TokenId,
    /// One life of an agent process. A worker that comes back with another incarnation has lost what it ran.
    Incarnation,
}

/// Maps and sets by id. Ids are made by servers, so nobody can choose them to collide; their bits are spread enough.
pub type IdMap<K, V> = HashMap<K, V, BuildHasherDefault<IdHasher>>;
pub type IdSet<K> = HashSet<K, BuildHasherDefault<IdHasher>>;

#[derive(Clone, Copy, Debug, Default)]
pub struct IdHasher(u64);

impl Hasher for IdHasher {
    fn write(&mut self, bytes: &[u8]) {
        for part in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..part.len()].copy_from_slice(part);
            self.write_u64(u64::from_ne_bytes(word));
        }
    }

    fn write_u64(&mut self, word: u64) {
        // Counters are at one end of an id and times at the other; both halves of the product have something of all.
        let product = u128::from(self.0 ^ word) * 0x9e37_79b9_7f4a_7c15;
        self.0 = product as u64 ^ (product >> 64) as u64;
    }

    fn write_usize(&mut self, _length: usize) {}

    fn finish(&self) -> u64 {
        self.0
    }
}

/// A UUIDv7 made without randomness: no other server life has this epoch, and nothing else that this life makes has this
/// counter.
pub fn made(now_ms: i64, epoch: u64, counter: u64) -> Uuid {
    let high = ((now_ms as u64) << 16) | 0x7000 | ((counter >> 32) & 0x0fff);
    let low = (0b10 << 62) | ((epoch & 0x3fff_ffff) << 32) | (counter & 0xffff_ffff);
    Uuid::from_u64_pair(high, low)
}
