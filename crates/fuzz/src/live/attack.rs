//! What is sent to the server: noise, broken frames, good frames with bad contents, and good contents that never end.

use super::process::Server;
use crate::{
    mutate::{mutate, varint},
    proto::{Method, Schema, Words},
    rng::Rng,
};
use bytes::Bytes;
use h2::{
    RecvStream, SendStream,
    client::{self, ResponseFuture, SendRequest},
};
use http::Request;
use std::{collections::VecDeque, time::Duration};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

/// How long an answer is waited for; there need not be one.
const BRIEFLY: Duration = Duration::from_millis(300);
const LARGEST: usize = 32 << 20;
/// What takes a debug build too long is sent in a smaller size.
const SLOW: usize = 4 << 20;
/// Calls that are begun and never ended.
const HALF_OPEN: usize = 150;
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

type Call = (ResponseFuture, SendStream<Bytes>);

pub struct Attacker<'a> {
    server: &'a Server,
    schema: &'a Schema,
    connection: Option<SendRequest<Bytes>>,
    half_open: VecDeque<Call>,
    /// Connections that say nothing more.
    silent: VecDeque<TcpStream>,
}

impl<'a> Attacker<'a> {
    pub fn new(server: &'a Server, schema: &'a Schema) -> Self {
        Self { server, schema, connection: None, half_open: VecDeque::new(), silent: VecDeque::new() }
    }

    pub async fn attack(&mut self, words: &Words, rng: &mut Rng) {
        match rng.below(20) {
            0 => self.noise(rng).await,
            1 => self.health(rng).await,
            2..=4 => self.frames(words, rng).await,
            5 => self.resets(words, rng).await,
            6..=8 => self.stream(words, rng).await,
            9 => self.half_open(words, rng).await,
            10..=12 => self.lie(words, rng).await,
            _ => self.request(words, rng).await,
        }
    }

    /// Large requests, made to take the most room.
    pub async fn floods(&mut self) {
        let field = |key: u8, content: &[u8]| [&[key][..], &varint(content.len() as u64), content].concat();
        let empty = [0x0a, 0].repeat(LARGEST / 2);
        // jobs { work { shell { args } } }: no list of messages, but a long one.
        let args = field(0x0a, &field(0x1a, &field(0x0a, &[0x12, 0].repeat(SLOW / 2))));
        let long_id = field(0x0a, &vec![b'x'; LARGEST - 16]);
        let many = [
            ("JobExecutionService/QueueJobs", &empty),
            ("JobExecutionService/QueueJobs", &args),
            ("JobExecutionService/GetJob", &long_id),
        ];
        for (path, message) in many {
            self.connection = None;
            if let Some((answer, mut body)) = self.call(&format!("/hodei.v1.{path}"), "").await {
                _ = body.send_data(framed(message).into(), true);
                _ = timeout(Duration::from_secs(30), answer).await;
            }
        }
        self.connection = None;
    }

    async fn noise(&mut self, rng: &mut Rng) {
        let length = rng.below(4000);
        let bytes = rng.bytes(length);
        self.raw(&self.server.grpc.clone(), &bytes, rng).await;
    }

    async fn health(&mut self, rng: &mut Rng) {
        let mut bytes = b"GET /health HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\nabcde".to_vec();
        mutate(&mut bytes, b"POST /live?a=%00 HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\nffffffffffffffff\r\n", rng);
        self.raw(&self.server.http.clone(), &bytes, rng).await;
    }

    async fn raw(&mut self, address: &str, bytes: &[u8], rng: &mut Rng) {
        let Ok(mut stream) = TcpStream::connect(address).await else { return };
        _ = timeout(BRIEFLY, stream.write_all(bytes)).await;
        if rng.once_in(10) {
            self.silent.push_back(stream);
            self.silent.truncate(HALF_OPEN);
        } else if rng.once_in(2) {
            _ = timeout(Duration::from_millis(20), stream.read(&mut [0; 4096])).await;
        }
    }

    /// HTTP/2 by hand, then damaged.
    async fn frames(&mut self, words: &Words, rng: &mut Rng) {
        let method = self.method(rng);
        let message = framed(&self.schema.wild(&method.input, words, rng));
        let mut bytes = [PREFACE, &frame(4, 0, 0, &[])].concat();
        for stream in (1..2 + 2 * rng.below(4) as u32).step_by(2) {
            bytes.extend(frame(1, 4, stream, &headers(&method.path, &self.server.grpc, &self.server.token)));
            bytes.extend(frame(0, u8::from(rng.once_in(2)), stream, &message[..message.len().min(16_000)]));
        }
        match rng.below(4) {
            0 => {
                let pings = frame(6, 0, 0, &[0; 8]).repeat(rng.below(3000));
                bytes.extend(pings);
            }
            1 => {
                // Headers that never end.
                bytes.extend(frame(1, 0, 9, &headers("/x", "y", "z")));
                bytes.extend(frame(9, 0, 9, &[0x00, 1, b'a', 1, b'b'].repeat(rng.below(3000))));
            }
            _ => {
                for _ in 0..rng.below(30) {
                    let length = rng.below(60);
                    let payload = rng.bytes(length);
                    bytes.extend(frame(rng.below(12) as u8, rng.number() as u8, rng.below(12) as u32, &payload));
                }
            }
        }
        if !rng.once_in(4) {
            let other = bytes.clone();
            let kept = bytes.split_off(PREFACE.len());
            let mut damaged = kept;
            mutate(&mut damaged, &other, rng);
            bytes.extend(damaged);
        }
        self.raw(&self.server.grpc.clone(), &bytes, rng).await;
    }

    /// Calls that are taken back as fast as they are made.
    async fn resets(&mut self, words: &Words, rng: &mut Rng) {
        for _ in 0..rng.below(40) {
            let method = self.method(rng);
            let Some((_, mut body)) = self.call(&method.path, &words.session).await else { return };
            _ = body.send_data(Bytes::from_static(&[0, 0, 0]), false);
            body.send_reset(h2::Reason::CANCEL);
        }
    }

    /// One good call with a bad message.
    async fn request(&mut self, words: &Words, rng: &mut Rng) {
        let method = self.method(rng);
        let message = self.message(&method, words, rng);
        let Some((answer, mut body)) = self.call(&method.path, &words.session).await else { return };
        _ = body.send_data(framed(&message).into(), true);
        self.hear(answer).await;
    }

    /// The length or the flag in front of a message is wrong, or more follows than belongs there.
    async fn lie(&mut self, words: &Words, rng: &mut Rng) {
        let method = self.method(rng);
        let message = self.message(&method, words, rng);
        let mut bytes = framed(&message);
        match rng.below(5) {
            0 => bytes[0] = rng.number() as u8,
            1 => bytes[1..5].copy_from_slice(&(rng.odd() as u32).to_be_bytes()),
            2 => bytes.truncate(rng.below(bytes.len())),
            3 => bytes = bytes.repeat(1 + rng.below(50)),
            _ => mutate(&mut bytes, &message, rng),
        }
        let Some((answer, mut body)) = self.call(&method.path, &words.session).await else { return };
        // In pieces, as a network delivers it.
        let pieces: Vec<_> = bytes.chunks(1 + rng.below(5000)).map(Bytes::copy_from_slice).collect();
        for piece in pieces {
            _ = body.send_data(piece, false);
        }
        if rng.once_in(4) {
            self.keep((answer, body));
        } else {
            _ = body.send_data(Bytes::new(), true);
            self.hear(answer).await;
        }
    }

    /// A worker that greets well and then says anything.
    async fn stream(&mut self, words: &Words, rng: &mut Rng) {
        let Some(method) = self.schema.methods.iter().find(|method| method.streams).cloned() else { return };
        let Some((answer, mut body)) = self.call(&method.path, &words.session).await else { return };
        // events { hello { incarnation } }
        let hello = [&[0x0a, 20, 0x0a, 18, 0x0a, 16][..], &[rng.below(2) as u8; 16]].concat();
        if !rng.once_in(5) {
            _ = body.send_data(framed(&hello).into(), false);
        }
        for _ in 0..rng.below(12) {
            let message = self.message(&method, words, rng);
            _ = body.send_data(framed(&message).into(), false);
        }
        match rng.below(4) {
            0 => body.send_reset(h2::Reason::INTERNAL_ERROR),
            1 => return self.keep((answer, body)),
            _ => _ = body.send_data(Bytes::new(), true),
        }
        self.hear(answer).await;
    }

    async fn half_open(&mut self, words: &Words, rng: &mut Rng) {
        for _ in 0..rng.below(20) {
            let method = self.method(rng);
            let Some(call) = self.call(&method.path, &words.session).await else { return };
            self.keep(call);
        }
    }

    fn keep(&mut self, call: Call) {
        self.half_open.push_front(call);
        self.half_open.truncate(HALF_OPEN);
    }

    fn method(&self, rng: &mut Rng) -> Method {
        let method = rng.pick(&self.schema.methods).cloned();
        method.unwrap_or(Method { path: "/".into(), input: String::new(), streams: false })
    }

    fn message(&self, method: &Method, words: &Words, rng: &mut Rng) -> Vec<u8> {
        let mut message = self.schema.wild(&method.input, words, rng);
        if rng.once_in(2) {
            let other = self.schema.wild(&method.input, words, rng);
            mutate(&mut message, &other, rng);
        }
        message
    }

    /// Begins a call on the connection at hand, or on a new one.
    async fn call(&mut self, path: &str, session: &str) -> Option<Call> {
        // A worker shows its session, everybody else the token; nothing is behind a door that does not open.
        let reports = ["StartJob", "UpdateProgress", "CompleteJob", "FailJob"];
        let is_worker = path.contains("WorkerAgentService") || reports.iter().any(|report| path.ends_with(report));
        let credential = if is_worker { session } else { self.server.token.as_str() }.to_owned();
        for _ in 0..2 {
            let ready = match self.connection.take() {
                Some(connection) => timeout(BRIEFLY, connection.ready()).await.ok().and_then(Result::ok),
                None => self.connect().await,
            };
            let Some(mut connection) = ready else {
                self.half_open.clear();
                continue;
            };
            let request = Request::post(format!("http://{}{path}", self.server.grpc))
                .header("content-type", "application/grpc")
                .header("te", "trailers")
                .header("authorization", format!("Bearer {credential}"))
                .body(())
                .ok()?;
            let call = connection.send_request(request, false).ok();
            self.connection = Some(connection);
            if call.is_some() {
                return call;
            }
            self.connection = None;
        }
        None
    }

    async fn connect(&self) -> Option<SendRequest<Bytes>> {
        let stream = TcpStream::connect(&self.server.grpc).await.ok()?;
        _ = stream.set_nodelay(true);
        let (connection, driver) = client::handshake(stream).await.ok()?;
        tokio::spawn(driver);
        Some(connection)
    }

    /// Takes the answer if there is one; streams that go on are left after a moment.
    async fn hear(&mut self, answer: ResponseFuture) {
        let heard = async {
            let mut body: RecvStream = answer.await.ok()?.into_body();
            while let Some(Ok(data)) = body.data().await {
                _ = body.flow_control().release_capacity(data.len());
            }
            Some(())
        };
        _ = timeout(Duration::from_millis(50), heard).await;
    }
}

/// A message of gRPC: not compressed, its length, itself.
fn framed(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).unwrap_or(u32::MAX);
    [&[0][..], &length.to_be_bytes(), message].concat()
}

/// A frame of HTTP/2.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap_or(0).to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// The header block of a call, every field written out.
fn headers(path: &str, authority: &str, token: &str) -> Vec<u8> {
    let bearer = format!("Bearer {token}");
    let fields = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", authority),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
        ("authorization", &bearer),
    ];
    let literal = |text: &str| [&[text.len().min(126) as u8][..], &text.as_bytes()[..text.len().min(126)]].concat();
    fields.iter().flat_map(|(name, value)| [vec![0], literal(name), literal(value)].concat()).collect()
}
