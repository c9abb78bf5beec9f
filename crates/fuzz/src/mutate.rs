//! Changes to bytes that were good before: the mistakes that links, disks and hostile senders make.

use crate::rng::Rng;

/// Inputs grow no larger than this.
pub const LONGEST: usize = 256 << 10;

/// Changes `input` a few times; `other` lends a part of itself now and then.
pub fn mutate(input: &mut Vec<u8>, other: &[u8], rng: &mut Rng) {
    let most = if rng.once_in(4) { 12 } else { 3 };
    let times = 1 + rng.below(most);
    for _ in 0..times {
        once(input, other, rng);
    }
    input.truncate(LONGEST);
}

fn once(input: &mut Vec<u8>, other: &[u8], rng: &mut Rng) {
    let at = rng.below(input.len() + 1);
    match rng.below(12) {
        0 => flip(input, at, rng),
        1 => set(input, at, &[rng.number() as u8]),
        2 => set(input, at, &[*rng.pick(&[0, 1, 0x7f, 0x80, 0xfe, 0xff]).unwrap_or(&0)]),
        3 => {
            let length = 1 + rng.below(8);
            insert(input, at, &rng.bytes(length));
        }
        4 => {
            let end = (at + 1 + rng.below(16)).min(input.len());
            input.drain(at.min(end)..end);
        }
        5 => input.truncate(at),
        6 => {
            let (from, to) = part(other, rng);
            insert(input, at, &other[from..to]);
        }
        7 => {
            // The beginning of one and the end of another.
            input.truncate(at);
            input.extend_from_slice(&other[rng.below(other.len() + 1)..]);
        }
        8 => number(input, at, rng),
        9 => insert(input, at, &varint(rng.odd())),
        10 => repeat(input, rng),
        _ => lengthen(input, at, rng),
    }
}

fn flip(input: &mut [u8], at: usize, rng: &mut Rng) {
    if let Some(byte) = input.get_mut(at) {
        *byte ^= 1 << rng.below(8);
    }
}

fn set(input: &mut [u8], at: usize, bytes: &[u8]) {
    if let Some(place) = input.get_mut(at..at + bytes.len()) {
        place.copy_from_slice(bytes);
    }
}

fn insert(input: &mut Vec<u8>, at: usize, bytes: &[u8]) {
    input.splice(at..at, bytes.iter().copied());
}

fn part(of: &[u8], rng: &mut Rng) -> (usize, usize) {
    let from = rng.below(of.len() + 1);
    (from, from + rng.below((of.len() - from).min(64) + 1))
}

/// Puts an interesting number where some format keeps one.
fn number(input: &mut [u8], at: usize, rng: &mut Rng) {
    let number = rng.odd();
    match rng.below(6) {
        0 => set(input, at, &(number as u16).to_le_bytes()),
        1 => set(input, at, &(number as u16).to_be_bytes()),
        2 => set(input, at, &(number as u32).to_le_bytes()),
        3 => set(input, at, &(number as u32).to_be_bytes()),
        4 => set(input, at, &number.to_le_bytes()),
        _ => set(input, at, &number.to_be_bytes()),
    }
}

/// The same block many times over.
fn repeat(input: &mut Vec<u8>, rng: &mut Rng) {
    let (from, to) = part(input, rng);
    let block = input[from..to].to_vec();
    let times = if rng.once_in(8) { rng.below(100_000) } else { rng.below(20) };
    let times = times.min((LONGEST - input.len().min(LONGEST)) / block.len().max(1));
    insert(input, to, &block.repeat(times));
}

/// A byte becomes a number of several bytes, as a length that lies does.
fn lengthen(input: &mut Vec<u8>, at: usize, rng: &mut Rng) {
    if at < input.len() {
        input.splice(at..=at, varint(rng.odd()));
    }
}

pub fn varint(mut number: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(10);
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
    bytes
}

/// The smallest input that deleting blocks leads to and that still `fails`.
pub fn minimise(input: &[u8], mut fails: impl FnMut(&[u8]) -> bool) -> Vec<u8> {
    let mut smallest = input.to_vec();
    let mut block = smallest.len().div_ceil(2);
    let mut patience = 3000;
    while block > 0 && patience > 0 {
        let mut at = 0;
        while at < smallest.len() && patience > 0 {
            patience -= 1;
            let mut shorter = smallest.clone();
            shorter.drain(at..(at + block).min(smallest.len()));
            if fails(&shorter) {
                smallest = shorter;
            } else {
                at += block;
            }
        }
        block /= 2;
    }
    smallest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_matters_is_what_is_left() {
        let input: Vec<u8> = (0..=255).cycle().take(3000).collect();
        let bad = |input: &[u8]| input.contains(&7) && input.contains(&200);
        let mut left = minimise(&input, bad);
        left.sort_unstable();
        assert_eq!(left, [7, 200]);
    }

    #[test]
    fn mutation_is_the_same_for_the_same_seed() {
        let changed = |seed| {
            let (mut input, mut rng) = (b"some valid input".to_vec(), Rng::new(seed));
            mutate(&mut input, b"another one", &mut rng);
            input
        };
        assert_eq!(changed(3), changed(3));
        assert!((0..100).filter(|seed| changed(*seed) != b"some valid input").count() > 80);
    }

    #[test]
    fn numbers_are_written_as_protobuf_does() {
        assert_eq!(varint(300), [0xac, 0x02]);
        assert_eq!(varint(u64::MAX).len(), 10);
    }
}
