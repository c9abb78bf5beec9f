//! How the one who delivers hears of something to do.

use super::deliverer::Redelivery;
use std::sync::{Mutex, PoisonError};
use tokio::sync::Notify;

/// Wakes whoever delivers webhooks, and keeps what is asked of them by hand.
#[derive(Debug, Default)]
pub struct Outbox {
    wake: Notify,
    asked: Mutex<Vec<Redelivery>>,
}

impl Outbox {
    pub fn notify_if(&self, something: bool) {
        if something {
            self.wake.notify_one();
        }
    }

    pub async fn notified(&self) {
        self.wake.notified().await;
    }

    pub fn ask(&self, redelivery: Redelivery) {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).push(redelivery);
        self.wake.notify_one();
    }

    pub fn take_asked(&self) -> Vec<Redelivery> {
        std::mem::take(&mut *self.asked.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
