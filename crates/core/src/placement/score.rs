//! How good a worker is for a job that it can run, out of 100 points.
//!
//! Whole numbers of hundredths of points, so that every server comes to the same end.

use super::{Needs, Strategy, Traits};
use crate::{
    requirements::{Requirements, TaintEffect},
    worker::{Capacity, Tally},
};

/// The points of each factor, in hundredths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Score {
    /// Out of 30: of each resource that the job asks for, the share that stays free when it has what it asks for; the least
    /// of them counts. Full for a job that asks for none.
    pub capacity: u32,
    /// Out of 25: the share of its slots that are free.
    pub load: u32,
    /// Out of 20: the share of the job's wishes that it meets. A wish is the provider that the job prefers, and to have none
    /// of the taints that only prefer other jobs and that it does not tolerate. Full where nothing is wished for.
    pub affinity: u32,
    /// Out of 15: full in the zone that the job prefers, and for a job that prefers none.
    pub zone: u32,
    /// Out of 10, in whole points: the share of such jobs that succeeded here, with one success for a start.
    pub history: u32,
}

/// The part of a score that is the same for all workers with the same traits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wishes {
    pub affinity: u32,
    pub zone: u32,
}

pub(crate) const CAPACITY: u32 = 3000;
const LOAD: u32 = 2500;
const AFFINITY: u32 = 2000;
const ZONE: u32 = 1500;
pub(crate) const HISTORY: u32 = 1000;
/// History is counted in whole points, so that one failure among many does not tell two workers apart.
const POINT: u32 = 100;

impl Score {
    pub fn new(wishes: Wishes, asked: &Requirements, whole: &Capacity, free: &Capacity, tally: Option<&Tally>) -> Self {
        Self {
            capacity: capacity(asked, whole, free),
            load: load(whole, free),
            affinity: wishes.affinity,
            zone: wishes.zone,
            history: history(tally),
        }
    }

    /// In hundredths of points.
    pub fn total(&self) -> u32 {
        self.capacity + self.load + self.affinity + self.zone + self.history
    }
}

impl Wishes {
    pub fn of(needs: &Needs, traits: &Traits) -> Self {
        let constraints = needs.requirements.constraints.as_deref();
        let tolerations = constraints.map_or(&[][..], |asked| &asked.tolerations);
        let unwelcome = traits.taints.iter().filter(|taint| {
            let tolerated = tolerations.iter().any(|toleration| toleration.covers(taint));
            taint.effect == TaintEffect::PreferNoSchedule && !tolerated
        });
        let unwelcome = unwelcome.count() as u64;
        let provider = constraints.and_then(|asked| asked.provider.as_ref());
        let met = u64::from(provider.is_some() && provider == traits.provider.as_ref());
        let wished = unwelcome + u64::from(provider.is_some());
        let zone = constraints.and_then(|asked| asked.zone.as_ref());
        let there = zone.is_none() || zone == traits.zone.as_ref();
        let affinity = if wished == 0 { AFFINITY } else { share(AFFINITY, met, wished) };
        Self { affinity, zone: if there { ZONE } else { 0 } }
    }

    pub fn total(self) -> u32 {
        self.affinity + self.zone
    }
}

fn share(of: u32, part: u64, whole: u64) -> u32 {
    if whole == 0 {
        return 0;
    }
    // A share is at most the whole.
    u32::try_from(u128::from(of) * u128::from(part.min(whole)) / u128::from(whole)).unwrap_or(of)
}

fn capacity(asked: &Requirements, whole: &Capacity, free: &Capacity) -> u32 {
    let resources = [
        (asked.cpu_millis, whole.cpu_millis, free.cpu_millis),
        (asked.memory_bytes, whole.memory_bytes, free.memory_bytes),
        (asked.disk_bytes, whole.disk_bytes, free.disk_bytes),
        (asked.gpus.into(), whole.gpus.into(), free.gpus.into()),
    ];
    let asked = resources.into_iter().filter(|(asked, ..)| *asked > 0);
    asked.map(|(asked, whole, free)| share(CAPACITY, free.saturating_sub(asked), whole)).min().unwrap_or(CAPACITY)
}

fn load(whole: &Capacity, free: &Capacity) -> u32 {
    share(LOAD, free.slots.into(), whole.slots.into())
}

fn history(tally: Option<&Tally>) -> u32 {
    let Some(Tally { succeeded, failed }) = tally else { return HISTORY };
    let points = share(HISTORY, succeeded + 1, succeeded + failed + 1);
    (points + POINT / 2) / POINT * POINT
}

/// Where a worker stands among those with the same traits, whatever the job: the least goes first.
pub(crate) type Rank = (u64, u64);

/// What a strategy goes by besides what a job asks for.
pub(crate) fn rank(strategy: Strategy, whole: &Capacity, free: &Capacity, held: u64, turn: u64) -> Rank {
    match strategy {
        Strategy::Smart | Strategy::Affinity => ((LOAD - load(whole, free)).into(), (u32::MAX - free.slots).into()),
        Strategy::RoundRobin => (turn, 0),
        Strategy::LeastConnections => (held, 0),
        Strategy::ResourcePriority => (u64::MAX - free.cpu_millis, u64::MAX - free.memory_bytes),
    }
}

/// The load that a rank by [`Strategy::Smart`] stands for.
pub(crate) fn load_of((rank, _): Rank) -> u32 {
    LOAD - u32::try_from(rank).unwrap_or(LOAD).min(LOAD)
}

/// The points by which a strategy compares workers before it looks at their ranks.
pub(crate) fn points(strategy: Strategy, score: &Score) -> u32 {
    match strategy {
        Strategy::Smart => score.total(),
        Strategy::Affinity => score.affinity + score.zone,
        Strategy::RoundRobin | Strategy::LeastConnections | Strategy::ResourcePriority => 0,
    }
}
