//! Sending one message. Names are resolved here and each connection goes to the very address that was checked, so no answer
//! of a name server can change between the check and the call; where a receiver sends us on to is checked in the same way.

use super::guard::{Forbidden, Guard};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use futures::future::{BoxFuture, FutureExt};
use hodei_core::time::Millis;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::{body::Incoming, client::conn::http1};
use hyper_util::rt::TokioIo;
use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::{Duration, SystemTime},
};
use thiserror::Error;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    sync::OnceCell,
};
use tokio_rustls::{
    TlsConnector,
    rustls::{ClientConfig, RootCertStore, crypto::ring, pki_types::ServerName},
};
use url::{Host, Url};

const MOST_REDIRECTS: usize = 3;
/// Addresses of one name that are tried, and how long each.
const MOST_ADDRESSES: usize = 4;
const CONNECT: Duration = Duration::from_secs(5);
/// The most that the head of an answer may take. Its body is not read.
const HEAD_BYTES: usize = 64 << 10;
const AGENT: &str = concat!("hodei/", env!("CARGO_PKG_VERSION"));

/// How names become addresses.
pub trait Resolve: Send + Sync + 'static {
    fn resolve(&self, name: String) -> BoxFuture<'_, io::Result<Vec<IpAddr>>>;
}

/// As every other program of this machine does it.
#[derive(Clone, Copy, Debug)]
pub struct SystemResolver;

impl Resolve for SystemResolver {
    fn resolve(&self, name: String) -> BoxFuture<'_, io::Result<Vec<IpAddr>>> {
        async move { Ok(tokio::net::lookup_host((name, 0)).await?.map(|address| address.ip()).collect()) }.boxed()
    }
}

/// What a receiver answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    pub status: u16,
    /// How long it wants to be left alone.
    pub retry_after: Option<Millis>,
}

/// Why there is no answer. None of it says more of the receiver's network than that it cannot be reached.
#[derive(Debug, Error)]
pub enum PostError {
    #[error("the address cannot be called: {0}")]
    Url(String),
    #[error("cannot resolve {name}: {error}")]
    Resolve { name: String, error: io::Error },
    /// `named`: the address came from a name, which may mean another one later.
    #[error("{forbidden}; webhooks.allow or webhooks.allow_private would allow it")]
    Forbidden { forbidden: Forbidden, named: bool },
    #[error("cannot connect: {0}")]
    Connect(io::Error),
    #[error("no connection by TLS: {0}")]
    Tls(io::Error),
    #[error("no answer: {0}")]
    Http(#[from] hyper::Error),
    #[error("sent on more than {MOST_REDIRECTS} times")]
    Redirects,
    #[error("no answer in time")]
    TooLong,
}

impl PostError {
    /// Whether another try must fail in the same way.
    pub fn is_final(&self) -> bool {
        matches!(self, Self::Url(_) | Self::Forbidden { named: false, .. })
    }
}

/// Sends messages.
pub struct Poster {
    guard: Guard,
    resolver: Arc<dyn Resolve>,
    timeout: Duration,
    tls: OnceCell<TlsConnector>,
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// One answer, or where to ask instead.
enum Step {
    Answer(Answer),
    Elsewhere(Url),
}

impl Poster {
    pub fn new(guard: Guard, resolver: Arc<dyn Resolve>, timeout: Duration) -> Self {
        Self { guard, resolver, timeout, tls: OnceCell::new() }
    }

    pub async fn post(&self, url: &str, headers: &HeaderMap, body: Bytes) -> Result<Answer, PostError> {
        let answer = tokio::time::timeout(self.timeout, self.follow(url, headers, body)).await;
        answer.unwrap_or(Err(PostError::TooLong))
    }

    async fn follow(&self, url: &str, headers: &HeaderMap, body: Bytes) -> Result<Answer, PostError> {
        let mut url = Url::parse(url).map_err(|error| PostError::Url(error.to_string()))?;
        for _ in 0..=MOST_REDIRECTS {
            match self.step(&url, headers, body.clone()).await? {
                Step::Answer(answer) => return Ok(answer),
                Step::Elsewhere(next) => url = next,
            }
        }
        Err(PostError::Redirects)
    }

    async fn step(&self, url: &Url, headers: &HeaderMap, body: Bytes) -> Result<Step, PostError> {
        let request = request(url, headers, body)?;
        let answer = exchange(self.connect(url).await?, request).await?;
        let status = answer.status();
        let header = |name| answer.headers().get(name).and_then(|value: &HeaderValue| value.to_str().ok());
        if [StatusCode::TEMPORARY_REDIRECT, StatusCode::PERMANENT_REDIRECT].contains(&status)
            && let Some(target) = header(header::LOCATION)
            && let Some(next) = elsewhere(url, target)
        {
            return Ok(Step::Elsewhere(next));
        }
        let retry_after = header(header::RETRY_AFTER).and_then(|text| wait(text, SystemTime::now()));
        Ok(Step::Answer(Answer { status: status.as_u16(), retry_after }))
    }

    async fn connect(&self, url: &Url) -> Result<Box<dyn Stream>, PostError> {
        let unusable = || PostError::Url("it names no host".into());
        let host = url.host().ok_or_else(unusable)?;
        let port = url.port_or_known_default().ok_or_else(unusable)?;
        let stream = self.reach(&host, port).await?;
        _ = stream.set_nodelay(true);
        if url.scheme() != "https" {
            return Ok(Box::new(stream));
        }
        let name = match host {
            Host::Domain(name) => ServerName::try_from(name.to_owned()).map_err(|_| unusable())?,
            Host::Ipv4(address) => IpAddr::from(address).into(),
            Host::Ipv6(address) => IpAddr::from(address).into(),
        };
        let tls = self.tls.get_or_try_init(tls).await.map_err(PostError::Tls)?;
        Ok(Box::new(tls.connect(name, stream).await.map_err(PostError::Tls)?))
    }

    /// A connection to an address that may be called.
    async fn reach(&self, host: &Host<&str>, port: u16) -> Result<TcpStream, PostError> {
        let (addresses, named) = match host {
            Host::Ipv4(address) => (vec![IpAddr::from(*address)], false),
            Host::Ipv6(address) => (vec![IpAddr::from(*address)], false),
            Host::Domain(name) => (self.resolve(name).await?, true),
        };
        let mut last = None;
        for address in addresses.into_iter().take(MOST_ADDRESSES) {
            last = Some(match self.guard.check(address) {
                Err(forbidden) => PostError::Forbidden { forbidden, named },
                Ok(()) => match open(SocketAddr::new(address, port)).await {
                    Ok(stream) => return Ok(stream),
                    Err(error) => PostError::Connect(error),
                },
            });
        }
        Err(last.unwrap_or_else(|| PostError::Connect(io::ErrorKind::NotFound.into())))
    }

    async fn resolve(&self, name: &str) -> Result<Vec<IpAddr>, PostError> {
        let found = self.resolver.resolve(name.to_owned()).await;
        found.map_err(|error| PostError::Resolve { name: name.to_owned(), error })
    }
}

async fn open(address: SocketAddr) -> io::Result<TcpStream> {
    let opened = tokio::time::timeout(CONNECT, TcpStream::connect(address)).await;
    opened.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

/// With the certificates that this machine trusts.
async fn tls() -> io::Result<TlsConnector> {
    let found = tokio::task::spawn_blocking(rustls_native_certs::load_native_certs).await?;
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(found.certs);
    trusting(roots)
}

fn trusting(roots: RootCertStore) -> io::Result<TlsConnector> {
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?;
    Ok(Arc::new(config.with_root_certificates(roots).with_no_client_auth()).into())
}

fn request(url: &Url, headers: &HeaderMap, body: Bytes) -> Result<Request<Full<Bytes>>, PostError> {
    let odd = |error: http::Error| PostError::Url(error.to_string());
    let path = match url.query() {
        Some(query) => format!("{}?{query}", url.path()),
        None => url.path().to_owned(),
    };
    let host = match (url.host_str().unwrap_or_default(), url.port()) {
        (host, Some(port)) => format!("{host}:{port}"),
        (host, None) => host.to_owned(),
    };
    let mut request = Request::post(path)
        .header(header::HOST, host)
        .header(header::USER_AGENT, AGENT)
        .header(header::CONTENT_TYPE, "application/json")
        .header(header::CONNECTION, "close")
        .body(Full::new(body))
        .map_err(odd)?;
    request.headers_mut().extend(headers.clone());
    if !url.username().is_empty() || url.password().is_some() {
        let user = format!("{}:{}", url.username(), url.password().unwrap_or_default());
        let mut value =
            HeaderValue::try_from(format!("Basic {}", STANDARD.encode(user))).map_err(|error| odd(error.into()))?;
        value.set_sensitive(true);
        request.headers_mut().insert(header::AUTHORIZATION, value);
    }
    Ok(request)
}

/// Sends a request and waits for the head of the answer.
async fn exchange(stream: Box<dyn Stream>, request: Request<Full<Bytes>>) -> Result<Response<Incoming>, hyper::Error> {
    let (mut sender, connection) =
        http1::Builder::new().max_buf_size(HEAD_BYTES).handshake(TokioIo::new(stream)).await?;
    let mut answer = std::pin::pin!(sender.send_request(request));
    tokio::select! {
        biased;
        answer = &mut answer => return answer,
        _ = connection => {}
    }
    // The connection has ended, and said to the other end why.
    answer.await
}

/// Where a receiver sends us. Not from a protected connection to one that anybody can read.
fn elsewhere(from: &Url, target: &str) -> Option<Url> {
    let next = from.join(target).ok()?;
    let downgrade = from.scheme() == "https" && next.scheme() != "https";
    (["http", "https"].contains(&next.scheme()) && !downgrade).then_some(next)
}

/// Seconds, or a date.
fn wait(text: &str, now: SystemTime) -> Option<Millis> {
    if let Ok(seconds) = text.trim().parse::<u64>() {
        return Some(Millis(seconds.saturating_mul(1000)));
    }
    let at = jiff::fmt::rfc2822::parse(text.trim()).ok()?.timestamp();
    let now = jiff::Timestamp::try_from(now).ok()?;
    Some(Millis(u64::try_from(at.as_millisecond() - now.as_millisecond()).unwrap_or(0)))
}

#[cfg(test)]
mod tests;
