//! A running server: the engine and its listeners.

use crate::{
    engine::{Engine, LoopEnd},
    fleet::{self, Reach},
    grpc::{self, Door},
    http,
    listen::{self, Addresses, ConnectedPeer, Doorway, ListenError},
    maintenance,
    options::Options,
    tls::Tls,
};
use futures::future::{BoxFuture, FutureExt};
use hodei_api::gather::Gathering;
use hodei_core::{access::Role, brain::Brain};
use hodei_store::{Store, StoreError};
use std::{
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use thiserror::Error;
use tokio::{
    io::{AsyncRead, AsyncWrite, DuplexStream},
    net::TcpListener,
    sync::{mpsc, watch},
    task::JoinSet,
};
use tokio_rustls::TlsAcceptor;
use tokio_stream::{
    Stream, StreamExt,
    wrappers::{UnboundedReceiverStream, UnixListenerStream},
};
use tonic::{
    service::Routes,
    transport::server::{Connected, Server as Transport},
};

/// How long open calls may take to end when the server stops.
const LAST_CALLS: Duration = Duration::from_secs(2);
const KEEPALIVE: Duration = Duration::from_secs(20);
/// Of HTTP/2, per stream and per connection: log streams must not wait for round trips.
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 4 << 20;
/// Of the pipe between the parts of one process.
const DUPLEX_BYTES: usize = 256 << 10;

#[derive(Debug, Error)]
pub enum ServerError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Listen(#[from] ListenError),
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("cannot describe the services: {0}")]
    Reflection(#[from] tonic_reflection::server::Error),
}

pub struct Server {
    engine: Engine,
    ended: BoxFuture<'static, LoopEnd>,
    closing: watch::Sender<bool>,
    tasks: JoinSet<()>,
    insiders: mpsc::UnboundedSender<DuplexStream>,
    served: Arc<AtomicU64>,
    grpc: Option<SocketAddr>,
    http: Option<SocketAddr>,
    sockets: Vec<PathBuf>,
    tls: Option<Tls>,
}

impl Server {
    pub async fn start(store: Arc<dyn Store>, options: Options, at: Addresses) -> Result<Self, ServerError> {
        // Addresses first: a server that cannot be reached must not take the lead.
        let grpc_listener = match at.grpc {
            Some(address) => Some(at.tcp(address).await?),
            None => None,
        };
        let http_listener = match at.http {
            Some(address) => Some(at.tcp(address).await?),
            None => None,
        };
        let (engine, ended) = Engine::start(store, options).await?;
        let (closing, closed) = watch::channel(false);
        let served = Arc::new(AtomicU64::new(0));
        let services = grpc::services(&engine, closed.clone()).await?;
        let routes = |door: Door| grpc::behind(services.clone(), &engine, door, Arc::clone(&served));
        let network = Door::Network { certified_workers: at.tls.as_ref().is_some_and(Tls::asks_workers) };
        let (inner, outer, for_workers) = (routes(Door::Owner), routes(network), routes(Door::Workers));
        let (insiders, inside) = mpsc::unbounded_channel();
        let open = |listener: Option<TcpListener>, acceptor: fn(&Tls) -> TlsAcceptor| {
            listener.map(|listener| Doorway::open(listener, at.tls.as_ref().map(acceptor))).transpose()
        };
        let grpc_doorway = open(grpc_listener, Tls::grpc_acceptor)?;
        let http_doorway = open(http_listener, Tls::http_acceptor)?;
        let mut server = Self {
            grpc: grpc_doorway.as_ref().map(Doorway::address),
            http: http_doorway.as_ref().map(Doorway::address),
            sockets: at.socket.iter().chain(&at.worker_socket).cloned().collect(),
            tls: at.tls.clone(),
            tasks: JoinSet::new(),
            engine,
            ended,
            closing,
            insiders,
            served,
        };
        server.serve(&inner, UnboundedReceiverStream::new(inside).map(Ok));
        if let Some(doorway) = grpc_doorway {
            server.serve(&outer, doorway);
        }
        if let Some(doorway) = http_doorway {
            let app = http::routes(&server.engine, closed.clone(), Arc::clone(&server.served));
            let mut closed = closed;
            let app = app.into_make_service_with_connect_info::<ConnectedPeer>();
            server.tasks.spawn(async move {
                let until = async move { _ = closed.wait_for(|closed| *closed).await };
                _ = axum::serve(doorway, app).with_graceful_shutdown(until).await;
            });
        }
        maintenance::start(&server.engine, &server.closing.subscribe(), &mut server.tasks);
        if let Some(path) = &at.socket {
            server.serve(&inner, UnixListenerStream::new(listen::unix(path)?));
        }
        if let Some(path) = &at.worker_socket {
            server.serve(&for_workers, UnixListenerStream::new(listen::worker_unix(path)?));
            let cluster = server.engine.shared().store.cluster().await?;
            let reach = server.reach(path);
            let fleet = fleet::run(server.engine.clone(), cluster, reach);
            let mut closed = server.closing.subscribe();
            server.tasks.spawn(async move {
                tokio::select! {
                    () = fleet => {}
                    _ = closed.wait_for(|closed| *closed) => {}
                }
            });
        }
        Ok(server)
    }

    /// How workers that are made for it reach it.
    fn reach(&self, socket: &Path) -> Reach {
        let authority =
            self.tls.as_ref().and_then(|tls| tls.authority.as_ref()).map(|authority| authority.path.clone());
        let advertise = self.engine.shared().options.fleet.advertise.as_deref();
        Reach::of(advertise, self.grpc, self.tls.is_some(), authority, socket)
    }

    fn serve<S, IO>(&mut self, routes: &Routes, incoming: S)
    where
        S: Stream<Item = io::Result<IO>> + Send + 'static,
        IO: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
    {
        let incoming = incoming.map(|connection| connection.map(Gathering::new));
        let (routes, mut closed) = (routes.clone(), self.closing.subscribe());
        self.tasks.spawn(async move {
            let until = async move { _ = closed.wait_for(|closed| *closed).await };
            let served = Transport::builder()
                .initial_stream_window_size(STREAM_WINDOW)
                .initial_connection_window_size(CONNECTION_WINDOW)
                .http2_keepalive_interval(Some(KEEPALIVE))
                .add_routes(routes)
                .serve_with_incoming_shutdown(incoming, until)
                .await;
            if let Err(error) = served {
                tracing::error!(%error, "a listener failed");
            }
        });
    }

    pub fn grpc_address(&self) -> Option<SocketAddr> {
        self.grpc
    }

    pub fn http_address(&self) -> Option<SocketAddr> {
        self.http
    }

    /// How it proves who it is, if it does.
    pub fn tls(&self) -> Option<&Tls> {
        self.tls.as_ref()
    }

    /// A way in for other parts of this process; it needs no listener.
    pub fn insider(&self) -> impl Fn() -> Result<DuplexStream, io::Error> + Clone + Send + 'static {
        let insiders = self.insiders.clone();
        move || {
            let (ours, theirs) = tokio::io::duplex(DUPLEX_BYTES);
            insiders.send(theirs).map_err(|_| io::ErrorKind::ConnectionRefused)?;
            Ok(ours)
        }
    }

    /// An API token that is kept nowhere and ends with this server.
    pub fn grant(&self, name: &str, role: Role) -> String {
        self.engine.shared().access.tokens.grant(name, role)
    }

    /// Requests that were answered so far.
    pub fn served(&self) -> u64 {
        self.served.load(Ordering::Relaxed)
    }

    /// Whether some job is left to run, or somebody to be told of one.
    pub async fn has_work(&self) -> bool {
        let owed = self.engine.shared().store.next_delivery().await;
        owed.map_or(true, |owed| owed.is_some()) || self.engine.ask(Brain::has_work).await.unwrap_or(true)
    }

    /// Ends the server if it has no work left and nobody has asked anything since so many were served; otherwise it goes
    /// on. Whoever got an answer before can ask the next thing, too.
    pub async fn stop_if_idle(self, served: u64) -> Result<(), Self> {
        let counter = Arc::clone(&self.served);
        let nobody_came = Box::new(move || counter.load(Ordering::Relaxed) == served);
        if self.engine.stop(Some(nobody_came)).await {
            self.close_doors().await;
            return Ok(());
        }
        Err(self)
    }

    /// Resolves when the loop has ended by itself, which only a fault makes it do. There is one such future.
    pub fn failure(&mut self) -> impl Future<Output = StoreError> + Send + 'static {
        let ended = std::mem::replace(&mut self.ended, std::future::pending().boxed());
        async move {
            match ended.await {
                Err(error) => error,
                Ok(()) => std::future::pending().await,
            }
        }
    }

    /// Commits what is decided, tells the workers to go on alone, and closes every door. Running jobs go on.
    pub async fn stop(self) {
        maintenance::write_refusals(&self.engine);
        self.engine.stop(None).await;
        self.close_doors().await;
    }

    async fn close_doors(mut self) {
        self.closing.send_replace(true);
        let ended = async { while self.tasks.join_next().await.is_some() {} };
        if tokio::time::timeout(LAST_CALLS, ended).await.is_err() {
            self.tasks.abort_all();
        }
        for socket in &self.sockets {
            _ = std::fs::remove_file(socket);
        }
    }
}
