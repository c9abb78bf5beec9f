//! A slot's line to the guardian.

use super::{Shared, supervisor::Order};
use crate::guardian::{
    Socket,
    message::{self, Start},
};
use rustix::{
    fd::{AsFd, OwnedFd},
    pipe::PipeFlags,
};
use std::{io, sync::Arc};
use tokio::sync::oneshot;

/// It is opened when it is first used, and again with the next guardian when one was lost.
#[derive(Debug)]
pub(super) struct Line {
    index: u32,
    shared: Arc<Shared>,
    link: Option<Link>,
}

/// A slot's connection to a guardian.
#[derive(Debug)]
struct Link {
    socket: Socket,
    generation: u64,
}

impl Line {
    pub(super) fn new(index: u32, shared: Arc<Shared>) -> Self {
        Self { index, shared, link: None }
    }

    /// The socket to the guardian that was given the last start, and which guardian that is.
    pub(super) fn open(&self) -> Option<(&Socket, u64)> {
        self.link.as_ref().map(|link| (&link.socket, link.generation))
    }

    pub(super) fn close(&mut self) {
        self.link = None;
    }

    /// Hands the job to the guardian; to the next one if this one has died in the meantime.
    pub(super) async fn send_start(&mut self, start: &Start, fds: &[OwnedFd]) -> io::Result<()> {
        const TRIES: usize = 5;
        let fds: Vec<_> = fds.iter().map(|fd| fd.as_fd()).collect();
        let mut sent = Err(io::ErrorKind::NotConnected.into());
        for _ in 0..TRIES {
            let link = match self.link.take() {
                Some(link) => link,
                None => self.attach().await?,
            };
            sent = link.socket.send_now(start, &fds);
            if sent.is_ok() {
                self.link = Some(link);
                break;
            }
            self.await_guardian_after(link.generation).await;
        }
        sent
    }

    async fn attach(&self) -> io::Result<Link> {
        let (ours, theirs) = message::socket_pair()?;
        let (to, generation) = oneshot::channel();
        let gone = |_| io::Error::from(io::ErrorKind::NotConnected);
        let order = Order::Attach { slot: self.index, socket: theirs, to };
        self.shared.orders.send(order).map_err(|_| io::Error::from(io::ErrorKind::NotConnected))?;
        let generation = generation.await.map_err(gone)?;
        Ok(Link { socket: Socket::new(ours)?, generation })
    }

    pub(super) async fn await_guardian_after(&self, lost: u64) {
        _ = self.shared.generation.subscribe().wait_for(|generation| *generation > lost).await;
    }
}

/// The reading end for us, and the writing end for the job.
pub(super) fn output_pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let (reader, writer) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
    rustix::io::ioctl_fionbio(&reader, true)?;
    Ok((reader, writer))
}
