//! What a worker must be like for a job.

use super::Needs;
use crate::{
    defect::{Defect, planted},
    requirements::{Capability, Constraints, Isolation, Requirements, Taint, TaintEffect, Toleration},
    worker::{Capacity, Offer, WorkerInfo, WorkerRecord},
};
use std::{collections::BTreeMap, sync::Arc};

/// What can keep a job off a worker, in the order in which they are asked: what the worker is comes first, then how large
/// it is, then how it is just now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Filter {
    /// It is not connected, or it is leaving.
    State,
    TaskType,
    Isolation,
    Image,
    Capabilities,
    Selector,
    Zone,
    Taints,
    /// It is too small, or too much of it is taken.
    Capacity,
    Slots,
    /// Its score is below what the scheduler is set to accept.
    Threshold,
}

/// A worker that cannot take a job, and why not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dropped {
    pub filter: Filter,
    pub why: String,
}

/// What a worker is, whatever it does just now.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Traits {
    pub offer: Offer,
    pub labels: BTreeMap<Arc<str>, Arc<str>>,
    pub taints: Vec<Taint>,
    pub capabilities: Vec<Capability>,
    pub zone: Option<Arc<str>>,
    pub isolation: Isolation,
    pub image: Option<Arc<str>>,
    pub provider: Option<Arc<str>>,
}

impl Traits {
    pub fn of(record: &WorkerRecord) -> Self {
        let provider = record.origin.as_ref().map(|origin| Arc::clone(&origin.provider));
        Self { provider, ..Self::of_info(&record.info) }
    }

    /// Of a worker that nobody made yet.
    pub fn of_info(info: &WorkerInfo) -> Self {
        Self {
            offer: info.offer.clone(),
            labels: info.labels.clone(),
            taints: info.taints.clone(),
            capabilities: info.capabilities.clone(),
            zone: info.zone.clone(),
            isolation: info.isolation,
            image: info.image.clone(),
            provider: None,
        }
    }

    /// The first filter that such a worker does not pass.
    pub fn unmet(&self, needs: &Needs) -> Option<Filter> {
        if !self.offer.includes(needs.task_type) {
            return Some(Filter::TaskType);
        }
        let Some(asked) = needs.requirements.constraints.as_deref() else {
            return self.repelled_by(&[]).is_some().then_some(Filter::Taints);
        };
        let has = |wanted: &Capability| self.capabilities.iter().any(|own| own.provides(wanted));
        let checks = [
            (Filter::Isolation, self.isolation >= asked.isolation),
            (Filter::Image, asked.image.is_none() || asked.image == self.image),
            (Filter::Capabilities, asked.capabilities.iter().all(has)),
            (Filter::Selector, asked.selector.iter().all(|expression| expression.holds(&self.labels))),
            (Filter::Zone, !asked.zone_required || asked.zone == self.zone),
            (Filter::Taints, self.repelled_by(&asked.tolerations).is_none()),
        ];
        checks.into_iter().find(|(_, passes)| !passes).map(|(filter, _)| filter)
    }

    /// The first taint that keeps a job off which tolerates no more than this.
    fn repelled_by(&self, tolerations: &[Toleration]) -> Option<&Taint> {
        self.taints.iter().filter(|_| !planted(Defect::TaintIgnored)).find(|taint| {
            taint.effect == TaintEffect::NoSchedule && !tolerations.iter().any(|toleration| toleration.covers(taint))
        })
    }

    /// Why such a worker does not pass a filter that it does not pass.
    pub fn why_not(&self, filter: Filter, needs: &Needs) -> String {
        let none = Constraints::default();
        let asked = needs.requirements.constraints.as_deref().unwrap_or(&none);
        let of = |own: &Option<Arc<str>>| own.as_deref().unwrap_or("none").to_owned();
        match filter {
            Filter::TaskType => match needs.task_type {
                Some(task_type) => format!("it does not handle tasks of type {task_type}"),
                None => "it runs tasks only, no processes".into(),
            },
            Filter::Isolation => {
                format!("it isolates by {} and the job asks for {}", self.isolation.name(), asked.isolation.name())
            }
            Filter::Image => format!("its image is {} and the job asks for {}", of(&self.image), of(&asked.image)),
            Filter::Capabilities => {
                let lacks = |wanted: &&Capability| !self.capabilities.iter().any(|own| own.provides(wanted));
                let lacking = asked.capabilities.iter().find(lacks);
                format!("it has no capability {}", lacking.map(ToString::to_string).unwrap_or_default())
            }
            Filter::Selector => {
                let failing = asked.selector.iter().find(|expression| !expression.holds(&self.labels));
                format!("its labels do not match {}", failing.map(ToString::to_string).unwrap_or_default())
            }
            Filter::Zone => format!("its zone is {} and the job must be in {}", of(&self.zone), of(&asked.zone)),
            Filter::Taints => {
                let taint = self.repelled_by(&asked.tolerations).map(ToString::to_string);
                format!("the job does not tolerate its taint {}", taint.unwrap_or_default())
            }
            Filter::State | Filter::Capacity | Filter::Slots | Filter::Threshold => String::new(),
        }
    }
}

impl Filter {
    pub fn name(self) -> &'static str {
        match self {
            Filter::State => "state",
            Filter::TaskType => "task_type",
            Filter::Isolation => "isolation",
            Filter::Image => "image",
            Filter::Capabilities => "capabilities",
            Filter::Selector => "selector",
            Filter::Zone => "zone",
            Filter::Taints => "taints",
            Filter::Capacity => "capacity",
            Filter::Slots => "slots",
            Filter::Threshold => "threshold",
        }
    }

    /// Why a job waits when this is what all connected workers fail that pass the filters before it.
    pub(crate) fn nobody_passes(self, needs: &Needs) -> String {
        let none = Constraints::default();
        let asked = needs.requirements.constraints.as_deref().unwrap_or(&none);
        let list = |items: Vec<String>| items.join(", ");
        let text = |value: &Option<Arc<str>>| value.as_deref().unwrap_or_default().to_owned();
        match self {
            Filter::State => "no worker is connected".into(),
            Filter::TaskType => match needs.task_type {
                Some(task_type) => format!("no connected worker handles tasks of type {task_type}"),
                None => "no connected worker runs processes".into(),
            },
            Filter::Isolation => {
                format!("no connected worker isolates its jobs by {} or better", asked.isolation.name())
            }
            Filter::Image => format!("no connected worker runs in the image {}", text(&asked.image)),
            Filter::Capabilities => {
                let wanted = asked.capabilities.iter().map(ToString::to_string).collect();
                format!("no connected worker that could run it has what it asks for: {}", list(wanted))
            }
            Filter::Selector => {
                let wanted = asked.selector.iter().map(ToString::to_string).collect();
                format!("no connected worker that could run it has the labels that it selects: {}", list(wanted))
            }
            Filter::Zone => format!("no connected worker that could run it is in zone {}", text(&asked.zone)),
            Filter::Taints => "every connected worker that could run it has a taint that it does not tolerate".into(),
            Filter::Capacity => "no connected worker is large enough for its requirements".into(),
            Filter::Slots => "every worker that fits is busy".into(),
            Filter::Threshold => "every worker that fits has a score below the threshold".into(),
        }
    }
}

/// What of a job's requirements is more than there is, in words.
pub(crate) fn too_much(asked: &Requirements, whole: &Capacity, free: &Capacity) -> Option<Dropped> {
    let resources = [
        ("thousandths of a core", asked.cpu_millis, whole.cpu_millis, free.cpu_millis),
        ("bytes of memory", asked.memory_bytes, whole.memory_bytes, free.memory_bytes),
        ("bytes of disk", asked.disk_bytes, whole.disk_bytes, free.disk_bytes),
        ("gpus", asked.gpus.into(), whole.gpus.into(), free.gpus.into()),
    ];
    let dropped = |filter, why| Some(Dropped { filter, why });
    for (what, asked, whole, _) in resources {
        if asked > whole {
            return dropped(Filter::Capacity, format!("it has {whole} {what} and {asked} are asked for"));
        }
    }
    if whole.slots == 0 {
        return dropped(Filter::Capacity, "it has no slots".into());
    }
    if free.slots == 0 {
        return dropped(Filter::Slots, format!("all of its slots are taken ({})", whole.slots));
    }
    for (what, asked, whole, free) in resources {
        if asked > free {
            let why = format!("{free} of its {whole} {what} are free and {asked} are asked for");
            return dropped(Filter::Capacity, why);
        }
    }
    None
}
