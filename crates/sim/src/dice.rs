//! Chance, by name. What is drawn depends on the seed and on what it is drawn for, not on what was drawn before: when a
//! part of a history is left out, the rest happens as it did.

use fastrand::Rng;

#[derive(Clone, Copy, Debug)]
pub struct Dice {
    seed: u64,
}

/// What a draw is for.
#[derive(Clone, Copy, Debug)]
pub enum For {
    Plan = 1,
    Up,
    Down,
    Open,
    Disk,
    Crash,
    Turn,
    Read,
    Call,
    Process,
    Agent,
    Maker,
}

impl Dice {
    pub fn new(seed: u64) -> Self {
        Self { seed }
    }

    pub fn roll(self, what: For, a: u64, b: u64) -> Rng {
        Rng::with_seed(mix(mix(mix(self.seed ^ ((what as u64) << 56)) ^ a) ^ b))
    }
}

/// SplitMix64's finaliser.
fn mix(seed: u64) -> u64 {
    let mut x = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
