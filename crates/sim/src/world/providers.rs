//! Providers: they make agents, find them and remove them, and are down, hang, lie, lose and double what they made.

use super::{
    Event, World,
    agent::Agent,
    calls::{Ask, Call},
    checks::{Rule, broken},
    note,
};
use crate::{
    dice::For,
    plan::{Maker, Trouble},
    trace::About,
};
use hodei_core::{
    brain::{Batch, Effect, Input, ProviderOrder, TemplateOrder},
    id::{ExecutionId, WorkerId},
    journal::{Change, TemplateChange},
    provider::{
        ErrorClass, Exit, Instance, InstanceState, ProviderCapabilities, ProviderFailure, ProviderHealth, ProviderKind,
        ProviderRecord,
    },
    requirements::Isolation,
    template::{Reuse, WorkerTemplate},
    time::{Elapsed, Millis, Time},
    worker::{Origin, WorkerInfo},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};
use uuid::Uuid;

/// Between two looks at what a provider has and how it is.
const LOOK: u64 = 1500;
/// Between two tries at something that did not work.
const AGAIN: u64 = 400;
/// Between two failures so close to each other nobody has worked well for a minute, wherever the clocks jumped to.
const IN_A_ROW: Millis = Millis(20_000);

/// All of them, and what is known for sure of what they do.
#[derive(Default)]
pub(super) struct Makers {
    makers: Vec<Made>,
    /// Templates whose warm workers were given up, until a person asks.
    given_up: BTreeSet<Arc<str>>,
    /// When warm workers of each template failed, as far as it is durable, since a person asked.
    failures: BTreeMap<Arc<str>, Vec<Time>>,
    /// What each worker that is for one job was given.
    given: BTreeMap<WorkerId, BTreeSet<ExecutionId>>,
    /// They have been sent home, because the end has come.
    dismissed: bool,
    /// Orders for workers that are on their way, and the life of the server that gave them.
    orders: Vec<(u64, WorkerId)>,
}

/// A provider, which lives longer than any server.
struct Made {
    plan: Maker,
    trouble: Option<(Trouble, u64)>,
    /// Who runs there, by the worker that they were made as.
    instances: BTreeMap<WorkerId, usize>,
}

impl Made {
    fn name(&self) -> Arc<str> {
        self.plan.name.into()
    }

    fn is(&self, trouble: Trouble, now: u64) -> bool {
        self.trouble.is_some_and(|(kind, until)| kind == trouble && now < until)
    }
}

pub(super) fn record(maker: &Maker) -> ProviderRecord {
    ProviderRecord {
        name: maker.name.into(),
        kind: if maker.images { ProviderKind::Docker } else { ProviderKind::Process },
        enabled: true,
        cap: maker.cap,
        cost: 0,
        settings: if maker.images { [("image".to_owned(), "busybox".to_owned())].into() } else { BTreeMap::new() },
        added_at: Time(0),
        leaving: false,
    }
}

fn template(maker: &Maker) -> WorkerTemplate {
    WorkerTemplate {
        name: format!("{} pool", maker.name).into(),
        providers: vec![maker.name.into()],
        image: maker.images.then(|| "busybox".into()),
        handlers: [(crate::plan::TASK.into(), "true".to_owned())].into(),
        sla: maker.sla,
        reuse: maker.reuse,
        warm: maker.warm,
        idle_timeout: Millis(4000),
        max_lifetime: maker.lifetime.map(Millis),
        ..WorkerTemplate::default()
    }
}

fn failure(class: ErrorClass) -> ProviderFailure {
    ProviderFailure { class, message: class.name().to_owned() }
}

impl World {
    /// People add those that were planned.
    pub(super) fn add_makers(&mut self) {
        for maker in self.plan.makers.clone() {
            let key = 1 << 40 | self.makers.makers.len() as u64;
            self.call(Call::new(key, Ask::Provider(maker.name, ProviderOrder::Add(Box::new(record(&maker))))));
            let template = template(&maker);
            let order = TemplateOrder::Put(Box::new(template.clone()));
            self.call(Call::new(key, Ask::Template(template.name, order)));
            self.makers.makers.push(Made { plan: maker, trouble: None, instances: BTreeMap::new() });
        }
    }

    /// A server that comes up asks all of them, and goes on asking.
    pub(super) fn look_at_makers(&mut self) {
        // What was given up and never became durable has not happened.
        let kept = self.store.kept.templates.values().filter(|template| !template.given_up.is_empty());
        self.makers.given_up = kept.map(|template| Arc::clone(&template.name)).collect();
        let life = self.server.life;
        for at in 0..self.makers.makers.len() {
            self.after(5, Event::MakerLooks(life, at));
        }
    }

    /// The end has come: what was made goes, and those who made it.
    pub(super) fn dismiss_makers(&mut self) {
        // What was ordered by an earlier server may come late, and so may the wish to add one.
        let expected = !self.makers.orders.is_empty() || self.open_calls();
        if self.makers.dismissed || expected || self.makers.makers.is_empty() {
            return;
        }
        self.makers.dismissed = true;
        for (key, maker) in (1 << 41..).zip(self.plan.makers.clone()) {
            self.call(Call::new(key, Ask::Template(template(&maker).name, TemplateOrder::Remove)));
            self.call(Call::new(key, Ask::Provider(maker.name, ProviderOrder::Remove)));
        }
    }

    pub(super) fn trouble(&mut self, at: usize, trouble: Trouble, length: u64) {
        if at >= self.makers.makers.len() {
            return;
        }
        match trouble {
            Trouble::Loses | Trouble::Freezes => self.harm_one(at, trouble, length),
            Trouble::Frail => {
                self.makers.makers[at].trouble = Some((trouble, self.now + 3 * length));
                self.harm_one(at, Trouble::Loses, length);
            }
            trouble => self.makers.makers[at].trouble = Some((trouble, self.now + length)),
        }
    }

    /// One of those that it made dies, or stands still.
    fn harm_one(&mut self, at: usize, trouble: Trouble, length: u64) {
        let agents = self.makers.makers[at].instances.values().copied();
        let Some(agent) = agents.filter(|agent| self.agents[*agent].is_awake()).min() else { return };
        match trouble {
            Trouble::Loses => self.crash_agent(agent, 0),
            _ => self.freeze_agent(agent, length),
        }
    }

    fn maker_of(&self, provider: &str) -> Option<usize> {
        self.makers.makers.iter().position(|maker| maker.plan.name == provider)
    }

    /// How long it takes; one that hangs answers when it does so no longer.
    fn maker_delay(&self, at: usize, key: u64) -> u64 {
        let delay = self.dice.roll(For::Maker, at as u64, key).u64(5..400);
        match self.makers.makers[at].trouble {
            Some((Trouble::Hangs, until)) => delay + until.saturating_sub(self.now),
            _ => delay,
        }
    }

    // ---- what the server wants of them --------------------------------------------------------------------------

    pub(super) fn ask_maker(&mut self, effect: Effect) {
        let life = self.server.life;
        let delay = |world: &Self, provider: &str| {
            let at = world.maker_of(provider)?;
            Some((at, world.maker_delay(at, world.tickets)))
        };
        match effect {
            Effect::Create { worker, origin } => {
                self.check_create(&origin);
                let Some((at, delay)) = delay(self, &origin.provider) else { return };
                note!(self, "server", (), "wants {worker} from {} as {}", origin.provider, origin.template.name);
                self.makers.orders.push((life, worker));
                self.after(delay, Event::MakerMakes(life, at, worker));
            }
            Effect::Destroy { worker, provider, .. } => {
                let Some((at, delay)) = delay(self, &provider) else { return };
                note!(self, "server", (), "wants {worker} gone");
                self.after(delay, Event::MakerRemoves(life, at, worker));
            }
            Effect::Inspect { worker, provider } => {
                let Some((at, delay)) = delay(self, &provider) else { return };
                self.after(delay, Event::MakerInspects(life, at, worker));
            }
            _ => {}
        }
    }

    fn say_to_server(&mut self, life: u64, input: Input) {
        self.after(self.shape.link.1, Event::MakerSays(life, input));
    }

    pub(super) fn maker_says(&mut self, life: u64, input: Input) {
        if life == self.server.life {
            self.tell(input);
        }
    }

    pub(super) fn maker_makes(&mut self, life: u64, at: usize, worker: WorkerId) {
        if let Some(order) = self.makers.orders.iter().position(|order| *order == (life, worker)) {
            self.makers.orders.remove(order);
        }
        let (now, maker) = (self.now, &self.makers.makers[at]);
        let troubles = [Trouble::Down, Trouble::Lies, Trouble::Doubles, Trouble::Frail];
        let [down, lies, doubles, frail] = troubles.map(|kind| maker.is(kind, now));
        let there = maker.instances.contains_key(&worker);
        let info = self.store.worker(worker).map(|record| record.info.clone());
        let mut rng = self.dice.roll(For::Maker, worker.0.as_u64_pair().1, 1);
        // One that lies says the opposite of what it did.
        let (makes, says) = match (down, lies) {
            (true, _) => (false, Err(failure(ErrorClass::Unreachable))),
            (_, true) if rng.bool() => (true, Err(failure(ErrorClass::Other))),
            (_, true) => (false, Ok(())),
            _ => (true, Ok(())),
        };
        if let Some(info) = info.filter(|_| makes && !there) {
            if doubles {
                // Under a name that nobody knows, and with a token that the other uses up.
                let twin = WorkerId(Uuid::from_u128(!worker.0.as_u128()));
                let agent = self.make_agent(at, twin, info.clone());
                self.after(30, Event::TwinRefused(agent));
            }
            let agent = self.make_agent(at, worker, info);
            self.register(agent);
            if frail {
                self.after(rng.u64(50..1000), Event::DiesYoung(agent));
            }
        }
        self.say_to_server(life, Input::Created { worker, outcome: says });
    }

    fn make_agent(&mut self, at: usize, worker: WorkerId, info: WorkerInfo) -> usize {
        let index = self.agents.len();
        note!(self, "provider", index, "makes {worker}");
        self.agents.push(Agent::made(index, worker, info, self.dice));
        self.makers.makers[at].instances.insert(worker, index);
        index
    }

    /// An agent that has ended, for whatever reason, leaves its place behind.
    pub(super) fn twin_refused(&mut self, agent: usize) {
        self.agents[agent].gone();
    }

    /// It could not register, because the server has given it up already.
    pub(super) fn not_wanted(&mut self, agent: usize) {
        note!(self, "agent", agent, "is not wanted any more");
        self.agents[agent].gone();
    }

    pub(super) fn maker_removes(&mut self, life: u64, at: usize, worker: WorkerId) {
        // Whoever asks waits for the answer to his last question about the same worker; of what another server has asked
        // before him he knows nothing.
        if self.makers.orders.contains(&(life, worker)) && life == self.server.life {
            self.after(AGAIN, Event::MakerRemoves(life, at, worker));
            return;
        }
        if self.makers.makers[at].is(Trouble::Down, self.now) {
            self.say_to_server(
                life,
                Input::Destroyed { worker, outcome: Err(failure(ErrorClass::Unreachable)), output: String::new() },
            );
            if life == self.server.life {
                self.after(AGAIN, Event::MakerRemoves(life, at, worker));
            }
            return;
        }
        if let Some(agent) = self.makers.makers[at].instances.remove(&worker) {
            note!(self, "provider", agent, "removes it");
            self.remove_agent(agent);
        }
        self.say_to_server(life, Input::Destroyed { worker, outcome: Ok(()), output: String::new() });
    }

    fn instance(&self, worker: WorkerId, agent: usize) -> Instance {
        let exit = || Exit { signal: Some(9), ..Exit::default() };
        let gone = self.agents[agent].is_gone();
        Instance { worker, state: if gone { InstanceState::Exited(exit()) } else { InstanceState::Alive } }
    }

    pub(super) fn maker_inspects(&mut self, life: u64, at: usize, worker: WorkerId) {
        let maker = &self.makers.makers[at];
        if maker.is(Trouble::Down, self.now) {
            return;
        }
        let state = maker.instances.get(&worker).map(|agent| self.instance(worker, *agent).state);
        self.say_to_server(life, Input::Inspected { worker, state });
    }

    pub(super) fn maker_looks(&mut self, life: u64, at: usize) {
        if life != self.server.life {
            return;
        }
        self.after(LOOK, Event::MakerLooks(life, at));
        let maker = &self.makers.makers[at];
        let (provider, down) = (maker.name(), maker.is(Trouble::Down, self.now));
        let health = if down { ProviderHealth::Unhealthy("down".to_owned()) } else { ProviderHealth::Healthy };
        let capabilities = ProviderCapabilities {
            isolation: if maker.plan.images { Isolation::Container } else { Isolation::Process },
            images: maker.plan.images,
            startup: Millis(100),
            ..ProviderCapabilities::default()
        };
        let instances = maker.instances.iter().map(|(worker, agent)| self.instance(*worker, *agent)).collect();
        let asked: Elapsed = self.server_clock();
        self.say_to_server(life, Input::ProviderSeen { provider: Arc::clone(&provider), health, capabilities });
        if !down {
            let late = self.maker_delay(at, self.tickets);
            self.after(late, Event::MakerSays(life, Input::ProviderHas { provider, instances, asked }));
        }
    }

    // ---- what must hold -----------------------------------------------------------------------------------------

    /// A place that was given up is not filled before a person asks.
    fn check_create(&self, origin: &Origin) {
        if origin.job.is_none() && self.makers.given_up.contains(&origin.template.name) {
            let message = format!("{} was given up, and a worker is made for it", origin.template.name);
            broken(Rule::RestartBudget, (), message);
        }
    }

    /// However often the server restarts, a place fails no more often in a row than its restarts allow.
    pub(super) fn check_budgets(&mut self, batch: &Batch) {
        for change in &batch.changes {
            let Change::Template { name, what, at } = change else { continue };
            match what {
                TemplateChange::Crashed(_) | TemplateChange::Hanging(_) | TemplateChange::NotProducing(_) => {
                    self.makers.failures.entry(Arc::clone(name)).or_default().push(*at);
                    self.check_budget(name);
                }
                TemplateChange::Put | TemplateChange::Restarted | TemplateChange::Removed => {
                    self.makers.failures.remove(name);
                }
                TemplateChange::Replaced | TemplateChange::FailedPermanent(_) => {}
            }
        }
    }

    fn check_budget(&self, name: &Arc<str>) {
        let (Some(failures), Some(template)) = (self.makers.failures.get(name), self.store.kept.templates.get(name))
        else {
            return;
        };
        let close = |pair: &&[Time]| pair[1] < pair[0] + IN_A_ROW;
        let in_a_row = 1 + failures.windows(2).rev().take_while(close).count();
        let allowed = 1 + template.sla.restarts() as usize;
        if in_a_row > allowed {
            let message = format!("workers of {name} failed {in_a_row} times in a row, and {allowed} are allowed");
            broken(Rule::RestartBudget, (), message);
        }
    }

    pub(super) fn check_makers(&mut self, batch: &Batch) {
        for change in &batch.changes {
            let Change::Template { name, what, .. } = change else { continue };
            match what {
                TemplateChange::FailedPermanent(_) => _ = self.makers.given_up.insert(Arc::clone(name)),
                TemplateChange::Put | TemplateChange::Restarted | TemplateChange::Removed => {
                    self.makers.given_up.remove(name);
                }
                _ => {}
            }
        }
        let Some(brain) = &self.server.brain else { return };
        for view in brain.providers() {
            if view.workers > view.record.cap {
                let message =
                    format!("{} has {} workers and a cap of {}", view.record.name, view.workers, view.record.cap);
                broken(Rule::CapsHold, (), message);
            }
        }
        for (worker, connected) in brain.pooled() {
            if !connected {
                broken(Rule::PoolIsHealthy, (), format!("{worker} stands in a pool and is not well"));
            }
        }
    }

    /// A worker that is for one job gets one.
    pub(super) fn check_given(&mut self, worker: WorkerId, execution: ExecutionId) {
        let origin = self.store.worker(worker).and_then(|record| record.origin.as_ref());
        if origin.is_none_or(|origin| origin.template.reuse != Reuse::Never) {
            return;
        }
        let given = self.makers.given.entry(worker).or_default();
        given.insert(execution);
        if given.len() > 1 {
            broken(
                Rule::OneJobAWorker,
                About::default(),
                format!("{worker} was made for one job and got {}", given.len()),
            );
        }
    }

    /// Nothing is left of what was made, and nobody who made it.
    pub(super) fn makers_are_done(&self) -> bool {
        let left = self.server.brain.as_ref().map_or(0, |brain| brain.providers().len());
        left == 0 && self.makers.makers.iter().all(|maker| maker.instances.is_empty())
    }

    pub(super) fn check_makers_end(&self) {
        for maker in &self.makers.makers {
            if let Some(worker) = maker.instances.keys().next() {
                broken(Rule::NoWorkerLeaked, (), format!("{} still has {worker}", maker.plan.name));
            }
        }
        if self.server.brain.as_ref().is_some_and(|brain| !brain.providers().is_empty()) {
            broken(Rule::NoWorkerLeaked, (), "a provider waits for workers that will never go");
        }
    }

    pub(super) fn makes_workers(&self) -> bool {
        self.server.brain.as_ref().is_some_and(|brain| !brain.providers().is_empty())
    }
}
