//! The gRPC doors, one file per service.

mod admin;
mod agents;
mod dead_letters;
mod events;
pub(crate) mod jobs;
pub(crate) mod logs;
mod queues;
mod schedules;
mod webhooks;

use crate::{
    calls::{Calls, Problem},
    engine::{CallError, Engine},
    secrets,
};
use axum::{middleware, response::Response};
use hodei_api::{DESCRIPTORS, v1};
use hodei_core::{id::WorkerId, spec::Invalid, time::Time};
use hodei_store::StoreError;
use http::{HeaderValue, header::HeaderMap};
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};
use tokio::sync::watch;
use tonic::{Code, Status, metadata::MetadataMap, service::Routes};

/// A request may carry 10,000 jobs.
const MAX_REQUEST: usize = 64 << 20;

/// All services, with reflection and health.
pub async fn routes(
    engine: &Engine,
    closing: watch::Receiver<bool>,
    served: Arc<AtomicU64>,
) -> Result<Routes, tonic_reflection::server::Error> {
    use v1::{
        dead_letter_service_server::DeadLetterServiceServer as DeadLetters,
        event_service_server::EventServiceServer as Events,
        job_execution_service_server::JobExecutionServiceServer as Jobs,
        log_stream_service_server::LogStreamServiceServer as Logs, queue_service_server::QueueServiceServer as Queues,
        schedule_service_server::ScheduleServiceServer as Schedules,
        webhook_service_server::WebhookServiceServer as Webhooks,
        worker_admin_service_server::WorkerAdminServiceServer as Admin,
        worker_agent_service_server::WorkerAgentServiceServer as Agents,
    };
    let (health, health_service) = tonic_health::server::health_reporter();
    health.set_serving::<Jobs<jobs::Service>>().await;
    health.set_serving::<Logs<logs::Service>>().await;
    health.set_serving::<Agents<agents::Service>>().await;
    health.set_serving::<Admin<admin::Service>>().await;
    health.set_serving::<Webhooks<webhooks::Service>>().await;
    health.set_serving::<Queues<queues::Service>>().await;
    health.set_serving::<DeadLetters<dead_letters::Service>>().await;
    health.set_serving::<Events<events::Service>>().await;
    health.set_serving::<Schedules<schedules::Service>>().await;
    let reflection = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(DESCRIPTORS)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        .build_v1()?;
    let calls = Calls { engine: engine.clone() };
    let jobs = jobs::Service { calls: calls.clone(), closing: closing.clone() };
    let logs = logs::Service { calls: calls.clone(), closing: closing.clone() };
    let schedules = schedules::Service { calls: calls.clone(), closing: closing.clone() };
    let events = events::Service { calls: calls.clone(), closing };
    let routes = Routes::new(health_service)
        .add_service(reflection)
        .add_service(Jobs::new(jobs).max_decoding_message_size(MAX_REQUEST).max_encoding_message_size(MAX_REQUEST))
        .add_service(Logs::new(logs))
        .add_service(Webhooks::new(webhooks::Service { calls: calls.clone() }))
        .add_service(Queues::new(queues::Service { calls: calls.clone() }))
        .add_service(DeadLetters::new(dead_letters::Service { calls: calls.clone() }))
        .add_service(Events::new(events))
        .add_service(Schedules::new(schedules).max_encoding_message_size(MAX_REQUEST))
        .add_service(Agents::new(agents::Service { calls }).max_decoding_message_size(MAX_REQUEST))
        .add_service(Admin::new(admin::Service { engine: engine.clone() }));
    let counted = middleware::map_response(move |response| {
        served.fetch_add(1, Ordering::Relaxed);
        blame_the_request(response)
    });
    let router = routes.prepare().into_axum_router().layer(counted);
    Ok(Routes::from(router))
}

/// A request that does not decode (text that is not UTF-8, say) is the caller's fault; tonic calls it INTERNAL.
async fn blame_the_request(mut response: Response) -> Response {
    let headers: &mut HeaderMap = response.headers_mut();
    let internal = headers.get("grpc-status").is_some_and(|code| code == "13");
    let decoding = headers
        .get("grpc-message")
        .and_then(|message| message.to_str().ok())
        .is_some_and(|message| message.starts_with("failed%20to%20decode"));
    if internal && decoding {
        headers.insert("grpc-status", HeaderValue::from(Code::InvalidArgument as u16));
    }
    response
}

fn invalid(invalid: Invalid) -> Status {
    Status::invalid_argument(invalid.to_string())
}

/// A time in a filter; none when zero.
fn time(field: &str, ms: i64) -> Result<Option<Time>, Invalid> {
    match ms {
        0 => Ok(None),
        ms if ms > 0 => Ok(Some(Time(ms))),
        _ => Err(Invalid::new(field, "must not be negative")),
    }
}

fn refused(error: CallError) -> Status {
    Problem::from(error).into()
}

fn unreadable(error: StoreError) -> Status {
    Problem::from(error).into()
}

impl From<Problem> for Status {
    fn from(problem: Problem) -> Self {
        let said = problem.to_string();
        match problem {
            Problem::Invalid(_) => Status::invalid_argument(said),
            Problem::NotFound(_) => Status::not_found(said),
            Problem::Exists(_) => Status::already_exists(said),
            Problem::Precondition(_) => Status::failed_precondition(said),
            Problem::Unauthenticated(_) => Status::unauthenticated(said),
            Problem::Exhausted(_) => Status::resource_exhausted(said),
            Problem::Gone(_) => Status::out_of_range(said),
            Problem::Unavailable(_) => Status::unavailable(said),
            Problem::Internal(_) => Status::internal(said),
        }
    }
}

/// The worker whose session credential a request carries.
fn authenticate(engine: &Engine, metadata: &MetadataMap) -> Result<WorkerId, Status> {
    let refuse =
        || Status::unauthenticated("the metadata 'authorization' must be 'Bearer <session>' of a registered worker");
    let session = metadata.get("authorization").and_then(|value| value.to_str().ok());
    let session = session.and_then(|value| value.strip_prefix("Bearer ")).ok_or_else(refuse)?;
    let worker = secrets::claimed_worker(session).ok_or_else(refuse)?;
    if !engine.is_session(worker, secrets::hash(session)) {
        tracing::warn!(target: "audit", %worker, "a session was refused");
        return Err(refuse());
    }
    Ok(worker)
}

/// Resolves when the server closes: long streams end then.
async fn closed(closing: &mut watch::Receiver<bool>) {
    _ = closing.wait_for(|closing| *closing).await;
}
