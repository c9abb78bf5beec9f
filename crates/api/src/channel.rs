//! How every client of ours speaks HTTP/2, with TLS and an API token where they are wanted.

use crate::gather::Gathering;
use hyper_util::rt::TokioIo;
use std::{fmt, io, sync::Arc, time::Duration};
use thiserror::Error;
use tokio::net::TcpStream;
use tonic::{
    Request, Status,
    codegen::http::Uri,
    metadata::{Ascii, MetadataValue},
    service::{Interceptor, interceptor::InterceptedService},
    transport::{self, Certificate, Channel, ClientTlsConfig, Endpoint, Error},
};
use tower::service_fn;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Proxies and firewalls drop connections that say nothing.
const KEEP_ALIVE: Duration = Duration::from_secs(20);

/// A connection on which every call carries the API token, if there is one.
pub type Authorized = InterceptedService<Channel, ApiToken>;

/// Connects over TCP.
pub async fn connect(endpoint: Endpoint) -> Result<Channel, Error> {
    tuned(endpoint).connect_with_connector(service_fn(tcp)).await
}

/// Connects over TCP when it is first used.
pub fn connect_lazy(endpoint: Endpoint) -> Channel {
    tuned(endpoint).connect_with_connector_lazy(service_fn(tcp))
}

async fn tcp(uri: Uri) -> io::Result<TokioIo<Gathering<TcpStream>>> {
    let host = uri.host().ok_or(io::ErrorKind::InvalidInput)?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let usual = if uri.scheme_str() == Some("https") { 443 } else { 80 };
    let stream = TcpStream::connect((host, uri.port_u16().unwrap_or(usual))).await?;
    stream.set_nodelay(true)?;
    Ok(TokioIo::new(Gathering::new(stream)))
}

pub fn tuned(endpoint: Endpoint) -> Endpoint {
    endpoint
        .connect_timeout(CONNECT_TIMEOUT)
        .initial_stream_window_size(1 << 20)
        .initial_connection_window_size(4 << 20)
        .http2_keep_alive_interval(KEEP_ALIVE)
        .keep_alive_while_idle(true)
}

/// With which certificates the two ends of a connection prove who they are.
#[derive(Clone, Debug, Default)]
pub struct Certificates {
    /// The authority of the server's, in PEM; those that this machine trusts if there is none.
    pub ca: Option<Arc<[u8]>>,
    /// The client's own, for a server that asks.
    pub identity: Option<Identity>,
}

/// A certificate with those that vouch for it, and its key, both in PEM.
#[derive(Clone)]
pub struct Identity {
    pub cert: Arc<[u8]>,
    pub key: Arc<[u8]>,
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity").finish_non_exhaustive()
    }
}

/// The server at a URL. One that begins with `https` must prove that it is whom it claims to be.
pub fn endpoint(url: String, certificates: &Certificates) -> Result<Endpoint, Error> {
    let secure = url.starts_with("https://");
    let endpoint = Endpoint::from_shared(url)?;
    if !secure {
        return Ok(endpoint);
    }
    let tls = match &certificates.ca {
        Some(ca) => ClientTlsConfig::new().ca_certificate(Certificate::from_pem(ca)),
        None => ClientTlsConfig::new().with_enabled_roots(),
    };
    endpoint.tls_config(match &certificates.identity {
        Some(Identity { cert, key }) => tls.identity(transport::Identity::from_pem(cert, key)),
        None => tls,
    })
}

/// What a client proves its role with.
#[derive(Clone, Debug, Default)]
pub struct ApiToken(Option<MetadataValue<Ascii>>);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the API token has characters that no token has; copy it again")]
pub struct NotAToken;

impl ApiToken {
    pub fn new(token: &str) -> Result<Self, NotAToken> {
        let mut value: MetadataValue<Ascii> = format!("Bearer {}", token.trim()).parse().map_err(|_| NotAToken)?;
        value.set_sensitive(true);
        Ok(Self(Some(value)))
    }

    /// The connection on which it is sent.
    pub fn on(&self, channel: Channel) -> Authorized {
        InterceptedService::new(channel, self.clone())
    }
}

impl Interceptor for ApiToken {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(token) = &self.0 {
            request.metadata_mut().insert("authorization", token.clone());
        }
        Ok(request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_sent_and_never_shown() {
        let mut token = ApiToken::new(" hodei_secret\n").expect("a token");
        let request = token.call(Request::new(())).expect("a request");
        assert_eq!(
            request.metadata().get("authorization").map(|value| value.as_bytes()),
            Some(&b"Bearer hodei_secret"[..])
        );
        assert!(!format!("{token:?} {request:?}").contains("secret"));
        assert_eq!(ApiToken::new("caf\u{e9}\n\0").err(), Some(NotAToken));
    }

    #[test]
    fn a_key_is_never_shown() {
        let identity = Identity { cert: (*b"certificate").into(), key: (*b"secret").into() };
        let shown = format!("{:?}", Certificates { ca: None, identity: Some(identity) });
        assert!(!shown.contains("secret") && !shown.contains("115, 101"), "{shown}");
    }
}
