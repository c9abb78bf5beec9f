//! Decisions of the scheduler, and its settings.

use crate::v1;
use hodei_core::{
    placement::{Choice, Considered, Decision, FleetPolicy, SchedulerSettings, Score, Strategy},
    provider::ProviderStrategy,
    spec::Invalid,
    state::StateKind,
};

pub fn scheduler_to_wire(settings: SchedulerSettings) -> v1::SchedulerSettings {
    v1::SchedulerSettings {
        strategy: settings.strategy.name().to_owned(),
        threshold: settings.threshold.into(),
        fleet: settings.fleet.name().to_owned(),
        provider_strategy: settings.provider_strategy.name().to_owned(),
    }
}

/// What is empty has its default.
pub fn scheduler_from_wire(wire: v1::SchedulerSettings) -> Result<SchedulerSettings, Invalid> {
    let v1::SchedulerSettings { strategy, threshold, fleet, provider_strategy } = wire;
    let changes = v1::ConfigureSchedulerRequest { strategy, threshold: Some(threshold), fleet, provider_strategy };
    scheduler_changed(SchedulerSettings::default(), &changes)
}

/// What is empty or unset stays as it is.
pub fn scheduler_changed(
    now: SchedulerSettings,
    changes: &v1::ConfigureSchedulerRequest,
) -> Result<SchedulerSettings, Invalid> {
    let threshold = match changes.threshold {
        None => now.threshold,
        Some(points) => u8::try_from(points)
            .ok()
            .filter(|points| *points <= 100)
            .ok_or_else(|| Invalid::new("threshold", "must be between 0 and 100"))?,
    };
    let strategies = Strategy::ALL.map(Strategy::name);
    let makers = ProviderStrategy::ALL.map(ProviderStrategy::name);
    Ok(SchedulerSettings {
        strategy: one_of("strategy", &changes.strategy, now.strategy, Strategy::parse, &strategies)?,
        threshold,
        fleet: one_of("fleet", &changes.fleet, now.fleet, FleetPolicy::parse, &["open", "closed"])?,
        provider_strategy: one_of(
            "provider_strategy",
            &changes.provider_strategy,
            now.provider_strategy,
            ProviderStrategy::parse,
            &makers,
        )?,
    })
}

fn one_of<T>(field: &str, text: &str, now: T, parse: fn(&str) -> Option<T>, names: &[&str]) -> Result<T, Invalid> {
    if text.is_empty() {
        return Ok(now);
    }
    parse(text).ok_or_else(|| Invalid::new(field, format!("'{text}' is none of {}", names.join(", "))))
}

/// `state` is that of the job, if it exists.
pub fn decision_to_wire(decision: Decision, state: Option<StateKind>) -> v1::SchedulingDecision {
    let kind = match decision.choice {
        Choice::Assign(_) => v1::Decision::Assign,
        Choice::Provision { .. } => v1::Decision::Provision,
        Choice::Enqueue => v1::Decision::Enqueue,
        Choice::Reject => v1::Decision::Reject,
    };
    let (worker_id, provider, template) = match decision.choice {
        Choice::Assign(worker) => (worker.to_string(), String::new(), String::new()),
        Choice::Provision { provider, template } => (String::new(), provider.to_string(), template.to_string()),
        Choice::Enqueue | Choice::Reject => Default::default(),
    };
    v1::SchedulingDecision {
        decision: kind.into(),
        reason: decision.reason,
        worker_id,
        provider,
        template,
        workers: decision.workers.into_iter().map(considered_to_wire).collect(),
        strategy: decision.strategy.name().to_owned(),
        state: state.map(|state| state.name().to_owned()).unwrap_or_default(),
    }
}

fn considered_to_wire(considered: Considered) -> v1::Considered {
    let Considered { worker, name, fate } = considered;
    let (filter, why, score) = match fate {
        Ok(score) => (String::new(), String::new(), Some(score_to_wire(score))),
        Err(dropped) => (dropped.filter.name().to_owned(), dropped.why, None),
    };
    v1::Considered { worker_id: worker.to_string(), name, filter, why, score }
}

fn score_to_wire(score: Score) -> v1::Score {
    let points = |hundredths: u32| f64::from(hundredths) / 100.0;
    v1::Score {
        total: points(score.total()),
        capacity: points(score.capacity),
        load: points(score.load),
        affinity: points(score.affinity),
        zone: points(score.zone),
        history: points(score.history),
    }
}
