//! `hodei run`: like `docker run`.

use crate::{
    args::RunArgs,
    client::Client,
    commands::{follow, job, spec},
    exit, output,
};
use anyhow::Result;
use hodei_api::v1;
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};

pub async fn run(mut client: Client, args: RunArgs, json: bool) -> Result<u8> {
    let attempts = (!args.detach).then_some(1);
    let spec = spec::build(args.job, client.is_local(), attempts)?;
    let id = job::queue(&mut client, spec).await?;
    if args.detach {
        print_id(&id, json);
        return Ok(exit::OK);
    }
    let watcher = tokio::spawn(cancel_on_signal(client.clone(), id.clone()));
    follow::logs(&mut client, &id, None, |entries| output::print_entries(entries, json)).await?;
    let job = follow::end(&mut client, &id).await?;
    watcher.abort();
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
        v1::JobState::Failed if by_itself => {}
        v1::JobState::Cancelled => output::note("hodei: the job was cancelled"),
        v1::JobState::TimedOut if error.is_empty() => output::note("hodei: the job waited in the queue for too long"),
        _ => output::note(&format!("hodei: {error}")),
    }
}

/// The first Ctrl-C (or SIGTERM) cancels the job, the second leaves it to itself.
async fn cancel_on_signal(client: Client, id: String) {
    let (Ok(mut interrupt), Ok(mut terminate)) = (signal(SignalKind::interrupt()), signal(SignalKind::terminate()))
    else {
        return;
    };
    tokio::select! { _ = interrupt.recv() => {}, _ = terminate.recv() => {} }
    output::note("hodei: cancelling the job; press Ctrl-C again to leave it to itself");
    let request = v1::CancelJobRequest { job_id: id.clone(), reason: "interrupted".to_owned() };
    if let Err(status) = client.jobs().cancel_job(request).await {
        output::note(&format!("hodei: cannot cancel: {}", status.message()));
    }
    tokio::select! { _ = interrupt.recv() => {}, _ = terminate.recv() => {} }
    output::note(&format!("hodei: job {id} goes on; 'hodei job get {id}' shows it"));
    std::process::exit(exit::CANCELLED.into());
}
