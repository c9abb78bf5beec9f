//! Which worker may run which job, written down a second time, and what is rejected because none may.

use super::{Needs, Rule, broken, firsts};
use crate::world::World;
use hodei_core::{
    job::Job,
    placement::FleetPolicy,
    requirements::{Capability, Constraints, Operator, Requirements, TaintEffect},
    state::FailureKind,
    worker::{Phase, WorkerInfo},
};

pub(super) fn may_run(info: &WorkerInfo, task_type: Option<&str>, requirements: &Requirements) -> bool {
    let none = Constraints::default();
    let asked = requirements.constraints.as_deref().unwrap_or(&none);
    let selected = asked.selector.iter().all(|condition| {
        let value = info.labels.get(&condition.key);
        let listed = value.is_some_and(|value| condition.values.contains(value));
        match condition.operator {
            Operator::In => listed,
            Operator::NotIn => !listed,
            Operator::Exists => value.is_some(),
            Operator::DoesNotExist => value.is_none(),
        }
    });
    let tolerated = info.taints.iter().filter(|taint| taint.effect == TaintEffect::NoSchedule).all(|taint| {
        asked.tolerations.iter().any(|one| match (&one.key, &one.value) {
            (None, None) => true,
            (Some(key), None) => *key == taint.key,
            (None, Some(value)) => *value == taint.value,
            (Some(key), Some(value)) => *key == taint.key && *value == taint.value,
        })
    });
    let has = |wanted: &Capability| {
        let same = info.capabilities.iter().filter(|own| own.name == wanted.name);
        let mut parameters = same.map(|own| &own.parameters);
        parameters.any(|own| wanted.parameters.iter().all(|(key, value)| own.get(key) == Some(value)))
    };
    info.offer.includes(task_type)
        && selected
        && tolerated
        && asked.capabilities.iter().all(has)
        && (!asked.zone_required || asked.zone == info.zone)
        && (asked.image.is_none() || asked.image == info.image)
        && info.isolation as u8 >= asked.isolation as u8
}

impl World {
    /// Whether any worker that the brain knows, and that is to stay or may come back, could run this if it had nothing else to
    /// do.
    fn anybody_could(&self, needs: &Needs) -> bool {
        let mut workers = self.server.brain.iter().flat_map(|brain| brain.kept_workers());
        workers.any(|record| {
            matches!(record.phase, Phase::Active | Phase::Creating | Phase::Connecting)
                && may_run(&record.info, needs.task_type.as_deref(), &needs.requirements)
                && record.info.capacity.fits(&needs.requirements)
        })
    }

    /// A job is rejected in a closed fleet, and only if nothing there could run it.
    pub(super) fn check_rejected(&self, job: &Job) {
        let Some(failure) = job.rejected().filter(|failure| failure.kind == FailureKind::Rejected) else { return };
        let closed = self.server.brain.as_ref().is_some_and(|brain| brain.scheduler().fleet == FleetPolicy::Closed);
        if !closed || self.anybody_could(&Needs::of(job)) {
            broken(Rule::RejectedOnlyWhenHopeless, job.id, format!("it was rejected: {}", failure.message));
        }
    }

    /// In a closed fleet nothing waits that nothing could run.
    pub(super) fn check_hopeless(&self) {
        let Some(brain) = &self.server.brain else { return };
        if brain.scheduler().fleet == FleetPolicy::Open || brain.is_reading() || self.makes_workers() {
            return;
        }
        for (_, (job, needs)) in self.ledger.pending.values().flat_map(firsts) {
            if !self.anybody_could(needs) {
                broken(Rule::RejectedOnlyWhenHopeless, *job, "it waits in a closed fleet that could never run it");
            }
        }
    }
}
