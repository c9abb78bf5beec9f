//! What jobs printed.

use super::{
    Rest,
    events::{self, Sent},
    extract::{Args, FromArgs, Query},
    jobs::job_id,
    problem::Result,
    shown::{LogEntry, Page},
};
use crate::calls::{Calls, LogStart, LogWalk, log_position, log_token};
use axum::{
    Json,
    extract::Path,
    http::{HeaderMap, HeaderName, HeaderValue, header},
    response::{IntoResponse, Response, Sse, sse},
};
use futures::stream::BoxStream;
use hodei_api::v1;
use hodei_core::{id::JobId, spec::Invalid};
use std::collections::VecDeque;
use tokio::sync::watch;
use utoipa::IntoParams;

const DEFAULT_PAGE: usize = 1000;
const MAX_PAGE: usize = 10_000;
const MAX_TAIL: u64 = 1_000_000_000;
const NEXT_PAGE: HeaderName = HeaderName::from_static("next-page-token");

#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct Which {
    /// 1,000 unless it is given.
    #[param(minimum = 1, maximum = 10000, required = false)]
    limit: usize,
    /// `next_page_token` of the page before.
    #[param(min_length = 1)]
    page_token: Option<String>,
    /// Only the last entries; then there is no page before.
    #[param(minimum = 0, maximum = 1000000000)]
    tail: Option<u64>,
}

impl FromArgs for Which {
    fn from_args(args: &mut Args) -> std::result::Result<Self, Invalid> {
        let (limit, page_token) = (args.limit(DEFAULT_PAGE, MAX_PAGE)?, args.text("page_token")?);
        Ok(Self { limit, page_token, tail: tail(args)? })
    }
}

fn tail(args: &mut Args) -> std::result::Result<Option<u64>, Invalid> {
    match args.parsed("tail", "a number")? {
        Some(tail) if tail > MAX_TAIL => Err(Invalid::new("tail", format!("must be at most {MAX_TAIL}"))),
        tail => Ok(tail),
    }
}

/// Read what a job printed
///
/// As JSON, or with `accept: text/plain` as it was printed; then the header `next-page-token` says where the next page begins.
#[utoipa::path(
    get, path = "/jobs/{id}/logs", tag = "logs", params(("id" = uuid::Uuid, Path, description = "The job"), Which),
    responses((status = 200, description = "A page of it", content(
        (Page<LogEntry> = "application/json"), (String = "text/plain")
    )))
)]
pub async fn page(
    rest: Rest,
    Path(id): Path<String>,
    Query(which): Query<Which>,
    headers: HeaderMap,
) -> Result<Response> {
    let start = match (which.page_token, which.tail) {
        (Some(_), Some(_)) => return Err(Invalid::new("tail", "give page_token or tail, not both").into()),
        (Some(token), None) => LogStart::At(log_position(&token)?),
        (None, Some(tail)) => LogStart::Tail(tail),
        (None, None) => LogStart::BEGINNING,
    };
    let page = rest.calls.log_page(job_id(&id)?, start, which.limit).await?;
    let next_page_token = page.next.map(log_token).unwrap_or_default();
    if wants_text(&headers) {
        return Ok(as_printed(&page.entries, &next_page_token));
    }
    let items = page.entries.into_iter().map(LogEntry::from).collect();
    Ok(Json(Page::<LogEntry> { items, next_page_token }).into_response())
}

/// JSON unless only text is asked for.
fn wants_text(headers: &HeaderMap) -> bool {
    let accept = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let takes_json = ["*/*", "application/"].iter().any(|kind| accept.contains(kind));
    accept.contains("text/") && (!takes_json || accept.trim_start().starts_with("text/plain"))
}

fn as_printed(entries: &[v1::LogEntry], next: &str) -> Response {
    let mut text = String::new();
    for entry in entries {
        text.push_str(&String::from_utf8_lossy(&entry.text));
        if !entry.unfinished {
            text.push('\n');
        }
    }
    let mut response = ([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], text).into_response();
    if let (false, Ok(next)) = (next.is_empty(), HeaderValue::from_str(next)) {
        response.headers_mut().insert(NEXT_PAGE, next);
    }
    response
}

#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct From {
    /// Only the last entries of what is stored, then what comes.
    #[param(minimum = 0, maximum = 1000000000)]
    tail: Option<u64>,
}

impl FromArgs for From {
    fn from_args(args: &mut Args) -> std::result::Result<Self, Invalid> {
        Ok(Self { tail: tail(args)? })
    }
}

/// Follow what a job prints
///
/// Server-sent events: `log` for each entry, with a `LogEntry` as its data and an id that `Last-Event-ID` takes to go on after it;
/// `end` when the job has ended and all is told.
#[utoipa::path(
    get, path = "/jobs/{id}/logs/stream", tag = "logs",
    params(("id" = uuid::Uuid, Path, description = "The job"), From,
        ("Last-Event-ID" = Option<String>, Header, description = "The id of the last event that was seen", pattern = "^[!-~]+$")),
    responses((status = 200, description = "The events", body = String, content_type = "text/event-stream"))
)]
pub async fn stream(
    rest: Rest,
    Path(id): Path<String>,
    Query(From { tail }): Query<From>,
    headers: HeaderMap,
) -> Result<Sse<sse::KeepAliveStream<BoxStream<'static, Sent>>>> {
    let id = job_id(&id)?;
    let start = match (events::last_seen(&headers)?, tail) {
        (Some(seen), _) => LogStart::At(
            log_position(&seen).map_err(|_| Invalid::new("Last-Event-ID", "is not an id that this server gave"))?,
        ),
        (None, Some(tail)) => LogStart::Tail(tail),
        (None, None) => LogStart::BEGINNING,
    };
    let walk = rest.calls.follow_log(id, start).await?;
    let reading = Reading { id, calls: rest.calls, walk, closing: rest.closing, read: VecDeque::new(), over: false };
    Ok(events::sse(Box::pin(futures::stream::unfold(reading, Reading::next))))
}

/// One who follows a log.
struct Reading {
    id: JobId,
    calls: Calls,
    walk: LogWalk,
    closing: watch::Receiver<bool>,
    read: VecDeque<v1::LogEntry>,
    over: bool,
}

impl Reading {
    async fn next(mut self) -> Option<(Sent, Self)> {
        if self.over {
            return None;
        }
        if self.read.is_empty() {
            self.read = tokio::select! {
                entries = self.walk.next() => match entries {
                    Ok(entries) => entries.into(),
                    Err(problem) => {
                        self.over = true;
                        return Some((events::failed(problem), self));
                    }
                },
                () = events::closed(&mut self.closing) => return None,
            };
        }
        match self.read.pop_front() {
            Some(entry) => {
                let id = format!("{}:{}", entry.execution_id, entry.number + 1);
                Some((events::event(&id, "log", &LogEntry::from(entry)), self))
            }
            None => {
                self.over = true;
                let end = events::end_of(&self.calls, self.id).await;
                Some((end, self))
            }
        }
    }
}
