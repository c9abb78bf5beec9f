//! Queues: looking at them, steering them.

use super::{Calls, Problem};
use hodei_core::{
    brain::{Answer, Input, QueueOrder, QueueView},
    spec::{self, Invalid},
};
use std::sync::Arc;

impl Calls {
    /// In the order of their names.
    pub async fn queues(&self, after: Option<String>, limit: usize) -> Result<Vec<QueueView>, Problem> {
        Ok(self.engine.ask(move |brain| brain.queues(after.as_deref(), limit)).await?)
    }

    /// A queue that nothing is known of is empty, not missing: jobs may be submitted to it at any time.
    pub async fn queue(&self, name: String) -> Result<QueueView, Problem> {
        check(&name)?;
        Ok(self.engine.ask(move |brain| brain.queue(&name).unwrap_or_else(|| QueueView::empty(&name))).await?)
    }

    pub async fn set_queue(&self, name: String, order: QueueOrder) -> Result<QueueView, Problem> {
        check(&name)?;
        if let QueueOrder::Configure(settings) = &order {
            settings.validate()?;
        }
        let queue: Arc<str> = name.as_str().into();
        match self.act(&name, 0, |caller| Input::SetQueue { caller, queue, order }).await? {
            Answer::Queue(_) => self.queue(name).await,
            _ => Err(Problem::Internal("the brain answered something else".into())),
        }
    }
}

fn check(name: &str) -> Result<(), Invalid> {
    spec::label("name", name)
}
