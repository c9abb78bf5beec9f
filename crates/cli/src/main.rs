//! `hodei`: arguments, output and wiring. What it does is in `commands`, one file each.

mod args;
mod client;
mod commands;
mod exit;
mod folder;
mod memory;
mod output;

use args::{Cli, Command, JobCommand, WebhookCommand, WorkerCommand};
use clap::{CommandFactory, Parser};
use client::Client;
use hodei::{
    config::{self, Config},
    values,
};
use std::process::ExitCode;

/// Jobs come and go by the ten thousand, in pieces of all sizes, and the system's allocator spends more and more time on
/// finding and joining what is free.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            _ = error.print();
            return ExitCode::from(if error.use_stderr() { exit::HODEI_FAILED } else { exit::OK });
        }
    };
    match cli.command {
        // A process of its own: no runtime, no threads, no configuration.
        Command::Guardian => {
            memory::let_go_of_code();
            finish(hodei_worker::guardian::main().map(|()| exit::OK).map_err(Into::into))
        }
        command => finish(start(cli.common, command)),
    }
}

fn finish(outcome: anyhow::Result<u8>) -> ExitCode {
    ExitCode::from(outcome.unwrap_or_else(|error| {
        output::complain(&error);
        exit::HODEI_FAILED
    }))
}

fn start(common: args::Common, command: Command) -> anyhow::Result<u8> {
    match command {
        Command::Config => {
            output::print(config::DEFAULTS);
            return Ok(exit::OK);
        }
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "hodei", &mut script);
            output::print(&String::from_utf8_lossy(&script));
            return Ok(exit::OK);
        }
        _ => {}
    }
    let config = Config::load(common.config.as_deref())?;
    // Half of the cores: the other half has the store, the worker and the jobs. A server's tasks hand things to each
    // other all the time, and on more threads than needed they wake each other instead of working.
    let threads = std::thread::available_parallelism().map_or(1, usize::from).div_ceil(2);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build()?;
    let code = runtime.block_on(dispatch(common, config, command));
    runtime.shutdown_background();
    code
}

async fn dispatch(common: args::Common, config: Config, command: Command) -> anyhow::Result<u8> {
    let json = common.json;
    if matches!(command, Command::Up(_) | Command::Server(_) | Command::Worker(WorkerCommand::Run(_))) {
        memory::rest_after_start();
    }
    match command {
        Command::Up(args) => return commands::serve::up(&common, &config, *args).await,
        Command::Server(args) => return commands::serve::server(&common, &config, args).await,
        Command::Worker(WorkerCommand::Run(args)) => return commands::worker::run(&common, &config, *args).await,
        Command::Webhook(WebhookCommand::Secret) => return commands::webhook::secret(&common, &config),
        _ => {}
    }
    let mut client = Client::connect(&common, &config).await?;
    match command {
        Command::Run(args) => commands::run::run(client, *args, json).await,
        Command::Logs(args) => commands::logs::logs(client, args, json).await,
        Command::Job(JobCommand::Submit(args)) => commands::job::submit(&mut client, *args, json).await,
        Command::Job(JobCommand::List { filter, limit }) => commands::job::list(&mut client, filter, limit, json).await,
        Command::Job(JobCommand::Get { id }) => commands::job::get(&mut client, id, json).await,
        Command::Job(JobCommand::Cancel { id: Some(id), reason, .. }) => {
            commands::job::cancel(&mut client, id, reason, json).await
        }
        Command::Job(JobCommand::Cancel { id: None, filter, reason }) => {
            commands::job::cancel_all(&mut client, filter, reason, json).await
        }
        Command::Job(JobCommand::Resume { id, payload }) => commands::job::resume(&mut client, id, payload, json).await,
        Command::Schedule(command) => commands::schedule::run(&mut client, command, json).await,
        Command::Queue(command) => commands::queue::run(&mut client, command, json).await,
        Command::Dlq(command) => commands::dlq::run(&mut client, command, json).await,
        Command::Events(args) => commands::events::run(&mut client, args, json).await,
        Command::Job(JobCommand::Explain { id }) => commands::scheduler::explain(&mut client, id, json).await,
        Command::Job(JobCommand::Assign { id, worker }) => {
            commands::scheduler::assign(&mut client, id, worker, json).await
        }
        Command::Scheduler(command) => commands::scheduler::run(&mut client, command, json).await,
        Command::Job(JobCommand::Retry { id }) => commands::job::retry(&mut client, id, json).await,
        Command::Job(JobCommand::Wait { id, timeout }) => commands::job::wait(client, id, timeout, json).await,
        Command::Worker(WorkerCommand::List) => commands::worker::list(&mut client, json).await,
        Command::Worker(WorkerCommand::Restart { id, handler }) => {
            commands::worker::restart(&mut client, id, handler, json).await
        }
        Command::Worker(WorkerCommand::Drain { id, deadline, reason }) => {
            commands::worker::drain(&mut client, id, deadline, reason, json).await
        }
        Command::Provider(command) => commands::provider::run(&mut client, command, json).await,
        Command::Pool(command) => commands::pool::run(&mut client, command, json).await,
        Command::Token(command) => commands::token::run(&mut client, command, json).await,
        Command::Audit(args) => commands::audit::run(&mut client, args, json).await,
        Command::Webhook(WebhookCommand::List { job, state, limit }) => {
            commands::webhook::list(&mut client, job, state, limit, json).await
        }
        Command::Webhook(WebhookCommand::Redeliver { id }) => commands::webhook::redeliver(&mut client, id, json).await,
        Command::Up(_)
        | Command::Server(_)
        | Command::Worker(WorkerCommand::Run(_))
        | Command::Webhook(WebhookCommand::Secret)
        | Command::Config
        | Command::Completions { .. }
        | Command::Guardian => Ok(exit::OK),
    }
}
