//! What jobs ask of workers, what workers are, and how the one is matched with the other.

use crate::values;
use clap::{Args, Subcommand};
use hodei_core::{
    requirements::{Capability, Constraints, Expression, Isolation, Requirements, Taint, Toleration},
    worker::Sla,
};
use std::sync::Arc;

/// What a job asks of the worker that runs it.
#[derive(Debug, Args)]
pub struct RequirementArgs {
    /// Cores to reserve, such as 0.5 or 2.
    #[arg(long, value_name = "CORES", value_parser = values::cores)]
    pub cpu: Option<values::Cores>,
    /// Memory to reserve, such as 512MiB.
    #[arg(long, value_name = "SIZE", value_parser = values::size)]
    pub memory: Option<u64>,
    /// Disk to reserve, such as 10GB.
    #[arg(long, value_name = "SIZE", value_parser = values::size)]
    pub disk: Option<u64>,
    /// GPUs to reserve.
    #[arg(long, value_name = "N")]
    pub gpus: Option<u32>,
    /// At least this much between the job and the rest of the machine: process, container or vm.
    #[arg(long, value_name = "KIND", value_parser = values::isolation)]
    pub isolation: Option<Isolation>,
    /// Something that the worker must be able to do, such as cuda or cuda:version=12; may be given several times.
    #[arg(long, value_name = "NAME[:K=V,...]", value_parser = values::capability)]
    pub capability: Vec<Capability>,
    /// The image that its worker must run in.
    #[arg(long, value_name = "IMAGE")]
    pub image: Option<String>,
    /// A condition on the labels of the worker: 'disk in (ssd,nvme)', 'disk notin (hdd)', disk=ssd, disk or !disk. May be
    /// given several times; all must hold.
    #[arg(long, value_name = "CONDITION", value_parser = values::selector)]
    pub select: Vec<Expression>,
    /// A taint that does not keep it off a worker; * for any. May be given several times.
    #[arg(long, value_name = "KEY[=VALUE]", value_parser = values::toleration)]
    pub tolerate: Vec<Toleration>,
    /// The zone that it would rather run in.
    #[arg(long, value_name = "ZONE")]
    pub zone: Option<String>,
    /// The zone is a must.
    #[arg(long, requires = "zone")]
    pub require_zone: bool,
    /// The provider that it would rather have its worker from.
    #[arg(long, value_name = "NAME")]
    pub provider: Option<String>,
}

impl From<RequirementArgs> for Requirements {
    fn from(args: RequirementArgs) -> Self {
        let constraints = Constraints {
            isolation: args.isolation.unwrap_or_default(),
            capabilities: args.capability,
            image: args.image.map(Into::into),
            selector: args.select,
            tolerations: args.tolerate,
            zone: args.zone.map(Into::into),
            zone_required: args.require_zone,
            provider: args.provider.map(Into::into),
        };
        Self {
            cpu_millis: args.cpu.map_or(0, |cores| cores.0),
            memory_bytes: args.memory.unwrap_or_default(),
            disk_bytes: args.disk.unwrap_or_default(),
            gpus: args.gpus.unwrap_or_default(),
            constraints: (constraints != Constraints::default()).then(|| Arc::new(constraints)),
        }
    }
}

/// What a worker has and is.
#[derive(Clone, Debug, Default, Args)]
pub struct TraitArgs {
    /// Jobs at once; one for each core by default.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub slots: Option<u32>,
    /// Cores that jobs may reserve; what the machine has by default.
    #[arg(long, value_name = "CORES", value_parser = values::cores)]
    pub cpu: Option<values::Cores>,
    /// Memory that jobs may reserve; what the machine has by default.
    #[arg(long, value_name = "SIZE", value_parser = values::size)]
    pub memory: Option<u64>,
    /// Disk that jobs may reserve; what is free in the data folder by default.
    #[arg(long, value_name = "SIZE", value_parser = values::size)]
    pub disk: Option<u64>,
    /// GPUs that jobs may reserve.
    #[arg(long, value_name = "N")]
    pub gpus: Option<u32>,
    /// A label that jobs can select it by; may be given several times, and adds to those of the configuration.
    #[arg(long, value_name = "KEY=VALUE", value_parser = values::label)]
    pub label: Vec<(Arc<str>, Arc<str>)>,
    /// Keeps jobs off that do not tolerate it. The effect is NoSchedule by default, or PreferNoSchedule. May be given
    /// several times, and adds to those of the configuration.
    #[arg(long, value_name = "KEY[=VALUE][:EFFECT]", value_parser = values::taint)]
    pub taint: Vec<Taint>,
    /// Something that it can do, such as cuda:version=12; may be given several times, and adds to those of the
    /// configuration.
    #[arg(long, value_name = "NAME[:K=V,...]", value_parser = values::capability)]
    pub capability: Vec<Capability>,
    /// Where it is.
    #[arg(long, value_name = "ZONE")]
    pub zone: Option<String>,
    /// How well its jobs are kept from the rest of the machine: process, container or vm.
    #[arg(long, value_name = "KIND", value_parser = values::isolation)]
    pub isolation: Option<Isolation>,
    /// The image that it runs in.
    #[arg(long, value_name = "IMAGE")]
    pub image: Option<String>,
    /// How much depends on it: critical, high, normal or best-effort.
    #[arg(long, value_name = "CLASS")]
    pub sla: Option<Sla>,
    /// Let jobs find the environment of this worker, but for what begins with HODEI_. For workers in an image of their own.
    #[arg(long)]
    pub pass_environment: bool,
}

#[derive(Debug, Subcommand)]
pub enum SchedulerCommand {
    /// How the server decides where jobs run.
    Show,
    /// Change it; what is not named stays as it is.
    Set(SchedulerArgs),
}

#[derive(Debug, Args)]
#[group(required = true, multiple = true)]
pub struct SchedulerArgs {
    /// smart, round_robin, least_connections, resource_priority or affinity.
    #[arg(long)]
    pub strategy: Option<String>,
    /// Workers with a lower score, out of 100, are passed over.
    #[arg(long, value_name = "POINTS")]
    pub threshold: Option<i32>,
    /// open, or closed: a job that nothing present can run is rejected.
    #[arg(long)]
    pub fleet: Option<String>,
    /// Who makes workers: fastest_startup, lowest_cost, most_capacity, round_robin or healthiest.
    #[arg(long)]
    pub provider_strategy: Option<String>,
}
