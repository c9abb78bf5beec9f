//! The gRPC doors, one file per service.

mod access;
mod admin;
mod agents;
mod dead_letters;
mod events;
mod jobs;
mod logs;
mod providers;
mod queues;
mod scheduler;
mod schedules;
mod webhooks;

use crate::{
    access::{Actor, Caller, Denied, Needs, Peer, Visit, bearer, of_method},
    calls::{Calls, Problem},
    engine::{CallError, Engine},
    secrets,
};
use axum::{
    Router,
    extract::Request as HttpRequest,
    middleware::{self, Next},
    response::Response,
};
use hodei_api::{DESCRIPTORS, v1};
use hodei_core::{id::WorkerId, spec::Invalid, time::Time};
use http::{
    HeaderValue,
    header::{AUTHORIZATION, HeaderMap},
};
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};
use tokio::sync::watch;
use tonic::{Code, Request, Status, metadata::MetadataValue, service::Routes};

/// A request may carry 10,000 jobs.
const MAX_REQUEST: usize = 64 << 20;

/// Who comes in through a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Door {
    /// Whoever owns the data folder.
    Owner,
    /// Anybody, so that everybody has to prove who they are; workers, if told so, with a certificate of their connection, too.
    Network { certified_workers: bool },
    /// Workers of this machine, and whoever shares a container with one: only what a worker does, with a worker's credential.
    Workers,
}

/// All services, with reflection and health.
pub async fn services(
    engine: &Engine,
    closing: watch::Receiver<bool>,
) -> Result<Router, tonic_reflection::server::Error> {
    use v1::{
        access_service_server::AccessServiceServer as Access,
        dead_letter_service_server::DeadLetterServiceServer as DeadLetters,
        event_service_server::EventServiceServer as Events,
        job_execution_service_server::JobExecutionServiceServer as Jobs,
        log_stream_service_server::LogStreamServiceServer as Logs,
        provider_management_service_server::ProviderManagementServiceServer as Providers,
        queue_service_server::QueueServiceServer as Queues,
        schedule_service_server::ScheduleServiceServer as Schedules,
        scheduler_service_server::SchedulerServiceServer as Scheduler,
        webhook_service_server::WebhookServiceServer as Webhooks,
        worker_admin_service_server::WorkerAdminServiceServer as Admin,
        worker_agent_service_server::WorkerAgentServiceServer as Agents,
    };
    let (health, health_service) = tonic_health::server::health_reporter();
    health.set_serving::<Access<access::Service>>().await;
    health.set_serving::<Jobs<jobs::Service>>().await;
    health.set_serving::<Logs<logs::Service>>().await;
    health.set_serving::<Agents<agents::Service>>().await;
    health.set_serving::<Admin<admin::Service>>().await;
    health.set_serving::<Webhooks<webhooks::Service>>().await;
    health.set_serving::<Queues<queues::Service>>().await;
    health.set_serving::<DeadLetters<dead_letters::Service>>().await;
    health.set_serving::<Events<events::Service>>().await;
    health.set_serving::<Schedules<schedules::Service>>().await;
    health.set_serving::<Scheduler<scheduler::Service>>().await;
    health.set_serving::<Providers<providers::Service>>().await;
    let reflection = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(DESCRIPTORS)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        .build_v1()?;
    let calls = Calls::new(engine.clone());
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
        .add_service(Scheduler::new(scheduler::Service { calls: calls.clone() }).max_encoding_message_size(MAX_REQUEST))
        .add_service(DeadLetters::new(dead_letters::Service { calls: calls.clone() }))
        .add_service(Events::new(events))
        .add_service(Schedules::new(schedules).max_encoding_message_size(MAX_REQUEST))
        .add_service(Agents::new(agents::Service { calls: calls.clone() }).max_decoding_message_size(MAX_REQUEST))
        .add_service(Providers::new(providers::Service { calls: calls.clone() }))
        .add_service(Admin::new(admin::Service { calls: calls.clone() }))
        .add_service(Access::new(access::Service { calls }));
    Ok(routes.prepare().into_axum_router())
}

/// The services behind a door.
pub fn behind(services: Router, engine: &Engine, door: Door, served: Arc<AtomicU64>) -> Routes {
    let engine = engine.clone();
    let guard = middleware::from_fn(move |request: HttpRequest, next: Next| {
        let (engine, served) = (engine.clone(), Arc::clone(&served));
        async move {
            let response = match admit(&engine, door, request) {
                Ok(request) => blame_the_request(next.run(request).await),
                Err(status) => status.into_http(),
            };
            served.fetch_add(1, Ordering::Relaxed);
            response
        }
    });
    Routes::from(services.layer(guard))
}

/// Lets a request in, with what is known of its sender in its extensions.
#[allow(clippy::result_large_err, reason = "a refusal is an answer like any other")]
fn admit(engine: &Engine, door: Door, mut request: HttpRequest) -> Result<HttpRequest, Status> {
    let Some(action) = of_method(request.uri().path()) else {
        return Err(Denied::NoSuchAction.into());
    };
    let access = &engine.shared().access;
    let (peer, actor) = match door {
        Door::Owner => (Peer::Local, access.admit_owner(action)),
        Door::Workers if action.needs == Needs::Worker => (Peer::Local, None),
        Door::Workers => return Err(Denied::NoSuchAction.into()),
        Door::Network { certified_workers } => {
            let unknown = Caller { peer: Peer::Local, certified: false };
            let caller = request.extensions().get::<Caller>().copied().unwrap_or(unknown);
            if certified_workers {
                access.admit_certified(action, caller)?;
            }
            let peer = caller.peer;
            (peer, access.admit(action, peer, bearer(request.headers().get(AUTHORIZATION)))?)
        }
    };
    let extensions = request.extensions_mut();
    extensions.insert(Visit { peer, action: action.name });
    actor.map(|actor| extensions.insert(actor));
    Ok(request)
}

impl From<Denied> for Status {
    fn from(denied: Denied) -> Self {
        let said = denied.to_string();
        match denied {
            Denied::Missing | Denied::Unknown | Denied::Expired(_) | Denied::Revoked(_) | Denied::NoCertificate => {
                Status::unauthenticated(said)
            }
            Denied::Role { .. } => Status::permission_denied(said),
            Denied::TooMany { wait, .. } => {
                let mut status = Status::resource_exhausted(said);
                status.metadata_mut().insert("retry-after", MetadataValue::from(wait.0.div_ceil(1000)));
                status
            }
            Denied::NoSuchAction => Status::unimplemented(said),
        }
    }
}

/// A request that does not decode (text that is not UTF-8, say) is the caller's fault; tonic calls it INTERNAL.
fn blame_the_request(mut response: Response) -> Response {
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

/// Where a request came from and what it wants; the door has written it down.
fn visit<T>(request: &Request<T>) -> Result<Visit, Status> {
    let visit = request.extensions().get::<Visit>().copied();
    visit.ok_or_else(|| Status::internal("a request came in without passing a door"))
}

/// The worker whose session credential a request carries, and what it may do in its own name.
fn authenticate<T>(calls: &Calls, request: &Request<T>) -> Result<(WorkerId, Calls), Status> {
    let visit = visit(request)?;
    let session = request.metadata().get("authorization").and_then(|value| value.to_str().ok());
    let session = session.and_then(|value| value.strip_prefix("Bearer "));
    let claimed = session.and_then(|session| Some((secrets::claimed_worker(session)?, session)));
    match claimed {
        Some((worker, session)) if calls.engine.is_session(worker, secrets::hash(session)) => {
            Ok((worker, Calls { actor: Some(Actor::worker(worker, visit)), ..calls.clone() }))
        }
        _ => {
            let said = "the metadata 'authorization' must be 'Bearer <session>' of a registered worker";
            Err(wrong(calls, visit, "no session of a worker").unwrap_or_else(|| Status::unauthenticated(said)))
        }
    }
}

/// Counts a wrong credential of a worker; the answer if there were too many.
fn wrong(calls: &Calls, visit: Visit, why: &str) -> Option<Status> {
    let wait = calls.engine.shared().access.wrong(visit, why)?;
    Some(Denied::TooMany { peer: visit.peer, wait }.into())
}

/// Resolves when the server closes: long streams end then.
async fn closed(closing: &mut watch::Receiver<bool>) {
    _ = closing.wait_for(|closing| *closing).await;
}
