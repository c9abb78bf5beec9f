//! Keeps a guardian running and passes the agent's orders to it.

use super::ExecutorConfig;
use crate::guardian::{GuardianProcess, message::Control};
use hodei_core::time::Elapsed;
use rustix::fd::{AsFd, OwnedFd};
use std::{io, time::Duration};
use tokio::{
    select,
    sync::{mpsc, oneshot, watch},
};
use tracing::{error, warn};

/// Between two attempts to start a guardian.
const PAUSE: Duration = Duration::from_millis(200);
/// How long a guardian that was told to leave may take to end its jobs before it is killed.
const PATIENCE: Duration = Duration::from_secs(10);

/// For the guardian.
#[derive(Debug)]
pub(super) enum Order {
    Control(Control),
    /// Gives a slot's socket to the guardian; the answer names the guardian that got it.
    Attach {
        slot: u32,
        socket: OwnedFd,
        to: oneshot::Sender<u64>,
    },
    /// End what runs, and leave.
    Leave,
}

#[derive(Debug)]
pub(super) struct Supervisor {
    pub config: ExecutorConfig,
    pub guardian: GuardianProcess,
    pub orders: mpsc::UnboundedReceiver<Order>,
    pub lease: watch::Receiver<Option<Elapsed>>,
    /// Counts the guardians that have become ready.
    pub generation: watch::Sender<u64>,
}

impl Supervisor {
    /// Runs until it is told to leave or no one gives orders any more, then lets the guardian go and waits for its end.
    pub(super) async fn run(mut self) {
        loop {
            let done = select! {
                order = self.orders.recv() => match order {
                    Some(Order::Control(control)) => self.send(&control, None).await,
                    Some(Order::Attach { slot, socket, to }) => {
                        _ = to.send(*self.generation.borrow());
                        self.send(&Control::Attach { slot }, Some(&socket)).await
                    }
                    Some(Order::Leave) | None => break,
                },
                changed = self.lease.changed() => match changed {
                    Ok(()) => self.pass_on_lease().await,
                    Err(_) => break,
                },
                // After its first message a guardian says nothing on this socket: it is gone.
                _ = self.guardian.control.receive::<()>() => Err(io::ErrorKind::BrokenPipe.into()),
            };
            if let Err(error) = done {
                warn!(%error, "the guardian is gone, and with it the jobs that ran");
                self.replace().await;
            }
        }
        drop(self.guardian.control);
        if tokio::time::timeout(PATIENCE, self.guardian.process.wait()).await.is_err() {
            _ = self.guardian.process.kill().await;
        }
    }

    async fn pass_on_lease(&mut self) -> io::Result<()> {
        let deadline = *self.lease.borrow_and_update();
        match deadline {
            Some(Elapsed(deadline_ms)) => self.send(&Control::Lease { deadline_ms }, None).await,
            None => Ok(()),
        }
    }

    async fn send(&self, control: &Control, fd: Option<&OwnedFd>) -> io::Result<()> {
        let fds: Vec<_> = fd.iter().map(|fd| fd.as_fd()).collect();
        self.guardian.control.send(control, &fds).await
    }

    /// Starts guardians until one is ready. By then it has ended what the lost one left running.
    async fn replace(&mut self) {
        _ = self.guardian.process.kill().await;
        loop {
            match self.config.start_guardian().await {
                Ok(guardian) => {
                    self.guardian = guardian;
                    if self.pass_on_lease().await.is_ok() {
                        break;
                    }
                }
                Err(error) => error!(%error, "the guardian could not be started"),
            }
            tokio::time::sleep(PAUSE).await;
        }
        self.generation.send_modify(|generation| *generation += 1);
    }
}
