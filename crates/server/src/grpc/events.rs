//! EventService: what happens, as it is committed.

use super::{closed, invalid};
use crate::{
    calls::Calls,
    events::{Event, EventId, Follower, Wanted},
};
use futures::stream::BoxStream;
use hodei_api::{
    convert,
    v1::{self, event_service_server::EventService},
};
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

/// Messages that wait for a reader.
const AHEAD: usize = 4;

pub struct Service {
    pub calls: Calls,
    pub closing: watch::Receiver<bool>,
}

#[tonic::async_trait]
impl EventService for Service {
    type StreamEventsStream = BoxStream<'static, Result<v1::StreamEventsResponse, Status>>;

    async fn stream_events(
        &self,
        request: Request<v1::StreamEventsRequest>,
    ) -> Result<Response<Self::StreamEventsStream>, Status> {
        let v1::StreamEventsRequest { after, job_id, queue, kinds } = request.into_inner();
        let after = if after.is_empty() { None } else { Some(after.parse::<EventId>().map_err(invalid)?) };
        let job = if job_id.is_empty() { None } else { Some(convert::job_id(&job_id).map_err(invalid)?) };
        let wanted = Wanted { job, queue: (!queue.is_empty()).then_some(queue), kinds };
        let follower = Follower::start(self.calls.engine.clone(), wanted, after).await?;
        let (sender, receiver) = mpsc::channel(AHEAD);
        tokio::spawn(follow(follower, self.closing.clone(), sender));
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }
}

async fn follow(
    mut follower: Follower,
    mut closing: watch::Receiver<bool>,
    sender: mpsc::Sender<Result<v1::StreamEventsResponse, Status>>,
) {
    loop {
        let message = tokio::select! {
            events = follower.next() => events.map(|events| v1::StreamEventsResponse {
                events: events.into_iter().map(to_wire).collect(),
            }),
            () = closed(&mut closing) => return,
            () = sender.closed() => return,
        };
        let ends = message.is_err();
        if sender.send(message.map_err(Status::from)).await.is_err() || ends {
            return;
        }
    }
}

fn to_wire(event: Event) -> v1::Event {
    v1::Event {
        id: event.id.to_string(),
        at_ms: event.at.0,
        r#type: event.name,
        subject: event.subject,
        queue: event.queue.to_string(),
        detail: event.detail,
        attempt: i32::try_from(event.attempt).unwrap_or(i32::MAX),
        what: event.what.to_string(),
    }
}
