//! Tasks run by an HTTP endpoint, which is asked once for each attempt.

use super::{Done, Task, TaskError, TaskResult, view::View};
use crate::end::{self, CHILDREN_BYTES};
use hodei_api::{convert::MAX_RESULT, json};
use hodei_core::{
    state::{Failure, FailureKind},
    time::Millis,
};
use reqwest::{
    Client, Response, StatusCode, Url,
    header::{CONTENT_TYPE, HeaderMap, RETRY_AFTER},
    redirect::Policy,
};
use serde::Deserialize;
use serde_json::Value;
use std::time::{Duration, SystemTime};
use tokio::{
    select,
    time::{Instant, sleep},
};

/// The header of an answer that is more than a result.
const ENVELOPE: &str = "hodei-envelope";
/// The pause before the first new try to connect. Each further one is twice as long, up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// What is kept of an answer that is an error.
const ERROR_BYTES: usize = 4 << 10;

/// An endpoint, and how it is asked.
#[derive(Clone, Debug)]
pub struct Endpoint {
    pub url: Url,
    pub headers: HeaderMap,
    /// How long it may take to answer; the job's own limit holds besides.
    pub timeout: Option<Millis>,
    /// How often a connection that cannot be made is tried again.
    pub retries: u32,
}

/// One client for all endpoints, with connections that are kept.
pub(super) fn client() -> Result<Client, reqwest::Error> {
    Client::builder().redirect(Policy::none()).no_proxy().build()
}

/// An answer with the header: what it means, beside or in place of a result.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Envelope {
    result: Value,
    data: Option<Value>,
    children: Vec<Value>,
    snooze: Option<Value>,
    block: Option<String>,
    fail: Option<String>,
}

impl Endpoint {
    pub(super) async fn run(&self, client: &Client, task: Task) -> TaskResult<Done> {
        let until = self.timeout.map(|limit| Instant::now() + limit.duration());
        let late = async {
            match until {
                Some(until) => tokio::time::sleep_until(until).await,
                None => std::future::pending().await,
            }
        };
        select! {
            ended = self.ask(client, &task) => ended,
            () = task.stopping() => Err("stopped".into()),
            () = late => Err(format!("{} did not answer within {:?}", self.url, self.timeout.unwrap_or_default().duration()).into()),
        }
    }

    async fn ask(&self, client: &Client, task: &Task) -> TaskResult<Done> {
        let body = serde_json::to_vec(&View::of(task))?;
        let mut pause = FIRST_PAUSE;
        let mut left = self.retries;
        let answer = loop {
            let request = client.post(self.url.clone()).header(CONTENT_TYPE, "application/json");
            match request.headers(self.headers.clone()).body(body.clone()).send().await {
                Ok(answer) => break answer,
                // It was not asked, so it can be asked again.
                Err(error) if error.is_connect() && left > 0 => {
                    task.log_error(&format!("{} cannot be reached and is tried again in {pause:?}", self.url)).await;
                    sleep(pause).await;
                    (left, pause) = (left - 1, (pause * 2).min(LONGEST_PAUSE));
                }
                Err(error) => return Err(error.into()),
            }
        };
        self.judge(answer, task).await
    }

    async fn judge(&self, answer: Response, task: &Task) -> TaskResult<Done> {
        let status = answer.status();
        if status.is_success() {
            return self.take(answer, task).await;
        }
        let busy = matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE);
        if let Some(delay) = retry_after(answer.headers()).filter(|_| busy) {
            return Ok(Done::snooze(delay));
        }
        let (text, _) = read(answer, ERROR_BYTES).await?;
        Err(TaskError::of(Failure {
            fatal: !status.is_server_error() && !busy,
            detail: String::from_utf8_lossy(&text).into_owned(),
            ..Failure::new(FailureKind::Error, format!("{} answered {status}", self.url))
        }))
    }

    async fn take(&self, answer: Response, task: &Task) -> TaskResult<Done> {
        let enveloped = answer.headers().contains_key(ENVELOPE);
        let most = if enveloped { CHILDREN_BYTES } else { MAX_RESULT };
        let (text, whole) = read(answer, most).await?;
        let bad = |problem: String| TaskError::retry(format!("{} answered with what {problem}", self.url));
        if !whole {
            return Err(bad(format!("is larger than {most} bytes")));
        }
        if text.trim_ascii().is_empty() {
            return Ok(().into());
        }
        if !enveloped {
            let result: Value = serde_json::from_slice(&text).map_err(|error| bad(format!("is not JSON: {error}")))?;
            return Ok(result.into());
        }
        let mut from = serde_json::Deserializer::from_slice(&text);
        let envelope: Envelope = json::read(&mut from).map_err(|problem| bad(format!("is no envelope: {problem}")))?;
        if let Some(data) = envelope.data {
            task.set_data(&data)?;
        }
        task.add_children(end::children(envelope.children.into_iter().map(Ok)).map_err(TaskError::fatal)?);
        let end = end::one_of(envelope.snooze, envelope.block, envelope.fail);
        let end = end.map_err(|problem| bad(format!("is no envelope: {problem}")))?;
        Ok(end.map_or_else(|| Done::value(envelope.result), Done::end))
    }
}

/// The beginning of an answer, and whether that is all of it.
async fn read(mut answer: Response, most: usize) -> Result<(Vec<u8>, bool), reqwest::Error> {
    let mut bytes = Vec::new();
    while let Some(more) = answer.chunk().await? {
        let room = most - bytes.len();
        bytes.extend_from_slice(&more[..more.len().min(room)]);
        if more.len() > room {
            return Ok((bytes, false));
        }
    }
    Ok((bytes, true))
}

/// Seconds, or a date.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    let seconds = || text.parse().ok().map(Duration::from_secs);
    let date = || Some(httpdate::parse_http_date(text).ok()?.duration_since(SystemTime::now()).unwrap_or_default());
    seconds().or_else(date)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_is_told_in_seconds_or_by_a_date() {
        let after = |text: &str| retry_after(&HeaderMap::from_iter([(RETRY_AFTER, text.parse().expect("a value"))]));
        assert_eq!(after("120"), Some(Duration::from_secs(120)));
        assert_eq!(after("Fri, 31 Dec 1999 23:59:59 GMT"), Some(Duration::ZERO));
        let soon = httpdate::fmt_http_date(SystemTime::now() + Duration::from_secs(100));
        assert!(after(&soon).is_some_and(|pause| pause > Duration::from_secs(90)), "{soon}");
        assert_eq!(after("soon"), None);
        assert_eq!(after("-1"), None);
    }
}
