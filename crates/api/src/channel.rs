//! How every client of ours speaks HTTP/2.

use std::time::Duration;
use tonic::transport::Endpoint;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Proxies and firewalls drop connections that say nothing.
const KEEP_ALIVE: Duration = Duration::from_secs(20);

pub fn tuned(endpoint: Endpoint) -> Endpoint {
    endpoint
        .connect_timeout(CONNECT_TIMEOUT)
        .tcp_nodelay(true)
        .initial_stream_window_size(1 << 20)
        .initial_connection_window_size(4 << 20)
        .http2_keep_alive_interval(KEEP_ALIVE)
        .keep_alive_while_idle(true)
}
