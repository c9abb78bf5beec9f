use super::*;
use axum::{Router, extract::State, response::IntoResponse, routing::post};
use std::{
    collections::VecDeque,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{ServerConfig, pki_types::PrivateKeyDer},
};

/// A receiver on an address of this machine.
struct Receiver {
    port: u16,
    calls: Arc<AtomicUsize>,
    seen: Arc<Mutex<Vec<(HeaderMap, Bytes)>>>,
}

impl Receiver {
    async fn on(address: &str, status: u16, location: impl Into<String>) -> Self {
        let listener = TcpListener::bind(address).await.expect("an address");
        let (port, location) = (listener.local_addr().expect("a port").port(), location.into());
        let (calls, seen) = (Arc::new(AtomicUsize::new(0)), Arc::new(Mutex::new(Vec::new())));
        let state = (Arc::clone(&calls), Arc::clone(&seen));
        type Shared = (Arc<AtomicUsize>, Arc<Mutex<Vec<(HeaderMap, Bytes)>>>);
        let answer = move |State((calls, seen)): State<Shared>, headers: HeaderMap, body: Bytes| async move {
            calls.fetch_add(1, Ordering::SeqCst);
            seen.lock().expect("a lock").push((headers, body));
            let status = StatusCode::from_u16(status).expect("a status");
            match location.as_str() {
                "" => status.into_response(),
                location => (status, [(header::LOCATION, location.to_owned())]).into_response(),
            }
        };
        let app = Router::new().route("/{*path}", post(answer.clone())).route("/", post(answer)).with_state(state);
        tokio::spawn(async move { axum::serve(listener, app).await });
        Self { port, calls, seen }
    }

    fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }
}

/// Answers each question with the next of its answers, and the last one for ever.
struct Changing(Mutex<VecDeque<&'static str>>);

impl Resolve for Changing {
    fn resolve(&self, _name: String) -> BoxFuture<'_, io::Result<Vec<IpAddr>>> {
        let mut answers = self.0.lock().expect("a lock");
        let answer = if answers.len() > 1 { answers.pop_front() } else { answers.front().copied() };
        let answer = answer.expect("an answer").parse().expect("an address");
        async move { Ok(vec![answer]) }.boxed()
    }
}

fn poster(allow: &[&str], answers: &[&'static str]) -> Poster {
    let allow = allow.iter().map(|text| text.parse().expect("a network")).collect();
    let resolver = Changing(Mutex::new(answers.iter().copied().collect()));
    Poster::new(Guard { allow_private: false, allow }, Arc::new(resolver), Duration::from_secs(10))
}

async fn send(poster: &Poster, url: impl AsRef<str>) -> Result<u16, PostError> {
    let headers =
        HeaderMap::from_iter([(header::HeaderName::from_static("webhook-id"), HeaderValue::from_static("7"))]);
    poster.post(url.as_ref(), &headers, Bytes::from_static(b"{}")).await.map(|answer| answer.status)
}

#[tokio::test]
async fn a_message_arrives_as_it_was_sent() {
    let receiver = Receiver::on("127.0.0.1:0", 204, "").await;
    let url = format!("http://me:word@127.0.0.1:{}/a/b?c=d", receiver.port);
    assert!(matches!(send(&poster(&["127.0.0.1"], &[]), url).await, Ok(204)));
    let seen = receiver.seen.lock().expect("a lock");
    let [(headers, body)] = &seen[..] else { panic!("{seen:?}") };
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    assert_eq!((header("webhook-id"), header("content-type"), &body[..]), ("7", "application/json", &b"{}"[..]));
    assert_eq!(header("host"), format!("127.0.0.1:{}", receiver.port));
    assert_eq!(header("authorization"), "Basic bWU6d29yZA==");
}

#[tokio::test]
async fn private_addresses_are_not_called_however_they_are_written() {
    let receiver = Receiver::on("127.0.0.1:0", 200, "").await;
    let poster = poster(&[], &["127.0.0.1"]);
    let hosts = ["127.0.0.1", "127.1", "2130706433", "0x7f.1", "[::ffff:127.0.0.1]", "[::1]", "0.0.0.0"];
    for host in hosts {
        let outcome = send(&poster, format!("http://{host}:{}/", receiver.port)).await;
        assert!(
            matches!(&outcome, Err(error @ PostError::Forbidden { .. }) if error.is_final()),
            "{host}: {outcome:?}"
        );
    }
    // A name may mean something else later, so it is tried again.
    let outcome = send(&poster, format!("http://name.test:{}/", receiver.port)).await;
    assert!(matches!(&outcome, Err(error @ PostError::Forbidden { .. }) if !error.is_final()), "{outcome:?}");
    assert_eq!(receiver.calls(), 0);
}

#[tokio::test]
async fn a_redirect_is_followed_with_the_message_and_checked_again() {
    let last = Receiver::on("127.0.0.1:0", 202, "").await;
    for status in [307, 308] {
        let first = Receiver::on("127.0.0.1:0", status, format!("http://127.0.0.1:{}/new", last.port)).await;
        let outcome = send(&poster(&["127.0.0.1"], &[]), format!("http://127.0.0.1:{}/", first.port)).await;
        assert!(matches!(outcome, Ok(202)), "{outcome:?}");
    }
    assert_eq!(last.calls(), 2);
    assert_eq!(&last.seen.lock().expect("a lock")[0].1[..], b"{}");
    for status in [301, 302, 303] {
        let first = Receiver::on("127.0.0.1:0", status, format!("http://127.0.0.1:{}/new", last.port)).await;
        let outcome = send(&poster(&["127.0.0.1"], &[]), format!("http://127.0.0.1:{}/", first.port)).await;
        assert!(matches!(outcome, Ok(answered) if answered == status), "{outcome:?}");
    }
    let hidden = Receiver::on("127.0.0.2:0", 200, "").await;
    let first = Receiver::on("127.0.0.1:0", 307, format!("http://127.0.0.2:{}/", hidden.port)).await;
    let outcome = send(&poster(&["127.0.0.1"], &[]), format!("http://127.0.0.1:{}/", first.port)).await;
    assert!(matches!(outcome, Err(PostError::Forbidden { .. })), "{outcome:?}");
    assert_eq!((first.calls(), hidden.calls(), last.calls()), (1, 0, 2));
}

#[tokio::test]
async fn circles_end() {
    let receiver = Receiver::on("127.0.0.1:0", 307, "/again").await;
    let outcome = send(&poster(&["127.0.0.1"], &[]), format!("http://127.0.0.1:{}/", receiver.port)).await;
    assert!(matches!(outcome, Err(PostError::Redirects)), "{outcome:?}");
    assert_eq!(receiver.calls(), 1 + MOST_REDIRECTS);
}

/// The same port on two addresses: one may be called, the other may not, and a name means first the one and then the other.
#[tokio::test]
async fn an_answer_of_a_name_server_that_changes_does_not_slip_through() {
    let hidden = Receiver::on("127.0.0.2:0", 200, "").await;
    let open = Receiver::on(&format!("127.0.0.1:{}", hidden.port), 200, "").await;
    let url = format!("http://name.test:{}/", open.port);
    let changing = poster(&["127.0.0.1"], &["127.0.0.1", "127.0.0.2"]);
    // What is called is what was checked: the name is not asked a second time.
    assert!(matches!(send(&changing, &url).await, Ok(200)));
    let outcome = send(&changing, &url).await;
    assert!(matches!(outcome, Err(PostError::Forbidden { .. })), "{outcome:?}");
    assert_eq!((open.calls(), hidden.calls()), (1, 0));

    // And after a redirect to the same name.
    let hidden = Receiver::on("127.0.0.2:0", 200, "").await;
    let open = Receiver::on(&format!("127.0.0.1:{}", hidden.port), 307, "/again").await;
    let changing = poster(&["127.0.0.1"], &["127.0.0.1", "127.0.0.2"]);
    let outcome = send(&changing, format!("http://name.test:{}/", open.port)).await;
    assert!(matches!(outcome, Err(PostError::Forbidden { .. })), "{outcome:?}");
    assert_eq!((open.calls(), hidden.calls()), (1, 0));
}

#[tokio::test]
async fn a_receiver_that_says_nothing_is_not_waited_for() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("an address");
    let port = listener.local_addr().expect("a port").port();
    let guard = Guard { allow_private: true, allow: Vec::new() };
    let poster = Poster::new(guard, Arc::new(SystemResolver), Duration::from_millis(200));
    let outcome = send(&poster, format!("http://127.0.0.1:{port}/")).await;
    assert!(matches!(outcome, Err(PostError::TooLong)), "{outcome:?}");
    drop(listener);
    let outcome = send(&poster, format!("http://127.0.0.1:{port}/")).await;
    assert!(matches!(outcome, Err(PostError::Connect(_))), "{outcome:?}");
}

#[tokio::test]
async fn a_receiver_that_is_not_who_it_should_be_is_told_nothing() {
    let receiver = Receiver::on("127.0.0.1:0", 200, "").await;
    let outcome = send(&poster(&["127.0.0.1"], &[]), format!("https://127.0.0.1:{}/", receiver.port)).await;
    assert!(matches!(outcome, Err(PostError::Tls(_))), "{outcome:?}");
    assert_eq!(receiver.calls(), 0);
}

#[tokio::test]
async fn over_tls_only_the_one_who_was_asked_for_is_told() {
    let certified = rcgen::generate_simple_self_signed(["name.test".to_owned()]).expect("a certificate");
    let (certificate, key) = (certified.cert.der().clone(), certified.signing_key.serialize_der());
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![certificate.clone()], PrivateKeyDer::try_from(key).expect("a key"))
        .expect("a configuration");
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("an address");
    let port = listener.local_addr().expect("a port").port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let Ok(mut stream) = acceptor.accept(stream).await else { continue };
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n{}") && stream.read_buf(&mut request).await.is_ok_and(|read| read > 0) {}
            _ = stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await;
        }
    });
    let mut roots = RootCertStore::empty();
    roots.add(certificate).expect("a certificate");
    let trusting_it = poster(&["127.0.0.1"], &["127.0.0.1"]);
    assert!(trusting_it.tls.set(trusting(roots).expect("a connector")).is_ok());
    let outcome = send(&trusting_it, format!("https://name.test:{port}/")).await;
    assert!(matches!(outcome, Ok(204)), "{outcome:?}");
    let outcome = send(&trusting_it, format!("https://other.test:{port}/")).await;
    assert!(matches!(outcome, Err(PostError::Tls(_))), "{outcome:?}");
    let outcome = send(&poster(&["127.0.0.1"], &["127.0.0.1"]), format!("https://name.test:{port}/")).await;
    assert!(matches!(outcome, Err(PostError::Tls(_))), "{outcome:?}");
}

#[test]
fn a_redirect_never_leaves_https() {
    let from = Url::parse("https://user@example.com/a/b?c").expect("a URL");
    let to = |target| elsewhere(&from, target).map(String::from);
    assert_eq!(to("../d").as_deref(), Some("https://user@example.com/d"));
    assert_eq!(to("https://other.example/").as_deref(), Some("https://other.example/"));
    assert_eq!(to("http://example.com/"), None);
    assert_eq!(to("file:///etc/passwd"), None);
}

#[test]
fn a_receiver_says_when_in_seconds_or_by_date() {
    let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777 - 30);
    assert_eq!(wait("120", now), Some(Millis::seconds(120)));
    assert_eq!(wait("Sun, 06 Nov 1994 08:49:37 GMT", now), Some(Millis::seconds(30)));
    assert_eq!(wait("Sun, 06 Nov 1994 08:49:37 GMT", SystemTime::now()), Some(Millis::ZERO));
    assert_eq!(wait("soon", now), None);
    assert_eq!(wait("99999999999999999999", now), None);
}
