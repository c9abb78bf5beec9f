//! Choices that a seed repeats.

use std::ops::Range;

/// SplitMix64: small, and the same on every machine and in every version.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Sources of one seed for different purposes: how much is drawn from one does not matter to the others.
    pub fn apart(seed: u64, purpose: u64) -> Self {
        let mut random = Self(seed ^ purpose.wrapping_mul(0xd134_2543_de82_ef95));
        random.next();
        random
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// One of a range that is not empty.
    pub fn within(&mut self, range: Range<u64>) -> u64 {
        range.start + self.next() % (range.end - range.start).max(1)
    }

    pub fn chance(&mut self, percent: u64) -> bool {
        self.within(0..100) < percent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_repeats_its_choices_and_another_makes_others() {
        let draw = |mut random: Random| (0..20).map(|_| random.within(5..50)).collect::<Vec<_>>();
        assert_eq!(draw(Random::apart(7, 0)), draw(Random::apart(7, 0)));
        assert_ne!(draw(Random::apart(7, 0)), draw(Random::apart(8, 0)));
        assert_ne!(draw(Random::apart(7, 1)), draw(Random::apart(7, 2)));
        assert!(draw(Random::apart(7, 0)).iter().all(|n| (5..50).contains(n)));
    }
}
