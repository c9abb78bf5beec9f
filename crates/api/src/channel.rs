//! How every client of ours speaks HTTP/2.

use crate::gather::Gathering;
use hyper_util::rt::TokioIo;
use std::{io, time::Duration};
use tokio::net::TcpStream;
use tonic::{
    codegen::http::Uri,
    transport::{Channel, Endpoint, Error},
};
use tower::service_fn;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Proxies and firewalls drop connections that say nothing.
const KEEP_ALIVE: Duration = Duration::from_secs(20);

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
    let stream = TcpStream::connect((host, uri.port_u16().unwrap_or(80))).await?;
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
