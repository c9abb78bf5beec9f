//! Which providers there are: gives each a desk, and errands to the right one.

use super::{Errand, Reach, desk::Desk};
use crate::engine::Engine;
use hodei_core::{brain::Input, provider::ProviderRecord};
use hodei_provider::Home;
use std::{collections::HashMap, sync::Arc};
use tokio::sync::mpsc;

pub async fn run(engine: Engine, home: Home, reach: Reach, mut errands: mpsc::UnboundedReceiver<Errand>) {
    let mut roster = Roster { engine, home, reach, desks: HashMap::new() };
    // Those that there are already; what has changed since is told by errands.
    let known = roster.engine.ask(|brain| brain.providers()).await.unwrap_or_default();
    known.into_iter().for_each(|view| roster.open(view.record));
    while let Some(errand) = errands.recv().await {
        roster.take(errand);
    }
}

struct Roster {
    engine: Engine,
    home: Home,
    reach: Reach,
    desks: HashMap<Arc<str>, (ProviderRecord, Desk)>,
}

impl Roster {
    /// A desk for a provider that has none, or whose kind or settings have changed.
    fn open(&mut self, record: ProviderRecord) {
        let same = |(known, _): &(ProviderRecord, Desk)| known.kind == record.kind && known.settings == record.settings;
        if self.desks.get(&record.name).is_some_and(same) {
            return;
        }
        // What one provider made must not look to another as if it were left behind by nobody.
        let home = Home {
            cluster: format!("{}.{}", self.home.cluster, record.name),
            folder: self.home.folder.join(&*record.name),
        };
        match hodei_provider::open(&record, &home) {
            Ok(provider) => {
                let desk = Desk::open(self.engine.clone(), &record, provider, self.reach.clone());
                self.desks.insert(Arc::clone(&record.name), (record, desk));
            }
            Err(why) => tracing::error!(provider = %record.name, why, "cannot use a provider"),
        }
    }

    fn take(&mut self, errand: Errand) {
        let name = match &errand {
            Errand::Create { origin, .. } => Arc::clone(&origin.provider),
            Errand::Destroy { provider, .. } | Errand::Inspect { provider, .. } | Errand::Check { provider, .. } => {
                Arc::clone(provider)
            }
            Errand::Provider(record) => return self.open((**record).clone()),
            Errand::Dropped(name) => {
                self.desks.remove(name);
                return;
            }
        };
        match self.desks.get_mut(&name) {
            Some((_, desk)) => desk.take(errand),
            None => self.nobody(&name, errand),
        }
    }

    /// The provider is gone, and with it all ways to what it made.
    fn nobody(&self, provider: &str, errand: Errand) {
        tracing::warn!(provider, ?errand, "there is no such provider");
        if let Errand::Destroy { worker, .. } = errand {
            self.engine.tell(Input::Destroyed { worker, outcome: Ok(()), output: String::new() });
        }
    }
}
