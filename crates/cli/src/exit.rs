//! Exit codes. Those of `hodei run` follow what `docker run`, `timeout` and shells have taught people.

use hodei_api::v1::{Execution, Job, JobState};

pub const OK: u8 = 0;
/// The job failed and left no code of its own.
const FAILED: u8 = 1;
const TIMED_OUT: u8 = 124;
/// Not the job but Hodei: no server, bad input, a lost worker.
pub const HODEI_FAILED: u8 = 125;
const NOT_STARTED: u8 = 126;
const NOT_FOUND: u8 = 127;
const SIGNALLED: u8 = 128;
pub const CANCELLED: u8 = 130;
/// Nobody reads our output any more: what SIGPIPE would have made of it.
pub const BROKEN_PIPE: u8 = 141;

/// What a finished job's end means as an exit code.
pub fn of(job: &Job) -> u8 {
    match job.state() {
        JobState::Succeeded => OK,
        JobState::TimedOut => TIMED_OUT,
        JobState::Cancelled => CANCELLED,
        _ if !job.rejected_because.is_empty() => HODEI_FAILED,
        _ => job.executions.last().map_or(HODEI_FAILED, of_execution),
    }
}

fn of_execution(execution: &Execution) -> u8 {
    match (execution.failure_kind.as_str(), execution.exit_code, execution.signal) {
        ("not_found", ..) => NOT_FOUND,
        ("not_started", ..) => NOT_STARTED,
        ("worker_lost", ..) => HODEI_FAILED,
        (_, Some(code), _) => u8::try_from(code).unwrap_or(FAILED),
        (_, _, Some(signal)) => SIGNALLED + u8::try_from(signal & 0x7f).unwrap_or(0),
        _ => FAILED,
    }
}
