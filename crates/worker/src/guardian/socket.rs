//! The agent's end of a socket to its guardian.

use super::message::{self, SHORT};
use rustix::fd::{BorrowedFd, OwnedFd};
use serde::{Serialize, de::DeserializeOwned};
use std::{io, os::unix::net};
use tokio::{io::Interest, net::UnixDatagram};

/// The runtime knows of packets on Unix sockets as datagrams only; it watches the socket, and messages are sent and
/// received here.
#[derive(Debug)]
pub(crate) struct Socket(UnixDatagram);

impl Socket {
    pub(crate) fn new(socket: OwnedFd) -> io::Result<Self> {
        UnixDatagram::from_std(net::UnixDatagram::from(socket)).map(Self)
    }

    pub(crate) async fn send(&self, message: &impl Serialize, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.0.async_io(Interest::WRITABLE, || message::send(&self.0, message, fds)).await
    }

    /// For a message that is known to find room.
    pub(crate) fn send_now(&self, message: &impl Serialize, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        message::send(&self.0, message, fds)
    }

    /// The guardian's next message, or `None` when it is gone or cannot be understood.
    pub(crate) async fn receive<T: DeserializeOwned>(&self) -> Option<T> {
        let receive = || message::receive(&self.0, &mut [0; SHORT]);
        self.0.async_io(Interest::READABLE, receive).await.ok().flatten().map(|(message, _)| message)
    }
}
