//! Which faults happen when: a seed decides all of it before the first one.

use crate::random::Random;
use std::fmt;

pub const WORKERS: usize = 3;

/// What is harmed. No two harms are done to one target at a time; harms to different ones overlap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    Server,
    Worker(usize),
    /// Between a worker and the server.
    Link(usize),
    AllLinks,
    /// Between the checker and the server.
    ClientLink,
    Postgres,
    ServerDisk,
    WorkerDisk,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Harm {
    /// kill -9; it comes back after a while.
    Kill,
    /// kill -9 of the main process alone.
    KillMain,
    /// SIGSTOP, then SIGCONT.
    Freeze,
    /// Ended in order; it comes back after a while.
    Stop,
    /// A worker gives back what it runs and leaves; it comes back after a while.
    GiveBack,
    /// kill -9 of the guardian beside a worker's agent.
    KillGuardian,
    /// Connections are closed and refused.
    Cut,
    /// Bytes wait in both directions.
    Hold,
    /// Bytes towards the server are lost.
    LoseUp,
    /// Bytes from the server are lost.
    LoseDown,
    Slow,
    Fill,
}

/// A harm that lasts, or an absence, of `ms` milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Planned {
    pub at_ms: u64,
    pub target: Target,
    pub harm: Harm,
    pub ms: u64,
}

/// What is there to be harmed.
#[derive(Clone, Copy, Debug)]
pub struct Stage {
    pub postgres: bool,
    pub disks: bool,
}

/// How much longer than planned a target is left alone: it has to come back first.
const RECOVERY_MS: u64 = 2500;

impl Target {
    fn conflicts(self, other: Target) -> bool {
        use Target::{AllLinks, Link};
        self == other || matches!((self, other), (AllLinks, Link(_)) | (Link(_), AllLinks))
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Server => f.write_str("the server"),
            Target::Worker(n) => write!(f, "worker {n}"),
            Target::Link(n) => write!(f, "the link of worker {n}"),
            Target::AllLinks => f.write_str("the links of all workers"),
            Target::ClientLink => f.write_str("the client's link"),
            Target::Postgres => f.write_str("PostgreSQL"),
            Target::ServerDisk => f.write_str("the server's disk"),
            Target::WorkerDisk => f.write_str("a worker's disk"),
        }
    }
}

impl Planned {
    /// The same for all targets of a kind, for counting.
    pub fn kind(&self) -> String {
        let target = match self.target {
            Target::Worker(_) => "worker",
            Target::Link(_) => "link of a worker",
            Target::AllLinks => "links of all workers",
            Target::Server => "server",
            Target::ClientLink => "link of the client",
            Target::Postgres => "PostgreSQL",
            Target::ServerDisk => "disk of the server",
            Target::WorkerDisk => "disk of a worker",
        };
        format!("{target}: {}", self.harm.name())
    }
}

impl Harm {
    fn name(self) -> &'static str {
        match self {
            Harm::Kill => "killed",
            Harm::KillMain => "main process killed",
            Harm::Freeze => "frozen",
            Harm::Stop => "stopped in order",
            Harm::GiveBack => "gave back its jobs",
            Harm::KillGuardian => "guardian killed",
            Harm::Cut => "cut",
            Harm::Hold => "held up",
            Harm::LoseUp => "deaf towards the server",
            Harm::LoseDown => "deaf from the server",
            Harm::Slow => "slow",
            Harm::Fill => "full",
        }
    }
}

impl fmt::Display for Planned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.ms as f64 / 1000.0;
        write!(f, "{} {} for {seconds:.1} s", self.target, self.harm.name())
    }
}

/// The faults of a run of this length.
pub fn plan(seed: u64, length_ms: u64, stage: Stage) -> Vec<Planned> {
    let mut random = Random::apart(seed, 1);
    let mut plan: Vec<Planned> = Vec::new();
    let mut at_ms = random.within(500..1500);
    while at_ms < length_ms {
        let (target, harm) = choose(&mut random, stage);
        let ms = duration(&mut random, target, harm);
        let busy = |past: &&Planned| past.target.conflicts(target) && at_ms < past.at_ms + past.ms + RECOVERY_MS;
        // One that cannot be now is left out.
        if !plan.iter().any(|past| busy(&past)) {
            plan.push(Planned { at_ms, target, harm, ms });
            if matches!(target, Target::ServerDisk | Target::Postgres) && random.chance(60) {
                at_ms += random.within(20..ms.clamp(100, 1500));
                plan.extend(kill_server(&mut random, at_ms, &plan));
            }
            at_ms += random.within(200..2600);
        }
        at_ms += 50;
    }
    plan
}

/// A server that dies while its store is away has decided things that are not stored: what it told anybody of them is
/// what would be lost.
fn kill_server(random: &mut Random, at_ms: u64, plan: &[Planned]) -> Option<Planned> {
    let (target, harm) = (Target::Server, Harm::Kill);
    let free = plan.iter().all(|past| past.target != target || past.at_ms + past.ms + RECOVERY_MS <= at_ms);
    free.then(|| Planned { at_ms, target, harm, ms: duration(random, target, harm) })
}

fn choose(random: &mut Random, stage: Stage) -> (Target, Harm) {
    use Harm::*;
    let worker = random.within(0..WORKERS as u64) as usize;
    let mut choices = vec![
        (8, Target::Server, Kill),
        (4, Target::Server, Freeze),
        (3, Target::Server, Stop),
        (10, Target::Worker(worker), Kill),
        (12, Target::Worker(worker), Freeze),
        (3, Target::Worker(worker), GiveBack),
        (4, Target::Worker(worker), KillGuardian),
        (6, Target::Link(worker), Cut),
        (8, Target::Link(worker), Hold),
        (6, Target::Link(worker), LoseUp),
        (6, Target::Link(worker), LoseDown),
        (3, Target::Link(worker), Slow),
        (2, Target::AllLinks, Cut),
        (2, Target::AllLinks, Hold),
        (5, Target::ClientLink, Cut),
        (3, Target::ClientLink, Hold),
        (4, Target::ClientLink, LoseDown),
    ];
    if stage.postgres {
        choices.extend([
            (7, Target::Postgres, Kill),
            (3, Target::Postgres, KillMain),
            (6, Target::Postgres, Freeze),
            (4, Target::Postgres, Stop),
        ]);
    }
    if stage.disks {
        choices.push((6, Target::WorkerDisk, Fill));
        if !stage.postgres {
            choices.push((8, Target::ServerDisk, Fill));
        }
    }
    let total = choices.iter().map(|(weight, ..)| weight).sum();
    let mut at = random.within(0..total);
    for (weight, target, harm) in choices {
        if at < weight {
            return (target, harm);
        }
        at -= weight;
    }
    (Target::Server, Kill)
}

/// What keeps a worker away is shorter than its lease, or longer than the lease and its grace.
fn duration(random: &mut Random, target: Target, harm: Harm) -> u64 {
    match (target, harm) {
        (_, Harm::Kill | Harm::KillMain | Harm::Stop | Harm::GiveBack) => match random.chance(30) {
            true => 0,
            false => random.within(50..3000),
        },
        (_, Harm::KillGuardian) => 1000,
        (_, Harm::Fill) => random.within(800..5000),
        (Target::Worker(_) | Target::Link(_) | Target::AllLinks, _) => match random.chance(40) {
            true => random.within(200..2900),
            false => random.within(4500..8000),
        },
        (Target::ClientLink, _) => random.within(30..2500),
        _ => random.within(500..8000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAGE: Stage = Stage { postgres: true, disks: true };

    #[test]
    fn a_seed_repeats_its_plan() {
        assert_eq!(plan(5, 60_000, STAGE), plan(5, 60_000, STAGE));
        assert_ne!(plan(5, 60_000, STAGE), plan(6, 60_000, STAGE));
    }

    #[test]
    fn nothing_is_harmed_twice_at_a_time_and_much_overlaps() {
        let plan = plan(1, 600_000, STAGE);
        let pairs = || plan.iter().enumerate().flat_map(|(n, a)| plan[n + 1..].iter().map(move |b| (a, b)));
        let overlap = |(a, b): &(&Planned, &Planned)| b.at_ms < a.at_ms + a.ms;
        assert!(pairs().filter(overlap).all(|(a, b)| !a.target.conflicts(b.target)));
        assert!(pairs().filter(overlap).count() > 50);
    }

    #[test]
    fn what_is_not_there_is_not_harmed() {
        let plan = plan(1, 600_000, Stage { postgres: false, disks: false });
        let absent = [Target::Postgres, Target::ServerDisk, Target::WorkerDisk];
        assert!(plan.iter().all(|planned| !absent.contains(&planned.target)));
    }
}
