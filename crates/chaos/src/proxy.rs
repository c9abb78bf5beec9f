//! A TCP proxy on loopback whose connections can be cut, held, slowed and made deaf in one direction.

use anyhow::Result;
use std::{io, net::SocketAddr, sync::Arc, time::Duration};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::watch,
};

/// What becomes of bytes that go one way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Flow {
    #[default]
    Pass,
    /// They wait, and nobody hears that they do.
    Hold,
    /// They are gone. The connection is closed when bytes pass again, as no TCP goes on after a gap.
    Lose,
    /// They come late.
    Delay(Duration),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Condition {
    /// Connections are closed, and new ones are refused.
    pub cut: bool,
    /// From those who connect to the proxy.
    pub up: Flow,
    /// To them.
    pub down: Flow,
}

#[derive(Debug)]
pub struct Proxy {
    pub address: SocketAddr,
    condition: Arc<watch::Sender<Condition>>,
}

impl Proxy {
    pub async fn start(to: SocketAddr) -> Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        let condition = Arc::new(watch::Sender::new(Condition::default()));
        let seen = Arc::clone(&condition);
        tokio::spawn(async move {
            loop {
                let Ok((client, _)) = listener.accept().await else { continue };
                tokio::spawn(carry(client, to, seen.subscribe()));
            }
        });
        Ok(Self { address, condition })
    }

    pub fn set(&self, condition: Condition) {
        self.condition.send_replace(condition);
    }

    pub fn heal(&self) {
        self.set(Condition::default());
    }
}

async fn carry(client: TcpStream, to: SocketAddr, mut condition: watch::Receiver<Condition>) {
    if condition.borrow_and_update().cut {
        return;
    }
    let Ok(server) = TcpStream::connect(to).await else { return };
    _ = (client.set_nodelay(true), server.set_nodelay(true));
    let ((from_client, to_client), (from_server, to_server)) = (client.into_split(), server.into_split());
    let cut = {
        let mut condition = condition.clone();
        async move { _ = condition.wait_for(|condition| condition.cut).await }
    };
    // Whichever ends first ends all: the sockets close when the rest is dropped.
    tokio::select! {
        () = cut => {}
        _ = pump(from_client, to_server, condition.clone(), |condition| condition.up) => {}
        _ = pump(from_server, to_client, condition, |condition| condition.down) => {}
    }
}

async fn pump(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut condition: watch::Receiver<Condition>,
    flow: impl Fn(&Condition) -> Flow,
) -> io::Result<()> {
    let mut bytes = vec![0; 64 << 10];
    let mut lost = false;
    let gone = |_| io::Error::from(io::ErrorKind::BrokenPipe);
    loop {
        condition.wait_for(|now| flow(now) != Flow::Hold).await.map_err(gone)?;
        if lost && flow(&condition.borrow()) != Flow::Lose {
            return Ok(());
        }
        let size = tokio::select! {
            size = from.read(&mut bytes) => size?,
            // Not to be surprised by bytes that come after a change.
            _ = condition.changed() => continue,
        };
        if size == 0 {
            return Ok(());
        }
        // What was read before the bytes had to wait waits, too.
        let now = flow(&*condition.wait_for(|now| flow(now) != Flow::Hold).await.map_err(gone)?);
        match now {
            Flow::Lose => {
                lost = true;
                continue;
            }
            // Bytes that came while the loss ended must not follow those that are gone.
            _ if lost => return Ok(()),
            Flow::Delay(time) => tokio::time::sleep(time).await,
            Flow::Pass | Flow::Hold => {}
        }
        to.write_all(&bytes[..size]).await?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that says everything back, behind a proxy.
    async fn echo() -> (Proxy, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let proxy = Proxy::start(listener.local_addr().unwrap()).await.unwrap();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let (mut from, mut to) = stream.split();
                    _ = tokio::io::copy(&mut from, &mut to).await;
                });
            }
        });
        let client = TcpStream::connect(proxy.address).await.unwrap();
        (proxy, client)
    }

    async fn heard(client: &mut TcpStream) -> Option<u8> {
        let heard = tokio::time::timeout(Duration::from_millis(200), client.read_u8()).await;
        heard.ok().map(|byte| byte.unwrap_or(0))
    }

    #[tokio::test]
    async fn bytes_pass_wait_and_pass_again() {
        let (proxy, mut client) = echo().await;
        client.write_u8(1).await.unwrap();
        assert_eq!(heard(&mut client).await, Some(1));
        proxy.set(Condition { down: Flow::Hold, ..Condition::default() });
        client.write_u8(2).await.unwrap();
        assert_eq!(heard(&mut client).await, None);
        proxy.heal();
        assert_eq!(heard(&mut client).await, Some(2));
    }

    #[tokio::test]
    async fn a_cut_ends_connections_and_refuses_new_ones() {
        let (proxy, mut client) = echo().await;
        client.write_u8(1).await.unwrap();
        assert_eq!(heard(&mut client).await, Some(1));
        proxy.set(Condition { cut: true, ..Condition::default() });
        assert_eq!(heard(&mut client).await, Some(0), "closed");
        let mut again = TcpStream::connect(proxy.address).await.unwrap();
        assert_eq!(heard(&mut again).await, Some(0), "closed");
        proxy.heal();
        let mut again = TcpStream::connect(proxy.address).await.unwrap();
        again.write_u8(3).await.unwrap();
        assert_eq!(heard(&mut again).await, Some(3));
    }

    #[tokio::test]
    async fn what_is_lost_ends_the_connection_when_bytes_pass_again() {
        let (proxy, mut client) = echo().await;
        proxy.set(Condition { up: Flow::Lose, ..Condition::default() });
        client.write_u8(1).await.unwrap();
        assert_eq!(heard(&mut client).await, None);
        proxy.heal();
        assert_eq!(heard(&mut client).await, Some(0), "closed");
    }
}
