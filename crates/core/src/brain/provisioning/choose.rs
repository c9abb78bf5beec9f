//! Which provider makes a worker, and which worker a job would have made for it.

use super::{Provider, Provisioning};
use crate::{
    placement::{Needs, Traits},
    provider::{ErrorClass, ProviderFailure, ProviderHealth, ProviderStrategy},
    requirements::{Isolation, Requirements},
    template::{Reuse, WorkerTemplate},
    time::{Elapsed, Millis},
    worker::{Capacity, Offer, WorkerInfo},
};
use std::{cmp::Reverse, sync::Arc};

/// Between a failure and the next try, doubled each time.
const FIRST_HOLD: Millis = Millis::seconds(5);
const LONGEST_HOLD: Millis = Millis::seconds(300);
/// Where a Docker provider says which image a worker runs in that asks for none.
const DEFAULT_IMAGE: &str = "image";
/// Of workers that are made for a job without anybody having described them.
const ON_DEMAND: &str = "on-demand";

/// Something went wrong, and it is not tried again for a while.
#[derive(Clone, Debug)]
pub(super) struct Hold {
    pub until: Elapsed,
    pub failures: u32,
    pub why: Arc<str>,
}

impl Hold {
    /// After one more failure.
    pub fn after(before: Option<&Hold>, why: &str, now: Elapsed) -> Self {
        let failures = before.map_or(0, |hold| hold.failures) + 1;
        let wait = FIRST_HOLD.0.saturating_mul(1 << (failures - 1).min(16)).min(LONGEST_HOLD.0);
        Self { until: now + Millis(wait), failures, why: why.into() }
    }

    pub fn holds(&self, now: Elapsed) -> bool {
        now < self.until
    }
}

impl Provisioning {
    /// The provider that is to make such a worker, or why none is asked, in words.
    pub fn pick(&self, template: &WorkerTemplate, wish: Option<&str>, now: Elapsed) -> Result<Arc<str>, String> {
        let mut whys = Vec::new();
        let mut able = Vec::new();
        for provider in self.providers.values() {
            if !template.providers.is_empty() && !template.providers.contains(&provider.record.name) {
                continue;
            }
            match self.why_not(provider, now).or_else(|| self.why_not_this(provider, template, now)) {
                Some(why) => whys.push(format!("{} {why}", provider.record.name)),
                None => able.push(provider),
            }
        }
        let missing = template.providers.iter().filter(|name| !name.is_empty() && !self.providers.contains_key(*name));
        whys.extend(missing.map(|name| format!("there is no provider {name}, which {} names", template.name)));
        let wished = able.iter().find(|provider| Some(&*provider.record.name) == wish);
        let best = wished.copied().or_else(|| self.best_of(&able));
        let none = || if whys.is_empty() { "no provider can make such a worker".to_owned() } else { whys.join("; ") };
        best.map(|provider| Arc::clone(&provider.record.name)).ok_or_else(none)
    }

    /// The providers that would make such a worker if they had not made others.
    pub fn crowded(&self, template: &WorkerTemplate, now: Elapsed) -> Vec<Arc<str>> {
        let named = |name: &Arc<str>| template.providers.is_empty() || template.providers.contains(name);
        let would = |it: &&Provider| {
            named(&it.record.name)
                && self.why_not_ask(it, now).is_none()
                && self.is_full(it)
                && self.why_not_this(it, template, now).is_none()
        };
        self.providers.values().filter(would).map(|it| Arc::clone(&it.record.name)).collect()
    }

    fn is_full(&self, provider: &Provider) -> bool {
        self.workers_of(&provider.record.name) >= provider.record.cap
    }

    /// What keeps a provider from being asked for anything, in words that follow its name.
    pub(super) fn why_not(&self, provider: &Provider, now: Elapsed) -> Option<String> {
        let full = || self.is_full(provider).then(|| format!("is at its cap of {} workers", provider.record.cap));
        self.why_not_ask(provider, now).or_else(full)
    }

    fn why_not_ask(&self, provider: &Provider, now: Elapsed) -> Option<String> {
        let record = &provider.record;
        let mut of_it = self.made.values().filter(|made| made.provider == record.name);
        match (&provider.health, &provider.hold) {
            _ if record.leaving => Some("is being removed".into()),
            _ if !record.enabled => Some("is disabled".into()),
            (ProviderHealth::Unhealthy(why), _) => Some(format!("is unhealthy: {why}")),
            (_, Some(hold)) if hold.holds(now) => Some(format!("failed: {}", hold.why)),
            // One try tells whether it works again.
            (_, Some(hold)) if of_it.any(|made| made.is_coming()) => {
                Some(format!("is being tried again after it failed: {}", hold.why))
            }
            (ProviderHealth::Unknown, _) => Some("has not been asked yet how it is".into()),
            _ => None,
        }
    }

    /// What keeps it from being asked for this.
    fn why_not_this(&self, provider: &Provider, template: &WorkerTemplate, now: Elapsed) -> Option<String> {
        let hold = self.holds.get(&(Arc::clone(&provider.record.name), Arc::clone(&template.name)));
        let held = || hold.filter(|hold| hold.holds(now)).map(|hold| format!("failed: {}", hold.why));
        provider.why_unable(template).or_else(held)
    }

    fn best_of<'a>(&self, able: &[&'a Provider]) -> Option<&'a Provider> {
        let room = |provider: &Provider| provider.record.cap - self.workers_of(&provider.record.name);
        let sick = |provider: &Provider| provider.health != ProviderHealth::Healthy;
        let able = able.iter().copied();
        match self.settings.provider_strategy {
            ProviderStrategy::FastestStartup => able.min_by_key(|it| (it.capabilities.startup, sick(it))),
            ProviderStrategy::LowestCost => able.min_by_key(|it| (it.record.cost, sick(it))),
            ProviderStrategy::MostCapacity => able.min_by_key(|it| Reverse(room(it))),
            ProviderStrategy::Healthiest => able.min_by_key(|it| (sick(it), it.hold.is_some(), Reverse(room(it)))),
            ProviderStrategy::RoundRobin => {
                let after = |it: &&Provider| Some(&it.record.name) > self.last.as_ref();
                able.clone().find(after).or_else(|| able.clone().next())
            }
        }
    }

    /// Of those who make what such a job needs and have made too many others, each with the template.
    pub fn crowded_for(&self, needs: &Needs, now: Elapsed) -> Vec<Arc<str>> {
        let described = self.templates.values().filter(|template| suits(&info_of(template), needs));
        let described: Vec<&Arc<WorkerTemplate>> = described.collect();
        match on_demand(needs).filter(|_| described.is_empty()) {
            Some(template) => self.crowded(&self.with_isolation(template, needs.requirements), now),
            None => described.into_iter().flat_map(|template| self.crowded(template, now)).collect(),
        }
    }

    /// The template that a worker for this job is made of, by whom; or why none is made.
    pub fn plan(&self, needs: &Needs, now: Elapsed) -> Result<(Arc<WorkerTemplate>, Arc<str>), String> {
        let wish = needs.requirements.constraints.as_ref().and_then(|constraints| constraints.provider.as_deref());
        let described = self.templates.values().filter(|template| suits(&info_of(template), needs));
        let mut described: Vec<_> = described.collect();
        described.sort_by_key(|template| size(&template.capacity));
        let mut why = None;
        for template in described {
            let given_up = self.crews.get(&template.name).and_then(super::Crew::why_not);
            match given_up.map_or_else(|| self.pick(template, wish, now), Err) {
                Ok(provider) => return Ok((Arc::clone(template), provider)),
                Err(reason) => why = why.or(Some(reason)),
            }
        }
        // Somebody described such a worker, so nobody makes up another.
        if let Some(why) = why {
            return Err(why);
        }
        let template = on_demand(needs).ok_or("no worker template describes a worker that could run it")?;
        let template = self.with_isolation(template, needs.requirements);
        let provider = self.pick(&template, wish, now)?;
        Ok((Arc::new(template), provider))
    }

    /// Whether somebody could make a worker for such a job, if not now.
    pub fn could_ever(&self, needs: &Needs) -> bool {
        let described = self.templates.values().filter(|template| suits(&info_of(template), needs));
        let made_up = on_demand(needs).map(|template| Arc::new(self.with_isolation(template, needs.requirements)));
        let mut templates = described.cloned().chain(made_up);
        templates.any(|template| {
            let named = |name: &Arc<str>| template.providers.is_empty() || template.providers.contains(name);
            let can = |it: &Provider| it.record.enabled && named(&it.record.name) && it.why_unable(&template).is_none();
            self.providers.values().any(can)
        })
    }

    /// A job that wants to be kept apart gets its worker only from those who can.
    fn with_isolation(&self, template: WorkerTemplate, needs: &Requirements) -> WorkerTemplate {
        let isolation = needs.constraints.as_ref().map_or(Isolation::default(), |constraints| constraints.isolation);
        if isolation == Isolation::default() {
            return template;
        }
        let able = self.providers.values().filter(|provider| provider.capabilities.isolation >= isolation);
        let mut providers: Vec<_> = able.map(|provider| Arc::clone(&provider.record.name)).collect();
        if providers.is_empty() {
            // A name that nobody has: the reason is then that no provider can.
            providers.push("".into());
        }
        WorkerTemplate { providers, ..template }
    }

    /// Notes a failure where it belongs: with the provider if that is in trouble, with what it was asked for otherwise.
    pub fn note_failure(&mut self, provider: &Arc<str>, template: &Arc<str>, failure: &ProviderFailure, now: Elapsed) {
        match failure.class {
            ErrorClass::Capacity | ErrorClass::Quota | ErrorClass::Auth | ErrorClass::Unreachable => {
                if let Some(provider) = self.providers.get_mut(provider) {
                    provider.hold = Some(Hold::after(provider.hold.as_ref(), &failure.message, now));
                }
            }
            ErrorClass::Image | ErrorClass::NeverCame | ErrorClass::Other => {
                let key = (Arc::clone(provider), Arc::clone(template));
                let hold = Hold::after(self.holds.get(&key), &failure.message, now);
                self.holds.insert(key, hold);
            }
        }
    }

    /// More is known of the last failure.
    pub fn explain_hold(&mut self, provider: &Arc<str>, template: &Arc<str>, why: &str) {
        let hold = self.holds.get_mut(&(Arc::clone(provider), Arc::clone(template)));
        hold.into_iter().for_each(|hold| hold.why = why.into());
    }

    /// A worker came: whatever was wrong is over.
    pub fn note_success(&mut self, provider: &Arc<str>, template: &Arc<str>) {
        self.holds.remove(&(Arc::clone(provider), Arc::clone(template)));
        self.providers.get_mut(provider).into_iter().for_each(|provider| provider.hold = None);
    }

    pub fn next_hold_end(&self, now: Elapsed) -> Option<Elapsed> {
        let of_providers = self.providers.values().filter_map(|provider| provider.hold.as_ref());
        of_providers.chain(self.holds.values()).map(|hold| hold.until).filter(|until| *until > now).min()
    }
}

impl Provider {
    /// Why it cannot make such a worker, however well it is.
    fn why_unable(&self, template: &WorkerTemplate) -> Option<String> {
        let (can, wants) = (&self.capabilities, &template.capacity);
        let over = |limit: u64, wanted: u64| limit > 0 && wanted > limit;
        let image = template.image.is_some() || self.record.settings.contains_key(DEFAULT_IMAGE);
        if template.image.is_some() && !can.images {
            Some("makes no workers in images".into())
        } else if can.images && !image {
            Some("makes workers in images, and none is named; set its 'image' for those".into())
        } else if wants.gpus > can.gpus {
            Some(format!("has {} GPUs", can.gpus))
        } else if over(can.cpu_millis, wants.cpu_millis) || over(can.memory_bytes, wants.memory_bytes) {
            Some("makes no workers that large".into())
        } else {
            None
        }
    }
}

fn size(capacity: &Capacity) -> (u64, u64, u32) {
    (capacity.cpu_millis, capacity.memory_bytes, capacity.slots)
}

/// A worker for a job that names no more than what it needs.
fn on_demand(needs: &Needs) -> Option<WorkerTemplate> {
    let &Requirements { cpu_millis, memory_bytes, disk_bytes, gpus, ref constraints } = needs.requirements;
    let image = constraints.as_ref().and_then(|constraints| constraints.image.clone());
    let template = WorkerTemplate {
        name: image.as_ref().map_or_else(|| ON_DEMAND.into(), |image| format!("{ON_DEMAND}:{image}").into()),
        capacity: Capacity { slots: 1, cpu_millis, memory_bytes, disk_bytes, gpus },
        // Like `docker run`: what one job leaves in an image is nothing for the next.
        reuse: if image.is_some() { Reuse::Never } else { Reuse::Idle },
        image,
        ..WorkerTemplate::default()
    };
    let info = WorkerInfo { isolation: Isolation::Vm, ..info_of(&template) };
    suits(&info, needs).then_some(template)
}

/// What a worker of this template will say of itself.
pub(super) fn info_of(template: &WorkerTemplate) -> WorkerInfo {
    WorkerInfo {
        name: template.name.to_string(),
        capacity: template.capacity,
        offer: Offer { task_types: template.handlers.keys().cloned().collect(), tasks_only: false },
        labels: template.labels.clone(),
        taints: template.taints.clone(),
        capabilities: template.capabilities.clone(),
        zone: template.zone.clone(),
        isolation: if template.image.is_some() { Isolation::Container } else { Isolation::Process },
        image: template.image.clone(),
        sla: template.sla,
        ..WorkerInfo::default()
    }
}

/// Whether such a worker could run such a job when it has nothing else to do.
pub(super) fn suits(info: &WorkerInfo, needs: &Needs) -> bool {
    info.capacity.fits(needs.requirements) && Traits::of_info(info).unmet(needs).is_none()
}
