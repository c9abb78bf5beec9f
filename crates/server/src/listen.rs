//! Where the server may be reached, and how: with TLS or without.

use crate::{
    access::{Caller, Peer},
    tls::Tls,
};
use axum::{extract::connect_info::Connected as AxumConnected, serve::IncomingStream};
use futures::Stream;
use std::{
    fs::File,
    io,
    net::SocketAddr,
    os::{fd::AsRawFd, unix::fs::PermissionsExt},
    path::{Path, PathBuf},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};
use thiserror::Error;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf},
    net::{TcpListener, TcpStream, UnixListener},
    sync::{Semaphore, mpsc},
    task::JoinHandle,
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use tonic::transport::server::Connected;

/// Handshakes of TLS at one time; others wait in the kernel.
const HANDSHAKES: usize = 256;
const HANDSHAKE_PATIENCE: Duration = Duration::from_secs(10);
/// After an error that has nothing to do with the caller, such as too many open files.
const ACCEPT_AGAIN: Duration = Duration::from_millis(50);
/// The first byte of a connection that speaks TLS.
const HANDSHAKE: u8 = 0x16;
/// How long, and how much, a caller that does not speak TLS may go on after it was told.
const CLOSING_PATIENCE: Duration = Duration::from_secs(2);
const READ_WHILE_CLOSING: u64 = 64 << 10;
const SPEAK_TLS: &[u8] = b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\nconnection: close\r\ncontent-length: 41\r\n\r\nthis address speaks TLS; write https://\r\n";

/// The addresses of one server.
#[derive(Clone, Debug, Default)]
pub struct Addresses {
    pub grpc: Option<SocketAddr>,
    pub http: Option<SocketAddr>,
    pub socket: Option<PathBuf>,
    /// For workers alone, in a folder of its own.
    pub worker_socket: Option<PathBuf>,
    /// For both TCP addresses.
    pub tls: Option<Tls>,
    /// Others may listen in on what is not encrypted, and that is all right.
    pub insecure: bool,
}

#[derive(Debug, Error)]
pub enum ListenError {
    #[error(
        "{0} can be reached from other machines, and without TLS tokens and jobs could be read on the way; use --tls-self-signed, or --tls-cert and --tls-key, or say --insecure if the network is safe"
    )]
    NoTls(SocketAddr),
    #[error("cannot listen on {at}: {source}")]
    Io { at: String, source: io::Error },
}

impl Addresses {
    pub async fn tcp(&self, address: SocketAddr) -> Result<TcpListener, ListenError> {
        if !address.ip().is_loopback() && self.tls.is_none() && !self.insecure {
            return Err(ListenError::NoTls(address));
        }
        TcpListener::bind(address).await.map_err(|source| ListenError::Io { at: address.to_string(), source })
    }
}

/// A connection over TCP.
pub enum Connection {
    Plain(TcpStream, SocketAddr),
    Tls(Box<TlsStream<TcpStream>>, SocketAddr),
}

impl Connection {
    fn peer(&self) -> SocketAddr {
        match self {
            Connection::Plain(_, peer) | Connection::Tls(_, peer) => *peer,
        }
    }

    /// Whether whoever connected has shown a certificate. The handshake has verified it: with one that is not good there is no
    /// connection.
    fn is_certified(&self) -> bool {
        match self {
            Connection::Plain(..) => false,
            Connection::Tls(stream, _) => stream.get_ref().1.peer_certificates().is_some_and(|chain| !chain.is_empty()),
        }
    }
}

impl Connected for Connection {
    type ConnectInfo = Caller;

    fn connect_info(&self) -> Caller {
        Caller { peer: Peer::from(self.peer()), certified: self.is_certified() }
    }
}

impl AsyncRead for Connection {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Connection::Plain(stream, _) => Pin::new(stream).poll_read(context, buffer),
            Connection::Tls(stream, _) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Connection {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Connection::Plain(stream, _) => Pin::new(stream).poll_write(context, bytes),
            Connection::Tls(stream, _) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Connection::Plain(stream, _) => Pin::new(stream).poll_flush(context),
            Connection::Tls(stream, _) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Connection::Plain(stream, _) => Pin::new(stream).poll_shutdown(context),
            Connection::Tls(stream, _) => Pin::new(stream).poll_shutdown(context),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Connection::Plain(stream, _) => Pin::new(stream).poll_write_vectored(context, parts),
            Connection::Tls(stream, _) => Pin::new(stream).poll_write_vectored(context, parts),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Connection::Plain(stream, _) => stream.is_write_vectored(),
            Connection::Tls(stream, _) => stream.is_write_vectored(),
        }
    }
}

/// Connections that are ready to be served. Handshakes are made aside, so that a slow one keeps nobody waiting.
pub struct Doorway {
    ready: mpsc::Receiver<Connection>,
    address: SocketAddr,
    accepting: JoinHandle<()>,
}

impl Doorway {
    pub fn open(listener: TcpListener, acceptor: Option<TlsAcceptor>) -> io::Result<Self> {
        let address = listener.local_addr()?;
        let (sender, ready) = mpsc::channel(HANDSHAKES);
        Ok(Self { ready, address, accepting: tokio::spawn(accept(listener, acceptor, sender)) })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Doorway {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl Stream for Doorway {
    type Item = io::Result<Connection>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.ready.poll_recv(context).map(|connection| connection.map(Ok))
    }
}

/// Where a request over HTTP came from.
#[derive(Clone, Copy, Debug)]
pub struct ConnectedPeer(pub SocketAddr);

impl AxumConnected<IncomingStream<'_, Doorway>> for ConnectedPeer {
    fn connect_info(stream: IncomingStream<'_, Doorway>) -> Self {
        Self(*stream.remote_addr())
    }
}

impl axum::serve::Listener for Doorway {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        match self.ready.recv().await {
            Some(connection) => {
                let peer = connection.peer();
                (connection, peer)
            }
            None => std::future::pending().await,
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.address)
    }
}

async fn accept(listener: TcpListener, acceptor: Option<TlsAcceptor>, ready: mpsc::Sender<Connection>) {
    let room = Arc::new(Semaphore::new(HANDSHAKES));
    loop {
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_AGAIN).await;
                continue;
            }
        };
        _ = stream.set_nodelay(true);
        let Some(acceptor) = &acceptor else {
            if ready.send(Connection::Plain(stream, peer)).await.is_err() {
                return;
            }
            continue;
        };
        let Ok(permit) = Arc::clone(&room).acquire_owned().await else { return };
        let (acceptor, ready) = (acceptor.clone(), ready.clone());
        tokio::spawn(async move {
            let shaken = tokio::time::timeout(HANDSHAKE_PATIENCE, shake_hands(&acceptor, stream)).await;
            drop(permit);
            match shaken {
                Ok(Ok(stream)) => _ = ready.send(Connection::Tls(Box::new(stream), peer)).await,
                Ok(Err(error)) => tracing::debug!(%error, %peer, "a TLS handshake failed"),
                Err(_) => tracing::debug!(%peer, "a TLS handshake took too long"),
            }
        });
    }
}

async fn shake_hands(acceptor: &TlsAcceptor, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
    let mut first = [0];
    if stream.peek(&mut first).await? == 1 && first[0] != HANDSHAKE {
        tell_to_speak_tls(stream).await?;
        return Err(io::Error::new(io::ErrorKind::InvalidData, "not TLS"));
    }
    match acceptor.accept(stream).into_fallible().await {
        Ok(stream) => Ok(stream),
        Err((error, stream)) => {
            // It was told why, such as that its certificate is not good.
            _ = hang_up(stream).await;
            Err(error)
        }
    }
}

async fn tell_to_speak_tls(mut stream: TcpStream) -> io::Result<()> {
    stream.write_all(SPEAK_TLS).await?;
    hang_up(stream).await
}

/// Reads on until the caller hangs up, too: to close on what it is still sending would reset the connection, and it would hear
/// of that instead of the answer.
async fn hang_up(mut stream: TcpStream) -> io::Result<()> {
    stream.shutdown().await?;
    let (mut rest, mut nowhere) = (stream.take(READ_WHILE_CLOSING), tokio::io::sink());
    _ = tokio::time::timeout(CLOSING_PATIENCE, tokio::io::copy(&mut rest, &mut nowhere)).await;
    Ok(())
}

/// A socket for workers, which may run as anybody: in a container that the folder of the socket is mounted into, the user is
/// whoever the image says. What stands behind it serves workers alone, each with a credential of its own, and on this machine
/// nobody but the owner gets past the data folder around it.
pub fn worker_unix(path: &Path) -> Result<UnixListener, ListenError> {
    let at = |source| ListenError::Io { at: path.display().to_string(), source };
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(at)?;
        std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o711)).map_err(at)?;
    }
    unix_with_mode(path, 0o666)
}

/// A socket that only its owner can open. The caller holds the lock of the folder, so a socket that is already there was
/// left by a server that died.
pub fn unix(path: &Path) -> Result<UnixListener, ListenError> {
    unix_with_mode(path, 0o600)
}

fn unix_with_mode(path: &Path, mode: u32) -> Result<UnixListener, ListenError> {
    let bind = || -> io::Result<UnixListener> {
        if path.exists() {
            std::fs::remove_file(path)?;
        }
        let (short, _folder) = reachable(path)?;
        let listener = UnixListener::bind(short)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?;
        Ok(listener)
    };
    bind().map_err(|source| ListenError::Io { at: path.display().to_string(), source })
}

/// The kernel takes socket paths of about 100 bytes. A longer one is reached through its open folder, which must stay
/// open until the socket has been bound or connected.
pub fn reachable(path: &Path) -> io::Result<(PathBuf, Option<File>)> {
    const LONGEST: usize = 100;
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else { return Ok((path.to_owned(), None)) };
    if path.as_os_str().len() <= LONGEST {
        return Ok((path.to_owned(), None));
    }
    let folder = File::open(folder)?;
    Ok((PathBuf::from(format!("/proc/self/fd/{}", folder.as_raw_fd())).join(name), Some(folder)))
}
