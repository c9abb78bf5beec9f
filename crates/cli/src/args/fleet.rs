//! Providers and pools.

use crate::values::{self, Cores};
use clap::{Args, Subcommand, ValueEnum};
use hodei_core::{
    requirements::{Capability, Taint},
    time::Millis,
};
use std::path::PathBuf;

#[derive(Debug, Subcommand)]
pub enum ProviderCommand {
    /// List those who make workers, and how they fare.
    List,
    /// Add one: from now on it makes workers for jobs that fit none.
    Add(ProviderArgs),
    /// Change one, or add it: it becomes what is written here, and its workers stay.
    Set(ProviderArgs),
    /// Ask one how it is, now.
    Health { name: String },
    /// Let it make workers again.
    Enable { name: String },
    /// Let it make no more workers; it keeps those that it has.
    Disable { name: String },
    /// Let its workers finish what they run, and do without it.
    Remove { name: String },
}

#[derive(Debug, Args)]
pub struct ProviderArgs {
    pub name: String,
    /// What it makes: processes of the server's machine, or containers of a Docker engine.
    #[arg(long, value_enum)]
    pub kind: KindArg,
    /// Workers at one time.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(i32).range(1..=100_000))]
    pub cap: i32,
    /// What a worker costs by the hour, in thousandths of whatever you count in.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(i64).range(0..))]
    pub cost: i64,
    /// What its kind has to know, such as host=unix:///var/run/docker.sock; may be given several times.
    #[arg(long = "set", value_name = "NAME=VALUE", value_parser = values::pair)]
    pub settings: Vec<(String, String)>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum KindArg {
    Process,
    Docker,
}

#[derive(Debug, Subcommand)]
pub enum PoolCommand {
    /// List the kinds of workers that can be made, and how many of each there are.
    List,
    /// Show all that is known of one.
    Show { name: String },
    /// Make one, or change it; what is not named stays as it is, and so do workers that exist.
    Set(Box<PoolArgs>),
    /// Make no more of its workers.
    Remove { name: String },
    /// Try again after its workers have failed for good.
    Restart { name: String },
}

#[derive(Debug, Args)]
pub struct PoolArgs {
    pub name: String,
    /// The whole of it, in YAML or JSON, in place of flags.
    #[arg(long, short, value_name = "FILE")]
    pub file: Option<PathBuf>,
    #[command(flatten)]
    pub fields: PoolFields,
}

/// What makes up a worker template.
#[derive(Debug, Args)]
#[group(id = "fields", multiple = true, conflicts_with = "file")]
pub struct PoolFields {
    /// A provider that may make it; any that can by default. May be given several times.
    #[arg(long, value_name = "NAME")]
    pub provider: Vec<String>,
    #[arg(long)]
    pub image: Option<String>,
    /// Jobs at once in one worker; one by default.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i32).range(1..=100_000))]
    pub slots: Option<i32>,
    /// Cores of one worker.
    #[arg(long, value_name = "CORES", value_parser = values::cores)]
    pub cpu: Option<Cores>,
    /// Memory of one worker.
    #[arg(long, value_name = "SIZE", value_parser = values::size)]
    pub memory: Option<u64>,
    /// Disk of one worker.
    #[arg(long, value_name = "SIZE", value_parser = values::size)]
    pub disk: Option<u64>,
    /// GPUs of one worker.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i32).range(0..=1000))]
    pub gpus: Option<i32>,
    #[arg(long, value_name = "KEY=VALUE", value_parser = values::pair)]
    pub label: Vec<(String, String)>,
    /// Keeps off jobs that do not tolerate it.
    #[arg(long, value_name = "KEY[=VALUE][:EFFECT]", value_parser = values::taint)]
    pub taint: Vec<Taint>,
    /// Something that its workers can do.
    #[arg(long, value_name = "NAME[:KEY=VALUE,...]", value_parser = values::capability)]
    pub capability: Vec<Capability>,
    #[arg(long)]
    pub zone: Option<String>,
    /// A variable of its workers' environment, for their jobs.
    #[arg(long, short, value_name = "NAME[=VALUE]", value_parser = values::variable)]
    pub env: Vec<(String, String)>,
    /// What runs tasks of a type, as for 'hodei worker run'.
    #[arg(long, value_name = "TYPE=WHAT", value_parser = values::pair)]
    pub handler: Vec<(String, String)>,
    /// A folder of the provider's machine that its workers see, read-only.
    #[arg(long, value_name = "SOURCE:TARGET", value_parser = values::mount)]
    pub mount: Vec<(String, String)>,
    #[arg(long, value_name = "NAME")]
    pub network: Option<String>,
    /// One job a worker, or as many as come before it has nothing to do.
    #[arg(long, value_enum)]
    pub reuse: Option<ReuseArg>,
    /// How many stand ready with nothing to do.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i32).range(0..=100_000))]
    pub warm: Option<i32>,
    /// A worker with nothing to do goes after this long; 60s by default.
    #[arg(long, value_name = "TIME", value_parser = values::length)]
    pub idle_timeout: Option<Millis>,
    /// After this long a worker takes nothing new and goes; 'none' takes the limit away.
    #[arg(long, value_name = "TIME", value_parser = values::optional_length)]
    pub max_lifetime: Option<values::Setting<Millis>>,
    /// How soon a worker that fails is replaced, and how often.
    #[arg(long, value_enum)]
    pub sla: Option<SlaArg>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum ReuseArg {
    Never,
    Idle,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum SlaArg {
    Critical,
    High,
    Normal,
    BestEffort,
}
