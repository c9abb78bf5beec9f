//! Writes what was refused into the audit log, put together by sender and second.

use crate::engine::Engine;
use hodei_store::Aside;
use std::time::Duration;
use tokio::time::sleep;

/// How long refusals of one sender are put together.
const TOGETHER: Duration = Duration::from_secs(1);

pub async fn run(engine: Engine) {
    loop {
        engine.shared().access.refusals.came().await;
        sleep(TOGETHER).await;
        write(&engine);
    }
}

/// Writes what waits.
pub fn write(engine: &Engine) {
    let audit = engine.shared().access.refusals.take();
    if !audit.is_empty() {
        engine.note(Aside { audit, ..Aside::default() });
    }
}
