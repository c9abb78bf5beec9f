//! What was told to whom: looking, telling again.

use super::{Calls, Problem};
use crate::webhooks::Redelivery;
use hodei_core::{id::DeliveryId, webhook::Delivery};
use hodei_store::DeliveryFilter;
use tokio::sync::oneshot;

impl Calls {
    /// Newest first.
    pub async fn deliveries(
        &self,
        filter: DeliveryFilter,
        before: Option<DeliveryId>,
        limit: usize,
    ) -> Result<Vec<Delivery>, Problem> {
        Ok(self.engine.shared().store.deliveries(filter, before, limit).await?)
    }

    /// Makes a delivery due now, whatever became of it. One that is on its way is sent once more.
    pub async fn redeliver(&self, id: DeliveryId) -> Result<(), Problem> {
        self.engine.check_open()?;
        let (done, answer) = oneshot::channel();
        self.engine.shared().outbox.ask(Redelivery { id, done });
        answer.await.map_err(|_| Problem::Unavailable("the server is shutting down; try again".into()))??;
        self.audited(id, "ok");
        Ok(())
    }
}
