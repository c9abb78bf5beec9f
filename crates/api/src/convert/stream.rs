//! The worker's stream, in both directions.

use super::{
    jobs::{count, signed, spec_from_wire, spec_to_wire},
    workers::{info_from_wire, info_to_wire},
};
use crate::{logs::Chunk, v1};
use bytes::{Bytes, BytesMut};
use hodei_core::{
    id::{ExecutionId, Incarnation, JobId},
    job::Progress,
    journal::Supervision,
    protocol::{
        Assignment, Context, DependencyResult, Finished, FromWorker, Hello, LogAck, LogChunk, StopReason, ToWorker,
        Verdict, Welcome,
    },
    spec::Invalid,
    state::{Failure, FailureKind, Outcome},
    time::{Millis, Time},
};
use prost::Message;
use std::sync::Arc;
use v1::{server_event::Kind as Server, worker_event::Kind as Worker};

/// Longer ones are cut: a message is for people.
const MAX_MESSAGE: usize = 4096;
const MAX_EVENT_NAME: usize = 64;
/// The largest result that a job may leave.
pub const MAX_RESULT: usize = 1 << 20;
/// The jobs that one job may want enqueued as it ends.
const MAX_CHILDREN: usize = 10_000;
const LONGEST_SNOOZE: Millis = Millis::seconds(366 * 24 * 3600);

pub fn events_to_wire(messages: Vec<FromWorker>) -> v1::WorkerMessage {
    let events = messages.into_iter().map(|message| v1::WorkerEvent { kind: Some(to_server(message)) }).collect();
    v1::WorkerMessage { events }
}

pub fn events_from_wire(message: v1::WorkerMessage) -> Result<Vec<FromWorker>, Invalid> {
    message.events.into_iter().map(from_worker).collect()
}

/// What a worker sends, as it goes out.
pub fn to_server(message: FromWorker) -> Worker {
    match message {
        FromWorker::Hello(hello) => Worker::Hello(v1::Hello {
            incarnation: hello.incarnation.as_bytes().to_vec(),
            held: hello.held.iter().map(bytes_of).collect(),
            ended: hello.ended.iter().map(bytes_of).collect(),
            leaving: hello.leaving,
            info: hello.info.as_ref().map(|info| Box::new(info_to_wire(info))),
        }),
        FromWorker::Heartbeat { sent } => Worker::Heartbeat(v1::Heartbeat { sent }),
        FromWorker::Started { execution, at } => {
            Worker::Started(v1::Started { execution_id: shared(&execution), at_ms: at.0 })
        }
        FromWorker::Progress { execution, progress, data } => Worker::Progress(v1::ProgressReport {
            data,
            execution_id: bytes_of(&execution),
            basis_points: progress.basis_points.into(),
            message: progress.message,
        }),
        FromWorker::Logs(chunk) => Worker::Logs(v1::LogChunk {
            job_id: chunk.job.as_bytes().to_vec(),
            execution_id: bytes_of(&chunk.execution),
            first: chunk.first,
            count: chunk.count,
            data: Bytes::from_owner(chunk.data),
        }),
        FromWorker::Finished(finished) => Worker::Finished(finished_to_wire(finished)),
        FromWorker::Leaving => Worker::Leaving(v1::Leaving {}),
        FromWorker::Info(info) => Worker::Info(Box::new(info_to_wire(&info))),
        FromWorker::Supervision(news) => Worker::Supervision(v1::Supervision {
            what: news.what.to_string(),
            event: news.event.to_string(),
            detail: news.detail,
            at_ms: news.at.0,
        }),
    }
}

fn bytes_of(id: &ExecutionId) -> Vec<u8> {
    id.as_bytes().to_vec()
}

fn shared(id: &ExecutionId) -> Bytes {
    Bytes::copy_from_slice(id.as_bytes())
}

/// Ids that leave together lie together in memory.
fn all_of(ids: &[ExecutionId]) -> Vec<Bytes> {
    let mut all = BytesMut::with_capacity(size_of_val(ids));
    ids.iter().for_each(|id| all.extend_from_slice(id.as_bytes()));
    let mut all = all.freeze();
    ids.iter().map(|_| all.split_to(size_of::<ExecutionId>())).collect()
}

fn finished_to_wire(finished: Finished) -> v1::Finished {
    use v1::finished::Problem;
    let problem = match finished.outcome {
        Outcome::Succeeded => None,
        Outcome::Failed(failure) => Some(Problem::Failed(v1::Failure {
            kind: failure.kind.name().to_owned(),
            message: failure.message,
            exit_code: failure.exit_code,
            signal: failure.signal,
            fatal: failure.fatal,
            detail: failure.detail,
        })),
        Outcome::Cancelled => Some(Problem::Cancelled(true)),
        Outcome::Released => Some(Problem::Released(true)),
        Outcome::Snoozed { delay } => Some(Problem::Snoozed(v1::Snoozed { for_ms: signed(delay.0) })),
        Outcome::Blocked { reason } => Some(Problem::Blocked(v1::Blocked { reason })),
    };
    v1::Finished {
        execution_id: shared(&finished.execution),
        started_at_ms: finished.started_at.map_or(0, |at| at.0),
        finished_at_ms: finished.finished_at.0,
        log_entries: finished.log_entries,
        problem,
        result: finished.result,
        data: finished.data,
        children: finished.children,
    }
}

/// What a worker sent, as it comes in.
pub fn from_worker(event: v1::WorkerEvent) -> Result<FromWorker, Invalid> {
    match event.kind {
        Some(Worker::Hello(hello)) => hello_from_wire(hello).map(FromWorker::Hello),
        Some(Worker::Heartbeat(heartbeat)) => Ok(FromWorker::Heartbeat { sent: heartbeat.sent }),
        Some(Worker::Started(started)) => {
            Ok(FromWorker::Started { execution: execution(&started.execution_id)?, at: Time(started.at_ms) })
        }
        Some(Worker::Progress(report)) => Ok(FromWorker::Progress {
            execution: execution(&report.execution_id)?,
            progress: Progress {
                basis_points: u16::try_from(report.basis_points.min(10_000)).unwrap_or(0),
                message: cut(report.message),
            },
            data: report.data.map(|data| json("progress.data", data)).transpose()?,
        }),
        Some(Worker::Logs(chunk)) => chunk_from_wire(chunk).map(FromWorker::Logs),
        Some(Worker::Finished(finished)) => finished_from_wire(finished).map(FromWorker::Finished),
        Some(Worker::Leaving(_)) => Ok(FromWorker::Leaving),
        Some(Worker::Info(info)) => Ok(FromWorker::Info(Box::new(info_from_wire(*info)?))),
        Some(Worker::Supervision(news)) => supervision_from_wire(news).map(FromWorker::Supervision),
        None => Err(Invalid::new("events.kind", "is not an event that this server knows")),
    }
}

fn supervision_from_wire(news: v1::Supervision) -> Result<Supervision, Invalid> {
    let is_name = |text: &str| {
        (1..=MAX_EVENT_NAME).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_')
    };
    if !is_name(&news.event) {
        let problem = format!("must be 1 to {MAX_EVENT_NAME} lower-case letters and underscores");
        return Err(Invalid::new("supervision.event", problem));
    }
    Ok(Supervision {
        what: cut(news.what).into(),
        event: news.event.into(),
        detail: cut(news.detail),
        at: Time(news.at_ms),
    })
}

fn hello_from_wire(hello: v1::Hello) -> Result<Hello, Invalid> {
    let incarnation = Incarnation::from_slice(&hello.incarnation)
        .ok_or_else(|| Invalid::new("hello.incarnation", "must be 16 bytes"))?;
    let all = |ids: Vec<Vec<u8>>| ids.iter().map(|id| execution(id)).collect::<Result<Vec<_>, _>>();
    let info = hello.info.map(|info| info_from_wire(*info).map(Box::new)).transpose()?;
    Ok(Hello { incarnation, info, held: all(hello.held)?, ended: all(hello.ended)?, leaving: hello.leaving })
}

fn execution(bytes: &[u8]) -> Result<ExecutionId, Invalid> {
    ExecutionId::from_slice(bytes).ok_or_else(|| Invalid::new("execution_id", "must be 16 bytes"))
}

/// A chunk that does not decode is refused here, so that whatever is stored can be read.
fn chunk_from_wire(chunk: v1::LogChunk) -> Result<LogChunk, Invalid> {
    if chunk.count == 0 {
        return Err(Invalid::new("logs.count", "a chunk must have entries"));
    }
    if chunk.first.checked_add(chunk.count.into()).is_none_or(|end| i64::try_from(end).is_err()) {
        return Err(Invalid::new("logs.first", "is too large"));
    }
    Chunk::decode(&chunk.data, chunk.count).map_err(|bad| Invalid::new("logs.data", bad.to_string()))?;
    Ok(LogChunk {
        job: JobId::from_slice(&chunk.job_id).ok_or_else(|| Invalid::new("logs.job_id", "must be 16 bytes"))?,
        execution: execution(&chunk.execution_id)?,
        first: chunk.first,
        count: chunk.count,
        data: Arc::from(&chunk.data[..]),
    })
}

fn finished_from_wire(finished: v1::Finished) -> Result<Finished, Invalid> {
    use v1::finished::Problem;
    let outcome = match finished.problem {
        None => Outcome::Succeeded,
        Some(Problem::Cancelled(_)) => Outcome::Cancelled,
        Some(Problem::Released(_)) => Outcome::Released,
        Some(Problem::Failed(failure)) => Outcome::Failed(Failure {
            kind: FailureKind::parse(&failure.kind).unwrap_or(FailureKind::Error),
            message: cut(failure.message),
            exit_code: failure.exit_code,
            signal: failure.signal,
            fatal: failure.fatal,
            detail: tail(failure.detail),
        }),
        Some(Problem::Snoozed(snoozed)) => Outcome::Snoozed { delay: length(snoozed.for_ms).min(LONGEST_SNOOZE) },
        Some(Problem::Blocked(blocked)) => Outcome::Blocked { reason: cut(blocked.reason) },
    };
    if finished.result.as_ref().is_some_and(|result| result.len() > MAX_RESULT) {
        return Err(Invalid::new("finished.result", format!("must be at most {MAX_RESULT} bytes")));
    }
    if finished.children.len() > MAX_CHILDREN {
        return Err(Invalid::new("finished.children", format!("must be at most {MAX_CHILDREN}")));
    }
    Ok(Finished {
        data: finished.data.map(|data| json("finished.data", data)).transpose()?,
        children: finished.children,
        execution: execution(&finished.execution_id)?,
        outcome,
        started_at: (finished.started_at_ms > 0).then_some(Time(finished.started_at_ms)),
        finished_at: Time(finished.finished_at_ms),
        log_entries: finished.log_entries,
        result: finished.result,
    })
}

fn json(field: &str, text: Vec<u8>) -> Result<Vec<u8>, Invalid> {
    match text.len() <= MAX_RESULT && serde_json::from_slice::<serde::de::IgnoredAny>(&text).is_ok() {
        true => Ok(text),
        false => Err(Invalid::new(field, format!("must be JSON of at most {MAX_RESULT} bytes"))),
    }
}

/// The end of a text of several lines.
fn tail(mut text: String) -> String {
    let from = text.ceil_char_boundary(text.len().saturating_sub(MAX_MESSAGE));
    text.drain(..from);
    text.replace(|c: char| c.is_control() && c != '\n' && c != '\t', " ")
}

/// One line of a length that people read.
pub fn cut(mut text: String) -> String {
    text.truncate(text.floor_char_boundary(MAX_MESSAGE));
    text.replace(char::is_control, " ")
}

/// What the server sends, as it goes out. A run of several jobs becomes as many events.
pub fn to_worker(message: ToWorker) -> Vec<v1::ServerEvent> {
    let kinds = match message {
        ToWorker::Run(assignments) => assignments.iter().map(assignment_to_wire).collect(),
        ToWorker::Welcome(welcome) => vec![Server::Welcome(welcome_to_wire(welcome))],
        ToWorker::Stop { execution, why } => {
            let reason = match why {
                StopReason::Cancelled => v1::StopReason::Cancelled,
                StopReason::RunTimeout => v1::StopReason::RunTimeout,
                StopReason::Stale => v1::StopReason::Stale,
            };
            vec![Server::Stop(v1::Stop { execution_id: bytes_of(&execution), reason: reason.into() })]
        }
        ToWorker::Lease { sent, lease } => vec![Server::Lease(v1::Lease { sent, lease_ms: signed(lease.0) })],
        ToWorker::Park { lease } => vec![Server::Park(v1::Park { lease_ms: signed(lease.0) })],
        ToWorker::Acked { results, logs } => {
            let ack = |ack: &LogAck| v1::LogAck { execution_id: bytes_of(&ack.execution), entries: ack.entries };
            let logs = logs.iter().map(ack).collect();
            vec![Server::Acked(v1::Acked { results: all_of(&results), logs })]
        }
        ToWorker::Drain { within } => {
            vec![Server::Drain(v1::Drain { within_ms: within.map(|within| signed(within.0)) })]
        }
        ToWorker::RestartHandler { handler } => vec![Server::RestartHandler(v1::RestartHandler { handler })],
    };
    kinds.into_iter().map(|kind| v1::ServerEvent { kind: Some(kind) }).collect()
}

fn assignment_to_wire(assignment: &Assignment) -> Server {
    let spec = spec_to_wire(&assignment.spec, true).encode_to_vec();
    let context = assignment.context.clone();
    run_to_wire(assignment.job, assignment.execution, assignment.attempt, spec.into(), context)
}

fn run_to_wire(job: JobId, execution: ExecutionId, attempt: u32, spec: Bytes, context: Context) -> Server {
    let (job_id, execution_id) = (Bytes::copy_from_slice(job.as_bytes()), shared(&execution));
    let dependency = |left: DependencyResult| v1::DependencyResult {
        job_id: left.job.to_string(),
        name: left.name,
        result: left.result,
    };
    let (schedule, tick) = context.tick.map_or_else(Default::default, |(schedule, tick)| (schedule, tick.0));
    Server::Run(v1::Assignment {
        job_id,
        execution_id,
        attempt: count(attempt),
        spec,
        data: context.data,
        input: context.input,
        dependencies: context.dependencies.into_iter().map(dependency).collect(),
        schedule,
        tick_ms: tick,
    })
}

/// The order to run a job with this payload.
pub fn run(job: JobId, execution: ExecutionId, attempt: u32, payload: Arc<[u8]>, context: Context) -> v1::ServerEvent {
    v1::ServerEvent { kind: Some(run_to_wire(job, execution, attempt, Bytes::from_owner(payload), context)) }
}

fn welcome_to_wire(welcome: Welcome) -> v1::Welcome {
    let verdict = |verdict: &Verdict| v1::Verdict {
        execution_id: bytes_of(&verdict.execution),
        keep: verdict.keep,
        log_entries: verdict.log_entries,
    };
    v1::Welcome {
        lease_ms: signed(welcome.lease.0),
        heartbeat_ms: signed(welcome.heartbeat.0),
        held: welcome.held.iter().map(verdict).collect(),
    }
}

/// What the server sent, as it comes in.
pub fn from_server(event: v1::ServerEvent) -> Result<ToWorker, Invalid> {
    match event.kind {
        Some(Server::Welcome(welcome)) => welcome_from_wire(welcome).map(ToWorker::Welcome),
        Some(Server::Run(assignment)) => assignment_from_wire(assignment).map(|run| ToWorker::Run(vec![run])),
        Some(Server::Stop(stop)) => {
            let why = match v1::StopReason::try_from(stop.reason) {
                Ok(v1::StopReason::RunTimeout) => StopReason::RunTimeout,
                Ok(v1::StopReason::Stale) => StopReason::Stale,
                _ => StopReason::Cancelled,
            };
            Ok(ToWorker::Stop { execution: execution(&stop.execution_id)?, why })
        }
        Some(Server::Lease(lease)) => Ok(ToWorker::Lease { sent: lease.sent, lease: length(lease.lease_ms) }),
        Some(Server::Park(park)) => Ok(ToWorker::Park { lease: length(park.lease_ms) }),
        Some(Server::Acked(acked)) => acked_from_wire(acked),
        Some(Server::Drain(drain)) => {
            let within = drain.within_ms.map(|within| Millis(u64::try_from(within).unwrap_or(0)));
            Ok(ToWorker::Drain { within })
        }
        Some(Server::RestartHandler(restart)) => Ok(ToWorker::RestartHandler { handler: restart.handler }),
        None => Err(Invalid::new("events.kind", "is not an event that this worker knows")),
    }
}

fn length(ms: i64) -> Millis {
    Millis(u64::try_from(ms).unwrap_or(0))
}

fn welcome_from_wire(welcome: v1::Welcome) -> Result<Welcome, Invalid> {
    let verdict = |verdict: &v1::Verdict| {
        let execution = execution(&verdict.execution_id)?;
        Ok(Verdict { execution, keep: verdict.keep, log_entries: verdict.log_entries })
    };
    Ok(Welcome {
        lease: length(welcome.lease_ms),
        heartbeat: length(welcome.heartbeat_ms.max(1)),
        held: welcome.held.iter().map(verdict).collect::<Result<_, Invalid>>()?,
    })
}

fn assignment_from_wire(assignment: v1::Assignment) -> Result<Assignment, Invalid> {
    let spec = v1::JobSpec::decode(assignment.spec).map_err(|_| Invalid::new("run.spec", "is not a job's spec"))?;
    Ok(Assignment {
        job: JobId::from_slice(&assignment.job_id).ok_or_else(|| Invalid::new("run.job_id", "must be 16 bytes"))?,
        execution: execution(&assignment.execution_id)?,
        attempt: u32::try_from(assignment.attempt).unwrap_or(0),
        spec: Arc::new(spec_from_wire(spec)?),
        context: Context {
            data: assignment.data,
            input: assignment.input,
            dependencies: assignment.dependencies.into_iter().map(dependency_from_wire).collect::<Result<_, _>>()?,
            tick: (assignment.tick_ms > 0).then_some((assignment.schedule, Time(assignment.tick_ms))),
        },
    })
}

fn dependency_from_wire(wire: v1::DependencyResult) -> Result<DependencyResult, Invalid> {
    let job = wire.job_id.parse().map_err(|_| Invalid::new("run.dependencies.job_id", "is not a job id"))?;
    Ok(DependencyResult { job, name: wire.name, result: wire.result })
}

fn acked_from_wire(acked: v1::Acked) -> Result<ToWorker, Invalid> {
    let log = |ack: &v1::LogAck| Ok(LogAck { execution: execution(&ack.execution_id)?, entries: ack.entries });
    Ok(ToWorker::Acked {
        results: acked.results.iter().map(|id| execution(id)).collect::<Result<_, _>>()?,
        logs: acked.logs.iter().map(log).collect::<Result<_, Invalid>>()?,
    })
}
