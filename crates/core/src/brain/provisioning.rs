//! Workers on demand: which are made, by whom, and which go.

use super::{Answer, Brain, ProviderOrder, Refusal, TemplateOrder};
use crate::{
    id::WorkerId,
    journal::{Change, ProviderChange, TemplateChange},
    placement::{Needs, SchedulerSettings},
    provider::{Instance, ProviderCapabilities, ProviderFailure, ProviderHealth, ProviderRecord},
    template::WorkerTemplate,
    time::Elapsed,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

const MAX_PROVIDERS: usize = 1000;
const MAX_TEMPLATES: usize = 10_000;

#[derive(Debug, Default)]
pub(super) struct Provisioning {
    settings: SchedulerSettings,
    settings_dirty: bool,
    providers: BTreeMap<Arc<str>, Provider>,
    dirty_providers: BTreeSet<Arc<str>>,
    templates: BTreeMap<Arc<str>, WorkerTemplate>,
    dirty_templates: BTreeSet<Arc<str>>,
}

#[derive(Debug)]
struct Provider {
    record: ProviderRecord,
    health: ProviderHealth,
    capabilities: ProviderCapabilities,
}

/// A provider as people see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProviderView {
    pub record: ProviderRecord,
    pub health: ProviderHealth,
    pub capabilities: ProviderCapabilities,
    /// Workers of it that exist or are being made.
    pub workers: u32,
    /// Why nothing is asked of it just now, in words; empty when something would be.
    pub held_because: String,
}

/// A worker template as people see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TemplateView {
    pub template: WorkerTemplate,
    /// Workers that are being made, stand ready with nothing to do, and run jobs.
    pub coming: u32,
    pub idle: u32,
    pub busy: u32,
    /// Why none is made just now, in words; empty when one would be.
    pub held_because: String,
}

impl Provisioning {
    pub fn load(settings: SchedulerSettings, providers: Vec<ProviderRecord>, templates: Vec<WorkerTemplate>) -> Self {
        let provider = |record: ProviderRecord| (Arc::clone(&record.name), Provider::new(record));
        Self {
            settings,
            providers: providers.into_iter().map(provider).collect(),
            templates: templates.into_iter().map(|template| (Arc::clone(&template.name), template)).collect(),
            ..Self::default()
        }
    }

    /// What the next batch has to say of it.
    pub fn take(&mut self, batch: &mut super::Batch) {
        batch.scheduler = std::mem::take(&mut self.settings_dirty).then_some(self.settings);
        for name in std::mem::take(&mut self.dirty_providers) {
            match self.providers.get(&name) {
                Some(provider) => batch.providers.push(provider.record.clone()),
                None => batch.dropped_providers.push(name),
            }
        }
        for name in std::mem::take(&mut self.dirty_templates) {
            match self.templates.get(&name) {
                Some(template) => batch.templates.push(template.clone()),
                None => batch.dropped_templates.push(name),
            }
        }
    }
}

impl Provider {
    fn new(record: ProviderRecord) -> Self {
        Self { record, health: ProviderHealth::default(), capabilities: ProviderCapabilities::default() }
    }
}

impl Brain {
    pub fn scheduler(&self) -> SchedulerSettings {
        self.provisioning.settings
    }

    /// The provider and the template by which a worker would be made that can run such a job, if any would.
    pub fn could_provision(&self, _needs: &Needs) -> Option<(Arc<str>, Arc<str>)> {
        None
    }

    pub fn providers(&self) -> Vec<ProviderView> {
        let view = |provider: &Provider| ProviderView {
            record: provider.record.clone(),
            health: provider.health.clone(),
            capabilities: provider.capabilities.clone(),
            workers: 0,
            held_because: String::new(),
        };
        self.provisioning.providers.values().map(view).collect()
    }

    pub fn templates(&self) -> Vec<TemplateView> {
        let view = |template: &WorkerTemplate| TemplateView {
            template: template.clone(),
            coming: 0,
            idle: 0,
            busy: 0,
            held_because: String::new(),
        };
        self.provisioning.templates.values().map(view).collect()
    }

    pub(super) fn set_scheduler(&mut self, settings: SchedulerSettings) -> Answer {
        self.provisioning.settings = settings;
        self.provisioning.settings_dirty = true;
        self.fleet.set_scheduler(settings);
        self.recheck = true;
        Answer::Scheduler(settings)
    }

    pub(super) fn set_provider(&mut self, name: &Arc<str>, order: ProviderOrder) -> Result<Answer, Refusal> {
        let providers = &mut self.provisioning.providers;
        let unknown = || Refusal::NoSuchProvider(Arc::clone(name));
        let (record, what) = match order {
            ProviderOrder::Add(_) if providers.contains_key(name) => {
                return Err(Refusal::ProviderExists(Arc::clone(name)));
            }
            ProviderOrder::Add(_) if providers.len() >= MAX_PROVIDERS => {
                return Err(Refusal::TooManyProviders(MAX_PROVIDERS));
            }
            ProviderOrder::Add(record) => {
                providers.insert(Arc::clone(name), Provider::new((*record).clone()));
                (*record, ProviderChange::Added)
            }
            ProviderOrder::Enable | ProviderOrder::Disable => {
                let enabled = matches!(order, ProviderOrder::Enable);
                let provider = providers.get_mut(name).ok_or_else(unknown)?;
                provider.record.enabled = enabled;
                (provider.record.clone(), if enabled { ProviderChange::Enabled } else { ProviderChange::Disabled })
            }
            ProviderOrder::Remove => (providers.remove(name).ok_or_else(unknown)?.record, ProviderChange::Removed),
        };
        self.provisioning.dirty_providers.insert(Arc::clone(name));
        self.moves.changes.push(Change::Provider { name: Arc::clone(name), what, at: self.now });
        Ok(Answer::Provider(Box::new(record)))
    }

    pub(super) fn set_template(&mut self, name: &Arc<str>, order: TemplateOrder) -> Result<Answer, Refusal> {
        let templates = &mut self.provisioning.templates;
        let unknown = || Refusal::NoSuchTemplate(Arc::clone(name));
        let (template, what) = match order {
            TemplateOrder::Put(_) if !templates.contains_key(name) && templates.len() >= MAX_TEMPLATES => {
                return Err(Refusal::TooManyTemplates(MAX_TEMPLATES));
            }
            TemplateOrder::Put(template) => {
                templates.insert(Arc::clone(name), (*template).clone());
                (*template, TemplateChange::Put)
            }
            TemplateOrder::Warm(warm) => {
                let template = templates.get_mut(name).ok_or_else(unknown)?;
                template.warm = warm;
                (template.clone(), TemplateChange::Put)
            }
            TemplateOrder::Restart => (templates.get(name).ok_or_else(unknown)?.clone(), TemplateChange::Restarted),
            TemplateOrder::Remove => (templates.remove(name).ok_or_else(unknown)?, TemplateChange::Removed),
        };
        self.provisioning.dirty_templates.insert(Arc::clone(name));
        self.moves.changes.push(Change::Template { name: Arc::clone(name), what, at: self.now });
        Ok(Answer::Template(Box::new(template)))
    }

    pub(super) fn provider_seen(&mut self, name: &str, health: ProviderHealth, capabilities: ProviderCapabilities) {
        let Some(provider) = self.provisioning.providers.get_mut(name) else { return };
        provider.capabilities = capabilities;
        if provider.health != health {
            let (name, at) = (Arc::clone(&provider.record.name), self.now);
            self.moves.changes.push(Change::Provider { name, what: ProviderChange::Health(health.clone()), at });
            provider.health = health;
        }
    }

    pub(super) fn provider_has(&mut self, _name: &str, _instances: &[Instance], _asked: Elapsed) {}

    pub(super) fn created(&mut self, _worker: WorkerId, _outcome: Result<(), ProviderFailure>) {}

    pub(super) fn destroyed(&mut self, _worker: WorkerId, _outcome: Result<(), ProviderFailure>, _output: &str) {}
}
