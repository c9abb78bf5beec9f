//! Random histories. `PROPTEST_CASES` and `PROPTEST_RNG_SEED` ask for more and for others.

use super::world::{Step, World};
use proptest::{prelude::*, test_runner::RngSeed};

fn config(cases: u32) -> ProptestConfig {
    let set = |name| std::env::var_os(name).is_some();
    let mut config = ProptestConfig { failure_persistence: None, ..ProptestConfig::default() };
    if !set("PROPTEST_CASES") {
        config.cases = cases;
    }
    if !set("PROPTEST_RNG_SEED") {
        config.rng_seed = RngSeed::Fixed(2);
    }
    config
}

fn step() -> impl Strategy<Value = Step> {
    let any = any::<u8>();
    prop_oneof![
        12 => (any, 1u8..6).prop_map(|(kind, count)| Step::Enqueue { kind, count }),
        3 => any.prop_map(Step::Cancel),
        3 => any.prop_map(Step::Retry),
        14 => (0u16..1900).prop_map(Step::Pass),
        1 => (2000u16..9000).prop_map(Step::Pass),
        22 => prop::bool::weighted(0.1).prop_map(|frozen| Step::Turn { frozen }),
        22 => Just(Step::Commit),
        10 => any.prop_map(Step::Read),
        10 => any.prop_map(Step::Page),
        30 => any.prop_map(Step::Up),
        30 => any.prop_map(Step::Down),
        8 => any.prop_map(Step::Connect),
        2 => (any, prop::bool::ANY).prop_map(|(agent, lose)| Step::Cut { agent, lose }),
        12 => any.prop_map(Step::Start),
        2 => any.prop_map(Step::Progress),
        12 => (any, any).prop_map(|(agent, how)| Step::Finish { agent, how }),
        2 => any.prop_map(Step::Stale),
        2 => any.prop_map(Step::Rebirth),
        1 => any.prop_map(Step::Freeze),
        2 => any.prop_map(Step::Thaw),
        1 => any.prop_map(Step::Drain),
        1 => Just(Step::Restart),
        1 => Just(Step::Park),
    ]
}

proptest! {
    #![proptest_config(config(150))]

    #[test]
    fn whatever_happens_every_job_ends_once_and_in_order(steps in prop::collection::vec(step(), 100..400)) {
        let mut world = World::new(3);
        for step in &steps {
            world.take(step);
        }
        world.calm_down();
    }
}
