//! The one who delivers: takes what is due, sends it, and writes down what became of it. Nobody else writes to deliveries
//! once they are made, so none of this can be overtaken.

use super::{Key, Settings, lines::Lines, message, post::Poster, settle};
use crate::{calls::Problem, clock, engine::Engine};
use bytes::Bytes;
use hodei_core::{
    id::DeliveryId,
    time::{Millis, Time},
    webhook::{Delivery, DeliveryState},
};
use hodei_store::{Aside, StoreError};
use http::{HeaderMap, HeaderValue};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::{sync::oneshot, task::JoinSet, time::sleep};
use uuid::Uuid;

/// Deliveries that are read at one time, besides those that are held already.
const PAGE: usize = 256;
/// With so many in hand there is no hurry to read more.
const PLENTY: usize = 1024;
/// Between two looks: at least, while something is in hand, and when nothing seems to be owed.
const BREATH: Duration = Duration::from_millis(10);
const SOON: Duration = Duration::from_millis(250);
const LONGEST: Duration = Duration::from_secs(60);
/// After a store that did not answer.
const AGAIN: Duration = Duration::from_secs(1);
/// How long a delivery whose line is full stays out of the way.
const PUT_OFF: Millis = Millis::seconds(2);

/// Somebody wants a delivery to be sent now, whatever became of it.
#[derive(Debug)]
pub struct Redelivery {
    pub id: DeliveryId,
    pub done: oneshot::Sender<Result<(), Problem>>,
}

type Done = oneshot::Sender<Result<(), Problem>>;

struct Deliverer {
    engine: Engine,
    sending: Arc<Sending>,
    lines: Lines<Done>,
    /// Each a task of its own: one that waits for its turn to read must get it, whatever this one waits for.
    flying: JoinSet<Delivery>,
    looked: Instant,
    look_at: Instant,
}

/// What it takes to send.
struct Sending {
    engine: Engine,
    poster: Poster,
}

/// Delivers for as long as the server runs.
pub async fn run(engine: Engine) {
    let Settings { guard, resolver, timeout, .. } = engine.shared().options.webhooks.clone();
    let poster = Poster::new(guard, resolver, timeout.duration());
    let mut deliverer = Deliverer {
        sending: Arc::new(Sending { engine: engine.clone(), poster }),
        lines: Lines::default(),
        flying: JoinSet::new(),
        looked: Instant::now(),
        look_at: Instant::now(),
        engine: engine.clone(),
    };
    loop {
        deliverer.look().await;
        deliverer.send();
        tokio::select! {
            Some(Ok(delivery)) = deliverer.flying.join_next() => deliverer.landed(delivery).await,
            () = engine.shared().outbox.notified() => deliverer.woken().await,
            () = tokio::time::sleep_until(deliverer.look_at.into()) => {}
        }
    }
}

impl Deliverer {
    /// Reads what is due, if it is time to.
    async fn look(&mut self) {
        if Instant::now() < self.look_at {
            return;
        }
        self.looked = Instant::now();
        let wait = self.read().await.unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot look for webhooks to deliver; trying again");
            AGAIN
        });
        self.look_at = self.looked + wait;
    }

    /// And says how long to wait until the next look.
    async fn read(&mut self) -> Result<Duration, StoreError> {
        let (store, now) = (&self.engine.shared().store, clock::now().wall);
        let limit = self.lines.held() + PAGE;
        let due = store.deliveries_due(now, limit).await?;
        let more = due.len() >= limit;
        let mut put_off = Vec::new();
        for mut delivery in due {
            if self.lines.holds(delivery.id) {
                continue;
            }
            if self.lines.has_room_for(&delivery) {
                self.lines.add(delivery);
            } else {
                let wait = Millis(PUT_OFF.0 / 2 + chance() % PUT_OFF.0);
                delivery.state = DeliveryState::Pending { next: now + wait };
                put_off.push(delivery);
            }
        }
        if !put_off.is_empty() {
            // They would hide what is due behind them. If this is not written they are met again.
            _ = self.engine.keep(Aside { deliveries: put_off, ..Aside::default() }).await;
        }
        Ok(match self.lines.held() {
            0 => store.next_delivery().await?.map_or(LONGEST, |at| (at - now).duration()).clamp(BREATH, LONGEST),
            held if more && held < PLENTY => BREATH,
            _ => SOON,
        })
    }

    fn send(&mut self) {
        while let Some(delivery) = self.lines.next() {
            let sending = Arc::clone(&self.sending);
            self.flying.spawn(async move { sending.deliver(delivery).await });
        }
    }

    /// Something new is owed, or somebody asks.
    async fn woken(&mut self) {
        for Redelivery { id, done } in self.engine.shared().outbox.take_asked() {
            if let Err(done) = self.lines.wish(id, done) {
                let outcome = if self.lines.holds(id) { Ok(()) } else { self.revive(id).await };
                _ = done.send(outcome);
            }
        }
        if self.lines.held() < PLENTY {
            self.look_at = self.look_at.min(self.looked + BREATH);
        }
    }

    async fn landed(&mut self, delivery: Delivery) {
        let wishes = self.lines.landed(delivery.id);
        for done in wishes {
            _ = done.send(self.revive(delivery.id).await);
        }
        if let Some(next) = delivery.due() {
            let wait = (next - clock::now().wall).duration().max(BREATH);
            self.look_at = self.look_at.min(Instant::now() + wait);
        }
    }

    /// Makes a delivery that is not in hand due now.
    async fn revive(&mut self, id: DeliveryId) -> Result<(), Problem> {
        let found = self.engine.shared().store.delivery(id).await?;
        let mut delivery = found.ok_or_else(|| Problem::NotFound(format!("there is no delivery {id}")))?;
        delivery.state = DeliveryState::Pending { next: clock::now().wall };
        self.engine.keep(Aside { deliveries: vec![delivery], ..Aside::default() }).await?;
        self.look_at = Instant::now();
        Ok(())
    }
}

impl Sending {
    /// Sends a message and returns when it is durable what became of it. If nothing can be read or written, the delivery
    /// stays as it was and comes again.
    async fn deliver(&self, mut delivery: Delivery) -> Delivery {
        let body = match self.body(&delivery).await {
            Ok(body) => body,
            Err(error) => {
                tracing::warn!(%error, delivery = %delivery.id, "cannot read what a webhook has to say");
                sleep(AGAIN).await;
                return delivery;
            }
        };
        let settings = &self.engine.shared().options.webhooks;
        let (began, clock) = (clock::now().wall, Instant::now());
        let headers = headers(&delivery, &settings.key, began, &body);
        let outcome = self.poster.post(&delivery.to.url, &headers, body).await;
        let took = Millis(u64::try_from(clock.elapsed().as_millis()).unwrap_or(u64::MAX));
        settle::settle(&mut delivery, &outcome, (began, took), &settings.retry, chance());
        self.keep(&delivery).await;
        if let DeliveryState::Failed { .. } = delivery.state {
            let why = delivery.tries.last().map(|one| one.error.as_str()).unwrap_or_default();
            tracing::warn!(delivery = %delivery.id, job = %delivery.job, why, "a webhook was not delivered");
        }
        delivery
    }

    async fn body(&self, delivery: &Delivery) -> Result<Bytes, StoreError> {
        let store = &self.engine.shared().store;
        let job = store.jobs(vec![delivery.job]).await?.pop();
        let result = store.results(vec![delivery.job]).await?.pop().map(|(_, result)| result);
        Ok(message::body(delivery, job.as_ref(), result.as_deref()).into())
    }

    /// Tries until it is written; a server that ends first sends the message again when it is back.
    async fn keep(&self, delivery: &Delivery) {
        let aside = Aside { deliveries: vec![delivery.clone()], ..Aside::default() };
        while self.engine.keep(aside.clone()).await.is_err() {
            sleep(AGAIN).await;
        }
    }
}

fn headers(delivery: &Delivery, server: &Key, now: Time, body: &[u8]) -> HeaderMap {
    let own = delivery.to.secret.as_ref().and_then(|secret| Key::parse(&secret.0).ok());
    let (id, timestamp) = (delivery.id.to_string(), now.0.div_euclid(1000));
    let signature = own.as_ref().unwrap_or(server).sign(&id, timestamp, body);
    let values = [("webhook-id", id), ("webhook-timestamp", timestamp.to_string()), ("webhook-signature", signature)];
    values
        .into_iter()
        .filter_map(|(name, value)| Some((http::HeaderName::from_static(name), HeaderValue::try_from(value).ok()?)))
        .collect()
}

/// Any number.
fn chance() -> u64 {
    Uuid::new_v4().as_u64_pair().1
}
