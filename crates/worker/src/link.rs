//! The worker's way to the server: registration, and the stream with its reconnects.

use crate::identity::Identity;
use futures::future::BoxFuture;
use hodei_api::{
    convert,
    v1::{self, worker_agent_service_client::WorkerAgentServiceClient as Client},
    wire::{WorkerCodec, WorkerMessage},
};
use hodei_core::{id::WorkerId, worker::WorkerInfo};
use std::{error::Error, io, sync::Arc, time::Duration};
use thiserror::Error as ThisError;
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::{
    Code, Request, Status, Streaming,
    client::Grpc,
    codegen::http::uri::PathAndQuery,
    metadata::{Ascii, MetadataValue},
    transport::Channel,
};

/// Makes a channel to the server; called again for every connection.
pub type Connect = Arc<dyn Fn() -> BoxFuture<'static, Result<Channel, LinkError>> + Send + Sync>;

/// Called by its name, because what goes into it is encoded already.
const WORKER_STREAM: &str = "/hodei.v1.WorkerAgentService/WorkerStream";
const MAX_MESSAGE: usize = 64 << 20;
const FIRST_WAIT: Duration = Duration::from_millis(50);
const LONGEST_WAIT: Duration = Duration::from_secs(3);
/// A connection attempt that takes longer is given up.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Debug, ThisError)]
pub enum LinkError {
    #[error("this worker has no session yet and no token; make one with 'hodei token create worker'")]
    NoToken,
    #[error("the server refused this worker: {0}")]
    Refused(String),
    #[error(
        "the server does not take this worker's certificate ({0}); it must be a good one from an authority in the server's tls_client_ca"
    )]
    Certificate(String),
    #[error("cannot reach the server: {0}")]
    Unreachable(String),
    #[error("cannot keep the worker's identity: {0}")]
    Identity(#[from] io::Error),
}

/// An open stream.
pub struct Stream {
    pub outgoing: mpsc::UnboundedSender<WorkerMessage>,
    pub incoming: Streaming<v1::ServerMessage>,
}

impl Stream {
    /// Says the last of it, and waits until the server has heard all. Returns what the server had sent before.
    pub async fn finish(mut self, last: WorkerMessage) -> Vec<v1::ServerMessage> {
        if !last.is_empty() {
            _ = self.outgoing.send(last);
        }
        drop(self.outgoing);
        let mut late = Vec::new();
        while let Ok(Some(message)) = self.incoming.message().await {
            late.push(message);
        }
        late
    }
}

/// Registers if need be: with a token that was not used yet, or when there is no session.
pub async fn register(
    connect: &Connect,
    identity: &mut Identity,
    token: Option<&str>,
    worker: Option<WorkerId>,
    info: &WorkerInfo,
) -> Result<(), LinkError> {
    let fresh = token.filter(|token| identity.token.as_deref() != Some(token));
    let token = match (fresh, &identity.session) {
        (Some(token), _) => token,
        (None, Some(_)) => return Ok(()),
        (None, None) => token.ok_or(LinkError::NoToken)?,
    };
    // The key must be on disk before it is used: it proves a repeat if the answer is lost.
    identity.save()?;
    let mut wait = FIRST_WAIT;
    loop {
        match try_register(connect, identity, token, worker, info).await {
            Ok(answer) => {
                identity.worker = answer.worker_id.parse().ok();
                identity.session = Some(answer.session);
                identity.token = Some(token.to_owned());
                return Ok(identity.save()?);
            }
            Err(LinkError::Unreachable(why)) => {
                tracing::warn!(why, "cannot register; trying again");
                tokio::time::sleep(wait).await;
                wait = (wait * 2).min(LONGEST_WAIT);
            }
            Err(refused) => return Err(refused),
        }
    }
}

async fn try_register(
    connect: &Connect,
    identity: &Identity,
    token: &str,
    worker: Option<WorkerId>,
    info: &WorkerInfo,
) -> Result<v1::RegisterResponse, LinkError> {
    let request = v1::RegisterRequest {
        token: token.to_owned(),
        worker_id: worker.map(|id| id.to_string()).unwrap_or_default(),
        info: Some(convert::info_to_wire(info)),
        key: identity.key.as_bytes().to_vec(),
    };
    let answer = Client::new(connect().await?).register(request).await.map_err(problem)?;
    Ok(answer.into_inner())
}

/// What a failed call means for the worker: some failures go away by themselves, some never do.
fn problem(status: Status) -> LinkError {
    match status.code() {
        Code::Unauthenticated | Code::InvalidArgument | Code::PermissionDenied | Code::NotFound => {
            LinkError::Refused(status.message().to_owned())
        }
        _ => about_the_certificate(&status)
            .map_or_else(|| LinkError::Unreachable(status.message().to_owned()), LinkError::Certificate),
    }
}

/// What the server says of the certificate that it was shown. It looks at it after the client has finished its part of the
/// handshake, so that the answer comes in place of that to the first call.
fn about_the_certificate(status: &Status) -> Option<String> {
    const ALERT: &str = "received fatal alert: ";
    let causes = std::iter::successors(status.source(), |&cause| cause.source());
    let alert = causes.map(ToString::to_string).find_map(|cause| Some(cause.split_once(ALERT)?.1.to_owned()))?;
    let of_certificates = alert.contains("Certificate") || ["UnknownCA", "DecryptError"].contains(&alert.as_str());
    of_certificates.then_some(alert)
}

fn with_session<T>(message: T, session: &str) -> Result<Request<T>, LinkError> {
    let mut request = Request::new(message);
    let value: MetadataValue<Ascii> = format!("Bearer {session}")
        .parse()
        .map_err(|_| LinkError::Refused("the session in the identity file is not valid".into()))?;
    request.metadata_mut().insert("authorization", value);
    Ok(request)
}

/// Opens a stream, trying until it works or the server says no for good.
pub async fn open(connect: Connect, session: String) -> Result<Stream, LinkError> {
    let mut wait = FIRST_WAIT;
    loop {
        let attempt = tokio::time::timeout(PATIENCE, try_open(&connect, &session));
        match attempt.await.unwrap_or_else(|_| Err(LinkError::Unreachable("no answer".into()))) {
            Err(LinkError::Unreachable(why)) => {
                tracing::debug!(why, "cannot open the stream; trying again");
            }
            // It was good when the worker registered, so it has expired, say, and may be renewed.
            Err(error @ LinkError::Certificate(_)) => tracing::warn!(%error, "cannot open the stream; trying again"),
            settled => return settled,
        }
        tokio::time::sleep(wait).await;
        wait = (wait * 2).min(LONGEST_WAIT);
    }
}

async fn try_open(connect: &Connect, session: &str) -> Result<Stream, LinkError> {
    let (outgoing, messages) = mpsc::unbounded_channel();
    let request = with_session(UnboundedReceiverStream::new(messages), session)?;
    let mut client = Grpc::new(connect().await?).max_decoding_message_size(MAX_MESSAGE);
    let not_ready = |error| problem(Status::unknown(format!("the channel is not ready: {error}")));
    client.ready().await.map_err(not_ready)?;
    let path = PathAndQuery::from_static(WORKER_STREAM);
    let incoming = client.streaming(request, path, WorkerCodec).await.map_err(problem)?.into_inner();
    Ok(Stream { outgoing, incoming })
}

/// Leaves for good.
pub async fn unregister(connect: &Connect, session: &str, reason: &str) -> Result<(), LinkError> {
    let request = v1::UnregisterWorkerRequest { reason: reason.to_owned() };
    let request = with_session(request, session)?;
    let call = async { Client::new(connect().await?).unregister_worker(request).await.map_err(problem) };
    tokio::time::timeout(PATIENCE, call).await.unwrap_or_else(|_| Err(LinkError::Unreachable("no answer".into())))?;
    Ok(())
}
