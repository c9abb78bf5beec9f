//! Workers on demand: which are made, by whom, and which go.
//!
//! Everything here is decided anew from what is known whenever something has changed: who waits, who stands ready, who was
//! promised, what providers said. A worker that is to be made is a row in phase `creating` before its provider hears of it,
//! and one that is to go a row in phase `terminating`, so a server that comes back asks again for whatever was not done.

mod choose;
mod crews;
mod demand;
mod made;

use super::{Answer, Batch, Brain, ProviderOrder, Refusal, TemplateOrder};
use crate::{
    id::WorkerId,
    job::ClassId,
    journal::{Change, ProviderChange, TemplateChange},
    placement::SchedulerSettings,
    provider::{ProviderCapabilities, ProviderHealth, ProviderRecord},
    template::WorkerTemplate,
    time::{Elapsed, Millis},
    worker::Drain,
};
use choose::Hold;
use crews::Crew;
use made::Made;
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
    templates: BTreeMap<Arc<str>, Arc<WorkerTemplate>>,
    dirty_templates: BTreeSet<Arc<str>>,
    /// Workers that providers made, or are to make.
    made: BTreeMap<WorkerId, Made>,
    /// Who looks after the workers of one template.
    crews: BTreeMap<Arc<str>, Crew>,
    /// Templates that some provider could not make a worker of just now.
    holds: BTreeMap<(Arc<str>, Arc<str>), Hold>,
    /// What is being made for classes that wait, as of the last look.
    reasons: BTreeMap<ClassId, Arc<str>>,
    /// Something changed that may want workers to be made or to go.
    stirred: bool,
    /// When to look although nothing changes.
    wake: Option<Elapsed>,
    /// The provider that came last, for those who take turns.
    last: Option<Arc<str>>,
}

#[derive(Debug)]
struct Provider {
    record: ProviderRecord,
    health: ProviderHealth,
    capabilities: ProviderCapabilities,
    hold: Option<Hold>,
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
        let template = |template: WorkerTemplate| (Arc::clone(&template.name), Arc::new(template));
        Self {
            settings,
            providers: providers.into_iter().map(provider).collect(),
            templates: templates.into_iter().map(template).collect(),
            stirred: true,
            ..Self::default()
        }
    }

    /// What the next batch has to say of it.
    pub fn take(&mut self, batch: &mut Batch) {
        batch.scheduler = std::mem::take(&mut self.settings_dirty).then_some(self.settings);
        for name in std::mem::take(&mut self.dirty_providers) {
            match self.providers.get(&name) {
                Some(provider) => batch.providers.push(provider.record.clone()),
                None => batch.dropped_providers.push(name),
            }
        }
        for name in std::mem::take(&mut self.dirty_templates) {
            match self.templates.get(&name) {
                Some(template) => batch.templates.push((**template).clone()),
                None => batch.dropped_templates.push(name),
            }
        }
    }

    /// Workers exist that somebody has to look after, or are promised.
    pub fn has_work(&self) -> bool {
        !self.made.is_empty() || self.templates.values().any(|template| template.warm > 0)
    }

    /// Nobody makes workers here.
    pub fn is_idle(&self) -> bool {
        self.providers.is_empty() && self.made.is_empty()
    }

    /// Has the next turn look at everything.
    pub fn stir(&mut self) {
        self.stirred = true;
    }

    pub fn next_wake(&self) -> Option<Elapsed> {
        self.wake.filter(|_| !self.is_idle())
    }

    fn workers_of(&self, provider: &str) -> u32 {
        let of_it = self.made.values().filter(|made| &*made.provider == provider);
        u32::try_from(of_it.count()).unwrap_or(u32::MAX)
    }
}

impl Provider {
    fn new(record: ProviderRecord) -> Self {
        Self { record, health: ProviderHealth::default(), capabilities: ProviderCapabilities::default(), hold: None }
    }
}

impl Brain {
    pub fn scheduler(&self) -> SchedulerSettings {
        self.provisioning.settings
    }

    pub fn providers(&self) -> Vec<ProviderView> {
        let view = |provider: &Provider| ProviderView {
            record: provider.record.clone(),
            health: provider.health.clone(),
            capabilities: provider.capabilities.clone(),
            workers: self.provisioning.workers_of(&provider.record.name),
            held_because: self.provisioning.why_not(provider, self.elapsed).unwrap_or_default(),
        };
        self.provisioning.providers.values().map(view).collect()
    }

    pub fn templates(&self) -> Vec<TemplateView> {
        self.provisioning.templates.values().map(|template| self.template_view(template)).collect()
    }

    fn template_view(&self, template: &Arc<WorkerTemplate>) -> TemplateView {
        let (mut coming, mut idle, mut busy) = (0, 0, 0);
        for (id, _) in self.provisioning.made.iter().filter(|(_, made)| made.template.name == template.name) {
            match self.fleet.get(*id) {
                Some(worker) if worker.connection.is_none() => coming += 1,
                Some(worker) if worker.held.is_empty() => idle += 1,
                _ => busy += 1,
            }
        }
        let held = self.provisioning.crews.get(&template.name).and_then(Crew::why_not);
        let held = held.or_else(|| self.provisioning.pick(template, None, self.elapsed).err());
        TemplateView { template: (**template).clone(), coming, idle, busy, held_because: held.unwrap_or_default() }
    }

    pub(super) fn set_scheduler(&mut self, settings: SchedulerSettings) -> Answer {
        self.provisioning.settings = settings;
        self.provisioning.settings_dirty = true;
        self.provisioning.stir();
        self.fleet.set_scheduler(settings);
        self.recheck = true;
        Answer::Scheduler(settings)
    }

    pub(super) fn set_provider(&mut self, name: &Arc<str>, order: ProviderOrder) -> Result<Answer, Refusal> {
        self.provisioning.stir();
        self.recheck = true;
        let providers = &mut self.provisioning.providers;
        let unknown = || Refusal::NoSuchProvider(Arc::clone(name));
        let (record, what) = match order {
            ProviderOrder::Add(_) if providers.contains_key(name) => {
                return Err(Refusal::ProviderExists(Arc::clone(name)));
            }
            ProviderOrder::Put(record) if providers.contains_key(name) => return self.change_provider(*record),
            ProviderOrder::Add(_) | ProviderOrder::Put(_) if providers.len() >= MAX_PROVIDERS => {
                return Err(Refusal::TooManyProviders(MAX_PROVIDERS));
            }
            ProviderOrder::Add(record) | ProviderOrder::Put(record) => {
                providers.insert(Arc::clone(name), Provider::new((*record).clone()));
                (*record, ProviderChange::Added)
            }
            ProviderOrder::Enable | ProviderOrder::Disable => {
                let enabled = matches!(order, ProviderOrder::Enable);
                let provider = providers.get_mut(name).filter(|it| !it.record.leaving).ok_or_else(unknown)?;
                provider.record.enabled = enabled;
                (provider.record.clone(), if enabled { ProviderChange::Enabled } else { ProviderChange::Disabled })
            }
            ProviderOrder::Remove => return self.remove_provider(name),
        };
        self.provisioning.dirty_providers.insert(Arc::clone(name));
        self.note_provider(name, what);
        Ok(Answer::Provider(Box::new(record)))
    }

    /// Its workers stay. What it was asked for and has not answered is asked for again: whoever ran the errand may be gone.
    fn change_provider(&mut self, record: ProviderRecord) -> Result<Answer, Refusal> {
        let (name, workers) = (Arc::clone(&record.name), self.provisioning.workers_of(&record.name));
        let Some(provider) = self.provisioning.providers.get_mut(&name) else {
            return Err(Refusal::NoSuchProvider(name));
        };
        let old = &provider.record;
        if workers > 0 && !old.is_where(&record) {
            return Err(Refusal::ProviderHasWorkers(name, workers));
        }
        let record = ProviderRecord { enabled: old.enabled || old.leaving, added_at: old.added_at, ..record };
        if (old.kind, &old.settings) == (record.kind, &record.settings) {
            provider.record = record.clone();
        } else {
            *provider = Provider::new(record.clone());
            self.provisioning.holds.retain(|(provider, _), _| *provider != name);
            self.provisioning.ask_anew(&name);
        }
        self.provisioning.dirty_providers.insert(Arc::clone(&name));
        self.note_provider(&name, ProviderChange::Changed);
        Ok(Answer::Provider(Box::new(record)))
    }

    /// Its workers finish what they run and go; then it does.
    fn remove_provider(&mut self, name: &Arc<str>) -> Result<Answer, Refusal> {
        let provider = self.provisioning.providers.get_mut(name);
        let provider = provider.ok_or_else(|| Refusal::NoSuchProvider(Arc::clone(name)))?;
        (provider.record.enabled, provider.record.leaving) = (false, true);
        let record = provider.record.clone();
        self.provisioning.dirty_providers.insert(Arc::clone(name));
        for worker in self.provisioning.made_by(name) {
            self.send_home(worker, &Drain { reason: format!("the provider {name} is removed"), deadline: None });
        }
        self.drop_left_providers();
        Ok(Answer::Provider(Box::new(record)))
    }

    /// Those that are to go and have no workers any more.
    fn drop_left_providers(&mut self) {
        let provisioning = &self.provisioning;
        let is_done =
            |provider: &&Provider| provider.record.leaving && provisioning.workers_of(&provider.record.name) == 0;
        let done = provisioning.providers.values().filter(is_done).map(|provider| Arc::clone(&provider.record.name));
        for name in done.collect::<Vec<_>>() {
            self.provisioning.providers.remove(&name);
            self.provisioning.dirty_providers.insert(Arc::clone(&name));
            self.provisioning.holds.retain(|(provider, _), _| *provider != name);
            self.note_provider(&name, ProviderChange::Removed);
        }
    }

    fn note_provider(&mut self, name: &Arc<str>, what: ProviderChange) {
        self.moves.changes.push(Change::Provider { name: Arc::clone(name), what, at: self.now });
    }

    pub(super) fn set_template(&mut self, name: &Arc<str>, order: TemplateOrder) -> Result<Answer, Refusal> {
        self.provisioning.stir();
        self.recheck = true;
        let now = self.elapsed;
        let templates = &mut self.provisioning.templates;
        let old = templates.get(name).cloned();
        let known = old.ok_or_else(|| Refusal::NoSuchTemplate(Arc::clone(name)));
        let (template, what) = match order {
            TemplateOrder::Put(_) if known.is_err() && templates.len() >= MAX_TEMPLATES => {
                return Err(Refusal::TooManyTemplates(MAX_TEMPLATES));
            }
            TemplateOrder::Put(template) => (Arc::new(*template), TemplateChange::Put),
            TemplateOrder::Warm(warm) => (Arc::new(WorkerTemplate { warm, ..(*known?).clone() }), TemplateChange::Put),
            TemplateOrder::Restart => {
                let (given_up, restarts) = Default::default();
                let known = Arc::new(WorkerTemplate { given_up, restarts, ..(*known?).clone() });
                self.provisioning.holds.retain(|(_, template), _| template != name);
                self.provisioning.crews.get_mut(name).into_iter().for_each(|crew| crew.ask(now));
                (known, TemplateChange::Restarted)
            }
            TemplateOrder::Remove => {
                let known = known?;
                templates.remove(name);
                self.dismiss_crew(name);
                (known, TemplateChange::Removed)
            }
        };
        if !matches!(what, TemplateChange::Removed) {
            self.provisioning.templates.insert(Arc::clone(name), Arc::clone(&template));
            self.provisioning.holds.retain(|(_, template), _| template != name);
            self.provisioning.crew(&template, now).configure(&template, now);
            self.keep_budgets(name);
        }
        self.provisioning.dirty_templates.insert(Arc::clone(name));
        self.note_template(name, what);
        Ok(Answer::Template(Box::new((*template).clone())))
    }

    fn note_template(&mut self, name: &Arc<str>, what: TemplateChange) {
        self.moves.changes.push(Change::Template { name: Arc::clone(name), what, at: self.now });
    }

    /// Decides which workers are made and which go.
    pub(super) fn provision(&mut self) {
        let due = self.provisioning.wake.is_some_and(|at| at <= self.elapsed);
        if self.provisioning.is_idle() || !(self.provisioning.stirred || due) {
            return;
        }
        self.provisioning.stirred = false;
        self.look_after_made();
        self.give_back_restarts();
        self.fill_seats();
        self.meet_demand();
        self.drop_left_providers();
        self.tell_supervision();
        self.provisioning.wake = self.next_look();
    }

    /// Time in which nobody could be heard counts against nobody.
    pub(super) fn forgive(&mut self, gap: Millis) {
        let now = self.elapsed + gap;
        self.provisioning.crews.values_mut().for_each(|crew| crew.forgive(now));
    }
}

/// Supervision measures time from the origin of our own clock.
fn since_origin(at: Elapsed) -> std::time::Duration {
    std::time::Duration::from_millis(at.0)
}

fn elapsed(since_origin: std::time::Duration) -> Elapsed {
    Elapsed(u64::try_from(since_origin.as_millis()).unwrap_or(u64::MAX))
}
