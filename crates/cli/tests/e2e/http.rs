//! A small HTTP client, which sees answers as they are.

use crate::process::{PATIENCE, until};
use http_body_util::{BodyExt, Full};
use hyper::{
    HeaderMap, Request,
    body::{Bytes, Incoming},
    client::conn::http1,
};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::{net::TcpStream, time::timeout};

pub struct Http {
    /// Such as 127.0.0.1:8080.
    address: String,
    token: String,
}

#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }

    /// The JSON of an answer with this status.
    pub fn with(self, status: u16) -> Value {
        assert_eq!(self.status, status, "{self:?}");
        self.json()
    }

    /// The problem of an answer with this status, and the field that it names.
    pub fn problem(self, status: u16) -> (Value, String) {
        assert_eq!(self.status, status, "{self:?}");
        assert_eq!(self.header("content-type"), "application/problem+json", "{self:?}");
        let problem = self.json();
        assert_eq!(problem["status"], status, "{problem}");
        assert_eq!(problem["request_id"], self.header("x-request-id"), "{problem}");
        for field in ["type", "title", "detail"] {
            assert!(problem[field].as_str().is_some_and(|text| !text.is_empty()), "{field} of {problem}");
        }
        let field = problem["field"].as_str().unwrap_or_default().to_owned();
        (problem, field)
    }
}

impl Http {
    pub fn new(url: &str, token: &str) -> Self {
        Self { address: url.trim_start_matches("http://").to_owned(), token: token.to_owned() }
    }

    async fn open(&self, method: &str, path: &str, headers: &[(&str, &str)], body: Bytes) -> hyper::Response<Incoming> {
        let stream = TcpStream::connect(&self.address).await.expect("a connection");
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.expect("HTTP");
        tokio::spawn(connection);
        let path = if path.starts_with("/api") { path.to_owned() } else { format!("/api/v1{path}") };
        let mut request = Request::builder().method(method).uri(path).header("host", &self.address);
        request = request.header("authorization", format!("Bearer {}", self.token));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(body)).expect("a request");
        timeout(PATIENCE, sender.send_request(request)).await.expect("an answer in time").expect("an answer")
    }

    pub async fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: impl Into<Bytes>) -> Answer {
        let (parts, body) = self.open(method, path, headers, body.into()).await.into_parts();
        let body = timeout(PATIENCE, body.collect()).await.expect("a body in time").expect("a body").to_bytes();
        Answer { status: parts.status.as_u16(), headers: parts.headers, body }
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.send("GET", path, &[], "").await
    }

    pub async fn post(&self, path: &str, body: &Value) -> Answer {
        self.send("POST", path, &[("content-type", "application/json")], body.to_string()).await
    }

    /// Submits a job and returns its id.
    pub async fn submit(&self, job: &Value) -> String {
        let job = self.post("/jobs", job).await.with(202);
        job["id"].as_str().expect("an id").to_owned()
    }

    pub async fn job(&self, id: &str) -> Value {
        self.get(&format!("/jobs/{id}")).await.with(200)
    }

    /// Waits until the job is in this state, or has ended in another.
    pub async fn reached(&self, id: &str, state: &str) -> Value {
        until(&format!("job {id} is {state}"), || async {
            let job = self.job(id).await;
            let there = job["state"] == state;
            assert!(there || job["finished_at"].is_null(), "{job}");
            there.then_some(job)
        })
        .await
    }

    pub async fn follow(&self, path: &str, headers: &[(&str, &str)]) -> Events {
        let answer = self.open("GET", path, headers, Bytes::new()).await;
        let status = answer.status();
        assert_eq!(status, 200, "{answer:?}");
        assert_eq!(answer.headers()["content-type"], "text/event-stream");
        Events { body: answer.into_body(), text: String::new() }
    }
}

/// A stream of server-sent events.
pub struct Events {
    body: Incoming,
    text: String,
}

#[derive(Clone, Debug)]
pub struct Event {
    pub id: String,
    pub name: String,
    pub data: Value,
}

impl Events {
    /// The next event; none when the stream has ended, in order or not.
    pub async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some((event, rest)) = self.text.split_once("\n\n") {
                let (event, rest) = (event.to_owned(), rest.to_owned());
                self.text = rest;
                if let Some(event) = parsed(&event) {
                    return Some(event);
                }
                continue;
            }
            let frame = timeout(PATIENCE, self.body.frame()).await.expect("an event in time")?.ok()?;
            let bytes = frame.into_data().unwrap_or_default();
            self.text.push_str(std::str::from_utf8(&bytes).expect("UTF-8"));
        }
    }

    /// All up to the end of the stream.
    pub async fn rest(mut self) -> Vec<Event> {
        let mut events = Vec::new();
        while let Some(event) = self.next().await {
            events.push(event);
        }
        events
    }
}

/// A comment is no event.
fn parsed(text: &str) -> Option<Event> {
    let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).map(|value| value.trim().to_owned());
    let data = field("data:")?;
    let data = serde_json::from_str(&data).expect("JSON");
    Some(Event { id: field("id:").unwrap_or_default(), name: field("event:").unwrap_or_default(), data })
}
