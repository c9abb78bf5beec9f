//! Control groups, version 1 and 2: a folder for the worker with one group per slot in it, which is reused.
//!
//! Version 1 lets a single thread be a member. There the slot's thread sits in the slot's cpu and pids groups, so that
//! its children are born in them and no job pays for a move. It never sits in the memory group: the kernel could then
//! choose the guardian as the victim when a job is out of memory. A job with a memory limit moves itself there, and on
//! version 2 every job moves itself.

use super::message::{Isolation, Limit, Limits, Mechanism};
use hodei_core::id::WorkerId;
use rustix::process::Pid;
use std::{
    collections::BTreeSet,
    fs::{self, File, OpenOptions},
    io::{self, ErrorKind},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

/// The length of the window in which a group may use its share of the processors.
const PERIOD_US: u64 = 100_000;
/// Stands for a limit while it is changed, so that a failed change is not taken for a made one.
const UNKNOWN: u64 = u64::MAX;
/// The kernel refuses less.
const LEAST_QUOTA_US: u64 = 1_000;

/// The worker's folder in every hierarchy that is used.
#[derive(Debug)]
pub(super) struct Groups {
    layout: Layout,
    pids_limit: u32,
}

#[derive(Debug)]
enum Layout {
    V1 { cpu: Option<PathBuf>, memory: Option<PathBuf>, pids: Option<PathBuf> },
    V2 { base: PathBuf, limits: Vec<Limit> },
    None,
}

impl Groups {
    /// The best that this host allows, or the one mechanism that is asked for.
    pub(super) fn detect(worker: WorkerId, pids_limit: u32, only: Option<Mechanism>) -> Self {
        let name = format!("hodei-{worker}");
        let wanted = |mechanism| only.is_none_or(|only| only == mechanism);
        let v1 = || wanted(Mechanism::CgroupV1).then(|| v1_layout(&name)).flatten();
        let v2 = || wanted(Mechanism::CgroupV2).then(|| v2_layout(&name)).flatten();
        Self { layout: v1().or_else(v2).unwrap_or(Layout::None), pids_limit }
    }

    pub(super) fn isolation(&self) -> Isolation {
        match &self.layout {
            Layout::V1 { cpu, memory, pids } => {
                let limits = [(Limit::Cpu, cpu), (Limit::Memory, memory), (Limit::Pids, pids)];
                let limits = limits.into_iter().filter(|(_, base)| base.is_some()).map(|(limit, _)| limit).collect();
                Isolation { mechanism: Mechanism::CgroupV1, limits }
            }
            Layout::V2 { limits, .. } => Isolation { mechanism: Mechanism::CgroupV2, limits: limits.clone() },
            Layout::None => Isolation { mechanism: Mechanism::None, limits: Vec::new() },
        }
    }

    fn bases(&self) -> Vec<&PathBuf> {
        match &self.layout {
            Layout::V1 { cpu, memory, pids } => [cpu, memory, pids].into_iter().flatten().collect(),
            Layout::V2 { base, .. } => vec![base],
            Layout::None => Vec::new(),
        }
    }

    /// Processes in any slot's group: at the start, what a former life left behind.
    pub(super) fn members(&self) -> Vec<Pid> {
        members_of(self.bases().into_iter().flat_map(|base| slot_folders(base)))
    }

    /// Removes the slots' groups, which must be empty.
    pub(super) fn remove_slots(&self) {
        for slot in self.bases().into_iter().flat_map(|base| slot_folders(base)) {
            _ = fs::remove_dir(slot);
        }
    }

    /// Removes all, at the end.
    pub(super) fn remove(&self) {
        self.remove_slots();
        for base in self.bases() {
            _ = fs::remove_dir(base);
        }
    }

    pub(super) fn slot(&self, index: u32) -> io::Result<SlotGroup> {
        let within = |base: &Option<PathBuf>| base.as_ref().map(|base| slot_folder(base, index)).transpose();
        let kind = match &self.layout {
            Layout::V1 { cpu, memory, pids } => {
                let (cpu, memory, pids) = (within(cpu)?, within(memory)?, within(pids)?);
                Kind::V1 { cpu, memory, pids }
            }
            Layout::V2 { base, limits } => Kind::V2 { dir: slot_folder(base, index)?, limits: limits.clone() },
            Layout::None => Kind::None,
        };
        let group = SlotGroup {
            count: kind.pids_folder().map(|dir| File::open(dir.join("pids.current"))).transpose()?,
            kind,
            pids_limit: self.pids_limit,
            applied: Mutex::default(),
            forks_forbidden: AtomicBool::new(true),
        };
        group.allow_forks()?;
        Ok(group)
    }
}

fn slot_folder(base: &Path, index: u32) -> io::Result<PathBuf> {
    let dir = base.join(format!("slot-{index}"));
    create(&dir)?;
    Ok(dir)
}

fn slot_folders(base: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(base) else { return Vec::new() };
    let is_slot = |entry: &fs::DirEntry| entry.file_name().to_string_lossy().starts_with("slot-");
    entries.flatten().filter(is_slot).map(|entry| entry.path()).collect()
}

/// One slot's groups.
#[derive(Debug)]
pub(super) struct SlotGroup {
    kind: Kind,
    /// The file that tells how many there are, be they alive or not reaped yet.
    count: Option<File>,
    pids_limit: u32,
    /// What its files say now, so that they are written only when a job wants something else.
    applied: Mutex<Limits>,
    forks_forbidden: AtomicBool,
}

#[derive(Debug)]
enum Kind {
    V1 { cpu: Option<PathBuf>, memory: Option<PathBuf>, pids: Option<PathBuf> },
    V2 { dir: PathBuf, limits: Vec<Limit> },
    None,
}

impl Kind {
    fn pids_folder(&self) -> Option<&PathBuf> {
        match self {
            Kind::V1 { pids, .. } => pids.as_ref(),
            Kind::V2 { dir, limits } => limits.contains(&Limit::Pids).then_some(dir),
            Kind::None => None,
        }
    }
}

impl SlotGroup {
    /// Whether membership shows which processes belong to the slot.
    pub(super) fn tracks(&self) -> bool {
        !matches!(self.kind, Kind::None)
    }

    /// Makes the calling thread a member where that spares its children the move.
    pub(super) fn enter(&self) -> io::Result<()> {
        if let Kind::V1 { cpu, pids, .. } = &self.kind {
            for dir in [cpu, pids].into_iter().flatten() {
                write(&dir.join("tasks"), "0")?;
            }
        }
        Ok(())
    }

    /// Sets the limits of the next job and returns the member lists that it has to add itself to.
    pub(super) fn prepare(&self, limits: Limits) -> io::Result<Vec<File>> {
        self.allow_forks()?;
        self.apply(limits)?;
        match &self.kind {
            Kind::V1 { memory: Some(dir), .. } if limits.memory_bytes > 0 => {
                Ok(vec![open_to_write(&dir.join("tasks"))?])
            }
            Kind::V2 { dir, .. } => Ok(vec![open_to_write(&dir.join("cgroup.procs"))?]),
            _ => Ok(Vec::new()),
        }
    }

    fn apply(&self, limits: Limits) -> io::Result<()> {
        let mut applied = self.applied.lock().unwrap_or_else(PoisonError::into_inner);
        if applied.cpu_millis != limits.cpu_millis {
            applied.cpu_millis = UNKNOWN;
            self.limit_cpu(limits.cpu_millis)?;
            applied.cpu_millis = limits.cpu_millis;
        }
        if applied.memory_bytes != limits.memory_bytes {
            applied.memory_bytes = UNKNOWN;
            self.limit_memory(limits.memory_bytes)?;
            applied.memory_bytes = limits.memory_bytes;
        }
        Ok(())
    }

    fn limit_cpu(&self, millis: u64) -> io::Result<()> {
        let quota = (millis * PERIOD_US / 1000).max(LEAST_QUOTA_US);
        match &self.kind {
            Kind::V1 { cpu: Some(dir), .. } => {
                let quota = if millis == 0 { "-1".to_owned() } else { quota.to_string() };
                write(&dir.join("cpu.cfs_quota_us"), &quota)
            }
            Kind::V2 { dir, limits } if limits.contains(&Limit::Cpu) => {
                let quota = if millis == 0 { "max".to_owned() } else { quota.to_string() };
                write(&dir.join("cpu.max"), &format!("{quota} {PERIOD_US}"))
            }
            _ => Ok(()),
        }
    }

    fn limit_memory(&self, bytes: u64) -> io::Result<()> {
        match &self.kind {
            // Files in memory that an earlier job left count against the next one's limit. A new group has none.
            Kind::V1 { memory: Some(dir), .. } => limit_memory_v1(dir, bytes).or_else(|_| {
                fs::remove_dir(dir)?;
                create(dir)?;
                limit_memory_v1(dir, bytes)
            }),
            Kind::V2 { dir, limits } if limits.contains(&Limit::Memory) => {
                let text = if bytes == 0 { "max".to_owned() } else { bytes.to_string() };
                write(&dir.join("memory.max"), &text)?;
                write(&dir.join("memory.oom.group"), "1")?;
                // Swap would let a job grow past what it asked for; not every kernel counts it.
                write(&dir.join("memory.swap.max"), if bytes == 0 { "max" } else { "0" }).or_else(ignore_missing)
            }
            _ => Ok(()),
        }
    }

    /// How often the kernel has killed in this group for want of memory.
    pub(super) fn memory_kills(&self) -> u64 {
        let file = match &self.kind {
            Kind::V1 { memory: Some(dir), .. } => dir.join("memory.oom_control"),
            Kind::V2 { dir, limits } if limits.contains(&Limit::Memory) => dir.join("memory.events"),
            _ => return 0,
        };
        let text = fs::read_to_string(file).unwrap_or_default();
        text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok()).unwrap_or(0)
    }

    /// Whether nothing is left, not even what is dead and not reaped; `None` where nobody counts.
    pub(super) fn is_quiet(&self) -> Option<bool> {
        // On version 1 the one that is always there is the slot's thread.
        let quiet: &[u8] = if matches!(self.kind, Kind::V1 { .. }) { b"1\n" } else { b"0\n" };
        let mut text = [0; 8];
        let size = self.count.as_ref()?.read_at(&mut text, 0).ok()?;
        Some(&text[..size] == quiet)
    }

    pub(super) fn members(&self) -> Vec<Pid> {
        match &self.kind {
            Kind::V1 { cpu, memory, pids, .. } => members_of([cpu, memory, pids].into_iter().flatten()),
            Kind::V2 { dir, .. } => members_of([dir]),
            Kind::None => Vec::new(),
        }
    }

    /// From here on nothing in the group can multiply, so that killing it comes to an end.
    pub(super) fn forbid_forks(&self) {
        if !self.forks_forbidden.swap(true, Ordering::SeqCst) {
            _ = self.limit_pids("0");
        }
    }

    fn allow_forks(&self) -> io::Result<()> {
        if !self.forks_forbidden.load(Ordering::SeqCst) {
            return Ok(());
        }
        // On version 1 the slot's thread counts as one.
        let own = u32::from(matches!(self.kind, Kind::V1 { .. }));
        self.limit_pids(&self.pids_limit.saturating_add(own).to_string())?;
        self.forks_forbidden.store(false, Ordering::SeqCst);
        Ok(())
    }

    fn limit_pids(&self, text: &str) -> io::Result<()> {
        self.kind.pids_folder().map_or(Ok(()), |dir| write(&dir.join("pids.max"), text))
    }

    /// Kills all members in one step where the kernel can do that.
    pub(super) fn kill_at_once(&self) -> bool {
        match &self.kind {
            Kind::V2 { dir, .. } => write(&dir.join("cgroup.kill"), "1").is_ok(),
            _ => false,
        }
    }
}

/// The limit on memory and swap together must never be below the one on memory, so their order matters.
fn limit_memory_v1(dir: &Path, bytes: u64) -> io::Result<()> {
    let (memory, both) = (dir.join("memory.limit_in_bytes"), dir.join("memory.memsw.limit_in_bytes"));
    write(&both, "-1").or_else(ignore_missing)?;
    if bytes == 0 {
        return write(&memory, "-1");
    }
    write(&memory, &bytes.to_string())?;
    write(&both, &bytes.to_string()).or_else(ignore_missing)
}

fn ignore_missing(error: io::Error) -> io::Result<()> {
    if error.kind() == ErrorKind::NotFound { Ok(()) } else { Err(error) }
}

/// All processes but our own that these groups list.
fn members_of(dirs: impl IntoIterator<Item = impl AsRef<Path>>) -> Vec<Pid> {
    let mut found = BTreeSet::new();
    for dir in dirs {
        let text = fs::read_to_string(dir.as_ref().join("cgroup.procs")).unwrap_or_default();
        found.extend(text.lines().filter_map(|line| line.parse::<i32>().ok()));
    }
    found.remove(&rustix::process::getpid().as_raw_nonzero().get());
    found.into_iter().filter_map(Pid::from_raw).collect()
}

fn v1_layout(name: &str) -> Option<Layout> {
    let base = |controller| usable(&own_group(Some(controller))?.join(name));
    let (cpu, memory, pids) = (base("cpu"), base("memory"), base("pids"));
    (cpu.is_some() || pids.is_some()).then_some(Layout::V1 { cpu, memory, pids })
}

fn v2_layout(name: &str) -> Option<Layout> {
    let own = own_group(None)?;
    let base = usable(&own.join(name))?;
    let limits = delegate(&own, &base);
    Some(Layout::V2 { base, limits })
}

/// The folder, if it can be made and something can be put in it.
fn usable(base: &Path) -> Option<PathBuf> {
    create(base).ok()?;
    let probe = base.join("probe");
    create(&probe).ok()?;
    fs::remove_dir(&probe).ok()?;
    Some(base.to_owned())
}

/// Hands the controllers down to the slots' groups, as far as they are ours to hand down.
fn delegate(own: &Path, base: &Path) -> Vec<Limit> {
    let offered = fs::read_to_string(own.join("cgroup.controllers")).unwrap_or_default();
    let all = [Limit::Cpu, Limit::Memory, Limit::Pids];
    let offered: Vec<_> =
        all.into_iter().filter(|limit| offered.split_ascii_whitespace().any(|name| name == limit.name())).collect();
    if offered.is_empty() {
        return offered;
    }
    if !offered.iter().all(|limit| hand_down(own, *limit)) {
        make_room(own);
    }
    offered.into_iter().filter(|limit| hand_down(own, *limit) && hand_down(base, *limit)).collect()
}

fn hand_down(group: &Path, limit: Limit) -> bool {
    write(&group.join("cgroup.subtree_control"), &format!("+{}", limit.name())).is_ok()
}

/// A group that hands controllers down must have no processes of its own. If only the agent and its guardian are in it,
/// they move aside.
fn make_room(own: &Path) {
    let (guardian, agent) = (rustix::process::getpid(), rustix::process::getppid());
    let others = members_of([own]).into_iter().any(|pid| Some(pid) != agent);
    let aside = own.join("hodei-agent");
    if others || create(&aside).is_err() {
        return;
    }
    for pid in [agent, Some(guardian)].into_iter().flatten() {
        _ = write(&aside.join("cgroup.procs"), &pid.as_raw_nonzero().to_string());
    }
}

/// The folder of the group that this process is in: of a version 1 controller, or of version 2.
fn own_group(controller: Option<&str>) -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let memberships = fs::read_to_string("/proc/self/cgroup").ok()?;
    let (root, point) = mounts.lines().find_map(|line| mount_of(line, controller))?;
    let path = memberships.lines().find_map(|line| membership_in(line, controller))?;
    // Seen from inside a container the path may be above what is mounted.
    let below = Path::new(path).strip_prefix(root).unwrap_or(Path::new(""));
    let below = below.strip_prefix("/").unwrap_or(below);
    Some(Path::new(point).join(below))
}

/// The root and the place of the mount in a line of mountinfo, if it is of the hierarchy.
fn mount_of<'a>(line: &'a str, controller: Option<&str>) -> Option<(&'a str, &'a str)> {
    let (head, tail) = line.split_once(" - ")?;
    let mut head = head.split(' ').skip(3);
    let (root, point) = (head.next()?, head.next()?);
    let mut tail = tail.split(' ');
    let (kind, options) = (tail.next()?, tail.nth(1)?);
    let fits = match controller {
        Some(name) => kind == "cgroup" && options.split(',').any(|option| option == name),
        None => kind == "cgroup2",
    };
    fits.then_some((root, point))
}

/// The path in a line of /proc/self/cgroup, if it is of the hierarchy.
fn membership_in<'a>(line: &'a str, controller: Option<&str>) -> Option<&'a str> {
    let mut fields = line.splitn(3, ':').skip(1);
    let (controllers, path) = (fields.next()?, fields.next()?);
    let fits = match controller {
        Some(name) => controllers.split(',').any(|controller| controller == name),
        None => controllers.is_empty(),
    };
    fits.then_some(path)
}

fn create(dir: &Path) -> io::Result<()> {
    match fs::create_dir(dir) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        made => made,
    }
}

fn open_to_write(file: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).open(file)
}

/// Control files take one write, and must not be created where they are missing.
fn write(file: &Path, text: &str) -> io::Result<()> {
    io::Write::write_all(&mut open_to_write(file)?, text.as_bytes())
        .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", file.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_and_memberships_are_read() {
        let v1 = "31 24 0:27 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct";
        let v2 = "30 24 0:26 /a /sys/fs/cgroup/unified rw,relatime shared:4 - cgroup2 cgroup2 rw";
        assert_eq!(mount_of(v1, Some("cpu")), Some(("/", "/sys/fs/cgroup/cpu,cpuacct")));
        assert_eq!(mount_of(v1, Some("memory")), None);
        assert_eq!(mount_of(v2, Some("cpu")), None);
        assert_eq!(mount_of(v2, None), Some(("/a", "/sys/fs/cgroup/unified")));
        assert_eq!(membership_in("4:cpu,cpuacct:/x:y", Some("cpuacct")), Some("/x:y"));
        assert_eq!(membership_in("0::/user", None), Some("/user"));
        assert_eq!(membership_in("0::/user", Some("cpu")), None);
    }
}
