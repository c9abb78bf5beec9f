//! How often each address was wrong lately.

use hodei_core::time::{Elapsed, Millis};
use std::{
    collections::HashMap,
    net::{IpAddr, Ipv6Addr},
    sync::{Mutex, PoisonError},
};

/// Wrong credentials that an address may send at once.
const AT_ONCE: u64 = 10;
/// How long it takes until it may send one more.
const ONE_MORE: Millis = Millis(1000);
/// Addresses that are remembered are at most twice as many.
const GENERATION: usize = 5000;

/// For each address the time at which all is forgiven. Addresses come in two generations; when the younger one is full, the
/// older one is forgotten, so what is kept is bounded and the last ones seen are among it.
#[derive(Debug, Default)]
pub struct Failures {
    generations: Mutex<Generations>,
}

#[derive(Debug, Default)]
struct Generations {
    young: HashMap<IpAddr, Elapsed>,
    old: HashMap<IpAddr, Elapsed>,
}

impl Failures {
    /// Counts one more; if that is too many, how long its sender should wait.
    pub fn count(&self, ip: IpAddr, now: Elapsed) -> Option<Millis> {
        let ip = neighbourhood(ip);
        let mut generations = self.generations.lock().unwrap_or_else(PoisonError::into_inner);
        let Generations { young, old } = &mut *generations;
        let forgiven = young.get(&ip).or_else(|| old.get(&ip)).copied().unwrap_or(now).max(now);
        let debt = Millis((forgiven - now).0 + ONE_MORE.0);
        let allowed = Millis(AT_ONCE * ONE_MORE.0);
        let over = debt.0.saturating_sub(allowed.0);
        if young.len() >= GENERATION && !young.contains_key(&ip) {
            *old = std::mem::take(young);
        }
        young.insert(ip, if over > 0 { forgiven } else { now + debt });
        (over > 0).then_some(Millis(over))
    }
}

/// Who has one address of IPv6 has the whole network of it.
fn neighbourhood(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V4(_) => ip,
        IpAddr::V6(ip) => IpAddr::V6(Ipv6Addr::from_bits(ip.to_bits() & !u128::from(u64::MAX))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(n: u32) -> IpAddr {
        IpAddr::V4(n.into())
    }

    #[test]
    fn ten_at_once_then_one_a_second() {
        let failures = Failures::default();
        for _ in 0..10 {
            assert_eq!(failures.count(ip(1), Elapsed(0)), None);
        }
        assert_eq!(failures.count(ip(1), Elapsed(0)), Some(Millis(1000)));
        assert_eq!(failures.count(ip(1), Elapsed(400)), Some(Millis(600)), "what was refused costs nothing more");
        assert_eq!(failures.count(ip(2), Elapsed(400)), None, "another address");
        assert_eq!(failures.count(ip(1), Elapsed(1000)), None);
        assert_eq!(failures.count(ip(1), Elapsed(1000)), Some(Millis(1000)));
        assert!((0..10).all(|_| failures.count(ip(1), Elapsed(60_000)).is_none()), "all is forgiven");
    }

    #[test]
    fn memory_is_bounded_and_the_last_ones_are_remembered() {
        let failures = Failures::default();
        for n in 0..30_000 {
            failures.count(ip(n), Elapsed(0));
        }
        for _ in 0..9 {
            failures.count(ip(29_999), Elapsed(0));
        }
        assert!(failures.count(ip(29_999), Elapsed(0)).is_some());
        let generations = failures.generations.lock().expect("a lock");
        assert!(generations.young.len() + generations.old.len() <= 2 * GENERATION);
    }

    #[test]
    fn a_network_of_ipv6_is_one_sender() {
        let failures = Failures::default();
        let of = |n: u128| IpAddr::V6(Ipv6Addr::from_bits(0x2001_0db8 << 96 | n));
        assert!((0..10).all(|n| failures.count(of(n), Elapsed(0)).is_none()));
        assert!(failures.count(of(99), Elapsed(0)).is_some());
    }
}
