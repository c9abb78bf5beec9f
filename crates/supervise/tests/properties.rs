//! Whatever happens, in whatever order.

use hodei_supervise::{Cause, Crash, GOOD_WORK, Lifecycle, PoolLimits, Request, Sla, Supervisor, Swarm, Verdict};
use proptest::prelude::*;
use std::{collections::BTreeMap, time::Duration};

#[derive(Clone, Debug)]
enum Act {
    Watch(u8),
    Ready(u8),
    Beat(u8),
    Stop(u8),
    Exit(u8),
    Forget(u8),
    Release(u8),
    Request,
    Hung,
    Expire,
}

fn act() -> impl Strategy<Value = Act> {
    let key = 0..4_u8;
    prop_oneof![
        3 => key.clone().prop_map(Act::Watch),
        3 => key.clone().prop_map(Act::Ready),
        3 => key.clone().prop_map(Act::Beat),
        1 => key.clone().prop_map(Act::Stop),
        1 => key.clone().prop_map(Act::Exit),
        1 => key.clone().prop_map(Act::Forget),
        6 => key.prop_map(Act::Release),
        2 => Just(Act::Request),
        1 => Just(Act::Hung),
        1 => Just(Act::Expire),
    ]
}

fn sla() -> impl Strategy<Value = Sla> {
    prop::sample::select(Sla::ALL.to_vec())
}

fn is_healthy(swarm: &Swarm<u8>, key: u8, now: Duration) -> bool {
    let health = swarm.health(&key).expect("watched");
    health.lifecycle == Lifecycle::Running && now < health.last_beat + swarm.sla().hang()
}

proptest! {
    #[test]
    fn the_pool_is_healthy_and_bounded(
        sla in sla(),
        capacity in 0..4_usize,
        warm in 0..4_usize,
        acts in prop::collection::vec((act(), 0..4_000_u64), 0..200),
    ) {
        let mut swarm = Swarm::new(sla, PoolLimits { capacity, warm, ttl: Duration::from_secs(20) });
        let mut now = Duration::ZERO;
        for (act, after) in acts {
            now += Duration::from_millis(after);
            match act {
                Act::Watch(key) => _ = swarm.watch(key, now),
                Act::Ready(key) => _ = swarm.ready(&key, now),
                Act::Beat(key) => swarm.beat(&key, now),
                Act::Stop(key) => _ = swarm.stop(&key),
                Act::Exit(key) => _ = swarm.exited(&key),
                Act::Forget(key) => swarm.forget(&key),
                Act::Release(key) => {
                    let was_healthy = swarm.health(&key).is_some() && is_healthy(&swarm, key, now);
                    prop_assert_eq!(swarm.release(key, now).is_ok(), was_healthy);
                }
                Act::Request => {
                    if let Request::Warm(key) = swarm.request(now) {
                        prop_assert!(is_healthy(&swarm, key, now) && !swarm.pool().contains(&key));
                    }
                }
                Act::Hung => _ = swarm.hung(now),
                Act::Expire => {
                    swarm.expired(now);
                    let due = swarm.next_deadline();
                    prop_assert!(swarm.pool().len() <= warm || due.is_some());
                }
            }
            prop_assert!(swarm.pool().len() <= capacity);
            swarm.hung(now);
            let in_pool: Vec<_> = swarm.pool().keys().copied().collect();
            prop_assert!(in_pool.into_iter().all(|key| is_healthy(&swarm, key, now)));
        }
    }

    /// Between two stretches of good work, and without a person, a place is filled at most as often as its SLA allows, never
    /// before its time, and one place never moves another.
    #[test]
    fn restart_budgets_are_never_exceeded(
        sla in sla(),
        crashes in prop::collection::vec((0..3_u8, 0..90_000_u64, any::<bool>()), 0..100),
    ) {
        let mut supervisor: Supervisor<u8, u8> = Supervisor::new(sla);
        let mut now = Duration::ZERO;
        let mut places: BTreeMap<u8, (u32, Option<Duration>)> = BTreeMap::new();
        for key in 0..3 {
            supervisor.supervise(key);
            supervisor.up(&key, now);
            places.insert(key, (0, Some(now)));
        }
        for (key, after, asked) in crashes {
            now += Duration::from_millis(after);
            for due in supervisor.due(now) {
                supervisor.up(&due, now);
                places.entry(due).and_modify(|(_, up)| *up = Some(now));
            }
            let (used, up) = places.get_mut(&key).expect("one of three");
            let Some(since) = *up else {
                prop_assert!(supervisor.due(now).is_empty());
                if asked {
                    supervisor.ask(&key, now);
                    *used = 0;
                }
                continue;
            };
            if now - since >= GOOD_WORK {
                *used = 0;
            }
            let crash = Crash::new(Cause::Exited, "exited with code 1", now - since).with_exit(Some(1), None);
            match supervisor.crashed(&key, crash, now) {
                Verdict::RestartAt(at) => {
                    *used += 1;
                    prop_assert!(*used <= sla.restarts());
                    prop_assert_eq!(at, now + sla.backoff(*used));
                }
                Verdict::GaveUp => {
                    prop_assert_eq!(*used, sla.restarts());
                    prop_assert!(supervisor.has_given_up(&key));
                }
            }
            *up = None;
        }
    }
}
