//! The command line.

mod fleet;
mod placement;

pub use fleet::{PoolArgs, PoolCommand, PoolFields, ProviderArgs, ProviderCommand};
pub use placement::{RequirementArgs, SchedulerArgs, SchedulerCommand, TraitArgs};

use crate::{config::Handler, values};
use clap::{Args, FromArgMatches, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use hodei_core::{spec::Secret, time::Millis};
use std::{net::SocketAddr, path::PathBuf};

/// Runs work: takes jobs, decides when and where each one runs, streams what they print, and loses nothing.
#[derive(Debug, Parser)]
#[command(name = "hodei", version, about, max_term_width = 110, arg_required_else_help = true)]
pub struct Cli {
    #[command(flatten)]
    pub common: Common,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Clone, Debug, Args)]
pub struct Common {
    /// The server to talk to, such as http://127.0.0.1:7070, https://hodei.example:7070 or unix:/path/to/socket. Without one, the server of the data
    /// folder is used, and started in the background when there is none.
    #[arg(long, global = true, env = "HODEI_SERVER", value_name = "URL", help_heading = "Global options")]
    pub server: Option<String>,
    /// The API token that a server on the network asks for; the one of the data folder does not. Better in the environment,
    /// where others on this machine do not see it.
    #[arg(
        long,
        global = true,
        env = "HODEI_API_TOKEN",
        hide_env_values = true,
        value_name = "TOKEN",
        help_heading = "Global options"
    )]
    pub api_token: Option<String>,
    /// The authority that an https server's certificate must be from, in PEM; those that this machine trusts by default.
    #[arg(long, global = true, env = "HODEI_CA", value_name = "FILE", help_heading = "Global options")]
    pub ca: Option<PathBuf>,
    /// The data folder: database, socket, local worker.
    #[arg(long, global = true, env = "HODEI_DATA", value_name = "DIR", help_heading = "Global options")]
    pub data: Option<PathBuf>,
    /// A configuration file; 'hodei config' prints one with all defaults.
    #[arg(long, global = true, env = "HODEI_CONFIG", value_name = "FILE", help_heading = "Global options")]
    pub config: Option<PathBuf>,
    /// Print JSON for programs instead of text for people.
    #[arg(long, global = true, help_heading = "Global options")]
    pub json: bool,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a job, show what it prints, and exit with its exit code.
    Run(Box<RunArgs>),
    /// Submit, inspect and steer jobs.
    #[command(subcommand)]
    Job(JobCommand),
    /// Show what a job printed.
    Logs(LogsArgs),
    /// Jobs by the clock.
    #[command(subcommand)]
    Schedule(ScheduleCommand),
    /// Look at queues, pause them, limit them.
    #[command(subcommand)]
    Queue(QueueCommand),
    /// How the server decides where jobs run.
    #[command(subcommand)]
    Scheduler(SchedulerCommand),
    /// Jobs that failed for good: look, replay, discard.
    #[command(subcommand)]
    Dlq(DlqCommand),
    /// Follow what happens, as it happens.
    Events(EventsArgs),
    /// Start a server with a worker in one process.
    Up(Box<UpArgs>),
    /// Start a server.
    Server(ServerArgs),
    /// Run, list and drain workers.
    #[command(subcommand)]
    Worker(WorkerCommand),
    /// Those who make workers: list, add, check, steer.
    #[command(subcommand)]
    Provider(ProviderCommand),
    /// Kinds of workers that are made on demand, and how many stand ready.
    #[command(subcommand)]
    Pool(PoolCommand),
    /// Make, list and revoke credentials.
    #[command(subcommand)]
    Token(TokenCommand),
    /// Show who did what, newest first.
    Audit(AuditArgs),
    /// What was told to whom when jobs ended.
    #[command(subcommand)]
    Webhook(WebhookCommand),
    /// Print the default configuration with its documentation.
    Config,
    /// Print completions for a shell.
    Completions { shell: Shell },
    /// Watches over the processes of a worker. Started by the worker itself.
    #[command(hide = true)]
    Guardian,
}

#[derive(Debug, Args)]
pub struct SubmitArgs {
    /// Many jobs: a graph in YAML (*.yaml, *.yml), whose jobs depend on each other by their names and are stored all or
    /// none, or JSON lines, one job each; '-' reads JSON lines from standard input. Options of the job are then for all of
    /// them that do not say otherwise.
    #[arg(
        long,
        short,
        value_name = "FILE|-",
        conflicts_with_all = [
            "command", "script", "interpreter", "task", "payload", "name", "stdin", "job_data", "idempotency_key",
        ]
    )]
    pub file: Option<PathBuf>,
    #[command(flatten)]
    pub job: JobArgs,
}

#[derive(Debug, Args)]
pub struct RunArgs {
    /// Print the job's id and return at once.
    #[arg(long, short)]
    pub detach: bool,
    #[command(flatten)]
    pub job: JobArgs,
}

/// What makes up a job.
#[derive(Debug, Args)]
pub struct JobArgs {
    /// How people see it; the program's name by default.
    #[arg(long)]
    pub name: Option<String>,
    /// The queue that it waits in; 'default' by default.
    #[arg(long)]
    pub queue: Option<String>,
    /// What goes first; normal by default.
    #[arg(long, value_enum)]
    pub priority: Option<PriorityArg>,
    /// An environment variable of the job; NAME alone takes the value it has here.
    #[arg(long, short, value_name = "NAME[=VALUE]", value_parser = values::variable)]
    pub env: Vec<(String, String)>,
    /// Like --env, but masked in what the job prints and never shown.
    #[arg(long, value_name = "NAME[=VALUE]", value_parser = values::variable)]
    pub secret: Vec<(String, String)>,
    /// The job's working directory. By default the current one when the job runs on this machine's own server.
    #[arg(long, value_name = "DIR")]
    pub workdir: Option<PathBuf>,
    /// A file that the job reads as its standard input; '-' for ours.
    #[arg(long, value_name = "FILE|-")]
    pub stdin: Option<PathBuf>,
    /// How long one run may take.
    #[arg(long, value_name = "TIME", value_parser = values::length)]
    pub timeout: Option<Millis>,
    /// How long it may wait in the queue.
    #[arg(long, value_name = "TIME", value_parser = values::length)]
    pub queue_timeout: Option<Millis>,
    /// Between SIGTERM and SIGKILL when it is stopped.
    #[arg(long, value_name = "TIME", value_parser = values::length)]
    pub kill_grace: Option<Millis>,
    /// Not before this much time has passed.
    #[arg(long, value_name = "TIME", value_parser = values::length)]
    pub delay: Option<Millis>,
    /// How many runs it gets in all. `hodei run` makes one unless told otherwise; submitted jobs get 3.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i32).range(1..=10_000))]
    pub max_attempts: Option<i32>,
    /// The wait before the second run.
    #[arg(long, value_name = "TIME", value_parser = values::length)]
    pub retry_delay: Option<Millis>,
    /// How the wait grows from run to run.
    #[arg(long, value_enum)]
    pub backoff: Option<BackoffArg>,
    #[command(flatten, next_help_heading = "Worker options")]
    pub needs: RequirementArgs,
    /// Where to tell that it has ended: a POST that is signed as Standard Webhooks describes.
    #[arg(long, value_name = "URL")]
    pub webhook: Option<String>,
    /// The environment variable with the secret that its webhook is signed with (whsec_…); the server's own by default.
    #[arg(long, value_name = "NAME", requires = "webhook", value_parser = values::secret_variable)]
    pub webhook_secret: Option<Secret>,
    /// Run this script instead of a command; '-' reads it from standard input.
    #[arg(long, value_name = "FILE|-", conflicts_with = "command")]
    pub script: Option<PathBuf>,
    /// What runs the script.
    #[arg(long, value_name = "PROGRAM", requires = "script", conflicts_with = "command")]
    pub interpreter: Option<String>,
    /// Run a task of this type, such as email.send, on a worker that has a handler for it.
    #[arg(long, value_name = "TYPE", conflicts_with_all = ["command", "script", "stdin", "workdir"])]
    pub task: Option<String>,
    /// The task's payload as JSON; '-' reads it from standard input.
    #[arg(long, value_name = "JSON|-", requires = "task", conflicts_with_all = ["command", "script"])]
    pub payload: Option<String>,
    /// Text for people.
    #[arg(long, value_name = "TEXT")]
    pub description: Option<String>,
    /// A word to find it by; may be given several times.
    #[arg(long = "tag", value_name = "TAG")]
    pub tags: Vec<String>,
    /// JSON that its handler may rewrite.
    #[arg(long, value_name = "JSON")]
    pub job_data: Option<String>,
    /// Wait until this job has succeeded; may be given several times.
    #[arg(long, value_name = "ID")]
    pub depends_on: Vec<String>,
    /// What becomes of it when one that it depends on fails for good.
    #[arg(long, value_enum, value_name = "POLICY")]
    pub on_dependency_failure: Option<OnFailureArg>,
    /// A second job with the same key is not stored: the first one's id is printed.
    #[arg(long = "key", value_name = "KEY")]
    pub idempotency_key: Option<String>,
    /// At most LIMIT jobs with this key at one time, whatever their queues.
    #[arg(long, value_name = "KEY=LIMIT", value_parser = values::limit)]
    pub concurrency: Option<(String, i32)>,
    /// How long it may give no sign: no output, no progress, no heartbeat of its handler.
    #[arg(long, value_name = "TIME", value_parser = values::length)]
    pub heartbeat_timeout: Option<Millis>,
    /// The program and its arguments. No shell interprets them.
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}

impl JobArgs {
    pub fn runs_something(&self) -> bool {
        !self.command.is_empty() || self.script.is_some() || self.task.is_some()
    }

    /// Whether nothing was given.
    pub fn is_blank(&self) -> bool {
        let none = JobArgs::augment_args(clap::Command::new("none")).try_get_matches_from(["none"]);
        let blank = none.and_then(|none| JobArgs::from_arg_matches(&none));
        blank.is_ok_and(|blank| format!("{blank:?}") == format!("{self:?}"))
    }
}

#[derive(Debug, Subcommand)]
pub enum ScheduleCommand {
    /// Make a schedule: what to run, and when.
    Create(Box<ScheduleArgs>),
    /// Change a schedule; what is not named stays as it is, and so does what it has done.
    Update {
        /// Its new name.
        #[arg(long, value_name = "NAME")]
        rename: Option<String>,
        #[command(flatten)]
        args: Box<ScheduleArgs>,
    },
    /// List schedules by name.
    List,
    /// Show all that is known of a schedule.
    Get {
        #[arg(value_name = "NAME|ID")]
        schedule: String,
    },
    /// Delete a schedule; its jobs stay.
    Delete {
        #[arg(value_name = "NAME|ID")]
        schedule: String,
    },
    /// Let it make jobs, from now on.
    Enable {
        #[arg(value_name = "NAME|ID")]
        schedule: String,
    },
    /// Let it make no more jobs until it is enabled.
    Disable {
        #[arg(value_name = "NAME|ID")]
        schedule: String,
    },
    /// Make a job now, and print its id.
    Trigger {
        #[arg(value_name = "NAME|ID")]
        schedule: String,
    },
    /// Print when a schedule runs next, or would run.
    Preview {
        #[arg(value_name = "NAME|ID", required_unless_present_any = ["cron", "every"], conflicts_with_all = ["cron", "every", "tz"])]
        schedule: Option<String>,
        #[command(flatten)]
        timing: TimingArgs,
        #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(i32).range(1..=1000))]
        count: i32,
    },
    /// Make the jobs of a past range. A tick that has its job already gets no second one.
    Backfill {
        #[arg(value_name = "NAME|ID")]
        schedule: String,
        /// Ticks at or after this time, such as 2026-01-31, 2026-01-31T03:00 (in the schedule's zone) or
        /// 2026-01-31T03:00:00Z.
        #[arg(long, value_name = "WHEN")]
        from: String,
        /// Ticks before this time; now by default.
        #[arg(long, value_name = "WHEN")]
        to: Option<String>,
    },
}

#[derive(Debug, Args)]
pub struct ScheduleArgs {
    #[arg(value_name = "NAME")]
    pub schedule: String,
    #[command(flatten)]
    pub timing: TimingArgs,
    #[command(flatten)]
    pub policy: SchedulePolicyArgs,
    /// It makes nothing until it is enabled.
    #[arg(long)]
    pub disabled: bool,
    #[command(flatten)]
    pub job: JobArgs,
}

#[derive(Debug, Args)]
pub struct TimingArgs {
    /// Five fields, six with seconds in front, or @hourly, @daily, @weekly, @monthly, @yearly.
    #[arg(long, value_name = "EXPRESSION", conflicts_with = "every")]
    pub cron: Option<String>,
    /// The time zone of the cron expression, such as Europe/Madrid; UTC by default.
    #[arg(long, value_name = "ZONE", conflicts_with = "every")]
    pub tz: Option<String>,
    /// Instead of cron: in steps of this length, from the making of the schedule on.
    #[arg(long, value_name = "TIME", value_parser = values::length)]
    pub every: Option<Millis>,
}

#[derive(Debug, Args)]
pub struct SchedulePolicyArgs {
    /// What happens at a tick while jobs of earlier ticks are not finished. By default they may overlap.
    #[arg(long, value_enum, value_name = "POLICY")]
    pub overlap: Option<OverlapArg>,
    /// What happens with ticks that passed while no server ran: skip, fire-once (the default) or catch-up=N.
    #[arg(long, value_name = "POLICY", value_parser = values::misfire)]
    pub misfire: Option<(hodei_api::v1::Misfire, i32)>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum OverlapArg {
    Allow,
    Skip,
    /// The earlier jobs are cancelled.
    Replace,
    /// One tick waits until they are finished.
    QueueOne,
}

impl From<OverlapArg> for hodei_api::v1::Overlap {
    fn from(overlap: OverlapArg) -> Self {
        match overlap {
            OverlapArg::Allow => Self::Allow,
            OverlapArg::Skip => Self::Skip,
            OverlapArg::Replace => Self::Replace,
            OverlapArg::QueueOne => Self::QueueOne,
        }
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum PriorityArg {
    Critical,
    High,
    Normal,
    Low,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum OnFailureArg {
    Cancel,
    Wait,
    Run,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum BackoffArg {
    Fixed,
    Exponential,
    Quadratic,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum StateArg {
    Delayed,
    Pending,
    Scheduled,
    Running,
    Succeeded,
    Failed,
    TimedOut,
    Cancelled,
    Waiting,
    Blocked,
}

#[derive(Debug, Subcommand)]
pub enum JobCommand {
    /// Store a job, or all of a file, and print ids.
    Submit(Box<SubmitArgs>),
    /// List jobs, newest first.
    List {
        #[command(flatten)]
        filter: JobFilterArgs,
        #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
        limit: u32,
    },
    /// Show all that is known of a job.
    Get { id: String },
    /// Cancel a job that has not ended, or all that match.
    Cancel {
        #[arg(required_unless_present = "filter", conflicts_with = "filter")]
        id: Option<String>,
        #[command(flatten)]
        filter: JobFilterArgs,
        #[arg(long, default_value = "")]
        reason: String,
    },
    /// Give a blocked job what it waits for.
    Resume {
        id: String,
        /// JSON that its next run finds; '-' reads it from standard input.
        #[arg(long, value_name = "JSON|-")]
        payload: Option<String>,
    },
    /// Run a failed, timed out or cancelled job again.
    Retry { id: String },
    /// Show where a job runs or why it waits: every worker with its score, or what keeps the job off it.
    Explain { id: String },
    /// Give a waiting job to a worker, ahead of its turn.
    Assign {
        id: String,
        #[arg(value_name = "WORKER")]
        worker: String,
    },
    /// Wait until a job has ended, and exit as 'hodei run' would.
    Wait {
        id: String,
        /// Give up waiting after this long (exit code 125).
        #[arg(long, value_name = "TIME", value_parser = values::length)]
        timeout: Option<Millis>,
    },
}

/// Which jobs; all that is given must match.
#[derive(Debug, Args)]
#[group(id = "filter", multiple = true)]
pub struct JobFilterArgs {
    /// Only jobs in this state; may be given several times.
    #[arg(long, value_enum)]
    pub state: Vec<StateArg>,
    #[arg(long)]
    pub queue: Option<String>,
    #[arg(long, value_name = "TYPE")]
    pub task_type: Option<String>,
    #[arg(long)]
    pub tag: Option<String>,
    #[arg(long)]
    pub name: Option<String>,
    /// Only those that this job made.
    #[arg(long, value_name = "ID")]
    pub parent: Option<String>,
    /// Only those that this schedule made.
    #[arg(long, value_name = "ID")]
    pub schedule: Option<String>,
    /// Only those made in this last while.
    #[arg(long, value_name = "TIME", value_parser = values::length)]
    pub since: Option<Millis>,
}

#[derive(Debug, Subcommand)]
pub enum QueueCommand {
    /// All queues with the numbers of their jobs.
    List,
    /// One queue.
    Get { name: String },
    /// Start nothing more of it; what runs goes on.
    Pause { name: String },
    /// Go on.
    Resume { name: String },
    /// Change limits; 'none' takes one away.
    Set {
        name: String,
        #[command(flatten)]
        settings: QueueSettingsArgs,
    },
}

#[derive(Debug, Args)]
#[group(required = true, multiple = true)]
pub struct QueueSettingsArgs {
    /// Starts in a span of time, such as 100/1m.
    #[arg(long, value_name = "N/TIME", value_parser = values::optional_rate)]
    pub rate: Option<values::Setting<values::Rate>>,
    /// Jobs at one time.
    #[arg(long, value_name = "N", value_parser = values::optional_count)]
    pub concurrency: Option<values::Setting<i32>>,
    /// A job that has waited this long counts as one priority higher.
    #[arg(long, value_name = "TIME", value_parser = values::optional_length)]
    pub ageing: Option<values::Setting<Millis>>,
    /// Jobs that have not ended; while there are as many, further ones are refused.
    #[arg(long, value_name = "N", value_parser = values::optional_count)]
    pub max_jobs: Option<values::Setting<i32>>,
}

#[derive(Debug, Subcommand)]
pub enum DlqCommand {
    /// Newest first.
    List {
        #[command(flatten)]
        filter: DeadLetterFilterArgs,
        #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
        limit: u32,
    },
    /// All that is known of one.
    Get { id: String },
    /// The errors, the most frequent first.
    Stats {
        #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1000))]
        limit: u32,
    },
    /// Run them again, with all their attempts before them.
    Replay(WhichArgs),
    /// Take them off the list; the jobs stay as they are.
    Discard(WhichArgs),
}

#[derive(Debug, Args)]
pub struct WhichArgs {
    /// These jobs.
    #[arg(value_name = "ID", conflicts_with_all = ["dead", "all"])]
    pub ids: Vec<String>,
    #[command(flatten)]
    pub filter: DeadLetterFilterArgs,
    /// All there are.
    #[arg(long, conflicts_with = "dead")]
    pub all: bool,
}

/// Which dead letters; all that is given must match.
#[derive(Debug, Args)]
#[group(id = "dead", multiple = true)]
pub struct DeadLetterFilterArgs {
    #[arg(long)]
    pub queue: Option<String>,
    #[arg(long, value_name = "TYPE")]
    pub task_type: Option<String>,
    /// Such as exit_code, error or run_timeout.
    #[arg(long)]
    pub kind: Option<String>,
    /// A group of like errors, as 'hodei dlq stats' names it.
    #[arg(long = "group", value_name = "GROUP")]
    pub fingerprint: Option<String>,
    /// Failed in this last while.
    #[arg(long, value_name = "TIME", value_parser = values::length)]
    pub since: Option<Millis>,
    /// Failed before this last while.
    #[arg(long, value_name = "TIME", value_parser = values::length)]
    pub until: Option<Millis>,
}

#[derive(Debug, Args)]
pub struct EventsArgs {
    /// Go on after this event; from now when it is not given.
    #[arg(long, value_name = "EVENT")]
    pub after: Option<String>,
    /// Only of this job.
    #[arg(long, value_name = "ID")]
    pub job: Option<String>,
    /// Only of jobs of this queue, and of the queue itself.
    #[arg(long)]
    pub queue: Option<String>,
    /// Only of these kinds: job, worker, schedule, queue, supervision, provider, template.
    #[arg(long)]
    pub kind: Vec<String>,
    /// End after so many.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
}

#[derive(Debug, Args)]
pub struct LogsArgs {
    /// The job's id.
    pub id: String,
    /// Go on as the job prints, until it ends.
    #[arg(long, short)]
    pub follow: bool,
    /// Begin with the last N lines.
    #[arg(long, value_name = "N")]
    pub tail: Option<u64>,
}

#[derive(Debug, Args)]
pub struct ServerArgs {
    /// Where jobs are kept: a path for SQLite, or postgres://user@host/database.
    #[arg(long, env = "HODEI_DATABASE_URL", value_name = "PATH|URL")]
    pub database_url: Option<String>,
    /// The address for gRPC. One that other machines can reach needs TLS.
    #[arg(long, value_name = "ADDR")]
    pub grpc: Option<SocketAddr>,
    /// The address for HTTP: the REST API (/api/v1, explained at /api/v1/docs), health and readiness. One that other machines can reach needs TLS.
    #[arg(long, value_name = "ADDR")]
    pub http: Option<SocketAddr>,
    /// The certificate of both addresses in PEM, with those that vouch for it.
    #[arg(long, value_name = "FILE", requires = "tls_key", conflicts_with = "tls_self_signed")]
    pub tls_cert: Option<PathBuf>,
    /// The key of the certificate.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// Make certificates by an authority of its own in the data folder; clients are told to trust it with --ca.
    #[arg(long)]
    pub tls_self_signed: bool,
    /// A name or address of this server for the certificates that it makes, besides those it knows; may be given several
    /// times.
    #[arg(long, value_name = "NAME")]
    pub tls_name: Vec<String>,
    /// Take workers over the network only with a certificate from an authority in this file, in PEM. Needs TLS.
    #[arg(long, value_name = "FILE")]
    pub tls_client_ca: Option<PathBuf>,
    /// Serve other machines without TLS. Tokens and jobs can then be read on the way.
    #[arg(long)]
    pub insecure: bool,
    /// How long a worker may go on without hearing from the server.
    #[arg(long, value_name = "TIME", value_parser = values::length)]
    pub lease: Option<Millis>,
    /// How much longer the server waits before it gives the jobs to others.
    #[arg(long, value_name = "TIME", value_parser = values::length)]
    pub lease_grace: Option<Millis>,
}

#[derive(Debug, Args)]
pub struct UpArgs {
    #[command(flatten)]
    pub server: ServerArgs,
    #[command(flatten)]
    pub traits: TraitArgs,
    /// What runs tasks of a type: TYPE=COMMAND (once for each), TYPE=subprocess:COMMAND (lives on;
    /// subprocess/SLA:COMMAND with an SLA other than normal) or TYPE=http://ADDRESS. May be given several times, and adds to those of the configuration.
    #[arg(long, value_name = "TYPE=WHAT", value_parser = Handler::parse)]
    pub handler: Vec<Handler>,
    /// Serve the socket alone and leave when there is nothing to do.
    #[arg(long, hide = true)]
    pub background: bool,
}

#[derive(Debug, Subcommand)]
pub enum WorkerCommand {
    /// Take work from a server.
    Run(Box<WorkerArgs>),
    /// List the workers that a server knows.
    List,
    /// Let a worker finish what it runs, give it nothing new, and have it leave.
    Drain {
        id: String,
        /// What still runs after this long is given back to the queue.
        #[arg(long, value_name = "TIME", value_parser = values::length)]
        deadline: Option<Millis>,
        /// For people.
        #[arg(long, value_name = "TEXT", default_value = "")]
        reason: String,
    },
    /// Have the processes of a handler started anew: what was given up is tried again, and what runs is replaced once it has
    /// finished what it holds.
    Restart {
        id: String,
        /// The handler, as 'hodei worker list' names it.
        #[arg(long, value_name = "NAME")]
        handler: String,
    },
}

#[derive(Debug, Args)]
pub struct WorkerArgs {
    /// A one-time token from 'hodei token create worker'. A worker that registered before needs none.
    #[arg(long, env = "HODEI_TOKEN", hide_env_values = true)]
    pub token: Option<String>,
    /// The id that the token was made for; the token knows it too.
    #[arg(long, env = "HODEI_WORKER_ID", value_name = "ID")]
    pub worker_id: Option<hodei_core::id::WorkerId>,
    /// Its certificate in PEM, with those that vouch for it, for an https server that takes workers only with one. Read anew for
    /// every connection.
    #[arg(long, env = "HODEI_TLS_CERT", value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// The key of the certificate.
    #[arg(long, env = "HODEI_TLS_KEY", value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// How people see it; the host's name by default.
    #[arg(long)]
    pub name: Option<String>,
    #[command(flatten)]
    pub traits: TraitArgs,
    /// What runs tasks of a type: TYPE=COMMAND (once for each), TYPE=subprocess:COMMAND (lives on;
    /// subprocess/SLA:COMMAND with an SLA other than normal) or TYPE=http://ADDRESS. May be given several times, and adds to those of the configuration.
    #[arg(long, value_name = "TYPE=WHAT", value_parser = Handler::parse)]
    pub handler: Vec<Handler>,
}

#[derive(Debug, Subcommand)]
pub enum WebhookCommand {
    /// List deliveries, newest first.
    List {
        /// Only of this job.
        #[arg(long, value_name = "ID")]
        job: Option<String>,
        /// Only in this state.
        #[arg(long, value_enum)]
        state: Option<DeliveryStateArg>,
        #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
        limit: u32,
    },
    /// Send a delivery again now, whatever became of it.
    Redeliver { id: String },
    /// Show the secret that the server of the data folder signs with.
    Secret,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum DeliveryStateArg {
    Pending,
    Delivered,
    Failed,
}

#[derive(Debug, Subcommand)]
pub enum TokenCommand {
    /// Make a token.
    #[command(subcommand)]
    Create(TokenKind),
    /// List the API tokens.
    List,
    /// End an API token at once.
    Revoke { id: String },
}

#[derive(Debug, Args)]
pub struct AuditArgs {
    /// How many lines.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub limit: u32,
    /// Only what this one did: the name of a token, 'socket', 'anonymous' or 'worker ID'.
    #[arg(long)]
    pub actor: Option<String>,
    /// Only this, such as jobs.cancel.
    #[arg(long)]
    pub action: Option<String>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum RoleArg {
    /// Everything, tokens and the audit log too.
    Admin,
    /// Queues, schedules, workers, dead letters, and what submitters may.
    Operator,
    /// Submits jobs, cancels, retries and resumes them, and what viewers may.
    Submitter,
    /// Looks.
    Viewer,
}

#[derive(Debug, Subcommand)]
pub enum TokenKind {
    /// A one-time token with which one worker can register.
    Worker {
        /// The worker's id; a new one is made by default.
        #[arg(long, value_name = "ID")]
        worker_id: Option<hodei_core::id::WorkerId>,
        /// How long it is good for; five minutes by default.
        #[arg(long, value_name = "TIME", value_parser = values::length)]
        ttl: Option<Millis>,
    },
    /// A token for people and programs that call the server over the network.
    Api {
        /// What its holder may do.
        #[arg(long, value_enum)]
        role: RoleArg,
        /// What the audit log calls its holder; made up by default.
        #[arg(long, default_value = "")]
        name: String,
        /// How long it is good for, such as 90d; for ever by default.
        #[arg(long, value_name = "TIME", value_parser = values::length)]
        ttl: Option<Millis>,
    },
}
