//! `hodei server` and `hodei up`.

use crate::{
    args::{Common, ServerArgs, TraitArgs, UpArgs},
    client::SOCKET,
    commands::{fleet, webhook, worker},
    config::{Config, Handler},
    exit,
    folder::{Folder, Holder},
    output,
};
use anyhow::{Result, bail};
use futures::future::FutureExt;
use hodei_api::v1::{self, worker_admin_service_client::WorkerAdminServiceClient as Admin};
use hodei_core::{access::Role, spec::Limits, time::Millis};
use hodei_server::{Options, Server, listen::Addresses, tls::Tls};
use hodei_store::{Postgres, Sqlite, Store};
use hodei_worker::{AgentError, Connect, LinkError, Wish};
use hyper_util::rt::TokioIo;
use rustix::system::uname;
use std::{
    io::{self, Write},
    path::{Path, PathBuf},
    pin::pin,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::{
    io::DuplexStream,
    signal::unix::{SignalKind, signal},
    sync::watch,
    task::JoinHandle,
};
use tonic::transport::{Channel, Endpoint};
use tower::service_fn;
use tracing_subscriber::EnvFilter;

const DATABASE: &str = "hodei.db";
/// For workers alone. Its folder is what a container sees of the data folder.
const WORKER_SOCKET: &str = "door/hodei.sock";
/// What is kept of workers that are processes of this machine.
const FLEET: &str = "fleet";
/// How long jobs may take to end when the process is stopped.
const GIVING_BACK: Duration = Duration::from_secs(30);
const SHORTEST_LEASE: Millis = Millis(200);
const SMALLEST_WINDOW: usize = 16;
/// How often the background server looks whether it is still needed.
const IDLE_CHECK: Duration = Duration::from_secs(1);

/// What the client of Docker engines writes of its requests in detail has the tokens of workers in it.
const NO_TOKENS: &str = "bollard=info";

/// What happens inside goes to standard error; HODEI_LOG chooses how much.
pub fn log_to_stderr() {
    let filter = EnvFilter::try_from_env("HODEI_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let filter = match NO_TOKENS.parse() {
        Ok(directive) => filter.add_directive(directive),
        Err(_) => filter,
    };
    let ansi = io::IsTerminal::is_terminal(&io::stderr());
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(|| Unhindered).with_ansi(ansi).init();
}

/// Standard error, where it can be written: a full disk must not end what it reports on.
struct Unhindered;

impl Write for Unhindered {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        _ = io::stderr().write_all(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

pub async fn server(common: &Common, config: &Config, args: ServerArgs) -> Result<u8> {
    log_to_stderr();
    let folder = take_folder(common, config, &args, false)?.ok_or_else(|| taken(common, config))?;
    let mut server = start(config, &folder, &args, true).await?;
    fleet::put(config, insider(server.insider())).await?;
    announce(&server, &folder);
    explain_tokens(&folder);
    let failure = server.failure();
    tokio::select! {
        () = asked_to_stop() => {}
        error = failure => return Err(error.into()),
    }
    tracing::info!("stopping; workers keep their jobs running");
    server.stop().await;
    Ok(exit::OK)
}

pub async fn up(common: &Common, config: &Config, args: UpArgs) -> Result<u8> {
    log_to_stderr();
    let folder = match take_folder(common, config, &args.server, args.background)? {
        Some(folder) => folder,
        // Somebody else was faster, which is just as good.
        None if args.background => return Ok(exit::OK),
        None => return Err(taken(common, config)),
    };
    let mut server = start(config, &folder, &args.server, !args.background).await?;
    fleet::put(config, insider(server.insider())).await?;
    let (wish, wishes) = watch::channel(Wish::Work);
    let mut worker = start_worker(&server, config, &folder, &args.traits, &args.handler, wishes).await?;
    if !args.background {
        announce(&server, &folder);
        hand_out_token(&server);
    }
    let idle_exit = args.background.then_some(config.background.idle_exit.duration());
    let mut failure = pin!(server.failure());
    let mut asked = pin!(asked_to_stop());
    loop {
        tokio::select! {
            () = &mut asked => break,
            error = &mut failure => return Err(error.into()),
            ended = &mut worker => return Err(worker_ended(ended)),
            served = idle(&server, idle_exit) => match server.stop_if_idle(served).await {
                Ok(()) => {
                    wish.send_replace(Wish::GiveBack);
                    _ = worker.await;
                    return Ok(exit::OK);
                }
                // Somebody came at the last moment.
                Err(busy) => server = busy,
            },
        }
    }
    tracing::info!("stopping; what runs is given back to the queue");
    wish.send_replace(Wish::GiveBack);
    tokio::select! {
        _ = tokio::time::timeout(GIVING_BACK, worker) => {}
        () = asked_to_stop() => tracing::info!("not waiting any longer; the guardian ends what runs"),
    }
    server.stop().await;
    Ok(exit::OK)
}

/// Takes the data folder for a server, or nothing when another has it.
fn take_folder(common: &Common, config: &Config, args: &ServerArgs, background: bool) -> Result<Option<Folder>> {
    let elsewhere = !database_url(config, args).is_empty();
    Folder::take(config.data_folder(common.data.as_deref())?, background, elsewhere)
}

fn taken(common: &Common, config: &Config) -> anyhow::Error {
    match config.data_folder(common.data.as_deref()) {
        Ok(folder) => anyhow::anyhow!(Holder::complaint(&folder)),
        Err(error) => error,
    }
}

fn database_url(config: &Config, args: &ServerArgs) -> String {
    args.database_url.clone().unwrap_or_else(|| config.server.database_url.clone())
}

async fn start(config: &Config, folder: &Folder, args: &ServerArgs, tcp: bool) -> Result<Server> {
    let settings = &config.server;
    let store = open_store(&database_url(config, args), &folder.path).await?;
    let options = Options {
        lease: args.lease.unwrap_or(settings.lease),
        lease_grace: args.lease_grace.unwrap_or(settings.lease_grace),
        parked_lease: settings.parked_lease,
        token_ttl: settings.token_ttl,
        limits: Limits { payload_bytes: usize::try_from(settings.max_payload).unwrap_or(usize::MAX) },
        window: settings.window,
        retention: settings.retention,
        events_kept: settings.events_kept,
        webhooks: webhook::settings(&config.webhooks, &folder.path)?,
        fleet: hodei_server::fleet::Settings {
            folder: Some(folder.path.join(FLEET)),
            registration: config.fleet.registration_timeout,
            advertise: Some(config.fleet.advertise.clone()).filter(|url| !url.is_empty()),
        },
    };
    if options.lease < SHORTEST_LEASE {
        bail!("the lease must be at least {}ms, or workers could not keep it", SHORTEST_LEASE.0);
    }
    if options.window < SMALLEST_WINDOW {
        bail!("server.window must be at least {SMALLEST_WINDOW}");
    }
    let at = Addresses {
        grpc: tcp.then(|| args.grpc.unwrap_or(settings.grpc)),
        http: tcp.then(|| args.http.unwrap_or(settings.http)),
        socket: Some(folder.path.join(SOCKET)),
        worker_socket: Some(folder.path.join(WORKER_SOCKET)),
        tls: if tcp { tls(config, folder, args)? } else { None },
        insecure: args.insecure || settings.insecure,
    };
    Ok(Server::start(store, options, at).await?)
}

/// What the flags say of TLS, and what the configuration says where they are silent.
fn tls(config: &Config, folder: &Folder, args: &ServerArgs) -> Result<Option<Tls>> {
    let configured = Some(Path::new(&config.server.tls_client_ca)).filter(|path| !path.as_os_str().is_empty());
    match (certificate(config, folder, args)?, args.tls_client_ca.as_deref().or(configured)) {
        (tls, None) => Ok(tls),
        (Some(tls), Some(authority)) => Ok(Some(tls.with_client_authority(authority)?)),
        (None, Some(_)) => bail!(
            "--tls-client-ca (server.tls_client_ca) needs TLS, or workers could show no certificate; use --tls-self-signed, or --tls-cert and --tls-key"
        ),
    }
}

/// The server's own.
fn certificate(config: &Config, folder: &Folder, args: &ServerArgs) -> Result<Option<Tls>> {
    let settings = &config.server;
    if let (Some(cert), Some(key)) = (&args.tls_cert, &args.tls_key) {
        return Ok(Some(Tls::of_files(cert, key)?));
    }
    let tls = match (settings.tls_cert.as_str(), settings.tls_key.as_str()) {
        _ if args.tls_self_signed => Tls::self_signed(&folder.path, names(config, args))?,
        ("", "") if settings.tls_self_signed => Tls::self_signed(&folder.path, names(config, args))?,
        ("", "") => return Ok(None),
        ("", _) | (_, "") => bail!("server.tls_cert and server.tls_key go together"),
        (cert, key) => Tls::of_files(Path::new(cert), Path::new(key))?,
    };
    Ok(Some(tls))
}

/// Everything that clients may call this server.
fn names(config: &Config, args: &ServerArgs) -> Vec<String> {
    let host = uname().nodename().to_string_lossy().into_owned();
    let mut names = vec!["localhost".to_owned(), "127.0.0.1".to_owned(), "::1".to_owned(), host];
    let addresses = [args.grpc.unwrap_or(config.server.grpc), args.http.unwrap_or(config.server.http)];
    names.extend(addresses.iter().filter(|at| !at.ip().is_unspecified()).map(|at| at.ip().to_string()));
    names.extend(args.tls_name.iter().chain(&config.server.tls_names).cloned());
    names.sort();
    names.dedup();
    names
}

async fn open_store(url: &str, folder: &Path) -> Result<Arc<dyn Store>> {
    if url.starts_with("postgres://") || url.starts_with("postgresql://") {
        return Ok(Arc::new(Postgres::connect(url).await?));
    }
    if url.contains("://") && !url.starts_with("sqlite://") {
        bail!("'{url}' is not a database that Hodei knows; give a path for SQLite, or postgres://user@host/database");
    }
    let path = match url.trim_start_matches("sqlite://") {
        "" => folder.join(DATABASE),
        path => PathBuf::from(path),
    };
    Ok(Arc::new(Sqlite::open(path)?))
}

fn announce(server: &Server, folder: &Folder) {
    let at = |address: Option<std::net::SocketAddr>| address.map(|at| at.to_string()).unwrap_or_default();
    output::note(&format!(
        "hodei is up: gRPC on {}, health on {}://{}/ready, data in {}",
        at(server.grpc_address()),
        scheme(server),
        at(server.http_address()),
        folder.path.display()
    ));
    if let Some(address) = server.http_address() {
        let api = format!("{}://{address}/api/v1", scheme(server));
        output::note(&format!("the REST API is at {api}, and {api}/docs explains it"));
    }
    if let Some(authority) = server.tls().and_then(|tls| tls.authority.as_ref()) {
        output::note(&format!(
            "clients trust it with HODEI_CA={} (SHA-256 {})",
            authority.path.display(),
            authority.fingerprint
        ));
    }
}

fn scheme(server: &Server) -> &'static str {
    if server.tls().is_some() { "https" } else { "http" }
}

/// How to call a server over the network.
fn explain_tokens(folder: &Folder) {
    let data = folder.path.display();
    output::note(&format!(
        "calls over the network need an API token; make one with: hodei --data {data} token create api --role operator"
    ));
}

/// A token for whoever started `hodei up`. It is kept nowhere, so it ends with this process.
fn hand_out_token(server: &Server) {
    let token = server.grant("up", Role::Admin);
    let at = server.grpc_address().map(|at| at.to_string()).unwrap_or_default();
    output::note(&format!(
        "for calls over the network while it runs: HODEI_SERVER={}://{at} HODEI_API_TOKEN={token}",
        scheme(server)
    ));
}

/// The local worker registers anew at every start: its token never leaves this process.
async fn start_worker(
    server: &Server,
    config: &Config,
    folder: &Folder,
    traits: &TraitArgs,
    handlers: &[Handler],
    wishes: watch::Receiver<Wish>,
) -> Result<JoinHandle<Result<(), AgentError>>> {
    let connect = insider(server.insider());
    let home = folder.path.join(worker::FOLDER);
    let known = hodei_worker::known_worker(&home).map(|id| id.to_string()).unwrap_or_default();
    let request = v1::CreateWorkerTokenRequest { worker_id: known, ttl_ms: 0 };
    let token = Admin::new(connect().await?).create_worker_token(request).await?.into_inner().token;
    let mut options = worker::agent(config, connect, home, None, traits, handlers)?;
    options.token = Some(token);
    Ok(tokio::spawn(hodei_worker::run(options, wishes)))
}

fn insider(open: impl Fn() -> io::Result<DuplexStream> + Clone + Send + Sync + 'static) -> Connect {
    Arc::new(move || {
        let open = open.clone();
        async move {
            let connect = service_fn(move |_| std::future::ready(open().map(TokioIo::new)));
            let endpoint = Endpoint::from_static("http://inside")
                .initial_stream_window_size(1 << 20)
                .initial_connection_window_size(4 << 20);
            let channel: Result<Channel, _> = endpoint.connect_with_connector(connect).await;
            channel.map_err(|error| LinkError::Unreachable(error.to_string()))
        }
        .boxed()
    })
}

fn worker_ended(ended: Result<Result<(), AgentError>, tokio::task::JoinError>) -> anyhow::Error {
    match ended {
        Ok(Ok(())) => anyhow::anyhow!("the local worker was drained; start again to have a new one"),
        Ok(Err(error)) => error.into(),
        Err(error) => error.into(),
    }
}

async fn asked_to_stop() {
    let (Ok(mut interrupt), Ok(mut terminate)) = (signal(SignalKind::interrupt()), signal(SignalKind::terminate()))
    else {
        return std::future::pending().await;
    };
    tokio::select! { _ = interrupt.recv() => {}, _ = terminate.recv() => {} }
}

/// Resolves when nobody has asked anything for a while and nothing is left to do, with how many were served until then.
async fn idle(server: &Server, limit: Option<Duration>) -> u64 {
    let Some(limit) = limit else { return std::future::pending().await };
    let mut last = (server.served(), Instant::now());
    loop {
        tokio::time::sleep(IDLE_CHECK.min(limit)).await;
        let served = server.served();
        if served != last.0 || server.has_work().await {
            last = (served, Instant::now());
        } else if last.1.elapsed() >= limit {
            return served;
        }
    }
}
