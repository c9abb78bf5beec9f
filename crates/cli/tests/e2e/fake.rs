//! A worker that is no more than its side of the protocol, for what honest workers never do.

use crate::client::Client;
use futures::stream;
use hodei_api::{
    logs::{Encoder, Entry},
    v1::{self, server_event, worker_event},
};
use tokio::sync::mpsc;
use tonic::{Request, Status, Streaming};
use uuid::Uuid;

pub const KEY: &[u8] = b"sixteen bytes or more of it";

pub struct FakeWorker {
    pub id: String,
    pub session: String,
    outgoing: mpsc::UnboundedSender<v1::WorkerMessage>,
    incoming: Streaming<v1::ServerMessage>,
}

pub async fn register(client: &Client, token: &str, worker: &str, key: &[u8]) -> Result<v1::RegisterResponse, Status> {
    let capacity = v1::Capacity { slots: 1, cpu_millis: 1000, memory_bytes: 1 << 30, ..Default::default() };
    let info = v1::WorkerInfo { name: "fake".into(), capacity: Some(capacity), ..Default::default() };
    let (token, worker_id) = (token.to_owned(), worker.to_owned());
    let request = v1::RegisterRequest { token, worker_id, info: Some(info), key: key.to_vec() };
    Ok(client.agents().register(request).await?.into_inner())
}

/// A request of the worker that has this session.
pub fn signed<T>(session: &str, message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert("authorization", format!("Bearer {session}").parse().expect("a header"));
    request
}

impl FakeWorker {
    /// Registers and opens the stream.
    pub async fn join(client: &Client) -> Self {
        let token = client.token("", 0).await;
        let v1::RegisterResponse { worker_id, session } =
            register(client, &token.token, "", KEY).await.expect("a session");
        let (outgoing, mut messages) = mpsc::unbounded_channel();
        let hello = v1::Hello { incarnation: Uuid::new_v4().as_bytes().to_vec(), ..Default::default() };
        send(&outgoing, worker_event::Kind::Hello(hello));
        let messages = stream::poll_fn(move |context| messages.poll_recv(context));
        let incoming = client.agents().worker_stream(signed(&session, messages)).await.expect("a stream").into_inner();
        let mut worker = Self { id: worker_id, session, outgoing, incoming };
        worker.next(|kind| matches!(kind, server_event::Kind::Welcome(_)).then_some(())).await;
        worker
    }

    pub fn signed<T>(&self, message: T) -> Request<T> {
        signed(&self.session, message)
    }

    pub fn send(&self, kind: worker_event::Kind) {
        send(&self.outgoing, kind);
    }

    /// The next message in which `find` finds something.
    pub async fn next<T>(&mut self, find: impl Fn(server_event::Kind) -> Option<T>) -> T {
        loop {
            let message = self.incoming.message().await.expect("a healthy stream").expect("an open stream");
            if let Some(found) = message.events.into_iter().filter_map(|event| event.kind).find_map(&find) {
                return found;
            }
        }
    }

    /// Waits until the server ends the stream.
    pub async fn closed(&mut self) {
        while self.incoming.message().await.expect("an end in order").is_some() {}
    }

    pub async fn assignment(&mut self) -> v1::Assignment {
        self.next(|kind| match kind {
            server_event::Kind::Run(assignment) => Some(assignment),
            _ => None,
        })
        .await
    }

    /// Sends a sign of life and waits for the answer: all that was sent before has been read by then.
    pub async fn sync(&mut self) {
        self.send(worker_event::Kind::Heartbeat(v1::Heartbeat { sent: 1 }));
        self.next(|kind| matches!(kind, server_event::Kind::Lease(_)).then_some(())).await;
    }
}

fn send(outgoing: &mpsc::UnboundedSender<v1::WorkerMessage>, kind: worker_event::Kind) {
    let event = v1::WorkerEvent { kind: Some(kind) };
    outgoing.send(v1::WorkerMessage { events: vec![event] }).expect("an open stream");
}

pub fn id_text(bytes: &[u8]) -> String {
    Uuid::from_slice(bytes).expect("an id").to_string()
}

/// A log chunk of one line.
pub fn line_of(of: &v1::Assignment, first: u64, text: &[u8]) -> worker_event::Kind {
    let mut encoder = Encoder::default();
    encoder.push(Entry { at_ms: 1, stderr: false, unfinished: false, text });
    let (data, count) = encoder.finish();
    let (job_id, execution_id) = (of.job_id.to_vec(), of.execution_id.to_vec());
    worker_event::Kind::Logs(v1::LogChunk { job_id, execution_id, first, count, data: data.into() })
}
