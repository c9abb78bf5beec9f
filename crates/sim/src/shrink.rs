//! Makes a failing history as small as it gets, and tells it.

use crate::{
    defect::Defect,
    plan::{Plan, What},
    run::{Failure, run},
};
use clap::ValueEnum;
use std::{
    fmt::Write,
    time::{Duration, Instant},
};

/// How long to look for a smaller history.
const PATIENCE: Duration = Duration::from_secs(20);

struct Search {
    plan: Plan,
    failure: Box<Failure>,
    defect: Option<Defect>,
    until: Instant,
}

impl Search {
    /// Keeps a smaller plan that breaks the same rule.
    fn try_plan(&mut self, plan: Plan) -> bool {
        if Instant::now() > self.until {
            return false;
        }
        match run(&plan, self.defect, false) {
            Err(failure) if failure.rule() == self.failure.rule() => {
                (self.plan, self.failure) = (plan, failure);
                true
            }
            _ => false,
        }
    }

    /// What lies after the failure did not cause it.
    fn cut_tail(&mut self) {
        let mut plan = self.plan.clone();
        plan.items.retain(|item| item.at <= self.failure.time);
        self.try_plan(plan);
    }

    /// Leaves out ever smaller parts, until no single item can be left out.
    fn drop_items(&mut self) {
        let mut size = self.plan.items.len().div_ceil(2);
        while size > 0 && Instant::now() <= self.until {
            let mut at = 0;
            let mut any = false;
            while at < self.plan.items.len() {
                let mut plan = self.plan.clone();
                plan.items.drain(at..(at + size).min(plan.items.len()));
                if self.try_plan(plan) {
                    any = true;
                } else {
                    at += size;
                }
            }
            if !any || size > 1 {
                size /= 2;
            }
        }
    }

    fn drop_agents(&mut self) {
        while self.plan.shape.agents > 1 {
            let mut plan = self.plan.clone();
            plan.shape.agents -= 1;
            if !self.try_plan(plan) {
                return;
            }
        }
    }

    fn drop_jobs(&mut self) {
        for at in 0..self.plan.items.len() {
            while let What::Enqueue { count, .. } = self.plan.items[at].what
                && count > 1
            {
                let mut plan = self.plan.clone();
                if let What::Enqueue { count, .. } = &mut plan.items[at].what {
                    *count /= 2;
                }
                if !self.try_plan(plan) {
                    break;
                }
            }
        }
    }
}

/// What to tell of a failing seed: what broke, how to see it again, and the smallest history found that breaks the same.
pub fn report(failure: &Failure, defect: Option<Defect>) -> String {
    let plan = Plan::of(failure.seed);
    let mut search = Search { plan, failure: Box::new(failure.clone()), defect, until: Instant::now() + PATIENCE };
    search.cut_tail();
    search.drop_items();
    search.drop_agents();
    search.drop_jobs();
    search.drop_items();

    let mut text = String::new();
    _ = writeln!(text, "{}", failure.headline());
    let planted = defect.and_then(|defect| defect.to_possible_value());
    let planted = planted.map(|value| format!(" --defect {}", value.get_name())).unwrap_or_default();
    _ = writeln!(text, "replay: cargo xtask sim --from {} --seeds 1{planted}", failure.seed);
    let (plan, items) = (&search.plan, search.plan.items.len());
    _ = writeln!(text, "\nThe smallest history found has {items} planned events on {} workers:", plan.shape.agents);
    _ = writeln!(text, "  {:?}", plan.shape);
    for item in &plan.items {
        _ = writeln!(text, "{:>9.3} s  {:?}", item.at as f64 / 1000.0, item.what);
    }
    if let Err(failure) = run(plan, defect, true) {
        _ = writeln!(text, "\nIts last events that concern the failure:");
        failure.trace.iter().for_each(|line| _ = writeln!(text, "{line}"));
        _ = writeln!(text, "{}", failure.headline());
    }
    text
}
