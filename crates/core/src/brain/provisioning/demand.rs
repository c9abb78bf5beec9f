//! Jobs that no worker has room for get workers made, as far as providers allow.

use super::choose::suits;
use crate::{
    brain::Brain,
    id::WorkerId,
    job::{ClassId, Job},
    placement::Needs,
    provider::ProviderKind,
    template::WorkerTemplate,
    worker::WorkerInfo,
};
use std::sync::Arc;

/// While nobody makes more, so many classes are looked at, the best first, for what could make room for them.
const LOOK_IN_VAIN: usize = 16;

/// A worker that is on its way, and how many more jobs it has room for.
struct Coming {
    info: WorkerInfo,
    slots: u32,
}

impl Brain {
    pub(super) fn meet_demand(&mut self) {
        self.provisioning.reasons.clear();
        let mut coming = self.coming();
        let mut passed = None;
        let mut in_vain = 0;
        while (in_vain < LOOK_IN_VAIN || self.somebody_makes_more())
            && let Some(head) = self.ready.head_after(passed)
        {
            passed = Some(head);
            let Some(job) = head.job.and_then(|id| self.jobs.get(&id)).map(|entry| entry.job.clone()) else { continue };
            let waiting = self.waiting_of(head.class, &job);
            let met = self.meet(head.class, &job, waiting, &mut coming);
            in_vain += usize::from(!met);
        }
    }

    /// How many jobs of a class workers may be made for: those in line, as far as gates let them go.
    fn waiting_of(&self, class: ClassId, job: &Job) -> u32 {
        let in_line = self.ready.waiting(class);
        match self.why_held(&job.queue, job.concurrency()) {
            Some(_) => 0,
            None => in_line.min(self.allowance(&job.queue, job.concurrency())),
        }
    }

    fn coming(&self) -> Vec<Coming> {
        let made = self.provisioning.made.iter().filter(|(_, made)| made.can_take_work());
        let coming = made.filter_map(|(id, made)| {
            let worker = self.fleet.get(*id)?;
            let is_coming = made.is_coming() || worker.connection.is_none();
            let slots = worker.record.info.capacity.slots;
            is_coming.then(|| Coming { info: worker.record.info.clone(), slots })
        });
        coming.collect()
    }

    /// Has workers made until all that wait have a place to come, or nobody makes more; says which.
    fn meet(&mut self, class: ClassId, job: &Job, waiting: u32, coming: &mut Vec<Coming>) -> bool {
        let mut left = waiting;
        for worker in coming.iter_mut().filter(|worker| worker.slots > 0 && suits(&worker.info, &Needs::of(job))) {
            let taken = left.min(worker.slots);
            (left, worker.slots) = (left - taken, worker.slots - taken);
        }
        let mut reason = (left < waiting).then(|| "a worker is being made".to_owned());
        while left > 0 {
            match self.provisioning.plan(&Needs::of(job), self.elapsed) {
                Err(_) => {
                    let crowded = self.provisioning.crowded_for(&Needs::of(job), self.elapsed);
                    self.make_room(&crowded);
                    break;
                }
                Ok((template, provider)) => {
                    let worker = self.ask_for(&template, &provider, Some(job.id));
                    left = self.reckon(worker, &template, left, coming);
                    reason = Some(format!("a worker is being made by {provider}"));
                }
            }
        }
        if let Some(reason) = reason {
            self.provisioning.reasons.insert(class, reason.into());
        }
        left == 0
    }

    fn somebody_makes_more(&self) -> bool {
        let provisioning = &self.provisioning;
        provisioning.providers.values().any(|it| provisioning.why_not(it, self.elapsed).is_none())
    }

    /// How many are left without a place once this worker is there.
    fn reckon(&self, id: WorkerId, template: &WorkerTemplate, left: u32, coming: &mut Vec<Coming>) -> u32 {
        let slots = if template.capacity.slots == 0 { 1 } else { template.capacity.slots };
        let info = self.fleet.get(id).map(|worker| worker.record.info.clone()).unwrap_or_default();
        coming.push(Coming { info, slots: slots.saturating_sub(left) });
        left.saturating_sub(slots)
    }

    pub(in crate::brain) fn makes_workers(&self) -> bool {
        !self.provisioning.providers.is_empty()
    }

    /// The provider and the template that a worker for such a job would be made by and of, or why none would be.
    pub fn could_provision(&self, needs: &Needs) -> Result<(Arc<str>, Arc<str>), String> {
        if !self.makes_workers() {
            return Err("no provider makes workers".to_owned());
        }
        let (template, provider) = self.provisioning.plan(needs, self.elapsed)?;
        Ok((provider, Arc::clone(&template.name)))
    }

    /// Whether one could be made, if not now.
    pub(in crate::brain) fn could_ever_provision(&self, needs: &Needs) -> bool {
        self.provisioning.could_ever(needs)
    }

    /// Why no worker is made for such a job, if some could be or an image is missing.
    pub(in crate::brain) fn why_unmade(&self, needs: &Needs) -> Option<String> {
        match self.image_of_nobody(needs) {
            Some(image) => Some(format!(
                "no provider makes workers in the image {image}; add one: hodei provider add docker --kind docker"
            )),
            None => self.could_provision(needs).err().filter(|_| self.makes_workers()),
        }
    }

    /// The image that a job wants, where neither a worker is in it nor a provider could make one.
    fn image_of_nobody<'n>(&self, needs: &Needs<'n>) -> Option<&'n str> {
        let image = needs.requirements.constraints.as_ref()?.image.as_ref()?;
        let there = self.fleet.iter().any(|worker| worker.record.info.image.as_ref() == Some(image));
        let mut providers = self.provisioning.providers.values();
        let makes = providers.any(|it| it.record.kind == ProviderKind::Docker || it.capabilities.images);
        (!there && !makes).then_some(image)
    }

    /// Whether a worker is on its way for jobs of this class, in words.
    pub(in crate::brain) fn what_is_made(&self, class: ClassId) -> Option<String> {
        self.provisioning.reasons.get(&class).map(ToString::to_string)
    }
}
