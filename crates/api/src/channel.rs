//! How every client of ours speaks HTTP/2, with TLS and an API token where they are wanted.

use crate::gather::Gathering;
use hyper_util::rt::TokioIo;
use std::{io, time::Duration};
use thiserror::Error;
use tokio::net::TcpStream;
use tonic::{
    Request, Status,
    codegen::http::Uri,
    metadata::{Ascii, MetadataValue},
    service::{Interceptor, interceptor::InterceptedService},
    transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Error},
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

/// The server at a URL. One that begins with `https` must prove that it is whom it claims to be: to the authority `ca` (in
/// PEM), or to those that this machine trusts.
pub fn endpoint(url: String, ca: Option<&[u8]>) -> Result<Endpoint, Error> {
    let secure = url.starts_with("https://");
    let endpoint = Endpoint::from_shared(url)?;
    match (secure, ca) {
        (false, _) => Ok(endpoint),
        (true, Some(ca)) => endpoint.tls_config(ClientTlsConfig::new().ca_certificate(Certificate::from_pem(ca))),
        (true, None) => endpoint.tls_config(ClientTlsConfig::new().with_enabled_roots()),
    }
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
}
