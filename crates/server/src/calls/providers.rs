//! Who makes workers, and what kinds of workers they make.

use super::{Calls, Problem};
use crate::fleet;
use hodei_api::convert;
use hodei_core::{
    brain::{Answer, Input, ProviderOrder, ProviderView, TemplateOrder, TemplateView},
    provider::ProviderRecord,
    spec::Invalid,
    template::WorkerTemplate,
};
use std::sync::Arc;

impl Calls {
    /// In the order of their names.
    pub async fn providers(&self) -> Result<Vec<ProviderView>, Problem> {
        Ok(self.engine.ask(|brain| brain.providers()).await?)
    }

    pub async fn provider(&self, name: &str) -> Result<ProviderView, Problem> {
        let found = self.providers().await?.into_iter().find(|view| *view.record.name == *name);
        found.ok_or_else(|| Problem::NotFound(format!("there is no provider '{name}'")))
    }

    pub async fn add_provider(&self, record: ProviderRecord) -> Result<ProviderView, Problem> {
        self.describe_provider(record, ProviderOrder::Add).await
    }

    pub async fn put_provider(&self, record: ProviderRecord) -> Result<ProviderView, Problem> {
        self.describe_provider(record, ProviderOrder::Put).await
    }

    async fn describe_provider(
        &self,
        record: ProviderRecord,
        order: fn(Box<ProviderRecord>) -> ProviderOrder,
    ) -> Result<ProviderView, Problem> {
        fleet::check_settings(&record).map_err(|why| Invalid::new("settings", why))?;
        self.set_provider(&Arc::clone(&record.name), order(Box::new(record))).await
    }

    pub async fn set_provider(&self, name: &str, order: ProviderOrder) -> Result<ProviderView, Problem> {
        self.order_provider(&name.into(), order).await?;
        self.provider(name).await
    }

    /// Its workers finish what they run and go.
    pub async fn remove_provider(&self, name: &str) -> Result<(), Problem> {
        self.order_provider(&name.into(), ProviderOrder::Remove).await
    }

    async fn order_provider(&self, name: &Arc<str>, order: ProviderOrder) -> Result<(), Problem> {
        let provider = Arc::clone(name);
        match self.act(name, 0, |caller| Input::SetProvider { caller, provider, order }).await? {
            Answer::Provider(_) => Ok(()),
            _ => Err(Problem::Internal("the brain answered something else".into())),
        }
    }

    /// Asks it how it is, now.
    pub async fn check_provider(&self, name: &str) -> Result<ProviderView, Problem> {
        self.provider(name).await?;
        self.engine.shared().fleet.check(name).await;
        let view = self.provider(name).await?;
        self.audited(name, view.health.name());
        Ok(view)
    }

    /// In the order of their names.
    pub async fn templates(&self) -> Result<Vec<TemplateView>, Problem> {
        Ok(self.engine.ask(|brain| brain.templates()).await?)
    }

    pub async fn template(&self, name: &str) -> Result<TemplateView, Problem> {
        let found = self.templates().await?.into_iter().find(|view| *view.template.name == *name);
        found.ok_or_else(|| Problem::NotFound(format!("there is no worker template '{name}'")))
    }

    pub async fn put_template(&self, template: WorkerTemplate) -> Result<TemplateView, Problem> {
        let name = Arc::clone(&template.name);
        self.set_template(&name, TemplateOrder::Put(Box::new(template))).await
    }

    pub async fn set_pool(&self, name: &str, warm: i32) -> Result<TemplateView, Problem> {
        let warm = convert::warm_from_wire(warm)?;
        self.set_template(name, TemplateOrder::Warm(warm)).await
    }

    pub async fn set_template(&self, name: &str, order: TemplateOrder) -> Result<TemplateView, Problem> {
        self.order_template(name, order).await?;
        self.template(name).await
    }

    pub async fn remove_template(&self, name: &str) -> Result<(), Problem> {
        self.order_template(name, TemplateOrder::Remove).await
    }

    async fn order_template(&self, name: &str, order: TemplateOrder) -> Result<(), Problem> {
        let template: Arc<str> = name.into();
        match self.act(name, 0, |caller| Input::SetTemplate { caller, template, order }).await? {
            Answer::Template(_) => Ok(()),
            _ => Err(Problem::Internal("the brain answered something else".into())),
        }
    }
}
