//! Event streams: in order, without gap or repeat, over reconnects and restarts.

use crate::{client::shell, cluster::Cluster};
use hodei_api::v1;
use tonic::{Code, Status, Streaming};

async fn follow(cluster: &Cluster, request: v1::StreamEventsRequest) -> Streaming<v1::StreamEventsResponse> {
    cluster.events().stream_events(request).await.expect("a stream").into_inner()
}

/// Reads until one of this type has come, and returns all.
async fn until_type(stream: &mut Streaming<v1::StreamEventsResponse>, kind: &str) -> Result<Vec<v1::Event>, Status> {
    let mut events = Vec::new();
    while !events.iter().any(|event: &v1::Event| event.r#type == kind) {
        events.extend(stream.message().await?.expect("the stream goes on").events);
    }
    Ok(events)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_is_told_of_step_by_step() {
    let cluster = Cluster::up(&["--slots", "1"]).await;
    let kinds = vec!["job".to_owned()];
    let mut stream = follow(&cluster, v1::StreamEventsRequest { kinds: kinds.clone(), ..Default::default() }).await;
    let id = cluster.queue(v1::JobSpec { queue: "told".into(), ..shell("true") }).await;
    let events = until_type(&mut stream, "job.succeeded").await.expect("events");
    let types: Vec<&str> = events.iter().map(|event| event.r#type.as_str()).collect();
    assert_eq!(types, ["job.pending", "job.scheduled", "job.running", "job.succeeded"]);
    assert!(events.iter().all(|event| event.subject == id && event.queue == "told"), "{events:?}");

    // From any event on, the rest is told again as it was.
    for (place, event) in events.iter().enumerate() {
        let again = v1::StreamEventsRequest { after: event.id.clone(), kinds: kinds.clone(), ..Default::default() };
        let mut stream = follow(&cluster, again).await;
        if place + 1 < events.len() {
            let rest = until_type(&mut stream, "job.succeeded").await.expect("the rest");
            assert_eq!(rest, events[place + 1..]);
        }
    }
    let bad = cluster.events().stream_events(v1::StreamEventsRequest { after: "x".into(), ..Default::default() }).await;
    assert_eq!(bad.expect_err("must be refused").code(), Code::InvalidArgument);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_goes_on_where_it_was_after_a_crash() {
    let mut cluster = Cluster::start().await;
    let _worker = cluster.worker("one", &["--slots", "2"]).await;
    let request = |after: &str| v1::StreamEventsRequest { after: after.into(), ..Default::default() };
    let mut stream = follow(&cluster, request("")).await;
    cluster.queue(shell("true")).await;
    let first = until_type(&mut stream, "job.running").await.expect("events");
    let last = first.last().expect("an event").id.clone();
    cluster.crash_server().await;
    let second = cluster.queue(shell("true")).await;
    cluster.ended(&second).await;
    let mut stream = follow(&cluster, request(&last)).await;
    let mut seen = first;
    while !seen.iter().any(|event| event.subject == second && event.r#type == "job.succeeded") {
        seen.extend(stream.message().await.expect("a message").expect("the stream goes on").events);
    }
    let of = |id: &str| -> Vec<&str> {
        seen.iter().filter(|event| event.subject == id).map(|event| event.r#type.as_str()).collect()
    };
    let steps = ["job.pending", "job.scheduled", "job.running", "job.succeeded"];
    assert_eq!(of(&second), steps);
    let one = seen.iter().find(|event| event.r#type == "job.pending").expect("a job").subject.clone();
    assert_eq!(of(&one), steps, "{seen:?}");
    let mut ids: Vec<&String> = seen.iter().map(|event| &event.id).collect();
    ids.dedup();
    assert_eq!(ids.len(), seen.len(), "none is told twice");
}
