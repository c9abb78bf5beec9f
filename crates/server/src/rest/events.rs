//! What happens, as server-sent events.

use super::{
    Rest,
    extract::{Args, FromArgs, NoQuery, Query},
    jobs::job_id,
    problem::{Error, Result},
    shown::{Job, moment},
};
use crate::{
    calls::{Calls, Problem},
    events::{self, EventId, Follower, Wanted},
};
use axum::{
    extract::Path,
    http::HeaderMap,
    response::{Sse, sse},
};
use futures::stream::BoxStream;
use hodei_api::convert;
use hodei_core::{id::JobId, spec::Invalid, state::StateKind};
use serde::Serialize;
use serde_json::json;
use std::{collections::VecDeque, convert::Infallible, time::Duration};
use tokio::sync::watch;
use utoipa::{IntoParams, ToSchema};

/// A stream that has nothing to tell says at least that it lives.
const HEARTBEAT: Duration = Duration::from_secs(15);

pub type Sent = std::result::Result<sse::Event, Infallible>;
pub type Stream = Sse<sse::KeepAliveStream<BoxStream<'static, Sent>>>;

pub fn sse(events: BoxStream<'static, Sent>) -> Stream {
    Sse::new(events).keep_alive(sse::KeepAlive::new().interval(HEARTBEAT))
}

pub fn event(id: &str, name: &str, data: &impl Serialize) -> Sent {
    let data = serde_json::to_string(data).unwrap_or_default();
    let event = sse::Event::default().event(name).data(data);
    Ok(if id.is_empty() { event } else { event.id(id) })
}

/// The last event of a stream that cannot go on.
pub fn failed(problem: Problem) -> Sent {
    event("", "error", Error::from(problem).details())
}

/// The last event of a stream about a job that has ended.
pub async fn end_of(calls: &Calls, job: JobId) -> Sent {
    match calls.find(job).await {
        Ok(job) => event("", "end", &json!({ "state": job.state.kind().name() })),
        Err(problem) => failed(problem),
    }
}

/// Resolves when the server closes.
pub async fn closed(closing: &mut watch::Receiver<bool>) {
    _ = closing.wait_for(|closing| *closing).await;
}

/// What a client that comes back says it saw last.
pub fn last_seen(headers: &HeaderMap) -> std::result::Result<Option<String>, Invalid> {
    let Some(value) = headers.get("last-event-id") else { return Ok(None) };
    let bad = |_| Invalid::new("Last-Event-ID", "is not an id that this server gave");
    let text = value.to_str().map_err(bad)?;
    Ok((!text.is_empty()).then(|| text.to_owned()))
}

/// One thing that happened.
#[derive(Debug, Serialize, ToSchema)]
pub struct Event {
    /// Names its place in the order of all.
    id: String,
    #[schema(format = DateTime)]
    at: String,
    /// Such as job.succeeded, worker.ready, schedule.fired, queue.paused, supervision.worker_replaced.
    r#type: String,
    /// The id of the job, worker or schedule; the name of the queue, provider or template.
    subject: String,
    /// Of a job: its queue and how many runs it has had.
    #[serde(skip_serializing_if = "String::is_empty")]
    queue: String,
    attempt: u32,
    /// Of supervision: which handler of the worker.
    #[serde(skip_serializing_if = "String::is_empty")]
    what: String,
    /// For people, where there is more to say.
    #[serde(skip_serializing_if = "String::is_empty")]
    detail: String,
}

impl From<&events::Event> for Event {
    fn from(event: &events::Event) -> Self {
        Self {
            id: event.id.to_string(),
            at: moment(event.at.0),
            r#type: event.name.clone(),
            subject: event.subject.clone(),
            queue: event.queue.to_string(),
            attempt: event.attempt,
            what: event.what.to_string(),
            detail: event.detail.clone(),
        }
    }
}

#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct Which {
    /// The id of the last event that was seen, for those who cannot set `Last-Event-ID`.
    #[param(min_length = 1)]
    after: Option<String>,
    #[param(format = Uuid)]
    job_id: Option<String>,
    #[param(min_length = 1)]
    queue: Option<String>,
    /// Any of job, worker, schedule, queue, supervision, provider and template.
    #[param(required = false)]
    kinds: Vec<String>,
}

impl FromArgs for Which {
    fn from_args(args: &mut Args) -> std::result::Result<Self, Invalid> {
        let (after, job_id) = (args.text("after")?, args.text("job_id")?);
        Ok(Self { after, job_id, queue: args.text("queue")?, kinds: args.many("kinds") })
    }
}

fn event_id(field: &str, text: &str) -> std::result::Result<EventId, Invalid> {
    text.parse().map_err(|bad: Invalid| Invalid { field: field.to_owned(), ..bad })
}

/// Follow what happens
///
/// Server-sent events in the order of the commits that made them durable, each named by its type, with an `Event` as its data. They go
/// on after `Last-Event-ID` without gap or repeat, also on a server that was started anew, or begin now.
#[utoipa::path(
    get, path = "/events", tag = "events",
    params(Which, ("Last-Event-ID" = Option<String>, Header, description = "The id of the last event that was seen",
        pattern = "^[!-~]+$")),
    responses(
        (status = 200, description = "The events", content((Event = "text/event-stream"))),
        (status = 410, description = "What follows that event is not kept any more"),
    )
)]
pub async fn all(rest: Rest, Query(which): Query<Which>, headers: HeaderMap) -> Result<Stream> {
    let after = match (last_seen(&headers)?, which.after) {
        (Some(seen), _) => Some(event_id("Last-Event-ID", &seen)?),
        (None, Some(after)) => Some(event_id("after", &after)?),
        (None, None) => None,
    };
    let job = which.job_id.map(|id| convert::job_id(&id)).transpose()?;
    let wanted = Wanted { job, queue: which.queue, kinds: which.kinds };
    let follower = Follower::start(rest.calls.engine.clone(), wanted, after).await?;
    let following = Following { rest, follower, ready: VecDeque::new(), job: None, over: false };
    Ok(sse(Box::pin(futures::stream::unfold(following, Following::next))))
}

/// Follow one job
///
/// Server-sent events: `job` with the job as it is now (unless `Last-Event-ID` says what was seen already), then each change of its
/// state as in the stream of all events, and `end` when it has ended.
#[utoipa::path(
    get, path = "/jobs/{id}/events", tag = "events",
    params(("id" = uuid::Uuid, Path, description = "The job"),
        ("Last-Event-ID" = Option<String>, Header, description = "The id of the last event that was seen", pattern = "^[!-~]+$")),
    responses(
        (status = 200, description = "The events", content((Event = "text/event-stream"))),
        (status = 410, description = "What follows that event is not kept any more"),
    )
)]
pub async fn of_job(
    rest: Rest,
    Path(id): Path<String>,
    Query(NoQuery): Query<NoQuery>,
    headers: HeaderMap,
) -> Result<Stream> {
    let id = job_id(&id)?;
    let seen = last_seen(&headers)?.map(|seen| event_id("Last-Event-ID", &seen)).transpose()?;
    let wanted = Wanted { job: Some(id), ..Wanted::default() };
    // The follower first: a change between the two is then seen twice rather than not at all.
    let follower = Follower::start(rest.calls.engine.clone(), wanted, seen).await?;
    let job = rest.calls.find(id).await?;
    let ended = job.state.kind().is_finished();
    let mut ready = VecDeque::new();
    if seen.is_none() {
        let whole: Job = rest.calls.whole(job).await?.into();
        ready.push_back(event(&follower.position().to_string(), "job", &whole));
    }
    let following = Following { rest, follower, ready, job: Some(Followed { id, ended }), over: false };
    Ok(sse(Box::pin(futures::stream::unfold(following, Following::next))))
}

/// One who follows events.
struct Following {
    rest: Rest,
    follower: Follower,
    ready: VecDeque<Sent>,
    /// The one job that it follows.
    job: Option<Followed>,
    over: bool,
}

struct Followed {
    id: JobId,
    /// It had ended already: what is stored is all there is.
    ended: bool,
}

impl Following {
    async fn next(mut self) -> Option<(Sent, Self)> {
        while self.ready.is_empty() {
            if self.over {
                return None;
            }
            let mut closing = self.rest.closing.clone();
            tokio::select! {
                () = self.fill() => {}
                () = closed(&mut closing) => return None,
            }
        }
        let next = self.ready.pop_front()?;
        Some((next, self))
    }

    async fn fill(&mut self) {
        let ended = self.job.as_ref().is_some_and(|job| job.ended);
        let events = if ended { self.follower.stored().await } else { self.follower.next().await };
        let events = match events {
            Ok(events) => events,
            Err(problem) => {
                self.over = true;
                return self.ready.push_back(failed(problem));
            }
        };
        self.ready.extend(events.iter().map(|one| event(&one.id.to_string(), &one.name, &Event::from(one))));
        let Some(job) = &self.job else { return };
        let is_end =
            |name: &str| name.strip_prefix("job.").and_then(StateKind::parse).is_some_and(StateKind::is_finished);
        if (ended && events.is_empty()) || (!ended && events.last().is_some_and(|last| is_end(&last.name))) {
            self.over = true;
            let end = end_of(&self.rest.calls, job.id).await;
            self.ready.push_back(end);
        }
    }
}
