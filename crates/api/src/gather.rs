//! Fewer and larger writes to a socket.
//!
//! A call is several frames of HTTP/2 (headers, message, end), and each is flushed when the task that has it comes to it.
//! Written one by one, each costs a system call and may wake the other side for a part of what it waits for. So a flush
//! first lets everything else that is ready run, as long as that adds to it. Nobody waits for a time.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll, ready},
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tonic::transport::server::Connected;

/// More than this is not gathered, nor copied.
const LARGE: usize = 16 << 10;

/// A connection whose small writes leave together.
#[derive(Debug)]
pub struct Gathering<C> {
    connection: C,
    waiting: Vec<u8>,
    /// How much of `waiting` has left.
    left: usize,
    /// What the last poll of this flush found.
    found: usize,
}

impl<C> Gathering<C> {
    pub fn new(connection: C) -> Self {
        Self { connection, waiting: Vec::new(), left: 0, found: 0 }
    }
}

impl<C: AsyncWrite + Unpin> Gathering<C> {
    fn poll_leave(&mut self, cx: &mut Context) -> Poll<io::Result<()>> {
        while self.left < self.waiting.len() {
            let rest = self.waiting.get(self.left..).unwrap_or_default();
            match ready!(Pin::new(&mut self.connection).poll_write(cx, rest))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                count => self.left += count,
            }
        }
        self.waiting.clear();
        (self.left, self.found) = (0, 0);
        Poll::Ready(Ok(()))
    }
}

impl<C: AsyncWrite + Unpin> AsyncWrite for Gathering<C> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(mut self: Pin<&mut Self>, cx: &mut Context, slices: &[IoSlice]) -> Poll<io::Result<usize>> {
        let count = slices.iter().map(|slice| slice.len()).sum();
        if self.waiting.len() + count > LARGE {
            ready!(self.poll_leave(cx))?;
        }
        if count > LARGE {
            return Pin::new(&mut self.connection).poll_write_vectored(cx, slices);
        }
        slices.iter().for_each(|slice| self.waiting.extend_from_slice(slice));
        Poll::Ready(Ok(count))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context) -> Poll<io::Result<()>> {
        if self.found < self.waiting.len() {
            self.found = self.waiting.len();
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        ready!(self.poll_leave(cx))?;
        Pin::new(&mut self.connection).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context) -> Poll<io::Result<()>> {
        ready!(self.poll_leave(cx))?;
        Pin::new(&mut self.connection).poll_shutdown(cx)
    }
}

impl<C: AsyncRead + Unpin> AsyncRead for Gathering<C> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context, buffer: &mut ReadBuf) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_read(cx, buffer)
    }
}

impl<C: Connected> Connected for Gathering<C> {
    type ConnectInfo = C::ConnectInfo;

    fn connect_info(&self) -> Self::ConnectInfo {
        self.connection.connect_info()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::task::Waker;

    /// Takes a few bytes at a time and remembers each write.
    #[derive(Default)]
    struct Slow {
        writes: Vec<Vec<u8>>,
        at_most: usize,
    }

    impl AsyncWrite for Slow {
        fn poll_write(mut self: Pin<&mut Self>, _: &mut Context, bytes: &[u8]) -> Poll<io::Result<usize>> {
            let count = bytes.len().min(self.at_most);
            self.writes.push(bytes[..count].to_vec());
            Poll::Ready(Ok(count))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    fn write(to: &mut Gathering<Slow>, bytes: &[u8]) -> usize {
        match Pin::new(to).poll_write(&mut Context::from_waker(Waker::noop()), bytes) {
            Poll::Ready(Ok(count)) => count,
            other => panic!("{other:?}"),
        }
    }

    fn flushed(to: &mut Gathering<Slow>) -> bool {
        Pin::new(to).poll_flush(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    #[test]
    fn a_flush_waits_as_long_as_it_grows() {
        let mut to = Gathering::new(Slow { at_most: 1024, ..Slow::default() });
        write(&mut to, b"head");
        assert!(!flushed(&mut to));
        write(&mut to, b"body");
        assert!(!flushed(&mut to));
        assert!(flushed(&mut to));
        assert_eq!(to.connection.writes, [b"headbody"]);
        assert!(flushed(&mut to), "nothing waits, so nothing is waited for");
        write(&mut to, b"more");
        assert!(!flushed(&mut to));
        assert!(flushed(&mut to));
        assert_eq!(to.connection.writes.len(), 2);
    }

    #[test]
    fn everything_leaves_in_its_order_whatever_the_sizes() {
        let mut to = Gathering::new(Slow { at_most: 1000, ..Slow::default() });
        let mut said = Vec::new();
        for (number, size) in [3, LARGE, 17, LARGE + 1, 1, LARGE - 1, 5 * LARGE].into_iter().enumerate() {
            let bytes = vec![number as u8; size];
            let mut rest = &bytes[..];
            while !rest.is_empty() {
                let count = write(&mut to, rest);
                rest = &rest[count..];
            }
            said.extend(bytes);
        }
        while !flushed(&mut to) {}
        assert!(to.connection.writes.concat() == said);
    }
}
