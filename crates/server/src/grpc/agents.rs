//! WorkerAgentService: workers join and hold their stream.

use super::{authenticate, invalid, refused, visit, wrong};
use crate::{access::Actor, calls::Calls, engine::CallError, secrets};
use futures::stream::BoxStream;
use hodei_api::{
    convert,
    v1::{self, worker_agent_service_server::WorkerAgentService},
};
use hodei_core::{
    brain::{Answer, Connection, Input, NewJob, Refusal, Registration, Report},
    id::WorkerId,
    protocol::{Finished, FromWorker, Hello, ToWorker},
    spec::Invalid,
    state::{Failure, FailureKind, Outcome},
};
use prost::Message;
use std::time::Duration;
use tokio::sync::mpsc::{self, WeakUnboundedSender};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::{Request, Response, Status, Streaming};

/// A worker that sends no first message in this time is not one.
const HELLO_PATIENCE: Duration = Duration::from_secs(10);
/// Heartbeats that may be missed before a stream is given up.
const MISSED_HEARTBEATS: u32 = 3;
const KEY_BYTES: std::ops::RangeInclusive<usize> = 16..=64;

pub struct Service {
    pub calls: Calls,
}

type Incoming = Streaming<v1::WorkerMessage>;
type Sender = WeakUnboundedSender<Result<v1::ServerMessage, Status>>;

#[tonic::async_trait]
impl WorkerAgentService for Service {
    async fn register(&self, request: Request<v1::RegisterRequest>) -> Result<Response<v1::RegisterResponse>, Status> {
        let visit = visit(&request)?;
        let v1::RegisterRequest { token, worker_id, info, key } = request.into_inner();
        let worker = if worker_id.is_empty() { None } else { Some(convert::worker_id(&worker_id).map_err(invalid)?) };
        let info = convert::info_from_wire(info.unwrap_or_default()).map_err(invalid)?;
        if !KEY_BYTES.contains(&key.len()) {
            return Err(invalid(Invalid::new("key", "must be 16 to 64 random bytes")));
        }
        let (id, session) = self.new_session(worker, &token).await?;
        let request = Registration {
            token: secrets::hash(&token),
            worker,
            key: secrets::hash(&key),
            session: secrets::hash(&session),
            info: Box::new(info),
        };
        let calls = Calls { actor: Some(Actor::worker(id, visit)), ..self.calls.clone() };
        match calls.act(id, 0, |caller| Input::Register { caller, request }).await {
            Ok(Answer::Registered(record)) => {
                Ok(Response::new(v1::RegisterResponse { worker_id: record.id.to_string(), session }))
            }
            Ok(_) => Err(Status::internal("the brain gave another answer than it was asked for")),
            Err(CallError::Refused(Refusal::Token(refusal))) => {
                let refused = || Status::unauthenticated(refusal.to_string());
                Err(wrong(&calls, visit, &refusal.to_string()).unwrap_or_else(refused))
            }
            Err(error) => Err(refused(error)),
        }
    }

    type WorkerStreamStream = BoxStream<'static, Result<v1::ServerMessage, Status>>;

    async fn worker_stream(&self, request: Request<Incoming>) -> Result<Response<Self::WorkerStreamStream>, Status> {
        let (worker, _) = authenticate(&self.calls, &request)?;
        // A stream that nobody serves would only keep the server from ending.
        if self.calls.engine.is_closing() {
            return Err(Status::unavailable("the server is shutting down; try again"));
        }
        let (outgoing, receiver) = mpsc::unbounded_channel();
        let stream = Stream { calls: self.calls.clone(), worker, connection: self.calls.engine.new_connection() };
        stream.calls.engine.shared().links.open(stream.connection, outgoing.clone());
        tokio::spawn(stream.serve(request.into_inner(), outgoing.downgrade()));
        Ok(Response::new(Box::pin(UnboundedReceiverStream::new(receiver))))
    }

    async fn update_worker_status(
        &self,
        request: Request<v1::UpdateWorkerStatusRequest>,
    ) -> Result<Response<v1::UpdateWorkerStatusResponse>, Status> {
        let (worker, calls) = authenticate(&self.calls, &request)?;
        if request.into_inner().state() != v1::WorkerState::Draining {
            return Err(invalid(Invalid::new("state", "DRAINING is the only state a worker can ask for")));
        }
        calls.act(worker, 0, |caller| Input::Pause { caller: Some(caller), worker }).await.map_err(refused)?;
        Ok(Response::new(v1::UpdateWorkerStatusResponse {}))
    }

    async fn unregister_worker(
        &self,
        request: Request<v1::UnregisterWorkerRequest>,
    ) -> Result<Response<v1::UnregisterWorkerResponse>, Status> {
        let (worker, calls) = authenticate(&self.calls, &request)?;
        let reason = request.into_inner().reason;
        calls.act(worker, 0, |caller| Input::Unregister { caller, worker }).await.map_err(refused)?;
        tracing::info!(%worker, reason, "a worker left for good");
        Ok(Response::new(v1::UnregisterWorkerResponse {}))
    }
}

impl Service {
    /// A credential names its worker, which for a token without a worker id only the brain knows.
    async fn new_session(&self, worker: Option<WorkerId>, token: &str) -> Result<(WorkerId, String), Status> {
        let hash = secrets::hash(token);
        let worker = match worker {
            Some(worker) => Some(worker),
            None => self.calls.engine.ask(move |brain| brain.token_worker(hash)).await.map_err(refused)?,
        };
        let worker = worker.unwrap_or(WorkerId::NIL);
        Ok((worker, secrets::new_session(worker)))
    }
}

/// One connection of one worker.
struct Stream {
    calls: Calls,
    worker: WorkerId,
    connection: Connection,
}

impl Stream {
    async fn serve(self, mut incoming: Incoming, outgoing: Sender) {
        let (worker, connection) = (self.worker, self.connection);
        match self.talk(&mut incoming, &outgoing).await {
            Ok(()) => tracing::info!(%worker, "a worker's stream ended"),
            Err(status) => {
                tracing::warn!(%worker, error = status.message(), "a worker's stream broke");
                if let Some(outgoing) = outgoing.upgrade() {
                    _ = outgoing.send(Err(status));
                }
            }
        }
        self.calls.engine.shared().links.close(connection);
        self.calls.engine.tell(Input::Disconnect { worker, connection });
    }

    async fn talk(&self, incoming: &mut Incoming, outgoing: &Sender) -> Result<(), Status> {
        let (worker, connection) = (self.worker, self.connection);
        let Some((hello, rest)) = self.greeting(incoming).await? else { return Ok(()) };
        self.calls.engine.heartbeat(worker);
        self.calls.engine.tell(Input::Connect { worker, connection, hello });
        self.take_all(rest, outgoing)?;
        let patience = self.calls.engine.shared().options.heartbeat().duration() * (MISSED_HEARTBEATS + 1);
        loop {
            let message = match tokio::time::timeout(patience, incoming.message()).await {
                Ok(message) => message?,
                Err(_) => return Err(Status::deadline_exceeded("no sign of life for too long")),
            };
            let Some(message) = message else { return Ok(()) };
            let events = convert::events_from_wire(message).map_err(invalid)?;
            self.take_all(events, outgoing)?;
        }
    }

    /// The first message, which begins with a Hello.
    async fn greeting(&self, incoming: &mut Incoming) -> Result<Option<(Hello, Vec<FromWorker>)>, Status> {
        let first = tokio::time::timeout(HELLO_PATIENCE, incoming.message());
        let Some(first) = first.await.map_err(|_| Status::deadline_exceeded("no Hello came"))?? else {
            return Ok(None);
        };
        let mut events = convert::events_from_wire(first).map_err(invalid)?.into_iter();
        match events.next() {
            Some(FromWorker::Hello(hello)) => Ok(Some((hello, events.collect()))),
            _ => Err(invalid(Invalid::new("events", "the first event on a stream must be hello"))),
        }
    }

    /// In their order; what they tell of executions goes on together, as far as nothing else comes in between.
    fn take_all(&self, events: Vec<FromWorker>, outgoing: &Sender) -> Result<(), Status> {
        let mut reports = Vec::with_capacity(events.len());
        for event in events {
            self.take(event, &mut reports, outgoing)?;
        }
        self.report(&mut reports);
        Ok(())
    }

    fn report(&self, reports: &mut Vec<Report>) {
        if !reports.is_empty() {
            self.calls.engine.reports(self.worker, std::mem::take(reports));
        }
    }

    fn take(&self, event: FromWorker, reports: &mut Vec<Report>, outgoing: &Sender) -> Result<(), Status> {
        let worker = self.worker;
        let is_report = |event: &FromWorker| {
            matches!(event, FromWorker::Started { .. } | FromWorker::Progress { .. } | FromWorker::Finished(_))
        };
        if !is_report(&event) {
            self.report(reports);
        }
        match event {
            FromWorker::Hello(_) => return Err(invalid(Invalid::new("events", "hello comes once on a stream"))),
            FromWorker::Heartbeat { sent } => self.renew(sent, outgoing),
            FromWorker::Started { execution, at } => reports.push(Report::Started { execution, at }),
            FromWorker::Progress { execution, progress, data } => {
                reports.push(Report::Progress { execution, progress, data: data.map(Into::into) });
            }
            FromWorker::Finished(finished) => {
                let (finished, children) = self.with_children(finished);
                reports.push(Report::Finished(finished, children));
            }
            FromWorker::Logs(chunk) => self.calls.engine.logs(worker, self.connection, chunk),
            // Of an old connection it says nothing about the new one.
            FromWorker::Leaving if outgoing.strong_count() == 0 => {}
            FromWorker::Leaving => self.calls.engine.tell(Input::Pause { caller: None, worker }),
            FromWorker::Info(info) => {
                self.calls.engine.tell(Input::Describe { worker, connection: self.connection, info });
            }
            FromWorker::Supervision(news) => self.calls.engine.tell(Input::Supervised { worker, news }),
        }
        Ok(())
    }

    /// The end of an execution, with the jobs that it wants enqueued. If one of those cannot be, the job itself has failed:
    /// to run it again would not help.
    fn with_children(&self, mut finished: Finished) -> (Finished, Vec<NewJob>) {
        if finished.children.is_empty() {
            return (finished, Vec::new());
        }
        let specs = std::mem::take(&mut finished.children);
        let decoded = specs.iter().enumerate().map(|(i, spec)| {
            v1::JobSpec::decode(&**spec).map_err(|_| Invalid::new(format!("children[{i}]"), "is not a job's spec"))
        });
        let decoded = decoded.collect::<Result<Vec<_>, _>>();
        match decoded.and_then(|specs| self.calls.checked_all(specs, "children")) {
            Ok(children) => (finished, children),
            Err(bad) => {
                let why = format!("the jobs that it wanted enqueued are not valid: {bad}");
                let failure = Failure { fatal: true, ..Failure::new(FailureKind::Error, why) };
                (Finished { outcome: Outcome::Failed(failure), result: None, ..finished }, Vec::new())
            }
        }
    }

    /// Answers at once, whatever the store does. On a stream that the server has closed there is no answer.
    fn renew(&self, sent: u64, outgoing: &Sender) {
        if let Some(outgoing) = outgoing.upgrade() {
            self.calls.engine.heartbeat(self.worker);
            let lease = ToWorker::Lease { sent, lease: self.calls.engine.shared().options.lease };
            _ = outgoing.send(Ok(v1::ServerMessage { events: convert::to_worker(lease) }));
        }
    }
}
