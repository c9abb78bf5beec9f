//! `hodei run`: like `docker run`.

use crate::{
    args::RunArgs,
    client::{Client, may_pass},
    commands::{follow, job, spec},
    exit, output,
};
use anyhow::Result;
use hodei_api::v1;
use serde_json::json;
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// How long a job may wait before it is said why.
const WONDER: Duration = Duration::from_secs(2);
/// Between two looks whether the reason has changed.
const WONDER_AGAIN: Duration = Duration::from_secs(1);

pub async fn run(mut client: Client, args: RunArgs, json: bool) -> Result<u8> {
    let spec = spec::build(args.job, client.is_local(), Some(1))?;
    if args.detach {
        print_id(&job::queue(&mut client, spec).await?, json);
        return Ok(exit::OK);
    }
    // Before the job exists: a Ctrl-C at any time must reach it.
    let signals = Signals::listen()?;
    let id = job::queue(&mut client, spec).await?;
    let watcher = tokio::spawn(cancel_on_signal(signals, client.clone(), id.clone()));
    let waiting = tokio::spawn(say_why_it_waits(client.clone(), id.clone()));
    follow::logs(&mut client, &id, None, |entries| output::print_entries(entries, json)).await?;
    let job = follow::end(&mut client, &id).await?;
    watcher.abort();
    waiting.abort();
    if json {
        output::print_json(&json!({ "job": output::job_json(&job) }));
    } else {
        say_why(&job);
    }
    Ok(exit::of(&job))
}

pub fn print_id(id: &str, json: bool) {
    match json {
        true => output::print_json(&json!({ "job_id": id })),
        false => output::println(id),
    }
}

/// A job that ended by itself has said enough; one that was ended has not.
pub fn say_why(job: &v1::Job) {
    let last = job.executions.last();
    let error = last.map(|execution| execution.error.as_str()).unwrap_or_default();
    let by_itself = last.is_some_and(|execution| execution.failure_kind == "exit_code");
    match job.state() {
        v1::JobState::Succeeded => {}
        v1::JobState::Failed if !job.rejected_because.is_empty() => {
            output::note(&format!("hodei: the job was rejected: {}", job.rejected_because));
        }
        v1::JobState::Failed if by_itself => {}
        v1::JobState::Cancelled => output::note("hodei: the job was cancelled"),
        v1::JobState::TimedOut if error.is_empty() => output::note("hodei: the job waited in the queue for too long"),
        _ => output::note(&format!("hodei: {error}")),
    }
}

/// Ctrl-C and SIGTERM.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    fn listen() -> Result<Self> {
        Ok(Self { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }

    async fn next(&mut self) {
        tokio::select! { _ = self.interrupt.recv() => {}, _ = self.terminate.recv() => {} }
    }
}

/// The first Ctrl-C (or SIGTERM) cancels the job, the second leaves it to itself. Where nobody can be asked to cancel it,
/// there is nothing to wait for.
async fn cancel_on_signal(mut signals: Signals, client: Client, id: String) {
    signals.next().await;
    output::note("hodei: cancelling the job; press Ctrl-C again to leave it to itself");
    let request = v1::CancelJobRequest { job_id: id.clone(), reason: "interrupted".to_owned() };
    let asked = async {
        match client.jobs().cancel_job(request).await {
            Err(status) if may_pass(&status) => {
                output::note(&format!("hodei: the server cannot be asked to cancel job {id}, which may go on"));
                std::process::exit(exit::HODEI_FAILED.into());
            }
            Err(status) => output::note(&format!("hodei: cannot cancel: {}", status.message())),
            Ok(_) => {}
        }
        std::future::pending().await
    };
    tokio::select! { () = signals.next() => {}, () = asked => {} }
    output::note(&format!("hodei: job {id} goes on; 'hodei job get {id}' shows it"));
    std::process::exit(exit::CANCELLED.into());
}

/// A job that does not start at once leaves people wondering: says why, and again whenever the reason is another, until it
/// runs.
async fn say_why_it_waits(client: Client, id: String) {
    let mut said = String::new();
    let mut wait = WONDER;
    loop {
        tokio::time::sleep(wait).await;
        wait = WONDER_AGAIN;
        let answer = client.jobs().get_job(v1::GetJobRequest { job_id: id.clone() }).await;
        let Some(job) = answer.ok().and_then(|answer| answer.into_inner().job) else { continue };
        if job.state() == v1::JobState::Running {
            return;
        }
        if !job.waiting_reason.is_empty() && job.waiting_reason != said {
            output::note(&format!("hodei: the job waits: {}", job.waiting_reason));
            said = job.waiting_reason;
        }
    }
}
